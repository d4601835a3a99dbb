//! An instance below user level: the compiler's program on an arena and a block.
//!
//! ```text
//!  wasm_to_bpf::Program ── image ──▶ Instance (arena, block)
//!           └── instructions, holes ──┬─▶ load ─▶ bpf::Program
//!  hand-over, afterwards, events ─────┘
//! ```
//!
//! Here the compiler, which knows no maps, and the loader, which knows no
//! modules, meet. Who calls the program is not decided here: a front door, or a
//! test run.

mod alone;
mod hand_over;
mod record;
mod speed;
mod start;
mod trap;

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use bpf::{
    ARENA_PAGE, Arena, ArenaError, Block, BlockError, MappedArena, MappedBlock, Program,
    RawFunction, RawKind, RawLoadError, RawMap, RawProgram, Reservation,
};
use wasm_to_bpf::{Flavour, Image, MapKind, layout};

pub use alone::{Alone, AloneError, AloneModule, CompileAloneError, Handled};
pub use hand_over::{give, give_bytes, metadata_of, new_hand_over};
pub use record::{Record, RecordError};
pub use speed::{SpeedError, measure_speed};
pub use start::{StartBelowError, Started, take_below, take_up};
pub use trap::{kind_of, trap_of};

/// Bytes of a WebAssembly page.
pub const PAGE: u64 = 65_536;

/// Why an instance could not be made.
#[derive(Debug, thiserror::Error)]
pub enum BelowError {
    /// No memory for it, or no arenas in this kernel.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// No instance block.
    #[error(transparent)]
    Block(#[from] BlockError),
    /// The layout has a field that the block has not: a defect of ours.
    #[error("the instance block of {length} bytes has nothing at {offset}")]
    Field {
        /// Its bytes.
        length: u32,
        /// Where.
        offset: u32,
    },
    /// Sandbox and programs are not of one module: a defect of ours.
    #[error("the sandbox does not take a memory of {bytes} bytes back from below")]
    NotTaken {
        /// Its bytes.
        bytes: u64,
    },
}

/// Linear memory and block of one instance: what its programs need.
#[derive(Debug)]
pub struct Instance {
    /// The linear memory; who maps it has populated it as far as it may grow.
    pub arena: Arena,
    /// Globals, fuel, traps: [`layout`].
    pub block: Block,
}

/// What a program shares with those before and after it.
#[derive(Clone, Copy, Debug)]
pub struct Around<'a> {
    /// [`MapKind::HandOver`].
    pub hand_over: BorrowedFd<'a>,
    /// Where in its value the instance's begins, in bytes.
    pub hand_over_at: u32,
    /// [`MapKind::Afterwards`].
    pub afterwards: BorrowedFd<'a>,
    /// [`MapKind::Events`].
    pub events: BorrowedFd<'a>,
}

impl Instance {
    /// A new instance as a program of the module describes it: all programs of a
    /// module describe the same. Its memory belongs at `address` in another process, which maps
    /// it ([`MappedArena::given`]) for an engine to put the module's data into it.
    ///
    /// # Errors
    /// When the kernel lacks memory or arenas.
    pub fn new(image: &Image, fuel_budget: u64, address: u64) -> Result<Self, BelowError> {
        // A module without memory has programs that name an arena all the same.
        let pages = arena_pages(image);
        let arena = Arena::create("tam_memory", pages.max(1), address)?;
        let globals = image.globals.len() as u32;
        let block = Block::create("tam_block", layout::block_length(globals))?;
        let instance = Self { arena, block };
        instance.fill(image, fuel_budget)?;
        Ok(instance)
    }

    /// Another instance of the same module in its place. Its memory is as it was: who maps it has
    /// to empty it.
    ///
    /// # Errors
    /// [`BelowError::Field`], which no block of ours has.
    pub fn begin_anew(&self, image: &Image, fuel_budget: u64) -> Result<(), BelowError> {
        (0..self.block.length()).step_by(8).try_for_each(|offset| self.set(offset, 0))?;
        self.fill(image, fuel_budget)
    }

    fn fill(&self, image: &Image, fuel_budget: u64) -> Result<(), BelowError> {
        for (index, value) in (0u32..).zip(&image.globals) {
            self.set(layout::GLOBALS + 8 * index, *value)?;
        }
        self.set(layout::MEMORY_BYTES, u64::from(image.pages_min) * PAGE)?;
        self.set(layout::FUEL_BUDGET, fuel_budget)
    }

