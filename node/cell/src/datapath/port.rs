//! The ports of a cell: one socket for each receive queue, or packet sockets.

use crate::datapath::cycle::Rounds;
use crate::datapath::link::l3_offset;
use crate::packet_memory::{LEAVING_MAX, WAITING_MAX};
use crate::protocol::PortFacts;
use abi::PacketBytes;
use bpf_maps::QUEUES_MAX;
use node::door::DoorPort;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use sockets::frame_socket::{Buffer, Frame, FrameSocket, PIECES_MAX, Unfinished};
use std::io;
use std::rc::Rc;
use units::{CoarseInstant, PortId};
use xsk::{FramePool, Packet, Rings, SEGMENTS_MAX, SetupError, Socket, SocketConfig, Umem};

/// Entries of each socket's rings. Coming: as many packets as all sessions together may have
/// waiting, so that nobody's overflow a ring in front of somebody else's. Leaving: at 3 million
/// packets a second two thirds of a millisecond.
pub(crate) const RINGS: Rings = Rings { receive: WAITING_MAX, transmit: LEAVING_MAX };

/// One port: the queues that are bound.
#[derive(Debug)]
pub(crate) struct Port {
    name: String,
    mac: [u8; 6],
    mtu: u32,
    /// IP packets leave by it, without the Ethernet header.
    raw: bool,
    /// What leaves by it can come in by a port of the same node.
    cabled: bool,
    /// Set where its device may receive a frame once more, without meeting the front door.
    in_driver: bool,
    sockets: Vec<Socket>,
    /// The queue of each socket.
    queues: Vec<u32>,
    /// Of a packet port, which has no such sockets.
    frames: Option<FramePort>,
}

/// What a packet port is served by.
#[derive(Debug)]
pub(crate) struct FramePort {
    /// Frames come in and leave by it.
    socket: FrameSocket,
    /// What goes by it comes in by the port once more, for the kernel.
    back: FrameSocket,
    door: DoorPort,
    /// Keeps its frames from the kernel; never read.
    taken: Option<OwnedFd>,
}

impl FramePort {
    /// Receives a frame, if there is one, and returns how the port is known to its door.
    pub(crate) fn receive<'a>(&self, buffer: &'a mut Buffer) -> Option<(&DoorPort, Frame<'a>)> {
        let frame = self.socket.receive(buffer).ok().flatten()?;
        Some((&self.door, frame))
    }

    /// Sends a frame, as it is.
    ///
    /// # Errors
    /// When the device does not take it.
    pub(crate) fn send(&self, frame: Frame<'_>) -> io::Result<()> {
        self.socket.send(&[frame.bytes], frame.unfinished)
    }

    /// Gives a frame back to the kernel, as it came; returns whether it took it. It has no memory
    /// for it, or its way in is being taken down.
    pub(crate) fn return_frame(&self, frame: Frame<'_>) -> bool {
        self.back.send(&[frame.bytes], frame.unfinished).is_ok()
    }
}

impl Port {
    /// Returns its name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the address of its device.
    #[inline]
    pub(crate) const fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// Returns its L3 MTU in bytes.
    #[inline]
    pub(crate) const fn mtu(&self) -> usize {
        self.mtu as usize
    }

    /// What may change while it is served.
    fn take_up(&mut self, facts: &PortFacts) {
        (self.mac, self.mtu, self.cabled) = (facts.mac, facts.mtu, facts.cabled);
        self.in_driver = facts.in_driver;
        if let Some(frames) = &mut self.frames {
            frames.door.mac = facts.mac;
        }
    }
}

/// All ports, by number.
#[derive(Debug, Default)]
pub(crate) struct Ports {
    all: Vec<Option<Port>>,
    rounds: Rounds,
}

