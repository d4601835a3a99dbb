//! A node's process, from taking its name to its end.
//!
//! ```text
//!  lock ─▶ state, node file ─▶ what a daemon before left, or anew ─▶ serve ─▶ taken down
//!                │ a mistake                                            └──▶ handed over
//!                ▼
//!     what was left stays in force
//! ```

use crate::access::Gate;
use crate::associations::Neighbours;
use crate::barrier::Barrier;
use crate::config::NodeFile;
use crate::daemon::adopt;
use crate::daemon::{Found, Start};
use crate::dataplane::closing;
use crate::listen::{Listening, listen};
use crate::record::{self, Record};
use crate::request::Incoming;
use crate::{private, run_directory};
use anyhow::{Context, Result, bail};
use module_store::Store;
use namespaces::netns::{self, NetNs};
use netlink::Monitor;
use std::fs::File;
use std::io::Write as _;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::time::Duration;
use units::Name;

/// Requests that wait for the daemon's attention.
const REQUESTS_MAX: usize = 64;

/// End of a node's process.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// Everything is taken down.
    Down,
    /// Everything keeps running, for another daemon.
    HandedOver,
}

/// Takes the node's name for this process. The lock can only be held by users who may open it.
pub(crate) fn lock(name: &Name) -> Result<File> {
    let directory = run_directory(name);
    std::fs::create_dir_all(&directory)
        .with_context(|| format!("making {}", directory.display()))?;
    let path = directory.join("lock");
    let file = private::create(&path).with_context(|| format!("opening {}", path.display()))?;
    file.try_lock().with_context(|| {
        format!("a node named '{name}' runs already; 'tam show --node {name}' shows it")
    })?;
    Ok(file)
}

/// Runs the node to its end; its name is taken with [`lock`].
pub(crate) async fn run(start: Start, lock: File, bpf: bool) -> Result<()> {
    let name = start.file.name.clone();
    let prepared = match Prepared::open(&start).await {
        Err(error) if is_left(&name) => {
            tracing::warn!(
                "the node did not start, and what the daemon before left running goes on: correct the fault, and start the node again"
            );
            return Err(error);
        }
        prepared => prepared,
    };
    let directory = run_directory(&name);
    let ports = start.file.ports.clone();
    let mut stays_closed = false;
    let ended = match prepared {
        Ok(prepared) => {
            stays_closed = prepared.found.stays_closed;
            run_locked(start, prepared, bpf).await
        }
        Err(error) => Err(error),
    };
    if matches!(ended, Ok(End::HandedOver)) {
        return Ok(());
    }
    if let (Err(error), true) = (&ended, stays_closed) {
        closing::close_all(&name, &ports);
        let mut marker = private::create(&directory.join(STAYS_CLOSED))?;
        write!(marker, "{}", record::namespace())?;
        tracing::warn!(
            error = format!("{error:#}"),
            "a service that shall run is closed, so the ports stay closed: start the node again \
             when the fault is corrected, or open them with 'tam node --cleanup {name}'"
        );
        return ended.map(drop);
    }
    closing::open_names(&name);
    drop(lock);
    std::fs::remove_dir_all(&directory)
        .with_context(|| format!("removing {}", directory.display()))?;
    ended.map(drop)
}

/// File of the run directory of a node that could not start: its ports stay closed. It has the
/// inode of their network namespace.
const STAYS_CLOSED: &str = "closed";

/// Returns true when a previous daemon has left a record of what runs.
fn has_record(name: &Name) -> bool {
    Record::read(name).is_ok_and(|record| record.is_some())
}

