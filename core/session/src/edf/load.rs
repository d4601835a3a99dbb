//! Load of all reservations of a processor or port, and the time at which released load becomes
//! free.
//!
//! ```text
//!  A: ├████─────┤ releases half of its share in the middle of a period
//!          ▲    ▲
//!       change  settled: from here on B may have that half. Earlier, A may have used its
//!               slice already, and B's time would be taken from a third reservation.
//! ```

use units::Nanos;

/// Sum of reservations, in parts per million of one processor or port.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    capacity: u64,
    reserved: u64,
    /// Released load that its former holder may use until `settled`.
    released: u64,
    settled: Nanos,
}

impl Load {
    pub(crate) const fn new(capacity: u64) -> Self {
        Self { capacity, reserved: 0, released: 0, settled: Nanos::ZERO }
    }

    /// Reserves `parts`; returns the time from which on the reservation can be kept.
    pub(crate) fn reserve(&mut self, now: Nanos, parts: u64) -> Nanos {
        self.settle(now);
        self.reserved = self.reserved.saturating_add(parts);
        let fits = self.reserved.saturating_add(self.released) <= self.capacity;
        if fits { now } else { self.settled.max(now) }
    }

    /// Releases `parts`, which their holder may have used in advance until `until`.
    pub(crate) fn release(&mut self, now: Nanos, parts: u64, until: Nanos) {
        self.settle(now);
        self.reserved = self.reserved.saturating_sub(parts);
        if parts > 0 && until > now {
            self.released = self.released.saturating_add(parts);
            self.settled = self.settled.max(until);
        }
    }

    fn settle(&mut self, now: Nanos) {
        if now >= self.settled {
            self.released = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: fn(u64) -> Nanos = Nanos::from_millis;

    #[test]
    fn load_released_within_a_period_is_free_at_its_end() {
        let mut load = Load::new(900);
        assert_eq!(load.reserve(AT(0), 500), AT(0));
        assert_eq!(load.reserve(AT(0), 400), AT(0));
        load.release(AT(1), 300, AT(4));
        assert_eq!(load.reserve(AT(2), 200), AT(4), "it may have been used");
        load.release(AT(4), 200, AT(4));
        load.release(AT(5), 0, AT(9));
        assert_eq!(load.reserve(AT(5), 300), AT(5), "no released load is in use any more");
    }

    #[test]
    fn load_that_was_never_reserved_is_free_at_once() {
        let mut load = Load::new(900);
        load.reserve(AT(0), 500);
        load.release(AT(1), 500, AT(1_000));
        assert_eq!(load.reserve(AT(2), 400), AT(2));
        assert_eq!(load.reserve(AT(2), 1), AT(1_000));
    }
}
