//! The desired state: what shall run on a node, whoever asked for it and however often the node
//! has started since.
//!
//! ```text
//! node file, tam apply ─▶ ┌──────────────┐ ─ check ─▶ refused, with the place
//! deploy, rule add … ───▶ │ DesiredState │ ─ differences ─▶ tam diff
//! journal, at a start ──▶ └──────────────┘ ─ steps ─▶ commands for the node, in their order
//! ```
//!
//! It is data: nothing here knows where it is kept, or how long a step takes. What a service or
//! a rule is, is in `service` and `rule`; what is wrong with one, the node itself says.

mod check;
mod differences;
mod losses;
mod order;
mod steps;

use std::collections::{BTreeMap, BTreeSet};

use ::session::Reservation;
use abi::{HostFunctions, Level};
use serde::{Deserialize, Serialize};
use units::Name;

use crate::budget::Budget;
use crate::owner::Owner;
use crate::policy::OnFailure;
use crate::rule::RuleSpec;
use crate::service::Service;
use crate::session::Session;

pub use check::{Fault, Place, check};
pub use differences::{Difference, FieldChange, Manner, differences};
pub use losses::losses;
pub use order::{RuleChanges, rule_changes};
pub use steps::{Step, steps};

/// Everything that shall run on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DesiredState {
    /// Whether services may run below user level.
    #[serde(default = "allowed")]
    pub bpf: bool,
    /// The sessions, but for those that every node has.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub sessions: BTreeMap<Name, DesiredSession>,
    /// The services.
    #[serde(default)]
    pub services: BTreeMap<Name, DesiredService>,
    /// The rules; of two with equal priority the one that stands first is better.
    #[serde(default)]
    pub rules: Vec<DesiredRule>,
}

/// One session that shall be there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DesiredSession {
    /// What it shall be promised.
    #[serde(default)]
    pub reservation: Reservation,
    /// Whose it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
}

impl From<&Session> for DesiredSession {
    /// A session as it is.
    fn from(session: &Session) -> Self {
        Self { reservation: session.reservation.clone(), owner: session.owner }
    }
}

/// One service that shall run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DesiredService {
    /// Its module's digest.
    pub digest: String,
    /// What the operator set.
    #[serde(default)]
    pub parameters: BTreeMap<String, String>,
    /// Who pays.
    pub session: Name,
    /// Where to run it; where its module wants when there is none.
    #[serde(default)]
    pub level: Option<Level>,
    /// The services after it, by the number of the edge that leads there.
    #[serde(default)]
    pub then: BTreeMap<u16, Name>,
    /// What it may use below user level.
    #[serde(default)]
    pub budget: Budget,
    /// What becomes of its packets while it is down.
    #[serde(default)]
    pub on_failure: OnFailure,
    /// Whose it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// The host functions that its module may use.
    #[serde(default)]
    pub functions: HostFunctions,
}

impl DesiredService {
    /// A service as it is, wanted at this level.
    #[must_use]
    pub fn of(service: &Service, level: Option<Level>) -> Self {
        Self {
            digest: service.module.digest.clone(),
            parameters: service.parameters.clone(),
            session: service.session.clone(),
            level,
            then: service.then.clone(),
            budget: service.budget,
            on_failure: service.on_failure,
            owner: service.owner,
            functions: service.module.granted,
        }
    }

    /// Whether a service runs what is wanted: another module, other parameters or other host
    /// functions make another version of it.
    #[must_use]
    pub fn is_version(&self, service: &Service) -> bool {
        let module = &service.module;
        (&self.digest, &self.parameters, self.functions)
            == (&module.digest, &service.parameters, module.granted)
    }
}

/// One rule that shall be there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DesiredRule {
    /// What it says.
    pub spec: RuleSpec,
    /// The service that it came with, and goes with.
    #[serde(default)]
    pub came_with: Option<Name>,
    /// Whose it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
}

const fn allowed() -> bool {
    true
}

impl Default for DesiredState {
    /// Nothing, and every level allowed.
    fn default() -> Self {
        Self { bpf: true, sessions: BTreeMap::new(), services: BTreeMap::new(), rules: Vec::new() }
    }
}

impl DesiredState {
    /// Returns true when a service has the failure policy `closed`.
    #[must_use]
    pub fn has_closed_service(&self) -> bool {
        self.services.values().any(|service| service.on_failure.is_closed())
    }

