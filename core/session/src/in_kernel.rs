//! Token buckets that hold sessions to their share of packet cores at in-kernel levels (`nic` and
//! `kernel`). Converts time to fuel by the machine's measured speed.
//!
//! ```text
//!   fuel of calls ÷ speed = time          each tick: + per_tick
//!                                                │
//!   share × speed ─▶ BucketParams  full ┌────────▼───────┐
//!                                       │     bucket     │──▶ fuel that calls used, in full
//!                                   ≤ 0 └────────────────┘
//!                                       no module runs until ticks have refilled it
//! ```
//!
//! The kernel keeps the buckets (`levels/bpf/c/service.h`); this module computes their parameters.
//! A bucket holds two slices and a tick: the kernel does not know where a session's periods begin,
//! so one slice may be used at the end of a period and the next at the beginning of the following
//! one, and a tick comes late by up to its own length. A session that uses no more than a slice in
//! each of its periods is therefore never stopped.

use core::fmt;

use serde::{Deserialize, Serialize};
use units::Nanos;

use crate::share::{Parts, Share, WHOLE};

/// Fixed-point fraction bits of a bucket's unit of fuel: the refill of the smallest share per tick
/// is off by less than a thousandth.
pub const FUEL_SHIFT: u32 = 16;
/// Largest refill per tick. More than all cores of any machine could use, and small enough that the
/// sum of a full bucket and all ticks that are credited at once does not overflow.
const PER_TICK_MAX: u64 = 1 << 48;
/// Period of the bucket that all sessions without a reservation have in common.
pub const UNRESERVED_PERIOD: Nanos = Nanos::from_millis(10);
/// Smallest part of a packet core that sessions without a reservation have together, also when
/// everything is reserved: 1 %.
pub const UNRESERVED_MIN: Parts = Parts(10_000);

/// Speed of a machine at in-kernel levels: fuel per millisecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Speed(u64);

impl Speed {
    /// Lowest speed that is believed: 100 ns per unit of fuel, more than a cache miss.
    pub const MIN: Self = Self(10_000);
    /// Highest speed that is believed: 50 units of fuel per nanosecond.
    pub const MAX: Self = Self(50_000_000);
    /// Speed assumed where measuring failed: below that of any measured machine, so that nobody
    /// gets more than its reservation.
    pub const UNMEASURED: Self = Self(500_000);

    /// Returns the speed at which `fuel` takes `time`, clamped to [`Self::MIN`] and [`Self::MAX`];
    /// `None` if either is zero.
    #[must_use]
    pub fn measured(fuel: u64, time: Nanos) -> Option<Self> {
        let per_ms = u128::from(fuel) * 1_000_000 / u128::from(time.0.max(1));
        let speed = Self(u64::try_from(per_ms).unwrap_or(u64::MAX));
        (time > Nanos::ZERO && fuel > 0).then(|| speed.clamp(Self::MIN, Self::MAX))
    }

    /// Returns fuel per millisecond.
    #[must_use]
    pub const fn per_ms(self) -> u64 {
        self.0
    }

    /// Returns the time that `fuel` takes, rounded down.
    #[must_use]
    pub fn time_of(self, fuel: u64) -> Nanos {
        let nanos = u128::from(fuel) * 1_000_000 / u128::from(self.0.max(1));
        Nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

/// Formats the speed as fuel per microsecond: `312.5`.
impl fmt::Display for Speed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 1_000, self.0 % 1_000 / 100)
    }
}

/// Token-bucket parameters, in units of fuel (or bytes) shifted left by [`FUEL_SHIFT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketParams {
    /// Refill of one tick, at least 1.
    pub per_tick: u64,
    /// Capacity of the bucket.
    pub capacity: u64,
}

impl BucketParams {
    /// Returns the bucket of a session that reserved `share`, on a machine of this `speed`,
    /// refilled once per kernel `tick`.
    #[must_use]
    pub fn of_share(share: Share, speed: Speed, tick: Nanos) -> Self {
        Self::new(share.slice(), share.period(), speed, tick)
    }

    /// Returns the bucket that all sessions without a reservation have in common: `left`, the
    /// unreserved part of the packet cores, but at least [`UNRESERVED_MIN`].
    #[must_use]
    pub fn of_unreserved(left: Parts, speed: Speed, tick: Nanos) -> Self {
        let parts = left.max(UNRESERVED_MIN).0;
        let slice = u128::from(UNRESERVED_PERIOD.0) * u128::from(parts) / u128::from(WHOLE);
        let slice = Nanos(u64::try_from(slice).unwrap_or(u64::MAX));
        Self::new(slice, UNRESERVED_PERIOD, speed, tick)
    }

    fn new(slice: Nanos, period: Nanos, speed: Speed, tick: Nanos) -> Self {
        let slice = ((u128::from(slice.0) * u128::from(speed.0)) << FUEL_SHIFT) / 1_000_000;
        Self::of_slice(slice, period, tick)
    }

