//! Client of the API: one method per endpoint, over the node's UNIX socket or TLS.
//!
//! Blocking; one connection, which is kept for the next call as long as the node does. It must
//! not be called, nor dropped, on a thread of an async runtime.

use crate::capture::{CaptureEnded, CaptureRequest, CaptureStarted, CapturedPackets};
use crate::desired::{Applied, ApplyRequest, Confirmed, DesiredInfo, RollbackRequest};
use crate::endpoints::{ENDPOINTS, Method, Operation};
use crate::errors::{ErrorCode, ErrorDocument};
use crate::events::EventList;
use crate::ledger::{LedgerReceipt, LedgerRecords, LedgerTotals};
use crate::sessions::{
    SessionChange, SessionDetails, SessionList, SessionPromised, SessionRemoved, SessionRequest,
};
use crate::trust::{
    NodeBackup, RevocationList, RevokeRequest, Revoked, SignaturesRequest, SignaturesStored,
};
use crate::types::{
    BpfRequest, BpfSet, DeployRequest, Deployed, HandedOver, MessageAnswers, MessageRequest,
    ModuleList, ModuleStored, MoveRequest, Moved, NodeInfo, Removed, RuleList, RuleRemoved,
    RulesAdded, RulesRequest, ServiceInfo, ServiceList, Stats,
};
use crate::why::{ExplainRequest, Explanation, WhyList};
use connection::IdleConnection;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::{Request, StatusCode, header};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

mod address;
mod connection;
pub mod pinned;

pub use address::{NodeAddress, RemoteNode};

/// Longest wait for an answer: the compiler of a large module has 20 s of processor time, and a
/// busy machine gives it a fraction of a core.
pub const ANSWER_TIME_MAX: Duration = Duration::from_secs(120);
/// Time after which an answer counts as late: people do not wait longer without a message.
pub const ANSWER_TIME_USUAL: Duration = Duration::from_secs(1);
/// Largest answer, in bytes: counters of the most services and rules that a node has.
pub const ANSWER_LENGTH_MAX: usize = 64 << 20;

/// Client of one node. Nothing is sent before a method is called.
#[derive(Clone, Debug)]
pub struct Client {
    address: NodeAddress,
    /// Token sent with each request; the owner of the socket needs none.
    token: Option<String>,
    on_delay: Option<OnDelay>,
    idle: IdleConnection,
}

/// Function that is called once for a request without an answer after [`ANSWER_TIME_USUAL`], with
/// the node's place.
pub type OnDelay = fn(&NodeAddress);

/// Error of a request.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The node does not listen, or refuses the connection.
    #[error("no node answers at {address}: {source}")]
    Unreachable {
        /// Address of the node.
        address: Box<NodeAddress>,
        /// Error of the kernel.
        source: io::Error,
    },
    /// The node ended or closed the connection before it had answered.
    #[error("the node at {address} did not answer {request}: {source}")]
    Broken {
        /// Address of the node.
        address: Box<NodeAddress>,
        /// Method and path.
        request: String,
        /// Error of the connection.
        source: hyper::Error,
    },
    /// The node did not answer within [`ANSWER_TIME_MAX`].
    #[error("the node at {address} did not answer {request} within {} s", ANSWER_TIME_MAX.as_secs())]
    Silent {
        /// Address of the node.
        address: Box<NodeAddress>,
        /// Method and path.
        request: String,
    },
    /// The server is not the expected node.
    #[error("what answers at {address} is not the node with that key: {reason}")]
    OtherNode {
        /// Address of the node.
        address: Box<NodeAddress>,
        /// Fault of its certificate.
        reason: String,
    },
    /// The answer cannot be parsed by this version.
    #[error("the answer to {request} is not understood: {reason}")]
    Answer {
        /// Method and path.
        request: String,
        /// Fault of the answer.
        reason: String,
    },
    /// The node refused the request.
    #[error("{}", .0.error.message)]
    Refused(ErrorDocument),
}

