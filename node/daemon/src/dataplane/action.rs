//! Actions of the data plane for other owners: events to report, messages to cells, moves, sweeps.
//!
//! The root does them in this order ([`super::DataPlane::poll_action`]).

use crate::events::Note;
use cell::protocol::ToCell;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::Duration;
use units::Name;

/// Effect of the data plane on other owners.
#[derive(Debug)]
pub(crate) enum Action {
    /// Report an event.
    Note(Note),
    /// Send all cells a message.
    Tell(ToCell),
    /// Send all cells a message that they cannot do without.
    Give(ToCell, Vec<OwnedFd>),
    /// Send the cell a queue of this port, which it has yet to bind.
    GiveQueue { port: Name, message: ToCell, fds: Vec<OwnedFd> },
    /// Send all cells the rules of this number, in sealed memory, and wait until they are used
    /// ([`super::DataPlane::await_rules`]).
    UseRules(u64, OwnedFd),
    /// Report a port that has come, at which no service can be at kernel level.
    NoKernelLevel,
    /// Call [`super::DataPlane::end_interceptions`] after this time.
    SweepAfter(Duration),
}

/// Actions that are pending, oldest first.
#[derive(Debug, Default)]
pub(super) struct Actions(VecDeque<Action>);

impl Actions {
    /// Adds an action.
    pub(super) fn push(&mut self, action: Action) {
        self.0.push_back(action);
    }

    /// Adds the report of an event.
    pub(super) fn note(&mut self, note: Note) {
        self.push(Action::Note(note));
    }

    /// Adds a message to all cells.
    pub(super) fn notify(&mut self, message: ToCell) {
        self.push(Action::Tell(message));
    }

    /// Removes and returns the oldest action.
    pub(super) fn pop(&mut self) -> Option<Action> {
        self.0.pop_front()
    }
}

#[cfg(test)]
impl Actions {
    /// Removes and returns all actions in words.
    pub(super) fn words(&mut self) -> Vec<String> {
        self.0.drain(..).map(|action| format!("{action:?}")).collect()
    }
}
