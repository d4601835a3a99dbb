//! TCP connection with a module in between.
//!
//! ```text
//!   client ─▶ downstream: passed, held, sent ─▶ server
//!   client ◀─ sent, held, passed: upstream ◀─── server
//! ```

use crate::connection::{Addresses, Failure, Fate, Protocol, Side, end_orphaned_context};
use crate::foreign_calls::Allowed;
use crate::limits::HELD_LENGTH_MAX;
use crate::module::{Fault, Last, Module, Reply};
use crate::outgoing::Outgoing;
use proxy_wasm::abi::{Action, PeerType, StreamType};
use proxy_wasm::{Answer, Call, Effect, Now, Stream};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Callback to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Create,
    Connection,
    Data { from: Side, is_last: bool },
}

/// State of the connection's context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Context {
    Unmade,
    /// Created; the module has not been notified of the connection.
    Made(u32),
    /// Created; the module holds the connection.
    Held(u32),
    Open(u32),
    /// Gone with its VM after the connection was admitted: the next VM gets it when there is data
    /// for it.
    Lost,
    /// None: the module does not see the connection.
    Unfiltered,
}

/// Bytes in one direction.
#[derive(Debug, Default)]
struct Direction {
    /// Bytes for the receiver.
    out: Outgoing,
    /// Bytes received while no call could be made.
    received: Vec<u8>,
    has_ended: bool,
    /// True if the module has seen the end.
    is_last_shown: bool,
    /// True if the module holds the data that it has seen.
    is_held: bool,
    /// True if the end has been forwarded.
    is_over: bool,
    bytes: u64,
}

/// TCP state of one client connection.
pub(crate) struct Tcp {
    number: u64,
    addresses: Addresses,
    failure: Rc<Cell<Failure>>,
    context: Context,
    /// Directions from the client and from the server.
    down: Direction,
    up: Direction,
    calling: Option<Stage>,
    is_waiting: bool,
    /// True if the module trapped in a call of this connection.
    has_trapped: bool,
    /// True if a module has admitted the connection: another VM is notified of it, and cannot hold it.
    is_admitted: bool,
    closed_by: PeerType,
    began: Now,
    fate: Fate,
}

impl Tcp {
    pub(crate) fn new(
        number: u64,
        addresses: Addresses,
        failure: Rc<Cell<Failure>>,
        module: &mut dyn Module,
    ) -> Self {
        let mut tcp = Self {
            number,
            addresses,
            failure,
            context: Context::Unmade,
            down: Direction::default(),
            up: Direction::default(),
            calling: None,
            is_waiting: false,
            has_trapped: false,
            is_admitted: false,
            closed_by: PeerType::Unknown,
            began: module.now(),
            fate: Fate::Open,
        };
        if !module.wants().context {
            tcp.join();
        } else if module.is_down() {
            tcp.fail_by_policy(None, module);
        }
        tcp
    }

    fn join(&mut self) {
        self.context = Context::Unfiltered;
        self.fate = Fate::Joined;
        for direction in [&mut self.down, &mut self.up] {
            direction.out.end().append(&mut direction.received);
        }
    }

    const fn direction(&mut self, from: Side) -> &mut Direction {
        match from {
            Side::Downstream => &mut self.down,
            Side::Upstream => &mut self.up,
        }
    }

    const fn number_of(&self) -> Option<u32> {
        match self.context {
            Context::Made(context) | Context::Held(context) | Context::Open(context) => {
                Some(context)
            }
            Context::Unmade | Context::Lost | Context::Unfiltered => None,
        }
    }

    fn stage(&self, module: &dyn Module) -> Option<Stage> {
        let wants = module.wants();
        match self.context {
            Context::Unmade => Some(Stage::Create),
            Context::Made(_) => Some(Stage::Connection),
            Context::Held(_) | Context::Unfiltered => None,
            Context::Lost => {
                let is_due = |direction: &Direction| {
                    !direction.is_over && (!direction.received.is_empty() || direction.has_ended)
                };
                (is_due(&self.down) || is_due(&self.up)).then_some(Stage::Create)
            }
            Context::Open(_) => {
                let due = |direction: &Direction| {
                    !direction.received.is_empty()
                        || (direction.has_ended && !direction.is_last_shown)
                };
                let data = |from, direction: &Direction| Stage::Data {
                    from,
                    is_last: direction.has_ended,
                };
                if wants.downstream && due(&self.down) {
                    return Some(data(Side::Downstream, &self.down));
                }
                (wants.upstream && due(&self.up)).then(|| data(Side::Upstream, &self.up))
            }
        }
    }

