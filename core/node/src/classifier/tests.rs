//! The classifier against a naive oracle, and its limits.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;

use super::*;
use crate::prefix::{IpVersion, Prefix};
use crate::rule::RuleSpec;
use crate::testing::{PORTS, any_address, any_l4_port, any_match, any_protocol};

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn names() -> Lookup {
    Lookup {
        ports: (0..).map(PortId).zip(PORTS).map(|(id, port)| (name(port), id)).collect(),
        services: [(name("monitor"), Destination { entry: EntryId(7), movable: false })].into(),
        sessions: crate::session::built_in().map(|s| (s.name, s.id)).into(),
    }
}

fn rule(id: u32, priority: u16, text: &str) -> Rule {
    let spec = RuleSpec::new(text.parse().unwrap(), Action::Forward);
    Rule { id: RuleId(id), spec: RuleSpec { priority, ..spec } }
}

/// Whether a match means a packet, field by field and without a mask in sight.
fn means(matched: &Match, packet: &Key) -> bool {
    let address = |bytes: [u8; 16]| match packet.ip_version {
        4 => IpAddr::V4(Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3])),
        _ => IpAddr::V6(Ipv6Addr::from(bytes)),
    };
    let inside = |prefix: Option<Prefix>, bytes| prefix.is_none_or(|p| p.contains(address(bytes)));
    let port = |wanted: Option<u16>, bytes| wanted.is_none_or(|p| p == u16::from_be_bytes(bytes));
    matched.port.as_ref().is_none_or(|p| names().ports[p].0 == packet.port)
        && matched.vlan.is_none_or(|vlan| match vlan {
            VlanMatch::Untagged => packet.vlan == 0,
            VlanMatch::Id(id) => packet.vlan == 0x8000 + id,
        })
        && matched.ip_version.is_none_or(|v| v.number() == packet.ip_version)
        && inside(matched.source, packet.source)
        && inside(matched.destination, packet.destination)
        && matched.protocol.is_none_or(|p| p.0 == packet.protocol)
        && port(matched.source_port, packet.source_port_be)
        && port(matched.destination_port, packet.destination_port_be)
        && matched.dscp.is_none_or(|dscp| dscp == packet.dscp)
        && matched.fragment.is_none_or(|fragment| match fragment {
            FragmentMatch::None => packet.fragment == 0,
            FragmentMatch::First => packet.fragment == 1,
            FragmentMatch::Later => packet.fragment == 2,
        })
}

