//! What of an elementary stream is kept, for codecs that are fed and for those that will begin.
//!
//! ```text
//!        last cut         cursor of one codec       of another    end
//!  ───────┬───────────────────┬───────────────────────┬───────────┐
//!  forgot │ kept              │                       │           │ ◀─ push
//! ```

use crate::limits::KEPT_LENGTH_MAX;
use crate::scan::Scanner;
use units::Nanos;

/// A place at which a codec can begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Bytes of the stream before it.
    pub at: u64,
    /// Whether a sequence header is there; else [`Feed::headers`] go before it.
    pub has_headers: bool,
    /// When its first picture is shown.
    pub time: Nanos,
}

/// An elementary stream, from where somebody may still want it.
#[derive(Debug, Default)]
pub struct Feed {
    bytes: Vec<u8>,
    /// So many of them are gone.
    gone: usize,
    /// Bytes of the stream before those that are there.
    from: u64,
    scanner: Scanner,
    cut: Option<Cut>,
}

impl Feed {
    /// More has come; `found` is told of each place at which a codec can begin.
    pub fn push(&mut self, bytes: &[u8], mut found: impl FnMut(Cut)) {
        self.bytes.extend_from_slice(bytes);
        let there = self.bytes.get(self.gone..).unwrap_or_default();
        let mut last = self.cut;
        self.scanner.read(self.from, there, |cut| {
            last = Some(cut);
            found(cut);
        });
        self.cut = last;
    }

    /// Bytes of the stream so far.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.from + (self.bytes.len() - self.gone) as u64
    }

    /// The last place at which a codec can begin, as long as all from there on is kept.
    #[must_use]
    pub const fn cut(&self) -> Option<Cut> {
        self.cut
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

    /// Nobody wants what is before this place, but who may begin at the last cut.
    pub fn forget(&mut self, before: u64) {
        let end = self.end();
        if self.cut.is_some_and(|cut| end - cut.at > KEPT_LENGTH_MAX as u64) {
            self.cut = None;
        }
        if end - self.scanner.needs() > KEPT_LENGTH_MAX as u64 {
            self.scanner.forget();
        }
        let kept = self.cut.map_or(end, |cut| cut.at).min(self.scanner.needs()).min(before);
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
