//! Tests of stream services: while a listener exists, their rules lead to it in both directions.

use abi::check::Kind;

use super::tests::{NOW, deploy_with, effects, lost, name, node, refused, running, to_service};
use super::*;
use crate::command::{Command, Event};
use crate::policy::OnFailure;
use crate::refusal::RefusalClass;
use crate::service::ModuleInfo;
use crate::testing::module;
use bpf_maps::{ACTION_DOWN, ACTION_INTERCEPT, ACTION_INTERCEPT_BACK, ACTION_INTERCEPT_CLOSED};
use units::EntryId;

fn streams() -> ModuleInfo {
    ModuleInfo { kind: Kind::Streams, ..module("\"user\"") }
}

pub(super) fn deploy(service: &str, text: &str) -> Command {
    deploy_with(service, streams(), vec![to_service(text, service)])
}

/// Reports that the service listens and runs.
pub(super) fn starts(node: &mut Node, entry: EntryId, port: u16) {
    node.handle_event(NOW, Event::ServiceListens { entry, port });
    node.handle_event(NOW, Event::ServiceStarted { entry });
}

/// Returns the last rules sent to the front door: action and number of each key.
fn sent_rules(node: &mut Node) -> Vec<(u8, u16)> {
    let installed = effects(node).into_iter().filter_map(|effect| match effect {
        Effect::InstallRules { rules, .. } => Some(rules),
        _ => None,
    });
    let rules = installed.last().expect("the front door was told");
    let mut keys: Vec<(u8, u16)> =
        rules.entries.iter().map(|(_, rule)| (rule.action, rule.entry)).collect();
    keys.sort_unstable();
    keys
}

#[test]
fn rules_of_streams_lead_to_the_listener_for_as_long_as_it_is_there() {
    let mut node = node();
    node.handle_command(NOW, deploy("compress", "proto tcp dport 80")).unwrap();
    let asked = effects(&mut node);
    assert!(asked.iter().all(|effect| !matches!(effect, Effect::InstallRules { .. })));
    starts(&mut node, EntryId(0), 4711);
    assert_eq!(sent_rules(&mut node), [(ACTION_INTERCEPT, 4711), (ACTION_INTERCEPT_BACK, 4711)]);

    node.handle_event(NOW, lost());
    assert_eq!(sent_rules(&mut node), [], "nobody listens");
    node.handle_event(NOW, Event::CellReady);
    starts(&mut node, EntryId(0), 4712);
    assert_eq!(sent_rules(&mut node), [(ACTION_INTERCEPT, 4712), (ACTION_INTERCEPT_BACK, 4712)]);
}

#[test]
fn rules_of_closed_stream_services_drop_packets_without_a_listener() {
    let mut node = node();
    let mut command = deploy("guard", "proto tcp dport 80");
    if let Command::Deploy { on_failure, .. } = &mut command {
        *on_failure = OnFailure::Closed;
    }
    node.handle_command(NOW, command).unwrap();
    assert_eq!(sent_rules(&mut node), [(ACTION_DOWN, 0)], "before it has started");
    starts(&mut node, EntryId(0), 4711);
    assert_eq!(
        sent_rules(&mut node),
        [(ACTION_INTERCEPT_BACK, 4711), (ACTION_INTERCEPT_CLOSED, 4711)]
    );
    node.handle_event(NOW, lost());
    assert_eq!(sent_rules(&mut node), [(ACTION_DOWN, 0)]);
}

#[test]
fn an_impossible_stream_service_is_refused_with_advice() {
    let mut node = node();
    for (text, expected) in [
        ("proto udp dport 80", "add 'proto tcp'"),
        ("proto tcp dport 80 flags syn", "leave out 'flags'"),
    ] {
        let (class, text) = refused(&mut node, deploy("compress", text));
        assert_eq!(class, RefusalClass::Invalid);
        assert!(text.contains(expected), "{text}");
    }
    let mut node = running();
    let mut command = deploy("compress", "proto tcp");
    if let Command::Deploy { then, .. } = &mut command {
        then.push(name("monitor"));
    }
    let (_, text) = refused(&mut node, command);
    assert!(text.contains("an edge has packets"), "{text}");
    let (_, text) = refused(&mut node, deploy_with("monitor", streams(), Vec::new()));
    assert!(text.contains("a service of packets"), "{text}");
}

#[test]
fn rules_have_to_be_those_of_connections_while_their_service_is_down_too() {
    let mut node = node();
    node.handle_command(NOW, deploy("compress", "proto tcp dport 80")).unwrap();
    starts(&mut node, EntryId(0), 4711);
    let failed = Event::ServiceFailed { entry: EntryId(0), reason: "limits".to_owned() };
    node.handle_event(NOW, failed);
    effects(&mut node);
    let add = |text| Command::RuleAdd { specs: vec![to_service(text, "compress")], owner: None };
    let (_, text) = refused(&mut node, add("proto udp"));
    assert!(text.contains("add 'proto tcp'"), "{text}");
    node.handle_command(NOW, add("proto tcp dport 81")).unwrap();
}

#[test]
fn a_service_that_failed_stays_one_of_packets() {
    let mut node = running();
    let failed = Event::ServiceFailed { entry: EntryId(0), reason: "limits".to_owned() };
    node.handle_event(NOW, failed);
    effects(&mut node);
    let (_, text) = refused(&mut node, deploy_with("monitor", streams(), Vec::new()));
    assert!(text.contains("a service of packets"), "{text}");
}
