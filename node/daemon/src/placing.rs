//! Routing of the placement's actions.

use crate::control::placement::{Action, Around, Placement};
use crate::daemon::{Daemon, Done};
use crate::dataplane::instances::{Loaded, word_of};
use abi::Level;
use cell::Compiled;
use cell::protocol::ToCell;
use module_store::Digest;
use std::sync::Arc;
use units::EntryId;

impl Daemon {
    /// Calls the placement, and does the actions that follow.
    pub(crate) fn place(&mut self, ask: impl FnOnce(&mut Placement, &mut Around<'_>)) {
        self.placing(ask);
        self.do_placements();
    }

    /// Does the actions of the placement that are pending.
    pub(crate) fn do_placements(&mut self) {
        while let Some(action) = self.placement.poll_action() {
            self.do_placement(action);
        }
    }

    fn placing<T>(&mut self, ask: impl FnOnce(&mut Placement, &mut Around<'_>) -> T) -> T {
        let (now, has_cell) = (self.now(), self.cells.is_any());
        let around =
            &mut Around { now, node: self.control.node(), plane: &mut self.plane, has_cell };
        ask(&mut self.placement, around)
    }

    fn do_placement(&mut self, action: Action) {
        match action {
            Action::Event(event) => self.event(event),
            Action::Refuse { is_short, event } => self.control.handle_event(event, is_short),
            Action::Target(entry, level) => {
                self.cells.tell(entry, &ToCell::Target(entry, word_of(level)));
            }
            Action::Recount(entry) => self.cells.tell(entry, &ToCell::Recount(entry)),
            Action::VersionKnown(entry) => self.cells.tell(entry, &ToCell::VersionKnown(entry)),
            Action::Load(entry, level) => self.load(entry, level),
            Action::ClearLane(entry) => self.wait_for_packets(Done::LaneUnused(entry), true),
            Action::Spare(number) => self.when_packets_have_landed(Done::SpareReady(number)),
            Action::RefuseMovers(service, message) => {
                self.control.refuse_movers(&service, &message);
            }
            Action::Paused(service, paused_us) => {
                self.control.handle_paused(&service, paused_us);
            }
            Action::Begin(entry) => self.place(|it, around| it.handle_begin(around, entry)),
            Action::Resume { entry, had_lane } => {
                self.place(|it, around| it.handle_resume(around, entry, had_lane));
            }
            Action::Left(entry) => self.control.handle_drained(entry),
        }
    }

    /// Loads a service's program for a level. The verifier may take seconds over it,
    /// and the daemon goes on meanwhile.
    fn load(&mut self, entry: EntryId, level: Level) {
        if level == Level::Kernel {
            // Before the first packet comes there.
            self.settle_gro(None);
        }
        let code = self.code_of(entry);
        match self.plane.loader(entry, level, code) {
            Ok(load) => {
                let done = self.done.clone();
                tokio::task::spawn_blocking(move || {
                    // The daemon is gone when nobody receives: nothing is left to do.
                    let _ = done.send(Done::Loaded(Box::new(load())));
                });
            }
            Err(reason) => {
                self.place(|it, around| it.handle_loaded(around, entry, level, Err(reason)));
            }
        }
    }

    /// Returns the code of a service's module, if it is compiled for the present settings.
    fn code_of(&self, entry: EntryId) -> Option<Arc<Compiled>> {
        let digest: Digest = self.control.node().service_of(entry)?.module.digest.parse().ok()?;
        let bpf = self.control.state().bpf_now();
        self.control.modules().code(&digest, bpf).cloned()
    }

    /// Continues with a program that the kernel has accepted or refused.
    pub(crate) fn loaded(&mut self, loaded: Loaded) {
        let (entry, level) = (loaded.entry, loaded.level);
        let result = self.plane.services().handle_loaded(loaded);
        if let Some(result) = result {
            self.place(|it, around| it.handle_loaded(around, entry, level, result));
        }
    }

    /// Drains a service; one that cannot be drained is removed at once.
    pub(crate) fn drain(&mut self, entry: EntryId) {
        let has_cell = self.cells.has_cell_of(entry);
        match has_cell && self.placing(|it, around| it.leave(around, entry)) {
            true => self.do_placements(),
            false => self.control.handle_drained(entry),
        }
    }

    /// Cancels the draining of a service whose removal was refused.
    pub(crate) fn cancel_drain(&mut self, entry: EntryId) {
        let node = self.control.node();
        let Some(found) = node.service_of(entry) else { return };
        let (level, closed) = (found.level, node.is_closed(found));
        self.place(|it, around| it.come_back(around, entry, level, closed));
    }

    /// Moves a service of an adopted cell to the level that the node says it is at.
    pub(crate) fn stay(&mut self, entry: EntryId, cell_has: u32) {
        let level = self.control.node().service_of(entry).map(|service| service.level);
        let is_elsewhere = level.is_some_and(|level| word_of(level) != cell_has);
        if is_elsewhere && !self.placement.is_moved(entry) {
            self.place(|it, around| it.handle_stray(around, entry));
        }
    }

    /// Releases a service that has ended: meters, placement, instance.
    pub(crate) fn end_below(&mut self, entry: EntryId) {
        let (billing, counters) = self.counters();
        billing.end_service(&counters, entry);
        self.place(|it, around| it.forget(around, entry));
        let Some(ended) = self.plane.services().end(entry) else { return };
        if let Some(session) = ended.session {
            *self.fuel_closed.entry(session).or_default() += ended.fuel;
        }
        if ended.was_at_kernel {
            self.settle_gro(Some(entry));
        }
        if let Some(number) = ended.spare {
            self.when_packets_have_landed(Done::SpareReady(number));
        }
    }

    /// Sets GRO at the ports. It is on while there are services of streams, for it saves most of
    /// the cost of receiving intercepted connections, and off while a service is at kernel level,
    /// which has to see each frame by itself. `but` is the entry of a service that has ended.
    pub(crate) fn settle_gro(&mut self, but: Option<EntryId>) {
        self.plane.settle_gro(self.control.node(), &self.placement, but);
    }

    /// Marks a reusable instance as ready.
    pub(crate) fn spare_ready(&mut self, number: u32) {
        let entry = self.plane.services().handle_spare_ready(number);
        // What its last packets counted is nobody's.
        if let Some(entry) = entry.filter(|entry| self.control.node().service_of(*entry).is_none())
        {
            self.clear_counters(entry);
        }
    }

    /// Clears the counters of an entry. What was dropped there because its service is closed and
    /// its program gone stays counted.
    pub(crate) fn clear_counters(&mut self, entry: EntryId) {
        self.plane.services().clear_counters(entry);
    }

    /// Sends a completion when no packet is left in the front door and programs of now; nothing if
    /// that cannot be known.
    pub(crate) fn when_packets_have_landed(&self, then: Done) {
        self.wait_for_packets(then, false);
    }

    /// Sends a completion when no packet is left in the front door and programs of now, and, if it
    /// `must` come, also when that cannot be known.
    fn wait_for_packets(&self, then: Done, must: bool) {
        let done = self.done.clone();
        tokio::task::spawn_blocking(move || {
            let waited = bpf::front_door::wait_for_packets_in_flight();
            if let Err(error) = &waited {
                tracing::error!(%error, "packets in flight were not waited for");
            }
            if waited.is_ok() || must {
                // The daemon is gone when nobody receives: nothing is left to do.
                let _ = done.send(then);
            }
        });
    }

    /// Clears the counters of an unused lane.
    pub(crate) fn lane_unused(&mut self, entry: EntryId) {
        if self.plane.instances().is_shared(entry) {
            return;
        }
        let (billing, counters) = self.counters();
        billing.begin_below(&counters, entry);
        self.clear_counters(entry);
    }
}
