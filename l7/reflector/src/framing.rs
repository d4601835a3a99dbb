//! Framer: finds frames in a stream of MPEG audio, AAC in ADTS, or MPEG-TS.
//!
//! ```text
//!   bytes, cut anywhere ─▶ pending ─▶ a header followed by valid ones ─▶ whole frames
//!                             │ none for 64 KiB ─▶ raw, from then on
//!                             └ bytes between frames are dropped, ID3v2 tags too
//! ```
//!
//! A single header is never trusted: synchronisation takes several consistent ones in a row, and a
//! frame is emitted when the next header follows it (two, in a transport stream). The result does
//! not depend on where the bytes are cut.

mod adts;
mod id3;
mod mpeg;
mod ts;

use crate::limits::UNFRAMED_LENGTH_MAX;
use std::sync::Arc;
use units::Nanos;

/// Format of a stream's frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// MPEG audio, layers I to III: ISO/IEC 11172-3 and 13818-3.
    MpegAudio,
    /// AAC in ADTS: ISO/IEC 13818-7.
    Adts,
    /// MPEG transport stream: ISO/IEC 13818-1.
    TransportStream,
}

/// Suitability of a unit as the start for a decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// No better than any other unit.
    No,
    /// Start of a video access unit: better than a position within one.
    Start,
    /// Marked for random access.
    Random,
}

/// Part of the stream that is emitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit<'b> {
    /// A whole frame, or a packet of a transport stream.
    Frame {
        /// Bytes of the frame, header included.
        bytes: &'b [u8],
        /// Playing time of the frame, rounded down.
        duration: Nanos,
        /// Suitability as the start for a decoder.
        entry: Entry,
    },
    /// Bytes of a stream without known frames.
    Raw(&'b [u8]),
}

/// Content of a frame header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Frame {
    length: usize,
    duration: Nanos,
    /// Value that is equal for frames of one stream.
    kind: u32,
}

/// Result of parsing the head of some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// Too few bytes.
    More,
    /// No frame.
    Nothing,
    /// A tag of this length.
    Tag(usize),
    /// A frame header.
    Frame(Frame),
}

impl Format {
    /// Returns the number of consistent headers that have to follow the first one. A false MPEG
    /// header occurs at one of some 5,000 offsets, one that is consistent with it at one of 60,000;
    /// a false sync byte of a transport stream at one of 256, so that five in a row are required,
    /// as ISO/IEC 13818-1 advises.
    const fn confirmations(self) -> usize {
        match self {
            Self::MpegAudio | Self::Adts => 2,
            Self::TransportStream => 4,
        }
    }

    /// Returns the number of headers that have to follow a frame once synchronised.
    const fn followers(self) -> usize {
        match self {
            Self::MpegAudio | Self::Adts => 1,
            Self::TransportStream => 2,
        }
    }

