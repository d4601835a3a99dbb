//! Desired state of a node: sessions, services, rules and the switch for BPF, independent of who
//! asked for them and of restarts.
//!
//! ```text
//! node file, tam apply ─▶ ┌──────────────┐ ─ check ─▶ refusal, with the part at fault
//! deploy, rule add … ───▶ │ DesiredState │ ─ differences ─▶ tam diff
//! journal, at a start ──▶ └──────────────┘ ─ steps ─▶ commands for the node, in their order
//! ```
//!
//! The state is plain data: nothing here knows where it is stored, or how long a step takes.
//! Services and rules are defined in `service` and `rule`; errors in them are found by the node.

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

pub use check::{Fault, Location, check};
pub use differences::{Consequence, Difference, FieldChange, differences};
pub use losses::losses;
pub use order::{RuleChanges, rule_changes};
pub use steps::{Step, steps};

/// Desired state of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DesiredState {
    /// True if services may run below user level.
    #[serde(default = "allowed")]
    pub bpf: bool,
    /// Sessions, without the built-in ones.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub sessions: BTreeMap<Name, DesiredSession>,
    /// Services, by name.
    #[serde(default)]
    pub services: BTreeMap<Name, DesiredService>,
    /// Rules; of two with equal priority the first in the list is better.
    #[serde(default)]
    pub rules: Vec<DesiredRule>,
}

/// Desired session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DesiredSession {
    /// Reservation of the session.
    #[serde(default)]
    pub reservation: Reservation,
    /// Owner of the session; `None` is the operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
}

impl From<&Session> for DesiredSession {
    /// Returns the desired form of an existing session.
    fn from(session: &Session) -> Self {
        Self { reservation: session.reservation.clone(), owner: session.owner }
    }
}

/// Desired service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DesiredService {
    /// Digest of the module.
    pub digest: String,
    /// Parameters set by the operator.
    #[serde(default)]
    pub parameters: BTreeMap<String, String>,
    /// Session that pays.
    pub session: Name,
    /// Level to run at; `None` leaves the choice to the module.
    #[serde(default)]
    pub level: Option<Level>,
    /// Services that follow in the graph, by the number of the edge that leads there.
    #[serde(default)]
    pub then: BTreeMap<u16, Name>,
    /// Budget below user level.
    #[serde(default)]
    pub budget: Budget,
    /// Failure policy: the fate of the service's packets while it is down.
    #[serde(default)]
    pub on_failure: OnFailure,
    /// Owner of the service; `None` is the operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// Host functions that the module may use.
    #[serde(default)]
    pub functions: HostFunctions,
}

impl DesiredService {
    /// Returns the desired form of an existing service, at this level.
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

    /// Returns true if the service runs the desired version: the same module, parameters and host
    /// functions.
    #[must_use]
    pub fn is_version(&self, service: &Service) -> bool {
        let module = &service.module;
        (&self.digest, &self.parameters, self.functions)
            == (&module.digest, &service.parameters, module.granted)
    }
}

/// Desired rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DesiredRule {
    /// Specification of the rule.
    pub spec: RuleSpec,
    /// Service that the rule was added with, and is removed with.
    #[serde(default)]
    pub came_with: Option<Name>,
    /// Owner of the rule; `None` is the operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
}

const fn allowed() -> bool {
    true
}

impl Default for DesiredState {
    /// Returns the state of an empty node, where every level is allowed.
    fn default() -> Self {
        Self { bpf: true, sessions: BTreeMap::new(), services: BTreeMap::new(), rules: Vec::new() }
    }
}

impl DesiredState {
    /// Returns true if a service has the failure policy `closed`.
    #[must_use]
    pub fn has_closed_service(&self) -> bool {
        self.services.values().any(|service| service.on_failure.is_closed())
    }

    /// Returns true if there is no service, no session with a reservation and no rule.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty() && self.services.is_empty() && self.rules.is_empty()
    }

    /// Adds a service, in place of any of its name, with these rules.
    pub fn deploy(&mut self, name: Name, service: DesiredService, rules: Vec<RuleSpec>) {
        self.rules.retain(|rule| rule.came_with.as_ref() != Some(&name));
        let (came_with, owner) = (Some(name.clone()), service.owner);
        let rules =
            rules.into_iter().map(|spec| DesiredRule { spec, came_with: came_with.clone(), owner });
        self.rules.extend(rules);
        self.services.insert(name, service);
    }

    /// Removes a service, with the rules and edges that lead to it.
    pub fn remove(&mut self, name: &Name) {
        self.services.remove(name);
        self.rules.retain(|rule| rule.spec.action.service() != Some(name));
        for service in self.services.values_mut() {
            service.then.retain(|_, next| next != name);
        }
    }

    /// Adds a session, or changes it.
    pub fn set_session(&mut self, name: Name, session: DesiredSession) {
        self.sessions.insert(name, session);
    }

    /// Removes a session, with the services and rules in it.
    pub fn remove_session(&mut self, name: &Name) {
        let services = self.services.iter().filter(|(_, it)| it.session == *name);
        let services: Vec<Name> = services.map(|(service, _)| service.clone()).collect();
        services.iter().for_each(|service| self.remove(service));
        self.rules.retain(|rule| rule.spec.session != *name);
        self.sessions.remove(name);
    }

    /// Removes an empty session; one that is not empty becomes the operator's and loses its
    /// reservation.
    pub fn give_up_session(&mut self, name: &Name) {
        let in_use = self.services.values().any(|it| it.session == *name)
            || self.rules.iter().any(|it| it.spec.session == *name);
        match in_use {
            true => drop(self.sessions.insert(name.clone(), DesiredSession::default())),
            false => drop(self.sessions.remove(name)),
        }
    }

    /// Appends rules.
    pub fn add_rules(&mut self, specs: Vec<RuleSpec>, owner: Option<Owner>) {
        let rules = specs.into_iter().map(|spec| DesiredRule { spec, came_with: None, owner });
        self.rules.extend(rules);
    }

    /// Removes one rule: of several equal ones, the one that `equals_before` others precede.
    pub fn remove_rule(&mut self, rule: &DesiredRule, equals_before: usize) {
        let equal = self.rules.iter().enumerate().filter(|(_, other)| *other == rule);
        let locations: Vec<usize> = equal.map(|(at, _)| at).collect();
        if let Some(at) = locations.get(equals_before).or_else(|| locations.last()) {
            self.rules.remove(*at);
        }
    }

    /// Sets the level of a service.
    pub fn set_level(&mut self, name: &Name, level: Level) {
        if let Some(service) = self.services.get_mut(name) {
            service.level = Some(level);
        }
    }

    /// Returns this state's part of the operator with the part of all principals in `present`: node
    /// files and earlier generations do not cover what principals deployed.
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
            // The operator may reuse a name.
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

    /// Keeps the sessions that a principal owns or has something in; those that the operator names
    /// follow this state.
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

    /// Returns the part of this state that is possible while only the services that `present`
    /// accepts exist.
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
