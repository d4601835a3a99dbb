//! HTTP/1.1 between a client and its server, with a module in between.
//!
//! ```text
//!                Http: order of calls, and what may continue
//!                  │ Module
//!                  ▼
//!   client ◀─▶ requests ─▶ forward, coded, pictures, answers ─▶ Relay ◀─▶ server
//!              responses     parts that go on                     ├ Message ─ 2 Directions
//!                                                                 ├ Wire: bytes of both ends
//!                                                                 └ Origin: the server connection
//! ```
//!
//! Requests are in a queue with their responses, as in [`http1::Exchange`]: the last one is being
//! read, the first one being answered. At most one call of a connection is in progress; meanwhile
//! nothing of the connection is read. Nothing accumulates except paused data, and one part.

mod answers;
mod coded;
mod direction;
mod forward;
mod heads;
mod message;
mod origin;
mod pictures;
mod recovery;
mod relay;
mod requests;
mod responses;
mod wire;

use crate::connection::{Addresses, Failure, Fate, Handover, Protocol, Side, end_orphaned_context};
use crate::foreign_calls::PictureOrder;
use crate::limits::{
    HEAD_TIME_MAX, HELD_LENGTH_MAX, KEEPALIVE_TIME_MAX, SILENT_TIME_MAX, UNREAD_TIME_MAX,
};
use crate::module::{Fault, Module, Reply};
use crate::outgoing::Outgoing;
use crate::transcoder::Transcoder;
use direction::{Head, Stage};
pub(crate) use heads::add_fields;
use message::{Context, LocalAnswer};
use proxy_wasm::abi::{Action, StreamType};
use proxy_wasm::{Answer, Call, Effect, Stream};
use recovery::Trap;
use relay::Relay;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use units::Nanos;

/// Call in progress.
#[derive(Clone, Copy, Debug)]
struct Calling {
    message: u64,
    is_request: bool,
    stage: Stage,
}

/// HTTP state of one client connection.
pub(crate) struct Http {
    /// Number of the connection.
    number: u64,
    failure: Rc<Cell<Failure>>,
    relay: Relay,
    /// Call in progress; ignored after the connection has ended, as its messages are gone.
    calling: Option<Calling>,
    is_waiting: bool,
    /// Number of the message in whose call the module trapped, until [`Protocol::handle_trap`].
    trapped_in: Option<u64>,
    /// Time since which the head of a request has been incomplete.
    head_since: Option<Nanos>,
}

impl Http {
    pub(crate) fn new(number: u64, addresses: Addresses, failure: Rc<Cell<Failure>>) -> Self {
        Self {
            number,
            failure,
            relay: Relay::new(addresses),
            calling: None,
            is_waiting: false,
            trapped_in: None,
            head_since: None,
        }
    }

    /// Keeps the server connection for other clients: it may have had another client, and may have
    /// another after this one.
    pub(crate) const fn keep_server(&mut self) {
        self.relay.keep_server();
    }

    /// Makes all possible progress, with bytes just received.
    fn advance(&mut self, fresh: Option<(Side, &[u8])>, module: &mut dyn Module) {
        self.is_waiting = false;
        let of = |side| fresh.filter(|(from, _)| *from == side).map_or(&[][..], |(_, it)| it);
        let (mut requests, mut responses) = (of(Side::Downstream), of(Side::Upstream));
        loop {
            let moved = self.advance_requests(std::mem::take(&mut requests), module)
                | self.advance_responses(std::mem::take(&mut responses), module);
            if !moved || !self.relay.is_open() {
                return;
            }
        }
    }

