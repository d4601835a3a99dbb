//! One listener's place in the stream, and the pieces that it gets from there.
//!
//! ```text
//!  lead (PAT and PMT, or the rest of a frame) ─▶ payload ─▶ payload ─▶ …
//!  └────────── a block every ICY_INTERVAL bytes, if it asked for titles ──┘
//! ```

use crate::icy::Block;
use crate::limits::ICY_INTERVAL;
use crate::store::Store;
use std::ops::Deref;
use std::sync::Arc;

/// Some bytes for a listener: a slice of the ring, or bytes that many share.
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
    fn cut(&mut self, length: usize) {
        match &mut self.0 {
            Kind::Ring(bytes) => *bytes = &bytes[..length.min(bytes.len())],
            Kind::Shared { from, to, .. } => *to = (*to).min(from.saturating_add(length)),
        }
    }
}

/// The pieces for one listener, in order: for `writev`, without a copy.
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
        piece.cut(self.left);
        self.left -= piece.len();
        cursor.advance(piece.len(), self.store);
        Some(piece)
    }
}

/// Bytes that go out one after the other.
#[derive(Clone, Debug)]
struct Run {
    bytes: Arc<[u8]>,
    at: usize,
}

impl Run {
    fn new(bytes: Arc<[u8]>) -> Option<Self> {
        (!bytes.is_empty()).then_some(Self { bytes, at: 0 })
    }

    fn piece(&self, limit: usize) -> Piece<'static> {
        let to = self.bytes.len().min(self.at.saturating_add(limit));
        Piece(Kind::Shared { bytes: Arc::clone(&self.bytes), from: self.at, to })
    }

    /// What is left of it behind so many bytes.
    fn behind(self, length: usize) -> Option<Self> {
        let at = self.at.saturating_add(length);
        (at < self.bytes.len()).then_some(Self { at, ..self })
    }
}

/// The titles of a listener that asked for them.
#[derive(Clone, Debug)]
struct Titles {
    /// Payload until the next block.
    until: u32,
    block: Option<Run>,
    /// The number of the title that it has.
    has: Option<u64>,
}

/// Whether a listener gets titles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wants {
    /// The media alone.
    Media,
    /// Titles too: it asked with `Icy-MetaData: 1`.
    Titles,
}

#[derive(Clone, Debug)]
pub(crate) struct Cursor {
    position: u64,
    lead: Option<Run>,
    titles: Option<Titles>,
}

impl Cursor {
    pub(crate) fn new(position: u64, lead: Option<Arc<[u8]>>, wants: Wants) -> Self {
        let titles = Titles { until: ICY_INTERVAL, block: None, has: None };
        Self {
            position,
            lead: lead.and_then(Run::new),
            titles: (wants == Wants::Titles).then_some(titles),
        }
    }

    /// Where the ring is needed from on.
    pub(crate) const fn position(&self) -> u64 {
        self.position
    }

    /// The next bytes that lie in one piece; never an empty one.
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

    /// So many bytes of the piece are taken.
    pub(crate) fn advance(&mut self, length: usize, store: &Store) {
        if let Some(titles) = &mut self.titles
            && let Some(block) = titles.block.take()
        {
            titles.block = block.behind(length);
            return;
        }
        match self.lead.take() {
            Some(lead) => self.lead = lead.behind(length),
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
                Run::new(block.shared())
            }
            None => Run::new(Block::empty().shared()),
        };
    }

    /// Goes on elsewhere, as what it has not taken is about to be forgotten. The rest of a frame
    /// that it has a part of is kept for it.
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
            self.lead = Run::new(rest.into());
        }
        self.position = to;
    }

    /// Bytes of memory that it alone needs.
    pub(crate) fn memory(&self) -> usize {
        self.lead.as_ref().map_or(0, |lead| lead.bytes.len())
    }
}
