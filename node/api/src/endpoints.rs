//! Table of endpoints, from which the daemon's router, the client and the OpenAPI document are
//! made.
//!
//! The handlers of the endpoints are in `node/daemon`.

use crate::capture::{CaptureEnded, CaptureRequest, CaptureStarted, CapturedPackets};
use crate::desired::{Applied, ApplyRequest, Confirmed, DesiredInfo, RollbackRequest};
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
use std::borrow::Cow;
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

/// Operation of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Returns the node, its ports and sessions.
    Node,
    /// Returns all services.
    Services,
    /// Starts a service.
    Deploy,
    /// Returns one service.
    Service,
    /// Stops a service.
    Remove,
    /// Sends a control message to a service.
    Message,
    /// Moves a service to another level.
    Move,
    /// Allows or forbids levels below user level.
    Bpf,
    /// Returns all sessions.
    Sessions,
    /// Returns one session.
    Session,
    /// Creates a session.
    CreateSession,
    /// Changes the reservation of a session.
    SetSession,
    /// Removes a session.
    RemoveSession,
    /// Returns all rules.
    Rules,
    /// Adds rules.
    AddRules,
    /// Removes a rule.
    RemoveRule,
    /// Adds a module to the store.
    StoreModule,
    /// Adds signatures of a module to the store.
    AddSignatures,
    /// Returns the modules of the store.
    Modules,
    /// Returns all counters.
    Stats,
    /// Returns events.
    Events,
    /// Returns the reasons that packets are dropped.
    Why,
    /// Returns the decision on a packet.
    Explain,
    /// Returns the metrics in the format of Prometheus.
    Metrics,
    /// Starts a capture.
    Capture,
    /// Returns packets of a capture.
    Captured,
    /// Ends a capture.
    EndCapture,
    /// Returns the desired state.
    Desired,
    /// Applies a desired state.
    Apply,
    /// Confirms an applied state.
    Confirm,
    /// Returns to an earlier state.
    Rollback,
    /// Returns records of what principals used.
    Ledger,
    /// Returns the total of each account.
    LedgerTotals,
    /// Returns a principal's records, signed.
    LedgerReceipt,
    /// Ends the daemon only.
    HandOver,
    /// Revokes capabilities.
    Revoke,
    /// Returns the revocations.
    Revocations,
    /// Returns the state for a backup.
    Backup,
    /// Returns the OpenAPI document.
    OpenApi,
}

/// HTTP method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Reads.
    Get,
    /// Creates or changes.
    Post,
    /// Removes.
    Delete,
}

impl Method {
    /// Returns the method as it stands in the request line.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Delete => "DELETE",
        }
    }
}

/// Content of a request or an answer.
#[derive(Clone, Copy, Debug)]
pub enum Body {
    /// JSON document of this type.
    Json(Document),
    /// JSON document of any kind.
    AnyJson,
    /// WebAssembly module, as `application/wasm`.
    Wasm,
    /// Counters for Prometheus, as [`METRICS_TEXT`] or, if requested, [`OPEN_METRICS`].
    Metrics,
}

/// Default media type of the counters: Prometheus's text format 0.0.4.
pub const METRICS_TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Media type of the counters for clients that accept it: OpenMetrics 1.0.0, text.
pub const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Type of a JSON document.
#[derive(Clone, Copy)]
pub struct Document {
    pub(crate) name: fn() -> Cow<'static, str>,
    pub(crate) schema: fn() -> RefOr<Schema>,
    pub(crate) parts: fn(&mut Vec<(String, RefOr<Schema>)>),
}

impl Document {
    const fn of<T: ToSchema + PartialSchema>() -> Self {
        Self { name: T::name, schema: T::schema, parts: T::schemas }
    }
}

impl std::fmt::Debug for Document {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&(self.name)())
    }
}

/// Parameter in the query of the URL: a truth value, false when it is absent, or a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flag {
    /// Name of the parameter.
    pub name: &'static str,
    /// Meaning of the parameter.
    pub summary: &'static str,
}

/// Endpoint of the API.
#[derive(Clone, Copy, Debug)]
pub struct Endpoint {
    /// Operation that it performs.
    pub operation: Operation,
    /// HTTP method.
    pub method: Method,
    /// Path, where `{…}` stands for one segment.
    pub path: &'static str,
    /// Summary in one line.
    pub summary: &'static str,
    /// Truth values that the query may have.
    pub flags: &'static [Flag],
    /// Numbers that the query may have; 0 when they are absent.
    pub numbers: &'static [Flag],
    /// Texts that the query must have.
    pub texts: &'static [Flag],
    /// Content of the request.
    pub request: Option<Body>,
    /// Content of the answer.
    pub answer: Body,
}

const fn endpoint(
    operation: Operation,
    method: Method,
    path: &'static str,
    answer: Body,
    summary: &'static str,
) -> Endpoint {
    let (flags, numbers, texts): (&[Flag], &[Flag], &[Flag]) = (&[], &[], &[]);
    Endpoint { operation, method, path, summary, flags, numbers, texts, request: None, answer }
}

