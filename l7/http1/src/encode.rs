//! The way out: heads with exactly the framing fields that are true, bodies, trailers.
//!
//! A head whose framing fields are right already is written as it came: names, order and values,
//! with one space behind each colon. Else they are put where the old ones stood, or at the end.

use crate::chunked::is_forbidden_trailer;
use crate::connection::{
    has_option, limit_codings, offers_codings, offers_http, set_close, withdraw_http,
};
use crate::error::{Error, Reason};
use crate::framing::{Asked, AskedBy, Framing, Said, said};
use crate::grammar::Decimal;
use crate::head::{RequestHead, ResponseHead};
use crate::headers::{EditError, Headers};
use crate::limits::{BODY_LENGTH_MAX, TRAILERS_COUNT_MAX, TRAILERS_LENGTH_MAX};
use crate::source::Source;
use crate::version::Version;

const LENGTH: &[u8] = b"Content-Length";
const CODING: &[u8] = b"Transfer-Encoding";

/// Why a message cannot be sent so. Our own fault, or that of a filter that edited it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// The head would be refused by whoever reads it.
    #[error("the head is not valid: {0}")]
    Head(Reason),
    /// There is no room for a framing field.
    #[error("a framing field does not fit: {0}")]
    Edit(#[from] EditError),
    /// This message cannot have this framing.
    #[error("this message cannot be framed as {0:?}")]
    Framing(Framing),
    /// More body than the head says.
    #[error("the body is longer than its head says")]
    BodyTooLong,
    /// Less body than the head says: the connection has to be reset.
    #[error("the body ends {missing} bytes before its head says")]
    BodyTooShort {
        /// How many bytes are missing.
        missing: u64,
    },
    /// A trailer that only a head may have.
    #[error("there is a trailer that only a head may have")]
    TrailerForbidden,
    /// Trailers beyond their limits.
    #[error("the trailers are more than {TRAILERS_COUNT_MAX}, or {TRAILERS_LENGTH_MAX} bytes")]
    TrailersTooLong,
    /// The message has ended before.
    #[error("the message is over")]
    Over,
}

/// What is written around a slice of body, so that the slice itself need not be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Around {
    before: [u8; 18],
    before_length: usize,
    after: &'static [u8],
}

impl Around {
    const NOTHING: Self = Self { before: [0; 18], before_length: 0, after: b"" };

    /// In front of the slice.
    #[must_use]
    pub fn before(&self) -> &[u8] {
        &self.before[..self.before_length]
    }

    /// Behind the slice.
    #[must_use]
    pub const fn after(&self) -> &'static [u8] {
        self.after
    }

    /// A chunk's size and CRLF: at most 16 digits.
    fn chunk(mut size: u64) -> Self {
        let (mut digits, mut from) = ([0; 16], 16);
        while size > 0 && from > 0 {
            from -= 1;
            digits[from] = b"0123456789abcdef"[(size & 15) as usize];
            size >>= 4;
        }
        let (mut before, length) = ([0; 18], 16 - from);
        before[..length].copy_from_slice(&digits[from..]);
        before[length..length + 2].copy_from_slice(b"\r\n");
        Self { before, before_length: length + 2, after: b"\r\n" }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Length(u64),
    Chunked,
    /// Bytes as they are.
    Plain,
    Over,
}

/// Writes the body of one message whose head is written.
#[derive(Debug)]
pub struct Encoder {
    state: State,
}

