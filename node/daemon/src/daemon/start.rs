//! Starts of a daemon: over what runs already, or anew.

use super::{Daemon, Handover, Identity};
use crate::barrier::Barrier;
use crate::cells::Cells;
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
use crate::events::Note;
use crate::ledger::Billing;
use crate::life::Found;
use crate::observe::Observe;
use crate::record::{self, Recorder};
use crate::runtime::Runtime;
use crate::usage::Usage;
use anyhow::Result;
use api::EventKind;
use module_store::Store;
use netlink::Change;
use node::Node;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc;
use trust::SecretKey;
use units::Nanos;

/// Which node a daemon is to be.
#[derive(Clone)]
pub(crate) struct Start {
    pub(crate) file: Arc<NodeFile>,
    /// The node file's path.
    pub(crate) config: PathBuf,
    /// Who the node is.
    pub(crate) key: Arc<SecretKey>,
    /// The core that runs modules.
    pub(crate) guest_core: usize,
}

/// What a daemon begins with.
pub(crate) struct Parts {
    /// When the node's clock was zero.
    pub(crate) started: Instant,
    pub(crate) desired: Desired,
    pub(crate) node: Node,
    pub(crate) store: Store,
    pub(crate) plane: DataPlane,
}

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
            let (name, ports) = (&daemon.identity.file.name, daemon.runtime.plane.ports().len());
            let text = format!("the node '{name}' goes on with {ports} ports: adopted");
            daemon.note(Note::new(EventKind::NodeStarted, text));
            daemon.runtime.with_plane(&mut daemon.control, |plane, _| plane.note_uncounted());
            return Ok(daemon);
        }
        Ok(None) => {}
        Err(error) => {
            let error = format!("{error:#}");
            tracing::warn!(error, "what a daemon before left cannot be adopted, it is taken down");
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
    let parts = Parts { started, desired, node, store, plane };
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
        daemon.runtime.plane.ports().len()
    );
    daemon.note(Note::new(EventKind::NodeStarted, text));
    daemon.runtime.with_plane(&mut daemon.control, |plane, _| plane.note_modes());
    Ok(daemon)
}

/// A daemon without a cell.
pub(super) fn join(
    start: Start,
    parts: Parts,
    done: mpsc::UnboundedSender<Done>,
) -> Result<Daemon> {
    let clock = Nanos(u64::try_from(parts.started.elapsed().as_nanos()).unwrap_or(u64::MAX));
    let authority = parts.desired.authority(clock, start.file.trust.anyone.clone())?;
    let billing = Billing::begin(&start.file.state, &start.key, done.clone())?;
    let codec_done = done.clone();
    let codec_news = Completion::new(move |(number, news)| {
        // The daemon is gone when nobody receives: nothing is left to do.
        let _ = codec_done.send(Done::Codec(number, news));
    });
    let compiled_done = done.clone();
    let compiled = Completion::new(move |completed| {
        // The daemon is gone when nobody receives: nothing is left to do.
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
    let cells = Cells::new(start.guest_core, codec_news);
    let node = (start.file.name.clone(), start.guest_core, clock);
    let usage = Usage::new(billing);
    Ok(Daemon {
        demand: Demand::begin(&start.file, &start.config, fetched, stored)?,
        control: Control::new(state),
        runtime: Runtime::new(node, plane, cells, compilers, usage, done.clone()),
        identity: Identity { file: start.file, node_key: start.key, clock },
        neighbours: None,
        observe: Observe::new(),
        recorder: Recorder::new(record::fingerprint()?, Instant::now()),
        handover: Handover::default(),
        done,
    })
}
