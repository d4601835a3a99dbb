//! Tests of packets of a closed service that is down.

use bpf_maps::{ACTION_DOWN, ACTION_USER, Key, LEVEL_NIC, LEVEL_USER, Mask, NEXT_DOWN, Rule};
use units::Edge;
use wire::FrameBuilder;

use crate::harness::{XDP_DROP, XDP_REDIRECT, addressed};
use crate::namespace::{add_way_out, enter};
use crate::nic_harness::{ENTRY, Nic, Script};

const PASS: u32 = 0;
const RAISE: u32 = 4;

fn frame() -> Vec<u8> {
    addressed(FrameBuilder::new().ipv4([10, 0, 0, 1], [203, 0, 113, 9], 64).udp(1, 2).build())
}

fn act(nic: &mut Nic, action: u8) {
    let rule = Rule { rule: 3, session: 4, entry: ENTRY, action, ..Rule::default() };
    nic.door.install(0, &[Mask::default()], &[(Key::default(), rule)]);
    nic.door.activate(0);
}

#[test]
fn rules_of_a_service_that_is_down_drop() {
    if !enter("rules_of_a_service_that_is_down_drop") {
        return;
    }
    let mut nic = Nic::load(Some(add_way_out()));
    act(&mut nic, ACTION_DOWN);
    for _ in 0..2 {
        let done = nic.verdict(&frame(), PASS);
        assert_eq!((done.outcome, done.action), ("drop_down", XDP_DROP));
    }
}

#[test]
fn without_a_socket_packets_of_a_closed_service_are_dropped_and_others_forwarded() {
    if !enter("without_a_socket_packets_of_a_closed_service_are_dropped") {
        return;
    }
    let mut nic = Nic::load(Some(add_way_out()));
    for action in [ACTION_USER, bpf_maps::ACTION_SERVICE] {
        act(&mut nic, action);
        nic.lane().set_target(LEVEL_USER);
        for (closed, outcome) in [(true, "drop_down"), (false, "kernel_no_socket")] {
            nic.lane().set_closed(closed);
            assert_eq!(nic.verdict(&frame(), PASS).outcome, outcome, "{action} {closed}");
        }
    }
    // Also when raised from below.
    nic.lane().set_target(LEVEL_NIC);
    nic.lane().set_closed(true);
    let mut dropped = 0;
    for _ in 0..3 {
        let done = nic.verdict(&frame(), RAISE);
        assert_eq!(done.action, XDP_DROP, "{done:?}");
        dropped += u64::from(done.outcome == "to_nic");
    }
    assert_eq!((nic.stats().drop_down, nic.stats().plain), (dropped, 0));
    assert_eq!(nic.ended(), nic.stats().packets);
}

#[test]
fn packets_of_a_trapped_closed_module_are_dropped_until_its_instance_is_replaced() {
    if !enter("a_closed_module_that_trapped_has_its_packets_dropped") {
        return;
    }
    let mut nic = Nic::load(Some(add_way_out()));
    nic.lane().set_closed(true);
    assert_eq!(nic.verdict(&frame(), PASS).action, XDP_REDIRECT);
    assert_eq!(nic.run(&frame(), Script { trapped: 7, ..Script::default() }).action, XDP_DROP);
    assert_eq!(nic.verdict(&frame(), PASS).action, XDP_DROP);
    let stats = nic.stats();
    assert_eq!((stats.drop_trap, stats.drop_down, stats.plain), (1, 1, 0));
    nic.lane().clear_trapped();
    assert_eq!(nic.verdict(&frame(), PASS).action, XDP_REDIRECT);
    assert_eq!(nic.ended(), 4);
}

#[test]
fn what_is_passed_to_a_closed_service_that_is_down_is_dropped() {
    if !enter("what_is_passed_to_a_closed_service_that_is_down_is_dropped") {
        return;
    }
    let mut nic = Nic::load(Some(add_way_out()));
    nic.lane().set_edges([Edge::Out, Edge::Down, Edge::Out, Edge::Out]);
    assert_eq!(nic.record().next[1], NEXT_DOWN);
    assert_eq!(nic.verdict(&frame(), PASS).action, XDP_REDIRECT, "by edge 0");
    assert_eq!(nic.verdict(&frame(), PASS | 1 << 16).action, XDP_DROP, "by edge 1");
    assert_eq!((nic.stats().forwarded, nic.stats().drop_down), (1, 1));
}
