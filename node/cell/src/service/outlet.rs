//! Egress of a service's packets: along the edges of its graph, to the next stage, or out.
//!
//! ```text
//!   verdict ─▶ deliver ─┬─ an edge, a service of the next stage ─▶ onward ─▶ take_onward
//!                       └─ pass, bounce, redirect, drop ─▶ EgressPath, counted
//! ```

use super::Way;
use super::counters::{Counters, Ending};
use crate::datapath::{End, Exits, Next};
use abi::Verdict;
use abi::layout::{EDGES_MAX, MARK_LENGTH, SEND_BY_ROUTE};
use bpf_maps::{META_BRIDGED, META_DATA, META_ROUTED, PacketMeta, RULE_NONE};
use std::collections::VecDeque;
use units::{Bytes, Edge, EntryId};
use xsk::Packet;

/// Owner of a service's edges, of the packets that it passed on, and of its counters.
pub(super) struct Outlet {
    counters: Counters,
    /// Targets of passed packets, by the edge that the module names.
    edges: [Edge; EDGES_MAX],
    /// Packets just passed on. They are stored here, since a packet is large and few are passed on.
    onward: VecDeque<(Packet, Way)>,
    entry: EntryId,
}

impl Outlet {
    /// Creates the outlet of a service whose edges all lead out.
    pub(super) fn new(entry: EntryId) -> Self {
        let (edges, onward) = ([Edge::Out; EDGES_MAX], VecDeque::new());
        Self { counters: Counters::default(), edges, onward, entry }
    }

    /// Returns the counters.
    pub(super) const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the counters.
    #[inline]
    pub(super) const fn counters_mut(&mut self) -> &mut Counters {
        &mut self.counters
    }

    /// Returns true if an edge leads directly to that service.
    pub(super) fn leads_to(&self, entry: EntryId) -> bool {
        self.edges.contains(&Edge::To(entry))
    }

    /// Sets the edges out of the service.
    pub(super) const fn set_edges(&mut self, edges: [Edge; EDGES_MAX]) {
        self.edges = edges;
    }

    /// Takes over from the outlet of another version.
    pub(super) fn inherit(&mut self, before: &mut Self) {
        self.counters = std::mem::take(&mut before.counters);
        self.edges = before.edges;
        self.onward.append(&mut before.onward);
    }

    /// Applies a verdict to a packet, which the module left with this mark. Returns true if the
    /// packet goes on to another service.
    #[inline]
    pub(super) fn deliver(
        &mut self,
        packet: Packet,
        verdict: Verdict,
        (way, mark): (&Way, [u8; MARK_LENGTH]),
        exits: &mut Exits<'_>,
    ) -> bool {
        // The payload of an active packet has no headers of its own, only those of its carrier.
        let is_data = way.meta.flags & META_DATA != 0;
        let arrival = way.meta.arrival_port;
        let (end, sent) = match verdict {
            Verdict::Pass { edge, reroute } => {
                return self.follow(packet, (edge, reroute), (way, mark), exits);
            }
            Verdict::Bounce if is_data => (exits.answer(packet, arrival), Ending::Bounced),
            Verdict::Bounce => (exits.bounce(packet, arrival), Ending::Bounced),
            Verdict::Redirect { port } if !is_data => {
                (exits.redirect(packet, arrival, port), Ending::Redirected)
            }
            Verdict::Redirect { .. } => {
                exits.recycle(packet);
                self.counters.count(Ending::Malformed);
                return false;
            }
            Verdict::Drop { reason } => {
                exits.recycle(packet);
                self.counters.count_reason(reason);
                return false;
            }
            Verdict::Raise => {
                exits.recycle(packet);
                self.counters.count(Ending::Raise);
                return false;
            }
        };
        self.counters.count_end(end, sent);
        false
    }

    /// Follows the edge by which a packet passes.
    #[inline]
    fn follow(
        &mut self,
        packet: Packet,
        (edge, reroute): (u8, bool),
        (way, mark): (&Way, [u8; MARK_LENGTH]),
        exits: &mut Exits<'_>,
    ) -> bool {
        match self.edges.get(usize::from(edge)) {
            Some(Edge::To(to)) => {
                let mut meta = way.meta;
                meta.entry = to.0;
                if reroute {
                    meta.flags &= !META_ROUTED;
                }
                self.pass_on(packet, meta, mark, way)
            }
            Some(Edge::Down) => self.end(packet, Ending::Down, exits),
            Some(Edge::Out) | None if way.meta.flags & META_DATA != 0 => {
                self.end(packet, Ending::Consumed, exits)
            }
            Some(Edge::Out) | None => self.pass_out(packet, reroute, way, exits),
        }
    }

