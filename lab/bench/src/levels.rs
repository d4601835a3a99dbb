//! `tam bench levels`: two sets of packet functions as modules below user level,
//! against the same C compiled by clang as XDP programs.
//!
//! ```text
//!                    ┌─ clang --target=wasm32 ─▶ module ─ our compiler ─▶ ours
//! functions/NAME.c ──┼─ clang --target=bpf ────▶ tables in an arena ────▶ baseline
//!                    └─ the same ──────────────▶ tables in array maps ──▶ baseline
//! functions/NAME.toml: packets in, verdict and packets out, tables afterwards
//! ```
//!
//! All three pass the vectors before anything is measured. Then each packet of
//! the vectors is run over and over by each in turn, and an empty program beside
//! them, whose time is subtracted. No device is involved.

mod baseline;
pub(crate) mod cpu;
mod empty;
mod functions;
mod measure;
mod ours;
mod tables;
mod vectors;
mod verify;

use anyhow::Result;

pub use baseline::{Baseline, Kind};
pub use functions::{Function, NotBuilt, Set, functions};
pub use ours::Ours;
pub use tables::{Table, addresses};
pub use vectors::{Packet, State, Vectors, VectorsError};
pub use verify::{Difference, verify};

pub(crate) use functions::{nothing, sha1};
pub(crate) use measure::run;
pub use measure::{Measured, measure, measure_entry};

/// Function at a level, or as a baseline, that can be called.
pub trait Runner {
    /// Handles one packet; the tables keep their state for the next.
    ///
    /// # Errors
    /// The program cannot be run, or traps.
    fn handle(&mut self, packet: &[u8], now_ms: u64) -> Result<Handled>;

    /// Returns an entry of one of the function's tables.
    ///
    /// # Errors
    /// The table has no such entry.
    fn entry(&mut self, table: &Table, index: u32) -> Result<Vec<u8>>;
}

/// Result of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handled {
    /// Verdict, encoded as in the module ABI.
    pub verdict: u32,
    /// Packet after the call.
    pub packet: Vec<u8>,
}
