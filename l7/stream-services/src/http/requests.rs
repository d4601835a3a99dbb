//! Requests as they come from a client.

use super::message::{Context, Own};
use super::relay::Relay;
use super::{again, forward, heads};
use crate::connection::Failure;
use crate::module::Module;
use http1::{Error, Framing, RequestEvent, refusal};
use proxy_wasm::{Protocol, Stream};

/// Handles a part of a request. `policy`: for requests for which there is no VM.
pub(super) fn handle(
    relay: &mut Relay,
    event: RequestEvent<'_>,
    policy: Failure,
    module: &mut dyn Module,
) {
    match event {
        RequestEvent::Head(head, framing) => {
            let is_filtered = module.wants().context;
            let is_down = is_filtered && module.is_down();
            let has_vm = is_filtered && !is_down;
            let context = if has_vm { Context::Unmade } else { Context::Unfiltered };
            if let Some(index) = relay.handle_request_head(head, framing, context, module)
                && is_down
            {
                again::fail_new(relay, index, policy, module);
            }
        }
        RequestEvent::Body(bytes) => {
            relay.handle_request_body();
            if let Some(index) = relay.current(true) {
                forward::take_body(relay, index, true, bytes, module);
            }
        }
        RequestEvent::Trailers(trailers) => {
            let last = relay.current(true).and_then(|index| relay.message_mut(index));
            if let Some(message) = last {
                message.direction_mut(true).handle_trailers(trailers);
            }
        }
        RequestEvent::End => relay.handle_request_end(module),
        // Those are not decoded, but passed on.
        RequestEvent::Tunnel(_) => {}
    }
}

/// Returns what a new context begins with; none when the request is refused. `connection`: number
/// of the connection.
pub(super) fn create(
    relay: &mut Relay,
    index: usize,
    connection: u64,
    module: &mut dyn Module,
) -> Option<Box<Stream>> {
    let addresses = relay.addresses();
    let message = relay.message_mut(index)?;
    if let Some(lost) = message.take_lost() {
        return Some(lost);
    }
    let head = message.request_head()?;
    let mut stream = Stream::new(Protocol::Http);
    match heads::request_map(head) {
        Ok(map) => stream.downstream.set_headers(map),
        Err(error) => {
            let own = Own::text(431, &error.to_string());
            message.set_context(Context::Unfiltered);
            relay.answer(index, own, module);
            return None;
        }
    }
    if module.wants().properties {
        addresses.describe(connection, &mut stream);
        let version = head.version().as_bytes();
        stream.describe(&["request", "protocol"], version);
        stream.describe_number(&["request", "time"], message.began().real_ns as i64);
        if let Framing::Length(length) = message.request().framing() {
            stream.describe_number(&["request", "size"], length as i64);
        }
        let total = head.headers.wire_length() as i64;
        stream.describe_number(&["request", "headers_size"], total);
    }
    Some(Box::new(stream))
}

/// Handles the end of what the client sends; returns true when something has changed.
pub(super) fn handle_end(relay: &mut Relay, module: &mut dyn Module) -> bool {
    if let Err(error) = relay.decode_client_end() {
        refuse(relay, error, module);
        return true;
    }
    if relay.messages().is_empty() {
        relay.close(module);
        return true;
    }
    false
}

/// Refuses what is no request: the client is told so in its turn, and nothing behind it is read.
pub(super) fn refuse(relay: &mut Relay, error: Error, module: &mut dyn Module) {
    module.count(|it| it.refused += 1);
    relay.read_no_more();
    if let Some(index) = relay.current(true)
        && let Some(message) = relay.message_mut(index)
        && !message.request().has_ended()
    {
        // The server must not take a part for the whole.
        message.direction_mut(true).drop_rest();
        return relay.answer(index, Own::Refusal(refusal(error)), module);
    }
    relay.answer_refused(refusal(error), module);
}

/// Refuses a client that has taken too long for the head of a request.
pub(super) fn refuse_slow(relay: &mut Relay, module: &mut dyn Module) {
    relay.read_no_more();
    let text = "a request's head takes at most 60 s\n";
    let head = "HTTP/1.1 408 Request Timeout\r\nContent-Type: text/plain\r\nConnection: close\r\n";
    let length = text.len();
    let refusal = format!("{head}Content-Length: {length}\r\n\r\n{text}");
    relay.answer_refused(refusal.into_bytes(), module);
}
