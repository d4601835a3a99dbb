//! Tests of rules that are in force before their part of the desired state exists.

use std::collections::BTreeMap;

use bpf_maps::{
    ACTION_DOWN, ACTION_DROP, ACTION_INTERCEPT_BACK, ACTION_INTERCEPT_CLOSED, RULES_MAX,
};

use super::stream_tests::{deploy as deploy_streams, starts};
use super::tests::{NOW, effects, name, node};
use super::*;
use crate::classifier::Reach;
use crate::command::{Arrangement, Command};
use crate::desired::DesiredService;
use crate::policy::OnFailure;
use crate::rule::{Action, RuleSpec};

fn service(on_failure: OnFailure) -> DesiredService {
    DesiredService {
        digest: String::new(),
        parameters: BTreeMap::new(),
        session: name("best-effort"),
        level: None,
        then: BTreeMap::new(),
        budget: crate::budget::Budget::default(),
        on_failure,
        owner: None,
        functions: abi::HostFunctions::default(),
    }
}

fn rule(text: &str, service: &str) -> DesiredRule {
    let spec = RuleSpec::new(text.parse().unwrap(), Action::Service(name(service)));
    DesiredRule { spec, came_with: Some(name(service)), owner: None }
}

fn state() -> DesiredState {
    let mut state = DesiredState::default();
    state.services.insert(name("guard"), service(OnFailure::Closed));
    state.services.insert(name("counts"), service(OnFailure::Open));
    let mut leads = service(OnFailure::Open);
    leads.then.insert(0, name("guard"));
    state.services.insert(name("leads"), leads);
    let drop = RuleSpec::new("proto udp".parse().unwrap(), Action::Drop);
    state.rules = vec![
        rule("proto tcp dport 80", "guard"),
        rule("proto icmp", "counts"),
        rule("proto tcp dport 81", "leads"),
        DesiredRule { spec: drop, came_with: None, owner: None },
    ];
    state
}

/// Returns the actions of the front door's present rules, sorted.
fn installed(node: &mut Node) -> Vec<u8> {
    effects(node);
    let mut actions: Vec<u8> =
        node.installed().entries.iter().map(|(_, rule)| rule.action).collect();
    actions.sort_unstable();
    actions
}

#[test]
fn rules_without_a_service_are_in_force_before_any_service_runs() {
    let mut node = node();
    node.await_rules(&state());
    assert_eq!(installed(&mut node), [ACTION_DROP, ACTION_DOWN, ACTION_DOWN]);
    let shown: Vec<Reach> = node.all_rules().into_iter().map(|view| view.reach).collect();
    assert_eq!(shown, [Reach::Closed, Reach::Closed, Reach::Installed]);
    assert!(node.numbered_rules().is_empty(), "they are not there");
}

#[test]
fn a_service_that_does_not_start_opens_nothing_and_one_that_does_has_its_rule_once() {
    let mut node = node();
    let mut state = state();
    state.rules.truncate(1);
    node.await_rules(&state);
    assert_eq!(installed(&mut node), [ACTION_DOWN]);
    let deploys = |node: &mut Node| {
        let mut command = deploy_streams("guard", "proto tcp dport 80");
        if let Command::Deploy { on_failure, rules, .. } = &mut command {
            (*on_failure, *rules) = (OnFailure::Closed, Vec::new());
        }
        node.handle_command(NOW, command).unwrap();
        installed(node)
    };
    assert_eq!(deploys(&mut node), [ACTION_DOWN]);
    let entry = node.service(&name("guard")).unwrap().entry;
    let failed = crate::command::Event::ServiceFailed { entry, reason: "limits".to_owned() };
    node.handle_event(NOW, failed);
    assert!(node.service(&name("guard")).is_none());
    assert_eq!(installed(&mut node), [ACTION_DOWN], "given up, and closed");

    deploys(&mut node);
    let entry = node.service(&name("guard")).unwrap().entry;
    starts(&mut node, entry, 4711);
    assert_eq!(installed(&mut node), [ACTION_DOWN], "its rules come with all others");
    let arrangement = Arrangement {
        then: BTreeMap::new(),
        level: None,
        budget: crate::budget::Budget::default(),
        on_failure: OnFailure::Closed,
        owner: None,
    };
    let services = [(name("guard"), arrangement)].into();
    let arrange = Command::Arrange { remove: Vec::new(), add: state.rules.clone(), services };
    node.handle_command(NOW, arrange).unwrap();
    assert_eq!(installed(&mut node), [ACTION_INTERCEPT_BACK, ACTION_INTERCEPT_CLOSED]);
    assert_eq!(node.all_rules().len(), 1);
}

