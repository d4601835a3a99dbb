//! Store: the single copy of a stream's payload, with an index of its units and titles.
//!
//! ```text
//!             tail                         entry                     edge
//!    dropped   │  unit │ unit │ unit │ … │ unit │ … │ unit │ unit │ raw … │
//!              └──────────────── at most `limit` bytes ───────────────────┘
//! ```
//!
//! Positions count the bytes of the stream since the channel began; they only grow. The tail is the
//! start of a unit, or anywhere in raw bytes.

use crate::framing::{Entry, Unit};
use crate::icy::Block;
use crate::limits::{BURST, BURST_LENGTH, RING_BYTES_PER_UNIT, TITLES_COUNT_MAX};
use std::collections::VecDeque;

/// Start of a unit.
#[derive(Clone, Copy, Debug)]
struct Mark {
    position: u64,
    /// Playing time of the media before it, in nanoseconds.
    time: u64,
}

/// Title from a position on.
#[derive(Debug)]
struct Title {
    position: u64,
    id: u64,
    block: Block,
}

#[derive(Debug)]
pub(crate) struct Store {
    /// Ring that grows to `limit` bytes; the byte at a position is at `position % limit`.
    ring: Vec<u8>,
    limit: usize,
    tail: u64,
    edge: u64,
    time: u64,
    marks: VecDeque<Mark>,
    /// Positions at which a decoder can begin.
    entries: VecDeque<u64>,
    has_random_access: bool,
    /// Position from which on all bytes are raw.
    raw: Option<u64>,
    titles: VecDeque<Title>,
    titles_count: u64,
}

/// Initial capacity of the ring, in bytes.
const RING_MIN: usize = 64 * 1024;

