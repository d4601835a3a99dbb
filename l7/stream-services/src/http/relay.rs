//! Relay of one HTTP connection's messages between client and server: the queue of requests with
//! their responses, encoding, responses in place of the server's, and the end.
//!
//! ```text
//!              ┌─────────── Relay ────────────┐
//!   client ─▶ wire ─▶ RequestDecoder ─▶ messages ─▶ Encoder ─▶ wire ─▶ server
//!          ◀─ wire ◀─ Encoder ◀─ messages ◀─ ResponseDecoder ◀─ wire ◀─
//! ```
//!
//! The relay makes no calls of the module: it handles message parts that were released.

use super::direction::Head;
use super::heads;
use super::message::{Context, LocalAnswer, Message};
use super::origin::Origin;
use super::wire::Wire;
use crate::connection::{Addresses, Fate, Handover, Side};
use crate::module::{Last, Module};
use fanout::Key;
use http1::connection::{authenticates_connection, set_close, unset_close};
use http1::{
    Body, Encoder, Error, Exchange, Framing, Headers, MethodClass, Next, RequestDecoder,
    RequestEvent, RequestHead, RequestTraits, ResponseDecoder, ResponseEvent, ResponseHead, Step,
    Version,
};
use std::collections::VecDeque;

/// Messages of a connection, with decoders and buffers.
pub(super) struct Relay {
    addresses: Addresses,
    exchange: Exchange,
    requests: RequestDecoder,
    responses: ResponseDecoder,
    wire: Wire,
    origin: Origin,
    /// Queue of messages: the last one is being read, the first one being answered.
    messages: VecDeque<Message>,
    /// Number of the last message.
    last_message: u64,
    /// True if the client has sent an invalid request: no more is read from it.
    is_refused: bool,
    /// Request that is handed over to a shared stream, until it is taken.
    handover: Option<Box<Handover>>,
    fate: Fate,
}

impl Relay {
    pub(super) fn new(addresses: Addresses) -> Self {
        Self {
            addresses,
            exchange: Exchange::new(),
            requests: RequestDecoder::new(),
            responses: ResponseDecoder::new(),
            wire: Wire::default(),
            origin: Origin::default(),
            messages: VecDeque::new(),
            last_message: 0,
            is_refused: false,
            handover: None,
            fate: Fate::Open,
        }
    }

    pub(super) const fn addresses(&self) -> Addresses {
        self.addresses
    }

    pub(super) const fn fate(&self) -> Fate {
        self.fate
    }

    pub(super) fn is_open(&self) -> bool {
        self.fate == Fate::Open
    }

    pub(super) const fn wire(&self) -> &Wire {
        &self.wire
    }

    pub(super) const fn wire_mut(&mut self) -> &mut Wire {
        &mut self.wire
    }

    pub(super) const fn origin(&self) -> &Origin {
        &self.origin
    }

    pub(super) const fn origin_mut(&mut self) -> &mut Origin {
        &mut self.origin
    }

    pub(super) const fn exchange(&self) -> &Exchange {
        &self.exchange
    }

    /// Returns true if no more is read from the client, because of an invalid request.
    pub(super) const fn is_refused(&self) -> bool {
        self.is_refused
    }

    /// Returns the number of the last request.
    pub(super) const fn last_message(&self) -> u64 {
        self.last_message
    }

    pub(super) const fn messages(&self) -> &VecDeque<Message> {
        &self.messages
    }

    pub(super) fn message(&self, index: usize) -> Option<&Message> {
        self.messages.get(index)
    }

    pub(super) fn message_mut(&mut self, index: usize) -> Option<&mut Message> {
        self.messages.get_mut(index)
    }

    pub(super) fn front_mut(&mut self) -> Option<&mut Message> {
        self.messages.front_mut()
    }

    /// Returns the index of the message whose request, or whose response, is in progress.
    pub(super) fn current(&self, is_request: bool) -> Option<usize> {
        if is_request {
            self.messages.len().checked_sub(1)
        } else {
            (!self.messages.is_empty()).then_some(0)
        }
    }

    /// Returns the index of the message with a context.
    pub(super) fn index_of(&self, context: u32) -> Option<usize> {
        self.messages.iter().position(|it| it.context() == Context::Made(context))
    }

