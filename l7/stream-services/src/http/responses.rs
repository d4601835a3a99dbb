//! Responses of a server, and its loss.

use super::direction::Head;
use super::message::LocalAnswer;
use super::origin::Loss;
use super::relay::Relay;
use super::{coded, forward};
use crate::connection::Side;
use crate::module::Module;
use http1::{Error, ResponseEvent, refusal};

/// Handles a part of the first message's response.
pub(super) fn handle(relay: &mut Relay, event: ResponseEvent<'_>, module: &mut dyn Module) {
    let Some(front) = relay.front_mut() else { return };
    match event {
        ResponseEvent::Interim(head) => relay.handle_interim(&head, module),
        ResponseEvent::Head(head, framing) => relay.handle_response_head(head, framing, module),
        ResponseEvent::Body(bytes) => forward::take_body(relay, 0, false, bytes, module),
        ResponseEvent::Trailers(trailers) => front.direction_mut(false).handle_trailers(trailers),
        ResponseEvent::End => {
            front.handle_body_end();
            relay.origin_mut().handle_response();
        }
        // Tunnels are not decoded, but forwarded.
        ResponseEvent::Tunnel(_) => {}
    }
}

/// Refuses an invalid response.
pub(super) fn refuse(relay: &mut Relay, error: Error, module: &mut dyn Module) {
    module.count(|it| it.refused += 1);
    let Some(front) = relay.message(0) else { return relay.close(module) };
    // A client that has the head gets the part received; any other still gets an error response.
    if front.response().head() == Head::Sent {
        coded::flush(relay, module);
    }
    module.warn(&format!("a response of {} is refused: {error}", relay.addresses().server));
    relay.answer(0, LocalAnswer::Refusal(refusal(error)), module);
}

/// Handles the end of the server's bytes, or (`is_reset`) the loss of its connection; returns true
/// on progress.
pub(super) fn handle_end(relay: &mut Relay, is_reset: bool, module: &mut dyn Module) -> bool {
    let is_awaited = relay.is_response_awaited();
    let Some(front) = relay.message(0) else {
        relay.close(module);
        return true;
    };
    let has_begun = front.response().head() >= Head::Received;
    if front.is_response_whole() || front.has_answer() {
        // The response is complete; the server connection cannot be reused after it.
        return false;
    }
    if !has_begun && is_awaited {
        let is_unsent = relay.wire().is_empty(Side::Upstream);
        let loss = relay.origin_mut().handle_lost(is_unsent);
        match loss {
            Loss::Elsewhere => {
                relay.wire_mut().handle_replaced(Side::Upstream);
                return false;
            }
            Loss::Again(request) => {
                relay.wire_mut().handle_replaced(Side::Upstream);
                let out = relay.wire_mut().out(Side::Upstream);
                out.clear();
                out.end().extend_from_slice(&request);
                return false;
            }
            Loss::Unknown => {
                // The client gets no response, as if connected to the server directly.
                relay.close(module);
                return true;
            }
            Loss::Unanswered => {}
        }
    }
    if is_reset && has_begun {
        // The client gets the bytes received before the reset, and then the reset.
        coded::flush(relay, module);
        relay.reset(module);
        return true;
    }
    match relay.decode_server_end() {
        Ok(Some(event)) => handle(relay, event, module),
        Ok(None) => return false,
        Err(error) => refuse(relay, error, module),
    }
    true
}
