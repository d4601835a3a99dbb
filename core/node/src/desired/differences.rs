//! Differences between two desired states, as `tam diff` shows them.

use std::collections::{BTreeMap, BTreeSet};

use ::session::{Reservation, Size, Weight};
use abi::{HostFunctions, Level};
use serde::{Deserialize, Serialize};
use units::Name;

use super::{DesiredRule, DesiredService, DesiredSession, DesiredState, order};
use crate::budget::{Budget, OverBudget};
use crate::owner::same_principal;
use crate::policy::OnFailure;

/// Difference between two desired states.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "kebab-case")]
pub enum Difference {
    /// The switch for levels below user level changes.
    Bpf {
        /// True if these levels are allowed.
        enabled: bool,
    },
    /// The session is new.
    SessionAdded {
        /// Name of the session.
        session: Name,
        /// Fields of its reservation.
        fields: Vec<FieldChange>,
    },
    /// The reservation of the session changes.
    SessionChanged {
        /// Name of the session.
        session: Name,
        /// Fields that change.
        fields: Vec<FieldChange>,
    },
    /// The session is removed.
    SessionRemoved {
        /// Name of the session.
        session: Name,
    },
    /// The service is new.
    ServiceAdded {
        /// Name of the service.
        service: Name,
        /// Fields of the service.
        fields: Vec<FieldChange>,
    },
    /// The service changes.
    ServiceChanged {
        /// Name of the service.
        service: Name,
        /// Fields that change.
        fields: Vec<FieldChange>,
        /// Consequence for the running service.
        manner: Consequence,
    },
    /// The service is removed.
    ServiceRemoved {
        /// Name of the service.
        service: Name,
    },
    /// The rule is new.
    RuleAdded {
        /// Added rule.
        rule: DesiredRule,
    },
    /// The rule is removed.
    RuleRemoved {
        /// Removed rule.
        rule: DesiredRule,
    },
    /// The rules are the same in another order, and some of equal priority overlap.
    RuleOrder,
}

/// Change of one field of a service or session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FieldChange {
    /// Name of the field in a node file.
    pub field: String,
    /// Value before; `None` where it was not set.
    pub before: Option<String>,
    /// Value after; `None` where it is not set.
    pub after: Option<String>,
}

/// Consequence of a change for a running service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Consequence {
    /// The service runs on.
    InPlace,
    /// Another version replaces it, and takes over its state if it can.
    Replaced,
    /// The service stops, and starts in another session, without its state.
    Renewed,
}

/// Returns the changes from one state to another: sessions, then services, each by name, then
/// rules.
#[must_use]
pub fn differences(from: &DesiredState, to: &DesiredState) -> Vec<Difference> {
    let mut found = Vec::new();
    if from.bpf != to.bpf {
        found.push(Difference::Bpf { enabled: to.bpf });
    }
    sessions(from, to, &mut found);
    let mut names: Vec<&Name> = from.services.keys().chain(to.services.keys()).collect();
    names.sort_unstable();
    names.dedup();
    for name in names {
        let service = name.clone();
        match (from.services.get(name), to.services.get(name)) {
            (None, Some(after)) => {
                let fields = fields(&BTreeMap::new(), &shown(after));
                found.push(Difference::ServiceAdded { service, fields });
            }
            (Some(_), None) => found.push(Difference::ServiceRemoved { service }),
            (Some(before), Some(after)) if before != after => {
                let fields = fields(&shown(before), &shown(after));
                let manner = manner(before, after);
                found.push(Difference::ServiceChanged { service, fields, manner });
            }
            _ => {}
        }
    }
    rules(from, to, &mut found);
    found
}

fn sessions(from: &DesiredState, to: &DesiredState, found: &mut Vec<Difference>) {
    let names: BTreeSet<&Name> = from.sessions.keys().chain(to.sessions.keys()).collect();
    for name in names {
        let session = name.clone();
        match (from.sessions.get(name), to.sessions.get(name)) {
            (None, Some(after)) => {
                let fields = fields(&BTreeMap::new(), &promised(after));
                found.push(Difference::SessionAdded { session, fields });
            }
            (Some(_), None) => found.push(Difference::SessionRemoved { session }),
            (Some(before), Some(after)) if before != after => {
                let fields = fields(&promised(before), &promised(after));
                found.push(Difference::SessionChanged { session, fields });
            }
            _ => {}
        }
    }
}

