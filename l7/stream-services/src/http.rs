//! HTTP/1.1 between a client and its server, with a module in between: bytes in, bytes out.
//!
//! ```text
//!  client ─▶ RequestDecoder ─▶ request: Way ─▶ Encoder ─▶ server
//!                                 │ ▲
//!                                 ▼ │ Module
//!  client ◀─ Encoder ◀─ response: Way ◀─ ResponseDecoder ◀─ server
//! ```
//!
//! Requests are in a queue with their responses, as in [`Exchange`]: the last one is being read,
//! the first one being answered. At most one call of a connection is under way; meanwhile nothing
//! of it is read. Nothing gathers but what the module pauses, and one part.

mod again;
mod answers;
mod coded;
mod given;
mod heads;
mod message;
mod pictures;
mod protocol;
mod requests;
mod responses;
mod way;

use crate::connection::{Addresses, Failure, Fate, Given, Side};
use crate::limits::HELD_LENGTH_MAX;
use crate::meter::Meter;
use crate::module::{Last, Module, Parts, Reply};
use crate::outgoing::Outgoing;
pub(crate) use heads::add_fields;
use http1::{Exchange, RequestDecoder, ResponseDecoder};
use message::{Context, Message, Own};
use proxy_wasm::abi::{Action, StreamType};
use proxy_wasm::{Answer, Call, Effect, Stream};
use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use units::Nanos;
use way::{Head, Stage};

/// A call that stands still.
#[derive(Clone, Copy, Debug)]
struct Calling {
    message: u64,
    is_request: bool,
    stage: Stage,
}

/// The connection to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    /// There is none.
    None,
    /// It is there or being made, and nothing has come of it.
    Fresh,
    /// A response has come by it.
    Used,
}

/// Whether the connection to the server may have had, or have, another client.
#[derive(Debug, Default)]
struct Server {
    /// Such connections are kept.
    is_kept: bool,
    /// Requests that it was sent, and responses that have come whole.
    asked: u64,
    answered: u64,
    /// Somebody has said by it who he is, or is to.
    is_own: bool,
    /// The first request, which does no harm when it is sent twice: by a connection that is kept,
    /// for nobody knows whether its server ends it just then.
    again: Option<Vec<u8>>,
    /// It is as it was before the first request.
    is_left: bool,
}

/// One client connection.
pub(crate) struct Http {
    number: u64,
    addresses: Addresses,
    failure: Rc<Cell<Failure>>,
    requests: RequestDecoder,
    responses: ResponseDecoder,
    exchange: Exchange,
    /// What came and could not be decoded yet.
    from_client: Vec<u8>,
    from_server: Vec<u8>,
    to_client: Outgoing,
    to_server: Outgoing,
    messages: VecDeque<Message>,
    last_message: u64,
    calling: Option<Calling>,
    is_waiting: bool,
    has_client_ended: bool,
    has_server_ended: bool,
    /// What the client sent is no request: nothing more of it is read.
    is_refused: bool,
    /// The module fell in a call for this message, which is to be told what becomes of it.
    fell_in: Option<u64>,
    /// The connection to the server is of no use, but another one may be.
    drops_server: bool,
    /// The server has a part of a request, which is not to pass for the whole.
    aborts_server: bool,
    link: Link,
    /// When a request's head began that is not whole yet.
    head_since: Option<Nanos>,
    /// Where the response began that is awaited.
    response_from: u64,
    /// Whether the kernel has taken bytes of a request that has no response yet.
    has_sent: bool,
    /// How fast the client takes what it is sent.
    meter: Meter,
    /// A request that somebody else is to answer, before it is taken.
    given: Option<Box<Given>>,
    server: Server,
    fate: Fate,
}

impl Http {
    pub(crate) fn new(number: u64, addresses: Addresses, failure: Rc<Cell<Failure>>) -> Self {
        Self {
            number,
            addresses,
            failure,
            requests: RequestDecoder::new(),
            responses: ResponseDecoder::new(),
            exchange: Exchange::new(),
            from_client: Vec::new(),
            from_server: Vec::new(),
            to_client: Outgoing::default(),
            to_server: Outgoing::default(),
            messages: VecDeque::new(),
            last_message: 0,
            calling: None,
            is_waiting: false,
            has_client_ended: false,
            has_server_ended: false,
            is_refused: false,
            fell_in: None,
            drops_server: false,
            aborts_server: false,
            link: Link::None,
            head_since: None,
            response_from: 0,
            has_sent: false,
            meter: Meter::default(),
            given: None,
            server: Server::default(),
            fate: Fate::Open,
        }
    }

