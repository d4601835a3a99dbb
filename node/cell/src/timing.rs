//! Durations of module calls at user level: one call of 64 is timed.
//!
//! Reading the clock for each packet would cost as much as a small module. The packet counter
//! selects the calls, so that the others pay for one comparison.

use serde::{Deserialize, Serialize};
use units::Nanos;

/// Number of calls of which one is timed.
pub const TIMED_OF: u64 = 64;
/// Number of buckets: those with a bound, and one for longer calls.
pub const TIMES: usize = 18;
/// Binary logarithm of the first bucket's bound: 128 ns. Each bound is twice the one before, the
/// last is 8 ms: longer calls are stopped.
const FIRST_LOG2: u32 = 7;

/// Histogram of call durations, by powers of two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallTimes {
    /// Number of calls by duration: bucket n has those of at most [`bound_ns`] (n), and more than
    /// the bound before; the last has the rest.
    pub buckets: [u64; TIMES],
    /// Sum of the durations in nanoseconds.
    pub sum_ns: u64,
}

/// Returns the longest duration that counts in a bucket, in nanoseconds; `None` for the last.
#[must_use]
pub const fn bound_ns(bucket: usize) -> Option<u64> {
    if bucket + 1 < TIMES { Some(1 << (FIRST_LOG2 as usize + bucket)) } else { None }
}

/// Start of a call that is timed.
#[derive(Debug)]
pub(crate) struct Begun(u64);

impl CallTimes {
    /// Reads the clock if this packet's call is to be timed: the first of a service, and each 64th
    /// after it.
    #[inline]
    pub(crate) fn begin(packets: u64) -> Option<Begun> {
        (packets % TIMED_OF == 1).then(now)
    }

    /// Counts the duration of a call that was timed.
    #[inline]
    pub(crate) fn end(&mut self, begun: Option<Begun>) {
        if let Some(Begun(since)) = begun {
            self.add(now().0.saturating_sub(since));
        }
    }

    /// Counts a batch of calls, the last of them for packet number `packets`, by the mean duration:
    /// those of them that would have been timed one by one.
    pub(crate) fn spread(&mut self, packets: u64, calls: u64, time: Nanos) {
        let Some(mean) = time.0.checked_div(calls) else { return };
        let turns = |packets: u64| packets.div_ceil(TIMED_OF);
        for _ in turns(packets - calls)..turns(packets) {
            self.add(mean);
        }
    }

    fn add(&mut self, ns: u64) {
        let over = ns.saturating_sub(1).checked_ilog2().map_or(0, |log| log + 1);
        let bucket = over.saturating_sub(FIRST_LOG2) as usize;
        self.buckets[bucket.min(TIMES - 1)] += 1;
        self.sum_ns += ns;
    }
}

#[cold]
fn now() -> Begun {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    // Time since the machine started: neither part is negative, and the sum fits for 500 years.
    Begun(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_counts_in_the_first_bucket_that_has_room_for_it() {
        for bucket in 0..TIMES - 1 {
            let bound = bound_ns(bucket).unwrap();
            let mut times = CallTimes::default();
            times.add(bound);
            times.add(bound + 1);
            assert_eq!((times.buckets[bucket], times.buckets[bucket + 1]), (1, 1), "{bound}");
        }
        let mut times = CallTimes::default();
        times.add(0);
        times.add(u64::MAX / 2);
        assert_eq!((times.buckets[0], times.buckets[TIMES - 1]), (1, 1));
        assert_eq!(bound_ns(TIMES - 2), Some(8 << 20));
        assert_eq!(bound_ns(TIMES - 1), None);
    }

    #[test]
    fn calls_of_a_turn_count_as_often_as_one_by_one() {
        let (mut times, mut packets) = (CallTimes::default(), 0);
        for calls in [1, 62, 1, 1, 0, 64, 127, 1] {
            packets += calls;
            times.spread(packets, calls, Nanos(200 * calls));
        }
        let one_by_one = (1..=packets).filter(|packet| CallTimes::begin(*packet).is_some()).count();
        assert_eq!(times.buckets[1], one_by_one as u64);
        assert_eq!(times.sum_ns, 200 * one_by_one as u64);
    }

    #[test]
    fn one_of_64_is_timed() {
        let timed = (1..=640).filter(|packet| CallTimes::begin(*packet).is_some()).count();
        assert_eq!(timed, 10);
    }
}
