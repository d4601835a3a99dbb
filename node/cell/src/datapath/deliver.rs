//! Verdicts applied to packets: the last steps of a packet's path through the node.

use crate::datapath::Datapath;
use crate::datapath::associations::Unanswered;
use crate::datapath::capture::Capture;
use crate::datapath::egress::{Destination, Outgoing, Refused};
use crate::datapath::link::{self, TAG_LENGTH, l3_offset, retag, trim_behind};
use crate::datapath::port::{Port, SendFailure};
use crate::datapath::source::{self, Source};
use crate::sched::sessions::Sessions;
use abi::PacketBytes;
use bpf_maps::{
    ACTION_DOWN, ACTION_DROP, ACTION_FORWARD, ACTION_OUT, META_BRIDGED, META_ROUTED, PacketMeta,
    RULE_NONE,
};
use units::{Bytes, EntryId, PortId, SessionId};
use wire::protocol::ETHERNET_LENGTH;
use wire::rewrite;
use xsk::Packet;

/// Outcome of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Sent,
    ToKernel,
    Failed(SendFailure),
    Malformed,
    KernelRefused,
    TooLong,
    Cycle,
    UnknownVlan,
}

impl End {
    /// Returns true if the packet was dropped.
    pub(crate) const fn is_lost(self) -> bool {
        !matches!(self, Self::Sent | Self::ToKernel)
    }
}

/// Egress resources borrowed for one call: the data path, and the session that sends.
pub(crate) struct EgressPath<'a> {
    pub(super) path: &'a mut Datapath,
    pub(super) sessions: &'a mut Sessions,
    /// Session that sends.
    pub(super) session: SessionId,
    /// Bytes that the session sent in this call without queueing.
    pub(super) sent: u64,
}

/// Next hop of a packet that has left its graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Service of the next stage, which the metadata now name.
    Service(EntryId),
    /// Forwarding by its route.
    Out,
    /// Transmission by this port on this session's account: a rule of the next stage says so.
    By(u16, SessionId),
    /// Drop: the service of the next stage is down, and its failure policy is closed.
    Down,
    /// Drop by a rule of the next stage.
    Drop,
}

