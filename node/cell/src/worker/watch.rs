//! Which services are to be looked at, and when: with thousands of them nobody asks each.
//!
//! ```text
//!  timer, restart, probation, lane below ─▶ due: a heap of (when, entry) ─▶ tick
//!  service that can leave user level ─────▶ lanes: its ring, and whether its packets have left
//! ```

use super::Cell;
use crate::pacer;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use units::EntryId;

#[derive(Debug, Default)]
pub(super) struct Watch {
    /// What was asked for; that which is not in `at` any more is skipped.
    due: BinaryHeap<Reverse<(u64, EntryId)>>,
    /// By entry: when it is to be looked at, `u64::MAX` for never.
    at: Vec<u64>,
    lanes: Vec<EntryId>,
}

impl Watch {
    /// The service is to be looked at then, and not before; never with `u64::MAX`.
    pub(super) fn set(&mut self, entry: EntryId, at_ms: u64) {
        let index = usize::from(entry.0);
        if self.at.len() <= index {
            self.at.resize(index + 1, u64::MAX);
        }
        if self.at[index] != at_ms {
            self.at[index] = at_ms;
            if at_ms != u64::MAX {
                self.due.push(Reverse((at_ms, entry)));
            }
        }
    }

    /// When the next one is to be looked at; at the latest, since it may have been put off.
    pub(super) fn next_ms(&self) -> u64 {
        self.due.peek().map_or(u64::MAX, |Reverse((at, _))| *at)
    }

    /// Those whose time has come, each once; none of them is to be looked at again until
    /// [`Watch::set`].
    pub(super) fn take_due(&mut self, now_ms: u64) -> Vec<EntryId> {
        let mut all = Vec::new();
        while let Some(Reverse((at, entry))) = self.due.peek().copied()
            && at <= now_ms
        {
            self.due.pop();
            let index = usize::from(entry.0);
            if self.at[index] == at {
                self.at[index] = u64::MAX;
                all.push(entry);
            }
        }
        all
    }

    /// A version of the service can leave user level.
    pub(super) fn has_lane(&mut self, entry: EntryId) {
        if let Err(place) = self.lanes.binary_search(&entry) {
            self.lanes.insert(place, entry);
        }
    }

    /// Services of which a version can leave user level.
    pub(super) fn lanes(&self) -> &[EntryId] {
        &self.lanes
    }

    /// The service is gone.
    pub(super) fn forget(&mut self, entry: EntryId) {
        self.set(entry, u64::MAX);
        if let Ok(place) = self.lanes.binary_search(&entry) {
            self.lanes.remove(place);
        }
    }
}

impl Cell {
    /// Looks at those services whose time has come by the exact clock. Their hooks hear the time
    /// of the loop, `now_ms`, which packets have, too: it never goes back.
    pub(super) fn tick(&mut self, now_ms: u64) {
        let exact_ms = pacer::now().as_millis();
        if exact_ms < self.watch.next_ms() {
            return;
        }
        self.arm();
        let due = self.watch.take_due(exact_ms);
        for &entry in &due {
            let service = self.services.get_mut(usize::from(entry.0)).and_then(Option::as_mut);
            let Some(service) = service else { continue };
            self.meter.run_for(&mut self.sessions, service.facts.session);
            self.watch.set(entry, service.tick(exact_ms));
        }
        self.meter.stop(&mut self.sessions);
        for entry in due {
            self.attend(entry, now_ms);
            self.tell_traps(entry);
            self.emit(entry);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: EntryId = EntryId(1);
    const TWO: EntryId = EntryId(2);

    #[test]
    fn each_is_due_once_at_the_time_that_was_said_last() {
        let mut watch = Watch::default();
        assert_eq!(watch.next_ms(), u64::MAX);
        watch.set(ONE, 10);
        watch.set(TWO, 20);
        watch.set(ONE, 30);
        watch.set(TWO, 5);
        assert_eq!(watch.next_ms(), 5);
        assert_eq!(watch.take_due(20), [TWO]);
        assert_eq!(watch.take_due(30), [ONE]);
        assert!(watch.take_due(u64::MAX - 1).is_empty());
        watch.set(ONE, 40);
        watch.forget(ONE);
        assert!(watch.take_due(50).is_empty());
    }

    #[test]
    fn those_with_a_lane_are_listed_once() {
        let mut watch = Watch::default();
        for entry in [TWO, ONE, TWO] {
            watch.has_lane(entry);
        }
        assert_eq!(watch.lanes(), [ONE, TWO]);
        watch.forget(ONE);
        assert_eq!(watch.lanes(), [TWO]);
    }
}
