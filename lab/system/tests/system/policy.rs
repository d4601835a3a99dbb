//! Failure policies: handling of packets while their service is down.

use crate::clean_end::kill;
use crate::common::{Line, PAYLOAD_ADDRESS, SOON, module};
use crate::handover::Flows;
use crate::levels::{BELOW, stamper};
use api::EventKind;
use std::path::Path;
use testkit::{Service, root_or_skip, wait_for};

const KILLS: u32 = 4;

fn deploy(line: &Line, name: &str, level: &str, port: u16, on_failure: &str, then: &[&str]) {
    let rule = format!("proto udp dport {port}");
    let rules = [rule.as_str()];
    let rules: &[&str] = if port == 0 { &[] } else { &rules };
    let service = Service { name, rules, level, on_failure, then, ..Service::default() };
    let deployed = line.node.deploy(&stamper(BELOW), &service).unwrap().service;
    assert_eq!(deployed.level, level, "{}", deployed.level_reason);
}

/// Returns the packets with this outcome in the front door, at all ports.
fn outcome(line: &Line, name: &str) -> u64 {
    let ports = line.node.stats().unwrap().ports;
    ports.iter().filter_map(|port| port.outcomes.get(name)).sum()
}

fn all_run(line: &Line, dead: u32) -> Option<()> {
    let node = line.node.client().node().ok()?;
    let services = line.node.client().services().ok()?.services;
    let run = services.iter().all(|service| service.state == "running");
    (node.cell == "ready" && node.cell_pid != Some(dead) && run).then_some(())
}

#[test]
fn a_closed_service_that_is_down_lets_no_packet_past_and_an_open_one_all() {
    if !root_or_skip("failure policies") {
        return;
    }
    // The last one is open, and leads to one that is closed.
    let flows_to = [7000, 7001, 7002, 7003, 7004];
    let line = Line::up();
    line.resolve_neighbours();
    deploy(&line, "open-up", "user", 7000, "open", &[]);
    deploy(&line, "open-low", "nic", 7001, "open", &[]);
    deploy(&line, "closed-up", "user", 7002, "closed", &[]);
    deploy(&line, "closed-low", "nic", 7003, "closed", &[]);
    deploy(&line, "gate", "nic", 7004, "open", &["closed-low"]);
    let flows = Flows::new(&line, &flows_to);
    let ((), sent, arrived) = flows.during(|sent| {
        for _ in 0..KILLS {
            sent.more(50);
            let cell = line.node.cell().unwrap();
            kill(cell);
            sent.more(50);
            wait_for(SOON * 6, || all_run(&line, cell)).expect("all of them come back");
        }
        sent.more(50);
    });
    let stamped = |port: usize| arrived[port].iter().filter(|(_, stamp, _)| *stamp > 0).count();
    for port in [0, 1] {
        let plain = arrived[port].len() - stamped(port);
        assert!(plain > 0, "{port}: while it was down packets went plainly");
        assert!(stamped(port) > 0, "{port}: and else they met it");
    }
    for port in [2, 3, 4] {
        assert_eq!(stamped(port), arrived[port].len(), "{port}: none went past it");
        assert!(stamped(port) > 0 && arrived[port].len() < sent as usize, "{port}");
    }
    for arrived in &arrived {
        assert!(arrived.windows(2).all(|pair| pair[0].0 < pair[1].0), "in order, none twice");
    }
    let down = outcome(&line, "drop_down");
    let missing: usize = [2, 3, 4].iter().map(|port| sent as usize - arrived[*port].len()).sum();
    assert!(down > 0 && down <= missing as u64, "{down} of {missing} that are missing");
    let told = line.node.client().events(0, 0).unwrap().events;
    let of = |name: &str| {
        let of_it = told.iter().filter(|event| event.service.as_deref() == Some(name));
        of_it.filter(|event| event.kind == EventKind::ServicePolicy).count()
    };
    assert_eq!(["open-up", "closed-up", "closed-low", "gate"].map(of), [0, 4, 4, 4]);
}

