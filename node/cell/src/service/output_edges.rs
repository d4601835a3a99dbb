//! Egress of a service's packets: along the edges of its graph, to the next stage, or out.
//!
//! ```text
//!   verdict ─▶ deliver ─┬─ an edge, a service of the next stage ─▶ onward ─▶ take_onward
//!                       └─ pass, bounce, redirect, drop ─▶ EgressPath, counted
//! ```

use super::Origin;
use super::counters::{Counters, Ending};
use crate::datapath::{EgressPath, End, Next};
use abi::Verdict;
use abi::layout::{EDGES_MAX, MARK_LENGTH, SEND_BY_ROUTE};
use bpf_maps::{META_BRIDGED, META_DATA, META_ROUTED, PacketMeta, RULE_NONE};
use std::collections::VecDeque;
use units::{Bytes, Edge, EntryId};
use xsk::Packet;

/// Owner of a service's edges, of the packets that it passed on, and of its counters.
pub(super) struct OutputEdges {
    counters: Counters,
    /// Targets of passed packets, by the edge that the module names.
    edges: [Edge; EDGES_MAX],
    /// Packets just passed on. They are stored here, since a packet is large and few are passed on.
    onward: VecDeque<(Packet, Origin)>,
    entry: EntryId,
}

impl OutputEdges {
    /// Creates the edges of a service whose edges all lead out.
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

