//! Memory limits of an instance: its own, and those of an account.

use crate::thread_bound::ThreadBound;
use std::fmt::Debug;
use std::rc::Rc;
use wasmtime::ResourceLimiter;

/// Size of a table element, bytes: a pointer to a function.
const ELEMENT_LENGTH: u64 = size_of::<usize>() as u64;

/// Kind of memory of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Linear memory.
    Memory,
    /// Tables.
    Tables,
    /// State being handed over.
    State,
}

/// Account of the memory that instances use.
pub trait MemoryAccount: Debug {
    /// Charges `bytes` to the account; returns false, charging nothing, when its limit does not
    /// allow it.
    fn take(&self, part: Part, bytes: u64) -> bool;

    /// Credits `bytes` to the account.
    fn give(&self, part: Part, bytes: u64);
}

/// Limits of an instance's memory, with the current use. Dropping them credits the growth of the
/// instance.
#[derive(Debug)]
pub struct Limits {
    bytes_max: usize,
    elements_max: usize,
    room: ThreadBound<Option<Rc<dyn MemoryAccount>>>,
    /// True if all memory was charged by the provider of the shared memory.
    is_paid: bool,
    memory: u64,
    tables: u64,
    /// Table growth in bytes that may yet fail.
    growing: u64,
    state: u64,
}

impl Limits {
    /// Makes limits of bytes of memory and elements of tables, charged to an account. `is_paid`:
    /// the provider of the shared memory has charged all of it.
    pub fn new(
        (bytes_max, elements_max): (usize, usize),
        room: Option<Rc<dyn MemoryAccount>>,
        is_paid: bool,
    ) -> Self {
        let room = ThreadBound::new(room);
        let (memory, tables, growing, state) = (0, 0, 0, 0);
        Self { bytes_max, elements_max, room, is_paid, memory, tables, growing, state }
    }

    /// Charges `bytes` that the caller keeps count of; returns false when the account refuses.
    pub fn take(&self, part: Part, bytes: u64) -> bool {
        bytes == 0 || self.room.as_ref().is_none_or(|room| room.take(part, bytes))
    }

    /// Credits `bytes` of that.
    pub fn give(&self, part: Part, bytes: u64) {
        if let Some(room) = self.room.as_ref().filter(|_| bytes > 0) {
            room.give(part, bytes);
        }
    }

    /// Charges `bytes` more of state to keep for the next instance; returns false when the account
    /// refuses.
    pub(crate) fn take_state(&mut self, bytes: usize) -> bool {
        let bytes = bytes as u64;
        let is_taken = self.take(Part::State, bytes);
        self.state += if is_taken { bytes } else { 0 };
        is_taken
    }

    /// Hands the charge of the state over to its new owner.
    pub(crate) fn give_state(&mut self) {
        let state = std::mem::take(&mut self.state);
        self.give(Part::State, state);
    }
}

impl Drop for Limits {
    fn drop(&mut self) {
        self.give_state();
        self.give(Part::Memory, self.memory);
        self.give(Part::Tables, self.tables);
    }
}

impl ResourceLimiter for Limits {
    fn memory_growing(
        &mut self,
        now: usize,
        wanted: usize,
        most: Option<usize>,
    ) -> wasmtime::Result<bool> {
        if wanted > self.bytes_max || most.is_some_and(|most| wanted > most) {
            return Ok(false);
        }
        if self.is_paid {
            return Ok(true);
        }
        // A growth that the kernel refused after it was charged here is credited with the next one:
        // wasmtime reports that some failed, but not which.
        let now = now as u64;
        self.give(Part::Memory, self.memory.saturating_sub(now));
        self.memory = now;
        let more = (wanted as u64).saturating_sub(now);
        let is_taken = self.take(Part::Memory, more);
        self.memory += if is_taken { more } else { 0 };
        Ok(is_taken)
    }

    fn table_growing(
        &mut self,
        now: usize,
        wanted: usize,
        most: Option<usize>,
    ) -> wasmtime::Result<bool> {
        if wanted > self.elements_max || most.is_some_and(|most| wanted > most) {
            return Ok(false);
        }
        let more = wanted.saturating_sub(now) as u64 * ELEMENT_LENGTH;
        let is_taken = self.take(Part::Tables, more);
        self.growing = if is_taken { more } else { 0 };
        self.tables += self.growing;
        Ok(is_taken)
    }

    fn table_grow_failed(&mut self, _: wasmtime::Error) -> wasmtime::Result<()> {
        let failed = std::mem::take(&mut self.growing);
        self.tables -= failed;
        self.give(Part::Tables, failed);
        Ok(())
    }
}
