//! Encoder: writes heads with exactly the framing fields that are true, bodies, and trailers.
//!
//! A head whose framing fields are right already is written as received: names, order and values,
//! with one space after each colon. Otherwise the new framing fields replace the old ones in their
//! place, or are added at the end.

use crate::chunked::is_forbidden_trailer;
use crate::connection::{
    has_option, limit_codings, offers_codings, offers_http, set_close, withdraw_http,
};
use crate::error::{Error, Reason};
use crate::framing::{Framing, FramingFields, MethodClass, RequestTraits, framing_fields};
use crate::grammar::Decimal;
use crate::head::{RequestHead, ResponseHead};
use crate::headers::{EditError, Headers};
use crate::limits::{BODY_LENGTH_MAX, TRAILERS_COUNT_MAX, TRAILERS_LENGTH_MAX};
use crate::source::Source;
use crate::version::Version;

const LENGTH: &[u8] = b"Content-Length";
const CODING: &[u8] = b"Transfer-Encoding";

/// The message cannot be sent like this. A fault of this node, or of a filter that edited the
/// message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// A recipient would refuse the head.
    #[error("the head is not valid: {0}")]
    Head(Reason),
    /// A framing field would exceed the limits of a head.
    #[error("a framing field does not fit: {0}")]
    Edit(#[from] EditError),
    /// The message cannot have this framing.
    #[error("this message cannot be framed as {0:?}")]
    Framing(Framing),
    /// The body is longer than the head says.
    #[error("the body is longer than its head says")]
    BodyTooLong,
    /// The body is shorter than the head says: the connection has to be reset.
    #[error("the body ends {missing} bytes before its head says")]
    BodyTooShort {
        /// Number of missing bytes.
        missing: u64,
    },
    /// A trailer is a field that only a head may have.
    #[error("there is a trailer that only a head may have")]
    TrailerForbidden,
    /// The trailers exceed their limits.
    #[error("the trailers are more than {TRAILERS_COUNT_MAX}, or {TRAILERS_LENGTH_MAX} bytes")]
    TrailersTooLong,
    /// The message has ended before.
    #[error("the message is over")]
    Over,
}

/// Delimiters of a slice of body, so that the slice itself need not be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delimiters {
    before: [u8; 18],
    before_length: usize,
    after: &'static [u8],
}

impl Delimiters {
    const NOTHING: Self = Self { before: [0; 18], before_length: 0, after: b"" };

    /// Bytes to write before the slice.
    #[must_use]
    pub fn before(&self) -> &[u8] {
        &self.before[..self.before_length]
    }

    /// Bytes to write after the slice.
    #[must_use]
    pub const fn after(&self) -> &'static [u8] {
        self.after
    }

    /// Chunk size in at most 16 hexadecimal digits and CRLF, then CRLF after the data.
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
    /// Bytes are written unchanged.
    Plain,
    Over,
}

/// Encoder of one message's body and trailers, after its head is written.
#[derive(Debug)]
pub struct Encoder {
    state: State,
}

impl Encoder {
    /// Writes the head of a request; nothing on failure. TE is limited to `trailers`, as no
    /// transfer coding but chunked can be read in the response, and Upgrade to protocols other than
    /// HTTP.
    ///
    /// # Errors
    /// The head was edited into one that would be refused, or cannot have this framing.
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
        let mut fixed = fix(head.version(), &head.headers, framing, DescribedBody::Nothing)?;
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

    /// Writes the head of a response; an interim one is framed as [`Framing::None`]. Writes nothing
    /// on failure.
    ///
    /// In a response to HEAD and in 304 the framing fields stay, as they describe another response.
    /// The caller removes them if filters would edit the body of that one.
    ///
    /// # Errors
    /// The head was edited into one that would be refused, or cannot have this framing.
    pub fn response(
        head: &ResponseHead,
        traits: RequestTraits,
        framing: Framing,
        out: &mut Vec<u8>,
    ) -> Result<Self, EncodeError> {
        head.check_fields().map_err(|(_, reason)| EncodeError::Head(reason))?;
        let status = head.status();
        let possible = match framing {
            Framing::Tunnel => traits.is_tunnel(status),
            Framing::None => !traits.is_tunnel(status) && traits.has_no_body(status),
            _ if traits.is_tunnel(status) || traits.has_no_body(status) => false,
            Framing::Chunked => head.version() == Version::Http11,
            Framing::Length(length) => length <= BODY_LENGTH_MAX,
            Framing::UntilClose => true,
        };
        if !possible {
            return Err(EncodeError::Framing(framing));
        }
        let describes_other =
            status == 304 || (traits.method == MethodClass::Head && status >= 200);
        let described = if describes_other && status != 204 {
            DescribedBody::OtherResponse
        } else {
            DescribedBody::Nothing
        };
        let fixed = fix(head.version(), &head.headers, framing, described)?;
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

    /// Registers the next slice of `length` bytes, and returns its delimiters.
    ///
    /// # Errors
    /// The body would be longer than the head says, or the message is over.
    pub fn body(&mut self, length: usize) -> Result<Delimiters, EncodeError> {
        let length = length as u64;
        match &mut self.state {
            State::Over => Err(EncodeError::Over),
            State::Length(left) => {
                *left = left.checked_sub(length).ok_or(EncodeError::BodyTooLong)?;
                Ok(Delimiters::NOTHING)
            }
            // An empty chunk would be the last one.
            State::Chunked if length > 0 => Ok(Delimiters::chunk(length)),
            State::Chunked | State::Plain => Ok(Delimiters::NOTHING),
        }
    }

    /// Writes a slice of body with its delimiters.
    ///
    /// # Errors
    /// The same as of [`body`](Self::body).
    pub fn write_body(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let around = self.body(bytes.len())?;
        for part in [around.before(), bytes, around.after()] {
            out.extend_from_slice(part);
        }
        Ok(())
    }

    /// Ends the message. Trailers are dropped if the framing has none (RFC 9110, section 6.5.1).
    ///
    /// # Errors
    /// The body is shorter than the head says, a trailer is not allowed, or the trailers exceed
    /// their limits.
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

/// Treatment of framing fields in a message without a body.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DescribedBody {
    Nothing,
    OtherResponse,
}

/// Writes the end of a first line, the fields, and the empty line.
fn write_fields(headers: &Headers, out: &mut Vec<u8>) {
    out.extend_from_slice(b"\r\n");
    headers.serialize(out);
    out.extend_from_slice(b"\r\n");
}

/// Returns the fields with the right framing, or `None` if they have it already.
fn fix(
    version: Version,
    headers: &Headers,
    framing: Framing,
    described: DescribedBody,
) -> Result<Option<Headers>, EncodeError> {
    let has = [LENGTH, CODING].map(|name| headers.contains(name));
    let says = framing_fields(version, headers);
    let is_right = match framing {
        Framing::Length(length) => says == Ok(FramingFields::Length(length)),
        Framing::Chunked => says == Ok(FramingFields::Chunked),
        Framing::None if described == DescribedBody::OtherResponse => says.is_ok(),
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

/// Sets one framing field, in its place or in that of the other framing field, which is removed.
fn put(headers: &mut Headers, name: &[u8], value: &[u8], other: &[u8]) -> Result<(), EditError> {
    if headers.contains(name) {
        headers.remove(other);
        return headers.replace(name, value);
    }
    let offset_of = headers.index(other).unwrap_or(headers.len());
    headers.remove(other);
    headers.insert(offset_of, name, value)
}

/// Returns a complete response that tells a client why its request, or the response to it, is
/// refused, and that the connection ends. It has a body in response to HEAD too, as the connection
/// ends after it.
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
