//! Messages between modules, each of which is counted once for each receiver: delivered or dropped.
//!
//! A message passes two queues and waits for a lane. It can end in any of them: the service is
//! removed or replaced, its instance traps or is being started. In each case the [`PendingMessage`] is
//! dropped, which counts it.

use std::cell::Cell;
use std::rc::Rc;

/// Outcomes of messages, of all services of a cell.
#[derive(Debug, Default)]
pub(crate) struct MessageCounts {
    /// Messages delivered to at least one lane of their receiver.
    pub(crate) delivered: Cell<u64>,
    /// Messages delivered to none.
    pub(crate) dropped: Cell<u64>,
}

/// Message under way to one receiver.
#[derive(Debug)]
pub(crate) struct PendingMessage {
    bytes: Rc<[u8]>,
    /// Counters; `None` for a message of the daemon, which gets the answers instead.
    counts: Option<Rc<MessageCounts>>,
}

impl PendingMessage {
    /// Creates a message of another module.
    pub(crate) fn of_module(bytes: Rc<[u8]>, counts: &Rc<MessageCounts>) -> Self {
        Self { bytes, counts: Some(Rc::clone(counts)) }
    }

    /// Creates a message of the daemon.
    pub(crate) const fn of_daemon(bytes: Rc<[u8]>) -> Self {
        Self { bytes, counts: None }
    }

    /// Returns true if the daemon waits for the answers.
    pub(crate) const fn is_of_daemon(&self) -> bool {
        self.counts.is_none()
    }

    /// Counts the message as delivered, once.
    pub(crate) fn delivered(&mut self) {
        if let Some(counts) = self.counts.take() {
            counts.delivered.set(counts.delivered.get() + 1);
        }
    }

    /// Returns the payload.
    pub(crate) fn bytes(&self) -> Rc<[u8]> {
        Rc::clone(&self.bytes)
    }
}

impl Drop for PendingMessage {
    fn drop(&mut self) {
        if let Some(counts) = self.counts.take() {
            counts.dropped.set(counts.dropped.get() + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_message_of_a_module_is_counted_once_wherever_it_ends_and_the_daemons_never() {
        let counts = Rc::new(MessageCounts::default());
        let message = || PendingMessage::of_module([1, 2].into(), &counts);
        let mut delivered = message();
        delivered.delivered();
        delivered.delivered();
        drop((delivered, message(), vec![message()], PendingMessage::of_daemon([3].into())));
        assert_eq!((counts.delivered.get(), counts.dropped.get()), (1, 2));
    }
}
