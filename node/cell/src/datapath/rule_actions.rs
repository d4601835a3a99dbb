//! Actions of rules, for packets that reach them from the stage before.

use bpf::RuleFacts;
use bpf_maps::RuleFact;
use node::classifier::RuleSet;
use std::collections::BTreeMap;

/// Actions by the rule's number.
#[derive(Debug)]
pub(crate) enum RuleActions {
    /// Map of the front door.
    Map(RuleFacts),
    /// Table of a node that has only packet ports.
    PacketPorts(BTreeMap<u16, RuleFact>),
}

impl RuleActions {
    /// Creates the table for the rules of packet ports.
    pub(crate) fn of_rules(rules: &RuleSet) -> Self {
        let listed = rules.lists.iter().map(|list| &list.rule);
        let all = rules.entries.iter().map(|(_, rule)| rule).chain(listed);
        Self::PacketPorts(
            all.filter_map(|rule| {
                let bpf_maps::Rule { session, entry, action, .. } = *rule;
                let fact = RuleFact { session, entry, action, zero: [0; 3] };
                Some((u16::try_from(rule.rule).ok()?, fact))
            })
            .collect(),
        )
    }

    /// Returns the action of a rule, if it exists.
    pub(crate) fn of(&self, rule: u16) -> Option<RuleFact> {
        match self {
            Self::Map(facts) => facts.of(rule),
            Self::PacketPorts(facts) => facts.get(&rule).copied(),
        }
    }
}
