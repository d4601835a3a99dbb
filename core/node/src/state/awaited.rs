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

use bpf_maps::RULES_MAX;
use units::{Name, RuleId, SessionId};

use super::{Node, RuleView};
use crate::classifier::{Lookup, Reach, RuleSet, compile};
use crate::command::Effect;
use crate::desired::{DesiredRule, DesiredState};
use crate::rule::{Action, Match, Rule, RuleSpec, Stage};

/// What makes two rules the same; lists of flows apart, which come with their rules.
type Key<'a> = (&'a Match, u16, &'a Name, &'a Action, Option<Stage>);

const fn key(spec: &RuleSpec) -> Key<'_> {
    (&spec.r#match, spec.priority, &spec.session, &spec.action, spec.stage)
}

impl Node {
    /// Has those rules of a state hold that are not there yet, as far as that needs no service.
    pub fn await_rules(&mut self, desired: &DesiredState) {
        self.await_only(desired);
        if self.add_awaited(desired) {
            self.install_rules();
        }
    }

    /// Adds the rules of a state that are not there yet to those that are awaited, and installs
    /// nothing. Returns false when there is no number left for them.
    pub(super) fn add_awaited(&mut self, desired: &DesiredState) -> bool {
        let here = self.rules.values().map(|owned| &owned.rule).chain(&self.awaited);
        let there: BTreeSet<Key<'_>> = here.map(|rule| key(&rule.spec)).collect();
        let missing = |rule: &&DesiredRule| !there.contains(&key(&rule.spec));
        let specs: Vec<RuleSpec> = desired
            .rules
            .iter()
            .filter(missing)
            .filter(|rule| desired.holds_without_services(&rule.spec))
            .map(|rule| rule.spec.clone())
            .collect();
        let present = self.rules.len() + self.own_rules.len() + self.awaited.len();
        let room = RULES_MAX - present.min(RULES_MAX);
        let Ok(ids) = self.free_rule_ids(specs.len().min(room), &[]) else { return false };
        let rules: Vec<Rule> =
            ids.into_iter().zip(specs).map(|(id, spec)| Rule { id, spec }).collect();
        let lookup = self.with_awaited(self.lookup(|_| false), &rules);
        for rule in rules {
            // One that names what this node does not have is told when it should come.
            if compile([&rule], &lookup).is_ok() {
                self.effects.push_back(Effect::ClearRuleCounters { rule: rule.id });
                self.awaited.push(rule);
            }
        }
        true
    }

    /// Another state is desired: what it does not ask for is awaited no more.
    pub fn await_only(&mut self, desired: &DesiredState) {
        if self.awaited.is_empty() {
            return;
        }
        let wanted: BTreeSet<Key<'_>> = desired
            .rules
            .iter()
            .map(|rule| &rule.spec)
            .filter(|spec| desired.holds_without_services(spec))
            .map(key)
            .collect();
        self.awaited.retain(|rule| wanted.contains(&key(&rule.spec)));
        self.install_rules();
    }

    /// Rules come: the same ones are awaited no more.
    pub(super) fn awaited_come(&mut self, rules: &[&RuleSpec]) {
        if !self.awaited.is_empty() {
            let come: BTreeSet<Key<'_>> = rules.iter().map(|spec| key(spec)).collect();
            self.awaited.retain(|rule| !come.contains(&key(&rule.spec)));
        }
    }

    /// Numbers of awaited rules that stay so when these come.
    pub(super) fn awaited_beside(&self, coming: &[DesiredRule]) -> BTreeSet<RuleId> {
        let come: BTreeSet<Key<'_>> = coming.iter().map(|rule| key(&rule.spec)).collect();
        let stay = self.awaited.iter().filter(|rule| !come.contains(&key(&rule.spec)));
        stay.map(|rule| rule.id).collect()
    }

    /// What names in awaited rules stand for, too.
    pub(super) fn with_awaited<'a>(
        &self,
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

