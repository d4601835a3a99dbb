//! Unit tests of packets that leave by packet ports: by verdict, in the order of their flows, and
//! within the limits of a port.

use super::*;
use crate::datapath::tests::{Wire, facts as port_facts};
use bpf_maps::META_ROUTED;
use units::BitsPerSecond;

const LEFT: PortId = PortId(0);
const RIGHT: PortId = PortId(1);
/// Module that sends everything by the port on the right.
const RIGHTWARDS: &str = r#"(func (export "on_packet") (result i32) (i32.const 0x10003))"#;

/// Rig with two ports, and their other ends.
struct Wired {
    rig: Rig,
    left: Wire,
    right: Wire,
}

impl Wired {
    fn new() -> Self {
        let mut rig = Rig::new();
        let (path, sessions) = rig.dispatcher.path_and_sessions();
        let [left, right] = [LEFT, RIGHT].map(|port| Wire::add(path, sessions, (port, None)));
        Self { rig, left, right }
    }

    /// Gives a service a packet of this flow that arrived by the port on the left.
    fn give(&mut self, entry: EntryId, word: u32, flow: u32) {
        let (packet, mut origin) = self.rig.packet(entry, word);
        (origin.meta.flow_hash, origin.meta.arrival_port) = (flow, LEFT.0);
        self.rig.dispatcher.on_packet(packet, origin, &mut round(&mut self.rig.link));
    }
}

/// Returns the word in a frame's payload.
fn word_of(frame: &[u8]) -> u32 {
    u32::from_le_bytes(frame[42..46].try_into().unwrap())
}

#[test]
fn each_verdict_has_its_port_and_its_count() {
    let routed = META_ROUTED;
    for (verdict, flags, left, right, of) in [
        (Verdict::PASS, routed, 0, 1, |report: &ServiceReport| report.forwarded),
        (Verdict::Bounce, 0, 1, 0, |report: &ServiceReport| report.bounced),
        (Verdict::Redirect { port: 1 }, 0, 0, 1, |report: &ServiceReport| report.redirected),
        (Verdict::Redirect { port: 9 }, 0, 0, 0, |report: &ServiceReport| report.drop_no_port),
        (Verdict::Drop { reason: 3 }, routed, 0, 0, |report: &ServiceReport| {
            report.drop_module[&3]
        }),
        // Without a route the packet goes to the kernel, by its arrival port.
        (Verdict::PASS, 0, 0, 0, |report: &ServiceReport| report.to_kernel),
    ]
        as [(Verdict, u32, usize, usize, fn(&ServiceReport) -> u64); 6]
    {
        for turns in [false, true] {
            let mut wired = Wired::new();
            if turns {
                wired.rig.add_session(2, "{}");
            }
            wired.rig.start(facts(ENTRY), OBEYS);
            wired.rig.run_turns();
            let (packet, mut origin) = wired.rig.packet(ENTRY, verdict.to_value());
            origin.meta.flags |= flags;
            origin.meta.egress_port = RIGHT.0;
            wired.rig.dispatcher.on_packet(packet, origin, &mut round(&mut wired.rig.link));
            wired.rig.run_turns();
            let report = wired.rig.report(ENTRY);
            assert_eq!((of(&report), report.ended()), (1, 1), "{verdict:?} {turns}");
            let sent = [wired.left.sent(), wired.right.sent()];
            assert_eq!(sent.each_ref().map(Vec::len), [left, right], "{verdict:?} {turns}");
            assert_eq!(wired.left.back().len() as u64, report.to_kernel);
            assert_eq!(wired.rig.cell().frames_free, wired.rig.cell().frames_total);
            let service = wired.rig.dispatcher.services().get(ENTRY).unwrap();
            let bytes = sent.iter().flatten().map(Vec::len).sum::<usize>() as u64;
            assert_eq!(service.bytes_out(), Bytes(bytes), "{verdict:?} {turns}");
        }
    }
}

