//! Scheduling of a guest core: virtual processors by earliest deadline, the surplus by weight.
//!
//! ```text
//!                 next ─▶ Dispatch { processor, until, kind }
//!   wake   ┌───────┐ ──────────────────────────────────────▶ ┌─────────┐
//!  ──────▶ │ queue │                                         │ running │ at most until then
//!  ◀────── │       │ ◀────────────────────────────────────── └─────────┘
//!   sleep  └───────┘              charge(used)
//!
//!   guaranteed   ▓▓▓▓▓▓▓▓▓▓▓|                      until: the slice is used up, the period ends,
//!   extra                   |░░░░░░░|░░░░░|              or a processor with an earlier deadline
//!   best effort                     |     |▒▒▒▒          gets its next slice
//! ```
//!
//! The scheduler is not the executor: it runs nothing, sets no timer and reads no clock. The caller
//! asks [`Schedule::next`], runs that virtual processor until the given time, reports the time used
//! ([`Schedule::charge`]), and asks again. When a virtual processor gets work meanwhile, the caller
//! reports it and may preempt the running one; deadlines start at that report.
//!
//! **Guarantee** while all shares were admitted (`admission`): a virtual processor that has work
//! for a whole period gets its slice in it. Guaranteed time exceeds the slice only by the overrun
//! of preempting it, which is subtracted from the next period. Nothing is saved while it sleeps.
//! Time stolen by a hypervisor is missing once for reservations without slack, and is not made up
//! for.

use units::{Nanos, SessionId};

use crate::Prefetch;
use crate::edf::{Edf, Entitlement, Params};
use crate::kind::Kind;
use crate::period::Period;
use crate::processor::VirtualProcessor;
use crate::weight::Weight;

/// Largest overrun of a slice by a virtual processor. Slices of 1 ms or longer are polled precisely
/// at their end and overrun only by a running host function, which returns within 10 µs. Shorter
/// ones end by a timer signal and the raised epoch, which take about 12 µs, and 25 µs on hosts that
/// are slow to interrupt a guest. A longer overrun is subtracted from the next slice.
pub const OVERRUN_MAX: Nanos = Nanos(22_000);

/// Largest load of a guest core, with an overrun for each slice, in parts per million. The
/// remainder of the shortest period is longer than one overrun of a processor with a later
/// deadline.
pub const LOAD_MAX: u64 = 970_000;

const _: () = assert!((1_000_000 - LOAD_MAX) * crate::PERIOD_MIN.0 / 1_000_000 > OVERRUN_MAX.0);

/// Longest dispatch of extra or best-effort time: a hundred sessions that never sleep each run
/// within a tenth of a second, and a switch costs about a hundredth of it.
pub const EXTRA_MAX: Nanos = Nanos::from_millis(1);

/// Largest number of processors that [`Schedule::upcoming`] returns. More would be evicted from a
/// small cache before they run.
pub const UPCOMING_MAX: usize = 32;

pub(crate) const PARAMS: Params = Params {
    work_per_nano: 1,
    overrun_max: OVERRUN_MAX,
    capacity: LOAD_MAX,
    lateness_max: Nanos::ZERO,
};

/// Handle of a virtual processor, or of a session's best-effort entity, in one [`Schedule`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessorId {
    index: u32,
    /// Distinguishes it from earlier entities at the same index.
    generation: u32,
}

impl ProcessorId {
    /// Returns a small number that is unique among the virtual processors that exist at the same
    /// time.
    #[must_use]
    pub const fn slot(self) -> usize {
        self.index as usize
    }
}

/// Decision to run a virtual processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dispatch {
    /// Virtual processor to run.
    pub processor: ProcessorId,
    /// Time at which it has to be preempted at the latest.
    pub until: Nanos,
    /// Class of the time that it uses.
    pub kind: Kind,
}

/// Account of a virtual processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Current period, or the last one if it sleeps; periods of [`crate::NOTIONAL_PERIOD`] without
    /// a reservation.
    pub running: Period,
    /// Previous period.
    pub last: Period,
    /// Guaranteed time since it was added.
    pub guaranteed: Nanos,
    /// Extra or best-effort time since it was added.
    pub surplus: Nanos,
    /// Budget left at the end of periods although there was work: 0 as long as reservations are
    /// kept.
    pub short: Nanos,
    /// Number of periods that have begun.
    pub periods: u64,
}

/// Schedule of the virtual processors of one guest core.
#[derive(Clone, Debug)]
pub struct Schedule {
    edf: Edf,
    generations: Vec<u32>,
    running: Option<(ProcessorId, Kind)>,
}

impl Default for Schedule {
    fn default() -> Self {
        Self::new()
    }
}

impl Schedule {
    /// Makes the schedule of a guest core without virtual processors.
    #[must_use]
    pub fn new() -> Self {
        Self { edf: Edf::new(PARAMS), generations: Vec::new(), running: None }
    }

