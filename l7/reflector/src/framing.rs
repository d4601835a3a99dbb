//! Where frames begin in a stream: MPEG audio, AAC in ADTS, MPEG-TS.
//!
//! ```text
//!  bytes, cut anywhere ─▶ pending ─▶ a header, and valid ones behind it ─▶ whole frames
//!                            │ none for 64 KiB ─▶ as it comes, from then on
//!                            └ what lies between frames is left out, ID3v2 tags too
//! ```
//!
//! One header alone is never trusted: to find frames it takes several in a row that agree, and a
//! frame is given on when the next header follows it (two, in a transport stream). Where the bytes
//! are cut changes nothing.

mod adts;
mod id3;
mod mpeg;
mod ts;

use crate::limits::UNFRAMED_LENGTH_MAX;
use std::sync::Arc;
use units::Nanos;

/// What a stream's frames look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// MPEG audio, layers I to III: ISO/IEC 11172-3 and 13818-3.
    MpegAudio,
    /// AAC in ADTS: ISO/IEC 13818-7.
    Adts,
    /// MPEG transport stream: ISO/IEC 13818-1.
    TransportStream,
}

/// Whether a decoder can begin with a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// As well as with any other.
    No,
    /// It starts a unit of the video: better than within one.
    Start,
    /// It is marked for random access.
    Random,
}

/// A piece of the stream that is given on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit<'b> {
    /// A whole frame, or a packet of a transport stream.
    Frame {
        /// All of it, header included.
        bytes: &'b [u8],
        /// Time that it brings, rounded down.
        duration: Nanos,
        /// Whether it is a good one to begin with.
        entry: Entry,
    },
    /// Bytes of a stream without known frames.
    Raw(&'b [u8]),
}

/// What a header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Frame {
    length: usize,
    duration: Nanos,
    /// Equal for frames that can follow each other.
    kind: u32,
}

/// What bytes begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// Too few to say.
    More,
    /// No frame.
    Nothing,
    /// A tag of this length.
    Tag(usize),
    /// A header.
    Frame(Frame),
}

impl Format {
    /// How many headers have to follow the first one. A wrong MPEG header passes once in some
    /// 5,000 places, one that agrees with it once in 60,000; a wrong sync byte of a transport
    /// stream once in 256, so that five in a row are asked for, as ISO/IEC 13818-1 advises.
    const fn confirmations(self) -> usize {
        match self {
            Self::MpegAudio | Self::Adts => 2,
            Self::TransportStream => 4,
        }
    }

    /// How many headers have to follow a frame that is where one is expected.
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
    /// `tried` bytes of what is pending cannot begin a frame.
    Search { tried: usize },
    /// What is pending begins with a header of this kind, or does not.
    Synced { kind: u32 },
    /// Within a tag.
    Tag { left: usize, kind: Option<u32> },
    /// Given on as it comes.
    Raw,
}

/// Finds the frames of one stream.
#[derive(Debug)]
pub struct Framer {
    format: Option<Format>,
    state: State,
    pending: Vec<u8>,
    program: ts::Program,
    left_out: u64,
    has_found: bool,
}

/// Pending bytes are looked at in steps of this, so that they need no more memory than
/// [`UNFRAMED_LENGTH_MAX`] however many come at once.
const STEP: usize = 4 * 1024;

impl Framer {
    /// For a stream of this format; none is a stream without known frames.
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

    /// Takes bytes and gives on what is whole.
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
                    self.state = Self::behind_tag(left - taken, kind);
                }
                (State::Search { .. } | State::Synced { .. }, Some(format)) => {
                    let room = UNFRAMED_LENGTH_MAX.saturating_sub(self.pending.len());
                    let (now, later) = input.split_at(input.len().min(STEP).min(room));
                    self.pending.extend_from_slice(now);
                    input = later;
                    self.scan(format, give);
                }
            }
        }
    }

    /// The stream is over. Gives on frames that are whole though nothing follows them; the rest
    /// of a frame is left out. If there never was a frame, all is given as it came.
    pub fn finish(&mut self, give: &mut dyn FnMut(Unit<'_>)) {
        let pending = std::mem::take(&mut self.pending);
        let mut rest = &pending[self.flush(&pending, give)..];
        if !self.has_found && !rest.is_empty() {
            give(Unit::Raw(std::mem::take(&mut rest)));
        }
        self.cut(rest.len());
    }

    /// The stream was cut off, and another connection goes on with it from somewhere. Gives on
    /// frames that are whole; the rest of a frame is left out. What was found to have no frames
    /// still has none.
    pub fn restart(&mut self, give: &mut dyn FnMut(Unit<'_>)) {
        let pending = std::mem::take(&mut self.pending);
        let given = self.flush(&pending, give);
        self.cut(pending.len() - given);
    }

    /// What a joiner of a transport stream gets in front: the last PAT and PMT.
    #[must_use]
    pub fn preface(&self) -> Option<Arc<[u8]>> {
        self.program.preface()
    }

    /// Whether bytes are given on as they come.
    #[must_use]
    pub fn is_raw(&self) -> bool {
        self.state == State::Raw
    }

    /// Bytes that were between frames, of tags, or of frames that were cut off.
    #[must_use]
    pub const fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Bytes of memory that wait for the rest of a frame.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.pending.capacity()
    }

    fn behind_tag(left: usize, kind: Option<u32>) -> State {
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

    /// Nothing follows what is pending. Says how much of it is done with.
    fn flush(&mut self, pending: &[u8], give: &mut dyn FnMut(Unit<'_>)) -> usize {
        let Some(format) = self.format else { return 0 };
        let mut at = 0;
        while let Some(rest) = pending.get(at..).filter(|rest| !rest.is_empty()) {
            let step = match self.state {
                State::Synced { kind } => self.next_frame(format, kind, rest, give),
                State::Search { tried } => self.search(format, tried, rest),
                State::Tag { .. } | State::Raw => break,
            };
            // Where more would be needed: a frame that is whole is the last one, and what is not
            // whole is none.
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

    /// What follows begins anywhere, and so much of what was pending was no frame.
    fn cut(&mut self, left_out: usize) {
        self.left_out = self.left_out.saturating_add(left_out as u64);
        self.program.cut();
        if self.state != State::Raw {
            self.state = State::Search { tried: 0 };
        }
    }

    /// At the end of a frame: gives on the next one if headers follow it. Says how far that went,
    /// or that more is needed.
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

    /// Tries one place after the other. Says how many bytes are none, or that more are needed.
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
                // Ten bytes alone are trusted only where a tag is expected.
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
        self.state = Self::behind_tag(length - here, kind);
        here
    }

    fn give(&mut self, frame: Frame, bytes: &[u8], give: &mut dyn FnMut(Unit<'_>)) {
        let (duration, entry) = match self.format {
            Some(Format::TransportStream) => self.program.see(bytes),
            _ => (frame.duration, Entry::No),
        };
        give(Unit::Frame { bytes, duration, entry });
    }
}

/// Whether enough headers that agree follow each other.
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
