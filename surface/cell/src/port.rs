//! The ports of a cell: one socket for each receive queue.

use crate::deliver::l3_offset;
use crate::protocol::PortFacts;
use abi::PacketBytes;
use bpf_maps::QUEUES_MAX;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use units::PortId;
use xsk::{FramePool, Packet, SetupError, Socket, SocketConfig, Umem};

/// Entries of each ring: at 3 million packets a second two thirds of a millisecond.
pub(crate) const RING_ENTRIES: u32 = 2048;

/// One port: the queues that are bound.
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) name: String,
    pub(crate) mac: [u8; 6],
    pub(crate) mtu: u32,
    /// IP packets leave by it, without the Ethernet header.
    pub(crate) raw: bool,
    pub(crate) sockets: Vec<Socket>,
    /// The queue of each socket.
    pub(crate) queues: Vec<u32>,
}

/// All ports, by number.
#[derive(Debug, Default)]
pub(crate) struct Ports(Vec<Option<Port>>);

impl Ports {
    /// Binds a queue; its port is made with its first one.
    pub(crate) fn add(
        &mut self,
        facts: &PortFacts,
        fd: OwnedFd,
        umem: &Rc<Umem>,
        pool: &mut FramePool,
    ) -> Result<(), SetupError> {
        let config = SocketConfig {
            ifindex: facts.ifindex,
            queue: facts.queue,
            number: facts.port.0 * QUEUES_MAX as u16 + facts.queue as u16,
            ring_entries: RING_ENTRIES,
            multi_buffer: true,
        };
        let shares: Vec<_> =
            self.0.iter().flatten().flat_map(|p| &p.sockets).map(AsFd::as_fd).collect();
        let mut socket = Socket::new(fd, Rc::clone(umem), &config, &shares)?;
        socket.refill(pool);
        let index = usize::from(facts.port.0);
        if self.0.len() <= index {
            self.0.resize_with(index + 1, || None);
        }
        let port = self.0[index].get_or_insert_with(|| Port {
            name: facts.name.clone(),
            mac: facts.mac,
            mtu: facts.mtu,
            raw: facts.raw,
            sockets: Vec::new(),
            queues: Vec::new(),
        });
        (port.mac, port.mtu) = (facts.mac, facts.mtu);
        port.sockets.push(socket);
        port.queues.push(facts.queue);
        Ok(())
    }

    /// The port's device changed its address or its MTU.
    pub(crate) fn change(&mut self, port: PortId, mac: [u8; 6], mtu: u32) {
        if let Some(port) = self.0.get_mut(usize::from(port.0)).and_then(Option::as_mut) {
            (port.mac, port.mtu) = (mac, mtu);
        }
    }

    /// Lets go of a port; what it had received is handled. Gives how many packets still
    /// waited to be sent.
    pub(crate) fn remove(&mut self, port: PortId, pool: &mut FramePool) -> u64 {
        let mut port = self.0.get_mut(usize::from(port.0)).and_then(Option::as_mut);
        port.iter_mut().for_each(|port| port.queues.clear());
        let sockets = port.into_iter().flat_map(|port| port.sockets.drain(..));
        sockets.map(|socket| socket.dissolve(pool)).sum()
    }

    /// The port, if it can send.
    pub(crate) fn get(&self, port: u16) -> Option<&Port> {
        self.0.get(usize::from(port))?.as_ref().filter(|port| !port.sockets.is_empty())
    }

    /// Puts a packet on a port's transmit ring.
    pub(crate) fn send(&mut self, port: u16, packet: Packet) -> Result<(), (Packet, SendFailure)> {
        let found = self.0.get_mut(usize::from(port)).and_then(Option::as_mut);
        let Some(Port { raw, sockets, .. }) = found else {
            return Err((packet, SendFailure::NoPort));
        };
        let Some(socket) = sockets.first_mut() else {
            return Err((packet, SendFailure::NoPort));
        };
        let packet = if *raw { without_ethernet(packet)? } else { packet };
        socket.send(packet).map_err(|packet| (packet, SendFailure::Full))
    }

    /// Every socket, with its port's number.
    pub(crate) fn sockets(&mut self) -> impl Iterator<Item = (PortId, &mut Socket)> {
        self.0.iter_mut().enumerate().flat_map(|(number, port)| {
            let sockets = port.iter_mut().flat_map(|p| &mut p.sockets);
            sockets.map(move |socket| (PortId(number as u16), socket))
        })
    }

    /// The descriptor of every socket, with its port's number and its queue.
    pub(crate) fn queues(&self) -> impl Iterator<Item = (PortId, u32, BorrowedFd<'_>)> {
        self.iter().flat_map(|(number, port)| {
            let sockets = port.sockets.iter().zip(&port.queues);
            sockets.map(move |(socket, queue)| (PortId(number), *queue, socket.as_fd()))
        })
    }

    /// Every port, with its number; also one whose device is gone.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u16, &Port)> {
        self.0.iter().enumerate().filter_map(|(number, p)| Some((number as u16, p.as_ref()?)))
    }
}

/// The IP packet of a frame.
#[cold]
fn without_ethernet(mut packet: Packet) -> Result<Packet, (Packet, SendFailure)> {
    let taken = l3_offset(packet.head())
        .and_then(|offset| packet.resize_head(-i32::try_from(offset).ok()?).ok());
    if taken.is_none() {
        return Err((packet, SendFailure::NotIp));
    }
    Ok(packet)
}

/// Why a packet was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendFailure {
    /// The port is not there.
    NoPort,
    /// Its transmit ring is full.
    Full,
    /// It takes IP packets, and this is none.
    NotIp,
}
