//! Chunks and trailers, byte by byte: RFC 9112, section 7.1. Data is not copied; extensions
//! are checked and dropped.
//!
//! ```text
//!  Size ─▶ Space ─▶ Extension ─▶ SizeEnd ─┬─ 0 ────▶ Trailers ─▶ over
//!   ▲ └────────────────────────────▲      ▼
//!   └────────── DataEnd ◀─ DataReturn ◀─ Data
//! ```

use crate::error::{Fault, Reason, Side};
use crate::grammar::{is_space, is_value};
use crate::headers::Headers;
use crate::limits::{
    BODY_LENGTH_MAX, CHUNK_EXTENSIONS_LENGTH_MAX, CHUNK_LINE_LENGTH_MAX, CHUNK_SIZE_DIGITS_MAX,
    FIELD_LINE_LENGTH_MAX, TRAILERS_COUNT_MAX, TRAILERS_LENGTH_MAX,
};
use crate::line::{Limits, Reader};

/// Part of a body.
#[derive(Debug)]
pub(crate) enum BodyEvent<'i> {
    Bytes(&'i [u8]),
    Trailers(Headers),
    Tunnel(&'i [u8]),
    End,
}

const TRAILER_LIMITS: Limits = Limits {
    start_line: FIELD_LINE_LENGTH_MAX,
    length: TRAILERS_LENGTH_MAX,
    count: TRAILERS_COUNT_MAX,
};

/// Fields that are no trailers (RFC 9110, section 6.5.1): message length, routing, authentication,
/// content format, and connection control. A recipient that merges trailers into the head would act
/// on them.
pub const FORBIDDEN_TRAILERS: [&[u8]; 28] = [
    b"Authorization",
    b"Cache-Control",
    b"Connection",
    b"Content-Encoding",
    b"Content-Length",
    b"Content-Range",
    b"Content-Type",
    b"Cookie",
    b"Expect",
    b"Forwarded",
    b"Host",
    b"If-Match",
    b"If-Modified-Since",
    b"If-None-Match",
    b"If-Range",
    b"If-Unmodified-Since",
    b"Keep-Alive",
    b"Location",
    b"Max-Forwards",
    b"Proxy-Authenticate",
    b"Proxy-Authorization",
    b"Proxy-Connection",
    b"Range",
    b"Set-Cookie",
    b"TE",
    b"Trailer",
    b"Transfer-Encoding",
    b"Upgrade",
];

/// Returns true if a field must not be sent as a trailer.
#[must_use]
pub fn is_forbidden_trailer(name: &[u8]) -> bool {
    FORBIDDEN_TRAILERS.iter().any(|forbidden| forbidden.eq_ignore_ascii_case(name))
}

/// Position of the next byte in the chunked coding.
#[derive(Debug)]
enum State {
    Size,
    /// Whitespace after a size: "bad" whitespace before an extension, and padding that some servers
    /// write.
    Space,
    Extension,
    SizeEnd,
    Data,
    DataReturn,
    DataEnd,
    Trailers(Reader<()>),
    Over,
}

/// Decoder of a chunked body.
#[derive(Debug)]
pub(crate) struct Chunks {
    side: Side,
    state: State,
    /// Chunk size while its digits are read, then the number of data bytes still missing.
    size: u64,
    digits: usize,
    /// Bytes of the current chunk's line so far.
    line: usize,
    /// Bytes of all extensions so far.
    extensions: usize,
}

impl Chunks {
    pub(crate) const fn new(side: Side) -> Self {
        Self { side, state: State::Size, size: 0, digits: 0, line: 0, extensions: 0 }
    }

    /// Returns true if the body is complete.
    pub(crate) const fn is_over(&self) -> bool {
        matches!(self.state, State::Over)
    }

    /// Returns the next event and the number of input bytes it took; without an event, all were
    /// taken.
    pub(crate) fn next<'i>(
        &mut self,
        offset: u64,
        input: &'i [u8],
    ) -> Result<(usize, Option<BodyEvent<'i>>), Fault> {
        let mut used = 0;
        loop {
            let here = offset.saturating_add(used as u64);
            let rest = &input[used..];
            if matches!(self.state, State::Over) {
                return Ok((used, Some(BodyEvent::End)));
            }
            let [byte, ..] = rest else { return Ok((used, None)) };
            match &mut self.state {
                State::Data => {
                    let length = usize::try_from(self.size).unwrap_or(usize::MAX).min(rest.len());
                    self.size -= length as u64;
                    if self.size == 0 {
                        self.state = State::DataReturn;
                    }
                    return Ok((used + length, Some(BodyEvent::Bytes(&rest[..length]))));
                }
                State::Trailers(reader) => {
                    let (taken, lines) = reader.read(rest)?;
                    used += taken;
                    let Some(mut lines) = lines else { return Ok((used, None)) };
                    let forbidden =
                        lines.headers.iter().position(|(name, _)| is_forbidden_trailer(name));
                    match (forbidden, self.side) {
                        (None, _) => {}
                        (Some(index), Side::Request) => {
                            let at = lines.headers.position(index) as u64;
                            let offset = lines.base.saturating_add(at);
                            return Err(Fault { offset, reason: Reason::TrailerForbidden });
                        }
                        // RFC 9112, section 7.1.2: a recipient may discard such a trailer.
                        (Some(_), Side::Response) => {
                            lines.headers.retain(|name| !is_forbidden_trailer(name));
                        }
                    }
                    self.state = State::Over;
                    if !lines.headers.is_empty() {
                        return Ok((used, Some(BodyEvent::Trailers(lines.headers))));
                    }
                }
                _ => {
                    self.byte(*byte, here).map_err(|reason| Fault { offset: here, reason })?;
                    used += 1;
                }
            }
        }
    }

    /// Consumes one byte that is neither chunk data nor part of a trailer.
    fn byte(&mut self, byte: u8, here: u64) -> Result<(), Reason> {
        match self.state {
            State::Size => self.size_byte(byte),
            State::Space => self.space_byte(byte),
            State::Extension => self.extension_byte(byte),
            State::SizeEnd if byte == b'\n' => {
                self.state = if self.size == 0 {
                    let next = here.saturating_add(1);
                    State::Trailers(Reader::fields(TRAILER_LIMITS, self.side, next))
                } else {
                    State::Data
                };
                (self.digits, self.line) = (0, 0);
                Ok(())
            }
            State::SizeEnd => Err(Reason::BareCr),
            State::DataReturn if byte == b'\r' => {
                self.state = State::DataEnd;
                Ok(())
            }
            State::DataEnd if byte == b'\n' => {
                (self.state, self.size) = (State::Size, 0);
                Ok(())
            }
            _ => Err(Reason::ChunkEnd),
        }
    }

    fn size_byte(&mut self, byte: u8) -> Result<(), Reason> {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            b'A'..=b'F' => byte - b'A' + 10,
            b'\n' => return Err(Reason::BareLf),
            _ if self.digits == 0 => return Err(Reason::ChunkSize),
            b'\r' => {
                self.state = State::SizeEnd;
                return Ok(());
            }
            b';' => {
                self.state = State::Extension;
                return self.count_extension();
            }
            byte if is_space(byte) => {
                self.state = State::Space;
                return self.count_extension();
            }
            _ => return Err(Reason::ChunkSize),
        };
        if self.digits >= CHUNK_SIZE_DIGITS_MAX {
            return Err(Reason::ChunkSizeTooLarge);
        }
        let size = self.size.checked_mul(16).and_then(|size| size.checked_add(u64::from(digit)));
        self.size =
            size.filter(|&size| size <= BODY_LENGTH_MAX).ok_or(Reason::ChunkSizeTooLarge)?;
        self.digits += 1;
        self.line += 1;
        Ok(())
    }

    /// Handles whitespace after a size. Before a semicolon it is removed (RFC 9110, section 5.6.3).
    /// Before CRLF it is an error in requests; responses may have it, as every recipient reads the
    /// same size.
    fn space_byte(&mut self, byte: u8) -> Result<(), Reason> {
        match byte {
            b';' => {
                self.state = State::Extension;
                self.count_extension()
            }
            b'\r' if self.side == Side::Response => {
                self.state = State::SizeEnd;
                Ok(())
            }
            byte if is_space(byte) => self.count_extension(),
            _ => Err(Reason::ChunkSize),
        }
    }

    fn extension_byte(&mut self, byte: u8) -> Result<(), Reason> {
        match byte {
            b'\r' => {
                self.state = State::SizeEnd;
                Ok(())
            }
            b'\n' => Err(Reason::BareLf),
            byte if is_value(byte) => self.count_extension(),
            _ => Err(Reason::ChunkExtension),
        }
    }

    fn count_extension(&mut self) -> Result<(), Reason> {
        if self.line >= CHUNK_LINE_LENGTH_MAX {
            return Err(Reason::ChunkLineTooLong);
        }
        if self.extensions >= CHUNK_EXTENSIONS_LENGTH_MAX {
            return Err(Reason::ChunkExtensionsTooLong);
        }
        self.line += 1;
        self.extensions += 1;
        Ok(())
    }
}
