//! Finds out what a stream is, and takes the video out of it.

use crate::limits::PROBE_LENGTH_MAX;
use crate::program::Program;
use crate::transport::{self, Transport};

/// What a server sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Video and nothing else: ISO/IEC 13818-2.
    Elementary,
    /// Packs of packets: ISO/IEC 13818-1, 2.5; also MPEG-1's.
    Program,
    /// Packets of 188 bytes: ISO/IEC 13818-1, 2.4.
    Transport,
}

/// What a server sends is no MPEG video.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotVideo {
    /// It is none of the three.
    #[error(
        "the first {PROBE_LENGTH_MAX} bytes are no MPEG-2 elementary, program or transport stream"
    )]
    Format,
    /// It is a transport stream with video of another coding only.
    #[error(
        "the transport stream has {coding} video; what can be taken is MPEG-1 and MPEG-2 video"
    )]
    Coding {
        /// The name of the first one that is known.
        coding: &'static str,
    },
    /// There is nothing to begin with.
    #[error("there is no sequence header and I picture at the beginning of the stream")]
    NoPicture,
}

/// Bytes of a stream in, an elementary stream out. Where the bytes are cut changes nothing.
#[derive(Debug, Default)]
pub struct Demuxer {
    state: State,
    /// Of a beginning that says nothing yet, or of a packet that is not whole.
    kept: Vec<u8>,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Unknown,
    Elementary,
    Program(Program),
    Transport(Box<Transport>),
}

/// What a beginning is.
enum Found {
    /// From here on.
    At(usize, Format),
    /// It takes more bytes to say.
    Later,
    Nothing,
}

impl Demuxer {
    /// One that knows nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What the stream is, once that is known.
    #[must_use]
    pub const fn format(&self) -> Option<Format> {
        match self.state {
            State::Unknown => None,
            State::Elementary => Some(Format::Elementary),
            State::Program(_) => Some(Format::Program),
            State::Transport(_) => Some(Format::Transport),
        }
    }

    /// Bytes that it keeps.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.kept.len()
    }

    /// More has come; what of it is video is written behind `video`.
    ///
    /// # Errors
    /// When the stream is known to be none.
    pub fn push(&mut self, bytes: &[u8], video: &mut Vec<u8>) -> Result<(), NotVideo> {
        if matches!(self.state, State::Elementary) {
            video.extend_from_slice(bytes);
            return Ok(());
        }
        self.kept.extend_from_slice(bytes);
        if matches!(self.state, State::Unknown) {
            match probe(&self.kept, false) {
                Found::At(place, format) => self.begin(place, format),
                Found::Later => return Ok(()),
                Found::Nothing => return Err(NotVideo::Format),
            }
        }
        self.go_on(video)
    }

    /// Nothing more comes.
    ///
    /// # Errors
    /// When it was none.
    pub fn finish(&mut self, video: &mut Vec<u8>) -> Result<(), NotVideo> {
        if matches!(self.state, State::Unknown) {
            let Found::At(place, format) = probe(&self.kept, true) else {
                return Err(NotVideo::Format);
            };
            self.begin(place, format);
        }
        let ended = self.go_on(video);
        self.kept = Vec::new();
        ended
    }

    fn begin(&mut self, place: usize, format: Format) {
        self.kept.drain(..place);
        self.state = match format {
            Format::Elementary => State::Elementary,
            Format::Program => State::Program(Program::default()),
            Format::Transport => State::Transport(Box::default()),
        };
    }

    fn go_on(&mut self, video: &mut Vec<u8>) -> Result<(), NotVideo> {
        let used = match &mut self.state {
            State::Unknown => 0,
            State::Elementary => {
                video.append(&mut self.kept);
                0
            }
            State::Program(program) => program.read(&self.kept, video),
            State::Transport(transport) => transport.read(&self.kept, video),
        };
        self.kept.drain(..used);
        match &self.state {
            State::Transport(transport) => {
                transport.other_coding().map_or(Ok(()), |coding| Err(NotVideo::Coding { coding }))
            }
            _ => Ok(()),
        }
    }
}

/// The first place at which one of the three begins.
fn probe(bytes: &[u8], is_all: bool) -> Found {
    for place in 0..bytes.len().min(PROBE_LENGTH_MAX) {
        let rest = &bytes[place..];
        match rest {
            [0, 0, 1, 0xba, ..] => return Found::At(place, Format::Program),
            [0, 0, 1, 0xb3, ..] => return Found::At(place, Format::Elementary),
            [0] | [0, 0] | [0, 0, 1] if !is_all => return Found::Later,
            [0x47, ..] => match transport::begins(rest, is_all) {
                Some(true) => return Found::At(place, Format::Transport),
                Some(false) => {}
                None => return Found::Later,
            },
            _ => {}
        }
    }
    let is_over = is_all || bytes.len() >= PROBE_LENGTH_MAX;
    match slices(&bytes[..bytes.len().min(PROBE_LENGTH_MAX)]) {
        _ if !is_over => Found::Later,
        // Joined in the middle of a group: the next I picture is looked for behind it.
        Some(place) => Found::At(place, Format::Elementary),
        None => Found::Nothing,
    }
}

/// Slices in a row that are believed to be of MPEG video: ISO/IEC 13818-2, 6.2.4, numbers them by
/// their rows, which units of other codings have no reason to be.
const SLICES: u8 = 4;

/// Where slices of a picture begin, one row behind the other.
fn slices(bytes: &[u8]) -> Option<usize> {
    let (mut first, mut last, mut count) = (0, 0, 0);
    for (place, four) in bytes.windows(4).enumerate() {
        let [0, 0, 1, code] = *four else { continue };
        match code {
            1..=0xaf if count > 0 && code == last + 1 => count += 1,
            1..=0xaf if count > 0 && code == last => {}
            1..=0xaf => (first, count) = (place, 1),
            _ => count = 0,
        }
        last = code;
        if count >= SLICES {
            return Some(first);
        }
    }
    None
}
