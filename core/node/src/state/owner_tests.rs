//! Tests of several principals' services and rules on one node.

use super::replace_tests::{digest, put_back, replaced, version};
use super::tests::{NOW, deploy_with, effects, name, node, refused, to_service};
use super::*;
use crate::owner::{CapabilityId, Owner, PrincipalId};
use crate::rule::{Action, RuleSpec};
use crate::testing::module;

const ALICE: Option<Owner> = owner(1, 1);
const ALICE_LATER: Option<Owner> = owner(1, 2);
const BOB: Option<Owner> = owner(2, 3);

const fn owner(principal: u32, capability: u32) -> Option<Owner> {
    let (principal, capability) = (PrincipalId(principal), CapabilityId(capability));
    Some(Owner { principal, capability })
}

fn drops(text: &str, owner: Option<Owner>) -> Command {
    let spec = RuleSpec::new(text.parse().unwrap(), Action::Drop);
    Command::RuleAdd { specs: vec![spec], owner }
}

fn of(owner: Option<Owner>, mut command: Command) -> Command {
    if let Command::Deploy { owner: slot, .. } = &mut command {
        *slot = owner;
    }
    command
}

fn owners(node: &Node) -> Vec<Option<Owner>> {
    node.rules().iter().map(|view| view.owner).collect()
}

#[test]
fn overlapping_rules_of_two_principals_are_refused_in_any_session() {
    let mut node = node();
    node.handle_command(NOW, drops("dst 10.1.0.0/16", ALICE)).unwrap();
    effects(&mut node);
    for other in [BOB, None] {
        let (_, text) = refused(&mut node, drops("dst 10.1.2.0/24", other));
        assert!(text.contains("a packet is one principal's"), "{text}");
        node.clone().handle_command(NOW, drops("dst 10.2.0.0/16", other)).unwrap();
    }
    node.handle_command(NOW, drops("dst 10.1.2.0/24", ALICE_LATER)).unwrap();
    let of_two = vec![
        RuleSpec::new("dst 10.3.0.0/16".parse().unwrap(), Action::Drop),
        RuleSpec::new("dst 10.1.3.0/24".parse().unwrap(), Action::Drop),
    ];
    effects(&mut node);
    refused(&mut node, Command::RuleAdd { specs: of_two, owner: BOB });
    assert_eq!(owners(&node), [ALICE, ALICE_LATER]);
}

#[test]
fn a_new_version_takes_its_rules_along_to_its_capability_and_back() {
    let mut node = node();
    let rules = || vec![to_service("proto udp", "monitor")];
    let first = deploy_with("monitor", module("\"user\""), rules());
    node.handle_command(NOW, of(ALICE, first)).unwrap();
    node.handle_event(NOW, Event::ServiceStarted { entry: EntryId(0) });
    effects(&mut node);
    let again = |owner| of(owner, deploy_with("monitor", version("new"), rules()));
    for other in [BOB, None] {
        let (_, text) = refused(&mut node, again(other));
        assert!(text.contains("is another principal's"), "{text}");
    }
    node.handle_command(NOW, again(ALICE_LATER)).unwrap();
    assert_eq!(owners(&node), [ALICE], "the version before has them until the new one runs");
    node.handle_event(NOW, replaced());
    assert_eq!((digest(&node), owners(&node)), ("new", vec![ALICE_LATER]));
    assert_eq!(node.service(&name("monitor")).unwrap().owner, ALICE_LATER);
    node.handle_event(NOW, put_back());
    assert_eq!((digest(&node), owners(&node)), ("sha256:00", vec![ALICE]));
    assert_eq!(node.service(&name("monitor")).unwrap().owner, ALICE);
}

#[test]
fn owners_survive_a_daemon() {
    let mut node = node();
    let rules = vec![to_service("proto udp", "mark")];
    node.handle_command(NOW, of(BOB, deploy_with("mark", module("\"user\""), rules))).unwrap();
    let text = node.with_snapshot(|it| serde_json::to_string(it).unwrap());
    let ports = node.ports().iter().map(|port| port.spec.clone()).collect();
    let snapshot = serde_json::from_str(&text).unwrap();
    let node = Node::restore(node.name().clone(), ports, snapshot).unwrap();
    assert_eq!((node.service(&name("mark")).unwrap().owner, owners(&node)), (BOB, vec![BOB]));
}
