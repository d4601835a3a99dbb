//! The application: sockets on one side, connections and the VM on the other.

mod codecs;
mod deadlines;
mod spec;

use crate::calls::Calls;
use crate::codecs::News;
use crate::connection::{Addresses, Failure, Fate, Given, Protocol, Side};
use crate::desk::{Desk, REFLECT, TRANSCODE, state_of};
use crate::http::Http;
use crate::limits::{
    CALLS_PER_ROUND_MAX, FLUSH_TIME, GATHERED_LENGTH_MAX, IDLE_INTERVAL, LINGER_LENGTH_MAX,
    LINGER_TIME, PORTION, READ_LENGTH, UNTAKEN_TIME_MAX,
};
use crate::module::{Fault, Last, Module, Reply};
use crate::report::Reports;
use crate::runner::{Fallen, Resumed, Runner};
use crate::spare::Spares;
use crate::tcp::Tcp;
use crate::transcoder::{Line, Lines};
use crate::turns::{Job, Waiting};
use codecs::{CodecTable, Portion};
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

/// A client connection with its sockets.
struct Live {
    number: u64,
    protocol: Box<dyn Protocol>,
    addresses: Addresses,
    down: End,
    up: Option<End>,
    /// Nothing more comes from the client, or from the server.
    has_ended: [bool; 2],
    is_finished: [bool; 2],
    /// It is among those that wait for the VM.
    is_queued: bool,
    /// Bytes that it may still send, once it is only listened to.
    lingers: Option<usize>,
    /// It is among those that are reset once what waits has been sent.
    is_resetting: bool,
    is_unreachable: bool,
    /// All that the server has sent is read, and more may come.
    is_server_silent: bool,
    /// It is among those that wait for the server to go on.
    is_pausing: bool,
    /// It is among those that have something to send.
    is_gathered: bool,
    /// When bytes came or went last.
    moved_at: Nanos,
    /// Codecs that its response goes through.
    lines: Lines,
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
            is_pausing: false,
            is_gathered: false,
            moved_at: now,
            lines: Lines::default(),
        }
    }

    const fn end(&self, side: Side) -> Option<End> {
        match side {
            Side::Downstream => Some(self.down),
            Side::Upstream => self.up,
        }
    }

    /// Bytes that wait to be sent.
    fn unsent(&mut self) -> usize {
        Side::BOTH.into_iter().map(|side| self.protocol.out(side).len()).sum()
    }
}

/// When what a connection has for the kernel is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sending {
    Now,
    /// With that of others.
    Gathered,
}

/// Whether a connection is there afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    Stays,
    Gone,
}

/// A service of streams.
pub struct Filter {
    kind: Kind,
    failure: Rc<Cell<Failure>>,
    runner: Runner,
    live: HashMap<u64, Box<Live>>,
    /// Numbers of the connections that ends belong to, those of their codecs included.
    ends: HashMap<End, u64>,
    last_number: u64,
    calls: Calls,
    /// Connections with something to send, which goes together with that of others.
    gathered: VecDeque<u64>,
    deadlines: Deadlines,
    /// Shared streams, if the module may use them.
    fanout: Option<Rc<RefCell<Fanout>>>,
    /// Connections to servers without a client, if they are kept.
    spares: Option<Spares>,
    codecs: CodecTable,
    buffer: Vec<u8>,
}

