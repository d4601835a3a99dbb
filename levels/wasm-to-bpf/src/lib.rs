//! The compiler from WebAssembly to eBPF.
//!
//! ```text
//! bytes ─parse─▶ module ─build─▶ SSA ─passes─▶ SSA ─back─▶ Program
//!                  │               │                │
//!                  └───────────────┴─── Refusal ◀───┘   a typed reason, with its place
//! ```
//!
//! It is a pure function: no I/O, no clock, the same bytes out for the same
//! bytes in. It loads nothing and knows no maps, only where their descriptors
//! go. How the translation works, and why it is right, is in docs/design/compiler.md.
#![forbid(unsafe_code)]

mod back;
mod front;
#[cfg(test)]
mod interpret;
pub mod ir;
pub mod layout;
mod passes;
mod program;
mod refusal;
#[cfg(test)]
mod tests;
mod text;

use abi::HostFunctions;
use serde::{Deserialize, Serialize};

pub use program::{Cost, Flavour, Image, MapKind, MapReference, Program, ProgramFunction};
pub use refusal::{Reason, Refusal};

/// The least budget of one call: the compiler need not check what certainly
/// costs less.
pub const FUEL_BUDGET_MIN: u64 = 65_536;

/// Compiles what the entry reaches.
///
/// # Errors
/// What cannot become eBPF, each with its place.
pub fn compile(module: &[u8], options: &Options) -> Result<Program, Vec<Refusal>> {
    begin(module, options)?.finish()
}

/// A module of which nothing is known any more that stands against its becoming eBPF, before
/// the time that compiling it takes: what an instance begins with is settled.
#[derive(Debug)]
pub struct Begun {
    built: front::Built,
    options: Options,
}

/// The first part of [`compile`].
///
/// # Errors
/// What cannot become eBPF, each with its place; compiling it may find more.
pub fn begin(module: &[u8], options: &Options) -> Result<Begun, Vec<Refusal>> {
    Ok(Begun { built: front::unit(module, options)?, options: options.clone() })
}

impl Begun {
    /// What an instance begins with: the same for every flavour.
    #[must_use]
    pub fn image(&self) -> &Image {
        &self.built.image
    }

    /// The rest of [`compile`].
    ///
    /// # Errors
    /// As there.
    pub fn finish(self) -> Result<Program, Vec<Refusal>> {
        let Self { built: front::Built { mut unit, image, kept }, options } = self;
        passes::run(&mut unit, &options, kept)?;
        back::program(&unit, image, &options)
    }
}

/// All that the entry reaches, in SSA form, and what an instance begins with.
///
/// # Errors
/// What cannot become eBPF, each with its place.
#[doc(hidden)]
pub fn unit(module: &[u8], options: &Options) -> Result<(ir::Unit, Image), Vec<Refusal>> {
    let front::Built { mut unit, image, kept } = front::unit(module, options)?;
    passes::run(&mut unit, options, kept)?;
    Ok((unit, image))
}

/// What is to be compiled out of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// `on_packet`, with packet, metadata and verdict; ends in a tail call to
    /// [`MapKind::Afterwards`] or, with `standalone`, returns the verdict.
    Packet {
        /// The manifest's `window`, bytes.
        window: u32,
        /// Whether it runs alone: the program returns the verdict as it is (test-run,
        /// measurements) instead of going on to the front door's second half.
        standalone: bool,
    },
    /// An exported function without a packet: arguments and results in the
    /// instance block, the window plain memory. Returns 0, or 1 after a trap.
    Export(String),
}

/// How to compile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// What.
    pub entry: Entry,
    /// For which level.
    pub flavour: Flavour,
    /// The manifest's `memory_pages_max`; the module's own maximum binds too.
    pub memory_pages_max: u32,
    /// The host functions that are granted; a module that imports another is refused.
    pub functions: HostFunctions,
}

/// A WebAssembly function type of integers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Function {
    /// Parameters.
    pub parameters: Vec<ValueType>,
    /// Results.
    pub results: Vec<ValueType>,
}

/// A type that crosses the border.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ValueType {
    /// 32 bits.
    I32,
    /// 64 bits.
    I64,
}

/// Why a call ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[repr(u32)]
pub enum TrapCode {
    /// `unreachable`.
    Unreachable = 1,
    /// An access beyond the memory.
    OutOfBounds = 2,
    /// A division by zero.
    DivisionByZero = 3,
    /// `INT_MIN / -1`.
    IntegerOverflow = 4,
    /// `call_indirect` beyond the table.
    TableOutOfBounds = 5,
    /// `call_indirect` of an empty place.
    NullFunction = 6,
    /// `call_indirect` of another type.
    WrongSignature = 7,
    /// The packet's budget is spent.
    OutOfFuel = 8,
    /// The kernel's own limit on loops (`may_goto`, 250 ms) was reached.
    OutOfTime = 9,
    /// `on_packet` returned no verdict.
    BadVerdict = 10,
    /// The packet could not be made ready: no room behind a short one.
    Packet = 11,
}