impl Ports {
    /// Binds a queue, with so many frames to receive into, and to send at most; its port is made
    /// with its first one.
    pub(crate) fn add(
        &mut self,
        facts: &PortFacts,
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

    /// Serves a port by packet sockets: its own, and that of the way back into the kernel.
    pub(crate) fn add_frames(
        &mut self,
        facts: &PortFacts,
        bridge: Option<PortId>,
        [socket, back]: [OwnedFd; 2],
    ) {
        let door = DoorPort { id: facts.port, mac: facts.mac, bridge };
        let (socket, back) = (FrameSocket::from(socket), FrameSocket::from(back));
        self.make(facts).frames = Some(FramePort { socket, back, door, taken: None });
    }

    /// The port of these facts, as they are now.
    fn make(&mut self, facts: &PortFacts) -> &mut Port {
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

    /// What a packet port is served by.
    pub(crate) fn frames(&self, port: u16) -> Option<&FramePort> {
        self.all.get(usize::from(port))?.as_ref()?.frames.as_ref()
    }

    /// All numbers of ports.
    pub(crate) fn numbers(&self) -> std::ops::Range<u16> {
        // Numbers are 16 bits wide.
        0..self.all.len() as u16
    }

    /// Keeps what keeps a port's frames from the kernel.
    pub(crate) fn hold_taken(&mut self, port: PortId, taken: OwnedFd) {
        let port = self.all.get_mut(usize::from(port.0)).and_then(Option::as_mut);
        if let Some(frames) = port.and_then(|port| port.frames.as_mut()) {
            frames.taken = Some(taken);
        }
    }

    /// Has the kernel take a packet as one that has just come in by this port; whether it did.
    /// None when only XDP could let it pass. IP came addressed to the port, and goes back so,
    /// whatever its module made of the address: a route would have replaced it.
    pub(crate) fn give_back(&self, port: u16, packet: &mut Packet, is_ip: bool) -> Option<bool> {
        let frames = self.frames(port)?;
        if is_ip && packet.store(0, &frames.door.mac).is_err() {
            return Some(false);
        }
        Some(send_frame(&frames.back, packet).is_ok())
    }

    /// Returns whether a port's device receives what it is given for the kernel.
    pub(crate) fn receives(&self, port: u16) -> bool {
        let port = self.all.get(usize::from(port)).and_then(Option::as_ref);
        port.is_some_and(|port| port.in_driver)
    }

    /// Addresses a frame to a port that it came in by, whatever its module made of that: a route
    /// would have replaced it. Whether it could.
    pub(crate) fn address(&self, port: u16, packet: &mut Packet) -> bool {
        let port = self.all.get(usize::from(port)).and_then(Option::as_ref);
        port.is_some_and(|port| port.raw || packet.store(0, &port.mac).is_ok())
    }

    /// The port's device changed.
    pub(crate) fn change(&mut self, facts: &PortFacts) {
        if let Some(port) = self.all.get_mut(usize::from(facts.port.0)).and_then(Option::as_mut) {
            port.take_up(facts);
        }
    }

    /// Sets the time, once for all packets of a round.
    pub(crate) fn set_time(&mut self, now: CoarseInstant) {
        self.rounds.set_time(now);
    }

    /// Whether a frame that begins with `head`, came in by `arrival` and is to leave by `egress`
    /// as it is goes round in a cycle, and is to end here.
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

    /// Lets go of a port; what it had received is handled. Gives how many packets still
    /// waited to be sent.
    pub(crate) fn remove(&mut self, port: PortId, pool: &mut FramePool) -> u64 {
        let mut port = self.all.get_mut(usize::from(port.0)).and_then(Option::as_mut);
        port.iter_mut().for_each(|port| {
            port.queues.clear();
            port.frames = None;
        });
        let sockets = port.into_iter().flat_map(|port| port.sockets.drain(..));
        sockets.map(|socket| socket.dissolve(pool)).sum()
    }

    /// The port, if it can send.
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

    /// Every socket, with its port's number.
    pub(crate) fn sockets(&mut self) -> impl Iterator<Item = (PortId, &mut Socket)> {
        self.all.iter_mut().enumerate().flat_map(|(number, port)| {
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

    /// Returns the socket of every packet port.
    pub(crate) fn frame_sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.iter().filter_map(|(_, port)| Some(port.frames.as_ref()?.socket.as_fd()))
    }

    /// Every port, with its number; also one whose device is gone.
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
    /// Its device does not take so long a frame.
    TooLong,
}
