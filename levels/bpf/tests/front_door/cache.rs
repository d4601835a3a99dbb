//! Tests of the flow cache: when it answers, and when it must not.

use bpf_maps::{ACTION_DROP, ACTION_FORWARD, Key, Mask, Rule};
use wire::{FrameBuilder, parse_frame};

use crate::harness::{FrontDoor, addressed, key_of};
use crate::namespace::enter;

/// Makes a rule set of one rule that matches everything.
fn everything(rule: u32, action: u8) -> ([Mask; 1], [(Key, Rule); 1]) {
    let bits = Key { ip_version: 0, ..Key::default() };
    ([Mask { bits, ..Mask::default() }], [(bits, Rule { rule, action, ..Rule::default() })])
}

fn frame(last: u8) -> Vec<u8> {
    addressed(FrameBuilder::new().ipv4([10, 0, 0, 1], [10, 0, 0, last], 64).udp(1, 2).build())
}

/// Makes a front door whose rule set 0 forwards and whose rule set 1 drops.
fn two_sets() -> FrontDoor {
    with_two_sets(FrontDoor::load(None))
}

fn with_two_sets(mut front_door: FrontDoor) -> FrontDoor {
    for (set, action) in [(0, ACTION_FORWARD), (1, ACTION_DROP)] {
        let (masks, rules) = everything(set as u32 + 10, action);
        front_door.install(set, &masks, &rules);
    }
    front_door.activate(0);
    front_door.heartbeat();
    front_door
}

#[test]
fn the_second_packet_of_a_flow_comes_from_the_cache() {
    if !enter("the_second_packet_of_a_flow_comes_from_the_cache") {
        return;
    }
    let mut front_door = two_sets();
    for last in 2..200 {
        front_door.heartbeat();
        let first = front_door.run(&frame(last));
        let second = front_door.run(&frame(last));
        assert_eq!((first.cached, second.cached), (false, true));
        assert_eq!((first.outcome, first.bytes), (second.outcome, second.bytes));
    }
    assert_eq!(front_door.rule_stats(10).packets, 2 * 198, "a hit counts for its rule too");
}

#[test]
fn a_new_generation_switches_the_rule_set_and_empties_the_cache() {
    if !enter("a_new_generation_switches_the_rule_set_and_empties_the_cache") {
        return;
    }
    let mut front_door = two_sets();
    for (set, outcome) in [(0, "kernel_other"), (1, "drop_rule"), (0, "kernel_other")] {
        front_door.activate(set);
        front_door.heartbeat();
        let first = front_door.run(&frame(2));
        let second = front_door.run(&frame(2));
        assert_eq!((first.outcome, first.cached), (outcome, false), "set {set}");
        assert_eq!((second.outcome, second.cached), (outcome, true), "set {set}");
    }
}

#[test]
fn a_change_of_the_inactive_rule_set_is_not_seen() {
    if !enter("a_change_of_the_inactive_rule_set_is_not_seen") {
        return;
    }
    let mut front_door = with_two_sets(FrontDoor::load_taking_apart());
    front_door.install(1, &[], &[]);
    for last in [2, 3] {
        assert_eq!(front_door.run(&frame(last)).outcome, "kernel_other");
        let key = key_of(&parse_frame(&frame(last)).unwrap());
        assert_eq!(front_door.flow(&key).meta.rule, 10);
    }
}

#[test]
fn a_node_whose_daemon_is_silent_resolves_every_packet() {
    if !enter("a_node_whose_daemon_is_silent_resolves_every_packet") {
        return;
    }
    let mut front_door = two_sets();
    front_door.run(&frame(2));
    assert!(front_door.run(&frame(2)).cached);
    front_door.silence();
    for _ in 0..3 {
        let done = front_door.run(&frame(2));
        assert_eq!((done.outcome, done.cached), ("kernel_other", false));
    }
    front_door.heartbeat();
    assert!(front_door.run(&frame(2)).cached);
}

/// Returns flows that differ in their addresses and L4 ports.
fn many(count: u32) -> impl Iterator<Item = Vec<u8>> {
    (0..count).map(|number| {
        let [_, a, b, c] = number.to_be_bytes();
        let builder = FrameBuilder::new().ipv4([10, a, b, c], [10, 9, 9, c], 64);
        addressed(builder.udp(number as u16 | 1, 53).build())
    })
}

#[test]
fn the_large_cache_keeps_flows_that_do_not_fit_the_small_one() {
    if !enter("the_large_cache_keeps_flows_that_do_not_fit_the_small_one") {
        return;
    }
    const FLOWS: u32 = 40_000;
    // An eighth more entries than flows, as a node has.
    let mut large = with_two_sets(FrontDoor::load_large(FLOWS / 8 * 9 / 8));
    let mut small = two_sets();
    for (door, least) in [(&mut large, FLOWS * 99 / 100), (&mut small, 0)] {
        assert_eq!(cached(door, FLOWS, "kernel_other"), 0);
        let again = cached(door, FLOWS, "kernel_other");
        assert!(again >= least, "{again} of {FLOWS}");
        assert!(least > 0 || again < FLOWS / 4, "{again} of {FLOWS} in the small cache");
    }
    // A change empties it as a whole.
    large.activate(1);
    assert_eq!(cached(&mut large, FLOWS, "drop_rule"), 0);
    assert!(cached(&mut large, FLOWS, "drop_rule") > FLOWS * 9 / 10);
}