impl ClientError {
    /// Returns the kind of error, for exit statuses.
    #[must_use]
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::Unreachable { .. } | Self::Broken { .. } | Self::Silent { .. } => {
                ErrorCode::Unreachable
            }
            Self::OtherNode { .. } => ErrorCode::Refused,
            Self::Answer { .. } => ErrorCode::Failed,
            Self::Refused(document) => document.error.code,
        }
    }

    /// Returns advice on what to do about the error.
    #[must_use]
    pub fn help(&self) -> Option<String> {
        let advice = match self {
            Self::Unreachable { address, .. } if matches!(**address, NodeAddress::Remote(_)) => {
                "see whether the node runs with [api] listen in its node file, and whether the network leads there"
            }
            Self::OtherNode { .. } => {
                "compare the key with what `tam show` says on the node; nothing was sent to what answers there"
            }
            Self::Unreachable { source, .. } => match source.kind() {
                io::ErrorKind::PermissionDenied => "run the command as the user who runs the node",
                io::ErrorKind::ConnectionRefused => {
                    "the node that made the socket is gone: start it again with `tam node --config FILE`"
                }
                _ => "start a node with `tam node --config FILE`",
            },
            Self::Broken { .. } => "the node may have ended: see its log",
            Self::Silent { .. } => "see the node's log, and how busy the machine is",
            Self::Answer { .. } => "use the `tam` of the version that runs the node (`tam show`)",
            Self::Refused(document) => return document.error.help.clone(),
        };
        Some(advice.to_owned())
    }
}

