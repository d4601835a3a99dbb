//! Event journal: drops with their reason, traps, events of modules, actions of an operator, and
//! clients that follow it.

use std::time::Duration;

use crate::clean_end::kill;
use crate::common::{Line, SOON, module};
use api::{Event, EventKind};
use rustix::process::Signal;
use testkit::{NodeUnderTest, Service, root_or_skip, service_module, wait_for};

const PORT: u16 = 7000;
const RULES: &[&str] = &["proto udp dport 7000"];

/// Returns the events of a kind so far, once the wanted ones have come.
fn wait_until(
    node: &NodeUnderTest,
    kind: EventKind,
    enough: impl Fn(&[Event]) -> bool,
) -> Vec<Event> {
    let mut seen = Vec::new();
    let found = wait_for(4 * SOON, || {
        let list = node.client().events(0, 0).unwrap();
        seen = list.events.into_iter().filter(|event| event.kind == kind).collect();
        enough(&seen).then_some(())
    });
    assert!(found.is_some(), "{kind:?} did not come as wanted: {seen:#?}");
    seen
}

fn count(events: &[Event]) -> u64 {
    events.iter().map(|event| event.count).sum()
}

/// Module that drops every packet for the reason 7, which its manifest names.
const DROPPING: &str = r#"
(memory (export "memory") 1)
(func (export "on_packet") (result i32) (i32.const 0x00070001))"#;

#[test]
fn drops_are_reported_by_reason_with_service_rule_module_and_session() {
    if !root_or_skip("events of drops") {
        return;
    }
    let line = Line::up();
    line.resolve_neighbours();
    let wasm = module("picky", "window = 64\n[reasons]\n7 = \"dislike\"", DROPPING);
    let deployed =
        line.node.deploy(&wasm, &Service { rules: RULES, ..Service::default() }).unwrap();
    let sender = line.udp("client", 0);
    const PACKETS: u64 = 500;
    for number in 0..PACKETS {
        sender.send_to(&number.to_be_bytes(), line.server(PORT)).unwrap();
        if number % 100 == 0 {
            std::thread::sleep(Duration::from_millis(300));
        }
    }
    let drops = wait_until(&line.node, EventKind::Drops, |seen| count(seen) >= PACKETS);
    assert_eq!(count(&drops), PACKETS, "{drops:#?}");
    assert!(drops.len() <= 5, "at most one a second, and the first: {drops:#?}");
    let first = &drops[0];
    assert_eq!(first.reason.as_deref(), Some("module.dislike"));
    assert_eq!(first.service.as_deref(), Some("picky"));
    assert_eq!(first.rule, Some(deployed.service.rules[0]));
    assert_eq!(first.module.as_deref(), Some(deployed.service.digest.as_str()));
    assert_eq!(first.session.as_deref(), Some("best-effort"));

    let rule = api::RuleRequest::new("proto udp dport 7001", "drop");
    let added = line.node.client().add_rules(&rule.into()).unwrap();
    for _ in 0..5 {
        sender.send_to(b"no", line.server(PORT + 1)).unwrap();
    }
    let of_rule = |events: &[Event]| {
        let those = events.iter().filter(|event| event.reason.as_deref() == Some("drop_rule"));
        those.cloned().collect::<Vec<_>>()
    };
    let drops = wait_until(&line.node, EventKind::Drops, |seen| count(&of_rule(seen)) >= 5);
    let drops = of_rule(&drops);
    assert_eq!((count(&drops), drops[0].rule), (5, Some(added.rules[0])));
    assert_eq!(drops[0].session.as_deref(), Some("best-effort"));
}

/// Module that raises an event with the code 9 for each packet.
const TELLING: &str = r#"
(import "tam" "event" (func $event (param i32 i32 i32) (result i32)))
(memory (export "memory") 1)
(func (export "on_packet") (result i32)
  (drop (call $event (i32.const 9) (i32.const 0x9000) (i32.const 2)))
  (i32.const 0))"#;