impl Filter {
    /// Returns one whose VM starts when it is asked to work.
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
        let (desk, mut reports) = (Desk::default(), Reports::default());
        reports.fanout.clone_from(&fanout);
        vm.upstreams = upstreams.keys().cloned().collect();
        let foreign = Rc::make_mut(&mut vm.foreign);
        if spec.capabilities.codes_responses {
            let function = desk.coder(account.clone(), reports.clone());
            foreign.insert(content_coding::FUNCTION.to_owned(), function);
        }
        if fanout.is_some() {
            foreign.insert(REFLECT.to_owned(), desk.reflector(reports.clone()));
        }
        if let Some(codecs) = &codecs {
            let function = desk.transcoder(Rc::clone(codecs), account.clone(), reports.clone());
            foreign.insert(TRANSCODE.to_owned(), function);
        }
        let told = (desk, reports);
        let runner = Runner::new(program, vm, spec.real_offset_ns, told, spec.busy_permille);
        Self {
            kind,
            failure: Rc::new(Cell::new(failure)),
            runner,
            live: HashMap::new(),
            ends: HashMap::new(),
            last_number: 0,
            calls: Calls::new(upstreams),
            gathered: VecDeque::new(),
            deadlines: Deadlines::default(),
            fanout,
            spares: spec.capabilities.keeps_servers.then(Spares::default),
            codecs: CodecTable::new(codecs),
            buffer: vec![0; READ_LENGTH],
        }
    }

    /// Returns what it tells its owner, once it is with its streams.
    #[must_use]
    pub fn reports(&self) -> Reports {
        self.runner.reports()
    }

    /// Returns the policy for streams while its module is down; its owner may change it at any
    /// time.
    #[must_use]
    pub fn failure(&self) -> Rc<Cell<Failure>> {
        Rc::clone(&self.failure)
    }

    /// Does something for a connection, and then with its sockets what can be done.
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
            Sending::Gathered => self.drive_in(io, &mut live),
        };
        if live.protocol.is_waiting() && !live.is_queued {
            live.is_queued = true;
            self.runner.wait(number);
        }
        if after == After::Stays {
            self.live.insert(number, live);
        }
    }

    /// Reads what has come, and leaves what is to be sent, or connects for it: a call of the kernel
    /// that sends wakes somebody, and one behind the other they wake him once.
    fn drive_in(&mut self, io: &mut Io<'_>, live: &mut Live) -> After {
        let mut left = PORTION;
        loop {
            self.look(io, live);
            if live.protocol.fate() == Fate::Open {
                let read = Side::BOTH.map(|side| self.read(io, live, side, &mut left));
                if read.contains(&true) {
                    continue;
                }
            }
            if (1..=GATHERED_LENGTH_MAX).contains(&live.unsent()) {
                if !std::mem::replace(&mut live.is_gathered, true) {
                    self.gathered.push_back(live.number);
                }
                return After::Stays;
            }
            return self.drive(io, live);
        }
    }

    fn drive(&mut self, io: &mut Io<'_>, live: &mut Live) -> After {
        let mut left = PORTION;
        loop {
            self.look(io, live);
            let moved = match live.protocol.fate() {
                Fate::Reset => return self.reset(io, live),
                Fate::Closing => return self.end(io, live),
                Fate::Joined if self.join(io, live) => return After::Gone,
                Fate::Given if self.give(io, live) => return After::Gone,
                Fate::Open | Fate::Joined | Fate::Given => {
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

    /// Tells a connection that one of its ends is lost.
    fn look(&mut self, io: &mut Io<'_>, live: &mut Live) {
        if let Some(up) = live.up {
            let state = io.state(up);
            // What came before a reset is read first.
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
        let is_free = why == Closed::Ended && !live.has_ended[1] && live.protocol.leaves_server();
        match &mut self.spares {
            Some(spares) if is_free => spares.give(io, live.addresses, up),
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
            let spares = self.spares.as_mut().filter(|_| live.protocol.may_share_server());
            let spare = spares.and_then(|spares| spares.take(io, live.addresses));
            live.protocol.handle_server(spare.is_some(), &mut self.runner);
            let end = spare.unwrap_or_else(|| io.connect(Some(client), server, self.talk()));
            self.ends.insert(end, live.number);
            live.up = Some(end);
        }
    }

    fn send(&mut self, io: &mut Io<'_>, live: &mut Live, side: Side) -> bool {
        let Some(end) = live.end(side) else { return false };
        let mut moved = false;
        // The end goes with what it follows.
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

    /// Has what the server has sent, and is kept back, wait a moment for what follows.
    fn pause(&mut self, io: &Io<'_>, live: &mut Live) {
        if live.is_server_silent && !live.is_pausing && live.protocol.has_unflushed() {
            live.is_pausing = true;
            self.deadlines.push(Deadline::Flush, io.now() + FLUSH_TIME, live.number);
        }
    }

    /// Does for connections what their time has come for.
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
                live.is_pausing = false;
            }
            self.with(io, number, |live, module| live.handle_pause(module));
        }
        while let Some(number) = self.deadlines.pop(Deadline::Idle, io.now()) {
            self.look_at_idle(io, number);
        }
    }

    /// Ends a connection that has stayed as it is for too long.
    fn look_at_idle(&mut self, io: &mut Io<'_>, number: u64) {
        let Some(live) = self.live.get(&number) else { return };
        if live.protocol.idle_until(live.moved_at).is_some_and(|until| until <= io.now()) {
            self.with(io, number, |live, module| live.handle_idle(module));
        }
        if self.live.contains_key(&number) {
            self.deadlines.push(Deadline::Idle, io.now() + IDLE_INTERVAL, number);
        }
    }

    /// Does for a connection's codecs what can be done; returns true when something has moved.
    fn drive_codecs(&mut self, io: &mut Io<'_>, live: &mut Live, left: &mut usize) -> bool {
        let portion = Portion { buffer: &mut self.buffer, left };
        let moved = self.codecs.drive(io, &mut self.ends, live, &mut self.runner, portion);
        if moved {
            live.protocol.handle_go(&mut self.runner);
        }
        moved
    }

    /// Handles what has become of codecs, and pictures that are late by now.
    fn handle_codecs(&mut self, io: &mut Io<'_>) {
        while let Some(news) = self.codecs.poll_news() {
            match news {
                News::Started(codec, socket) => self.take_codec(io, codec, socket),
                News::Ended(codec, why) => self.lose_codec(io, codec, &why),
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
    fn line(&mut self, codec: u64) -> Option<(u64, &mut Line)> {
        let number = self.codecs.owner(codec)?;
        let lines = &mut self.live.get_mut(&number)?.lines.all;
        Some((number, lines.iter_mut().find(|line| line.codec == codec)?))
    }

    fn take_codec(&mut self, io: &mut Io<'_>, codec: u64, socket: OwnedFd) {
        // Nobody wants it any more: it ends with its socket.
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

    /// Handles the end of a codec. What it has written is still read; one that never began has
    /// written nothing.
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
                live.handle_go(module);
            });
        }
    }

    /// Gives a request to the shared streams as soon as nothing waits in front of it.
    fn give(&mut self, io: &mut Io<'_>, live: &mut Live) -> bool {
        if !live.protocol.out(Side::Downstream).is_empty() {
            return false;
        }
        let (Some(fanout), Some(given)) = (&self.fanout, live.protocol.take_given()) else {
            return false;
        };
        let fanout = Rc::clone(fanout);
        self.drop_server(io, live, Closed::Ended);
        self.ends.remove(&live.down);
        let Given { key, request, received } = *given;
        let Addresses { client, server } = live.addresses;
        let join = Join { key, client, server, request, received };
        fanout.borrow_mut().join(io, live.down, join);
        // It is told of what came meanwhile.
        io.requeue(live.down);
        true
    }

    /// Lets the kernel join both ends as soon as nothing waits in between.
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

    /// Sends what waits, as far as it is taken, and then resets both ends.
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
                self.deadlines.push(Deadline::Reset, io.now() + UNTAKEN_TIME_MAX, live.number);
            }
            return After::Stays;
        }
        let why = if live.is_unreachable { Closed::Unreachable } else { Closed::Reset };
        self.close(io, live, why);
        After::Gone
    }

    /// Sends what waits, and listens a while so that no reset overtakes it.
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

    /// Handles an end that is no connection's here.
    fn ready_elsewhere(&mut self, io: &mut Io<'_>, end: End) {
        if self.spares.as_mut().is_some_and(|spares| spares.ready(io, end)) {
            return;
        }
        match &self.fanout {
            Some(fanout) if fanout.borrow().owns(end) => fanout.borrow_mut().ready(io, end),
            _ => io.close(end, Closed::Reset),
        }
    }

    /// Does what calls have left to do.
    fn settle(&mut self, io: &mut Io<'_>) {
        loop {
            if let Some(fallen) = self.runner.take_fallen() {
                self.fall(io, fallen);
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

    /// Gives those that wait their turns, each one of them once, as far as the pace lets them.
    fn take_turns(&mut self, io: &mut Io<'_>) {
        self.settle(io);
        for _ in 0..self.runner.waiting().min(CALLS_PER_ROUND_MAX) {
            match self.runner.next() {
                None => return,
                Some(Waiting::Connection(number)) => {
                    if let Some(live) = self.live.get_mut(&number) {
                        live.is_queued = false;
                    }
                    self.with(io, number, |live, module| live.handle_go(module));
                    self.runner.end_turn();
                }
                Some(Waiting::Job(job)) => self.runner.run(job),
            }
            self.settle(io);
        }
    }

    /// Handles a fall of the module: the stream whose fault it was goes on or ends by the policy,
    /// the others go on with the next VM. When it was no stream's fault the policy is for all of
    /// them.
    fn fall(&mut self, io: &mut Io<'_>, fallen: Fallen) {
        let Fallen { fault, connection, mut streams, mut owners } = fallen;
        self.calls.forget(io);
        let numbers: Vec<u64> = match fault {
            Fault::Stream(_) => {
                owners.extend(connection.filter(|number| !owners.contains(number)));
                owners
            }
            Fault::Module => {
                let mut all: Vec<u64> = self.live.keys().copied().collect();
                all.sort_unstable();
                for live in self.live.values_mut() {
                    // Nobody waits for the VM any more.
                    live.is_queued = false;
                }
                all
            }
        };
        for number in numbers {
            self.with(io, number, |live, module| live.handle_fall(fault, &mut streams, module));
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
                if self.spares.is_some() {
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
        self.with(io, number, |live, module| live.handle_go(module));
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
        if self.gathered.len() >= BATCH_MAX {
            self.flush(io);
        }
    }

    fn flush(&mut self, io: &mut Io<'_>) {
        if self.gathered.is_empty() {
            return;
        }
        while let Some(number) = self.gathered.pop_front() {
            if let Some(live) = self.live.get_mut(&number) {
                live.is_gathered = false;
            }
            self.with(io, number, |_, _| {});
        }
        self.take_turns(io);
    }

    fn poll_timeout(&self) -> Option<Nanos> {
        let fanout = self.fanout.as_ref().and_then(|fanout| fanout.borrow().poll_timeout());
        let spare = self.spares.as_ref().and_then(Spares::poll_timeout);
        let (runner, calls) = (self.runner.poll_timeout(), self.calls.poll_timeout());
        let own = [runner, calls, self.codecs.poll_timeout(), self.deadlines.poll_timeout()];
        own.into_iter().chain([fanout, spare]).flatten().min()
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
        if let Some(spares) = &mut self.spares {
            spares.handle_timeout(io);
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