    /// Decodes requests as far as allowed, and passes them to the module.
    fn advance_requests(&mut self, fresh: &[u8], module: &mut dyn Module) -> bool {
        let mut moved = self.show(true, false, module);
        let mut kept = self.relay.wire_mut().take_received(Side::Downstream);
        let input = if kept.is_empty() {
            fresh
        } else {
            kept.extend_from_slice(fresh);
            &kept
        };
        let mut used = 0;
        while self.may_decode_request(&input[used..], module) {
            match self.relay.decode_request(&input[used..]) {
                Err(error) => {
                    requests::refuse(&mut self.relay, error, module);
                    return true;
                }
                Ok(step) => {
                    used += step.consumed;
                    let Some(event) = step.event else { break };
                    moved = true;
                    let is_part = matches!(event, http1::RequestEvent::Body(_));
                    requests::handle(&mut self.relay, event, self.failure.get(), module);
                    // Parts of a body are passed together.
                    if !is_part {
                        self.show(true, false, module);
                    }
                }
            }
        }
        self.relay.handle_after_handover(&input[used..]);
        if !self.relay.is_open() {
            return true;
        }
        let is_decoded = used == input.len();
        self.relay.wire_mut().keep(Side::Downstream, kept, fresh, used);
        moved |= self.show(true, true, module);
        if is_decoded && self.relay.wire().has_ended(Side::Downstream) && !self.relay.is_refused() {
            moved |= requests::handle_end(&mut self.relay, module);
        }
        moved
    }

    fn may_decode_request(&mut self, input: &[u8], module: &mut dyn Module) -> bool {
        let is_closed = self.relay.is_refused() || !self.relay.is_open();
        let exchange = self.relay.exchange();
        if is_closed || self.relay.wire().is_full(Side::Upstream) || exchange.is_tunnel() {
            return false;
        }
        let last = self.relay.messages().back().filter(|it| !it.request().has_ended());
        let context = match last {
            Some(last) if last.request().is_stopped() || last.request().head() == Head::Awaited => {
                return false;
            }
            Some(last) => last.context(),
            None if input.is_empty() || !exchange.may_begin_request() => return false,
            // A context is created later, if the module needs one.
            None if module.wants().context && !module.is_down() => Context::Unmade,
            None => Context::Unfiltered,
        };
        if context == Context::Lost {
            return recovery::may_read_lost(&mut self.relay, true, input);
        }
        self.may_go_on(context, module)
    }

    /// Decodes responses as far as allowed, and passes them to the module.
    fn advance_responses(&mut self, fresh: &[u8], module: &mut dyn Module) -> bool {
        let mut moved = self.take_pictures(module);
        moved |= self.show(false, false, module);
        let mut kept = self.relay.wire_mut().take_received(Side::Upstream);
        let input = if kept.is_empty() {
            fresh
        } else {
            kept.extend_from_slice(fresh);
            &kept
        };
        let mut used = 0;
        while self.may_decode_response(&input[used..], module) {
            match self.relay.decode_response(&input[used..]) {
                Err(error) => {
                    responses::refuse(&mut self.relay, error, module);
                    return true;
                }
                Ok(step) => {
                    used += step.consumed;
                    let Some(event) = step.event else { break };
                    moved = true;
                    let is_part = matches!(event, http1::ResponseEvent::Body(_));
                    responses::handle(&mut self.relay, event, module);
                    if !is_part {
                        self.show(false, false, module);
                    }
                }
            }
        }
        let is_decoded = used == input.len();
        match self.relay.fate() {
            Fate::Closing | Fate::Reset | Fate::Handover => {
                if !is_decoded {
                    self.relay.origin_mut().handle_excess();
                }
                return true;
            }
            // Bytes after the head of a tunnel belong to the tunnel.
            Fate::Joined => {
                let out = self.relay.wire_mut().out(Side::Downstream);
                out.end().extend_from_slice(&input[used..]);
                return true;
            }
            Fate::Open => self.relay.wire_mut().keep(Side::Upstream, kept, fresh, used),
        }
        moved |= self.take_pictures(module);
        moved |= self.show(false, true, module);
        if self.relay.fate() == Fate::Joined {
            return true;
        }
        if is_decoded && self.relay.wire().has_ended(Side::Upstream) && self.relay.is_open() {
            moved |= responses::handle_end(&mut self.relay, false, module);
        }
        moved
    }

