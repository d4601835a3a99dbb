//! End of a change of the desired state that took several steps: answers, events, confirmation.

use crate::answer::Answer;
use crate::control::recorded::Unconfirmed;
use crate::control::signatures;
use crate::control::state::NodeState;
use crate::reply::Reply;
use api::{Applied, EventKind};
use units::Nanos;

/// Recipient of the result of a change.
pub(crate) enum Finish {
    /// Sender of a desired state.
    Applied { answered: Answered, confirm: Option<Confirm> },
    /// Sender of a rollback; `before` waits for its confirmation again if the rollback fails.
    RolledBack { answered: Answered, before: Option<Unconfirmed> },
    /// Expiry of an unconfirmed state, which answers no request.
    TakenBack { cause: String },
}

/// Request for a change, and its answer as far as it was known at the beginning.
pub(crate) struct Answered {
    pub(crate) answer: Applied,
    pub(crate) cause: String,
    pub(crate) since: Nanos,
    pub(crate) reply: Reply<Applied>,
}

/// Confirmation that a client asked for.
pub(crate) struct Confirm {
    pub(crate) within: Nanos,
    /// Generation to go back to without it.
    pub(crate) back_to: u64,
}

/// Answers a change that is made, or was taken back.
pub(crate) fn finish(state: &mut NodeState, finish: Finish, done: Answer<()>) {
    match (finish, done) {
        (Finish::Applied { answered, .. }, Err(problem)) => answered.reply.refuse(problem),
        (Finish::Applied { answered, confirm }, Ok(())) => {
            let cause = answered.cause.clone();
            answer(state, EventKind::StateApplied, answered);
            let wait = confirm.map(|Confirm { within, back_to }| Unconfirmed {
                until: state.now() + within,
                back_to,
                cause,
            });
            state.desired.set_unconfirmed(wait);
        }
        (Finish::RolledBack { answered, before }, Err(problem)) => {
            state.desired.set_unconfirmed(before);
            answered.reply.refuse(problem);
        }
        (Finish::RolledBack { answered, .. }, Ok(())) => {
            answer(state, EventKind::StateRolledBack, answered);
        }
        (Finish::TakenBack { cause }, Ok(())) => {
            state.note_state(EventKind::StateRolledBack, &cause);
        }
        (Finish::TakenBack { .. }, Err(problem)) => tracing::error!(
            problem = problem.message,
            "the state before could not be restored as a whole: compare with `tam diff`, and use `tam rollback`"
        ),
    }
}

fn answer(state: &mut NodeState, kind: EventKind, answered: Answered) {
    let Answered { mut answer, cause, since, reply } = answered;
    let services = state.desired.state().services.values();
    let digests: Vec<_> = services.flat_map(|service| service.digest.parse()).collect();
    signatures::mark_versions(state, digests);
    state.note_state(kind, &cause);
    answer.generation = state.desired.generation();
    answer.took_ms = state.now().saturating_sub(since).as_millis();
    reply.ok(answer);
}