    fn read(self, bytes: &[u8]) -> Found {
        match self {
            Self::TransportStream => ts::read(bytes),
            Self::MpegAudio | Self::Adts if bytes.first() == Some(&b'I') => id3::read(bytes),
            Self::MpegAudio => mpeg::read(bytes),
            Self::Adts => adts::read(bytes),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Searching: no frame begins in the first `tried` pending bytes.
    Search { tried: usize },
    /// Synchronised: a header of this kind is expected at the start of the pending bytes.
    Synced { kind: u32 },
    /// Skipping a tag.
    Tag { left: usize, kind: Option<u32> },
    /// Emitting bytes as they come.
    Raw,
}

/// Finder of the frames of one stream.
#[derive(Debug)]
pub struct Framer {
    format: Option<Format>,
    state: State,
    pending: Vec<u8>,
    program: ts::Program,
    left_out: u64,
    has_found: bool,
}

/// Bytes that are scanned at once, so that the pending ones need no more memory than
/// [`UNFRAMED_LENGTH_MAX`] however many come in one call.
const STEP: usize = 4 * 1024;

impl Framer {
    /// Creates a framer for this format; `None` for a stream without known frames.
    #[must_use]
    pub fn new(format: Option<Format>) -> Self {
        Self {
            format,
            state: if format.is_some() { State::Search { tried: 0 } } else { State::Raw },
            pending: Vec::new(),
            program: ts::Program::default(),
            left_out: 0,
            has_found: false,
        }
    }

    /// Takes bytes and emits complete units.
    pub fn push(&mut self, mut input: &[u8], give: &mut dyn FnMut(Unit<'_>)) {
        while !input.is_empty() {
            match (self.state, self.format) {
                (State::Raw, _) | (_, None) => {
                    give(Unit::Raw(input));
                    return;
                }
                (State::Tag { left, kind }, _) => {
                    let taken = left.min(input.len());
                    input = &input[taken..];
                    self.left_out = self.left_out.saturating_add(taken as u64);
                    self.state = Self::after_tag(left - taken, kind);
                }
                (State::Search { .. } | State::Synced { .. }, Some(format)) => {
                    let space = UNFRAMED_LENGTH_MAX.saturating_sub(self.pending.len());
                    let (now, later) = input.split_at(input.len().min(STEP).min(space));
                    self.pending.extend_from_slice(now);
                    input = later;
                    self.scan(format, give);
                }
            }
        }
    }

    /// Handles the end of the stream: emits frames that are complete though no header follows, and
    /// drops an incomplete one. If no frame was ever found, emits all bytes raw.
    pub fn finish(&mut self, give: &mut dyn FnMut(Unit<'_>)) {
        let pending = std::mem::take(&mut self.pending);
        let mut rest = &pending[self.flush(&pending, give)..];
        if !self.has_found && !rest.is_empty() {
            give(Unit::Raw(std::mem::take(&mut rest)));
        }
        self.discontinuity(rest.len());
    }

    /// Handles a discontinuity: the stream was cut off, and continues anywhere on another
    /// connection. Emits complete frames and drops an incomplete one. A stream found to have no
    /// frames stays raw.
    pub fn restart(&mut self, give: &mut dyn FnMut(Unit<'_>)) {
        let pending = std::mem::take(&mut self.pending);
        let given = self.flush(&pending, give);
        self.discontinuity(pending.len() - given);
    }

    /// Returns the packets that a joiner of a transport stream gets first: the last PAT and PMT.
    #[must_use]
    pub fn preface(&self) -> Option<Arc<[u8]>> {
        self.program.preface()
    }

    /// Returns true if bytes are emitted as they come.
    #[must_use]
    pub fn is_raw(&self) -> bool {
        self.state == State::Raw
    }

    /// Returns the number of dropped bytes: between frames, tags, and truncated frames.
    #[must_use]
    pub const fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Returns the bytes of memory held for incomplete frames.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.pending.capacity()
    }

    fn after_tag(left: usize, kind: Option<u32>) -> State {
        match (left, kind) {
            (0, Some(kind)) => State::Synced { kind },
            (0, None) => State::Search { tried: 0 },
            _ => State::Tag { left, kind },
        }
    }

    fn scan(&mut self, format: Format, give: &mut dyn FnMut(Unit<'_>)) {
        let pending = std::mem::take(&mut self.pending);
        let mut at = 0;
        loop {
            let rest = &pending[at..];
            let step = match self.state {
                State::Synced { kind } => self.next_frame(format, kind, rest, give),
                State::Search { tried } => self.search(format, tried, rest),
                State::Tag { .. } | State::Raw => None,
            };
            let Some(step) = step else { break };
            at += step;
        }
        self.pending = pending;
        self.pending.drain(..at);
        let is_lost = matches!(self.state, State::Search { .. });
        if is_lost && self.pending.len() >= UNFRAMED_LENGTH_MAX {
            self.state = State::Raw;
            give(Unit::Raw(&std::mem::take(&mut self.pending)));
        }
    }

    /// Scans the pending bytes at the end of the stream. Returns how many were handled.
    fn flush(&mut self, pending: &[u8], give: &mut dyn FnMut(Unit<'_>)) -> usize {
        let Some(format) = self.format else { return 0 };
        let mut at = 0;
        while let Some(rest) = pending.get(at..).filter(|rest| !rest.is_empty()) {
            let step = match self.state {
                State::Synced { kind } => self.next_frame(format, kind, rest, give),
                State::Search { tried } => self.search(format, tried, rest),
                State::Tag { .. } | State::Raw => break,
            };
            // Where more bytes would be needed: a complete frame is the last one, an incomplete one
            // is dropped.
            at += match (step, self.state) {
                (Some(step), _) => step,
                (None, State::Synced { kind }) => match format.read(rest) {
                    Found::Frame(frame) if frame.kind == kind && frame.length <= rest.len() => {
                        self.give(frame, &rest[..frame.length], give);
                        frame.length
                    }
                    _ => {
                        self.state = State::Search { tried: 1 };
                        0
                    }
                },
                (None, State::Search { tried }) if tried < rest.len() => {
                    self.state = State::Search { tried: tried + 1 };
                    0
                }
                (None, _) => break,
            };
        }
        at
    }

    /// Resets the state for bytes that begin anywhere, and counts the dropped ones.
    fn discontinuity(&mut self, left_out: usize) {
        self.left_out = self.left_out.saturating_add(left_out as u64);
        self.program.discontinuity();
        if self.state != State::Raw {
            self.state = State::Search { tried: 0 };
        }
    }

    /// Emits the frame at the start of `rest` if headers follow it. Returns the bytes handled, or
    /// `None` if more are needed.
    fn next_frame(
        &mut self,
        format: Format,
        kind: u32,
        rest: &[u8],
        give: &mut dyn FnMut(Unit<'_>),
    ) -> Option<usize> {
        match format.read(rest) {
            Found::More => None,
            Found::Tag(length) => Some(self.skip_tag(length, Some(kind), rest.len())),
            Found::Frame(frame) if frame.kind == kind => {
                let mut end = frame.length;
                for _ in 0..format.followers() {
                    match format.read(rest.get(end..)?) {
                        Found::More => return None,
                        Found::Frame(next) => end = end.saturating_add(next.length),
                        Found::Tag(_) => break,
                        Found::Nothing => {
                            self.state = State::Search { tried: 1 };
                            return Some(0);
                        }
                    }
                }
                self.give(frame, &rest[..frame.length], give);
                Some(frame.length)
            }
            Found::Frame(_) | Found::Nothing => {
                self.state = State::Search { tried: 0 };
                Some(0)
            }
        }
    }

    /// Searches for a frame at each offset. Returns the number of bytes before it, or `None` if
    /// more are needed.
    fn search(&mut self, format: Format, mut tried: usize, rest: &[u8]) -> Option<usize> {
        while let Some(candidate) = rest.get(tried..).filter(|bytes| !bytes.is_empty()) {
            match confirm(format, candidate) {
                Found::More => break,
                Found::Frame(frame) => {
                    self.left_out = self.left_out.saturating_add(tried as u64);
                    self.state = State::Synced { kind: frame.kind };
                    self.has_found = true;
                    return Some(tried);
                }
                // The ten bytes of a tag header are trusted only where a tag is expected.
                Found::Tag(length) if tried == 0 => {
                    return Some(self.skip_tag(length, None, rest.len()));
                }
                Found::Tag(_) | Found::Nothing => tried += 1,
            }
        }
        self.state = State::Search { tried };
        None
    }

    fn skip_tag(&mut self, length: usize, kind: Option<u32>, available: usize) -> usize {
        let here = length.min(available);
        self.left_out = self.left_out.saturating_add(here as u64);
        self.state = Self::after_tag(length - here, kind);
        here
    }

    fn give(&mut self, frame: Frame, bytes: &[u8], give: &mut dyn FnMut(Unit<'_>)) {
        let (duration, entry) = match self.format {
            Some(Format::TransportStream) => self.program.on_packet(bytes),
            _ => (frame.duration, Entry::No),
        };
        give(Unit::Frame { bytes, duration, entry });
    }
}

/// Checks that enough consistent headers follow each other.
fn confirm(format: Format, bytes: &[u8]) -> Found {
    let first = match format.read(bytes) {
        Found::Frame(frame) => frame,
        other => return other,
    };
    let mut at = first.length;
    for _ in 0..format.confirmations() {
        let Some(rest) = bytes.get(at..) else { return Found::More };
        match format.read(rest) {
            Found::Frame(next) if next.kind == first.kind => at = at.saturating_add(next.length),
            Found::More => return Found::More,
            Found::Tag(_) => break,
            Found::Frame(_) | Found::Nothing => return Found::Nothing,
        }
    }
    Found::Frame(first)
}
