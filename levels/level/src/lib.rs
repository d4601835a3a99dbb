//! What the levels agree on: the memory of an instance that can move between them; and what all of
//! them use.
//!
//! ```text
//!            ┌──────────────── one linear memory ───────────────┐
//!  user:     wasmtime reads and writes it through a mapping     │
//!  nic, kernel: eBPF reads and writes it as an arena            │
//!            └──────────────────────────────────────────────────┘
//! ```
//!
//! `levels/bpf` has such memory to give (an arena), `levels/engine` takes it;
//! neither knows the other. Who is in the memory at a time is decided by lanes,
//! not here.

pub mod ahead;

use std::fmt::Debug;

/// What a 32-bit address reaches.
pub const REACH: u64 = 1 << 32;
/// Behind the reach, so that a 32-bit address and a static offset up to this
/// need no check of their own in compiled code.
pub const GUARD: u64 = 32 << 20;

/// Linear memory that lies outside of a sandbox: its address 0 is [`address`].
///
/// [`address`]: SharedMemory::address
///
/// # Safety
/// For as long as the value lives, `length()` bytes from `address()` are
/// readable and writable by this process, the two never change, and nothing
/// else is mapped in the rest of [`REACH`] + [`GUARD`] bytes: an access there
/// faults. Rust code holds no reference into it.
pub unsafe trait SharedMemory: Debug + Send + Sync {
    /// Where it begins, on a page.
    fn address(&self) -> *mut u8;

    /// Its bytes, a multiple of 64 KiB.
    fn length(&self) -> usize;
}
