//! Sessions that have little memory left: each of their services is told, in its session's turns.

use super::Cell;
use crate::protocol::{Failure, FromCell};
use crate::service::Control;
use anyhow::Result;
use session::memory::Short;
use units::{EntryId, SessionId};

/// Why a service does not start, for the daemon.
pub(super) fn failure(error: &anyhow::Error) -> Failure {
    let is_short = error.chain().any(|cause| cause.is::<Short>());
    Failure { reason: error.to_string(), is_short }
}

impl Cell {
    /// Tells those that are to be told.
    pub(super) fn tell_low(&mut self, now_ms: u64) {
        while let Some(low) = self.accounts.poll_low() {
            let services = self.services.iter().flatten();
            let of_it = services.filter(|service| service.facts.session == low.session);
            let entries: Vec<EntryId> = of_it.map(|service| service.facts.entry).collect();
            for entry in entries {
                self.ask(entry, Control::MemoryLow(low), now_ms);
            }
        }
    }

    /// Tells the daemon what of memory is in use, and by this session.
    pub(super) fn tell_memory(&mut self, session: Option<SessionId>) -> Result<()> {
        let account = session.map(|id| (id, Box::new(self.accounts.account(id))));
        self.tell(&FromCell::MemoryOf(self.accounts.rest(), account))
    }
}