    /// Returns the bucket of `slice` tokens (already shifted) in each `period`.
    pub(crate) fn of_slice(slice: u128, period: Nanos, tick: Nanos) -> Self {
        let per_tick = slice * u128::from(tick.0) / u128::from(period.0);
        let bounded = |parts: u128, most| u64::try_from(parts).unwrap_or(most).clamp(1, most);
        Self {
            per_tick: bounded(per_tick, PER_TICK_MAX),
            capacity: bounded(2 * slice + per_tick, 1 << 61),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Model of the bucket that `is_spent` in `levels/bpf/c/service.h` keeps.
    struct Bucket {
        params: BucketParams,
        left: i64,
        ticked: u64,
    }

    impl Bucket {
        fn new(params: BucketParams) -> Self {
            Self { params, left: params.capacity as i64, ticked: 0 }
        }

        fn try_start(&mut self, tick: u64) -> bool {
            let gain = (tick - self.ticked) * self.params.per_tick;
            self.left = (self.left + gain as i64).min(self.params.capacity as i64);
            self.ticked = tick;
            self.left > 0
        }

        fn charge(&mut self, fuel: u64) {
            self.left -= (fuel << FUEL_SHIFT) as i64;
        }
    }

    fn share(slice_us: u64, period_ms: u64) -> Share {
        let period = Nanos::from_millis(period_ms);
        Share::new(Nanos((slice_us * 1_000).min(period.0)), period).unwrap()
    }

    #[test]
    fn a_share_is_converted_to_fuel() {
        let speed = Speed::measured(300_000, Nanos::from_millis(1)).unwrap();
        let params = BucketParams::of_share(share(400, 4), speed, Nanos::from_millis(1));
        assert_eq!(params.per_tick, 30_000 << FUEL_SHIFT);
        assert_eq!(params.capacity, (240_000 + 30_000) << FUEL_SHIFT);
        assert_eq!(speed.time_of(120_000), Nanos(400_000));
        assert_eq!(speed.to_string(), "300.0");
        let rest = BucketParams::of_unreserved(Parts(0), speed, Nanos::from_millis(1));
        assert_eq!(rest.per_tick, 3_000 << FUEL_SHIFT, "they get through");
        let rest = BucketParams::of_unreserved(Parts(1_500_000), speed, Nanos::from_millis(4));
        assert_eq!(rest.per_tick, 1_800_000 << FUEL_SHIFT, "several cores");
    }

    #[test]
    fn an_implausible_speed_is_clamped() {
        assert_eq!(Speed::measured(1, Nanos::from_millis(1)), Some(Speed::MIN));
        assert_eq!(Speed::measured(u64::MAX, Nanos(1)), Some(Speed::MAX));
        assert_eq!(Speed::measured(5, Nanos::ZERO), None);
        assert_eq!(Speed::measured(0, Nanos(5)), None);
        assert_eq!(Speed::MAX.time_of(u64::MAX), Nanos(u64::MAX / 50));
    }

    proptest! {
        /// A session that always has packets gets no more than its share, the capacity of its
        /// bucket, and one call.
        #[test]
        fn no_session_exceeds_its_share(
            slice_us in 50u64..4_000, period_ms in 1u64..1_000, per_ms in 10_000u64..50_000_000,
            tick_ms in 1u64..=10, calls in prop::collection::vec((0u64..65_536, 0u64..3), 1..2_000),
        ) {
            let (share, tick) = (share(slice_us, period_ms), Nanos::from_millis(tick_ms));
            let params = BucketParams::of_share(share, Speed(per_ms), tick);
            let mut bucket = Bucket::new(params);
            let (mut now, mut used) = (0, 0u64);
            for (fuel, ticks) in calls {
                now += ticks;
                if bucket.try_start(now) {
                    bucket.charge(fuel);
                    used += fuel;
                }
            }
            let earned = (u128::from(params.capacity) + u128::from(now * params.per_tick)) >> FUEL_SHIFT;
            prop_assert!(u128::from(used) <= earned + 65_536, "{used} of {earned}");
            let rate = u128::from(share.slice().0) * u128::from(per_ms) * u128::from(now * tick.0)
                / u128::from(share.period().0) / 1_000_000;
            prop_assert!(u128::from((now * params.per_tick) >> FUEL_SHIFT) <= rate + 1);
        }

        /// Periods begin at any offset to the ticks, and fuel is used at any time within a period.
        #[test]
        fn a_session_within_its_slice_in_each_period_is_never_stopped(
            slice_us in 50u64..4_000, period_ms in 1u64..40, tick_ms in 1u64..=10,
            offset in 0u64..40_000_000,
            periods in prop::collection::vec((0u64..=1_000, 0u64..1_000), 1..500),
        ) {
            let (share, tick) = (share(slice_us, period_ms), Nanos::from_millis(tick_ms));
            let speed = Speed(300_000);
            let mut bucket = Bucket::new(BucketParams::of_share(share, speed, tick));
            let slice = share.slice().0 * speed.0 / 1_000_000;
            for (number, (part, at)) in (0u64..).zip(periods) {
                let now = offset + number * share.period().0 + share.period().0 * at / 1_000;
                prop_assert!(bucket.try_start(now / tick.0), "in period {number}");
                bucket.charge((slice * part / 1_000).saturating_sub(1));
            }
        }
    }
}
