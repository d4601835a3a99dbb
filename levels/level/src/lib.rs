//! Shared contract of the execution levels: the memory of an instance that can move between them,
//! and helpers that every level uses.
//!
//! ```text
//!            ┌──────────────── one linear memory ───────────────┐
//!  user:     wasmtime reads and writes it through a mapping     │
//!  nic, kernel: eBPF reads and writes it as an arena            │
//!            └──────────────────────────────────────────────────┘
//! ```
//!
//! `levels/bpf` provides such memory (an arena), `levels/engine` uses it;
//! neither depends on the other. Mutual exclusion is the job of lanes, not of this crate.

pub mod prefetch;

use std::fmt::Debug;

/// Size of the address space that a 32-bit address covers, bytes.
pub const REACH: u64 = 1 << 32;
/// Guard region after [`REACH`], bytes: compiled code needs no bounds check for a 32-bit address
/// plus a static offset up to this.
pub const GUARD: u64 = 32 << 20;

/// Linear memory that lies outside of a sandbox: its address 0 is [`address`].
///
/// [`address`]: SharedMemory::address
///
/// # Safety
/// The value's `length()` bytes from `address()` are, for as long as it lives,
/// readable and writable by this process, the two never change, and nothing
/// else is mapped in the rest of [`REACH`] + [`GUARD`] bytes: an access there
/// faults. Rust code holds no reference into it.
pub unsafe trait SharedMemory: Debug + Send + Sync {
    /// Returns the address of the first byte, aligned to a page.
    fn address(&self) -> *mut u8;

    /// Returns the length in bytes, a multiple of 64 KiB.
    fn length(&self) -> usize;
}