impl EgressPath<'_> {
    /// Returns the bytes that the session sent in this call without queueing.
    #[inline]
    pub(crate) const fn sent(&self) -> u64 {
        self.sent
    }

    /// Returns the capture, while one runs.
    #[inline]
    pub(crate) fn capture(&mut self) -> Option<&mut Capture> {
        self.path.capture()
    }

    /// Creates a packet from a frame's bytes; `None` when there is no frame memory.
    pub(crate) fn packet_of(&mut self, frame: &[u8]) -> Option<Packet> {
        self.path.packet_of(frame)
    }

    /// Returns a packet's memory to the pool.
    #[inline]
    pub(crate) fn recycle(&mut self, packet: Packet) {
        packet.recycle(&mut self.path.pool);
    }

    /// Forwards by the route in the metadata, or through the kernel when there is no route or the
    /// kernel must answer the packet (TTL, MTU).
    pub(crate) fn forward(&mut self, mut packet: Packet, meta: &PacketMeta) -> End {
        if meta.flags & META_BRIDGED != 0 {
            return self.cross(packet, meta.egress_port);
        }
        if meta.flags & META_ROUTED == 0 {
            return self.hand_back(packet, meta);
        }
        let Some(egress) = self.path.ports.get(meta.egress_port) else {
            return self.hand_to_kernel(packet);
        };
        let (mac, mtu) = (egress.mac(), egress.mtu());
        let Some(l3_offset) = l3_offset(packet.head()) else { return self.malformed(packet) };
        if trim_behind(&mut packet, l3_offset).is_none() {
            return self.malformed(packet);
        }
        if packet.length() - l3_offset > mtu {
            return self.hand_to_kernel(packet);
        }
        match rewrite::route(packet.head_mut(), l3_offset as u16, mac, meta.next_hop) {
            Ok(()) => {}
            Err(rewrite::RewriteError::TtlExpired { .. }) => return self.hand_to_kernel(packet),
            Err(_) => return self.malformed(packet),
        }
        if (l3_offset != ETHERNET_LENGTH || meta.egress_vlan != 0)
            && retag(&mut packet, l3_offset, meta.egress_vlan).is_none()
        {
            return self.malformed(packet);
        }
        self.send(meta.egress_port, packet)
    }

    /// Advances the metadata to the next stage with an action, as `next_stage` in
    /// `levels/bpf/c/verdict.h`.
    pub(crate) fn next_stage(&self, meta: &mut PacketMeta) -> Next {
        while meta.then[0] != RULE_NONE {
            let rule = meta.then[0];
            meta.then = [meta.then[1], RULE_NONE];
            let Some(fact) = self.path.rules.as_ref().and_then(|rules| rules.of(rule)) else {
                continue;
            };
            match fact.action {
                ACTION_FORWARD => {}
                ACTION_DROP => return Next::Drop,
                ACTION_DOWN => return Next::Down,
                ACTION_OUT => {
                    meta.rule = rule;
                    return Next::By(fact.entry, SessionId(fact.session));
                }
                _ => {
                    (meta.rule, meta.entry) = (rule, fact.entry);
                    return Next::Service(EntryId(fact.entry));
                }
            }
        }
        Next::Out
    }

    /// Sends a packet by the port that a rule names, on its session's account: by the packet's
    /// route if that leads there, else unchanged.
    pub(crate) fn send_by(
        &mut self,
        packet: Packet,
        meta: &PacketMeta,
        (port, session): (u16, SessionId),
    ) -> End {
        let (own, sent) = (std::mem::replace(&mut self.session, session), self.sent);
        let end = match meta.flags & META_ROUTED != 0 && meta.egress_port == port {
            true => self.forward(packet, meta),
            false => self.redirect(packet, meta.arrival_port, port),
        };
        self.session = own;
        let bytes = std::mem::replace(&mut self.sent, sent) - sent;
        self.sessions.sent(session, Bytes(bytes));
        end
    }

    /// Sends a packet unchanged by the other end of its bridge.
    fn cross(&mut self, packet: Packet, port: u16) -> End {
        let frame_max =
            self.path.ports.get(port).map(|port| port.mtu() + ETHERNET_LENGTH + TAG_LENGTH);
        if frame_max.is_some_and(|frame_max| packet.length() > frame_max) {
            self.recycle(packet);
            return End::TooLong;
        }
        self.send(port, packet)
    }

    /// Sends a packet unchanged by a port.
    pub(crate) fn send(&mut self, port: u16, packet: Packet) -> End {
        if let Some(capture) = &mut self.path.capture {
            capture.on_departure(&packet, port);
        }
        if self.path.egress.shares(port) {
            return self.send_by_share(port, packet);
        }
        let length = packet.length() as u64;
        match self.path.ports.send(port, packet, &mut self.path.pool) {
            Ok(()) => {
                self.sent += length;
                End::Sent
            }
            Err((packet, failure)) => {
                self.recycle(packet);
                End::Failed(failure)
            }
        }
    }

    /// Queues a packet until its session's share of the port allows it to leave.
    fn send_by_share(&mut self, port: u16, packet: Packet) -> End {
        self.enqueue(port, Outgoing { packet, by: Destination::Port }, End::Sent)
    }

    /// Queues a packet until its session may send it by this port. Returns `end`, or the cause of a
    /// drop.
    fn enqueue(&mut self, port: u16, outgoing: Outgoing, end: End) -> End {
        let memory = Bytes(outgoing.packet.memory_length() as u64);
        if !self.sessions.admit_outgoing(self.session, memory) {
            self.sessions.on_refused(self.session, &outgoing.packet);
            self.recycle(outgoing.packet);
            return End::Failed(SendFailure::Full);
        }
        match self.path.egress.enqueue(port, self.session, outgoing, None) {
            Ok(()) => end,
            Err((packet, why)) => {
                self.sessions.release(self.session, memory);
                self.recycle(packet);
                match why {
                    Refused::Full => End::Failed(SendFailure::Full),
                    Refused::TooLong => End::TooLong,
                }
            }
        }
    }

    /// Sends a packet unchanged by the port that its module named.
    pub(crate) fn redirect(&mut self, packet: Packet, arrival: u16, port: u16) -> End {
        if self.path.ports.is_worn_out(packet.head(), arrival, port) {
            self.recycle(packet);
            return End::Cycle;
        }
        self.send(port, packet)
    }

    /// Sends a packet back by its arrival port with the MAC addresses swapped.
    pub(crate) fn bounce(&mut self, mut packet: Packet, port: u16) -> End {
        if self.path.ports.is_worn_out(packet.head(), port, port) {
            self.recycle(packet);
            return End::Cycle;
        }
        match rewrite::swap_macs(packet.head_mut()) {
            Ok(()) => self.send(port, packet),
            Err(_) => self.malformed(packet),
        }
    }

    /// Sends the payload that a service left of an active packet back to its caller, by the arrival
    /// port.
    pub(crate) fn answer(&mut self, mut packet: Packet, port: u16) -> End {
        let mtu = self.path.ports.get(port).map_or(0, Port::mtu);
        match self.path.associations.answer(&mut packet, mtu) {
            Ok(()) => self.send(port, packet),
            Err(why) => {
                self.recycle(packet);
                match why {
                    Unanswered::TooLong => End::TooLong,
                    Unanswered::NoMemory => End::Failed(SendFailure::Full),
                    Unanswered::Gone => End::Failed(SendFailure::NoPort),
                }
            }
        }
    }

    /// Hands a packet to the kernel's stack, which routes, answers or delivers it.
    pub(crate) fn hand_to_kernel(&mut self, packet: Packet) -> End {
        self.give_to_kernel(Outgoing { packet, by: Destination::Kernel })
    }

    /// Hands a packet to the kernel whose module wants it routed again.
    pub(crate) fn reroute(&mut self, packet: Packet, meta: &PacketMeta) -> End {
        self.leave_to_kernel(packet, meta)
    }

    /// Restores the source address with which a packet arrived, and records the one that its module
    /// set: as with the kernel's own NAT, the source changes last. A packet that leaves by no port
    /// of the node keeps the module's source. A destination that the module changed is recorded,
    /// too, for ICMP errors that quote the packet.
    ///
    /// Returns true if the packet now has its original source.
    fn give_back_source(&mut self, packet: &mut Packet, meta: &PacketMeta) -> bool {
        let Some(l3) = l3_offset(packet.head()) else { return false };
        let (source, destination) = source::put_back(packet, l3, meta);
        let given = match source {
            Source::PutBack(given) => Some(given),
            Source::Same | Source::Other => None,
        };
        if given.is_none() && destination.is_none() {
            return source == Source::Same;
        }
        let receives = self.path.ports.receives(meta.arrival_port);
        let arrival = receives.then_some(PortId(meta.arrival_port));
        let asker = self.path.egress.asker();
        let is_noted = asker.is_some_and(|asker| asker.note(packet, arrival, given, destination));
        match given {
            Some(given) if !is_noted => source::give_again(packet, l3, given),
            Some(_) => return true,
            None => {}
        }
        source == Source::Same
    }

    /// Returns a packet to the kernel by its arrival port, or by the node's own device.
    pub(crate) fn hand_back(&mut self, packet: Packet, meta: &PacketMeta) -> End {
        if self.path.ports.frames(meta.arrival_port).is_none() {
            return self.leave_to_kernel(packet, meta);
        }
        let by = Destination::Back { arrival: meta.arrival_port, is_ip: is_ip(meta) };
        self.give_to_kernel(Outgoing { packet, by })
    }

    /// Leaves a packet without a route to the kernel: as one that has just arrived by its port; or
    /// by the node's own device, where that is impossible or the packet has another source than it
    /// arrived with.
    fn leave_to_kernel(&mut self, mut packet: Packet, meta: &PacketMeta) -> End {
        let is_as_it_came = match is_ip(meta) {
            true => self.give_back_source(&mut packet, meta),
            false => meta.flags & META_ROUTED == 0,
        };
        let port = meta.arrival_port;
        let arrives =
            is_as_it_came && self.path.ports.receives(port) && self.path.egress.asker().is_some();
        let by = match arrives {
            true => Destination::Arrival { port, is_ip: is_ip(meta) },
            // The node's own device strips tags: the kernel would route a packet that it has to
            // drop.
            false if link::is_of_unknown_vlan(packet.head(), meta) => {
                return self.unknown_vlan(packet);
            }
            false => Destination::Kernel,
        };
        self.give_to_kernel(Outgoing { packet, by })
    }

    /// Hands a packet to the kernel; through its session's queue if the kernel will send it by a
    /// port with shares.
    fn give_to_kernel(&mut self, outgoing: Outgoing) -> End {
        if let Some(port) = self.path.egress.shared_egress(self.session, &outgoing) {
            return self.enqueue(port, outgoing, End::ToKernel);
        }
        if outgoing.by == Destination::Kernel && l3_offset(outgoing.packet.head()).is_none() {
            return self.malformed(outgoing.packet);
        }
        let Datapath { ports, kernel, egress, pool, .. } = &mut *self.path;
        match outgoing.hand_over(ports, kernel.as_ref(), egress.asker(), pool) {
            true => End::ToKernel,
            false => End::KernelRefused,
        }
    }

    fn unknown_vlan(&mut self, packet: Packet) -> End {
        self.recycle(packet);
        End::UnknownVlan
    }

    fn malformed(&mut self, packet: Packet) -> End {
        self.recycle(packet);
        End::Malformed
    }
}

/// Returns true if the packet arrived as IP.
const fn is_ip(meta: &PacketMeta) -> bool {
    meta.flags >> 8 & 0xff != 0
}
