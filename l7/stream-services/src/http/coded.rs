//! Responses whose bodies are coded after the module.
//!
//! ```text
//!   module ─▶ Coder ─▶ Encoder ─▶ client
//!               └ buffers: the head waits for the first coded bytes, or for all of them
//! ```

use super::direction::Head;
use super::relay::Relay;
use crate::limits::SEND_LENGTH_MAX;
use crate::module::Module;
use content_coding::{Failed, Load};
use http1::{Body, Framing};
use units::Nanos;

/// Decides, when the head of the first response would be sent, whether its body is coded; returns
/// true if it is.
pub(super) fn begin(relay: &mut Relay, module: &mut dyn Module) -> bool {
    let client = relay.exchange().client();
    let Some(message) = relay.front_mut() else { return false };
    if message.coder().is_some() {
        return true;
    }
    let Some(order) = message.take_order() else { return false };
    let (Some((head, _)), Some((asked, version))) = (message.response_parts(), client) else {
        return false;
    };
    match Framing::for_response(head, asked, version, Body::Unknown) {
        Framing::Tunnel => false,
        Framing::None => {
            // The length is that of the uncoded body.
            head.headers.remove(b"content-length");
            false
        }
        Framing::Length(_) | Framing::Chunked | Framing::UntilClose => {
            message.begin_coding(order, module.pool());
            module.count(|it| it.responses_coded += 1);
            true
        }
    }
}

/// Returns the load of the client's link and of the processor, if both are known.
fn load(relay: &Relay, module: &dyn Module) -> Option<Load> {
    let now = Nanos(module.now().monotonic_ns);
    let drained_bytes_per_second = Some(relay.wire().drained_bytes_per_second(now)?);
    Some(Load { drained_bytes_per_second, busy_permille: module.busy_permille()? })
}

/// Writes a part of the first response's body through its encoder.
pub(super) fn write(relay: &mut Relay, bytes: &[u8], module: &mut dyn Module) {
    let load = load(relay, module);
    let coder = relay.front_mut().and_then(|front| front.coder_mut());
    match coder.map(|coder| coder.write(bytes, load)) {
        None => {}
        Some(Ok(())) => {
            module.count_coded(bytes.len(), 0);
            send(relay, Body::Unknown, module);
        }
        Some(Err(error)) => fail(relay, &error, module),
    }
}

fn fail(relay: &mut Relay, error: &Failed, module: &mut dyn Module) {
    module.count(|it| it.codings_failed += 1);
    module.warn(&format!("a coded response was truncated: {error}"));
    relay.reset(module);
}

/// Writes the coded bytes to the client, after the head; returns true if the response continues.
fn send(relay: &mut Relay, body: Body, module: &mut dyn Module) -> bool {
    let Some(front) = relay.front_mut() else { return false };
    let is_sent = front.response().head() == Head::Sent;
    let Some(coder) = front.coder_mut() else { return false };
    if coder.unsent() == 0 {
        return true;
    }
    let mut coded = coder.take_out();
    module.count_coded(0, coded.len());
    if !is_sent && !relay.write_response_head(body, module) {
        return false;
    }
    relay.write_body(0, false, &coded, module);
    coded.clear();
    coded.shrink_to(SEND_LENGTH_MAX);
    let coder = relay.front_mut().and_then(|front| front.coder_mut());
    coder.map(|coder| coder.reuse_out(coded)).is_some()
}

/// Writes the rest of the coded body at its end; a body that was buffered as a whole gets its
/// length. Returns true if the response continues.
pub(super) fn finish(relay: &mut Relay, module: &mut dyn Module) -> bool {
    let Some(front) = relay.front_mut() else { return false };
    let has_trailers = !front.response().trailers().is_empty();
    let Some(coder) = front.coder_mut() else { return true };
    if let Err(error) = coder.finish() {
        fail(relay, &error, module);
        return false;
    }
    let body = match has_trailers {
        false => Body::Known(coder.unsent() as u64),
        true => Body::Unknown,
    };
    let goes_on = send(relay, body, module);
    if let Some(front) = relay.front_mut() {
        front.end_coding();
    }
    goes_on
}

/// Returns true if a head or an encoder holds back data for the client.
pub(super) fn has_unflushed(relay: &Relay) -> bool {
    let front = relay.message(0).filter(|_| relay.is_open());
    front.is_some_and(|front| {
        let is_head_here = front.response().head() == Head::Ready;
        front.coder().is_some_and(|coder| is_head_here || coder.has_unflushed())
    })
}

/// Writes the data held back when the server pauses.
pub(super) fn flush(relay: &mut Relay, module: &mut dyn Module) {
    if !has_unflushed(relay) {
        return;
    }
    let Some(front) = relay.front_mut() else { return };
    let is_sent = front.response().head() == Head::Sent;
    let Some(coder) = front.coder_mut() else { return };
    if let Err(error) = coder.flush() {
        return fail(relay, &error, module);
    }
    if is_sent || relay.write_response_head(Body::Unknown, module) {
        send(relay, Body::Unknown, module);
    }
}
