//! Module that runs at several levels: its results, its state, its failures, its moves.

use std::time::{Duration, Instant};

use crate::common::{Line, PAYLOAD_ADDRESS, SOON, module};
use api::Budget;
use testkit::{Service, root_or_skip, service_module, wait_for};

const PORT: u16 = 7000;
const RULES: &[&str] = &["proto udp dport 7000"];

/// Module that writes into each packet how many it has seen, by its memory and by its global. A
/// payload that begins with 0xdead traps; 0xfeed is dropped with reason 9.
const STAMPER: &str = r#"
(memory (export "memory") 1)
(global $seen (mut i32) (i32.const 0))
(func (export "on_message") (param $length i32) (result i32) (global.get $seen))
(func (export "on_packet") (result i32)
  (if (i32.eq (i32.load16_u (i32.const PAYLOAD)) (i32.const 0xadde)) (then unreachable))
  (if (i32.eq (i32.load16_u (i32.const PAYLOAD)) (i32.const 0xedfe))
    (then (return (i32.const 0x90001))))
  (global.set $seen (i32.add (global.get $seen) (i32.const 1)))
  (i32.store (i32.const 0x9000) (i32.add (i32.load (i32.const 0x9000)) (i32.const 1)))
  (i32.store offset=4 (i32.const PAYLOAD) (i32.load (i32.const 0x9000)))
  (i32.store offset=8 (i32.const PAYLOAD) (global.get $seen))
  ;; No checksum, which IPv4 allows.
  (i32.store16 (i32.sub (i32.const PAYLOAD) (i32.const 2)) (i32.const 0))
  (i32.const 0))"#;

pub fn stamper(manifest: &str) -> Vec<u8> {
    let fields = STAMPER.replace("PAYLOAD", &PAYLOAD_ADDRESS.to_string());
    module("stamper", &format!("window = 64\n{manifest}"), &fields)
}

pub const BELOW: &str = "levels = [\"nic\", \"kernel\", \"user\"]";

/// Number of a packet, and the two stamps that it arrived with.
pub type Stamped = (u32, u32, u32);

pub fn stamped(payload: &[u8; 12]) -> Stamped {
    let number = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| payload[at + byte]));
    (number(0), number(4), number(8))
}

/// Sender and receiver whose neighbours are resolved.
struct Flow {
    sender: std::net::UdpSocket,
    receiver: std::net::UdpSocket,
}

impl Flow {
    fn new(line: &Line) -> Self {
        let (receiver, sender) = (line.udp("server", PORT), line.udp("client", 0));
        sender.connect(line.server(PORT)).unwrap();
        Self { sender, receiver }
    }

    fn send(&self, number: u32) {
        let mut payload = [0; 12];
        payload[..4].copy_from_slice(&number.to_le_bytes());
        self.sender.send(&payload).unwrap();
    }

    fn receive(&self) -> Option<Stamped> {
        let mut payload = [0; 12];
        let length = self.receiver.recv(&mut payload).ok()?;
        (length == 12).then(|| stamped(&payload))
    }

    fn one(&self, number: u32) -> Option<Stamped> {
        self.send(number);
        self.receive()
    }
}

#[test]
fn the_same_monitor_counts_the_same_at_every_level() {
    if !root_or_skip("levels") {
        return;
    }
    let monitor = service_module("monitor").unwrap();
    for level in ["user", "nic", "kernel"] {
        let line = Line::up();
        line.resolve_neighbours();
        let flow = Flow::new(&line);
        let service = Service { rules: RULES, level, ..Service::default() };
        let deployed = line.node.deploy(&monitor, &service).unwrap();
        assert_eq!(deployed.service.level, level, "{}", deployed.service.level_reason);
        let before = line.books();
        for number in 0..100 {
            assert_eq!(flow.one(number).unwrap().0, number);
        }
        let balance = line.balance_since(&before);
        assert_eq!((balance.sent, balance.dropped()), (100, 0), "{balance}");
        let stats = line.node.service("monitor").unwrap().stats;
        assert_eq!((stats.packets, stats.forwarded), (100, 100), "{level}: {stats:#?}");
        let counted = ["packets", "udp", "ipv4", "marked"].map(|name| stats.counters[name]);
        assert_eq!(counted, [100; 4], "{level}");
        let below = if level == "user" { 0 } else { 100 };
        assert_eq!(stats.below.packets, below, "{level}");
        assert_eq!(stats.below.fuel > 0, below > 0, "{level}: {}", stats.below.fuel);
    }
}

