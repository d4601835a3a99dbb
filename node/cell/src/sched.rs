//! Scheduling of a cell's thread: the next turn, queue limits, and the interruption of calls.
//!
//! ```text
//!  next ─▶ begin_turn ─▶ Portion ─ the service works ─▶ end_turn ─ sent afterwards ─▶ settle_sent
//!   │         └ timer: interrupts a call at the end of its slice, which is polled closely before that
//!   └ sessions: core/session picks the virtual processor
//! ```
//!
//! Outside turns, packets that are handled as they arrive and hooks are charged to a session, too:
//! [`Scheduler::run_for`], [`Scheduler::stop`].

pub(crate) mod fifo;
mod meter;
pub(crate) mod pacer;
pub(crate) mod queue_credits;
pub(crate) mod sessions;
pub(crate) mod slot_map;

use crate::memory::Memory;
use crate::packet_memory::PacketMemory;
use executor::{PreemptionTimer, SLICE, TURN_MAX};
use meter::Meter;
use pacer::{CallState, Pacer};
use sessions::{Next, Sessions};
use std::rc::Rc;
use units::{Nanos, SessionId};

/// Packets that go into the sandbox at once, and after which the output is sent: entering the
/// sandbox costs as much as six of them.
pub(crate) const FILL: u64 = 64;
/// Time for which the timer goes on after a turn that it could have had to interrupt: setting it
/// takes as long as a signal, and while all turns are bounded no signal is needed.
const INTERRUPTS_FOR: Nanos = SLICE;

/// Timer that interrupts calls: one POSIX timer in a process, or a mock in a test.
pub(crate) trait Timer {
    /// Interrupts code each time `interval` has passed.
    fn arm(&mut self, interval: Nanos);
    /// Interrupts code when `first` has passed, and each time `interval` has from then on.
    fn arm_once(&mut self, first: Nanos, interval: Nanos);
    /// Ends the interruptions.
    fn disarm(&mut self);
}

impl Timer for PreemptionTimer {
    #[inline]
    fn arm(&mut self, interval: Nanos) {
        Self::arm(self, interval);
    }

    fn arm_once(&mut self, first: Nanos, interval: Nanos) {
        Self::arm_once(self, first, interval);
    }

    fn disarm(&mut self) {
        Self::disarm(self);
    }
}

/// Time and packets that a turn may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Portion {
    /// Start of the turn.
    pub(crate) begin: Nanos,
    /// End of the turn.
    pub(crate) until: Nanos,
    /// Packets that may begin.
    pub(crate) packets: u64,
}

/// Owner of the thread's time: sessions and their turns, the timer that interrupts calls, and the
/// meter.
pub(crate) struct Scheduler<T = PreemptionTimer> {
    sessions: Sessions,
    meter: Meter,
    pacer: Rc<Pacer>,
    timer: T,
    /// Time until which the timer keeps running.
    interrupts_until: Nanos,
}

impl<T: Timer> Scheduler<T> {
    /// Creates the scheduler of the two sessions that every node has.
    pub(crate) fn new(timer: T, memory: PacketMemory, accounts: Memory) -> Self {
        Self {
            sessions: Sessions::new(pacer::now(), memory, accounts),
            meter: Meter::new(),
            pacer: Rc::default(),
            timer,
            interrupts_until: Nanos::ZERO,
        }
    }

    /// Returns the sessions.
    #[inline]
    pub(crate) const fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    /// Returns the sessions.
    #[inline]
    pub(crate) const fn sessions_mut(&mut self) -> &mut Sessions {
        &mut self.sessions
    }

    /// Returns the pacer of the running instance.
    pub(crate) const fn pacer(&self) -> &Rc<Pacer> {
        &self.pacer
    }

    /// Returns true if sessions have claims against each other.
    #[inline]
    pub(crate) fn takes_turns(&self) -> bool {
        self.sessions.has_competition()
    }

    /// Returns true if turns have left packets to send.
    pub(crate) const fn has_unsent(&self) -> bool {
        self.meter.has_unsent()
    }

    /// Returns true if so many packets are left that they must be sent at once.
    pub(crate) const fn must_send(&self) -> bool {
        self.meter.must_send()
    }

    /// Arms the timer that interrupts long calls, unless sessions take turns, which set it
    /// themselves, and sooner.
    #[inline]
    pub(crate) fn arm(&mut self) {
        if !self.takes_turns() {
            self.timer.arm(SLICE);
        }
    }

    /// Stops the timer: nothing runs.
    pub(crate) fn disarm(&mut self) {
        self.timer.disarm();
    }