    fn advance(&mut self, module: &mut dyn Module) {
        self.is_waiting = false;
        while self.fate == Fate::Open && self.calling.is_none() && !self.has_trapped {
            let Some(stage) = self.stage(module) else { break };
            if module.is_down() {
                break;
            }
            if !module.may_call(self.number) {
                self.is_waiting = true;
                break;
            }
            self.call(stage, module);
        }
        self.pass(module);
    }

    /// Forwards the bytes that the module does not want to see; ends the connection if both
    /// directions have ended.
    fn pass(&mut self, module: &mut dyn Module) {
        if self.fate != Fate::Open || self.calling.is_some() {
            return;
        }
        let wants = module.wants();
        if matches!(self.context, Context::Open(_)) {
            for (direction, is_shown) in
                [(&mut self.down, wants.downstream), (&mut self.up, wants.upstream)]
            {
                if !is_shown {
                    direction.out.end().append(&mut direction.received);
                    direction.is_over |= direction.has_ended;
                }
            }
            let sees = wants.downstream || wants.upstream || wants.end;
            if !(sees || wants.downstream_close || wants.upstream_close) {
                self.end(module);
                return self.join();
            }
        }
        if self.down.is_over && self.up.is_over {
            self.fate = Fate::Closing;
            self.end(module);
        }
    }

    fn call(&mut self, stage: Stage, module: &mut dyn Module) {
        let context = self.number_of().unwrap_or(0);
        let call = match stage {
            Stage::Create => {
                let mut stream = Stream::new(proxy_wasm::Protocol::Tcp);
                if module.wants().properties {
                    self.addresses.describe(self.number, &mut stream);
                }
                Call::Create(Box::new(stream))
            }
            Stage::Connection => Call::NewConnection(context),
            Stage::Data { from, is_last } => {
                let direction = self.direction(from);
                if let Some(stream) = module.stream(context) {
                    let side = match from {
                        Side::Downstream => &mut stream.downstream,
                        Side::Upstream => &mut stream.upstream,
                    };
                    if side.body.is_empty() {
                        std::mem::swap(&mut side.body, &mut direction.received);
                    } else {
                        side.body.append(&mut direction.received);
                    }
                }
                direction.is_last_shown |= is_last;
                match from {
                    Side::Downstream => Call::DownstreamData { context, is_last },
                    Side::Upstream => Call::UpstreamData { context, is_last },
                }
            }
        };
        let reply = module.call(self.number, context, call, Allowed::default());
        self.settle(stage, reply, module);
    }

    fn settle(&mut self, stage: Stage, reply: Reply, module: &mut dyn Module) {
        let (answer, effects) = match reply {
            Reply::Answered(answer, effects) => (answer, effects),
            Reply::Suspended => {
                self.calling = Some(stage);
                return;
            }
            Reply::Refused(stream) => return self.fail_by_policy(Some(stream), module),
            Reply::Trapped => {
                self.has_trapped = true;
                return;
            }
        };
        match (stage, answer) {
            (Stage::Create, Answer::Created(context)) => self.context = Context::Made(context),
            (Stage::Connection, Answer::Action(action)) => {
                let context = self.number_of().unwrap_or(0);
                self.context = match action {
                    Action::Pause if !self.is_admitted => Context::Held(context),
                    Action::Continue | Action::Pause => Context::Open(context),
                };
                self.is_admitted |= action == Action::Continue;
            }
            (Stage::Data { from, .. }, Answer::Action(Action::Continue)) => {
                self.release(from, module);
            }
            (Stage::Data { from, .. }, Answer::Action(Action::Pause)) => {
                self.direction(from).is_held = true;
                self.bound(from, module);
            }
            _ => {}
        }
        for effect in effects {
            self.take_effect(effect, module);
        }
    }