/// Module that counts in its data, which begins with 5, and in a global, which begins with 7, and
/// writes both into each packet.
const COUNTS_ON: &str = r#"
(memory (export "memory") 1)
(data (i32.const 0x9100) "\05")
(global $rounds (mut i32) (i32.const 7))
(func (export "on_packet") (result i32)
  (global.set $rounds (i32.add (global.get $rounds) (i32.const 1)))
  (i32.store8 (i32.const 0x9100) (i32.add (i32.load8_u (i32.const 0x9100)) (i32.const 1)))
  (i32.store offset=4 (i32.const PAYLOAD) (i32.load8_u (i32.const 0x9100)))
  (i32.store offset=8 (i32.const PAYLOAD) (global.get $rounds))
  (i32.store16 (i32.sub (i32.const PAYLOAD) (i32.const 2)) (i32.const 0))
  (i32.const 0))"#;

#[test]
fn a_removed_and_redeployed_module_keeps_no_state_at_any_level() {
    if !root_or_skip("a module that runs again") {
        return;
    }
    let fields = COUNTS_ON.replace("PAYLOAD", &PAYLOAD_ADDRESS.to_string());
    let manifest = format!("window = 64\nmemory_pages_max = 2\n{BELOW}");
    let wasm = module("again", &manifest, &fields);
    let line = Line::up();
    line.resolve_neighbours();
    let flow = Flow::new(&line);
    for level in ["nic", "kernel", "user", "nic"] {
        let service = Service { rules: RULES, level, ..Service::default() };
        let deploy = || {
            let deployed = line.node.deploy(&wasm, &service).unwrap();
            assert_eq!(deployed.service.level, level, "{}", deployed.service.level_reason);
        };
        deploy();
        for number in 1..=5 {
            assert_eq!(flow.one(number), Some((number, 5 + number, 7 + number)), "{level}");
        }
        line.node.remove("again").unwrap();
        deploy();
        assert_eq!(flow.one(1), Some((1, 6, 8)), "{level}: nothing of the time before is left");
        let stats = line.node.service("again").unwrap().stats;
        assert_eq!((stats.packets, stats.forwarded), (1, 1), "{level}: {stats:#?}");
        line.node.remove("again").unwrap();
    }
}

/// Returns the numbers of the modules' programs that the kernel holds.
fn programs() -> Vec<u32> {
    let programs = bpf::Inventory::take().unwrap().programs;
    programs.into_iter().filter(|(_, name)| name == "tam_module").map(|(id, _)| id).collect()
}

#[test]
fn a_service_moves_under_traffic_with_its_state_and_every_packet_meets_it_once_in_order() {
    if !root_or_skip("moves under traffic") {
        return;
    }
    const PACKETS: u32 = 8000;
    const GAP: Duration = Duration::from_micros(500);
    let line = Line::up();
    line.resolve_neighbours();
    let service = Service { rules: RULES, level: "nic", ..Service::default() };
    line.node.deploy(&stamper(BELOW), &service).unwrap();
    let flow = Flow::new(&line);
    let before = line.books();
    let (arrived, moves) = std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let start = Instant::now();
            for number in 0..PACKETS {
                let due = start + GAP * number;
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
                flow.send(number);
            }
        });
        let received = scope.spawn(|| {
            std::iter::from_fn(|| flow.receive()).take(PACKETS as usize).collect::<Vec<_>>()
        });
        let client = line.node.client();
        let mut moves = 0;
        while !sender.is_finished() {
            for level in ["user", "kernel", "nic", "kernel", "user", "nic"] {
                let moved = client.move_service("stamper", level).unwrap();
                assert_eq!(moved.level, level);
                moves += 1;
                std::thread::sleep(GAP * 7);
            }
        }
        (received.join().unwrap(), moves)
    });
    let expected: Vec<Stamped> = (0..PACKETS).map(|n| (n, n + 1, n + 1)).collect();
    let wrong = arrived.iter().zip(&expected).find(|(found, wanted)| found != wanted);
    assert_eq!(wrong, None, "{} arrived, after {moves} moves", arrived.len());
    assert_eq!(arrived.len(), expected.len(), "after {moves} moves");
    assert!(moves > 100, "only {moves} moves");
    let balance = line.balance_since(&before);
    assert_eq!(balance.dropped(), 0, "{balance}");
}