    /// Takes over from the edges of another version.
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
        (origin, mark): (&Origin, [u8; MARK_LENGTH]),
        egress_path: &mut EgressPath<'_>,
    ) -> bool {
        // The payload of an active packet has no headers of its own, only those of its carrier.
        let is_data = origin.meta.flags & META_DATA != 0;
        let arrival = origin.meta.arrival_port;
        let (end, sent) = match verdict {
            Verdict::Pass { edge, reroute } => {
                return self.follow(packet, (edge, reroute), (origin, mark), egress_path);
            }
            Verdict::Bounce if is_data => (egress_path.answer(packet, arrival), Ending::Bounced),
            Verdict::Bounce => (egress_path.bounce(packet, arrival), Ending::Bounced),
            Verdict::Redirect { port } if !is_data => {
                (egress_path.redirect(packet, arrival, port), Ending::Redirected)
            }
            Verdict::Redirect { .. } => {
                egress_path.recycle(packet);
                self.counters.count(Ending::Malformed);
                return false;
            }
            Verdict::Drop { reason } => {
                egress_path.recycle(packet);
                self.counters.count_reason(reason);
                return false;
            }
            Verdict::Raise => {
                egress_path.recycle(packet);
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
        (origin, mark): (&Origin, [u8; MARK_LENGTH]),
        egress_path: &mut EgressPath<'_>,
    ) -> bool {
        match self.edges.get(usize::from(edge)) {
            Some(Edge::To(to)) => {
                let mut meta = origin.meta;
                meta.entry = to.0;
                if reroute {
                    meta.flags &= !META_ROUTED;
                }
                self.pass_on(packet, meta, mark, origin)
            }
            Some(Edge::Down) => self.end(packet, Ending::Down, egress_path),
            Some(Edge::Out) | None if origin.meta.flags & META_DATA != 0 => {
                self.end(packet, Ending::Consumed, egress_path)
            }
            Some(Edge::Out) | None => self.pass_out(packet, reroute, origin, egress_path),
        }
    }

    /// Forwards a packet whose lane has no instance, or drops it if the failure policy is closed.
    /// Returns true if the packet goes on to another service.
    #[cold]
    pub(super) fn go_without(
        &mut self,
        packet: Packet,
        origin: &Origin,
        is_closed: bool,
        egress_path: &mut EgressPath<'_>,
    ) -> bool {
        let mut meta = origin.meta;
        if meta.flags & META_DATA != 0 {
            // A payload without a frame cannot be forwarded.
            return self.end(packet, Ending::Down, egress_path);
        }
        let next = if is_closed { Next::Down } else { egress_path.next_stage(&mut meta) };
        let end = match next {
            Next::Service(_) => return self.pass_on(packet, meta, [0; MARK_LENGTH], origin),
            Next::By(port, session) => egress_path.send_by(packet, &meta, (port, session)),
            Next::Out => egress_path.forward(packet, &meta),
            Next::Down => return self.end(packet, Ending::Down, egress_path),
            Next::Drop => return self.end(packet, Ending::Rule, egress_path),
        };
        match end {
            End::Sent | End::ToKernel => self.counters.count(Ending::Plain),
            end => self.counters.count_end(end, Ending::Plain),
        }
        false
    }

    /// Sends a frame made by the module, by a port or, as an IP packet, by the kernel's routes.
    pub(super) fn send(&mut self, port: u16, frame: &[u8], egress_path: &mut EgressPath<'_>) {
        let end = egress_path.packet_of(frame).map(|packet| match port {
            SEND_BY_ROUTE => egress_path.hand_to_kernel(packet),
            _ => egress_path.send(port, packet),
        });
        self.counters.count_emitted(matches!(end, Some(End::Sent | End::ToKernel)));
    }

    /// Returns the packet that was passed on, with its origin for the next service.
    #[inline]
    pub(super) fn take_onward(&mut self) -> Option<(Packet, Origin)> {
        self.onward.pop_front()
    }

    /// Passes a packet on to another service; always returns true.
    fn pass_on(
        &mut self,
        packet: Packet,
        meta: PacketMeta,
        mark: [u8; MARK_LENGTH],
        came: &Origin,
    ) -> bool {
        self.counters.count(Ending::PassedOn);
        let counted_by = came.batch.map(|_| self.entry).or(came.counted_by);
        let origin = Origin { meta, mark, batch: None, counted_by, credit: Bytes::ZERO };
        self.onward.push_back((packet, origin));
        true
    }

    /// Sends a packet out of the graph: to the next stage, if there is one, or by its route.
    /// Returns true if it goes on to another service.
    #[inline]
    fn pass_out(
        &mut self,
        packet: Packet,
        reroute: bool,
        origin: &Origin,
        egress_path: &mut EgressPath<'_>,
    ) -> bool {
        let mut meta = origin.meta;
        if meta.then[0] == RULE_NONE {
            self.pass(packet, reroute, &meta, egress_path);
            return false;
        }
        if reroute {
            meta.flags &= !META_ROUTED;
        }
        match egress_path.next_stage(&mut meta) {
            Next::Service(_) => self.pass_on(packet, meta, [0; MARK_LENGTH], origin),
            Next::Out => {
                self.pass(packet, reroute, &meta, egress_path);
                false
            }
            Next::By(port, session) => {
                let end = egress_path.send_by(packet, &meta, (port, session));
                self.counters.count_end(end, Ending::Redirected);
                false
            }
            Next::Down => self.end(packet, Ending::Down, egress_path),
            Next::Drop => self.end(packet, Ending::Rule, egress_path),
        }
    }

    /// Sends a packet out of all graphs.
    #[inline]
    fn pass(
        &mut self,
        packet: Packet,
        reroute: bool,
        meta: &PacketMeta,
        egress_path: &mut EgressPath<'_>,
    ) {
        let end = match reroute {
            // Packets between the two ends of a bridge are not routed.
            true if meta.flags & META_BRIDGED == 0 => egress_path.reroute(packet, meta),
            _ => egress_path.forward(packet, meta),
        };
        self.counters.count_end(end, Ending::Forwarded);
    }

    /// Drops or consumes a packet; always returns false.
    fn end(&mut self, packet: Packet, ending: Ending, egress_path: &mut EgressPath<'_>) -> bool {
        egress_path.recycle(packet);
        self.counters.count(ending);
        false
    }
}
