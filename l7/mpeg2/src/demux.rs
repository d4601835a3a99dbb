//! Demultiplexer: detects the format of a stream, and extracts its video.

use crate::limits::PROBE_LENGTH_MAX;
use crate::program::Program;
use crate::transport::{self, Transport};

/// Container format of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Video elementary stream: ISO/IEC 13818-2.
    Elementary,
    /// Program stream, packs of packets: ISO/IEC 13818-1, 2.5; also MPEG-1's.
    Program,
    /// Transport stream, packets of 188 bytes: ISO/IEC 13818-1, 2.4.
    Transport,
}

/// The stream is no MPEG video that can be transcoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotVideo {
    /// The stream has none of the three formats.
    #[error(
        "the first {PROBE_LENGTH_MAX} bytes are no MPEG-2 elementary, program or transport stream"
    )]
    Format,
    /// The transport stream has video of other codings only.
    #[error(
        "the transport stream has {coding} video; only MPEG-1 and MPEG-2 video can be transcoded"
    )]
    Coding {
        /// Name of the first coding that is known.
        coding: &'static str,
    },
    /// The stream has no picture with which a codec can begin.
    #[error("there is no sequence header and I picture at the beginning of the stream")]
    NoPicture,
}

/// Demultiplexer from a stream in any format to an elementary stream. The output does not depend on
/// where the input is cut.
#[derive(Debug, Default)]
pub struct Demuxer {
    state: State,
    /// Bytes kept: of a stream whose format is not known yet, or of an incomplete packet.
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

/// Result of format detection.
enum Found {
    /// The format, and the offset at which it begins.
    At(usize, Format),
    /// More bytes are needed.
    Incomplete,
    Nothing,
}

impl Demuxer {
    /// Creates a demultiplexer for a stream of unknown format.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the format, once it is known.
    #[must_use]
    pub const fn format(&self) -> Option<Format> {
        match self.state {
            State::Unknown => None,
            State::Elementary => Some(Format::Elementary),
            State::Program(_) => Some(Format::Program),
            State::Transport(_) => Some(Format::Transport),
        }
    }

    /// Returns the number of bytes kept.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.kept.len()
    }

    /// Takes bytes, and appends the video in them to `video`.
    ///
    /// # Errors
    /// The stream is known to have no usable video.
    pub fn push(&mut self, bytes: &[u8], video: &mut Vec<u8>) -> Result<(), NotVideo> {
        if matches!(self.state, State::Elementary) {
            video.extend_from_slice(bytes);
            return Ok(());
        }
        self.kept.extend_from_slice(bytes);
        if matches!(self.state, State::Unknown) {
            match probe(&self.kept, false) {
                Found::At(offset, format) => self.begin(offset, format),
                Found::Incomplete => return Ok(()),
                Found::Nothing => return Err(NotVideo::Format),
            }
        }
        self.demux(video)
    }

    /// Handles the end of the stream.
    ///
    /// # Errors
    /// The stream had no usable video.
    pub fn finish(&mut self, video: &mut Vec<u8>) -> Result<(), NotVideo> {
        if matches!(self.state, State::Unknown) {
            let Found::At(offset, format) = probe(&self.kept, true) else {
                return Err(NotVideo::Format);
            };
            self.begin(offset, format);
        }
        let ended = self.demux(video);
        self.kept = Vec::new();
        ended
    }

    fn begin(&mut self, offset: usize, format: Format) {
        self.kept.drain(..offset);
        self.state = match format {
            Format::Elementary => State::Elementary,
            Format::Program => State::Program(Program::default()),
            Format::Transport => State::Transport(Box::default()),
        };
    }

    fn demux(&mut self, video: &mut Vec<u8>) -> Result<(), NotVideo> {
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

/// Returns the first offset at which one of the formats begins.
fn probe(bytes: &[u8], is_all: bool) -> Found {
    for offset in 0..bytes.len().min(PROBE_LENGTH_MAX) {
        let rest = &bytes[offset..];
        match rest {
            [0, 0, 1, 0xba, ..] => return Found::At(offset, Format::Program),
            [0, 0, 1, 0xb3, ..] => return Found::At(offset, Format::Elementary),
            [0] | [0, 0] | [0, 0, 1] if !is_all => return Found::Incomplete,
            [0x47, ..] => match transport::is_transport(rest, is_all) {
                Some(true) => return Found::At(offset, Format::Transport),
                Some(false) => {}
                None => return Found::Incomplete,
            },
            _ => {}
        }
    }
    let is_over = is_all || bytes.len() >= PROBE_LENGTH_MAX;
    match slices(&bytes[..bytes.len().min(PROBE_LENGTH_MAX)]) {
        _ if !is_over => Found::Incomplete,
        // Joined in the middle of a group: the next I picture follows later.
        Some(offset) => Found::At(offset, Format::Elementary),
        None => Found::Nothing,
    }
}

/// Consecutive slices that identify MPEG video: ISO/IEC 13818-2, 6.2.4, numbers them by their rows,
/// which other codings' units have no reason to match.
const SLICES: u8 = 4;

/// Returns the offset of a picture's slices, in consecutive rows.
fn slices(bytes: &[u8]) -> Option<usize> {
    let (mut first, mut last, mut count) = (0, 0, 0);
    for (offset, four) in bytes.windows(4).enumerate() {
        let [0, 0, 1, code] = *four else { continue };
        match code {
            1..=0xaf if count > 0 && code == last + 1 => count += 1,
            1..=0xaf if count > 0 && code == last => {}
            1..=0xaf => (first, count) = (offset, 1),
            _ => count = 0,
        }
        last = code;
        if count >= SLICES {
            return Some(first);
        }
    }
    None
}
