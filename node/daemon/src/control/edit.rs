//! Changes of the desired state, as data.

use abi::Level;
use node::desired::{DesiredRule, DesiredService, DesiredSession, DesiredState};
use node::{CapabilityId, Node, Owner, RuleSpec, Service, ServiceState};
use session::Reservation;
use std::collections::{BTreeMap, BTreeSet};
use units::{Name, RuleId};

/// Change of a desired state, made when the changes before it have been recorded.
#[derive(Clone, Debug)]
pub(crate) enum Edit {
    /// Leaves the state as it is; the facts recorded beside it change.
    Nothing,
    /// Puts another state in its place.
    Become(Box<DesiredState>),
    /// Lets modules run below user level, or not.
    Bpf(bool),
    /// Adds a service with the rules that came with it, or another version of it.
    Deploy(Name, Box<DesiredService>, Vec<RuleSpec>),
    /// Level of a service.
    SetLevel(Name, Level),
    /// Removes a service, and the rules that lead to it.
    Remove(Name),
    /// Adds rules that the node has by these numbers.
    AddRules(Vec<(RuleId, RuleSpec)>, Option<Owner>),
    /// Removes the rule of a number, given with the number of equal ones before it; `None` is a
    /// rule that is not there.
    RemoveRule(RuleId, Option<(DesiredRule, usize)>),
    SetSession(Name, DesiredSession),
    /// Promises a session something else.
    SetReservation(Name, Reservation),
    RemoveSession(Name),
    /// Removes everything that belongs to these capabilities. Their sessions become the operator's
    /// where others have something in them; those that the node has yet are as it has them.
    EndCapabilities {
        capabilities: BTreeSet<CapabilityId>,
        present: BTreeMap<Name, DesiredSession>,
    },
}

impl Edit {
    /// Creates the removal of everything that belongs to capabilities.
    pub(super) fn end_capabilities(node: &Node, capabilities: BTreeSet<CapabilityId>) -> Self {
        let sessions = node.sessions().filter(|session| !session.leaving);
        let present = sessions.map(|session| (session.name.clone(), session.into())).collect();
        Self::EndCapabilities { capabilities, present }
    }

    /// Creates the removal of the rule of a number.
    pub(super) fn remove_rule(node: &Node, rule: RuleId) -> Self {
        let rules = node.numbered_rules();
        let found = rules.iter().find(|(id, _)| *id == rule).map(|(_, found)| {
            let before = rules.iter().filter(|(id, other)| *id < rule && other == found).count();
            (found.clone(), before)
        });
        Self::RemoveRule(rule, found)
    }

    /// Brings the change up to date before it is written: while it waited, what it names may have
    /// been removed, by a command that was recorded earlier or by one that could not be.
    pub(super) fn refresh(&mut self, node: &Node) {
        match self {
            Self::Deploy(service, desired, rules) => match present(node, service) {
                Some(present) => {
                    **desired = DesiredService::of(present, desired.level);
                    *rules = rules_with(node, service);
                }
                None => *self = Self::Nothing,
            },
            Self::AddRules(rules, owner) => {
                let there: BTreeMap<RuleId, DesiredRule> =
                    node.numbered_rules().into_iter().collect();
                rules.retain(|(id, spec)| {
                    there.get(id).is_some_and(|it| it.spec == *spec && it.owner == *owner)
                });
            }
            Self::RemoveRule(rule, found) => match Self::remove_rule(node, *rule) {
                // It may come back with the version of its service that it came with.
                Self::RemoveRule(_, None) if found.is_some() && node.has_rule(*rule) => {}
                now => *self = now,
            },
            Self::EndCapabilities { capabilities, .. } => {
                *self = Self::end_capabilities(node, std::mem::take(capabilities));
            }
            _ => {}
        }
    }

    /// Makes the change.
    pub(crate) fn apply(self, state: &mut DesiredState) {
        match self {
            Self::Nothing => {}
            Self::Become(wanted) => *state = *wanted,
            Self::Bpf(enabled) => state.bpf = enabled,
            Self::Deploy(service, desired, rules) => state.deploy(service, *desired, rules),
            Self::SetLevel(service, level) => state.set_level(&service, level),
            Self::Remove(service) => state.remove(&service),
            Self::AddRules(rules, owner) => {
                state.add_rules(rules.into_iter().map(|(_, spec)| spec).collect(), owner);
            }
            Self::RemoveRule(_, None) => {}
            Self::RemoveRule(_, Some((rule, before))) => state.remove_rule(&rule, before),
            Self::SetSession(name, session) => state.set_session(name, session),
            Self::SetReservation(name, reservation) => {
                state.sessions.entry(name).or_default().reservation = reservation;
            }
            Self::RemoveSession(name) => state.remove_session(&name),
            Self::EndCapabilities { capabilities, present } => {
                end_capabilities(state, &capabilities, present);
            }
        }
    }
}

/// Returns a service that is there and will stay.
pub(super) fn present<'a>(node: &'a Node, service: &Name) -> Option<&'a Service> {
    node.service(service).filter(|it| it.state != ServiceState::Stopping)
}