    /// Rules that are there, and those that are awaited.
    pub(super) fn compiled_with_awaited<'a>(
        &'a self,
        there: impl Iterator<Item = &'a Rule> + Clone,
        lookup: Lookup,
    ) -> RuleSet {
        if !self.awaited.is_empty() {
            let lookup = self.with_awaited(lookup.clone(), &self.awaited);
            // The whole state was compiled when it was taken; a change since may have filled a map.
            if let Ok(rules) = compile(there.clone().chain(&self.awaited), &lookup) {
                return rules;
            }
        }
        compile(there, &lookup)
            .expect("`admit_rules` compiled all rules, and these are some of them")
    }

    /// The awaited rules, as `tam rule list` shows them.
    pub(super) fn awaited_rules(&self) -> impl Iterator<Item = RuleView> {
        self.awaited.iter().map(|rule| RuleView {
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

impl DesiredState {
    /// Whether a rule says what becomes of packets while no service is there.
    fn holds_without_services(&self, spec: &RuleSpec) -> bool {
        spec.action.service().is_none_or(|service| self.is_closed(service, &mut BTreeSet::new()))
    }

    /// Whether packets of a service are dropped while it is down: it is closed, or leads to one.
    fn is_closed<'a>(&'a self, service: &'a Name, above: &mut BTreeSet<&'a Name>) -> bool {
        let Some(found) = self.services.get(service).filter(|_| above.insert(service)) else {
            return false;
        };
        found.on_failure.is_closed() || found.then.values().any(|next| self.is_closed(next, above))
    }
}

#[cfg(test)]
mod tests {
    use super::super::stream_tests::{deploy as deploy_streams, starts};
    use super::super::tests::{NOW, effects, name, node};
    use super::*;
    use crate::command::{Arrangement, Command};
    use crate::desired::DesiredService;
    use crate::policy::OnFailure;
    use bpf_maps::{ACTION_DOWN, ACTION_DROP, ACTION_INTERCEPT_BACK, ACTION_INTERCEPT_CLOSED};

    fn service(on_failure: OnFailure) -> DesiredService {
        DesiredService {
            digest: String::new(),
            parameters: BTreeMap::new(),
            session: name("best-effort"),
            level: None,
            then: BTreeMap::new(),
            budget: crate::budget::Budget::default(),
            on_failure,
            owner: None,
            functions: abi::HostFunctions::default(),
        }
    }

    fn rule(text: &str, service: &str) -> DesiredRule {
        let spec = RuleSpec::new(text.parse().unwrap(), Action::Service(name(service)));
        DesiredRule { spec, came_with: Some(name(service)), owner: None }
    }

    fn state() -> DesiredState {
        let mut state = DesiredState::default();
        state.services.insert(name("guard"), service(OnFailure::Closed));
        state.services.insert(name("counts"), service(OnFailure::Open));
        let mut leads = service(OnFailure::Open);
        leads.then.insert(0, name("guard"));
        state.services.insert(name("leads"), leads);
        let drop = RuleSpec::new("proto udp".parse().unwrap(), Action::Drop);
        state.rules = vec![
            rule("proto tcp dport 80", "guard"),
            rule("proto icmp", "counts"),
            rule("proto tcp dport 81", "leads"),
            DesiredRule { spec: drop, came_with: None, owner: None },
        ];
        state
    }

    /// What the front door was told last.
    fn installed(node: &mut Node) -> Vec<u8> {
        effects(node);
        let mut actions: Vec<u8> =
            node.installed.entries.iter().map(|(_, rule)| rule.action).collect();
        actions.sort_unstable();
        actions
    }

    #[test]
    fn what_needs_no_service_holds_before_there_is_one() {
        let mut node = node();
        node.await_rules(&state());
        assert_eq!(installed(&mut node), [ACTION_DROP, ACTION_DOWN, ACTION_DOWN]);
        let shown: Vec<Reach> = node.all_rules().into_iter().map(|view| view.reach).collect();
        assert_eq!(shown, [Reach::Closed, Reach::Closed, Reach::Installed]);
        assert!(node.numbered_rules().is_empty(), "they are not there");
    }

    #[test]
    fn a_service_that_does_not_start_opens_nothing_and_one_that_does_has_its_rule_once() {
        let mut node = node();
        let mut state = state();
        state.rules.truncate(1);
        node.await_rules(&state);
        assert_eq!(installed(&mut node), [ACTION_DOWN]);
        let deploys = |node: &mut Node| {
            let mut command = deploy_streams("guard", "proto tcp dport 80");
            if let Command::Deploy { on_failure, rules, .. } = &mut command {
                (*on_failure, *rules) = (OnFailure::Closed, Vec::new());
            }
            node.handle_command(NOW, command).unwrap();
            installed(node)
        };
        assert_eq!(deploys(&mut node), [ACTION_DOWN]);
        let entry = node.service(&name("guard")).unwrap().entry;
        let failed = crate::command::Event::ServiceFailed { entry, reason: "limits".to_owned() };
        node.handle_event(NOW, failed);
        assert!(node.service(&name("guard")).is_none());
        assert_eq!(installed(&mut node), [ACTION_DOWN], "given up, and closed");

        deploys(&mut node);
        let entry = node.service(&name("guard")).unwrap().entry;
        starts(&mut node, entry, 4711);
        assert_eq!(installed(&mut node), [ACTION_DOWN], "its rules come with all others");
        let arrangement = Arrangement {
            then: BTreeMap::new(),
            level: None,
            budget: crate::budget::Budget::default(),
            on_failure: OnFailure::Closed,
            owner: None,
        };
        let services = [(name("guard"), arrangement)].into();
        let arrange = Command::Arrange { remove: Vec::new(), add: state.rules.clone(), services };
        node.handle_command(NOW, arrange).unwrap();
        assert_eq!(installed(&mut node), [ACTION_INTERCEPT_BACK, ACTION_INTERCEPT_CLOSED]);
        assert_eq!(node.all_rules().len(), 1);
    }

    #[test]
    fn what_is_awaited_already_keeps_its_number_and_what_is_new_comes_beside_it() {
        let mut node = node();
        let mut state = state();
        let last = state.rules.pop().unwrap();
        node.await_rules(&state);
        effects(&mut node);
        let numbers = |node: &Node| -> Vec<RuleId> {
            node.all_rules().into_iter().map(|view| view.rule.id).collect()
        };
        let before = numbers(&node);
        node.await_rules(&state);
        assert_eq!((effects(&mut node), numbers(&node)), (Vec::new(), before.clone()));
        state.rules.push(last);
        node.await_rules(&state);
        assert_eq!(installed(&mut node), [ACTION_DROP, ACTION_DOWN, ACTION_DOWN]);
        assert!(before.iter().all(|number| numbers(&node).contains(number)));
    }

    #[test]
    fn what_nobody_desires_any_more_is_not_awaited() {
        let mut node = node();
        let mut state = state();
        node.await_rules(&state);
        state.remove(&name("guard"));
        node.await_only(&state);
        assert_eq!(installed(&mut node), [ACTION_DROP], "and what led there is open again");
    }

    #[test]
    fn the_first_rules_of_a_node_that_goes_on_have_those_of_closed_services_that_did_not_start() {
        let name = node().name().clone();
        let written = node().with_snapshot(|it| serde_json::to_string(it).unwrap());
        for has in [Ok(&BTreeSet::new()), Err("it is gone".to_owned())] {
            let snapshot = serde_json::from_str(&written).unwrap();
            let mut node = Node::restore(name.clone(), Vec::new(), snapshot).unwrap();
            node.resume(NOW, has, &state());
            let effects = effects(&mut node);
            let installed = effects.iter().filter_map(|effect| match effect {
                Effect::InstallRules { rules, .. } => Some(rules),
                _ => None,
            });
            let actions: Vec<Vec<u8>> = installed
                .map(|rules| rules.entries.iter().map(|(_, rule)| rule.action).collect())
                .collect();
            let whole = |actions: &Vec<u8>| {
                let count = |action| actions.iter().filter(|it| **it == action).count();
                (count(ACTION_DROP), count(ACTION_DOWN)) == (1, 2)
            };
            assert!(!actions.is_empty() && actions.iter().all(whole), "{actions:?}");
        }
    }

    #[test]
    fn a_full_list_of_awaited_rules_can_come() {
        let mut node = node();
        let mut state = DesiredState::default();
        let count = RULES_MAX - 10;
        let drop = |at: usize| {
            let text = format!("src 10.{}.{}.0/24", at >> 8, at & 255);
            let spec = RuleSpec::new(text.parse().unwrap(), Action::Drop);
            DesiredRule { spec, came_with: None, owner: None }
        };
        state.rules = (0..count).map(drop).collect();
        node.await_rules(&state);
        assert_eq!(installed(&mut node).len(), count);
        let add = state.rules.clone();
        let arrange = Command::Arrange { remove: Vec::new(), add, services: BTreeMap::new() };
        node.handle_command(NOW, arrange).unwrap();
        assert_eq!((installed(&mut node).len(), node.all_rules().len()), (count, count));
    }
}
