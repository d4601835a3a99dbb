//! Comparison of the compiler's output in the kernel with the official test suite and with two
//! other engines.
//!
//! ```text
//!             ┌─ wasm-to-bpf ─ bpf ─▶ kernel (test-run) ─┐
//! module ─────┼─ wasmtime ───────────────────────────────┼─▶ equal: results, traps,
//!             └─ wasmi ──────────────────────────────────┘   memory, globals
//! ```
//!
//! A development tool with its tests; no part of a node uses it. It also connects the compiler and
//! the loader, which do not depend on each other.
#![forbid(unsafe_code)]

mod compile;
mod kernel;
mod outcome;
mod peer;
pub mod random;
pub mod suite;

pub use kernel::{Instance, KernelError, Loaded};
pub use outcome::{Ending, Outcome};
pub use peer::{Peer, PeerError, Wasmi, Wasmtime};
