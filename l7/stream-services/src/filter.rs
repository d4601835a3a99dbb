//! Filter: the application that connects sockets, connections and the VM.

mod codecs;
mod deadlines;
mod spec;

use crate::calls::Calls;
use crate::codecs::CodecEvent;
use crate::connection::{Addresses, Failure, Fate, Handover, Protocol, Side};
use crate::foreign_calls::{ForeignCalls, REFLECT, TRANSCODE, state_of};
use crate::http::Http;
use crate::idle_servers::IdleServers;
use crate::limits::{
    BATCH_LENGTH_MAX, CALLS_PER_ROUND_MAX, FLUSH_TIME, IDLE_INTERVAL, LINGER_LENGTH_MAX,
    LINGER_TIME, READ_BURST_MAX, READ_LENGTH, UNREAD_TIME_MAX,
};
use crate::module::{Fault, Last, Module, Reply};
use crate::report::Reports;
use crate::runner::{Resumed, Runner, TrappedVm};
use crate::tcp::Tcp;
use crate::transcoder::{ConnectionCodec, ConnectionCodecs};
use crate::wait_queue::{Job, Waiting};
use codecs::{CodecTable, ReadBudget};
use deadlines::{Deadline, Deadlines};
use fanout::{Fanout, Join};
use foldhash::{HashMap, HashMapExt as _};
use proxy_wasm::Answer;
pub use spec::{Capabilities, FilterSpec, Kind};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::IoSlice;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use tcp_intercept::{Application, BATCH_MAX, Closed, End, Io, Received, State, Talk};
use units::Nanos;

/// Client connection with its sockets.
struct Live {
    number: u64,
    protocol: Box<dyn Protocol>,
    addresses: Addresses,
    down: End,
    up: Option<End>,
    /// True if no more bytes come from the client, or from the server.
    has_ended: [bool; 2],
    is_finished: [bool; 2],
    /// True if it is in the queue for the VM.
    is_queued: bool,
    /// Number of bytes that the client may still send while lingering; `None` before.
    lingers: Option<usize>,
    /// True if it has a deadline for its reset.
    is_resetting: bool,
    is_unreachable: bool,
    /// True if all bytes of the server are read, and more may come.
    is_server_silent: bool,
    /// True if it has a deadline for the server's pause.
    is_pause_pending: bool,
    /// True if it is in the batch of connections with bytes to send.
    is_batched: bool,
    /// Time of the last transfer in either direction.
    moved_at: Nanos,
    /// Codecs of its response.
    lines: ConnectionCodecs,
}

impl Live {
    fn new(
        number: u64,
        protocol: Box<dyn Protocol>,
        addresses: Addresses,
        down: End,
        now: Nanos,
    ) -> Self {
        Self {
            number,
            protocol,
            addresses,
            down,
            up: None,
            has_ended: [false; 2],
            is_finished: [false; 2],
            is_queued: false,
            lingers: None,
            is_resetting: false,
            is_unreachable: false,
            is_server_silent: false,
            is_pause_pending: false,
            is_batched: false,
            moved_at: now,
            lines: ConnectionCodecs::default(),
        }
    }

    const fn end(&self, side: Side) -> Option<End> {
        match side {
            Side::Downstream => Some(self.down),
            Side::Upstream => self.up,
        }
    }

    /// Returns the number of unsent bytes.
    fn unsent(&mut self) -> usize {
        Side::BOTH.into_iter().map(|side| self.protocol.out(side).len()).sum()
    }
}

/// Time at which a connection's bytes are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sending {
    Now,
    /// Sent in a batch with those of other connections.
    Gathered,
}

/// Existence of a connection after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    Stays,
    Gone,
}

/// Filter: the application of one stream service.
pub struct Filter {
    kind: Kind,
    failure: Rc<Cell<Failure>>,
    runner: Runner,
    live: HashMap<u64, Box<Live>>,
    /// Numbers of the connections of ends, including those of codecs.
    ends: HashMap<End, u64>,
    last_number: u64,
    calls: Calls,
    /// Connections in the batch of those with bytes to send.
    batched: VecDeque<u64>,
    deadlines: Deadlines,
    /// Shared streams, if the module may use them.
    fanout: Option<Rc<RefCell<Fanout>>>,
    /// Idle server connections without a client, if they are kept.
    idle_servers: Option<IdleServers>,
    codecs: CodecTable,
    buffer: Vec<u8>,
}

