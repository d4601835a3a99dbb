//! Responses that the module requests from the node: one of its own, or that of a shared stream.

use super::direction::{Head, Stage};
use super::heads::add_fields;
use super::message::{Context, LocalAnswer, Message};
use super::relay::Relay;
use crate::foreign_calls::Allowed;
use crate::module::Module;
use fanout::Key;
use http1::{EditError, Headers};
use proxy_wasm::LocalResponse;

/// Responds to a message with the module's own response.
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

fn own(response: LocalResponse) -> Result<LocalAnswer, EditError> {
    let mut headers = Headers::new();
    add_fields(&response.headers, &mut headers)?;
    // A gRPC response has its status in a trailer, or here in a header, without a body.
    if let Some(status) = response.grpc_status {
        headers.add(b"grpc-status", status.to_string().as_bytes())?;
    }
    for name in [&b"content-length"[..], b"transfer-encoding", b"connection"] {
        headers.remove(name);
    }
    // The host has checked the status.
    let status = u16::try_from(response.status).unwrap_or(500);
    Ok(LocalAnswer::Response { status, headers, body: response.body })
}

/// Returns the requests that are allowed in a call for a message.
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

/// Returns true for a request with a safe method and without a body.
fn can_be_given(message: &Message) -> bool {
    let method = message.request_head().map(http1::RequestHead::method);
    matches!(method, Some(b"GET" | b"HEAD")) && !message.request().has_body()
}

/// Hands a request, as edited by the module, over to a shared stream.
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
