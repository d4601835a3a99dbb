//! Bytes that wait for the kernel to take them.

use crate::limits::SEND_LENGTH_MAX;

/// Bytes in order: written behind, taken in front.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    bytes: Vec<u8>,
    /// So many of them have been taken.
    from: usize,
}

impl Outgoing {
    pub(crate) const fn len(&self) -> usize {
        self.bytes.len() - self.from
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether more is to wait until some of it has been taken.
    pub(crate) const fn is_full(&self) -> bool {
        self.len() >= SEND_LENGTH_MAX
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[self.from..]
    }

    /// Where more is written.
    pub(crate) const fn end(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// So many bytes have been taken.
    pub(crate) fn take(&mut self, count: usize) {
        self.from += count.min(self.len());
        if self.is_empty() {
            self.clear();
        } else if self.from >= SEND_LENGTH_MAX && self.from >= self.len() {
            // What is left is moved when at least as much is gone.
            self.bytes.drain(..self.from);
            self.from = 0;
        }
    }

    /// What waits is of no use any more.
    pub(crate) fn clear(&mut self) {
        (self.from, self.bytes) = (0, std::mem::take(&mut self.bytes));
        self.bytes.clear();
        self.bytes.shrink_to(2 * SEND_LENGTH_MAX);
    }
}