impl Filter {
    /// Creates a filter, whose VM starts with the first work.
    #[must_use]
    pub fn new(spec: FilterSpec) -> Self {
        let FilterSpec { program, mut vm, kind, failure, upstreams, codecs, .. } = spec;
        let account = vm.room.as_ref().map(state_of);
        let fanout = spec.capabilities.reflects.map(|settings| {
            let fanout = Fanout::new(settings);
            Rc::new(RefCell::new(match account.clone() {
                Some(account) => fanout.paid(account),
                None => fanout,
            }))
        });
        let (foreign_calls, mut reports) = (ForeignCalls::default(), Reports::default());
        reports.fanout.clone_from(&fanout);
        vm.upstreams = upstreams.keys().cloned().collect();
        let foreign = Rc::make_mut(&mut vm.foreign);
        if spec.capabilities.codes_responses {
            let function = foreign_calls.coder(account.clone(), reports.clone());
            foreign.insert(content_coding::FUNCTION.to_owned(), function);
        }
        if fanout.is_some() {
            foreign.insert(REFLECT.to_owned(), foreign_calls.reflector(reports.clone()));
        }
        if let Some(codecs) = &codecs {
            let function =
                foreign_calls.transcoder(Rc::clone(codecs), account.clone(), reports.clone());
            foreign.insert(TRANSCODE.to_owned(), function);
        }
        let outputs = (foreign_calls, reports);
        let runner = Runner::new(program, vm, spec.real_offset_ns, outputs, spec.busy_permille);
        Self {
            kind,
            failure: Rc::new(Cell::new(failure)),
            runner,
            live: HashMap::new(),
            ends: HashMap::new(),
            last_number: 0,
            calls: Calls::new(upstreams),
            batched: VecDeque::new(),
            deadlines: Deadlines::default(),
            fanout,
            idle_servers: spec.capabilities.keeps_servers.then(IdleServers::default),
            codecs: CodecTable::new(codecs),
            buffer: vec![0; READ_LENGTH],
        }
    }

    /// Returns the events and counters, usable after the filter has moved to its streams.
    #[must_use]
    pub fn reports(&self) -> Reports {
        self.runner.reports()
    }

    /// Returns the policy for streams while the module is down, which the owner may change at any
    /// time.
    #[must_use]
    pub fn failure(&self) -> Rc<Cell<Failure>> {
        Rc::clone(&self.failure)
    }

    /// Runs `act` on a connection, then transfers bytes between it and its sockets.
    fn with(
        &mut self,
        io: &mut Io<'_>,
        number: u64,
        act: impl FnOnce(&mut dyn Protocol, &mut Runner),
    ) {
        self.with_sending(io, number, Sending::Now, act);
    }

    fn with_sending(
        &mut self,
        io: &mut Io<'_>,
        number: u64,
        sending: Sending,
        act: impl FnOnce(&mut dyn Protocol, &mut Runner),
    ) {
        let Some(mut live) = self.live.remove(&number) else { return };
        act(&mut *live.protocol, &mut self.runner);
        let after = match sending {
            Sending::Now => self.drive(io, &mut live),
            Sending::Gathered => self.read_in(io, &mut live),
        };
        if live.protocol.is_waiting() && !live.is_queued {
            live.is_queued = true;
            self.runner.wait(number);
        }
        if after == After::Stays {
            self.live.insert(number, live);
        }
    }

    /// Reads received bytes, and leaves sends and connects for the batch. Each send wakes a
    /// process; sends in a row wake the receiver once.
    fn read_in(&mut self, io: &mut Io<'_>, live: &mut Live) -> After {
        let mut left = READ_BURST_MAX;
        loop {
            self.check_ends(io, live);
            if live.protocol.fate() == Fate::Open {
                let read = Side::BOTH.map(|side| self.read(io, live, side, &mut left));
                if read.contains(&true) {
                    continue;
                }
            }
            if (1..=BATCH_LENGTH_MAX).contains(&live.unsent()) {
                if !std::mem::replace(&mut live.is_batched, true) {
                    self.batched.push_back(live.number);
                }
                return After::Stays;
            }
            return self.drive(io, live);
        }
    }

