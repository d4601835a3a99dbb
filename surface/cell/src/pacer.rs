//! How long calls of modules run: until somebody else has his turn, and never for ever.
//!
//! The engine asks each time the slicer has interrupted a call. The answer needs two clocks: whose
//! turn it is goes by the time that passes, how long a call has run by what its thread ran, so
//! that nobody pays for what the kernel did meanwhile, or for another guest of the host.

use engine::{Over, Pace};
use executor::TURN_MAX;
use rustix::time::{ClockId, clock_gettime};
use std::cell::Cell;
use units::Nanos;

/// Processor time of one call from when it was first seen running: with a slice before, and one
/// behind, a call ends within the 10 ms that are promised.
const CALL_TIME_MAX: Nanos = Nanos::from_millis(5);

/// What runs gets on for so long at least, and its account pays: on a busy machine it has taken more
/// than a short slice to come so far, after others had the caches, and would never get on.
const PROGRESS_MIN: Nanos = Nanos(10_000);

/// Turns of a call in a row that may be over before they begin: what it has then is looked at
/// closely, and it runs a hundredth as fast. A host that takes longer than a short slice to set a
/// timer makes all of them so, and a call would use up its time without having run. The next one
/// goes on until the timer comes, and its account pays.
const LATE_TURNS_MAX: u8 = 2;

const _: () = assert!(CALL_TIME_MAX.0 + 2 * executor::SLICE.0 < 10_000_000);

/// What is known of the call that an instance is in, or was in last.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CallState {
    /// Its number.
    call: u64,
    /// What it has run, up to `looked_at`.
    ran: Nanos,
    /// Turns in a row that were over before they began.
    late_turns: u8,
}

/// The pace of the instance that runs; there is one in a cell.
#[derive(Debug)]
pub(crate) struct Pacer {
    /// When the turn of what runs is over.
    until: Cell<Nanos>,
    /// Nobody has asked since it began.
    is_fresh: Cell<bool>,
    /// From when on it is asked all the time, so that it ends then exactly.
    closely_from: Cell<Nanos>,
    /// When it was first seen after that, if it was.
    seen: Cell<Option<Nanos>>,
    state: Cell<CallState>,
    /// A call has run for longer than a turn.
    was_long: Cell<bool>,
    /// The thread's processor time when that was counted last.
    looked_at: Cell<Nanos>,
}

impl Default for Pacer {
    fn default() -> Self {
        Self {
            until: Cell::default(),
            is_fresh: Cell::default(),
            closely_from: Cell::new(Nanos(u64::MAX)),
            seen: Cell::default(),
            state: Cell::default(),
            was_long: Cell::default(),
            looked_at: Cell::default(),
        }
    }
}

impl Pacer {
    /// An instance runs from now on, until then at most.
    pub(crate) fn begin(&self, until: Nanos, state: CallState) {
        self.until.set(until);
        self.is_fresh.set(true);
        if until.0 == u64::MAX {
            self.look_closely(until);
        }
        self.state.set(state);
        if state.call != 0 {
            self.looked_at.set(processor_time());
        }
    }

    /// Turns that begin from now on are looked at closely from then on: the timer that interrupts
    /// them comes some time after it was to, and not always as late.
    pub(crate) fn look_closely(&self, from: Nanos) {
        self.closely_from.set(from);
        self.seen.set(None);
    }

    /// Since when what ran was to be looked at closely, and when it was first, if it was.
    pub(crate) fn seen(&self) -> Option<(Nanos, Nanos)> {
        self.seen.get().map(|seen| (self.closely_from.get(), seen))
    }

    /// It does not any more. A call that stands still has this state when it goes on.
    pub(crate) fn end(&self, stands: bool) -> CallState {
        if !stands {
            return CallState::default();
        }
        let mut state = self.state.get();
        if state.call == 0 {
            // Nobody has asked: whatever stands still has run for no time worth counting.
            return state;
        }
        state.ran += processor_time().saturating_sub(self.looked_at.get());
        state
    }

