//! What rules say to packets that come to them from the stage before.

use bpf::RuleFacts;
use bpf_maps::RuleFact;
use node::classifier::RuleSet;
use std::collections::BTreeMap;

/// By the rule's number.
#[derive(Debug)]
pub(crate) enum Facts {
    /// As the front door has them.
    Map(RuleFacts),
    /// Of a node that has only packet ports.
    Own(BTreeMap<u16, RuleFact>),
}

impl Facts {
    /// Of the rules of packet ports.
    pub(crate) fn of_rules(rules: &RuleSet) -> Self {
        let listed = rules.lists.iter().map(|list| &list.rule);
        let all = rules.entries.iter().map(|(_, rule)| rule).chain(listed);
        Self::Own(
            all.filter_map(|rule| {
                let bpf_maps::Rule { session, entry, action, .. } = *rule;
                let fact = RuleFact { session, entry, action, zero: [0; 3] };
                Some((u16::try_from(rule.rule).ok()?, fact))
            })
            .collect(),
        )
    }

    /// What this rule says, if there is such a rule.
    pub(crate) fn of(&self, rule: u16) -> Option<RuleFact> {
        match self {
            Self::Map(facts) => facts.of(rule),
            Self::Own(facts) => facts.get(&rule).copied(),
        }
    }
}
