//! A node in memory between a client and a server: decoders, encoders and an exchange, connected as
//! in a real node.

use http1::{
    Body, Encoder, Error, Exchange, Framing, Headers, Next, RequestDecoder, RequestEvent,
    ResponseDecoder, ResponseEvent, refusal,
};

/// Node without filters.
#[derive(Default)]
pub struct Node {
    requests: RequestDecoder,
    responses: ResponseDecoder,
    pub exchange: Exchange,
    /// Received bytes that are not consumed yet.
    from_client: Vec<u8>,
    from_server: Vec<u8>,
    request: Option<Encoder>,
    response: Option<Encoder>,
    request_trailers: Headers,
    response_trailers: Headers,
    has_response_begun: bool,
    pub to_server: Vec<u8>,
    pub to_client: Vec<u8>,
    /// True if both connections end once all that is written has been delivered.
    pub closes: bool,
    pub error: Option<Error>,
}

impl Node {
    pub fn handle_client(&mut self, bytes: &[u8]) {
        self.from_client.extend_from_slice(bytes);
        self.advance();
    }

    pub fn handle_server(&mut self, bytes: &[u8]) {
        self.from_server.extend_from_slice(bytes);
        self.advance();
    }

    pub fn handle_server_eof(&mut self) {
        match self.responses.eof() {
            Ok(Some(event)) => self.response(event),
            Ok(None) => self.closes = true,
            Err(error) => self.fail(error),
        }
    }

    /// Consumes as much input as possible; progress of one side can unblock the other.
    fn advance(&mut self) {
        while !self.closes && (self.advance_requests() | self.advance_responses()) {}
    }

    fn advance_requests(&mut self) -> bool {
        let input = std::mem::take(&mut self.from_client);
        let (mut rest, mut moved) = (&input[..], false);
        while !self.closes {
            if self.requests.is_between_requests()
                && !self.exchange.is_tunnel()
                && !self.exchange.may_begin_request()
            {
                break;
            }
            match self.requests.decode(rest) {
                Err(error) => self.fail(error),
                Ok(step) => {
                    rest = &rest[step.consumed..];
                    moved |= step.event.is_some();
                    let Some(event) = step.event else { break };
                    self.request(event);
                }
            }
        }
        self.from_client = rest.to_vec();
        moved
    }

    fn request(&mut self, event: RequestEvent<'_>) {
        let out = &mut self.to_server;
        match event {
            RequestEvent::Head(head, framing) => {
                self.exchange.handle_request(&head, framing).unwrap();
                let body = Body::Unchanged(framing);
                let framing = Framing::for_request(head.version(), body).unwrap();
                self.exchange.handle_request_sent(&head).unwrap();
                self.request = Some(Encoder::request(&head, framing, out).unwrap());
            }
            RequestEvent::Body(bytes) => {
                self.exchange.handle_request_body();
                self.request.as_mut().unwrap().write_body(bytes, out).unwrap();
            }
            RequestEvent::Trailers(fields) => self.request_trailers = fields,
            RequestEvent::End => {
                let trailers = std::mem::take(&mut self.request_trailers);
                self.request.as_mut().unwrap().end(&trailers, out).unwrap();
                self.closes |= self.exchange.handle_request_end() == Next::Close;
            }
            RequestEvent::Tunnel(bytes) => out.extend_from_slice(bytes),
        }
    }

    fn advance_responses(&mut self) -> bool {
        let input = std::mem::take(&mut self.from_server);
        let (mut rest, mut moved) = (&input[..], false);
        while !self.closes {
            if self.responses.awaits_request()
                && let Some(traits) = self.exchange.awaited()
            {
                self.responses.expect(traits);
                self.has_response_begun = false;
            }
            match self.responses.decode(rest) {
                Err(error) => self.fail(error),
                Ok(step) => {
                    rest = &rest[step.consumed..];
                    moved |= step.event.is_some();
                    let Some(event) = step.event else { break };
                    self.response(event);
                }
            }
        }
        self.from_server = rest.to_vec();
        moved
    }

    fn response(&mut self, event: ResponseEvent<'_>) {
        let (traits, version) = self.exchange.client().unwrap();
        let out = &mut self.to_client;
        match event {
            ResponseEvent::Interim(head) => {
                if self.exchange.handle_interim(&head).unwrap() {
                    Encoder::response(&head, traits, Framing::None, out).unwrap();
                }
            }
            ResponseEvent::Head(mut head, framing) => {
                self.has_response_begun = true;
                if let Some(switch) = self.exchange.handle_response(&head, framing).unwrap() {
                    self.requests.switch(switch);
                }
                if self.exchange.must_announce_close() {
                    http1::connection::set_close(&mut head.headers).unwrap();
                }
                let body = Body::Unchanged(framing);
                let framing = Framing::for_response(&head, traits, version, body);
                self.exchange.handle_response_sent(&head, framing).unwrap();
                self.response = Some(Encoder::response(&head, traits, framing, out).unwrap());
            }
            ResponseEvent::Body(bytes) | ResponseEvent::Tunnel(bytes) => {
                self.response.as_mut().unwrap().write_body(bytes, out).unwrap();
            }
            ResponseEvent::Trailers(fields) => self.response_trailers = fields,
            ResponseEvent::End => {
                let trailers = std::mem::take(&mut self.response_trailers);
                self.response.as_mut().unwrap().end(&trailers, out).unwrap();
                self.closes |= self.exchange.handle_response_end() == Ok(Next::Close);
            }
        }
    }

    fn fail(&mut self, error: Error) {
        self.error = Some(error);
        self.closes = true;
        if !self.has_response_begun {
            self.to_client.extend_from_slice(&refusal(error));
        }
    }
}