#[test]
fn rule_list_and_tam_why_show_that_a_closed_service_is_down() {
    if !root_or_skip("closed services") {
        return;
    }
    let line = Line::up();
    line.resolve_neighbours();
    deploy(&line, "guard", "user", 7000, "closed", &[]);
    let flows = Flows::new(&line, &[7000]);
    // After repeated kills the cell stays down long enough for a check.
    let closed = || {
        let rules = line.node.client().rules().ok()?.rules;
        rules.iter().any(|rule| rule.reach.contains("dropped")).then_some(())
    };
    let ((), ..) = flows.during(|sent| {
        for _ in 0..5 {
            kill(line.node.cell().unwrap());
            wait_for(SOON * 6, closed).expect("its rule is closed");
            let request = api::ExplainRequest {
                packet: Some("in left proto udp src 10.0.1.2 dst 10.0.2.2 dport 7000".into()),
                ..api::ExplainRequest::default()
            };
            let why = line.node.client().explain(&request).unwrap();
            if why.outcome == "drop_down" {
                assert_eq!(why.service.as_deref(), Some("guard"));
                assert!(why.steps.iter().any(|step| step.contains("is down")), "{why:#?}");
                return;
            }
            sent.more(20);
        }
        panic!("it was never seen down");
    });
}

/// Returns a module that traps on every packet that begins with "T".
fn trapper() -> Vec<u8> {
    module(
        "trapper",
        &format!("window = 64\n{BELOW}"),
        &format!(
            r#"(memory (export "memory") 1)
        (func (export "on_packet") (result i32)
          (if (i32.eq (i32.load8_u (i32.const {PAYLOAD_ADDRESS})) (i32.const 0x54))
            (then unreachable))
          (i32.const 0x90001))"#
        ),
    )
}

#[test]
fn a_service_that_traps_too_often_is_bypassed_until_it_is_deployed_again() {
    if !root_or_skip("bypass") {
        return;
    }
    for level in ["user", "nic", "kernel"] {
        let line = Line::up();
        line.resolve_neighbours();
        let rules = ["proto udp dport 7000"];
        let service =
            Service { rules: &rules, level, on_failure: "bypass=3", ..Service::default() };
        let deployed = line.node.deploy(&trapper(), &service).unwrap().service;
        assert_eq!((deployed.level.as_str(), deployed.on_failure.as_str()), (level, "bypass=3"));
        let (receiver, sender) = (line.udp("server", 7000), line.udp("client", 0));
        sender.connect(line.server(7000)).unwrap();
        receiver.set_read_timeout(Some(SOON)).unwrap();
        let traps = || {
            let service = line.node.service("trapper").ok()?;
            Some((service.stats.traps.values().sum::<u64>(), service.state))
        };
        for number in 1..=3 {
            sender.send(b"T").unwrap();
            let trapped =
                || traps().filter(|(count, state)| *count == number || state == "bypassed");
            wait_for(SOON, trapped).unwrap_or_else(|| panic!("{level}: trap {number}"));
        }
        let bypassed = || traps().filter(|(_, state)| state == "bypassed");
        wait_for(SOON, bypassed).unwrap_or_else(|| panic!("{level}: {:?}", traps()));
        // Packets that trapped it or that it dropped bypass it now.
        let forwarded = outcome(&line, "forwarded");
        for payload in [b"T", b"x"] {
            sender.send(payload).unwrap();
            let mut found = [0; 8];
            assert_eq!(receiver.recv(&mut found).unwrap(), 1, "{level}");
            assert_eq!(&found[..1], payload);
        }
        assert_eq!(outcome(&line, "forwarded"), forwarded + 2, "{level}");
        let told = line.node.client().events(0, 0).unwrap().events;
        let policy = told.iter().filter(|event| event.kind == EventKind::ServicePolicy);
        assert_eq!(policy.count(), 1, "{level}");

        let again = || {
            let found = line.node.deploy(&trapper(), &service).ok()?.service;
            (found.state == "running").then_some(found)
        };
        let found = wait_for(SOON, again).expect("it can be deployed again");
        assert_eq!(found.on_failure, "bypass=3", "{level}");
        sender.send(b"x").unwrap();
        let dropped = || {
            let stats = line.node.service("trapper").ok()?.stats;
            (stats.dropped.get("module.9") == Some(&1)).then_some(())
        };
        wait_for(SOON, dropped).unwrap_or_else(|| panic!("{level}: it has its packets again"));
    }
}

