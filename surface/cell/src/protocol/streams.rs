//! What is said of services of streams.

use super::KeptFacts;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
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

/// What became of a service's connections since it started: each is in one of the outcomes, or is
/// open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamReport {
    /// That came.
    pub accepted: u64,
    /// Whose server could not be reached: the client was reset.
    pub unreachable: u64,
    /// That a reset of one end, or the service, ended at both.
    pub reset: u64,
    /// That both ends ended.
    pub ended: u64,
    /// Of those accepted, which the server sees with another port than the client's.
    pub other_port: u64,
    /// Bytes sent to servers.
    pub up: u64,
    /// Bytes sent to clients.
    pub down: u64,
    /// Processor time.
    pub cpu: Nanos,
}

impl StreamReport {
    /// Connections that are open.
    #[must_use]
    pub const fn open(&self) -> u64 {
        self.accepted - self.unreachable - self.reset - self.ended
    }
}
