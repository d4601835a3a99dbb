//! Adoption of what a previous daemon left: programs, maps, the cell and its services.
//!
//! ```text
//!  record of this version, its ports, pins ── no ──▶ taken down, started anew
//!      │ yes
//!      ├─ its cell answers ─▶ what ran goes on; the cell lets go of all else
//!      └─ it does not ──────▶ lost like any cell: another one starts every service anew
//! ```
//!
//! No packet notices: nothing is detached, no map is emptied, no socket closed. What was half
//! done is brought to one of its two ends: see `node::state`'s `resume`.

use super::join::Parts;
use crate::cells::{self, CellLink};
use crate::config::NodeFile;
use crate::control::apply::check_wanted;
use crate::control::desired::Desired;
use crate::daemon::{Daemon, Done, Start};
use crate::dataplane::cell_devices::CellDevices;
use crate::dataplane::door::Door;
use crate::dataplane::live_port::LivePort;
use crate::dataplane::{self, DataPlane, requirements, undo, way_back};
use crate::record::{self, Record};
use crate::run_directory;
use crate::usage::Before;
use anyhow::{Context, Result, bail, ensure};
use bpf::FrontDoor;
use cell::protocol::{Adopted, ReturnedFd};
use module_store::Store;
use netlink::{Change, Netlink};
use node::Node;
use node::state::CellState;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::path::Path;
use tokio::sync::mpsc;
use units::{EntryId, Name, PortId};

/// Milliseconds within which a cell ends a call of each lane, and answers.
const ANSWER_WITHIN_MS: u64 = 5000;

/// Cell that a previous daemon started, and the descriptors that it gave.
struct Cell {
    serves: Serves,
    kernel: OwnedFd,
    up: OwnedFd,
}

/// Connection to an adopted cell, with what runs there.
struct Serves {
    link: CellLink,
    answer: Adopted,
    sockets: Vec<((PortId, u32), OwnedFd)>,
}

/// Adopts what runs already, and returns its daemon; `None` when nothing runs.
///
/// # Errors
/// The node cannot be adopted: then nothing has been changed for good, and it has to be taken down.
pub(super) fn adopt(
    start: &Start,
    store: &Store,
    desired: &mut Option<Desired>,
    done: &mpsc::UnboundedSender<Done>,
) -> Result<Option<Daemon>> {
    let file = &start.file;
    let Some(record) = Record::read(&file.name)? else { return Ok(None) };
    ensure!(
        record.fingerprint == record::fingerprint()?,
        "it is of another version, whose programs, maps or cell are others"
    );
    ensure!(record.ports == file.ports, "the node file has other ports now");
    ensure!(!record.has_packet_ports, "it has packet ports, whose sockets went with it");
    let started = record.clock_zero();
    let (cell_was, cell_pid) = (record.node.cell(), record.cell);
    let ran: Vec<EntryId> = record.node.running().collect();
    let node = Node::restore(file.name.clone(), file.ports.clone(), record.node)?;
    let netlink = Netlink::open().context("opening netlink")?;
    let numbers: Vec<PortId> = node.ports().iter().map(|port| port.id).collect();
    let mut front = FrontDoor::adopt(&file.name, &numbers)
        .context("opening the objects that are pinned in the BPF file system")?;
    let ends = node::other_ends(node.ports(), &file.bridge.0)?;
    let (ports, gone) = adopt_ports(&netlink, &front, &node, &ends)?;
    let wanted = desired.as_ref().context("the node's desired state cannot be read")?;
    if crate::dataplane::closing::is_wanted(wanted.state(), &node) {
        crate::dataplane::closing::close_unserved(&file.name, &ports);
    }
    for port in gone {
        front.detach_gone(port)?;
    }

    let cell = match (cell_was, cell_pid) {
        (CellState::Ready, Some(pid)) => adopt_cell(&file.name, pid, ran),
        _ => Err(anyhow::anyhow!("the cell was not ready")),
    };
    end_cells(&file.name, cell.as_ref().ok().map(|cell| cell.serves.link.pid()))?;
    let (cell, devices) = match cell {
        Ok(Cell { serves, kernel, up }) => {
            (Ok(serves), CellDevices::adopt(&netlink, &file.name, kernel, up)?)
        }
        Err(error) => {
            let devices = CellDevices::make(&netlink, &file.name, true)?;
            (Err(format!("{error:#}")), devices)
        }
    };
    let front = Door::of(front);
    let parts = Parts {
        started,
        desired: desired.take().context("the node's desired state cannot be read")?,
        node,
        store: store.clone(),
        plane: DataPlane::adopt(file, dataplane::Parts { front, netlink, ports, devices })?,
        directory: run_directory(&file.name),
        spawn: cells::spawn_on(start.guest_core, start.log_format),
    };
    let mut daemon = super::join::join(start.clone(), parts, done.clone())?;
    let before = Before {
        closed: record.closed,
        fuel_closed: record.fuel_closed,
        sessions: record.sessions_before,
        meters: record.meters,
    };
    daemon.runtime.adopt(before, record.lost_with_cells, record.speed);
    daemon.runtime.renew_capacity(&mut daemon.control);
    daemon.runtime.with_plane(&mut daemon.control, |plane, around| {
        plane.promises().settle_shares(around.node);
    });
    take_up(&mut daemon, cell)?;
    Ok(Some(daemon))
}

