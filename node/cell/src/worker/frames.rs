//! Packet ports: frames that come by packet sockets, decided here and not by XDP.
//!
//! ```text
//!  packet socket ─▶ node::door ─▶ back into the kernel, as it came
//!                       │     ├─▶ out by the other end of the bridge
//!                       │     └─▶ a service, like any packet
//!                       └─ counts
//! ```
//!
//! A frame that its sender left to a device to cut up goes back, or across, as it is; in front
//! of a service it becomes the packets that it was meant to be.

use super::Cell;
use crate::datapath::checksum;
use crate::datapath::counts::DoorCounts;
use crate::datapath::deliver::End;
use crate::datapath::facts::Facts;
use crate::datapath::port::SendFailure;
use crate::protocol::PortFacts;
use crate::service::Way;
use abi::PacketBytes;
use abi::layout::MARK_LENGTH;
use anyhow::Context;
use bpf_maps::PacketMeta;
use node::door::{Act, DROP_CYCLE, DROP_EGRESS_GONE, DROP_SHARE, DROP_TOO_LONG, Decision, Door};
use rustix::fd::{AsFd, OwnedFd};
use sockets::frame_socket::{Buffer, Frame};
use units::{Bytes, CoarseInstant, EntryId, PortId, SessionId};
use wire::segment::Segments;
use xsk::Packet;

/// Bytes of a frame beside its IP packet: the Ethernet header and a tag.
const LINK_LENGTH: usize = 14 + 4;

/// Bytes of a rule set: all its keys, and all flows of its lists.
const RULES_LENGTH_MAX: u64 = 128 << 20;

/// What all packet ports share.
#[derive(Debug, Default)]
pub(super) struct Frames {
    door: Door,
    counts: Option<DoorCounts>,
    buffer: Buffer,
    /// One packet of a long frame.
    piece: Vec<u8>,
}

impl Frames {
    pub(super) fn count_in(&mut self, fd: OwnedFd) -> anyhow::Result<()> {
        self.counts = Some(DoorCounts::given(fd).context("mapping the counters")?);
        Ok(())
    }

    /// Has rules from now on; the daemon waits until it reads their number.
    pub(super) fn install(&mut self, number: u64, bytes: &OwnedFd) -> anyhow::Result<Facts> {
        let bytes = sandbox::fd_passing::read_sealed_memory(bytes.as_fd(), RULES_LENGTH_MAX)
            .context("reading the rules")?;
        let (rules, own) = node::door::rules::decode(&bytes)?;
        let facts = Facts::of_rules(&rules);
        self.door.install(rules);
        self.door.set_own(own);
        if let Some(counts) = &self.counts {
            counts.set_rules(number);
        }
        Ok(facts)
    }
}

impl Cell {
    pub(super) fn add_frames(
        &mut self,
        facts: &PortFacts,
        bridge: Option<PortId>,
        sockets: [OwnedFd; 2],
    ) -> anyhow::Result<()> {
        self.path.ports.add_frames(facts, bridge, sockets);
        self.set_rate(facts);
        self.link.send(&crate::protocol::FromCell::PortReady(facts.port, facts.queue))
    }

    /// At most so many frames of each packet port. True when there were any.
    pub(super) fn receive_frames(&mut self, most: usize, now: CoarseInstant) -> bool {
        let Some(mut frames) = self.frames.take() else { return false };
        let mut busy = false;
        for number in self.path.ports.numbers() {
            for _ in 0..most {
                let Frames { door, counts, buffer, piece } = &mut *frames;
                let Some(port) = self.path.ports.frames(number) else { break };
                // A device that goes away is the daemon's business.
                let Ok(Some(frame)) = port.socket.receive(buffer) else { break };
                busy = true;
                if let Some(tap) = &mut self.path.tap {
                    tap.comes();
                }
                let decision = door.decide(&port.door, frame.bytes);
                let (outcome, packets) = self.act(number, &decision, frame, piece, now);
                if let Some(counts) = counts {
                    counts.add(PortId(number), outcome, packets, frame.bytes.len() as u64);
                    for rule in decision.rules() {
                        counts.add_rule(rule, packets, frame.bytes.len() as u64);
                    }
                }
                if let Some(tap) = &mut self.path.tap {
                    let entry =
                        (decision.act == Act::Service).then_some(EntryId(decision.meta.entry));
                    let (port, rule) = (PortId(number), decision.rules().next());
                    tap.came(port, frame.bytes, rule, entry, outcome);
                }
            }
        }
        self.frames = Some(frames);
        busy
    }

