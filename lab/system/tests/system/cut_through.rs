//! Cut-through: packets that a rule sends straight out by a port, on its session's share.

use std::time::{Duration, Instant};

use api::{ExplainRequest, RuleRequest, RulesRequest, SessionRequest};
use testkit::{Net, NodeUnderTest, root_or_skip};
use trust::{Extent, Grant, Operation};

use crate::common::{Line, key, token};

const PORT: u16 = 5000;
const PAYLOAD: [u8; 1400] = [7; 1400];
/// Length of a frame in bytes; the second constant is its length on the wire.
const FRAME: u64 = 1400 + 28 + 14;
const ON_THE_WIRE: u64 = FRAME + 24;
const ROOT: u8 = 1;
const ALICE: u8 = 2;

/// Returns a line with a port `right` of 20 Mbit/s, of which `gold` has half, and with an
/// administrator.
fn line() -> Line {
    let net = Net::line(1500).unwrap();
    let with_rate = |text: String| {
        let text = text.replace("name = \"right\"\n", "name = \"right\"\nrate = \"20Mbit/s\"\n");
        format!("{text}administrators = [\"{}\"]\n", key(ROOT).public())
    };
    let node = NodeUnderTest::start_edited(&net, "r1", "", with_rate).unwrap();
    let line = Line { node, net };
    for (name, send) in [("gold", Some("5ms/10ms")), ("plain", None)] {
        let send = send.map(|share| ("right".to_owned(), share.to_owned()));
        let name = name.to_owned();
        let request =
            SessionRequest { name, send: send.into_iter().collect(), ..SessionRequest::default() };
        line.node.client().create_session(&request).unwrap();
    }
    line
}

fn rule(text: &str, action: &str, session: &str) -> RulesRequest {
    let session = Some(session.to_owned());
    RulesRequest { rules: vec![RuleRequest { session, ..RuleRequest::new(text, action) }] }
}

#[test]
fn a_cut_through_rule_forwards_within_its_sessions_port_share() {
    if !root_or_skip("cut-through") {
        return;
    }
    let line = line();
    line.resolve_neighbours();
    let matched = format!("in left proto udp dport {PORT}");
    let added = line.node.client().add_rules(&rule(&matched, "out right", "gold")).unwrap();
    let before = line.books();
    let (receiver, sender) = (line.udp("server", PORT), line.sender_to(PORT));
    // Twice its share for two seconds.
    let (begin, mut sent) = (Instant::now(), 0u64);
    // A share that nobody uses is saved for two slices only: pauses of the sender are no time of it.
    let (mut last, mut paused) = (begin, Duration::ZERO);
    while begin.elapsed() < Duration::from_secs(2) {
        sender.send(&PAYLOAD).unwrap();
        sent += 1;
        paused += last.elapsed().saturating_sub(Duration::from_millis(5));
        last = Instant::now();
        std::thread::sleep(Duration::from_micros(500));
    }
    let took = begin.elapsed().as_secs_f64();
    let mut payload = [0; 1500];
    let came = std::iter::from_fn(|| receiver.recv(&mut payload).ok()).count() as u64;
    // Its share, and what its account holds: two slices and a tick of at most 10 ms.
    let share = 10e6 / 8.0 / ON_THE_WIRE as f64;
    let most = share * (took + 0.02 + 0.01) + 2.0;
    let least = share * (took - paused.as_secs_f64()) * 0.97;
    let text = format!("{came} of {sent} in {took} s, {paused:?} of them paused");
    assert!((least..most).contains(&(came as f64)), "{text}");
    let balance = line.balance_since(&before);
    assert_eq!(balance.drops.get("left.drop_share").copied(), Some(sent - came), "{balance}");
    assert_eq!(balance.dropped(), sent - came, "{balance}");
    // In the port's counters, the rule's, and on the session's account.
    let stats = line.node.stats().unwrap();
    let left = stats.ports.iter().find(|port| port.port == "left").unwrap();
    assert_eq!(left.outcomes.get("cut_through").copied(), Some(came));
    let rules = line.node.client().rules().unwrap().rules;
    let shown = rules.iter().find(|shown| shown.id == added.rules[0]).unwrap();
    assert_eq!((shown.action.as_str(), shown.packets), ("out right", sent));
    let used = line.node.client().session("gold").unwrap().used;
    assert_eq!((used.total.packets, used.total.bytes), (sent, sent * FRAME));
    let [share] = used.send.as_slice() else { panic!("{:?}", used.send) };
    assert_eq!((share.sent_nic_bytes, share.sent_bytes), (came * FRAME, came * FRAME));
    assert_eq!(share.dropped_nic, sent - came);
    // The explanation matches.
    let explained = ExplainRequest {
        packet: Some(format!(
            "proto udp src {} dst {} dport {PORT} in left",
            line.net.v4("client", "r1").unwrap(),
            line.net.v4("server", "r1").unwrap()
        )),
        ..ExplainRequest::default()
    };
    std::thread::sleep(Duration::from_millis(50));
    let why = line.node.client().explain(&explained).unwrap();
    assert_eq!((why.outcome.as_str(), why.egress_port.as_deref()), ("cut_through", Some("right")));
    assert!(why.steps.iter().any(|step| step.contains("says: out right")), "{:?}", why.steps);
}

