//! What a client sends: requests one behind the other, until one of them is the last, or asks for
//! another protocol.

use super::{HEAD_LIMITS, Step};
use crate::body::BodyReader;
use crate::chunked::BodyEvent;
use crate::error::{Error, Fault, Reason, Side};
use crate::framing::{self, Framing, merge_lengths};
use crate::head::{RequestHead, RequestLine};
use crate::headers::Headers;
use crate::line::Reader;

/// What a request consists of.
#[derive(Debug, PartialEq, Eq)]
pub enum RequestEvent<'i> {
    /// Its head, and how its body is delimited.
    Head(RequestHead, Framing),
    /// A part of its body, in the input.
    Body(&'i [u8]),
    /// Fields behind the last chunk; only if there are some.
    Trailers(Headers),
    /// It is over.
    End,
    /// Bytes of another protocol.
    Tunnel(&'i [u8]),
}

/// What the server made of a request to switch protocols.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switch {
    /// What follows is another protocol.
    Tunnel,
    /// What follows is the next request.
    Refused,
}

#[derive(Debug)]
enum RequestState {
    Head(Reader<RequestLine>),
    Body(BodyReader),
    /// Its answer decides what the next bytes are.
    AwaitsSwitch,
    /// It was the connection's last: what follows is nobody's.
    Over,
}

/// Reads what a client sends.
#[derive(Debug)]
pub struct RequestDecoder {
    offset: u64,
    state: RequestState,
    /// Whether the request that is read asks to switch, and what is known of that already.
    switches: bool,
    switch: Option<Switch>,
    /// Whether no other request may follow it.
    is_last: bool,
    failed: Option<Error>,
}

impl Default for RequestDecoder {
    fn default() -> Self {
        Self::new()
    }
}

impl RequestDecoder {
    /// At the beginning of a connection.
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

    /// How many bytes were consumed since the beginning.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// Whether a request asked to switch protocols and [`switch`](Self::switch) has not said
    /// what became of it. Nothing is consumed until then.
    #[must_use]
    pub const fn awaits_switch(&self) -> bool {
        matches!(self.state, RequestState::AwaitsSwitch)
    }

    /// Whether the last request of the connection has ended. What follows is consumed, and
    /// dropped: RFC 9112, section 9.6.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        matches!(self.state, RequestState::Over)
    }

    /// Whether no byte of a next request was consumed.
    #[must_use]
    pub fn is_between_requests(&self) -> bool {
        matches!(&self.state, RequestState::Head(reader) if reader.is_untouched())
    }

    /// Says what became of the request to switch protocols, also before its body has ended.
    /// Nothing happens when there is none.
    pub fn switch(&mut self, switch: Switch) {
        match self.state {
            RequestState::AwaitsSwitch => self.state = self.switched(switch, 0),
            RequestState::Body(_) if self.switches => self.switch = Some(switch),
            _ => {}
        }
    }

    /// Takes bytes.
    ///
    /// # Errors
    /// When they are no request that can be passed on. The connection ends with it.
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

    /// Says that no more bytes come.
    ///
    /// # Errors
    /// When a request is not whole: the client has given up, and what it sent must not pass for
    /// the whole (RFC 9112, section 8).
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
                let place = |at: Option<usize>| {
                    let at = at.map_or(0, |index| head.headers.position(index));
                    lines.base.saturating_add(at as u64)
                };
                head.check_fields().map_err(|(at, reason)| Fault { offset: place(at), reason })?;
                let framing = framing::of_request(&head)
                    .map_err(|(at, reason)| Fault { offset: place(at), reason })?;
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

    /// Behind a request that asked to switch.
    fn switched(&mut self, switch: Switch, consumed: usize) -> RequestState {
        self.switches = false;
        match switch {
            Switch::Tunnel => RequestState::Body(BodyReader::Tunnel),
            Switch::Refused => self.next_state(consumed),
        }
    }

    /// Behind a message that ends so many bytes from here.
    fn next_state(&self, consumed: usize) -> RequestState {
        if self.is_last {
            return RequestState::Over;
        }
        let base = self.offset.saturating_add(consumed as u64);
        RequestState::Head(Reader::new(HEAD_LIMITS, Side::Request, base))
    }
}
