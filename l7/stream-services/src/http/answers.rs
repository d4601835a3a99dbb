//! Answers that the module asks the node for: a response of its own, or that of a shared stream.

use super::direction::{Head, Stage};
use super::heads::add_fields;
use super::message::{Context, Message, Own};
use super::relay::Relay;
use crate::desk::Allowed;
use crate::module::Module;
use fanout::Key;
use http1::{EditError, Headers};
use proxy_wasm::LocalResponse;

/// Answers a message with the module's own response.
pub(super) fn respond(
    relay: &mut Relay,
    index: usize,
    response: LocalResponse,
    module: &mut dyn Module,
) {
    match own(response) {
        Ok(own) => relay.answer(index, own, module),
        Err(error) => relay.refuse_edit(index, &error.to_string(), module),
    }
}

fn own(response: LocalResponse) -> Result<Own, EditError> {
    let mut headers = Headers::new();
    add_fields(&response.headers, &mut headers)?;
    // Who answers a call of gRPC says how it went in a trailer, or here without a body.
    if let Some(status) = response.grpc_status {
        headers.add(b"grpc-status", status.to_string().as_bytes())?;
    }
    for name in [&b"content-length"[..], b"transfer-encoding", b"connection"] {
        headers.remove(name);
    }
    // The host has looked that it is one.
    let status = u16::try_from(response.status).unwrap_or(500);
    Ok(Own::Response { status, headers, body: response.body })
}

/// Returns what the module may ask the node for in a call for a message.
pub(super) fn allowed(relay: &Relay, index: usize, is_request: bool, stage: Stage) -> Allowed {
    let Some(message) = relay.message(index) else { return Allowed::default() };
    let is_early = match stage {
        Stage::Create => false,
        Stage::Head | Stage::Again => true,
        Stage::Body { .. } | Stage::Trailers => is_request,
    };
    let reflects =
        is_request && stage == Stage::Head && relay.messages().len() == 1 && can_be_given(message);
    let is_response = !is_request && stage == Stage::Head;
    let response = message.response();
    Allowed {
        codes: is_early && response.head() < Head::Ready,
        reflects,
        transcodes: is_response && response.has_body(),
        is_bodiless: is_response && !response.has_body(),
    }
}

/// Returns true for a request that only reads, and has no body.
fn can_be_given(message: &Message) -> bool {
    let method = message.request_head().map(http1::RequestHead::method);
    matches!(method, Some(b"GET" | b"HEAD")) && !message.request().has_body()
}

/// Gives a request, as the module has made it, to a shared stream.
pub(super) fn give(relay: &mut Relay, index: usize, key: Key, module: &mut dyn Module) {
    let Some(message) = relay.message_mut(index) else { return };
    if let Context::Made(context) = message.context()
        && let Some(stream) = module.stream(context)
        && let Err(error) = message.edit_request(&stream.downstream.headers)
    {
        return relay.refuse_edit(index, &error.to_string(), module);
    }
    if let Some(request) = message.take_request_head() {
        relay.give(key, request, module);
    }
}
