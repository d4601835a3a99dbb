//! Data plane without a kernel, for random histories.

use super::{LaneState, Plane};
use abi::Level;
use std::collections::{BTreeMap, BTreeSet};
use units::EntryId;

/// Version of a service in the fake kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::control) struct Version {
    pub(in crate::control) is_shared: bool,
    pub(in crate::control) programs: BTreeSet<Level>,
    /// Levels for which the verifier takes no program of it.
    pub(in crate::control) refused: BTreeSet<Level>,
}

/// Lane as the front door has it.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::control) struct Lane {
    pub(in crate::control) is_held: bool,
    pub(in crate::control) is_kept_up: bool,
    /// Packets at user level that are lost: they are counted until the next recount.
    pub(in crate::control) lost: u64,
    /// Level at which the cell handles packets; `None` until it was set.
    pub(in crate::control) target: Option<Level>,
}

/// Data plane of tables.
#[derive(Default)]
pub(in crate::control) struct Kernel {
    pub(in crate::control) current: BTreeMap<EntryId, Version>,
    pub(in crate::control) next: BTreeMap<EntryId, Version>,
    pub(in crate::control) before: BTreeMap<EntryId, Version>,
    pub(in crate::control) lanes: BTreeMap<EntryId, Lane>,
    pub(in crate::control) reusable: u32,
}

impl Plane for Kernel {
    fn unsupported(&self) -> Option<&str> {
        None
    }

    fn check_level(&self, _: Level, _: bool) -> Result<(), String> {
        Ok(())
    }

    fn is_shared(&self, entry: EntryId) -> bool {
        self.current.get(&entry).is_some_and(|version| version.is_shared)
    }

    fn refused(&self, _: EntryId) -> Vec<(Level, String)> {
        Vec::new()
    }

    fn has_program(&self, entry: EntryId, level: Level) -> bool {
        self.current.get(&entry).is_some_and(|version| version.programs.contains(&level))
    }

    fn lane(&self, entry: EntryId, level: Level) -> Option<LaneState> {
        if !self.is_shared(entry) {
            return None;
        }
        let lane = self.lanes.get(&entry).copied().unwrap_or_default();
        let is_settled = lane.target == Some(level) && (level == Level::User || lane.lost == 0);
        Some(LaneState { is_settled, waiting: lane.lost, is_kept_up: lane.is_kept_up })
    }

    fn hold(&mut self, entry: EntryId, held: bool) {
        self.lanes.entry(entry).or_default().is_held = held;
    }

    fn close(&mut self, _: EntryId, _: bool) {}

    fn call_nothing(&mut self, _: EntryId) -> bool {
        true
    }

    fn call_again(&mut self, _: EntryId) {}

    fn replaced(&mut self, entry: EntryId) -> Option<(bool, bool)> {
        let next = self.next.remove(&entry)?;
        let old = self.current.remove(&entry).unwrap_or_default();
        let changed = (old.is_shared, next.is_shared);
        self.before.insert(entry, old);
        self.current.insert(entry, next);
        Some(changed)
    }

    fn put_back(&mut self, entry: EntryId) -> Option<(bool, bool)> {
        let old = self.before.remove(&entry)?;
        let new = self.current.remove(&entry).unwrap_or_default();
        let changed = (new.is_shared, old.is_shared);
        self.current.insert(entry, old);
        Some(changed)
    }

    fn forget_before(&mut self, entry: EntryId) -> Option<u32> {
        self.before.remove(&entry)?;
        self.reusable += 1;
        Some(self.reusable)
    }

    fn forget_next(&mut self, entry: EntryId) {
        self.next.remove(&entry);
    }
}
