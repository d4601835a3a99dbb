//! Meter of the rate at which a client takes its data.

use crate::limits::{METER_PERIOD, METER_TIME_MAX};
use units::Nanos;

/// Meter that measures while the kernel's send buffer is full: only then the link determines the
/// rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Meter {
    /// Start of the measuring period: the buffer was full.
    since: Option<Nanos>,
    /// Bytes that the kernel has accepted since.
    bytes: u64,
    bytes_per_second: Option<u64>,
}

impl Meter {
    /// Handles bytes that the kernel has accepted.
    pub(crate) const fn handle_sent(&mut self, count: usize) {
        self.bytes = self.bytes.saturating_add(count as u64);
    }

    /// Handles that the kernel accepts no more for now.
    pub(crate) fn handle_full(&mut self, now: Nanos) {
        let elapsed = self.since.map(|since| now.saturating_sub(since));
        match elapsed {
            Some(elapsed) if elapsed < METER_PERIOD => return,
            Some(elapsed) if elapsed <= METER_TIME_MAX => {
                let rate = u128::from(self.bytes) * 1_000_000_000 / u128::from(elapsed.0.max(1));
                self.bytes_per_second = Some(u64::try_from(rate).unwrap_or(u64::MAX));
            }
            _ => self.bytes_per_second = None,
        }
        (self.since, self.bytes) = (Some(now), 0);
    }

    /// Returns the recent rate, if known.
    pub(crate) fn bytes_per_second(&self, now: Nanos) -> Option<u64> {
        let since = self.since.filter(|since| now.saturating_sub(*since) <= METER_TIME_MAX);
        since.and(self.bytes_per_second)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_known_while_the_link_is_full_and_for_a_while_after() {
        let at = Nanos::from_millis;
        let mut meter = Meter::default();
        meter.handle_sent(1_000_000);
        assert_eq!(meter.bytes_per_second(at(1)), None, "the kernel's buffers say nothing");
        meter.handle_full(at(1_000));
        meter.handle_sent(30_000);
        meter.handle_full(at(1_010));
        assert_eq!(meter.bytes_per_second(at(1_010)), None, "too early");
        meter.handle_sent(20_000);
        meter.handle_full(at(1_500));
        assert_eq!(meter.bytes_per_second(at(1_500)), Some(100_000));
        assert_eq!(meter.bytes_per_second(at(5_500)), Some(100_000));
        assert_eq!(meter.bytes_per_second(at(5_501)), None, "long ago");
        // After a pause a new period begins.
        meter.handle_sent(10);
        meter.handle_full(at(60_000));
        assert_eq!(meter.bytes_per_second(at(60_000)), None);
    }
}
