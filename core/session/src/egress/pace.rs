//! When a port's wire is free again: by its rate, not by what the device says.

use units::{BitsPerSecond, Bytes, Nanos};

/// Picoseconds in a nanosecond: a short packet on a fast wire takes a few nanoseconds.
pub(super) const PICOS: u64 = 1_000;
/// Bits of a byte, times picoseconds of a second.
const BYTE_SECOND: u64 = 8 * 1_000_000_000_000;

/// Time on the wire, in picoseconds, rounded up.
pub(super) fn time_of(bytes: Bytes, rate: BitsPerSecond) -> u64 {
    // A packet and what goes with it have at most some 2^17 bytes.
    (bytes.0.min(1 << 20) * BYTE_SECOND).div_ceil(rate.0.max(1))
}

/// What was handed out and is not on the wire yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// In picoseconds, at that time.
    ahead: u64,
    at: Nanos,
}

impl Pace {
    pub(super) const fn new() -> Self {
        Self { ahead: 0, at: Nanos::ZERO }
    }

    /// Hands out so much more.
    pub(super) fn add(&mut self, now: Nanos, picos: u64) {
        self.settle(now);
        self.ahead = self.ahead.saturating_add(picos);
    }

    /// When there is no more than `most` ahead; `None`: now.
    pub(super) fn wait(&mut self, now: Nanos, most: Nanos) -> Option<Nanos> {
        self.settle(now);
        let over = self.ahead.saturating_sub(most.0.saturating_mul(PICOS));
        (over > 0).then(|| now + Nanos(over.div_ceil(PICOS)))
    }

    fn settle(&mut self, now: Nanos) {
        let passed = now.saturating_sub(self.at).0.saturating_mul(PICOS);
        self.ahead = self.ahead.saturating_sub(passed);
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
        assert_eq!(pace.wait(Nanos(50), Nanos::ZERO), None);
        pace.add(Nanos(50), 2_500);
        assert_eq!(pace.wait(Nanos(50), Nanos::ZERO), Some(Nanos(53)));
        assert_eq!(pace.wait(Nanos(50), Nanos(2)), Some(Nanos(51)));
        assert_eq!(pace.wait(Nanos(53), Nanos::ZERO), None);
        pace.add(Nanos(40), 1_000);
        assert_eq!(pace.wait(Nanos(53), Nanos::ZERO), Some(Nanos(54)), "time never runs back");
    }
}
