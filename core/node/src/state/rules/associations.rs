//! Rules of the node itself: UDP datagrams to the addresses of its associations go to the cell,
//! which has their keys.

use std::net::SocketAddr;

use abi::check::Kind;
use units::{Name, RuleId};

use super::RuleView;
use crate::classifier::{Destination, Path, Reach, RuleSet};
use crate::rule::{Action, Match, Rule, RuleSpec};
use crate::service::ASSOCIATIONS;
use crate::session;

/// Name of the node's own rules' destination, as it is shown; no service has it.
pub const ASSOCIATIONS_NAME: &str = "associations";
/// Priority of the node's own rules: above the default of operators' rules, with room for an
/// operator to override them.
pub const ASSOCIATIONS_PRIORITY: u16 = 1000;

/// Rules of the node itself, which direct datagrams to its associations.
#[derive(Clone, Debug, Default)]
pub(super) struct OwnRules {
    rules: Vec<Rule>,
}

impl OwnRules {
    /// Creates a rule for each address, with these numbers.
    pub(super) fn to_addresses(ids: Vec<RuleId>, at: &[SocketAddr]) -> Self {
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
        Self { rules: ids.into_iter().zip(at).map(rule).collect() }
    }

    /// Returns the number of rules.
    pub(super) const fn count(&self) -> usize {
        self.rules.len()
    }

    /// Returns all rules.
    pub(super) fn iter(&self) -> std::slice::Iter<'_, Rule> {
        self.rules.iter()
    }

    /// Returns the rule of this number.
    pub(super) fn get(&self, id: RuleId) -> Option<&Rule> {
        self.rules.iter().find(|rule| rule.id == id)
    }

    /// Returns the destination of the rules.
    pub(super) fn destination(&self) -> Option<(Name, Destination)> {
        let action = &self.rules.first()?.spec.action;
        let destination =
            Destination { entry: ASSOCIATIONS, path: Path::Cell, kind: Kind::Packets };
        action.service().map(|name| (name.clone(), destination))
    }

    /// Returns the rules, as `tam rule list` shows them.
    pub(super) fn views(&self, installed: &RuleSet) -> impl Iterator<Item = RuleView> {
        self.rules.iter().map(|rule| RuleView {
            rule: rule.clone(),
            came_with: None,
            owner: None,
            reach: match installed.shadowed.iter().find(|(own, _)| *own == rule.id) {
                Some((_, by)) => Reach::Shadowed { by: *by },
                None => Reach::Installed,
            },
        })
    }
}
