//! Tests of the front door's tuple-space search against a linear search through all rules.
//!
//! Rule sets are compiled here, by hand: the compilation of an operator's rules is tested in the
//! node.

use bpf_maps::{ACTION_DROP, ACTION_FORWARD, ACTION_USER, Key, MASKS_MAX, Mask, Rule};
use std::collections::BTreeMap;
use wire::{FrameBuilder, parse_frame, protocol as p};

use crate::chance::Chance;
use crate::harness::{
    Done, FrontDoor, MAC, RULE_NONE, XDP_DROP, XDP_PASS, addressed, key_of, whole_key_of,
};
use crate::namespace::enter;

/// Number of random rule sets, of packets for each, and of rules of one at most.
const SETS: usize = 200;
const PACKETS: usize = 200;
const RULES: usize = 120;

/// Match and action of one rule.
#[derive(Clone, Copy, Debug)]
struct Entry {
    bits: Key,
    value: Key,
    rule: Rule,
}

#[test]
fn the_best_rule_is_the_one_that_a_linear_search_finds() {
    if !enter("the_best_rule_is_the_one_that_a_linear_search_finds") {
        return;
    }
    let mut front_door = FrontDoor::load_taking_apart();
    let mut common = FrontDoor::load(None);
    // Two sets of eight flows: most are evicted again.
    let mut large = FrontDoor::load_large(2);
    let mut chance = Chance::new(7);
    let (mut matched, mut unmatched) = (0, 0);
    for number in 0..SETS {
        let rules = random_rules(&mut chance);
        let set = number % 2;
        for door in [&mut front_door, &mut common, &mut large] {
            install(door, set, &rules);
            door.activate(set);
            door.heartbeat();
        }
        for _ in 0..PACKETS {
            let frame = random_frame(&mut chance);
            let key = whole_key_of(&frame);
            let named = |entry: &&Entry| key.ip_version != 0 || entry.bits.ethertype_be != [0; 2];
            let expected =
                rules.iter().filter(named).find(|entry| masked(&key, &entry.bits) == entry.value);
            *(if expected.is_some() { &mut matched } else { &mut unmatched }) += 1;
            let done = check(&mut front_door, &frame, &key, expected, number);
            for turn in 0..4 {
                let commonly = if turn % 2 == 0 { common.run(&frame) } else { large.run(&frame) };
                assert_eq!(
                    Done { cached: false, ..commonly },
                    Done { cached: false, ..done.clone() }
                );
            }
        }
    }
    assert!(matched > SETS * PACKETS / 4 && unmatched > SETS * PACKETS / 20);
}

#[test]
fn as_many_masks_as_there_can_be_are_searched() {
    if !enter("as_many_masks_as_there_can_be_are_searched") {
        return;
    }
    let mut front_door = FrontDoor::load_taking_apart();
    // One rule for each combination of six fields; the last ones match on the fewest.
    let field = |at: usize| match at {
        0 => Key { source_port_be: [0xff; 2], ..Key::default() },
        1 => Key { destination_port_be: [0xff; 2], ..Key::default() },
        2 => Key { protocol: 0xff, ..Key::default() },
        3 => Key { vlan: 0xffff, ..Key::default() },
        4 => Key { dscp: 0xff, ..Key::default() },
        _ => Key { ip_version: 0xff, ..Key::default() },
    };
    let frame = FrameBuilder::new().ipv4([10, 0, 0, 1], [10, 0, 0, 2], 9).vlan(7).dscp(1).udp(1, 2);
    let frame = addressed(frame.build());
    let key = key_of(&parse_frame(&frame).unwrap());
    let rules: Vec<Entry> = (0..MASKS_MAX)
        .map(|combination| {
            let chosen = (0..6).filter(|at| combination & 1 << at != 0);
            let bits = chosen.fold(Key::default(), |bits, at| either(&bits, &field(at)));
            // Only the last rule has the packet's own values.
            let value =
                if combination == MASKS_MAX - 1 { key } else { Key { source: [9; 16], ..key } };
            let bits = if combination == MASKS_MAX - 1 {
                bits
            } else {
                Key { source: [0xff; 16], ..bits }
            };
            entry(bits, masked(&value, &bits), combination, ACTION_DROP)
        })
        .collect();
    install(&mut front_door, 0, &rules);
    front_door.activate(0);
    check(&mut front_door, &frame, &key, rules.last(), 0);
}

