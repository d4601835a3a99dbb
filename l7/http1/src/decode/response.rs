//! Decoder of a server's responses, each read as the response to a request that was announced with
//! [`ResponseDecoder::expect`].

use super::{HEAD_LIMITS, Step};
use crate::body::BodyReader;
use crate::chunked::BodyEvent;
use crate::error::{Error, Fault, Reason, Side};
use crate::framing::{self, Framing, RequestTraits, merge_lengths};
use crate::head::{ResponseHead, StatusLine};
use crate::headers::Headers;
use crate::limits::INTERIM_COUNT_MAX;
use crate::line::Reader;

/// Part of a response.
#[derive(Debug, PartialEq, Eq)]
pub enum ResponseEvent<'i> {
    /// Complete interim response (1xx except 101); another response follows.
    Interim(ResponseHead),
    /// Head of the final response, or of 101, and framing of its body. No end follows
    /// [`Framing::Tunnel`].
    Head(ResponseHead, Framing),
    /// Slice of the body, within the input.
    Body(&'i [u8]),
    /// Trailer fields, only if there are some.
    Trailers(Headers),
    /// End of the response.
    End,
    /// Bytes of another protocol.
    Tunnel(&'i [u8]),
}

#[derive(Debug)]
enum ResponseState {
    /// No request is outstanding.
    AwaitsRequest,
    Head(Reader<StatusLine>),
    Body(BodyReader),
}

/// Decoder of the bytes that a server sends.
#[derive(Debug)]
pub struct ResponseDecoder {
    offset: u64,
    state: ResponseState,
    traits: RequestTraits,
    interim: u32,
    failed: Option<Error>,
}

impl Default for ResponseDecoder {
    fn default() -> Self {
        Self::new()
    }
}

impl ResponseDecoder {
    /// Creates a decoder at the beginning of a connection, before any request.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            offset: 0,
            state: ResponseState::AwaitsRequest,
            traits: RequestTraits { method: framing::MethodClass::Other, upgrade: false },
            interim: 0,
            failed: None,
        }
    }

    /// Number of bytes consumed since the beginning of the connection.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns true if no request is outstanding: [`expect`](Self::expect) must be called before a
    /// response can be read.
    #[must_use]
    pub const fn awaits_request(&self) -> bool {
        matches!(self.state, ResponseState::AwaitsRequest)
    }

    /// Sets the request that the next response answers. Allowed only between responses; else does
    /// nothing and returns `false`.
    pub fn expect(&mut self, traits: RequestTraits) -> bool {
        if !self.awaits_request() {
            return false;
        }
        self.traits = traits;
        self.interim = 0;
        self.state = ResponseState::Head(Reader::new(HEAD_LIMITS, Side::Response, self.offset));
        true
    }

    /// Decodes bytes. Bytes other than CRLF are refused while no request is outstanding: RFC 9112,
    /// section 9.2.
    ///
    /// # Errors
    /// The bytes are no response that can be forwarded. The connection ends with it.
    pub fn decode<'i>(&mut self, input: &'i [u8]) -> Result<Step<ResponseEvent<'i>>, Error> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let step = self.advance(input).map_err(|fault| {
            let error = fault.on(Side::Response);
            self.failed = Some(error);
            error
        })?;
        self.offset = self.offset.saturating_add(step.consumed as u64);
        Ok(step)
    }

    /// Handles the end of the server's bytes: [`ResponseEvent::End`] for a body that lasts until
    /// then.
    ///
    /// # Errors
    /// A response is incomplete or has not begun. The part that was forwarded must not be taken for
    /// the whole: the client's connection is reset, or ends without the last chunk.
    pub fn eof(&mut self) -> Result<Option<ResponseEvent<'static>>, Error> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let reason = match &self.state {
            ResponseState::AwaitsRequest => return Ok(None),
            ResponseState::Head(_) => Reason::IncompleteHead,
            ResponseState::Body(body) => match body.eof() {
                Ok(false) => return Ok(None),
                Ok(true) => {
                    self.state = ResponseState::AwaitsRequest;
                    return Ok(Some(ResponseEvent::End));
                }
                Err(reason) => reason,
            },
        };
        let error = Error { side: Side::Response, offset: self.offset, reason };
        self.failed = Some(error);
        Err(error)
    }

    fn advance<'i>(&mut self, input: &'i [u8]) -> Result<Step<ResponseEvent<'i>>, Fault> {
        match &mut self.state {
            // RFC 9112, section 9.2: CRLF after a response can be discarded, all else is refused.
            ResponseState::AwaitsRequest => {
                match input.iter().position(|byte| !matches!(byte, b'\r' | b'\n')) {
                    None => Ok(Step { consumed: input.len(), event: None }),
                    Some(at) => {
                        let offset = self.offset.saturating_add(at as u64);
                        Err(Fault { offset, reason: Reason::Unsolicited })
                    }
                }
            }
            ResponseState::Head(reader) => {
                let (consumed, lines) = reader.read(input)?;
                let Some(lines) = lines else { return Ok(Step { consumed, event: None }) };
                let mut headers = lines.headers;
                merge_lengths(&mut headers);
                let head = lines.start.with(headers);
                let event = self.head(consumed, lines.base, head)?;
                Ok(Step { consumed, event: Some(event) })
            }
            ResponseState::Body(body) => {
                let (consumed, event) = body.next(self.offset, input)?;
                let event = event.map(|event| match event {
                    BodyEvent::Bytes(bytes) => ResponseEvent::Body(bytes),
                    BodyEvent::Trailers(trailers) => ResponseEvent::Trailers(trailers),
                    BodyEvent::Tunnel(bytes) => ResponseEvent::Tunnel(bytes),
                    BodyEvent::End => ResponseEvent::End,
                });
                if event == Some(ResponseEvent::End) {
                    self.state = ResponseState::AwaitsRequest;
                }
                Ok(Step { consumed, event })
            }
        }
    }

    /// Handles a complete head and sets the state for the bytes that follow it.
    fn head(
        &mut self,
        consumed: usize,
        base: u64,
        head: ResponseHead,
    ) -> Result<ResponseEvent<'static>, Fault> {
        let offset_of = |at: Option<usize>| {
            let at = at.map_or(0, |index| head.headers.position(index));
            base.saturating_add(at as u64)
        };
        head.check_fields().map_err(|(at, reason)| Fault { offset: offset_of(at), reason })?;
        let framing = framing::of_response(&head, self.traits)
            .map_err(|(at, reason)| Fault { offset: offset_of(at), reason })?;
        if !head.is_interim() {
            self.state = ResponseState::Body(BodyReader::new(framing, Side::Response));
            return Ok(ResponseEvent::Head(head, framing));
        }
        self.interim += 1;
        if self.interim > INTERIM_COUNT_MAX {
            return Err(Fault { offset: base, reason: Reason::InterimTooMany });
        }
        let next = self.offset.saturating_add(consumed as u64);
        self.state = ResponseState::Head(Reader::new(HEAD_LIMITS, Side::Response, next));
        Ok(ResponseEvent::Interim(head))
    }
}