fn any_packet() -> impl Strategy<Value = Key> {
    let padded = |address: IpAddr| match address {
        IpAddr::V4(v4) => {
            let [a, b, c, d] = v4.octets();
            [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        }
        IpAddr::V6(v6) => v6.octets(),
    };
    prop_oneof![Just(IpVersion::V4), Just(IpVersion::V6)].prop_flat_map(move |version| {
        let addresses = (any_address(version), any_address(version));
        let l4 = (any_protocol(), any_l4_port(), any_l4_port());
        (addresses, l4, 0..3u16, prop_oneof![Just(0), 0x8000..0x8004u16], 0..4u8, 0..3u8).prop_map(
            move |((source, destination), (protocol, sport, dport), port, vlan, dscp, fragment)| {
                let ports = protocol.has_ports() && fragment != 2;
                Key {
                    source: padded(source),
                    destination: padded(destination),
                    source_port_be: if ports { sport.to_be_bytes() } else { [0; 2] },
                    destination_port_be: if ports { dport.to_be_bytes() } else { [0; 2] },
                    protocol: protocol.0,
                    ip_version: version.number(),
                    vlan,
                    port,
                    dscp,
                    fragment,
                    ..Key::default()
                }
            },
        )
    })
}

fn any_rules() -> impl Strategy<Value = Vec<Rule>> {
    let spec = (any_match(), prop_oneof![Just(100u16), Just(200), 0..=3u16]);
    prop::collection::vec(spec, 0..60).prop_map(|specs| {
        let rules = (0..).zip(specs).map(|(id, (matched, priority))| {
            let spec = RuleSpec::new(matched, Action::Forward);
            Rule { id: RuleId(id), spec: RuleSpec { priority, ..spec } }
        });
        rules.collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn the_lookup_finds_what_a_linear_search_finds(
        rules in any_rules(),
        packets in prop::collection::vec(any_packet(), 50),
    ) {
        let set = compile(&rules, &names()).unwrap();
        for packet in packets {
            let expected = rules
                .iter()
                .filter(|rule| means(&rule.spec.r#match, &packet))
                .min_by_key(|rule| (core::cmp::Reverse(rule.spec.priority), rule.id));
            let found = set.lookup(&packet).map(|rule| RuleId(rule.rule));
            prop_assert_eq!(found, expected.map(|rule| rule.id), "packet {:?}", packet);
        }
    }

    #[test]
    fn every_rule_is_installed_or_shadowed_by_an_installed_one(rules in any_rules()) {
        let set = compile(&rules, &names()).unwrap();
        prop_assert_eq!(set.entries.len() + set.shadowed.len(), rules.len());
        let installed: Vec<u32> = set.entries.iter().map(|(_, rule)| rule.rule).collect();
        prop_assert!(set.shadowed.iter().all(|(_, by)| installed.contains(&by.0)));
        prop_assert!(set.masks.is_sorted_by(|a, b| a.rank_best < b.rank_best));
        for (key, _) in &set.entries {
            let bits = &set.masks[usize::from(key.mask)].bits;
            let mut plain = *key;
            plain.mask = 0;
            prop_assert_eq!(masked(&plain, bits), plain, "a key has no bits outside its mask");
        }
    }

    #[test]
    fn the_order_of_the_rules_means_nothing(rules in any_rules()) {
        let backwards: Vec<Rule> = rules.iter().rev().cloned().collect();
        prop_assert_eq!(compile(&rules, &names()), compile(&backwards, &names()));
    }
}

#[test]
fn a_worse_rule_with_the_same_match_is_shadowed() {
    let rules = [rule(1, 10, "ip 4"), rule(2, 20, "ip 4"), rule(3, 10, "ip 4 proto udp")];
    let set = compile(&rules, &names()).unwrap();
    assert_eq!(set.shadowed, [(RuleId(1), RuleId(2))]);
    assert_eq!((set.masks.len(), set.entries.len()), (2, 2));
}

#[test]
fn a_rule_leads_to_the_entry_of_its_service() {
    let spec = RuleSpec::new(Match::default(), Action::Service(name("monitor")));
    let rules = [Rule { id: RuleId(3), spec }];
    let set = compile(&rules, &names()).unwrap();
    let found = set.lookup(&Key::default()).unwrap();
    assert_eq!((found.entry, found.session, found.action), (7, 1, bpf_maps::ACTION_USER));
    let error = compile(&rules, &Lookup { services: BTreeMap::new(), ..names() }).unwrap_err();
    assert!(matches!(error, RuleSetError::Unknown { kind: "service", .. }));
}

#[test]
fn an_ipv6_packet_is_not_taken_for_the_ipv4_one_with_the_same_bytes() {
    let set = compile(&[rule(1, 10, "dst 32.1.13.184")], &names()).unwrap();
    let mut packet = Key { ip_version: 6, ..Key::default() };
    packet.destination[..4].copy_from_slice(&[0x20, 0x01, 0x0d, 0xb8]);
    assert_eq!(set.lookup(&packet), None);
    packet.ip_version = 4;
    assert!(set.lookup(&packet).is_some());
}

#[test]
fn one_mask_too_many_names_its_rule() {
    let all: Vec<Rule> =
        (0..65).map(|id| rule(id, 100, &format!("src ::/{id} sport 1 proto udp"))).collect();
    assert_eq!(compile(&all[..64], &names()).unwrap().masks.len(), MASKS_MAX);
    let error = compile(&all, &names()).unwrap_err();
    assert!(matches!(error, RuleSetError::TooManyMasks { rule: RuleId(64), .. }), "{error}");
}

#[test]
fn a_rule_number_beyond_the_counters_is_refused() {
    let most = u32::try_from(RULES_MAX).unwrap();
    assert!(compile(&[rule(most - 1, 1, "any")], &names()).is_ok());
    let error = compile(&[rule(most, 1, "any")], &names()).unwrap_err();
    assert_eq!(error, RuleSetError::TooManyRules { rule: RuleId(most) });
}

#[test]
fn a_real_frame_is_found_by_its_fields() {
    let frame = wire::FrameBuilder::new()
        .vlan(5)
        .ipv4(Ipv4Addr::new(10, 0, 1, 2), Ipv4Addr::new(10, 0, 2, 9), 64)
        .udp(4000, 5001)
        .payload(b"hello")
        .build();
    let key = key_of(&wire::parse_frame(&frame).unwrap(), PortId(1));
    let hit = "vlan 5 src 10.0.1.0/24 dst 10.0.2.9 proto udp sport 4000 dport 5001 dscp 0 in right";
    for (text, expected) in [
        (hit, true),
        ("vlan untagged", false),
        ("in left", false),
        ("ip 6", false),
        ("fragment later", false),
        ("fragment none", true),
    ] {
        let set = compile(&[rule(1, 1, text)], &names()).unwrap();
        assert_eq!(set.lookup(&key).is_some(), expected, "{text}");
    }
}
