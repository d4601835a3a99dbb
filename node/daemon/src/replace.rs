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

use crate::below::{Begin, Shared};
use crate::daemon::{Daemon, Done};
use abi::Level;
use anyhow::Context;
use cell::Compiled;
use cell::protocol::{Failure, ServiceFacts, StateWay, ToCell};
use node::Event;
use std::os::fd::AsFd;
use std::sync::Arc;
use units::EntryId;

/// A new version that the cell was given.
pub(crate) struct Replacing {
    pub(crate) levels: Vec<Level>,
    pub(crate) programs: Arc<Compiled>,
    pub(crate) shared: Option<Shared>,
}

/// In the words that the cell understands.
pub(crate) const fn way_of(way: node::StateWay) -> StateWay {
    match way {
        node::StateWay::Memory => StateWay::Memory,
        node::StateWay::Hooks => StateWay::Hooks,
        node::StateWay::Empty => StateWay::Empty,
    }
}

impl Daemon {
    /// The code of a new version is there.
    pub(crate) fn replace_in_cell(
        &mut self,
        mut facts: ServiceFacts,
        levels: Vec<abi::Level>,
        way: StateWay,
        compiled: &Arc<Compiled>,
    ) {
        let entry = facts.entry;
        match self.try_replace(&mut facts, way, compiled) {
            Ok(shared) => {
                let programs = Arc::clone(compiled);
                self.replacing.insert(entry, Replacing { levels, programs, shared });
            }
            Err(error) => {
                self.event_later(Event::ReplaceFailed { entry, reason: format!("{error:#}") });
            }
        }
    }

    fn try_replace(
        &mut self,
        facts: &mut ServiceFacts,
        way: StateWay,
        compiled: &Arc<Compiled>,
    ) -> anyhow::Result<Option<Shared>> {
        let second = self.shared.get(&facts.entry).is_some_and(|shared| !shared.is_second());
        let made = self
            .make_shared(facts.entry, facts.window, compiled, second)
            .map_err(anyhow::Error::msg)
            .context("making the memory that it shares with the kernel")?;
        let (shared, known) = made.unzip();
        facts.shared = known;
        facts.kept.code = compiled.code_length();
        let mut fds = vec![compiled.code.as_fd()];
        fds.extend(shared.iter().flat_map(Shared::fds));
        self.cells.send(facts.entry, &ToCell::Replace(Box::new(facts.clone()), way), &fds)?;
        Ok(shared)
    }

    /// The new version runs, at user level; nobody is below.
    pub(crate) fn replaced(&mut self, entry: EntryId, paused_us: u64) {
        let Some(Replacing { levels, programs, shared }) = self.replacing.remove(&entry) else {
            return;
        };
        let Some(service) = self.node.service_of(entry).map(|service| service.name.clone()) else {
            return;
        };
        self.leave_level(entry);
        self.cells.tell(entry, &ToCell::VersionKnown(entry));
        self.refuse_movers(&service, &format!("the service '{service}' was replaced"));
        let old = self.shared.remove(&entry);
        let had_lane = old.is_some();
        if let Some(old) = &old {
            self.clear_programs(entry, old);
        }
        self.retired.insert(entry, old);
        if let Some(waiting) = self.waiting.get_mut(&service) {
            waiting.paused_us = paused_us;
        }
        self.event(Event::ServiceReplaced { entry });
        let has_lane = shared.is_some();
        if let Some(shared) = shared {
            self.shared.insert(entry, shared);
        }
        self.call_loaded(entry);
        self.keep_below(entry);
        self.beginning.insert(entry, Begin { levels, programs, refused: Vec::new() });
        self.go_by(entry, had_lane, has_lane);
    }

    /// Lets packets of a service that changed its version take its lane, or no longer; then it
    /// goes to its level.
    fn go_by(&mut self, entry: EntryId, had_lane: bool, has_lane: bool) {
        if has_lane && !had_lane {
            // What came by no lane is not counted: the lane waits until that is gone.
            let reason = "it is about to go to its level".to_owned();
            self.event(Event::ServicePlaced { entry, level: Level::User, reason, movable: true });
            self.settling.insert(entry);
            return self.cells.tell(entry, &ToCell::Recount(entry));
        }
        self.begin(entry);
        if had_lane && !has_lane {
            self.clear_lane_later(entry);
        }
    }

