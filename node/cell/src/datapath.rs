//! Data path of a cell: the devices and rings by which packets arrive and leave, borrowed as
//! [`EgressPath`] by the holder of a packet.
//!
//! ```text
//!  sockets, frames of packet ports, TAP device ─▶ Packet ─▶ its service
//!                                                              │
//!  rings, the kernel's stack, queues of shared ports ◀─ EgressPath ─┘  forward, redirect, hand_back ─▶ End
//! ```
//!
//! The data path decides nothing about services. Sessions have another owner, and are passed to it.

mod asker;
pub(crate) mod associations;
pub(crate) mod capture;
pub(crate) mod checksum;
mod cycle;
mod deliver;
mod egress;
mod kernel;
mod link;
pub(crate) mod port;
mod port_shares;
mod rule_actions;
pub(crate) mod source;
#[cfg(test)]
pub(crate) mod tests;

pub(crate) use deliver::{EgressPath, End, Next};
pub(crate) use port::SendFailure;
pub(crate) use rule_actions::RuleActions;

use crate::protocol::{
    Answer, CaptureSpec, CellPort, CellReport, Question, ReturnedFd, SecretBytes, SessionSpec,
};
use crate::sched::pacer;
use crate::sched::sessions::Sessions;
use abi::PacketBytes;
use anyhow::{Context, Result};
use asker::Asker;
use association::{AssociationId, Traffic};
use associations::{ActiveDecision, Associations};
use bpf::{Answers, PortShares, RuleFacts};
use bpf_maps::{META_BY_KERNEL, PacketMeta};
use capture::Capture;
use egress::{Destination, Egress, Outgoing};
use kernel::KernelPath;
use node::door::{DROP_CYCLE, DROP_EGRESS_GONE, DROP_SHARE, DROP_TOO_LONG, Decision, DoorPort};
use port::Ports;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use sockets::frame_socket::{Buffer, Frame, FrameSocket};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;
use units::{Bytes, CoarseInstant, EntryId, Nanos, PortId, SessionId};
use xsk::{FramePool, Packet, SetupError, Umem};

/// Bytes of a frame beside its IP packet: the Ethernet header and a VLAN tag.
const LINK_LENGTH: usize = 14 + 4;

/// Counters of the data path.
#[derive(Debug, Default)]
struct Counts {
    /// Frames that need more descriptors than a packet may have.
    oversized: u64,
    /// Packets whose port or destination vanished while they waited to be sent.
    egress_gone: u64,
    /// Captured copies that the daemon did not get.
    tapped_lost: u64,
}

/// Owner of ports, packet memory and the path into the kernel.
pub(crate) struct Datapath {
    ports: Ports,
    /// Free frames of packet memory.
    pool: FramePool,
    /// Device by which packets go into the kernel's stack; `None` until the daemon has passed it.
    kernel: Option<KernelPath>,
    /// Running capture, if any.
    capture: Option<Capture>,
    /// Actions of rules, for the stages after a service.
    rules: Option<RuleActions>,
    /// Packets that wait for ports with shares.
    egress: Egress,
    associations: Associations,
    umem: Rc<Umem>,
    counts: Counts,
}

impl Datapath {
    /// Creates a data path without ports, rules or a path into the kernel.
    pub(crate) fn new(umem: Umem, pool: FramePool) -> Self {
        Self {
            ports: Ports::default(),
            pool,
            kernel: None,
            capture: None,
            rules: None,
            egress: Egress::new(),
            associations: Associations::default(),
            umem: Rc::new(umem),
            counts: Counts::default(),
        }
    }