    /// Forwards a packet whose lane has no instance, or drops it if the failure policy is closed.
    /// Returns true if the packet goes on to another service.
    #[cold]
    pub(super) fn go_without(
        &mut self,
        packet: Packet,
        way: &Way,
        is_closed: bool,
        exits: &mut Exits<'_>,
    ) -> bool {
        let mut meta = way.meta;
        if meta.flags & META_DATA != 0 {
            // A payload without a frame cannot be forwarded.
            return self.end(packet, Ending::Down, exits);
        }
        let next = if is_closed { Next::Down } else { exits.next_stage(&mut meta) };
        let end = match next {
            Next::Service(_) => return self.pass_on(packet, meta, [0; MARK_LENGTH], way),
            Next::By(port, session) => exits.leave_by(packet, &meta, (port, session)),
            Next::Out => exits.forward(packet, &meta),
            Next::Down => return self.end(packet, Ending::Down, exits),
            Next::Drop => return self.end(packet, Ending::Rule, exits),
        };
        match end {
            End::Sent | End::ToKernel => self.counters.count(Ending::Plain),
            end => self.counters.count_end(end, Ending::Plain),
        }
        false
    }

    /// Sends a frame made by the module, by a port or, as an IP packet, by the kernel's routes.
    pub(super) fn send(&mut self, port: u16, frame: &[u8], exits: &mut Exits<'_>) {
        let end = exits.packet_of(frame).map(|packet| match port {
            SEND_BY_ROUTE => exits.hand_to_kernel(packet),
            _ => exits.send(port, packet),
        });
        self.counters.count_emitted(matches!(end, Some(End::Sent | End::ToKernel)));
    }

    /// Returns the packet that was passed on, with its origin for the next service.
    #[inline]
    pub(super) fn take_onward(&mut self) -> Option<(Packet, Way)> {
        self.onward.pop_front()
    }

    /// Passes a packet on to another service; always returns true.
    fn pass_on(
        &mut self,
        packet: Packet,
        meta: PacketMeta,
        mark: [u8; MARK_LENGTH],
        came: &Way,
    ) -> bool {
        self.counters.count(Ending::PassedOn);
        let counted_by = came.batch.map(|_| self.entry).or(came.counted_by);
        let way = Way { meta, mark, batch: None, counted_by, room: Bytes::ZERO };
        self.onward.push_back((packet, way));
        true
    }

    /// Sends a packet out of the graph: to the next stage, if there is one, or by its route.
    /// Returns true if it goes on to another service.
    #[inline]
    fn pass_out(
        &mut self,
        packet: Packet,
        reroute: bool,
        way: &Way,
        exits: &mut Exits<'_>,
    ) -> bool {
        let mut meta = way.meta;
        if meta.then[0] == RULE_NONE {
            self.pass(packet, reroute, &meta, exits);
            return false;
        }
        if reroute {
            meta.flags &= !META_ROUTED;
        }
        match exits.next_stage(&mut meta) {
            Next::Service(_) => self.pass_on(packet, meta, [0; MARK_LENGTH], way),
            Next::Out => {
                self.pass(packet, reroute, &meta, exits);
                false
            }
            Next::By(port, session) => {
                let end = exits.leave_by(packet, &meta, (port, session));
                self.counters.count_end(end, Ending::Redirected);
                false
            }
            Next::Down => self.end(packet, Ending::Down, exits),
            Next::Drop => self.end(packet, Ending::Rule, exits),
        }
    }

    /// Sends a packet out of all graphs.
    #[inline]
    fn pass(&mut self, packet: Packet, reroute: bool, meta: &PacketMeta, exits: &mut Exits<'_>) {
        let end = match reroute {
            // Packets between the two ends of a bridge are not routed.
            true if meta.flags & META_BRIDGED == 0 => exits.reroute(packet, meta),
            _ => exits.forward(packet, meta),
        };
        self.counters.count_end(end, Ending::Forwarded);
    }

    /// Drops or consumes a packet; always returns false.
    fn end(&mut self, packet: Packet, ending: Ending, exits: &mut Exits<'_>) -> bool {
        exits.recycle(packet);
        self.counters.count(ending);
        false
    }
}
