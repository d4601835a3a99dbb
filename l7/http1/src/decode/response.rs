//! What a server sends: responses, each read as the answer to a request that it was told of.

use super::{HEAD_LIMITS, Step};
use crate::body::BodyReader;
use crate::chunked::BodyEvent;
use crate::error::{Error, Fault, Reason, Side};
use crate::framing::{self, Asked, Framing, merge_lengths};
use crate::head::{ResponseHead, StatusLine};
use crate::headers::Headers;
use crate::limits::INTERIM_COUNT_MAX;
use crate::line::Reader;

/// What a response consists of.
#[derive(Debug, PartialEq, Eq)]
pub enum ResponseEvent<'i> {
    /// An interim response (1xx but 101), whole; another one follows.
    Interim(ResponseHead),
    /// The head of the final response, or of 101, and how its body is delimited. Behind
    /// [`Framing::Tunnel`] there is no end.
    Head(ResponseHead, Framing),
    /// A part of its body, in the input.
    Body(&'i [u8]),
    /// Fields behind the last chunk; only if there are some.
    Trailers(Headers),
    /// It is over.
    End,
    /// Bytes of another protocol.
    Tunnel(&'i [u8]),
}

#[derive(Debug)]
enum ResponseState {
    /// Nobody has asked for anything.
    AwaitsRequest,
    Head(Reader<StatusLine>),
    Body(BodyReader),
}

/// Reads what a server sends.
#[derive(Debug)]
pub struct ResponseDecoder {
    offset: u64,
    state: ResponseState,
    asked: Asked,
    interim: u32,
    failed: Option<Error>,
}

impl Default for ResponseDecoder {
    fn default() -> Self {
        Self::new()
    }
}

impl ResponseDecoder {
    /// At the beginning of a connection, before any request.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            offset: 0,
            state: ResponseState::AwaitsRequest,
            asked: Asked { method: framing::AskedBy::Other, upgrade: false },
            interim: 0,
            failed: None,
        }
    }

    /// How many bytes were consumed since the beginning.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// Whether it has to be told of the next request before it reads on.
    #[must_use]
    pub const fn awaits_request(&self) -> bool {
        matches!(self.state, ResponseState::AwaitsRequest)
    }

    /// Says what the next response is an answer to. Only between responses; else it has no
    /// effect, and gives `false`.
    pub fn expect(&mut self, asked: Asked) -> bool {
        if !self.awaits_request() {
            return false;
        }
        self.asked = asked;
        self.interim = 0;
        self.state = ResponseState::Head(Reader::new(HEAD_LIMITS, Side::Response, self.offset));
        true
    }

    /// Takes bytes. What comes while no request is expected to be answered is refused, but for
    /// CRLF: RFC 9112, section 9.2.
    ///
    /// # Errors
    /// When they are no response that can be passed on. The connection ends with it.
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

    /// Says that no more bytes come: [`ResponseEvent::End`] for a body that ends so.
    ///
    /// # Errors
    /// When a response is not whole, or has not begun. What was passed on of it must not pass
    /// for the whole: the client's connection is reset, or ends without the last chunk.
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
            // RFC 9112, section 9.2: CRLF behind a response can be discarded, all else is refused.
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

    /// A head is whole: what follows it?
    fn head(
        &mut self,
        consumed: usize,
        base: u64,
        head: ResponseHead,
    ) -> Result<ResponseEvent<'static>, Fault> {
        let place = |at: Option<usize>| {
            let at = at.map_or(0, |index| head.headers.position(index));
            base.saturating_add(at as u64)
        };
        head.check_fields().map_err(|(at, reason)| Fault { offset: place(at), reason })?;
        let framing = framing::of_response(&head, self.asked)
            .map_err(|(at, reason)| Fault { offset: place(at), reason })?;
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
