//! Ports of a cell: one AF_XDP socket for each receive queue, or packet sockets.

use crate::datapath::cycle::Rounds;
use crate::datapath::link::l3_offset;
use crate::packet_memory::{LEAVING_MAX, WAITING_MAX};
use crate::protocol::CellPort;
use abi::PacketBytes;
use bpf_maps::QUEUES_MAX;
use node::door::DoorPort;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use sockets::frame_socket::{Buffer, Frame, FrameSocket, PIECES_MAX, Unfinished};
use std::io;
use std::rc::Rc;
use units::{CoarseInstant, PortId};
use xsk::{FramePool, Packet, Rings, SEGMENTS_MAX, SetupError, Socket, SocketConfig, Umem};

/// Number of entries of each socket's rings. Receive: as many packets as all sessions together may
/// have waiting, so that no session overflows a ring in front of another. Transmit: two thirds of a
/// millisecond at 3 million packets a second.
pub(crate) const RINGS: Rings = Rings { receive: WAITING_MAX, transmit: LEAVING_MAX };

/// Port, with its bound queues.
#[derive(Debug)]
pub(crate) struct Port {
    name: String,
    mac: [u8; 6],
    mtu: u32,
    /// Set if packets leave as IP packets without an Ethernet header.
    raw: bool,
    /// Set if what leaves by the port can arrive by a port of the same node.
    cabled: bool,
    /// Set if the device may receive a frame again without passing the front door.
    in_driver: bool,
    sockets: Vec<Socket>,
    /// Number of the queue of each socket.
    queues: Vec<u32>,
    /// Sockets of a packet port, which has no AF_XDP sockets.
    frames: Option<FramePort>,
}

/// Sockets of a packet port.
#[derive(Debug)]
pub(crate) struct FramePort {
    /// Socket by which frames arrive and leave.
    socket: FrameSocket,
    /// Socket whose frames arrive by the port again, for the kernel.
    back: FrameSocket,
    door: DoorPort,
    /// Keeps the port's frames from the kernel as long as it is open; never read.
    taken: Option<OwnedFd>,
}

impl FramePort {
    /// Receives a frame, if there is one, and returns it with the port's description for
    /// classification.
    pub(crate) fn receive<'a>(&self, buffer: &'a mut Buffer) -> Option<(&DoorPort, Frame<'a>)> {
        let frame = self.socket.receive(buffer).ok().flatten()?;
        Some((&self.door, frame))
    }

    /// Sends a frame unchanged.
    ///
    /// # Errors
    /// The device does not take it.
    pub(crate) fn send(&self, frame: Frame<'_>) -> io::Result<()> {
        self.socket.send(&[frame.bytes], frame.unfinished)
    }

    /// Returns a frame unchanged to the kernel. Returns false if the kernel lacks memory for it, or
    /// the path is being removed.
    pub(crate) fn return_frame(&self, frame: Frame<'_>) -> bool {
        self.back.send(&[frame.bytes], frame.unfinished).is_ok()
    }
}

impl Port {
    /// Returns the name of the port.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the MAC address of its device.
    #[inline]
    pub(crate) const fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// Returns its L3 MTU in bytes.
    #[inline]
    pub(crate) const fn mtu(&self) -> usize {
        self.mtu as usize
    }

    /// Updates what may change while the port is in use.
    fn take_up(&mut self, facts: &CellPort) {
        (self.mac, self.mtu, self.cabled) = (facts.mac, facts.mtu, facts.cabled);
        self.in_driver = facts.in_driver;
        if let Some(frames) = &mut self.frames {
            frames.door.mac = facts.mac;
        }
    }
}

/// Ports of the cell, by number.
#[derive(Debug, Default)]
pub(crate) struct Ports {
    all: Vec<Option<Port>>,
    rounds: Rounds,
}

impl Ports {
    /// Binds a queue, with `ready` frames to receive into and at most `leaving` frames to send; its
    /// first queue creates the port.
    pub(crate) fn add(
        &mut self,
        facts: &CellPort,
        fd: OwnedFd,
        umem: &Rc<Umem>,
        pool: &mut FramePool,
        ready: u32,
        leaving: u32,
    ) -> Result<(), SetupError> {
        let config = SocketConfig {
            ifindex: facts.ifindex,
            queue: facts.queue,
            number: facts.port.0 * QUEUES_MAX as u16 + facts.queue as u16,
            rings: RINGS,
            leaving_max: leaving,
            multi_buffer: true,
        };
        let shares: Vec<_> =
            self.all.iter().flatten().flat_map(|p| &p.sockets).map(AsFd::as_fd).collect();
        let mut socket = Socket::new(fd, Rc::clone(umem), &config, &shares)?;
        socket.refill(pool, ready);
        let port = self.make(facts);
        port.sockets.push(socket);
        port.queues.push(facts.queue);
        Ok(())
    }

