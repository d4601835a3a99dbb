//! What a client sends.

use super::message::{Context, Message, Own};
use super::way::Head;
use super::{Http, Link, heads};
use crate::connection::{Failure, Fate};
use crate::module::Module;
use http1::connection::{authenticates_connection as authenticates, unset_close};
use http1::{Encoder, Framing, Next, RequestEvent, refusal};
use proxy_wasm::{Protocol, Stream};

impl Http {
    /// Decodes what can be decoded, and shows it.
    pub(super) fn advance_requests(&mut self, fresh: &[u8], module: &mut dyn Module) -> bool {
        let mut moved = self.show(true, false, module);
        let mut kept = std::mem::take(&mut self.from_client);
        let input = if kept.is_empty() {
            fresh
        } else {
            kept.extend_from_slice(fresh);
            &kept
        };
        let mut used = 0;
        while self.may_decode_request(&input[used..], module) {
            match self.requests.decode(&input[used..]) {
                Err(error) => {
                    self.refuse_request(error, module);
                    return true;
                }
                Ok(step) => {
                    used += step.consumed;
                    let Some(event) = step.event else { break };
                    moved = true;
                    let is_part = matches!(event, RequestEvent::Body(_));
                    self.handle_request(event, module);
                    // Parts of a body are shown together.
                    if !is_part {
                        self.show(true, false, module);
                    }
                }
            }
        }
        if let Some(given) = &mut self.given {
            given.received.extend_from_slice(&input[used..]);
        }
        if self.fate != Fate::Open {
            return true;
        }
        let is_decoded = used == input.len();
        if kept.is_empty() {
            self.from_client.extend_from_slice(&input[used..]);
        } else {
            kept.drain(..used);
            self.from_client = kept;
        }
        moved |= self.show(true, true, module);
        if is_decoded && self.has_client_ended && !self.is_refused {
            moved |= self.end_client(module);
        }
        moved
    }

    fn may_decode_request(&mut self, input: &[u8], module: &mut dyn Module) -> bool {
        let is_closed = self.is_refused || self.fate != Fate::Open;
        if is_closed || self.to_server.is_full() || self.exchange.is_tunnel() {
            return false;
        }
        let last = self.messages.back().filter(|it| !it.request.has_ended);
        let context = match last {
            Some(last) if last.request.is_stopped() || last.request.head == Head::Awaited => {
                return false;
            }
            Some(last) => last.context,
            None if input.is_empty() || !self.exchange.may_begin_request() => return false,
            // It gets one, if the module wants to see it.
            None if module.wants().context && !module.is_down() => Context::Unmade,
            None => Context::Unfiltered,
        };
        if context == Context::Lost {
            return self.may_read_lost(true, input);
        }
        self.may_go_on(context, module)
    }

    fn handle_request(&mut self, event: RequestEvent<'_>, module: &mut dyn Module) {
        match event {
            RequestEvent::Head(head, framing) => {
                if self.exchange.handle_request(&head, framing).is_err() {
                    return self.reset(module);
                }
                module.count(|it| it.requests += 1);
                self.last_message += 1;
                let mut message = Message::new(self.last_message, head, module.now());
                message.request.framing = framing;
                message.request.head = Head::Came;
                let is_filtered = module.wants().context;
                let is_down = is_filtered && module.is_down();
                if is_filtered && !is_down {
                    message.context = Context::Unmade;
                }
                self.messages.push_back(message);
                if is_down {
                    self.fail_by_policy(self.messages.len() - 1, module);
                }
            }
            RequestEvent::Body(bytes) => {
                self.exchange.handle_request_body();
                if let Some(index) = self.current(true) {
                    self.gather(index, true, bytes, module);
                }
            }
            RequestEvent::Trailers(trailers) => {
                if let Some(message) = self.messages.back_mut() {
                    message.request.trailers = trailers;
                    message.request.has_trailers = true;
                }
            }
            RequestEvent::End => {
                let Some(message) = self.messages.back_mut() else { return };
                message.request.has_ended = true;
                if message.request.is_dropped {
                    message.request.is_over = true;
                    self.end_request(module);
                }
            }
            // Those are not decoded, but passed on.
            RequestEvent::Tunnel(_) => {}
        }
    }

    /// There is no VM for a request.
    fn fail_by_policy(&mut self, index: usize, module: &mut dyn Module) {
        match self.failure.get() {
            Failure::Open => module.count(|it| it.unfiltered += 1),
            Failure::Closed => {
                module.count(|it| it.failed_closed += 1);
                self.answer(index, Own::text(503, "the service's filter has failed"), module);
            }
        }
    }

