//! Sessions: what they use, and what the node has to give to them.

mod capacity;
mod history;
mod usage;

pub(crate) use history::LOOK_EVERY;
pub(crate) use usage::{Sessions, Usage};

use crate::daemon::Daemon;
use cell::protocol::ToCell;
use units::SessionId;

impl Daemon {
    /// The cell may give the number's part to others.
    pub(crate) fn forget_session(&mut self, session: SessionId) {
        self.sessions.forget(session);
        if let Ok(front) = self.plane.front_door() {
            front.clear_account(session.0);
        }
        self.cells.tell_all(&ToCell::ForgetSession(session), &[]);
    }
}
