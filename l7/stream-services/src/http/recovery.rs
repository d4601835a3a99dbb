//! Recovery of messages whose module trapped without their fault: they are passed to the next VM
//! again.
//!
//! ```text
//!   Made ── another stream's trap ──▶ Lost ── data for the module ──▶ Create
//!                                       │                              │
//!               a part of a body that   │    heads already sent: passed again, and
//!               the module has changed  ▼    decisions about them change nothing
//!                                   the policy
//! ```
//!
//! Data that has not gone on is passed as if just received. A message is recovered only when there
//! is data for the module: a trap costs nothing for idle messages.

use super::forward;
use super::message::{Context, LocalAnswer};
use super::relay::Relay;
use crate::connection::Failure;
use crate::module::{Fault, Module};
use proxy_wasm::Stream;
use std::collections::BTreeMap;

/// Trap of the module, from the view of one connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trap {
    /// Cause of the trap.
    pub(super) fault: Fault,
    /// Number of the message in whose call the module trapped, if it belongs to this connection.
    pub(super) trapped_in: Option<u64>,
    /// Policy for messages that another VM cannot continue.
    pub(super) policy: Failure,
}

/// Applies a trap of the module to one message.
pub(super) fn on_trap(
    relay: &mut Relay,
    index: usize,
    trap: Trap,
    streams: &mut BTreeMap<u32, Box<Stream>>,
    module: &mut dyn Module,
) {
    let Trap { fault, trapped_in, policy } = trap;
    let Some(message) = relay.message_mut(index) else { return };
    let is_own = trapped_in == Some(message.number())
        || matches!((message.context(), fault), (Context::Made(own), Fault::Stream(culprit)) if own == culprit);
    let is_innocent = fault != Fault::Module && !is_own;
    let stream = match message.context() {
        Context::Unfiltered => return,
        // Waits for its turn with the next VM.
        Context::Unmade | Context::Lost if is_innocent => return,
        // The module trapped while this message's context was created.
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

/// Continues or ends a message by the policy.
pub(super) fn fail(
    relay: &mut Relay,
    index: usize,
    stream: Option<Box<Stream>>,
    policy: Failure,
    module: &mut dyn Module,
) {
    let Some(message) = relay.message_mut(index) else { return };
    match policy {
        // Without the module there are no pictures, and the stream is partly consumed.
        Failure::Open if !message.is_pictures() => forward::unfilter(relay, index, stream, module),
        _ => {
            message.set_context(Context::Unfiltered);
            close(relay, index, module);
        }
    }
}

/// Continues or ends a request by the policy, if there is no VM for it.
pub(super) fn fail_new(relay: &mut Relay, index: usize, policy: Failure, module: &mut dyn Module) {
    match policy {
        Failure::Open => module.count(|it| it.unfiltered += 1),
        Failure::Closed => close(relay, index, module),
    }
}

fn close(relay: &mut Relay, index: usize, module: &mut dyn Module) {
    module.count(|it| it.failed_closed += 1);
    relay.answer(index, LocalAnswer::text(503, "the service's filter has failed"), module);
}

/// Returns true if a message whose context is lost may be read on: only to its end, if that was
/// received. Any other data has to be passed to the module, which needs a context.
pub(super) fn may_read_lost(relay: &mut Relay, is_request: bool, input: &[u8]) -> bool {
    if !input.is_empty()
        && let Some(index) = relay.current(is_request)
        && let Some(message) = relay.message_mut(index)
    {
        message.need_context();
    }
    input.is_empty()
}