    fn drive(&mut self, io: &mut Io<'_>, live: &mut Live) -> After {
        let mut left = READ_BURST_MAX;
        loop {
            self.check_ends(io, live);
            let moved = match live.protocol.fate() {
                Fate::Reset => return self.reset(io, live),
                Fate::Closing => return self.end(io, live),
                Fate::Joined if self.join(io, live) => return After::Gone,
                Fate::Handover if self.give(io, live) => return After::Gone,
                Fate::Open | Fate::Joined | Fate::Handover => {
                    self.connect(io, live);
                    let sent = Side::BOTH.map(|side| self.send(io, live, side));
                    let read = Side::BOTH.map(|side| self.read(io, live, side, &mut left));
                    let coded = self.drive_codecs(io, live, &mut left);
                    sent.contains(&true) || read.contains(&true) || coded
                }
            };
            let ends = matches!(live.protocol.fate(), Fate::Reset | Fate::Closing);
            if !moved && !ends {
                self.pause(io, live);
                self.codecs.watch(io.now(), live);
                return After::Stays;
            }
        }
    }

    /// Notifies a connection of the loss of one of its ends.
    fn check_ends(&mut self, io: &mut Io<'_>, live: &mut Live) {
        if let Some(up) = live.up {
            let state = io.state(up);
            // Bytes received before a reset are read first.
            let is_there = match state {
                State::Open | State::Connecting => true,
                State::Broken => !live.has_ended[1],
                State::Unreachable | State::Failed | State::Gone => false,
            };
            if !is_there {
                self.drop_server(io, live, Closed::Reset);
                if state == State::Unreachable {
                    live.is_unreachable = true;
                    live.protocol.handle_unreachable(&mut self.runner);
                } else {
                    live.protocol.handle_server_lost(&mut self.runner);
                }
            }
        }
        let is_there = match io.state(live.down) {
            State::Open => true,
            State::Broken => !live.has_ended[0] && live.protocol.drains_client(),
            _ => false,
        };
        if !is_there {
            live.protocol.handle_lost(&mut self.runner);
        }
    }

    fn drop_server(&mut self, io: &mut Io<'_>, live: &mut Live, why: Closed) {
        let Some(up) = live.up.take() else { return };
        self.ends.remove(&up);
        let is_free =
            why == Closed::Ended && !live.has_ended[1] && live.protocol.is_server_reusable();
        match &mut self.idle_servers {
            Some(idle_servers) if is_free => idle_servers.give(io, live.addresses, up),
            _ => io.close(up, why),
        }
        live.has_ended[1] = false;
        live.is_finished[1] = false;
    }

    fn close(&mut self, io: &mut Io<'_>, live: &mut Live, why: Closed) {
        self.codecs.drop_all(io, &mut self.ends, live);
        self.drop_server(io, live, why);
        self.ends.remove(&live.down);
        io.close(live.down, why);
    }

    fn connect(&mut self, io: &mut Io<'_>, live: &mut Live) {
        if live.protocol.drops_server() {
            self.drop_server(io, live, Closed::Ended);
        }
        if live.up.is_none() && live.protocol.wants_server() {
            let Addresses { client, server } = live.addresses;
            let idle_servers =
                self.idle_servers.as_mut().filter(|_| live.protocol.may_share_server());
            let idle = idle_servers.and_then(|idle_servers| idle_servers.take(io, live.addresses));
            live.protocol.handle_server(idle.is_some(), &mut self.runner);
            let end = idle.unwrap_or_else(|| io.connect(Some(client), server, self.talk()));
            self.ends.insert(end, live.number);
            live.up = Some(end);
        }
    }

