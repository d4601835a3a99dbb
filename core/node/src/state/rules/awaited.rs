//! Awaited rules: rules of the desired state that are in force before they are installed, while a
//! node starts and for as long as something of the desired state cannot start.
//!
//! ```text
//!  desired, not installed:  forward, drop, out ─▶ in force as they are
//!                           to a closed service, or one that leads to one ─▶ drops as if that were down
//!                           to any other service ─▶ no rule: forwarded plainly
//! ```
//!
//! A service's rules are installed when all desired services have started, and not at all if the
//! service does not start: until then no packet may bypass a closed service. A rule is awaited
//! until the same rule is installed or no longer desired, and never again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use units::{Name, RuleId, SessionId};

use super::RuleView;
use crate::classifier::{Lookup, Reach, RuleSet, compile};
use crate::desired::{DesiredRule, DesiredState};
use crate::rule::{Action, Match, Rule, RuleSpec, Stage};

/// Identity of a rule: two rules with equal fields are the same one. Lists of flows are no part of
/// it: they are installed with their rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Identity<'a> {
    r#match: &'a Match,
    priority: u16,
    session: &'a Name,
    action: &'a Action,
    stage: Option<Stage>,
}

impl<'a> From<&'a RuleSpec> for Identity<'a> {
    fn from(spec: &'a RuleSpec) -> Self {
        let RuleSpec { r#match, priority, session, action, flows: _, stage } = spec;
        Self { r#match, priority: *priority, session, action, stage: *stage }
    }
}

/// Rules of the desired state that are in force and not installed.
#[derive(Clone, Debug, Default)]
pub(super) struct Awaited {
    /// Rules in the order in which they were added. Their numbers differ, and so do their
    /// [`Identity`] values; none is the same as an installed rule.
    rules: Vec<Rule>,
}

impl Awaited {
    /// Returns the number of awaited rules.
    pub(super) const fn count(&self) -> usize {
        self.rules.len()
    }

    /// Returns the rules of a state that need no service to be in force, and are neither
    /// `installed` nor awaited.
    pub(super) fn missing<'a>(
        &'a self,
        desired: &DesiredState,
        installed: impl Iterator<Item = &'a Rule>,
    ) -> Vec<RuleSpec> {
        let known = identities(installed.chain(&self.rules).map(|rule| &rule.spec));
        let missing = independent(desired).filter(|spec| !known.contains(&Identity::from(*spec)));
        missing.cloned().collect()
    }

    /// Adds a rule of [`Self::missing`], with a number that no other rule has.
    pub(super) fn push(&mut self, rule: Rule) {
        debug_assert!(self.rules.iter().all(|known| known.id != rule.id), "{} twice", rule.id);
        self.rules.push(rule);
    }

    /// Removes the rules that a state does not ask for.
    pub(super) fn retain_desired(&mut self, desired: &DesiredState) {
        let wanted = identities(independent(desired));
        self.rules.retain(|rule| wanted.contains(&Identity::from(&rule.spec)));
    }

    /// Removes the rules that are the same as some that are being installed.
    pub(super) fn remove_equal<'a>(&mut self, incoming: impl Iterator<Item = &'a RuleSpec>) {
        if !self.rules.is_empty() {
            let incoming = identities(incoming);
            self.rules.retain(|rule| !incoming.contains(&Identity::from(&rule.spec)));
        }
    }

    /// Returns the numbers of the rules that stay awaited when others are installed.
    pub(super) fn ids_after(&self, incoming: &[DesiredRule]) -> BTreeSet<RuleId> {
        let incoming = identities(incoming.iter().map(|rule| &rule.spec));
        let stays = |rule: &&Rule| !incoming.contains(&Identity::from(&rule.spec));
        self.rules.iter().filter(stays).map(|rule| rule.id).collect()
    }

    /// Compiles installed rules together with the awaited ones; without these if all do not fit
    /// into the front door's maps.
    ///
    /// # Panics
    /// The installed rules alone do not compile: `Rules::admit` refuses such.
    pub(super) fn compile<'a>(
        &'a self,
        installed: impl Iterator<Item = &'a Rule> + Clone,
        lookup: Lookup,
    ) -> RuleSet {
        if !self.rules.is_empty() {
            let lookup = with_awaited(lookup.clone(), &self.rules);
            // The whole state was compiled when it was taken; a change since may have filled a map.
            if let Ok(rules) = compile(installed.clone().chain(&self.rules), &lookup) {
                return rules;
            }
        }
        compile(installed, &lookup)
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

/// Adds the names that awaited rules use: their sessions, and the services, as if they were down.
pub(super) fn with_awaited<'a>(
    mut lookup: Lookup,
    awaited: impl IntoIterator<Item = &'a Rule>,
) -> Lookup {
    let mut sessions = BTreeMap::clone(&lookup.sessions);
    for rule in awaited {
        // The session may not exist yet, and pays for no packet that is dropped.
        sessions.entry(rule.spec.session.clone()).or_insert(SessionId::BEST_EFFORT);
        if rule.spec.action.service().is_some() {
            lookup.down.insert(rule.id);
        }
    }
    lookup.sessions = Arc::new(sessions);
    lookup
}

fn identities<'a>(specs: impl Iterator<Item = &'a RuleSpec>) -> BTreeSet<Identity<'a>> {
    specs.map(Identity::from).collect()
}

/// Returns the rules of a state that can be in force while no service runs.
fn independent(desired: &DesiredState) -> impl Iterator<Item = &RuleSpec> {
    let holds = |spec: &&RuleSpec| {
        let service = spec.action.service();
        service.is_none_or(|service| is_closed(desired, service, &mut BTreeSet::new()))
    };
    desired.rules.iter().map(|rule| &rule.spec).filter(holds)
}