    /// Returns the index of the message with a number.
    pub(super) fn index_of_number(&self, number: u64) -> Option<usize> {
        self.messages.iter().position(|it| it.number() == number)
    }

    /// Shares the server connection with earlier and later clients.
    pub(super) const fn keep_server(&mut self) {
        self.origin.keep();
        self.exchange.keep_server();
    }

    pub(super) fn decode_request<'b>(
        &mut self,
        bytes: &'b [u8],
    ) -> Result<Step<RequestEvent<'b>>, Error> {
        self.requests.decode(bytes)
    }

    pub(super) fn decode_response<'b>(
        &mut self,
        bytes: &'b [u8],
    ) -> Result<Step<ResponseEvent<'b>>, Error> {
        self.responses.decode(bytes)
    }

    /// Decodes the end of the client's bytes.
    pub(super) fn decode_client_end(&mut self) -> Result<(), Error> {
        self.requests.eof()
    }

    /// Decodes the end of the server's bytes.
    pub(super) fn decode_server_end(&mut self) -> Result<Option<ResponseEvent<'static>>, Error> {
        self.responses.eof()
    }

    /// Makes the decoder await the response to the first request, if it has been sent.
    pub(super) fn await_response(&mut self) {
        if let Some(traits) = self.exchange.awaited()
            && self.responses.expect(traits)
        {
            self.origin.await_response(self.responses.offset());
        }
    }

    /// Returns true if nothing of the awaited response was received.
    pub(super) fn is_response_awaited(&self) -> bool {
        self.origin.is_response_at(self.responses.offset()) || self.responses.awaits_request()
    }

    /// Handles a request's head; returns the index of its message, or `None` if the connection is
    /// reset.
    pub(super) fn handle_request_head(
        &mut self,
        head: RequestHead,
        framing: Framing,
        context: Context,
        module: &mut dyn Module,
    ) -> Option<usize> {
        if self.exchange.handle_request(&head, framing).is_err() {
            self.reset(module);
            return None;
        }
        module.count(|it| it.requests += 1);
        self.last_message += 1;
        let mut message = Message::new(self.last_message, head, framing, module.now());
        message.set_context(context);
        self.messages.push_back(message);
        Some(self.messages.len() - 1)
    }

    pub(super) fn handle_request_body(&mut self) {
        self.exchange.handle_request_body();
    }

    /// Handles the end of the last request's body.
    pub(super) fn handle_request_end(&mut self, module: &mut dyn Module) {
        let Some(message) = self.messages.back_mut() else { return };
        let request = message.direction_mut(true);
        request.handle_end();
        if request.is_dropped() {
            request.end_unsent();
            self.end_request(module);
        }
    }

    /// Handles an interim response: forwards it to a client that supports it.
    pub(super) fn handle_interim(&mut self, head: &ResponseHead, module: &mut dyn Module) {
        let Some((traits, _)) = self.exchange.client() else { return };
        match self.exchange.handle_interim(head) {
            Ok(true) => {
                let out = self.wire.out(Side::Downstream).end();
                if Encoder::response(head, traits, Framing::None, out).is_err() {
                    self.reset(module);
                }
            }
            Ok(false) => {}
            Err(_) => self.reset(module),
        }
    }

    /// Handles the head of the first message's response, and converts it for the module.
    pub(super) fn handle_response_head(
        &mut self,
        head: ResponseHead,
        framing: Framing,
        module: &mut dyn Module,
    ) {
        match self.exchange.handle_response(&head, framing) {
            Ok(Some(switch)) => self.requests.switch(switch),
            Ok(None) => {}
            Err(_) => return self.reset(module),
        }
        let Some(message) = self.messages.front_mut() else { return };
        if let Context::Made(context) = message.context()
            && let Some(stream) = module.stream(context)
        {
            match heads::response_map(&head) {
                Ok(map) => stream.upstream.set_headers(map),
                Err(error) => return self.refuse_edit(0, &error.to_string(), module),
            }
        }
        if authenticates_connection(&head.headers) {
            self.origin.handle_authentication();
        }
        message.handle_response_head(head, framing);
    }

    /// Writes the head of a request; returns false if that is not possible.
    pub(super) fn write_request_head(
        &mut self,
        index: usize,
        whole: Option<u64>,
        module: &mut dyn Module,
    ) -> bool {
        let Some(message) = self.messages.get_mut(index) else { return false };
        let Some(mut head) = message.take_request_head() else { return false };
        let body = message.request().body(&head.headers, whole);
        if self.exchange.must_remove_close() && unset_close(&mut head.headers).is_err() {
            self.origin.claim();
        }
        // HTTP/1.0 has no framing for an unknown length: keep the original one.
        let framing =
            Framing::for_request(head.version(), body).unwrap_or(message.request().framing());
        let out = self.wire.out(Side::Upstream);
        let before = out.len();
        let sent = self.exchange.handle_request_sent(&head).map_err(|error| error.to_string());
        let written = sent.and_then(|()| {
            Encoder::request(&head, framing, out.end()).map_err(|error| error.to_string())
        });
        match written {
            Ok(encoder) => {
                message.handle_request_sent(encoder);
                if authenticates_connection(&head.headers) {
                    self.origin.handle_authentication();
                }
                let is_whole = matches!(framing, Framing::None | Framing::Length(0));
                let is_harmless = matches!(head.method(), b"GET" | b"HEAD" | b"OPTIONS");
                let is_first = before == 0 && is_whole && is_harmless;
                self.origin.handle_request(is_first.then_some(out.bytes()));
                true
            }
            Err(error) => {
                debug_assert_eq!(out.len(), before, "a head is checked, then written");
                self.refuse_edit(index, &error, module);
                false
            }
        }
    }

    /// Writes the head of the first response to the client; returns false if its body must not
    /// follow.
    pub(super) fn write_response_head(&mut self, body: Body, module: &mut dyn Module) -> bool {
        let Some(message) = self.messages.front_mut() else { return false };
        let Some(mut head) = message.take_response_head() else { return false };
        let Some((traits, version)) = self.exchange.client() else { return false };
        let framing = Framing::for_response(&head, traits, version, body);
        let closes = self.exchange.must_announce_close();
        let edited = if closes { set_close(&mut head.headers) } else { Ok(()) };
        let written = edited.map_err(|error| error.to_string()).and_then(|()| {
            let out = self.wire.out(Side::Downstream).end();
            Encoder::response(&head, traits, framing, out).map_err(|error| error.to_string())
        });
        let encoder = match written {
            Ok(encoder) => encoder,
            Err(error) => {
                self.refuse_edit(0, &error, module);
                return false;
            }
        };
        // A status without a body has none, whatever the server sends.
        let encoder = (framing != Framing::None).then_some(encoder);
        message.direction_mut(false).handle_sent(encoder);
        if self.exchange.handle_response_sent(&head, framing).is_err() {
            self.reset(module);
            return false;
        }
        if framing == Framing::Tunnel {
            self.open_tunnel(module);
            return false;
        }
        true
    }

    /// Turns the connections into a tunnel, which the module does not see.
    fn open_tunnel(&mut self, module: &mut dyn Module) {
        self.wire.cross();
        self.fate = Fate::Joined;
        self.end_contexts(module);
    }

    /// Writes a part of a body unchanged.
    pub(super) fn write_body(
        &mut self,
        index: usize,
        is_request: bool,
        bytes: &[u8],
        module: &mut dyn Module,
    ) {
        let Some(message) = self.messages.get_mut(index) else { return };
        let out = self.wire.out(side_of(is_request)).end();
        if let Err(error) = message.direction_mut(is_request).write_body(bytes, out) {
            self.abort(&error.to_string(), module);
        }
    }

    /// Writes the end of a message.
    pub(super) fn write_end(&mut self, index: usize, is_request: bool, module: &mut dyn Module) {
        let Some(message) = self.messages.get_mut(index) else { return };
        let out = self.wire.out(side_of(is_request)).end();
        if let Err(error) = message.direction_mut(is_request).write_end(out) {
            return self.abort(&error.to_string(), module);
        }
        if is_request {
            self.end_request(module);
        } else {
            self.end_response(module);
        }
    }

    /// Ends the last request, which has been sent or dropped.
    fn end_request(&mut self, module: &mut dyn Module) {
        if self.exchange.handle_request_end() == Next::Close {
            return self.close(module);
        }
        self.settle(module);
    }

    /// Ends the first response, which has been sent.
    fn end_response(&mut self, module: &mut dyn Module) {
        self.origin.handle_response_sent();
        match self.exchange.handle_response_end() {
            Ok(Next::Stay) => self.settle(module),
            Ok(Next::Close) => self.close(module),
            Err(_) => self.reset(module),
        }
    }

    /// Removes messages that are over in both directions; the next one may get its answer.
    fn settle(&mut self, module: &mut dyn Module) {
        while let Some(front) = self.messages.pop_front_if(|front| front.is_over()) {
            end_context(&front, module);
        }
        if self.messages.is_empty() && self.wire.is_empty(Side::Upstream) {
            self.origin.handle_rest();
        }
        self.try_answer(module);
    }

    /// Responds with 500: the module has made an invalid message.
    pub(super) fn refuse_edit(&mut self, index: usize, why: &str, module: &mut dyn Module) {
        module.count(|it| it.edits_refused += 1);
        module.warn(&format!("the filter has made an invalid message: {why}"));
        let own = LocalAnswer::text(500, "the service's filter has made no valid message");
        self.answer(index, own, module);
    }

    /// Sets the response for a message; if its response is in transit already, the connection is
    /// reset.
    pub(super) fn answer(&mut self, index: usize, own: LocalAnswer, module: &mut dyn Module) {
        let Some(message) = self.messages.get_mut(index) else { return };
        if message.response().head() == Head::Sent {
            return self.reset(module);
        }
        if message.has_answer() {
            return;
        }
        message.set_answer(own);
        self.try_answer(module);
    }

    /// Responds to an invalid request, in its turn; nothing after it is read.
    pub(super) fn answer_refused(&mut self, refusal: Vec<u8>, module: &mut dyn Module) {
        self.last_message += 1;
        let message = Message::refused(self.last_message, refusal, module.now());
        self.messages.push_back(message);
        self.try_answer(module);
    }

    /// Writes the response for the first message, if one is set.
    fn try_answer(&mut self, module: &mut dyn Module) {
        let Some(front) = self.messages.front_mut() else { return };
        match front.take_answer() {
            None => {}
            Some(LocalAnswer::Refusal(bytes)) => {
                self.wire.out(Side::Downstream).end().extend_from_slice(&bytes);
                self.close(module);
            }
            Some(LocalAnswer::Response { status, headers, body }) => {
                self.write_answer(status, headers, &body, module);
            }
        }
    }

    fn write_answer(
        &mut self,
        status: u16,
        headers: Headers,
        body: &[u8],
        module: &mut dyn Module,
    ) {
        let may_stay = !self.exchange.is_tunnel() && !self.exchange.awaits_continue();
        let Some(front) = self.messages.front_mut() else { return };
        let closes = !(may_stay && front.may_stay());
        let head = ResponseHead::new(Version::Http11, status, heads::reason(status), headers);
        let (Ok(mut head), Some((traits, version))) = (head, self.exchange.client()) else {
            return self.reset(module);
        };
        if closes && set_close(&mut head.headers).is_err() {
            return self.reset(module);
        }
        if self.exchange.is_tunnel() {
            // The server has switched protocols, and the client must not.
            return self.write_alone(&head, body, module);
        }
        let framing = Framing::for_response(&head, traits, version, Body::Known(body.len() as u64));
        if framing == Framing::Tunnel {
            // 2xx to CONNECT, but there is no peer for the tunnel.
            return self.write_alone(&head, body, module);
        }
        if self.exchange.awaited().is_some() {
            match self.exchange.handle_response(&head, framing) {
                Ok(switch) => switch.into_iter().for_each(|switch| self.requests.switch(switch)),
                Err(_) => return self.reset(module),
            }
        }
        let out = self.wire.out(Side::Downstream).end();
        let written = Encoder::response(&head, traits, framing, out).and_then(|mut encoder| {
            if framing != Framing::None {
                encoder.write_body(body, out)?;
            }
            encoder.end(&Headers::new(), out)
        });
        let sent = self.exchange.handle_response_sent(&head, framing);
        if written.is_err() || sent.is_err() {
            return self.reset(module);
        }
        front.direction_mut(false).handle_replaced();
        let request = front.direction_mut(true);
        let ends_request = request.has_ended() && !request.is_over();
        if ends_request {
            request.end_unsent();
        }
        let next = self.exchange.handle_response_end();
        if closes || next != Ok(Next::Stay) {
            return self.close(module);
        }
        if ends_request {
            self.end_request(module);
        } else {
            self.settle(module);
        }
    }

    /// Writes a response outside the exchange: both connections end after it.
    fn write_alone(&mut self, head: &ResponseHead, body: &[u8], module: &mut dyn Module) {
        let traits = RequestTraits { method: MethodClass::Other, upgrade: false };
        let framing = Framing::Length(body.len() as u64);
        let out = self.wire.out(Side::Downstream).end();
        let written = Encoder::response(head, traits, framing, out)
            .and_then(|mut encoder| encoder.write_body(body, out));
        match written {
            Ok(()) => self.close(module),
            Err(_) => self.reset(module),
        }
    }

    /// Stops reading from the client.
    pub(super) fn stop_reading(&mut self) {
        self.wire.drop_received(Side::Downstream);
        self.is_refused = true;
    }

    /// Hands the only request over to a shared stream, with the bytes received after it.
    pub(super) fn give(&mut self, key: Key, request: RequestHead, module: &mut dyn Module) {
        let received = self.wire.take_received(Side::Downstream);
        self.handover = Some(Box::new(Handover { key, request, received }));
        self.fate = Fate::Handover;
        self.origin.abandon();
        module.count(|it| it.reflected += 1);
        self.end_contexts(module);
    }

    /// Handles bytes of the client after a request that was handed over.
    pub(super) fn handle_after_handover(&mut self, bytes: &[u8]) {
        if let Some(handover) = &mut self.handover {
            handover.received.extend_from_slice(bytes);
        }
    }

    pub(super) const fn take_handover(&mut self) -> Option<Box<Handover>> {
        self.handover.take()
    }

    /// Resets both connections: a message cannot be sent as the module has edited it, and a part of
    /// it has been sent.
    fn abort(&mut self, why: &str, module: &mut dyn Module) {
        module.count(|it| it.edits_refused += 1);
        module.warn(&format!("a message was truncated: {why}"));
        self.reset(module);
    }

    /// Resets both connections, once all that is written has been sent.
    pub(super) fn reset(&mut self, module: &mut dyn Module) {
        self.fate = Fate::Reset;
        self.end_contexts(module);
    }

    /// Ends both connections, once all that is written has been delivered.
    pub(super) fn close(&mut self, module: &mut dyn Module) {
        if self.fate == Fate::Open {
            self.fate = Fate::Closing;
            let is_clean =
                self.exchange.is_server_reusable() && !self.wire.has_received(Side::Upstream);
            self.origin.close(is_clean);
        }
        self.end_contexts(module);
    }

    /// Ends all contexts.
    fn end_contexts(&mut self, module: &mut dyn Module) {
        self.wire.drop_received(Side::Downstream);
        self.wire.drop_received(Side::Upstream);
        for message in std::mem::take(&mut self.messages) {
            if message.is_partly_sent() {
                self.origin.abort();
            }
            end_context(&message, module);
        }
    }
}

/// Returns the end to which a request, or a response, is sent.
const fn side_of(is_request: bool) -> Side {
    if is_request { Side::Upstream } else { Side::Downstream }
}

/// Ends a context, with the properties for its last call.
fn end_context(message: &Message, module: &mut dyn Module) {
    let Context::Made(context) = message.context() else { return };
    module.foreign_calls().end_pictures(context);
    let mut facts: Vec<(&'static [&'static str], i64)> = Vec::new();
    if module.wants().properties {
        let duration = module.now().monotonic_ns.saturating_sub(message.began().monotonic_ns);
        facts.push((&["request", "duration"], duration as i64));
        facts.push((&["request", "size"], message.request().bytes() as i64));
        facts.push((&["response", "size"], message.response().bytes() as i64));
        facts.push((&["response", "flags"], 0));
    }
    module.later(Last::End(context, facts));
}
