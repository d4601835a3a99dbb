//! Tests of rule sets that replace each other, as the daemon does it: `FrontDoor::install_rules`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bpf::front_door::{FlowsOfRule, RuleTable};
use bpf::{FrontDoor, Program};
use bpf_maps::{ACTION_DROP, FlowKey, Key, MASKS_MAX, Mask, OUTCOMES, PortConfig, Rule};
use units::{Name, PortId, RuleId};
use wire::{FrameBuilder, Hidden, parse_frame};

use crate::harness::{HASH_KEYS, MAC, addressed, key_of};
use crate::namespace::{LOOPBACK, enter};

/// Number of packets of one system call.
const BATCH: u32 = 5000;
/// Number of rule sets that are installed while packets pass.
const CHANGES: u32 = 60;
/// Number of rules of each set: enough for the installation to take time.
const RULES: u32 = 2000;

/// Front door with one port, on no device.
struct Door {
    door: FrontDoor,
    program: Program,
    name: Name,
}

impl Door {
    fn new(name: &str) -> Self {
        let name: Name = name.parse().unwrap();
        let door = FrontDoor::create(&name, HASH_KEYS, 1000).unwrap();
        let config = PortConfig { ifindex: LOOPBACK, mac: MAC, mtu: 1500, ..PortConfig::default() };
        let program = door.load(PortId(0), &config).unwrap();
        door.heartbeat().unwrap();
        Self { door, program, name }
    }

    fn outcome(&self, name: &str) -> u64 {
        let at = OUTCOMES.iter().position(|&(known, _)| known == name).unwrap();
        self.door.port_stats(PortId(0)).unwrap().outcomes[at]
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        bpf::front_door::remove(&self.name).unwrap();
    }
}

fn frame(host: u32) -> Vec<u8> {
    let [_, a, b, c] = host.to_be_bytes();
    addressed(FrameBuilder::new().ipv4([10, a, b, c], [10, 201, 0, 1], 64).udp(4000, 53).build())
}

fn key(host: u32) -> Key {
    key_of(&parse_frame(&frame(host)).unwrap())
}

/// Returns rules for the hosts from 0 on, whose numbers begin at `first`; each drops.
fn rules(first: u32) -> (Vec<Mask>, Vec<(Key, Rule)>) {
    let bits = Key { source: [0xff; 16], ip_version: 0xff, ..Key::default() };
    let of_host = |host| {
        let key = Key { source: key(host).source, ip_version: 4, ..Key::default() };
        let rule = Rule { rank: host, rule: first + host, action: ACTION_DROP, ..Rule::default() };
        (key, rule)
    };
    (vec![Mask { bits, ..Mask::default() }], (0..RULES).map(of_host).collect())
}

#[test]
fn no_packet_is_matched_by_a_partially_installed_rule_set() {
    if !enter("no_packet_is_matched_by_a_partially_installed_rule_set") {
        return;
    }
    let mut this = Door::new("tt-replaced");
    let sets = [rules(0), rules(RULES)];
    this.door.install_rules(&sets[0].0, &sets[0].1, &[]).unwrap();
    let over = AtomicBool::new(false);
    let last = RULES - 1;
    let sent = std::thread::scope(|scope| {
        let program = &this.program;
        let packets = scope.spawn(|| {
            let mut sent = 0u64;
            while !over.load(Ordering::Relaxed) {
                // The first and the last host that a set gets.
                for host in [0, last] {
                    program.test_run(&frame(host), None, BATCH).unwrap();
                    sent += u64::from(BATCH);
                }
            }
            sent
        });
        for change in 1..=CHANGES {
            let (masks, entries) = &sets[(change % 2) as usize];
            this.door.install_rules(masks, entries, &[]).unwrap();
        }
        over.store(true, Ordering::Relaxed);
        packets.join().unwrap()
    });
    // Each packet had a rule, of one set or the other.
    assert_eq!(this.outcome("drop_rule"), sent);
    let counted = |rule| this.door.rule_stats(RuleId(rule)).unwrap().packets;
    let of_set = |first| [counted(first), counted(first + last)];
    let [one, other] = [of_set(0), of_set(RULES)];
    assert_eq!(one.iter().chain(&other).sum::<u64>(), sent);
    assert!(one.iter().chain(&other).all(|&packets| packets > 0), "{one:?} {other:?}");
}

