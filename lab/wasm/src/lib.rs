//! The compiler's output in the kernel, compared with the official test suite
//! and with two other engines.
//!
//! ```text
//!             ┌─ wasm-to-bpf ─ bpf ─▶ kernel (test-run) ─┐
//! module ─────┼─ wasmtime ───────────────────────────────┼─▶ equal: results, traps,
//!             └─ wasmi ──────────────────────────────────┘   memory, globals
//! ```
//!
//! A tool of development with its tests; nothing of a node uses it. It also has
//! the glue between the compiler and the loader, which know nothing of each other.
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