    /// The connection to the server may have had another client, and is for others behind this one.
    pub(crate) const fn keep_server(&mut self) {
        self.server.is_kept = true;
        self.exchange.keep_server();
    }

    /// Does what can be done, with bytes that have just come.
    fn advance(&mut self, fresh: Option<(Side, &[u8])>, module: &mut dyn Module) {
        self.is_waiting = false;
        let of = |side| fresh.filter(|(from, _)| *from == side).map_or(&[][..], |(_, it)| it);
        let (mut requests, mut responses) = (of(Side::Downstream), of(Side::Upstream));
        loop {
            let moved = self.advance_requests(std::mem::take(&mut requests), module)
                | self.advance_responses(std::mem::take(&mut responses), module);
            if !moved || self.fate != Fate::Open {
                return;
            }
        }
    }

    /// Whether this connection may go on with a message of this context.
    fn may_go_on(&mut self, context: Context, module: &mut dyn Module) -> bool {
        if self.fate != Fate::Open || self.calling.is_some() {
            return false;
        }
        let is_free = context == Context::Unfiltered
            || (self.fell_in.is_none() && !module.is_down() && module.may_call(self.number));
        self.is_waiting |= !is_free;
        is_free
    }

    /// The message whose request, or whose response, is under way.
    fn current(&self, is_request: bool) -> Option<usize> {
        if is_request {
            self.messages.len().checked_sub(1)
        } else {
            (!self.messages.is_empty()).then_some(0)
        }
    }

    fn parts(is_request: bool, module: &dyn Module) -> Parts {
        let wants = module.wants();
        if is_request { wants.request } else { wants.response }
    }

    /// Shows the module what it has not seen, and lets go on what may. `is_at_rest`: nothing more
    /// has come, so that a head need not wait for the first part of its body.
    fn show(&mut self, is_request: bool, mut is_at_rest: bool, module: &mut dyn Module) -> bool {
        let mut moved = false;
        while self.fate == Fate::Open && self.calling.is_none() {
            let Some(index) = self.current(is_request) else { break };
            let message = &self.messages[index];
            let parts = Self::parts(is_request, module);
            let stage = match message.context {
                Context::Unmade if is_request && !message.request.is_dropped => {
                    Some((is_request, Stage::Create))
                }
                Context::Made(_) | Context::Lost => message
                    .stage_again(is_request, parts)
                    .or_else(|| Some((is_request, message.way(is_request).stage(parts)?))),
                Context::Unmade | Context::Unfiltered => None,
            };
            let Some((is_of_request, stage)) = stage else {
                return moved | self.pass(index, is_request, is_at_rest, module);
            };
            let context = message.context;
            if !self.may_go_on(context, module) {
                break;
            }
            moved = true;
            // What waited for the context is not read yet.
            is_at_rest &= context != Context::Lost;
            self.call(index, is_of_request, stage, module);
        }
        moved
    }

