//! Tests of packets that do not show all of L4: a router forwards them, and rules that need the
//! hidden fields stop those that may match.

use bpf_maps::{ACTION_DROP, ACTION_FORWARD, ACTION_USER, Key, MASKS_MAX, Mask, Rule};
use wire::{FrameBuilder, Hidden, parse_frame, protocol as p};

use crate::fragments::datagram_behind_options;
use crate::harness::{FrontDoor, XDP_DROP, addressed};
use crate::namespace::{add_way_out, enter};

fn v4() -> FrameBuilder {
    FrameBuilder::new().ipv4([10, 0, 0, 1], [203, 0, 113, 9], 64)
}

fn v6() -> FrameBuilder {
    FrameBuilder::new().ipv6(
        [0x2001, 0xdb8, 0, 0, 0, 0, 0, 1],
        [0x2001, 0xdb8, 1, 0, 0, 0, 0, 2],
        64,
    )
}

/// Returns frames that hide something, by the hidden fields.
fn frames() -> Vec<(Hidden, Vec<u8>)> {
    let segment = v4().tcp(7, 8, p::TCP_SYN).payload(&[0; 64]);
    let options = |builder: FrameBuilder, _| builder.extension(p::DESTINATION_OPTIONS, &[0; 6]);
    let far = |builder: FrameBuilder, _| builder.extension(p::DESTINATION_OPTIONS, &[0; 2046]);
    let frames = [
        (Hidden::Flags, segment.build_fragments(8).swap_remove(0)),
        (Hidden::Flags, v4().protocol(p::TCP).payload(&[0, 7, 0, 8]).build()),
        (Hidden::Ports, v4().protocol(p::TCP).payload(&[0, 7, 0]).build()),
        (Hidden::Ports, v6().protocol(p::UDP).build()),
        (Hidden::Ports, v4().protocol(p::UDP).fragment(0, true).build()),
        (Hidden::Protocol, (0..9).fold(v6(), options).udp(7, 8).build()),
        (Hidden::Protocol, (0..3).fold(v6(), far).udp(7, 8).build()),
        (
            Hidden::Protocol,
            v6().protocol(p::DESTINATION_OPTIONS).payload(&[17, 9, 0, 0, 0, 0, 0, 0]).build(),
        ),
    ];
    frames.map(|(hidden, frame)| (hidden, addressed(frame))).into()
}

/// Installs a rule set by hand: these rules have one mask each, in the order of their ranks;
/// `hidden` are those that some packets may match, by the other fields.
fn install(door: &mut FrontDoor, rules: &[(Key, Key, u8)], hidden: &[(Key, Key, u32)]) {
    let masks = (0..).zip(rules).map(|(rank, (bits, ..))| Mask {
        bits: *bits,
        rank_best: rank,
        ..Mask::default()
    });
    let keys = (0..).zip(rules).map(|(rank, (_, key, action))| {
        let rule = Rule { rank, rule: rank, action: *action, ..Rule::default() };
        (Key { mask: rank as u16, ..*key }, rule)
    });
    door.install(0, &masks.collect::<Vec<_>>(), &keys.collect::<Vec<_>>());
    let masks = hidden.iter().map(|(bits, ..)| {
        let bits = Key { hidden: u16::MAX, ..*bits };
        Mask { bits, ..Mask::default() }
    });
    let keys = (MASKS_MAX as u16..).zip(hidden).map(|(mask, (_, key, rank))| {
        (Key { mask, ..*key }, Rule { rank: *rank, rule: *rank, ..Rule::default() })
    });
    door.install_hidden(0, &masks.collect::<Vec<_>>(), &keys.collect::<Vec<_>>());
    door.activate(0);
    door.heartbeat();
}

