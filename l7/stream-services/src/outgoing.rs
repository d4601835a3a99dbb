//! Buffer of bytes for the kernel to accept.

use crate::limits::SEND_LENGTH_MAX;

/// FIFO of bytes: written at the end, taken from the front.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    bytes: Vec<u8>,
    /// Number of leading bytes that were taken.
    from: usize,
}

impl Outgoing {
    pub(crate) const fn len(&self) -> usize {
        self.bytes.len() - self.from
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns true if no more should be written until some was taken.
    pub(crate) const fn is_full(&self) -> bool {
        self.len() >= SEND_LENGTH_MAX
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[self.from..]
    }

    /// Returns the buffer to write to.
    pub(crate) const fn end(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Removes `count` bytes from the front.
    pub(crate) fn take(&mut self, count: usize) {
        self.from += count.min(self.len());
        if self.is_empty() {
            self.clear();
        } else if self.from >= SEND_LENGTH_MAX && self.from >= self.len() {
            // Bytes are moved only when at least as many are gone.
            self.bytes.drain(..self.from);
            self.from = 0;
        }
    }

    /// Drops all bytes.
    pub(crate) fn clear(&mut self) {
        (self.from, self.bytes) = (0, std::mem::take(&mut self.bytes));
        self.bytes.clear();
        self.bytes.shrink_to(2 * SEND_LENGTH_MAX);
    }
}
