//! Compiler from WebAssembly to eBPF.
//!
//! ```text
//! bytes ─parse─▶ module ─build─▶ SSA ─passes─▶ SSA ─back─▶ Program
//!                  │               │                │
//!                  └───────────────┴─── Refusal ◀───┘   a typed reason, with its position
//! ```
//!
//! A pure function: no I/O, no clock, the same bytes out for the same
//! bytes in. Loads nothing and knows no maps, only where their descriptors
//! go. docs/design/compiler.md explains the translation, and why it is right.
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

/// Smallest fuel budget of one call: code that certainly costs less needs no check.
pub const FUEL_BUDGET_MIN: u64 = 65_536;

/// Compiles the functions that the entry reaches.
///
/// # Errors
/// All reasons why the module cannot become eBPF, each with its position.
pub fn compile(module: &[u8], options: &Options) -> Result<Program, Vec<Refusal>> {
    validate(module, options)?.finish()
}

/// Module that passed validation for eBPF: its initial image is known; code generation, which takes
/// most of the time, has not run.
#[derive(Debug)]
pub struct Validated {
    built: front::Built,
    options: Options,
}

/// Runs the first part of [`compile`].
///
/// # Errors
/// All reasons why the module cannot become eBPF, each with its position; code generation
/// may find more.
pub fn validate(module: &[u8], options: &Options) -> Result<Validated, Vec<Refusal>> {
    Ok(Validated { built: front::unit(module, options)?, options: options.clone() })
}

impl Validated {
    /// Returns the initial state of an instance: the same for every flavour.
    #[must_use]
    pub fn image(&self) -> &Image {
        &self.built.image
    }

    /// Runs the rest of [`compile`].
    ///
    /// # Errors
    /// Same as [`compile`].
    pub fn finish(self) -> Result<Program, Vec<Refusal>> {
        let Self { built: front::Built { mut unit, image, kept }, options } = self;
        passes::run(&mut unit, &options, kept)?;
        back::program(&unit, image, &options)
    }
}

/// Translates the functions that the entry reaches to SSA form, with the initial state of an
/// instance.
///
/// # Errors
/// All reasons why the module cannot become eBPF, each with its position.
#[doc(hidden)]
pub fn unit(module: &[u8], options: &Options) -> Result<(ir::Unit, Image), Vec<Refusal>> {
    let front::Built { mut unit, image, kept } = front::unit(module, options)?;
    passes::run(&mut unit, options, kept)?;
    Ok((unit, image))
}

/// Entry point of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Hook `on_packet`, with packet, metadata and verdict; ends in a tail call to
    /// [`MapKind::Afterwards`] or, with `standalone`, returns the verdict.
    Packet {
        /// Window of the manifest, bytes.
        window: u32,
        /// True for a standalone program, which returns the verdict (test-run, measurements)
        /// instead of continuing with the front door's second half.
        standalone: bool,
    },
    /// Exported function without a packet: arguments and results in the instance block, the window
    /// plain memory. Returns 0, or 1 after a trap.
    Export(String),
}

/// Options of a compilation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Entry point.
    pub entry: Entry,
    /// Kind of program, by level.
    pub flavour: Flavour,
    /// `memory_pages_max` of the manifest; the module's own maximum applies too.
    pub memory_pages_max: u32,
    /// Granted host functions; a module that imports another is refused.
    pub functions: HostFunctions,
}

/// WebAssembly function type of integers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Function {
    /// Types of the parameters.
    pub parameters: Vec<ValueType>,
    /// Types of the results.
    pub results: Vec<ValueType>,
}

/// Type of an argument or a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ValueType {
    /// 32-bit integer.
    I32,
    /// 64-bit integer.
    I64,
}

/// Cause of the early end of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[repr(u32)]
pub enum TrapCode {
    /// An `unreachable` instruction.
    Unreachable = 1,
    /// Access beyond the memory.
    OutOfBounds = 2,
    /// Division by zero.
    DivisionByZero = 3,
    /// Overflow of `INT_MIN / -1`.
    IntegerOverflow = 4,
    /// Index of a `call_indirect` beyond the table.
    TableOutOfBounds = 5,
    /// Null reference of a `call_indirect`.
    NullFunction = 6,
    /// Function of another type at a `call_indirect`.
    WrongSignature = 7,
    /// Fuel budget of the packet exhausted.
    OutOfFuel = 8,
    /// Kernel's own limit on loops (`may_goto`, 250 ms) reached.
    OutOfTime = 9,
    /// Value returned by `on_packet` that is no verdict.
    BadVerdict = 10,
    /// Preparation of the packet failed: no space behind a short one.
    Packet = 11,
}
