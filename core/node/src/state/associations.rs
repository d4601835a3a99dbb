//! The node's own rules: UDP datagrams to the addresses at which it has associations go to the
//! cell, where their keys are.

use std::net::SocketAddr;

use abi::check::Kind;
use units::{Name, RuleId};

use super::Node;
use crate::classifier::{Destination, Reach, Way};
use crate::command::Effect;
use crate::refusal::Refusal;
use crate::rule::{Action, Match, Rule, RuleSpec};
use crate::service::ASSOCIATIONS;
use crate::session;
use crate::state::RuleView;

/// Where the node's own rules lead, as it is shown; no service has this name.
pub const ASSOCIATIONS_NAME: &str = "associations";
/// The priority of the node's own rules: above what an operator writes without thinking of it,
/// and below what he writes against it.
pub const ASSOCIATIONS_PRIORITY: u16 = 1000;

impl Node {
    /// Has datagrams to these addresses brought to the associations' entry, in place of those
    /// before.
    ///
    /// # Errors
    /// When there is no room for the rules; then nothing has changed.
    pub fn serve_associations(&mut self, at: &[SocketAddr]) -> Result<(), Refusal> {
        let before = std::mem::take(&mut self.own_rules);
        match self.own_rules_for(at) {
            Ok(rules) => self.own_rules = rules,
            Err(refusal) => {
                self.own_rules = before;
                return Err(refusal);
            }
        }
        if let Err(problem) = self.check_rules() {
            self.own_rules = before;
            return Err(problem.into());
        }
        for rule in &self.own_rules {
            self.effects.push_back(Effect::ClearRuleCounters { rule: rule.id });
        }
        self.install_rules();
        Ok(())
    }

    fn own_rules_for(&self, at: &[SocketAddr]) -> Result<Vec<Rule>, Refusal> {
        let ids: Vec<RuleId> = self.free_rule_ids(at.len(), &[])?;
        let rule = |(id, address): (RuleId, &SocketAddr)| {
            let (ip, port) = (address.ip(), address.port());
            let matched: Match = format!("proto udp dst {ip} dport {port}")
                .parse()
                .expect("an address and an L4 port are written as rules read them");
            let name = Name::new(ASSOCIATIONS_NAME).expect("lower case letters are a name");
            let spec = RuleSpec {
                priority: ASSOCIATIONS_PRIORITY,
                session: session::system(),
                ..RuleSpec::new(matched, Action::Service(name))
            };
            Rule { id, spec }
        };
        Ok(ids.into_iter().zip(at).map(rule).collect())
    }

    /// Where the node's own rules lead.
    pub(super) fn own_destination(&self) -> Option<(Name, Destination)> {
        let action = &self.own_rules.first()?.spec.action;
        let destination = Destination { entry: ASSOCIATIONS, way: Way::Cell, kind: Kind::Packets };
        action.service().map(|name| (name.clone(), destination))
    }

    /// All rules that packets may meet: those that are awaited behind the others, its own last.
    #[must_use]
    pub fn all_rules(&self) -> Vec<RuleView> {
        self.rules().into_iter().chain(self.awaited_rules()).chain(self.own_rules()).collect()
    }

    /// The node's own rules, as `tam rule list` shows them.
    pub fn own_rules(&self) -> impl Iterator<Item = RuleView> {
        self.own_rules.iter().map(|rule| RuleView {
            rule: rule.clone(),
            came_with: None,
            owner: None,
            reach: match self.installed.shadowed.iter().find(|(own, _)| *own == rule.id) {
                Some((_, by)) => Reach::Shadowed { by: *by },
                None => Reach::Installed,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Command, PortSpec};
    use units::Nanos;

    fn node() -> Node {
        let port: PortSpec = serde_json::from_str(r#"{"name":"left","device":"eth1"}"#).unwrap();
        let mut node = Node::new(Name::new("r1").unwrap(), vec![port]).unwrap();
        node.effects.clear();
        node
    }

    fn installed(node: &mut Node) -> Option<crate::classifier::RuleSet> {
        let sets =
            std::mem::take(&mut node.effects).into_iter().filter_map(|effect| match effect {
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
        assert_eq!(
            shown,
            ["proto udp dst 10.0.1.1 dport 7443", "proto udp dst fd00::1 dport 7443"]
        );
        // They are no part of what is desired, and nobody can take them away.
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
    fn their_name_is_nobody_elses() {
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
}