#[test]
fn hooks_run_in_the_lane_wherever_the_packets_are() {
    if !root_or_skip("hooks below user level") {
        return;
    }
    for level in ["nic", "kernel"] {
        let line = Line::up();
        line.resolve_neighbours();
        let service = Service { rules: RULES, level, ..Service::default() };
        line.node.deploy(&stamper(BELOW), &service).unwrap();
        let (flow, client) = (Flow::new(&line), line.node.client());
        for number in 1..=50 {
            assert_eq!(flow.one(number), Some((number, number, number)));
            let answers = client.message("stamper", b"").unwrap().answers;
            assert_eq!(answers, [Some(number as i32)], "the global as the program left it");
        }
        let service = line.node.service("stamper").unwrap();
        assert_eq!((service.level.as_str(), service.stats.below.packets), (level, 50));
    }
}

#[test]
fn a_trap_below_user_level_costs_its_packet_and_the_instances_memory() {
    if !root_or_skip("traps below user level") {
        return;
    }
    for level in ["nic", "kernel"] {
        let line = Line::up();
        line.resolve_neighbours();
        let service = Service { rules: RULES, level, ..Service::default() };
        line.node.deploy(&stamper(BELOW), &service).unwrap();
        let flow = Flow::new(&line);
        assert_eq!(flow.one(1), Some((1, 1, 1)));
        let before = line.books();
        flow.send(0xadde);
        // Until its instance is replaced packets go as if there were no rule: unstamped.
        let fresh = std::iter::repeat_with(|| flow.one(2).unwrap()).find(|found| found.1 != 0);
        assert_eq!(fresh, Some((2, 1, 1)), "a fresh memory");
        flow.send(0xedfe);
        let stats = std::iter::repeat_with(|| line.node.service("stamper").unwrap().stats)
            .find(|stats| stats.dropped.len() == 2)
            .unwrap();
        assert_eq!(stats.traps, [("unreachable".to_owned(), 1)].into());
        let dropped = [("module.9".to_owned(), 1), ("trap".to_owned(), 1)];
        assert_eq!(stats.dropped, dropped.into());
        assert!(stats.last_trap.unwrap().contains("module offset"), "it names the place");
        assert_eq!(line.balance_since(&before).dropped(), 2);
    }
}

#[test]
fn what_does_not_fit_runs_at_the_next_level_up_and_says_why() {
    if !root_or_skip("levels that do not fit") {
        return;
    }
    let line = Line::up();
    let floats = r#"(memory (export "memory") 1)
      (func (export "on_packet") (result i32)
        (i32.trunc_f32_u (f32.mul (f32.load (i32.const 0x9000)) (f32.const 2))))"#;
    let wasm = module("floats", &format!("window = 64\n{BELOW}"), floats);
    let service = Service { rules: RULES, level: "nic", ..Service::default() };
    let deployed = line.node.deploy(&wasm, &service).unwrap().service;
    assert_eq!(deployed.level, "user");
    let reason = &deployed.level_reason;
    assert!(reason.contains("not at nic: ") && reason.contains("not at kernel: "), "{reason}");
    assert!(reason.contains("float"), "{reason}");
    let refused = line.node.client().move_service("floats", "nic").unwrap_err().to_string();
    assert!(refused.contains("stays where it is") && refused.contains("float"), "{refused}");

    let lanes = stamper("lanes = 2\nlevels = [\"nic\", \"user\"]");
    let deployed = line.node.deploy(&lanes, &service).unwrap().service;
    assert_eq!(deployed.level, "user");
    assert!(deployed.level_reason.contains("several lanes"), "{}", deployed.level_reason);
}

