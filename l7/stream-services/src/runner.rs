//! The VM of a service: starts, calls one at a time, what waits for its turn, crashes.
//!
//! ```text
//!  Unstarted ─▶ Starting ─▶ Idle ◀──▶ Running      a call, or one that stands still
//!     ▲            ▲  │       │          │
//!     │            │  ▼       ▼          ▼
//!     │            └─ Down ◀──┴── trap ──┤         of the module's own: until `Restart` says
//!     └─────────────────────────── trap ─┘         of a stream: at once, for that stream alone
//! ```

use crate::desk::{Allowed, Asked, Desk, PictureOrder, state_of};
use crate::limits::PENDING_TIME;
use crate::module::{Fault, Last, Module, Reply, Wants};
use crate::report::{Counters, Event, Report, Reports};
use crate::turns::{Job, Turns, Waiting};
use content_coding::Pool;
use engine::Over;
use foldhash::{HashMap, HashMapExt as _};
use proxy_wasm::{
    Answer, Call, CallError, Effect, HttpRequest, Now, Outcome, Program, ROOT, Ran, Restart,
    Started, Starting, Stream, Suspended, Vm, VmSpec,
};
use std::cell::{Cell, RefMut};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use units::{Nanos, Ticks};

enum State {
    Unstarted,
    Starting(Starting),
    Idle(Box<Vm>),
    /// A call stands still.
    Running(Suspended, Caller),
    /// Until then.
    Down(Nanos),
    /// While a call runs.
    Taken,
}

/// Whom a call is made for.
#[derive(Clone, Copy, Debug)]
struct Caller {
    /// The connection that waits for its answer.
    connection: Option<u64>,
    /// Of which context it is; 0 while that is made.
    context: u32,
    /// Whose fault it is if the module falls in it.
    fault: Fault,
}

/// A VM that fell.
pub(crate) struct Fallen {
    /// Whose fault it was.
    pub(crate) fault: Fault,
    /// The connection in whose call it was.
    pub(crate) connection: Option<u64>,
    /// The streams that it had.
    pub(crate) streams: BTreeMap<u32, Box<Stream>>,
    /// The connections of these.
    pub(crate) owners: Vec<u64>,
}

/// What a resumed call came to.
pub(crate) enum Resumed {
    /// It stands still again, or there was none.
    Nothing,
    /// A connection's.
    Reply(u64, Reply),
    /// The VM is free.
    Free,
}

pub(crate) struct Runner {
    program: Program,
    spec: VmSpec,
    wants: Wants,
    real_offset_ns: u64,
    state: State,
    restart: Restart,
    /// Milliseconds, and when the next one is due.
    tick: Option<Ticks>,
    is_tick_waiting: bool,
    turns: Turns,
    /// What was wanted of streams, and nobody has done yet.
    effects: VecDeque<Effect>,
    http_calls: VecDeque<(u32, Box<HttpRequest>)>,
    /// For which contexts HTTP calls are under way.
    asking: HashMap<u32, u32>,
    fallen: Option<Fallen>,
    /// Whose contexts are.
    owners: HashMap<u32, u64>,
    /// Contexts that are not done yet, and until when they are waited for.
    pending: VecDeque<(Nanos, u32)>,
    reports: Reports,
    desk: Desk,
    pool: Pool,
    busy_permille: Rc<Cell<Option<u16>>>,
    now: Nanos,
}

impl Runner {
    pub(crate) fn new(
        program: Program,
        spec: VmSpec,
        real_offset_ns: u64,
        (desk, reports): (Desk, Reports),
        busy_permille: Rc<Cell<Option<u16>>>,
    ) -> Self {
        let pool = match spec.room.as_ref().map(state_of) {
            Some(account) => Pool::paid(account),
            None => Pool::new(),
        };
        let wants = Wants::new(program.callbacks(), program.imports("proxy_get_property"));
        Self {
            program,
            spec,
            wants,
            real_offset_ns,
            state: State::Unstarted,
            restart: Restart::default(),
            tick: None,
            is_tick_waiting: false,
            turns: Turns::new(),
            effects: VecDeque::new(),
            http_calls: VecDeque::new(),
            asking: HashMap::new(),
            fallen: None,
            owners: HashMap::new(),
            pending: VecDeque::new(),
            reports,
            desk,
            pool,
            busy_permille,
            now: Nanos(0),
        }
    }

    pub(crate) fn reports(&self) -> Reports {
        self.reports.clone()
    }

