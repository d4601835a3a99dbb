//! Packet ports: devices without XDP, whose frames the cell takes by packet sockets.
//!
//! ```text
//!  wire ─▶ device ─▶ packet socket ─▶ cell ─▶ a service, or
//!             │                        └─▶ tpa-N ═ tpb-N ─▶ redirected: comes in by the device
//!             └─▶ taken from the kernel ◀── once more, marked ──────────┘
//!                     └─ marked ─▶ the kernel's stack
//! ```
//!
//! A frame that the kernel shall have goes back in by a veth pair of the node's, so that the
//! kernel sees it on its device and as it came. What takes frames from the kernel ends with the
//! cell and the daemon: without both the kernel has them all, unless a service is closed. Then
//! the ingress of the device stays closed until the node is taken down, or the last such service
//! is gone. ADR 0007 has the why.

use crate::cells::CellNumber;
use crate::daemon::Daemon;
use crate::dataplane::door::Door;
use crate::dataplane::ports::{self, LivePort, Mode};
use crate::events::Note;
use anyhow::{Context, Result};
use api::EventKind;
use bpf_maps::{PORT_PACKET, SLOW_NO_REDIRECT};
use cell::protocol::{KERNEL_MAC, ToCell};
use namespaces::netns::NetNs;
use netlink::{Link, Netlink, Taken, VethEnd};
use sockets::frame_socket::{FrameSocket, SENT_MARK, TAKEN_MARK};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};
use units::{Name, PortId};

/// A veth pair is ready to send within this.
const PAIR_READY_WITHIN: Duration = Duration::from_secs(5);
/// Any frame fits through it.
const PAIR_MTU: u32 = 65_535;
/// The cell has read rules within this, or it is busy with something else.
const RULES_READ_WITHIN: Duration = Duration::from_millis(100);

/// A packet port that a cell serves.
#[derive(Debug)]
pub(crate) struct PacketQueue {
    socket: FrameSocket,
    /// From the moment when the cell has it.
    taken: Option<Taken>,
    /// Frames of the port that were counted before this socket.
    before: u64,
}

impl PacketQueue {
    /// Returns the frames that found the socket full.
    pub(crate) fn dropped(&self) -> u64 {
        self.socket.counted().map_or(0, |counted| counted.dropped)
    }
}

/// The devices by which frames go back: the cell's end, and the one that they come in by.
fn pair_names(port_index: u32) -> [String; 2] {
    ["tpa", "tpb"].map(|end| format!("{end}-{port_index}"))
}

/// Frames that were lost on a port's way back into the kernel.
pub(crate) fn lost_on_way_back(port: &LivePort, links: &[Link]) -> u64 {
    let [ours, _] = pair_names(port.config.ifindex);
    let pair = links.iter().find(|link| port.mode == Mode::Packet && link.name == ours);
    pair.map_or(0, |link| link.stats.tx_packets_dropped.0)
}

/// Makes the way back into the kernel for a device; the name of the device to be removed.
pub(crate) fn make_way_back(netlink: &Netlink, port: u32, mac: [u8; 6]) -> Result<String> {
    let [ours, theirs] = pair_names(port);
    let namespace = NetNs::current()?;
    // One that a node which died has left would lead to a device that is gone.
    if let Ok(left) = netlink.link(&ours) {
        netlink.delete_link(left.index)?;
    }
    let ends = [&*ours, &*theirs].map(|name| VethEnd { name, namespace: &namespace });
    netlink.create_veth(ends, PAIR_MTU)?;
    let made = connect(netlink, [&ours, &theirs], port, mac);
    made.inspect_err(|_| {
        // The first failure is the one to tell.
        let _ = netlink.link(&ours).and_then(|link| netlink.delete_link(link.index));
    })?;
    Ok(ours)
}