#[test]
fn one_switch_moves_all_services_to_user_level_at_once() {
    if !root_or_skip("the switch") {
        return;
    }
    let line = Line::up();
    line.resolve_neighbours();
    for (name, level, port) in [("a", "nic", 7000), ("b", "kernel", 7001), ("c", "user", 7002)] {
        let rule = format!("proto udp dport {port}");
        let service = Service { name, rules: &[&rule], level, ..Service::default() };
        line.node.deploy(&stamper(BELOW), &service).unwrap();
    }
    let flow = Flow::new(&line);
    assert_eq!(flow.one(1), Some((1, 1, 1)));
    let levels = || ["a", "b", "c"].map(|name| line.node.service(name).unwrap().level);
    let client = line.node.client();
    let set = client.set_bpf(false).unwrap();
    assert_eq!(set.moving, ["a", "b"]);
    let deadline = Instant::now() + Duration::from_secs(1);
    while levels() != ["user", "user", "user"] {
        assert!(Instant::now() < deadline, "in under a second: {:?}", levels());
    }
    assert_eq!(flow.one(2), Some((2, 2, 2)), "with its state");
    let refused = client.move_service("a", "nic").unwrap_err().to_string();
    assert!(refused.contains("--bpf on"), "{refused}");
    client.set_bpf(true).unwrap();
    let deadline = Instant::now() + Duration::from_secs(5);
    while levels() != ["nic", "kernel", "user"] {
        assert!(Instant::now() < deadline, "back where they were: {:?}", levels());
    }
    assert_eq!(flow.one(3), Some((3, 3, 3)));
    assert_eq!(line.node.service("a").unwrap().stats.below.packets, 2);
}

#[test]
fn packets_beyond_a_services_in_kernel_budget_are_raised_or_dropped_and_counted() {
    if !root_or_skip("budgets below user level") {
        return;
    }
    const PACKETS: u32 = 3000;
    // `nic` with `drop`: `beyond_an_account_packets_are_dropped_or_raised`, of the front door.
    for (level, over) in [("nic", "raise"), ("kernel", "drop")] {
        let line = Line::up();
        line.resolve_neighbours();
        // A tenth of what is offered.
        let budget = Budget { packets: Some(200), over: Some(over.into()), ..Budget::default() };
        let budget = Some(budget);
        let service = Service { rules: RULES, level, budget, ..Service::default() };
        let deployed = line.node.deploy(&stamper(BELOW), &service).unwrap().service;
        assert_eq!(deployed.budget.unwrap().packets, Some(200));
        let (flow, before) = (Flow::new(&line), line.books());
        let start = Instant::now();
        for number in 0..PACKETS {
            let due = start + Duration::from_micros(500) * number;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            flow.send(number);
        }
        let took = start.elapsed().as_secs_f64();
        let balance = line.balance_since(&before);
        let stats = line.node.service("stamper").unwrap().stats;
        let dropped = stats.dropped.get("budget").copied().unwrap_or(0);
        assert_eq!(stats.packets, u64::from(PACKETS), "{level} {over}");
        let not_run = if over == "raise" { stats.below.raised } else { dropped };
        let ran = stats.below.packets - not_run;
        // The rate, 100 ms of burst, and what comes between two looks, here generously.
        let most = 200.0 * (took + 0.1) + 2000.0 * 0.1;
        assert!((100.0..most).contains(&(ran as f64)), "{level} {over}: {ran} in {took} s");
        assert_eq!(balance.dropped(), dropped, "{balance}");
        assert_eq!(dropped > 0, over == "drop", "{stats:#?}");
        let arrived: Vec<Stamped> = std::iter::from_fn(|| flow.receive()).collect();
        assert_eq!(arrived.len() as u64, u64::from(PACKETS) - dropped, "{level} {over}");
        // In one memory and in order, wherever each was handled.
        assert!(arrived.is_sorted_by_key(|packet| packet.0), "{level} {over}");
        assert!((1..).zip(&arrived).all(|(count, packet)| packet.1 == count), "{level} {over}");
        let spent = line.node.stats().unwrap().sessions["best-effort"];
        assert_eq!((spent.fuel, spent.fuel > 0), (stats.below.fuel, true));
        line.node.remove("stamper").unwrap();
        let after = line.node.stats().unwrap().sessions["best-effort"];
        let after = api::SessionStats { memory_bytes: spent.memory_bytes, ..after };
        assert_eq!(after, spent, "what was used stays on the session's account");
    }
}

