//! Tests of the classifier against a naive oracle, and of its limits.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;

use super::*;
use crate::prefix::{IpVersion, Prefix};
use crate::protocol::Protocol;
use crate::rule::RuleSpec;
use crate::testing::{
    PORTS, any_address, any_ethertype, any_l4_port, any_mac, any_match, any_protocol,
};

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn of_packets(entry: EntryId) -> Destination {
    Destination { entry, path: Path::Cell, kind: Kind::Packets }
}

fn names() -> Lookup {
    Lookup {
        ports: (0..).map(PortId).zip(PORTS).map(|(id, port)| (name(port), id)).collect(),
        services: [(name("monitor"), of_packets(EntryId(7)))].into(),
        sessions: Arc::new(crate::session::built_in().map(|s| (s.name, s.id)).into()),
        at_tc: BTreeSet::new(),
        down: BTreeSet::new(),
    }
}

fn rule(id: u32, priority: u16, text: &str) -> Rule {
    let spec = RuleSpec::new(text.parse().unwrap(), Action::Forward);
    Rule { id: RuleId(id), spec: RuleSpec { priority, ..spec } }
}

/// Returns true if a match accepts a packet, compared field by field without masks.
fn means(matched: &Match, packet: &Key) -> bool {
    let address = |bytes: [u8; 16]| match packet.ip_version {
        4 => IpAddr::V4(Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3])),
        _ => IpAddr::V6(Ipv6Addr::from(bytes)),
    };
    let inside = |prefix: Option<Prefix>, bytes| prefix.is_none_or(|p| p.contains(address(bytes)));
    let port = |wanted: Option<PortRange>, bytes| {
        wanted.is_none_or(|range| range.contains(u16::from_be_bytes(bytes)))
    };
    let ethertype = u16::from_be_bytes(packet.ethertype_be);
    let is_ip = matches!(ethertype, 0x0800 | 0x86dd);
    matched.ethertype.map_or(is_ip, |wanted| wanted.number() == ethertype)
        && matched.source_mac.is_none_or(|mac| mac.0 == packet.source_mac)
        && matched.destination_mac.is_none_or(|mac| mac.0 == packet.destination_mac)
        && matched.tcp_flags.is_none_or(|f| packet.tcp_flags & f.compared() == f.set())
        && matched.port.as_ref().is_none_or(|p| names().ports[p].0 == packet.port)
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
    let tags = prop_oneof![Just(0), 0x8000..0x8004u16];
    let not_ip = (any_ethertype(), any_mac(), any_mac(), 0..3u16, tags).prop_map(
        |(ethertype, source, destination, port, vlan)| Key {
            ethertype_be: ethertype.number().to_be_bytes(),
            source_mac: source.0,
            destination_mac: destination.0,
            port,
            vlan,
            ..Key::default()
        },
    );
    let ip = (any_ip_packet(), any_mac(), any_mac()).prop_map(|(packet, source, destination)| {
        Key { source_mac: source.0, destination_mac: destination.0, ..packet }
    });
    prop_oneof![1 => not_ip, 6 => ip]
}

fn any_ip_packet() -> impl Strategy<Value = Key> {
    let padded = |address: IpAddr| match address {
        IpAddr::V4(v4) => {
            let [a, b, c, d] = v4.octets();
            [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        }
        IpAddr::V6(v6) => v6.octets(),
    };
    prop_oneof![Just(IpVersion::V4), Just(IpVersion::V6)].prop_flat_map(move |version| {
        let addresses = (any_address(version), any_address(version));
        let l4 = (any_protocol(), any_l4_port(), any_l4_port(), any::<u8>());
        (addresses, l4, 0..3u16, prop_oneof![Just(0), 0x8000..0x8004u16], 0..4u8, 0..3u8).prop_map(
            move |(
                (source, destination),
                (protocol, sport, dport, flags),
                port,
                vlan,
                dscp,
                fragment,
            )| {
                let tcp = protocol == Protocol::TCP && fragment != 2;
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
                    ethertype_be: match version {
                        IpVersion::V4 => [0x08, 0x00],
                        IpVersion::V6 => [0x86, 0xdd],
                    },
                    tcp_flags: if tcp { flags } else { 0 },
                    ..Key::default()
                }
            },
        )
    })
}

