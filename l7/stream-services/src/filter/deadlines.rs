//! Deadlines of connections: each kind has one duration, so that each is a FIFO queue.
//!
//! Deadlines of closed connections stay queued until they pass: the caller checks that the
//! connection still exists.

use std::collections::VecDeque;
use units::Nanos;

/// Kind of a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deadline {
    /// End of lingering for a client that only drains.
    Linger,
    /// Reset of a connection that waits for its bytes to be accepted.
    Reset,
    /// Flush of bytes that were held back.
    Flush,
    /// Idle check of a connection.
    Idle,
}

/// Queues of deadlines, by kind, each in order of time.
#[derive(Debug, Default)]
pub(super) struct Deadlines([VecDeque<(Nanos, u64)>; 4]);

impl Deadlines {
    /// Returns the earliest deadline.
    pub(super) fn poll_timeout(&self) -> Option<Nanos> {
        self.0.iter().filter_map(|queue| queue.front()).map(|(at, _)| *at).min()
    }

    /// Adds a deadline of connection `number`, which is not before the others of its kind.
    pub(super) fn push(&mut self, kind: Deadline, at: Nanos, number: u64) {
        self.0[kind as usize].push_back((at, number));
    }

    /// Pops a deadline that has passed; returns the number of its connection.
    pub(super) fn pop(&mut self, kind: Deadline, now: Nanos) -> Option<u64> {
        let due = self.0[kind as usize].pop_front_if(|(at, _)| *at <= now);
        due.map(|(_, number)| number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_of_a_kind_come_in_order_and_none_too_early() {
        let at = Nanos::from_millis;
        let mut deadlines = Deadlines::default();
        assert_eq!(deadlines.poll_timeout(), None);
        deadlines.push(Deadline::Idle, at(5), 1);
        deadlines.push(Deadline::Linger, at(3), 2);
        deadlines.push(Deadline::Linger, at(4), 1);
        assert_eq!(deadlines.poll_timeout(), Some(at(3)));
        assert_eq!(deadlines.pop(Deadline::Linger, at(2)), None);
        assert_eq!(deadlines.pop(Deadline::Linger, at(4)), Some(2));
        assert_eq!(deadlines.pop(Deadline::Linger, at(4)), Some(1));
        assert_eq!(deadlines.pop(Deadline::Linger, at(4)), None);
        assert_eq!(deadlines.poll_timeout(), Some(at(5)));
    }
}
