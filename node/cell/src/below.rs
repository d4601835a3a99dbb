//! An instance below user level: the compiler's program on an arena and a block.
//!
//! ```text
//!  wasm_to_bpf::Program ── image ──▶ Instance (arena, block)
//!           └── instructions, holes ──┬─▶ load ─▶ bpf::Program
//!  hand-over, afterwards, events ─────┘
//! ```
//!
//! The module connects the compiler, which knows no maps, with the loader, which knows no modules.
//! It does not decide who calls the program: a front door, or a test run.

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

/// Cause for which an instance could not be created or changed.
#[derive(Debug, thiserror::Error)]
pub enum BelowError {
    /// The kernel lacks memory for the arena, or does not support arenas.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// The instance block cannot be created.
    #[error(transparent)]
    Block(#[from] BlockError),
    /// The layout has a field that the block lacks: a defect of this program.
    #[error("the instance block of {length} bytes has nothing at {offset}")]
    Field {
        /// Length of the block in bytes.
        length: u32,
        /// Offset of the field in bytes.
        offset: u32,
    },
    /// Sandbox and programs belong to different modules: a defect of this program.
    #[error(
        "the sandbox cannot take over the {bytes} bytes of memory that the service had at nic or kernel: a fault of tam, report it"
    )]
    NotTaken {
        /// Size of the memory in bytes.
        bytes: u64,
    },
}

/// Linear memory and block of one instance, which its programs use.
#[derive(Debug)]
pub struct Instance {
    /// Linear memory; the process that maps it has populated it up to its maximum.
    pub arena: Arena,
    /// Instance block, with globals, fuel and traps ([`layout`]).
    pub block: Block,
}

/// Maps that a program shares with the programs before and after it.
#[derive(Clone, Copy, Debug)]
pub struct Around<'a> {
    /// Map of [`MapKind::HandOver`].
    pub hand_over: BorrowedFd<'a>,
    /// Offset in bytes of the instance's part of the map's value.
    pub hand_over_at: u32,
    /// Map of [`MapKind::Afterwards`].
    pub afterwards: BorrowedFd<'a>,
    /// Map of [`MapKind::Events`].
    pub events: BorrowedFd<'a>,
}

impl Instance {
    /// Creates an instance as a program of the module describes it; all programs of a module
    /// describe the same. Its memory belongs at `address` in another process, which maps it
    /// ([`MappedArena::given`]) and has an engine write the module's data into it.
    ///
    /// # Errors
    /// The kernel lacks memory, or does not support arenas.
    pub fn new(image: &Image, fuel_budget: u64, address: u64) -> Result<Self, BelowError> {
        // A module without memory has programs that reference an arena all the same.
        let pages = arena_pages(image);
        let arena = Arena::create("tam_memory", pages.max(1), address)?;
        let globals = image.globals.len() as u32;
        let block = Block::create("tam_block", layout::block_length(globals))?;
        let instance = Self { arena, block };
        instance.fill(image, fuel_budget)?;
        Ok(instance)
    }

    /// Resets the block for another instance of the same module. The memory is unchanged: the
    /// process that maps it has to zero it.
    ///
    /// # Errors
    /// [`BelowError::Field`], which no block of this program causes.
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

    /// Creates an instance whose memory is mapped in this process and zeroed, for an engine here.
    ///
    /// # Errors
    /// The errors of [`Instance::new`], and a lack of address space.
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

    /// Creates an instance without an engine: the module's data is written into its memory here.
    ///
    /// # Errors
    /// The errors of [`Instance::mapped`].
    pub fn here(image: &Image, fuel_budget: u64) -> Result<(Self, MappedArena), BelowError> {
        let (instance, memory) = Self::mapped(image, fuel_budget)?;
        for (address, bytes) in &image.data {
            memory.write(u64::from(*address), bytes)?;
        }
        Ok((instance, memory))
    }

    /// Loads a program of this instance's module, which the kernel verifies.
    ///
    /// # Errors
    /// The verifier refuses the program, which it should not do for the compiler's output.
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

    /// Reads a 64-bit field of the block, by its offset in bytes.
    ///
    /// # Errors
    /// The block has no such field.
    pub fn get(&self, offset: u32) -> Result<u64, BelowError> {
        Ok(word(&self.block, offset)?.load(Ordering::Acquire))
    }

    /// Sets the ports that the module can send to.
    ///
    /// # Errors
    /// [`BelowError::Field`], which no block of this program causes.
    pub fn let_send(&self, ports: impl Iterator<Item = u16>) -> Result<(), BelowError> {
        let mut words = [0u64; layout::PORTS_MAX as usize / 64];
        for port in ports {
            // Ports beyond the bits cannot be sent to from below user level.
            if let Some(word) = words.get_mut(usize::from(port) / 64) {
                *word |= 1 << (port % 64);
            }
        }
        let mut offsets = (layout::PORTS..).step_by(8).zip(words);
        offsets.try_for_each(|(offset, word)| self.set(offset, word))
    }

    /// Writes a 64-bit field of the block, by its offset in bytes.
    ///
    /// # Errors
    /// The block has no such field.
    pub fn set(&self, offset: u32, value: u64) -> Result<(), BelowError> {
        word(&self.block, offset)?.store(value, Ordering::Release);
        Ok(())
    }

    /// Takes the trap of the last call: its code, and its offset in the module; both 0 if there is
    /// none.
    ///
    /// # Errors
    /// The block has no such field.
    pub fn take_trap(&self) -> Result<(u32, u32), BelowError> {
        let half = |offset| self.block.u32(offset).ok_or_else(|| missing(&self.block, offset));
        let place = half(layout::TRAP_PLACE)?.load(Ordering::Acquire);
        Ok((half(layout::TRAP_CODE)?.swap(0, Ordering::AcqRel), place))
    }
}

/// Returns a 64-bit field of a block.
fn word(block: &MappedBlock, offset: u32) -> Result<&AtomicU64, BelowError> {
    block.u64(offset).ok_or_else(|| missing(block, offset))
}

fn missing(block: &MappedBlock, offset: u32) -> BelowError {
    BelowError::Field { length: block.length(), offset }
}

fn arena_pages(image: &Image) -> u64 {
    (u64::from(image.pages_max) + u64::from(image.pages_behind)) * PAGE / ARENA_PAGE
}
