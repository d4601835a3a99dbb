//! Steps from one desired state to another: the commands and their order.
//!
//! ```text
//! sessions ─▶ new services start ─▶ changed ones are replaced ─▶ rules, edges, budgets: at once
//!                        ─▶ moves ─▶ recorded ─▶ leftovers are removed, sessions last
//! ```
//!
//! No rule or edge leads to a new service before it runs, or to an old one when it stops, so
//! packets of unchanged services always find them. A replaced service keeps its rules, edges and
//! budget until all of them change; only a service that changes its session is without them for a
//! while. All steps that can fail come before the record; the steps after it cannot, so that no
//! service is stopped, and its memory lost, for a state that is not reached. Sessions to be
//! removed lose their reservations in the first step, which makes room for new ones, and exist
//! until they are empty.

use units::Name;

use super::differences::{Consequence, manner};
use super::{DesiredState, order};

/// Step of a change; the next one begins when it is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Allows or forbids levels below user level.
    Bpf {
        /// True if these levels are allowed.
        enabled: bool,
    },
    /// Sets the sessions and their reservations; sessions that are to be removed lose theirs.
    Sessions,
    /// Starts a service, without rules and edges.
    Deploy {
        /// Name of the service.
        service: Name,
    },
    /// Replaces the version of a service, with its state.
    Replace {
        /// Name of the service.
        service: Name,
    },
    /// Stops a service, with the rules and edges that lead to it, and starts it in another session.
    Renew {
        /// Name of the service.
        service: Name,
    },
    /// Sets all rules, edges, budgets and preferred levels at once.
    Arrange,
    /// Moves a service to its desired level.
    Move {
        /// Name of the service.
        service: Name,
    },
    /// Records the new state for the next start.
    Record,
    /// Stops a service that no rule or edge leads to.
    Remove {
        /// Name of the service.
        service: Name,
    },
    /// Removes an empty session, once its services have stopped.
    RemoveSession {
        /// Name of the session.
        session: Name,
    },
}

/// Returns the steps from one state to another; empty if they are equal.
#[must_use]
pub fn steps(from: &DesiredState, to: &DesiredState) -> Vec<Step> {
    if from == to {
        return Vec::new();
    }
    let mut steps = Vec::new();
    // Allowed before a service moves down, forbidden before a service starts.
    if from.bpf != to.bpf {
        steps.push(Step::Bpf { enabled: to.bpf });
    }
    if from.sessions != to.sessions {
        steps.push(Step::Sessions);
    }
    let (mut moves, mut in_place) = (Vec::new(), false);
    // Steps that lose no state come first: if one fails, nothing is lost.
    let (mut replacements, mut renewals) = (Vec::new(), Vec::new());
    for (service, wanted) in &to.services {
        let name = || service.clone();
        let Some(present) = from.services.get(service) else {
            steps.push(Step::Deploy { service: name() });
            in_place = true;
            continue;
        };
        match manner(present, wanted) {
            Consequence::Replaced => {
                replacements.push(Step::Replace { service: name() });
                in_place = true;
            }
            Consequence::Renewed => {
                renewals.push(Step::Renew { service: name() });
                in_place = true;
            }
            Consequence::InPlace if present.level != wanted.level => {
                moves.push(Step::Move { service: name() });
                in_place = true;
            }
            Consequence::InPlace => in_place |= present != wanted,
        }
    }
    steps.extend(replacements);
    steps.extend(renewals);
    let gone: Vec<&Name> =
        from.services.keys().filter(|name| !to.services.contains_key(*name)).collect();
    if in_place || !gone.is_empty() || !order::same_order(&from.rules, &to.rules) {
        steps.push(Step::Arrange);
    }
    steps.extend(moves);
    steps.push(Step::Record);
    steps.extend(gone.into_iter().map(|service| Step::Remove { service: service.clone() }));
    let gone = from.sessions.keys().filter(|name| !to.sessions.contains_key(*name));
    steps.extend(gone.map(|session| Step::RemoveSession { session: session.clone() }));
    steps
}
