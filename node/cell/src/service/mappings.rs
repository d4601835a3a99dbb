//! Cache of the cell's mappings of memory shared with the kernel, for services that return.

use crate::protocol::{ArenaSpec, SPARE_PAGES_MAX};
use bpf::{MappedArena, MappedBlock, RingBuffer};
use rustix::fd::{AsFd, OwnedFd};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use wasm_to_bpf::layout;

/// Failure to map memory that is shared with the kernel.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SharedError {
    #[error("the service shares its memory with programs in the kernel, and {0} is missing")]
    Missing(&'static str),
    #[error("mapping the memory that the service shares with the kernel: {0}")]
    Arena(#[from] bpf::ArenaError),
    #[error("mapping the instance block: {0}")]
    Block(std::io::Error),
    #[error("mapping the ring of its programs' records: {0}")]
    Ring(std::io::Error),
}

/// Unused mappings that are kept: as many as the daemon keeps reusable arenas.
const IDLE_MAX: usize = 8;

/// Memory, instance block and ring of records of one service.
#[derive(Debug)]
pub(crate) struct Mapping {
    pub(crate) memory: Arc<MappedArena>,
    pub(crate) block: MappedBlock,
    pub(crate) ring: RefCell<RingBuffer>,
    /// Readable when a program has written a record.
    pub(crate) ring_fd: OwnedFd,
}

impl Mapping {
    fn new(facts: &ArenaSpec, fds: &[OwnedFd]) -> Result<Self, SharedError> {
        let [arena, block, ring] = fds else { return Err(SharedError::Missing("a descriptor")) };
        let memory = MappedArena::from_fd(arena.as_fd(), facts.address, facts.arena_pages)?;
        let block = MappedBlock::from_fd(block.as_fd(), layout::block_length(facts.globals))
            .map_err(SharedError::Block)?;
        let ring_fd = ring.try_clone().map_err(SharedError::Ring)?;
        let ring =
            RingBuffer::from_fd(ring.as_fd(), facts.ring_length).map_err(SharedError::Ring)?;
        Ok(Self { memory: Arc::new(memory), block, ring: RefCell::new(ring), ring_fd })
    }

    /// Zeroes the memory. The caller owns it.
    pub(crate) fn clear_memory(&self) {
        const ZEROS: [u8; 4096] = [0; 4096];
        for at in (0..self.memory.populated()).step_by(ZEROS.len()) {
            // Writes cannot fail: the memory is populated in whole pages.
            let _ = self.memory.write(at, &ZEROS);
        }
    }

    /// Discards the records that earlier programs wrote.
    fn clear_ring(&self) {
        let mut ring = self.ring.borrow_mut();
        while matches!(ring.next(|_| ()), Ok(Some(()))) {}
    }
}

/// Unused mappings that may wait for [`Mappings::forget`]: each reserves addresses for the largest
/// memory that a module can have.
const UNFORGOTTEN_MAX: usize = 4 * IDLE_MAX;

/// Mappings by last use, the latest at the end.
#[derive(Default)]
pub(crate) struct Mappings {
    known: VecDeque<Known>,
    /// Set if [`Mappings::forget`] may have work.
    is_due: bool,
}

struct Known {
    /// Kernel's id of the arena.
    number: u32,
    address: u64,
    mapping: Rc<Mapping>,
}

impl Known {
    fn is_idle(&self) -> bool {
        Rc::strong_count(&self.mapping) == 1 && Arc::strong_count(&self.mapping.memory) == 1
    }
}

impl Mappings {
    /// Returns the mapping of a service, empty: made from its descriptors (an arena, a block and a
    /// ring), or an unused one of the same arena.
    pub(crate) fn map(
        &mut self,
        facts: &ArenaSpec,
        fds: &[OwnedFd],
    ) -> Result<Rc<Mapping>, SharedError> {
        let (number, address) = (facts.number, facts.address);
        let known = self.known.iter().position(|known| known.number == number && known.is_idle());
        let known = match known.and_then(|at| self.known.remove(at)) {
            Some(known) => known,
            None => {
                // An unused mapping at the same addresses has to go.
                self.known.retain(|known| !known.is_idle() || known.address != address);
                Known { number, address, mapping: Rc::new(Mapping::new(facts, fds)?) }
            }
        };
        let mapping = Rc::clone(&known.mapping);
        if facts.arena_pages <= SPARE_PAGES_MAX {
            self.known.push_back(known);
        }
        if facts.used {
            mapping.clear_memory();
            mapping.clear_ring();
        }
        self.keep(UNFORGOTTEN_MAX);
        self.is_due = true;
        Ok(mapping)
    }

    /// Unmaps what is unlikely to be used again. The kernel takes a fraction of a millisecond for
    /// each, so this is called when nothing waits.
    pub(crate) fn forget(&mut self) {
        if std::mem::take(&mut self.is_due) {
            self.keep(IDLE_MAX);
        }
    }

    fn keep(&mut self, most: usize) {
        let idle = self.known.iter().filter(|known| known.is_idle()).count();
        for _ in most..idle {
            let oldest = self.known.iter().position(Known::is_idle);
            oldest.and_then(|at| self.known.remove(at));
        }
    }
}
