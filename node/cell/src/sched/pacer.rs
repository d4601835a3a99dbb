//! End of module calls: when another session's turn begins, and after a bounded time.
//!
//! The engine asks each time the preemption timer has interrupted a call. The answer needs two
//! clocks. The end of a turn goes by elapsed time; the length of a call goes by the processor time
//! of its thread, so that no call pays for what the kernel did meanwhile, or for another guest of
//! the host.

use engine::{Pace, PaceDecision};
use executor::TURN_MAX;
use rustix::time::{ClockId, clock_gettime};
use std::cell::Cell;
use std::fmt::Debug;
use units::Nanos;

/// Processor time after which a call is stopped, counted from when it was first seen running: with
/// one slice before and one behind, a call ends within the promised 10 ms.
const CALL_TIME_MAX: Nanos = Nanos::from_millis(5);

/// Least time that a turn runs, even if it begins late; its account pays. On a busy machine, where
/// others have used the caches, reaching the first instruction takes longer than a short slice, and
/// a call would make no progress.
const PROGRESS_MIN: Nanos = Nanos(10_000);

/// Turns of a call in a row that may be over before they begin. Such a turn is asked at each loop
/// and runs a hundredth as fast. On a host that takes longer than a short slice to set a timer all
/// turns are of that kind, and a call would use up its time without progress. The next turn runs
/// freely until the timer fires, and its account pays.
const LATE_TURNS_MAX: u8 = 2;

const _: () = assert!(CALL_TIME_MAX.0 + 2 * executor::SLICE.0 < 10_000_000);

/// Clocks that decide when a call ends; tests have their own, so that no test depends on the
/// machine.
pub(crate) trait Clocks: Debug {
    /// Time since boot, in nanoseconds: `CLOCK_MONOTONIC`.
    fn monotonic(&self) -> Nanos;
    /// Processor time of the calling thread: `CLOCK_THREAD_CPUTIME_ID`.
    fn processor(&self) -> Nanos;
}

/// The kernel's clocks.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SystemClocks;

impl Clocks for SystemClocks {
    fn monotonic(&self) -> Nanos {
        now()
    }

    fn processor(&self) -> Nanos {
        processor_time()
    }
}

/// Progress of the call that an instance is in, or was in last.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CallState {
    /// Number of the call.
    call: u64,
    /// Processor time of the call, up to `measured_at`.
    ran: Nanos,
    /// Turns in a row that were over before they began.
    late_turns: u8,
}

/// Pace of the running instance; one per cell.
#[derive(Debug)]
pub(crate) struct Pacer<C = SystemClocks> {
    clocks: C,
    /// End of the running turn.
    until: Cell<Nanos>,
    /// Set until the engine asks for the first time in this turn.
    is_fresh: Cell<bool>,
    /// Time from which the engine asks at each loop, so that the turn ends exactly.
    closely_from: Cell<Nanos>,
    /// First time the engine asked after `closely_from`, if it has.
    seen: Cell<Option<Nanos>>,
    state: Cell<CallState>,
    /// Set when a call has run for longer than a turn.
    was_long: Cell<bool>,
    /// Processor time of the thread when `ran` was updated.
    measured_at: Cell<Nanos>,
}

impl Default for Pacer {
    fn default() -> Self {
        Self::new(SystemClocks)
    }
}

impl<C: Clocks> Pacer<C> {
    fn new(clocks: C) -> Self {
        Self {
            clocks,
            until: Cell::default(),
            is_fresh: Cell::default(),
            closely_from: Cell::new(Nanos(u64::MAX)),
            seen: Cell::default(),
            state: Cell::default(),
            was_long: Cell::default(),
            measured_at: Cell::default(),
        }
    }

    /// Starts a turn that ends at `until`; `state` is that of the call it resumes.
    pub(crate) fn begin(&self, until: Nanos, state: CallState) {
        self.until.set(until);
        self.is_fresh.set(true);
        if until.0 == u64::MAX {
            self.poll_closely_from(until);
        }
        self.state.set(state);
        if state.call != 0 {
            self.measured_at.set(self.clocks.processor());
        }
    }

    /// Sets the time from which later turns are asked at each loop: the timer that interrupts them
    /// fires late by a varying delay.
    pub(crate) fn poll_closely_from(&self, from: Nanos) {
        self.closely_from.set(from);
        self.seen.set(None);
    }

    /// Returns the time from which the turn was to be asked closely, and the first time it was, if
    /// it was.
    pub(crate) fn seen(&self) -> Option<(Nanos, Nanos)> {
        self.seen.get().map(|seen| (self.closely_from.get(), seen))
    }

    /// Ends the turn. Returns the state with which a suspended call (`is_suspended`) resumes.
    pub(crate) fn end(&self, is_suspended: bool) -> CallState {
        if !is_suspended {
            return CallState::default();
        }
        let mut state = self.state.get();
        if state.call == 0 {
            // The engine has not asked: the suspended call ran for no time worth counting.
            return state;
        }
        state.ran += self.clocks.processor().saturating_sub(self.measured_at.get());
        state
    }

