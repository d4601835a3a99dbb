//! Services as the node sees them: module, parameters, session and state.

use std::collections::BTreeMap;

use abi::check::{Checked, Kind, MemoryImage};
use abi::{HostFunctions, Level, Manifest};
use serde::{Deserialize, Serialize};
use units::{EntryId, Name, Nanos};

use crate::budget::Budget;
use crate::owner::Owner;
use crate::policy::OnFailure;

/// Limit of services on one node: each takes five of the 65,530 memory mappings that Linux allows a
/// process.
pub const SERVICES_MAX: usize = 12_288;

/// Limit of services that can leave user level; they have the lowest entries.
pub const BELOW_MAX: usize = bpf_maps::MODULES_MAX;

const _: () = assert!(BELOW_MAX < SERVICES_MAX);

const _: () = assert!(SERVICES_MAX <= u16::MAX as usize, "an entry's number has 16 bits");

/// Entry for the packets of the node's associations: the last one, which no service gets.
pub const ASSOCIATIONS: EntryId = EntryId(bpf_maps::ENTRIES_MAX as u16 - 1);

const _: () = assert!(SERVICES_MAX < bpf_maps::ENTRIES_MAX);

pub use abi::layout::EDGES_MAX;

/// Limit of services in a row: in the kernel each takes two of the 33 tail calls that a packet may
/// make.
pub const GRAPH_DEPTH_MAX: usize = 8;

pub use units::Edge;

/// Destination of each edge out of a service.
pub type Edges = [Edge; EDGES_MAX];

/// Module that the daemon has stored and checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModuleInfo {
    /// Digest in the store, `sha256:…`; the node only passes it on.
    pub digest: String,
    /// Kind of events that the module is called for.
    #[serde(default)]
    pub kind: Kind,
    /// Manifest of the module.
    pub manifest: Manifest,
    /// True if the module has the hooks that hand state over.
    #[serde(default)]
    pub hands_state_over: bool,
    /// Initial contents of its memory.
    #[serde(default)]
    pub image: MemoryImage,
    /// Host functions that it imports.
    #[serde(default = "none")]
    pub imports: HostFunctions,
    /// Host functions that it may use here; a module that imports others is refused.
    #[serde(default)]
    pub granted: HostFunctions,
}

/// Returns the default of a module that was checked before its imports were recorded: it is refused
/// when it is linked.
const fn none() -> HostFunctions {
    HostFunctions::NONE
}

impl ModuleInfo {
    /// Returns the description of a checked module that may use all host functions.
    #[must_use]
    pub fn of(digest: String, checked: &Checked) -> Self {
        let (manifest, image) = (checked.manifest.clone(), checked.image);
        let imports = checked.imports.iter().copied().collect();
        let (hands_state_over, granted) = (checked.hooks.state, HostFunctions::ALL);
        let kind = checked.kind;
        Self { digest, kind, manifest, hands_state_over, image, imports, granted }
    }

    /// Returns true if the module can run below user level.
    #[must_use]
    pub fn can_leave_user(&self) -> bool {
        self.manifest.levels.iter().any(|level| *level < Level::User)
    }

    /// Returns the same module, restricted to these host functions.
    #[must_use]
    pub fn with_functions(self, granted: HostFunctions) -> Self {
        Self { granted, ..self }
    }
}

/// State of a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum ServiceState {
    /// The cell has been or will be asked to start it; its rules are not installed.
    Starting,
    /// The service runs and its rules are installed.
    Running,
    /// The service ran, failed, and starts again after a pause; its rules are not installed.
    Failed {
        /// Reason that the cell gave.
        reason: String,
    },
    /// The service has trapped too often, and stays down until it is deployed again; its rules are
    /// not installed.
    Bypassed {
        /// Description of the last trap.
        reason: String,
    },
    /// The cell has been asked to stop it; its name and entry are free when it has.
    Stopping,
}

/// Service as `tam list` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    /// Name of the service.
    pub name: Name,
    /// Entry in the cell, for as long as the service exists.
    pub entry: EntryId,
    /// Module that it runs.
    pub module: ModuleInfo,
    /// Parameters set by the operator, without the module's defaults.
    pub parameters: BTreeMap<String, String>,
    /// Session that pays.
    pub session: Name,
    /// Services that follow in the graph, by the number of the edge that leads there.
    pub then: BTreeMap<u16, Name>,
    /// Budget below user level.
    pub budget: Budget,
    /// Failure policy: the fate of the service's packets while it is down.
    #[serde(default)]
    pub on_failure: OnFailure,
    /// Owner; `None` is the operator.
    #[serde(default)]
    pub owner: Option<Owner>,
    /// Level at which it runs.
    pub level: Level,
    /// Reason that it runs at that level.
    pub level_reason: String,
    /// State of the service.
    #[serde(flatten)]
    pub state: ServiceState,
    /// Time of the last change of state, on the node's clock.
    pub since: Nanos,
    /// Number of restarts.
    pub restarts: u32,
}

/// Pause before the first restart: too short for a person to notice.
pub const BACKOFF_MIN: Nanos = Nanos::from_millis(100);
/// Longest pause between restarts; a service that ran that long begins with the shortest again.
pub const BACKOFF_MAX: Nanos = Nanos::from_millis(10_000);

const _: () = assert!(BACKOFF_MIN.0 > 0 && BACKOFF_MIN.0 <= BACKOFF_MAX.0);

/// Restart pauses that double from failure to failure.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Backoff {
    next: Nanos,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { next: BACKOFF_MIN }
    }
}

impl Backoff {
    /// Returns the pause after a failure of a service that had run for `ran_for`.
    pub(crate) fn pause(&mut self, ran_for: Nanos) -> Nanos {
        if ran_for >= BACKOFF_MAX {
            self.next = BACKOFF_MIN;
        }
        let pause = self.next;
        self.next = (pause + pause).min(BACKOFF_MAX);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_to_their_limit_and_a_long_run_forgives() {
        let mut backoff = Backoff::default();
        let pauses: Vec<u64> = (0..9).map(|_| backoff.pause(Nanos::ZERO).as_millis()).collect();
        assert_eq!(pauses, [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
        assert_eq!(backoff.pause(BACKOFF_MAX), BACKOFF_MIN);
    }
}