    fn call(&mut self, index: usize, is_request: bool, stage: Stage, module: &mut dyn Module) {
        let message = &mut self.messages[index];
        let number = message.number;
        let call = match (message.context, stage) {
            (_, Stage::Create) => match self.create(index, module) {
                Some(stream) => Call::Create(stream),
                None => return,
            },
            (Context::Made(context), Stage::Head | Stage::Again) => {
                let is_last = !message.way(is_request).has_body();
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
                    let side =
                        if is_request { &mut stream.downstream } else { &mut stream.upstream };
                    side.trailers = heads::trailers_map(&message.way(is_request).trailers);
                }
                match is_request {
                    true => Call::RequestTrailers(context),
                    false => Call::ResponseTrailers(context),
                }
            }
            _ => return,
        };
        let context = match self.messages[index].context {
            Context::Made(context) => context,
            _ => 0,
        };
        let allowed = self.allowed(index, is_request, stage);
        let reply = module.call(self.number, context, call, allowed);
        self.settle(Calling { message: number, is_request, stage }, reply, module);
    }

    /// A call has come to something.
    fn settle(&mut self, calling: Calling, reply: Reply, module: &mut dyn Module) {
        let (answer, effects) = match reply {
            Reply::Answered(answer, effects) => (answer, effects),
            Reply::Suspended => {
                self.calling = Some(calling);
                return;
            }
            // What becomes of the streams of a module that has fallen is told to all of them.
            Reply::Fallen => {
                self.fell_in = Some(calling.message);
                return;
            }
            Reply::Refused(stream) => {
                return self.refuse_context(calling.message, stream, module);
            }
        };
        let asked = module.take_asked();
        let place = self.messages.iter().position(|it| it.number == calling.message);
        if let Some(index) = place {
            if let Some(order) = asked.order {
                self.messages[index].order = order;
            }
            if let Some(commission) = asked.commission {
                self.begin_pictures(index, commission, module);
            }
            if let Some(key) = asked.key {
                return self.give(index, key, module);
            }
            let way = self.messages[index].way_mut(calling.is_request);
            if calling.stage == Stage::Again {
                // It has gone on: nothing that is said of it now changes that.
                way.is_again = false;
                return;
            }
            match calling.stage {
                Stage::Body { is_last } => {
                    way.has_fresh = false;
                    way.is_last_shown |= is_last;
                }
                Stage::Trailers => way.are_trailers_shown = true,
                Stage::Create | Stage::Head | Stage::Again => {}
            }
            match answer {
                Answer::Created(context) => self.messages[index].context = Context::Made(context),
                Answer::Action(Action::Continue) => {
                    self.release(index, calling.is_request, module);
                }
                Answer::Action(Action::Pause) => {
                    match calling.stage {
                        Stage::Head => way.head = Head::Held,
                        _ => way.is_held = true,
                    }
                    self.hold_pictures(index, calling.is_request, module);
                    self.bound(index, calling.is_request, module);
                }
                Answer::Ended(_) | Answer::Pending | Answer::Nothing => {}
            }
        }
        for effect in effects {
            self.take_effect(effect, module);
        }
    }

    /// What a module pauses has an end.
    fn bound(&mut self, index: usize, is_request: bool, module: &mut dyn Module) {
        let Context::Made(context) = self.messages[index].context else { return };
        let Some(stream) = module.stream(context) else { return };
        let side = if is_request { &stream.downstream } else { &stream.upstream };
        if side.body.len() <= HELD_LENGTH_MAX {
            return;
        }
        module.count(|it| it.held_too_long += 1);
        let own = match is_request {
            true => Own::text(413, "the request is longer than what a filter may hold"),
            false => Own::text(500, "the response is longer than what a filter may hold"),
        };
        self.answer(index, own, module);
    }

    /// What the module was shown goes on, as it has made it. No call runs.
    fn release(&mut self, index: usize, is_request: bool, module: &mut dyn Module) {
        let message = &mut self.messages[index];
        let Context::Made(context) = message.context else { return };
        if !is_request {
            module.desk().let_go(context);
        }
        let way = message.way_mut(is_request);
        if way.is_over || way.is_dropped {
            return;
        }
        way.is_held = false;
        let Some(stream) = module.stream(context) else { return };
        if matches!(way.head, Head::Came | Head::Held) {
            way.head = Head::Ready;
            let side = if is_request { &stream.downstream } else { &stream.upstream };
            let edited = match is_request {
                true => message.edit_request(&side.headers),
                false => message.edit_response(&side.headers),
            };
            if let Err(error) = edited {
                return self.refuse_edit(index, &error.to_string(), module);
            }
        }
        let way = self.messages[index].way_mut(is_request);
        if way.has_fresh {
            // It was told to go on before it has seen what came meanwhile: it sees that first.
            return;
        }
        let Some(stream) = module.stream(context) else { return };
        let side = if is_request { &mut stream.downstream } else { &mut stream.upstream };
        if way.is_last_shown || way.are_trailers_shown {
            match heads::trailers(&side.trailers) {
                Ok(trailers) => way.trailers = trailers,
                Err(error) => return self.refuse_edit(index, &error.to_string(), module),
            }
        }
        let mut body = std::mem::take(&mut side.body);
        let is_whole = way.is_last_shown;
        if !body.is_empty() || is_whole {
            let whole = is_whole.then_some(body.len() as u64);
            if self.write_head(index, is_request, whole, module) {
                self.write_body(index, is_request, &body, module);
            }
            body.clear();
            // The next part needs as much.
            if let Some(stream) = module.stream(context) {
                let side = if is_request { &mut stream.downstream } else { &mut stream.upstream };
                side.body = body;
            }
        }
    }

    /// All that there is to show has been shown: what is not held goes on.
    fn pass(
        &mut self,
        index: usize,
        is_request: bool,
        is_at_rest: bool,
        module: &mut dyn Module,
    ) -> bool {
        let message = &mut self.messages[index];
        // The head of a coded response waits for the encoder.
        let is_coded = !is_request && (message.coder.is_some() || message.transcoder.is_some());
        let way = message.way_mut(is_request);
        if way.is_dropped || way.is_held {
            return false;
        }
        if way.head == Head::Came {
            way.head = Head::Ready;
        }
        let ends = way.has_ended && !way.is_over && way.head >= Head::Ready;
        let mut moved = false;
        if way.head == Head::Ready && (is_at_rest || ends) && !is_coded {
            moved = true;
            if !self.write_head(index, is_request, None, module) {
                return true;
            }
        }
        if ends {
            self.finish(index, is_request, module);
        }
        moved | ends
    }

    fn write_head(
        &mut self,
        index: usize,
        is_request: bool,
        whole: Option<u64>,
        module: &mut dyn Module,
    ) -> bool {
        if self.messages[index].way(is_request).head == Head::Gone {
            return true;
        }
        if is_request {
            self.write_request_head(index, whole, module)
        } else {
            self.write_response_head(index, whole, module)
        }
    }

    fn write_body(
        &mut self,
        index: usize,
        is_request: bool,
        bytes: &[u8],
        module: &mut dyn Module,
    ) {
        let before = self.to_client.len();
        if !is_request && self.messages.get(index).is_some_and(|it| it.coder.is_some()) {
            self.code(bytes, module);
        } else {
            self.write_plain(index, is_request, bytes, module);
        }
        self.count_written(self.to_client.len().saturating_sub(before));
    }

    fn write_plain(
        &mut self,
        index: usize,
        is_request: bool,
        bytes: &[u8],
        module: &mut dyn Module,
    ) {
        let out = if is_request { self.to_server.end() } else { self.to_client.end() };
        let way = self.messages[index].way_mut(is_request);
        let written = way.encoder.as_mut().map(|encoder| encoder.write_body(bytes, out));
        if let Some(Err(error)) = written {
            self.break_off(&error.to_string(), module);
        }
    }

    /// A message ends.
    fn finish(&mut self, index: usize, is_request: bool, module: &mut dyn Module) {
        if !is_request && !self.finish_coded(module) {
            return;
        }
        let out = if is_request { self.to_server.end() } else { self.to_client.end() };
        let way = self.messages[index].way_mut(is_request);
        let trailers = std::mem::take(&mut way.trailers);
        let ended = way.encoder.as_mut().map(|encoder| encoder.end(&trailers, out));
        if let Some(Err(error)) = ended {
            return self.break_off(&error.to_string(), module);
        }
        way.is_over = true;
        if is_request {
            self.end_request(module);
        } else {
            self.end_response(module);
        }
    }

    /// What a module has made of a message cannot be sent, and part of it has gone.
    fn break_off(&mut self, why: &str, module: &mut dyn Module) {
        module.count(|it| it.edits_refused += 1);
        module.warn(&format!("a message was broken off: {why}"));
        self.reset(module);
    }

    fn reset(&mut self, module: &mut dyn Module) {
        self.fate = Fate::Reset;
        self.forget(module);
    }

    /// Both connections end, once what is written has arrived.
    fn close(&mut self, module: &mut dyn Module) {
        if self.fate == Fate::Open {
            self.fate = Fate::Closing;
            let Server { asked, answered, is_own, .. } = self.server;
            self.server.is_left = asked == answered
                && !is_own
                && self.exchange.leaves_server()
                && self.from_server.is_empty();
        }
        self.forget(module);
    }

    /// All contexts end.
    fn forget(&mut self, module: &mut dyn Module) {
        self.calling = None;
        self.is_waiting = false;
        self.from_client = Vec::new();
        self.from_server = Vec::new();
        for message in std::mem::take(&mut self.messages) {
            self.aborts_server |= message.is_sent && !message.request.is_over;
            end_context(&message, module);
        }
    }

    /// Messages that are over on both ways are forgotten; the next one may have its answer.
    fn settle_messages(&mut self, module: &mut dyn Module) {
        while let Some(front) = self.messages.front() {
            if !(front.request.is_over && front.response.is_over) {
                break;
            }
            end_context(front, module);
            self.messages.pop_front();
        }
        if self.messages.is_empty() && self.to_server.is_empty() {
            self.has_sent = false;
        }
        self.try_answer(module);
    }

    fn index_of(&self, context: u32) -> Option<usize> {
        self.messages.iter().position(|it| it.context == Context::Made(context))
    }

    fn take_effect(&mut self, effect: Effect, module: &mut dyn Module) {
        match effect {
            Effect::Continue { context, stream } => {
                let is_request = stream == StreamType::HttpRequest;
                if let Some(index) = self.index_of(context) {
                    let way = self.messages[index].way(is_request);
                    if way.head == Head::Held || way.is_held {
                        self.release(index, is_request, module);
                    }
                }
            }
            Effect::Close { context, .. } if self.index_of(context).is_some() => {
                self.reset(module);
            }
            Effect::Respond { context, response } => {
                if let Some(index) = self.index_of(context) {
                    module.count(|it| it.local_responses += 1);
                    self.answer_for_module(index, *response, module);
                }
            }
            _ => {}
        }
    }

    /// Where a side's bytes gather while they are not shown.
    fn gather(&mut self, index: usize, is_request: bool, bytes: &[u8], module: &mut dyn Module) {
        let parts = Self::parts(is_request, module);
        let message = &mut self.messages[index];
        let context = message.context;
        let way = message.way_mut(is_request);
        way.bytes += bytes.len() as u64;
        if way.is_dropped {
            return;
        }
        if let Some(transcoder) = message.transcoder.as_mut().filter(|_| !is_request) {
            return transcoder.transcoding.handle_bytes(bytes);
        }
        let way = message.way_mut(is_request);
        if let Context::Made(context) = context
            && parts.body
            && let Some(stream) = module.stream(context)
        {
            let side = if is_request { &mut stream.downstream } else { &mut stream.upstream };
            side.body.extend_from_slice(bytes);
            way.has_fresh = true;
            return;
        }
        if way.head == Head::Came {
            way.head = Head::Ready;
        }
        if self.write_head(index, is_request, None, module) {
            self.write_body(index, is_request, bytes, module);
        }
    }

    /// Without its module a message goes on as far as it had come.
    fn unfilter(&mut self, index: usize, stream: Option<Box<Stream>>, module: &mut dyn Module) {
        module.count(|it| it.unfiltered += 1);
        self.messages[index].context = Context::Unfiltered;
        if self.messages[index].response.head < Head::Ready {
            // Its head does not say that it is coded, or nobody knows.
            self.messages[index].order = None;
        }
        let bodies = stream.map(|it| (it.downstream.body, it.upstream.body)).unwrap_or_default();
        for (is_request, body) in [(true, bodies.0), (false, bodies.1)] {
            let Some(message) = self.messages.get_mut(index) else { return };
            let way = message.way_mut(is_request);
            if way.is_over || way.is_dropped || way.head == Head::Awaited {
                continue;
            }
            (way.is_held, way.has_fresh) = (false, false);
            if matches!(way.head, Head::Came | Head::Held) {
                way.head = Head::Ready;
            }
            if !body.is_empty() && self.write_head(index, is_request, None, module) {
                self.write_body(index, is_request, &body, module);
            }
        }
    }
}

/// A context ends, with what its module may ask then.
fn end_context(message: &Message, module: &mut dyn Module) {
    let Context::Made(context) = message.context else { return };
    module.desk().end_pictures(context);
    let mut facts: Vec<(&'static [&'static str], i64)> = Vec::new();
    if module.wants().properties {
        let duration = module.now().monotonic_ns.saturating_sub(message.began.monotonic_ns);
        facts.push((&["request", "duration"], duration as i64));
        facts.push((&["request", "size"], message.request.bytes as i64));
        facts.push((&["response", "size"], message.response.bytes as i64));
        facts.push((&["response", "flags"], 0));
    }
    module.later(Last::End(context, facts));
}