fn connect(netlink: &Netlink, names: [&String; 2], port: u32, mac: [u8; 6]) -> Result<()> {
    for name in names {
        // The kernel says nothing of its own there.
        ports::set_if_there(&format!("net/ipv6/conf/{name}/disable_ipv6"), "1");
    }
    let [ours, theirs] = [netlink.link(names[0])?.index, netlink.link(names[1])?.index];
    // Frames for the port are for this end, too.
    netlink.set_mac(theirs, mac)?;
    netlink.redirect_to(theirs, port)?;
    netlink.set_up(theirs)?;
    netlink.set_up(ours)?;
    Ok(netlink.wait_running(ours, PAIR_READY_WITHIN)?)
}

/// The devices by which packets come in that have no port, and the cell's end of them.
fn entry_names(node: &Name) -> [String; 2] {
    ["tpi", "tam"].map(|prefix| ports::device_name(prefix, node))
}

/// Makes the device by which the cell gives packets to the kernel where there need be no TUN
/// devices; the cell's way to it.
pub(crate) fn make_entry(netlink: &Netlink, node: &Name) -> Result<FrameSocket> {
    remove_entry(netlink, node);
    let names = entry_names(node);
    let namespace = NetNs::current()?;
    let ends = [&*names[0], &*names[1]].map(|name| VethEnd { name, namespace: &namespace });
    netlink.create_veth(ends, ports::DEVICE_MTU)?;
    let [ours, theirs] = [netlink.link(&names[0])?.index, netlink.link(&names[1])?.index];
    ports::set_if_there(&format!("net/ipv6/conf/{}/disable_ipv6", names[0]), "1");
    ports::takes_foreign_sources(netlink, &names[1], theirs)?;
    netlink.set_mac(theirs, KERNEL_MAC)?;
    netlink.set_up(theirs)?;
    netlink.set_up(ours)?;
    netlink.wait_running(ours, PAIR_READY_WITHIN)?;
    FrameSocket::open(ours).context("opening the way into the kernel")
}

/// Removes it; whether there was one.
pub(crate) fn remove_entry(netlink: &Netlink, node: &Name) -> bool {
    let [ours, _] = entry_names(node);
    netlink.link(&ours).and_then(|link| netlink.delete_link(link.index)).is_ok()
}

/// The port's device has another address.
pub(crate) fn readdress(netlink: &Netlink, port: u32, mac: [u8; 6]) -> Result<()> {
    let [_, theirs] = pair_names(port);
    Ok(netlink.set_mac(netlink.link(&theirs)?.index, mac)?)
}

impl Daemon {
    /// Gives the cell what it needs before the first packet port: rules, and where to count.
    pub(crate) fn begin_packets(&self) -> Result<()> {
        let Some(packets) = self.plane.front.packets() else { return Ok(()) };
        self.cells.send_all(&ToCell::Counts, &[packets.counts.as_fd()])?;
        self.send_rules()
    }

    fn send_rules(&self) -> Result<()> {
        let Some(packets) = self.plane.front.packets().filter(|_| self.cells.is_any()) else {
            return Ok(());
        };
        let memory = sandbox::fd_passing::sealed_memory("tam-rules", &packets.rules)
            .context("putting the rules into memory")?;
        self.cells.send_all(&ToCell::Rules(packets.number), &[memory.as_fd()])
    }

