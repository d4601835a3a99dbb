//! Tests of sessions: promises, refusals, and messages to the cell.

use super::tests::{NOW, add, deploy_with, effects, lost, name, node, refused};
use super::*;
use crate::command::{Command, Event, Notice, ServiceStart};
use crate::desired::DesiredSession;
use crate::refusal::RefusalClass;
use crate::rule::{Action, RuleSpec};
use crate::session::SESSIONS_MAX;
use crate::testing::{capacity, module};
use ::session::Reservation;
use ::session::admission::{Capacity, MemoryUsed, UsedBy};
use ::session::in_kernel::{BucketParams, Speed};

fn reservation(json: &str) -> Reservation {
    serde_json::from_str(json).unwrap()
}

fn create(session: &str, json: &str) -> Command {
    let (session, reservation) = (name(session), reservation(json));
    Command::SessionCreate { session, reservation, owner: None }
}

fn remove(session: &str, cascade: bool) -> Command {
    Command::SessionRemove { session: name(session), cascade }
}

fn set(session: &str, json: &str) -> Command {
    Command::SessionSet { session: name(session), reservation: reservation(json) }
}

fn in_session(session: &str, service: &str, text: &str) -> Command {
    let to_it = RuleSpec::new(text.parse().unwrap(), Action::Service(name(service)));
    let rule = RuleSpec { session: name(session), ..to_it };
    match deploy_with(service, module("\"user\""), vec![rule]) {
        Command::Deploy {
            service,
            module,
            parameters,
            rules,
            level,
            then,
            budget,
            on_failure,
            discard_state,
            owner,
            ..
        } => Command::Deploy {
            service,
            module,
            parameters,
            session: name(session),
            rules,
            level,
            then,
            budget,
            on_failure,
            discard_state,
            owner,
        },
        other => other,
    }
}

