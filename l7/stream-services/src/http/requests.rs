//! Requests of a client.

use super::message::{Context, LocalAnswer};
use super::relay::Relay;
use super::{forward, heads, recovery};
use crate::connection::Failure;
use crate::module::Module;
use http1::{Error, Framing, RequestEvent, refusal};
use proxy_wasm::{Protocol, Stream};

/// Handles a part of a request. `policy` is for requests without a VM.
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
                recovery::fail_new(relay, index, policy, module);
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
        // Tunnels are not decoded, but forwarded.
        RequestEvent::Tunnel(_) => {}
    }
}

/// Returns the data of a new context, or `None` if the request is refused. `connection` is the
/// number of the connection.
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
            let own = LocalAnswer::text(431, &error.to_string());
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

/// Handles the end of the client's bytes; returns true on progress.
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

/// Refuses an invalid request: the client gets the response in its turn, and nothing after it is
/// read.
pub(super) fn refuse(relay: &mut Relay, error: Error, module: &mut dyn Module) {
    module.count(|it| it.refused += 1);
    relay.stop_reading();
    if let Some(index) = relay.current(true)
        && let Some(message) = relay.message_mut(index)
        && !message.request().has_ended()
    {
        // The server must not take a part for the whole request.
        message.direction_mut(true).drop_rest();
        return relay.answer(index, LocalAnswer::Refusal(refusal(error)), module);
    }
    relay.answer_refused(refusal(error), module);
}

/// Refuses a client that takes too long for the head of a request.
pub(super) fn refuse_slow(relay: &mut Relay, module: &mut dyn Module) {
    relay.stop_reading();
    let text = "a request's head takes at most 60 s\n";
    let head = "HTTP/1.1 408 Request Timeout\r\nContent-Type: text/plain\r\nConnection: close\r\n";
    let length = text.len();
    let refusal = format!("{head}Content-Length: {length}\r\n\r\n{text}");
    relay.answer_refused(refusal.into_bytes(), module);
}
