//! Decisions of the front door, case by case; the rules themselves have their oracle in
//! `classifier`.

use super::*;
use crate::classifier::{Destination, Lookup, Path, compile};
use crate::rule::{Action, Rule, RuleSpec};
use crate::testing::any_match;
use abi::check::Kind;
use bpf_maps::OwnPrefix;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::sync::Arc;
use units::{EntryId, Name};
use wire::FrameBuilder;

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
const PORT: DoorPort = DoorPort { id: PortId(1), mac: MAC, bridge: None };
const BRIDGED_PORT: DoorPort = DoorPort { bridge: Some(PortId(2)), ..PORT };

fn names() -> Lookup {
    let name = |text: &str| Name::new(text).unwrap();
    let destination = Destination { entry: EntryId(7), path: Path::Cell, kind: Kind::Packets };
    Lookup {
        ports: [("left", 0), ("right", 1), ("up", 2)].map(|(n, id)| (name(n), PortId(id))).into(),
        services: [(name("echo"), destination)].into(),
        sessions: Arc::new(crate::session::built_in().map(|s| (s.name, s.id)).into()),
        at_tc: BTreeSet::new(),
        down: BTreeSet::new(),
    }
}

fn rule((id, (text, action)): (u32, (&str, &str))) -> Rule {
    let spec = RuleSpec::new(text.parse().unwrap(), action.parse().unwrap());
    Rule { id: RuleId(id), spec }
}

fn door(rules: &[(&str, &str)]) -> Door {
    let rules: Vec<Rule> = (0..).zip(rules.iter().copied()).map(rule).collect();
    let mut door = Door::default();
    door.install(compile(&rules, &names()).unwrap());
    door
}

fn udp(port: u16) -> FrameBuilder {
    let macs = FrameBuilder::new().ethernet([2, 0, 0, 0, 0, 1], MAC);
    macs.ipv4([10, 0, 0, 1], [10, 0, 1, 2], 64).udp(4000, port).payload(&[7; 64])
}

fn ended(door: &mut Door, port: &DoorPort, frame: &[u8]) -> (Act, &'static str) {
    let decision = door.decide(port, frame);
    (decision.act, decision.outcome_name())
}

#[test]
fn a_frame_meets_its_rule() {
    let mut door = door(&[
        ("proto udp dport 53", "service echo"),
        ("proto udp dport 54", "drop"),
        ("proto udp dport 55", "forward"),
        ("proto udp dport 57", "out up"),
    ]);
    let decided = door.decide(&PORT, &udp(53).build());
    assert_eq!((decided.act, decided.outcome_name()), (Act::Service, "to_user"));
    let PacketMeta { rule, entry, arrival_port, l3_offset, l4_offset, flags, .. } = decided.meta;
    assert_eq!((rule, entry, arrival_port, l3_offset, l4_offset), (0, 7, 1, 14, 34));
    assert_eq!(flags, 4 << 8 | 17 << 16, "no route");
    assert_eq!(decided.rules().collect::<Vec<_>>(), [RuleId(0)]);
    let others = [(54, Act::Drop, "drop_rule", Some(1)), (55, Act::Kernel, "kernel_slow", Some(2))];
    let out = Act::Out(PortId(2), SessionId::BEST_EFFORT);
    let more = [(56, Act::Kernel, "kernel_slow", None), (57, out, "cut_through", Some(3))];
    for (port, act, outcome, rule) in others.into_iter().chain(more) {
        let decided = door.decide(&PORT, &udp(port).build());
        assert_eq!((decided.act, decided.outcome_name()), (act, outcome));
        assert_eq!(decided.rules().next(), rule.map(RuleId));
    }
}

#[test]
fn packets_not_for_the_port_go_to_the_kernel_whatever_the_rules() {
    let mut door = door(&[("proto udp", "drop")]);
    let other = FrameBuilder::new().ethernet([2; 6], [2, 0, 0, 0, 0, 8]);
    let frame = other.ipv4([10, 0, 0, 1], [10, 0, 1, 2], 64).udp(1, 2).build();
    assert_eq!(ended(&mut door, &PORT, &frame), (Act::Kernel, "kernel_not_for_us"));
    assert_eq!(ended(&mut door, &BRIDGED_PORT, &frame), (Act::Drop, "drop_rule"));
    let link_local = FrameBuilder::new().ethernet([2; 6], MAC);
    let (here, there) = ([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], [9; 16]);
    let frame = link_local.clone().ipv6(here, there, 64).udp(1, 2).build();
    assert_eq!(ended(&mut door, &PORT, &frame), (Act::Kernel, "kernel_link_local"));
    assert_eq!(ended(&mut door, &BRIDGED_PORT, &frame), (Act::Drop, "drop_rule"));
    // A neighbour advertisement: without those nothing crosses a bridge.
    let mut frame = link_local.ipv6(here, there, 255).icmp_echo(1, 2).build();
    frame[14 + 40] = 136;
    assert_eq!(ended(&mut door, &BRIDGED_PORT, &frame), (Act::Cross(PortId(2)), "bridged"));
}

