//! The rules of a node: adding, removing, and telling the front door.

use std::collections::BTreeSet;

use abi::manifest::Meant;
use bpf_maps::RULES_MAX;
use units::{Name, RuleId};

use super::services::Managed;
use super::{Life, Node, OwnedRule};
use crate::classifier::{Destination, Lookup, RuleSetError, Way, compile};
use crate::command::{Effect, Outcome};
use crate::desired::DesiredRule;
use crate::owner::{Owner, same_principal};
use crate::port::PortMode;
use crate::refusal::Refusal;
use crate::rule::{Rule, RuleSpec, Stage};
use crate::service::{Service, ServiceState};
use crate::session;

/// Rules that have been checked together with those that there are.
pub(super) struct Admitted {
    rules: Vec<OwnedRule>,
    /// Which of them no packet could reach if every service ran.
    pub(super) shadowed: Vec<(RuleId, RuleId)>,
}

impl Admitted {
    pub(super) fn ids(&self) -> Vec<RuleId> {
        self.rules.iter().map(|owned| owned.rule.id).collect()
    }
}

impl Node {
    pub(super) fn rule_add(
        &mut self,
        specs: Vec<RuleSpec>,
        owner: Option<Owner>,
    ) -> Result<Outcome, Refusal> {
        for service in specs.iter().filter_map(|spec| spec.action.service()) {
            let managed = self.find_service(service)?;
            if !managed.has_run() {
                return Err(Refusal::ServiceStarting { service: service.clone() });
            }
        }
        for spec in &specs {
            let service = spec.action.service().and_then(|service| self.services.get(service));
            if let Some(managed) = service {
                let service = managed.service();
                session_agrees(spec, &service.name, &service.session)?;
            }
        }
        let rules = specs.into_iter().map(|spec| DesiredRule { spec, came_with: None, owner });
        let admitted = self.admit_rules(rules.collect(), None, &BTreeSet::new())?;
        let outcome =
            Outcome::RulesAdded { rules: admitted.ids(), shadowed: admitted.shadowed.clone() };
        self.insert_rules(admitted, Life::Live);
        self.install_rules();
        Ok(outcome)
    }

    pub(super) fn rule_remove(&mut self, rule: RuleId) -> Result<Outcome, Refusal> {
        if self.own_rules.iter().any(|own| own.id == rule) {
            return Err(Refusal::RuleOwn { rule });
        }
        self.rules.remove(&rule).ok_or(Refusal::RuleUnknown { rule })?;
        self.install_rules();
        Ok(Outcome::RuleRemoved { rule })
    }

    /// Checks rules as if all services ran, so that installing them later cannot
    /// fail. `coming` is the service that they come with; `leaving` are rules that will be gone
    /// by then, and shadow none of them.
    pub(super) fn admit_rules(
        &self,
        wanted: Vec<DesiredRule>,
        coming: Option<(&Name, Destination)>,
        leaving: &BTreeSet<RuleId>,
    ) -> Result<Admitted, Refusal> {
        for (at, rule) in wanted.iter().enumerate() {
            rule.spec.r#match.check()?;
            self.check_names(&rule.spec)?;
            let there = self.rules.values().filter(|owned| !leaving.contains(&owned.rule.id));
            let there = there.map(|owned| (&owned.rule.spec, owned.owner));
            let before = wanted[..at].iter().map(|rule| (&rule.spec, rule.owner));
            check_stage(&rule.spec, rule.owner, there.chain(before))?;
        }
        let ids = self.free_rule_ids(wanted.len(), &wanted)?;
        let owned = |(id, rule): (RuleId, DesiredRule)| {
            let DesiredRule { spec, came_with, owner } = rule;
            OwnedRule { rule: Rule { id, spec }, came_with, owner, life: Life::Live }
        };
        let rules: Vec<OwnedRule> = ids.into_iter().zip(wanted).map(owned).collect();
        if rules.is_empty() {
            return Ok(Admitted { rules, shadowed: Vec::new() });
        }
        let mut lookup = self.lookup(|_| true);
        lookup.services.extend(coming.map(|(service, destination)| (service.clone(), destination)));
        let all = self.rules.values().chain(&rules).map(|owned| &owned.rule);
        let all = all.chain(&self.own_rules);
        let mut shadowed = compile(all.clone(), &lookup)?.shadowed;
        if !leaving.is_empty() {
            let staying = all.filter(|rule| !leaving.contains(&rule.id));
            shadowed = compile(staying, &lookup)?.shadowed;
        }
        // Also one that was there, and loses its packets to one of these.
        let known: BTreeSet<RuleId> =
            self.installed.shadowed.iter().map(|(rule, _)| *rule).collect();
        let added: BTreeSet<RuleId> = rules.iter().map(|owned| owned.rule.id).collect();
        shadowed.retain(|(rule, by)| {
            added.contains(rule) || (added.contains(by) && !known.contains(rule))
        });
        Ok(Admitted { rules, shadowed })
    }