    fn report(&self) -> RefMut<'_, Report> {
        self.reports.report.borrow_mut()
    }

    pub(crate) const fn set_now(&mut self, now: Nanos) {
        self.now = now;
    }

    /// When it wants to go on: at once while a call stands still or something waits.
    pub(crate) fn poll_timeout(&self) -> Option<Nanos> {
        let at = match &self.state {
            State::Unstarted | State::Starting(_) | State::Running(..) => Some(Nanos(0)),
            State::Idle(_) if !self.turns.is_empty() || !self.effects.is_empty() => Some(Nanos(0)),
            State::Down(again) => Some(*again),
            State::Idle(_) | State::Taken => None,
        };
        let tick = self.tick.filter(|_| !self.is_tick_waiting).map(|tick| tick.due());
        let pending = self.pending.front().map(|(until, _)| *until);
        [at, tick, pending].into_iter().flatten().min()
    }

    /// Why a codec has ended, for whoever reads the log.
    pub(crate) fn report_codec(&self, why: &str) {
        self.report().push(Event::Warning(format!("a codec has ended: {why}")));
    }

    pub(crate) const fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle(_))
    }

    /// Whether a call may begin: asked of the pace, too.
    fn may_begin(&self) -> bool {
        self.is_idle()
            && self
                .spec
                .pace
                .as_ref()
                .is_none_or(|pace| matches!(pace.begins(), Over::GoOn | Over::Closely))
    }

    /// Starts, or goes on with what stands still, for one turn.
    pub(crate) fn resume(&mut self) -> Resumed {
        match std::mem::replace(&mut self.state, State::Taken) {
            State::Unstarted => self.start(),
            State::Down(again) if again <= self.now => {
                self.restart.started(self.now.as_millis());
                self.start();
            }
            State::Starting(starting) => self.started(starting.resume()),
            State::Running(suspended, caller) => {
                return match suspended.resume() {
                    Ran::Suspended(again) => {
                        self.state = State::Running(again, caller);
                        Resumed::Nothing
                    }
                    Ran::Ended(vm, outcome) => {
                        let reply = self.ended(vm, outcome, caller);
                        let connection = caller.connection;
                        connection.map_or(Resumed::Free, |number| Resumed::Reply(number, reply))
                    }
                };
            }
            other => self.state = other,
        }
        if self.is_idle() { Resumed::Free } else { Resumed::Nothing }
    }

    fn start(&mut self) {
        let starting = Starting::new(&self.program, self.spec.clone(), self.now());
        self.started(starting.resume());
    }

    fn started(&mut self, started: Started) {
        match started {
            Started::Suspended(starting) => self.state = State::Starting(starting),
            Started::Ended(Ok((vm, effects))) => {
                self.report().memory_bytes = vm.memory_bytes();
                self.state = State::Idle(vm);
                self.report().push(Event::Started);
                self.sort(effects, None);
            }
            Started::Ended(Err(failure)) => {
                let again = Nanos::from_millis(self.restart.crashed(self.now.as_millis()));
                let reason = failure.reason();
                self.sort(failure.effects, None);
                self.go_down(again);
                self.fallen = Some(Fallen {
                    fault: Fault::Module,
                    connection: None,
                    streams: BTreeMap::new(),
                    owners: Vec::new(),
                });
                let mut report = self.report();
                report.counters.starts_failed += 1;
                report.push(Event::StartFailed { reason, again });
            }
        }
    }

    /// What a call wants done: that of its own context is the caller's.
    fn sort(&mut self, effects: Vec<Effect>, own: Option<u32>) -> Vec<Effect> {
        let mut owned = Vec::new();
        for effect in effects {
            match effect {
                Effect::Log { level, text } => self.report().push(Event::Log { level, text }),
                Effect::TickPeriod(0) => self.tick = None,
                Effect::TickPeriod(period) => {
                    let period = Nanos::from_millis(u64::from(period));
                    self.tick = Some(Ticks::start(self.now, period));
                }
                Effect::QueueReady { vm, queue } if vm == self.spec.number => {
                    self.turns.push_queue(queue);
                }
                // Another VM of the service: there is none.
                Effect::QueueReady { .. } => {}
                Effect::Done(context) => {
                    self.pending.retain(|(_, pending)| *pending != context);
                    self.turns.push(Waiting::Job(Job::Finish(context)));
                }
                Effect::HttpCall { context, call, request } => {
                    self.asking.insert(call, context);
                    self.http_calls.push_back((call, request));
                }
                Effect::Continue { context, .. }
                | Effect::Close { context, .. }
                | Effect::Respond { context, .. } => match own {
                    Some(own) if own == context => owned.push(effect),
                    _ => self.effects.push_back(effect),
                },
            }
        }
        owned
    }

    fn ended(&mut self, vm: Box<Vm>, outcome: Outcome, caller: Caller) -> Reply {
        let context = caller.context;
        let Outcome { answer, effects, log_lines_dropped } = outcome;
        let mut report = self.report();
        report.counters.events_dropped += log_lines_dropped;
        report.memory_bytes = vm.memory_bytes();
        drop(report);
        let effects = self.sort(effects, Some(context));
        let trap = match answer {
            Ok(answer) => {
                self.state = State::Idle(vm);
                match &answer {
                    Answer::Created(context) => {
                        self.owners.extend(caller.connection.map(|number| (*context, number)));
                    }
                    Answer::Ended(_) => {
                        self.owners.remove(&context);
                    }
                    Answer::Pending => {
                        self.owners.remove(&context);
                        self.pending.push_back((self.now + PENDING_TIME, context));
                    }
                    Answer::Action(_) | Answer::Nothing => {}
                }
                return Reply::Answered(answer, effects);
            }
            Err(CallError::TooManyContexts(stream)) => {
                self.state = State::Idle(vm);
                return Reply::Refused(stream);
            }
            // Those of calls that nobody waits for any more.
            Err(CallError::UnknownContext(_) | CallError::UnknownHttpCall(_)) => {
                self.state = State::Idle(vm);
                return Reply::Answered(Answer::Nothing, effects);
            }
            Err(error @ (CallError::Trapped(_) | CallError::AlreadyTrapped)) => error.to_string(),
        };
        self.fall(*vm, trap, caller);
        Reply::Fallen
    }

    /// The module has trapped. A stream's trap has another VM started at once: whoever can make a
    /// module trap must not keep it away from others.
    fn fall(&mut self, vm: Vm, trap: String, caller: Caller) {
        let mut owners: Vec<u64> = self.owners.values().copied().collect();
        owners.sort_unstable();
        owners.dedup();
        let again = match caller.fault {
            Fault::Stream(_) => self.now,
            Fault::Module => Nanos::from_millis(self.restart.crashed(self.now.as_millis())),
        };
        match caller.fault {
            Fault::Stream(_) => self.begin_again(),
            Fault::Module => self.go_down(again),
        }
        let (fault, connection) = (caller.fault, caller.connection);
        self.fallen = Some(Fallen { fault, connection, streams: vm.into_streams(), owners });
        let mut report = self.report();
        report.counters.traps += 1;
        report.push(Event::Trapped { trap, again });
    }

    /// There is no VM until then.
    fn go_down(&mut self, again: Nanos) {
        self.forget_vm();
        self.state = State::Down(again);
        self.turns.clear();
    }

    /// Another VM starts; connections keep their places in front of it.
    fn begin_again(&mut self) {
        self.forget_vm();
        self.state = State::Unstarted;
        self.turns.forget_jobs();
    }

    /// Whatever was to be done for a VM is not.
    fn forget_vm(&mut self) {
        self.report().memory_bytes = 0;
        self.tick = None;
        self.is_tick_waiting = false;
        self.effects.clear();
        self.http_calls.clear();
        self.asking.clear();
        self.pending.clear();
        self.owners.clear();
        drop(self.desk.take());
        self.desk.forget_pictures();
    }

    /// The VM that has fallen since this was asked last.
    pub(crate) const fn take_fallen(&mut self) -> Option<Fallen> {
        self.fallen.take()
    }

    /// Something that is wanted of a stream, and whose connection it is; only while no call runs.
    pub(crate) fn take_effect(&mut self) -> Option<(u64, Effect)> {
        while self.is_idle() {
            let effect = self.effects.pop_front()?;
            let context = match &effect {
                Effect::Continue { context, .. }
                | Effect::Close { context, .. }
                | Effect::Respond { context, .. } => *context,
                _ => continue,
            };
            if let Some(owner) = self.owners.get(&context) {
                return Some((*owner, effect));
            }
        }
        None
    }

    /// What is wanted of a stream's pictures, and whose connection it is; only while no call runs.
    pub(crate) fn take_picture_order(&mut self) -> Option<(u64, u32, PictureOrder)> {
        while self.is_idle() {
            let (context, order) = self.desk.take_order()?;
            if let Some(owner) = self.owners.get(&context) {
                return Some((*owner, context, order));
            }
        }
        None
    }

    pub(crate) fn take_http_call(&mut self) -> Option<(u32, Box<HttpRequest>)> {
        self.http_calls.pop_front()
    }

    pub(crate) fn wait(&mut self, connection: u64) {
        self.turns.push(Waiting::Connection(connection));
    }

    pub(crate) fn wait_for(&mut self, job: Job) {
        self.turns.push(Waiting::Job(job));
    }

    pub(crate) fn waiting(&self) -> usize {
        self.turns.len()
    }

    /// Who is next, if a call may begin. A connection's turn lasts until [`Runner::end_turn`].
    pub(crate) fn next(&mut self) -> Option<Waiting> {
        if !self.may_begin() {
            return None;
        }
        self.turns.pop()
    }

    /// A connection has had its turn.
    pub(crate) const fn end_turn(&mut self) {
        self.turns.end_turn();
    }

    /// What is due by the time alone.
    pub(crate) fn handle_timeout(&mut self) {
        if !self.is_tick_waiting && self.tick.as_mut().is_some_and(|tick| tick.take(self.now)) {
            self.is_tick_waiting = true;
            self.wait_for(Job::Tick);
        }
        while let Some((until, context)) = self.pending.front().copied() {
            if until > self.now {
                break;
            }
            self.pending.pop_front();
            self.wait_for(Job::Finish(context));
        }
    }

    /// Makes a call that nobody waits for.
    pub(crate) fn run(&mut self, job: Job) {
        let of = |context| if context == ROOT { Fault::Module } else { Fault::Stream(context) };
        let (context, fault, call) = match job {
            Job::Last(Last::DownstreamClose(context, peer)) => {
                (context, of(context), Call::DownstreamClose(context, peer))
            }
            Job::Last(Last::UpstreamClose(context, peer)) => {
                (context, of(context), Call::UpstreamClose(context, peer))
            }
            Job::Last(Last::End(context, facts)) => {
                if let Some(stream) = self.stream(context) {
                    for (path, value) in facts {
                        stream.describe_number(path, value);
                    }
                }
                (context, of(context), Call::End(context))
            }
            Job::Finish(context) => (context, of(context), Call::Finish(context)),
            Job::Tick => {
                self.is_tick_waiting = false;
                (0, Fault::Module, Call::Tick)
            }
            Job::Queue(queue) => {
                self.turns.note_queue_call(queue);
                (0, Fault::Module, Call::QueueReady(queue))
            }
            Job::Response(response) => {
                let asked = self.asking.remove(&response.call).unwrap_or(ROOT);
                (0, of(asked), Call::HttpCallResponse(response))
            }
        };
        let caller = Caller { connection: None, context, fault };
        let _ = self.make(caller, call, Allowed::default());
    }

    fn make(&mut self, caller: Caller, call: Call, allowed: Allowed) -> Reply {
        let state = std::mem::replace(&mut self.state, State::Taken);
        let State::Idle(vm) = state else {
            self.state = state;
            return Reply::Fallen;
        };
        self.desk.begin(caller.context, allowed);
        match vm.call(call, self.now()) {
            Ran::Ended(vm, outcome) => self.ended(vm, outcome, caller),
            Ran::Suspended(suspended) => {
                self.report().counters.suspended += 1;
                self.state = State::Running(suspended, caller);
                Reply::Suspended
            }
        }
    }
}