const fn json<T: ToSchema + PartialSchema>() -> Body {
    Body::Json(Document::of::<T>())
}

/// Endpoints of version 1.
pub const ENDPOINTS: &[Endpoint] = &[
    endpoint(
        Operation::Node,
        Method::Get,
        "/v1/node",
        json::<NodeInfo>(),
        "The node, its ports and sessions",
    ),
    endpoint(
        Operation::Services,
        Method::Get,
        "/v1/services",
        json::<ServiceList>(),
        "All services with their counters",
    ),
    Endpoint {
        request: Some(json::<DeployRequest>()),
        ..endpoint(
            Operation::Deploy,
            Method::Post,
            "/v1/services",
            json::<Deployed>(),
            "Deploy a service from a module of the store, with its rules: all or nothing",
        )
    },
    endpoint(
        Operation::Service,
        Method::Get,
        "/v1/services/{name}",
        json::<ServiceInfo>(),
        "One service with its counters",
    ),
    Endpoint {
        flags: &[Flag { name: "cascade", summary: "Remove the rules that lead to it, too" }],
        ..endpoint(
            Operation::Remove,
            Method::Delete,
            "/v1/services/{name}",
            json::<Removed>(),
            "Stop a service",
        )
    },
    Endpoint {
        request: Some(json::<MessageRequest>()),
        ..endpoint(
            Operation::Message,
            Method::Post,
            "/v1/services/{name}/messages",
            json::<MessageAnswers>(),
            "Send a control message to every lane of a service",
        )
    },
    Endpoint {
        request: Some(json::<MoveRequest>()),
        ..endpoint(
            Operation::Move,
            Method::Post,
            "/v1/services/{name}/move",
            json::<Moved>(),
            "Move a service to another level, with its state; answers when it runs there",
        )
    },
    Endpoint {
        request: Some(json::<BpfRequest>()),
        ..endpoint(
            Operation::Bpf,
            Method::Post,
            "/v1/bpf",
            json::<BpfSet>(),
            "Allow modules to run as BPF programs, or move every service to user level",
        )
    },
    endpoint(
        Operation::Sessions,
        Method::Get,
        "/v1/sessions",
        json::<SessionList>(),
        "All sessions: the reservation and the use of each",
    ),
    Endpoint {
        request: Some(json::<SessionRequest>()),
        ..endpoint(
            Operation::CreateSession,
            Method::Post,
            "/v1/sessions",
            json::<SessionPromised>(),
            "Create a session; refused if the node cannot promise its reservation",
        )
    },
    endpoint(
        Operation::Session,
        Method::Get,
        "/v1/sessions/{name}",
        json::<SessionDetails>(),
        "One session: its reservation and its use",
    ),
    Endpoint {
        request: Some(json::<SessionChange>()),
        ..endpoint(
            Operation::SetSession,
            Method::Post,
            "/v1/sessions/{name}",
            json::<SessionPromised>(),
            "Change the reservation of a session; its services run on",
        )
    },
    Endpoint {
        flags: &[Flag { name: "cascade", summary: "Remove the services and rules in it, too" }],
        ..endpoint(
            Operation::RemoveSession,
            Method::Delete,
            "/v1/sessions/{name}",
            json::<SessionRemoved>(),
            "Remove a session; answers when its services have stopped",
        )
    },
    endpoint(
        Operation::Rules,
        Method::Get,
        "/v1/rules",
        json::<RuleList>(),
        "All rules with their counters, best first",
    ),
    Endpoint {
        request: Some(json::<RulesRequest>()),
        ..endpoint(
            Operation::AddRules,
            Method::Post,
            "/v1/rules",
            json::<RulesAdded>(),
            "Add rules: all or none",
        )
    },
    endpoint(
        Operation::RemoveRule,
        Method::Delete,
        "/v1/rules/{id}",
        json::<RuleRemoved>(),
        "Remove a rule",
    ),
    Endpoint {
        request: Some(Body::Wasm),
        flags: &[Flag {
            name: "early",
            summary: "Answer before the module is on the disk; a deployment of it is answered when it is",
        }],
        ..endpoint(
            Operation::StoreModule,
            Method::Post,
            "/v1/modules",
            json::<ModuleStored>(),
            "Add a module to the node's store; the same bytes again change nothing",
        )
    },
    Endpoint {
        request: Some(json::<SignaturesRequest>()),
        ..endpoint(
            Operation::AddSignatures,
            Method::Post,
            "/v1/modules/{name}/signatures",
            json::<SignaturesStored>(),
            "Add signatures of a module to the store; answers which of them the node trusts",
        )
    },
    endpoint(
        Operation::Modules,
        Method::Get,
        "/v1/modules",
        json::<ModuleList>(),
        "The modules of the node's store",
    ),
    endpoint(Operation::Stats, Method::Get, "/v1/stats", json::<Stats>(), "All counters"),
    Endpoint {
        numbers: &[
            Flag { name: "since", summary: "Only events with a higher number" },
            Flag {
                name: "wait_seconds",
                summary: "Wait up to this many seconds, at most 60, for the first event",
            },
        ],
        ..endpoint(
            Operation::Events,
            Method::Get,
            "/v1/events",
            json::<EventList>(),
            "Events, oldest first: at most 1,000 an answer",
        )
    },
    endpoint(
        Operation::Why,
        Method::Get,
        "/v1/why",
        json::<WhyList>(),
        "Reasons that packets were dropped or left the fast path, with advice",
    ),
    Endpoint {
        request: Some(json::<ExplainRequest>()),
        ..endpoint(
            Operation::Explain,
            Method::Post,
            "/v1/why",
            json::<Explanation>(),
            "Decision on a packet, with its steps; nothing is counted and nothing is sent",
        )
    },
    Endpoint {
        request: Some(json::<CaptureRequest>()),
        ..endpoint(
            Operation::Capture,
            Method::Post,
            "/v1/captures",
            json::<CaptureStarted>(),
            "Start a capture of packets as they came and as they left",
        )
    },
    Endpoint {
        numbers: &[Flag {
            name: "wait_seconds",
            summary: "Wait up to this many seconds, at most 5, for the first packet",
        }],
        ..endpoint(
            Operation::Captured,
            Method::Get,
            "/v1/captures/{id}",
            json::<CapturedPackets>(),
            "Packets of a capture since the previous request: at most 1,024",
        )
    },
    endpoint(
        Operation::EndCapture,
        Method::Delete,
        "/v1/captures/{id}",
        json::<CaptureEnded>(),
        "End a capture; answers its remaining packets",
    ),
    endpoint(
        Operation::Metrics,
        Method::Get,
        "/metrics",
        Body::Metrics,
        "All counters as OpenMetrics text, for Prometheus",
    ),
    endpoint(
        Operation::Desired,
        Method::Get,
        "/v1/desired",
        json::<DesiredInfo>(),
        "The generations of the desired state, and the parts of it that do not run",
    ),
    Endpoint {
        request: Some(json::<ApplyRequest>()),
        ..endpoint(
            Operation::Apply,
            Method::Post,
            "/v1/desired",
            json::<Applied>(),
            "Apply the desired state of a node file: all or nothing",
        )
    },
    endpoint(
        Operation::Confirm,
        Method::Post,
        "/v1/desired/confirm",
        json::<Confirmed>(),
        "Confirm an applied state, which is otherwise taken back",
    ),
    Endpoint {
        request: Some(json::<RollbackRequest>()),
        ..endpoint(
            Operation::Rollback,
            Method::Post,
            "/v1/desired/rollback",
            json::<Applied>(),
            "Return to an earlier generation of the desired state",
        )
    },
    Endpoint {
        numbers: &[Flag {
            name: "since",
            summary: "Only records with this number or a higher one",
        }],
        ..endpoint(
            Operation::Ledger,
            Method::Get,
            "/v1/ledger",
            json::<LedgerRecords>(),
            "Records of the ledger: at most 1,000 an answer",
        )
    },
    Endpoint {
        numbers: &[
            Flag { name: "since", summary: "Only records from this Unix second or later" },
            Flag { name: "until", summary: "Only records from before this Unix second" },
        ],
        ..endpoint(
            Operation::LedgerTotals,
            Method::Get,
            "/v1/ledger/totals",
            json::<LedgerTotals>(),
            "Total of each principal in each session",
        )
    },
    Endpoint {
        numbers: &[Flag {
            name: "from",
            summary: "The number of the first record, among the principal's own",
        }],
        texts: &[Flag { name: "principal", summary: "Public key of the principal: ed25519/…" }],
        ..endpoint(
            Operation::LedgerReceipt,
            Method::Get,
            "/v1/ledger/receipt",
            json::<LedgerReceipt>(),
            "A principal's own records with the node's signature: at most 8,192",
        )
    },
    endpoint(
        Operation::HandOver,
        Method::Post,
        "/v1/handover",
        json::<HandedOver>(),
        "End the daemon only: services and forwarding continue until the next daemon adopts them",
    ),
    Endpoint {
        request: Some(json::<RevokeRequest>()),
        ..endpoint(
            Operation::Revoke,
            Method::Post,
            "/v1/revocations",
            json::<Revoked>(),
            "Revoke capabilities, and stop everything that runs under them; answers when it has stopped",
        )
    },
    endpoint(
        Operation::Revocations,
        Method::Get,
        "/v1/revocations",
        json::<RevocationList>(),
        "All revocations on this node",
    ),
    endpoint(
        Operation::Backup,
        Method::Get,
        "/v1/backup",
        json::<NodeBackup>(),
        "Contents of the node's state directory, for a backup",
    ),
    endpoint(
        Operation::OpenApi,
        Method::Get,
        "/v1/openapi.json",
        Body::AnyJson,
        "This description of the API",
    ),
];
