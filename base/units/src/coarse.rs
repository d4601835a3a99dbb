//! Time of a coarse clock: whole milliseconds, as instants and as durations.
//!
//! A loop reads such a clock once per iteration and passes the instant on. Instants and durations
//! are two types, so that one cannot be taken for the other; neither wraps.

use crate::{Millis, Nanos};
use core::ops::Add;

impl Millis {
    /// Returns the same time in nanoseconds, saturating.
    #[must_use]
    pub const fn as_nanos(self) -> Nanos {
        Nanos::from_millis(self.0)
    }
}

/// Instant of a coarse monotonic clock, in whole milliseconds since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CoarseInstant(u64);

impl CoarseInstant {
    /// Start of the clock.
    pub const ZERO: Self = Self(0);
    /// Instant that no clock reaches: the value of an absent deadline.
    pub const NEVER: Self = Self(u64::MAX);

    /// Returns the instant `millis` milliseconds after the clock's start.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// Returns milliseconds since the clock's start, the form of module interfaces and records.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// Returns the last coarse instant not later than `nanos` of the same clock.
    #[must_use]
    pub const fn from_nanos(nanos: Nanos) -> Self {
        Self(nanos.as_millis())
    }

    /// Returns the same instant in nanoseconds, saturating; the maximum for [`Self::NEVER`].
    #[must_use]
    pub const fn as_nanos(self) -> Nanos {
        Nanos::from_millis(self.0)
    }

    /// Returns the time since `earlier`, zero when that is later.
    #[must_use]
    pub const fn saturating_since(self, earlier: Self) -> Millis {
        Millis(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Millis> for CoarseInstant {
    type Output = Self;

    /// Returns the instant a duration later, [`CoarseInstant::NEVER`] on overflow.
    fn add(self, later: Millis) -> Self {
        Self(self.0.saturating_add(later.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_and_durations_end_at_their_limits() {
        let at = CoarseInstant::from_millis(5);
        assert_eq!(at + Millis(3), CoarseInstant::from_millis(8));
        assert_eq!(at + Millis(u64::MAX), CoarseInstant::NEVER);
        assert_eq!(CoarseInstant::NEVER + Millis(1), CoarseInstant::NEVER);
        assert_eq!(Millis(2) + Millis(3), Millis(5));
        assert_eq!(Millis(u64::MAX) + Millis(1), Millis(u64::MAX));
    }

    #[test]
    fn time_since_a_later_instant_is_none() {
        let (early, late) = (CoarseInstant::from_millis(5), CoarseInstant::from_millis(8));
        assert_eq!(late.saturating_since(early), Millis(3));
        assert_eq!(early.saturating_since(late), Millis::ZERO);
    }

    #[test]
    fn nanoseconds_are_rounded_down_and_the_last_instant_is_the_last_in_both() {
        assert_eq!(CoarseInstant::from_nanos(Nanos(1_999_999)).as_millis(), 1);
        assert_eq!(CoarseInstant::from_millis(2).as_nanos(), Nanos(2_000_000));
        assert_eq!(CoarseInstant::NEVER.as_nanos(), Nanos(u64::MAX));
        assert_eq!(Millis(7).as_nanos(), Nanos(7_000_000));
        assert_eq!(Millis(7).to_string(), "7 ms");
    }
}