    /// Forwards the data that the module has seen, as edited. No call is in progress.
    fn release(&mut self, from: Side, module: &mut dyn Module) {
        let Some(context) = self.number_of() else { return };
        let Some(stream) = module.stream(context) else { return };
        let body = match from {
            Side::Downstream => &mut stream.downstream.body,
            Side::Upstream => &mut stream.upstream.body,
        };
        let direction = self.direction(from);
        direction.is_held = false;
        direction.out.end().append(body);
        direction.is_over |= direction.is_last_shown;
    }

    /// Ends the connection if the module holds too much.
    fn bound(&mut self, from: Side, module: &mut dyn Module) {
        let Some(stream) = self.number_of().and_then(|context| module.stream(context)) else {
            return;
        };
        let length = match from {
            Side::Downstream => stream.downstream.body.len(),
            Side::Upstream => stream.upstream.body.len(),
        };
        if length > HELD_LENGTH_MAX {
            module.count(|it| it.held_too_long += 1);
            self.reset(PeerType::Local, module);
        }
    }

    fn reset(&mut self, by: PeerType, module: &mut dyn Module) {
        self.closed_by = by;
        self.fate = Fate::Reset;
        self.end(module);
    }

    /// Ends the context, with its last calls.
    fn end(&mut self, module: &mut dyn Module) {
        self.calling = None;
        let Some(context) = self.number_of() else { return };
        self.context = Context::Unfiltered;
        let wants = module.wants();
        let by = |direction: &Direction| match self.closed_by {
            PeerType::Unknown if direction.has_ended => PeerType::Remote,
            PeerType::Unknown => PeerType::Local,
            known => known,
        };
        let (down, up) = (by(&self.down), by(&self.up));
        if wants.downstream_close {
            module.later(Last::DownstreamClose(context, down));
        }
        if wants.upstream_close {
            module.later(Last::UpstreamClose(context, up));
        }
        let mut facts: Vec<(&'static [&'static str], i64)> = Vec::new();
        if wants.properties {
            let duration = module.now().monotonic_ns.saturating_sub(self.began.monotonic_ns);
            facts.push((&["connection", "duration"], duration as i64));
            facts.push((&["request", "total_size"], self.down.bytes as i64));
            facts.push((&["response", "total_size"], self.up.bytes as i64));
        }
        module.later(Last::End(context, facts));
    }

    fn take_effect(&mut self, effect: Effect, module: &mut dyn Module) {
        let is_own = |context| self.number_of() == Some(context);
        match effect {
            Effect::Continue { context, stream } if is_own(context) => {
                if let (Context::Held(_), StreamType::Downstream) = (self.context, stream) {
                    self.context = Context::Open(context);
                    self.is_admitted = true;
                }
                let from = match stream {
                    StreamType::Upstream => Side::Upstream,
                    _ => Side::Downstream,
                };
                if self.direction(from).is_held {
                    self.release(from, module);
                }
            }
            Effect::Close { context, .. } if is_own(context) => {
                self.closed_by = PeerType::Local;
                self.fate = Fate::Closing;
                self.end(module);
            }
            _ => {}
        }
    }

    /// Handles a trap without the fault of this connection: the next VM gets its unsent data,
    /// unless the trapped one has changed a part of it.
    fn lose(&mut self, mut stream: Box<Stream>, module: &mut dyn Module) {
        let is_half_edited = |direction: &Direction, side: &proxy_wasm::Side| {
            side.is_body_edited() && !direction.is_over
        };
        if is_half_edited(&self.down, &stream.downstream)
            || is_half_edited(&self.up, &stream.upstream)
        {
            return self.fail_by_policy(Some(stream), module);
        }
        let sides = [&mut stream.downstream, &mut stream.upstream];
        for (direction, side) in [&mut self.down, &mut self.up].into_iter().zip(sides) {
            let mut body = std::mem::take(&mut side.body);
            body.append(&mut direction.received);
            direction.received = body;
            direction.is_held = false;
            direction.is_last_shown &= direction.is_over;
        }
        self.context = if self.is_admitted { Context::Lost } else { Context::Unmade };
        module.count(|it| it.shown_again += 1);
    }

    /// Continues or ends the connection by the policy: there is no VM for it.
    fn fail_by_policy(&mut self, stream: Option<Box<Stream>>, module: &mut dyn Module) {
        self.calling = None;
        match self.failure.get() {
            Failure::Open => {
                module.count(|it| it.unfiltered += 1);
                if let Some(mut stream) = stream {
                    self.down.out.end().append(&mut stream.downstream.body);
                    self.up.out.end().append(&mut stream.upstream.body);
                }
                self.join();
            }
            Failure::Closed => {
                module.count(|it| it.failed_closed += 1);
                self.context = Context::Unfiltered;
                self.fate = Fate::Reset;
            }
        }
    }
}

