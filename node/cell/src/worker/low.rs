//! Sessions that have little memory left, and queues that are watched: their services are told, in
//! their session's turns.

use super::Cell;
use crate::protocol::{Failure, FromCell};
use crate::service::Control;
use anyhow::Result;
use session::memory::Short;
use units::{CoarseInstant, EntryId, SessionId};

/// Why a service does not start, for the daemon.
pub(super) fn failure(error: &anyhow::Error) -> Failure {
    let is_short = error.chain().any(|cause| cause.is::<Short>());
    Failure { reason: error.to_string(), is_short }
}

impl Cell {
    /// Tells those that are to be told.
    pub(super) fn tell_low(&mut self, now: CoarseInstant) {
        while let Some(low) = self.accounts.poll_low() {
            for entry in self.services.of_session(low.session) {
                self.ask(entry, Control::MemoryLow(low), now);
            }
        }
    }

    /// Tells those who watch what happened to their session's queue.
    pub(super) fn tell_queues(&mut self, now: CoarseInstant) {
        while let Some((entry, event)) = self.sessions.poll_event() {
            self.ask(entry, Control::Queue(event), now);
        }
    }

    /// A service may want to be told of another queue, or of none.
    pub(super) fn settle_watch(&mut self, entry: EntryId) {
        let Some(service) = self.services.get_mut(entry) else { return };
        let session = service.facts.session;
        if let Some((before, watch)) = service.take_watch() {
            self.sessions.watch(entry, before, watch.map(|watch| (session, watch)));
        }
    }

    /// Tells the daemon what of memory is in use, and by this session.
    pub(super) fn tell_memory(&mut self, session: Option<SessionId>) -> Result<()> {
        let account = session.map(|id| (id, Box::new(self.accounts.account(id))));
        self.link.send(&FromCell::MemoryOf(self.accounts.rest(), account))
    }
}