    /// The same with its memory in this process, all zeros, for an engine here.
    ///
    /// # Errors
    /// As [`Instance::new`], and when the process has no room.
    pub fn mapped(image: &Image, fuel_budget: u64) -> Result<(Self, MappedArena), BelowError> {
        let pages = arena_pages(image);
        let reservation = Reservation::new().map_err(|source| ArenaError::Kernel {
            action: "reserve addresses for",
            pages,
            source,
        })?;
        let instance = Self::new(image, fuel_budget, reservation.address())?;
        let memory = MappedArena::new(&instance.arena, reservation, pages)?;
        Ok((instance, memory))
    }

    /// The same without an engine: the module's data is in it.
    ///
    /// # Errors
    /// As [`Instance::mapped`].
    pub fn here(image: &Image, fuel_budget: u64) -> Result<(Self, MappedArena), BelowError> {
        let (instance, memory) = Self::mapped(image, fuel_budget)?;
        for (address, bytes) in &image.data {
            memory.write(u64::from(*address), bytes)?;
        }
        Ok((instance, memory))
    }

    /// Has the kernel verify and load a program of this instance's module.
    ///
    /// # Errors
    /// When the verifier refuses: what the compiler gives, it should take.
    pub fn load(
        &self,
        name: &str,
        program: &wasm_to_bpf::Program,
        around: Around<'_>,
    ) -> Result<Program, RawLoadError> {
        let map = |reference: &wasm_to_bpf::MapReference| {
            let (fd, value) = match reference.map {
                MapKind::Arena => (self.arena.as_fd(), None),
                MapKind::Block => (self.block.as_fd(), Some(0)),
                MapKind::HandOver => (around.hand_over, Some(around.hand_over_at)),
                MapKind::Afterwards => (around.afterwards, None),
                MapKind::Events => (around.events, None),
            };
            RawMap { instruction: reference.instruction, fd, value }
        };
        let function = |function: &wasm_to_bpf::ProgramFunction| RawFunction {
            start: function.start,
            name: function.name.clone(),
            takes_context: function.takes_context,
            scalars: function.scalars,
            global: function.global,
        };
        let maps: Vec<RawMap<'_>> = program.maps.iter().map(map).collect();
        let functions: Vec<RawFunction> = program.functions.iter().map(function).collect();
        let kind = match program.flavour {
            Flavour::Xdp => RawKind::Xdp { fragments: program.fragments },
            Flavour::Tc => RawKind::Tc,
        };
        let instructions = &program.instructions;
        RawProgram { name, kind, instructions, maps: &maps, functions: &functions }.load()
    }

    /// A 64-bit field of the block.
    ///
    /// # Errors
    /// When the block has no such field.
    pub fn get(&self, offset: u32) -> Result<u64, BelowError> {
        Ok(word(&self.block, offset)?.load(Ordering::Acquire))
    }

    /// Sets the ports that the module can send to.
    ///
    /// # Errors
    /// [`BelowError::Field`], which no block of ours has.
    pub fn let_send(&self, ports: impl Iterator<Item = u16>) -> Result<(), BelowError> {
        let mut words = [0u64; layout::PORTS_MAX as usize / 64];
        for port in ports {
            // One beyond the bits cannot be sent to from below.
            if let Some(word) = words.get_mut(usize::from(port) / 64) {
                *word |= 1 << (port % 64);
            }
        }
        let mut offsets = (layout::PORTS..).step_by(8).zip(words);
        offsets.try_for_each(|(offset, word)| self.set(offset, word))
    }

    /// Sets one.
    ///
    /// # Errors
    /// When the block has no such field.
    pub fn set(&self, offset: u32, value: u64) -> Result<(), BelowError> {
        word(&self.block, offset)?.store(value, Ordering::Release);
        Ok(())
    }

    /// Takes the trap of the last call: its code and its place, both 0 when there is none.
    ///
    /// # Errors
    /// When the block has no such field.
    pub fn take_trap(&self) -> Result<(u32, u32), BelowError> {
        let half = |offset| self.block.u32(offset).ok_or_else(|| missing(&self.block, offset));
        let place = half(layout::TRAP_PLACE)?.load(Ordering::Acquire);
        Ok((half(layout::TRAP_CODE)?.swap(0, Ordering::AcqRel), place))
    }
}

/// A 64-bit field of a block.
fn word(block: &MappedBlock, offset: u32) -> Result<&AtomicU64, BelowError> {
    block.u64(offset).ok_or_else(|| missing(block, offset))
}

fn missing(block: &MappedBlock, offset: u32) -> BelowError {
    BelowError::Field { length: block.length(), offset }
}

fn arena_pages(image: &Image) -> u64 {
    (u64::from(image.pages_max) + u64::from(image.pages_behind)) * PAGE / ARENA_PAGE
}