    fn send(&mut self, io: &mut Io<'_>, live: &mut Live, side: Side) -> bool {
        let Some(end) = live.end(side) else { return false };
        let mut moved = false;
        // A FIN goes with the last bytes.
        let is_closing =
            side == Side::Downstream && live.protocol.fate() == Fate::Closing && live.up.is_none();
        let is_last =
            !live.is_finished[side as usize] && (is_closing || live.protocol.finishes(side));
        while !live.protocol.out(side).is_empty() {
            let bytes = [IoSlice::new(live.protocol.out(side).bytes())];
            let sent = if is_last { io.send_last(end, &bytes) } else { io.send(end, &bytes) };
            match sent {
                0 => {
                    live.protocol.handle_full(side, &mut self.runner);
                    return moved;
                }
                count => {
                    moved = true;
                    live.moved_at = io.now();
                    live.protocol.handle_sent(side, count, &mut self.runner);
                }
            }
        }
        let is_finished = &mut live.is_finished[side as usize];
        if live.protocol.finishes(side) && !*is_finished && io.state(end) == State::Open {
            *is_finished = true;
            io.finish(end);
        }
        moved
    }

    fn read(&mut self, io: &mut Io<'_>, live: &mut Live, side: Side, left: &mut usize) -> bool {
        let Some(end) = live.end(side) else { return false };
        let mut moved = false;
        live.is_server_silent &= side != Side::Upstream;
        while !live.has_ended[side as usize] && live.protocol.wants(side) {
            if *left == 0 {
                io.requeue(end);
                return false;
            }
            match io.receive(end, &mut self.buffer) {
                Received::Bytes(count) => {
                    *left = left.saturating_sub(count);
                    live.moved_at = io.now();
                    live.protocol.handle_bytes(side, &self.buffer[..count], &mut self.runner);
                    if live.protocol.awaits_more(side) {
                        io.await_more(end);
                    }
                }
                Received::Ended => {
                    live.has_ended[side as usize] = true;
                    live.protocol.handle_end(side, &mut self.runner);
                }
                Received::Nothing => {
                    live.is_server_silent |= side == Side::Upstream;
                    return moved;
                }
            }
            moved = true;
        }
        moved
    }

    /// Lets held-back data of the server wait a moment for more.
    fn pause(&mut self, io: &Io<'_>, live: &mut Live) {
        if live.is_server_silent && !live.is_pause_pending && live.protocol.has_unflushed() {
            live.is_pause_pending = true;
            self.deadlines.push(Deadline::Flush, io.now() + FLUSH_TIME, live.number);
        }
    }

    /// Handles the deadlines of connections that have passed.
    fn handle_deadlines(&mut self, io: &mut Io<'_>) {
        for (deadline, why) in [(Deadline::Linger, Closed::Ended), (Deadline::Reset, Closed::Reset)]
        {
            while let Some(number) = self.deadlines.pop(deadline, io.now()) {
                if let Some(mut live) = self.live.remove(&number) {
                    self.close(io, &mut live, why);
                }
            }
        }
        while let Some(number) = self.deadlines.pop(Deadline::Flush, io.now()) {
            if let Some(live) = self.live.get_mut(&number) {
                live.is_pause_pending = false;
            }
            self.with(io, number, |live, module| live.handle_pause(module));
        }
        while let Some(number) = self.deadlines.pop(Deadline::Idle, io.now()) {
            self.check_idle(io, number);
        }
    }

    /// Ends a connection that has been idle for too long.
    fn check_idle(&mut self, io: &mut Io<'_>, number: u64) {
        let Some(live) = self.live.get(&number) else { return };
        if live.protocol.idle_until(live.moved_at).is_some_and(|until| until <= io.now()) {
            self.with(io, number, |live, module| live.handle_idle(module));
        }
        if self.live.contains_key(&number) {
            self.deadlines.push(Deadline::Idle, io.now() + IDLE_INTERVAL, number);
        }
    }

    /// Does the pending work of a connection's codecs; returns true on progress.
    fn drive_codecs(&mut self, io: &mut Io<'_>, live: &mut Live, left: &mut usize) -> bool {
        let portion = ReadBudget { buffer: &mut self.buffer, left };
        let moved = self.codecs.drive(io, &mut self.ends, live, &mut self.runner, portion);
        if moved {
            live.protocol.handle_continue(&mut self.runner);
        }
        moved
    }