#[test]
fn a_budget_is_the_services_own_and_no_other_ones_debt_or_credit() {
    if !root_or_skip("budgets of services that follow each other") {
        return;
    }
    let line = Line::up();
    line.resolve_neighbours();
    let deploy = |packets: u64| {
        let budget =
            Budget { packets: Some(packets), over: Some("drop".into()), ..Budget::default() };
        let rules = if line.node.service("stamper").is_ok() { &[][..] } else { RULES };
        let service = Service { rules, level: "nic", budget: Some(budget), ..Service::default() };
        line.node.deploy(&stamper(BELOW), &service).unwrap();
    };
    let flow = Flow::new(&line);
    let mut number = 0;
    let mut send = |most: u32, until: &dyn Fn(u64) -> bool| {
        for _ in 0..most {
            flow.send(number);
            number += 1;
            std::thread::sleep(Duration::from_millis(1));
            let stats = line.node.service("stamper").unwrap().stats;
            let dropped = stats.dropped.get("budget").copied().unwrap_or(0);
            if until(dropped) {
                return true;
            }
        }
        false
    };
    deploy(1);
    assert!(send(5000, &|dropped| dropped > 20), "one a second");
    line.node.remove("stamper").unwrap();
    deploy(1_000_000);
    assert!(!send(50, &|dropped| dropped > 0), "it owes nothing");
    // Another version, in the place of one that had a million to its credit.
    deploy(1);
    assert!(send(5000, &|dropped| dropped > 20), "one a second");
}

/// Tests that inspect the whole machine, or end processes of others: they run alone.
mod alone {
    use super::*;

    #[test]
    fn verified_programs_are_reused_with_empty_state_until_bpf_is_switched_off() {
        if !root_or_skip("programs that run again") {
            return;
        }
        let fields = COUNTS_ON.replace("PAYLOAD", &PAYLOAD_ADDRESS.to_string());
        let manifest = format!("window = 64\nmemory_pages_max = 1\n{BELOW}");
        let wasm = module("again", &manifest, &fields);
        let line = Line::up();
        line.resolve_neighbours();
        let flow = Flow::new(&line);
        let others = programs();
        let deploy = |level| {
            let service = Service { rules: RULES, level, ..Service::default() };
            let deployed = line.node.deploy(&wasm, &service).unwrap();
            assert_eq!(deployed.service.level, level, "{}", deployed.service.level_reason);
            let mut own = programs();
            own.retain(|id| !others.contains(id));
            own
        };
        for level in ["nic", "kernel"] {
            // Until no packet can be in a program any more it is not used again.
            let mut verified: Vec<u32> = Vec::new();
            let is_used_again = (0..100).any(|_| {
                let own = deploy(level);
                assert_eq!(flow.one(1), Some((1, 6, 8)), "{level}: it begins anew");
                line.node.remove("again").unwrap();
                let is_known = own.iter().all(|id| verified.contains(id));
                verified = own;
                is_known
            });
            assert!(is_used_again, "{level}: {verified:?}");
        }
        // What was loaded for one level is there for the other one, too.
        deploy("nic");
        assert_eq!(line.node.client().move_service("again", "kernel").unwrap().level, "kernel");
        assert_eq!(flow.one(1), Some((1, 6, 8)));
        line.node.remove("again").unwrap();
        line.node.client().set_bpf(false).unwrap();
        let are_gone = wait_for(SOON, || (programs() == others).then_some(()));
        assert!(are_gone.is_some(), "{:?} beside {others:?}", programs());
    }
}

#[test]
fn a_module_that_compiles_while_levels_are_switched_runs_at_the_level_that_is_wanted() {
    if !root_or_skip("switching levels") {
        return;
    }
    let line = Line::up();
    let client = line.node.client();
    let modules: [(&str, &[(&str, &str)]); 2] =
        [("monitor", &[]), ("firewall", &[("inside", "10.0.0.0/8")])];
    for (name, parameters) in modules {
        client.set_bpf(false).unwrap();
        // Its compiler begins, for user level alone.
        let digest = client.store_module(service_module(name).unwrap()).unwrap().digest;
        client.set_bpf(true).unwrap();
        let text = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        let request = api::DeployRequest {
            module: digest,
            level: Some("nic".to_owned()),
            parameters: parameters.iter().map(text).collect(),
            ..api::DeployRequest::default()
        };
        let deployed = client.deploy(&request).unwrap();
        assert_eq!(deployed.service.level, "nic", "{name}: {:?}", deployed.service.level_reason);
        line.node.remove(name).unwrap();
    }
}