#[test]
fn events_of_modules_have_their_count_and_omitted_ones_are_counted() {
    if !root_or_skip("events of modules") {
        return;
    }
    let line = Line::up();
    line.resolve_neighbours();
    let wasm = module("telling", "window = 64\nneeds = [\"events\"]", TELLING);
    line.node.deploy(&wasm, &Service { rules: RULES, ..Service::default() }).unwrap();
    let (receiver, sender) = (line.udp("server", PORT), line.udp("client", 0));
    const PACKETS: u64 = 2000;
    for _ in 0..PACKETS {
        sender.send_to(b"x", line.server(PORT)).unwrap();
    }
    let mut payload = [0; 4];
    for _ in 0..PACKETS {
        receiver.recv(&mut payload).unwrap();
    }
    let told = || {
        let list = line.node.client().events(0, 0).unwrap();
        let those = list
            .events
            .into_iter()
            .filter(|event| matches!(event.kind, EventKind::ModuleEvent | EventKind::NoticesLost));
        those.collect::<Vec<_>>()
    };
    wait_for(SOON, || (count(&told()) == PACKETS).then_some(()));
    let told = told();
    assert_eq!(count(&told), PACKETS, "each is told or counted: {told:#?}");
    assert!(told.len() < 10, "no storm: {told:#?}");
    let event = told.iter().find(|event| event.kind == EventKind::ModuleEvent).unwrap();
    assert_eq!(event.reason.as_deref(), Some("code 9"));
    assert_eq!(event.service.as_deref(), Some("telling"));
}

#[test]
fn a_hanging_cell_is_reported_by_an_event() {
    if !root_or_skip("a cell that hangs") {
        return;
    }
    let line = Line::up();
    let service = Service { rules: RULES, level: "nic", ..Service::default() };
    line.node.deploy(&service_module("monitor").unwrap(), &service).unwrap();
    line.signal_cell(Signal::STOP);
    let told = wait_until(&line.node, EventKind::CellSilent, |seen| !seen.is_empty());
    assert!(told[0].text.contains("does not answer"), "{told:?}");
    assert_eq!(line.node.client().node().unwrap().cell, "silent");
    // Of two pending moves the later one is performed, and the other is refused as superseded.
    let mover = |level: &'static str| {
        let client = line.node.client().clone();
        std::thread::spawn(move || client.move_service("monitor", level).map(|moved| moved.level))
    };
    let first = mover("kernel");
    std::thread::sleep(Duration::from_millis(300));
    let second = mover("user");
    assert!(first.join().unwrap().unwrap_err().to_string().contains("a later request"));
    line.signal_cell(Signal::CONT);
    assert_eq!(second.join().unwrap().unwrap(), "user");
    let told = wait_until(&line.node, EventKind::CellSilent, |seen| seen.len() > 1);
    assert_eq!(told[1].text, "the cell answers again");
    line.resolve_neighbours();
}

#[test]
fn followed_events_report_cell_services_and_rules_in_order() {
    if !root_or_skip("following events") {
        return;
    }
    let line = Line::up();
    let node = line.node.name().as_str();
    let following = testkit::Running::start(
        &line.net.namespace("r1").unwrap(),
        &[testkit::tam().to_str().unwrap(), "events", "--follow", "--json", "--node", node],
    )
    .unwrap();
    let wasm = module(
        "still",
        "window = 64",
        r#"(memory (export "memory") 1)
        (func (export "on_packet") (result i32) (i32.const 0))"#,
    );
    line.node.deploy(&wasm, &Service { rules: RULES, ..Service::default() }).unwrap();
    kill(line.node.cell().unwrap());
    let started = |seen: &[Event]| seen.len() >= 2;
    wait_until(&line.node, EventKind::ServiceStarted, started);
    line.node.remove("still").unwrap();
    wait_until(&line.node, EventKind::ServiceRemoved, |seen| !seen.is_empty());
    std::thread::sleep(Duration::from_millis(300));
    following.interrupt().unwrap();
    let output = following.wait(SOON).unwrap();
    let events: Vec<Event> =
        output.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let numbers: Vec<u64> = events.iter().map(|event| event.seq).collect();
    let all: Vec<u64> = (1..=numbers.len() as u64).collect();
    assert_eq!(numbers, all, "no gap, nothing twice");
    let wanted = [
        EventKind::NodeStarted,
        EventKind::CellReady,
        EventKind::RulesAdded,
        EventKind::ServiceStarted,
        EventKind::CellLost,
        EventKind::CellReady,
        EventKind::ServiceStarted,
        EventKind::RulesRemoved,
        EventKind::ServiceRemoved,
    ];
    let kinds: Vec<EventKind> =
        events.iter().map(|event| event.kind).filter(|kind| wanted.contains(kind)).collect();
    assert_eq!(kinds, wanted, "{events:#?}");
    let lost = events.iter().find(|event| event.kind == EventKind::CellLost).unwrap();
    assert!(lost.reason.as_ref().unwrap().contains("signal: 9"), "{lost:?}");
}
