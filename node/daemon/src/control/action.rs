//! Actions that follow from control: what cells, the data plane, the journal and the API are to do.

use super::desired::JournalWrite;
use super::edit::RuleChanges;
use crate::events::Note;
use crate::reply::Reply;
use abi::Level;
use api::{Deployed, Replaced};
use cell::{CallAnswer, CallQuestion};
use module_store::Digest;
use node::Effect;
use std::collections::BTreeSet;
use tokio::sync::oneshot;
use units::{Bytes, EntryId, Name, Nanos, RuleId, SessionId};

/// Action that the daemon does, in the order in which control gives them.
pub(crate) enum Action {
    /// Effect of `core/node`; never a report.
    Effect(Effect),
    /// Event for the operator and the owner of its subject.
    Note(Note),
    /// Write of the desired state; its end is reported to `handle_written`.
    Write(JournalWrite),
    /// Write of something else to the journal.
    Keep(Keep),
    /// Compilation of a module, for the levels below user if `true` and the node has them.
    Compile(Digest, bool),
    /// Addition of what these rules counted to the sessions for which they did: the rules are gone.
    CloseRules(Vec<(RuleId, Name)>),
    /// Update of the accounts that sessions have below user level.
    SettleAccounts,
    /// Word to cells that a service will be started soon.
    ExpectService,
    /// Return of a service to the level that the node says it is at.
    Stay(EntryId, Level),
    /// Draining of a service; its end is reported to `handle_drained`.
    Drain(EntryId),
    /// Return of a drained service whose removal was refused.
    CancelDrain(EntryId),
    /// Release of all reusable instances.
    ClearReusable,
    /// Question to cells about the memory in use, with a number, and for a session if there is one.
    AskMemory(u64, Option<SessionId>),
    /// Answer to a deployment that is recorded.
    AnswerDeployed(Box<DeployedAnswer>),
    /// Answer to packets that call a module.
    AnswerCall(CallQuestion, CallAnswer),
    /// Fetch of modules that are desired and not there.
    FetchMissing,
    /// Bill for modules of the node that were fetched, by their sizes.
    BillFetched(Vec<Bytes>),
    /// End of associations whose capability is no longer valid.
    CheckAssociations,
    /// Release of what is kept of a session that is gone.
    ForgetSession(Name),
    /// Update of the closing of ports: a service is gone.
    ClosePorts,
    /// Bill: something was refused because the ledger could not be written, and it may be mended.
    Bill,
    /// Fetch of a module that packets call, for its caller.
    FetchCalled(Box<super::calls::Wanted>),
}

/// Record of the journal beside the desired state.
pub(crate) enum Keep {
    /// Revocations; the request is answered when services that ran under them have stopped, too.
    Revoked {
        texts: BTreeSet<String>,
        time: u64,
        stopped: oneshot::Receiver<()>,
        answer: api::Revoked,
        reply: Reply<api::Revoked>,
    },
    /// Latest time by which capabilities end.
    Time(u64),
    /// Highest versions that ran.
    Versions(String),
}

/// Answer to a deployment, but for the service's own document.
pub(crate) struct DeployedAnswer {
    pub(crate) service: Name,
    /// Time until it ran.
    pub(crate) took: Nanos,
    pub(crate) shadowed: Vec<(u32, u32)>,
    pub(crate) lacks: Vec<String>,
    pub(crate) rules: RuleChanges,
    pub(crate) replaced: Option<Replaced>,
    pub(crate) reply: Reply<Deployed>,
}