    /// Binds a port to packet sockets: its own, and one that leads back into the kernel.
    pub(crate) fn add_frames(
        &mut self,
        facts: &CellPort,
        bridge: Option<PortId>,
        [socket, back]: [OwnedFd; 2],
    ) {
        let door = DoorPort { id: facts.port, mac: facts.mac, bridge };
        let (socket, back) = (FrameSocket::from(socket), FrameSocket::from(back));
        self.make(facts).frames = Some(FramePort { socket, back, door, taken: None });
    }

    /// Returns the port, created if necessary and updated.
    fn make(&mut self, facts: &CellPort) -> &mut Port {
        let index = usize::from(facts.port.0);
        if self.all.len() <= index {
            self.all.resize_with(index + 1, || None);
        }
        let port = self.all[index].get_or_insert_with(|| Port {
            name: facts.name.clone(),
            mac: facts.mac,
            mtu: facts.mtu,
            raw: facts.raw,
            cabled: facts.cabled,
            in_driver: facts.in_driver,
            sockets: Vec::new(),
            queues: Vec::new(),
            frames: None,
        });
        port.take_up(facts);
        port
    }

    /// Returns the sockets of a packet port.
    pub(crate) fn frames(&self, port: u16) -> Option<&FramePort> {
        self.all.get(usize::from(port))?.as_ref()?.frames.as_ref()
    }

    /// Returns the range of all port numbers.
    pub(crate) fn numbers(&self) -> std::ops::Range<u16> {
        // Port numbers are 16 bits wide.
        0..self.all.len() as u16
    }

    /// Stores the descriptor that keeps a port's frames from the kernel.
    pub(crate) fn hold_taken(&mut self, port: PortId, taken: OwnedFd) {
        let port = self.all.get_mut(usize::from(port.0)).and_then(Option::as_mut);
        if let Some(frames) = port.and_then(|port| port.frames.as_mut()) {
            frames.taken = Some(taken);
        }
    }

    /// Hands a packet to the kernel as one that has just arrived by this packet port. Returns false
    /// if the kernel refuses it, and `None` for another kind of port, whose packets only XDP could
    /// pass. IP arrived addressed to the port and is returned so, even if its module changed the
    /// address, which a route would have replaced.
    pub(crate) fn give_back(&self, port: u16, packet: &mut Packet, is_ip: bool) -> Option<bool> {
        let frames = self.frames(port)?;
        if is_ip && packet.store(0, &frames.door.mac).is_err() {
            return Some(false);
        }
        Some(send_frame(&frames.back, packet).is_ok())
    }

    /// Returns true if a port's device receives frames that are sent to it for the kernel.
    pub(crate) fn receives(&self, port: u16) -> bool {
        let port = self.all.get(usize::from(port)).and_then(Option::as_ref);
        port.is_some_and(|port| port.in_driver)
    }

    /// Addresses a frame to its arrival port, even if its module changed the address, which a route
    /// would have replaced. Returns false if it cannot.
    pub(crate) fn address(&self, port: u16, packet: &mut Packet) -> bool {
        let port = self.all.get(usize::from(port)).and_then(Option::as_ref);
        port.is_some_and(|port| port.raw || packet.store(0, &port.mac).is_ok())
    }

    /// Updates a port whose device changed.
    pub(crate) fn change(&mut self, facts: &CellPort) {
        if let Some(port) = self.all.get_mut(usize::from(facts.port.0)).and_then(Option::as_mut) {
            port.take_up(facts);
        }
    }

    /// Sets the time, once for all packets of a round.
    pub(crate) fn set_time(&mut self, now: CoarseInstant) {
        self.rounds.set_time(now);
    }

    /// Returns true if a frame circulates and must be dropped: it begins with `head`, arrived by
    /// `arrival`, and is to leave unchanged by `egress`.
    #[inline]
    pub(crate) fn is_worn_out(&mut self, head: &[u8], arrival: u16, egress: u16) -> bool {
        self.is_cabled(egress) && {
            let came_round = self.is_cabled(arrival);
            !self.rounds.allow(head, came_round)
        }
    }

    #[inline]
    fn is_cabled(&self, port: u16) -> bool {
        self.get(port).is_some_and(|port| port.cabled)
    }