impl Store {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            ring: Vec::new(),
            limit: limit.max(1),
            tail: 0,
            edge: 0,
            time: 0,
            marks: VecDeque::new(),
            entries: VecDeque::new(),
            has_random_access: false,
            raw: None,
            titles: VecDeque::new(),
            titles_count: 0,
        }
    }

    pub(crate) const fn edge(&self) -> u64 {
        self.edge
    }

    pub(crate) const fn limit(&self) -> usize {
        self.limit
    }

    /// Returns the tail that is required before this unit is pushed.
    pub(crate) fn tail_for(&self, unit: &Unit<'_>) -> u64 {
        let (length, is_frame) = match unit {
            Unit::Frame { bytes, .. } => (bytes.len(), true),
            Unit::Raw(bytes) => (bytes.len(), false),
        };
        let mut least = (self.edge.saturating_add(length as u64)).saturating_sub(self.limit as u64);
        let units = (self.limit / RING_BYTES_PER_UNIT).max(2);
        if is_frame && self.marks.len() >= units {
            least = least.max(self.marks.get(1).map_or(self.edge, |mark| mark.position));
        }
        if least <= self.tail { self.tail } else { self.boundary(least) }
    }

    /// Moves the tail, and drops the bytes before it.
    pub(crate) fn forget(&mut self, tail: u64) {
        self.tail = self.tail.max(tail.min(self.edge));
        while self.marks.front().is_some_and(|mark| mark.position < self.tail) {
            self.marks.pop_front();
        }
        while self.entries.front().is_some_and(|&position| position < self.tail) {
            self.entries.pop_front();
        }
        while self.titles.get(1).is_some_and(|title| title.position <= self.tail) {
            self.titles.pop_front();
        }
    }

    /// Appends a unit, for which [`Store::forget`] has made space. A unit longer than the ring,
    /// which no framer emits, would lose its front.
    pub(crate) fn push(&mut self, unit: Unit<'_>) {
        let bytes = match unit {
            Unit::Raw(bytes) => {
                self.raw.get_or_insert(self.edge);
                bytes
            }
            Unit::Frame { bytes, duration, entry } => {
                self.marks.push_back(Mark { position: self.edge, time: self.time });
                self.time = self.time.saturating_add(duration.0);
                self.add_entry(entry);
                bytes
            }
        };
        self.grow(bytes.len());
        for part in bytes.chunks(self.limit) {
            let at = self.index(self.edge);
            let first = part.len().min(self.limit - at);
            self.write(at, &part[..first]);
            self.write(0, &part[first..]);
            self.edge = self.edge.saturating_add(part.len() as u64);
        }
    }

    /// Records a position at which a decoder can begin. Once there is one for random access, other
    /// kinds no longer count.
    fn add_entry(&mut self, entry: Entry) {
        if entry == Entry::Random && !self.has_random_access {
            self.has_random_access = true;
            self.entries.clear();
        }
        if entry == Entry::Random || (entry == Entry::Start && !self.has_random_access) {
            self.entries.push_back(self.edge);
        }
    }

    /// Grows the ring by `more` bytes, doubling up to the limit.
    fn grow(&mut self, more: usize) {
        let wanted = (self.ring.len() + more).min(self.limit);
        if self.ring.capacity() < wanted {
            let capacity = (self.ring.capacity() * 2).max(RING_MIN).max(wanted).min(self.limit);
            self.ring.reserve_exact(capacity - self.ring.len());
        }
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        // The ring is as long as the bytes written to it, until it is full.
        let over = bytes.len().min(self.ring.len().saturating_sub(at));
        self.ring[at..at + over].copy_from_slice(&bytes[..over]);
        self.ring.extend_from_slice(&bytes[over..]);
    }

    fn index(&self, position: u64) -> usize {
        // Less than `limit`, which is a usize.
        (position % self.limit as u64) as usize
    }

    /// Returns the first contiguous bytes from a position on; empty at the edge, and for dropped
    /// positions.
    pub(crate) fn slice(&self, position: u64) -> &[u8] {
        if position < self.tail || position >= self.edge {
            return &[];
        }
        let at = self.index(position);
        let length = (self.edge - position).min((self.limit - at) as u64);
        self.ring.get(at..at.saturating_add(length as usize)).unwrap_or_default()
    }

    /// Returns the first start of a unit at or after a position.
    pub(crate) fn boundary(&self, position: u64) -> u64 {
        if self.raw.is_some_and(|raw| position >= raw) {
            return position.min(self.edge);
        }
        let next = self.marks.partition_point(|mark| mark.position < position);
        let end = self.raw.unwrap_or(self.edge);
        self.marks.get(next).map_or(end, |mark| mark.position)
    }

    /// Returns the position at which a new listener begins, not before `least`: a burst before the
    /// edge, preferably where a decoder can begin, otherwise at the start of a unit, or anywhere in
    /// raw bytes.
    pub(crate) fn entry(&self, least: u64) -> u64 {
        let least = least.max(self.tail).min(self.edge);
        if let Some(raw) = self.raw {
            return self.edge.saturating_sub(BURST_LENGTH as u64).max(raw).max(least);
        }
        let wanted = if self.time > 0 {
            let time = self.time.saturating_sub(BURST.0);
            self.marks.partition_point(|mark| mark.time <= time)
        } else {
            let position = self.edge.saturating_sub(BURST_LENGTH as u64);
            self.marks.partition_point(|mark| mark.position <= position)
        };
        let first = self.marks.partition_point(|mark| mark.position < least);
        let mark = self.marks.get(wanted.saturating_sub(1).max(first));
        let wanted = mark.map_or(self.edge, |mark| mark.position);
        let next = self.entries.partition_point(|&position| position <= wanted);
        let before = next.checked_sub(1).and_then(|index| self.entries.get(index));
        let before = before.filter(|&&position| position >= least);
        before.or_else(|| self.entries.get(next)).copied().unwrap_or(wanted)
    }

    /// Sets the title from the edge on. Returns false if it is the current one.
    pub(crate) fn set_title(&mut self, block: Block) -> bool {
        if self.titles.back().is_some_and(|last| last.block == block) {
            return false;
        }
        if self.titles.back().is_some_and(|last| last.position == self.edge) {
            self.titles.pop_back();
        }
        if self.titles.len() >= TITLES_COUNT_MAX {
            self.titles.pop_front();
        }
        self.titles_count = self.titles_count.saturating_add(1);
        self.titles.push_back(Title { position: self.edge, id: self.titles_count, block });
        true
    }

    /// Returns the title at a position, and its number.
    pub(crate) fn title(&self, position: u64) -> Option<(u64, &Block)> {
        let next = self.titles.partition_point(|title| title.position <= position);
        self.titles.get(next.checked_sub(1)?).map(|title| (title.id, &title.block))
    }

    /// Returns the title at the edge.
    pub(crate) fn title_now(&self) -> Option<&Block> {
        self.titles.back().map(|title| &title.block)
    }

    /// Returns playing time in nanoseconds and bytes of the kept media, as far as headers give the
    /// time.
    pub(crate) fn kept(&self) -> (u64, u64) {
        let from = self.marks.front().map_or(self.time, |mark| mark.time);
        (self.time.saturating_sub(from), self.edge - self.tail)
    }

    /// Returns bytes of memory: of the payload, and of its index.
    pub(crate) fn memory(&self) -> (usize, usize) {
        let titles: usize = self.titles.iter().map(|title| title.block.as_bytes().len()).sum();
        let index = self.marks.capacity() * size_of::<Mark>()
            + self.entries.capacity() * size_of::<u64>()
            + self.titles.capacity() * size_of::<Title>()
            + titles;
        (self.ring.capacity(), index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use units::Nanos;

    fn frame(bytes: &[u8], millis: u64, entry: Entry) -> Unit<'_> {
        Unit::Frame { bytes, duration: Nanos::from_millis(millis), entry }
    }

    fn add(store: &mut Store, unit: Unit<'_>) {
        store.forget(store.tail_for(&unit));
        store.push(unit);
    }

    #[test]
    fn whole_units_are_forgotten() {
        let mut store = Store::new(1_000);
        for byte in 0..5 {
            add(&mut store, frame(&[byte; 300], 1, Entry::No));
        }
        assert_eq!((store.tail, store.edge, store.boundary(601)), (600, 1_500, 900));
        assert_eq!(store.slice(600), &[[2; 300], [3; 300]].concat()[..400]);
        assert_eq!(store.slice(1_000), [[3; 200].as_slice(), &[4; 300]].concat());
        assert!(store.slice(599).is_empty() && store.slice(1_500).is_empty());
        assert_eq!(store.memory().0, 1_000);
    }

    #[test]
    fn units_are_bounded_too() {
        let mut store = Store::new(64 * 10);
        for _ in 0..1_000 {
            add(&mut store, frame(&[0], 1, Entry::Random));
        }
        assert_eq!((store.marks.len(), store.entries.len(), store.edge - store.tail), (10, 10, 10));
    }

    #[test]
    fn listeners_begin_a_burst_before_the_edge() {
        let mut store = Store::new(1_000);
        for _ in 0..8 {
            add(&mut store, frame(&[0; 10], 1_000, Entry::No));
        }
        assert_eq!(store.entry(0), 40);
        assert_eq!(store.entry(55), 60);
        assert_eq!(store.entry(u64::MAX), 80);
        assert_eq!(store.kept(), (8_000_000_000, 80));
    }

    #[test]
    fn listeners_begin_where_a_decoder_can() {
        let mut store = Store::new(1_000);
        for at in 0..10 {
            let entry = if at == 1 || at == 8 { Entry::Start } else { Entry::No };
            add(&mut store, frame(&[0; 10], 1_000, entry));
        }
        assert_eq!((store.entry(0), store.entry(20)), (10, 80));
        add(&mut store, frame(&[0; 10], 1_000, Entry::Random));
        add(&mut store, frame(&[0; 10], 1_000, Entry::Start));
        assert_eq!(store.entry(0), 100, "the others may be none");
    }

    #[test]
    fn raw_bytes_have_no_units() {
        let mut store = Store::new(4 * BURST_LENGTH);
        add(&mut store, Unit::Raw(&[1; BURST_LENGTH]));
        add(&mut store, Unit::Raw(&[2; 10]));
        assert_eq!((store.entry(0), store.boundary(7)), (10, 7));
    }

    #[test]
    fn a_title_holds_from_its_place_on() {
        let mut store = Store::new(100);
        let text = |store: &Store, at| store.title(at).map(|(_, block)| block.text().to_vec());
        assert!(store.set_title(Block::new(b"a")) && !store.set_title(Block::new(b"a")));
        add(&mut store, Unit::Raw(&[0; 60]));
        assert!(store.set_title(Block::new(b"b")));
        assert_eq!((text(&store, 59), text(&store, 60)), (Some(b"a".into()), Some(b"b".into())));
        add(&mut store, Unit::Raw(&[0; 100]));
        assert_eq!(text(&store, 59), None);
        for title in 0..200_u8 {
            add(&mut store, Unit::Raw(&[0]));
            store.set_title(Block::new(&[title; 3]));
        }
        assert!(store.titles.len() <= TITLES_COUNT_MAX);
    }
}
