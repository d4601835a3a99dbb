//! What is promised together, and when what was given up is free.
//!
//! ```text
//!  A: ├████─────┤ gives up half of what it has, in the middle of a period
//!          ▲    ▲
//!       change  settled: from here on B may have that half. Before, A may have used its
//!               slice already, and B's time would be missing for somebody else.
//! ```

use units::Nanos;

/// Promises in parts of a million of one processor or port.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    capacity: u64,
    promised: u64,
    /// Given up, but perhaps used until `settled`.
    leaving: u64,
    settled: Nanos,
}

impl Load {
    pub(crate) const fn new(capacity: u64) -> Self {
        Self { capacity, promised: 0, leaving: 0, settled: Nanos::ZERO }
    }

    /// Promises so much more; from when on it can be kept.
    pub(crate) fn join(&mut self, now: Nanos, parts: u64) -> Nanos {
        self.settle(now);
        self.promised = self.promised.saturating_add(parts);
        let fits = self.promised.saturating_add(self.leaving) <= self.capacity;
        if fits { now } else { self.settled.max(now) }
    }

    /// Gives so much up, which may have been used until `until`.
    pub(crate) fn leave(&mut self, now: Nanos, parts: u64, until: Nanos) {
        self.settle(now);
        self.promised = self.promised.saturating_sub(parts);
        if parts > 0 && until > now {
            self.leaving = self.leaving.saturating_add(parts);
            self.settled = self.settled.max(until);
        }
    }

    fn settle(&mut self, now: Nanos) {
        if now >= self.settled {
            self.leaving = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: fn(u64) -> Nanos = Nanos::from_millis;

    #[test]
    fn what_is_given_up_in_a_period_is_free_at_its_end() {
        let mut load = Load::new(900);
        assert_eq!(load.join(AT(0), 500), AT(0));
        assert_eq!(load.join(AT(0), 400), AT(0));
        load.leave(AT(1), 300, AT(4));
        assert_eq!(load.join(AT(2), 200), AT(4), "it may have been used");
        load.leave(AT(4), 200, AT(4));
        load.leave(AT(5), 0, AT(9));
        assert_eq!(load.join(AT(5), 300), AT(5), "nothing is leaving any more");
    }

    #[test]
    fn what_was_never_promised_can_be_had_at_once() {
        let mut load = Load::new(900);
        load.join(AT(0), 500);
        load.leave(AT(1), 500, AT(1_000));
        assert_eq!(load.join(AT(2), 400), AT(2));
        assert_eq!(load.join(AT(2), 1), AT(1_000));
    }
}