#[test]
fn frames_with_more_tags_than_rules_can_match_are_dropped_if_there_are_rules() {
    let deep = udp(53).vlan(0).vlan(0).vlan(0).build();
    let (mut free, mut door) = (door(&[]), door(&[("proto tcp", "drop")]));
    assert_eq!(ended(&mut free, &PORT, &deep), (Act::Kernel, "kernel_vlan_depth"));
    assert_eq!(ended(&mut free, &BRIDGED_PORT, &deep), (Act::Cross(PortId(2)), "bridged"));
    for port in [&PORT, &BRIDGED_PORT] {
        assert_eq!(ended(&mut door, port, &deep), (Act::Drop, "drop_vlan_depth"));
    }
}

#[test]
fn headers_that_lie_are_dropped_and_cross_bridges() {
    let mut door = door(&[]);
    let mut frame = udp(53).build();
    frame[24] ^= 1;
    assert_eq!(ended(&mut door, &PORT, &frame), (Act::Drop, "drop_checksum"));
    assert_eq!(ended(&mut door, &BRIDGED_PORT, &frame), (Act::Cross(PortId(2)), "bridged"));
    assert_eq!(ended(&mut door, &PORT, &frame[..13]), (Act::Drop, "drop_truncated"));
}

#[test]
fn a_frame_that_is_not_ip_belongs_to_rules_that_name_its_ethertype() {
    let lldp = [&[1, 0x80, 0xc2, 0, 0, 0x0e, 2, 0, 0, 0, 0, 1, 0x88, 0xcc][..], &[0; 46]].concat();
    let arp = [&MAC[..], &[2, 0, 0, 0, 0, 1, 8, 6], &[0; 46]].concat();
    let mut deaf = door(&[("in right", "drop")]);
    assert_eq!(ended(&mut deaf, &PORT, &lldp), (Act::Kernel, "kernel_not_for_us"));
    let mut door = door(&[("ethertype lldp", "service echo")]);
    let decided = door.decide(&PORT, &lldp);
    assert_eq!((decided.act, decided.meta.l4_offset), (Act::Service, 0xffff));
    assert_eq!(ended(&mut door, &PORT, &arp), (Act::Kernel, "kernel_not_ip"));
    assert_eq!(ended(&mut door, &BRIDGED_PORT, &arp), (Act::Cross(PortId(2)), "bridged"));
}

#[test]
fn later_fragments_are_matched_by_the_ports_of_their_first_one() {
    let mut door = door(&[("proto udp dport 53", "drop")]);
    let fragments = udp(53).build_fragments(16);
    assert!(fragments.len() > 2);
    assert_eq!(ended(&mut door, &PORT, &fragments[1]), (Act::Kernel, "kernel_slow"), "too early");
    for fragment in &fragments {
        assert_eq!(ended(&mut door, &PORT, fragment), (Act::Drop, "drop_rule"));
    }
    for id in 0..FRAGMENTED_MAX as u16 {
        let mut first = fragments[0].clone();
        let old = u16::from_be_bytes([first[18], first[19]]);
        first[18..20].copy_from_slice(&(old ^ (id + 1)).to_be_bytes());
        first[24..26].fill(0);
        let sum = wire::checksum::checksum(&first[14..34]).to_be_bytes();
        first[24..26].copy_from_slice(&sum);
        assert_eq!(ended(&mut door, &PORT, &first), (Act::Drop, "drop_rule"));
    }
    assert_eq!(door.fragments.seen.len(), FRAGMENTED_MAX);
    assert_eq!(ended(&mut door, &PORT, &fragments[1]), (Act::Kernel, "kernel_slow"), "forgotten");
}

#[test]
fn a_packet_that_hides_its_l4_ports_is_dropped_where_a_rule_needs_them() {
    let mut door =
        door(&[("dst 10.0.1.0/24 proto udp dport 53", "service echo"), ("any", "forward")]);
    let macs = || FrameBuilder::new().ethernet([2, 0, 0, 0, 0, 1], MAC);
    let to = |destination| macs().ipv4([10, 0, 0, 1], destination, 64).protocol(17);
    let first = |destination, id| {
        let first = to(destination).identification(id).fragment(0, true).build();
        let later = to(destination).identification(id).fragment(8, false).payload(&[7; 8]).build();
        [first, later]
    };
    for frame in first([10, 0, 1, 2], 1) {
        assert_eq!(ended(&mut door, &PORT, &frame), (Act::Drop, "drop_l4_hidden"));
        assert_eq!(ended(&mut door, &BRIDGED_PORT, &frame), (Act::Drop, "drop_l4_hidden"));
    }
    for frame in first([10, 0, 2, 2], 2) {
        assert_eq!(ended(&mut door, &PORT, &frame), (Act::Kernel, "kernel_slow"));
    }
    let bytes = rules::encode(&door.rules, &OwnSources::default());
    assert_eq!(rules::decode(&bytes).unwrap().0.hidden, door.rules.hidden);
}