fn rules(from: &DesiredState, to: &DesiredState, found: &mut Vec<Difference>) {
    let (removed, added) = order::unmatched(&from.rules, &to.rules);
    if removed.is_empty() && added.is_empty() && !order::same_order(&from.rules, &to.rules) {
        found.push(Difference::RuleOrder);
    }
    found.extend(removed.into_iter().map(|rule| Difference::RuleRemoved { rule: rule.clone() }));
    found.extend(added.into_iter().map(|rule| Difference::RuleAdded { rule: rule.clone() }));
}

/// Returns how a service can change into another.
pub(super) fn manner(before: &DesiredService, after: &DesiredService) -> Consequence {
    if before.session != after.session || !same_principal(before.owner, after.owner) {
        Consequence::Renewed
    } else if (&before.digest, &before.parameters, before.functions)
        != (&after.digest, &after.parameters, after.functions)
    {
        Consequence::Replaced
    } else {
        Consequence::InPlace
    }
}

/// Returns the reservation of a session as texts, by the names of fields in a node file.
fn promised(session: &DesiredSession) -> BTreeMap<String, String> {
    // Destructured in full, so that a new field is not forgotten here.
    let DesiredSession { reservation, owner: _ } = session;
    let Reservation { processors, below, memory, queue, send, weight } = reservation;
    let mut fields = BTreeMap::new();
    for (at, processor) in processors.iter().enumerate() {
        fields.insert(format!("cpu.{at}"), processor.to_string());
    }
    if let Some(below) = below {
        fields.insert("below".to_owned(), below.to_string());
    }
    for (name, size) in [("memory", memory), ("queue", queue)] {
        if let Some(size) = size {
            fields.insert(name.to_owned(), Size(*size).to_string());
        }
    }
    for (port, share) in send {
        fields.insert(format!("send.{port}"), share.to_string());
    }
    if *weight != Weight::default() {
        fields.insert("weight".to_owned(), weight.to_string());
    }
    fields
}

/// Returns a service as texts, by the names of fields in a node file.
fn shown(service: &DesiredService) -> BTreeMap<String, String> {
    // Destructured in full, so that a new field is not forgotten here. Owners are numbers that mean
    // nothing to a reader.
    let DesiredService {
        digest,
        parameters,
        session,
        level,
        then,
        budget,
        on_failure,
        owner: _,
        functions,
    } = service;
    let mut fields = BTreeMap::from([
        ("module".to_owned(), digest.clone()),
        ("session".to_owned(), session.to_string()),
    ]);
    for (name, value) in parameters {
        fields.insert(format!("parameters.{name}"), value.clone());
    }
    if let Some(level) = level {
        fields.insert("level".to_owned(), Level::name(*level).to_owned());
    }
    for (edge, next) in then {
        fields.insert(format!("then.{edge}"), next.to_string());
    }
    if *on_failure != OnFailure::default() {
        fields.insert("on_failure".to_owned(), on_failure.to_string());
    }
    if *functions != HostFunctions::ALL {
        fields.insert("functions".to_owned(), functions.to_string());
    }
    let Budget { fuel, packets, bytes, over } = budget;
    for (name, limit) in [("fuel", fuel), ("packets", packets), ("bytes", bytes)] {
        if let Some(limit) = limit {
            fields.insert(format!("budget.{name}"), limit.to_string());
        }
    }
    if *budget != Budget::default() {
        let over = match over {
            OverBudget::Drop => "drop",
            OverBudget::Raise => "raise",
        };
        fields.insert("budget.over".to_owned(), over.to_owned());
    }
    fields
}

fn fields(before: &BTreeMap<String, String>, after: &BTreeMap<String, String>) -> Vec<FieldChange> {
    let mut names: Vec<&String> = before.keys().chain(after.keys()).collect();
    names.sort_unstable();
    names.dedup();
    let change = |name: &String| {
        let (before, after) = (before.get(name).cloned(), after.get(name).cloned());
        (before != after).then(|| FieldChange { field: name.clone(), before, after })
    };
    names.into_iter().filter_map(change).collect()
}