impl Module for Runner {
    fn wants(&self) -> Wants {
        self.wants
    }

    fn is_down(&self) -> bool {
        matches!(self.state, State::Down(_))
    }

    fn may_call(&mut self, connection: u64) -> bool {
        self.turns.is_next(connection) && self.effects.is_empty() && self.may_begin()
    }

    fn call(&mut self, connection: u64, context: u32, call: Call, allowed: Allowed) -> Reply {
        let fault = Fault::Stream(context);
        self.make(Caller { connection: Some(connection), context, fault }, call, allowed)
    }

    fn take_asked(&mut self) -> Asked {
        self.desk.take()
    }

    fn desk(&self) -> &Desk {
        &self.desk
    }

    fn pool(&self) -> &Pool {
        &self.pool
    }

    fn busy_permille(&self) -> Option<u16> {
        self.busy_permille.get()
    }

    fn count_pictures(&mut self, count: u64) {
        self.report().counters.pictures += count;
    }

    fn count_coded(&mut self, taken: usize, given: usize) {
        let mut report = self.report();
        report.counters.coded_bytes_in += taken as u64;
        report.counters.coded_bytes_out += given as u64;
    }

    fn stream(&mut self, context: u32) -> Option<&mut Stream> {
        match &mut self.state {
            State::Idle(vm) => vm.stream_mut(context),
            _ => None,
        }
    }

    fn count(&mut self, count: fn(&mut Counters)) {
        count(&mut self.report().counters);
    }

    fn warn(&mut self, text: &str) {
        self.report().push(Event::Warning(text.to_owned()));
    }

    fn now(&self) -> Now {
        Now { real_ns: self.real_offset_ns.saturating_add(self.now.0), monotonic_ns: self.now.0 }
    }

    fn later(&mut self, last: Last) {
        if !self.is_down() {
            self.wait_for(Job::Last(last));
        }
    }
}