#[test]
fn a_router_forwards_packets_with_hidden_l4_headers() {
    if !enter("a_router_forwards_packets_with_hidden_l4_headers") {
        return;
    }
    let mut door = FrontDoor::load(Some(add_way_out()));
    for (hidden, frame) in frames() {
        assert_eq!(parse_frame(&frame).unwrap().hidden, hidden);
        // The last but one is longer than the egress MTU.
        let expected = if frame.len() > 1514 { "kernel_too_big" } else { "forwarded" };
        assert_eq!(door.run(&frame).outcome, expected, "{hidden:?}");
    }
    // A header whose options a router must process is the kernel's, whatever is behind it.
    let hops = (0..9).fold(v6().extension(p::HOP_BY_HOP, &[0; 6]), |builder, _| {
        builder.extension(p::DESTINATION_OPTIONS, &[0; 6])
    });
    assert_eq!(door.run(&addressed(hops.udp(1, 2).build())).outcome, "kernel_options");
}

#[test]
fn a_packet_is_dropped_if_a_better_rule_needs_its_hidden_fields() {
    if !enter("a_packet_is_dropped_if_a_better_rule_needs_its_hidden_fields") {
        return;
    }
    let mut door = FrontDoor::load(Some(add_way_out()));
    let none = Key::default();
    let (bits, value) = (
        Key { destination_port_be: [0xff; 2], ..none },
        Key { destination_port_be: 53u16.to_be_bytes(), ..none },
    );
    let hides = |hidden: Hidden| Key { hidden: hidden as u16, ..none };
    let dport = [(none, hides(Hidden::Ports), 0), (none, hides(Hidden::Protocol), 0)];
    for (hidden, frame) in frames().into_iter().filter(|(_, frame)| frame.len() < 1514) {
        let mut outcome = |rules: &[(Key, Key, u8)], keys: &[(Key, Key, u32)]| {
            install(&mut door, rules, keys);
            let first = door.run(&frame);
            let again = door.run(&frame);
            assert_eq!((first.outcome, first.action), (again.outcome, again.action));
            assert!(again.cached);
            first
        };
        let done = outcome(&[(bits, value, ACTION_USER)], &dport);
        let expected = if hidden == Hidden::Flags { "forwarded" } else { "drop_l4_hidden" };
        assert_eq!(done.outcome, expected, "{hidden:?}");
        if expected == "drop_l4_hidden" {
            assert_eq!(done.action, XDP_DROP);
        }
        // One that is better and needs none of it, and one that is worse.
        let worse = [(none, hides(Hidden::Ports), 1), (none, hides(Hidden::Protocol), 1)];
        let better = [(none, none, ACTION_FORWARD), (bits, value, ACTION_USER)];
        assert_eq!(outcome(&better, &worse).outcome, "forwarded", "{hidden:?}");
        let behind = [(bits, value, ACTION_USER), (none, none, ACTION_DROP)];
        let expected = if hidden == Hidden::Flags { "drop_rule" } else { "drop_l4_hidden" };
        assert_eq!(outcome(&behind, &dport).outcome, expected, "{hidden:?}");
        // A field that is hidden is not 0.
        let zero = Key { destination_port_be: [0; 2], ..none };
        assert_eq!(outcome(&[(bits, zero, ACTION_DROP)], &[]).outcome, "forwarded");
    }
}

#[test]
fn later_fragments_are_matched_with_the_hidden_fields_of_their_first() {
    if !enter("later_fragments_are_matched_with_the_hidden_fields_of_their_first") {
        return;
    }
    let mut door = FrontDoor::load_taking_apart();
    let none = Key::default();
    let bits = Key { destination_port_be: [0xff; 2], protocol: 0xff, ..none };
    let value = Key { destination_port_be: 53u16.to_be_bytes(), protocol: p::UDP, ..none };
    let hidden = Key { hidden: Hidden::Protocol as u16, ..none };
    install(&mut door, &[(bits, value, ACTION_DROP)], &[(none, hidden, 0)]);
    for (options, outcome) in [(1, "drop_rule"), (8, "drop_l4_hidden")] {
        for frame in datagram_behind_options(options, 53, options as u32) {
            assert_eq!(door.run(&frame).outcome, outcome, "behind {options} headers");
        }
        for frame in datagram_behind_options(options, 80, 100 + options as u32) {
            let expected = if options == 1 { "kernel_other" } else { "drop_l4_hidden" };
            assert_eq!(door.run(&frame).outcome, expected, "behind {options} headers");
        }
    }
}