    /// Lends the egress resources to a packet of a session, for one call.
    #[inline]
    pub(crate) fn egress_path<'a>(
        &'a mut self,
        sessions: &'a mut Sessions,
        session: SessionId,
    ) -> EgressPath<'a> {
        EgressPath { path: self, sessions, session, sent: 0 }
    }

    /// Returns the pool of free frames.
    #[inline]
    pub(crate) const fn pool(&mut self) -> &mut FramePool {
        &mut self.pool
    }

    /// Returns the running capture, if any.
    pub(crate) const fn capture(&mut self) -> Option<&mut Capture> {
        self.capture.as_mut()
    }

    /// Returns the numbers of ports by their names.
    pub(crate) fn port_numbers(&self) -> BTreeMap<String, u16> {
        self.ports.iter().map(|(number, port)| (port.name().to_owned(), number)).collect()
    }

    /// Returns the range of port numbers.
    pub(crate) fn port_range(&self) -> Range<u16> {
        self.ports.numbers()
    }

    /// Returns descriptors that are readable when packets arrive.
    pub(crate) fn readable_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let sockets = self.ports.queues().map(|(_, _, socket)| socket);
        sockets.chain(self.ports.frame_sockets())
    }

    /// Returns duplicates of the descriptors that a new daemon cannot get elsewhere.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub(crate) fn given(&self) -> std::io::Result<Vec<(ReturnedFd, OwnedFd)>> {
        let mut given = Vec::new();
        for (port, queue, fd) in self.ports.queues() {
            given.push((ReturnedFd::Socket(port, queue), fd.try_clone_to_owned()?));
        }
        // A node without TUN has packet ports, and is not adopted.
        if let Some(KernelPath::Tun(device)) = &self.kernel {
            given.push((ReturnedFd::Kernel, device.as_fd().try_clone_to_owned()?));
        }
        Ok(given)
    }

    /// Adds what the data path has counted to a report.
    pub(crate) fn report(&self, report: &mut CellReport) {
        report.oversized = self.counts.oversized;
        report.egress_gone = self.counts.egress_gone;
        report.tapped_lost = self.counts.tapped_lost;
        report.associations = self.associations.report();
        report.frames_free = self.pool.free() as u64;
        report.frames_total = self.pool.total() as u64;
    }

    /// Returns true if packets of a session wait to be sent.
    pub(crate) fn waits(&self, session: SessionId) -> bool {
        self.egress.waits(session)
    }

    /// Sets the device by which packets go into the kernel's stack.
    pub(crate) fn set_kernel(&mut self, device: Option<OwnedFd>) {
        self.kernel = device.map(KernelPath::Tun);
    }

    /// Sets the socket by which frames go into the kernel's stack, of a node without TUN.
    pub(crate) fn set_kernel_frames(&mut self, socket: Option<OwnedFd>) {
        self.kernel = socket.map(|fd| KernelPath::Frames(FrameSocket::from(fd)));
    }

    /// Starts a capture, or ends it with `None`.
    pub(crate) fn set_capture(&mut self, facts: Option<CaptureSpec>) {
        self.capture = facts.map(Capture::new);
    }

    /// Sets the front door's actions of all rules.
    pub(crate) fn set_rules(&mut self, facts: RuleFacts) {
        self.rules = Some(RuleActions::Map(facts));
    }

    /// Sets the actions of the rules of packet ports, unless the front door's, which are of all
    /// rules, are known.
    pub(crate) fn set_packet_port_rules(&mut self, facts: RuleActions) {
        if !matches!(self.rules, Some(RuleActions::Map(_))) {
            self.rules = Some(facts);
        }
    }

    /// Sets the accounts of port shares.
    pub(crate) fn set_port_shares(&mut self, accounts: PortShares) {
        self.egress.pay_from(accounts);
    }

    /// Sets the account that a session pays from at a port; `None`: that of all sessions without a
    /// share.
    pub(crate) fn set_payer(&mut self, port: PortId, session: SessionId, account: Option<u32>) {
        self.egress.set_payer(port, session, account);
    }

    /// Sets the map of the kernel's answers, and the device by which it is asked.
    pub(crate) fn set_answers(&mut self, answers: Answers, device: OwnedFd) {
        self.egress.ask(Asker::new(answers, device));
    }

    /// Sets the time, once for all packets of a round.
    pub(crate) fn set_time(&mut self, now: CoarseInstant) {
        self.ports.set_time(now);
    }

    /// Binds a queue of a port, with `ready` frames to receive into and at most `leaving` frames to
    /// send.
    ///
    /// # Errors
    /// The kernel refuses one of the steps.
    pub(crate) fn add_port(
        &mut self,
        facts: &CellPort,
        fd: OwnedFd,
        (ready, leaving): (u32, u32),
        sessions: &mut Sessions,
    ) -> Result<(), SetupError> {
        let added = self.ports.add(facts, fd, &self.umem, &mut self.pool, ready, leaving);
        self.set_rate(facts, sessions);
        added
    }

    /// Binds a port to packet sockets.
    pub(crate) fn add_frames(
        &mut self,
        facts: &CellPort,
        bridge: Option<PortId>,
        sockets: [OwnedFd; 2],
        sessions: &mut Sessions,
    ) {
        self.ports.add_frames(facts, bridge, sockets);
        self.set_rate(facts, sessions);
    }

    /// Stores the descriptor that keeps a packet port's frames from the kernel.
    pub(crate) fn hold_taken(&mut self, port: PortId, taken: OwnedFd) {
        self.ports.hold_taken(port, taken);
    }

    /// Applies changes of a port.
    pub(crate) fn change_port(&mut self, facts: &CellPort, sessions: &mut Sessions) {
        self.ports.change(facts);
        self.set_rate(facts, sessions);
    }

    /// Closes the sockets of a port; the caller has handled what it received.
    pub(crate) fn remove_port(&mut self, port: PortId, sessions: &mut Sessions) {
        for (session, Outgoing { packet, .. }) in self.egress.remove_port(port) {
            sessions.release(session, Bytes(packet.memory_length() as u64));
            packet.recycle(&mut self.pool);
            self.counts.egress_gone += 1;
        }
        self.counts.egress_gone += self.ports.remove(port, &mut self.pool);
    }

    /// Applies a session's reservation of ports' rates.
    pub(crate) fn set_session(&mut self, now: Nanos, facts: &SessionSpec, sessions: &mut Sessions) {
        self.egress.set_time(now);
        let waited = self.egress.set(facts);
        self.send_at_once(waited, sessions);
    }

    /// Removes a session.
    pub(crate) fn forget_session(&mut self, now: Nanos, id: SessionId, sessions: &mut Sessions) {
        self.egress.set_time(now);
        let waited = self.egress.forget(id);
        self.send_at_once(waited, sessions);
    }

    /// Receives at most `most` packets of a socket, by its index, into `batch`.
    #[inline]
    pub(crate) fn receive(&mut self, socket: usize, most: usize, batch: &mut VecDeque<Packet>) {
        let Some((_, socket)) = self.ports.sockets().nth(socket) else { return };
        self.counts.oversized += u64::from(socket.receive(batch, most, &mut self.pool));
    }

    /// Returns the number of AF_XDP sockets.
    pub(crate) fn sockets(&mut self) -> usize {
        self.ports.sockets().count()
    }

    /// Returns true if a socket has packets to receive.
    pub(crate) fn has_received(&mut self) -> bool {
        self.ports.sockets().any(|(_, socket)| socket.has_received())
    }

    /// Fills each socket up to `ready` frames to receive into. Returns true if one still transmits.
    pub(crate) fn refill(&mut self, ready: u32) -> bool {
        let mut is_transmitting = false;
        for (_, socket) in self.ports.sockets() {
            socket.refill(&mut self.pool, ready);
            is_transmitting |= socket.transmitting();
        }
        is_transmitting
    }

    /// Flushes the transmit rings to the devices. Returns true when they have sent all.
    pub(crate) fn flush(&mut self) -> bool {
        let mut is_sent = true;
        for (_, socket) in self.ports.sockets() {
            socket.flush(&mut self.pool);
            is_sent &= socket.is_sent();
        }
        if is_sent {
            self.egress.publish_sent();
        }
        is_sent
    }

    /// Creates a packet from a frame's bytes; `None` when there is no frame memory.
    pub(crate) fn packet_of(&mut self, bytes: &[u8]) -> Option<Packet> {
        let mut packet = Packet::allocate(&self.umem, &mut self.pool, bytes.len())?;
        // The packet has the frame's length, so the store fits.
        let _ = packet.store(0, bytes);
        Some(packet)
    }

    /// Receives a frame of a packet port, with the port's description for classification. Errors of
    /// a device that goes away are left to the daemon.
    pub(crate) fn receive_frame<'a>(
        &self,
        port: u16,
        buffer: &'a mut Buffer,
    ) -> Option<(&DoorPort, Frame<'a>)> {
        self.ports.frames(port)?.receive(buffer)
    }

    /// Returns a frame of a packet port unchanged to the kernel. Returns false if the kernel
    /// refuses it.
    pub(crate) fn return_frame(&self, port: u16, frame: Frame<'_>) -> bool {
        self.ports.frames(port).is_some_and(|port| port.return_frame(frame))
    }

    /// Sends a frame by the other end of a bridge.
    ///
    /// # Errors
    /// Drop outcome under which the frame is counted.
    pub(crate) fn cross(&mut self, end: PortId, frame: Frame<'_>) -> Result<(), usize> {
        let Some(port) = self.ports.get(end.0) else { return Err(DROP_EGRESS_GONE) };
        let is_long = frame.bytes.len() > port.mtu() + LINK_LENGTH;
        let is_finished = frame.unfinished.segment_length().is_none();
        if is_long && is_finished {
            return Err(DROP_TOO_LONG);
        }
        if let Some(port) = self.ports.frames(end.0) {
            return port.send(frame).map_err(|_| DROP_EGRESS_GONE);
        }
        if !is_finished {
            return Err(DROP_TOO_LONG);
        }
        let packet = self.packet_of(frame.bytes).ok_or(DROP_EGRESS_GONE)?;
        self.ports.send(end.0, packet, &mut self.pool).map_err(|(packet, _)| {
            packet.recycle(&mut self.pool);
            DROP_EGRESS_GONE
        })
    }

    /// Sends a packet unchanged by the port that a rule names; returns the outcome.
    pub(crate) fn send_by(
        &mut self,
        bytes: &[u8],
        decision: &Decision,
        (arrival, to): (u16, PortId),
        (session, sessions): (SessionId, &mut Sessions),
    ) -> usize {
        let Some(mut packet) = self.packet_of(bytes) else { return DROP_EGRESS_GONE };
        checksum::complete(&mut packet, &decision.meta);
        let mut egress_path = self.egress_path(sessions, session);
        let end = egress_path.redirect(packet, arrival, to.0);
        let sent = egress_path.sent();
        sessions.sent(session, Bytes(sent));
        match end {
            End::Sent => decision.outcome,
            End::Cycle => DROP_CYCLE,
            End::TooLong | End::Failed(SendFailure::TooLong) => DROP_TOO_LONG,
            End::Failed(SendFailure::Full) => DROP_SHARE,
            _ => DROP_EGRESS_GONE,
        }
    }

    /// Queues a packet that a module at kernel level has sent: it meets no other module, and leaves
    /// when its session's share allows it, with the credit that it has.
    #[cold]
    pub(crate) fn handle_from_below(
        &mut self,
        packet: Packet,
        meta: PacketMeta,
        sessions: &mut Sessions,
    ) {
        let (port, entry) = (meta.egress_port, EntryId(meta.entry));
        let counted = self.egress.on_arrival(meta.flow_hash, meta.room_epoch());
        let (session, memory) =
            (SessionId(meta.arrival_port), Bytes(packet.memory_length() as u64));
        let has_come = meta.counted_in();
        if let Some(epoch) = has_come {
            sessions.on_arrival(session, memory, epoch);
        }
        let by =
            if meta.flags & META_BY_KERNEL == 0 { Destination::Port } else { Destination::Kernel };
        // A packet that the kernel routes is captured when the kernel sends it.
        if let Some(capture) = self.capture.as_mut().filter(|_| by == Destination::Port) {
            capture.on_verdict_below((entry, session), &meta);
            capture.on_departure(&packet, port);
        }
        let has_room = has_come.is_some() || sessions.admit_outgoing(session, memory);
        let refused = if !has_room {
            Some(packet)
        } else if self.egress.shares(port) {
            let outgoing = Outgoing { packet, by };
            let refused = self.egress.enqueue(port, session, outgoing, counted).err();
            refused.map(|(packet, _)| packet)
        } else {
            // The port has no shares any more.
            self.egress.release(counted);
            sessions.release(session, memory);
            self.send_now(port, Outgoing { packet, by });
            None
        };
        if let Some(packet) = refused {
            if has_room {
                sessions.release(session, memory);
            } else {
                self.egress.release(counted);
            }
            packet.recycle(&mut self.pool);
            self.counts.egress_gone += 1;
        }
    }

    /// Counts a packet sent at kernel level for which there was no frame memory.
    pub(crate) const fn lose_from_below(&mut self) {
        self.counts.egress_gone += 1;
    }

    /// Settles a closed epoch of shared ports: packets of it that have not arrived are lost.
    pub(crate) fn settle(&mut self, epoch: usize) {
        self.egress.settle(epoch);
    }

    /// Installs the keys of an association.
    ///
    /// # Errors
    /// The bytes are no keys.
    pub(crate) fn associate(&mut self, keys: &SecretBytes) -> Result<AssociationId> {
        let traffic = Traffic::from_bytes(&keys.0).context("reading the keys of an association")?;
        let id = traffic.id;
        self.associations.begin(traffic);
        Ok(id)
    }

    /// Removes the keys of an association, and drops its waiting packets.
    pub(crate) fn disassociate(&mut self, id: AssociationId) {
        self.associations.end(id, &mut self.pool);
    }

    /// Removes all associations, and what unauthenticated packets may call.
    pub(crate) fn end_associations(&mut self) {
        self.associations.end_all(&mut self.pool);
    }

    /// Removes a service from the cached answers about active packets.
    pub(crate) fn forget_service(&mut self, entry: EntryId) {
        self.associations.forget_service(entry);
    }

    /// Classifies a frame for the node's associations, and opens an active packet.
    pub(crate) fn open(
        &mut self,
        packet: &mut Packet,
        meta: &PacketMeta,
        now: CoarseInstant,
    ) -> ActiveDecision {
        self.associations.take(packet, meta, now)
    }

    /// Queues an active packet until the daemon has named its service, if the limits allow it.
    pub(crate) fn keep(&mut self, packet: Packet, meta: PacketMeta, now: CoarseInstant) {
        self.associations.keep(packet, meta, now, &mut self.pool);
    }

    /// Hands a frame for the node's associations to the kernel's stack.
    pub(crate) fn hand_back(&mut self, packet: Packet, meta: &PacketMeta, sessions: &mut Sessions) {
        let mut egress_path = self.egress_path(sessions, SessionId::BEST_EFFORT);
        if egress_path.hand_back(packet, meta) != End::ToKernel {
            self.associations.refused_by_kernel();
        }
    }

    /// Applies the daemon's answer about a digest.
    pub(crate) fn handle_answer(&mut self, question: Question, answer: Answer, now: CoarseInstant) {
        self.associations.answered(question, answer, now, &mut self.pool);
    }

    /// Drops active packets that have waited for their service for too long.
    pub(crate) fn handle_timeout(&mut self, now: CoarseInstant) {
        self.associations.expire(now, &mut self.pool);
    }

    /// Counts captured copies that the daemon did not get.
    pub(crate) const fn count_lost_captures(&mut self, count: u64) {
        self.counts.tapped_lost += count;
    }

    /// Returns an active packet that has waited for its service, with that service.
    pub(crate) fn poll_call(&mut self) -> Option<(Packet, PacketMeta, EntryId)> {
        self.associations.next_ready()
    }

    /// Sends waiting packets that may leave by now. Returns true if it sent any.
    pub(crate) fn poll_waiting(&mut self, sessions: &mut Sessions) -> bool {
        if !self.egress.is_used() {
            return false;
        }
        self.egress.set_time(pacer::now());
        if !self.egress.is_waiting() {
            return false;
        }
        let kernel = self.kernel.as_ref();
        let transmitted = self.egress.transmit(&mut self.ports, kernel, &mut self.pool, sessions);
        self.counts.egress_gone += transmitted.lost;
        transmitted.sent > 0
    }

    /// Returns the earliest time at which a waiting packet may leave.
    pub(crate) const fn poll_timeout(&self) -> Option<Nanos> {
        self.egress.poll_timeout()
    }

    /// Applies the rate of a port.
    fn set_rate(&mut self, facts: &CellPort, sessions: &mut Sessions) {
        self.egress.set_time(pacer::now());
        let waited = self.egress.set_port(facts);
        let at_port = |(session, packet)| (facts.port, session, packet);
        self.send_at_once(waited.into_iter().map(at_port).collect(), sessions);
    }

    /// Sends packets at once whose port has no shares any more.
    fn send_at_once(
        &mut self,
        waited: Vec<(PortId, SessionId, Outgoing)>,
        sessions: &mut Sessions,
    ) {
        for (port, session, outgoing) in waited {
            let memory = Bytes(outgoing.packet.memory_length() as u64);
            sessions.release(session, memory);
            self.send_now(port.0, outgoing);
        }
    }

    fn send_now(&mut self, port: u16, outgoing: Outgoing) {
        let (kernel, asker) = (self.kernel.as_ref(), self.egress.asker());
        let sent = outgoing.send(port, &mut self.ports, kernel, asker, &mut self.pool);
        if let Err((left, _)) = sent {
            left.into_iter().for_each(|left| left.packet.recycle(&mut self.pool));
            self.counts.egress_gone += 1;
        }
    }
}
