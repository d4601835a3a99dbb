//! What services that are gone ran on below user level, for the same module to run again: maps,
//! and programs that the verifier has seen.
//!
//! ```text
//!  service goes ─▶ its programs are called no more ─▶ kept ── no packet is in them ─▶ ready
//!                                                                                      │
//!            the cell empties the memory, the block begins anew ◀── same module, entry ┘
//! ```
//!
//! Programs name addresses of their entry: a service of that module is given that entry, if
//! nobody has it meanwhile.

use super::shared::{Programs, Shared};
use cell::Compiled;
use cell::protocol::SPARE_PAGES_MAX;
use std::collections::VecDeque;
use std::sync::Arc;
use units::EntryId;

/// Spares: a node's usual services, and the versions before.
const SPARES_MAX: usize = 8;

/// What a version of a service ran on.
struct Spare {
    entry: EntryId,
    /// Its module.
    compiled: Arc<Compiled>,
    shared: Shared,
    /// No packet is in its programs any more.
    ready: bool,
}

/// The last of them, the newest at the end.
#[derive(Default)]
pub(super) struct Spares(VecDeque<Spare>);

impl Spares {
    /// The entry of a spare of this module that is ready.
    pub(super) fn entry_of(
        &self,
        compiled: &Arc<Compiled>,
        is_free: impl Fn(EntryId) -> bool,
    ) -> Option<EntryId> {
        let is_it = |spare: &&Spare| {
            spare.ready
                && !spare.shared.is_second()
                && Arc::ptr_eq(&spare.compiled, compiled)
                && is_free(spare.entry)
        };
        self.0.iter().rev().find(is_it).map(|spare| spare.entry)
    }

    /// What a module ran on at this address, if it is ready.
    pub(super) fn take(
        &mut self,
        entry: EntryId,
        second: bool,
        compiled: &Arc<Compiled>,
    ) -> Option<Shared> {
        let is_it = |spare: &Spare| {
            spare.ready
                && spare.entry == entry
                && spare.shared.is_second() == second
                && Arc::ptr_eq(&spare.compiled, compiled)
        };
        let at = self.0.iter().rposition(is_it)?;
        self.0.remove(at).map(|spare| spare.shared)
    }

    /// Keeps what a version ran on, which nobody calls any more. Returns the kernel's number of its
    /// memory: it is ready when no packet is in its programs any more ([`Spares::handle_ready`]).
    /// `None` of one that is not kept: it is too large, or the kernel looks at a program of it.
    pub(super) fn keep(&mut self, entry: EntryId, shared: Shared) -> Option<u32> {
        let Programs::Compiled(compiled) = &shared.programs else { return None };
        if shared.is_being_loaded() || shared.arena_pages() > SPARE_PAGES_MAX {
            return None;
        }
        let (compiled, number) = (Arc::clone(compiled), shared.number());
        self.0.push_back(Spare { entry, compiled, shared, ready: false });
        while self.0.len() > SPARES_MAX {
            self.0.pop_front();
        }
        Some(number)
    }

    /// Takes note that no packet is in a spare's programs any more. Returns the service's number
    /// that it is for.
    pub(super) fn handle_ready(&mut self, number: u32) -> Option<EntryId> {
        let spare = self.0.iter_mut().find(|spare| spare.shared.number() == number)?;
        spare.ready = true;
        Some(spare.entry)
    }

    /// Lets go of all.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