    fn may_decode_response(&mut self, input: &[u8], module: &mut dyn Module) -> bool {
        let is_full = self.relay.wire().is_full(Side::Downstream);
        if is_full || self.relay.exchange().is_tunnel() || !self.relay.is_open() {
            return false;
        }
        let Some(front) = self.relay.message(0) else { return !input.is_empty() };
        if front.response().is_stopped() || front.is_response_whole() || front.has_answer() {
            return false;
        }
        if !front.wants_body() {
            return false;
        }
        let (context, is_sent) = (front.context(), front.is_sent());
        let is_awaited = front.response().head() == Head::Awaited;
        if is_sent && is_awaited {
            self.relay.await_response();
        }
        // The decoder refuses bytes for a request that was not sent.
        if is_awaited && input.is_empty() {
            return false;
        }
        if context == Context::Lost {
            return recovery::may_read_lost(&mut self.relay, false, input);
        }
        self.may_go_on(context, module)
    }

    /// Takes the pictures that are due; returns true on progress.
    fn take_pictures(&mut self, module: &mut dyn Module) -> bool {
        pictures::context_due(&self.relay).is_some_and(|context| self.may_go_on(context, module))
            && pictures::take(&mut self.relay, module)
    }

    /// Returns true if this connection may continue with a message of this context.
    fn may_go_on(&mut self, context: Context, module: &mut dyn Module) -> bool {
        if !self.relay.is_open() || self.calling.is_some() {
            return false;
        }
        let is_free = context == Context::Unfiltered
            || (self.trapped_in.is_none() && !module.is_down() && module.may_call(self.number));
        self.is_waiting |= !is_free;
        is_free
    }

    /// Passes pending parts to the module, and sends those that may go on. `is_at_rest`: no more
    /// data was received, so that a head need not wait for the first part of its body.
    fn show(&mut self, is_request: bool, mut is_at_rest: bool, module: &mut dyn Module) -> bool {
        let mut moved = false;
        while self.relay.is_open() && self.calling.is_none() {
            let Some(index) = self.relay.current(is_request) else { break };
            let Some(message) = self.relay.message(index) else { break };
            let parts = forward::parts(is_request, module);
            let context = message.context();
            let stage = match context {
                Context::Unmade if is_request && !message.request().is_dropped() => {
                    Some((is_request, Stage::Create))
                }
                Context::Made(_) | Context::Lost => message
                    .reshow_stage(is_request, parts)
                    .or_else(|| Some((is_request, message.direction(is_request).stage(parts)?))),
                Context::Unmade | Context::Unfiltered => None,
            };
            let Some((is_of_request, stage)) = stage else {
                let relay = &mut self.relay;
                return moved | forward::pass(relay, index, is_request, is_at_rest, module);
            };
            if !self.may_go_on(context, module) {
                break;
            }
            moved = true;
            // Data for a context that was lost is not passed yet.
            is_at_rest &= context != Context::Lost;
            self.call(index, is_of_request, stage, module);
        }
        moved
    }

    fn call(&mut self, index: usize, is_request: bool, stage: Stage, module: &mut dyn Module) {
        let Some(message) = self.relay.message(index) else { return };
        let (number, context) = (message.number(), message.context());
        let direction = message.direction(is_request);
        let call = match (context, stage) {
            (_, Stage::Create) => {
                match requests::create(&mut self.relay, index, self.number, module) {
                    Some(stream) => Call::Create(stream),
                    None => return,
                }
            }
            (Context::Made(context), Stage::Head | Stage::Again) => {
                let is_last = !direction.has_body();
                match is_request {
                    true => Call::RequestHeaders { context, is_last },
                    false => Call::ResponseHeaders { context, is_last },
                }
            }
            (Context::Made(context), Stage::Body { is_last }) => match is_request {
                true => Call::RequestBody { context, is_last },
                false => Call::ResponseBody { context, is_last },
            },
            (Context::Made(context), Stage::Trailers) => {
                if let Some(stream) = module.stream(context) {
                    forward::side(stream, is_request).trailers =
                        heads::trailers_map(direction.trailers());
                }
                match is_request {
                    true => Call::RequestTrailers(context),
                    false => Call::ResponseTrailers(context),
                }
            }
            _ => return,
        };
        let context = match context {
            Context::Made(context) => context,
            _ => 0,
        };
        let allowed = answers::allowed(&self.relay, index, is_request, stage);
        let reply = module.call(self.number, context, call, allowed);
        self.settle(Calling { message: number, is_request, stage }, reply, module);
    }