impl Encoder {
    /// Writes the head of a request. Nothing is written when it fails. TE is limited to
    /// `trailers`, as no other coding than chunked can be read when the response comes, and Upgrade
    /// to what is no HTTP.
    ///
    /// # Errors
    /// When the head was edited into one that would be refused, or cannot have this framing.
    pub fn request(
        head: &RequestHead,
        framing: Framing,
        out: &mut Vec<u8>,
    ) -> Result<Self, EncodeError> {
        head.check().map_err(EncodeError::Head)?;
        let possible = match framing {
            Framing::None | Framing::Length(0) => true,
            Framing::Chunked if head.version() == Version::Http10 => false,
            Framing::Length(length) if length > BODY_LENGTH_MAX => false,
            Framing::Length(_) | Framing::Chunked => {
                !matches!(head.method(), b"CONNECT" | b"TRACE")
            }
            Framing::UntilClose | Framing::Tunnel => false,
        };
        if !possible {
            return Err(EncodeError::Framing(framing));
        }
        let mut fixed = fix(head.version(), &head.headers, framing, Kept::Nothing)?;
        if offers_codings(&head.headers) {
            limit_codings(fixed.get_or_insert_with(|| head.headers.clone()))?;
        }
        if offers_http(&head.headers) {
            withdraw_http(fixed.get_or_insert_with(|| head.headers.clone()))?;
        }
        for part in [head.method(), b" ", head.target(), b" ", head.version().as_bytes()] {
            out.extend_from_slice(part);
        }
        write_fields(fixed.as_ref().unwrap_or(&head.headers), out);
        Ok(Self::new(framing))
    }

    /// Writes the head of a response; an interim one is framed as [`Framing::None`]. Nothing is
    /// written when it fails.
    ///
    /// In a response to HEAD and in 304 the framing fields stay, as they tell of another
    /// response: where filters would edit the body of that one, take them out.
    ///
    /// # Errors
    /// When the head was edited into one that would be refused, or cannot have this framing.
    pub fn response(
        head: &ResponseHead,
        asked: Asked,
        framing: Framing,
        out: &mut Vec<u8>,
    ) -> Result<Self, EncodeError> {
        head.check_fields().map_err(|(_, reason)| EncodeError::Head(reason))?;
        let status = head.status();
        let possible = match framing {
            Framing::Tunnel => asked.is_tunnel(status),
            Framing::None => !asked.is_tunnel(status) && asked.has_no_body(status),
            _ if asked.is_tunnel(status) || asked.has_no_body(status) => false,
            Framing::Chunked => head.version() == Version::Http11,
            Framing::Length(length) => length <= BODY_LENGTH_MAX,
            Framing::UntilClose => true,
        };
        if !possible {
            return Err(EncodeError::Framing(framing));
        }
        let of_another = status == 304 || (asked.method == AskedBy::Head && status >= 200);
        let kept = if of_another && status != 204 { Kept::OfAnother } else { Kept::Nothing };
        let fixed = fix(head.version(), &head.headers, framing, kept)?;
        let digits = Decimal::new(u64::from(status));
        for part in [head.version().as_bytes(), b" ", digits.as_bytes(), b" ", head.reason()] {
            out.extend_from_slice(part);
        }
        write_fields(fixed.as_ref().unwrap_or(&head.headers), out);
        Ok(Self::new(framing))
    }

    const fn new(framing: Framing) -> Self {
        let state = match framing {
            Framing::None => State::Length(0),
            Framing::Length(length) => State::Length(length),
            Framing::Chunked => State::Chunked,
            Framing::UntilClose | Framing::Tunnel => State::Plain,
        };
        Self { state }
    }

    /// Says that a slice of so many bytes is sent next, and what is written around it.
    ///
    /// # Errors
    /// When that is more than the head says, or the message is over.
    pub fn body(&mut self, length: usize) -> Result<Around, EncodeError> {
        let length = length as u64;
        match &mut self.state {
            State::Over => Err(EncodeError::Over),
            State::Length(left) => {
                *left = left.checked_sub(length).ok_or(EncodeError::BodyTooLong)?;
                Ok(Around::NOTHING)
            }
            // A chunk of nothing would be the last one.
            State::Chunked if length > 0 => Ok(Around::chunk(length)),
            State::Chunked | State::Plain => Ok(Around::NOTHING),
        }
    }