    /// What a new context begins with; none when the request is refused.
    pub(super) fn create(&mut self, index: usize, module: &mut dyn Module) -> Option<Box<Stream>> {
        let message = &mut self.messages[index];
        if let Some(lost) = message.lost.take() {
            return Some(lost);
        }
        let head = message.request_head.as_ref()?;
        let mut stream = Stream::new(Protocol::Http);
        match heads::request_map(head) {
            Ok(map) => stream.downstream.set_headers(map),
            Err(error) => {
                let own = Own::text(431, &error.to_string());
                self.messages[index].context = Context::Unfiltered;
                self.answer(index, own, module);
                return None;
            }
        }
        if module.wants().properties {
            self.addresses.describe(self.number, &mut stream);
            let version = head.version().as_bytes();
            stream.describe(&["request", "protocol"], version);
            stream.describe_number(&["request", "time"], message.began.real_ns as i64);
            if let Framing::Length(length) = message.request.framing {
                stream.describe_number(&["request", "size"], length as i64);
            }
            let total = head.headers.wire_length() as i64;
            stream.describe_number(&["request", "headers_size"], total);
        }
        Some(Box::new(stream))
    }

    pub(super) fn write_request_head(
        &mut self,
        index: usize,
        whole: Option<u64>,
        module: &mut dyn Module,
    ) -> bool {
        let message = &mut self.messages[index];
        let Some(mut head) = message.request_head.take() else { return false };
        let body = message.request.body(&head.headers, whole);
        let is_first = self.server.is_kept && self.link == Link::None;
        if self.exchange.must_unsay_close() && unset_close(&mut head.headers).is_err() {
            self.server.is_own = true;
        }
        // Nobody can say in HTTP/1.0 that a body's length is not known: it stays what it was.
        let framing = Framing::for_request(head.version(), body).unwrap_or(message.request.framing);
        let before = self.to_server.len();
        let sent = self.exchange.handle_request_sent(&head).map_err(|error| error.to_string());
        let written = sent.and_then(|()| {
            let out = self.to_server.end();
            Encoder::request(&head, framing, out).map_err(|error| error.to_string())
        });
        match written {
            Ok(encoder) => {
                message.request.encoder = Some(encoder);
                message.request.head = Head::Gone;
                message.is_sent = true;
                self.server.asked += 1;
                self.server.is_own |= self.server.is_kept && authenticates(&head.headers);
                let is_whole = matches!(framing, Framing::None | Framing::Length(0));
                let is_harmless = matches!(head.method(), b"GET" | b"HEAD" | b"OPTIONS");
                if is_first && before == 0 && is_whole && is_harmless && !self.server.is_own {
                    self.server.again = Some(self.to_server.bytes().to_vec());
                }
                if self.link == Link::None {
                    self.link = Link::Fresh;
                }
                true
            }
            Err(error) => {
                debug_assert_eq!(self.to_server.len(), before, "a head is checked, then written");
                self.refuse_edit(index, &error, module);
                false
            }
        }
    }

    /// The last request has ended: it has gone, or is dropped.
    pub(super) fn end_request(&mut self, module: &mut dyn Module) {
        if self.exchange.handle_request_end() == Next::Close {
            return self.close(module);
        }
        self.settle_messages(module);
    }

    /// The client sends nothing more.
    fn end_client(&mut self, module: &mut dyn Module) -> bool {
        if let Err(error) = self.requests.eof() {
            self.refuse_request(error, module);
            return true;
        }
        if self.messages.is_empty() {
            self.close(module);
            return true;
        }
        false
    }

    /// What the client sends is no request: it is told so in its turn, and nothing behind it is
    /// read.
    fn refuse_request(&mut self, error: http1::Error, module: &mut dyn Module) {
        module.count(|it| it.refused += 1);
        self.read_no_more();
        if self.messages.back().is_some_and(|last| !last.request.has_ended) {
            let index = self.messages.len() - 1;
            // The server must not take a part for the whole.
            self.messages[index].request.is_dropped = true;
            return self.refuse(index, refusal(error), module);
        }
        self.answer_none(refusal(error), module);
    }

    /// The client has taken too long for the head of a request.
    pub(super) fn refuse_slow(&mut self, module: &mut dyn Module) {
        self.read_no_more();
        let text = "a request's head takes at most 60 s\n";
        let head =
            "HTTP/1.1 408 Request Timeout\r\nContent-Type: text/plain\r\nConnection: close\r\n";
        let length = text.len();
        let refusal = format!("{head}Content-Length: {length}\r\n\r\n{text}");
        self.answer_none(refusal.into_bytes(), module);
    }

    fn read_no_more(&mut self) {
        self.from_client = Vec::new();
        self.is_refused = true;
    }

    /// Answers what is no request.
    fn answer_none(&mut self, refusal: Vec<u8>, module: &mut dyn Module) {
        self.last_message += 1;
        let message = Message::refused(self.last_message, refusal, module.now());
        self.messages.push_back(message);
        self.try_answer(module);
    }
}
