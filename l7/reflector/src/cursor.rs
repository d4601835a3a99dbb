//! Cursor: one listener's position in the stream, and the pieces it gets from there.
//!
//! ```text
//!   lead (PAT and PMT, or the rest of a frame) ─▶ payload ─▶ payload ─▶ …
//!   └────────── a block every ICY_INTERVAL bytes, if it asked for titles ──┘
//! ```

use crate::icy::Block;
use crate::limits::ICY_INTERVAL;
use crate::store::Store;
use std::ops::Deref;
use std::sync::Arc;

/// Bytes for a listener: a slice of the ring, or shared bytes.
#[derive(Clone, Debug)]
pub struct Piece<'r>(Kind<'r>);

#[derive(Clone, Debug)]
enum Kind<'r> {
    Ring(&'r [u8]),
    Shared { bytes: Arc<[u8]>, from: usize, to: usize },
}

impl Deref for Piece<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Kind::Ring(bytes) => bytes,
            Kind::Shared { bytes, from, to } => bytes.get(*from..*to).unwrap_or_default(),
        }
    }
}

impl Piece<'_> {
    fn truncate(&mut self, length: usize) {
        match &mut self.0 {
            Kind::Ring(bytes) => *bytes = &bytes[..length.min(bytes.len())],
            Kind::Shared { from, to, .. } => *to = (*to).min(from.saturating_add(length)),
        }
    }
}

/// Iterator over the pieces for one listener, in order: for `writev`, without a copy.
#[derive(Debug)]
pub struct Pieces<'r> {
    cursor: Option<Cursor>,
    store: &'r Store,
    left: usize,
}

impl<'r> Pieces<'r> {
    pub(crate) fn new(cursor: Option<Cursor>, store: &'r Store, limit: usize) -> Self {
        Self { cursor, store, left: limit }
    }
}

impl<'r> Iterator for Pieces<'r> {
    type Item = Piece<'r>;

    fn next(&mut self) -> Option<Piece<'r>> {
        let cursor = self.cursor.as_mut().filter(|_| self.left > 0)?;
        let mut piece = cursor.piece(self.store)?;
        piece.truncate(self.left);
        self.left -= piece.len();
        cursor.advance(piece.len(), self.store);
        Some(piece)
    }
}

/// Bytes to be sent from an offset on.
#[derive(Clone, Debug)]
struct Segment {
    bytes: Arc<[u8]>,
    at: usize,
}

impl Segment {
    fn new(bytes: Arc<[u8]>) -> Option<Self> {
        (!bytes.is_empty()).then_some(Self { bytes, at: 0 })
    }

    fn piece(&self, limit: usize) -> Piece<'static> {
        let to = self.bytes.len().min(self.at.saturating_add(limit));
        Piece(Kind::Shared { bytes: Arc::clone(&self.bytes), from: self.at, to })
    }

    /// Returns the rest after `length` more bytes.
    fn after(self, length: usize) -> Option<Self> {
        let at = self.at.saturating_add(length);
        (at < self.bytes.len()).then_some(Self { at, ..self })
    }
}

/// Metadata state of a listener that asked for titles.
#[derive(Clone, Debug)]
struct Titles {
    /// Bytes of payload until the next block.
    until: u32,
    block: Option<Segment>,
    /// Number of the title that was sent last.
    has: Option<u64>,
}

/// Kind of stream that a listener has asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wants {
    /// Media without metadata.
    Media,
    /// Media with titles, requested with `Icy-MetaData: 1`.
    Titles,
}

#[derive(Clone, Debug)]
pub(crate) struct Cursor {
    position: u64,
    lead: Option<Segment>,
    titles: Option<Titles>,
}

impl Cursor {
    pub(crate) fn new(position: u64, lead: Option<Arc<[u8]>>, wants: Wants) -> Self {
        let titles = Titles { until: ICY_INTERVAL, block: None, has: None };
        Self {
            position,
            lead: lead.and_then(Segment::new),
            titles: (wants == Wants::Titles).then_some(titles),
        }
    }

    /// Returns the position from which on the listener needs the ring.
    pub(crate) const fn position(&self) -> u64 {
        self.position
    }

    /// Returns the next contiguous bytes; never an empty piece.
    pub(crate) fn piece<'r>(&self, store: &'r Store) -> Option<Piece<'r>> {
        let mut limit = usize::MAX;
        if let Some(titles) = &self.titles {
            if let Some(block) = &titles.block {
                return Some(block.piece(usize::MAX));
            }
            limit = titles.until as usize;
        }
        if let Some(lead) = &self.lead {
            return Some(lead.piece(limit));
        }
        let slice = store.slice(self.position);
        let slice = &slice[..slice.len().min(limit)];
        (!slice.is_empty()).then_some(Piece(Kind::Ring(slice)))
    }

    /// Advances by `length` bytes of the current piece.
    pub(crate) fn advance(&mut self, length: usize, store: &Store) {
        if let Some(titles) = &mut self.titles
            && let Some(block) = titles.block.take()
        {
            titles.block = block.after(length);
            return;
        }
        match self.lead.take() {
            Some(lead) => self.lead = lead.after(length),
            None => self.position = self.position.saturating_add(length as u64),
        }
        let Some(titles) = &mut self.titles else { return };
        // A piece of payload is never longer than `until`.
        titles.until = titles.until.saturating_sub(u32::try_from(length).unwrap_or(u32::MAX));
        if titles.until > 0 {
            return;
        }
        titles.until = ICY_INTERVAL;
        let next = store.title(self.position).filter(|(id, _)| titles.has != Some(*id));
        titles.block = match next {
            Some((id, block)) => {
                titles.has = Some(id);
                Segment::new(block.shared())
            }
            None => Segment::new(Block::empty().shared()),
        };
    }

    /// Moves to another position, as the bytes at the current one are about to be dropped. If the
    /// listener has a part of a frame, its rest is copied to be sent first.
    pub(crate) fn skip(&mut self, to: u64, store: &Store) {
        let end = store.boundary(self.position);
        if self.lead.is_none() && end > self.position {
            let mut rest = Vec::new();
            while self.position < end {
                let slice = store.slice(self.position);
                let wanted = usize::try_from(end - self.position).unwrap_or(usize::MAX);
                let part = &slice[..slice.len().min(wanted)];
                if part.is_empty() {
                    break;
                }
                rest.extend_from_slice(part);
                self.position = self.position.saturating_add(part.len() as u64);
            }
            self.lead = Segment::new(rest.into());
        }
        self.position = to;
    }

    /// Returns the bytes of memory that this cursor alone holds.
    pub(crate) fn memory(&self) -> usize {
        self.lead.as_ref().map_or(0, |lead| lead.bytes.len())
    }
}