#[test]
fn a_cut_through_rule_needs_a_port_share_and_the_right_to_its_traffic() {
    if !root_or_skip("cut-through") {
        return;
    }
    let line = line();
    let grant = Grant {
        operations: Extent::only([Operation::Read, Operation::Rule]),
        sessions: Extent::only(["gold".to_owned(), "plain".to_owned()]),
        traffic: Extent::only(["10.1.0.0/16".parse().unwrap()]),
        ..Grant::none()
    };
    let alice = line.node.client().clone().with_token(token(ROOT, ALICE, &grant));
    let matched = "dst 10.1.2.0/24 proto udp dport 5000";
    let refused = |request: &RulesRequest| alice.add_rules(request).unwrap_err().to_string();
    let says = refused(&rule(matched, "out right", "plain"));
    assert!(says.contains("no share of the port 'right'"), "{says}");
    let says = refused(&rule(matched, "out left", "gold"));
    assert!(says.contains("no share of the port 'left'"), "{says}");
    let says = refused(&rule("dst 10.2.0.0/16", "out right", "gold"));
    assert!(says.contains("traffic 10.2.0.0/16"), "{says}");
    alice.add_rules(&rule(matched, "out right", "gold")).unwrap();
    // The operator may, and a missing port belongs to no session.
    line.node.client().add_rules(&rule("dst 10.3.0.0/16", "out left", "plain")).unwrap();
    let unknown = line.node.client().add_rules(&rule("dst 10.4.0.0/16", "out rigth", "gold"));
    let says = unknown.unwrap_err().to_string();
    assert!(says.contains("rigth") && says.contains("right"), "{says}");
}

#[test]
fn a_cut_through_rule_of_a_file_is_installed_as_written() {
    if !root_or_skip("cut-through") {
        return;
    }
    let line = line();
    let text = "[[session]]\nname = \"tin\"\n[[rule]]\nmatch = \"proto udp dport 5000\"\n\
                action = \"out right\"\nsession = \"tin\"\npriority = 7\n";
    line.apply(text);
    let rules = || line.node.client().rules().unwrap().rules;
    let [shown] = rules().try_into().unwrap();
    let api::RuleInfo { r#match, action, session, .. } = shown;
    assert_eq!(
        (r#match.as_str(), action.as_str(), session.as_str()),
        ("proto udp dport 5000", "out right", "tin")
    );
    let again = line.apply(text);
    assert!(again.changes.is_empty(), "{:?}", again.changes);
    let wrong = text.replace("out right", "out rigth");
    assert!(line.try_apply(&wrong, |_| {}).unwrap_err().to_string().contains("rigth"));
    assert_eq!(rules()[0].action, "out right");
}