    /// Handles the result of a call.
    fn settle(&mut self, calling: Calling, reply: Reply, module: &mut dyn Module) {
        match reply {
            Reply::Answered(answer, effects) => {
                if self.handle_answer(calling, answer, module) {
                    for effect in effects {
                        self.take_effect(effect, module);
                    }
                }
            }
            Reply::Suspended => self.calling = Some(calling),
            // All streams of the trapped module are notified together.
            Reply::Trapped => self.trapped_in = Some(calling.message),
            // The VM has no capacity for the message's context.
            Reply::Refused(stream) => {
                if let Some(index) = self.relay.index_of_number(calling.message) {
                    let policy = self.failure.get();
                    recovery::fail(&mut self.relay, index, Some(stream), policy, module);
                }
            }
        }
    }

    /// Handles the module's decision; returns false if effects of the call change nothing.
    fn handle_answer(&mut self, calling: Calling, answer: Answer, module: &mut dyn Module) -> bool {
        let Calling { message: number, is_request, stage } = calling;
        let asked = module.take_requested();
        let relay = &mut self.relay;
        let Some(index) = relay.index_of_number(number) else { return true };
        if let Some(order) = asked.order
            && let Some(message) = relay.message_mut(index)
        {
            message.set_order(order);
        }
        if let Some(transcoding_order) = asked.transcoding_order {
            pictures::begin(relay, index, transcoding_order, module);
        }
        if let Some(key) = asked.key {
            answers::give(relay, index, key, module);
            return false;
        }
        let Some(message) = relay.message_mut(index) else { return true };
        message.direction_mut(is_request).handle_shown(stage);
        if stage == Stage::Again {
            // Already sent: later decisions change nothing.
            return false;
        }
        match answer {
            Answer::Created(context) => message.set_context(Context::Made(context)),
            Answer::Action(Action::Continue) => forward::release(relay, index, is_request, module),
            Answer::Action(Action::Pause) => {
                message.direction_mut(is_request).hold(stage);
                pictures::hold(relay, index, is_request, module);
                bound(relay, index, is_request, module);
            }
            Answer::Ended(_) | Answer::Pending | Answer::Nothing => {}
        }
        true
    }

    fn take_effect(&mut self, effect: Effect, module: &mut dyn Module) {
        let relay = &mut self.relay;
        match effect {
            Effect::Continue { context, stream } => {
                let is_request = stream == StreamType::HttpRequest;
                if let Some(index) = relay.index_of(context)
                    && let Some(message) = relay.message(index)
                    && message.direction(is_request).is_paused()
                {
                    forward::release(relay, index, is_request, module);
                }
            }
            Effect::Close { context, .. } if relay.index_of(context).is_some() => {
                relay.reset(module);
            }
            Effect::Respond { context, response } => {
                if let Some(index) = relay.index_of(context) {
                    module.count(|it| it.local_responses += 1);
                    answers::respond(relay, index, *response, module);
                }
            }
            _ => {}
        }
    }
}

/// Ends a message of which the module holds too much.
fn bound(relay: &mut Relay, index: usize, is_request: bool, module: &mut dyn Module) {
    let Some(Context::Made(context)) = relay.message(index).map(|it| it.context()) else { return };
    let Some(stream) = module.stream(context) else { return };
    if forward::side(stream, is_request).body.len() <= HELD_LENGTH_MAX {
        return;
    }
    module.count(|it| it.held_too_long += 1);
    let own = match is_request {
        true => LocalAnswer::text(413, "the request is longer than what a filter may hold"),
        false => LocalAnswer::text(500, "the response is longer than what a filter may hold"),
    };
    relay.answer(index, own, module);
}

