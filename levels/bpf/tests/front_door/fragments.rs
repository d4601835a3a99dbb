//! Tests of fragments: later ones have no L4 header and get the L4 ports of their first.

use bpf_maps::{ACTION_DROP, Key, Mask, Rule};
use wire::{FrameBuilder, parse_frame, protocol as p};

use crate::harness::{FrontDoor, addressed, key_of};
use crate::namespace::enter;

/// Number of entries of the table of datagrams (`TAM_FRAGMENTS_MAX` in `c/tam_maps.h`).
const DATAGRAMS_MAX: u32 = 4096;

/// Makes a front door that drops packets to L4 port 53.
fn drops_dns() -> FrontDoor {
    let mut front_door = FrontDoor::load_taking_apart();
    let bits = Key { destination_port_be: [0xff; 2], ..Key::default() };
    let value = Key { destination_port_be: 53u16.to_be_bytes(), ..Key::default() };
    let rule = Rule { rule: 4, action: ACTION_DROP, ..Rule::default() };
    front_door.install(0, &[Mask { bits, ..Mask::default() }], &[(value, rule)]);
    front_door.activate(0);
    front_door
}

/// Returns a UDP datagram of 3,000 bytes to `port` in three fragments, of either version.
fn datagrams(id: u32, port: u16) -> [Vec<Vec<u8>>; 2] {
    let v4 = FrameBuilder::new().ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64);
    let v6 = FrameBuilder::new().ipv6([1; 16], [2; 16], 64);
    [v4, v6].map(|builder| {
        let whole = builder.identification(id).udp(4000, port).payload(&[7; 3000]);
        whole.build_fragments(1400).into_iter().map(addressed).collect()
    })
}

/// Returns a UDP datagram to `port` in two fragments of IPv6, in each behind a fragment header;
/// that of the first is followed by `headers` headers with destination options.
pub fn datagram_behind_options(headers: usize, port: u16, id: u32) -> Vec<Vec<u8>> {
    let mut datagram = Vec::new();
    for header in 1..=headers {
        let next = if header == headers { p::UDP } else { p::DESTINATION_OPTIONS };
        datagram.extend([next, 0, 1, 4, 0, 0, 0, 0]);
    }
    datagram.extend([0x0f, 0xa0]);
    datagram.extend(port.to_be_bytes());
    datagram.extend([0x03, 0xf0, 0, 0]);
    datagram.resize(datagram.len() + 1000, b'x');
    let fragment = |at: usize, end: usize, more: bool| {
        let v6 = FrameBuilder::new().ipv6([1; 16], [2; 16], 64).identification(id);
        let fragment = v6.fragment(at as u16, more).protocol(p::DESTINATION_OPTIONS);
        addressed(fragment.payload(&datagram[at..end]).build())
    };
    vec![fragment(0, 600, true), fragment(600, datagram.len(), false)]
}

#[test]
fn options_behind_the_fragment_header_hide_no_datagram_from_its_rule() {
    if !enter("options_behind_the_fragment_header_hide_no_datagram_from_its_rule") {
        return;
    }
    let mut front_door = drops_dns();
    for (id, port, dropped) in [(1, 53, true), (2, 80, false)] {
        let frames = datagram_behind_options(1, port, id);
        let parsed = parse_frame(&frames[1]).unwrap();
        assert_eq!(parsed.protocol, p::DESTINATION_OPTIONS, "what a later fragment shows");
        for frame in &frames {
            assert_eq!(front_door.run(frame).outcome == "drop_rule", dropped);
        }
        let key = Key {
            source_port_be: 4000u16.to_be_bytes(),
            destination_port_be: port.to_be_bytes(),
            protocol: p::UDP,
            ..key_of(&parsed)
        };
        let flow = front_door.flow(&key);
        assert_eq!((flow.key, flow.meta.flags >> 16 & 0xff), (key, u32::from(p::UDP)));
        // So all fragments of a datagram meet in one lane.
        let first = parse_frame(&frames[0]).unwrap();
        assert_eq!(flow.meta.flow_hash, wire::flow_hash(&first));
    }
}

#[test]
fn later_fragments_are_matched_by_the_l4_ports_of_their_first() {
    if !enter("later_fragments_are_matched_by_the_l4_ports_of_their_first") {
        return;
    }
    let mut front_door = drops_dns();
    for (id, port, dropped) in [(1, 53, true), (2, 80, false), (3, 53, true)] {
        for fragments in datagrams(id, port) {
            assert_eq!(fragments.len(), 3);
            for frame in &fragments {
                let outcome = front_door.run(frame).outcome;
                assert_eq!(outcome == "drop_rule", dropped, "{outcome}");
                let key = Key {
                    source_port_be: 4000u16.to_be_bytes(),
                    destination_port_be: port.to_be_bytes(),
                    ..key_of(&parse_frame(frame).unwrap())
                };
                assert_eq!(front_door.flow(&key).key, key);
            }
        }
    }
}

#[test]
fn a_later_fragment_without_its_first_is_matched_by_layer_3_only() {
    if !enter("a_later_fragment_without_its_first_is_matched_by_layer_3_only") {
        return;
    }
    let mut front_door = drops_dns();
    for fragments in datagrams(9, 53) {
        for frame in &fragments[1..] {
            assert_ne!(front_door.run(frame).outcome, "drop_rule");
            let key = key_of(&parse_frame(frame).unwrap());
            assert_eq!(front_door.flow(&key).key, key);
        }
        assert_eq!(front_door.run(&fragments[0]).outcome, "drop_rule");
        assert_eq!(front_door.run(&fragments[1]).outcome, "drop_rule");
    }
}

#[test]
fn fragments_of_other_datagrams_are_not_mixed_up() {
    if !enter("fragments_of_other_datagrams_are_not_mixed_up") {
        return;
    }
    let mut front_door = drops_dns();
    let all: Vec<_> = (1..=40).map(|id| datagrams(id, if id % 2 == 0 { 53 } else { 80 })).collect();
    for (index, versions) in all.iter().enumerate() {
        for fragments in versions {
            assert_eq!(front_door.run(&fragments[0]).outcome == "drop_rule", index % 2 == 1);
        }
    }
    for (index, versions) in all.iter().enumerate() {
        for fragments in versions {
            assert_eq!(front_door.run(&fragments[2]).outcome == "drop_rule", index % 2 == 1);
        }
    }
}

#[test]
fn a_flood_of_first_fragments_pushes_out_old_ones_and_nothing_else() {
    if !enter("a_flood_of_first_fragments_pushes_out_old_ones_and_nothing_else") {
        return;
    }
    let mut front_door = drops_dns();
    for id in 0..2 * DATAGRAMS_MAX {
        let [fragments, _] = datagrams(id, 53);
        assert_eq!(front_door.run(&fragments[0]).outcome, "drop_rule");
    }
    let [newest, _] = datagrams(2 * DATAGRAMS_MAX - 1, 53);
    assert_eq!(front_door.run(&newest[1]).outcome, "drop_rule");
    let [oldest, _] = datagrams(0, 53);
    assert_ne!(front_door.run(&oldest[1]).outcome, "drop_rule");
}