    /// Does what was decided; gives the outcome and how many packets have it.
    fn act(
        &mut self,
        port: u16,
        decision: &Decision,
        frame: Frame<'_>,
        piece: &mut Vec<u8>,
        now: CoarseInstant,
    ) -> (usize, u64) {
        match decision.act {
            Act::Drop => (decision.outcome, 1),
            Act::Kernel => {
                let taken =
                    self.path.ports.frames(port).is_some_and(|port| {
                        port.back.send(&[frame.bytes], frame.unfinished).is_ok()
                    });
                // The kernel had no memory for it, or its way in is being taken down.
                (if taken { decision.outcome } else { DROP_EGRESS_GONE }, 1)
            }
            Act::Cross(end) => match self.cross(end, frame) {
                Ok(()) => {
                    if let Some(tap) = &mut self.path.tap {
                        tap.crosses(end, frame.bytes, decision.rules().next());
                    }
                    (decision.outcome, 1)
                }
                Err(outcome) => (outcome, 1),
            },
            Act::Out(to, session) => {
                let long = frame.unfinished.segment_length();
                let Some(mut segments) = long.and_then(|size| Segments::of(frame.bytes, size))
                else {
                    return (self.leave_by(frame.bytes, decision, (port, to), session), 1);
                };
                // They leave, or not, one by one, and count as the last did.
                let (mut packets, mut outcome) = (0, decision.outcome);
                while segments.next_into(piece) {
                    packets += 1;
                    outcome = self.leave_by(piece, decision, (port, to), session);
                }
                (outcome, packets)
            }
            Act::Service => {
                let long = frame.unfinished.segment_length();
                let Some(mut segments) = long.and_then(|size| Segments::of(frame.bytes, size))
                else {
                    self.serve_frame(frame.bytes, decision.meta, now);
                    return (decision.outcome, 1);
                };
                let mut packets = 0;
                while segments.next_into(piece) {
                    packets += 1;
                    self.serve_frame(piece, decision.meta, now);
                }
                (decision.outcome, packets)
            }
        }
    }

    /// Out by the other end of a bridge; an outcome when it cannot.
    fn cross(&mut self, end: PortId, frame: Frame<'_>) -> Result<(), usize> {
        let Some(port) = self.path.ports.get(end.0) else { return Err(DROP_EGRESS_GONE) };
        let is_long = frame.bytes.len() > port.mtu as usize + LINK_LENGTH;
        let finished = frame.unfinished.segment_length().is_none();
        if is_long && finished {
            return Err(DROP_TOO_LONG);
        }
        if let Some(port) = self.path.ports.frames(end.0) {
            let sent = port.socket.send(&[frame.bytes], frame.unfinished);
            return sent.map_err(|_| DROP_EGRESS_GONE);
        }
        if !finished {
            return Err(DROP_TOO_LONG);
        }
        let packet = self.packet_of(frame.bytes).ok_or(DROP_EGRESS_GONE)?;
        self.path.ports.send(end.0, packet, &mut self.path.pool).map_err(|(packet, _)| {
            packet.recycle(&mut self.path.pool);
            DROP_EGRESS_GONE
        })
    }

    /// Out by the port that a rule names, as it is; the outcome.
    fn leave_by(
        &mut self,
        bytes: &[u8],
        decision: &Decision,
        (arrival, to): (u16, PortId),
        session: SessionId,
    ) -> usize {
        let Some(mut packet) = self.packet_of(bytes) else { return DROP_EGRESS_GONE };
        checksum::complete(&mut packet, &decision.meta);
        let mut exits = self.path.exits(&mut self.sessions, session);
        let end = exits.redirect(packet, arrival, to.0);
        let sent = exits.sent;
        self.sessions.sent(session, Bytes(sent));
        match end {
            End::Sent => decision.outcome,
            End::Cycle => DROP_CYCLE,
            End::TooLong | End::Failed(SendFailure::TooLong) => DROP_TOO_LONG,
            End::Failed(SendFailure::Full) => DROP_SHARE,
            _ => DROP_EGRESS_GONE,
        }
    }

    fn serve_frame(&mut self, bytes: &[u8], meta: PacketMeta, now: CoarseInstant) {
        let Some(packet) = self.packet_of(bytes) else {
            self.report.up_dropped += 1;
            return;
        };
        self.arm();
        // Each is a batch of its own: it is read when it is handled.
        self.batches += 1;
        let (mark, batch) = ([0; MARK_LENGTH], Some(self.batches));
        let way = Way { meta, mark, batch, counted_by: None, room: Bytes::ZERO };
        self.handle_with(packet, way, now);
    }

    fn packet_of(&mut self, bytes: &[u8]) -> Option<Packet> {
        let mut packet = Packet::allocate(&self.umem, &mut self.path.pool, bytes.len())?;
        // Allocated with the frame's length: the store fits.
        let _ = packet.store(0, bytes);
        Some(packet)
    }
}
