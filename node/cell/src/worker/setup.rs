//! Start of a cell's process: everything it needs is created, then it is confined.

use super::Cell;
use crate::control::deferred::Deferred;
use crate::control::link::Link;
use crate::control::reports::Reports;
use crate::datapath::Datapath;
use crate::dispatch::Dispatcher;
use crate::intake::Intake;
use crate::memory::Memory;
use crate::packet_memory::PacketMemory;
use crate::sched::Scheduler;
use crate::service::loader::Loader;
use crate::streams::turns::StreamTurns;
use anyhow::{Context, Result};
use engine::Engine;
use executor::PreemptionTimer;
use rustix::fd::OwnedFd;
use sandbox::Role;
use std::num::NonZeroU64;
use std::path::Path;
use units::CoarseInstant;
use xsk::Umem;

/// Nice value of the process, nine times the weight of an ordinary one: a guest core belongs to the
/// cell, and what shares it on a small machine still makes progress.
const NICE: i32 = -10;

/// Creates a cell, and confines the process.
pub(super) fn confined(
    daemon: OwnedFd,
    directory: &Path,
    queues: u32,
    core: Option<usize>,
) -> Result<Cell> {
    // Started through /proc/self/exe, the process would be called "exe".
    rustix::thread::set_name(c"tam").context("naming the process")?;
    // A socket as standard error cannot be read by others either.
    let _ = sandbox::child::reopen_standard_error_write_only();
    // Without the permission, it has no priority on its core.
    let _ = rustix::process::setpriority_process(None, NICE);
    // The default timer slack would delay packets by 50 µs; this value makes timers exact.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    if let Some(core) = core {
        sandbox::cores::pin_to(core).with_context(|| format!("pinning the cell to core {core}"))?;
    }
    let engine = Engine::new().context("creating the engine for modules")?;
    // Nothing is compiled once the process is confined.
    engine.prepare().context("creating the engine for modules")?;
    let stream_engine =
        proxy_wasm::Engine::new().context("creating the engine for stream modules")?;
    let (raised, of_streams) = (engine.clone(), stream_engine.clone());
    let raise = move || {
        raised.raise_epoch();
        of_streams.raise_epoch();
    };
    let preemption_timer = PreemptionTimer::new(raise).context("making the slice timer")?;
    let memory = PacketMemory::of(queues);
    let (umem, pool) = Umem::new(memory.frames()).context("mapping the packet memory")?;
    let link = Link::new(daemon, directory).context("listening for daemons")?;
    let accounts = Memory::new();
    let streams = StreamTurns::new(stream_engine, accounts.clone())
        .context("preparing the tables of connections")?;
    // The value is read once, by means that a confined process lacks.
    let _ = rustix::param::page_size();
    let role = Role::Cell { locked_bytes: umem.length() as u64 };
    let confined = sandbox::confine(role).context("confining the cell")?;
    tracing::debug!(?confined, "the cell is confined");
    let scheduler = Scheduler::new(preemption_timer, memory, accounts.clone());
    let path = Datapath::new(umem, pool);
    Ok(Cell {
        link,
        deferred: Deferred::default(),
        reports: Reports::default(),
        loader: Loader::new(engine.clone(), accounts),
        intake: Intake::new(),
        dispatcher: Dispatcher::new(engine, path, scheduler),
        streams,
        awake_until: CoarseInstant::ZERO,
    })
}