#[test]
fn a_rule_counts_its_packets_and_bytes() {
    if !enter("a_rule_counts_its_packets_and_bytes") {
        return;
    }
    let mut front_door = FrontDoor::load(None);
    let udp = Key { protocol: 0xff, ..Key::default() };
    let value = Key { protocol: p::UDP, ..Key::default() };
    for (action, outcome, xdp) in [
        (ACTION_DROP, "drop_rule", XDP_DROP),
        (ACTION_USER, "kernel_no_socket", XDP_PASS),
        (ACTION_FORWARD, "kernel_other", XDP_PASS),
    ] {
        let number = usize::from(action);
        install(&mut front_door, 0, &[entry(udp, value, number, action)]);
        front_door.activate(0);
        let mut bytes = 0;
        for length in [0, 1, 1000, 8900] {
            let start = || FrameBuilder::new().ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64);
            let frame = addressed(start().udp(1, 2).payload(&vec![1; length]).pad_to(60).build());
            let Done { outcome: found, action: answer, .. } = front_door.run(&frame);
            assert_eq!((found, answer), (outcome, xdp), "{length} bytes");
            bytes += frame.len() as u64;
            front_door.run(&addressed(start().icmp_echo(1, 2).build()));
        }
        let stats = front_door.rule_stats(number as u32);
        assert_eq!((stats.packets, stats.bytes), (4, bytes));
    }
}

/// Runs a frame and compares rule, action and counters with the expected ones.
fn check(
    door: &mut FrontDoor,
    frame: &[u8],
    key: &Key,
    expected: Option<&Entry>,
    number: usize,
) -> Done {
    let before = expected.map(|entry| door.rule_stats(entry.rule.rule));
    let done = door.run(frame);
    let key = &Key { tcp_flags: key.tcp_flags & door.flags_looked_at(), ..*key };
    let plain = match (key.ip_version, key.destination_mac == MAC) {
        (0, true) => "kernel_not_ip",
        (0, false) => "kernel_not_for_us",
        _ => "kernel_other",
    };
    if !door.looks_at_ethertypes() && key.ip_version == 0 {
        assert_eq!((done.outcome, done.cached), (plain, false), "set {number}: {key:x?}");
        return done;
    }
    let flow = door.flow(key);
    assert_eq!(flow.key, *key);
    let Some(Entry { rule, .. }) = expected else {
        assert_eq!((flow.meta.rule, done.outcome), (RULE_NONE, plain), "set {number}: {key:x?}");
        return done;
    };
    let found = (u32::from(flow.meta.rule), flow.meta.then, flow.meta.entry, flow.action);
    let entry = if rule.action == bpf_maps::ACTION_FORWARD { 0 } else { rule.entry };
    let wanted = (rule.rule, [RULE_NONE; 2], entry, rule.action);
    assert_eq!(found, wanted, "set {number}: {key:x?}");
    let outcome = match rule.action {
        ACTION_DROP => "drop_rule",
        ACTION_USER => "kernel_no_socket",
        _ => plain,
    };
    assert_eq!(done.outcome, outcome, "set {number}: {key:x?}");
    let (before, after) = (before.unwrap_or_default(), door.rule_stats(rule.rule));
    let counted = (after.packets - before.packets, after.bytes - before.bytes);
    assert_eq!(counted, (1, frame.len() as u64));
    done
}

/// Sorts rules, best first, into masks and exact entries.
fn install(door: &mut FrontDoor, set: usize, rules: &[Entry]) {
    let mut masks: Vec<Mask> = Vec::new();
    let mut entries = BTreeMap::new();
    for Entry { bits, value, rule } in rules {
        let at = masks.iter().position(|mask| bytes(&mask.bits) == bytes(bits));
        let at = at.unwrap_or_else(|| {
            // Rules come best first, so masks do too.
            masks.push(Mask { bits: *bits, rank_best: rule.rank, ..Mask::default() });
            masks.len() - 1
        });
        // Of two rules with the same match, the better one came first.
        let key = Key { mask: at as u16, ..*value };
        entries.entry(bytes(&key)).or_insert((key, *rule));
    }
    door.install(set, &masks, &entries.into_values().collect::<Vec<_>>());
}

/// Returns rules with ranks and numbers in order, over few values so that they match packets.
fn random_rules(chance: &mut Chance) -> Vec<Entry> {
    let shapes: Vec<Key> = (0..1 + chance.below(40)).map(|_| random_bits(chance)).collect();
    (0..chance.below(RULES))
        .map(|rank| {
            let bits = chance.of(&shapes);
            let like = whole_key_of(&random_frame(chance));
            let action = chance.of(&[ACTION_FORWARD, ACTION_DROP, ACTION_USER]);
            entry(bits, masked(&like, &bits), rank, action)
        })
        .collect()
}

