//! Instance of one version of a service below user level: arena, instance block, programs, ring.

use abi::Level;
use bpf::Map;
use cell::Compiled;
use cell::below::Instance;
use node::service::BELOW_MAX;
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::Arc;
use units::{EntryId, Name};

/// Address of the first entry's arena, in the cell as in the kernel: far from where
/// Linux puts anything by itself, and a multiple of 4 GiB.
const ARENAS_AT: u64 = 0x1000_0000_0000;
/// Distance from one arena to the next: what 32-bit addresses reach, and as much again as a guard.
const ARENA_STRIDE: u64 = 8 << 30;
/// Address of the first entry's second arena: of a new version, beside the previous one.
const SECOND_ARENAS_AT: u64 = ARENAS_AT + BELOW_MAX as u64 * ARENA_STRIDE;
/// End of a process's address space.
const ADDRESSES_END: u64 = 1 << 47;
/// Address space behind the arenas for memories that are not shared, of 4 GiB each, and all else.
const OTHERS_LENGTH: u64 = 48 << 40;

const _: () =
    assert!(SECOND_ARENAS_AT + BELOW_MAX as u64 * ARENA_STRIDE <= ADDRESSES_END - OTHERS_LENGTH);
/// Size of a service's ring of events and frames, in bytes.
pub(super) const EVENTS_LENGTH: u32 = 256 << 10;
/// Memory and programs of a version that can leave user level.
pub(crate) struct Shared {
    pub(super) instance: Arc<Instance>,
    pub(super) events: Map,
    pub(super) programs: Programs,
    pub(super) window: u32,
    /// Session that pays.
    pub(super) session: Option<Name>,
    /// Programs that the kernel has accepted.
    pub(super) loaded: BTreeMap<Level, bpf::Program>,
    /// True when the arena lies at the second of the entry's two addresses.
    pub(super) second: bool,
}

impl Shared {
    /// Returns the descriptors for the cell: arena, instance block, ring of records.
    pub(crate) fn fds(&self) -> [std::os::fd::BorrowedFd<'_>; 3] {
        let Instance { arena, block } = &*self.instance;
        [arena.as_fd(), block.as_fd(), self.events.as_fd()]
    }

    /// Returns true when the arena lies at the second of the entry's two addresses.
    pub(crate) const fn is_second(&self) -> bool {
        self.second
    }

    /// Returns the number of pages of the arena.
    pub(crate) fn arena_pages(&self) -> u64 {
        self.instance.arena.pages()
    }

    /// Returns true when the verifier is checking one of its programs.
    pub(crate) fn is_being_loaded(&self) -> bool {
        Arc::strong_count(&self.instance) > 1
    }

    /// Returns the kernel's map ID of the arena.
    pub(crate) fn number(&self) -> u32 {
        self.instance.arena.map().info().id
    }
}

/// Source of a service's programs.
#[derive(Clone)]
pub(crate) enum Programs {
    Compiled(Arc<Compiled>),
    /// Module of a service that a previous daemon has started: compiled when a program is wanted
    /// that is not loaded yet.
    Module(Arc<Vec<u8>>),
}

impl Programs {
    /// Returns the levels for which there is no program, as far as that is known, with the reasons.
    pub(super) fn refused(&self) -> Vec<(Level, String)> {
        match self {
            Self::Compiled(compiled) => compiled.refused(),
            Self::Module(_) => Vec::new(),
        }
    }

    /// Returns the compiled module; may take as long as the compiler.
    pub(super) fn get(&self) -> Result<Arc<Compiled>, String> {
        match self {
            Self::Compiled(compiled) => Ok(Arc::clone(compiled)),
            Self::Module(wasm) => {
                let mut compiled = Err("the compiler did not answer".to_owned());
                // What another program of a service that runs takes is not billed.
                let _ = crate::deploy::compile(wasm, true, |result| compiled = result);
                compiled
            }
        }
    }
}

/// Returns the address of an entry's arena; `second` selects one of its two addresses.
pub(super) const fn address_of(entry: EntryId, second: bool) -> u64 {
    let first = if second { SECOND_ARENAS_AT } else { ARENAS_AT };
    first + entry.0 as u64 * ARENA_STRIDE
}

/// Returns true when an arena lies at the second of an entry's two addresses.
pub(super) const fn is_second(address: u64) -> bool {
    address >= SECOND_ARENAS_AT
}

/// Returns the reason for this machine not running programs of modules; `None` when it does.
pub(super) fn unsupported() -> Option<String> {
    let made = bpf::Arena::create("tam_trial", 1, ARENAS_AT);
    made.err().map(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arenas_of_all_entries_lie_apart_and_their_half_is_known() {
        let last = EntryId(u16::try_from(BELOW_MAX - 1).unwrap());
        let of = |entry| [false, true].map(|second| address_of(entry, second));
        let [[first, second], [last_first, last_second]] = [of(EntryId(0)), of(last)];
        assert_eq!(first, ARENAS_AT);
        assert_eq!(last_first + ARENA_STRIDE, second, "the halves meet and do not overlap");
        assert!([second, last_second].into_iter().all(is_second));
        assert!(![first, last_first].into_iter().any(is_second));
        assert_eq!(address_of(EntryId(1), false) - first, ARENA_STRIDE);
    }
}