    /// True when nothing shall run or be promised, and no packet be matched.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty() && self.services.is_empty() && self.rules.is_empty()
    }

    /// A service shall run, in place of another of its name, with these rules.
    pub fn deploy(&mut self, name: Name, service: DesiredService, rules: Vec<RuleSpec>) {
        self.rules.retain(|rule| rule.came_with.as_ref() != Some(&name));
        let (came_with, owner) = (Some(name.clone()), service.owner);
        let rules =
            rules.into_iter().map(|spec| DesiredRule { spec, came_with: came_with.clone(), owner });
        self.rules.extend(rules);
        self.services.insert(name, service);
    }

    /// A service shall be gone, with the rules and edges that lead to it.
    pub fn remove(&mut self, name: &Name) {
        self.services.remove(name);
        self.rules.retain(|rule| rule.spec.action.service() != Some(name));
        for service in self.services.values_mut() {
            service.then.retain(|_, next| next != name);
        }
    }

    /// A session shall be there, and be promised this.
    pub fn set_session(&mut self, name: Name, session: DesiredSession) {
        self.sessions.insert(name, session);
    }

    /// A session shall be gone, with the services and rules in it.
    pub fn remove_session(&mut self, name: &Name) {
        let services = self.services.iter().filter(|(_, it)| it.session == *name);
        let services: Vec<Name> = services.map(|(service, _)| service.clone()).collect();
        services.iter().for_each(|service| self.remove(service));
        self.rules.retain(|rule| rule.spec.session != *name);
        self.sessions.remove(name);
    }

    /// A session shall be gone, or, with something in it, the operator's and without a promise.
    pub fn give_up_session(&mut self, name: &Name) {
        let in_use = self.services.values().any(|it| it.session == *name)
            || self.rules.iter().any(|it| it.spec.session == *name);
        match in_use {
            true => drop(self.sessions.insert(name.clone(), DesiredSession::default())),
            false => drop(self.sessions.remove(name)),
        }
    }

    /// Rules shall be there, behind those that are.
    pub fn add_rules(&mut self, specs: Vec<RuleSpec>, owner: Option<Owner>) {
        let rules = specs.into_iter().map(|spec| DesiredRule { spec, came_with: None, owner });
        self.rules.extend(rules);
    }

    /// One rule shall be gone: of several that say the same, the one with so many before it.
    pub fn remove_rule(&mut self, rule: &DesiredRule, equals_before: usize) {
        let equal = self.rules.iter().enumerate().filter(|(_, other)| *other == rule);
        let places: Vec<usize> = equal.map(|(at, _)| at).collect();
        if let Some(at) = places.get(equals_before).or_else(|| places.last()) {
            self.rules.remove(*at);
        }
    }

    /// A service shall run at this level.
    pub fn set_level(&mut self, name: &Name, level: Level) {
        if let Some(service) = self.services.get_mut(name) {
            service.level = Some(level);
        }
    }

    /// What the operator wants here, and what principals have in another state, the present one: a
    /// node file and an earlier generation say nothing of theirs.
    #[must_use]
    pub fn with_owned_of(mut self, present: &Self) -> Self {
        let owned: Vec<Name> = self
            .services
            .iter()
            .filter(|(_, it)| it.owner.is_some())
            .map(|(name, _)| name.clone())
            .collect();
        owned.iter().for_each(|name| self.remove(name));
        self.rules.retain(|rule| rule.owner.is_none());
        self.sessions.retain(|_, session| session.owner.is_none());
        for (name, service) in present.services.iter().filter(|(_, it)| it.owner.is_some()) {
            // A name that the operator gives to something else is his.
            self.services.entry(name.clone()).or_insert_with(|| service.clone());
        }
        let is_there = |rule: &&DesiredRule| {
            let to = rule.spec.action.service();
            let its = to.and_then(|to| self.services.get(to));
            rule.owner.is_some() && (to.is_none() || its.is_some_and(|it| it.owner.is_some()))
        };
        let rules: Vec<DesiredRule> = present.rules.iter().filter(is_there).cloned().collect();
        self.rules.extend(rules);
        self.keep_sessions_of(present);
        self
    }

    /// Sessions that are a principal's, and those in which something of a principal's is, stay as
    /// they are; one that the operator names is as he says.
    fn keep_sessions_of(&mut self, present: &Self) {
        let services = self.services.values().filter(|it| it.owner.is_some());
        let rules = self.rules.iter().filter(|it| it.owner.is_some());
        let used: BTreeSet<Name> = services
            .map(|it| it.session.clone())
            .chain(rules.map(|it| it.spec.session.clone()))
            .collect();
        let stay = present.sessions.iter();
        for (name, session) in stay.filter(|(name, it)| it.owner.is_some() || used.contains(*name))
        {
            self.sessions.entry(name.clone()).or_insert_with(|| session.clone());
        }
    }

    /// What of it can be there while only these services are.
    #[must_use]
    pub fn restricted_to(&self, present: impl Fn(&Name) -> bool) -> Self {
        let mut rest = self.clone();
        let absent: Vec<Name> =
            self.services.keys().filter(|name| !present(name)).cloned().collect();
        absent.iter().for_each(|name| rest.remove(name));
        rest
    }
}

#[cfg(test)]
mod tests;
