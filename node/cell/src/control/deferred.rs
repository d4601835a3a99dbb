//! Commands for a service whose call is suspended: each waits until the call has ended, in order.
//!
//! A call ends after at most some milliseconds of its session's processor time, or is ended. Only
//! the removal of the service does not wait.

use crate::protocol::ToCell;
use rustix::fd::OwnedFd;
use std::collections::VecDeque;
use units::EntryId;

/// Command, with the descriptors that came with it.
pub(crate) type Command = (ToCell, Vec<OwnedFd>);

/// Condition that a command waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitCondition {
    /// Memory of the service free: no call is suspended.
    Unblocked,
    /// Packets counted before the service's last recount gone: none of them is in the cell.
    Recounted,
}

/// Queue of deferred commands.
#[derive(Debug, Default)]
pub(crate) struct Deferred {
    waiting: VecDeque<(EntryId, Command)>,
}

/// Returns the service whose memory a command needs, if it needs one, and the condition that it
/// waits for.
fn concerns(message: &ToCell) -> Option<(EntryId, WaitCondition)> {
    match message {
        ToCell::Replace(facts, _) => Some((facts.entry, WaitCondition::Unblocked)),
        ToCell::Target(entry, _) | ToCell::Recount(entry) | ToCell::Message(entry, _) => {
            Some((*entry, WaitCondition::Unblocked))
        }
        ToCell::Settle(entry) => Some((*entry, WaitCondition::Recounted)),
        _ => None,
    }
}

impl Deferred {
    /// Returns the command if it can run now. Queues one that has to wait, because of `must_wait`
    /// or of others queued for the same service.
    pub(crate) fn handle(
        &mut self,
        command: Command,
        must_wait: impl FnOnce(EntryId, WaitCondition) -> bool,
    ) -> Option<Command> {
        let Some((entry, until)) = concerns(&command.0) else { return Some(command) };
        if self.waiting.iter().any(|(waits, _)| *waits == entry) || must_wait(entry, until) {
            self.waiting.push_back((entry, command));
            return None;
        }
        Some(command)
    }

    /// Takes all deferred commands in order, each to be handled again.
    pub(crate) fn take(&mut self) -> impl Iterator<Item = Command> + use<> {
        std::mem::take(&mut self.waiting).into_iter().map(|(_, command)| command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(entry: u16, number: u8) -> Command {
        (ToCell::Message(EntryId(entry), vec![number]), Vec::new())
    }

    /// Returns entry and number of messages.
    fn numbers(commands: impl IntoIterator<Item = Command>) -> Vec<(u16, u8)> {
        let number = |(message, _)| match message {
            ToCell::Message(entry, bytes) => (entry.0, bytes[0]),
            other => panic!("{other:?}"),
        };
        commands.into_iter().map(number).collect()
    }

    #[test]
    fn commands_for_a_service_wait_in_their_order_and_others_do_not() {
        let mut deferred = Deferred::default();
        let is_blocked = |entry, _| entry == EntryId(1);
        assert!(deferred.handle(message(1, 1), is_blocked).is_none());
        assert!(deferred.handle(message(2, 2), is_blocked).is_some());
        // The call has ended, but another command is in front.
        assert!(deferred.handle(message(1, 3), |_, _| false).is_none());
        let again: Vec<Command> = deferred.take().collect();
        let run: Vec<Command> =
            again.into_iter().filter_map(|it| deferred.handle(it, |_, _| false)).collect();
        assert_eq!(numbers(run), [(1, 1), (1, 3)]);
        assert_eq!(deferred.take().count(), 0);
    }

    #[test]
    fn deferred_commands_stay_in_front_of_later_ones() {
        let mut deferred = Deferred::default();
        for number in [1, 2] {
            assert!(deferred.handle(message(1, number), |_, _| true).is_none());
        }
        let again: Vec<Command> = deferred.take().collect();
        let mut asked = 0;
        let run = again.into_iter().filter_map(|it| {
            deferred.handle(it, |_, _| {
                asked += 1;
                true
            })
        });
        assert_eq!((run.count(), asked), (0, 1), "the second waits behind the first");
        assert_eq!(numbers(deferred.take()), [(1, 1), (1, 2)]);
    }

    #[test]
    fn commands_without_a_services_memory_never_wait() {
        let mut deferred = Deferred::default();
        for message in [ToCell::Stop(EntryId(1)), ToCell::Report, ToCell::VersionKnown(EntryId(1))]
        {
            assert!(deferred.handle((message, Vec::new()), |_, _| true).is_some());
        }
        let until = |message: ToCell| {
            let mut until = None;
            Deferred::default().handle((message, Vec::new()), |_, why| {
                until = Some(why);
                true
            });
            until
        };
        assert_eq!(until(ToCell::Settle(EntryId(1))), Some(WaitCondition::Recounted));
        assert_eq!(until(ToCell::Recount(EntryId(1))), Some(WaitCondition::Unblocked));
    }
}
