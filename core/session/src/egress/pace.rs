//! When a port's wire is free again: by its rate, not by what the device says.

use units::{BitsPerSecond, Bytes, Nanos};

/// Picoseconds in a nanosecond: a short packet on a fast wire takes a few nanoseconds.
pub(super) const PICOS: u64 = 1_000;
/// Bits of a byte, times picoseconds of a second.
const BYTE_SECOND: u64 = 8 * 1_000_000_000_000;

/// Time on the wire, in picoseconds, rounded up.
pub(super) fn time_of(bytes: Bytes, rate: BitsPerSecond) -> u64 {
    // A packet and what goes with it have at most some 2^17 bytes, and more than 2^20 are not
    // looked at together.
    (bytes.0.min(1 << 20) * BYTE_SECOND).div_ceil(rate.0.max(1))
}

/// What was handed out and is not on the wire yet; or what could have been, and was not.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// In picoseconds, at that time.
    ahead: u64,
    behind: u64,
    at: Nanos,
    /// Whether packets waited then, so that time which passes is missing.
    is_busy: bool,
}

impl Pace {
    pub(super) const fn new() -> Self {
        Self { ahead: 0, behind: 0, at: Nanos::ZERO, is_busy: false }
    }

    /// Hands out so much more.
    pub(super) fn add(&mut self, picos: u64) {
        let caught_up = self.behind.min(picos);
        self.behind -= caught_up;
        self.ahead = self.ahead.saturating_add(picos - caught_up);
    }

    /// Whether packets wait from now on: what is not sent although nothing waits is not missing.
    pub(super) const fn set_busy(&mut self, is_busy: bool) {
        self.is_busy = is_busy;
        if !is_busy {
            self.behind = 0;
        }
    }

    /// When there is no more than `most` ahead; `None`: now.
    /// Of time in which the wire stood still although packets waited, so much is caught up with.
    pub(super) fn wait(&mut self, now: Nanos, most: Nanos, behind: Nanos) -> Option<Nanos> {
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
    fn the_wire_is_free_when_what_was_handed_out_has_left() {
        let mut pace = Pace::new();
        let wait = |pace: &mut Pace, now, most| pace.wait(Nanos(now), Nanos(most), Nanos::ZERO);
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
    fn what_the_wire_missed_while_packets_waited_is_caught_up_with_and_no_more() {
        let mut pace = Pace::new();
        let wait = |pace: &mut Pace, now| pace.wait(Nanos(now), Nanos::ZERO, Nanos(20));
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