#[test]
fn fragments_behind_options_meet_their_first_ones_rule() {
    let mut door = door(&[("proto udp dport 53", "service echo")]);
    let macs = || FrameBuilder::new().ethernet([2, 0, 0, 0, 0, 1], MAC);
    let v6 = || macs().ipv6([1; 16], [2; 16], 64).identification(7).protocol(60);
    let first =
        v6().fragment(0, true).payload(&[17, 0, 1, 4, 0, 0, 0, 0, 0, 9, 0, 53, 0, 16, 0, 0]);
    let later = v6().fragment(16, false).payload(&[7; 8]).build();
    assert_eq!(ended(&mut door, &PORT, &later), (Act::Kernel, "kernel_slow"));
    let first = door.decide(&PORT, &first.build());
    let later = door.decide(&PORT, &later);
    assert_eq!((first.act, later.act), (Act::Service, Act::Service));
    assert_eq!(later.meta.flow_hash, first.meta.flow_hash);
    assert_eq!(later.meta.flags >> 16 & 0xff, 17);
}

#[test]
fn lists_survive_their_bytes_and_other_bytes_are_none() {
    let listed = RuleSpec {
        flows: Some("udp 10.0.0.1 4000 10.0.1.2 53".parse().unwrap()),
        ..RuleSpec::new("in right".parse().unwrap(), Action::Drop)
    };
    let set = compile(&[Rule { id: RuleId(3), spec: listed }], &names()).unwrap();
    let mut bytes = rules::encode(&set, &OwnSources::default());
    let mut door = Door::default();
    door.install(rules::decode(&bytes).unwrap().0);
    assert_eq!(ended(&mut door, &PORT, &udp(53).build()), (Act::Drop, "drop_rule"));
    assert_eq!(ended(&mut door, &PORT, &udp(54).build()), (Act::Kernel, "kernel_slow"));
    bytes.push(0);
    assert_eq!(rules::decode(&bytes), Err(rules::InvalidRuleSet));
    assert_eq!(rules::decode(&bytes[..20]), Err(rules::InvalidRuleSet));
}

#[test]
fn packets_from_the_machines_own_addresses_end_where_the_port_does_not_accept_them() {
    let whole = OwnPrefix { length: 32, address_be: [10, 0, 0, 1] };
    let prefix = OwnPrefix { length: 24, address_be: [198, 51, 100, 0] };
    let rules = [
        ("proto udp dport 53", "service echo"),
        ("proto udp dport 54", "drop"),
        ("proto udp dport 55", "out up"),
        ("any", "forward"),
    ];
    let own = OwnSources::new([whole, prefix].into(), [PortId(2)].into());
    let mut door = door(&rules);
    let bytes = rules::encode(&door.rules, &own);
    let (read, own) = rules::decode(&bytes).unwrap();
    assert_eq!(read.masks, door.rules.masks);
    door.set_own(own);
    let from = |source, port| {
        let macs = FrameBuilder::new().ethernet([2, 0, 0, 0, 0, 1], MAC);
        macs.ipv4(source, [10, 0, 1, 2], 64).udp(4000, port).build()
    };
    let martian = (Act::Drop, "drop_own_source");
    for source in [[10, 0, 0, 1], [198, 51, 100, 77]] {
        for port in [53, 55, 56] {
            assert_eq!(ended(&mut door, &PORT, &from(source, port)), martian, "{source:?} {port}");
        }
        assert_eq!(ended(&mut door, &PORT, &from(source, 54)), (Act::Drop, "drop_rule"));
        let accepting = DoorPort { id: PortId(2), ..PORT };
        assert_eq!(ended(&mut door, &accepting, &from(source, 53)), (Act::Service, "to_user"));
        assert_eq!(ended(&mut door, &BRIDGED_PORT, &from(source, 53)), (Act::Service, "to_user"));
    }
    for source in [[10, 0, 0, 2], [198, 51, 101, 77]] {
        assert_eq!(ended(&mut door, &PORT, &from(source, 53)), (Act::Service, "to_user"));
    }
    let six = FrameBuilder::new().ethernet([2, 0, 0, 0, 0, 1], MAC);
    let six = six.ipv6([0x0a00, 1, 0, 0, 0, 0, 0, 1], [0x2001, 0, 0, 0, 0, 0, 0, 2], 64);
    let six = six.udp(4000, 53).build();
    assert_eq!(ended(&mut door, &PORT, &six), (Act::Service, "to_user"), "as Linux forwards it");
}

proptest! {
    #[test]
    fn rules_survive_their_bytes(matches in prop::collection::vec(any_match(), 0..20)) {
        let spec = |r#match| RuleSpec::new(r#match, Action::Drop);
        let rules: Vec<Rule> =
            (0..).map(RuleId).zip(matches).map(|(id, m)| Rule { id, spec: spec(m) }).collect();
        let set = compile(&rules, &names()).unwrap();
        let (read, _) = rules::decode(&rules::encode(&set, &OwnSources::default())).unwrap();
        prop_assert_eq!((read.masks, read.entries), (set.masks, set.entries));
    }
}
