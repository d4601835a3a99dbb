//! A service as the node sees it: a module, its parameters, its session, and how it is doing.

use std::collections::BTreeMap;

use abi::check::{Checked, Kind, MemoryImage};
use abi::{HostFunctions, Level, Manifest};
use serde::{Deserialize, Serialize};
use units::{EntryId, Name, Nanos};

use crate::budget::Budget;
use crate::owner::Owner;
use crate::policy::OnFailure;

/// Services of one node: each takes five of the 65,530 mappings that Linux lets a process have.
pub const SERVICES_MAX: usize = 12_288;

/// Those of them that can leave user level: their entries are the first ones.
pub const BELOW_MAX: usize = bpf_maps::MODULES_MAX;

const _: () = assert!(BELOW_MAX < SERVICES_MAX);

const _: () = assert!(SERVICES_MAX <= u16::MAX as usize, "an entry's number has 16 bits");

/// The entry by which the cell gets what comes for the node's associations: the last one, which no
/// service has.
pub const ASSOCIATIONS: EntryId = EntryId(bpf_maps::ENTRIES_MAX as u16 - 1);

const _: () = assert!(SERVICES_MAX < bpf_maps::ENTRIES_MAX);

pub use abi::layout::EDGES_MAX;

/// Services in a row: in the kernel each takes two of the 33 tail calls that a packet may make.
pub const GRAPH_DEPTH_MAX: usize = 8;

pub use units::Edge;

/// Where each edge out of a service leads.
pub type Edges = [Edge; EDGES_MAX];

/// A module that the daemon has in its store and has checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModuleInfo {
    /// Its name in the store, `sha256:…`; the node only hands it on.
    pub digest: String,
    /// What it is called for.
    #[serde(default)]
    pub kind: Kind,
    /// What the module declares.
    pub manifest: Manifest,
    /// Whether it has the hooks for handing state over.
    #[serde(default)]
    pub hands_state_over: bool,
    /// What its memory begins with.
    #[serde(default)]
    pub image: MemoryImage,
    /// The host functions that it imports.
    #[serde(default = "none")]
    pub imports: HostFunctions,
    /// Those that it may use here; it is refused if it imports another.
    #[serde(default)]
    pub granted: HostFunctions,
}

/// Of a module that was checked before its imports were noted: it is refused where it is linked.
const fn none() -> HostFunctions {
    HostFunctions::NONE
}

impl ModuleInfo {
    /// A module that was checked, with all host functions.
    #[must_use]
    pub fn of(digest: String, checked: &Checked) -> Self {
        let (manifest, image) = (checked.manifest.clone(), checked.image);
        let imports = checked.imports.iter().copied().collect();
        let (hands_state_over, granted) = (checked.hooks.state, HostFunctions::ALL);
        let kind = checked.kind;
        Self { digest, kind, manifest, hands_state_over, image, imports, granted }
    }

    /// Whether it may ever run below user level.
    #[must_use]
    pub fn can_leave_user(&self) -> bool {
        self.manifest.levels.iter().any(|level| *level < Level::User)
    }

    /// The same module, which may use these host functions only.
    #[must_use]
    pub fn with_functions(self, granted: HostFunctions) -> Self {
        Self { granted, ..self }
    }
}

/// How a service is doing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum ServiceState {
    /// The cell has been or will be asked to start it; its rules are not installed.
    Starting,
    /// Its rules are installed.
    Running,
    /// It ran, failed, and is started again after a pause; its rules are not installed.
    Failed {
        /// What the cell said.
        reason: String,
    },
    /// It has trapped too often, and is not started again until somebody deploys it; its rules
    /// are not installed.
    Bypassed {
        /// How it trapped.
        reason: String,
    },
    /// The cell has been asked to stop it; its name and entry are free when it has.
    Stopping,
}

/// A service as `tam list` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    /// Its name.
    pub name: Name,
    /// Its number in the cell, for as long as it exists.
    pub entry: EntryId,
    /// What it runs.
    pub module: ModuleInfo,
    /// What the operator set; the module's defaults are not repeated.
    pub parameters: BTreeMap<String, String>,
    /// The session that pays.
    pub session: Name,
    /// The services after it, by the number of the edge that leads there.
    pub then: BTreeMap<u16, Name>,
    /// What it may use below user level.
    pub budget: Budget,
    /// What becomes of its packets while it is down.
    #[serde(default)]
    pub on_failure: OnFailure,
    /// Whose it is.
    #[serde(default)]
    pub owner: Option<Owner>,
    /// Where it runs.
    pub level: Level,
    /// Why there.
    pub level_reason: String,
    /// How it is doing.
    #[serde(flatten)]
    pub state: ServiceState,
    /// When it came into that state, on the node's clock.
    pub since: Nanos,
    /// How often it was started again.
    pub restarts: u32,
}

/// Pause before the first restart: shorter than what a person notices.
pub const BACKOFF_MIN: Nanos = Nanos::from_millis(100);
/// Longest pause between restarts; whoever ran that long before begins with the shortest.
pub const BACKOFF_MAX: Nanos = Nanos::from_millis(10_000);

const _: () = assert!(BACKOFF_MIN.0 > 0 && BACKOFF_MIN.0 <= BACKOFF_MAX.0);

/// Pauses that double from failure to failure.
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
    /// The pause after a failure that came when it had run for `ran_for`.
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