    /// Returns true, once, if a call has run for longer than a turn.
    pub(crate) const fn take_long(&self) -> bool {
        self.was_long.replace(false)
    }

    /// Starts calls outside turns, which run until they end.
    pub(crate) fn begin_unlimited(&self) {
        self.until.set(Nanos(u64::MAX));
        self.poll_closely_from(Nanos(u64::MAX));
    }

    /// Returns what the running call shall do, by elapsed time.
    fn poll(&self) -> PaceDecision {
        let now = self.clocks.monotonic();
        let is_close = now >= self.closely_from.get();
        if is_close && self.seen.get().is_none() {
            self.seen.set(Some(now));
        }
        if self.is_fresh.take() {
            return self.poll_first(now, is_close);
        }
        if now >= self.until.get() {
            PaceDecision::Suspend
        } else if is_close {
            PaceDecision::ContinueClosely
        } else {
            PaceDecision::Continue
        }
    }

    /// Returns what the call shall do at the first question of a turn, which may be over already.
    fn poll_first(&self, now: Nanos, is_close: bool) -> PaceDecision {
        let is_over = now >= self.until.get();
        if is_over {
            self.until.set(now + PROGRESS_MIN);
        }
        let mut state = self.state.get();
        let goes_on = !(is_close || is_over) || (is_over && state.late_turns >= LATE_TURNS_MAX);
        state.late_turns = if goes_on { 0 } else { state.late_turns + u8::from(is_over) };
        self.state.set(state);
        if goes_on { PaceDecision::Continue } else { PaceDecision::ContinueClosely }
    }
}

impl<C: Clocks> Pace for Pacer<C> {
    fn decide(&self, call: u64) -> PaceDecision {
        let over = self.poll();
        if over == PaceDecision::ContinueClosely {
            // The turn ends soon, and reading the other clock is a system call.
            return over;
        }
        let (mut state, ran) = (self.state.get(), self.clocks.processor());
        if state.call == call {
            state.ran += ran.saturating_sub(self.measured_at.get());
        } else {
            state = CallState { call, ran: Nanos::ZERO, ..state };
        }
        self.measured_at.set(ran);
        self.state.set(state);
        self.was_long.set(self.was_long.get() | (state.ran >= TURN_MAX));
        if state.ran >= CALL_TIME_MAX { PaceDecision::Stop } else { over }
    }

    fn begins(&self) -> PaceDecision {
        self.poll()
    }
}

/// Returns the time since boot (`CLOCK_MONOTONIC`).
pub(crate) fn now() -> Nanos {
    time_of(ClockId::Monotonic)
}

/// Returns the wall clock's time at boot: the offset from [`now`] to it.
pub(crate) fn real_offset() -> Nanos {
    time_of(ClockId::Realtime).saturating_sub(now())
}

/// Returns the processor time of this thread.
pub(crate) fn processor_time() -> Nanos {
    time_of(ClockId::ThreadCPUTime)
}

