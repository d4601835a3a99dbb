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

use engine::{StateError, Trap};
use session::memory::Short;
use units::{CoarseInstant, Millis};

use super::{Service, StartFailure, Trapped};
use crate::service::shared::Shared;

/// How long a new version is watched. One that traps within this time is taken back: longer than
/// any timer of common modules, short enough for whoever waits for the answer.
pub(crate) const PROBATION: Millis = Millis(500);

/// The version that was there before.
pub(super) struct Before {
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
    Memory(#[from] Short),
}

/// What the daemon should hear of a service that was replaced.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Sequel {
    /// The old version is let go.
    Kept,
    /// The old version is back.
    PutBack(String),
}

impl Service {
    /// Another version has this one's place; this one is kept.
    pub(super) fn give_way(&mut self, mut next: Self, now: CoarseInstant) {
        next.inherit(self);
        next.is_new = false;
        next.unknown = self.unknown + 1;
        let old = std::mem::replace(self, next);
        let service = Box::new(Self { before: None, ..old });
        self.before = Some(Before { service, until: now + PROBATION });
    }

    /// Goes on where `before` was: its counters, its edges, its lane.
    fn inherit(&mut self, before: &mut Self) {
        self.report = std::mem::take(&mut before.report);
        self.counts = std::mem::take(&mut before.counts);
        self.untold = std::mem::take(&mut before.untold);
        self.edges = before.edges;
        self.bytes_out = before.bytes_out;
        self.lanes_inherit(before);
        self.controls.append(&mut before.controls);
        // Its own wishes, in place of those of the one before.
        (self.watches_in, self.has_new_watch) = (before.watches_in, true);
        self.looked_in = before.looked_in;
        if let Some(shared) = &mut before.shared {
            shared.retire(self.shared.as_deref_mut());
        }
    }

    /// The version before is back, if this one was still watched: it trapped.
    pub(super) fn put_back(&mut self, trap: &Trap) -> bool {
        let Some(before) = self.before.take() else { return false };
        let mut old = *before.service;
        old.inherit(self);
        if let Some(shared) = &old.shared {
            shared.clear_trap();
        }
        old.unknown = self.unknown + 1;
        old.sequel = Some(Sequel::PutBack(trap.to_string()));
        *self = old;
        true
    }

    /// Lets the version before go when this one has been watched long enough; gives the next
    /// time to be called.
    pub(super) fn watch(&mut self, now: CoarseInstant) -> CoarseInstant {
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

    /// Whether the daemon does not know yet that this version runs.
    pub(crate) const fn is_unknown(&self) -> bool {
        self.unknown > 0
    }

    /// It has heard of one more change.
    pub(crate) fn become_known(&mut self) {
        self.unknown = self.unknown.saturating_sub(1);
    }

    /// What became of a replacement, once.
    pub(crate) fn take_sequel(&mut self) -> Option<Sequel> {
        self.sequel.take()
    }

    /// The memory that the version before shares: its programs' last records lie there.
    pub(super) fn shared_before(before: &mut Option<Before>) -> Option<&mut Shared> {
        before.as_mut()?.service.shared.as_deref_mut()
    }

    /// Notes a trap for the daemon.
    pub(super) fn note_trap(&mut self, index: usize, trap: Trap) {
        *self.report.traps.entry(trap.kind.name().to_owned()).or_default() += 1;
        self.report.last_trap = Some(trap.to_string());
        self.untold.push(Trapped { lane: index as u32, trap });
    }
}