/// Goes on with an adopted cell, or without one for a reason.
fn take_up(daemon: &mut Daemon, cell: Result<Serves, String>) -> Result<()> {
    let entries: Vec<EntryId> =
        daemon.control.node().services().map(|service| service.entry).collect();
    hold_all(daemon);
    for entry in entries {
        if let Err(error) = daemon.runtime.adopt_instance(&mut daemon.control, entry) {
            let error = format!("{error:#}");
            tracing::warn!(%entry, error, "a service's shared memory cannot be opened: it stays at its level and cannot move");
        }
    }
    daemon.control.set_now(daemon.now());
    match cell {
        Ok(Serves { link, answer, sockets }) => {
            let runs: BTreeSet<EntryId> = answer.services.iter().map(|(entry, _)| *entry).collect();
            tracing::info!(
                pid = link.pid(),
                services = runs.len(),
                "adopted what a daemon before left: nothing was stopped"
            );
            daemon.runtime.adopt_cell(&daemon.control, link);
            daemon.runtime.try_with_plane(&mut daemon.control, |plane, around| {
                plane.adopt_queues(around, sockets)
            })?;
            daemon.runtime.end_all_below_but(&mut daemon.control, &runs);
            daemon.runtime.adopt_meters(&mut daemon.control, &runs);
            daemon.control.adopt(Ok(&runs));
            super::actions::settle(daemon);
            for (entry, home) in answer.services {
                if let Some(home) = home {
                    daemon.runtime.stay(&mut daemon.control, entry, home);
                }
            }
        }
        Err(reason) => {
            tracing::info!(reason, "adopted what a daemon before left, without its cell");
            daemon.runtime.end_all_below_but(&mut daemon.control, &BTreeSet::new());
            daemon.runtime.adopt_meters(&mut daemon.control, &BTreeSet::new());
            daemon.control.adopt(Err(reason));
            super::actions::settle(daemon);
            daemon.runtime.with_plane(&mut daemon.control, |plane, _| plane.sweep_interceptions());
        }
    }
    daemon.runtime.compile_running(&daemon.control);
    daemon
        .runtime
        .with_plane(&mut daemon.control, |plane, around| plane.handle_change(around, Change::Lost))
}

/// Loads the modules of all services into memory; the store has them.
pub(super) fn hold_all(daemon: &mut Daemon) {
    let digests: Vec<String> =
        daemon.control.node().services().map(|service| service.module.digest.clone()).collect();
    for text in digests {
        let Ok(digest) = text.parse() else { continue };
        if let Err(error) = daemon.control.state_mut().modules_mut().load(&digest) {
            let error = error.message;
            tracing::warn!(
                digest = text,
                error,
                "a module is not in the store: it runs on, and cannot start again"
            );
        }
    }
}

/// Checks that a node can start here, before anything that it has left is touched.
///
/// # Errors
/// The file wants something new that is impossible; or ports to be adopted belong to another
/// network namespace, or their pins to another file system; or devices of ports are missing here,
/// or are unfit as ports, and nothing could be adopted without them.
pub(crate) fn check_place(file: &NodeFile, config: &Path) -> Result<()> {
    // One that cannot be read is taken down.
    if let Ok(Some(record)) = Record::read(&file.name) {
        if let Some(followed) = &record.followed {
            check_wanted(file, config, followed)?;
        }
        let pins = Path::new(bpf::front_door::PIN_DIRECTORY).join(file.name.as_str());
        if !pins.exists() && !record.has_packet_ports && has_front_door(&record) {
            bail!(
                "the front door of the node '{}' is at its ports, and its pins in another file system than this process sees at {}: start it with 'nsenter --net=/run/netns/NAME', which 'ip netns exec' is not (docs/start/troubleshooting.md)",
                file.name,
                bpf::pin::BPFFS
            );
        }
        if record.namespace != 0 && record.namespace != record::namespace() {
            let (name, namespace) = (&file.name, record.namespace);
            ensure!(
                !has_devices(name, record)?,
                "the ports of the node '{name}' are in another network namespace, net:[{namespace}], and go on there: start it there, or take them down with 'tam node --cleanup {name}'"
            );
        } else if !record.has_packet_ports
            && record.ports == file.ports
            && record.fingerprint == record::fingerprint()?
        {
            return Ok(());
        }
    }
    requirements::check_devices(&file.ports)
}

