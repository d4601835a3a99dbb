//! Instance block: the state of an instance in the kernel beside its linear
//! memory. One value of a memory-mappable array map (`BPF_F_MMAPABLE`);
//! programs reach it by a constant address, the cell through its mapping.
//!
//! ```text
//!    0 ┌──────────────────────────────┐
//!      │ opaque_zero   u64, always 0  │  the verifier does not know that
//!    8 │ fuel          u64            │  left for this call
//!   16 │ memory_bytes  u64            │  current size of the memory
//!   24 │ trap_code     u32, 0: none   │  of the last call
//!   28 │ trap_place    u32            │  byte offset in the module; for a bad
//!      │                              │  verdict the number that was returned
//!   32 │ fuel_budget   u64            │  for one call; set by the node
//!   40 │ fuel_used     u64            │  sum over all calls, where there is no packet
//!   48 │ bulk          u64            │  fuel of memory.copy and fill in this call
//!   56 │ reserved      u64            │
//!   64 │ traps         u64            │  calls that trapped
//!   72 │ reserved      u64            │
//!   80 │ events        u32            │  and messages of this packet so far
//!   84 │ sent          u32            │  frames of this packet so far
//!   88 │ instance      u64            │  copied into its records; set by the node
//!   96 │ lost          u64            │  records lost because the ring was full
//!  104 │ ports         16 bytes       │  bit n: port n exists; set by the node
//!  120 │ now_ms        u64            │  the node's time, where there is no packet
//!  128 │ arguments     16 x u64       │  of an export; of a call beyond its registers
//!  256 │ results       16 x u64       │
//!  384 │ globals       n x u64        │
//!      ├──────────────────────────────┤ 8-aligned after the globals
//!      │ scratch       512 bytes      │  between helpers and memory
//!      └──────────────────────────────┘
//! ```

#![expect(missing_docs, reason = "the picture above")]

/// Version of the layout above, and of its meaning for programs and cells. To be raised with each
/// change: programs outlive the process that compiled them.
pub const VERSION: u32 = 2;

pub const OPAQUE_ZERO: u32 = 0;
pub const FUEL: u32 = 8;
pub const MEMORY_BYTES: u32 = 16;
pub const TRAP_CODE: u32 = 24;
pub const TRAP_PLACE: u32 = 28;
pub const FUEL_BUDGET: u32 = 32;
pub const FUEL_USED: u32 = 40;
pub const BULK: u32 = 48;
pub const TRAPS: u32 = 64;
pub const EVENTS: u32 = 80;
pub const SENT: u32 = 84;
pub const INSTANCE: u32 = 88;
pub const LOST: u32 = 96;
pub const PORTS: u32 = 104;
pub const NOW_MS: u32 = 120;
pub const ARGUMENTS: u32 = 128;
pub const RESULTS: u32 = 256;
pub const GLOBALS: u32 = 384;

/// Most parameters, and results, of an exported function.
pub const SLOTS_MAX: usize = 16;
/// Most ports that a module can send to: as many as [`PORTS`] has bits.
pub const PORTS_MAX: u32 = 128;
/// Most bytes that a helper moves between packet and memory at once.
pub const SCRATCH_LENGTH: u32 = 512;

/// Returns the offset of the scratch buffer in the block of a module with that many globals.
#[must_use]
pub const fn scratch(globals: u32) -> u32 {
    GLOBALS + 8 * globals
}

/// Returns the size of the whole block in bytes.
#[must_use]
pub const fn block_length(globals: u32) -> u32 {
    scratch(globals) + SCRATCH_LENGTH
}

/// Hand-over: the packet's metadata from the front door and the module's
/// verdict. One for each entry, in the value of an array map that the front
/// door's programs and the modules' programs share; the CPU in the entry's
/// lane has exclusive access.
///
/// ```text
///   0 ┌────────────────────────────────┐
///     │ the ABI's metadata, 64 bytes   │  as the module sees it at 0x8000
///  64 │ verdict      u32               │  the return value of on_packet, or
///  68 │ trapped      u32               │  the trap's code, else 0
///  72 │ padded       u32               │  zero bytes added behind a short packet:
///     │                                │  0 before and after a program
///  76 │ reserved     u32               │
///  80 │ fuel_used    u64               │  sum over all calls of the entry's modules
///  88 └────────────────────────────────┘
/// ```
pub mod hand_over {
    #![expect(missing_docs, reason = "the picture above")]
    pub const METADATA: u32 = 0;
    pub const VERDICT: u32 = 64;
    pub const TRAPPED: u32 = 68;
    pub const PADDED: u32 = 72;
    pub const FUEL_USED: u32 = 80;
    /// Size in bytes.
    pub const LENGTH: u32 = 88;
}

/// Record in the ring buffer to the cell: an event, a frame to be sent, or a message.
///
/// ```text
///   0 ┌────────────────────────────────┐
///     │ kind         u32               │  1: an event, 2: a frame, 3: a message
///   4 │ value        u32               │  the event's code, or the port; else 0
///   8 │ instance     u64               │  the instance that wrote it
///  16 │ length       u32               │  of the bytes
///  20 │ reserved     u32, 0            │
///     ├────────────────────────────────┤
///  24 │ the bytes                      │
///     └────────────────────────────────┘
/// ```
pub mod record {
    #![expect(missing_docs, reason = "the picture above")]
    pub const KIND: u32 = 0;
    pub const VALUE: u32 = 4;
    pub const INSTANCE: u32 = 8;
    pub const LENGTH: u32 = 16;
    pub const BYTES: u32 = 24;
    /// [`KIND`] of an event.
    pub const KIND_EVENT: u32 = 1;
    /// [`KIND`] of a frame.
    pub const KIND_FRAME: u32 = 2;
    /// [`KIND`] of a message to the modules before this one in the graph.
    pub const KIND_MESSAGE: u32 = 3;
}
