//! Program streams: ISO/IEC 13818-1, 2.5.3, and ISO/IEC 11172-1, 2.4.3.

/// Reader of a program stream; extracts its first video stream.
#[derive(Debug, Default)]
pub(crate) struct Program {
    state: State,
    /// Number of the video stream: `E0` to `EF`.
    video: Option<u8>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Expecting or searching a start code.
    #[default]
    Code,
    /// Payload of a packet, of which `left` bytes are missing.
    Payload { left: usize, is_video: bool },
}

const PREFIX: &[u8] = &[0, 0, 1];
const PROGRAM_END: u8 = 0xb9;
const PACK: u8 = 0xba;
/// Lowest stream number whose packets have a length field.
const LENGTHS_FROM: u8 = 0xbb;

/// Length of a packet's header.
pub(crate) enum HeaderLength {
    /// Length in bytes.
    Length(usize),
    /// More bytes are needed.
    Incomplete,
    /// The header is not valid.
    Broken,
}

impl Program {
    /// Reads as much as possible, and returns the number of bytes.
    pub(crate) fn read(&mut self, bytes: &[u8], video: &mut Vec<u8>) -> usize {
        let mut used = 0;
        loop {
            let rest = bytes.get(used..).unwrap_or_default();
            match self.state {
                State::Payload { left: 0, .. } => self.state = State::Code,
                State::Payload { left, is_video } => {
                    let part = &rest[..left.min(rest.len())];
                    if part.is_empty() {
                        return used;
                    }
                    if is_video {
                        video.extend_from_slice(part);
                    }
                    used += part.len();
                    self.state = State::Payload { left: left - part.len(), is_video };
                }
                State::Code => match self.begin(rest) {
                    HeaderLength::Incomplete => return used,
                    HeaderLength::Broken => used += skip_invalid(rest),
                    HeaderLength::Length(length) => used += length,
                },
            }
        }
    }

    fn begin(&mut self, rest: &[u8]) -> HeaderLength {
        let [0, 0, 1, code, ..] = *rest else {
            let is_short = rest.len() < 4 && PREFIX.starts_with(&rest[..rest.len().min(3)]);
            return if is_short { HeaderLength::Incomplete } else { HeaderLength::Broken };
        };
        match code {
            PROGRAM_END => HeaderLength::Length(4),
            PACK => pack_length(rest),
            LENGTHS_FROM.. => {
                let Some(length) = rest.get(4..6) else { return HeaderLength::Incomplete };
                let length = usize::from(u16::from_be_bytes([length[0], length[1]]));
                let is_video =
                    matches!(code, 0xe0..=0xef) && *self.video.get_or_insert(code) == code;
                if !is_video {
                    self.state = State::Payload { left: length, is_video };
                    return HeaderLength::Length(6);
                }
                let Some(body) = rest.get(6..) else { return HeaderLength::Incomplete };
                match header_length(body.get(..length.min(body.len())).unwrap_or_default()) {
                    HeaderLength::Length(header) if header <= length => {
                        self.state = State::Payload { left: length - header, is_video };
                        HeaderLength::Length(6 + header)
                    }
                    HeaderLength::Incomplete if body.len() < length => HeaderLength::Incomplete,
                    _ => HeaderLength::Broken,
                }
            }
            _ => HeaderLength::Broken,
        }
    }
}

/// Returns the number of invalid bytes to skip: up to the next possible start code.
fn skip_invalid(rest: &[u8]) -> usize {
    let next = rest.iter().skip(1).position(|byte| *byte == 0);
    next.map_or(rest.len(), |offset| offset + 1)
}

/// Returns the length of a pack header with its stuffing.
fn pack_length(rest: &[u8]) -> HeaderLength {
    match rest.get(4) {
        None => HeaderLength::Incomplete,
        Some(byte) if byte >> 6 == 0b01 => match rest.get(13) {
            None => HeaderLength::Incomplete,
            Some(stuffing) => if_complete(rest, 14 + usize::from(stuffing & 7)),
        },
        // MPEG-1.
        Some(byte) if byte >> 4 == 0b0010 => if_complete(rest, 12),
        Some(_) => HeaderLength::Broken,
    }
}

fn if_complete(rest: &[u8], length: usize) -> HeaderLength {
    if rest.len() < length { HeaderLength::Incomplete } else { HeaderLength::Length(length) }
}

/// Returns the bytes between a PES packet's length field and its payload.
pub(crate) fn header_length(body: &[u8]) -> HeaderLength {
    match body.first() {
        None => HeaderLength::Incomplete,
        Some(byte) if byte >> 6 == 0b10 => match body.get(2) {
            None => HeaderLength::Incomplete,
            Some(length) => if_complete(body, 3 + usize::from(*length)),
        },
        Some(_) => header_length_of_mpeg1(body),
    }
}

/// Returns the same for MPEG-1, ISO/IEC 11172-1, 2.4.3.3: at most 16 bytes of stuffing, the
/// buffer's size, time stamps.
fn header_length_of_mpeg1(body: &[u8]) -> HeaderLength {
    let stuffing = body.iter().take_while(|byte| **byte == 0xff).count();
    if stuffing > 16 {
        return HeaderLength::Broken;
    }
    let mut at = stuffing;
    if body.get(at).is_some_and(|byte| byte >> 6 == 0b01) {
        at += 2;
    }
    match body.get(at) {
        None => HeaderLength::Incomplete,
        Some(byte) if byte >> 4 == 0b0010 => if_complete(body, at + 5),
        Some(byte) if byte >> 4 == 0b0011 => if_complete(body, at + 10),
        Some(0x0f) => HeaderLength::Length(at + 1),
        Some(_) => HeaderLength::Broken,
    }
}
