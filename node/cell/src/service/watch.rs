//! Index of services by the time of their next check: with thousands of them, polling each would
//! take too long.
//!
//! ```text
//!  timer, restart, probation, lane below ─▶ due: a heap of (when, entry) ─▶ tick
//!  service that can leave user level ─────▶ lanes: its ring, and whether its packets have left
//! ```

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use units::{CoarseInstant, EntryId};

#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// Requested times; one that differs from `at` is stale and skipped.
    due: BinaryHeap<Reverse<(CoarseInstant, EntryId)>>,
    /// Time at which each entry is due, [`CoarseInstant::NEVER`] for never.
    at: Vec<CoarseInstant>,
    lanes: Vec<EntryId>,
}

impl Watch {
    /// Sets the time at which a service is due; [`CoarseInstant::NEVER`] for never.
    pub(crate) fn set(&mut self, entry: EntryId, at: CoarseInstant) {
        let index = usize::from(entry.0);
        if self.at.len() <= index {
            self.at.resize(index + 1, CoarseInstant::NEVER);
        }
        if self.at[index] != at {
            self.at[index] = at;
            if at != CoarseInstant::NEVER {
                self.due.push(Reverse((at, entry)));
            }
        }
    }

    /// Returns the earliest time at which a service may be due; it may be too early, if that
    /// service was deferred.
    pub(crate) fn next_at(&self) -> CoarseInstant {
        self.due.peek().map_or(CoarseInstant::NEVER, |Reverse((at, _))| *at)
    }

    /// Takes the services that are due, each once. None of them is due again until [`Watch::set`].
    pub(crate) fn take_due(&mut self, now: CoarseInstant) -> Vec<EntryId> {
        let mut all = Vec::new();
        while let Some(Reverse((at, entry))) = self.due.peek().copied()
            && at <= now
        {
            self.due.pop();
            let index = usize::from(entry.0);
            if self.at[index] == at {
                self.at[index] = CoarseInstant::NEVER;
                all.push(entry);
            }
        }
        all
    }

    /// Adds a service of which a version can leave user level.
    pub(crate) fn has_lane(&mut self, entry: EntryId) {
        if let Err(place) = self.lanes.binary_search(&entry) {
            self.lanes.insert(place, entry);
        }
    }

    /// Returns the services of which a version can leave user level.
    pub(crate) fn lanes(&self) -> &[EntryId] {
        &self.lanes
    }

    /// Removes a service.
    pub(crate) fn forget(&mut self, entry: EntryId) {
        self.set(entry, CoarseInstant::NEVER);
        if let Ok(place) = self.lanes.binary_search(&entry) {
            self.lanes.remove(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: EntryId = EntryId(1);
    const TWO: EntryId = EntryId(2);

    const fn at(millis: u64) -> CoarseInstant {
        CoarseInstant::from_millis(millis)
    }

    #[test]
    fn each_service_is_due_once_at_its_last_set_time() {
        let mut watch = Watch::default();
        assert_eq!(watch.next_at(), CoarseInstant::NEVER);
        watch.set(ONE, at(10));
        watch.set(TWO, at(20));
        watch.set(ONE, at(30));
        watch.set(TWO, at(5));
        assert_eq!(watch.next_at(), at(5));
        assert_eq!(watch.take_due(at(20)), [TWO]);
        assert_eq!(watch.take_due(at(30)), [ONE]);
        assert!(watch.take_due(at(u64::MAX - 1)).is_empty());
        watch.set(ONE, at(40));
        watch.forget(ONE);
        assert!(watch.take_due(at(50)).is_empty());
    }

    #[test]
    fn services_with_a_lane_are_listed_once() {
        let mut watch = Watch::default();
        for entry in [TWO, ONE, TWO] {
            watch.has_lane(entry);
        }
        assert_eq!(watch.lanes(), [ONE, TWO]);
        watch.forget(ONE);
        assert_eq!(watch.lanes(), [TWO]);
    }
}
