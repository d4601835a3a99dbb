//! Program streams: ISO/IEC 13818-1, 2.5.3, and ISO/IEC 11172-1, 2.4.3.

/// A program stream on its way; the first video stream in it counts.
#[derive(Debug, Default)]
pub(crate) struct Program {
    state: State,
    /// The stream that is video: `E0` to `EF`.
    video: Option<u8>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// A start code follows, or is looked for.
    #[default]
    Code,
    /// So much of a packet is left, which is video or is not.
    Payload { left: usize, is_video: bool },
}

const PREFIX: &[u8] = &[0, 0, 1];
const PROGRAM_END: u8 = 0xb9;
const PACK: u8 = 0xba;
/// Every stream's number from here on has a length behind it.
const LENGTHS_FROM: u8 = 0xbb;

/// What stands in front of a packet's payload.
pub(crate) enum Begun {
    /// So many bytes.
    Length(usize),
    /// It takes more bytes to say.
    Later,
    /// It is none.
    Broken,
}

impl Program {
    /// Reads what can be read, and says how many bytes that were.
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
                    Begun::Later => return used,
                    Begun::Broken => used += lost(rest),
                    Begun::Length(length) => used += length,
                },
            }
        }
    }

    fn begin(&mut self, rest: &[u8]) -> Begun {
        let [0, 0, 1, code, ..] = *rest else {
            let is_short = rest.len() < 4 && PREFIX.starts_with(&rest[..rest.len().min(3)]);
            return if is_short { Begun::Later } else { Begun::Broken };
        };
        match code {
            PROGRAM_END => Begun::Length(4),
            PACK => pack_length(rest),
            LENGTHS_FROM.. => {
                let Some(length) = rest.get(4..6) else { return Begun::Later };
                let length = usize::from(u16::from_be_bytes([length[0], length[1]]));
                let is_video =
                    matches!(code, 0xe0..=0xef) && *self.video.get_or_insert(code) == code;
                if !is_video {
                    self.state = State::Payload { left: length, is_video };
                    return Begun::Length(6);
                }
                let Some(body) = rest.get(6..) else { return Begun::Later };
                match header_length(body.get(..length.min(body.len())).unwrap_or_default()) {
                    Begun::Length(header) if header <= length => {
                        self.state = State::Payload { left: length - header, is_video };
                        Begun::Length(6 + header)
                    }
                    Begun::Later if body.len() < length => Begun::Later,
                    _ => Begun::Broken,
                }
            }
            _ => Begun::Broken,
        }
    }
}

/// How much of what is no packet is passed over: up to what may be the next start code.
fn lost(rest: &[u8]) -> usize {
    let next = rest.iter().skip(1).position(|byte| *byte == 0);
    next.map_or(rest.len(), |place| place + 1)
}

/// Of a pack header with its stuffing.
fn pack_length(rest: &[u8]) -> Begun {
    match rest.get(4) {
        None => Begun::Later,
        Some(byte) if byte >> 6 == 0b01 => match rest.get(13) {
            None => Begun::Later,
            Some(stuffing) => all_of(rest, 14 + usize::from(stuffing & 7)),
        },
        // MPEG-1.
        Some(byte) if byte >> 4 == 0b0010 => all_of(rest, 12),
        Some(_) => Begun::Broken,
    }
}

fn all_of(rest: &[u8], length: usize) -> Begun {
    if rest.len() < length { Begun::Later } else { Begun::Length(length) }
}

/// Bytes between a PES packet's length and its payload.
pub(crate) fn header_length(body: &[u8]) -> Begun {
    match body.first() {
        None => Begun::Later,
        Some(byte) if byte >> 6 == 0b10 => match body.get(2) {
            None => Begun::Later,
            Some(length) => all_of(body, 3 + usize::from(*length)),
        },
        Some(_) => header_length_of_mpeg1(body),
    }
}

/// ISO/IEC 11172-1, 2.4.3.3: at most 16 bytes of stuffing, the buffer's size, time stamps.
fn header_length_of_mpeg1(body: &[u8]) -> Begun {
    let stuffing = body.iter().take_while(|byte| **byte == 0xff).count();
    if stuffing > 16 {
        return Begun::Broken;
    }
    let mut at = stuffing;
    if body.get(at).is_some_and(|byte| byte >> 6 == 0b01) {
        at += 2;
    }
    match body.get(at) {
        None => Begun::Later,
        Some(byte) if byte >> 4 == 0b0010 => all_of(body, at + 5),
        Some(byte) if byte >> 4 == 0b0011 => all_of(body, at + 10),
        Some(0x0f) => Begun::Length(at + 1),
        Some(_) => Begun::Broken,
    }
}