fn time_of(clock: ClockId) -> Nanos {
    let time = clock_gettime(clock);
    // Neither part is negative, and the sum fits for 500 years.
    Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clocks that a test advances.
    #[derive(Debug, Default)]
    struct ManualClocks {
        monotonic: Cell<Nanos>,
        processor: Cell<Nanos>,
    }

    impl ManualClocks {
        /// Advances both clocks: the thread runs for `time`.
        fn run(&self, time: Nanos) {
            self.processor.set(self.processor.get() + time);
            self.sleep(time);
        }

        /// Advances elapsed time only: the thread is not running.
        fn sleep(&self, time: Nanos) {
            self.monotonic.set(self.monotonic.get() + time);
        }
    }

    impl Clocks for &ManualClocks {
        fn monotonic(&self) -> Nanos {
            self.monotonic.get()
        }

        fn processor(&self) -> Nanos {
            self.processor.get()
        }
    }

    const fn millis(count: u64) -> Nanos {
        Nanos::from_millis(count)
    }

    const NEVER: Nanos = Nanos(u64::MAX);

    #[test]
    fn a_call_is_stopped_by_its_total_run_time_over_all_suspensions() {
        let clocks = &ManualClocks::default();
        let pacer = Pacer::new(clocks);
        let mut state = CallState::default();
        for turn in 1..=5 {
            pacer.begin(NEVER, state);
            assert_eq!(pacer.decide(7), PaceDecision::Continue);
            clocks.run(millis(1));
            let over = if turn < 5 { PaceDecision::Continue } else { PaceDecision::Stop };
            assert_eq!(pacer.decide(7), over, "turn {turn}");
            state = pacer.end(true);
            // Time that others run meanwhile does not count.
            clocks.sleep(millis(2));
            clocks.processor.set(clocks.processor.get() + millis(2));
        }
    }

    #[test]
    fn each_call_begins_with_zero_run_time() {
        let clocks = &ManualClocks::default();
        let pacer = Pacer::new(clocks);
        pacer.begin_unlimited();
        for call in 1..5 {
            assert_eq!(pacer.decide(call), PaceDecision::Continue);
            clocks.run(millis(3));
        }
    }

    #[test]
    fn a_call_is_polled_closely_near_the_end_of_its_turn() {
        let clocks = &ManualClocks::default();
        clocks.run(millis(1));
        let pacer = Pacer::new(clocks);
        let begin = clocks.monotonic();
        pacer.begin(begin + millis(4), CallState::default());
        pacer.poll_closely_from(begin + millis(2));
        clocks.run(millis(2).saturating_sub(Nanos(1)));
        assert_eq!(
            (pacer.begins(), pacer.decide(1)),
            (PaceDecision::Continue, PaceDecision::Continue)
        );
        assert_eq!(pacer.seen(), None);
        clocks.run(Nanos(1));
        assert_eq!(
            (pacer.begins(), pacer.decide(1)),
            (PaceDecision::ContinueClosely, PaceDecision::ContinueClosely)
        );
        let seen = Some((begin + millis(2), begin + millis(2)));
        assert_eq!(pacer.seen(), seen);
        clocks.run(millis(2).saturating_sub(Nanos(1)));
        assert_eq!(
            (pacer.begins(), pacer.decide(1)),
            (PaceDecision::ContinueClosely, PaceDecision::ContinueClosely)
        );
        clocks.run(Nanos(1));
        assert_eq!(
            (pacer.begins(), pacer.decide(1)),
            (PaceDecision::Suspend, PaceDecision::Suspend)
        );
        assert_eq!(pacer.seen(), seen);
        pacer.begin_unlimited();
        assert_eq!((pacer.decide(2), pacer.seen()), (PaceDecision::Continue, None));
    }

    #[test]
    fn a_call_whose_turn_is_already_over_runs_for_a_minimum_time() {
        let clocks = &ManualClocks::default();
        let pacer = Pacer::new(clocks);
        pacer.begin(Nanos::ZERO, CallState::default());
        pacer.poll_closely_from(Nanos::ZERO);
        assert_eq!(pacer.decide(1), PaceDecision::ContinueClosely, "it has not run");
        clocks.run(PROGRESS_MIN.saturating_sub(Nanos(1)));
        assert_eq!(pacer.decide(1), PaceDecision::ContinueClosely);
        clocks.run(Nanos(1));
        assert_eq!(
            (pacer.decide(1), pacer.begins()),
            (PaceDecision::Suspend, PaceDecision::Suspend)
        );
        pacer.begin(Nanos::ZERO, CallState::default());
        assert_eq!(pacer.begins(), PaceDecision::ContinueClosely, "each time");
    }

    #[test]
    fn after_two_late_turns_a_call_runs_without_close_polling_in_the_third() {
        let clocks = &ManualClocks::default();
        let pacer = Pacer::new(clocks);
        let mut state = CallState::default();
        for turn in 0..9 {
            pacer.begin(clocks.monotonic(), state);
            pacer.poll_closely_from(clocks.monotonic());
            let runs_freely = turn % 3 == 2;
            let first =
                if runs_freely { PaceDecision::Continue } else { PaceDecision::ContinueClosely };
            assert_eq!(pacer.decide(7), first, "turn {turn}");
            clocks.run(PROGRESS_MIN);
            assert_eq!(pacer.decide(7), PaceDecision::Suspend);
            state = pacer.end(true);
        }
        // A turn that has time ends the row of late ones.
        for _ in 0..LATE_TURNS_MAX {
            pacer.begin(clocks.monotonic(), state);
            assert_eq!(pacer.decide(7), PaceDecision::ContinueClosely);
            state = pacer.end(true);
        }
        pacer.poll_closely_from(NEVER);
        pacer.begin(clocks.monotonic() + millis(1), state);
        assert_eq!(pacer.decide(7), PaceDecision::Continue);
        pacer.begin(clocks.monotonic(), pacer.end(true));
        assert_eq!(pacer.decide(7), PaceDecision::ContinueClosely);
    }

    #[test]
    fn a_turn_ends_when_its_time_is_over() {
        let clocks = &ManualClocks::default();
        let pacer = Pacer::new(clocks);
        pacer.begin(millis(2), CallState::default());
        assert_eq!(pacer.decide(1), PaceDecision::Continue);
        clocks.run(millis(2));
        assert_eq!(pacer.decide(1), PaceDecision::Suspend);
        assert!(pacer.take_long() && !pacer.take_long());
        assert_eq!(pacer.decide(2), PaceDecision::Suspend);
        assert!(!pacer.take_long(), "it was not seen before");
    }
}
