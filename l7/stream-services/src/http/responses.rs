//! What a server sends.

use super::message::Context;
use super::way::Head;
use super::{Http, Link, heads};
use crate::connection::Fate;
use crate::module::Module;
use http1::connection::{authenticates_connection, set_close};
use http1::{Body, Encoder, Framing, Next, ResponseEvent, ResponseHead, refusal};

impl Http {
    pub(super) fn advance_responses(&mut self, fresh: &[u8], module: &mut dyn Module) -> bool {
        let mut moved = self.take_pictures(module);
        moved |= self.show(false, false, module);
        let mut kept = std::mem::take(&mut self.from_server);
        let input = if kept.is_empty() {
            fresh
        } else {
            kept.extend_from_slice(fresh);
            &kept
        };
        let mut used = 0;
        while self.may_decode_response(&input[used..], module) {
            match self.responses.decode(&input[used..]) {
                Err(error) => {
                    self.refuse_response(error, module);
                    return true;
                }
                Ok(step) => {
                    used += step.consumed;
                    let Some(event) = step.event else { break };
                    moved = true;
                    let is_part = matches!(event, ResponseEvent::Body(_));
                    self.handle_response(event, module);
                    if !is_part {
                        self.show(false, false, module);
                    }
                }
            }
        }
        let is_decoded = used == input.len();
        match self.fate {
            Fate::Closing | Fate::Reset | Fate::Given => {
                // A server that says more than it was asked has lost count.
                self.server.is_left &= is_decoded;
                return true;
            }
            // What is behind the head of a tunnel is the tunnel's.
            Fate::Joined => {
                self.to_client.end().extend_from_slice(&input[used..]);
                return true;
            }
            Fate::Open if kept.is_empty() => self.from_server.extend_from_slice(&input[used..]),
            Fate::Open => {
                kept.drain(..used);
                self.from_server = kept;
            }
        }
        moved |= self.take_pictures(module);
        moved |= self.show(false, true, module);
        if self.fate == Fate::Joined {
            let rest = std::mem::take(&mut self.from_server);
            self.to_client.end().extend_from_slice(&rest);
            return true;
        }
        if is_decoded && self.has_server_ended && self.fate == Fate::Open {
            moved |= self.lose_server(false, module);
        }
        moved
    }

    fn may_decode_response(&mut self, input: &[u8], module: &mut dyn Module) -> bool {
        if self.to_client.is_full() || self.exchange.is_tunnel() || self.fate != Fate::Open {
            return false;
        }
        let Some(front) = self.messages.front() else { return !input.is_empty() };
        if front.response.is_stopped() || front.is_response_whole() || front.answer.is_some() {
            return false;
        }
        if !front.wants_body() {
            return false;
        }
        let (context, is_sent) = (front.context, front.is_sent);
        let is_awaited = front.response.head == Head::Awaited;
        if is_sent
            && is_awaited
            && let Some(asked) = self.exchange.awaited()
            && self.responses.expect(asked)
        {
            self.response_from = self.responses.offset();
        }
        // Bytes for a request that nobody has sent are refused by the decoder.
        if is_awaited && input.is_empty() {
            return false;
        }
        if context == Context::Lost {
            return self.may_read_lost(false, input);
        }
        self.may_go_on(context, module)
    }

    fn handle_response(&mut self, event: ResponseEvent<'_>, module: &mut dyn Module) {
        if self.messages.is_empty() {
            return;
        }
        match event {
            ResponseEvent::Interim(head) => self.pass_interim(&head, module),
            ResponseEvent::Head(head, framing) => self.take_response(head, framing, module),
            ResponseEvent::Body(bytes) => self.gather(0, false, bytes, module),
            ResponseEvent::Trailers(trailers) => {
                self.messages[0].response.trailers = trailers;
                self.messages[0].response.has_trailers = true;
            }
            ResponseEvent::End => {
                self.server.answered += 1;
                self.end_body();
            }
            // Those are not decoded, but passed on.
            ResponseEvent::Tunnel(_) => {}
        }
    }

    fn pass_interim(&mut self, head: &ResponseHead, module: &mut dyn Module) {
        let Some((asked, _)) = self.exchange.client() else { return };
        match self.exchange.handle_interim(head) {
            Ok(true) => {
                let out = self.to_client.end();
                if Encoder::response(head, asked, Framing::None, out).is_err() {
                    self.reset(module);
                }
            }
            Ok(false) => {}
            Err(_) => self.reset(module),
        }
    }

    fn take_response(&mut self, head: ResponseHead, framing: Framing, module: &mut dyn Module) {
        match self.exchange.handle_response(&head, framing) {
            Ok(Some(switch)) => self.requests.switch(switch),
            Ok(None) => {}
            Err(_) => return self.reset(module),
        }
        let message = &mut self.messages[0];
        if let Context::Made(context) = message.context
            && let Some(stream) = module.stream(context)
        {
            match heads::response_map(&head) {
                Ok(map) => stream.upstream.set_headers(map),
                Err(error) => {
                    let why = error.to_string();
                    return self.refuse_edit(0, &why, module);
                }
            }
        }
        self.server.is_own |= self.server.is_kept && authenticates_connection(&head.headers);
        message.response.framing = framing;
        message.response.head = Head::Came;
        message.response_head = Some(head);
    }

