//! Counters of a node that are not of packets.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Compilations of modules, since the node's daemon started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CompilerStats {
    /// Number of compilers started.
    pub started: u64,
    /// Number of modules whose code was on the disk already.
    pub from_disk: u64,
    /// Number of modules that wait for a compiler now.
    pub waiting: u64,
}

/// Requests for modules that the node did not hold, since its daemon started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DemandStats {
    /// Number of requests.
    pub requests: u64,
    /// Number of requests that were answered by an earlier miss, without asking a repository.
    pub remembered: u64,
    /// Number of modules fetched.
    pub fetched: u64,
    /// Bytes of the modules fetched.
    pub fetched_bytes: u64,
    /// Number of fetches that found no module which may run here.
    pub missed: u64,
    /// Number of modules wanted now.
    pub modules: u64,
    /// Number of requests that wait for them.
    pub waiting: u64,
}

/// Messages from one module to another since the present cell was started. Each counts once per
/// receiver, in one of these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MessageStats {
    /// Number given to the receiver, in at least one lane.
    pub delivered: u64,
    /// Number left out of a burst, or whose receiver was gone, busy below user level, or not
    /// started.
    pub dropped: u64,
    /// Number without a receiver: no service leads to the sender.
    pub unheard: u64,
}
