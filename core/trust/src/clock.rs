//! Clock for the expiry of capabilities: never runs backwards, and does not follow a jump at once.
//!
//! ```text
//! wall clock          believed
//! behind              the monotonic clock goes on (setting the clock back revives no capability)
//! ahead, a little     the wall clock (NTP corrects a good clock in small steps)
//! ahead, by a jump    as for behind; the wall clock after it has stayed there for a while
//! ```

use crate::UnixTime;
use units::Nanos;

/// Largest step ahead that is followed at once, in seconds: corrections of a clock that runs well.
pub const STEP_MAX_SECONDS: u64 = 60;
/// Time after which a jump ahead is followed. By then an operator has seen the event, and a mistake
/// that was corrected has expired nobody's capability.
pub const JUMP_BELIEVED_AFTER: Nanos = Nanos::from_millis(10 * 60 * 1000);

/// Clock in seconds since 1970 that is derived from the wall clock and the monotonic clock.
#[derive(Clone, Debug)]
pub struct Clock {
    /// Last reading, and the monotonic time of it.
    time: UnixTime,
    at: Nanos,
    /// Monotonic time since when the wall clock is more than [`STEP_MAX_SECONDS`] ahead.
    ahead_since: Option<Nanos>,
}

/// Reading of the clock, with the deviation of the wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Time by which capabilities expire.
    pub time: UnixTime,
    /// Seconds by which the wall clock is ahead of `time`; 0 when it is followed.
    pub wall_ahead_by: i64,
}

impl Clock {
    /// Starts a clock. `latest` is the latest time that the node has ever read, before restarts as
    /// well.
    #[must_use]
    pub fn new(now: Nanos, wall: UnixTime, latest: UnixTime) -> Self {
        Self { time: wall.max(latest), at: now, ahead_since: None }
    }

    /// Reads the clock. `now` is the monotonic clock, `wall` the system's wall clock.
    pub fn read(&mut self, now: Nanos, wall: UnixTime) -> Reading {
        let passed = now.saturating_sub(self.at).0 / 1_000_000_000;
        let time = UnixTime(self.time.0.saturating_add(passed));
        let ahead =
            i64::try_from(wall.0).unwrap_or(i64::MAX) - i64::try_from(time.0).unwrap_or(i64::MAX);
        if ahead <= i64::try_from(STEP_MAX_SECONDS).unwrap_or(i64::MAX) {
            self.ahead_since = None;
            if ahead < 0 {
                // Tolerance: a second may have begun on one clock and not on the other.
                return Reading { time, wall_ahead_by: if ahead < -1 { ahead } else { 0 } };
            }
        } else {
            let since = *self.ahead_since.get_or_insert(now);
            if now.saturating_sub(since) < JUMP_BELIEVED_AFTER {
                return Reading { time, wall_ahead_by: ahead };
            }
            self.ahead_since = None;
        }
        if ahead > 0 {
            (self.time, self.at) = (wall, now);
        }
        Reading { time: wall, wall_ahead_by: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DAY: u64 = 86_400;

    const fn seconds(count: u64) -> Nanos {
        Nanos::from_millis(count * 1000)
    }

    #[test]
    fn the_trusted_clock_follows_a_steady_wall_clock() {
        let mut clock = Clock::new(seconds(5), UnixTime(1000), UnixTime(0));
        for (now, wall) in [(5, 1000), (6, 1001), (7, 1003), (100, 1095), (101, 1097)] {
            let reading = clock.read(seconds(now), UnixTime(wall));
            assert!(reading.time.0.abs_diff(wall) <= 1, "{reading:?} at {wall}");
        }
    }

    #[test]
    fn setting_the_clock_back_revives_nothing_also_over_a_restart() {
        let mut clock = Clock::new(seconds(0), UnixTime(10_000), UnixTime(0));
        let back = clock.read(seconds(10), UnixTime(10_010 - 3600));
        assert_eq!(back, Reading { time: UnixTime(10_010), wall_ahead_by: -3600 });
        let mut next = Clock::new(seconds(0), UnixTime(6_400), back.time);
        assert_eq!(next.read(seconds(1), UnixTime(6_401)).time, UnixTime(10_011));
    }

    #[test]
    fn a_jump_of_a_day_ends_nothing_unless_it_stays() {
        let mut clock = Clock::new(seconds(0), UnixTime(1000), UnixTime(0));
        let jumped = clock.read(seconds(10), UnixTime(1010 + DAY));
        assert_eq!((jumped.time, jumped.wall_ahead_by), (UnixTime(1010), 86_400));
        assert_eq!(clock.read(seconds(20), UnixTime(1020)).time, UnixTime(1020), "mended");
        clock.read(seconds(30), UnixTime(1030 + DAY));
        let later = JUMP_BELIEVED_AFTER.0 / 1_000_000_000 + 30;
        let believed = clock.read(seconds(later), UnixTime(1000 + later + DAY));
        assert_eq!(believed, Reading { time: UnixTime(1000 + later + DAY), wall_ahead_by: 0 });
    }

    proptest! {
        #[test]
        fn the_trusted_clock_never_goes_backwards(walls in prop::collection::vec((0..900u64, 0..200_000u64), 1..50)) {
            let (mut now, mut last) = (0, UnixTime(0));
            let mut clock = Clock::new(seconds(0), UnixTime(100_000), UnixTime(0));
            for (passed, wall) in walls {
                now += passed;
                let reading = clock.read(seconds(now), UnixTime(wall));
                prop_assert!(reading.time >= last);
                last = reading.time;
            }
        }
    }
}
