//! Deadlines of connections: each kind lasts equally long for all of them, so that each is a queue.
//!
//! A connection that has gone stays in its queues until its times have come: who pops a number looks
//! whether it is still there.

use std::collections::VecDeque;
use units::Nanos;

/// Kind of a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deadline {
    /// A client that is only listened to has had its time.
    Linger,
    /// A connection that waits for what was sent to be taken is reset.
    Reset,
    /// Bytes that were kept back to go together with more are sent.
    Flush,
    /// A connection is checked for having been idle.
    Idle,
}

/// Queues of deadlines, by kind, each in order of time.
#[derive(Debug, Default)]
pub(super) struct Deadlines([VecDeque<(Nanos, u64)>; 4]);

impl Deadlines {
    /// Returns the earliest one.
    pub(super) fn poll_timeout(&self) -> Option<Nanos> {
        self.0.iter().filter_map(|queue| queue.front()).map(|(at, _)| *at).min()
    }

    /// Adds a deadline of the connection `number`, no earlier than those of its kind that are
    /// there.
    pub(super) fn push(&mut self, kind: Deadline, at: Nanos, number: u64) {
        self.0[kind as usize].push_back((at, number));
    }

    /// Takes a deadline whose time has come; returns the number of its connection.
    pub(super) fn pop(&mut self, kind: Deadline, now: Nanos) -> Option<u64> {
        let due = self.0[kind as usize].pop_front_if(|(at, _)| *at <= now);
        due.map(|(_, number)| number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_come_in_order_of_their_kind_and_none_too_early() {
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