/// Returns a node with the session `gold`, in which `monitor` runs as entry 0.
fn with_gold() -> Node {
    let mut node = node();
    node.handle_command(NOW, create("gold", r#"{"cpu":["1ms/4ms"]}"#)).unwrap();
    node.handle_command(NOW, in_session("gold", "monitor", "proto udp")).unwrap();
    node.handle_event(NOW, Event::ServiceStarted { entry: EntryId(0) });
    effects(&mut node);
    node
}

#[test]
fn the_cell_knows_a_session_before_anything_of_it_starts() {
    let mut node = node();
    node.handle_command(NOW, create("gold", r#"{"cpu":["1ms/4ms"]}"#)).unwrap();
    node.handle_command(NOW, in_session("gold", "monitor", "proto udp")).unwrap();
    let emitted = effects(&mut node);
    let gold = SessionId(2);
    assert_eq!(
        emitted[0],
        Effect::SetSession { session: gold, reservation: reservation(r#"{"cpu":["1ms/4ms"]}"#) }
    );
    assert!(
        matches!(emitted.last(), Some(Effect::StartService { start: ServiceStart { session, .. }, .. }) if *session == gold)
    );
    // A new cell gets the sessions before anything else.
    node.handle_event(NOW, lost());
    node.handle_timeout(Nanos::from_millis(20_000));
    node.handle_event(NOW, Event::CellReady);
    let emitted: Vec<Effect> = effects(&mut node);
    let session = emitted.iter().position(|e| matches!(e, Effect::SetSession { .. })).unwrap();
    let start = emitted.iter().position(|e| matches!(e, Effect::StartService { .. })).unwrap();
    assert!(session < start, "{emitted:?}");
}

#[test]
fn a_change_of_a_reservation_touches_no_service() {
    let mut node = with_gold();
    node.handle_command(NOW, set("gold", r#"{"cpu":["2ms/4ms+extra"],"weight":200}"#)).unwrap();
    let emitted = effects(&mut node);
    let [Effect::SetSession { session: SessionId(2), reservation }] = &emitted[..] else {
        panic!("{emitted:?}")
    };
    assert_eq!(reservation.weight.get(), 200);
    // The same reservation again sends nothing.
    node.handle_command(NOW, set("gold", r#"{"cpu":["2ms/4ms+extra"],"weight":200}"#)).unwrap();
    assert_eq!(effects(&mut node), []);
}

#[test]
fn a_session_in_use_is_removed_only_with_its_contents() {
    let mut node = with_gold();
    let drops = RuleSpec::new("proto tcp".parse().unwrap(), Action::Drop);
    let rule = RuleSpec { session: name("gold"), ..drops };
    node.handle_command(NOW, add(vec![rule])).unwrap();
    effects(&mut node);
    let (class, text) = refused(&mut node, remove("gold", false));
    assert_eq!(class, RefusalClass::Busy);
    assert!(text.contains("monitor") && text.contains("#0, #1") && text.contains("--cascade"));
    let outcome = node.handle_command(NOW, remove("gold", true)).unwrap();
    let rules = vec![RuleId(0), RuleId(1)];
    assert_eq!(
        outcome,
        Outcome::SessionRemoved {
            session: name("gold"),
            services: vec![name("monitor")],
            rules,
            stopping: true
        }
    );
    // Until its last service has stopped, the name is not free, and nothing can be added to it.
    assert!(node.session(&name("gold")).unwrap().leaving);
    let promised = &node.session(&name("gold")).unwrap().reservation;
    assert_eq!(*promised, Reservation::default());
    effects(&mut node);
    for command in [create("gold", "{}"), set("gold", "{}"), remove("gold", true)] {
        assert_eq!(refused(&mut node, command).0, RefusalClass::Busy);
    }
    let (class, _) = refused(&mut node, in_session("gold", "touch", "any"));
    assert_eq!(class, RefusalClass::Busy);
    node.handle_event(NOW, Event::ServiceStopped { entry: EntryId(0) });
    let emitted = effects(&mut node);
    assert!(node.session(&name("gold")).is_none());
    assert!(emitted.contains(&Effect::RemoveSession { session: SessionId(2) }), "{emitted:?}");
    let gone = Notice::SessionRemoved { session: name("gold") };
    assert_eq!(emitted.last(), Some(&Effect::Report(gone)));
    node.handle_command(NOW, create("gold", "{}")).unwrap();
}

#[test]
fn a_session_is_removed_with_a_service_being_replaced_and_the_rules_of_its_new_version() {
    let mut node = with_gold();
    node.handle_command(NOW, in_session("gold", "monitor", "proto icmp")).unwrap();
    assert!(node.is_replacing());
    let outcome = node.handle_command(NOW, remove("gold", true)).unwrap();
    let services = vec![name("monitor")];
    let rules = vec![RuleId(0), RuleId(1)];
    let session = name("gold");
    assert_eq!(outcome, Outcome::SessionRemoved { session, services, rules, stopping: true });
    assert!(!node.is_replacing() && node.rules().is_empty());
    node.handle_event(NOW, Event::ServiceStopped { entry: EntryId(0) });
    effects(&mut node);
    assert!(node.session(&name("gold")).is_none());
}

#[test]
fn an_impossible_session_is_refused_with_advice() {
    let mut node = with_gold();
    for (command, class, expected) in [
        (create("gold", "{}"), RefusalClass::Busy, "tam session set gold"),
        (create("system", "{}"), RefusalClass::Forbidden, "every node has"),
        (set("best-effort", "{}"), RefusalClass::Forbidden, "every node has"),
        (remove("best-effort", true), RefusalClass::Forbidden, "every node has"),
        (set("gol", "{}"), RefusalClass::NotFound, "did you mean 'gold'"),
        (remove("silver", false), RefusalClass::NotFound, "no session 'silver'"),
        (set("gold", r#"{"send":{"lft":"1ms/4ms"}}"#), RefusalClass::NotFound, "'left'"),
        (set("gold", r#"{"memory":"0B"}"#), RefusalClass::Invalid, "0 bytes"),
    ] {
        let (found, text) = refused(&mut node, command);
        assert!(found == class && text.contains(expected), "{found:?}: {text}");
    }
}

#[test]
fn a_node_holds_ten_thousand_sessions_and_refuses_more_than_the_maximum() {
    let mut node = node();
    let wanted = |count: usize| {
        let named = (0..count).map(|n| (name(&format!("s{n}")), DesiredSession::default()));
        Command::SessionsArrange { sessions: named.collect() }
    };
    node.handle_command(NOW, wanted(SESSIONS_MAX - 2)).unwrap();
    assert_eq!(node.sessions().count(), SESSIONS_MAX);
    effects(&mut node);
    let (class, _) = refused(&mut node, create("last", "{}"));
    assert_eq!(class, RefusalClass::Limit);
    assert_eq!(refused(&mut node, wanted(SESSIONS_MAX - 1)).0, RefusalClass::Limit);
}

#[test]
fn sessions_no_longer_desired_lose_their_reservation_until_they_are_removed() {
    let mut node = with_gold();
    let silver = DesiredSession { reservation: reservation(r#"{"weight":5}"#), owner: None };
    let sessions = [(name("silver"), silver)].into();
    let outcome = node.handle_command(NOW, Command::SessionsArrange { sessions }).unwrap();
    let (created, changed) = (vec![name("silver")], vec![]);
    assert_eq!(outcome, Outcome::SessionsArranged { created, changed });
    assert_eq!(node.session(&name("gold")).unwrap().reservation, Reservation::default());
    assert!(node.service(&name("monitor")).is_some());
}

/// Returns a node with one guest core, half of which a session has reserved.
fn half_promised() -> Node {
    let mut node = node();
    assert_eq!(node.set_capacity(capacity()), []);
    node.handle_command(NOW, create("gold", r#"{"cpu":["50%/100ms"],"memory":"12MiB"}"#)).unwrap();
    effects(&mut node);
    node
}

#[test]
fn a_reservation_beyond_capacity_is_refused_with_what_is_left_and_changes_nothing() {
    let mut node = half_promised();
    let left = node.left();
    for (command, class, expected) in [
        (
            create("silver", r#"{"cpu":["50%/100ms"]}"#),
            RefusalClass::Limit,
            "request at most 40ms/100ms",
        ),
        (create("silver", r#"{"memory":"5MiB"}"#), RefusalClass::Limit, "4MiB of 16MiB are left"),
        (set("gold", r#"{"queue":"2MiB"}"#), RefusalClass::Limit, "of packet memory are left"),
        (
            set("gold", r#"{"send":{"left":"100%/100ms"}}"#),
            RefusalClass::Limit,
            "99 % can still be reserved",
        ),
        (create("silver", r#"{"below":"60%/100ms"}"#), RefusalClass::Limit, "50 %"),
    ] {
        let (found, text) = refused(&mut node, command);
        assert!(found == class && text.contains(expected), "{found:?}: {text}");
        assert_eq!(node.left(), left);
    }
    assert_eq!(node.sessions().count(), 3);
    // Capacity that is given up can be reserved again, and a session may exchange its own.
    node.handle_command(NOW, set("gold", r#"{"cpu":["90%/100ms"]}"#)).unwrap();
    node.handle_command(NOW, remove("gold", false)).unwrap();
    node.handle_command(NOW, create("silver", r#"{"cpu":["90%/100ms"]}"#)).unwrap();
}

#[test]
fn sessions_that_change_together_have_room_for_each_other() {
    let mut node = half_promised();
    let wanted = |sessions: &[(&str, &str)]| Command::SessionsArrange {
        sessions: sessions
            .iter()
            .map(|(session, json)| {
                let reservation = reservation(json);
                (name(session), DesiredSession { reservation, owner: None })
            })
            .collect(),
    };
    let (less, more) = (r#"{"cpu":["10%/100ms"]}"#, r#"{"cpu":["80%/100ms"]}"#);
    node.handle_command(NOW, wanted(&[("gold", less), ("another", more)])).unwrap();
    node.handle_command(NOW, wanted(&[("gold", more), ("another", less)])).unwrap();
    effects(&mut node);
    let before: Vec<Session> = node.sessions().cloned().collect();
    let left = node.left();
    let too_much = wanted(&[("another", more), ("silver", more)]);
    let (class, text) = refused(&mut node, too_much);
    assert!(class == RefusalClass::Limit && text.contains("'silver'"), "{text}");
    assert_eq!(node.sessions().cloned().collect::<Vec<_>>(), before);
    assert_eq!(node.left(), left);
}

#[test]
fn a_node_with_less_capacity_than_reserved_clears_reservations_and_reports_them() {
    let mut node = half_promised();
    node.handle_command(NOW, create("silver", r#"{"cpu":["30%/100ms"]}"#)).unwrap();
    effects(&mut node);
    let less = Capacity { memory: units::Bytes(1 << 20), ..capacity() };
    let short = node.set_capacity(less);
    assert_eq!(short.len(), 1);
    assert!(short[0].0 == name("gold") && short[0].1.to_string().contains("1MiB"), "{short:?}");
    assert_eq!(node.session(&name("gold")).unwrap().reservation, Reservation::default());
    let emitted = effects(&mut node);
    assert!(
        matches!(emitted[..], [Effect::SetSession { session: SessionId(2), .. }]),
        "{emitted:?}"
    );
    // The rest is free for any session.
    node.handle_command(NOW, set("silver", r#"{"cpu":["90%/100ms"]}"#)).unwrap();
}

#[test]
fn a_share_of_a_port_of_which_nobody_knows_the_rate_is_not_promised() {
    let mut node = node();
    let mut unknown = capacity();
    unknown.ports.remove(&name("right"));
    node.set_capacity(unknown);
    let (class, text) = refused(&mut node, create("gold", r#"{"send":{"right":"1ms/100ms"}}"#));
    assert!(class == RefusalClass::Limit && text.contains("ethtool"), "{text}");
}

/// Returns the account that each service pays from below user level.
fn payers(node: &Node) -> Vec<(&'static str, Option<u16>)> {
    let accounts = node.accounts(Speed::UNMEASURED, Nanos::from_millis(1));
    let services = ["monitor", "silver", "none", "operator"].into_iter();
    let services = services.filter_map(|it| Some((it, node.service(&name(it))?.entry)));
    services.map(|(it, entry)| (it, accounts.payers.get(&entry).map(|pays| pays.0.0))).collect()
}

#[test]
fn sessions_without_time_below_pay_only_if_another_has_reserved_some() {
    let mut node = with_gold();
    node.set_capacity(capacity());
    node.handle_command(NOW, create("silver", "{}")).unwrap();
    for (session, service, port) in
        [("silver", "silver", 1), ("best-effort", "none", 2), ("system", "operator", 3)]
    {
        let rule = format!("proto tcp dport {port}");
        node.handle_command(NOW, in_session(session, service, &rule)).unwrap();
    }
    let nobody = [("monitor", None), ("silver", None), ("none", None), ("operator", None)];
    assert_eq!(payers(&node), nobody);
    let below = r#"{"below":"1ms/4ms"}"#;
    node.handle_command(NOW, set("gold", below)).unwrap();
    let (gold, rest) = (Some(2), Some(SessionId::BEST_EFFORT.0));
    let paid = [("monitor", gold), ("silver", rest), ("none", rest), ("operator", None)];
    assert_eq!(payers(&node), paid);
    // The capacity that is not reserved is shared by the other sessions.
    let terms = |node: &Node| node.accounts(Speed::UNMEASURED, Nanos::from_millis(1)).terms;
    let left = node.left().unwrap().below;
    assert_eq!(
        terms(&node)[&SessionId::BEST_EFFORT],
        BucketParams::of_unreserved(left, Speed::UNMEASURED, Nanos::from_millis(1))
    );
    node.handle_command(NOW, set("silver", below)).unwrap();
    assert_eq!(payers(&node)[1], ("silver", Some(3)));
    assert_eq!(terms(&node)[&SessionId(2)], terms(&node)[&SessionId(3)]);
    for session in ["gold", "silver"] {
        node.handle_command(NOW, set(session, "{}")).unwrap();
    }
    assert_eq!(payers(&node), nobody);
}

#[test]
fn a_session_is_not_promised_less_memory_than_it_uses() {
    let mut node = node();
    assert_eq!(node.set_capacity(capacity()), []);
    node.handle_command(NOW, create("gold", r#"{"memory":"4MiB"}"#)).unwrap();
    let id = node.session(&name("gold")).unwrap().id;
    let by = UsedBy { bytes: units::Bytes(3 << 20), without_promise: false };
    node.set_memory_used(MemoryUsed { by: [(id, by)].into(), ..MemoryUsed::default() });
    let refusal = node.handle_command(NOW, set("gold", r#"{"memory":"2MiB"}"#)).unwrap_err();
    assert_eq!(refusal.class(), RefusalClass::Limit, "{refusal}");
    assert!(refusal.to_string().contains("uses 3328KiB"), "{refusal}");
    let wanted = |memory: &str| {
        let reservation = reservation(&format!(r#"{{"memory":"{memory}"}}"#));
        let gold = DesiredSession { reservation, owner: None };
        Command::SessionsArrange { sessions: [(name("gold"), gold)].into() }
    };
    assert!(node.handle_command(NOW, wanted("2MiB")).is_err(), "nor by a file");
    node.handle_command(NOW, wanted("3584KiB")).unwrap();
    // Another daemon, or a restart, finds the same.
    assert_eq!(node.set_capacity(Capacity { packet_cores: 2, ..capacity() }), []);
    assert!(node.handle_command(NOW, set("gold", r#"{"memory":"2MiB"}"#)).is_err());
}
