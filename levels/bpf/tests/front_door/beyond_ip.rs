//! Tests of rules for frames that are not IP, and for TCP flags: fields that only some rules match
//! on.

use bpf_maps::{ACTION_DROP, ACTION_FORWARD, ACTION_USER, Key, Mask, PacketMeta, Rule};
use wire::FrameBuilder;

use crate::harness::{FrontDoor, MAC, XDP_DROP, XDP_PASS, addressed};
use crate::namespace::enter;

const ARP: [u8; 2] = [0x08, 0x06];
const LLDP: [u8; 2] = [0x88, 0xcc];

/// Makes a frame to this MAC address, with a tag when `vlan` is not 0.
fn frame(to: [u8; 6], vlan: u8, ethertype: [u8; 2]) -> Vec<u8> {
    let mut frame = to.to_vec();
    frame.extend([2, 0, 0, 0, 0xbb, 2]);
    if vlan != 0 {
        frame.extend([0x81, 0, 0, vlan]);
    }
    frame.extend(ethertype);
    frame.resize(60, 7);
    frame
}

/// Makes the rule 5, for these bits and this value.
fn one_rule(bits: Key, value: Key, action: u8) -> ([Mask; 1], [(Key, Rule); 1]) {
    let rule = Rule { rule: 5, entry: 6, session: 1, action, ..Rule::default() };
    ([Mask { bits, ..Mask::default() }], [(value, rule)])
}

fn named(ethertype_be: [u8; 2], action: u8) -> ([Mask; 1], [(Key, Rule); 1]) {
    let bits = Key { ethertype_be: [0xff; 2], ..Key::default() };
    one_rule(bits, Key { ethertype_be, ..Key::default() }, action)
}

fn with(rules: ([Mask; 1], [(Key, Rule); 1])) -> FrontDoor {
    let mut door = FrontDoor::load(None);
    door.install(0, &rules.0, &rules.1);
    door.activate(0);
    door.heartbeat();
    door
}

#[test]
fn frames_of_an_ethertype_without_a_rule_are_left_to_the_kernel() {
    if !enter("frames_of_an_ethertype_without_a_rule_are_left_to_the_kernel") {
        return;
    }
    let mut everything = with(one_rule(Key::default(), Key::default(), ACTION_DROP));
    let mut other = with(named(LLDP, ACTION_DROP));
    for door in [&mut everything, &mut other] {
        for (to, outcome) in [(MAC, "kernel_not_ip"), ([0xff; 6], "kernel_not_for_us")] {
            for _ in 0..3 {
                let done = door.run(&frame(to, 0, ARP));
                assert_eq!((done.outcome, done.action), (outcome, XDP_PASS));
            }
        }
        assert_eq!(door.rule_stats(5).packets, 0);
    }
}

#[test]
fn what_lies_behind_more_tags_than_are_read_is_dropped_if_there_are_rules() {
    if !enter("what_lies_behind_more_tags_than_are_read_is_dropped_if_there_are_rules") {
        return;
    }
    // Linux strips tags of VLAN 0 one after the other.
    let deep = FrameBuilder::new().ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64).udp(1, 53);
    let deep = addressed(deep.vlan(0).vlan(0).vlan(0).build());
    let mut free = FrontDoor::load(None);
    let done = free.run(&deep);
    assert_eq!((done.outcome, done.action), ("kernel_vlan_depth", XDP_PASS));
    for action in [ACTION_DROP, ACTION_USER, ACTION_FORWARD] {
        let mut door = with(named(LLDP, action));
        let done = door.run(&deep);
        assert_eq!((done.outcome, done.action), ("drop_vlan_depth", XDP_DROP));
    }
}

