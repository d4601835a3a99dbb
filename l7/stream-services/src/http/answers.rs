//! Answers in the server's place: by the module, or because something failed.

use super::Http;
use super::heads::{self, add_fields};
use super::message::Own;
use super::way::Head;
use crate::module::Module;
use http1::connection::set_close;
use http1::{Body, Encoder, Framing, Headers, Next, ResponseHead, Version};
use proxy_wasm::LocalResponse;

impl Http {
    /// The module answers.
    pub(super) fn answer_for_module(
        &mut self,
        index: usize,
        response: LocalResponse,
        module: &mut dyn Module,
    ) {
        let mut headers = Headers::new();
        let added = add_fields(&response.headers, &mut headers).and_then(|()| {
            // Who answers a call of gRPC says how it went in a trailer, or here without a body.
            response
                .grpc_status
                .map_or(Ok(()), |status| headers.add(b"grpc-status", status.to_string().as_bytes()))
        });
        if let Err(error) = added {
            return self.refuse_edit(index, &error.to_string(), module);
        }
        for name in [&b"content-length"[..], b"transfer-encoding", b"connection"] {
            headers.remove(name);
        }
        // The host has looked that it is one.
        let status = u16::try_from(response.status).unwrap_or(500);
        self.answer(index, Own::Response { status, headers, body: response.body }, module);
    }

    /// What the module has made of a message is none.
    pub(super) fn refuse_edit(&mut self, index: usize, why: &str, module: &mut dyn Module) {
        module.count(|it| it.edits_refused += 1);
        module.warn(&format!("what the filter has made is no message: {why}"));
        let own = Own::text(500, "the service's filter has made no valid message");
        self.answer(index, own, module);
    }

    /// The client gets a whole response, behind which nothing of the connection is used.
    pub(super) fn refuse(&mut self, index: usize, refusal: Vec<u8>, module: &mut dyn Module) {
        self.answer(index, Own::Refusal(refusal), module);
    }

    /// A message has an answer; where its response is on its way already, the connection is reset.
    pub(super) fn answer(&mut self, index: usize, own: Own, module: &mut dyn Module) {
        let Some(message) = self.messages.get_mut(index) else { return };
        if message.response.head == Head::Gone {
            return self.reset(module);
        }
        if message.answer.is_some() {
            return;
        }
        message.answer = Some(own);
        (message.order, message.coder) = (None, None);
        message.transcoder = None;
        message.request.is_dropped = true;
        message.response.is_dropped = true;
        self.try_answer(module);
    }

    /// Gives the first message its answer, if it has one.
    pub(super) fn try_answer(&mut self, module: &mut dyn Module) {
        let Some(front) = self.messages.front_mut() else { return };
        match front.answer.take() {
            None => {}
            Some(Own::Refusal(bytes)) => {
                self.to_client.end().extend_from_slice(&bytes);
                self.close(module);
            }
            Some(Own::Response { status, headers, body }) => {
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
        let (Ok(mut head), Some((asked, version))) = (head, self.exchange.client()) else {
            return self.reset(module);
        };
        if closes && set_close(&mut head.headers).is_err() {
            return self.reset(module);
        }
        if self.exchange.is_tunnel() {
            // The server has switched, and the client is not to know.
            self.write_alone(&head, body, module);
            return;
        }
        let framing = Framing::for_response(&head, asked, version, Body::Known(body.len() as u64));
        if framing == Framing::Tunnel {
            // 2xx to CONNECT: there is nobody at the other end.
            return self.write_alone(&head, body, module);
        }
        if self.exchange.awaited().is_some() {
            match self.exchange.handle_response(&head, framing) {
                Ok(switch) => switch.into_iter().for_each(|switch| self.requests.switch(switch)),
                Err(_) => return self.reset(module),
            }
        }
        let out = self.to_client.end();
        let written = Encoder::response(&head, asked, framing, out).and_then(|mut encoder| {
            if framing != Framing::None {
                encoder.write_body(body, out)?;
            }
            encoder.end(&Headers::new(), out)
        });
        let sent = self.exchange.handle_response_sent(&head, framing);
        if written.is_err() || sent.is_err() {
            return self.reset(module);
        }
        let Some(front) = self.messages.front_mut() else { return };
        front.response.head = Head::Gone;
        front.response.is_over = true;
        let ends_request = front.request.has_ended && !front.request.is_over;
        front.request.is_over |= ends_request;
        let next = self.exchange.handle_response_end();
        if closes || next != Ok(Next::Stay) {
            return self.close(module);
        }
        if ends_request {
            self.end_request(module);
        } else {
            self.settle_messages(module);
        }
    }

    /// A response outside the exchange: both connections end behind it.
    fn write_alone(&mut self, head: &ResponseHead, body: &[u8], module: &mut dyn Module) {
        let asked = http1::Asked { method: http1::AskedBy::Other, upgrade: false };
        let framing = Framing::Length(body.len() as u64);
        let out = self.to_client.end();
        let written = Encoder::response(head, asked, framing, out)
            .and_then(|mut encoder| encoder.write_body(body, out));
        match written {
            Ok(()) => self.close(module),
            Err(_) => self.reset(module),
        }
    }
}