/// Counts how many of `flows` flows come from a cache; all have the same outcome.
fn cached(door: &mut FrontDoor, flows: u32, outcome: &str) -> u32 {
    let mut cached = 0;
    for (number, frame) in many(flows).enumerate() {
        // Even on a slow machine the last heartbeat is recent.
        if number % 100 == 0 {
            door.heartbeat();
        }
        let done = door.run(&frame);
        // One flow in 65,536 looks like one whose checksum is unfinished.
        assert!(done.outcome == outcome || done.outcome == "kernel_partial", "{}", done.outcome);
        cached += u32::from(done.cached);
    }
    cached
}

#[test]
fn an_overfull_large_cache_gives_no_packet_another_flows_rule() {
    if !enter("an_overfull_large_cache_gives_no_packet_another_flows_rule") {
        return;
    }
    let mut door = with_two_sets(FrontDoor::load_large(3));
    for set in [0, 1, 0] {
        door.activate(set);
        for _ in 0..2 {
            door.heartbeat();
            for frame in many(2000) {
                let outcome = if set == 0 { "kernel_other" } else { "drop_rule" };
                assert_eq!(door.run(&frame).outcome, outcome);
            }
        }
    }
}

/// Returns a packet of the victim's flow, which a rule of its own drops, among those that are
/// forwarded.
fn victim() -> Vec<u8> {
    let builder = FrameBuilder::new().ipv4([10, 250, 0, 1], [10, 9, 9, 9], 64);
    addressed(builder.udp(4000, 7).build())
}

const VICTIM: u32 = 11;
const OTHERS: u32 = 10;

/// Adds a rule for the victim and a worse one for all others.
fn with_victim(mut door: FrontDoor) -> FrontDoor {
    let all = Key::default();
    let port = Key { destination_port_be: [0xff; 2], ..Key::default() };
    let his = Key { destination_port_be: 7_u16.to_be_bytes(), ..Key::default() };
    let theirs = Key { mask: 1, ..Key::default() };
    let rule = |rank, rule, action| Rule { rank, rule, action, ..Rule::default() };
    let mask = |bits, rank_best| Mask { bits, rank_best, ..Mask::default() };
    let rules = [(his, rule(0, VICTIM, ACTION_DROP)), (theirs, rule(1, OTHERS, ACTION_FORWARD))];
    door.install(0, &[mask(port, 0), mask(all, 1)], &rules);
    door.activate(0);
    door.heartbeat();
    door
}

/// Sends `others` and the victim's packet before each group of them. Checks that the victim's
/// packets are all dropped and counted for its rule, and no other is; returns the part of them that
/// came from a cache.
fn beside(door: &mut FrontDoor, others: impl Iterator<Item = Vec<u8>>, each: usize) -> f64 {
    let (victim, before) = (victim(), door.rule_stats(VICTIM).packets);
    let (mut his, mut cached) = (0, 0);
    for (number, frame) in others.enumerate() {
        if number % each == 0 {
            door.heartbeat();
            let done = door.run(&victim);
            assert_eq!(done.outcome, "drop_rule", "packet {number}");
            (his, cached) = (his + 1, cached + u64::from(done.cached));
        }
        let done = door.run(&frame);
        assert_ne!(done.outcome, "drop_rule", "packet {number}");
    }
    assert_eq!(door.rule_stats(VICTIM).packets - before, his);
    cached as f64 / his as f64
}

/// Tests the best attack on a hash with unknown random factors: to fill all slots; of 8,192 each of
/// 100 flows takes one.
#[test]
fn a_million_flows_change_no_verdict_of_a_victim_and_rarely_evict_it() {
    if !enter("a_million_flows_change_no_verdict_of_a_victim_and_rarely_evict_it") {
        return;
    }
    let mut door = with_victim(FrontDoor::load(None));
    let cached = beside(&mut door, many(1_000_000), 100);
    assert!(cached > 0.95, "{cached} of his packets came from the cache");
}

/// Tests flows that share the victim's slot: they cost it the cache and nothing else, for the
/// verdict is computed anew for each of its packets. A large cache still holds its flow.
#[test]
fn flows_in_a_victims_cache_slot_cost_it_the_cache_and_change_no_verdict() {
    if !enter("flows_in_a_victims_cache_slot_cost_it_the_cache_and_change_no_verdict") {
        return;
    }
    let mut small = with_victim(FrontDoor::load(None));
    let victim = victim();
    let takes_his_place = |frame: &Vec<u8>| {
        small.heartbeat();
        small.run(&victim);
        small.run(frame);
        !small.run(&victim).cached
    };
    let crafted: Vec<Vec<u8>> = many(200_000).filter(takes_his_place).take(8).collect();
    assert_eq!(crafted.len(), 8, "one flow of 8,192 has his place");
    let cached = beside(&mut small, crafted.iter().cycle().take(100_000).cloned(), 1);
    assert!(cached < 0.01, "{cached}: they are in his place");
    let mut large = with_victim(FrontDoor::load_large(1024));
    let cached = beside(&mut large, crafted.iter().cycle().take(100_000).cloned(), 1);
    assert!(cached > 0.95, "{cached} of his packets came from the large cache");
}