    /// The cell goes on with the old version: the new one did not start.
    pub(crate) fn replace_failed(&mut self, entry: EntryId, failure: Failure) {
        if self.replacing.remove(&entry).is_some() {
            let Failure { reason, is_short } = failure;
            self.refused_as(is_short, Event::ReplaceFailed { entry, reason });
        }
    }

    /// The old version is not wanted any more.
    pub(crate) fn version_kept(&mut self, entry: EntryId) {
        if let Some(Some(old)) = self.retired.remove(&entry) {
            self.keep_spare(entry, old);
        }
        self.kept.insert(entry);
    }

    /// Tells of versions that are kept, when they are where they are to run: a daemon that is
    /// late hears that at once with their start.
    pub(crate) fn tell_kept(&mut self) {
        let is_there = |entry: &EntryId| {
            !self.beginning.contains_key(entry)
                && !self.loading.contains_key(entry)
                && !self.moves.contains_key(entry)
                && !self.settling.contains(entry)
        };
        let there: Vec<EntryId> = self.kept.iter().copied().filter(is_there).collect();
        for entry in there {
            self.kept.remove(&entry);
            self.event(Event::ServiceKept { entry });
        }
    }

    /// The old version runs again, at user level; nobody is below.
    pub(crate) fn put_back(&mut self, entry: EntryId, reason: String) {
        let Some(old) = self.retired.remove(&entry) else { return };
        self.leave_level(entry);
        self.cells.tell(entry, &ToCell::VersionKnown(entry));
        if let Some(service) = self.node.service_of(entry).map(|service| service.name.clone()) {
            self.refuse_movers(&service, &format!("the version before of '{service}' is back"));
        }
        let new = self.shared.remove(&entry);
        let had_lane = new.is_some();
        if let Some(new) = &new {
            self.clear_programs(entry, new);
        }
        self.event(Event::ServicePutBack { entry, reason });
        let Some(old) = old else {
            self.keep_below(entry);
            let reason = "the version before is back".to_owned();
            self.event(Event::ServicePlaced { entry, level: Level::User, reason, movable: false });
            return self.clear_lane_later(entry);
        };
        for level in old.levels() {
            if let Err(error) = self.set_program(entry, level, &old) {
                tracing::error!(%entry, %level, %error, "a program was not put back");
            }
        }
        self.shared.insert(entry, old);
        self.keep_below(entry);
        let (level, reason) = (Level::User, "the version before is back".to_owned());
        self.event(Event::ServicePlaced { entry, level, reason, movable: true });
        match self.node.levels_of(entry).first() {
            Some(&level) if had_lane && level != Level::User => self.move_service(entry, level),
            // What came by no lane is not counted: it stays at user level until that is gone.
            _ if !had_lane => self.cells.tell(entry, &ToCell::Recount(entry)),
            _ => {}
        }
    }

    /// A service is not on its way anywhere any more.
    fn leave_level(&mut self, entry: EntryId) {
        self.beginning.remove(&entry);
        self.moves.remove(&entry);
        self.loading.remove(&entry);
        self.settling.remove(&entry);
    }

    /// Nothing of a replacement is under way any more: its service goes.
    pub(crate) fn forget_replacement(&mut self, entry: EntryId) {
        self.replacing.remove(&entry);
        self.retired.remove(&entry);
        self.settling.remove(&entry);
        self.kept.remove(&entry);
    }

    /// No rule leads to the entry's lane any more: it begins anew when no packet is on its way.
    fn clear_lane_later(&self, entry: EntryId) {
        let done = self.done.clone();
        tokio::task::spawn_blocking(move || {
            if let Err(error) = bpf::front_door::wait_for_packets_in_flight() {
                tracing::error!(%error, "packets in flight were not waited for");
            }
            // The daemon is gone when nobody receives: nothing is left to do.
            let _ = done.send(Done::LaneUnused(entry));
        });
    }

    pub(crate) fn lane_unused(&mut self, entry: EntryId) {
        if self.shared.contains_key(&entry) {
            return;
        }
        self.begin_meter_below(entry);
        self.clear_counters(entry);
    }
}
