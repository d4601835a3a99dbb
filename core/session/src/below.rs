//! Time below user level as fuel: what a share of a packet core is on a machine of known speed,
//! and the account that holds somebody to it.
//!
//! ```text
//!   fuel of calls ÷ speed = time          each tick: + per_tick
//!                                                │
//!   share × speed ─▶ Terms ─▶      full ┌────────▼───────┐
//!                                       │    account     │──▶ what calls used, however much
//!                                   ≤ 0 └────────────────┘
//!                                       nobody is run until ticks have made it good
//! ```
//!
//! The kernel keeps accounts (`levels/bpf/c/service.h`); here is what is in them. An account
//! holds two slices and a tick: of periods that nobody knows the beginning of, one may have its
//! slice at its end and the next one at its beginning, and a tick comes late by as much as it
//! is long. So whoever uses no more than a slice in each period is never stopped.

use core::fmt;

use serde::{Deserialize, Serialize};
use units::Nanos;

use crate::share::{Parts, Share, WHOLE};

/// Parts of a unit of fuel in an account, as a power of two: what the smallest share gains in a
/// tick is off by less than a thousandth.
pub const FUEL_SHIFT: u32 = 16;
/// What an account gains in a tick at most: so many cores and more would do, and its sum with all
/// ticks that are made good at once does not overflow.
const PER_TICK_MAX: u64 = 1 << 48;
/// In such a time those who reserved nothing get a slice, together.
pub const REST_PERIOD: Nanos = Nanos::from_millis(10);
/// What those who reserved nothing get together of a packet core, also when all is promised.
pub const REST_MIN: Parts = Parts(10_000);

/// How fast a machine runs modules below user level: fuel in a millisecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Speed(u64);

impl Speed {
    /// Slower is no machine: a unit of fuel would take 100 ns, more than a cache miss.
    pub const MIN: Self = Self(10_000);
    /// Faster is no machine: 50 units of fuel in a nanosecond.
    pub const MAX: Self = Self(50_000_000);
    /// Where it could not be measured: less than any machine that was, so that nobody gets more
    /// than he was promised.
    pub const UNMEASURED: Self = Self(500_000);

    /// So much fuel in so much time, within the bounds; none without a time.
    #[must_use]
    pub fn measured(fuel: u64, time: Nanos) -> Option<Self> {
        let per_ms = u128::from(fuel) * 1_000_000 / u128::from(time.0.max(1));
        let speed = Self(u64::try_from(per_ms).unwrap_or(u64::MAX));
        (time > Nanos::ZERO && fuel > 0).then(|| speed.clamp(Self::MIN, Self::MAX))
    }

    /// Fuel in a millisecond.
    #[must_use]
    pub const fn per_ms(self) -> u64 {
        self.0
    }

    /// What so much fuel takes, rounded down.
    #[must_use]
    pub fn time_of(self, fuel: u64) -> Nanos {
        let nanos = u128::from(fuel) * 1_000_000 / u128::from(self.0.max(1));
        Nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

/// Shown per microsecond: `312.5`.
impl fmt::Display for Speed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 1_000, self.0 % 1_000 / 100)
    }
}

/// What an account gains and holds, in parts of a unit of fuel ([`FUEL_SHIFT`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// With each tick.
    pub per_tick: u64,
    /// At most.
    pub full: u64,
}

impl Terms {
    /// Of somebody who was promised a share, on a machine of this speed whose kernel ticks so
    /// often.
    #[must_use]
    pub fn of(share: Share, speed: Speed, tick: Nanos) -> Self {
        Self::new(share.slice(), share.period(), speed, tick)
    }

    /// Of all who were promised nothing, together: what can still be promised.
    #[must_use]
    pub fn of_rest(left: Parts, speed: Speed, tick: Nanos) -> Self {
        let parts = left.max(REST_MIN).0;
        let slice = u128::from(REST_PERIOD.0) * u128::from(parts) / u128::from(WHOLE);
        let slice = Nanos(u64::try_from(slice).unwrap_or(u64::MAX));
        Self::new(slice, REST_PERIOD, speed, tick)
    }

    fn new(slice: Nanos, period: Nanos, speed: Speed, tick: Nanos) -> Self {
        let slice = ((u128::from(slice.0) * u128::from(speed.0)) << FUEL_SHIFT) / 1_000_000;
        Self::of_slice(slice, period, tick)
    }