/// Returns a packet with these L4 fields hidden.
fn hide(mut packet: Key, hidden: u16) -> Key {
    (packet.hidden, packet.tcp_flags) = (hidden, 0);
    if hidden >= 2 {
        (packet.source_port_be, packet.destination_port_be) = ([0; 2], [0; 2]);
    }
    if hidden >= 3 {
        packet.protocol = 60;
    }
    packet
}

/// Returns the part of a match that such a packet shows.
fn showing(matched: &Match, hidden: u16) -> Match {
    let all = PortRange::between(0, u16::MAX);
    let port = |range: Option<PortRange>| range.filter(|range| hidden < 2 || *range == all);
    Match {
        tcp_flags: None,
        source_port: port(matched.source_port),
        destination_port: port(matched.destination_port),
        protocol: matched.protocol.filter(|_| hidden < 3),
        ..matched.clone()
    }
}

/// Returns as many random rules as fit the limit of masks.
fn any_rules() -> impl Strategy<Value = Vec<Rule>> {
    let spec = (any_match(), prop_oneof![Just(100u16), Just(200), 0..=3u16]);
    prop::collection::vec(spec, 0..60).prop_map(|specs| {
        let rules = (0..).zip(specs).map(|(id, (matched, priority))| {
            let spec = RuleSpec::new(matched, Action::Forward);
            Rule { id: RuleId(id), spec: RuleSpec { priority, ..spec } }
        });
        let mut rules: Vec<Rule> = rules.collect();
        while compile(&rules, &names()).is_err() {
            rules.truncate(rules.len() * 3 / 4);
        }
        rules
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
            let found = set.lookup(Stage::Service, &packet).map(|rule| RuleId(rule.rule));
            prop_assert_eq!(found, expected.map(|rule| rule.id), "packet {:?}", packet);
            let is_shadowed = set.shadowed.iter().any(|(rule, _)| Some(*rule) == found);
            prop_assert!(!is_shadowed, "a rule that no packet reaches has {:?}", packet);
        }
    }

    #[test]
    fn a_packet_with_hidden_fields_is_dropped_exactly_where_a_better_rule_may_match(
        rules in any_rules(),
        actions in prop::collection::vec(prop_oneof![Just(Action::Forward), Just(Action::Drop)], 60),
        packets in prop::collection::vec((any_packet(), 1..=3u16), 50),
    ) {
        let rules: Vec<Rule> = rules
            .into_iter()
            .zip(actions)
            .map(|(rule, action)| Rule { spec: RuleSpec { action, ..rule.spec }, ..rule })
            .collect();
        let set = compile(&rules, &names()).unwrap();
        let is_shadowed = |rule: &Rule| set.shadowed.iter().any(|(id, _)| *id == rule.id);
        for (packet, hidden) in packets.into_iter().filter(|(packet, _)| packet.ip_version != 0) {
            let packet = hide(packet, hidden);
            let by_rank = |rule: &&Rule| (core::cmp::Reverse(rule.spec.priority), rule.id);
            let beside = |rule: &Rule| showing(&rule.spec.r#match, hidden);
            let best = rules
                .iter()
                .filter(|rule| beside(rule) == rule.spec.r#match && means(&rule.spec.r#match, &packet))
                .min_by_key(by_rank);
            let perhaps = rules
                .iter()
                .filter(|rule| rule.spec.action != Action::Forward && !is_shadowed(rule))
                .filter(|rule| beside(rule) != rule.spec.r#match && means(&beside(rule), &packet))
                .min_by_key(by_rank);
            let is_better = |one: &Rule| best.is_none_or(|best| by_rank(&one) < by_rank(&best));
            let decision = set.decide(&packet);
            prop_assert_eq!(decision.hidden, perhaps.is_some_and(is_better), "{:?}", packet);
            if !decision.hidden {
                prop_assert_eq!(decision.first.map(|rule| RuleId(rule.rule)), best.map(|rule| rule.id));
            }
        }
    }

    #[test]
    fn every_rule_is_installed_or_shadowed_by_an_installed_one(rules in any_rules()) {
        let set = compile(&rules, &names()).unwrap();
        let installed: std::collections::BTreeSet<u32> =
            set.entries.iter().map(|(_, rule)| rule.rule).collect();
        prop_assert_eq!(installed.len() + set.shadowed.len(), rules.len());
        prop_assert!(set.shadowed.iter().all(|(_, by)| installed.contains(&by.0)));
        prop_assert!(set.masks.is_sorted_by_key(|mask| mask.rank_best));
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

/// Returns a rule that drops the flows of a list, of this DSCP.
fn drops_listed(id: u32, list: &str) -> Rule {
    let spec = RuleSpec::new("dscp 7".parse().unwrap(), Action::Drop);
    Rule { id: RuleId(id), spec: RuleSpec { flows: Some(list.parse().unwrap()), ..spec } }
}

#[test]
fn a_list_drops_packets_with_hidden_l4_ports_that_may_be_of_its_flows() {
    let list = "udp 10.0.0.1 4000 10.0.1.2 53\nudp 10.0.0.1 4001 10.0.1.2 53\n\
                tcp 2001:db8::1 4000 2001:db8::2 53";
    let set = compile(&[drops_listed(3, list)], &names()).unwrap();
    assert_eq!((set.hidden.masks.len(), set.hidden.entries.len()), (2, 4));
    let address = |bytes: [u8; 4]| -> [u8; 16] {
        let mut all = [0; 16];
        all[..4].copy_from_slice(&bytes);
        all
    };
    let (source, destination) = (address([10, 0, 0, 1]), address([10, 0, 1, 2]));
    let protocol = Protocol::UDP.0;
    let packet = Key { ip_version: 4, protocol, dscp: 7, source, destination, ..Key::default() };
    for hidden in 0..=3 {
        let is_stopped = |packet: Key| set.decide(&Key { hidden, ..packet }).hidden;
        assert_eq!(is_stopped(packet), hidden >= 2, "{hidden}");
        assert_eq!(is_stopped(Key { protocol: 6, ..packet }), hidden == 3, "{hidden}");
        for other in [
            Key { dscp: 8, ..packet },
            Key { source: destination, destination: source, ..packet },
            Key { ip_version: 6, ..packet },
        ] {
            assert!(!is_stopped(other), "{hidden}: {other:?}");
        }
    }
    let better = rule(9, 101, "src 10.0.0.1");
    let set = compile(&[drops_listed(3, list), better], &names()).unwrap();
    assert!(!set.decide(&Key { hidden: 2, ..packet }).hidden, "a better rule knows it");
}

#[test]
fn a_list_that_is_too_long_drops_by_the_other_fields_of_its_match() {
    let flow = |at: usize| format!("udp 10.0.{}.{} 4000 10.9.0.1 53\n", at >> 8, at & 255);
    let long: String = (0..=FLOWS_HIDDEN_MAX).map(flow).collect();
    let set = compile(&[drops_listed(3, &long), drops_listed(4, &flow(0))], &names()).unwrap();
    // One key for each hidden part of L4, and two for the flow of the other list.
    assert_eq!(set.hidden.entries.len(), 4);
    let packet = Key { ip_version: 4, protocol: Protocol::UDP.0, dscp: 7, ..Key::default() };
    for hidden in 0..=3 {
        assert_eq!(set.decide(&Key { hidden, ..packet }).hidden, hidden >= 2, "{hidden}");
    }
    assert!(!set.decide(&Key { hidden: 3, dscp: 8, ..packet }).hidden);
}

#[test]
fn the_maximum_of_masks_fits_with_their_hidden_keys() {
    let drop = |id| {
        // The narrower rules are better: none takes another's packets.
        let length = MASKS_MAX as u32 - 1 - id;
        let text = format!("src ::/{length} sport 1 proto tcp flags syn");
        Rule { spec: RuleSpec::new(text.parse().unwrap(), Action::Drop), ..rule(id, 100, "ip 4") }
    };
    let set = compile(&(0..MASKS_MAX as u32).map(drop).collect::<Vec<_>>(), &names()).unwrap();
    assert_eq!(set.masks.len(), MASKS_MAX);
    assert!(set.hidden.masks.len() <= bpf_maps::HIDDEN_MASKS_MAX);
    assert_eq!(set.hidden.masks.len(), set.hidden.entries.len());
}

#[test]
fn a_worse_rule_with_the_same_match_is_shadowed() {
    let rules = [rule(1, 10, "ip 4"), rule(2, 20, "ip 4"), rule(3, 10, "proto udp")];
    let set = compile(&rules, &names()).unwrap();
    assert_eq!(set.shadowed, [(RuleId(1), RuleId(2))]);
    assert_eq!((set.masks.len(), set.entries.len()), (2, 2));
}

#[test]
fn a_worse_rule_whose_packets_better_ones_take_is_shadowed() {
    let by = |better: &[&str], worse: &str| {
        let better = (1..).zip(better).map(|(id, text)| rule(id, 20, text));
        let rules: Vec<_> = better.chain([rule(9, 10, worse)]).collect();
        compile(&rules, &names()).unwrap().shadowed
    };
    for (better, worse) in [
        ("any", "ip 4 proto udp dport 53"),
        ("any", "any"),
        ("src 10.0.0.0/8", "src 10.1.0.0/16 proto tcp"),
        ("proto tcp dport 1000-1999", "proto tcp dport 1000-1007 in left"),
        ("proto tcp flags ack", "proto tcp flags syn,ack"),
        ("ethertype arp", "ethertype arp in left"),
    ] {
        assert_eq!(by(&[better], worse), [(RuleId(9), RuleId(1))], "'{better}' has '{worse}'");
    }
    for (better, worse) in [
        ("ip 4 proto udp dport 53", "any"),
        ("src 10.1.0.0/16", "src 10.0.0.0/8"),
        ("proto tcp dport 1000-1006", "proto tcp dport 1000-1007"),
        ("in left", "in right"),
        // A match without an ethertype is for IP only.
        ("any", "ethertype arp"),
        ("ethertype arp", "any"),
    ] {
        assert_eq!(by(&[better], worse), [], "'{better}' does not have '{worse}'");
    }
    for (better, worse) in [
        (&["proto tcp dport 1000-1003", "proto tcp dport 1004-1007"], "proto tcp dport 1000-1007"),
        (&["ip 4", "ip 6"], "any"),
        (&["dst 10.0.0.0/25", "dst 10.0.0.128/25"], "dst 10.0.0.0/24 proto udp dport 53"),
        (&["proto tcp flags syn", "proto tcp flags !syn"], "proto tcp flags ack"),
    ] {
        let shadowed: Vec<RuleId> = by(better, worse).into_iter().map(|(rule, _)| rule).collect();
        assert_eq!(shadowed, [RuleId(9)], "{better:?} have '{worse}'");
    }
    for (better, worse) in [
        (&["dst 10.0.0.0/25", "dst 10.0.0.128/26"], "dst 10.0.0.0/24"),
        (&["proto tcp dport 1000-1003", "proto tcp dport 1004-1007"], "proto tcp dport 1000-1008"),
        // A packet may hide the field that both of them compare.
        (&["proto tcp flags syn", "proto tcp flags !syn"], "proto tcp dport 80"),
    ] {
        assert_eq!(by(better, worse), [], "{better:?} do not have '{worse}'");
    }
    let rules = [rule(1, 10, "any"), rule(2, 10, "any"), rule(3, 20, "proto udp")];
    assert_eq!(compile(&rules, &names()).unwrap().shadowed, [(RuleId(2), RuleId(1))]);
}

/// Returns rules over a small set of packets: a port, one of four sources, and a fragment, in all
/// combinations.
fn rules_of_a_small_world() -> impl Strategy<Value = Vec<Rule>> {
    let port = prop_oneof![
        Just(String::new()),
        (0..PORTS.len()).prop_map(|at| format!(" in {}", PORTS[at]))
    ];
    let fragment = prop_oneof!["", " fragment none", " fragment first", " fragment later"];
    let text = (port, 0..4u8, 30..=32u8, fragment).prop_map(|(port, last, length, fragment)| {
        let last = last & !(3 >> (length - 30));
        format!("src 10.0.0.{last}/{length}{port}{fragment}")
    });
    prop::collection::vec(text, 1..24)
        .prop_map(|texts| (0..).zip(&texts).map(|(id, text)| rule(id, 1, text)).collect())
}

fn packets_of_a_small_world() -> impl Iterator<Item = Key> {
    let ports = 0..PORTS.len() as u16;
    let packet = |(port, last, fragment)| {
        let mut key = Key { ip_version: 4, port, fragment, ..Key::default() };
        key.source[..4].copy_from_slice(&[10, 0, 0, last]);
        key
    };
    ports
        .flat_map(|port| (0..4).map(move |last| (port, last)))
        .flat_map(|(port, last)| (0..3).map(move |fragment| (port, last, fragment)))
        .map(packet)
}

proptest! {
    #[test]
    fn a_rule_is_shadowed_if_and_only_if_no_packet_reaches_it(rules in rules_of_a_small_world()) {
        let set = compile(&rules, &names()).unwrap();
        let found = packets_of_a_small_world().filter_map(|packet| set.lookup(Stage::Service, &packet));
        let reached: BTreeSet<u32> = found.map(|rule| rule.rule).collect();
        let shadowed: BTreeSet<u32> = set.shadowed.iter().map(|(rule, _)| rule.0).collect();
        for rule in &rules {
            let id = rule.id.0;
            prop_assert_eq!(shadowed.contains(&id), !reached.contains(&id), "{}", rule.spec.r#match);
        }
    }
}

#[test]
fn a_rule_whose_search_takes_too_long_counts_as_reachable() {
    // The better rules take all packets, one address each.
    let rules = |length: u8| {
        let each = (0..1u32 << (32 - length))
            .map(|at| rule(at, 20, &format!("src 10.0.{}.{}", at >> 8, at & 255)));
        each.chain([rule(9999, 10, &format!("src 10.0.0.0/{length}"))]).collect::<Vec<_>>()
    };
    assert_eq!(compile(&rules(26), &names()).unwrap().shadowed, [(RuleId(9999), RuleId(0))]);
    assert_eq!(compile(&rules(22), &names()).unwrap().shadowed, []);
}

#[test]
fn a_rule_leads_to_the_entry_of_its_service() {
    let spec = RuleSpec::new(Match::default(), Action::Service(name("monitor")));
    let rules = [Rule { id: RuleId(3), spec }];
    let set = compile(&rules, &names()).unwrap();
    let found = set.lookup(Stage::Service, &Key { ip_version: 4, ..Key::default() }).unwrap();
    assert_eq!((found.entry, found.session, found.action), (7, 1, bpf_maps::ACTION_USER));
    let error = compile(&rules, &Lookup { services: BTreeMap::new(), ..names() }).unwrap_err();
    assert!(matches!(error, RuleSetError::Unknown { kind: "service", .. }));
}

fn streams(text: &str) -> Result<RuleSet, RuleSetError> {
    let path = Path::Listener { port: 4711, closed: false };
    let to = Destination { entry: EntryId(9), path, kind: Kind::Streams };
    let services = [(name("compress"), to)].into();
    let spec = RuleSpec::new(text.parse().unwrap(), Action::Service(name("compress")));
    compile(&[Rule { id: RuleId(3), spec }], &Lookup { services, ..names() })
}

#[test]
fn a_rule_of_streams_matches_replies_too() {
    let set = streams("src 10.0.0.0/8 dst 192.0.2.9 proto tcp sport 1024-2047 dport 80").unwrap();
    let address = |bytes: [u8; 4]| {
        let mut all = [0; 16];
        all[..4].copy_from_slice(&bytes);
        all
    };
    let (client, server) = (address([10, 7, 7, 7]), address([192, 0, 2, 9]));
    let packet = |source, destination, from: u16, to: u16| Key {
        source,
        destination,
        source_port_be: from.to_be_bytes(),
        destination_port_be: to.to_be_bytes(),
        protocol: Protocol::TCP.0,
        ip_version: 4,
        port: 2,
        vlan: 0x8003,
        ..Key::default()
    };
    let decided = |key: Key| {
        let decision = set.decide(&key);
        decision.first.map(|rule| (rule.action, rule.entry, rule.rule))
    };
    let forward = decided(packet(client, server, 1500, 80));
    assert_eq!(forward, Some((bpf_maps::ACTION_INTERCEPT, 4711, 3)));
    let back = decided(packet(server, client, 80, 1500));
    assert_eq!(back, Some((bpf_maps::ACTION_INTERCEPT_BACK, 4711, 3)));
    for other in [
        packet(server, client, 81, 1500),
        packet(server, client, 80, 2048),
        packet(client, server, 80, 1500),
        Key { protocol: Protocol::UDP.0, ..packet(client, server, 1500, 80) },
    ] {
        assert_eq!(decided(other), None);
    }
}

#[test]
fn a_rule_of_streams_is_for_whole_tcp_connections() {
    assert!(matches!(streams("dst 10.0.0.0/8"), Err(RuleSetError::NotTcp { .. })));
    assert!(matches!(streams("proto udp dport 80"), Err(RuleSetError::NotTcp { .. })));
    for part in ["flags syn", "dscp 1", "fragment none"] {
        let refused = streams(&format!("proto tcp {part}")).unwrap_err();
        assert!(matches!(refused, RuleSetError::PartOfConnections { .. }), "{part}");
        assert!(refused.to_string().contains("whole connections"), "{refused}");
    }
}

#[test]
fn packets_of_a_port_at_tc_go_to_streams_or_are_dropped() {
    let path = Path::Listener { port: 4711, closed: false };
    let streams = Destination { entry: EntryId(9), path, kind: Kind::Streams };
    let down = Destination { path: Path::Down, ..of_packets(EntryId(7)) };
    let [tc, other, ..] = PORTS;
    let compiled = |text: &str, action: Action, monitor: Destination| {
        let services = [(name("monitor"), monitor), (name("compress"), streams)].into();
        let spec = RuleSpec::new(text.parse().unwrap(), action);
        let at_tc = [name(tc)].into();
        compile(&[Rule { id: RuleId(3), spec }], &Lookup { services, at_tc, ..names() })
    };
    let service = |text: &str| Action::Service(name(text));
    // The result does not depend on whether the service runs.
    for monitor in [of_packets(EntryId(7)), down] {
        for text in ["proto tcp", &format!("in {tc} proto tcp")] {
            for action in [service("monitor"), Action::Out(name(other))] {
                let refused = compiled(text, action, monitor).unwrap_err();
                assert!(matches!(refused, RuleSetError::AtTc { .. }), "{refused}");
                assert!(refused.to_string().contains(tc), "{refused}");
            }
            for action in [service("compress"), Action::Forward, Action::Drop] {
                compiled(text, action, monitor).unwrap();
            }
        }
        compiled(&format!("in {other}"), service("monitor"), monitor).unwrap();
        compiled(&format!("in {other}"), Action::Out(name(tc)), monitor).unwrap();
    }
}

#[test]
fn an_ipv6_packet_is_not_taken_for_the_ipv4_one_with_the_same_bytes() {
    let set = compile(&[rule(1, 10, "dst 32.1.13.184")], &names()).unwrap();
    let mut packet = Key { ip_version: 6, ..Key::default() };
    packet.destination[..4].copy_from_slice(&[0x20, 0x01, 0x0d, 0xb8]);
    assert_eq!(set.lookup(Stage::Service, &packet), None);
    packet.ip_version = 4;
    assert!(set.lookup(Stage::Service, &packet).is_some());
}

#[test]
fn one_mask_too_many_names_its_rule() {
    let all: Vec<Rule> =
        (0..65).map(|id| rule(id, 100, &format!("src ::/{} sport 1 proto udp", 64 - id))).collect();
    assert_eq!(compile(&all[..64], &names()).unwrap().masks.len(), MASKS_MAX);
    let error = compile(&all, &names()).unwrap_err();
    assert!(matches!(error, RuleSetError::TooManyMasks { rule: RuleId(64), .. }), "{error}");
}

#[test]
fn ranges_that_take_too_many_keys_name_their_rule() {
    let wide = "proto tcp sport 1-65534 dport 1-65534";
    let each = crate::l4::PREFIXES_MAX.pow(2);
    let all: Vec<Rule> = (0..40).map(|id| rule(id, 100, &format!("{wide} dscp {id}"))).collect();
    let most = RULE_ENTRIES_MAX / each;
    assert_eq!(compile(&all[..most], &names()).unwrap().entries.len(), most * each);
    let error = compile(&all, &names()).unwrap_err();
    let left = RULE_ENTRIES_MAX - most * each;
    let RuleSetError::TooManyEntries { rule, needed, left: found, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!((*rule, *needed, *found), (RuleId(most as u32), each, left));
    assert!(error.to_string().contains("multiples of 16, 256 or 4096"), "{error}");
}

#[test]
fn as_many_rules_with_ranges_as_the_goal_asks_for_fit() {
    let rules: Vec<Rule> = (0..8192)
        .map(|id| {
            let net = format!("10.{}.{}.0/24", id >> 8, id & 255);
            let first = 1024 + (id * 7919) % 60_000;
            rule(id, 100, &format!("proto udp dst {net} dport {first}-{}", first + 100))
        })
        .collect();
    let set = compile(&rules, &names()).unwrap();
    assert!(set.masks.len() <= 3, "{}", set.masks.len());
    assert!(set.entries.len() <= RULE_ENTRIES_MAX);
}

#[test]
fn a_range_is_hidden_only_when_all_of_it_is() {
    let better = rule(1, 20, "proto udp dport 16-31");
    let part = rule(2, 10, "proto udp dport 20-40");
    let whole = rule(3, 10, "proto udp dport 16-31");
    let set = compile(&[better, part, whole], &names()).unwrap();
    assert_eq!(set.shadowed, [(RuleId(3), RuleId(1))]);
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
        ("proto udp dport 5000-5002", true),
        ("proto udp dport 5002-6000", false),
        ("ethertype ipv4", true),
        ("ethertype arp", false),
        ("smac 02:00:00:00:00:99", false),
    ] {
        let set = compile(&[rule(1, 1, text)], &names()).unwrap();
        assert_eq!(set.lookup(Stage::Service, &key).is_some(), expected, "{text}");
    }
}

#[test]
fn a_frame_that_is_not_ip_is_for_the_rules_that_name_its_ethertype() {
    let mut frame = vec![0xff; 6];
    frame.extend([2, 0, 0, 0, 0, 1, 0x08, 0x06]);
    frame.extend([0; 46]);
    let arp = key_of(&wire::parse::parse_link(&frame).unwrap(), PortId(0));
    frame[12..14].copy_from_slice(&[0, 38]);
    let stp = key_of(&wire::parse::parse_link(&frame).unwrap(), PortId(0));
    for (text, is_arp, is_stp) in [
        ("any", false, false),
        ("in left", false, false),
        ("ethertype arp", true, false),
        ("ethertype llc", false, true),
        ("ethertype arp dmac ff:ff:ff:ff:ff:ff smac 02:00:00:00:00:01 in left", true, false),
        ("ethertype arp dmac ff:ff:ff:ff:ff:fe", false, false),
    ] {
        let set = compile(&[rule(1, 1, text)], &names()).unwrap();
        assert_eq!(set.lookup(Stage::Service, &arp).is_some(), is_arp, "{text}");
        assert_eq!(set.lookup(Stage::Service, &stp).is_some(), is_stp, "{text}");
    }
}

#[test]
fn a_list_of_flows_is_one_mask_and_keeps_its_place_among_the_rules() {
    let flows = |text: &str| Some(text.parse().unwrap());
    let listed = |id, priority, text: &str, list: &str| {
        let plain = rule(id, priority, text);
        Rule { spec: RuleSpec { flows: flows(list), ..plain.spec }, ..plain }
    };
    let list = "udp 10.0.0.1 4000 10.0.0.2 53\nudp 10.0.0.3 4000 10.0.0.2 53";
    let rules =
        [rule(1, 300, "src 10.0.0.3"), listed(2, 200, "in left", list), rule(3, 100, "proto udp")];
    let set = compile(&rules, &names()).unwrap();
    assert_eq!((set.masks.len(), set.entries.len(), set.lists.len()), (3, 2, 1));
    let packet = |last: u8, port| {
        let frame = wire::FrameBuilder::new().ipv4([10, 0, 0, last], [10, 0, 0, 2], 64);
        key_of(&wire::parse_frame(&frame.udp(4000, 53).build()).unwrap(), PortId(port))
    };
    for (last, port, expected) in [(1, 0, 2), (1, 1, 3), (3, 0, 1), (4, 0, 3)] {
        assert_eq!(
            set.lookup(Stage::Service, &packet(last, port)).unwrap().rule,
            expected,
            "10.0.0.{last}"
        );
    }
    let twice = compile(&[listed(4, 1, "proto udp", list)], &names()).unwrap_err();
    assert!(matches!(twice, RuleSetError::FlowsTwice { rule: RuleId(4), .. }), "{twice}");
}

#[test]
fn the_best_rule_of_each_stage_applies() {
    let of = |id: u32, priority: u16, session: &str, stage: Option<Stage>, action: Action| {
        let spec = RuleSpec::new("ip 4".parse().unwrap(), action);
        Rule { id: RuleId(id), spec: RuleSpec { priority, session: name(session), stage, ..spec } }
    };
    let service = || Action::Service(name("monitor"));
    let rules = [
        of(1, 10, "system", None, Action::Forward),
        of(2, 5, "system", None, Action::Drop),
        of(3, 10, "best-effort", None, service()),
        of(4, 99, "system", Some(Stage::Out), Action::Drop),
    ];
    let set = compile(&rules, &names()).unwrap();
    assert_eq!(set.shadowed, [(RuleId(2), RuleId(1))], "within its stage");
    let decision = set.decide(&Key { ip_version: 4, ..Key::default() });
    let numbers = |rules: &[bpf_maps::Rule]| rules.iter().map(|r| r.rule).collect::<Vec<_>>();
    assert_eq!(decision.first.map(|rule| rule.rule), Some(3));
    assert_eq!((numbers(&decision.then), numbers(&decision.counted)), (vec![4], vec![1]));
    assert_eq!(decision.action(), bpf_maps::ACTION_USER);
}
