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
use super::message::{Context, Message, Own};
use super::way::{Head, Stage, Way};
use crate::connection::Failure;
use crate::module::{Fault, Module, Parts, Wants};
use proxy_wasm::{Side, Stream};
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

impl Message {
    /// Its context is gone with its VM, and another one is to be shown its stream. Gives that back
    /// if no other VM can go on with it.
    fn lose(&mut self, mut stream: Box<Stream>, wants: Wants) -> Result<(), Box<Stream>> {
        let is_half_edited = |way: &Way, side: &Side| side.is_body_edited() && !way.is_over;
        if self.response.is_pictures
            || is_half_edited(&self.request, &stream.downstream)
            || is_half_edited(&self.response, &stream.upstream)
        {
            return Err(stream);
        }
        stream.rewind();
        self.request.rewind(!stream.downstream.body.is_empty(), wants.request);
        self.response.rewind(!stream.upstream.body.is_empty(), wants.response);
        self.context = Context::Lost;
        self.is_context_needed = false;
        self.lost = Some(stream);
        Ok(())
    }

    /// The callback by which the next VM comes to know of this message, in front of what it is to be
    /// shown of one direction, and whether it is one for its request.
    pub(super) fn stage_again(&self, is_request: bool, wants: Parts) -> Option<(bool, Stage)> {
        match self.context {
            Context::Lost => {
                let way = self.way(is_request);
                let is_needed = self.is_context_needed || way.stage(wants).is_some();
                is_needed.then_some((true, Stage::Create))
            }
            Context::Made(_) if self.request.is_again => Some((true, Stage::Again)),
            Context::Made(_) if self.response.is_again => Some((false, Stage::Again)),
            _ => None,
        }
    }
}

impl Way {
    /// What has not gone on is as it came; `has_body`: a part of its body is among that.
    fn rewind(&mut self, has_body: bool, wants: Parts) {
        if self.is_over || self.is_dropped {
            self.is_again = wants.headers && self.head > Head::Held;
            return;
        }
        self.is_held = false;
        self.has_fresh = has_body;
        self.is_last_shown = false;
        self.are_trailers_shown = false;
        match self.head {
            Head::Awaited => {}
            Head::Came | Head::Held => self.head = Head::Came,
            Head::Ready | Head::Gone => self.is_again = wants.headers,
        }
    }
}