    /// Has the cell use the rules of now, and waits until it does: who is told of a rule may
    /// rely on it with the next packet.
    pub(crate) fn tell_rules(&self) {
        let Some(packets) = self.plane.front.packets().filter(|_| self.cells.is_any()) else {
            return;
        };
        if let Err(error) = self.send_rules() {
            let error = format!("{error:#}");
            return tracing::error!(error, "the cell does not know the rules");
        }
        let asked = Instant::now();
        while packets.counts.rules() != packets.number {
            if asked.elapsed() > RULES_READ_WITHIN {
                return tracing::warn!("the cell is busy: it uses the rules a little later");
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Gives the cell the sockets of a packet port.
    pub(crate) fn open_packets(&mut self, index: usize) -> Result<()> {
        self.close_ports();
        let port = &self.plane.ports[index];
        let (id, device) = (port.port.id, port.config.ifindex);
        if !self.cells.is_any() {
            return Ok(());
        }
        let [ours, _] = pair_names(device);
        let ours = self.plane.netlink.link(&ours)?.index;
        let socket =
            FrameSocket::open_marked(device, SENT_MARK).context("opening a packet socket")?;
        let back = FrameSocket::open_marked(ours, TAKEN_MARK)
            .context("opening the way into the kernel")?;
        let facts = port.facts(0);
        let bridge = port.bridge;
        let message = ToCell::AddFrames(facts, bridge);
        let fds = [socket.as_fd(), back.as_fd()];
        self.cells.send_queue(CellNumber::FIRST, &message, &fds)?;
        let before = self.plane.front.port_stats(id)?.rx_packets;
        self.plane.packets.insert(id, PacketQueue { socket, taken: None, before });
        Ok(())
    }

    /// The cell has a packet port: from now on its frames are the cell's. One that comes just
    /// now is lost; none is handled twice.
    pub(crate) fn take_frames(&mut self, id: PortId) -> Result<()> {
        let port =
            self.plane.ports.iter().find(|port| port.port.id == id).context("no such port")?;
        let queue = self.plane.packets.get_mut(&id).context("the port has no socket")?;
        let taken = Taken::take(&port.port.spec.device, port.config.ifindex, TAKEN_MARK)?;
        let room = queue.socket.take()?;
        tracing::debug!(port = %port.port.spec.name, room, "the cell has the port's frames");
        self.cells.send_all(&ToCell::Taken(id), &[taken.as_fd()])?;
        queue.taken = Some(taken);
        Ok(())
    }

    /// The kernel has a port's frames again. Gives those that waited for the cell.
    pub(crate) fn close_packets(&mut self, id: PortId) -> u64 {
        let Some(PacketQueue { socket, taken, before }) = self.plane.packets.remove(&id) else {
            return 0;
        };
        drop(taken);
        let counted = socket.counted().unwrap_or_default();
        if let Some(port) = self.plane.ports.iter_mut().find(|port| port.port.id == id) {
            port.socket_drops.0 += counted.dropped;
        }
        let handled = self.plane.front.port_stats(id).map_or(0, |stats| stats.rx_packets);
        counted.received.saturating_sub(handled.saturating_sub(before))
    }

    /// Tells of ports that are served in another way than the best one, and of what is not counted.
    pub(crate) fn note_modes(&mut self) {
        let fallbacks: Vec<Note> = self.plane.ports.iter().filter_map(fallback).collect();
        fallbacks.into_iter().for_each(|note| self.note(note));
        self.note_uncounted();
    }

    /// Says that what the kernel drops is not counted, if it is not.
    pub(crate) fn note_uncounted(&mut self) {
        if let Some(reason) = self.plane.front.uncounted().map(str::to_owned) {
            let text = "what the kernel drops of what is left to it is not counted here";
            self.note(Note::new(EventKind::DropsUncounted, text).reason(reason));
        }
    }
}

/// What is to be told of a port's mode.
pub(crate) fn fallback(port: &LivePort) -> Option<Note> {
    let is_packet = port.mode == Mode::Packet && port.away.is_none();
    let reason = match &port.mode_reason {
        Some(reason) => reason.clone(),
        None if is_packet => "the node file says so".to_owned(),
        None => return None,
    };
    let (mode, cost) = (port.mode.name(), port.mode.cost());
    let name = &port.port.spec.name;
    let text = format!("the port '{name}' is served as {mode}: {cost}");
    Some(Note::new(EventKind::PortFallback, text).port(name).reason(reason))
}

/// Serves a port by packet sockets.
pub(crate) fn serve(netlink: &Netlink, door: &mut Door, port: &mut LivePort) -> Result<()> {
    door.use_packets()?;
    let made = make_way_back(netlink, port.config.ifindex, port.config.mac)
        .context("making the way back into the kernel")?;
    port.made_way_back(&made)?;
    port.queues = 1;
    port.mode = Mode::Packet;
    // XDP in a driver does not send there; what cuts through crosses at tc.
    port.config.flags |= PORT_PACKET;
    port.config.slow = SLOW_NO_REDIRECT;
    Ok(door.know_packet_port(port.port.id, &port.config)?)
}