    /// Takes rules in; the front door learns of them by [`Node::install_rules`].
    pub(super) fn insert_rules(&mut self, admitted: Admitted, life: Life) {
        let specs: Vec<&RuleSpec> = admitted.rules.iter().map(|owned| &owned.rule.spec).collect();
        self.awaited_come(&specs);
        for owned in admitted.rules {
            let rule = owned.rule.id;
            self.rule_next = rule.0.wrapping_add(1);
            self.effects.push_back(Effect::ClearRuleCounters { rule });
            self.rules.insert(rule, OwnedRule { life, ..owned });
        }
    }

    /// Tells the front door, if what it should know has changed.
    pub(super) fn install_rules(&mut self) {
        let lookup = self.lookup(|service| self.takes_packets(service));
        let active = self.rules.values().filter(|owned| self.is_active(owned));
        let active = active.map(|owned| &owned.rule).chain(&self.own_rules);
        let rules = self.compiled_with_awaited(active, lookup);
        let same = (&rules.masks, &rules.entries, &rules.lists)
            == (&self.installed.masks, &self.installed.entries, &self.installed.lists);
        self.installed = rules;
        if !same {
            self.generation += 1;
            let (rules, generation) = (self.installed.clone(), self.generation);
            self.effects.push_back(Effect::InstallRules { rules, generation });
        }
    }

    /// Checks all rules as [`Node::admit_rules`] does those that come.
    pub(super) fn check_rules(&self) -> Result<(), RuleSetError> {
        let all = self.rules.values().map(|owned| &owned.rule).chain(&self.own_rules);
        compile(all, &self.lookup(|_| true)).map(drop)
    }

    /// Whether the front door should know the rule now.
    pub(super) fn is_active(&self, owned: &OwnedRule) -> bool {
        let service = owned.rule.spec.action.service();
        owned.life == Life::Live
            && service.is_none_or(|name| {
                self.service(name).is_some_and(|service| self.takes_packets(service))
            })
    }

    /// Whether packets of the rule are dropped because its service is down.
    pub(super) fn is_down(&self, owned: &OwnedRule) -> bool {
        let service = owned.rule.spec.action.service().and_then(|name| self.service(name));
        service.is_some_and(|service| {
            service.state != ServiceState::Running && self.takes_packets(service)
        })
    }

    /// Removes the rules that lead to a service, and says which they were.
    pub(super) fn drop_rules_of(&mut self, service: &Name) -> Vec<RuleId> {
        let leads_there = |owned: &&OwnedRule| owned.rule.spec.action.service() == Some(service);
        let ids: Vec<RuleId> =
            self.rules.values().filter(leads_there).map(|owned| owned.rule.id).collect();
        for id in &ids {
            self.rules.remove(id);
        }
        ids
    }

