//! What somebody wants to do, in the dimensions in which a grant can be narrow.

use crate::dimension::{Dimension, Kind};
use crate::signer::Signer;
use abi::Level;
use ipnet::IpNet;
use std::collections::BTreeSet;
use std::fmt;

/// What is done, by the API's endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// See: services, rules, counters, events, why.
    Read,
    /// Put a module in the node's store.
    Store,
    /// Start a service, or another version of it.
    Deploy,
    /// Stop a service.
    Remove,
    /// Have a service run at another level.
    Move,
    /// Give a service a control message.
    Message,
    /// Add and remove rules.
    Rule,
    /// Have copies of packets.
    Capture,
    /// Make, change and remove sessions.
    Session,
    /// What concerns everybody: the desired state, the BPF switch, the daemon's place, tokens.
    Administer,
}

impl Operation {
    /// All of them.
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

    /// As it stands in tokens and on the command line.
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

    /// By its name.
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

/// The module of a request, as a node has verified it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleAsk {
    /// SHA-256 of its bytes.
    pub digest: [u8; 32],
    /// By its manifest.
    pub name: String,
    /// Whose signature of it is good.
    pub signers: BTreeSet<Signer>,
    /// What it is to be; `None` where it is read and does not run.
    pub kind: Option<Kind>,
}

/// Everything that one request wants. What it does not touch is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// What is done.
    pub operation: Operation,
    /// To whose services and rules.
    pub session: Option<String>,
    /// With which module.
    pub module: Option<ModuleAsk>,
    /// At all of these.
    pub levels: BTreeSet<Level>,
    /// Host functions that the module imports.
    pub functions: BTreeSet<String>,
    /// Traffic that rules match: all of these prefixes. A rule without any is about `0.0.0.0/0`
    /// and `::/0`.
    pub traffic: BTreeSet<IpNet>,
    /// What the session would have afterwards, of each resource that the request changes.
    pub amounts: Amounts,
}

impl Ask {
    /// One that touches nothing.
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

/// Resources that have a ceiling, in the order of [`RESOURCES`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amounts(pub [Option<u64>; RESOURCES.len()]);

impl Amounts {
    /// None.
    pub const NONE: Self = Self([None; RESOURCES.len()]);
}

/// Resource and unit.
pub const RESOURCES: [(&str, &str); 4] = [
    ("services", "services"),
    ("cpu", "parts of a million of one core"),
    ("memory", "bytes"),
    ("bandwidth", "bits per second"),
];

/// A right that a request would need.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Missing {
    /// In which dimension.
    pub dimension: Dimension,
    /// What of it.
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
