//! What of an elementary stream is kept, for codecs that are fed and for those that will begin.
//!
//! ```text
//!        cut in front of what is shown      cursors of codecs  end
//!  ───────┬──────────────────────────────────────┬────────┬─────┐
//!  forgot │ kept                                 │        │     │ ◀─ push
//! ```

use crate::limits::KEPT_LENGTH_MAX;
use crate::scan::{Cut, Scanner};
use std::collections::VecDeque;
use units::Nanos;

/// An elementary stream, from where somebody may still want it.
#[derive(Debug, Default)]
pub struct Feed {
    bytes: Vec<u8>,
    /// So many of them are gone.
    gone: usize,
    /// Bytes of the stream before those that are there.
    from: u64,
    scanner: Scanner,
    /// Those that are kept, the first one in front of what is shown.
    cuts: VecDeque<Cut>,
}

impl Feed {
    /// More has come; `found` is told of each place at which a codec can begin.
    pub fn push(&mut self, bytes: &[u8], mut found: impl FnMut(Cut)) {
        self.bytes.extend_from_slice(bytes);
        let there = self.bytes.get(self.gone..).unwrap_or_default();
        let cuts = &mut self.cuts;
        self.scanner.read(self.from, there, |cut| {
            cuts.push_back(cut);
            found(cut);
        });
    }

    /// Bytes of the stream so far.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.from + (self.bytes.len() - self.gone) as u64
    }

    /// The last place in front of what is shown at which a codec can begin, as long as all from there
    /// on is kept; else the first one behind.
    #[must_use]
    pub fn cut(&self) -> Option<Cut> {
        self.cuts.front().copied()
    }

    /// The last sequence header.
    #[must_use]
    pub fn headers(&self) -> &[u8] {
        self.scanner.headers()
    }

    /// All from a place on.
    #[must_use]
    pub fn since(&self, at: u64) -> &[u8] {
        let place = usize::try_from(at.saturating_sub(self.from)).unwrap_or(usize::MAX);
        self.bytes.get(self.gone.saturating_add(place)..).unwrap_or_default()
    }

    /// Bytes that it has.
    #[must_use]
    pub const fn memory(&self) -> usize {
        self.bytes.len()
    }

    /// Nobody wants what is before this place, but who begins at the last cut in front of the picture
    /// that is shown at this time.
    pub fn forget(&mut self, before: u64, shown: Nanos) {
        let end = self.end();
        while self.cuts.get(1).is_some_and(|second| second.time <= shown) {
            self.cuts.pop_front();
        }
        while self.cuts.pop_front_if(|cut| end - cut.at > KEPT_LENGTH_MAX as u64).is_some() {}
        if end - self.scanner.needs() > KEPT_LENGTH_MAX as u64 {
            self.scanner.forget();
        }
        let kept =
            self.cuts.front().map_or(end, |cut| cut.at).min(self.scanner.needs()).min(before);
        let gone = usize::try_from(kept.saturating_sub(self.from)).unwrap_or(0);
        self.gone = (self.gone + gone).min(self.bytes.len());
        self.from += gone as u64;
        // Moved when at least as much is gone as is left.
        if self.gone * 2 >= self.bytes.len() {
            self.bytes.drain(..self.gone);
            self.gone = 0;
        }
    }
}
