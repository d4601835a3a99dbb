//! Transfer of an instance from user level to lower levels and back, in the same memory.
//!
//! ```text
//!  user: wasmtime ─┬─ linear memory: an arena ─┬─ below: eBPF
//!    its globals ──┼──── take_below ──────────▶│ instance block: globals, memory's size
//!                  │◀─────── take_up ──────────┤
//! ```
//!
//! Every instance starts at user level, so `on_start` and all other hooks run in the engine,
//! wherever the packets are handled. This module does not decide which side may use the memory at a
//! time.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use abi::PacketBytes;
use bpf::MappedBlock;
use engine::{Engine, InstanceSpec, Program, StartError};
use wasm_to_bpf::{Image, layout};

use super::{BelowError, Instance, word};

/// Cause for which an instance could not be started in memory shared with the kernel.
#[derive(Debug, thiserror::Error)]
pub enum StartBelowError {
    /// The kernel lacks memory for it, or does not support arenas.
    #[error(transparent)]
    Below(#[from] BelowError),
    /// The instance does not start: its module refuses, or this program has a defect.
    #[error(transparent)]
    Start(#[from] StartError),
}

/// Instance that runs in this process and can move below user level.
pub struct Started<P: 'static> {
    /// Instance in the engine.
    pub user: engine::Instance<P>,
    /// Instance for programs in the kernel, with the same memory.
    pub below: Instance,
}

impl<P: PacketBytes + 'static> Started<P> {
    /// Starts an instance at user level, in memory shared with the kernel. The program must be
    /// compiled for such memory of the image's size
    /// ([`MemoryKind::shared`](engine::MemoryKind::shared)); the memory in `spec` is ignored.
    ///
    /// # Errors
    /// The session has no memory for the instance, or `on_start` traps or refuses.
    pub fn new(
        engine: &Engine,
        program: &Program<P>,
        image: &Image,
        spec: &InstanceSpec,
        fuel_budget: u64,
    ) -> Result<Self, StartBelowError> {
        let (below, memory) = Instance::mapped(image, fuel_budget)?;
        let spec = InstanceSpec { memory: Some(Arc::new(memory)), ..spec.clone() };
        let user = program.start(engine, &spec)?;
        let started = Self { user, below };
        started.below.let_send(spec.ports.values().copied())?;
        Ok(started)
    }
}

/// Copies globals and memory size from the engine to the block, for programs in the kernel. The
/// engine must not run the instance until [`take_up`].
///
/// # Errors
/// The block has no field for a global: it belongs to another module.
pub fn take_below<P: PacketBytes + 'static>(
    user: &mut engine::Instance<P>,
    block: &MappedBlock,
) -> Result<(), BelowError> {
    for (index, value) in user.globals() {
        word(block, global(index))?.store(value, Ordering::Release);
    }
    word(block, layout::MEMORY_BYTES)?.store(user.memory_bytes(), Ordering::Release);
    Ok(())
}

/// Copies globals and memory size from the block to the engine. No program may run until
/// [`take_below`].
///
/// # Errors
/// The engine refuses the memory size: the block belongs to another module.
pub fn take_up<P: PacketBytes + 'static>(
    user: &mut engine::Instance<P>,
    block: &MappedBlock,
) -> Result<(), BelowError> {
    user.set_globals(|index| Some(block.u64(global(index))?.load(Ordering::Acquire)));
    let bytes = word(block, layout::MEMORY_BYTES)?.load(Ordering::Acquire);
    if user.grow_to(bytes) { Ok(()) } else { Err(BelowError::NotTaken { bytes }) }
}

/// Returns the offset of a global in the block.
const fn global(index: u32) -> u32 {
    layout::GLOBALS.saturating_add(index.saturating_mul(8))
}
