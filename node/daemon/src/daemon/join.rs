//! Parts of a daemon, joined.

use super::{Daemon, Handover, Identity};
use crate::cells::{Cells, Spawn};
use crate::clock::Clock;
use crate::compilers::Compilers;
use crate::completion::Completion;
use crate::config::NodeFile;
use crate::control::Control;
use crate::control::desired::Desired;
use crate::control::modules::Modules;
use crate::control::state::{self, Below, NodeState};
use crate::dataplane::DataPlane;
use crate::demand::Demand;
use crate::done::Done;
use crate::ledger::Billing;
use crate::observe::Observe;
use crate::record::{self, Recorder};
use crate::runtime::Runtime;
use crate::systemd::Notifier;
use crate::usage::Usage;
use anyhow::Result;
use module_store::Store;
use node::Node;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc;
use trust::SecretKey;
use units::Nanos;

/// Configuration that a daemon starts with.
#[derive(Clone)]
pub(crate) struct Start {
    pub(crate) file: Arc<NodeFile>,
    /// The node file's path.
    pub(crate) config: PathBuf,
    /// Key of the node.
    pub(crate) key: Arc<SecretKey>,
    /// Core that runs modules.
    pub(crate) guest_core: usize,
    /// Format of the logs of cells.
    pub(crate) log_format: crate::LogFormat,
}

/// Parts that a daemon is made of.
pub(crate) struct Parts {
    /// Moment at which the node's clock was zero.
    pub(crate) started: Instant,
    pub(crate) desired: Desired,
    pub(crate) node: Node,
    pub(crate) store: Store,
    pub(crate) plane: DataPlane,
    /// Run directory of the node.
    pub(crate) directory: PathBuf,
    /// Start of the processes of cells.
    pub(crate) spawn: Spawn,
}

/// Creates a daemon without a cell.
pub(super) fn join(
    start: Start,
    parts: Parts,
    done: mpsc::UnboundedSender<Done>,
) -> Result<Daemon> {
    let clock = Nanos(u64::try_from(parts.started.elapsed().as_nanos()).unwrap_or(u64::MAX));
    let authority = parts.desired.authority(clock, start.file.trust.anyone.clone())?;
    let billed_done = done.clone();
    let billed = Completion::new(move |billed| {
        // A send fails only if the daemon has ended.
        let _ = billed_done.send(Done::Billed(billed));
    });
    let billing = Billing::begin(&start.file.state, &start.key, billed)?;
    let codec_done = done.clone();
    let codec_news = Completion::new(move |(number, news)| {
        // A send fails only if the daemon has ended.
        let _ = codec_done.send(Done::Codec(number, news));
    });
    let compiled_done = done.clone();
    let compiled = Completion::new(move |completed| {
        // A send fails only if the daemon has ended.
        let _ = compiled_done.send(Done::Compiled(completed));
    });
    let (fetched_done, stored_done) = (done.clone(), done.clone());
    let fetched = Completion::new(move |fetched| {
        let _ = fetched_done.send(Done::Fetched(Box::new(fetched)));
    });
    let stored = Completion::new(move |(digest, stored)| {
        let _ = stored_done.send(Done::Stored(digest, stored, None));
    });
    let plane = parts.plane;
    let unsupported = plane.unsupported().map(str::to_owned);
    let below = Below { unsupported, is_allowed: true };
    let state = NodeState::new(state::Parts {
        file: Arc::clone(&start.file),
        config: start.config.clone(),
        key: start.key.public(),
        node: parts.node,
        desired: parts.desired,
        authority,
        modules: Modules::new(parts.store, &start.file.trust),
        below,
    });
    let clock = Clock::since(parts.started);
    let compilers = Compilers::open(&start.file.state, &start.key, compiled);
    let cells = Cells::new(start.guest_core, parts.spawn, codec_news);
    let record = record::path_in(&parts.directory);
    let node = (parts.directory, start.guest_core, clock);
    let usage = Usage::new(billing);
    Ok(Daemon {
        demand: Demand::begin(&start.file, &start.config, fetched, stored)?,
        control: Control::new(state),
        runtime: Runtime::new(node, plane, cells, compilers, usage, done.clone()),
        identity: Identity { file: start.file, node_key: start.key, clock },
        neighbours: None,
        observe: Observe::new(),
        recorder: Recorder::new(record::fingerprint()?, record, clock.now()),
        handover: Handover::default(),
        notifier: Notifier::from_environment(),
        done,
    })
}
