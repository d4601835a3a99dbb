//! Changes of what services run on below user level: instances, programs, counters, budgets.

use super::budgets::{self, Budgets};
use super::door::Door;
use super::instances::{self, Ended, Instances, Loaded, Make};
use anyhow::Result;
use bpf_maps::OVER_NOT;
use cell::protocol::ArenaSpec;
use node::{Node, Service};
use units::{EntryId, Nanos};

/// Instances of services, and the front door that calls their programs.
pub(crate) struct Services<'a> {
    pub(super) instances: &'a mut Instances,
    pub(super) budgets: &'a mut Budgets,
    pub(super) front: &'a Door,
    /// Packets that died with cells, or of closed services without a program.
    pub(super) lost_with_cells: &'a mut u64,
}

impl Services<'_> {
    /// Makes the instance of a service that starts; it is to be kept
    /// ([`super::DataPlane::keep_instance`]). Returns `None` of one that cannot leave user level.
    ///
    /// # Errors
    /// The kernel does not make it.
    pub(crate) fn share(&mut self, make: Make<'_>) -> Result<Option<ArenaSpec>, String> {
        self.instances.share(self.front, make)
    }

    /// Makes the instance of a service's next version.
    ///
    /// # Errors
    /// The kernel does not make it.
    pub(crate) fn share_next(&mut self, make: Make<'_>) -> Result<Option<ArenaSpec>, String> {
        self.instances.share_next(make)
    }

    /// Adds the next version of a service of streams, which has no memory to share.
    pub(crate) fn begin_next(&mut self, entry: EntryId) {
        self.instances.begin_next(entry);
    }

    /// Releases the next version of a service.
    pub(crate) fn forget_next(&mut self, entry: EntryId) {
        self.instances.forget_next(entry);
    }

    /// Adopts the instance that a previous daemon made for a service, whose module is `wasm`.
    ///
    /// # Errors
    /// The instance cannot be opened.
    pub(crate) fn adopt_instance(&mut self, service: &Service, wasm: Vec<u8>) -> Result<()> {
        if self.instances.adopt(self.front, service, wasm)?
            && let Some(lane) = self.front.lane(service.entry)
        {
            // The daemon before may have died while it held the lane.
            lane.set_held(false);
        }
        Ok(())
    }

    /// Makes the front door call a program that the kernel has accepted. Returns `None` if it is no
    /// longer this service's, else the reason for which it is not called.
    pub(crate) fn handle_loaded(&mut self, loaded: Loaded) -> Option<Result<(), String>> {
        self.instances.handle_loaded(self.front, loaded)
    }

    /// Releases the budget and the instance of a service that has ended. Returns `None` of one that
    /// could not leave user level.
    pub(crate) fn end(&mut self, entry: EntryId) -> Option<Ended> {
        if self.budgets.end(entry) {
            self.set_over(entry, OVER_NOT);
        }
        let ended = self.instances.end(self.front, entry)?;
        *self.lost_with_cells += ended.dropped;
        Some(ended)
    }

    /// Releases the next and the previous versions of all services: their cell is lost.
    pub(crate) fn forget_versions(&mut self) {
        self.instances.forget_versions();
    }

    /// Marks a reusable instance as ready: no packet is in its programs. Returns the entry whose
    /// counters it still has.
    pub(crate) fn handle_spare_ready(&mut self, number: u32) -> Option<EntryId> {
        self.instances.handle_spare_ready(number)
    }

    /// Releases all reusable instances.
    pub(crate) fn clear_spares(&mut self) {
        self.instances.clear_spares();
    }

    /// Clears the counters of an entry. What was dropped there because its service is closed and
    /// its program gone stays counted.
    pub(crate) fn clear_counters(&mut self, entry: EntryId) {
        *self.lost_with_cells += instances::take_counters(self.front, entry);
    }

    /// Makes the front door stop calling the programs of an entry, and discards its counters.
    pub(crate) fn clear_entry(&mut self, entry: EntryId) {
        instances::clear_entry(self.front, entry);
        self.clear_counters(entry);
    }

    /// Compares the usage of services with their budgets, and marks exhausted ones in the front
    /// door.
    pub(crate) fn poll_budgets(&mut self, node: &Node, now: Nanos) {
        let used = |service: &Service| {
            let below = self.instances.report(self.front, service.entry)?;
            Some(budgets::used(&below.stats, below.fuel))
        };
        let limited = node.services().filter(|service| service.budget.is_limited());
        let limited: Vec<_> =
            limited.filter_map(|it| Some((it.entry, &it.budget, used(it)?))).collect();
        for (entry, over) in self.budgets.poll(now, limited.into_iter()) {
            self.set_over(entry, over);
        }
    }

    fn set_over(&self, entry: EntryId, over: u8) {
        if let Some(lane) = self.front.lane(entry) {
            lane.set_over(over);
        }
    }
}