    pub(super) fn write_response_head(
        &mut self,
        index: usize,
        whole: Option<u64>,
        module: &mut dyn Module,
    ) -> bool {
        if index != 0 {
            return false;
        }
        if self.is_coded(module) {
            // Its head waits for the first bytes that the encoder gives out.
            return true;
        }
        let Some(message) = self.messages.front_mut() else { return false };
        let Some(head) = &mut message.response_head else { return false };
        let body = match message.response.is_pictures {
            true => super::pictures::describe(head),
            false => message.response.body(&head.headers, whole),
        };
        self.send_response_head(body, module)
    }

    /// The head of the first response goes to the client.
    pub(super) fn send_response_head(&mut self, body: Body, module: &mut dyn Module) -> bool {
        let Some(message) = self.messages.front_mut() else { return false };
        let Some(mut head) = message.response_head.take() else { return false };
        let Some((asked, version)) = self.exchange.client() else { return false };
        let framing = Framing::for_response(&head, asked, version, body);
        let closes = self.exchange.must_say_close();
        let said = if closes { set_close(&mut head.headers) } else { Ok(()) };
        let written = said.map_err(|error| error.to_string()).and_then(|()| {
            let out = self.to_client.end();
            Encoder::response(&head, asked, framing, out).map_err(|error| error.to_string())
        });
        let encoder = match written {
            Ok(encoder) => encoder,
            Err(error) => {
                self.refuse_edit(0, &error, module);
                return false;
            }
        };
        message.response.head = Head::Gone;
        // A status without a body has none, whatever the server sends.
        message.response.encoder = (framing != Framing::None).then_some(encoder);
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

    /// From here on the connections are another protocol's: the module sees nothing of it.
    fn open_tunnel(&mut self, module: &mut dyn Module) {
        let (from_client, from_server) =
            (std::mem::take(&mut self.from_client), std::mem::take(&mut self.from_server));
        self.fate = Fate::Joined;
        self.forget(module);
        self.to_server.end().extend_from_slice(&from_client);
        self.to_client.end().extend_from_slice(&from_server);
    }

    pub(super) fn end_response(&mut self, module: &mut dyn Module) {
        self.link = Link::Used;
        match self.exchange.handle_response_end() {
            Ok(Next::Stay) => self.settle_messages(module),
            Ok(Next::Close) => self.close(module),
            Err(_) => self.reset(module),
        }
    }

    /// What the server sends is no response.
    pub(super) fn refuse_response(&mut self, error: http1::Error, module: &mut dyn Module) {
        module.count(|it| it.refused += 1);
        let Some(front) = self.messages.front() else { return self.close(module) };
        // What has come goes to a client that has seen the head; any other can still be told.
        if front.response.head == Head::Gone {
            self.flush_coded(module);
        }
        module.warn(&format!("a response of {} is refused: {error}", self.addresses.server));
        self.refuse(0, refusal(error), module);
    }

    /// The server sends nothing more, or (`is_reset`) its connection is gone.
    pub(super) fn lose_server(&mut self, is_reset: bool, module: &mut dyn Module) -> bool {
        let is_awaited =
            self.responses.offset() == self.response_from || self.responses.awaits_request();
        let front = self.messages.front();
        let is_begun = front.is_some_and(|it| it.response.head >= Head::Came);
        let is_whole = front.is_some_and(|it| it.is_response_whole() || it.answer.is_some());
        if is_whole {
            // The response is here; the connection to the server is of no use behind it.
            return false;
        }
        let Some(_) = front else {
            self.close(module);
            return true;
        };
        let is_unseen = self.to_server.is_empty() || self.link == Link::Used;
        if !is_begun && is_awaited && !self.has_sent && is_unseen {
            // It has not seen a byte of what is to be sent: that goes by another connection.
            self.link = if self.to_server.is_empty() { Link::None } else { Link::Fresh };
            self.has_server_ended = false;
            self.drops_server = true;
            return false;
        }
        if !is_begun
            && is_awaited
            && let Some(request) = self.server.again.take()
        {
            // Its server has ended what was kept, just when it was used: another one is asked.
            self.to_server.clear();
            self.to_server.end().extend_from_slice(&request);
            (self.link, self.has_sent, self.has_server_ended) = (Link::Fresh, false, false);
            self.drops_server = true;
            return false;
        }
        if !is_begun && is_awaited && self.link == Link::Used {
            // Nobody knows whether it has seen the request; the client is told nothing, as if it
            // were connected to the server.
            self.close(module);
            return true;
        }
        if is_reset && is_begun {
            // What came before goes to the client, and then the reset.
            self.flush_coded(module);
            self.reset(module);
            return true;
        }
        match self.responses.eof() {
            Ok(Some(event)) => self.handle_response(event, module),
            Ok(None) => return false,
            Err(error) => self.refuse_response(error, module),
        }
        true
    }
}