impl Protocol for Http {
    fn handle_bytes(&mut self, side: Side, bytes: &[u8], module: &mut dyn Module) {
        if side == Side::Upstream {
            self.relay.origin_mut().handle_bytes();
        }
        match self.relay.fate() {
            Fate::Open => {
                let before = self.relay.last_message();
                self.advance(Some((side, bytes)), module);
                if side == Side::Downstream {
                    let now = Nanos(module.now().monotonic_ns);
                    let is_partial =
                        self.relay.last_message() == before && self.relay.messages().is_empty();
                    self.head_since = is_partial.then(|| self.head_since.unwrap_or(now));
                }
            }
            Fate::Joined => {
                self.relay.wire_mut().out(side.other()).end().extend_from_slice(bytes);
            }
            Fate::Closing | Fate::Reset | Fate::Handover => {}
        }
    }

    fn handle_end(&mut self, side: Side, module: &mut dyn Module) {
        self.relay.wire_mut().handle_end(side);
        if self.relay.is_open() {
            self.advance(None, module);
        }
    }

    fn idle_until(&self, moved: Nanos) -> Option<Nanos> {
        match self.relay.fate() {
            Fate::Closing => Some(moved + UNREAD_TIME_MAX),
            Fate::Open if !self.relay.messages().is_empty() => Some(moved + SILENT_TIME_MAX),
            Fate::Open => Some(match self.head_since {
                Some(since) => since + HEAD_TIME_MAX,
                None => moved + KEEPALIVE_TIME_MAX,
            }),
            Fate::Joined | Fate::Handover | Fate::Reset => None,
        }
    }

    fn handle_idle(&mut self, module: &mut dyn Module) {
        module.count(|it| it.idle += 1);
        let is_between = self.relay.is_open() && self.relay.messages().is_empty();
        match is_between {
            true if self.head_since.is_some() => requests::refuse_slow(&mut self.relay, module),
            true => self.relay.close(module),
            false => {
                // The client's time to read has passed.
                self.relay.wire_mut().out(Side::Downstream).clear();
                self.relay.reset(module);
            }
        }
    }

    fn handle_unreachable(&mut self, module: &mut dyn Module) {
        module.count(|it| it.unreachable += 1);
        self.relay.origin_mut().handle_unreachable();
        self.relay.wire_mut().out(Side::Upstream).clear();
        if !self.relay.is_open() {
            return;
        }
        match self.relay.message(0) {
            Some(front) if front.response().head() < Head::Sent => {
                let own = LocalAnswer::text(502, "the server cannot be reached");
                self.relay.answer(0, own, module);
            }
            _ => self.relay.reset(module),
        }
    }

    fn handle_server_lost(&mut self, module: &mut dyn Module) {
        match self.relay.fate() {
            Fate::Joined => self.relay.reset(module),
            Fate::Open => {
                responses::handle_end(&mut self.relay, true, module);
            }
            Fate::Closing | Fate::Reset | Fate::Handover => {}
        }
    }

    fn handle_lost(&mut self, module: &mut dyn Module) {
        self.relay.reset(module);
    }

    fn handle_continue(&mut self, module: &mut dyn Module) {
        if self.relay.is_open() && self.calling.is_none() {
            self.advance(None, module);
        }
    }

    fn handle_reply(&mut self, reply: Reply, module: &mut dyn Module) {
        match self.calling.take().filter(|_| self.relay.is_open()) {
            Some(calling) => {
                self.settle(calling, reply, module);
                self.handle_continue(module);
            }
            None => end_orphaned_context(&reply, module),
        }
    }

    fn handle_effect(&mut self, effect: Effect, module: &mut dyn Module) {
        if self.relay.is_open() {
            self.take_effect(effect, module);
            self.handle_continue(module);
        }
    }

    fn handle_trap(
        &mut self,
        fault: Fault,
        streams: &mut BTreeMap<u32, Box<Stream>>,
        module: &mut dyn Module,
    ) {
        self.calling = None;
        let trap = Trap { fault, trapped_in: self.trapped_in, policy: self.failure.get() };
        let numbers: Vec<u64> = self.relay.messages().iter().map(|it| it.number()).collect();
        for number in numbers {
            let found = self.relay.index_of_number(number);
            let Some(index) = found.filter(|_| self.relay.is_open()) else { break };
            recovery::on_trap(&mut self.relay, index, trap, streams, module);
        }
        self.trapped_in = None;
        self.handle_continue(module);
    }

