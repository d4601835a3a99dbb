//! `tam why`: the reasons that have counted packets, and the predicted outcome of a packet.

use crate::common::{Line, SOON, module};
use api::{ExplainRequest, Explanation, WhyReason};
use testkit::{Service, root_or_skip, wait_for};

const RULES: &[&str] = &["proto udp dport 7000"];
const PASSING: &str = r#"
(memory (export "memory") 1)
(func (export "on_packet") (result i32) (i32.const 0))"#;

fn explain(line: &Line, packet: &str) -> Explanation {
    let request = ExplainRequest { packet: Some(packet.to_owned()), ..Default::default() };
    line.node.client().explain(&request).unwrap()
}

fn rule(line: &Line, text: &str, action: &str) -> u32 {
    let request = api::RuleRequest::new(text, action).into();
    line.node.client().add_rules(&request).unwrap().rules[0]
}

#[test]
fn tam_why_predicts_the_outcome_of_a_packet_and_counts_nothing() {
    if !root_or_skip("why of a packet") {
        return;
    }
    let line = Line::up();
    line.resolve_neighbours();
    let wasm = module("passing", "window = 64", PASSING);
    let deployed =
        line.node.deploy(&wasm, &Service { rules: RULES, ..Service::default() }).unwrap();
    let dropping = rule(&line, "proto udp dport 7001", "drop");
    let (client, server) =
        (line.net.v4("client", "r1").unwrap(), line.net.v4("server", "r1").unwrap());
    let before = line.books().node;
    let udp = |port: u16| {
        explain(&line, &format!("proto udp src {client} dst {server} dport {port} in left"))
    };

    let plain = udp(7002);
    assert_eq!((plain.outcome.as_str(), plain.rule), ("forwarded", None), "{plain:#?}");
    assert_eq!(plain.egress_port.as_deref(), Some("right"));
    let hop = line.net.mac("server", "r1").unwrap().map(|byte| format!("{byte:02x}")).join(":");
    assert_eq!(plain.next_hop.as_deref(), Some(hop.as_str()));

    let served = udp(7000);
    assert_eq!(served.outcome, "to_user", "{served:#?}");
    assert_eq!(served.rule, Some(deployed.service.rules[0]));
    assert_eq!(served.service.as_deref(), Some("passing"));
    assert_eq!(
        (served.level.as_deref(), served.egress_port.as_deref()),
        (Some("user"), Some("right"))
    );

    let dropped = udp(7001);
    assert_eq!((dropped.outcome.as_str(), dropped.rule), ("drop_rule", Some(dropping)));
    assert!(dropped.dropped);

    let local = line.net.v4("r1", "client").unwrap();
    let own = explain(&line, &format!("proto icmp src {client} dst {local} in left"));
    assert_eq!(own.outcome, "kernel_local", "{own:#?}");
    assert!(!own.advice.is_empty() && own.steps.len() >= 3, "{own:#?}");

    // The same frames, sent: the outcomes that were foretold count, and only those.
    let outcomes = |stats: &api::Stats, outcome: &str| stats.ports[0].outcomes[outcome];
    let asked = line.node.stats().unwrap();
    for outcome in ["forwarded", "to_user", "drop_rule"] {
        assert_eq!(
            outcomes(&asked, outcome),
            outcomes(&before, outcome),
            "{outcome} by a question"
        );
    }
    let sender = line.udp("client", 0);
    for port in [7000, 7001, 7002] {
        sender.send_to(b"?", line.server(port)).unwrap();
    }
    let counted = || {
        let now = line.node.stats().unwrap();
        let is = |outcome| outcomes(&now, outcome) == outcomes(&before, outcome) + 1;
        ["forwarded", "to_user", "drop_rule"].into_iter().all(is).then_some(())
    };
    assert!(wait_for(SOON, counted).is_some(), "{:#?}", line.node.stats().unwrap().ports);
}

#[test]
fn reasons_that_counted_are_listed_with_rule_module_session_and_what_to_do() {
    if !root_or_skip("why of drops") {
        return;
    }
    let line = Line::up();
    line.resolve_neighbours();
    let dropping = rule(&line, "proto udp dport 7001", "drop");
    let wasm = module(
        "trapping",
        "window = 64",
        "(memory (export \"memory\") 1)
        (func (export \"on_packet\") (result i32) unreachable)",
    );
    let deployed =
        line.node.deploy(&wasm, &Service { rules: RULES, ..Service::default() }).unwrap();
    let sender = line.udp("client", 0);
    for _ in 0..3 {
        sender.send_to(b"?", line.server(7001)).unwrap();
        sender.send_to(b"?", line.server(7000)).unwrap();
    }
    let listed = |reason: &str| -> Option<WhyReason> {
        let list = line.node.client().why().unwrap();
        list.reasons.into_iter().find(|found| found.reason == reason && found.packets == 3)
    };
    let of_rule = wait_for(SOON, || listed("drop_rule")).expect("the rule's drops");
    assert_eq!((of_rule.rules, of_rule.session.as_deref()), (vec![dropping], Some("best-effort")));
    assert_eq!((of_rule.dropped, of_rule.packets_last_minute), (true, 3));
    let trap = wait_for(SOON, || listed("trap")).expect("the module's traps");
    assert_eq!(trap.service.as_deref(), Some("trapping"));
    assert_eq!(trap.module.as_deref(), Some(deployed.service.digest.as_str()));
    assert_eq!(trap.rules, deployed.service.rules);
    assert!(trap.advice.contains("tam show"), "{trap:?}");
}

#[test]
fn a_packet_that_cannot_be_asked_about_is_refused_with_what_is_missing() {
    if !root_or_skip("why, refused") {
        return;
    }
    let line = Line::up();
    let refused = |packet: Option<&str>, frame_hex: Option<String>, port: Option<&str>| {
        let packet = packet.map(str::to_owned);
        let request = ExplainRequest { packet, frame_hex, port: port.map(str::to_owned) };
        let error = line.node.client().explain(&request).unwrap_err();
        (error.code(), format!("{error} {}", error.help().unwrap_or_default()))
    };
    let (code, text) = refused(Some("proto udp src 10.0.0.1 dst 10.0.0.2"), None, None);
    assert!(code == api::ErrorCode::Usage && text.contains("left, right"), "{text}");
    let (code, text) = refused(Some("proto icmp dst 10.0.0.2 in left"), None, None);
    assert!(code == api::ErrorCode::Usage && text.contains("src ADDRESS"), "{text}");
    let (code, _) = refused(None, Some("00".repeat(14)), Some("middle"));
    assert_eq!(code, api::ErrorCode::NotFound);
    for frame in [String::new(), "0".into(), "zz".into(), "00".repeat(13), "00".repeat(5000)] {
        assert_eq!(refused(None, Some(frame), Some("left")).0, api::ErrorCode::Usage);
    }
    // Cut off, it is told as what it is.
    let request = ExplainRequest {
        frame_hex: Some(hex::encode(&line.frame().udp(1, 2).build()[..20])),
        port: Some("left".into()),
        ..Default::default()
    };
    let cut = line.node.client().explain(&request).unwrap();
    assert_eq!((cut.outcome.as_str(), cut.dropped), ("drop_truncated", true), "{cut:#?}");
}
