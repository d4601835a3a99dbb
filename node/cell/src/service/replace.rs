//! Replacement of a service's version by another.
//!
//! ```text
//!   old: no program runs ─ keep ─▶ new: starts with its state ─ runs ─▶ PROBATION ─▶ old is removed
//!          │ it does not hand over          │ it does not start            │ the new one traps
//!          ▼                                ▼                              ▼
//!        old goes on                      old goes on                    old goes on, with the state
//!                                                                        that it had
//! ```
//!
//! All of it happens between two packets, so none is lost or overtaken: packets that arrive
//! meanwhile wait in their ring. Counters belong to the service's name, not to a version.

use engine::StateError;
use session::memory::OutOfMemory;
use units::{CoarseInstant, Millis};

use super::Service;
use super::version::StartFailure;
use crate::service::shared::Shared;

/// Probation of a new version, which is taken back if it traps within it: longer than any timer of
/// common modules, short enough for a caller who waits for the answer.
pub(crate) const PROBATION: Millis = Millis(500);

/// Old version, and the end of the new one's probation.
struct Before {
    service: Box<Service>,
    until: CoarseInstant,
}

/// Cause for which the old version goes on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReplaceError {
    #[error("a call of it has not ended in time; try again")]
    Busy,
    #[error(
        "it has {old} lanes and the new version has {new}, so its state cannot be divided among them"
    )]
    Lanes { old: usize, new: u16 },
    #[error("its state cannot be taken over: {0}")]
    State(#[from] StateError),
    #[error("the new version does not start: {0}")]
    Start(#[from] StartFailure),
    #[error("its state is copied for the new version, and {0}")]
    Memory(#[from] OutOfMemory),
}

/// Outcome of a replacement, for the daemon.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ReplaceOutcome {
    /// The probation is over, and the old version is removed.
    Kept,
    /// The old version is back, for this reason.
    PutBack(String),
}

/// Owner of the old version during a probation, and of its outcome for the daemon.
#[derive(Default)]
pub(super) struct Succession {
    before: Option<Before>,
    sequel: Option<ReplaceOutcome>,
    /// Changes of the version that the daemon has not confirmed: levels in its messages are meant
    /// for an earlier one, whose programs are still in place.
    unknown: u32,
}

impl Succession {
    /// Returns true until the daemon has confirmed that it knows the running version.
    pub(super) const fn is_unknown(&self) -> bool {
        self.unknown > 0
    }

    /// Returns the succession of a version that replaces this one.
    pub(super) const fn next(&self) -> Self {
        Self { before: None, sequel: None, unknown: self.unknown + 1 }
    }

    /// Keeps the version that this one replaced, for the probation.
    pub(super) fn keep(&mut self, service: Box<Service>, now: CoarseInstant) {
        self.before = Some(Before { service, until: now + PROBATION });
    }

    /// Takes the old version, to be put back; `None` after the probation.
    pub(super) fn take_before(&mut self) -> Option<Box<Service>> {
        self.before.take().map(|before| before.service)
    }

    /// Records that the old version is back, because the new one trapped.
    pub(super) fn put_back(&mut self, why: String) {
        self.sequel = Some(ReplaceOutcome::PutBack(why));
    }

    /// Counts a confirmation by the daemon.
    pub(super) const fn become_known(&mut self) {
        self.unknown = self.unknown.saturating_sub(1);
    }

    /// Removes the old version at the end of the probation; returns the next time to be called.
    pub(super) fn handle_timeout(&mut self, now: CoarseInstant) -> CoarseInstant {
        match &self.before {
            Some(before) if before.until > now => before.until,
            Some(_) => {
                self.before = None;
                self.sequel = Some(ReplaceOutcome::Kept);
                CoarseInstant::NEVER
            }
            None => CoarseInstant::NEVER,
        }
    }

    /// Returns true while the outcome of a replacement has not been reported.
    pub(super) const fn has_sequel(&self) -> bool {
        self.sequel.is_some()
    }

    /// Returns the outcome of a replacement, once.
    pub(super) const fn take_outcome(&mut self) -> Option<ReplaceOutcome> {
        self.sequel.take()
    }

    /// Returns the memory that the old version shares: it holds the last records of its programs.
    pub(super) fn shared_before(&mut self) -> Option<&mut Shared> {
        self.before.as_mut()?.service.shared_mut()
    }
}
