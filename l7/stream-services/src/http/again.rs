//! Messages whose module fell through no fault of theirs: the next VM is shown them again.
//!
//! ```text
//!  Made ── another stream's trap ──▶ Lost ── something is to be shown ──▶ Create
//!                                      │                                   │
//!              a part of a body that   │         heads that have gone on: shown again, and
//!              the module has changed  ▼         what the module says of them changes nothing
//!                                  the policy
//! ```
//!
//! What has not gone on is shown as if it had just come. A message is shown again only when there is
//! something to show: a trap costs nothing for those that are silent.

use super::forward;
use super::message::{Context, Own};
use super::relay::Relay;
use crate::connection::Failure;
use crate::module::{Fault, Module};
use proxy_wasm::Stream;
use std::collections::BTreeMap;

/// A module's fall, as one connection sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fall {
    /// Culprit of the fall.
    pub(super) fault: Fault,
    /// Number of the message in whose call the module fell, if it is one of this connection.
    pub(super) fell_in: Option<u64>,
    /// Policy for messages that no other VM can go on with.
    pub(super) policy: Failure,
}

/// Does with one message what its module's fall means for it.
pub(super) fn fall(
    relay: &mut Relay,
    index: usize,
    fall: Fall,
    streams: &mut BTreeMap<u32, Box<Stream>>,
    module: &mut dyn Module,
) {
    let Fall { fault, fell_in, policy } = fall;
    let Some(message) = relay.message_mut(index) else { return };
    let is_own = fell_in == Some(message.number())
        || matches!((message.context(), fault), (Context::Made(own), Fault::Stream(whose)) if own == whose);
    let is_innocent = fault != Fault::Module && !is_own;
    let stream = match message.context() {
        Context::Unfiltered => return,
        // It waits for its turn with the next VM.
        Context::Unmade | Context::Lost if is_innocent => return,
        // It fell while its context was made.
        Context::Unmade | Context::Lost if is_own => streams.remove(&0),
        Context::Unmade => None,
        Context::Lost => message.take_lost(),
        Context::Made(context) => streams.remove(&context),
    };
    if message.has_answer() {
        return message.set_context(Context::Unfiltered);
    }
    if is_innocent && let Some(stream) = stream {
        match message.lose(stream, module.wants()) {
            Ok(()) => module.count(|it| it.shown_again += 1),
            Err(stream) => fail(relay, index, Some(stream), policy, module),
        }
        return;
    }
    fail(relay, index, stream, policy, module);
}

/// Has a message go on or end by the policy.
pub(super) fn fail(
    relay: &mut Relay,
    index: usize,
    stream: Option<Box<Stream>>,
    policy: Failure,
    module: &mut dyn Module,
) {
    let Some(message) = relay.message_mut(index) else { return };
    match policy {
        // Pictures are nothing without their module, and the stream is half used.
        Failure::Open if !message.is_pictures() => forward::unfilter(relay, index, stream, module),
        _ => {
            message.set_context(Context::Unfiltered);
            close(relay, index, module);
        }
    }
}

/// Has a request go on or end by the policy for which there is no VM.
pub(super) fn fail_new(relay: &mut Relay, index: usize, policy: Failure, module: &mut dyn Module) {
    match policy {
        Failure::Open => module.count(|it| it.unfiltered += 1),
        Failure::Closed => close(relay, index, module),
    }
}

fn close(relay: &mut Relay, index: usize, module: &mut dyn Module) {
    module.count(|it| it.failed_closed += 1);
    relay.answer(index, Own::text(503, "the service's filter has failed"), module);
}

/// Returns true when a message whose context is lost may be read on: only to its end, which has
/// come already. What else comes is to be shown, and needs a context.
pub(super) fn may_read_lost(relay: &mut Relay, is_request: bool, input: &[u8]) -> bool {
    if !input.is_empty()
        && let Some(index) = relay.current(is_request)
        && let Some(message) = relay.message_mut(index)
    {
        message.need_context();
    }
    input.is_empty()
}
