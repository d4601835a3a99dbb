//! Cache of loaded programs and arenas of removed services, reused when the same module is deployed
//! again: the verifier need not check its programs once more.
//!
//! ```text
//!  service goes ─▶ its programs are called no more ─▶ kept ── no packet is in them ─▶ ready
//!                                                                                      │
//!            the cell empties the memory, the block begins anew ◀── same module, entry ┘
//! ```
//!
//! Programs contain addresses of their entry: a service of that module gets that entry, if it is
//! still free.

use super::shared::{Programs, Shared};
use cell::Compiled;
use cell::protocol::SPARE_PAGES_MAX;
use std::collections::VecDeque;
use std::sync::Arc;
use units::EntryId;

/// Number of reusable instances: a node's usual services, and their previous versions.
const SPARES_MAX: usize = 8;

/// Reusable instance of a module.
struct ReusableInstance {
    entry: EntryId,
    /// Compiled module.
    compiled: Arc<Compiled>,
    shared: Shared,
    /// Set once no packet is in its programs.
    ready: bool,
}

/// Reusable instances, the newest last.
#[derive(Default)]
pub(super) struct ReusableInstances(VecDeque<ReusableInstance>);

impl ReusableInstances {
    /// Returns the modules of ready instances with their entries, the newest first.
    pub(super) fn ready(&self) -> Vec<(Arc<Compiled>, EntryId)> {
        let ready = self.0.iter().rev().filter(|spare| spare.ready && !spare.shared.is_second());
        ready.map(|spare| (Arc::clone(&spare.compiled), spare.entry)).collect()
    }

    /// Removes and returns the ready instance of a module at this address.
    pub(super) fn take(
        &mut self,
        entry: EntryId,
        second: bool,
        compiled: &Arc<Compiled>,
    ) -> Option<Shared> {
        let is_it = |spare: &ReusableInstance| {
            spare.ready
                && spare.entry == entry
                && spare.shared.is_second() == second
                && Arc::ptr_eq(&spare.compiled, compiled)
        };
        let at = self.0.iter().rposition(is_it)?;
        self.0.remove(at).map(|spare| spare.shared)
    }

    /// Keeps the instance of a version that is no longer called. Returns the kernel's map ID of its
    /// memory, which identifies it when no packet is in its programs any more
    /// ([`ReusableInstances::handle_ready`]); `None` if it is not kept: it is too large, or the kernel is
    /// verifying a program of it.
    pub(super) fn keep(&mut self, entry: EntryId, shared: Shared) -> Option<u32> {
        let Programs::Compiled(compiled) = &shared.programs else { return None };
        if shared.is_being_loaded() || shared.arena_pages() > SPARE_PAGES_MAX {
            return None;
        }
        let (compiled, number) = (Arc::clone(compiled), shared.number());
        self.0.push_back(ReusableInstance { entry, compiled, shared, ready: false });
        while self.0.len() > SPARES_MAX {
            self.0.pop_front();
        }
        Some(number)
    }

    /// Marks an instance as ready: no packet is in its programs. Returns the entry
    /// that it is for.
    pub(super) fn handle_ready(&mut self, number: u32) -> Option<EntryId> {
        let spare = self.0.iter_mut().find(|spare| spare.shared.number() == number)?;
        spare.ready = true;
        Some(spare.entry)
    }

    /// Releases all instances.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
