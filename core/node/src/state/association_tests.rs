//! Tests of the node's own rules.

use super::tests::effects;
use super::*;
use crate::rule::{Action, RuleSpec};
use crate::service::ASSOCIATIONS;

fn node() -> Node {
    let port: PortSpec = serde_json::from_str(r#"{"name":"left","device":"eth1"}"#).unwrap();
    let mut node = Node::new(Name::new("r1").unwrap(), vec![port]).unwrap();
    effects(&mut node);
    node
}

fn installed(node: &mut Node) -> Option<RuleSet> {
    let sets = effects(node).into_iter().filter_map(|effect| match effect {
        Effect::InstallRules { rules, .. } => Some(rules),
        _ => None,
    });
    sets.last()
}

#[test]
fn datagrams_to_the_nodes_addresses_go_to_the_associations() {
    let mut node = node();
    let at = ["10.0.1.1:7443".parse().unwrap(), "[fd00::1]:7443".parse().unwrap()];
    node.serve_associations(&at).unwrap();
    let rules = installed(&mut node).unwrap();
    assert_eq!(rules.entries.len(), 2);
    assert!(rules.entries.iter().all(|(_, rule)| rule.entry == ASSOCIATIONS.0));
    let shown: Vec<String> =
        node.own_rules().map(|view| view.rule.spec.r#match.to_string()).collect();
    assert_eq!(shown, ["proto udp dst 10.0.1.1 dport 7443", "proto udp dst fd00::1 dport 7443"]);
    // They are no part of the desired state, and cannot be removed.
    assert_eq!((node.rules().len(), node.numbered_rules().len()), (0, 0));
    for view in node.own_rules().collect::<Vec<_>>() {
        let rule = view.rule.id;
        let removed = node.handle_command(Nanos::ZERO, Command::RuleRemove { rule });
        assert_eq!(removed, Err(Refusal::RuleOwn { rule }));
    }
    node.serve_associations(&[]).unwrap();
    assert_eq!(installed(&mut node).unwrap().entries.len(), 0);
}

#[test]
fn the_name_of_associations_is_reserved() {
    let mut node = node();
    let module = crate::testing::module("\"user\"");
    let deploy = crate::state::tests::deploy_with(ASSOCIATIONS_NAME, module, Vec::new());
    let refused = node.handle_command(Nanos::ZERO, deploy);
    let service = Name::new(ASSOCIATIONS_NAME).unwrap();
    assert_eq!(refused, Err(Refusal::NameReserved { service }));
}

#[test]
fn other_rules_get_other_numbers() {
    let mut node = node();
    node.serve_associations(&["10.0.1.1:7443".parse().unwrap()]).unwrap();
    let own = node.own_rules().next().unwrap().rule.id;
    let specs = vec![RuleSpec::new("proto icmp".parse().unwrap(), Action::Drop); 3];
    node.handle_command(Nanos::ZERO, Command::RuleAdd { specs, owner: None }).unwrap();
    assert!(node.rules().iter().all(|view| view.rule.id != own));
    assert_eq!(installed(&mut node).unwrap().entries.len(), 2);
}
