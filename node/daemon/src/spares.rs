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

use crate::below::{Programs, Shared};
use crate::daemon::{Daemon, Done};
use cell::Compiled;
use cell::protocol::SPARE_PAGES_MAX;
use module_store::Digest;
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
pub(crate) struct Spares(VecDeque<Spare>);

impl Spares {
    /// The entry of a spare of this module that is ready.
    fn entry_of(
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
    pub(crate) fn take(
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

    /// Lets go of all.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

impl Daemon {
    /// Has the next service begin where there is a spare of its module.
    pub(crate) fn prefer_spare(&mut self, digest: &Digest) {
        let compiled = self.modules.get(digest).and_then(|module| module.code(self.bpf_now()));
        let is_free = |entry| self.node.service_of(entry).is_none();
        let entry = compiled.and_then(|compiled| self.spares.entry_of(compiled, is_free));
        self.node.prefer_entry(entry);
    }

    /// Keeps what a version ran on, which nobody calls any more.
    pub(crate) fn keep_spare(&mut self, entry: EntryId, shared: Shared) {
        let Programs::Compiled(compiled) = shared.programs() else { return };
        if shared.is_being_loaded() || shared.arena_pages() > SPARE_PAGES_MAX {
            return;
        }
        let (compiled, number) = (Arc::clone(compiled), shared.number());
        self.spares.0.push_back(Spare { entry, compiled, shared, ready: false });
        while self.spares.0.len() > SPARES_MAX {
            self.spares.0.pop_front();
        }
        self.when_packets_have_landed(Done::SpareReady(number));
    }

    /// No packet is in a spare's programs any more.
    pub(crate) fn spare_ready(&mut self, number: u32) {
        let spare = self.spares.0.iter_mut().find(|spare| spare.shared.number() == number);
        let Some(spare) = spare else { return };
        spare.ready = true;
        // What its last packets counted is nobody's.
        let entry = spare.entry;
        if self.node.service_of(entry).is_none() {
            self.clear_counters(entry);
        }
    }
}
