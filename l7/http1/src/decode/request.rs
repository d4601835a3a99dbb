//! Decoder of a client's requests, one after the other, until one of them is the last of its
//! connection or asks for another protocol.

use super::{HEAD_LIMITS, Step};
use crate::body::BodyReader;
use crate::chunked::BodyEvent;
use crate::error::{Error, Fault, Reason, Side};
use crate::framing::{self, Framing, merge_lengths};
use crate::head::{RequestHead, RequestLine};
use crate::headers::Headers;
use crate::line::Reader;

/// Part of a request.
#[derive(Debug, PartialEq, Eq)]
pub enum RequestEvent<'i> {
    /// Head of the request and framing of its body.
    Head(RequestHead, Framing),
    /// Slice of the body, within the input.
    Body(&'i [u8]),
    /// Trailer fields, only if there are some.
    Trailers(Headers),
    /// End of the request.
    End,
    /// Bytes of another protocol.
    Tunnel(&'i [u8]),
}

/// The server's decision about a request to switch protocols.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switch {
    /// The bytes that follow belong to another protocol.
    Tunnel,
    /// The bytes that follow are the next request.
    Refused,
}

#[derive(Debug)]
enum RequestState {
    Head(Reader<RequestLine>),
    Body(BodyReader),
    /// Waiting for the response, which decides how the next bytes are read.
    AwaitsSwitch,
    /// End of the last request of the connection; all further bytes are dropped.
    Over,
}

/// Decoder of the bytes that a client sends.
#[derive(Debug)]
pub struct RequestDecoder {
    offset: u64,
    state: RequestState,
    /// True if the current request asks to switch protocols; `switch` is the decision, if it is
    /// known already.
    switches: bool,
    switch: Option<Switch>,
    /// True if no other request may follow the current one.
    is_last: bool,
    failed: Option<Error>,
}

impl Default for RequestDecoder {
    fn default() -> Self {
        Self::new()
    }
}

impl RequestDecoder {
    /// Creates a decoder at the beginning of a connection.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            offset: 0,
            state: RequestState::Head(Reader::new(HEAD_LIMITS, Side::Request, 0)),
            switches: false,
            switch: None,
            is_last: false,
            failed: None,
        }
    }

    /// Number of bytes consumed since the beginning of the connection.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns true if a request asked to switch protocols and [`switch`](Self::switch) has not
    /// been called with the decision. Nothing is consumed until then.
    #[must_use]
    pub const fn awaits_switch(&self) -> bool {
        matches!(self.state, RequestState::AwaitsSwitch)
    }

    /// Returns true if the last request of the connection has ended. Further bytes are consumed and
    /// dropped: RFC 9112, section 9.6.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        matches!(self.state, RequestState::Over)
    }

    /// Returns true if no byte of a next request was consumed.
    #[must_use]
    pub fn is_between_requests(&self) -> bool {
        matches!(&self.state, RequestState::Head(reader) if reader.is_untouched())
    }

    /// Sets the decision about a request to switch protocols; it may come before the request's body
    /// has ended. Does nothing without such a request.
    pub fn switch(&mut self, switch: Switch) {
        match self.state {
            RequestState::AwaitsSwitch => self.state = self.switched(switch, 0),
            RequestState::Body(_) if self.switches => self.switch = Some(switch),
            _ => {}
        }
    }

    /// Decodes bytes.
    ///
    /// # Errors
    /// The bytes are no request that can be forwarded. The connection ends with it.
    pub fn decode<'i>(&mut self, input: &'i [u8]) -> Result<Step<RequestEvent<'i>>, Error> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let step = self.advance(input).map_err(|fault| {
            let error = fault.on(Side::Request);
            self.failed = Some(error);
            error
        })?;
        self.offset = self.offset.saturating_add(step.consumed as u64);
        Ok(step)
    }

    /// Handles the end of the client's bytes.
    ///
    /// # Errors
    /// A request is incomplete: the client has given up, and what it sent must not be taken for the
    /// whole request (RFC 9112, section 8).
    pub fn eof(&mut self) -> Result<(), Error> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let reason = match &self.state {
            RequestState::Head(reader) if reader.is_untouched() => return Ok(()),
            RequestState::Head(_) => Reason::IncompleteHead,
            RequestState::Body(body) => match body.eof() {
                Ok(_) => return Ok(()),
                Err(reason) => reason,
            },
            RequestState::AwaitsSwitch | RequestState::Over => return Ok(()),
        };
        let error = Error { side: Side::Request, offset: self.offset, reason };
        self.failed = Some(error);
        Err(error)
    }

    fn advance<'i>(&mut self, input: &'i [u8]) -> Result<Step<RequestEvent<'i>>, Fault> {
        match &mut self.state {
            RequestState::Head(reader) => {
                let (consumed, lines) = reader.read(input)?;
                let Some(lines) = lines else { return Ok(Step { consumed, event: None }) };
                let mut headers = lines.headers;
                merge_lengths(&mut headers);
                let head = lines.start.with(headers);
                let offset_of = |at: Option<usize>| {
                    let at = at.map_or(0, |index| head.headers.position(index));
                    lines.base.saturating_add(at as u64)
                };
                head.check_fields()
                    .map_err(|(at, reason)| Fault { offset: offset_of(at), reason })?;
                let framing = framing::of_request(&head)
                    .map_err(|(at, reason)| Fault { offset: offset_of(at), reason })?;
                self.switches = head.asks_to_switch();
                self.switch = None;
                self.is_last = !head.is_persistent();
                self.state = RequestState::Body(BodyReader::new(framing, Side::Request));
                Ok(Step { consumed, event: Some(RequestEvent::Head(head, framing)) })
            }
            RequestState::Body(body) => {
                let (consumed, event) = body.next(self.offset, input)?;
                let event = event.map(|event| match event {
                    BodyEvent::Bytes(bytes) => RequestEvent::Body(bytes),
                    BodyEvent::Trailers(trailers) => RequestEvent::Trailers(trailers),
                    BodyEvent::Tunnel(bytes) => RequestEvent::Tunnel(bytes),
                    BodyEvent::End => RequestEvent::End,
                });
                if event == Some(RequestEvent::End) {
                    self.state = match self.switch {
                        _ if !self.switches => self.next_state(consumed),
                        None => RequestState::AwaitsSwitch,
                        Some(switch) => self.switched(switch, consumed),
                    };
                }
                Ok(Step { consumed, event })
            }
            RequestState::AwaitsSwitch => Ok(Step { consumed: 0, event: None }),
            RequestState::Over => Ok(Step { consumed: input.len(), event: None }),
        }
    }

    /// Returns the state after a request that asked to switch protocols.
    fn switched(&mut self, switch: Switch, consumed: usize) -> RequestState {
        self.switches = false;
        match switch {
            Switch::Tunnel => RequestState::Body(BodyReader::Tunnel),
            Switch::Refused => self.next_state(consumed),
        }
    }

    /// Returns the state after a message that ends `consumed` bytes after the current offset.
    fn next_state(&self, consumed: usize) -> RequestState {
        if self.is_last {
            return RequestState::Over;
        }
        let base = self.offset.saturating_add(consumed as u64);
        RequestState::Head(Reader::new(HEAD_LIMITS, Side::Request, base))
    }
}
