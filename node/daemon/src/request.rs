//! Requests of the API, as the daemon gets them.

use crate::access::Caller;
use crate::control::change::Change;
use crate::reply::Reply;
use api::{ErrorInfo, LedgerReceipt, LedgerRecords, LedgerTotals};
use ledger::Period;
use module_store::Digest;
use node::wanted::Hops;
use trust::PublicKey;

/// Request of the API, with the reply that answers it.
pub(crate) enum Request {
    /// Change of what shall run.
    Change(Change),
    Node(Reply<api::NodeInfo>),
    Services(Reply<api::ServiceList>),
    Service(String, Reply<api::ServiceInfo>),
    Message(String, api::MessageRequest, Reply<api::MessageAnswers>),
    Rules(Reply<api::RuleList>),
    Modules(Reply<api::ModuleList>),
    /// Module for the store; `true` answers before it is written.
    PutModule(Vec<u8>, bool, Reply<api::ModuleStored>),
    MayPull(Digest, Reply<()>),
    WantPull(Digest, Hops, Reply<()>),
    AddSignatures(String, api::SignaturesRequest, Reply<api::SignaturesStored>),
    Stats(Reply<api::Stats>),
    /// Events after a number, for which to wait this many seconds.
    Events(u64, u32, Reply<api::EventList>),
    Why(Reply<api::WhyList>),
    Metrics(Reply<String>),
    BeginCapture(api::CaptureRequest, Reply<api::CaptureStarted>),
    Captured(u32, u32, Reply<api::CapturedPackets>),
    EndCapture(u32, Reply<api::CaptureEnded>),
    Explain(api::ExplainRequest, Reply<api::Explanation>),
    Desired(Reply<api::DesiredInfo>),
    HandOver(Reply<api::HandedOver>),
    Revoke(api::RevokeRequest, Reply<api::Revoked>),
    Revocations(Reply<api::RevocationList>),
    Backup(Reply<api::NodeBackup>),
    Ledger(LedgerQuestion),
    Sessions(Reply<api::SessionList>),
    Session(String, Reply<api::SessionDetails>),
}

/// Request, and its client.
pub(crate) struct Incoming {
    pub(crate) caller: Caller,
    pub(crate) request: Request,
}

impl Request {
    /// Answers the request with a refusal.
    pub(crate) fn refuse(self, refusal: ErrorInfo) {
        match self {
            Self::Change(change) => change.refuse(refusal),
            Self::Node(reply) => reply.refuse(refusal),
            Self::Services(reply) => reply.refuse(refusal),
            Self::Service(_, reply) => reply.refuse(refusal),
            Self::Message(_, _, reply) => reply.refuse(refusal),
            Self::Rules(reply) => reply.refuse(refusal),
            Self::Modules(reply) => reply.refuse(refusal),
            Self::PutModule(_, _, reply) => reply.refuse(refusal),
            Self::AddSignatures(_, _, reply) => reply.refuse(refusal),
            Self::MayPull(_, reply) | Self::WantPull(_, _, reply) => reply.refuse(refusal),
            Self::Stats(reply) => reply.refuse(refusal),
            Self::Events(_, _, reply) => reply.refuse(refusal),
            Self::Why(reply) => reply.refuse(refusal),
            Self::Metrics(reply) => reply.refuse(refusal),
            Self::BeginCapture(_, reply) => reply.refuse(refusal),
            Self::Captured(_, _, reply) => reply.refuse(refusal),
            Self::EndCapture(_, reply) => reply.refuse(refusal),
            Self::Explain(_, reply) => reply.refuse(refusal),
            Self::Desired(reply) => reply.refuse(refusal),
            Self::HandOver(reply) => reply.refuse(refusal),
            Self::Revoke(_, reply) => reply.refuse(refusal),
            Self::Revocations(reply) => reply.refuse(refusal),
            Self::Backup(reply) => reply.refuse(refusal),
            Self::Ledger(question) => question.refuse(refusal),
            Self::Sessions(reply) => reply.refuse(refusal),
            Self::Session(_, reply) => reply.refuse(refusal),
        }
    }
}

/// Question about the ledger.
pub(crate) enum LedgerQuestion {
    Records(u64, Reply<LedgerRecords>),
    Totals(Period, Reply<LedgerTotals>),
    Receipt(Box<PublicKey>, u64, Reply<LedgerReceipt>),
}

impl LedgerQuestion {
    /// Answers the question with a refusal.
    pub(crate) fn refuse(self, refusal: ErrorInfo) {
        match self {
            Self::Records(_, reply) => reply.refuse(refusal),
            Self::Totals(_, reply) => reply.refuse(refusal),
            Self::Receipt(_, _, reply) => reply.refuse(refusal),
        }
    }
}
