//! How to come from one state to another: which commands, in which order.
//!
//! ```text
//! sessions ─▶ new services start ─▶ changed ones are replaced ─▶ rules, edges, budgets: at once
//!                        ─▶ moves ─▶ recorded ─▶ what is left over is removed, sessions last
//! ```
//!
//! Nothing leads to a new service before it runs, and nothing to an old one when it stops, so
//! packets of services that stay as they are never meet a node without them. One that is
//! replaced keeps its rules, edges and budget until all of them change; only one that changes its
//! session is without them meanwhile. All that can fail
//! comes before the record; what comes after it cannot, so that nothing whose memory would be
//! lost is stopped for a state that does not come about. Sessions that go are promised nothing from
//! the first step on, so that those that come have room, and are there until nothing is in them.

use units::Name;

use super::differences::{Manner, manner};
use super::{DesiredState, order};

/// One thing to do; the next begins when it is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Allow or forbid levels below user.
    Bpf {
        /// Whether they are allowed.
        enabled: bool,
    },
    /// Have the sessions that shall be there, with their reservations; those that go are promised
    /// nothing any more.
    Sessions,
    /// Start a service, without rules and edges.
    Deploy {
        /// Its name.
        service: Name,
    },
    /// Put another version in the place of a service, with what it knows.
    Replace {
        /// Its name.
        service: Name,
    },
    /// Stop a service, with the rules and edges that lead to it, and start it for another session.
    Renew {
        /// Its name.
        service: Name,
    },
    /// Put in place all rules, edges, budgets and wishes for levels, at once.
    Arrange,
    /// Let a service run where it is wanted now.
    Move {
        /// Its name.
        service: Name,
    },
    /// Keep the new state for the next start.
    Record,
    /// Stop a service to which nothing leads any more.
    Remove {
        /// Its name.
        service: Name,
    },
    /// Remove a session in which nothing is any more, once its services have stopped.
    RemoveSession {
        /// Its name.
        session: Name,
    },
}

/// The steps from one state to another; none when they are equal.
#[must_use]
pub fn steps(from: &DesiredState, to: &DesiredState) -> Vec<Step> {
    if from == to {
        return Vec::new();
    }
    let mut steps = Vec::new();
    // Allowed before something goes down, forbidden before something starts.
    if from.bpf != to.bpf {
        steps.push(Step::Bpf { enabled: to.bpf });
    }
    if from.sessions != to.sessions {
        steps.push(Step::Sessions);
    }
    let (mut moves, mut in_place) = (Vec::new(), false);
    // What loses nothing comes first: if it fails, nothing is lost.
    let (mut replacements, mut renewals) = (Vec::new(), Vec::new());
    for (service, wanted) in &to.services {
        let name = || service.clone();
        let Some(present) = from.services.get(service) else {
            steps.push(Step::Deploy { service: name() });
            in_place = true;
            continue;
        };
        match manner(present, wanted) {
            Manner::Replaced => {
                replacements.push(Step::Replace { service: name() });
                in_place = true;
            }
            Manner::Renewed => {
                renewals.push(Step::Renew { service: name() });
                in_place = true;
            }
            Manner::InPlace if present.level != wanted.level => {
                moves.push(Step::Move { service: name() });
                in_place = true;
            }
            Manner::InPlace => in_place |= present != wanted,
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
