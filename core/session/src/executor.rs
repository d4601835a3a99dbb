//! Who runs next on a guest core, and until when: virtual processors by their deadlines, then
//! what is left by weight.
//!
//! ```text
//!                 next ─▶ Dispatch { processor, until, kind }
//!   wake   ┌───────┐ ──────────────────────────────────────▶ ┌─────────┐
//!  ──────▶ │ queue │                                         │ running │ at most until then
//!  ◀────── │       │ ◀────────────────────────────────────── └─────────┘
//!   sleep  └───────┘              charge(used)
//!
//!   guaranteed   ▓▓▓▓▓▓▓▓▓▓▓|                      until: the slice is used up, the period ends,
//!   extra                   |░░░░░░░|░░░░░|              or somebody with an earlier deadline
//!   best effort                     |     |▒▒▒▒          gets his next slice
//! ```
//!
//! It is not the executor: it runs nothing, sets no timer and reads no clock. Who uses it asks
//! [`Schedule::next`], runs that virtual processor until then, says what it used
//! ([`Schedule::charge`]), and asks again. If somebody wakes up meanwhile, he says so and may
//! stop what runs before its time; a virtual processor's deadlines begin when he has said so.
//!
//! **What holds** while all shares were admitted (`admission`): a virtual processor that has work
//! for a whole period gets its slice in it. It gets no more than that as guaranteed time, but for
//! what it uses while it is stopped, which is missing in its next period. Nothing is saved while
//! it sleeps. Time that was stolen from the machine is missing for those who had no slack for it,
//! once, and is not caught up with.

use units::{Nanos, SessionId};

use crate::Ahead;
use crate::edf::{Edf, Rules, Terms};
use crate::kind::Kind;
use crate::period::Period;
use crate::processor::VirtualProcessor;
use crate::weight::Weight;

/// What a virtual processor may use beyond its slice. One of a millisecond is looked at closely at
/// its end, which then is exact, but for a host function that is being called, which returns
/// within 10 µs; shorter ones end by a timer's signal and the raised epoch, which take some 12 µs,
/// and 25 µs on hosts that are slow to interrupt a guest. What is more is missing in the next one.
pub const STOP_MAX: Nanos = Nanos(22_000);

/// All virtual processors of a guest core with a stop for each slice, in parts of a million. The
/// rest of the shortest period is longer than one stop of somebody with a later deadline.
pub const LOAD_MAX: u64 = 970_000;

const _: () = assert!((1_000_000 - LOAD_MAX) * crate::PERIOD_MIN.0 / 1_000_000 > STOP_MAX.0);

/// How long somebody has extra time before the next one has some: a hundred sessions that never
/// sleep each have some in a tenth of a second, and a switch costs about a hundredth of it.
pub const EXTRA_MAX: Nanos = Nanos::from_millis(1);

/// How many [`Schedule::upcoming`] finds at most: more would be out of a small cache again before
/// their turn has come.
pub const UPCOMING_MAX: usize = 32;

pub(crate) const RULES: Rules =
    Rules { work_per_nano: 1, stop: STOP_MAX, capacity: LOAD_MAX, late_max: Nanos::ZERO };

/// Names a virtual processor of one [`Schedule`], or a session's place without one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessorId {
    index: u32,
    /// Tells it from others that had its place before.
    turn: u32,
}

impl ProcessorId {
    /// A small number that no other virtual processor has which is there at the same time.
    #[must_use]
    pub const fn place(self) -> usize {
        self.index as usize
    }
}

/// Who runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dispatch {
    /// The virtual processor.
    pub processor: ProcessorId,
    /// When it has to be stopped at the latest.
    pub until: Nanos,
    /// On which account.
    pub kind: Kind,
}

/// What a virtual processor was promised and given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// The period that runs, or the last one if it sleeps; of [`crate::NOTIONAL_PERIOD`] without
    /// a promise.
    pub running: Period,
    /// The one before.
    pub last: Period,
    /// Guaranteed time since it was added.
    pub guaranteed: Nanos,
    /// Extra time, or best effort, since then.
    pub rest: Nanos,
    /// What was left of slices at the end of periods although there was work: 0 as long as
    /// promises are kept.
    pub short: Nanos,
    /// Periods that have begun.
    pub periods: u64,
}

/// The virtual processors of one guest core.
#[derive(Clone, Debug)]
pub struct Schedule {
    edf: Edf,
    turns: Vec<u32>,
    running: Option<(ProcessorId, Kind)>,
}

impl Default for Schedule {
    fn default() -> Self {
        Self::new()
    }
}

impl Schedule {
    /// Of a guest core on which nobody runs.
    #[must_use]
    pub fn new() -> Self {
        Self { edf: Edf::new(RULES), turns: Vec::new(), running: None }
    }

    /// Adds a virtual processor of a session, which sleeps; `None` is a place without a promise
    /// (best effort). `weight` is that of the session, of all its virtual processors together.
    ///
    /// If what it is made of was given up just now, its first period begins when the one of
    /// whoever had it ends; until then it is as one without a promise.
    pub fn add(
        &mut self,
        now: Nanos,
        session: SessionId,
        promise: Option<VirtualProcessor>,
        weight: Weight,
    ) -> ProcessorId {
        let index = self.edf.add(now, session, terms(promise), weight);
        if index as usize >= self.turns.len() {
            self.turns.resize(index as usize + 1, 0);
        }
        ProcessorId { index, turn: self.turns[index as usize] }
    }

