//! Messages that modules send to those before them in their graphs: a bounded queue, and counters
//! of their outcomes.

use crate::protocol::CellReport;
use crate::service::message::{MessageCounts, PendingMessage};
use std::collections::VecDeque;
use std::rc::Rc;
use units::EntryId;

/// Messages that may wait: one batch of 64 packets with the four that each call may send.
pub(crate) const WAITING_MAX: usize = 4 * 64;

/// Queue of messages between modules, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    waiting: VecDeque<(EntryId, Vec<u8>)>,
    counts: Rc<MessageCounts>,
    /// Messages for which there was no receiver.
    unheard: u64,
}

impl Mailbox {
    /// Returns the number of waiting messages.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Adds the outcomes of messages to a report.
    pub(crate) fn report(&self, report: &mut CellReport) {
        report.messages_delivered = self.counts.delivered.get();
        report.messages_dropped = self.counts.dropped.get();
        report.messages_unheard = self.unheard;
    }

    /// Queues messages with their senders, up to the limit; counts the others as dropped.
    pub(crate) fn handle_sent(&mut self, messages: Vec<(EntryId, Vec<u8>)>) {
        let room = WAITING_MAX - self.waiting.len();
        let left_out = messages.len().saturating_sub(room) as u64;
        self.counts.dropped.set(self.counts.dropped.get() + left_out);
        self.waiting.extend(messages.into_iter().take(room));
    }

    /// Returns the oldest message, once for each receiver: the services that `before` returns for
    /// its sender. `None` if no message waits.
    pub(crate) fn poll_letter(
        &mut self,
        before: impl FnOnce(EntryId) -> Vec<EntryId>,
    ) -> Option<Vec<(EntryId, PendingMessage)>> {
        let (from, message) = self.waiting.pop_front()?;
        let receivers = before(from);
        self.unheard += u64::from(receivers.is_empty());
        let message: Rc<[u8]> = message.into();
        let message = |to| (to, PendingMessage::of_module(Rc::clone(&message), &self.counts));
        Some(receivers.into_iter().map(message).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(mailbox: &Mailbox) -> (u64, u64, u64) {
        let mut report = CellReport::default();
        mailbox.report(&mut report);
        (report.messages_delivered, report.messages_dropped, report.messages_unheard)
    }

    #[test]
    fn each_message_goes_to_all_before_its_sender_in_order_and_is_counted_for_each() {
        let mut mailbox = Mailbox::default();
        mailbox.handle_sent(vec![(EntryId(1), vec![1]), (EntryId(2), vec![2])]);
        let mut first = mailbox.poll_letter(|from| {
            assert_eq!(from, EntryId(1));
            vec![EntryId(7), EntryId(8)]
        });
        let letters = first.as_mut().unwrap();
        assert_eq!(letters.iter().map(|(to, _)| to.0).collect::<Vec<_>>(), [7, 8]);
        assert!(letters.iter().all(|(_, message)| *message.bytes() == [1]));
        letters[0].1.delivered();
        drop(first);
        assert_eq!(report(&mailbox), (1, 1, 0));
        assert!(mailbox.poll_letter(|_| Vec::new()).is_some_and(|letters| letters.is_empty()));
        assert_eq!(report(&mailbox), (1, 1, 1));
        assert!(mailbox.poll_letter(|_| unreachable!()).is_none());
    }

    #[test]
    fn a_storm_of_messages_is_cut_and_counted() {
        let mut mailbox = Mailbox::default();
        let storm = |count| (0..count).map(|_| (EntryId(1), Vec::new())).collect();
        mailbox.handle_sent(storm(WAITING_MAX - 1));
        mailbox.handle_sent(storm(3));
        assert_eq!((mailbox.waiting(), report(&mailbox)), (WAITING_MAX, (0, 2, 0)));
    }
}