#[test]
fn frames_of_an_ethertype_with_a_rule_are_counted_and_dropped_or_left_to_the_kernel() {
    if !enter("frames_of_an_ethertype_with_a_rule_are_counted_and_dropped_or_left_to_the_kernel") {
        return;
    }
    for (action, outcomes, xdp) in [
        (ACTION_DROP, ["drop_rule", "drop_rule"], XDP_DROP),
        (ACTION_FORWARD, ["kernel_not_ip", "kernel_not_for_us"], XDP_PASS),
    ] {
        let mut door = with(named(ARP, action));
        for (to, outcome) in [MAC, [0xff; 6]].into_iter().zip(outcomes) {
            for (vlan, again) in [(0, false), (0, true), (7, false), (7, true)] {
                let done = door.run(&frame(to, vlan, ARP));
                assert_eq!((done.outcome, done.action, done.cached), (outcome, xdp, again));
            }
        }
        assert_eq!((door.rule_stats(5).packets, door.rule_stats(5).bytes), (8, 8 * 60));
        assert_eq!(door.run(&frame(MAC, 0, LLDP)).outcome, "kernel_not_ip");
        assert_eq!(door.rule_stats(5).packets, 8);
    }
}

#[test]
fn all_lengths_are_one_ethertype() {
    if !enter("all_lengths_are_one_ethertype") {
        return;
    }
    let mut door = with(named(bpf_maps::ETHERTYPE_LENGTH.to_be_bytes(), ACTION_DROP));
    for length in [[0, 0], [0, 38], [5, 0xdc], [5, 0xff]] {
        assert_eq!(door.run(&frame([1, 0x80, 0xc2, 0, 0, 0], 0, length)).outcome, "drop_rule");
    }
    assert_eq!(door.run(&frame(MAC, 0, [6, 0])).outcome, "kernel_not_ip");
}

#[test]
fn a_service_gets_frames_of_its_rules_ethertype_with_complete_metadata() {
    if !enter("a_service_gets_frames_of_its_rules_ethertype_with_complete_metadata") {
        return;
    }
    let mut door = with(named(ARP, ACTION_USER));
    let arp = frame([0xff; 6], 7, ARP);
    let done = door.run(&arp);
    assert_eq!(done.outcome, "kernel_no_socket");
    let (found, rest) = done.bytes.split_at(size_of::<PacketMeta>());
    let found: PacketMeta = bytemuck::pod_read_unaligned(found);
    let expected = PacketMeta {
        rule: 5,
        then: [bpf_maps::RULE_NONE; 2],
        entry: 6,
        l3_offset: 18,
        l4_offset: 0xffff,
        ..PacketMeta::default()
    };
    assert_eq!((found, rest), (expected, &arp[..]));
}

#[test]
fn tcp_flags_are_matched_and_cached_by_the_bits_that_rules_use() {
    if !enter("tcp_flags_are_matched_and_cached_by_the_bits_that_rules_use") {
        return;
    }
    let bits = Key { protocol: 0xff, tcp_flags: 0x12, ..Key::default() };
    let syn = Key { protocol: 6, tcp_flags: 0x02, ..Key::default() };
    let mut door = with(one_rule(bits, syn, ACTION_DROP));
    let tcp = |flags| {
        addressed(
            FrameBuilder::new().ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64).tcp(1, 2, flags).build(),
        )
    };
    // A field that no rule matches on does not make another flow.
    for (flags, outcome, cached) in [
        (0x02, "drop_rule", false),
        (0x12, "kernel_other", false),
        (0x10, "kernel_other", false),
        (0x18, "kernel_other", true),
        (0x12, "kernel_other", false),
        (0x03, "drop_rule", false),
        (0xe2, "drop_rule", true),
    ] {
        // Both kinds of SYN may share a slot with the others of their flow.
        let done = door.run(&tcp(flags));
        assert_eq!(done.outcome, outcome, "{flags:x}");
        assert!(done.cached || !cached, "{flags:x}");
    }
    // No rule matches on them any more.
    door.install(1, &[], &[]);
    door.activate(1);
    door.heartbeat();
    assert!(!door.run(&tcp(0x02)).cached);
    for flags in [0x12, 0x10, 0xff] {
        assert!(door.run(&tcp(flags)).cached, "{flags:x}");
    }
    assert_eq!(door.rule_stats(5).packets, 3);
}