    /// Whether a call has run for longer than a turn since this was asked last.
    pub(crate) const fn take_long(&self) -> bool {
        self.was_long.replace(false)
    }

    /// Calls run until they are over, in nobody's way.
    pub(crate) fn begin_alone(&self) {
        self.until.set(Nanos(u64::MAX));
        self.look_closely(Nanos(u64::MAX));
    }

    /// What is to become, by the time that passes, of what runs.
    fn look(&self) -> Over {
        let now = now();
        let is_close = now >= self.closely_from.get();
        if is_close && self.seen.get().is_none() {
            self.seen.set(Some(now));
        }
        if self.is_fresh.take() {
            return self.look_first(now, is_close);
        }
        if now >= self.until.get() {
            Over::Suspend
        } else if is_close {
            Over::Closely
        } else {
            Over::GoOn
        }
    }

    /// The same when its turn has just begun: it may be over already.
    fn look_first(&self, now: Nanos, is_close: bool) -> Over {
        let is_over = now >= self.until.get();
        if is_over {
            self.until.set(now + PROGRESS_MIN);
        }
        let mut state = self.state.get();
        let goes_on = !(is_close || is_over) || (is_over && state.late_turns >= LATE_TURNS_MAX);
        state.late_turns = if goes_on { 0 } else { state.late_turns + u8::from(is_over) };
        self.state.set(state);
        if goes_on { Over::GoOn } else { Over::Closely }
    }
}

impl Pace for Pacer {
    fn over(&self, call: u64) -> Over {
        let over = self.look();
        if over == Over::Closely {
            // This is soon over, and the other clock is a system call.
            return over;
        }
        let (mut state, ran) = (self.state.get(), processor_time());
        if state.call == call {
            state.ran += ran.saturating_sub(self.looked_at.get());
        } else {
            state = CallState { call, ran: Nanos::ZERO, ..state };
        }
        self.looked_at.set(ran);
        self.state.set(state);
        self.was_long.set(self.was_long.get() | (state.ran >= TURN_MAX));
        if state.ran >= CALL_TIME_MAX { Over::Stop } else { over }
    }

    fn begins(&self) -> Over {
        self.look()
    }
}

/// The time that passes.
pub(crate) fn now() -> Nanos {
    time_of(ClockId::Monotonic)
}

/// What the wall's clock says when the time that passes is 0.
pub(crate) fn real_offset() -> Nanos {
    time_of(ClockId::Realtime).saturating_sub(now())
}

/// What this thread has run.
pub(crate) fn processor_time() -> Nanos {
    time_of(ClockId::ThreadCPUTime)
}