/// Returns the rules that came with a service.
pub(super) fn rules_with(node: &Node, service: &Name) -> Vec<RuleSpec> {
    numbered_rules_with(node, service).map(|(_, rule)| rule.spec).collect()
}

/// Numbers of the rules that a deployment added and removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RuleChanges {
    pub(crate) added: Vec<u32>,
    pub(crate) removed: Vec<u32>,
}

impl RuleChanges {
    /// Returns the difference between the rules of a service before and after its deployment.
    pub(super) fn between(before: &[RuleId], after: &[RuleId]) -> Self {
        let not_in = |these: &[RuleId], others: &[RuleId]| {
            these.iter().filter(|rule| !others.contains(rule)).map(|rule| rule.0).collect()
        };
        Self { added: not_in(after, before), removed: not_in(before, after) }
    }
}

/// Returns the numbers of the rules that came with a service.
pub(super) fn rule_ids_with(node: &Node, service: &Name) -> Vec<RuleId> {
    numbered_rules_with(node, service).map(|(id, _)| id).collect()
}

fn numbered_rules_with(node: &Node, service: &Name) -> impl Iterator<Item = (RuleId, DesiredRule)> {
    let came_with = |rule: &DesiredRule| rule.came_with.as_ref() == Some(service);
    node.numbered_rules().into_iter().filter(move |(_, rule)| came_with(rule))
}

fn end_capabilities(
    state: &mut DesiredState,
    capabilities: &BTreeSet<CapabilityId>,
    mut present: BTreeMap<Name, DesiredSession>,
) {
    let is_gone =
        |owner: Option<Owner>| owner.is_some_and(|owner| capabilities.contains(&owner.capability));
    state.rules.retain(|rule| !is_gone(rule.owner));
    let gone = state.services.iter().filter(|(_, service)| is_gone(service.owner));
    let gone: Vec<Name> = gone.map(|(name, _)| name.clone()).collect();
    gone.iter().for_each(|name| state.remove(name));
    let gone = state.sessions.iter().filter(|(_, session)| is_gone(session.owner));
    let gone: Vec<Name> = gone.map(|(name, _)| name.clone()).collect();
    for name in gone {
        match present.remove(&name) {
            Some(session) => state.set_session(name, session),
            None => state.give_up_session(&name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use node::PrincipalId;

    fn name(text: &str) -> Name {
        Name::new(text).unwrap()
    }

    fn owned(capability: u32) -> Option<Owner> {
        Some(Owner { principal: PrincipalId(1), capability: CapabilityId(capability) })
    }

    fn rule(text: &str) -> (RuleId, RuleSpec) {
        (RuleId(0), RuleSpec::new(text.parse().unwrap(), node::Action::Drop))
    }

    #[test]
    fn ended_capabilities_lose_their_sessions_and_rules_and_no_others() {
        let mut state = DesiredState::default();
        for (session, capability) in [("a", 1), ("b", 2)] {
            let owned = DesiredSession { owner: owned(capability), ..DesiredSession::default() };
            Edit::SetSession(name(session), owned).apply(&mut state);
        }
        Edit::AddRules(vec![rule("dst 10.0.0.0/8")], owned(1)).apply(&mut state);
        Edit::AddRules(vec![rule("dst 11.0.0.0/8")], owned(2)).apply(&mut state);
        Edit::AddRules(vec![rule("dst 12.0.0.0/8")], None).apply(&mut state);
        let capabilities = [CapabilityId(1)].into();
        Edit::EndCapabilities { capabilities, present: BTreeMap::new() }.apply(&mut state);
        let left: Vec<_> = state.rules.iter().map(|rule| rule.owner).collect();
        assert_eq!(left, [owned(2), None]);
        assert_eq!(state.sessions.keys().collect::<Vec<_>>(), [&name("b")]);
    }

    #[test]
    fn of_equal_rules_the_selected_one_is_removed() {
        let mut state = DesiredState::default();
        let same = rule("dst 10.0.0.0/8");
        Edit::AddRules(vec![same.clone(), same], None).apply(&mut state);
        let desired = state.rules[0].clone();
        Edit::RemoveRule(RuleId(1), Some((desired.clone(), 1))).apply(&mut state);
        assert_eq!(state.rules, [desired]);
        Edit::RemoveRule(RuleId(1), None).apply(&mut state);
        assert_eq!(state.rules.len(), 1, "one that nobody desires");
    }

    #[test]
    fn a_state_becomes_another_one_as_a_whole() {
        let mut state = DesiredState::default();
        let wanted = DesiredState { bpf: !state.bpf, ..DesiredState::default() };
        Edit::Become(Box::new(wanted.clone())).apply(&mut state);
        assert_eq!(state, wanted);
        Edit::Bpf(!wanted.bpf).apply(&mut state);
        Edit::Nothing.apply(&mut state);
        assert_eq!(state, DesiredState::default());
    }
}
