//! What an instance may have of memory: its own limits, and whoever keeps account of it.

use crate::thread_bound::ThreadBound;
use std::fmt::Debug;
use std::rc::Rc;
use wasmtime::ResourceLimiter;

/// What one of them takes: a pointer to a function.
const ELEMENT_LENGTH: u64 = size_of::<usize>() as u64;

/// What an instance wants memory for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Its linear memory.
    Memory,
    /// Its tables.
    Tables,
    /// The state that it hands over.
    State,
}

/// Who keeps account of what instances have.
pub trait Room: Debug {
    /// Whether an instance may have so many bytes more; if so, it has them.
    fn take(&self, part: Part, bytes: u64) -> bool;

    /// It has so many less.
    fn give(&self, part: Part, bytes: u64);
}

/// The memory that an instance may take, and what it has. Dropped, it gives back what the
/// instance has grown by.
#[derive(Debug)]
pub struct Limits {
    bytes_max: usize,
    elements_max: usize,
    room: ThreadBound<Option<Rc<dyn Room>>>,
    /// Whoever gave it its memory has paid for all of it.
    is_paid: bool,
    memory: u64,
    tables: u64,
    /// Of tables, by the growth that may yet fail.
    growing: u64,
    state: u64,
}

impl Limits {
    /// So many bytes of memory and elements of tables at most, on that account. `is_paid`:
    /// whoever gave it its memory has paid for all of it.
    pub fn new(
        (bytes_max, elements_max): (usize, usize),
        room: Option<Rc<dyn Room>>,
        is_paid: bool,
    ) -> Self {
        let room = ThreadBound::new(room);
        let (memory, tables, growing, state) = (0, 0, 0, 0);
        Self { bytes_max, elements_max, room, is_paid, memory, tables, growing, state }
    }

    /// Takes so much for what the caller keeps count of. Whether there was room.
    pub fn take(&self, part: Part, bytes: u64) -> bool {
        bytes == 0 || self.room.as_ref().is_none_or(|room| room.take(part, bytes))
    }

    /// Gives so much of that back.
    pub fn give(&self, part: Part, bytes: u64) {
        if let Some(room) = self.room.as_ref().filter(|_| bytes > 0) {
            room.give(part, bytes);
        }
    }

    /// Whether so much state more may be kept for the next instance.
    pub(crate) fn take_state(&mut self, bytes: usize) -> bool {
        let bytes = bytes as u64;
        let is_taken = self.take(Part::State, bytes);
        self.state += if is_taken { bytes } else { 0 };
        is_taken
    }

    /// The state is somebody else's now.
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
        // A growth that the kernel refused after it was taken here is given back with the next
        // one: wasmtime says that some failed, but not which.
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
