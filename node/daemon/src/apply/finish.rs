//! End of a change of the desired state that took several steps: answers, events, confirmation.

use crate::apply::millis;
use crate::daemon::Daemon;
use crate::http::Answer;
use crate::reply::Reply;
use crate::state::Unconfirmed;
use api::{Applied, EventKind};
use std::time::{Duration, Instant};

/// Recipient of the result of a change.
pub(crate) enum Finish {
    /// Sender of a desired state.
    Applied { answered: Answered, confirm: Option<Confirm> },
    /// Sender of a rollback; `before` waits for its confirmation again if the rollback fails.
    RolledBack { answered: Answered, before: Option<Unconfirmed> },
    /// Timer of a confirmation that did not come: nobody is answered.
    TakenBack { cause: String },
}

/// Request for a change, and its answer as far as it was known at the beginning.
pub(crate) struct Answered {
    pub(crate) answer: Applied,
    pub(crate) cause: String,
    pub(crate) since: Instant,
    pub(crate) reply: Reply<Applied>,
}

/// Confirmation that a client asked for.
pub(crate) struct Confirm {
    pub(crate) within: Duration,
    /// Generation to go back to without it.
    pub(crate) back_to: u64,
}

impl Daemon {
    /// Answers a change that is made, or was taken back.
    pub(super) fn finish_change(&mut self, finish: Finish, done: Answer<()>) {
        match (finish, done) {
            (Finish::Applied { answered, .. }, Err(problem)) => answered.reply.refuse(problem),
            (Finish::Applied { answered, confirm }, Ok(())) => {
                let cause = answered.cause.clone();
                self.answer_changed(EventKind::StateApplied, answered);
                self.desired.unconfirmed = confirm.map(|Confirm { within, back_to }| Unconfirmed {
                    until: Instant::now() + within,
                    back_to,
                    cause,
                });
            }
            (Finish::RolledBack { answered, before }, Err(problem)) => {
                self.desired.unconfirmed = before;
                answered.reply.refuse(problem);
            }
            (Finish::RolledBack { answered, .. }, Ok(())) => {
                self.answer_changed(EventKind::StateRolledBack, answered);
            }
            (Finish::TakenBack { cause }, Ok(())) => {
                self.note_state(EventKind::StateRolledBack, &cause);
            }
            (Finish::TakenBack { .. }, Err(problem)) => tracing::error!(
                problem = problem.message,
                "the state before is not back: see `tam diff` and `tam rollback`"
            ),
        }
    }

    fn answer_changed(&mut self, kind: EventKind, answered: Answered) {
        let Answered { mut answer, cause, since, reply } = answered;
        self.mark_desired_versions();
        self.note_state(kind, &cause);
        answer.generation = self.desired.generation();
        answer.took_ms = millis(since);
        reply.ok(answer);
    }
}