impl Client {
    /// Creates a client of the node that listens on this socket.
    #[must_use]
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self::at(NodeAddress::Socket(socket.into()))
    }

    /// Creates a client of a node on the network, known by its key.
    #[must_use]
    pub fn remote(node: RemoteNode) -> Self {
        Self::at(NodeAddress::Remote(node))
    }

    fn at(address: NodeAddress) -> Self {
        Self { address, token: None, on_delay: None, idle: IdleConnection::default() }
    }

    /// Creates a client of the node of this name on this machine.
    #[must_use]
    pub fn of(node: &units::Name) -> Self {
        Self::new(crate::socket_of(node))
    }

    /// Returns the client with this token, whose capabilities then limit what it may request.
    #[must_use]
    pub fn with_token(self, token: impl Into<String>) -> Self {
        Self { token: Some(token.into()), ..self }
    }

    /// Sets the function that is called for late answers. The time that a request asks the node to
    /// wait (events, packets of a capture) does not count.
    #[must_use]
    pub fn with_on_delay(self, on_delay: Option<OnDelay>) -> Self {
        Self { on_delay, ..self }
    }

    /// Returns the address of the node.
    #[must_use]
    pub const fn address(&self) -> &NodeAddress {
        &self.address
    }

    /// Returns the node, its ports and sessions.
    ///
    /// # Errors
    /// See [`ClientError`]; so for all methods.
    pub fn node(&self) -> Result<NodeInfo, ClientError> {
        self.read(Operation::Node)
    }

    /// Returns all services.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn services(&self) -> Result<ServiceList, ClientError> {
        self.read(Operation::Services)
    }

    /// Starts a service.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn deploy(&self, request: &DeployRequest) -> Result<Deployed, ClientError> {
        self.write(Call::of(Operation::Deploy, None), request)
    }

    /// Returns one service.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn service(&self, name: &str) -> Result<ServiceInfo, ClientError> {
        self.call(Call::of(Operation::Service, Some(name)))
    }

    /// Stops a service; with `cascade` also removes the rules that lead to it.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn remove(&self, name: &str, cascade: bool) -> Result<Removed, ClientError> {
        let mut call = Call::of(Operation::Remove, Some(name));
        if cascade {
            call.target.push_str("?cascade=true");
        }
        self.call(call)
    }

    /// Moves a service to another level; returns when it runs there.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn move_service(&self, name: &str, level: &str) -> Result<Moved, ClientError> {
        let request = MoveRequest { level: level.to_owned() };
        self.write(Call::of(Operation::Move, Some(name)), &request)
    }

    /// Allows modules to run as BPF programs, or moves every service to user level.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn set_bpf(&self, enabled: bool) -> Result<BpfSet, ClientError> {
        self.write(Call::of(Operation::Bpf, None), &BpfRequest { enabled })
    }

    /// Sends a control message to every lane of a service.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn message(&self, name: &str, data: &[u8]) -> Result<MessageAnswers, ClientError> {
        let data_hex = data.iter().map(|byte| format!("{byte:02x}")).collect();
        self.write(Call::of(Operation::Message, Some(name)), &MessageRequest { data_hex })
    }

    /// Returns the events after number `since`, oldest first; if there are none yet, waits up to
    /// this many seconds for one.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn events(&self, since: u64, wait_seconds: u32) -> Result<EventList, ClientError> {
        let mut call = Call::of(Operation::Events, None);
        call.target.push_str(&format!("?since={since}&wait_seconds={wait_seconds}"));
        call.wait = Duration::from_secs(wait_seconds.into());
        self.call(call)
    }

    /// Returns the records of the ledger from this number on.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn ledger(&self, since: u64) -> Result<LedgerRecords, ClientError> {
        let mut call = Call::of(Operation::Ledger, None);
        call.target.push_str(&format!("?since={since}"));
        self.call(call)
    }

    /// Returns the total of each account between two times, in Unix seconds: from `since` on, and
    /// before `until`.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn ledger_totals(&self, since: u64, until: u64) -> Result<LedgerTotals, ClientError> {
        let mut call = Call::of(Operation::LedgerTotals, None);
        call.target.push_str(&format!("?since={since}&until={until}"));
        self.call(call)
    }

    /// Returns a principal's records from this number of its own on, with the node's signature.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn ledger_receipt(&self, principal: &str, from: u64) -> Result<LedgerReceipt, ClientError> {
        let mut call = Call::of(Operation::LedgerReceipt, None);
        call.target.push_str(&format!("?principal={principal}&from={from}"));
        self.call(call)
    }

    /// Returns the reasons that packets were dropped or left the fast path.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn why(&self) -> Result<WhyList, ClientError> {
        self.read(Operation::Why)
    }

    /// Returns the node's decision on a packet, without sending it.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn explain(&self, request: &ExplainRequest) -> Result<Explanation, ClientError> {
        self.write(Call::of(Operation::Explain, None), request)
    }

    /// Starts a capture.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn capture(&self, request: &CaptureRequest) -> Result<CaptureStarted, ClientError> {
        self.write(Call::of(Operation::Capture, None), request)
    }

    /// Returns the packets of a capture since the last call; if there are none yet, waits up to
    /// this many seconds.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn captured(&self, id: u32, wait_seconds: u32) -> Result<CapturedPackets, ClientError> {
        let mut call = Call::of(Operation::Captured, Some(&id.to_string()));
        call.target.push_str(&format!("?wait_seconds={wait_seconds}"));
        call.wait = Duration::from_secs(wait_seconds.into());
        self.call(call)
    }

    /// Ends a capture; returns its remaining packets.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn end_capture(&self, id: u32) -> Result<CaptureEnded, ClientError> {
        self.call(Call::of(Operation::EndCapture, Some(&id.to_string())))
    }

    /// Returns all counters in Prometheus's text format 0.0.4.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn metrics(&self) -> Result<String, ClientError> {
        let call = Call::of(Operation::Metrics, None);
        let request = call.name();
        let (status, body) = self.ask(call)?;
        if !status.is_success() {
            return understand(&request, status, &body);
        }
        String::from_utf8(body.to_vec())
            .map_err(|error| ClientError::Answer { request, reason: error.to_string() })
    }

    /// Returns all rules.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn rules(&self) -> Result<RuleList, ClientError> {
        self.read(Operation::Rules)
    }

    /// Adds rules, all or none.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn add_rules(&self, request: &RulesRequest) -> Result<RulesAdded, ClientError> {
        self.write(Call::of(Operation::AddRules, None), request)
    }

    /// Removes a rule.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn remove_rule(&self, rule: u32) -> Result<RuleRemoved, ClientError> {
        self.call(Call::of(Operation::RemoveRule, Some(&rule.to_string())))
    }

    /// Adds a module to the node's store.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn store_module(&self, wasm: Vec<u8>) -> Result<ModuleStored, ClientError> {
        let call = Call::of(Operation::StoreModule, None);
        self.call(Call { body: Some(("application/wasm", wasm)), ..call })
    }

    /// Adds a module to the node's store; returns before it is on the disk. A deployment of it is
    /// answered when it is, and refused if it could not be written.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn store_module_early(&self, wasm: Vec<u8>) -> Result<ModuleStored, ClientError> {
        let mut call = Call::of(Operation::StoreModule, None);
        call.target.push_str("?early=true");
        self.call(Call { body: Some(("application/wasm", wasm)), ..call })
    }

    /// Returns the modules of the node's store.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn modules(&self) -> Result<ModuleList, ClientError> {
        self.read(Operation::Modules)
    }

    /// Returns all counters.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn stats(&self) -> Result<Stats, ClientError> {
        self.read(Operation::Stats)
    }

    /// Returns the desired state: its generations, and the parts of it that do not run.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn desired(&self) -> Result<DesiredInfo, ClientError> {
        self.read(Operation::Desired)
    }

    /// Applies a node file, or returns what that would change.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn apply(&self, request: &ApplyRequest) -> Result<Applied, ClientError> {
        self.write(Call::of(Operation::Apply, None), request)
    }

    /// Confirms an applied state, which is otherwise taken back.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn confirm(&self) -> Result<Confirmed, ClientError> {
        self.call(Call::of(Operation::Confirm, None))
    }

    /// Returns the node to an earlier desired state.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn rollback(&self, request: &RollbackRequest) -> Result<Applied, ClientError> {
        self.write(Call::of(Operation::Rollback, None), request)
    }

    /// Ends the daemon only: everything else continues until the next daemon adopts it.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn hand_over(&self) -> Result<HandedOver, ClientError> {
        self.read(Operation::HandOver)
    }

    /// Adds signatures of a module, in the form of `tam sign`, to the node's store.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn add_signatures(
        &self,
        digest: &str,
        file: &str,
    ) -> Result<SignaturesStored, ClientError> {
        let request = SignaturesRequest { file: file.to_owned() };
        self.write(Call::of(Operation::AddSignatures, Some(digest)), &request)
    }

    /// Revokes capabilities, and stops everything that runs under them.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn revoke(&self, request: &RevokeRequest) -> Result<Revoked, ClientError> {
        self.write(Call::of(Operation::Revoke, None), request)
    }

    /// Returns all revocations.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn revocations(&self) -> Result<RevocationList, ClientError> {
        self.read(Operation::Revocations)
    }

    /// Returns the contents of the node's state directory, for a backup.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn backup(&self) -> Result<NodeBackup, ClientError> {
        self.read(Operation::Backup)
    }

    /// Returns the node's own OpenAPI document.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn openapi(&self) -> Result<serde_json::Value, ClientError> {
        self.read(Operation::OpenApi)
    }

    fn read<T: DeserializeOwned>(&self, operation: Operation) -> Result<T, ClientError> {
        self.call(Call::of(operation, None))
    }

    fn write<T: DeserializeOwned>(
        &self,
        call: Call,
        request: &impl Serialize,
    ) -> Result<T, ClientError> {
        let body = serde_json::to_vec(request).expect("requests have text keys and plain values");
        self.call(Call { body: Some(("application/json", body)), ..call })
    }

    fn call<T: DeserializeOwned>(&self, call: Call) -> Result<T, ClientError> {
        let request = call.name();
        let (status, body) = self.ask(call)?;
        understand(&request, status, &body)
    }

    fn ask(&self, call: Call) -> Result<(StatusCode, Bytes), ClientError> {
        self.idle.ask(&self.address, Call { token: self.token.clone(), ..call }, self.on_delay)
    }

    /// Returns all sessions: their reservations and their use.
    ///
    /// # Errors
    /// See [`ClientError`]; so for all methods.
    pub fn sessions(&self) -> Result<SessionList, ClientError> {
        self.read(Operation::Sessions)
    }

    /// Returns one session.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn session(&self, name: &str) -> Result<SessionDetails, ClientError> {
        self.call(Call::of(Operation::Session, Some(name)))
    }

    /// Creates a session.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn create_session(&self, request: &SessionRequest) -> Result<SessionPromised, ClientError> {
        self.write(Call::of(Operation::CreateSession, None), request)
    }

    /// Changes the reservation of a session.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn set_session(
        &self,
        name: &str,
        change: &SessionChange,
    ) -> Result<SessionPromised, ClientError> {
        self.write(Call::of(Operation::SetSession, Some(name)), change)
    }

    /// Removes a session; with `cascade` also the services and rules in it. Returns when they have
    /// stopped.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn remove_session(&self, name: &str, cascade: bool) -> Result<SessionRemoved, ClientError> {
        let mut call = Call::of(Operation::RemoveSession, Some(name));
        if cascade {
            call.target.push_str("?cascade=true");
        }
        self.call(call)
    }
}