#[test]
fn packets_of_a_flow_leave_in_the_order_in_which_they_came() {
    const FLOWS: usize = 5;
    for turns in [false, true] {
        let mut wired = Wired::new();
        if turns {
            wired.rig.add_session(2, r#"{"cpu":["1ms/4ms+extra"]}"#);
        }
        // Lanes have turns of their own, and so have the two services.
        let pass = r#"(func (export "on_packet") (result i32) (i32.const 0))"#;
        let first =
            ServiceSpec { lanes: 3, session: SessionId(u16::from(turns) + 1), ..facts(ENTRY) };
        wired.rig.start(first, pass);
        wired.rig.start(ServiceSpec { lanes: 2, brief: true, ..facts(NEXT) }, RIGHTWARDS);
        wired.rig.connect(ENTRY, &[Edge::To(NEXT)]);
        wired.rig.run_turns();
        let (mut given, mut seen) = ([0; FLOWS], [0; FLOWS]);
        for step in 0..60usize {
            // Some packets arrive between turns.
            for number in 0..1 + step % 4 {
                let flow = (step * 7 + number * 3) % FLOWS;
                given[flow] += 1;
                let word = (flow as u32) << 16 | given[flow];
                wired.give(ENTRY, word, (flow as u32).wrapping_mul(0x9e37_79b9));
            }
            if step % 3 == 0 {
                wired.rig.run_short_turn();
            } else {
                wired.rig.run_turns();
            }
            for frame in wired.right.sent() {
                let (flow, number) = (word_of(&frame) >> 16, word_of(&frame) & 0xffff);
                seen[flow as usize] += 1;
                assert_eq!(number, seen[flow as usize], "flow {flow}, turns {turns}");
            }
        }
        assert_eq!(given, seen, "and none is missing");
        assert_eq!(wired.rig.report(NEXT).redirected, u64::from(given.iter().sum::<u32>()));
    }
}

#[test]
fn what_the_device_does_not_take_is_dropped_and_counted() {
    let mut wired = Wired::new();
    wired.rig.start(facts(ENTRY), RIGHTWARDS);
    // The other end is not read.
    for number in 0..2_000 {
        wired.give(ENTRY, number, 0);
    }
    let report = wired.rig.report(ENTRY);
    let sent: Vec<u32> = wired.right.sent().iter().map(|frame| word_of(frame)).collect();
    assert!(!sent.is_empty() && report.drop_egress_full > 0, "{report:?}");
    assert_eq!(report.redirected as usize, sent.len());
    assert_eq!(report.redirected + report.drop_egress_full, 2_000);
    assert_eq!(sent, (0..sent.len() as u32).collect::<Vec<u32>>(), "the first, in order");
    wired.give(ENTRY, 7, 0);
    assert_eq!(wired.right.sent().len(), 1, "it takes some again");
    assert_eq!(wired.rig.cell().frames_free, wired.rig.cell().frames_total);
}

#[test]
fn packets_waiting_for_a_shared_port_hold_queue_credit_until_they_have_left() {
    let mut wired = Wired::new();
    wired.rig.add_session(2, r#"{"queue":"16KiB","send":{"right":"1ms/4ms"}}"#);
    let rate = |wired: &mut Wired, bits: u64| {
        let facts = CellPort { rate: Some(BitsPerSecond(bits)), ..port_facts(RIGHT) };
        let (path, sessions) = wired.rig.dispatcher.path_and_sessions();
        path.change_port(&facts, sessions);
    };
    rate(&mut wired, 1_000_000);
    wired.rig.start(ServiceSpec { session: SessionId(2), ..facts(ENTRY) }, RIGHTWARDS);
    wired.rig.run_turns();
    for number in 0..6 {
        wired.give(ENTRY, number, 0);
        wired.rig.run_turns();
    }
    // The session's queue holds four frames of 4 KiB.
    let report = wired.rig.report(ENTRY);
    assert_eq!((report.redirected, report.drop_queue, report.ended()), (4, 2, 6));
    assert_eq!(wired.rig.session(2).queue, Bytes(4 * 4096));
    assert!(wired.right.sent().is_empty() && wired.rig.dispatcher.path().waits(SessionId(2)));
    // A port without a rate has no shares: waiting packets leave at once, in order.
    let (path, sessions) = wired.rig.dispatcher.path_and_sessions();
    path.change_port(&port_facts(RIGHT), sessions);
    let sent: Vec<u32> = wired.right.sent().iter().map(|frame| word_of(frame)).collect();
    assert_eq!(sent, [0, 1, 2, 3]);
    assert_eq!(wired.rig.session(2).queue, Bytes::ZERO);
    rate(&mut wired, 1_000_000);
    wired.give(ENTRY, 8, 0);
    wired.rig.run_turns();
    assert_eq!(wired.rig.report(ENTRY).redirected, 5, "there is room again");
}

#[test]
fn frames_of_a_modules_own_making_leave_or_are_counted_as_lost() {
    // Module that sends 60 bytes of its data by the port on the right, and by route.
    let sends = r#"
        (import "tam" "packet_send" (func $send (param i32 i32 i32) (result i32)))
        (func (export "on_packet") (result i32)
          (drop (call $send (i32.const 0x9000) (i32.const 60) (i32.const 1)))
          (drop (call $send (i32.const 0x9000) (i32.const 60) (i32.const 0xffff)))
          (i32.const 1))"#;
    for turns in [false, true] {
        let mut wired = Wired::new();
        if turns {
            wired.rig.add_session(2, "{}");
        }
        let code = Rig::code_of(&facts(ENTRY), sends);
        let Rig { loader, dispatcher, link, .. } = &mut wired.rig;
        loader.start(facts(ENTRY), &[code], dispatcher, &mut round(link)).unwrap();
        wired.rig.run_turns();
        wired.give(ENTRY, 0, 0);
        wired.rig.run_turns();
        let report = wired.rig.report(ENTRY);
        // The frame is no IP packet, so there is no route for it.
        assert_eq!((report.sent, report.sent_dropped, report.ended()), (1, 1, 1), "{turns}");
        assert_eq!(wired.right.sent(), [[0; 60]]);
        let (path, sessions) = wired.rig.dispatcher.path_and_sessions();
        path.remove_port(RIGHT, sessions);
        wired.give(ENTRY, 0, 0);
        wired.rig.run_turns();
        let report = wired.rig.report(ENTRY);
        assert_eq!((report.sent, report.sent_dropped, report.ended()), (1, 3, 2), "{turns}");
        assert_eq!(wired.rig.cell().frames_free, wired.rig.cell().frames_total);
    }
}

#[test]
fn a_redirect_to_a_port_that_goes_is_counted_and_what_waited_for_it_is_lost() {
    let mut wired = Wired::new();
    wired.rig.add_session(2, r#"{"send":{"right":"1ms/4ms"}}"#);
    let facts_of = CellPort { rate: Some(BitsPerSecond(1_000_000)), ..port_facts(RIGHT) };
    let (path, sessions) = wired.rig.dispatcher.path_and_sessions();
    path.change_port(&facts_of, sessions);
    wired.rig.start(ServiceSpec { session: SessionId(2), ..facts(ENTRY) }, RIGHTWARDS);
    wired.rig.run_turns();
    for _ in 0..3 {
        wired.give(ENTRY, 0, 0);
    }
    wired.rig.run_turns();
    let (path, sessions) = wired.rig.dispatcher.path_and_sessions();
    path.remove_port(RIGHT, sessions);
    assert_eq!((wired.rig.cell().egress_gone, wired.rig.session(2).queue), (3, Bytes::ZERO));
    wired.give(ENTRY, 0, 0);
    wired.rig.run_turns();
    let report = wired.rig.report(ENTRY);
    assert_eq!((report.redirected, report.drop_no_port), (3, 1));
    assert_eq!(wired.rig.cell().frames_free, wired.rig.cell().frames_total);
}
