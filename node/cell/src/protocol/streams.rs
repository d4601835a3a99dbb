//! What is said of services of streams.

use super::KeptFacts;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tcp_intercept::Counts;
use units::{EntryId, Nanos, SessionId};

/// A service of streams as a cell runs it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StreamFacts {
    /// Its number among all services.
    pub entry: EntryId,
    /// Its name.
    pub name: String,
    /// The session that pays.
    pub session: SessionId,
    /// Memory limit of its module, in pages of 64 KiB.
    pub memory_pages_max: u32,
    /// Its parameters by name, encoded as their types say.
    pub parameters: BTreeMap<String, Vec<u8>>,
    /// Connections that its module cannot have are reset; else their bytes go on as they are.
    pub closed: bool,
    /// What the daemon keeps for it.
    pub kept: KeptFacts,
}

/// What codecs there are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CodecFacts {
    /// Cores that they have together.
    pub cores: u16,
    /// Why there are none, if there are none.
    pub missing: Option<String>,
}

/// What a service's connections became since it started, and took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamReport {
    /// What became of them, of all its versions.
    pub counts: Counts,
    /// Requests whose head was read, of all its versions.
    pub requests: u64,
    /// Processor time.
    pub cpu: Nanos,
}
