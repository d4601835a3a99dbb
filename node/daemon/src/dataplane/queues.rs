//! Sockets by which packets of ports come to cells: AF_XDP sockets, one for each receive queue, and
//! packet sockets.
//!
//! ```text
//!  open ─▶ GiveQueue ─▶ cell binds it ─▶ bind: the front door sends packets there
//!                                          │
//!            close, end: nothing is sent there; drops and what was left stay counted
//! ```

use super::action::{Action, Actions};
use super::door::Door;
use super::live_port::LivePort;
use super::mode::Mode;
use super::packets::PacketQueue;
use anyhow::{Context, Result};
use cell::protocol::ToCell;
use netlink::Netlink;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use sockets::socket::xdp_drops;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use units::{PortId, SessionId};

/// Sockets of all ports.
#[derive(Debug, Default)]
pub(super) struct Queues {
    /// AF_XDP sockets by port and receive queue.
    sockets: BTreeMap<(PortId, u32), Queue>,
    packets: BTreeMap<PortId, PacketQueue>,
}

/// Receive ring of an AF_XDP socket, in front of the cell.
#[derive(Debug)]
struct Queue {
    socket: OwnedFd,
    /// Session whose packets wait in it.
    session: SessionId,
}

impl Queue {
    /// Creates the queue of a socket, which has no session yet: no session has a reservation at
    /// first.
    const fn new(socket: OwnedFd) -> Self {
        Self { socket, session: SessionId::BEST_EFFORT }
    }
}

impl Queues {
    /// Takes over the sockets that a previous daemon opened.
    pub(super) fn adopt(&mut self, sockets: Vec<((PortId, u32), OwnedFd)>) {
        let queues = sockets.into_iter().map(|(at, socket)| (at, Queue::new(socket)));
        self.sockets = queues.collect();
    }

    /// Makes the front door send packets to the adopted sockets of a port; of a port that is away
    /// they are closed. Returns false when there are none.
    pub(super) fn resume(&mut self, door: &Door, port: &LivePort) -> bool {
        let id = port.id();
        let queues: Vec<_> = self.sockets.keys().filter(|(of, _)| *of == id).copied().collect();
        for at in &queues {
            if port.is_away() {
                self.sockets.remove(at);
            }
            let socket = self.sockets.get(at).map(|queue| queue.socket.as_fd());
            let set = door.set_socket(id, at.1, socket);
            // That of a port which is away has gone with its device.
            if let (Err(error), false) = (set, port.is_away()) {
                tracing::error!(port = %id, queue = at.1, %error, "a receive queue of the port has no socket to the cell: its packets are forwarded without services");
            }
        }
        !queues.is_empty()
    }

    /// Opens a socket for each queue of a port that is there, for the cell.
    ///
    /// # Errors
    /// The kernel does not open them.
    pub(super) fn open(
        &mut self,
        door: &Door,
        netlink: &Netlink,
        port: &LivePort,
        actions: &mut Actions,
    ) -> Result<()> {
        if port.mode() == Mode::Packet {
            return self.open_packets(door, netlink, port, actions);
        }
        for queue in 0..port.queues() {
            let flags = SocketFlags::CLOEXEC;
            let socket = socket_with(AddressFamily::XDP, SocketType::RAW, flags, None)
                .context("opening an AF_XDP socket")?;
            let message = ToCell::AddPort(port.facts(queue));
            give(port, message, vec![copy(&socket)?], actions);
            self.sockets.insert((port.id(), queue), Queue::new(socket));
        }
        Ok(())
    }

    fn open_packets(
        &mut self,
        door: &Door,
        netlink: &Netlink,
        port: &LivePort,
        actions: &mut Actions,
    ) -> Result<()> {
        let (queue, back) = PacketQueue::open(door, netlink, port)?;
        let message = ToCell::AddFrames(port.facts(0), port.bridge());
        give(port, message, vec![copy(&queue)?, copy(&back)?], actions);
        self.packets.insert(port.id(), queue);
        Ok(())
    }

    /// Leads packets of a queue to the cell, which has bound it.
    ///
    /// # Errors
    /// The packets cannot be led there.
    pub(super) fn bind(
        &mut self,
        door: &Door,
        port: &LivePort,
        queue: u32,
        actions: &mut Actions,
    ) -> Result<(), String> {
        let id = port.id();
        if let Some(packets) = self.packets.get_mut(&id) {
            let taken = packets.take_frames(port).map_err(|error| format!("{error:#}"))?;
            actions.push(Action::Give(ToCell::DivertedPort(id), vec![taken]));
            return Ok(());
        }
        let socket = self.sockets.get(&(id, queue)).map(|queue| queue.socket.as_fd());
        door.set_socket(id, queue, socket).map_err(|error| error.to_string())
    }

    /// Closes the sockets of a port. Returns their drops: ring full, and the rest.
    pub(super) fn close(&mut self, door: &Door, port: &LivePort) -> (u64, u64) {
        let mut drops = (0, 0);
        for queue in 0..port.queues() {
            let Some(closed) = self.sockets.remove(&(port.id(), queue)) else { continue };
            // One that was not bound yet is not in the map.
            let _ = door.set_socket(port.id(), queue, None);
            drops = sum(drops, drops_of(&closed));
        }
        (drops.0 + self.close_packets(door, port).1, drops.1)
    }