    fn check_names(&self, spec: &RuleSpec) -> Result<(), Refusal> {
        self.find_session(&spec.session)?;
        let named = [spec.r#match.port.as_ref(), spec.action.port()];
        let is_unknown = |port: &&Name| !self.ports.iter().any(|known| known.spec.name == **port);
        match named.into_iter().flatten().find(is_unknown) {
            Some(port) => {
                let known = self.ports.iter().map(|port| port.spec.name.as_str());
                let meant = Meant::new(port.as_str(), known);
                let text = spec.r#match.to_string();
                Err(Refusal::PortUnknown { text, port: port.clone(), meant })
            }
            None => Ok(()),
        }
    }

    /// Numbers that no rule has, beginning after the last one given. Those of awaited rules are
    /// free for `coming`, if these are the same.
    pub(super) fn free_rule_ids(
        &self,
        asked: usize,
        coming: &[DesiredRule],
    ) -> Result<Vec<RuleId>, Refusal> {
        let awaited = self.awaited_beside(coming);
        let present = self.rules.len() + self.own_rules.len() + awaited.len();
        if asked > RULES_MAX.saturating_sub(present) {
            return Err(Refusal::TooManyRules { asked, present });
        }
        let count = RULES_MAX as u32;
        let in_turn = (0..count).map(|step| RuleId(self.rule_next.wrapping_add(step) % count));
        let is_free = |id: &RuleId| {
            !self.rules.contains_key(id)
                && !awaited.contains(id)
                && self.own_rules.iter().all(|r| r.id != *id)
        };
        Ok(in_turn.filter(is_free).take(asked).collect())
    }

    /// What names stand for, with the services whose state is asked for.
    pub(super) fn lookup(&self, wanted: impl Fn(&Service) -> bool) -> Lookup {
        let services = self.services.values().filter(|m| wanted(m.service()));
        let destination = |managed: &Managed| {
            let service = managed.service();
            let at_user = Destination::of(service.entry, &service.module, managed.listener());
            let way = match &service.state {
                ServiceState::Running if managed.is_movable() => Way::Lane,
                ServiceState::Running => match at_user.way {
                    Way::Listener { port, .. } => {
                        Way::Listener { port, closed: self.is_closed(service) }
                    }
                    way => way,
                },
                _ => Way::Down,
            };
            Destination { way, ..at_user }
        };
        let at_tc = self.ports.iter().filter(|port| port.spec.mode == PortMode::Tc);
        Lookup {
            ports: self.ports.iter().map(|port| (port.spec.name.clone(), port.id)).collect(),
            services: services
                .map(|m| (m.service().name.clone(), destination(m)))
                .chain(self.own_destination())
                .collect(),
            sessions: self.sessions.numbers(),
            at_tc: at_tc.map(|port| port.spec.name.clone()).collect(),
            down: BTreeSet::new(),
        }
    }
}

/// The rules that come with a service.
pub(super) fn rules_of(
    service: &Name,
    specs: Vec<RuleSpec>,
    owner: Option<Owner>,
) -> Vec<DesiredRule> {
    let came_with = Some(service.clone());
    let rule = |spec| DesiredRule { spec, came_with: came_with.clone(), owner };
    specs.into_iter().map(rule).collect()
}

/// Stages are the operator's or the principals', and a packet is one principal's.
fn check_stage<'a>(
    spec: &RuleSpec,
    owner: Option<Owner>,
    others: impl Iterator<Item = (&'a RuleSpec, Option<Owner>)>,
) -> Result<(), Refusal> {
    let (stage, session) = (spec.stage(), &spec.session);
    if (*session == session::system()) == (stage == Stage::Service) {
        let (text, session) = (spec.r#match.to_string(), session.clone());
        return Err(Refusal::StageNotOfSession { text, session, stage });
    }
    let is_others = |other: &RuleSpec, of: Option<Owner>| {
        let same = other.session == *session && same_principal(of, owner);
        stage == Stage::Service && other.stage() == stage && !same
    };
    let mut others = others.filter(|(other, of)| is_others(other, *of));
    match others.find(|(other, _)| !other.r#match.is_apart(&spec.r#match)) {
        None => Ok(()),
        Some((other, _)) => Err(Refusal::OverlapsOther {
            text: spec.r#match.to_string(),
            session: session.clone(),
            other: other.r#match.to_string(),
            owner: other.session.clone(),
        }),
    }
}

/// A rule that leads to a service has that service's session.
pub(super) fn session_agrees(
    spec: &RuleSpec,
    service: &Name,
    session: &Name,
) -> Result<(), Refusal> {
    if spec.session == *session {
        return Ok(());
    }
    Err(Refusal::SessionDiffers {
        text: spec.r#match.to_string(),
        found: spec.session.clone(),
        service: service.clone(),
        expected: session.clone(),
    })
}