/// Returns the network namespace of a dead node's ports, if it is another one than this process's;
/// a namespace that has been removed took them along.
///
/// # Errors
/// The namespace has no name here, and a process is in it.
pub(crate) fn namespace_of(name: &Name) -> Result<Option<NetNs>> {
    let marker = std::fs::read_to_string(run_directory(name).join(STAYS_CLOSED)).ok();
    let recorded = Record::read(name).ok().flatten().map(|record| record.namespace);
    let inode = recorded.or_else(|| marker?.trim().parse().ok()).unwrap_or(0);
    if inode == 0 || inode == record::namespace() {
        return Ok(None);
    }
    for named in netns::list().unwrap_or_default() {
        let Ok(namespace) = NetNs::open(&named) else { continue };
        if namespace.inode().is_ok_and(|it| it == inode) {
            return Ok(Some(namespace));
        }
    }
    let is_in_it = |pid: &u32| {
        let link = std::fs::read_link(format!("/proc/{pid}/ns/net")).ok();
        link.is_some_and(|link| {
            link.as_os_str().as_encoded_bytes() == format!("net:[{inode}]").as_bytes()
        })
    };
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    match pids.find(is_in_it) {
        Some(pid) => bail!(
            "the ports of the node '{name}' are in another network namespace: run this there, with 'nsenter --target {pid} --net'"
        ),
        None => Ok(None),
    }
}

/// Returns true when a previous daemon has left something in force.
fn is_left(name: &Name) -> bool {
    has_record(name) || run_directory(name).join(STAYS_CLOSED).exists()
}

/// Opens what a starting node continues from.
fn find(start: &Start) -> Result<Found> {
    let Start { file, config, .. } = start;
    let barrier = (!has_record(&file.name)).then(|| Barrier::raise(file, None));
    let store = open_store(file)?;
    let desired = crate::control::apply::open(file, config, &store)?;
    let stays_closed = is_left(&file.name) && desired.state().has_closed_service();
    Ok(Found { store, desired, barrier, stays_closed })
}

/// Listeners and state of a node that starts, opened before what a previous daemon left is touched.
struct Prepared {
    found: Found,
    monitor: Monitor,
    neighbours: Option<Neighbours>,
    listening: Listening,
    /// Requests received so far; they are answered when the daemon serves.
    requests: mpsc::Receiver<Incoming>,
}

impl Prepared {
    async fn open(start: &Start) -> Result<Self> {
        let found = find(start)?;
        let monitor = Monitor::open().context("listening for changes of routes and devices")?;
        let Start { file, key, .. } = start;
        let gate = Gate::new(file.trust.administrators.clone(), !file.trust.anyone.is_empty());
        let gate = Arc::new(gate);
        let neighbours = Neighbours::listen(file, key, Arc::clone(&gate))?;
        let (sender, requests) = mpsc::channel(REQUESTS_MAX);
        let listening = listen(file, key, found.store.clone(), gate, sender).await?;
        Ok(Self { found, monitor, neighbours, listening, requests })
    }
}

/// Opens the module store of a node file.
pub(crate) fn open_store(file: &NodeFile) -> Result<Store> {
    Store::open(&file.store)
        .with_context(|| format!("opening the module store {}", file.store.display()))
}

async fn run_locked(start: Start, prepared: Prepared, bpf: bool) -> Result<End> {
    let Prepared { found, monitor, neighbours, listening, requests } = prepared;
    let (done, done_rx) = mpsc::unbounded_channel();
    let name = start.file.name.clone();
    let mut daemon = crate::daemon::adopt_or_start(start, found, done).inspect_err(|_| {
        // What the daemon set up is taken down again; the first failure is the one that is
        // reported.
        let _ = adopt::take_down(&name);
    })?;
    if let Err(error) = daemon.begin(neighbours, bpf) {
        // Nobody could ask it to end, or adopt what it leaves.
        daemon.stop();
        return Err(error);
    }
    let ended = daemon.serve(monitor, requests, done_rx).await;
    daemon.end_associations();
    if ended.is_ok() && daemon.is_handed_over() {
        // The client needs this time to read its answer, and no more.
        tokio::time::sleep(ANSWERED_WITHIN).await;
        tracing::info!(node = %name, "handed over: everything goes on without this daemon");
        return Ok(End::HandedOver);
    }
    drop(listening);
    daemon.stop();
    ended.map(|()| End::Down)
}

/// Time within which an answer that was given is on its way.
const ANSWERED_WITHIN: Duration = Duration::from_millis(20);
