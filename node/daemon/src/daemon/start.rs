//! Start of a daemon: adoption of what runs, or a fresh start.

use super::Daemon;
use super::join::{Parts, Start, join};
use crate::barrier::Barrier;
use crate::cells::spawn_on;
use crate::control::desired::Desired;
use crate::dataplane::DataPlane;
use crate::done::Done;
use crate::events::Note;
use crate::run_directory;
use anyhow::Result;
use api::EventKind;
use module_store::Store;
use netlink::Change;
use node::Node;
use std::time::Instant;
use tokio::sync::mpsc;
use units::Nanos;

/// Desired state and barrier of a node that starts, before anything else is touched.
pub(crate) struct Found {
    pub(crate) store: Store,
    pub(crate) desired: Desired,
    /// Barrier; `None` while what a previous daemon left still decides about packets.
    pub(crate) barrier: Option<Barrier>,
    /// True when the ports stay closed if the node does not start: one before it left something,
    /// and a service that shall run is closed.
    pub(crate) stays_closed: bool,
}

/// Adopts what runs already, or starts the node afresh.
///
/// # Errors
/// The node cannot start.
pub(crate) fn adopt_or_start(
    start: Start,
    found: Found,
    done: mpsc::UnboundedSender<Done>,
) -> Result<Daemon> {
    let Found { store, desired, barrier, stays_closed } = found;
    let mut desired = Some(desired);
    match super::adopt::adopt(&start, &store, &mut desired, &done) {
        Ok(Some(mut daemon)) => {
            let (observe, view) = daemon.observe();
            observe.begin_drops(&view);
            let (name, ports) = (&daemon.identity.file.name, daemon.runtime.plane().ports().len());
            let text = format!("the node '{name}' goes on with {ports} ports: adopted");
            // Behind what the ports have said.
            daemon.control.note(Note::new(EventKind::NodeStarted, text));
            daemon.runtime.with_plane(&mut daemon.control, |plane, _| plane.note_uncounted());
            return Ok(daemon);
        }
        Ok(None) => {}
        Err(error) => {
            let error = format!("{error:#}");
            tracing::warn!(
                error,
                "what the daemon before left running cannot be adopted: it is removed, and services start anew"
            );
        }
    }
    let barrier = barrier.unwrap_or_else(|| {
        let state = desired.as_ref().map(|desired| &**desired.state());
        Barrier::raise(&start.file, state)
    });
    if stays_closed {
        crate::dataplane::closing::close_all(&start.file.name, &start.file.ports);
    }
    for what in super::adopt::take_down(&start.file.name)? {
        tracing::info!(what, "took down what a dead node of this name had left");
    }
    let mut daemon = start_anew(start, store, desired, done)?;
    daemon.runtime.with_plane(&mut daemon.control, |plane, around| plane.close_ports(around));
    barrier.lower();
    Ok(daemon)
}

fn start_anew(
    start: Start,
    store: Store,
    desired: Option<Desired>,
    done: mpsc::UnboundedSender<Done>,
) -> Result<Daemon> {
    let Start { file, config, .. } = &start;
    let mut node = Node::new(file.name.clone(), file.ports.clone())?;
    // An adoption that has failed late had it.
    let desired = desired.map_or_else(|| crate::control::apply::open(file, config, &store), Ok)?;
    let plane = DataPlane::start(file, &node, desired.state())?;
    node.handle_timeout(Nanos::ZERO);
    let started = Instant::now();
    let (directory, spawn) =
        (run_directory(&file.name), spawn_on(start.guest_core, start.log_format));
    let parts = Parts { started, desired, node, store, plane, directory, spawn };
    let mut daemon = join(start, parts, done)?;
    daemon.runtime.renew_capacity(&mut daemon.control);
    daemon.runtime.with_plane(&mut daemon.control, |plane, around| {
        plane.handle_change(around, Change::Lost)
    })?;
    let (observe, view) = daemon.observe();
    observe.begin_drops(&view);
    let text = format!(
        "the node '{}' runs with {} ports",
        daemon.identity.file.name,
        daemon.runtime.plane().ports().len()
    );
    // Behind what the ports have said.
    daemon.control.note(Note::new(EventKind::NodeStarted, text));
    daemon.runtime.with_plane(&mut daemon.control, |plane, _| plane.note_modes());
    Ok(daemon)
}
