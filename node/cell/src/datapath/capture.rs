//! Capture of the cell's packets: leaving, dropped by modules with the verdict, and arriving by
//! packet ports. Without a capture, a packet costs one comparison.

use crate::protocol::{CapturePoint, CaptureSpec, CapturedFrame};
use abi::{PacketBytes, Verdict};
use bpf_maps::{OUTCOMES, PacketMeta, RULE_NONE};
use engine::Trap;
use units::{EntryId, PortId, RuleId, SessionId};
use xsk::Packet;

/// Packets that the daemon gets from one turn, limited by the buffer of its socket.
const CAPTURED_PER_TURN_MAX: usize = 256;

/// Running capture.
#[derive(Debug)]
pub(crate) struct Capture {
    facts: CaptureSpec,
    /// Fields of the packet being handled.
    context: CapturedFrame,
    /// Arrival time of the frame being classified, in nanoseconds of the monotonic clock.
    arrived_ns: u64,
    waiting: Vec<CapturedFrame>,
    lost: u64,
}

impl Capture {
    pub(crate) fn new(facts: CaptureSpec) -> Self {
        Self {
            facts,
            context: CapturedFrame::default(),
            arrived_ns: 0,
            waiting: Vec::new(),
            lost: 0,
        }
    }

    /// Records the decision of a packet's module; captures the packet if it is dropped.
    pub(crate) fn on_verdict(
        &mut self,
        (entry, session): (EntryId, SessionId),
        meta: &PacketMeta,
        packet: &Packet,
        verdict: &Result<Verdict, Trap>,
    ) {
        let dropped = matches!(verdict, Ok(Verdict::Raise | Verdict::Drop { .. }) | Err(_));
        let said = verdict.as_ref().map_err(|trap| trap.kind).copied();
        let verdict = CapturedFrame::words(said);
        self.context = CapturedFrame {
            port: PortId(meta.arrival_port),
            entry: Some(entry),
            rule: Some(u32::from(meta.rule)),
            session: session.0,
            verdict,
            seen: if dropped { CapturePoint::End } else { CapturePoint::Departure },
            ..CapturedFrame::default()
        };
        if dropped {
            self.keep(packet, PortId(meta.arrival_port));
        }
    }

    /// Records the decision of a module at kernel level, from the metadata of a packet that leaves
    /// from here.
    pub(crate) fn on_verdict_below(
        &mut self,
        (entry, session): (EntryId, SessionId),
        meta: &PacketMeta,
    ) {
        let word = u32::from(meta.then[0]) | u32::from(meta.then[1]) << 16;
        // A module that was not run has decided nothing.
        let verdict = Verdict::parse(word).unwrap_or(Verdict::PASS);
        self.context = CapturedFrame {
            entry: Some(entry),
            rule: (meta.rule != RULE_NONE).then_some(u32::from(meta.rule)),
            session: session.0,
            verdict: CapturedFrame::words(Ok(verdict)),
            seen: CapturePoint::Departure,
            ..CapturedFrame::default()
        };
    }

    /// Records the arrival time of a frame by a packet port.
    pub(crate) fn on_frame_arrival(&mut self) {
        self.arrived_ns = now_ns();
    }

    /// Captures an arrived frame with its outcome, an index into `OUTCOMES`.
    pub(crate) fn on_frame_outcome(
        &mut self,
        port: PortId,
        bytes: &[u8],
        rule: Option<RuleId>,
        entry: Option<EntryId>,
        outcome: usize,
    ) {
        let dropped = OUTCOMES.get(outcome).is_some_and(|(name, _)| name.starts_with("drop_"));
        if !self.facts.arriving || (self.facts.dropped_only && !dropped) {
            return;
        }
        let context = CapturedFrame {
            entry,
            rule: rule.map(|rule| rule.0),
            seen: CapturePoint::Arrival(outcome as u16),
            time_ns: self.arrived_ns,
            ..CapturedFrame::default()
        };
        self.put(context, port, bytes.len(), &bytes[..bytes.len().min(self.snap())]);
    }

    /// Captures a frame that leaves by a packet port unchanged, as it arrived by another one.
    pub(crate) fn on_crossing(&mut self, port: PortId, bytes: &[u8], rule: Option<RuleId>) {
        if self.facts.dropped_only {
            return;
        }
        let rule = rule.map(|rule| rule.0);
        let context = CapturedFrame { rule, time_ns: now_ns(), ..CapturedFrame::default() };
        self.put(context, port, bytes.len(), &bytes[..bytes.len().min(self.snap())]);
    }

    /// Captures a packet that leaves by a port.
    pub(crate) fn on_departure(&mut self, packet: &Packet, port: u16) {
        if !self.facts.dropped_only {
            self.keep(packet, PortId(port));
        }
    }

    /// Clears the context: frames that follow were made by modules and belong to no rule.
    pub(crate) fn clear_context(&mut self) {
        self.context = CapturedFrame::default();
    }

    fn keep(&mut self, packet: &Packet, port: PortId) {
        let length = packet.length();
        let mut bytes = vec![0; length.min(self.snap())];
        if packet.load(0, &mut bytes).is_err() {
            bytes.clear();
        }
        let context = CapturedFrame { time_ns: now_ns(), ..self.context.clone() };
        self.put(context, port, length, &bytes);
    }

