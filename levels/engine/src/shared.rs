//! Instances whose linear memory is shared with programs in the kernel, so that an instance can
//! move without copying its state.
//!
//! Wasmtime asks a creator for each memory without naming the instance: [`give`] provides the
//! memory for the next instantiation on this thread.

use std::cell::RefCell;
use std::sync::Arc;

use level::{GUARD, REACH, SharedMemory};
use wasmtime::{Config, LinearMemory, MemoryCreator, MemoryType};

thread_local! {
    static READY: RefCell<Option<Arc<dyn SharedMemory>>> = const { RefCell::new(None) };
}

/// Kind of a module's memory: how it is allocated and bounds-checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MemoryKind {
    /// Private memory, bounds enforced by guard pages.
    #[default]
    Own,
    /// Private memory of fixed size, adjacent to others, so that thousands share page table
    /// entries; each access is compared with the size.
    OwnPacked,
    /// Shared memory of fixed size: bounds enforced by the unmapped pages behind it.
    SharedFixed,
    /// Shared memory, allocated at its maximum: each access is compared with the current size.
    SharedGrowing,
}

impl MemoryKind {
    pub(crate) const ALL: [Self; 4] =
        [Self::Own, Self::OwnPacked, Self::SharedFixed, Self::SharedGrowing];

    /// Returns the kind for a module that can leave user level, by the pages of its memory.
    #[must_use]
    pub const fn shared(pages_min: u32, pages_max: u32) -> Self {
        if pages_min == pages_max { Self::SharedFixed } else { Self::SharedGrowing }
    }

    /// Returns the kind for a module that stays at user level. A module with bounded calls has few
    /// accesses to compare.
    #[must_use]
    pub const fn own(pages_min: u32, pages_max: u32, is_brief: bool) -> Self {
        if is_brief && pages_min == pages_max { Self::OwnPacked } else { Self::Own }
    }

    pub(crate) fn configure(self, config: &mut Config) {
        match self {
            Self::Own => {}
            Self::OwnPacked => {
                config.memory_reservation(0).memory_guard_size(0);
                config.memory_reservation_for_growth(0);
            }
            Self::SharedFixed => {
                config.memory_reservation(REACH).memory_guard_size(GUARD);
                // Data is copied into memory that wasmtime has not mapped itself.
                config.memory_init_cow(false).with_host_memory(Arc::new(Creator));
            }
            Self::SharedGrowing => {
                config.memory_reservation(0).memory_guard_size(0).memory_may_move(false);
                config.memory_init_cow(false).with_host_memory(Arc::new(Creator));
            }
        }
    }
}

/// Provides memory for the next instantiation on this thread, and withdraws it afterwards if it was
/// not requested.
pub(crate) fn give<R>(memory: Option<Arc<dyn SharedMemory>>, act: impl FnOnce() -> R) -> R {
    READY.with_borrow_mut(|ready| *ready = memory);
    let result = act();
    READY.with_borrow_mut(|ready| *ready = None);
    result
}

struct Creator;

// SAFETY: each memory is taken from the slot, so that no two instances get the
// same one here; its holder keeps to SharedMemory's contract, which is what
// wasmtime asks: a stable address, readable and writable up to `byte_size`,
// and nothing mapped in the reservation and guard that this crate configures.
unsafe impl MemoryCreator for Creator {
    fn new_memory(
        &self,
        _: MemoryType,
        minimum: usize,
        maximum: Option<usize>,
        _: Option<usize>,
        _: usize,
    ) -> Result<Box<dyn LinearMemory>, String> {
        let memory = READY.with_borrow_mut(Option::take);
        let memory = memory.ok_or("this instance was given no memory")?;
        let length = memory.length();
        if length < minimum {
            return Err(format!("the memory has {length} bytes, the module begins with {minimum}"));
        }
        let most = maximum.map_or(length, |maximum| maximum.min(length));
        Ok(Box::new(Shared { memory, size: minimum, most }))
    }
}

struct Shared {
    memory: Arc<dyn SharedMemory>,
    size: usize,
    most: usize,
}

// SAFETY: `size` never exceeds the memory's length, which is readable and
// writable while `memory` lives; the address never changes.
unsafe impl LinearMemory for Shared {
    fn byte_size(&self) -> usize {
        self.size
    }

    fn byte_capacity(&self) -> usize {
        self.most
    }

    fn grow_to(&mut self, new_size: usize) -> wasmtime::Result<()> {
        if new_size > self.most {
            return Err(wasmtime::Error::msg("the shared memory is not larger"));
        }
        self.size = new_size;
        Ok(())
    }

    fn as_ptr(&self) -> *mut u8 {
        self.memory.address()
    }
}
