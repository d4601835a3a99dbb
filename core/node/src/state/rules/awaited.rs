//! Rules of the desired state that hold before it is there: while a node starts, and as long as
//! something of it cannot start.
//!
//! ```text
//!  desired, not there:  forward, drop, out ─▶ as they say
//!                       to a closed service, or one that leads to one ─▶ dropped as of one that is down
//!                       to any other service ─▶ no rule: forwarded plainly
//! ```
//!
//! A service's rules come when everything that shall run has started, and not at all if it does not
//! start: nobody shall go past a closed one meanwhile. Each rule is awaited until the same one has
//! come, or nobody desires it any more; none is awaited again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use units::{Name, RuleId, SessionId};

use super::RuleView;
use crate::classifier::{Lookup, Reach, RuleSet, compile};
use crate::desired::{DesiredRule, DesiredState};
use crate::rule::{Action, Match, Rule, RuleSpec, Stage};

/// Fields by which two rules are the same; lists of flows apart, which come with their rules.
type Key<'a> = (&'a Match, u16, &'a Name, &'a Action, Option<Stage>);

const fn key(spec: &RuleSpec) -> Key<'_> {
    (&spec.r#match, spec.priority, &spec.session, &spec.action, spec.stage)
}

/// Rules of the desired state that are not there yet, and hold already.
#[derive(Clone, Debug, Default)]
pub(super) struct Awaited {
    rules: Vec<Rule>,
}

impl Awaited {
    /// Returns how many there are.
    pub(super) const fn count(&self) -> usize {
        self.rules.len()
    }

    /// Returns what of a state needs no service to hold, and is neither present nor awaited.
    pub(super) fn missing<'a>(
        &'a self,
        desired: &DesiredState,
        present: impl Iterator<Item = &'a Rule>,
    ) -> Vec<RuleSpec> {
        let there: BTreeSet<Key<'_>> =
            present.chain(&self.rules).map(|rule| key(&rule.spec)).collect();
        let missing = lasting(desired).filter(|spec| !there.contains(&key(spec)));
        missing.cloned().collect()
    }

    /// Adds a rule.
    pub(super) fn push(&mut self, rule: Rule) {
        self.rules.push(rule);
    }

    /// Removes the rules that a state does not ask for.
    pub(super) fn retain_wanted(&mut self, desired: &DesiredState) {
        let wanted: BTreeSet<Key<'_>> = lasting(desired).map(key).collect();
        self.rules.retain(|rule| wanted.contains(&key(&rule.spec)));
    }

    /// Removes the rules that are the same as some that come.
    pub(super) fn remove_same<'a>(&mut self, coming: impl Iterator<Item = &'a RuleSpec>) {
        if !self.rules.is_empty() {
            let come: BTreeSet<Key<'_>> = coming.map(key).collect();
            self.rules.retain(|rule| !come.contains(&key(&rule.spec)));
        }
    }

    /// Returns the numbers of rules that are still awaited when others come.
    pub(super) fn beside(&self, coming: &[DesiredRule]) -> BTreeSet<RuleId> {
        let come: BTreeSet<Key<'_>> = coming.iter().map(|rule| key(&rule.spec)).collect();
        let stay = self.rules.iter().filter(|rule| !come.contains(&key(&rule.spec)));
        stay.map(|rule| rule.id).collect()
    }

    /// Compiles rules that are there, with the awaited ones as far as the maps have room.
    pub(super) fn compile<'a>(
        &'a self,
        there: impl Iterator<Item = &'a Rule> + Clone,
        lookup: Lookup,
    ) -> RuleSet {
        if !self.rules.is_empty() {
            let lookup = with_awaited(lookup.clone(), &self.rules);
            // The whole state was compiled when it was taken; a change since may have filled a map.
            if let Ok(rules) = compile(there.clone().chain(&self.rules), &lookup) {
                return rules;
            }
        }
        compile(there, &lookup)
            .expect("`Rules::admit` compiled all rules, and these are some of them")
    }

    /// Returns the rules, as `tam rule list` shows them.
    pub(super) fn views(&self) -> impl Iterator<Item = RuleView> {
        self.rules.iter().map(|rule| RuleView {
            rule: rule.clone(),
            came_with: None,
            owner: None,
            reach: match rule.spec.action.service() {
                Some(_) => Reach::Closed,
                None => Reach::Installed,
            },
        })
    }
}

/// Adds what names in awaited rules stand for.
pub(super) fn with_awaited<'a>(
    mut lookup: Lookup,
    awaited: impl IntoIterator<Item = &'a Rule>,
) -> Lookup {
    let mut sessions = BTreeMap::clone(&lookup.sessions);
    for rule in awaited {
        // Its session may not be there, and pays for nothing that is dropped.
        sessions.entry(rule.spec.session.clone()).or_insert(SessionId::BEST_EFFORT);
        if rule.spec.action.service().is_some() {
            lookup.down.insert(rule.id);
        }
    }
    lookup.sessions = Arc::new(sessions);
    lookup
}

/// Returns the rules of a state that say what becomes of packets while no service is there.
fn lasting(desired: &DesiredState) -> impl Iterator<Item = &RuleSpec> {
    let holds = |spec: &&RuleSpec| {
        let service = spec.action.service();
        service.is_none_or(|service| is_closed(desired, service, &mut BTreeSet::new()))
    };
    desired.rules.iter().map(|rule| &rule.spec).filter(holds)
}

/// Returns true when packets of a service are dropped while it is down: it is closed, or leads to
/// one that is.
fn is_closed<'a>(
    desired: &'a DesiredState,
    service: &'a Name,
    above: &mut BTreeSet<&'a Name>,
) -> bool {
    let Some(found) = desired.services.get(service).filter(|_| above.insert(service)) else {
        return false;
    };
    found.on_failure.is_closed() || found.then.values().any(|next| is_closed(desired, next, above))
}
