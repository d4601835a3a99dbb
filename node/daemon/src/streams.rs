//! Services of streams: their listeners and sockets, which only the daemon may open, and the
//! kernel's rules by which connections come to them.
//!
//! ```text
//!  start ─▶ compile ─▶ listeners, nftables table, rules, routes ─▶ cell ─▶ started
//!  cell: WantsSockets ─▶ Sockets, some dozens a message
//!  stop, or the cell is lost ─▶ the table goes with the cell's descriptors, rules and routes behind it
//! ```

use crate::cell_work::bytes_of;
use crate::cells::CellNumber;
use crate::control::placement::Candidates;
use crate::daemon::{Daemon, Done};
use crate::deploy::Module;
use abi::Level;
use abi::check::Kind;
use anyhow::{Context, Result};
use cell::Compiled;
use cell::protocol::{KeptFacts, StreamFacts, ToCell};
use netlink::{Interception, Netlink};
use node::{Event, ServiceStart};
use sandbox::fd_passing::DESCRIPTORS_MAX;
use sockets::transparent::{Listeners, unconnected};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use units::EntryId;

/// Sockets that a cell may ask for at once: some hundreds are enough for the connections that begin
/// until there are more.
const SOCKETS_MAX: u16 = 1_024;

/// Delays of the searches for remains of interceptions, after the end of a service: a child of the
/// daemon that has not yet become another program holds copies of descriptors, and a table goes with
/// the last of them.
const SWEEPS: [Duration; 4] =
    [Duration::ZERO, Duration::from_millis(100), Duration::from_secs(1), Duration::from_secs(10)];

/// Returns what a cell is told of a service of streams.
pub(crate) fn facts(start: ServiceStart, module: &Module) -> StreamFacts {
    StreamFacts {
        entry: start.entry,
        name: start.service.to_string(),
        session: start.session,
        memory_pages_max: module.checked.memory.pages_max,
        parameters: bytes_of(start.parameters),
        closed: start.closed,
        kept: KeptFacts { module: module.wasm.len() as u32, code: 0 },
    }
}

impl Daemon {
    /// Its module is compiled.
    pub(crate) fn begin_streams(&mut self, facts: StreamFacts, compiled: &Arc<Compiled>) {
        let entry = facts.entry;
        self.begin_meters(entry);
        match self.try_start_streams(facts, compiled) {
            Ok(Some(port)) => {
                self.event(Event::ServiceListens { entry, port });
                self.settle_gro(None);
            }
            // Its loss has been told; another one starts the service anew.
            Ok(None) => {}
            Err(error) => self.not_begun(entry, None, format!("{error:#}")),
        }
    }

    /// The code of a new version is there.
    pub(crate) fn replace_streams(&mut self, mut facts: StreamFacts, compiled: &Arc<Compiled>) {
        let entry = facts.entry;
        facts.kept.code = compiled.code_length();
        self.plane.instances.begin_next(entry);
        let message = ToCell::ReplaceStreams(Box::new(facts));
        match self.cells.send(entry, &message, &[compiled.code.as_fd()]) {
            Ok(()) => self.place(|it, _| {
                let levels = vec![Level::User];
                let candidates = Candidates { levels, unfit: Vec::new() };
                it.handle_version_given(entry, candidates);
            }),
            Err(error) => {
                self.plane.instances.forget_next(entry);
                self.event_later(Event::ReplaceFailed { entry, reason: format!("{error:#}") })
            }
        }
    }

    fn try_start_streams(
        &mut self,
        mut facts: StreamFacts,
        compiled: &Arc<Compiled>,
    ) -> Result<Option<u16>> {
        let entry = facts.entry;
        if !self.cells.has_cell_of(entry) {
            return Ok(None);
        }
        facts.kept.code = compiled.code_length();
        let Listeners { v4, v6, port } =
            Listeners::open().context("listening for intercepted connections")?;
        let interception = Interception::begin(&self.plane.netlink, port)
            .context("having the kernel take connections that are marked")?;
        let mut fds = vec![compiled.code.as_fd(), interception.as_fd(), v4.as_fd()];
        fds.extend(v6.as_ref().map(AsFd::as_fd));
        if let Err(error) = self.cells.send(entry, &ToCell::StartStreams(Box::new(facts)), &fds) {
            drop(interception);
            self.sweep_interceptions();
            return Err(error);
        }
        Ok(Some(port))
    }

    /// Creates sockets for a cell to connect with.
    pub(crate) fn make_sockets(&self, cell: CellNumber, wants: [u16; 2]) {
        for (wanted, v6) in wants.into_iter().zip([false, true]) {
            let made = (0..wanted.min(SOCKETS_MAX)).map(|_| unconnected(v6));
            let made: Vec<OwnedFd> = made.map_while(Result::ok).collect();
            if made.len() < usize::from(wanted) {
                tracing::warn!(
                    wanted,
                    made = made.len(),
                    v6,
                    "too few sockets for connections of stream services: they wait"
                );
            }
            for some in made.chunks(DESCRIPTORS_MAX) {
                let fds: Vec<_> = some.iter().map(AsFd::as_fd).collect();
                self.cells.tell_cell(cell, &ToCell::Sockets { v6 }, &fds);
            }
        }
    }

    /// A service is gone; if it had streams, nothing of them is left.
    pub(crate) fn end_streams(&mut self, entry: EntryId) {
        let service = self.control.node().service_of(entry);
        if service.is_some_and(|service| service.module.kind == Kind::Streams) {
            self.sweep_interceptions();
            self.settle_gro(Some(entry));
        }
    }

    /// Removes what interceptions have left, now and when their tables are gone for certain.
    pub(crate) fn sweep_interceptions(&self) {
        for after in SWEEPS {
            if after.is_zero() {
                end_interceptions(&self.plane.netlink);
                continue;
            }
            let done = self.done.clone();
            tokio::spawn(async move {
                tokio::time::sleep(after).await;
                let _ = done.send(Done::InterceptionsLeft);
            });
        }
    }
}

/// Rules and routes of interceptions go whose table went with a cell: what is left of them would
/// only take packets that nobody marks.
pub(crate) fn end_interceptions(netlink: &Netlink) {
    if let Err(error) = netlink.end_left_interceptions() {
        tracing::warn!(%error, "rules of interceptions may be left");
    }
}