    /// Charges the thread's time to this session from now on.
    #[inline]
    pub(crate) fn run_for(&mut self, session: SessionId) {
        self.meter.run_for(&mut self.sessions, session);
    }

    /// Ends the charging of a session.
    pub(crate) fn stop(&mut self) {
        self.meter.stop(&mut self.sessions);
    }

    /// Begins a hook outside turns, for cells whose sessions take none.
    pub(crate) fn begin_hook(&mut self, session: SessionId) {
        self.timer.arm(SLICE);
        self.run_for(session);
    }

    /// Begins a round of turns: stops the timer if all turns were bounded for a while.
    pub(crate) fn handle_turns(&mut self, begin: Nanos) {
        if begin >= self.interrupts_until && self.takes_turns() {
            self.timer.disarm();
        }
    }

    /// Returns the next turn. If there is none and sessions take no turns, calls have no time
    /// limit.
    pub(crate) fn next(&mut self, begin: Nanos) -> Option<Next> {
        let next = self.sessions.next(begin);
        if next.is_none() && !self.takes_turns() {
            self.pacer.begin_unlimited();
        }
        next
    }

    /// Begins a turn of packets, or of a hook, in a round of turns that ends at `round_until`.
    /// `is_timed` states that the turn may have to be interrupted. `fit` gets a slice and the time
    /// to send a packet, and returns how many packets fit and the time to send them.
    pub(crate) fn begin_turn(
        &mut self,
        (begin, round_until): (Nanos, Nanos),
        next: &Next,
        is_timed: bool,
        fit: impl FnOnce(Nanos, Nanos) -> (u64, Nanos),
    ) -> Portion {
        if is_timed {
            self.interrupts_until = begin + INTERRUPTS_FOR;
        }
        let slice = next.until.saturating_sub(begin);
        if slice >= TURN_MAX + TURN_MAX {
            if is_timed {
                self.timer.arm(TURN_MAX);
            }
            self.pacer.poll_closely_from(Nanos(u64::MAX));
            return Portion { begin, until: round_until, packets: FILL };
        }
        // Sending what the turn leaves belongs to its slice, too.
        let slice = slice.saturating_sub(self.meter.owed(next).min(Nanos(slice.0 / 4)));
        let (packets, sending) = fit(slice, self.meter.sending());
        // Most of the slice is for the module, whatever time sending once took.
        let until = begin + slice.saturating_sub(sending.min(Nanos(slice.0 / 4)));
        let ahead = self.meter.ahead(self.sessions.promised(next));
        let closely_from = until.saturating_sub(ahead);
        if is_timed && closely_from > begin {
            self.timer.arm_once(closely_from.saturating_sub(begin), TURN_MAX);
        } else if is_timed {
            // Such a turn is polled closely from its beginning: a timer would only take time.
            self.timer.arm(TURN_MAX);
        }
        self.pacer.poll_closely_from(closely_from);
        Portion { begin, until, packets }
    }

    /// Measures the timer's latency, if it fired in the turn that began at `begin`.
    pub(crate) fn handle_ran(&mut self, begin: Nanos) {
        self.meter.saw(begin, &self.pacer);
    }

    /// Ends a turn at `end`, which left `sent` packets to send. `is_idle` states that its task has
    /// no more work.
    pub(crate) fn end_turn(
        &mut self,
        (begin, end): (Nanos, Nanos),
        next: Next,
        is_idle: bool,
        sent: u64,
    ) {
        self.sessions.charge(end, &next, end.saturating_sub(begin), is_idle);
        self.meter.sent(next, sent);
    }

    /// Ends a turn of a service that does not exist any more.
    pub(crate) fn skip_turn(&mut self, begin: Nanos, next: &Next) {
        self.sessions.charge(begin, next, Nanos::ZERO, true);
    }

    /// Charges the turns that left packets for sending them, which ended at `end`.
    pub(crate) fn settle_sent(&mut self, begin: Nanos, end: Nanos) {
        self.meter.settle_sent(&mut self.sessions, end, end.saturating_sub(begin));
    }

    /// Begins a turn of calls on streams, which resumes the call of this state. `is_careful` states
    /// that its calls were long recently, and are to be interrupted more often.
    pub(crate) fn begin_calls(
        &mut self,
        (begin, until): (Nanos, Nanos),
        call: CallState,
        is_careful: bool,
    ) {
        let is_careful = is_careful || self.takes_turns();
        self.timer.arm(if is_careful { TURN_MAX } else { SLICE });
        self.interrupts_until = begin + INTERRUPTS_FOR;
        self.pacer.begin(until, call);
        self.pacer.poll_closely_from(Nanos(u64::MAX));
    }
}

#[cfg(test)]
pub(crate) mod tests;
