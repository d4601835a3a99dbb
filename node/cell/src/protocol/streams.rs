//! Messages about services of streams.

use super::RetainedSizes;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tcp_intercept::Counts;
use units::{EntryId, Nanos, SessionId};

/// A service of streams as a cell runs it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StreamSpec {
    /// Entry: its number among all services.
    pub entry: EntryId,
    /// Name of the service.
    pub name: String,
    /// Session that pays.
    pub session: SessionId,
    /// Memory limit of the module, in pages of 64 KiB.
    pub memory_pages_max: u32,
    /// Parameters by name, each encoded as its type says.
    pub parameters: BTreeMap<String, Vec<u8>>,
    /// Failure policy: connections that the module cannot handle are reset if set, else relayed
    /// unchanged.
    pub closed: bool,
    /// Bytes that the daemon keeps for the service.
    pub kept: RetainedSizes,
}

/// Availability of codecs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CodecSpec {
    /// Cores that all codecs share.
    pub cores: u16,
    /// Reason for which there are no codecs; `None` if there are.
    pub missing: Option<String>,
}

/// Counters of a service of streams since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamReport {
    /// Outcomes of its connections, of all versions.
    pub counts: Counts,
    /// Requests whose head was read, of all versions.
    pub requests: u64,
    /// Processor time used.
    pub cpu: Nanos,
}
