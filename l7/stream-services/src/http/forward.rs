//! Forwarding of message parts: those that the module has released, and those it does not want to
//! see.

use super::direction::Head;
use super::message::Context;
use super::relay::Relay;
use super::{coded, heads};
use crate::connection::Side;
use crate::module::{Module, Parts};
use proxy_wasm::Stream;

/// Returns the parts of a request, or of a response, that the module wants to see.
pub(super) fn parts(is_request: bool, module: &dyn Module) -> Parts {
    let wants = module.wants();
    if is_request { wants.request } else { wants.response }
}

/// Returns the side of a stream for a request, or for a response.
pub(super) const fn side(stream: &mut Stream, is_request: bool) -> &mut proxy_wasm::Side {
    if is_request { &mut stream.downstream } else { &mut stream.upstream }
}

/// Handles a received part of a body: buffers it for the module, or forwards it.
pub(super) fn take_body(
    relay: &mut Relay,
    index: usize,
    is_request: bool,
    bytes: &[u8],
    module: &mut dyn Module,
) {
    let Some(message) = relay.message_mut(index) else { return };
    let context = message.context();
    let direction = message.direction_mut(is_request);
    direction.handle_body(bytes.len());
    if direction.is_dropped() {
        return;
    }
    if let Some(transcoder) = message.transcoder_mut().filter(|_| !is_request) {
        return transcoder.transcoding.handle_bytes(bytes);
    }
    let direction = message.direction_mut(is_request);
    if let Context::Made(context) = context
        && parts(is_request, module).body
        && let Some(stream) = module.stream(context)
    {
        side(stream, is_request).body.extend_from_slice(bytes);
        return direction.handle_fresh();
    }
    direction.skip_head();
    if write_head(relay, index, is_request, None, module) {
        write_body(relay, index, is_request, bytes, module);
    }
}

/// Sends the parts that the module has seen, as edited. No call is in progress.
pub(super) fn release(relay: &mut Relay, index: usize, is_request: bool, module: &mut dyn Module) {
    let Some(message) = relay.message_mut(index) else { return };
    let Context::Made(context) = message.context() else { return };
    if !is_request {
        module.foreign_calls().release_hold(context);
    }
    let direction = message.direction_mut(is_request);
    if direction.is_over() || direction.is_dropped() {
        return;
    }
    direction.resume();
    let Some(stream) = module.stream(context) else { return };
    if direction.resume_head() {
        let map = &side(stream, is_request).headers;
        let edited =
            if is_request { message.edit_request(map) } else { message.edit_response(map) };
        if let Err(error) = edited {
            return relay.refuse_edit(index, &error.to_string(), module);
        }
    }
    let direction = message.direction_mut(is_request);
    if direction.has_fresh() {
        // Data received before the release was not seen yet: the module sees it first.
        return;
    }
    let side_of_stream = side(stream, is_request);
    if direction.is_end_shown()
        && let Err(error) = direction.edit_trailers(&side_of_stream.trailers)
    {
        return relay.refuse_edit(index, &error.to_string(), module);
    }
    let mut body = std::mem::take(&mut side_of_stream.body);
    let is_whole = direction.is_last_shown();
    if !body.is_empty() || is_whole {
        let whole = is_whole.then_some(body.len() as u64);
        if write_head(relay, index, is_request, whole, module) {
            write_body(relay, index, is_request, &body, module);
        }
        body.clear();
        // Keep the buffer: the next part needs as much.
        if let Some(stream) = module.stream(context) {
            side(stream, is_request).body = body;
        }
    }
}

/// Forwards the parts that are not held, after the module has seen everything; returns true on
/// progress. `is_at_rest`: no more data was received, so that a head need not wait for the first
/// part of its body.
pub(super) fn pass(
    relay: &mut Relay,
    index: usize,
    is_request: bool,
    is_at_rest: bool,
    module: &mut dyn Module,
) -> bool {
    let Some(message) = relay.message_mut(index) else { return false };
    // The head of a coded response waits for the encoder.
    let is_coded = !is_request && message.is_recoded();
    let direction = message.direction_mut(is_request);
    if direction.is_dropped() || direction.is_held() {
        return false;
    }
    direction.skip_head();
    let head = direction.head();
    let ends = direction.has_ended() && !direction.is_over() && head >= Head::Ready;
    let mut moved = false;
    if head == Head::Ready && (is_at_rest || ends) && !is_coded {
        moved = true;
        if !write_head(relay, index, is_request, None, module) {
            return true;
        }
    }
    if ends {
        finish(relay, index, is_request, module);
    }
    moved | ends
}

/// Continues a message without its module, from its present state.
pub(super) fn unfilter(
    relay: &mut Relay,
    index: usize,
    stream: Option<Box<Stream>>,
    module: &mut dyn Module,
) {
    module.count(|it| it.unfiltered += 1);
    if let Some(message) = relay.message_mut(index) {
        message.unfilter();
    }
    let bodies = stream.map(|it| (it.downstream.body, it.upstream.body)).unwrap_or_default();
    for (is_request, body) in [(true, bodies.0), (false, bodies.1)] {
        let Some(message) = relay.message_mut(index) else { return };
        let goes_on = message.direction_mut(is_request).unfilter();
        if goes_on && !body.is_empty() && write_head(relay, index, is_request, None, module) {
            write_body(relay, index, is_request, &body, module);
        }
    }
}

/// Writes a head that has not been written; returns false if its body must not follow. `whole` is
/// the length of the body if all of it is there.
pub(super) fn write_head(
    relay: &mut Relay,
    index: usize,
    is_request: bool,
    whole: Option<u64>,
    module: &mut dyn Module,
) -> bool {
    if relay.message(index).is_some_and(|it| it.direction(is_request).head() == Head::Sent) {
        return true;
    }
    if is_request {
        relay.write_request_head(index, whole, module)
    } else {
        index == 0 && write_response_head(relay, whole, module)
    }
}

fn write_response_head(relay: &mut Relay, whole: Option<u64>, module: &mut dyn Module) -> bool {
    if coded::begin(relay, module) {
        // The head waits for the encoder's first output.
        return true;
    }
    let Some(message) = relay.front_mut() else { return false };
    let is_pictures = message.is_pictures();
    let Some((head, response)) = message.response_parts() else { return false };
    let body = match is_pictures {
        true => heads::describe_pictures(head),
        false => response.body(&head.headers, whole),
    };
    relay.write_response_head(body, module)
}

/// Writes a part of a body, through its encoder if it is coded.
pub(super) fn write_body(
    relay: &mut Relay,
    index: usize,
    is_request: bool,
    bytes: &[u8],
    module: &mut dyn Module,
) {
    let before = relay.wire().unsent(Side::Downstream);
    if !is_request && relay.message(index).is_some_and(|it| it.coder().is_some()) {
        coded::write(relay, bytes, module);
    } else {
        relay.write_body(index, is_request, bytes, module);
    }
    let written = relay.wire().unsent(Side::Downstream).saturating_sub(before);
    if let Some(transcoder) = relay.front_mut().and_then(|front| front.transcoder_mut()) {
        transcoder.count(0, written);
    }
}

/// Writes the end of a message.
fn finish(relay: &mut Relay, index: usize, is_request: bool, module: &mut dyn Module) {
    if is_request || coded::finish(relay, module) {
        relay.write_end(index, is_request, module);
    }
}