    /// Changes a promise from its next period on, and the session's weight at once. One that
    /// takes more than is free yet begins as with [`Schedule::add`].
    pub fn change(
        &mut self,
        now: Nanos,
        processor: ProcessorId,
        promise: Option<VirtualProcessor>,
        weight: Weight,
    ) {
        if self.is_known(processor) {
            self.edf.change(now, processor.index, terms(promise), weight);
        }
    }

    /// Takes a virtual processor out. Its name means nothing any more.
    pub fn remove(&mut self, now: Nanos, processor: ProcessorId) {
        if self.is_known(processor) {
            self.edf.remove(now, processor.index);
            let turn = &mut self.turns[processor.index as usize];
            *turn = turn.wrapping_add(1);
        }
    }

    /// It has work. Said twice it means nothing.
    pub fn wake(&mut self, now: Nanos, processor: ProcessorId) {
        if self.is_known(processor) {
            self.edf.wake(now, processor.index);
        }
    }

    /// It has none. What it used may be charged before or after: after costs less, since it has
    /// no new place then among those who want some.
    pub fn sleep(&mut self, processor: ProcessorId) {
        if self.is_known(processor) {
            self.edf.sleep(processor.index);
        }
    }

    /// Who runs now; `None`: nobody has work, or none that he may do before
    /// [`Schedule::poll_timeout`].
    pub fn next(&mut self, now: Nanos) -> Option<Dispatch> {
        self.edf.advance(now);
        let Some((index, kind)) = self.edf.first() else {
            self.running = None;
            return None;
        };
        let until = if kind == Kind::Guaranteed {
            let (left, end) = self.edf.left(index)?;
            let limit = end.min(now + Nanos(left));
            self.edf.next_before(limit, end).unwrap_or(limit)
        } else {
            let limit = now + EXTRA_MAX;
            self.edf.next_release().map_or(limit, |release| release.min(limit))
        };
        let processor = ProcessorId { index, turn: self.turns[index as usize] };
        self.running = Some((processor, kind));
        Some(Dispatch { processor, until, kind })
    }

    /// It has run for so long, however much that is. What ran without having been dispatched is
    /// on account of its promise.
    pub fn charge(&mut self, now: Nanos, processor: ProcessorId, used: Nanos) {
        if self.is_known(processor) {
            let running = self.running.filter(|(running, _)| *running == processor);
            let kind = running.map_or(Kind::Guaranteed, |(_, kind)| kind);
            self.edf.charge(now, processor.index, used.0, kind);
        }
    }

    /// What was left to be done behind a turn that is over has taken so long; it is on the same
    /// account, also if he sleeps by now.
    pub fn charge_behind(&mut self, now: Nanos, turn: &Dispatch, used: Nanos) {
        if self.is_known(turn.processor) {
            self.edf.charge(now, turn.processor.index, used.0, turn.kind);
        }
    }

    /// When [`Schedule::next`] will say something else although nothing was said to it.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Nanos> {
        self.edf.next_release()
    }

    /// What it was promised and given; `None` when it was removed.
    #[must_use]
    pub fn account(&self, processor: ProcessorId) -> Option<Account> {
        if !self.is_known(processor) {
            return None;
        }
        let (last, running, totals) = self.edf.account(processor.index)?;
        Some(Account {
            running,
            last,
            guaranteed: Nanos(totals.guaranteed),
            rest: Nanos(totals.rest),
            short: Nanos(totals.short),
            periods: totals.periods,
        })
    }

    /// The same of one that has a promise; `None` for others.
    #[must_use]
    pub fn promised(&self, processor: ProcessorId) -> Option<Account> {
        if self.is_known(processor) && self.edf.has_promise(processor.index) {
            self.account(processor)
        } else {
            None
        }
    }

    /// Who will be next, in this order, as long as nobody wakes up or is charged more than others;
    /// how many were found.
    pub fn upcoming(&self, next: &mut [ProcessorId]) -> usize {
        let mut indices = [0; UPCOMING_MAX];
        let most = next.len().min(UPCOMING_MAX);
        let found = self.edf.upcoming(&mut indices[..most]);
        for (next, &index) in next.iter_mut().zip(&indices[..found]) {
            *next = ProcessorId { index, turn: self.turns[index as usize] };
        }
        found
    }

    /// Has loaded what a turn of a session's virtual processor looks at here.
    pub fn load_ahead(&self, processor: ProcessorId, session: SessionId, ahead: &impl Ahead) {
        if self.is_known(processor) {
            self.edf.load_ahead(processor.index, session, ahead);
        }
    }

    fn is_known(&self, processor: ProcessorId) -> bool {
        self.turns.get(processor.index as usize) == Some(&processor.turn)
    }
}

fn terms(promise: Option<VirtualProcessor>) -> Terms {
    promise.map_or_else(Terms::default, |it| Terms { share: Some(it.share), extra: it.extra })
}

#[cfg(test)]
mod tests;
