//! Tests of guard-limit with guard's marks.

use super::buckets::{Buckets, PLACES};
use super::{
    ASLEEP, BUCKETS, REFUSE_LIMIT, STRANGERS, WOKEN, event, on_packet, on_start, on_timer,
};
use tam::Verdict;
use tam::testing::{Node, Outcome};

const LIMITED: Verdict = Verdict::Drop { reason: 1 };
const BLOCKED: Verdict = Verdict::Drop { reason: 2 };
const FRAME: [u8; 60] = [0; 60];

fn limiting(limit: u32) -> Node {
    let mut node = Node::new().with_window(0).with_parameter("limit", &limit.to_le_bytes());
    BUCKETS.with(|buckets| *buckets = Buckets::ZERO);
    node.start(on_start).unwrap();
    node.set_now_ms(1_000_000);
    node
}

/// Returns a mark of 192.0.NET.0/24, in a slot of the table, for five seconds.
fn mark(net: u8, slot: u16) -> [u8; 16] {
    let [low, high] = slot.to_le_bytes();
    [192, 0, net, 0, 0, 0, 0, 0, 4, 24, low, high, 5, 0, 0, 0]
}

/// Runs a packet of a prefix; the returned node keeps the mark.
fn packet(node: Node, mark: [u8; 16]) -> (Node, Outcome) {
    let mut node = node.with_mark(mark);
    let outcome = node.packet(on_packet, &FRAME);
    (node, outcome)
}

fn codes(outcome: &Outcome) -> Vec<u32> {
    outcome.events.iter().map(|(code, _)| *code).collect()
}

#[test]
fn a_prefix_gets_its_limit_and_what_a_tenth_of_a_second_saves() {
    let mut node = limiting(50).with_mark(mark(2, 7));
    let passed = |node: &mut Node, count: u32| {
        let verdicts = (0..count).map(|_| node.packet(on_packet, &FRAME).verdict);
        verdicts.filter(|verdict| *verdict == Verdict::PASS).count()
    };
    assert_eq!(passed(&mut node, 100), 5);
    assert_eq!(node.packet(on_packet, &FRAME).verdict, LIMITED);
    let mut sum = 0;
    for step in 1..=200 {
        node.set_now_ms(1_000_000 + step * 10);
        sum += passed(&mut node, 3);
    }
    assert_eq!(sum, 100, "two seconds");
    node.set_now_ms(1_060_000);
    assert_eq!(passed(&mut node, 100), 5);
}

#[test]
fn a_small_limit_lets_one_packet_through_at_a_time() {
    let mut node = limiting(1).with_mark(mark(2, 7));
    assert_eq!(node.packet(on_packet, &FRAME).verdict, Verdict::PASS);
    node.set_now_ms(1_000_999);
    assert_eq!(node.packet(on_packet, &FRAME).verdict, LIMITED);
    node.set_now_ms(1_001_000);
    assert_eq!(node.packet(on_packet, &FRAME).verdict, Verdict::PASS);
}

#[test]
fn a_limit_of_none_blocks_and_prefixes_do_not_share() {
    let (node, outcome) = packet(limiting(0), mark(2, 7));
    assert_eq!(outcome.verdict, BLOCKED);
    drop(node);
    let (node, first) = packet(limiting(1), mark(2, 7));
    let (node, second) = packet(node, mark(3, 8));
    let (_, third) = packet(node, mark(3, 8));
    let verdicts = [first, second, third].map(|outcome| outcome.verdict);
    assert_eq!(verdicts, [Verdict::PASS, Verdict::PASS, LIMITED]);
}

#[test]
fn waking_and_sleeping_are_told_with_the_prefix() {
    let node = limiting(100);
    let (woken, asleep) = (WOKEN.value(), ASLEEP.value());
    let (node, outcome) = packet(node, mark(2, 7));
    assert_eq!(outcome.events, [(event::WOKEN, vec![4, 24, 192, 0, 2, 0, 0, 0, 0, 0])]);
    let (node, outcome) = packet(node, mark(2, 7));
    assert_eq!(outcome.events, []);
    let (mut node, outcome) = packet(node, mark(3, 8));
    assert_eq!(codes(&outcome), [event::MORE]);
    node.set_now_ms(1_004_999);
    let (mut node, _) = packet(node, mark(3, 8));
    node.set_now_ms(1_005_000);
    node.timer(on_timer);
    assert_eq!((WOKEN.value() - woken, ASLEEP.value() - asleep), (2, 1));
    node.set_now_ms(1_009_999);
    node.timer(on_timer);
    // Events of timers are in the next packet's outcome; this packet has no mark.
    let (mut node, outcome) = packet(node, [0; 16]);
    assert_eq!(codes(&outcome), [event::LESS, event::ASLEEP]);
    assert_eq!(outcome.events[1].1, [4, 24, 192, 0, 3, 0, 0, 0, 0, 0]);
    assert_eq!((WOKEN.value() - woken, ASLEEP.value() - asleep), (2, 2));
    node.timer(on_timer);
    let (_, outcome) = packet(node, mark(3, 8));
    assert_eq!(codes(&outcome), [event::WOKEN]);
}

#[test]
fn a_slot_that_guard_gave_to_another_prefix_is_reset() {
    let node = limiting(1);
    let (woken, asleep) = (WOKEN.value(), ASLEEP.value());
    let (node, _) = packet(node, mark(2, 7));
    let (mut node, outcome) = packet(node, mark(3, 7));
    assert_eq!((outcome.verdict, codes(&outcome)), (Verdict::PASS, vec![event::MORE]));
    assert_eq!((WOKEN.value() - woken, ASLEEP.value() - asleep), (2, 1));
    node.set_now_ms(1_010_000);
    node.timer(on_timer);
    assert_eq!(ASLEEP.value() - asleep, 2);
}

#[test]
fn what_guard_did_not_mark_passes() {
    let node = limiting(0);
    let before = STRANGERS.value();
    let mut other = mark(2, PLACES as u16);
    let (node, outcome) = packet(node, [0; 16]);
    assert_eq!(outcome.verdict, Verdict::PASS);
    let (node, outcome) = packet(node, other);
    assert_eq!((outcome.verdict, outcome.events), (Verdict::PASS, vec![]));
    other = [0xff; 16];
    assert_eq!(packet(node, other).1.verdict, Verdict::PASS);
    assert_eq!(STRANGERS.value() - before, 3);
}

#[test]
fn a_limit_beyond_every_port_is_refused() {
    let too_much = 10_000_001_u32.to_le_bytes();
    let mut node = Node::new().with_parameter("limit", &too_much);
    assert_eq!(node.start(on_start), Err(REFUSE_LIMIT));
}
