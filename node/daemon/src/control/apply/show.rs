//! Desired state in the API's words.

use crate::config::NodeFile;
use crate::control::desired::Desired;
use crate::journal::Head;
use api::{DesiredChange, DesiredInfo, FieldInfo, GenerationInfo, SCHEMA_VERSION, WaitingInfo};
use node::desired::{Consequence, DesiredRule, Difference, FieldChange};
use std::collections::BTreeMap;
use units::{Name, Nanos};

/// Returns a difference between two states in the API's words.
pub(super) fn shown_change(
    difference: &Difference,
    losses: &BTreeMap<Name, String>,
) -> DesiredChange {
    let of = |kind: &str| DesiredChange { kind: kind.to_owned(), ..DesiredChange::default() };
    match difference {
        Difference::Bpf { enabled } => {
            let state = if *enabled { "on" } else { "off" };
            DesiredChange { text: format!("bpf {state}"), ..of("bpf") }
        }
        Difference::SessionAdded { session, fields } => DesiredChange {
            session: Some(session.to_string()),
            text: format!("session {session}"),
            fields: fields.iter().map(field).collect(),
            ..of("session-added")
        },
        Difference::SessionChanged { session, fields } => DesiredChange {
            session: Some(session.to_string()),
            text: format!("session {session}: has another reservation"),
            fields: fields.iter().map(field).collect(),
            ..of("session-changed")
        },
        Difference::SessionRemoved { session } => DesiredChange {
            session: Some(session.to_string()),
            text: format!("session {session}"),
            ..of("session-removed")
        },
        Difference::ServiceAdded { service, fields } => DesiredChange {
            service: Some(service.to_string()),
            text: format!("service {service}"),
            fields: fields.iter().map(field).collect(),
            ..of("service-added")
        },
        Difference::ServiceChanged { service, fields, manner } => DesiredChange {
            service: Some(service.to_string()),
            text: match (manner, losses.get(service)) {
                (Consequence::InPlace, _) => format!("service {service}: changes while it runs"),
                (_, Some(why)) => format!("service {service}: begins empty, since {why}"),
                (Consequence::Replaced, None) => {
                    format!("service {service}: another version takes its place")
                }
                (Consequence::Renewed, None) => format!("service {service}: starts anew"),
            },
            fields: fields.iter().map(field).collect(),
            replaced: *manner != Consequence::InPlace,
            state_lost: losses.get(service).cloned(),
            ..of("service-changed")
        },
        Difference::ServiceRemoved { service } => DesiredChange {
            service: Some(service.to_string()),
            text: format!("service {service}"),
            ..of("service-removed")
        },
        Difference::RuleAdded { rule } => {
            DesiredChange { text: rule_text(rule), ..of("rule-added") }
        }
        Difference::RuleRemoved { rule } => {
            DesiredChange { text: rule_text(rule), ..of("rule-removed") }
        }
        Difference::RuleOrder => DesiredChange {
            text: "rules of one priority in another order".to_owned(),
            ..of("rule-order")
        },
    }
}

/// Returns the desired state in the API's words, without its earlier generations.
pub(crate) fn shown_desired(file: &NodeFile, desired: &Desired, now: Nanos) -> DesiredInfo {
    let left = desired.unconfirmed().map(|it| it.until.saturating_sub(now).as_millis() / 1000);
    let short = desired.shortfall().sessions.iter().map(|(session, reason)| WaitingInfo {
        what: format!("what session {session} shall be promised"),
        reason: reason.clone(),
    });
    let services = desired.shortfall().services.iter().map(|(service, reason)| WaitingInfo {
        what: format!("service {service}"),
        reason: reason.clone(),
    });
    let rules = desired
        .shortfall()
        .rules
        .iter()
        .map(|(rule, reason)| WaitingInfo { what: rule_text(rule), reason: reason.clone() });
    DesiredInfo {
        schema_version: SCHEMA_VERSION,
        node: file.name.to_string(),
        generation: desired.generation(),
        confirm_within_s: left,
        waiting: short.chain(services).chain(rules).collect(),
        generations: Vec::new(),
    }
}

fn field(change: &FieldChange) -> FieldInfo {
    FieldInfo {
        field: change.field.clone(),
        before: change.before.clone(),
        after: change.after.clone(),
    }
}

fn rule_text(rule: &DesiredRule) -> String {
    let spec = &rule.spec;
    let with = rule.came_with.as_ref().map(|_| " (comes with it)").unwrap_or_default();
    format!(
        "rule {} -> {}{with}, priority {}, session {}, stage {}",
        spec.r#match,
        spec.action,
        spec.priority,
        spec.session,
        spec.stage()
    )
}

/// Returns the generations of the journal in the API's words.
pub(crate) fn generations(heads: Vec<(u64, Head)>) -> Vec<GenerationInfo> {
    let shown = |(generation, head): (u64, Head)| GenerationInfo {
        generation,
        cause: head.cause,
        sessions: head.sessions,
        services: head.services,
        rules: head.rules,
        unconfirmed: head.unconfirmed_over.is_some(),
    };
    heads.into_iter().map(shown).collect()
}
