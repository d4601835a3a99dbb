//! Order of rules: among equal priorities the lower number wins, and a new rule gets a higher
//! number than all others.
//!
//! A rule that stays keeps its number and its counters, unless a new rule that takes some of its
//! packets has to precede it: then it gets a new number after that one.

use std::collections::{BTreeMap, VecDeque};

use units::{Name, RuleId};

use super::DesiredRule;
use crate::flows::FlowList;
use crate::owner::Owner;
use crate::rule::{Action, Match, Stage};

/// Limit of pairs of rules that are compared; beyond it rules are assumed to overlap. A node full
/// of rules of one priority stays below a tenth of a second.
const COMPARED_MAX: usize = 1 << 21;

/// Changes to the rules of a node, to be made at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleChanges {
    /// Numbers of the rules to remove.
    pub remove: Vec<RuleId>,
    /// Rules to add, in this order.
    pub add: Vec<DesiredRule>,
}

/// Returns the changes that turn the present rules, given by number, into the wanted ones.
#[must_use]
pub fn rule_changes(present: &[(RuleId, DesiredRule)], wanted: &[DesiredRule]) -> RuleChanges {
    let mut free: BTreeMap<Key<'_>, VecDeque<RuleId>> = BTreeMap::new();
    for (id, rule) in present {
        free.entry(key(rule)).or_default().push_back(*id);
    }
    let mut take = |rule| free.get_mut(&key(rule)).and_then(VecDeque::pop_front);
    let mut locations: Vec<(Option<RuleId>, &DesiredRule)> =
        wanted.iter().map(|rule| (take(rule), rule)).collect();
    let mut changes = RuleChanges::default();
    changes.remove.extend(free.into_values().flatten());
    changes.remove.extend(release_numbers(&mut locations));
    changes.remove.sort_unstable();
    let new = locations.into_iter().filter(|(id, _)| id.is_none());
    changes.add = new.map(|(_, rule)| rule.clone()).collect();
    changes
}

/// Removes the numbers of rules that would precede a rule that they must follow.
fn release_numbers(locations: &mut [(Option<RuleId>, &DesiredRule)]) -> Vec<RuleId> {
    let mut by_priority: BTreeMap<u16, Vec<usize>> = BTreeMap::new();
    for (at, (_, rule)) in locations.iter().enumerate() {
        by_priority.entry(rule.spec.priority).or_default().push(at);
    }
    let (mut given_up, mut compared) = (Vec::new(), 0);
    for group in by_priority.into_values() {
        let mut meet = |one: &DesiredRule, other: &DesiredRule| {
            compared += 1;
            compared > COMPARED_MAX || overlap(one, other)
        };
        // Split into rules that get new numbers, higher than all others, and those that keep
        // theirs.
        let (mut new, mut kept): (Vec<&DesiredRule>, Vec<(RuleId, &DesiredRule)>) =
            (Vec::new(), Vec::new());
        for at in group {
            let (id, rule) = locations[at];
            let Some(number) = id else {
                new.push(rule);
                continue;
            };
            let too_low = new.iter().any(|before| meet(before, rule))
                || kept.iter().any(|(before, other)| *before > number && meet(other, rule));
            if too_low {
                locations[at].0 = None;
                given_up.push(number);
                new.push(rule);
            } else {
                kept.push((number, rule));
            }
        }
    }
    given_up
}

/// Returns the rules of either list that the other lacks, each as often as it is missing.
pub(super) fn unmatched<'a>(
    from: &'a [DesiredRule],
    to: &'a [DesiredRule],
) -> (Vec<&'a DesiredRule>, Vec<&'a DesiredRule>) {
    let mut count: BTreeMap<Key<'_>, isize> = BTreeMap::new();
    from.iter().for_each(|rule| *count.entry(key(rule)).or_default() += 1);
    to.iter().for_each(|rule| *count.entry(key(rule)).or_default() -= 1);
    let mut surplus = |rules: &'a [DesiredRule], sign: isize| {
        let mut taken = Vec::new();
        for rule in rules.iter().rev() {
            let left = count.entry(key(rule)).or_default();
            if *left * sign > 0 {
                *left -= sign;
                taken.push(rule);
            }
        }
        taken.reverse();
        taken
    };
    let removed = surplus(from, 1);
    (removed, surplus(to, -1))
}

/// Returns true if packets meet both lists alike: the same rules, and no overlapping pair in
/// another order.
pub(super) fn same_order(from: &[DesiredRule], to: &[DesiredRule]) -> bool {
    if from == to {
        return true;
    }
    let numbered: Vec<(RuleId, DesiredRule)> =
        (0..).map(RuleId).zip(from.iter().cloned()).collect();
    rule_changes(&numbered, to) == RuleChanges::default()
}

type Key<'a> = (
    &'a Match,
    u16,
    &'a Name,
    Stage,
    &'a Action,
    Option<&'a FlowList>,
    Option<&'a Name>,
    Option<Owner>,
);

fn key(rule: &DesiredRule) -> Key<'_> {
    let spec = &rule.spec;
    (
        &spec.r#match,
        spec.priority,
        &spec.session,
        spec.stage(),
        &spec.action,
        spec.flows.as_ref(),
        rule.came_with.as_ref(),
        rule.owner,
    )
}

/// Returns true if the order of two rules of one priority matters.
pub(super) fn overlap(one: &DesiredRule, other: &DesiredRule) -> bool {
    let same_end =
        (&one.spec.action, &one.spec.session) == (&other.spec.action, &other.spec.session);
    let same_stage = one.spec.stage() == other.spec.stage();
    same_stage && !same_end && !one.spec.r#match.is_apart(&other.spec.r#match)
}