    /// Handles events of codecs, and pictures that have become late.
    fn handle_codecs(&mut self, io: &mut Io<'_>) {
        while let Some(news) = self.codecs.poll_event() {
            match news {
                CodecEvent::Started(codec, socket) => self.take_codec(io, codec, socket),
                CodecEvent::Ended(codec, why) => self.lose_codec(io, codec, &why),
            }
        }
        while let Some(number) = self.codecs.pop_overdue(io.now()) {
            if let Some(live) = self.live.get_mut(&number) {
                live.lines.overdue = None;
            }
            self.with(io, number, |_, _| {});
        }
    }

    /// Returns a codec with the number of its connection.
    fn line(&mut self, codec: u64) -> Option<(u64, &mut ConnectionCodec)> {
        let number = self.codecs.owner(codec)?;
        let lines = &mut self.live.get_mut(&number)?.lines.all;
        Some((number, lines.iter_mut().find(|line| line.codec == codec)?))
    }

    fn take_codec(&mut self, io: &mut Io<'_>, codec: u64, socket: OwnedFd) {
        // Codecs that are no longer needed end with their socket.
        let Some((number, line)) = self.line(codec) else { return };
        line.end = io.adopt(socket);
        match line.end {
            Some(end) => {
                self.ends.insert(end, number);
                self.with(io, number, |_, _| {});
            }
            None => self.lose_codec(io, codec, "the kernel does not tell of its socket"),
        }
    }

    /// Handles the end of a codec. Its output is still read; a codec that never started has none.
    fn lose_codec(&mut self, io: &mut Io<'_>, codec: u64, why: &str) {
        let Some((number, line)) = self.line(codec) else { return };
        let (id, has_begun) = (line.id, line.end.is_some());
        if !why.is_empty() {
            self.runner.report_codec(why);
        }
        if !has_begun {
            let now = io.now();
            self.with(io, number, |live, module| {
                if let Some((_, transcoder)) = live.transcoder() {
                    transcoder.transcoding.handle_codec_end(now, id);
                }
                live.handle_continue(module);
            });
        }
    }

    /// Hands a request over to the shared streams as soon as nothing is unsent before it.
    fn give(&mut self, io: &mut Io<'_>, live: &mut Live) -> bool {
        if !live.protocol.out(Side::Downstream).is_empty() {
            return false;
        }
        let (Some(fanout), Some(handover)) = (&self.fanout, live.protocol.take_handover()) else {
            return false;
        };
        let fanout = Rc::clone(fanout);
        self.drop_server(io, live, Closed::Ended);
        self.ends.remove(&live.down);
        let Handover { key, request, received } = *handover;
        let Addresses { client, server } = live.addresses;
        let join = Join { key, client, server, request, received };
        fanout.borrow_mut().join(io, live.down, join);
        // Notifies the fan-out of bytes received meanwhile.
        io.requeue(live.down);
        true
    }

    /// Joins both ends in the kernel as soon as nothing is unsent.
    fn join(&mut self, io: &mut Io<'_>, live: &mut Live) -> bool {
        let is_empty = Side::BOTH.iter().all(|side| live.protocol.out(*side).is_empty());
        let Some(up) = live.up.filter(|_| is_empty) else { return false };
        if io.state(up) != State::Open || io.state(live.down) != State::Open {
            return false;
        }
        self.ends.remove(&up);
        self.ends.remove(&live.down);
        io.join(live.down, up);
        true
    }

    /// Sends the unsent bytes, as far as they are accepted, and then resets both ends.
    fn reset(&mut self, io: &mut Io<'_>, live: &mut Live) -> After {
        if !live.protocol.flushes_server() {
            live.protocol.out(Side::Upstream).clear();
        }
        let mut waits = false;
        for side in Side::BOTH {
            self.send(io, live, side);
            let is_there = live.end(side).is_some_and(|end| io.state(end) == State::Open);
            waits |= is_there && !live.protocol.out(side).is_empty();
        }
        if waits {
            if !std::mem::replace(&mut live.is_resetting, true) {
                self.deadlines.push(Deadline::Reset, io.now() + UNREAD_TIME_MAX, live.number);
            }
            return After::Stays;
        }
        let why = if live.is_unreachable { Closed::Unreachable } else { Closed::Reset };
        self.close(io, live, why);
        After::Gone
    }