/// Returns true when packets of a service are dropped while it is down: it is closed, or leads to
/// one that is. `visited` has the services that were asked before, so that a cycle ends.
fn is_closed<'a>(
    desired: &'a DesiredState,
    service: &'a Name,
    visited: &mut BTreeSet<&'a Name>,
) -> bool {
    let Some(found) = desired.services.get(service).filter(|_| visited.insert(service)) else {
        return false;
    };
    found.on_failure.is_closed()
        || found.then.values().any(|next| is_closed(desired, next, visited))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Budget;
    use crate::desired::DesiredService;
    use crate::policy::OnFailure;

    fn name(text: &str) -> Name {
        Name::new(text).unwrap()
    }

    fn spec(text: &str, action: Action) -> RuleSpec {
        RuleSpec::new(text.parse().unwrap(), action)
    }

    fn to(text: &str, service: &str) -> RuleSpec {
        spec(text, Action::Service(name(service)))
    }

    /// Service by name, its failure policy, and the name of the service that it leads to.
    type Service<'a> = (&'a str, OnFailure, &'a str);

    /// Returns a state of these rules and services.
    fn state(rules: &[RuleSpec], services: &[Service<'_>]) -> DesiredState {
        let rule =
            |spec: &RuleSpec| DesiredRule { spec: spec.clone(), came_with: None, owner: None };
        let rules = rules.iter().map(rule).collect();
        let mut state = DesiredState { rules, ..DesiredState::default() };
        for &(service, on_failure, next) in services {
            let desired = DesiredService {
                digest: String::new(),
                parameters: BTreeMap::new(),
                session: name("best-effort"),
                level: None,
                then: BTreeMap::from([(0, name(next))]),
                budget: Budget::default(),
                on_failure,
                owner: None,
                functions: abi::HostFunctions::default(),
            };
            state.services.insert(name(service), desired);
        }
        state
    }

    fn awaited(specs: &[RuleSpec]) -> Awaited {
        let mut awaited = Awaited::default();
        for (id, spec) in (10..).zip(specs) {
            awaited.push(Rule { id: RuleId(id), spec: spec.clone() });
        }
        awaited
    }

    #[test]
    fn rules_to_services_are_in_force_early_only_where_a_closed_one_is_on_the_path() {
        use OnFailure::{Closed, Open};
        let cases: [(&str, &[Service<'_>], bool); 6] = [
            ("closed", &[("a", Closed, "none")], true),
            ("open", &[("a", Open, "none")], false),
            ("unknown", &[], false),
            ("open that leads to a closed one", &[("a", Open, "b"), ("b", Closed, "none")], true),
            ("a cycle of open ones", &[("a", Open, "b"), ("b", Open, "a")], false),
            ("a closed one in a cycle", &[("a", Open, "b"), ("b", Closed, "a")], true),
        ];
        for (case, services, early) in cases {
            let state = state(&[to("proto tcp", "a")], services);
            let missing = Awaited::default().missing(&state, std::iter::empty());
            assert_eq!(missing.len(), usize::from(early), "{case}");
        }
    }

    #[test]
    fn rules_that_are_installed_or_awaited_are_not_missing() {
        let [drops, forwards, new] = [
            spec("proto udp", Action::Drop),
            spec("proto icmp", Action::Forward),
            spec("proto tcp", Action::Drop),
        ];
        let state = state(&[drops.clone(), forwards.clone(), new.clone()], &[]);
        let installed = Rule { id: RuleId(1), spec: forwards };
        let missing = awaited(&[drops]).missing(&state, std::iter::once(&installed));
        assert_eq!(missing, [new]);
    }

    #[test]
    fn every_field_of_a_rule_but_its_flows_makes_it_another_one() {
        let rule = spec("proto udp", Action::Drop);
        let others = [
            spec("proto tcp", Action::Drop),
            spec("proto udp", Action::Forward),
            RuleSpec { priority: rule.priority + 1, ..rule.clone() },
            RuleSpec { session: name("other"), ..rule.clone() },
            RuleSpec { stage: Some(Stage::In), ..rule.clone() },
        ];
        let mut kept = awaited(std::slice::from_ref(&rule));
        kept.remove_equal(others.iter());
        assert_eq!(kept.count(), 1);
        kept.remove_equal(std::iter::once(&rule));
        assert_eq!(kept.count(), 0);
    }

    #[test]
    fn numbers_of_awaited_rules_are_free_for_the_same_rules_only() {
        let [same, other] = [spec("proto udp", Action::Drop), spec("proto tcp", Action::Drop)];
        let awaited = awaited(&[same.clone(), other]);
        let incoming = DesiredRule { spec: same, came_with: None, owner: None };
        assert_eq!(awaited.ids_after(&[incoming]), BTreeSet::from([RuleId(11)]));
    }

    #[test]
    fn a_rule_that_a_state_no_longer_asks_for_is_awaited_no_longer() {
        let [stays, goes] = [spec("proto udp", Action::Drop), to("proto tcp", "a")];
        let mut awaited = awaited(&[stays.clone(), goes.clone()]);
        awaited.retain_desired(&state(&[stays, goes], &[("a", OnFailure::Open, "none")]));
        assert_eq!(awaited.views().map(|view| view.rule.id).collect::<Vec<_>>(), [RuleId(10)]);
    }

    #[test]
    fn rules_to_services_compile_as_to_ones_that_are_down_in_sessions_that_do_not_exist_yet() {
        let paid = RuleSpec { session: name("later"), ..to("proto tcp", "a") };
        let rules = awaited(&[paid]).compile(std::iter::empty(), Lookup::default());
        let actions: Vec<u8> = rules.entries.iter().map(|(_, rule)| rule.action).collect();
        assert_eq!(actions, [bpf_maps::ACTION_DOWN]);
    }
}
