//! Responses as they come from a server, and the loss of it.

use super::direction::Head;
use super::message::Own;
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
        // Those are not decoded, but passed on.
        ResponseEvent::Tunnel(_) => {}
    }
}

/// Refuses what is no response.
pub(super) fn refuse(relay: &mut Relay, error: Error, module: &mut dyn Module) {
    module.count(|it| it.refused += 1);
    let Some(front) = relay.message(0) else { return relay.close(module) };
    // What has come goes to a client that has seen the head; any other can still be told.
    if front.response().head() == Head::Gone {
        coded::flush(relay, module);
    }
    module.warn(&format!("a response of {} is refused: {error}", relay.addresses().server));
    relay.answer(0, Own::Refusal(refusal(error)), module);
}

/// Handles a server that sends nothing more, or (`is_reset`) whose connection is gone; returns true
/// when something has changed.
pub(super) fn handle_end(relay: &mut Relay, is_reset: bool, module: &mut dyn Module) -> bool {
    let is_awaited = relay.is_response_awaited();
    let Some(front) = relay.message(0) else {
        relay.close(module);
        return true;
    };
    let is_begun = front.response().head() >= Head::Came;
    if front.is_response_whole() || front.has_answer() {
        // The response is here; the connection to the server is of no use behind it.
        return false;
    }
    if !is_begun && is_awaited {
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
                // The client is told nothing, as if it were connected to the server.
                relay.close(module);
                return true;
            }
            Loss::Unanswered => {}
        }
    }
    if is_reset && is_begun {
        // What came before goes to the client, and then the reset.
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
