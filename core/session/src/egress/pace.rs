//! Pacing by a port's nominal rate, independent of completions of the device.

use units::{BitsPerSecond, Bytes, Nanos};

/// Picoseconds in a nanosecond. Resolution for short packets on fast links, which take a few
/// nanoseconds.
pub(super) const PICOS: u64 = 1_000;
/// Bits in a byte times picoseconds in a second.
const BYTE_SECOND: u64 = 8 * 1_000_000_000_000;

/// Returns the time on the wire in picoseconds, rounded up.
pub(super) fn time_of(bytes: Bytes, rate: BitsPerSecond) -> u64 {
    // At most 2^20 bytes, so that the product does not overflow; a packet with overhead has some
    // 2^17.
    (bytes.0.min(1 << 20) * BYTE_SECOND).div_ceil(rate.0.max(1))
}

/// Virtual state of the wire: backlog that is still being sent, or idle time that may be made up
/// for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Backlog in picoseconds at time `at`.
    ahead: u64,
    behind: u64,
    at: Nanos,
    /// True if packets were queued at that time, so that idle time counts as missed.
    is_busy: bool,
}

impl Pace {
    pub(super) const fn new() -> Self {
        Self { ahead: 0, behind: 0, at: Nanos::ZERO, is_busy: false }
    }

    /// Adds a packet's transmission time.
    pub(super) fn add(&mut self, picos: u64) {
        let caught_up = self.behind.min(picos);
        self.behind -= caught_up;
        self.ahead = self.ahead.saturating_add(picos - caught_up);
    }

    /// Sets whether packets are queued from now on. Idle time with empty queues is not made up for.
    pub(super) const fn set_busy(&mut self, is_busy: bool) {
        self.is_busy = is_busy;
        if !is_busy {
            self.behind = 0;
        }
    }

    /// Returns the time at which the backlog is at most `most`; `None` if it is now. At most
    /// `behind` of the idle time with queued packets is made up for.
    pub(super) fn wait_until(&mut self, now: Nanos, most: Nanos, behind: Nanos) -> Option<Nanos> {
        self.settle(now, behind.0.saturating_mul(PICOS));
        let over = self.ahead.saturating_sub(most.0.saturating_mul(PICOS));
        (over > 0).then(|| now + Nanos(over.div_ceil(PICOS)))
    }

    fn settle(&mut self, now: Nanos, behind_max: u64) {
        let passed = now.saturating_sub(self.at).0.saturating_mul(PICOS);
        let idle = passed.saturating_sub(self.ahead);
        self.ahead = self.ahead.saturating_sub(passed);
        if self.is_busy {
            self.behind = self.behind.saturating_add(idle).min(behind_max);
        }
        self.at = self.at.max(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_takes_its_bits_at_the_rate() {
        let time = |bytes, rate| time_of(Bytes(bytes), BitsPerSecond(rate));
        assert_eq!(time(1500, 100_000_000), 120_000 * PICOS);
        assert_eq!(time(64, 100_000_000_000), 5_120);
        assert_eq!(time(1, 3), 2_666_666_666_667, "rounded up");
        assert_eq!(time(1, 0), BYTE_SECOND, "a port that sends nothing does not divide by it");
    }

    #[test]
    fn the_wire_is_free_after_the_backlog() {
        let mut pace = Pace::new();
        let wait =
            |pace: &mut Pace, now, most| pace.wait_until(Nanos(now), Nanos(most), Nanos::ZERO);
        assert_eq!(wait(&mut pace, 50, 0), None);
        pace.add(2_500);
        assert_eq!(wait(&mut pace, 50, 0), Some(Nanos(53)));
        assert_eq!(wait(&mut pace, 50, 2), Some(Nanos(51)));
        assert_eq!(wait(&mut pace, 53, 0), None);
        assert_eq!(wait(&mut pace, 40, 0), None);
        pace.add(1_000);
        assert_eq!(wait(&mut pace, 53, 0), Some(Nanos(54)), "time never runs back");
    }

    #[test]
    fn missed_wire_time_is_made_up_for_within_its_limit() {
        let mut pace = Pace::new();
        let wait = |pace: &mut Pace, now| pace.wait_until(Nanos(now), Nanos::ZERO, Nanos(20));
        assert_eq!(wait(&mut pace, 1_000), None, "nothing waited until then");
        pace.set_busy(true);
        pace.add(10_000);
        assert_eq!(wait(&mut pace, 1_000), Some(Nanos(1_010)));
        assert_eq!(wait(&mut pace, 1_025), None, "15 ns late");
        pace.add(10_000);
        assert_eq!(wait(&mut pace, 1_025), None);
        pace.add(10_000);
        assert_eq!(wait(&mut pace, 1_025), Some(Nanos(1_030)), "5 ns were left of them");
        assert_eq!(wait(&mut pace, 9_000), None);
        pace.add(30_000);
        assert_eq!(wait(&mut pace, 9_000), Some(Nanos(9_010)), "20 ns at most");
        assert_eq!(wait(&mut pace, 9_020), None);
        pace.set_busy(false);
        pace.add(10_000);
        assert_eq!(wait(&mut pace, 9_020), Some(Nanos(9_030)), "nothing waited");
    }
}
