//! The other engines, behind one face: instantiate, call, look at memory and globals.
//!
//! They are what the kernel's answers are compared with, so nothing here is clever.

mod wasmi_peer;
mod wasmtime_peer;

use crate::outcome::Outcome;

pub use wasmi_peer::Wasmi;
pub use wasmtime_peer::Wasmtime;

/// Work that a call may do before it counts as endless; bulk operations count by bytes.
const FUEL: u64 = 1 << 40;

/// Why a peer cannot say anything of a module or a call.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// It does not take the module, or its start trapped.
    #[error("{engine} does not instantiate the module: {message}")]
    Module {
        /// Which engine.
        engine: &'static str,
        /// Why.
        message: String,
    },
    /// Something that no integer module has.
    #[error("{engine} cannot call '{name}': {message}")]
    Call {
        /// Which engine.
        engine: &'static str,
        /// The export.
        name: String,
        /// Why.
        message: String,
    },
}

/// One instance in one engine. The module exports what is looked at.
pub trait Peer {
    /// Calls an export; an `i32` has its bits in the low half.
    ///
    /// # Errors
    /// When there is no such function, or it takes or gives other than integers.
    fn call(&mut self, name: &str, arguments: &[u64]) -> Result<Outcome, PeerError>;

    /// The exported memory of that name.
    fn memory(&mut self, name: &str) -> Option<Vec<u8>>;

    /// The exported global of that name, if it is an integer.
    fn global(&mut self, name: &str) -> Option<u64>;
}