fn time_of(clock: ClockId) -> Nanos {
    let time = clock_gettime(clock);
    // Neither is negative, and the sum fits for 500 years.
    Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Has this thread run for so long.
    fn run(time: Nanos) {
        let begin = processor_time();
        while processor_time().saturating_sub(begin) < time {}
    }

    #[test]
    fn a_call_stops_by_what_it_ran_however_often_it_stood_still() {
        let pacer = Pacer::default();
        let mut state = CallState::default();
        let mut turns = 0;
        loop {
            pacer.begin(Nanos(u64::MAX), state);
            assert_eq!(pacer.over(7), Over::GoOn);
            run(Nanos::from_millis(1));
            turns += 1;
            match pacer.over(7) {
                Over::Stop => break,
                over => assert_eq!(over, Over::GoOn),
            }
            state = pacer.end(true);
            // What others run meanwhile does not count.
            run(Nanos::from_millis(2));
        }
        assert!((4..=6).contains(&turns), "{turns} turns of a millisecond");
    }

    #[test]
    fn another_call_begins_with_nothing() {
        let pacer = Pacer::default();
        pacer.begin_alone();
        for call in 1..5 {
            assert_eq!(pacer.over(call), Over::GoOn);
            run(Nanos::from_millis(3));
        }
    }

    #[test]
    fn the_end_of_a_turn_is_looked_at_closely() {
        let pacer = Pacer::default();
        let begin = now();
        let sleep = |millis| std::thread::sleep(std::time::Duration::from_millis(millis));
        pacer.begin(begin + Nanos::from_millis(400), CallState::default());
        pacer.look_closely(begin + Nanos::from_millis(100));
        assert_eq!((pacer.begins(), pacer.over(1)), (Over::GoOn, Over::GoOn));
        assert_eq!(pacer.seen(), None);
        sleep(100);
        assert_eq!((pacer.begins(), pacer.over(1)), (Over::Closely, Over::Closely));
        let seen = pacer.seen().unwrap();
        assert_eq!(seen.0, begin + Nanos::from_millis(100));
        // Asleep, since a call may run for so long only.
        while pacer.over(1) == Over::Closely {
            sleep(1);
        }
        assert!(now() >= begin + Nanos::from_millis(400));
        assert_eq!((pacer.begins(), pacer.over(1)), (Over::Suspend, Over::Suspend));
        assert_eq!(pacer.seen(), Some(seen));
        pacer.begin_alone();
        assert_eq!((pacer.over(2), pacer.seen()), (Over::GoOn, None));
    }

    #[test]
    fn a_turn_that_is_over_before_it_began_gets_on_a_little() {
        let pacer = Pacer::default();
        let begin = now();
        pacer.begin(begin, CallState::default());
        pacer.look_closely(begin);
        let since = now();
        assert_eq!(pacer.over(1), Over::Closely, "it has not run");
        while pacer.over(1) == Over::Closely {}
        assert!(now() >= since + PROGRESS_MIN);
        assert_eq!((pacer.over(1), pacer.begins()), (Over::Suspend, Over::Suspend));
        pacer.begin(begin, CallState::default());
        assert_eq!(pacer.begins(), Over::Closely, "each time");
    }

    #[test]
    fn a_call_whose_turns_are_over_before_they_begin_runs_as_fast_as_it_can_in_the_third() {
        let pacer = Pacer::default();
        let mut state = CallState::default();
        for turn in 0..9 {
            pacer.begin(now(), state);
            pacer.look_closely(now());
            let runs_freely = turn % 3 == 2;
            let first = if runs_freely { Over::GoOn } else { Over::Closely };
            assert_eq!(pacer.over(7), first, "turn {turn}");
            // It is not asked before the timer comes.
            run(if runs_freely { PROGRESS_MIN } else { Nanos::ZERO });
            while pacer.over(7) == Over::Closely {}
            assert_eq!(pacer.over(7), Over::Suspend);
            state = pacer.end(true);
        }
        // One that has time is none of them.
        for _ in 0..LATE_TURNS_MAX {
            pacer.begin(now(), state);
            assert_eq!(pacer.over(7), Over::Closely);
            state = pacer.end(true);
        }
        pacer.look_closely(Nanos(u64::MAX));
        pacer.begin(now() + Nanos::from_millis(500), state);
        assert_eq!(pacer.over(7), Over::GoOn);
        pacer.begin(now(), pacer.end(true));
        assert_eq!(pacer.over(7), Over::Closely);
    }

    #[test]
    fn a_turn_ends_when_its_time_is_over() {
        let pacer = Pacer::default();
        pacer.begin(now() + Nanos::from_millis(2), CallState::default());
        assert_eq!(pacer.over(1), Over::GoOn);
        run(Nanos::from_millis(2));
        assert_eq!(pacer.over(1), Over::Suspend);
        assert!(pacer.take_long() && !pacer.take_long());
        assert_eq!(pacer.over(2), Over::Suspend);
        assert!(!pacer.take_long(), "it was not seen before");
    }
}
