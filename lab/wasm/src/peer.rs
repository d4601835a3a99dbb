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
    /// Which engine.
    const ENGINE: &'static str;

    /// Calls an export; an `i32` has its bits in the low half.
    ///
    /// # Errors
    /// When there is no such function, or it takes or gives other than integers.
    fn call(&mut self, name: &str, arguments: &[u64]) -> Result<Outcome, PeerError> {
        self.try_call(name, arguments).map_err(|message| PeerError::Call {
            engine: Self::ENGINE,
            name: name.to_owned(),
            message,
        })
    }

    /// The same in the engine's own words.
    ///
    /// # Errors
    /// As [`Peer::call`].
    fn try_call(&mut self, name: &str, arguments: &[u64]) -> Result<Outcome, String>;

    /// The exported memory of that name.
    fn memory(&mut self, name: &str) -> Option<Vec<u8>>;

    /// The exported global of that name, if it is an integer.
    fn global(&mut self, name: &str) -> Option<u64>;
}

/// Arguments as an engine's values; `value` makes one, of an integer type.
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

/// What a call gave, of an engine's results as their [`bits`].
fn returned(results: impl Iterator<Item = Option<u64>>) -> Result<Outcome, String> {
    let bits: Option<_> = results.collect();
    bits.map(Outcome::Returned).ok_or_else(|| "a result is no integer".to_owned())
}

/// The bits of a value that is an `i32` or an `i64`; nothing for others.
fn bits(narrow: Option<i32>, wide: Option<i64>) -> Option<u64> {
    narrow.map(|number| u64::from(number as u32)).or(wide.map(|number| number as u64))
}
