//! Continuations of changes of the desired state, for when they are in the journal or refused.
//!
//! ```text
//!  a command was done ─▶ Edit, Recorded ─▶ Desired ─▶ journal ─▶ answered; undone where it failed
//!  it cannot be undone ─▶ Edit, Recorded::Then(Ahead) ─▶ journal ─▶ done ─▶ answered
//! ```

use super::edit::{Edit, RuleChanges};
use crate::reply::Reply;
use abi::Level;
use api::{
    Applied, BpfSet, Confirmed, Deployed, ErrorInfo, Moved, Removed, Replaced, RuleRemoved,
    RulesAdded,
};
use api::{SessionPromised, SessionRemoved};
use node::Command;
use session::Reservation;
use units::{Name, Nanos, RuleId};

/// Continuation of a change that is being recorded.
pub(crate) enum Recorded {
    /// Change without a waiting client: its subject has stopped already. The message is logged if
    /// it cannot be recorded.
    Noted(&'static str),
    /// Requests for a move that was made; it is taken back from `from` if it cannot be recorded.
    Moved { service: Name, from: Level, answers: Vec<(Reply<Moved>, Moved)> },
    /// Switch of the levels below user.
    Bpf { enabled: bool, reply: Reply<BpfSet> },
    /// Deployment whose service runs, or is tried again in the place of one that failed.
    Deployed(Box<Waiting>),
    /// Removal of a service that was desired and did not run.
    MissingRemoved { service: Name, reply: Reply<Removed> },
    /// New rules.
    RulesAdded { added: RulesAdded, reply: Reply<RulesAdded> },
    /// Node file that says what is there already: it is followed from now on.
    Followed { answer: Applied, reply: Reply<Applied> },
    /// Confirmation.
    Confirmed { unconfirmed: Unconfirmed, reply: Reply<Confirmed> },
    /// Recording step of a change that takes several.
    Work,
    /// Command that could not be undone, and therefore has not been given yet.
    Then(Box<Ahead>),
}

/// Deployment whose service does not run yet, or is being recorded.
pub(crate) struct Waiting {
    pub(super) reply: Reply<Deployed>,
    pub(super) since: Nanos,
    pub(super) shadowed: Vec<(u32, u32)>,
    pub(super) rules: RuleChanges,
    /// Version that it replaces.
    pub(super) replaces: Option<Replaced>,
    /// Time for which packets waited for that.
    pub(super) paused: Nanos,
    /// Time until it ran.
    pub(super) took: Nanos,
    pub(super) service: Name,
    /// Level as it was asked for.
    pub(super) level: Option<Level>,
    /// Refusal of a version that did not start where another one was, and is tried again.
    pub(super) failure: Option<ErrorInfo>,
}

/// State that is rolled back unless a client confirms it.
#[derive(Clone, Debug)]
pub(crate) struct Unconfirmed {
    /// Time by which it is to be confirmed.
    pub(crate) until: Nanos,
    /// Generation to go back to.
    pub(crate) back_to: u64,
    /// Cause of the change.
    pub(crate) cause: String,
}

/// Command that is recorded before it is done.
pub(crate) struct Ahead {
    pub(crate) command: Command,
    pub(crate) purpose: Purpose,
}

/// Command that is to be recorded first, with its cause and its change of the desired state.
pub(super) type Prepared = (Ahead, String, Edit);

/// Request behind a command that is recorded first.
pub(crate) enum Purpose {
    SessionCreated {
        session: Name,
        reservation: Reservation,
        reply: Reply<SessionPromised>,
    },
    SessionSet {
        session: Name,
        reservation: Reservation,
        reply: Reply<SessionPromised>,
    },
    SessionRemoved {
        session: Name,
        reply: Reply<SessionRemoved>,
    },
    /// Removal of a service; `counted` are rules that lead there, with the sessions for which they
    /// counted.
    ServiceRemoved {
        service: Name,
        counted: Vec<(RuleId, Name)>,
        reply: Reply<Removed>,
    },
    RuleRemoved {
        rule: RuleId,
        counted: Vec<(RuleId, Name)>,
        reply: Reply<RuleRemoved>,
    },
}
