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

use super::Http;
use super::message::{Context, Own};
use crate::connection::Failure;
use crate::module::{Fault, Module};
use proxy_wasm::Stream;
use std::collections::BTreeMap;

impl Http {
    /// Does with one message what its module's fall means for it.
    pub(super) fn fall(
        &mut self,
        index: usize,
        fault: Fault,
        streams: &mut BTreeMap<u32, Box<Stream>>,
        module: &mut dyn Module,
    ) {
        let fell_in = self.fell_in;
        let message = &mut self.messages[index];
        let is_own = fell_in == Some(message.number)
            || matches!((message.context, fault), (Context::Made(own), Fault::Stream(whose)) if own == whose);
        let is_innocent = fault != Fault::Module && !is_own;
        let stream = match message.context {
            Context::Unfiltered => return,
            // It waits for its turn with the next VM.
            Context::Unmade | Context::Lost if is_innocent => return,
            // It fell while its context was made.
            Context::Unmade | Context::Lost if is_own => streams.remove(&0),
            Context::Unmade => None,
            Context::Lost => message.lost.take(),
            Context::Made(context) => streams.remove(&context),
        };
        if message.answer.is_some() {
            message.context = Context::Unfiltered;
            return;
        }
        if is_innocent && let Some(stream) = stream {
            match message.lose(stream, module.wants()) {
                Ok(()) => module.count(|it| it.shown_again += 1),
                Err(stream) => self.fail(index, Some(stream), module),
            }
            return;
        }
        self.fail(index, stream, module);
    }

    /// A message goes on or ends by the policy.
    fn fail(&mut self, index: usize, stream: Option<Box<Stream>>, module: &mut dyn Module) {
        // Pictures are nothing without their module, and the stream is half used.
        let is_pictures = self.messages[index].response.is_pictures;
        match self.failure.get() {
            Failure::Open if !is_pictures => self.unfilter(index, stream, module),
            _ => {
                module.count(|it| it.failed_closed += 1);
                self.messages[index].context = Context::Unfiltered;
                self.answer(index, Own::text(503, "the service's filter has failed"), module);
            }
        }
    }

    /// The VM has no room for a message's context.
    pub(super) fn refuse_context(
        &mut self,
        number: u64,
        stream: Box<Stream>,
        module: &mut dyn Module,
    ) {
        let place = self.messages.iter().position(|it| it.number == number);
        let Some(index) = place else { return };
        self.fail(index, Some(stream), module);
    }

    /// Whether a message whose context is lost may be read on: only to its end, which has come
    /// already. What else comes is to be shown, and needs a context.
    pub(super) fn may_read_lost(&mut self, is_request: bool, input: &[u8]) -> bool {
        if let Some(index) = self.current(is_request) {
            self.messages[index].is_context_needed |= !input.is_empty();
        }
        input.is_empty()
    }
}
