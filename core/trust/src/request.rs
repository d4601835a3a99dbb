//! Access requests: the rights that one API request needs, in the dimensions of a grant.

use crate::dimension::{Dimension, Kind};
use crate::signer::Signer;
use abi::Level;
use ipnet::IpNet;
use std::collections::BTreeSet;
use std::fmt;

/// Operation of the API, by groups of endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// Read services, rules, counters, events and explanations.
    Read,
    /// Upload a module to the node's store.
    Store,
    /// Start a service, or replace its version.
    Deploy,
    /// Stop a service.
    Remove,
    /// Have a service run at another level.
    Move,
    /// Send a control message to a service.
    Message,
    /// Add and remove rules.
    Rule,
    /// Receive copies of packets.
    Capture,
    /// Create, change and remove sessions.
    Session,
    /// Change what concerns all principals: the desired state, the BPF switch, the daemon itself,
    /// tokens.
    Administer,
}

impl Operation {
    /// All operations.
    pub const ALL: [Self; 10] = [
        Self::Read,
        Self::Store,
        Self::Deploy,
        Self::Remove,
        Self::Move,
        Self::Message,
        Self::Rule,
        Self::Capture,
        Self::Session,
        Self::Administer,
    ];

    /// Returns the name in tokens and on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Store => "store",
            Self::Deploy => "deploy",
            Self::Remove => "remove",
            Self::Move => "move",
            Self::Message => "message",
            Self::Rule => "rule",
            Self::Capture => "capture",
            Self::Session => "session",
            Self::Administer => "administer",
        }
    }

    /// Returns the operation of a name.
    #[must_use]
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|operation| operation.name() == name)
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Module of a request, as the node has verified it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestedModule {
    /// SHA-256 of the module's bytes.
    pub digest: [u8; 32],
    /// Name in its manifest.
    pub name: String,
    /// Signers whose signatures of it are valid.
    pub signers: BTreeSet<Signer>,
    /// Kind of service it is to become; `None` if it is read and not run.
    pub kind: Option<Kind>,
}

/// Rights that one request needs. A dimension that the request does not touch is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessRequest {
    /// Operation requested.
    pub operation: Operation,
    /// Session that owns the services and rules.
    pub session: Option<String>,
    /// Module to be used.
    pub module: Option<RequestedModule>,
    /// Levels requested; all of them have to be granted.
    pub levels: BTreeSet<Level>,
    /// Host functions that the module imports.
    pub functions: BTreeSet<String>,
    /// Prefixes that rules match; all of them have to be granted. A rule without prefixes needs
    /// `0.0.0.0/0` and `::/0`.
    pub traffic: BTreeSet<IpNet>,
    /// Amounts that the session would have afterwards, of each resource that the request changes.
    pub amounts: Amounts,
}

impl AccessRequest {
    /// Makes a request for an operation that touches no other dimension.
    #[must_use]
    pub const fn to(operation: Operation) -> Self {
        Self {
            operation,
            session: None,
            module: None,
            levels: BTreeSet::new(),
            functions: BTreeSet::new(),
            traffic: BTreeSet::new(),
            amounts: Amounts::NONE,
        }
    }
}

/// Amounts of the resources that have a ceiling, in the order of [`RESOURCES`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amounts(pub [Option<u64>; RESOURCES.len()]);

impl Amounts {
    /// No amounts.
    pub const NONE: Self = Self([None; RESOURCES.len()]);
}

/// Resources that have a ceiling, with their units.
pub const RESOURCES: [(&str, &str); 4] = [
    ("services", "services"),
    ("cpu", "parts of a million of one core"),
    ("memory", "bytes"),
    ("bandwidth", "bits per second"),
];

/// Right that a request needs and a grant lacks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Missing {
    /// Dimension of the right.
    pub dimension: Dimension,
    /// Missing value in that dimension.
    pub what: String,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.dimension {
            Dimension::Until => write!(f, "time: it ended {}", self.what),
            dimension => write!(f, "{dimension} {}", self.what),
        }
    }
}