/// Returns the matched bits of one kind of rule: prefixes of either version, and exact fields.
fn random_bits(chance: &mut Chance) -> Key {
    let prefix = |chance: &mut Chance| {
        let length = chance.of(&[0, 0, 0, 8, 24, 31, 32, 64, 127, 128]);
        std::array::from_fn(|byte| {
            let covered = (length - (byte as i32) * 8).clamp(0, 8) as u32;
            u8::try_from(0xff00_u32 >> covered & 0xff).unwrap()
        })
    };
    let exact = |chance: &mut Chance| if chance.once_in(4) { 0xff } else { 0 };
    let (source, destination) = (prefix(chance), prefix(chance));
    // Prefixes of an L4 port, as ranges have them.
    let ports =
        |chance: &mut Chance| chance.of(&[[0; 2], [0; 2], [0xff; 2], [0xff, 0xf0], [0xf0, 0]]);
    let flags = |chance: &mut Chance| chance.of(&[0, 0, 0, 0, 0x02, 0x12, 0xff]);
    let addressed = source != [0; 16] || destination != [0; 16];
    Key {
        source,
        destination,
        source_port_be: ports(chance),
        destination_port_be: ports(chance),
        protocol: exact(chance),
        ip_version: if addressed { 0xff } else { exact(chance) },
        vlan: u16::from(exact(chance)) * 0x0101,
        port: u16::from(exact(chance)) * 0x0101,
        dscp: exact(chance),
        fragment: 0,
        source_mac: [exact(chance) & exact(chance); 6],
        destination_mac: [exact(chance) & exact(chance); 6],
        ethertype_be: [exact(chance) & exact(chance); 2],
        tcp_flags: flags(chance),
        ..Key::default()
    }
}

/// Returns a packet with few different addresses, L4 ports, tags and code points.
fn random_frame(chance: &mut Chance) -> Vec<u8> {
    let mut frame = random_ip_frame(chance);
    frame[11] = chance.of(&[1, 2]);
    if chance.once_in(8) {
        let type_at = if frame[12..14] == [0x81, 0] { 16 } else { 12 };
        let [high, low] = chance.of(&[[0x08, 0x06], [0x88, 0xcc], [0x90, 0]]);
        (frame[type_at], frame[type_at + 1]) = (high, low);
        frame[5] = chance.of(&[MAC[5], 9]);
    }
    frame
}

fn random_ip_frame(chance: &mut Chance) -> Vec<u8> {
    let host = chance.of(&[1, 2, 3, 130]);
    let net = chance.of(&[0, 1]);
    let builder = if chance.once_in(2) {
        FrameBuilder::new().ipv4([10, 0, net, host], [10, 0, 9, 3 - net], 64)
    } else {
        let group = u16::from(net);
        let source = [0x2001, 0xdb8, group, 0, 0, 0, 0, u16::from(host)];
        FrameBuilder::new().ipv6(source, [0x2001, 0xdb8, 9, group, 0, 0, 0, 1], 64)
    };
    let builder = if chance.once_in(3) { builder.vlan(chance.of(&[0, 7, 100])) } else { builder };
    let builder = builder.dscp(chance.of(&[0, 0, 46]));
    let (source, destination) = (chance.of(&[80, 443, 5000]), chance.of(&[53, 80]));
    addressed(match chance.below(4) {
        0 => builder.tcp(source, destination, chance.of(&[0x02, 0x10, 0x12, 0xff])).build(),
        1 => builder.icmp_echo(1, 1).build(),
        2 => builder.protocol(47).build(),
        _ => builder.udp(source, destination).build(),
    })
}

fn entry(bits: Key, value: Key, rank: usize, action: u8) -> Entry {
    let (rank, number) = (rank as u32, rank as u16);
    let rule =
        Rule { rank, rule: rank, session: number + 1, entry: number + 2, action, zero: [0; 3] };
    Entry { bits, value, rule }
}

fn bytes(key: &Key) -> [u8; 64] {
    bytemuck::cast(*key)
}

fn masked(key: &Key, bits: &Key) -> Key {
    let (key, bits) = (bytes(key), bytes(bits));
    bytemuck::cast::<[u8; 64], Key>(std::array::from_fn(|at| key[at] & bits[at]))
}

fn either(a: &Key, b: &Key) -> Key {
    let (a, b) = (bytes(a), bytes(b));
    bytemuck::cast::<[u8; 64], Key>(std::array::from_fn(|at| a[at] | b[at]))
}