impl Protocol for Tcp {
    fn handle_bytes(&mut self, side: Side, bytes: &[u8], module: &mut dyn Module) {
        let is_joined = self.fate == Fate::Joined;
        let direction = self.direction(side);
        direction.bytes += bytes.len() as u64;
        let to = if is_joined { direction.out.end() } else { &mut direction.received };
        to.extend_from_slice(bytes);
        self.advance(module);
    }

    fn handle_end(&mut self, side: Side, module: &mut dyn Module) {
        self.direction(side).has_ended = true;
        self.advance(module);
    }

    fn handle_unreachable(&mut self, module: &mut dyn Module) {
        module.count(|it| it.unreachable += 1);
        self.reset(PeerType::Remote, module);
    }

    fn handle_server_lost(&mut self, module: &mut dyn Module) {
        self.reset(PeerType::Remote, module);
    }

    fn handle_lost(&mut self, module: &mut dyn Module) {
        self.reset(PeerType::Remote, module);
    }

    fn handle_continue(&mut self, module: &mut dyn Module) {
        self.advance(module);
    }

    fn handle_reply(&mut self, reply: Reply, module: &mut dyn Module) {
        if let Some(stage) = self.calling.take() {
            self.settle(stage, reply, module);
            self.advance(module);
        } else {
            end_orphaned_context(&reply, module);
        }
    }

    fn handle_effect(&mut self, effect: Effect, module: &mut dyn Module) {
        if self.fate == Fate::Open {
            self.take_effect(effect, module);
            self.advance(module);
        }
    }

    fn handle_trap(
        &mut self,
        fault: Fault,
        streams: &mut BTreeMap<u32, Box<Stream>>,
        module: &mut dyn Module,
    ) {
        let has_trapped = std::mem::take(&mut self.has_trapped);
        if self.fate != Fate::Open || self.context == Context::Unfiltered {
            return;
        }
        let number = self.number_of();
        let is_own =
            has_trapped || (number.is_some() && fault == Fault::Stream(number.unwrap_or(0)));
        if is_own || fault == Fault::Module {
            // 0: trapped during the creation of the context.
            let stream = streams.remove(&number.unwrap_or(0));
            return self.fail_by_policy(stream, module);
        }
        if let Some(stream) = number.and_then(|context| streams.remove(&context)) {
            self.lose(stream, module);
        }
        self.advance(module);
    }

    fn wants(&self, side: Side) -> bool {
        let direction = match side {
            Side::Downstream => &self.down,
            Side::Upstream => &self.up,
        };
        if direction.has_ended || direction.out.is_full() {
            return false;
        }
        let is_open =
            matches!(self.context, Context::Open(_) | Context::Lost) && self.calling.is_none();
        self.fate == Fate::Joined
            || (self.fate == Fate::Open && is_open && direction.received.is_empty())
    }

    fn out(&mut self, side: Side) -> &mut Outgoing {
        match side {
            Side::Downstream => &mut self.up.out,
            Side::Upstream => &mut self.down.out,
        }
    }

    fn handle_sent(&mut self, side: Side, count: usize, _: &mut dyn Module) {
        self.out(side).take(count);
    }

    fn wants_server(&self) -> bool {
        matches!(self.fate, Fate::Open | Fate::Joined)
    }

    fn drains_client(&self) -> bool {
        true
    }

    fn flushes_server(&self) -> bool {
        true
    }

    fn finishes(&self, side: Side) -> bool {
        let from = match side {
            Side::Downstream => &self.up,
            Side::Upstream => &self.down,
        };
        match self.fate {
            Fate::Joined => from.has_ended,
            _ => from.is_over,
        }
    }

    fn is_waiting(&self) -> bool {
        self.is_waiting
    }

    fn fate(&self) -> Fate {
        self.fate
    }
}
