//! What the daemon wants of a service whose call stands still: it waits until the call has ended,
//! and in its order.
//!
//! A call ends after at most some milliseconds of its session's processor time, or is ended. Only
//! taking the service away does not wait.

use super::Cell;
use crate::protocol::ToCell;
use anyhow::Result;
use rustix::fd::OwnedFd;
use units::{CoarseInstant, EntryId};

/// One message, and what came with it.
pub(super) struct Parked {
    entry: EntryId,
    message: ToCell,
    fds: Vec<OwnedFd>,
}

/// The service whose memory a message is about, if it is about one.
fn concerns(message: &ToCell) -> Option<EntryId> {
    match message {
        ToCell::Replace(facts, _) => Some(facts.entry),
        ToCell::Target(entry, _)
        | ToCell::Recount(entry)
        | ToCell::Settle(entry)
        | ToCell::Message(entry, _) => Some(*entry),
        _ => None,
    }
}

impl Cell {
    /// Does what the daemon says, now or when it can be done.
    pub(super) fn hear(
        &mut self,
        message: ToCell,
        fds: Vec<OwnedFd>,
        now: CoarseInstant,
    ) -> Result<()> {
        if let ToCell::Settle(_) = message {
            // What is in rings is in queues then, or handled.
            self.receive_all(now);
        }
        match concerns(&message) {
            Some(entry) if self.has_to_wait(entry, &message) => {
                self.parked.push_back(Parked { entry, message, fds });
                Ok(())
            }
            _ => self.command(message, fds, now),
        }
    }

    /// A call stands still, or, where nothing of before is to be on its way any more, something
    /// of that waits in a queue.
    fn has_to_wait(&self, entry: EntryId, message: &ToCell) -> bool {
        if self.parked.iter().any(|parked| parked.entry == entry) {
            return true;
        }
        let service = self.services.get(entry);
        let Some(service) = service else { return false };
        match message {
            ToCell::Settle(_) => self.services.has_of_before(entry),
            _ => service.stands(),
        }
    }

    /// Does what can be done of what waits.
    pub(super) fn unpark(&mut self, now: CoarseInstant) -> Result<()> {
        for Parked { entry, message, fds } in std::mem::take(&mut self.parked) {
            // Those of its service that stay are in front of it again.
            if self.has_to_wait(entry, &message) {
                self.parked.push_back(Parked { entry, message, fds });
            } else {
                self.command(message, fds, now)?;
            }
        }
        Ok(())
    }
}