#[test]
fn an_awaited_rule_keeps_its_number_and_new_ones_are_added() {
    let mut node = node();
    let mut state = state();
    let last = state.rules.pop().unwrap();
    node.await_rules(&state);
    effects(&mut node);
    let numbers = |node: &Node| -> Vec<RuleId> {
        node.all_rules().into_iter().map(|view| view.rule.id).collect()
    };
    let before = numbers(&node);
    node.await_rules(&state);
    assert_eq!((effects(&mut node), numbers(&node)), (Vec::new(), before.clone()));
    state.rules.push(last);
    node.await_rules(&state);
    assert_eq!(installed(&mut node), [ACTION_DROP, ACTION_DOWN, ACTION_DOWN]);
    assert!(before.iter().all(|number| numbers(&node).contains(number)));
}

#[test]
fn a_rule_that_is_no_longer_desired_is_not_awaited() {
    let mut node = node();
    let mut state = state();
    node.await_rules(&state);
    state.remove(&name("guard"));
    node.await_only(&state);
    assert_eq!(installed(&mut node), [ACTION_DROP], "and what led there is open again");
}

#[test]
fn the_first_rules_of_a_resumed_node_include_those_of_closed_services_that_did_not_start() {
    let name = node().name().clone();
    let written = node().with_snapshot(|it| serde_json::to_string(it).unwrap());
    for has in [Ok(&BTreeSet::new()), Err("it is gone".to_owned())] {
        let snapshot = serde_json::from_str(&written).unwrap();
        let mut node = Node::restore(name.clone(), Vec::new(), snapshot).unwrap();
        node.resume(NOW, has, &state());
        let effects = effects(&mut node);
        let installed = effects.iter().filter_map(|effect| match effect {
            Effect::InstallRules { rules, .. } => Some(rules),
            _ => None,
        });
        let actions: Vec<Vec<u8>> = installed
            .map(|rules| rules.entries.iter().map(|(_, rule)| rule.action).collect())
            .collect();
        let whole = |actions: &Vec<u8>| {
            let count = |action| actions.iter().filter(|it| **it == action).count();
            (count(ACTION_DROP), count(ACTION_DOWN)) == (1, 2)
        };
        assert!(!actions.is_empty() && actions.iter().all(whole), "{actions:?}");
    }
}

#[test]
fn as_many_awaited_rules_as_fit_can_all_be_added() {
    let mut node = node();
    let mut state = DesiredState::default();
    let count = RULES_MAX - 10;
    let drop = |at: usize| {
        let text = format!("src 10.{}.{}.0/24", at >> 8, at & 255);
        let spec = RuleSpec::new(text.parse().unwrap(), Action::Drop);
        DesiredRule { spec, came_with: None, owner: None }
    };
    state.rules = (0..count).map(drop).collect();
    node.await_rules(&state);
    assert_eq!(installed(&mut node).len(), count);
    let add = state.rules.clone();
    let arrange = Command::Arrange { remove: Vec::new(), add, services: BTreeMap::new() };
    node.handle_command(NOW, arrange).unwrap();
    assert_eq!((installed(&mut node).len(), node.all_rules().len()), (count, count));
}
