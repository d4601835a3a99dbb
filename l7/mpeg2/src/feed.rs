//! Feed: the part of an elementary stream that is kept, for codecs that are running and for those
//! that will start.
//!
//! ```text
//!         last cut before the shown picture  cursors of codecs  end
//!   ───────┬──────────────────────────────────────┬────────┬─────┐
//!   dropped│ kept                                 │        │     │ ◀─ push
//! ```

use crate::limits::KEPT_LENGTH_MAX;
use crate::scan::{Cut, Scanner};
use std::collections::VecDeque;
use units::Nanos;

/// Elementary stream, from the first byte that a codec may still need.
#[derive(Debug, Default)]
pub struct Feed {
    bytes: Vec<u8>,
    /// Number of leading bytes that have been dropped.
    dropped: usize,
    /// Position in the stream of the first byte kept.
    from: u64,
    scanner: Scanner,
    /// Cuts in the kept bytes; the first is before the picture shown.
    cuts: VecDeque<Cut>,
}

impl Feed {
    /// Appends bytes, and calls `found` for each position at which a codec can begin.
    pub fn push(&mut self, bytes: &[u8], mut found: impl FnMut(Cut)) {
        self.bytes.extend_from_slice(bytes);
        let there = self.bytes.get(self.dropped..).unwrap_or_default();
        let cuts = &mut self.cuts;
        self.scanner.read(self.from, there, |cut| {
            cuts.push_back(cut);
            found(cut);
        });
    }

    /// Returns the length of the stream so far, in bytes.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.from + (self.bytes.len() - self.dropped) as u64
    }

    /// Returns the last cut before the picture shown, as long as all bytes from there on are kept;
    /// otherwise the first one after it.
    #[must_use]
    pub fn cut(&self) -> Option<Cut> {
        self.cuts.front().copied()
    }

    /// Returns the last sequence header.
    #[must_use]
    pub fn headers(&self) -> &[u8] {
        self.scanner.headers()
    }

    /// Returns all bytes from a position on.
    #[must_use]
    pub fn since(&self, at: u64) -> &[u8] {
        let offset = usize::try_from(at.saturating_sub(self.from)).unwrap_or(usize::MAX);
        self.bytes.get(self.dropped.saturating_add(offset)..).unwrap_or_default()
    }

    /// Returns the bytes of memory held.
    #[must_use]
    pub const fn memory(&self) -> usize {
        self.bytes.len()
    }

    /// Drops the bytes before `before`, except those from the last cut before the picture shown at
    /// time `shown`, at which the next codec begins.
    pub fn forget(&mut self, before: u64, shown: Nanos) {
        let end = self.end();
        while self.cuts.get(1).is_some_and(|second| second.time <= shown) {
            self.cuts.pop_front();
        }
        while self.cuts.pop_front_if(|cut| end - cut.at > KEPT_LENGTH_MAX as u64).is_some() {}
        if end - self.scanner.needed_from() > KEPT_LENGTH_MAX as u64 {
            self.scanner.forget();
        }
        let kept =
            self.cuts.front().map_or(end, |cut| cut.at).min(self.scanner.needed_from()).min(before);
        let dropped = usize::try_from(kept.saturating_sub(self.from)).unwrap_or(0);
        self.dropped = (self.dropped + dropped).min(self.bytes.len());
        self.from += dropped as u64;
        // Bytes are moved only when at least as many are dropped as are left.
        if self.dropped * 2 >= self.bytes.len() {
            self.bytes.drain(..self.dropped);
            self.dropped = 0;
        }
    }
}