    /// Sends the unsent bytes, then lingers so that no reset overtakes them.
    fn end(&mut self, io: &mut Io<'_>, live: &mut Live) -> After {
        self.codecs.drop_all(io, &mut self.ends, live);
        if live.protocol.flushes_server() {
            self.send(io, live, Side::Upstream);
        } else {
            live.protocol.out(Side::Upstream).clear();
        }
        if live.protocol.out(Side::Upstream).is_empty() || live.up.is_none() {
            let is_partial = live.protocol.aborts_server();
            let why = if is_partial { Closed::Reset } else { Closed::Ended };
            self.drop_server(io, live, why);
        }
        self.send(io, live, Side::Downstream);
        if io.state(live.down) != State::Open {
            self.close(io, live, Closed::Reset);
            return After::Gone;
        }
        if !live.protocol.out(Side::Downstream).is_empty() || live.up.is_some() {
            return After::Stays;
        }
        if !std::mem::replace(&mut live.is_finished[0], true) {
            io.finish(live.down);
        }
        let left = live.lingers.get_or_insert_with(|| {
            self.deadlines.push(Deadline::Linger, io.now() + LINGER_TIME, live.number);
            LINGER_LENGTH_MAX
        });
        while !live.has_ended[0] && *left > 0 {
            match io.receive(live.down, &mut self.buffer) {
                Received::Bytes(count) => *left = left.saturating_sub(count),
                Received::Ended => live.has_ended[0] = true,
                Received::Nothing => return After::Stays,
            }
        }
        self.close(io, live, Closed::Ended);
        After::Gone
    }

    /// Handles an end that belongs to no connection here.
    fn ready_elsewhere(&mut self, io: &mut Io<'_>, end: End) {
        if self.idle_servers.as_mut().is_some_and(|idle_servers| idle_servers.ready(io, end)) {
            return;
        }
        match &self.fanout {
            Some(fanout) if fanout.borrow().owns(end) => fanout.borrow_mut().ready(io, end),
            _ => io.close(end, Closed::Reset),
        }
    }

    /// Handles the effects that calls have left.
    fn settle(&mut self, io: &mut Io<'_>) {
        loop {
            if let Some(trapped) = self.runner.take_trapped() {
                self.on_trap(io, trapped);
            } else if let Some((number, context, order)) = self.runner.take_picture_order() {
                self.with(io, number, |live, module| live.handle_pictures(context, order, module));
            } else if let Some((number, effect)) = self.runner.take_effect() {
                self.with(io, number, |live, module| live.handle_effect(effect, module));
            } else if let Some((call, request)) = self.runner.take_http_call() {
                self.runner.count(|it| it.calls += 1);
                self.calls.begin(io, call, &request);
            } else if let Some(response) = self.calls.poll_response() {
                if response.headers.is_empty() {
                    self.runner.count(|it| it.calls_failed += 1);
                }
                self.runner.wait_for(Job::Response(response));
            } else {
                return;
            }
        }
    }

    /// Runs the waiting calls, each once, as far as the pace allows.
    fn take_turns(&mut self, io: &mut Io<'_>) {
        self.settle(io);
        for _ in 0..self.runner.waiting().min(CALLS_PER_ROUND_MAX) {
            match self.runner.next() {
                None => return,
                Some(Waiting::Connection(number)) => {
                    if let Some(live) = self.live.get_mut(&number) {
                        live.is_queued = false;
                    }
                    self.with(io, number, |live, module| live.handle_continue(module));
                    self.runner.end_turn();
                }
                Some(Waiting::Job(job)) => self.runner.run(job),
            }
            self.settle(io);
        }
    }

