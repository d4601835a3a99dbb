//! One version of a service in the place of another.
//!
//! ```text
//!   old: nobody below any more ─ keep ─▶ new: starts with it ─ runs ─▶ PROBATION ───▶ old is let go
//!          │ it does not hand over          │ it does not start            │ the new one traps
//!          ▼                                ▼                              ▼
//!        old goes on                      old goes on                    old goes on, with the state
//!                                                                        that it had
//! ```
//!
//! All of it happens between two packets, so none is lost or overtaken: those that come
//! meanwhile wait in their ring. The service's counters are those of its name, not of a version.

use engine::StateError;
use session::memory::OutOfMemory;
use units::{CoarseInstant, Millis};

use super::Service;
use super::version::StartFailure;
use crate::service::shared::Shared;

/// How long a new version is watched. One that traps within this time is taken back: longer than
/// any timer of common modules, short enough for whoever waits for the answer.
pub(crate) const PROBATION: Millis = Millis(500);

/// Version that was there before, and until when this one is watched.
struct Before {
    service: Box<Service>,
    until: CoarseInstant,
}

/// Why the old version goes on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReplaceError {
    #[error("a program does not leave its memory")]
    Busy,
    #[error(
        "it has {old} lanes and the new version {new}: which of them is to have which state cannot be said"
    )]
    Lanes { old: usize, new: u16 },
    #[error("its state is not to be had: {0}")]
    State(#[from] StateError),
    #[error("the new version does not start: {0}")]
    Start(#[from] StartFailure),
    #[error("its state is copied for the new version, and {0}")]
    Memory(#[from] OutOfMemory),
}

/// What the daemon should hear of a service that was replaced.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Sequel {
    /// The old version is let go.
    Kept,
    /// The old version is back.
    PutBack(String),
}

/// Owner of the version before, while the one in its place is watched, and of what the daemon is to
/// hear of that.
#[derive(Default)]
pub(super) struct Succession {
    before: Option<Before>,
    sequel: Option<Sequel>,
    /// Changes of the version that the daemon has not heard of yet: the levels that it names are
    /// meant for one before, whose programs are still in place.
    unknown: u32,
}

impl Succession {
    /// Returns whether the daemon does not know yet that this version runs.
    pub(super) const fn is_unknown(&self) -> bool {
        self.unknown > 0
    }

    /// Returns the succession of a version that takes this one's place.
    pub(super) const fn next(&self) -> Self {
        Self { before: None, sequel: None, unknown: self.unknown + 1 }
    }

    /// Keeps the version whose place this one took, for as long as this one is watched.
    pub(super) fn keep(&mut self, service: Box<Service>, now: CoarseInstant) {
        self.before = Some(Before { service, until: now + PROBATION });
    }

    /// Takes the version before, to be put back; `None` when this one is not watched any more.
    pub(super) fn take_before(&mut self) -> Option<Box<Service>> {
        self.before.take().map(|before| before.service)
    }

    /// Notes that the version is back whose place another took: that one trapped.
    pub(super) fn put_back(&mut self, why: String) {
        self.sequel = Some(Sequel::PutBack(why));
    }

    /// Notes that the daemon has heard of one more change.
    pub(super) const fn become_known(&mut self) {
        self.unknown = self.unknown.saturating_sub(1);
    }

    /// Lets the version before go when this one has been watched long enough; returns the next time
    /// to be called.
    pub(super) fn handle_timeout(&mut self, now: CoarseInstant) -> CoarseInstant {
        match &self.before {
            Some(before) if before.until > now => before.until,
            Some(_) => {
                self.before = None;
                self.sequel = Some(Sequel::Kept);
                CoarseInstant::NEVER
            }
            None => CoarseInstant::NEVER,
        }
    }

    /// Returns true while the daemon is to hear what became of a replacement.
    pub(super) const fn has_sequel(&self) -> bool {
        self.sequel.is_some()
    }

    /// Returns what became of a replacement, once.
    pub(super) const fn take_sequel(&mut self) -> Option<Sequel> {
        self.sequel.take()
    }

    /// Returns the memory that the version before shares: its programs' last records lie there.
    pub(super) fn shared_before(&mut self) -> Option<&mut Shared> {
        self.before.as_mut()?.service.shared_mut()
    }
}
