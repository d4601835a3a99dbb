//! State on its way from one instance to the one that takes its place.
//!
//! ```text
//!  the same memory image      memory, globals ─▶ in place before on_start
//!  state_out, state_in        bytes of the module's choice ─▶ state_in after on_start; counters by name
//! ```

/// What an instance leaves to the next one.
#[derive(Debug)]
pub enum Kept {
    /// Its memory and mutable globals as they are: the next one has the same code and constants
    /// at the same places.
    Memory {
        /// All of linear memory.
        bytes: Vec<u8>,
        /// Mutable globals by index.
        globals: Vec<(u32, u64)>,
    },
    /// What its `state_out` wrote.
    Handed {
        /// The bytes, in the order in which they were written.
        bytes: Vec<u8>,
        /// Its counters by name: they go on counting.
        counters: Vec<(String, u64)>,
    },
}

impl Kept {
    /// Bytes of it, but for globals and counters.
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