/// Request before it is sent.
struct Call {
    method: Method,
    /// Path and query.
    target: String,
    body: Option<(&'static str, Vec<u8>)>,
    token: Option<String>,
    /// Time that the node is asked to wait before it answers.
    wait: Duration,
}

impl Call {
    fn of(operation: Operation, segment: Option<&str>) -> Self {
        let endpoint = ENDPOINTS
            .iter()
            .find(|endpoint| endpoint.operation == operation)
            .expect("a test finds every operation in the table");
        let target = match (endpoint.path.find('{'), segment) {
            (Some(at), Some(segment)) => {
                let rest = endpoint.path[at..].split_once('}').map_or("", |(_, rest)| rest);
                format!("{}{}{rest}", &endpoint.path[..at], percent_encoded(segment))
            }
            _ => endpoint.path.to_owned(),
        };
        Self { method: endpoint.method, target, body: None, token: None, wait: Duration::ZERO }
    }

    fn name(&self) -> String {
        format!("{} {}", self.method.as_str(), self.target)
    }

    fn into_request(self) -> Result<Request<Full<Bytes>>, ClientError> {
        let name = self.name();
        let mut request = Request::builder()
            .method(self.method.as_str())
            .uri(self.target)
            .header(header::HOST, "node");
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let mut bytes = Vec::new();
        if let Some((kind, body)) = self.body {
            request = request.header(header::CONTENT_TYPE, kind);
            bytes = body;
        }
        request
            .body(Full::new(Bytes::from(bytes)))
            .map_err(|error| ClientError::Answer { request: name, reason: error.to_string() })
    }
}

/// Returns a path segment with all but the unreserved characters encoded (RFC 3986 section 2.1).
fn percent_encoded(segment: &str) -> String {
    let encode = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
            char::from(byte).to_string()
        }
        _ => format!("%{byte:02X}"),
    };
    segment.bytes().map(encode).collect()
}

fn understand<T: DeserializeOwned>(
    request: &str,
    status: StatusCode,
    body: &[u8],
) -> Result<T, ClientError> {
    let wrong = |reason| ClientError::Answer { request: request.to_owned(), reason };
    if status.is_success() {
        return serde_json::from_slice(body).map_err(|error| wrong(error.to_string()));
    }
    match serde_json::from_slice::<ErrorDocument>(body) {
        Ok(document) => Err(ClientError::Refused(document)),
        Err(_) => Err(wrong(format!("status {status} without an error document"))),
    }
}

#[cfg(test)]
mod tests;