    fn awaits_more(&self, side: Side) -> bool {
        let messages = self.relay.messages();
        match (self.relay.fate(), side) {
            (Fate::Open, Side::Downstream) => {
                self.head_since.is_some()
                    || messages.back().is_some_and(|last| !last.request().has_ended())
            }
            (Fate::Open, Side::Upstream) => {
                messages.front().is_some_and(|front| !front.is_response_whole())
            }
            _ => false,
        }
    }

    fn wants(&self, side: Side) -> bool {
        let wire = self.relay.wire();
        if wire.has_ended(side) || wire.is_full(side.other()) {
            return false;
        }
        if self.relay.fate() == Fate::Joined {
            return true;
        }
        let is_free = self.relay.is_open() && self.calling.is_none() && !wire.has_received(side);
        let messages = self.relay.messages();
        is_free
            && match side {
                Side::Downstream => {
                    let last = messages.back().filter(|it| !it.request().has_ended());
                    let may = match last {
                        Some(last) => !last.request().is_stopped(),
                        None => self.relay.exchange().may_begin_request(),
                    };
                    may && !self.relay.is_refused()
                }
                Side::Upstream => messages
                    .front()
                    .is_none_or(|front| !front.response().is_stopped() && front.wants_body()),
            }
    }

    fn out(&mut self, side: Side) -> &mut Outgoing {
        self.relay.wire_mut().out(side)
    }

    fn handle_sent(&mut self, side: Side, count: usize, module: &mut dyn Module) {
        let was_full = self.relay.wire().is_full(side);
        self.relay.wire_mut().handle_sent(side, count);
        if side == Side::Upstream {
            self.relay.origin_mut().handle_sent(count);
        }
        let is_next = side == Side::Downstream && pictures::are_awaited(&self.relay);
        if was_full || is_next {
            self.handle_continue(module);
        }
    }

    fn wants_server(&self) -> bool {
        match self.relay.fate() {
            Fate::Open => {
                self.relay.origin().is_wanted() || !self.relay.wire().is_empty(Side::Upstream)
            }
            Fate::Joined => true,
            Fate::Closing | Fate::Reset | Fate::Handover => false,
        }
    }

    fn finishes(&self, side: Side) -> bool {
        self.relay.fate() == Fate::Joined && self.relay.wire().has_ended(side.other())
    }

    fn handle_full(&mut self, side: Side, module: &mut dyn Module) {
        self.relay.wire_mut().handle_full(side, Nanos(module.now().monotonic_ns));
    }

    fn has_unflushed(&self) -> bool {
        coded::has_unflushed(&self.relay)
    }

    fn handle_pause(&mut self, module: &mut dyn Module) {
        coded::flush(&mut self.relay, module);
    }

    fn handle_pictures(&mut self, context: u32, order: PictureOrder, module: &mut dyn Module) {
        if self.relay.is_open() {
            pictures::order(&mut self.relay, context, order, module);
            self.handle_continue(module);
        }
    }

    fn transcoder(&mut self) -> Option<(u64, &mut Transcoder)> {
        let front = self.relay.front_mut()?;
        Some((front.number(), front.transcoder_mut()?))
    }

    fn take_handover(&mut self) -> Option<Box<Handover>> {
        self.relay.take_handover()
    }

    fn may_share_server(&self) -> bool {
        self.relay.origin().may_share()
    }

    fn handle_server(&mut self, is_shared: bool, module: &mut dyn Module) {
        if is_shared {
            module.count(|it| it.servers_shared += 1);
        }
        self.relay.origin_mut().handle_connection(is_shared);
    }

    fn is_server_reusable(&self) -> bool {
        let wire = self.relay.wire();
        self.relay.fate() == Fate::Closing
            && self.relay.origin().is_left()
            && wire.is_empty(Side::Upstream)
            && !wire.has_ended(Side::Upstream)
    }

    fn drops_server(&mut self) -> bool {
        self.relay.origin_mut().take_abandoned()
    }

    fn aborts_server(&self) -> bool {
        self.relay.origin().is_aborted()
    }

    fn is_waiting(&self) -> bool {
        self.is_waiting && self.relay.is_open()
    }

    fn fate(&self) -> Fate {
        self.relay.fate()
    }
}
