//! Other engines behind one interface: instantiate, call, read memory and globals.
//!
//! The kernel's results are compared with theirs, so nothing here is clever.

mod wasmi_peer;
mod wasmtime_peer;

use crate::outcome::Outcome;

pub use wasmi_peer::Wasmi;
pub use wasmtime_peer::Wasmtime;

/// Work that a call may do before it counts as endless; bulk operations count by bytes.
const FUEL: u64 = 1 << 40;

/// Reason why a peer has no result for a module or a call.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// The engine refuses the module, or its start function trapped.
    #[error("{engine} does not instantiate the module: {message}")]
    Module {
        /// Name of the engine.
        engine: &'static str,
        /// Message of the engine.
        message: String,
    },
    /// The call involves a type that no integer module has.
    #[error("{engine} cannot call '{name}': {message}")]
    Call {
        /// Name of the engine.
        engine: &'static str,
        /// Name of the export.
        name: String,
        /// Message of the engine.
        message: String,
    },
}

/// Instance in one engine. The module exports everything that is compared.
pub trait Peer {
    /// Name of the engine.
    const ENGINE: &'static str;

    /// Calls an export; an `i32` has its bits in the low half.
    ///
    /// # Errors
    /// The function does not exist, or it has parameters or results that are no integers.
    fn call(&mut self, name: &str, arguments: &[u64]) -> Result<Outcome, PeerError> {
        self.try_call(name, arguments).map_err(|message| PeerError::Call {
            engine: Self::ENGINE,
            name: name.to_owned(),
            message,
        })
    }

    /// Calls an export; errors are the engine's own messages.
    ///
    /// # Errors
    /// Same as [`Peer::call`].
    fn try_call(&mut self, name: &str, arguments: &[u64]) -> Result<Outcome, String>;

    /// Returns the exported memory of that name.
    fn memory(&mut self, name: &str) -> Option<Vec<u8>>;

    /// Returns the exported global of that name, if it is an integer.
    fn global(&mut self, name: &str) -> Option<u64>;
}

/// Converts arguments to an engine's values; `value` makes one of an integer type.
fn values<T, V>(
    types: impl ExactSizeIterator<Item = T>,
    arguments: &[u64],
    value: impl Fn(T, u64) -> Option<V>,
) -> Result<Vec<V>, String> {
    if types.len() != arguments.len() {
        return Err(format!("it takes {} arguments", types.len()));
    }
    let values: Option<_> = types.zip(arguments).map(|(ty, bits)| value(ty, *bits)).collect();
    values.ok_or_else(|| "an argument is no integer".to_owned())
}

/// Returns the outcome of a call from the engine's results as their [`bits`].
fn returned(results: impl Iterator<Item = Option<u64>>) -> Result<Outcome, String> {
    let bits: Option<_> = results.collect();
    bits.map(Outcome::Returned).ok_or_else(|| "a result is no integer".to_owned())
}

/// Returns the bits of an `i32` or an `i64`; `None` for other values.
fn bits(narrow: Option<i32>, wide: Option<i64>) -> Option<u64> {
    narrow.map(|number| u64::from(number as u32)).or(wide.map(|number| number as u64))
}
