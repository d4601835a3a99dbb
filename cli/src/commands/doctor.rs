//! `tam doctor`: what this machine can do, and what to do about the rest.
//!
//! Two kinds of checks: `machine` reads what the kernel says of itself, `trial`
//! tries things in a network namespace that is gone afterwards.

mod machine;
mod trial;

use super::Context;
use crate::failure::{DONE, Outcome};
use crate::output::Rows;
use api::{ErrorCode, SCHEMA_VERSION};
use clap::Args;
use serde::Serialize;

/// Arguments of `tam doctor`.
#[derive(Debug, Args)]
pub struct Doctor {}

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Present, and as it should be.
    Ok,
    /// Absent, or not as it should be.
    Missing,
    /// Not known: the check could not be made.
    Unknown,
}

/// Check of the machine, with its result. Its fields are those of `tam doctor --json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Name of what is checked.
    pub name: &'static str,
    /// Result.
    pub state: State,
    /// False for what a node can do without.
    pub needed: bool,
    /// Findings, in words.
    pub found: String,
    /// Advice for the operator, unless all is well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

#[derive(Serialize)]
struct Document<'a> {
    schema_version: u32,
    ready: bool,
    checks: &'a [Check],
}

impl Check {
    /// Makes a check of something that a node needs.
    pub fn needed(name: &'static str, state: State, found: impl Into<String>) -> Self {
        Self { name, state, needed: true, found: found.into(), advice: None }
    }

    /// Makes a check of something that only some uses need.
    pub fn useful(name: &'static str, state: State, found: impl Into<String>) -> Self {
        Self { needed: false, ..Self::needed(name, state, found) }
    }

    /// Adds advice for the operator, unless all is well.
    #[must_use]
    pub fn advice(self, advice: impl Into<String>) -> Self {
        let advice = (self.state != State::Ok).then(|| advice.into());
        Self { advice, ..self }
    }
}

impl From<bool> for State {
    fn from(is_ok: bool) -> Self {
        if is_ok { Self::Ok } else { Self::Missing }
    }
}

impl Doctor {
    pub(crate) fn run(&self, context: &Context<'_>) -> Outcome {
        let mut checks = machine::checks();
        context.output.progress("trying devices and sockets in a network namespace");
        checks.extend(trial::checks());
        let ready = is_ready(&checks);
        let document = Document { schema_version: SCHEMA_VERSION, ready, checks: &checks };
        context.output.result(&document, || text(&checks, ready))?;
        Ok(if ready { DONE } else { ErrorCode::Unsupported.exit_status() })
    }
}

fn is_ready(checks: &[Check]) -> bool {
    checks.iter().all(|check| !check.needed || check.state == State::Ok)
}

fn text(checks: &[Check], ready: bool) -> String {
    let mut rows = Rows::new(["check", "state", "found"]);
    for check in checks {
        let state = match (check.state, check.needed) {
            (State::Ok, _) => "ok",
            (State::Missing, true) => "MISSING",
            (State::Missing, false) => "missing",
            (State::Unknown, _) => "unknown",
        };
        rows.add([check.name.to_owned(), state.to_owned(), check.found.clone()]);
        if let Some(advice) = &check.advice {
            rows.add([String::new(), String::new(), format!("-> {advice}")]);
        }
    }
    let end = if ready {
        "This machine can run a node."
    } else {
        "This machine cannot run a node yet: see what is MISSING or unknown above."
    };
    format!("{rows}\n{end}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_checks_that_a_node_needs_decide_whether_it_is_ready() {
        let useful = Check::useful("clang", State::Missing, "none");
        assert!(is_ready(std::slice::from_ref(&useful)));
        assert!(!is_ready(&[useful, Check::needed("rights", State::Unknown, "?")]));
    }

    #[test]
    fn a_passed_check_has_no_advice() {
        assert_eq!(Check::needed("rights", State::Ok, "root").advice("be root").advice, None);
    }
}
