//! New versions of services that run.
//!
//! ```text
//!  ReplaceService ─▶ compile ─▶ Replace ─▶ cell ─┬─ Replaced ─▶ to its level ── Kept ─▶ the old one's
//!                                                │                  │           memory goes
//!                                                ▼                  ▼ PutBack
//!                                          ReplaceFailed      the old one's programs again
//! ```
//!
//! The new version begins at user level and goes down as after a start. Its memory is another
//! one, at another address, so that the old one's is untouched until nobody can want it back.

use crate::control::placement::Candidates;
use crate::daemon::Daemon;
use anyhow::Context;
use cell::Compiled;
use cell::protocol::{ServiceFacts, StateWay, ToCell};
use node::Event;
use std::os::fd::AsFd;
use std::sync::Arc;

/// Converts a path of state to the cell's type.
pub(crate) const fn way_of(way: node::StateWay) -> StateWay {
    match way {
        node::StateWay::Memory => StateWay::Memory,
        node::StateWay::Hooks => StateWay::Hooks,
        node::StateWay::Empty => StateWay::Empty,
    }
}

impl Daemon {
    /// Sends the cell a new version whose code is compiled.
    pub(crate) fn replace_in_cell(
        &mut self,
        facts: ServiceFacts,
        levels: Vec<abi::Level>,
        way: StateWay,
        compiled: &Arc<Compiled>,
    ) {
        let entry = facts.entry;
        match self.try_replace(facts, way, compiled) {
            Ok(()) => {
                let candidates = Candidates { levels, unfit: compiled.refused() };
                self.place(|it, _| it.handle_version_given(entry, candidates));
            }
            Err(error) => {
                self.plane.services().forget_next(entry);
                self.event_later(Event::ReplaceFailed { entry, reason: format!("{error:#}") });
            }
        }
    }

    fn try_replace(
        &mut self,
        mut facts: ServiceFacts,
        way: StateWay,
        compiled: &Arc<Compiled>,
    ) -> anyhow::Result<()> {
        let entry = facts.entry;
        let make = self.make_for(&facts, compiled);
        let made = self.plane.services().share_next(make);
        facts.shared = made
            .map_err(anyhow::Error::msg)
            .context("making the memory that it shares with the kernel")?;
        facts.kept.code = compiled.code_length();
        let mut fds = vec![compiled.code.as_fd()];
        fds.extend(self.plane.instances().next_fds(entry));
        self.cells.send(entry, &ToCell::Replace(Box::new(facts), way), &fds)
    }
}
