//! From user level to below and back, in one memory.
//!
//! ```text
//!  user: wasmtime ─┬─ linear memory: an arena ─┬─ below: eBPF
//!    its globals ──┼──── take_below ──────────▶│ instance block: globals, memory's size
//!                  │◀─────── take_up ──────────┤
//! ```
//!
//! Every instance starts at user level, so `on_start` and all other hooks run in
//! the sandbox, wherever its packets go. Who may be in the memory at a time is not
//! decided here.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use abi::PacketBytes;
use bpf::MappedBlock;
use engine::{Engine, InstanceSpec, Program, StartError};
use wasm_to_bpf::{Image, layout};

use super::{BelowError, Instance, word};

/// Why an instance could not be started with a memory that programs below share.
#[derive(Debug, thiserror::Error)]
pub enum StartBelowError {
    /// No memory or block for it, or no arenas in this kernel.
    #[error(transparent)]
    Below(#[from] BelowError),
    /// It does not start: the module's word, or a defect of ours.
    #[error(transparent)]
    Start(#[from] StartError),
}

/// An instance that runs in this process and can go below.
pub struct Started<P: 'static> {
    /// In the sandbox.
    pub user: engine::Instance<P>,
    /// The same below: its memory is the sandbox's.
    pub below: Instance,
}

impl<P: PacketBytes + 'static> Started<P> {
    /// Starts an instance at user level, in a memory that the kernel shares. The
    /// program was made for such a memory of the image's size
    /// ([`MemoryKind::shared`](engine::MemoryKind::shared)); the specification's
    /// own memory is not looked at.
    ///
    /// # Errors
    /// When there is no memory for it, or `on_start` traps or refuses.
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

/// Gives the programs below what the sandbox has beside the memory. The sandbox
/// must not run until [`take_up`].
///
/// # Errors
/// When the block has no room for a global: it is another module's.
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

/// Takes it back. No program may run until [`take_below`].
///
/// # Errors
/// When the sandbox does not take the memory's size: the block is another module's.
pub fn take_up<P: PacketBytes + 'static>(
    user: &mut engine::Instance<P>,
    block: &MappedBlock,
) -> Result<(), BelowError> {
    user.set_globals(|index| Some(block.u64(global(index))?.load(Ordering::Acquire)));
    let bytes = word(block, layout::MEMORY_BYTES)?.load(Ordering::Acquire);
    if user.grow_to(bytes) { Ok(()) } else { Err(BelowError::NotTaken { bytes }) }
}

/// Where a global lies in the block.
const fn global(index: u32) -> u32 {
    layout::GLOBALS.saturating_add(index.saturating_mul(8))
}
