//! What one version of a service runs on below user level.

use abi::Level;
use bpf::Map;
use cell::Compiled;
use cell::below::Instance;
use node::service::BELOW_MAX;
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::Arc;
use units::{EntryId, Name};

/// Where the arenas of all entries lie, in the cell as in the kernel: far from where
/// Linux puts anything by itself, and a multiple of 4 GiB.
const ARENAS_AT: u64 = 0x1000_0000_0000;
/// From one arena to the next: what 32-bit addresses reach, and as much again as a guard.
const ARENA_STRIDE: u64 = 8 << 30;
/// Where the second of an entry's two arenas lies: of a new version, beside the one before.
const SECOND_ARENAS_AT: u64 = ARENAS_AT + BELOW_MAX as u64 * ARENA_STRIDE;
/// Where a process's addresses end.
const ADDRESSES_END: u64 = 1 << 47;
/// Room behind the arenas for memories that are not shared, of 4 GiB each, and all else.
const OTHERS_LENGTH: u64 = 48 << 40;

const _: () =
    assert!(SECOND_ARENAS_AT + BELOW_MAX as u64 * ARENA_STRIDE <= ADDRESSES_END - OTHERS_LENGTH);
/// Bytes for events and frames of one service that the cell has not picked up yet.
pub(super) const EVENTS_LENGTH: u32 = 256 << 10;
/// A service that can leave user level.
pub(crate) struct Shared {
    pub(super) instance: Arc<Instance>,
    pub(super) events: Map,
    pub(super) programs: Programs,
    pub(super) window: u32,
    /// Who pays.
    pub(super) session: Option<Name>,
    /// Those of its programs that the kernel has taken.
    pub(super) loaded: BTreeMap<Level, bpf::Program>,
    /// It lies at the second of the entry's two addresses.
    pub(super) second: bool,
}

impl Shared {
    /// What the cell needs of it: the arena, the instance block, the ring of records.
    pub(crate) fn fds(&self) -> [std::os::fd::BorrowedFd<'_>; 3] {
        let Instance { arena, block } = &*self.instance;
        [arena.as_fd(), block.as_fd(), self.events.as_fd()]
    }

    /// Whether it lies at the second of the entry's two addresses.
    pub(crate) const fn is_second(&self) -> bool {
        self.second
    }

    /// Pages of its memory.
    pub(crate) fn arena_pages(&self) -> u64 {
        self.instance.arena.pages()
    }

    /// Whether the kernel looks at one of its programs.
    pub(crate) fn is_being_loaded(&self) -> bool {
        Arc::strong_count(&self.instance) > 1
    }

    /// The kernel's number of its memory.
    pub(crate) fn number(&self) -> u32 {
        self.instance.arena.map().info().id
    }
}

/// What a service's programs are loaded from.
#[derive(Clone)]
pub(crate) enum Programs {
    Compiled(Arc<Compiled>),
    /// Of a service that a daemon before has started: compiled when a program is wanted that
    /// is not loaded yet.
    Module(Arc<Vec<u8>>),
}

impl Programs {
    /// May take as long as the compiler.
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

/// Returns where the memory of an entry's service lies; `second` says at which of its two addresses.
pub(super) const fn address_of(entry: EntryId, second: bool) -> u64 {
    let first = if second { SECOND_ARENAS_AT } else { ARENAS_AT };
    first + entry.0 as u64 * ARENA_STRIDE
}

/// Returns true when memory lies at the second of an entry's two addresses.
pub(super) const fn is_second(address: u64) -> bool {
    address >= SECOND_ARENAS_AT
}

/// Why this machine runs no programs of modules; `None` when it does.
pub(super) fn unsupported() -> Option<String> {
    let made = bpf::Arena::create("tam_trial", 1, ARENAS_AT);
    made.err().map(|error| error.to_string())
}