    /// Adds a virtual processor of a session, which sleeps; `None` adds a best-effort entity
    /// without a reservation. `weight` is that of the session, for all its virtual processors
    /// together.
    ///
    /// If the load that it needs was released just now, its first period begins when the current
    /// period of the former holder ends. Until then it runs as best effort.
    pub fn add(
        &mut self,
        now: Nanos,
        session: SessionId,
        promise: Option<VirtualProcessor>,
        weight: Weight,
    ) -> ProcessorId {
        let index = self.edf.add(now, session, entitlement(promise), weight);
        if index as usize >= self.generations.len() {
            self.generations.resize(index as usize + 1, 0);
        }
        ProcessorId { index, generation: self.generations[index as usize] }
    }

    /// Changes a reservation from its next period on, and the session's weight at once. An increase
    /// beyond the free load begins as with [`Schedule::add`].
    pub fn change(
        &mut self,
        now: Nanos,
        processor: ProcessorId,
        promise: Option<VirtualProcessor>,
        weight: Weight,
    ) {
        if self.is_known(processor) {
            self.edf.change(now, processor.index, entitlement(promise), weight);
        }
    }

    /// Removes a virtual processor and invalidates its handle.
    pub fn remove(&mut self, now: Nanos, processor: ProcessorId) {
        if self.is_known(processor) {
            self.edf.remove(now, processor.index);
            let generation = &mut self.generations[processor.index as usize];
            *generation = generation.wrapping_add(1);
        }
    }

    /// Marks a virtual processor as having work. Idempotent.
    pub fn wake(&mut self, now: Nanos, processor: ProcessorId) {
        if self.is_known(processor) {
            self.edf.wake(now, processor.index);
        }
    }

    /// Marks a virtual processor as having no work. Its last use may be charged before or after;
    /// after is cheaper, since it is not queued for surplus again.
    pub fn sleep(&mut self, processor: ProcessorId) {
        if self.is_known(processor) {
            self.edf.sleep(processor.index);
        }
    }

    /// Returns the dispatch to run now, or `None` if nothing has work that may run before
    /// [`Schedule::poll_timeout`].
    pub fn next(&mut self, now: Nanos) -> Option<Dispatch> {
        self.edf.advance(now);
        let Some((index, kind)) = self.edf.first() else {
            self.running = None;
            return None;
        };
        let until = if kind == Kind::Guaranteed {
            let (budget, end) = self.edf.budget(index)?;
            let limit = end.min(now + Nanos(budget));
            self.edf.next_before(limit, end).unwrap_or(limit)
        } else {
            let limit = now + EXTRA_MAX;
            self.edf.next_release().map_or(limit, |release| release.min(limit))
        };
        let processor = ProcessorId { index, generation: self.generations[index as usize] };
        self.running = Some((processor, kind));
        Some(Dispatch { processor, until, kind })
    }

    /// Charges a virtual processor with the time that it ran. Time without a dispatch is charged to
    /// its reservation.
    pub fn charge(&mut self, now: Nanos, processor: ProcessorId, used: Nanos) {
        if self.is_known(processor) {
            let running = self.running.filter(|(running, _)| *running == processor);
            let kind = running.map_or(Kind::Guaranteed, |(_, kind)| kind);
            self.edf.charge(now, processor.index, used.0, kind);
        }
    }

    /// Charges deferred work of a dispatch that is over to the same class of time, also if the
    /// virtual processor sleeps by now.
    pub fn charge_deferred(&mut self, now: Nanos, dispatch: &Dispatch, used: Nanos) {
        if self.is_known(dispatch.processor) {
            self.edf.charge(now, dispatch.processor.index, used.0, dispatch.kind);
        }
    }

    /// Returns the time at which the result of [`Schedule::next`] changes without another call.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Nanos> {
        self.edf.next_release()
    }

    /// Returns the account of a virtual processor; `None` if it was removed.
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
            surplus: Nanos(totals.surplus),
            short: Nanos(totals.short),
            periods: totals.periods,
        })
    }

    /// Returns the account of a virtual processor with a reservation; `None` for others.
    #[must_use]
    pub fn promised(&self, processor: ProcessorId) -> Option<Account> {
        if self.is_known(processor) && self.edf.has_reservation(processor.index) {
            self.account(processor)
        } else {
            None
        }
    }

    /// Fills `next` with the virtual processors that will run next, in order, as long as none wakes
    /// up and charges are equal; returns their number.
    pub fn upcoming(&self, next: &mut [ProcessorId]) -> usize {
        let mut indices = [0; UPCOMING_MAX];
        let most = next.len().min(UPCOMING_MAX);
        let found = self.edf.upcoming(&mut indices[..most]);
        for (next, &index) in next.iter_mut().zip(&indices[..found]) {
            *next = ProcessorId { index, generation: self.generations[index as usize] };
        }
        found
    }

    /// Prefetches what a dispatch of a session's virtual processor reads here.
    pub fn prefetch(&self, processor: ProcessorId, session: SessionId, cache: &impl Prefetch) {
        if self.is_known(processor) {
            self.edf.prefetch(processor.index, session, cache);
        }
    }

    fn is_known(&self, processor: ProcessorId) -> bool {
        self.generations.get(processor.index as usize) == Some(&processor.generation)
    }
}

fn entitlement(promise: Option<VirtualProcessor>) -> Entitlement {
    promise.map_or_else(Entitlement::default, |it| Entitlement {
        share: Some(it.share),
        extra: it.extra,
    })
}

#[cfg(test)]
mod tests;
