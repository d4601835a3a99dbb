//! Counters of a node beside those of packets.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Compilations of modules, since the node's daemon started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CompilerStats {
    /// Compilers that were started.
    pub started: u64,
    /// Modules whose code was on the disk already.
    pub from_disk: u64,
    /// Modules that wait for a compiler at the moment.
    pub waiting: u64,
}

/// Modules that a node was asked for and did not hold, since its daemon started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DemandStats {
    /// Requests for such a module.
    pub requests: u64,
    /// Those that were answered by an earlier miss, and asked no repository.
    pub remembered: u64,
    /// Modules that came.
    pub fetched: u64,
    /// Their bytes.
    pub fetched_bytes: u64,
    /// Fetches by which nothing came that may run here.
    pub missed: u64,
    /// Modules that are wanted at the moment.
    pub modules: u64,
    /// Requests that wait for them.
    pub waiting: u64,
}

/// Messages from one module to another, since the cell that runs was started: each is counted
/// once for each receiver, in one of these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MessageStats {
    /// Given to the receiver, in at least one lane.
    pub delivered: u64,
    /// Left out of a storm, or the receiver was gone, busy below user level, or not started.
    pub dropped: u64,
    /// For nobody: no service leads to the sender.
    pub unheard: u64,
}
