//! Encoding of a response's body.

use crate::foreign_calls::CodingOrder;
use crate::limits::LEVEL_LENGTH;
use content_coding::{Encoder, Failed, Level, Load, Pool, choose_level, measured, memory_bytes};
use units::Held;

/// Encoder with its reserved memory.
#[derive(Debug)]
pub(crate) struct Coder {
    encoder: Encoder,
    /// Memory reserved for the encoder, released with it.
    memory: Held,
    is_chosen_here: bool,
    /// Bytes until the level is chosen again.
    until_choice: usize,
    has_unflushed: bool,
    /// Coded bytes that are not sent yet.
    out: Vec<u8>,
}

/// Returns the level for the load; the present one if the load is unknown.
fn level(encoder: &Encoder, load: Option<Load>) -> Level {
    load.map_or(Level::DEFAULT, |load| choose_level(load, measured(encoder.coding())))
}

impl Coder {
    pub(crate) fn new(order: CodingOrder, pool: &Pool) -> Self {
        let CodingOrder { coding, level, memory } = order;
        Self {
            encoder: pool.encoder(coding, level.unwrap_or(Level::DEFAULT)),
            memory,
            is_chosen_here: level.is_none(),
            until_choice: 0,
            has_unflushed: false,
            out: Vec::new(),
        }
    }

    /// Encodes a part of the body. `load` is `None` if unknown.
    pub(crate) fn write(&mut self, bytes: &[u8], load: Option<Load>) -> Result<(), Failed> {
        self.has_unflushed |= !bytes.is_empty();
        if self.is_chosen_here && self.until_choice == 0 {
            self.until_choice = LEVEL_LENGTH;
            let level = level(&self.encoder, load);
            // Without memory for another level the present one is kept.
            if level != self.encoder.level()
                && self.memory.grow(memory_bytes(self.encoder.coding(), level))
            {
                self.encoder.set_level(level, &mut self.out)?;
            }
        }
        self.until_choice = self.until_choice.saturating_sub(bytes.len());
        self.encoder.write(bytes, &mut self.out)
    }

    /// Returns the number of coded bytes that are not sent yet.
    pub(crate) const fn unsent(&self) -> usize {
        self.out.len()
    }

    /// Takes the coded bytes for sending.
    pub(crate) fn take_out(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }

    /// Returns the buffer of [`Self::take_out`] for reuse, emptied.
    pub(crate) fn reuse_out(&mut self, out: Vec<u8>) {
        self.out = out;
    }

    /// Returns true if there was input since the last flush.
    pub(crate) const fn has_unflushed(&self) -> bool {
        self.has_unflushed
    }

    pub(crate) fn flush(&mut self) -> Result<(), Failed> {
        self.has_unflushed = false;
        self.encoder.flush(&mut self.out)
    }

    pub(crate) fn finish(&mut self) -> Result<(), Failed> {
        self.has_unflushed = false;
        self.encoder.finish(&mut self.out)
    }
}