    /// Writes a slice and what is around it.
    ///
    /// # Errors
    /// As [`body`](Self::body).
    pub fn write_body(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let around = self.body(bytes.len())?;
        for part in [around.before(), bytes, around.after()] {
            out.extend_from_slice(part);
        }
        Ok(())
    }

    /// Ends the message. Trailers are dropped where the framing has none (RFC 9110, section
    /// 6.5.1).
    ///
    /// # Errors
    /// When the body is shorter than its head says, a trailer is not allowed, or they are too
    /// many.
    pub fn end(&mut self, trailers: &Headers, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        match self.state {
            State::Over => return Err(EncodeError::Over),
            State::Length(0) | State::Plain => {}
            State::Length(missing) => return Err(EncodeError::BodyTooShort { missing }),
            State::Chunked => {
                if trailers.iter().any(|(name, _)| is_forbidden_trailer(name)) {
                    return Err(EncodeError::TrailerForbidden);
                }
                let length = trailers.wire_length();
                if trailers.len() > TRAILERS_COUNT_MAX || length > TRAILERS_LENGTH_MAX {
                    return Err(EncodeError::TrailersTooLong);
                }
                out.extend_from_slice(b"0");
                write_fields(trailers, out);
            }
        }
        self.state = State::Over;
        Ok(())
    }
}

/// Whether framing fields of a message without a body tell of another one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kept {
    Nothing,
    OfAnother,
}

/// The end of a first line, the fields, and the empty line.
fn write_fields(headers: &Headers, out: &mut Vec<u8>) {
    out.extend_from_slice(b"\r\n");
    headers.serialize(out);
    out.extend_from_slice(b"\r\n");
}

/// The fields with the right framing; none if they have it already.
fn fix(
    version: Version,
    headers: &Headers,
    framing: Framing,
    kept: Kept,
) -> Result<Option<Headers>, EncodeError> {
    let has = [LENGTH, CODING].map(|name| headers.contains(name));
    let says = said(version, headers);
    let is_right = match framing {
        Framing::Length(length) => says == Ok(Said::Length(length)),
        Framing::Chunked => says == Ok(Said::Chunked),
        Framing::None if kept == Kept::OfAnother => says.is_ok(),
        Framing::None | Framing::Tunnel => has == [false, false],
        Framing::UntilClose => has == [false, false] && !has_option(headers, b"keep-alive"),
    };
    if is_right {
        return Ok(None);
    }
    let mut fixed = headers.clone();
    match framing {
        Framing::Length(length) => {
            put(&mut fixed, LENGTH, Decimal::new(length).as_bytes(), CODING)?;
        }
        Framing::Chunked => put(&mut fixed, CODING, b"chunked", LENGTH)?,
        Framing::None | Framing::Tunnel | Framing::UntilClose => {
            fixed.remove(LENGTH);
            fixed.remove(CODING);
        }
    }
    if framing == Framing::UntilClose {
        set_close(&mut fixed)?;
    }
    Ok(Some(fixed))
}

/// Gives one framing field its value, where it stands or where the other one stood, and takes
/// the other one out.
fn put(headers: &mut Headers, name: &[u8], value: &[u8], other: &[u8]) -> Result<(), EditError> {
    if headers.contains(name) {
        headers.remove(other);
        return headers.replace(name, value);
    }
    let place = headers.index(other).unwrap_or(headers.len());
    headers.remove(other);
    headers.insert(place, name, value)
}

/// A whole response that tells a client why its request, or the response to it, is refused, and
/// that the connection ends. To HEAD too: the connection ends behind it.
#[must_use]
pub fn refusal(error: Error) -> Vec<u8> {
    let status = error.status();
    let reason = match status {
        414 => "URI Too Long",
        431 => "Request Header Fields Too Large",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        505 => "HTTP Version Not Supported",
        _ => "Bad Request",
    };
    let Source { section, sentence } = error.source();
    let text = format!("{error}\n{section}: {sentence}\n");
    let head = format!(
        "HTTP/1.1 {status} {reason}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{text}",
        text.len()
    );
    head.into_bytes()
}
