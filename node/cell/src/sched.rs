//! Scheduling of a cell's thread: whose turn it is, what may wait, and how a call is interrupted.
//!
//! ```text
//!  next ─▶ begin_turn ─▶ Portion ─ the service works ─▶ end_turn ─ sent behind it ─▶ settle_sent
//!   │         └ timer: interrupts a call at the end of its slice, closely watched before that
//!   └ sessions: core/session says which virtual processor
//! ```
//!
//! Beside the turns, packets that are handled as they come and hooks run for a session, too:
//! [`Scheduler::run_for`], [`Scheduler::stop`].

pub(crate) mod fifo;
mod meter;
pub(crate) mod numbered;
pub(crate) mod pacer;
pub(crate) mod rooms;
pub(crate) mod sessions;

use crate::memory::Memory;
use crate::packet_memory::PacketMemory;
use executor::{SLICE, Slicer, TURN_MAX};
use meter::Meter;
use pacer::{CallState, Pacer};
use sessions::{Next, Sessions};
use std::rc::Rc;
use units::{Nanos, SessionId};

/// Packets that go into the sandbox at once: entering it costs as much as six of them, and what
/// it left is sent out after so many.
pub(crate) const FILL: u64 = 64;
/// Time for which the timer runs on behind a turn that it could have had to interrupt: to set it
/// takes as long as a signal, and while there are only brief ones none has to come.
const INTERRUPTS_FOR: Nanos = SLICE;

/// Timer that interrupts calls. A process has one of the kernel's; a test has its own.
pub(crate) trait Timer {
    /// Has code interrupted each time that so much has passed.
    fn arm(&mut self, interval: Nanos);
    /// Has code interrupted when so much has passed, and each time `interval` has from then on.
    fn arm_once(&mut self, first: Nanos, interval: Nanos);
    /// Ends interruptions.
    fn disarm(&mut self);
}

impl Timer for Slicer {
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
/// account of who ran.
pub(crate) struct Scheduler<T = Slicer> {
    sessions: Sessions,
    meter: Meter,
    pacer: Rc<Pacer>,
    timer: T,
    /// Instant until which whatever takes turns is interrupted.
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

    /// Returns the pace of the instance that runs.
    pub(crate) const fn pacer(&self) -> &Rc<Pacer> {
        &self.pacer
    }

    /// Returns whether sessions have claims against each other.
    #[inline]
    pub(crate) fn takes_turns(&self) -> bool {
        self.sessions.take_turns()
    }

    /// Returns true when turns have left packets to send.
    pub(crate) const fn has_unsent(&self) -> bool {
        self.meter.has_unsent()
    }

    /// Returns true when so many are left that they are sent at once.
    pub(crate) const fn must_send(&self) -> bool {
        self.meter.must_send()
    }

    /// Has code interrupted that runs too long. Turns see to that themselves, and sooner.
    #[inline]
    pub(crate) fn arm(&mut self) {
        if !self.takes_turns() {
            self.timer.arm(SLICE);
        }
    }

    /// Ends interruptions: nothing runs.
    pub(crate) fn disarm(&mut self) {
        self.timer.disarm();
    }

    /// Accounts the thread's time to this session from now on.
    #[inline]
    pub(crate) fn run_for(&mut self, session: SessionId) {
        self.meter.run_for(&mut self.sessions, session);
    }

    /// Accounts the thread's time to nobody any more.
    pub(crate) fn stop(&mut self) {
        self.meter.stop(&mut self.sessions);
    }

    /// Begins a hook beside the turns, where nobody takes turns.
    pub(crate) fn begin_hook(&mut self, session: SessionId) {
        self.timer.arm(SLICE);
        self.run_for(session);
    }

    /// Begins a round of turns: the timer rests while there were only brief ones for a while.
    pub(crate) fn handle_turns(&mut self, begin: Nanos) {
        if begin >= self.interrupts_until && self.takes_turns() {
            self.timer.disarm();
        }
    }

    /// Returns whose turn it is; when it is nobody's, calls have no end while nobody takes turns.
    pub(crate) fn next(&mut self, begin: Nanos) -> Option<Next> {
        let next = self.sessions.next(begin);
        if next.is_none() && !self.takes_turns() {
            self.pacer.begin_alone();
        }
        next
    }

    /// Begins a turn of packets, or of a hook, in a round of turns that lasts until then.
    /// `is_timed`: it may have to be interrupted; `fit` says for how many packets a slice has time
    /// when each takes so long to be sent, and how long sending them takes.
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
            self.pacer.look_closely(Nanos(u64::MAX));
            return Portion { begin, until: round_until, packets: FILL };
        }
        // What it leaves to send belongs to its slice, too.
        let slice = slice.saturating_sub(self.meter.owed(next).min(Nanos(slice.0 / 4)));
        let (packets, sending) = fit(slice, self.meter.sending());
        // Most of it is for the module, whatever sending once took.
        let until = begin + slice.saturating_sub(sending.min(Nanos(slice.0 / 4)));
        let ahead = self.meter.ahead(self.sessions.promised(next));
        let closely_from = until.saturating_sub(ahead);
        if is_timed && closely_from > begin {
            self.timer.arm_once(closely_from.saturating_sub(begin), TURN_MAX);
        } else if is_timed {
            // It is looked at closely from its beginning: a timer would only take time.
            self.timer.arm(TURN_MAX);
        }
        self.pacer.look_closely(closely_from);
        Portion { begin, until, packets }
    }

    /// Notes that the turn which began then has run: when the timer came, if it did.
    pub(crate) fn handle_ran(&mut self, begin: Nanos) {
        self.meter.saw(begin, &self.pacer);
    }

    /// Ends a turn that lasted until `end` and has left so many packets to send. `is_idle`: nothing
    /// waits for another one.
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

    /// Ends a turn that nobody wanted: its service is gone.
    pub(crate) fn skip_turn(&mut self, begin: Nanos, next: &Next) {
        self.sessions.charge(begin, next, Nanos::ZERO, true);
    }

    /// Charges the turns that left packets for sending them, which lasted until `end`.
    pub(crate) fn settle_sent(&mut self, begin: Nanos, end: Nanos) {
        self.meter.settle_sent(&mut self.sessions, end, end.saturating_sub(begin));
    }

    /// Begins a turn of calls on streams, which goes on with the call of this state. `is_careful`:
    /// calls of it were long of late, and are looked at more often.
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
        self.pacer.look_closely(Nanos(u64::MAX));
    }
}

#[cfg(test)]
pub(crate) mod tests;
