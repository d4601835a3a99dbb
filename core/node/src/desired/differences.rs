//! What one desired state has and another has not, as `tam diff` shows it.

use std::collections::{BTreeMap, BTreeSet};

use ::session::{Reservation, Size, Weight};
use abi::{HostFunctions, Level};
use serde::{Deserialize, Serialize};
use units::Name;

use super::{DesiredRule, DesiredService, DesiredSession, DesiredState, order};
use crate::budget::{Budget, OverBudget};
use crate::owner::same_principal;
use crate::policy::OnFailure;

/// One thing that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "kebab-case")]
pub enum Difference {
    /// Modules may run below user level, or no longer.
    Bpf {
        /// Whether they may.
        enabled: bool,
    },
    /// A session that is not there yet.
    SessionAdded {
        /// Its name.
        session: Name,
        /// What it shall be promised.
        fields: Vec<FieldChange>,
    },
    /// A session that shall be promised something else.
    SessionChanged {
        /// Its name.
        session: Name,
        /// What.
        fields: Vec<FieldChange>,
    },
    /// A session that shall be gone.
    SessionRemoved {
        /// Its name.
        session: Name,
    },
    /// A service that is not there yet.
    ServiceAdded {
        /// Its name.
        service: Name,
        /// What it shall be.
        fields: Vec<FieldChange>,
    },
    /// A service that shall be another.
    ServiceChanged {
        /// Its name.
        service: Name,
        /// What of it.
        fields: Vec<FieldChange>,
        /// What that means for it.
        manner: Manner,
    },
    /// A service that shall be gone.
    ServiceRemoved {
        /// Its name.
        service: Name,
    },
    /// A rule that is not there yet.
    RuleAdded {
        /// The rule.
        rule: DesiredRule,
    },
    /// A rule that shall be gone.
    RuleRemoved {
        /// The rule.
        rule: DesiredRule,
    },
    /// The same rules in another order, which matters where equal priorities meet.
    RuleOrder,
}

/// One field of a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FieldChange {
    /// Its name as in a node file.
    pub field: String,
    /// What it was; none where it was not set.
    pub before: Option<String>,
    /// What it shall be; none where it is no longer set.
    pub after: Option<String>,
}

/// What a change means for a service that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Manner {
    /// It runs on.
    InPlace,
    /// Another version takes its place, and takes over what it knows if it can.
    Replaced,
    /// It stops, and starts for another session, without what it knew.
    Renewed,
}

/// What must change to come from one state to another: sessions, then services, each by name, then
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

/// Whether a service can become another while it runs.
pub(super) fn manner(before: &DesiredService, after: &DesiredService) -> Manner {
    if before.session != after.session || !same_principal(before.owner, after.owner) {
        Manner::Renewed
    } else if (&before.digest, &before.parameters, before.functions)
        != (&after.digest, &after.parameters, after.functions)
    {
        Manner::Replaced
    } else {
        Manner::InPlace
    }
}

/// What a session is promised as texts, by the names of fields in a node file.
fn promised(session: &DesiredSession) -> BTreeMap<String, String> {
    // All of it, so that a new field is not forgotten here.
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

/// A service as texts, by the names of fields in a node file.
fn shown(service: &DesiredService) -> BTreeMap<String, String> {
    // All of it, so that a new field is not forgotten here.
    // Whose it is has numbers that mean nothing to a reader.
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