    /// Of so much in each period.
    pub(crate) fn of_slice(slice: u128, period: Nanos, tick: Nanos) -> Self {
        let per_tick = slice * u128::from(tick.0) / u128::from(period.0);
        let bounded = |parts: u128, most| u64::try_from(parts).unwrap_or(most).clamp(1, most);
        Self {
            per_tick: bounded(per_tick, PER_TICK_MAX),
            full: bounded(2 * slice + per_tick, 1 << 61),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// As `is_spent` in `levels/bpf/c/service.h` keeps it.
    struct Account {
        terms: Terms,
        left: i64,
        ticked: u64,
    }

    impl Account {
        fn new(terms: Terms) -> Self {
            Self { terms, left: terms.full as i64, ticked: 0 }
        }

        fn may(&mut self, tick: u64) -> bool {
            let gain = (tick - self.ticked) * self.terms.per_tick;
            self.left = (self.left + gain as i64).min(self.terms.full as i64);
            self.ticked = tick;
            self.left > 0
        }

        fn pay(&mut self, fuel: u64) {
            self.left -= (fuel << FUEL_SHIFT) as i64;
        }
    }

    fn share(slice_us: u64, period_ms: u64) -> Share {
        let period = Nanos::from_millis(period_ms);
        Share::new(Nanos((slice_us * 1_000).min(period.0)), period).unwrap()
    }

    #[test]
    fn a_share_is_so_much_fuel() {
        let speed = Speed::measured(300_000, Nanos::from_millis(1)).unwrap();
        let terms = Terms::of(share(400, 4), speed, Nanos::from_millis(1));
        assert_eq!(terms.per_tick, 30_000 << FUEL_SHIFT);
        assert_eq!(terms.full, (240_000 + 30_000) << FUEL_SHIFT);
        assert_eq!(speed.time_of(120_000), Nanos(400_000));
        assert_eq!(speed.to_string(), "300.0");
        let rest = Terms::of_rest(Parts(0), speed, Nanos::from_millis(1));
        assert_eq!(rest.per_tick, 3_000 << FUEL_SHIFT, "they get through");
        let rest = Terms::of_rest(Parts(1_500_000), speed, Nanos::from_millis(4));
        assert_eq!(rest.per_tick, 1_800_000 << FUEL_SHIFT, "several cores");
    }

    #[test]
    fn a_speed_that_no_machine_has_is_not_believed() {
        assert_eq!(Speed::measured(1, Nanos::from_millis(1)), Some(Speed::MIN));
        assert_eq!(Speed::measured(u64::MAX, Nanos(1)), Some(Speed::MAX));
        assert_eq!(Speed::measured(5, Nanos::ZERO), None);
        assert_eq!(Speed::measured(0, Nanos(5)), None);
        assert_eq!(Speed::MAX.time_of(u64::MAX), Nanos(u64::MAX / 50));
    }

    proptest! {
        /// Somebody who always has packets gets no more than his share, what the account holds,
        /// and one call.
        #[test]
        fn nobody_gets_more_than_his_share(
            slice_us in 50u64..4_000, period_ms in 1u64..1_000, per_ms in 10_000u64..50_000_000,
            tick_ms in 1u64..=10, calls in prop::collection::vec((0u64..65_536, 0u64..3), 1..2_000),
        ) {
            let (share, tick) = (share(slice_us, period_ms), Nanos::from_millis(tick_ms));
            let terms = Terms::of(share, Speed(per_ms), tick);
            let mut account = Account::new(terms);
            let (mut now, mut used) = (0, 0u64);
            for (fuel, ticks) in calls {
                now += ticks;
                if account.may(now) {
                    account.pay(fuel);
                    used += fuel;
                }
            }
            let earned = (u128::from(terms.full) + u128::from(now * terms.per_tick)) >> FUEL_SHIFT;
            prop_assert!(u128::from(used) <= earned + 65_536, "{used} of {earned}");
            let rate = u128::from(share.slice().0) * u128::from(per_ms) * u128::from(now * tick.0)
                / u128::from(share.period().0) / 1_000_000;
            prop_assert!(u128::from((now * terms.per_tick) >> FUEL_SHIFT) <= rate + 1);
        }

        /// Periods begin anywhere, and what is used in one is used at any time of it.
        #[test]
        fn who_uses_no_more_than_a_slice_in_each_period_is_never_stopped(
            slice_us in 50u64..4_000, period_ms in 1u64..40, tick_ms in 1u64..=10,
            offset in 0u64..40_000_000,
            periods in prop::collection::vec((0u64..=1_000, 0u64..1_000), 1..500),
        ) {
            let (share, tick) = (share(slice_us, period_ms), Nanos::from_millis(tick_ms));
            let speed = Speed(300_000);
            let mut account = Account::new(Terms::of(share, speed, tick));
            let slice = share.slice().0 * speed.0 / 1_000_000;
            for (number, (part, at)) in (0u64..).zip(periods) {
                let now = offset + number * share.period().0 + share.period().0 * at / 1_000;
                prop_assert!(account.may(now / tick.0), "in period {number}");
                account.pay((slice * part / 1_000).saturating_sub(1));
            }
        }
    }
}