fn listed(hosts: impl Iterator<Item = u32>) -> Arc<[FlowKey]> {
    hosts.map(|host| key(host).flow()).collect()
}

#[test]
fn a_list_of_flows_is_one_rule_and_is_replaced_like_one() {
    if !enter("a_list_of_flows_is_one_rule_and_is_replaced_like_one") {
        return;
    }
    let mut this = Door::new("tt-listed");
    let mut bits = Key { port: 0xffff, ..Key::default() };
    bytemuck::bytes_of_mut(&mut bits)[..38].fill(0xff);
    let mask = Mask { bits, ..Mask::default() };
    let of_rule = |flows: &Arc<[FlowKey]>, rule| FlowsOfRule {
        mask: 0,
        template: Key::default(),
        flows: flows.clone(),
        rule: Rule { rule, action: ACTION_DROP, ..Rule::default() },
    };
    let dropped = |this: &Door, host| {
        let before = this.outcome("drop_rule");
        this.program.test_run(&frame(host), None, 1).unwrap();
        this.outcome("drop_rule") > before
    };
    let (even, odd) = (listed((0..40_000).step_by(2)), listed((1..40_000).step_by(2)));
    // The same list repeatedly, another one, and none; in one round on another port, too.
    for (round, flows) in
        [&even, &even, &odd, &even, &odd, &odd, &odd, &even].into_iter().enumerate()
    {
        this.door.install_rules(&[mask], &[], &[of_rule(flows, round as u32)]).unwrap();
        this.door.heartbeat().unwrap();
        for host in [0, 1, 2, 3, 39_998, 39_999, 40_000, 40_001] {
            let expected = host < 40_000 && (host % 2 == 0) == Arc::ptr_eq(flows, &even);
            assert_eq!(dropped(&this, host), expected, "round {round}, host {host}");
        }
        assert_eq!(this.door.rule_stats(RuleId(round as u32)).unwrap().packets, 3);
    }
    let elsewhere =
        FlowsOfRule { template: Key { port: 1, ..Key::default() }, ..of_rule(&even, 20) };
    this.door.install_rules(&[mask], &[], &[elsewhere]).unwrap();
    assert!(!dropped(&this, 0) && !dropped(&this, 1));
    this.door.install_rules(&[], &[], &[]).unwrap();
    assert!(!dropped(&this, 0) && !dropped(&this, 1));
}

#[test]
fn rules_of_packets_that_hide_something_are_replaced_with_the_others() {
    if !enter("rules_of_packets_that_hide_something_are_replaced_with_the_others") {
        return;
    }
    let mut this = Door::new("tt-hidden");
    // One byte behind the IP header: no L4 ports.
    let cut = FrameBuilder::new().ipv4([10, 0, 0, 1], [10, 201, 0, 1], 64);
    let cut = addressed(cut.protocol(wire::protocol::UDP).payload(&[0]).build());
    let hides = Hidden::Ports as u16;
    assert_eq!(parse_frame(&cut).unwrap().hidden as u16, hides);
    let bits = Key { destination_port_be: [0xff; 2], ..Key::default() };
    let mask = Mask { bits, ..Mask::default() };
    let rule = Rule { action: ACTION_DROP, ..Rule::default() };
    let shown = (Key { destination_port_be: [0, 53], ..Key::default() }, rule);
    // The key is of the second mask.
    let other = Mask { bits: Key { dscp: 0xff, hidden: u16::MAX, ..Key::default() }, ..mask };
    let same = Mask { bits: Key { hidden: u16::MAX, ..Key::default() }, ..mask };
    let key = Key { hidden: hides, mask: MASKS_MAX as u16 + 1, ..Key::default() };
    let drops = |this: &Door| {
        let before = this.outcome("drop_l4_hidden");
        this.program.test_run(&cut, None, 1).unwrap();
        this.outcome("drop_l4_hidden") > before
    };
    // Both rule sets have them, then one, then none.
    for hidden in [&[(key, rule)][..], &[(key, rule)], &[], &[(key, rule)], &[], &[]] {
        let masks = [other, same];
        let shown = RuleTable { masks: &[mask], entries: &[shown] };
        let hidden_table = RuleTable { masks: &masks, entries: hidden };
        this.door.install_with_hidden(shown, hidden_table, &[]).unwrap();
        this.door.heartbeat().unwrap();
        assert_eq!(drops(&this), !hidden.is_empty());
    }
}