    /// Closes the sockets of a port; the caller has handled what it received. Returns the number of
    /// packets that were still to be sent.
    pub(crate) fn remove(&mut self, port: PortId, pool: &mut FramePool) -> u64 {
        let mut port = self.all.get_mut(usize::from(port.0)).and_then(Option::as_mut);
        port.iter_mut().for_each(|port| {
            port.queues.clear();
            port.frames = None;
        });
        let sockets = port.into_iter().flat_map(|port| port.sockets.drain(..));
        sockets.map(|socket| socket.dissolve(pool)).sum()
    }

    /// Returns the port, if it can send.
    pub(crate) fn get(&self, port: u16) -> Option<&Port> {
        let port = self.all.get(usize::from(port))?.as_ref();
        port.filter(|port| !port.sockets.is_empty() || port.frames.is_some())
    }

    /// Puts a packet on a port's transmit ring, or into the queue of its device.
    pub(crate) fn send(
        &mut self,
        port: u16,
        packet: Packet,
        pool: &mut FramePool,
    ) -> Result<(), (Packet, SendFailure)> {
        let found = self.all.get_mut(usize::from(port)).and_then(Option::as_mut);
        let Some(Port { raw, sockets, frames, .. }) = found else {
            return Err((packet, SendFailure::NoPort));
        };
        if let Some(frames) = frames {
            return match send_frame(&frames.socket, &packet) {
                Ok(()) => {
                    packet.recycle(pool);
                    Ok(())
                }
                Err(failure) => Err((packet, failure)),
            };
        }
        let Some(socket) = sockets.first_mut() else {
            return Err((packet, SendFailure::NoPort));
        };
        let packet = if *raw { without_ethernet(packet)? } else { packet };
        socket.send(packet).map_err(|packet| (packet, SendFailure::Full))
    }

    /// Returns every AF_XDP socket, with the number of its port.
    pub(crate) fn sockets(&mut self) -> impl Iterator<Item = (PortId, &mut Socket)> {
        self.all.iter_mut().enumerate().flat_map(|(number, port)| {
            let sockets = port.iter_mut().flat_map(|p| &mut p.sockets);
            sockets.map(move |socket| (PortId(number as u16), socket))
        })
    }

    /// Returns the descriptor of every AF_XDP socket, with the number of its port and its queue.
    pub(crate) fn queues(&self) -> impl Iterator<Item = (PortId, u32, BorrowedFd<'_>)> {
        self.iter().flat_map(|(number, port)| {
            let sockets = port.sockets.iter().zip(&port.queues);
            sockets.map(move |(socket, queue)| (PortId(number), *queue, socket.as_fd()))
        })
    }

    /// Returns the socket of every packet port.
    pub(crate) fn frame_sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.iter().filter_map(|(_, port)| Some(port.frames.as_ref()?.socket.as_fd()))
    }

    /// Returns every port with its number; also those whose device is gone.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u16, &Port)> {
        self.all.iter().enumerate().filter_map(|(number, p)| Some((number as u16, p.as_ref()?)))
    }
}

/// Sends a packet by a packet socket.
fn send_frame(socket: &FrameSocket, packet: &Packet) -> Result<(), SendFailure> {
    let mut pieces: [&[u8]; PIECES_MAX] = [&[]; PIECES_MAX];
    let mut count = 0;
    for (piece, chunk) in pieces.iter_mut().zip(packet.chunks()) {
        *piece = chunk;
        count += 1;
    }
    socket.send(&pieces[..count], Unfinished::default()).map_err(|error| {
        const TOO_LONG: i32 = rustix::io::Errno::MSGSIZE.raw_os_error();
        match error.raw_os_error() {
            Some(TOO_LONG) => SendFailure::TooLong,
            Some(_) => SendFailure::NoPort,
            None => SendFailure::Full,
        }
    })
}

const _: () = assert!(PIECES_MAX >= SEGMENTS_MAX, "a packet is sent whole");

/// Strips the Ethernet header of a frame.
#[cold]
fn without_ethernet(mut packet: Packet) -> Result<Packet, (Packet, SendFailure)> {
    let taken = l3_offset(packet.head())
        .and_then(|offset| packet.resize_head(-i32::try_from(offset).ok()?).ok());
    if taken.is_none() {
        return Err((packet, SendFailure::NotIp));
    }
    Ok(packet)
}

/// Cause for which a packet was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendFailure {
    /// The port does not exist.
    NoPort,
    /// The transmit ring is full.
    Full,
    /// The port takes IP packets, and this is none.
    NotIp,
    /// The frame is too long for the device.
    TooLong,
}
