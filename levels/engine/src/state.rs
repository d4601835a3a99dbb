//! State handed over from one instance to its replacement.
//!
//! ```text
//!  the same memory image      memory, globals ─▶ in place before on_start
//!  state_out, state_in        bytes of the module's choice ─▶ state_in after on_start; counters by name
//! ```

/// State of an instance for its replacement.
#[derive(Debug)]
pub enum Kept {
    /// Memory and mutable globals: the replacement has the same code and constants at the same
    /// addresses.
    Memory {
        /// Contents of linear memory.
        bytes: Vec<u8>,
        /// Mutable globals by index.
        globals: Vec<(u32, u64)>,
    },
    /// Output of `state_out`.
    Handed {
        /// Bytes in the order in which they were written.
        bytes: Vec<u8>,
        /// Counters by name, which continue.
        counters: Vec<(String, u64)>,
    },
}

impl Kept {
    /// Returns the number of bytes, without globals and counters.
    #[must_use]
    pub const fn length(&self) -> u64 {
        match self {
            Self::Memory { bytes, .. } | Self::Handed { bytes, .. } => bytes.len() as u64,
        }
    }
}

/// Returns the counter at an address of linear memory.
pub(crate) fn counter_at(memory: &[u8], address: u32) -> Option<u64> {
    let bytes = memory.get(address as usize..)?.first_chunk()?;
    Some(u64::from_le_bytes(*bytes))
}