/// Module that drops every packet.
const DROPS: &str =
    r#"(memory (export "memory") 1) (func (export "on_packet") (result i32) (i32.const 1))"#;

/// Returns a stopped node whose state has a service with the policy `closed` for one L4 port.
fn closed_and_ended() -> (Line, Flows) {
    let mut line = Line::up();
    line.resolve_neighbours();
    let service = Service {
        name: "drops",
        rules: &["proto udp dport 7000"],
        on_failure: "closed",
        ..Service::default()
    };
    line.node.deploy(&module("drops", "window = 64", DROPS), &service).unwrap();
    let flows = Flows::new(&line, &[7000]);
    assert!(line.node.stop().unwrap().success());
    (line, flows)
}

#[test]
fn a_node_that_starts_forwards_nothing_of_a_closed_service_before_it_runs() {
    if !root_or_skip("a closed service at a node's start") {
        return;
    }
    let (mut line, flows) = closed_and_ended();
    flows.during(|sent| {
        sent.more(50);
        line.node.start_again(&line.net, "r1").unwrap();
        wait_for(SOON * 6, || all_run(&line, 0)).expect("it comes");
        sent.more(50);
    });
    // No packet but those of the flow could be forwarded.
    assert_eq!(outcome(&line, "forwarded"), 0, "{:?}", line.node.stats().unwrap().ports);
    assert!(line.node.service("drops").unwrap().stats.packets > 0);
}

#[test]
fn packets_of_a_closed_service_that_cannot_start_are_dropped() {
    if !root_or_skip("a closed service that cannot start") {
        return;
    }
    let (mut line, flows) = closed_and_ended();
    std::fs::remove_dir_all(line.node.directory().join("store/blobs")).unwrap();
    for takes_over in [false, true] {
        if takes_over {
            line.node.kill().unwrap();
        }
        line.node.start_again(&line.net, "r1").unwrap();
        let before = outcome(&line, "drop_down");
        let ((), sent, arrived) = flows.during(|sent| sent.more(50));
        assert_eq!(arrived[0].len(), 0, "{}", line.node.log());
        assert!(outcome(&line, "drop_down") >= before + u64::from(sent), "{}", line.node.log());
    }
}

#[test]
fn no_packet_bypasses_a_closed_service_while_a_daemon_that_cannot_adopt_takes_over() {
    if !root_or_skip("an upgrade that cannot adopt") {
        return;
    }
    let mut line = Line::up();
    line.resolve_neighbours();
    let service = Service {
        name: "drops",
        rules: &["proto udp dport 7000"],
        on_failure: "closed",
        ..Service::default()
    };
    line.node.deploy(&module("drops", "window = 64", DROPS), &service).unwrap();
    let record = Path::new(api::RUN_DIRECTORY).join(line.node.name().as_str()).join("running.json");
    let flows = Flows::new(&line, &[7000]);
    let ((), sent, arrived) = flows.during(|sent| {
        for _ in 0..2 {
            sent.more(50);
            line.node.kill().unwrap();
            let text = std::fs::read_to_string(&record).unwrap();
            let mut document: serde_json::Value = serde_json::from_str(&text).unwrap();
            document["fingerprint"] = "0".repeat(32).into();
            std::fs::write(&record, document.to_string()).unwrap();
            line.node.start_again(&line.net, "r1").unwrap();
            assert!(line.node.log().contains("of another version"), "{}", line.node.log());
            wait_for(SOON * 6, || all_run(&line, 0)).expect("it comes");
        }
        sent.more(50);
    });
    assert_eq!(arrived[0].len(), 0, "of {sent}: {}", line.node.log());
}
