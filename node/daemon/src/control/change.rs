//! Requests that change what shall run, and their order.

use super::memory::MemoryWanted;
use crate::access::Caller;
use crate::reply::Reply;
use api::{Applied, Deployed, ErrorInfo, Removed, SessionPromised, SessionRemoved};
use units::RuleId;

/// Request that changes what shall run.
#[derive(Debug)]
pub(crate) enum Change {
    Deploy(Box<api::DeployRequest>, Reply<Deployed>),
    /// Removal of a service, with the rules that lead to it if `true`.
    Remove(String, bool, Reply<Removed>),
    Move(String, api::MoveRequest, Reply<api::Moved>),
    Bpf(api::BpfRequest, Reply<api::BpfSet>),
    AddRules(api::RulesRequest, Reply<api::RulesAdded>),
    RemoveRule(RuleId, Reply<api::RuleRemoved>),
    CreateSession(Box<api::SessionRequest>, Reply<SessionPromised>),
    SetSession(String, Box<api::SessionChange>, Reply<SessionPromised>),
    /// Removal of a session, with everything in it if `true`.
    RemoveSession(String, bool, Reply<SessionRemoved>),
    Apply(Box<api::ApplyRequest>, Reply<Applied>),
    Confirm(Reply<api::Confirmed>),
    Rollback(api::RollbackRequest, Reply<Applied>),
}

impl Change {
    /// Answers the request with a refusal.
    pub(crate) fn refuse(self, refusal: ErrorInfo) {
        match self {
            Self::Deploy(_, reply) => reply.refuse(refusal),
            Self::Remove(_, _, reply) => reply.refuse(refusal),
            Self::Move(_, _, reply) => reply.refuse(refusal),
            Self::Bpf(_, reply) => reply.refuse(refusal),
            Self::AddRules(_, reply) => reply.refuse(refusal),
            Self::RemoveRule(_, reply) => reply.refuse(refusal),
            Self::CreateSession(_, reply) | Self::SetSession(_, _, reply) => reply.refuse(refusal),
            Self::RemoveSession(_, _, reply) => reply.refuse(refusal),
            Self::Apply(_, reply) | Self::Rollback(_, reply) => reply.refuse(refusal),
            Self::Confirm(reply) => reply.refuse(refusal),
        }
    }

    /// Returns true when the request may come while a state waits for its confirmation.
    pub(super) fn may_come_unconfirmed(&self) -> bool {
        match self {
            Self::Apply(request, _) => request.dry_run,
            Self::Confirm(..) | Self::Rollback(..) => true,
            _ => false,
        }
    }

    /// Returns true when the request needs a node in which no other change is under way.
    pub(super) const fn is_exclusive(&self) -> bool {
        matches!(self, Self::Apply(..) | Self::Confirm(..) | Self::Rollback(..))
    }

    /// Returns the memory that the request wants promised.
    pub(super) fn memory_wanted(&self) -> Option<MemoryWanted> {
        match self {
            Self::CreateSession(request, _) => {
                request.memory.is_some().then_some(MemoryWanted::OfNew)
            }
            Self::SetSession(session, change, _) => {
                let is_wanted = change.memory.is_some() || change.queue.is_some();
                is_wanted.then(|| MemoryWanted::Of(session.clone()))
            }
            _ => None,
        }
    }
}

/// Change that waits for its turn.
pub(crate) struct Queued {
    pub(crate) caller: Caller,
    pub(crate) change: Change,
}
