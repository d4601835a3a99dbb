//! Periodic timers whose ticks stay on the grid that the first one began.

use crate::Nanos;

/// Periodic timer whose ticks are due at multiples of the period after its start.
///
/// The next tick is computed from the due time of the last one, not from when that was taken, so
/// that lateness does not add up. Missed ticks are delivered as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticks {
    period: Nanos,
    due: Nanos,
}

impl Ticks {
    /// Starts a timer; a period of zero counts as one nanosecond.
    #[must_use]
    pub const fn start(now: Nanos, period: Nanos) -> Self {
        let period = if period.0 == 0 { Nanos(1) } else { period };
        Self { period, due: Nanos(now.0.saturating_add(period.0)) }
    }

    /// Returns the due time of the next tick.
    #[must_use]
    pub const fn due(&self) -> Nanos {
        self.due
    }

    /// Takes the tick that is due together with all missed ones: returns true once for all of them.
    pub const fn take(&mut self, now: Nanos) -> bool {
        if now.0 < self.due.0 {
            return false;
        }
        let passed = (now.0 - self.due.0) / self.period.0 + 1;
        self.due = Nanos(self.due.0.saturating_add(self.period.0.saturating_mul(passed)));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Nanos = Nanos::from_millis(5);

    #[test]
    fn as_many_ticks_come_as_periods_pass_however_late_each_is_seen() {
        let mut ticks = Ticks::start(Nanos::ZERO, PERIOD);
        // A clock in steps of 4 ms sees none of them in time.
        let seen = (0..=250).filter(|step| ticks.take(Nanos::from_millis(step * 4))).count();
        assert_eq!(seen, 200);
        assert_eq!(ticks.due(), Nanos::from_millis(1005));
    }

    #[test]
    fn missed_ticks_come_as_one_and_the_next_is_where_it_would_have_been() {
        let mut ticks = Ticks::start(Nanos::from_millis(2), PERIOD);
        assert!(!ticks.take(Nanos(6_999_999)));
        assert!(ticks.take(Nanos::from_millis(23)));
        assert!(!ticks.take(Nanos::from_millis(23)));
        assert_eq!(ticks.due(), Nanos::from_millis(27));
    }

    #[test]
    fn the_end_of_time_is_no_overflow() {
        let mut ticks = Ticks::start(Nanos(u64::MAX), Nanos::ZERO);
        assert!(ticks.take(Nanos(u64::MAX)));
        assert_eq!(ticks.due(), Nanos(u64::MAX));
    }
}
