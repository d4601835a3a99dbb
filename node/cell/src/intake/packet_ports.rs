//! Packet ports: frames that arrive by packet sockets, classified here and not by XDP.
//!
//! ```text
//!  packet socket ─▶ node::door ─▶ returned to the kernel, unchanged
//!                       │     ├─▶ out by the other end of the bridge
//!                       │     └─▶ a service, like any packet
//!                       └─ counters
//! ```
//!
//! A frame that its sender left to a device to segment is returned, or crosses the bridge,
//! unchanged; in front of a service it is segmented into packets.

use crate::datapath::RuleActions;
use crate::dispatch::Dispatcher;
use crate::intake::counts::DoorCounts;
use crate::sched::Timer;
use anyhow::{Context, Result};
use bpf_maps::PacketMeta;
use node::door::{Act, DROP_EGRESS_GONE, Decision, Door};
use rustix::fd::{AsFd, OwnedFd};
use sockets::frame_socket::{Buffer, Frame};
use units::{EntryId, PortId};
use wire::segment::Segments;

/// Largest rule set in bytes: all its keys, and all flows of its lists.
const RULES_LENGTH_MAX: u64 = 128 << 20;

/// Owner of what all packet ports share: the classifier and its counters.
#[derive(Debug, Default)]
pub(crate) struct PacketPorts {
    door: Door,
    counts: Option<DoorCounts>,
    buffer: Buffer,
    /// Buffer for one packet of a long frame.
    piece: Vec<u8>,
}

impl PacketPorts {
    /// Counts in this memory from now on.
    ///
    /// # Errors
    /// The memory cannot be mapped.
    pub(crate) fn count_in(&mut self, memory: OwnedFd) -> Result<()> {
        self.counts = Some(DoorCounts::from_fd(memory).context("mapping the counters")?);
        Ok(())
    }

    /// Installs rules from sealed memory, and returns their actions; the daemon waits until their
    /// number is published.
    ///
    /// # Errors
    /// The memory holds no rules.
    pub(crate) fn install(&mut self, number: u64, rules: &OwnedFd) -> Result<RuleActions> {
        let bytes = sandbox::fd_passing::read_sealed_memory(rules.as_fd(), RULES_LENGTH_MAX)
            .context("reading the rules")?;
        let (rules, own) = node::door::rules::decode(&bytes)?;
        let facts = RuleActions::of_rules(&rules);
        self.door.install(rules);
        self.door.set_own(own);
        if let Some(counts) = &self.counts {
            counts.set_rules(number);
        }
        Ok(facts)
    }

    /// Receives at most `most` frames of each packet port, and passes those for services to
    /// `serve`. Returns true if there were any.
    pub(crate) fn receive<T: Timer>(
        &mut self,
        most: usize,
        to: &mut Dispatcher<T>,
        mut serve: impl FnMut(&mut Dispatcher<T>, &[u8], PacketMeta),
    ) -> bool {
        let Self { door, counts, buffer, piece } = self;
        let mut is_busy = false;
        for number in to.path_mut().port_range() {
            for _ in 0..most {
                let Some((port, frame)) = to.path_mut().receive_frame(number, buffer) else {
                    break;
                };
                is_busy = true;
                let port = *port;
                if let Some(capture) = to.path_mut().capture() {
                    capture.on_frame_arrival();
                }
                let decision = door.decide(&port, frame.bytes);
                let (outcome, packets) = act(number, &decision, frame, piece, to, &mut serve);
                let (length, port) = (frame.bytes.len() as u64, PortId(number));
                if let Some(counts) = counts {
                    counts.add(port, outcome, packets, length);
                    for rule in decision.rules() {
                        counts.add_rule(rule, packets, length);
                    }
                }
                if let Some(capture) = to.path_mut().capture() {
                    let entry =
                        (decision.act == Act::Service).then_some(EntryId(decision.meta.entry));
                    capture.on_frame_outcome(
                        port,
                        frame.bytes,
                        decision.rules().next(),
                        entry,
                        outcome,
                    );
                }
            }
        }
        is_busy
    }
}

/// Carries out a decision; returns the outcome, and the number of packets that have it.
fn act<T: Timer>(
    port: u16,
    decision: &Decision,
    frame: Frame<'_>,
    piece: &mut Vec<u8>,
    to: &mut Dispatcher<T>,
    serve: &mut impl FnMut(&mut Dispatcher<T>, &[u8], PacketMeta),
) -> (usize, u64) {
    match decision.act {
        Act::Drop => (decision.outcome, 1),
        Act::Kernel => match to.path_mut().return_frame(port, frame) {
            true => (decision.outcome, 1),
            false => (DROP_EGRESS_GONE, 1),
        },
        Act::Cross(end) => match to.path_mut().cross(end, frame) {
            Ok(()) => {
                if let Some(capture) = to.path_mut().capture() {
                    capture.on_crossing(end, frame.bytes, decision.rules().next());
                }
                (decision.outcome, 1)
            }
            Err(outcome) => (outcome, 1),
        },
        Act::Out(egress, session) => {
            let ports = (port, egress);
            // Packets of a long frame leave, or not, one by one; all count with the outcome of the
            // last.
            let mut outcome = decision.outcome;
            let packets = each_packet(frame, piece, |bytes| {
                outcome = to.send_by(bytes, decision, ports, session);
            });
            (outcome, packets)
        }
        Act::Service => {
            let packets = each_packet(frame, piece, |bytes| serve(to, bytes, decision.meta));
            (decision.outcome, packets)
        }
    }
}

/// Calls `with` for each packet of a frame, after segmentation; returns their number.
fn each_packet(frame: Frame<'_>, piece: &mut Vec<u8>, mut with: impl FnMut(&[u8])) -> u64 {
    let long = frame.unfinished.segment_length();
    let Some(mut segments) = long.and_then(|size| Segments::of(frame.bytes, size)) else {
        with(frame.bytes);
        return 1;
    };
    let mut packets = 0;
    while segments.next_into(piece) {
        packets += 1;
        with(piece);
    }
    packets
}