    /// Handles a trap of the module: the stream at fault goes on or ends by the policy, the others
    /// go on with the next VM. If no stream was at fault, the policy applies to all of them.
    fn on_trap(&mut self, io: &mut Io<'_>, trapped: TrappedVm) {
        let TrappedVm { fault, connection, mut streams, mut owners } = trapped;
        self.calls.clear(io);
        let numbers: Vec<u64> = match fault {
            Fault::Stream(_) => {
                owners.extend(connection.filter(|number| !owners.contains(number)));
                owners
            }
            Fault::Module => {
                let mut all: Vec<u64> = self.live.keys().copied().collect();
                all.sort_unstable();
                for live in self.live.values_mut() {
                    // The VM that it waited for is gone.
                    live.is_queued = false;
                }
                all
            }
        };
        for number in numbers {
            self.with(io, number, |live, module| live.handle_trap(fault, &mut streams, module));
        }
    }
}

impl Application for Filter {
    fn talk(&self) -> Talk {
        match self.kind {
            Kind::Tcp => Talk::Free,
            Kind::Http => Talk::ByTurns,
        }
    }

    fn accepted(&mut self, io: &mut Io<'_>, end: End, client: SocketAddr, server: SocketAddr) {
        self.runner.set_now(io.now());
        self.runner.count(|it| it.connections += 1);
        self.last_number += 1;
        let (number, addresses) = (self.last_number, Addresses { client, server });
        let protocol: Box<dyn Protocol> = match self.kind {
            Kind::Tcp => Box::new(Tcp::new(number, addresses, self.failure(), &mut self.runner)),
            Kind::Http => {
                let mut http = Http::new(number, addresses, self.failure());
                if self.idle_servers.is_some() {
                    http.keep_server();
                }
                Box::new(http)
            }
        };
        self.ends.insert(end, number);
        let live = Live::new(number, protocol, addresses, end, io.now());
        self.live.insert(number, Box::new(live));
        if self.kind == Kind::Http {
            self.deadlines.push(Deadline::Idle, io.now() + IDLE_INTERVAL, number);
        }
        self.with(io, number, |live, module| live.handle_continue(module));
        self.take_turns(io);
    }

    fn ready(&mut self, io: &mut Io<'_>, end: End) {
        self.runner.set_now(io.now());
        match self.ends.get(&end) {
            Some(&number) => self.with_sending(io, number, Sending::Gathered, |_, _| {}),
            None if self.calls.has(end) => self.calls.ready(io, end),
            None => self.ready_elsewhere(io, end),
        }
        self.take_turns(io);
        if self.batched.len() >= BATCH_MAX {
            self.flush(io);
        }
    }

    fn flush(&mut self, io: &mut Io<'_>) {
        if self.batched.is_empty() {
            return;
        }
        while let Some(number) = self.batched.pop_front() {
            if let Some(live) = self.live.get_mut(&number) {
                live.is_batched = false;
            }
            self.with(io, number, |_, _| {});
        }
        self.take_turns(io);
    }

    fn poll_timeout(&self) -> Option<Nanos> {
        let fanout = self.fanout.as_ref().and_then(|fanout| fanout.borrow().poll_timeout());
        let idle = self.idle_servers.as_ref().and_then(IdleServers::poll_timeout);
        let (runner, calls) = (self.runner.poll_timeout(), self.calls.poll_timeout());
        let own = [runner, calls, self.codecs.poll_timeout(), self.deadlines.poll_timeout()];
        own.into_iter().chain([fanout, idle]).flatten().min()
    }

    fn work(&mut self, io: &mut Io<'_>) {
        self.runner.set_now(io.now());
        self.runner.handle_timeout();
        match self.runner.resume() {
            Resumed::Reply(number, reply) if self.live.contains_key(&number) => {
                self.with(io, number, |live, module| live.handle_reply(reply, module));
            }
            Resumed::Reply(_, Reply::Answered(Answer::Created(context), _)) => {
                self.runner.later(Last::End(context, Vec::new()));
            }
            Resumed::Reply(..) | Resumed::Nothing | Resumed::Free => {}
        }
        self.handle_deadlines(io);
        self.handle_codecs(io);
        self.calls.handle_timeout(io);
        if let Some(idle_servers) = &mut self.idle_servers {
            idle_servers.handle_timeout(io);
        }
        if let Some(fanout) = &self.fanout {
            let mut fanout = fanout.borrow_mut();
            if fanout.poll_timeout().is_some_and(|at| at <= io.now()) {
                fanout.work(io);
            }
        }
        self.take_turns(io);
    }
}