    fn put(&mut self, context: CapturedFrame, port: PortId, length: usize, bytes: &[u8]) {
        if self.waiting.len() == CAPTURED_PER_TURN_MAX {
            self.lost += 1;
            return;
        }
        let (length, bytes) = (length as u32, bytes.to_vec());
        self.waiting.push(CapturedFrame { port, length, bytes, ..context });
    }

    fn snap(&self) -> usize {
        self.facts.snap as usize
    }

    /// Takes the captured packets since the last call, and the number that was dropped.
    pub(crate) fn take(&mut self) -> (Vec<CapturedFrame>, u64) {
        (std::mem::take(&mut self.waiting), std::mem::take(&mut self.lost))
    }
}

/// Returns the monotonic clock in nanoseconds, as the front door's capture reads it.
fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    // Time since the machine started: neither part is negative.
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::TrapKind;
    use std::rc::Rc;
    use xsk::Umem;

    const WHO: (EntryId, SessionId) = (EntryId(3), SessionId(2));
    const META: PacketMeta = PacketMeta {
        rule: 9,
        then: [RULE_NONE; 2],
        entry: 3,
        egress_port: 1,
        egress_vlan: 0,
        next_hop: [0; 6],
        arrival_port: 4,
        l3_offset: 14,
        l4_offset: 34,
        flow_hash: 0,
        flags: 0,
    };

    fn capture(dropped_only: bool) -> Capture {
        Capture::new(CaptureSpec { snap: 8, arriving: true, dropped_only })
    }

    fn packet() -> Packet {
        let (umem, mut pool) = Umem::new(1).unwrap();
        let mut packet = Packet::allocate(&Rc::new(umem), &mut pool, 60).unwrap();
        packet.store(0, &[7; 60]).unwrap();
        packet
    }

    /// Returns what was seen since the last call: kind, port and rule of each packet.
    fn seen(capture: &mut Capture) -> Vec<(CapturePoint, u16, Option<u32>)> {
        capture.take().0.into_iter().map(|it| (it.seen, it.port.0, it.rule)).collect()
    }

    #[test]
    fn a_dropped_packet_is_captured_at_its_drop_and_a_sent_one_at_its_departure() {
        let mut capture = capture(false);
        capture.on_verdict(WHO, &META, &packet(), &Ok(Verdict::Drop { reason: 1 }));
        capture.on_verdict(
            WHO,
            &META,
            &packet(),
            &Err(Trap { kind: TrapKind::Other, place: None }),
        );
        assert_eq!(seen(&mut capture), [(CapturePoint::End, 4, Some(9)); 2]);
        capture.on_verdict(WHO, &META, &packet(), &Ok(Verdict::PASS));
        capture.on_departure(&packet(), 6);
        let (tapped, lost) = capture.take();
        assert_eq!((tapped.len(), lost), (1, 0));
        assert_eq!(
            (tapped[0].seen, tapped[0].port, tapped[0].entry),
            (CapturePoint::Departure, PortId(6), Some(WHO.0))
        );
        assert_eq!((tapped[0].length, &tapped[0].bytes[..]), (60, &[7; 8][..]));
    }

    #[test]
    fn frames_made_by_a_module_have_no_rule() {
        let mut capture = capture(false);
        capture.on_verdict(WHO, &META, &packet(), &Ok(Verdict::PASS));
        capture.clear_context();
        capture.on_departure(&packet(), 6);
        assert_eq!(seen(&mut capture), [(CapturePoint::default(), 6, None)]);
    }

    #[test]
    fn a_capture_of_drops_sees_nothing_that_leaves() {
        let mut capture = capture(true);
        capture.on_verdict(WHO, &META, &packet(), &Ok(Verdict::PASS));
        capture.on_departure(&packet(), 6);
        capture.on_crossing(PortId(1), &[0; 60], None);
        let place = |name: &str| OUTCOMES.iter().position(|(it, _)| *it == name).unwrap();
        capture.on_frame_arrival();
        capture.on_frame_outcome(PortId(2), &[0; 60], None, None, place("bridged"));
        capture.on_frame_outcome(PortId(2), &[0; 60], Some(RuleId(5)), None, place("drop_rule"));
        let outcome = CapturePoint::Arrival(place("drop_rule") as u16);
        assert_eq!(seen(&mut capture), [(outcome, 2, Some(5))]);
    }

    #[test]
    fn a_verdict_below_user_level_is_captured_at_the_departure() {
        let mut capture = capture(false);
        let word = Verdict::Redirect { port: 6 }.to_value();
        let then = [word as u16, (word >> 16) as u16];
        capture.on_verdict_below(WHO, &PacketMeta { then, rule: RULE_NONE, ..META });
        capture.on_departure(&packet(), 6);
        let tapped = capture.take().0.remove(0);
        assert_eq!((tapped.session, tapped.rule), (WHO.1.0, None));
        assert_eq!(tapped.verdict, CapturedFrame::words(Ok(Verdict::Redirect { port: 6 })));
    }

    #[test]
    fn captures_of_a_turn_are_limited_and_the_rest_is_counted() {
        let mut capture = capture(false);
        for _ in 0..CAPTURED_PER_TURN_MAX + 3 {
            capture.on_crossing(PortId(1), &[1; 60], Some(RuleId(1)));
        }
        let (tapped, lost) = capture.take();
        assert_eq!((tapped.len(), lost), (CAPTURED_PER_TURN_MAX, 3));
        assert_eq!(capture.take().1, 0, "it was said");
    }
}