/// Returns true when a front door is at one of the ports' devices here.
fn has_front_door(record: &Record) -> bool {
    let Ok(netlink) = Netlink::open() else { return false };
    let indices =
        record.ports.iter().filter_map(|port| Some(netlink.link(&port.device).ok()?.index));
    indices.map(bpf::xdp_program_on).any(|name| name == bpf::front_door::DOOR)
}

/// Returns true when a port of what was recorded still has its device.
fn has_devices(name: &Name, record: Record) -> Result<bool> {
    let node = Node::restore(name.clone(), record.ports, record.node)?;
    let ports: Vec<PortId> = node.ports().iter().map(|port| port.id).collect();
    // The pins are of another version, or partly removed: nothing that still works can be lost.
    let Ok(front) = FrontDoor::adopt(name, &ports) else { return Ok(false) };
    Ok(ports.into_iter().any(|port| front.device_of(port).is_some()))
}

/// Returns all ports, and those that are away: their devices are no longer those with their
/// programs. They come back like any port.
fn adopt_ports(
    netlink: &Netlink,
    front: &FrontDoor,
    node: &Node,
    ends: &BTreeMap<PortId, PortId>,
) -> Result<(Vec<LivePort>, Vec<PortId>)> {
    let mut before = undo::remembered(node.name())?;
    let devices: BTreeSet<&str> =
        node.ports().iter().map(|port| port.spec.device.as_str()).collect();
    let (mut live, mut gone) = (Vec::new(), Vec::new());
    for port in node.ports() {
        let (id, device) = (port.id, &port.spec.device);
        let end = ends.get(&id).copied();
        let at = before.iter().position(|undo| undo.device() == device);
        let undo = at.map(|at| {
            // A port's device first, then those below it.
            let below = before[at + 1..].iter().take_while(|undo| !devices.contains(undo.device()));
            let until = at + 1 + below.count();
            before.drain(at..until).collect()
        });
        let is_there = |live: &LivePort| front.device_of(id) == Some(live.config().ifindex);
        let adopted = undo.map(|undo| LivePort::adopt(netlink, port.clone(), end, undo));
        match adopted.and_then(Result::ok).filter(is_there) {
            Some(mut port) => {
                port.take_up(&front.port_config(id)?);
                live.push(port);
            }
            None => {
                gone.push(id);
                let reason = format!("the device {device} went while no daemon was there");
                live.push(LivePort::absent(port.clone(), end, reason));
            }
        }
    }
    Ok((live, gone))
}

fn adopt_cell(node: &Name, pid: u32, ran: Vec<EntryId>) -> Result<Cell> {
    let directory = run_directory(node);
    let (process, socket) = cells::find(&directory, pid).context("the cell is gone")?;
    let (answer, given) = cell::adopt(&socket, ran, ANSWER_WITHIN_MS)?;
    let (mut sockets, mut kernel, mut up) = (Vec::new(), None, None);
    for (what, fd) in given {
        match what {
            ReturnedFd::Socket(port, queue) => sockets.push(((port, queue), fd)),
            ReturnedFd::Kernel => kernel = Some(fd),
            ReturnedFd::Tap => up = Some(fd),
        }
    }
    let link = CellLink::take_over(process, &directory, socket)?;
    let kernel =
        kernel.context("the cell did not return its descriptor for packets to the kernel")?;
    let up = up.context("the cell did not return its descriptor for packets from the kernel")?;
    Ok(Cell { serves: Serves { link, answer, sockets }, kernel, up })
}

/// Ends every cell of a node but one. Returns the process IDs of those that ran.
pub(crate) fn end_cells(node: &Name, but: Option<u32>) -> Result<Vec<u32>> {
    let directory = run_directory(node);
    let mut ended = Vec::new();
    for pid in cell::known_in(&directory).context("looking for cells")? {
        if Some(pid) == but {
            continue;
        }
        if let Some((process, _)) = cells::find(&directory, pid) {
            cells::end(&process).with_context(|| format!("ending the cell {pid}"))?;
            ended.push(pid);
        }
        let _ = std::fs::remove_file(cell::socket_in(&directory, pid));
    }
    Ok(ended)
}

/// Takes down what a daemon before left, but for what is closed by the names of its ports; returns
/// the names of what there was.
pub(crate) fn take_down(node: &Name) -> Result<Vec<String>> {
    // The record is removed first: from now on nothing can be adopted.
    Record::remove(node);
    let ended = end_cells(node, None)?;
    let mut removed: Vec<String> = ended.iter().map(|pid| format!("cell {pid}")).collect();
    removed.extend(bpf::front_door::remove(node)?);
    removed.extend(undo::restore_left_over(node)?);
    let netlink = Netlink::open().context("opening netlink")?;
    let left =
        netlink.remove_orphaned_interceptions().context("removing rules of interceptions")?;
    removed.extend(left.iter().map(|port| format!("rules for connections to port {port}")));
    if way_back::remove_entry(&netlink, node) {
        removed.push("the way into the kernel".to_owned());
    }
    Ok(removed)
}
