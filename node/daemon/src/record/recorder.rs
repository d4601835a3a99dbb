//! Schedule of the record: when it is written again after something has changed.
//!
//! A small record is written at once. While a change of thousands of services is under way, or
//! where writing takes long, the record gets a twentieth of the daemon's time: the client of the
//! change is answered at its end, and the next daemon stops what it does not know.

use std::path::{Path, PathBuf};
use units::Nanos;

/// Part of the daemon's time that writing a large record may take.
const RECORD_PART: u64 = 20;
/// Duration below which a record is written at once: of some hundred services.
const RECORD_QUICK: Nanos = Nanos::from_millis(5);

/// Dirty flag of the record, and how long writing it took last.
#[derive(Debug)]
pub(crate) struct Recorder {
    fingerprint: String,
    path: PathBuf,
    is_dirty: bool,
    /// End of the last write, and its duration.
    last: (Nanos, Nanos),
}

impl Recorder {
    /// Creates the schedule of a record that has yet to be written, at this path. `fingerprint` is of
    /// what the next daemon has to share ([`super::fingerprint`]).
    pub(crate) const fn new(fingerprint: String, path: PathBuf, now: Nanos) -> Self {
        Self { fingerprint, path, is_dirty: true, last: (now, Nanos::ZERO) }
    }

    /// Returns what the next daemon has to share with this one.
    pub(crate) fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Returns the path of the record.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the latest time at which a change must be written; `None` if nothing has changed.
    /// `is_busy` states that a change of several steps is under way.
    pub(crate) fn due(&self, is_busy: bool) -> Option<Nanos> {
        let (at, took) = self.last;
        let is_quick = !is_busy && took < RECORD_QUICK;
        let rest = if is_quick { Nanos::ZERO } else { Nanos(took.0.saturating_mul(RECORD_PART)) };
        self.is_dirty.then(|| at + rest)
    }

    /// Takes note of a write that began and ended at these times.
    pub(crate) fn handle_written(&mut self, began: Nanos, ended: Nanos) {
        self.last = (ended, ended.saturating_sub(began));
    }

    /// Marks the record as older than what runs.
    pub(crate) const fn mark(&mut self) {
        self.is_dirty = true;
    }

    /// Returns true when something has changed since this was asked last: it is to be written now.
    pub(crate) const fn take_dirty(&mut self) -> bool {
        std::mem::replace(&mut self.is_dirty, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_record_is_written_at_once_and_a_large_one_has_a_part_of_the_time() {
        let at = Nanos::from_millis;
        let mut recorder = Recorder::new("0a".to_owned(), "running.json".into(), at(0));
        assert_eq!(recorder.due(false), Some(at(0)), "nothing has been written yet");
        assert!(recorder.take_dirty() && !recorder.take_dirty());
        recorder.handle_written(at(0), at(1));
        assert_eq!(recorder.due(false), None, "nothing has changed");
        recorder.mark();
        assert_eq!(recorder.due(false), Some(at(1)));
        assert_eq!(recorder.due(true), Some(at(1 + 20)), "in the middle of a change");
        recorder.handle_written(at(100), at(200));
        assert_eq!(recorder.due(false), Some(at(200 + 2_000)));
        assert_eq!(recorder.fingerprint(), "0a");
    }
}