    /// Closes the packet socket of a port. Returns the number of frames that waited for the cell,
    /// and of those dropped because the buffer was full.
    fn close_packets(&mut self, door: &Door, port: &LivePort) -> (u64, u64) {
        self.packets.remove(&port.id()).map_or((0, 0), |queue| queue.close(door, port))
    }

    /// Closes all sockets: their cell is lost. Returns the number of packets that were left in
    /// them.
    pub(super) fn end(&mut self, door: &Door, ports: &mut [LivePort]) -> u64 {
        let sockets = std::mem::take(&mut self.sockets);
        for (port, queue) in sockets.keys() {
            // A socket that was not bound yet is not in the map.
            let _ = door.set_socket(*port, *queue, None);
        }
        let mut left = 0;
        for port in ports {
            let (waited, dropped) = self.close_packets(door, port);
            port.add_drops((dropped, 0));
            left += waited;
        }
        // One that was not bound yet has nothing, either.
        let rings = sockets.values().filter_map(|it| cell::left_behind(it.socket.as_fd()).ok());
        left + rings.sum::<u64>()
    }

    /// Gives the frames of all packet ports to the kernel again.
    pub(super) fn release_packets(&mut self) {
        self.packets.clear();
    }

    /// Returns the drops in front of a port's sockets: ring full, and the rest; those of closed
    /// sockets count.
    pub(super) fn drops(&self, port: &LivePort) -> (u64, u64) {
        let (full, other) = port.drops_before();
        let packets = self.packets.get(&port.id()).map_or(0, PacketQueue::dropped);
        let queues = (0..port.queues()).filter_map(|queue| self.sockets.get(&(port.id(), queue)));
        queues.map(drops_of).fold((full + packets, other), sum)
    }

    /// Returns the session whose packets wait in a port's queues; `None` while there are none.
    pub(super) fn session(&self, port: PortId) -> Option<SessionId> {
        let session = self.sockets.get(&(port, 0)).map(|queue| queue.session);
        // Nobody has a reservation yet, and so a queue of its own.
        session.or_else(|| self.packets.contains_key(&port).then_some(SessionId::BEST_EFFORT))
    }
}

fn give(port: &LivePort, message: ToCell, fds: Vec<OwnedFd>, actions: &mut Actions) {
    actions.push(Action::GiveQueue { port: port.name().clone(), message, fds });
}

fn copy(fd: &impl AsFd) -> io::Result<OwnedFd> {
    fd.as_fd().try_clone_to_owned()
}

fn drops_of(queue: &Queue) -> (u64, u64) {
    xdp_drops(queue.socket.as_fd()).map_or((0, 0), |drops| (drops.ring_full, drops.other))
}

const fn sum(one: (u64, u64), other: (u64, u64)) -> (u64, u64) {
    (one.0 + other.0, one.1 + other.1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataplane::fake::{absent, door, served};

    const AT: (PortId, u32) = (PortId(1), 0);

    /// Queues with a descriptor that is no socket: the kernel counts nothing there.
    fn adopted() -> Queues {
        let mut queues = Queues::default();
        let file = std::fs::File::open("/dev/null").unwrap();
        queues.adopt(vec![(AT, file.into())]);
        queues
    }

    #[test]
    fn adopted_sockets_stay_where_the_port_does() {
        let mut queues = adopted();
        assert_eq!(queues.session(PortId(1)), Some(SessionId::BEST_EFFORT));
        assert!(queues.resume(&door(), &served(1)));
        assert_eq!(queues.session(PortId(1)), Some(SessionId::BEST_EFFORT));
        assert!(!queues.resume(&door(), &served(2)), "it has none: they are to be opened");
    }

    #[test]
    fn sockets_of_a_port_that_went_meanwhile_are_closed() {
        let mut queues = adopted();
        assert!(queues.resume(&door(), &absent(1)));
        assert_eq!(queues.session(PortId(1)), None);
    }

    #[test]
    fn drops_of_closed_sockets_count_and_sockets_are_closed_once() {
        let mut port = served(1);
        port.add_drops((3, 1));
        let mut queues = adopted();
        assert_eq!(queues.drops(&port), (3, 1));
        assert_eq!(queues.close(&door(), &port), (0, 0));
        assert_eq!(queues.session(PortId(1)), None);
        assert_eq!(queues.close(&door(), &port), (0, 0));
    }

    #[test]
    fn nothing_is_left_of_a_lost_cell() {
        let mut queues = adopted();
        assert_eq!(queues.end(&door(), &mut [served(1)]), 0);
        assert_eq!(queues.session(PortId(1)), None);
    }

    #[test]
    fn a_port_without_queues_has_nothing_to_open() {
        let mut actions = Actions::default();
        let netlink = Netlink::open().unwrap();
        Queues::default().open(&door(), &netlink, &absent(1), &mut actions).unwrap();
        assert_eq!(actions.words(), [""; 0]);
    }
}
