//! Runner: the VM of a service, with its starts, its calls one at a time, the wait queue, and
//! crashes.
//!
//! ```text
//!   Unstarted ─▶ Starting ─▶ Idle ◀──▶ Running      a call, or a suspended one
//!      ▲            ▲  │       │          │
//!      │            │  ▼       ▼          ▼
//!      │            └─ Down ◀──┴── trap ──┤       outside streams: until `Restart` allows a start
//!      └─────────────────────────── trap ─┘       in a stream: at once, for that stream alone
//! ```

use crate::foreign_calls::{Allowed, ForeignCalls, PictureOrder, Requested, state_of};
use crate::limits::PENDING_TIME;
use crate::module::{Fault, Last, Module, Reply, Wants};
use crate::report::{Counters, Event, Report, Reports};
use crate::wait_queue::{Job, WaitQueue, Waiting};
use content_coding::Pool;
use engine::PaceDecision;
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
    /// A call is suspended.
    Running(Suspended, Caller),
    /// No VM until this time.
    Down(Nanos),
    /// Transient state while a call runs.
    Taken,
}

/// Origin of a call.
#[derive(Clone, Copy, Debug)]
struct Caller {
    /// Connection that waits for the answer.
    connection: Option<u64>,
    /// Context of the call; 0 during its creation.
    context: u32,
    /// Cause to record if the module traps in it.
    fault: Fault,
}

/// VM that has trapped.
pub(crate) struct TrappedVm {
    /// Cause of the trap.
    pub(crate) fault: Fault,
    /// Connection in whose call it trapped.
    pub(crate) connection: Option<u64>,
    /// Streams of the VM.
    pub(crate) streams: BTreeMap<u32, Box<Stream>>,
    /// Connections of these streams.
    pub(crate) owners: Vec<u64>,
}

/// Result of a resumed call.
pub(crate) enum Resumed {
    /// Suspended again, or there was none.
    Nothing,
    /// Reply for a connection.
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
    /// Period of the ticks in milliseconds, and the time of the next one.
    tick: Option<Ticks>,
    is_tick_waiting: bool,
    wait_queue: WaitQueue,
    /// Effects on streams that are not executed yet.
    effects: VecDeque<Effect>,
    http_calls: VecDeque<(u32, Box<HttpRequest>)>,
    /// Contexts of the HTTP calls in progress.
    asking: HashMap<u32, u32>,
    trapped: Option<TrappedVm>,
    /// Connections of the contexts.
    owners: HashMap<u32, u64>,
    /// Contexts with a postponed end, and the time until which it is awaited.
    pending: VecDeque<(Nanos, u32)>,
    reports: Reports,
    foreign_calls: ForeignCalls,
    pool: Pool,
    busy_permille: Rc<Cell<Option<u16>>>,
    now: Nanos,
}

impl Runner {
    pub(crate) fn new(
        program: Program,
        spec: VmSpec,
        real_offset_ns: u64,
        (foreign_calls, reports): (ForeignCalls, Reports),
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
            wait_queue: WaitQueue::new(),
            effects: VecDeque::new(),
            http_calls: VecDeque::new(),
            asking: HashMap::new(),
            trapped: None,
            owners: HashMap::new(),
            pending: VecDeque::new(),
            reports,
            foreign_calls,
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

    /// Returns the time of the next work: at once while a call is suspended or one waits.
    pub(crate) fn poll_timeout(&self) -> Option<Nanos> {
        let at = match &self.state {
            State::Unstarted | State::Starting(_) | State::Running(..) => Some(Nanos(0)),
            State::Idle(_) if !self.wait_queue.is_empty() || !self.effects.is_empty() => {
                Some(Nanos(0))
            }
            State::Down(again) => Some(*again),
            State::Idle(_) | State::Taken => None,
        };
        let tick = self.tick.filter(|_| !self.is_tick_waiting).map(|tick| tick.due());
        let pending = self.pending.front().map(|(until, _)| *until);
        [at, tick, pending].into_iter().flatten().min()
    }

    /// Reports the end of a codec in the log.
    pub(crate) fn report_codec(&self, why: &str) {
        self.report().push(Event::Warning(format!("a codec has ended: {why}")));
    }

    pub(crate) const fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle(_))
    }

    /// Returns true if a call may begin, also by the pace.
    fn may_begin(&self) -> bool {
        self.is_idle()
            && self.spec.pace.as_ref().is_none_or(|pace| {
                matches!(pace.begins(), PaceDecision::Continue | PaceDecision::ContinueClosely)
            })
    }

    /// Starts the VM or resumes the suspended call, for one turn.
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
                self.trapped = Some(TrappedVm {
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

    /// Sorts the effects of a call: returns those on its own context, queues the others.
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
                    self.wait_queue.push_queue(queue);
                }
                // Other VMs of the service do not exist.
                Effect::QueueReady { .. } => {}
                Effect::Done(context) => {
                    self.pending.retain(|(_, pending)| *pending != context);
                    self.wait_queue.push(Waiting::Job(Job::Finish(context)));
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
            // Result of a call for a context or HTTP call that is gone.
            Err(CallError::UnknownContext(_) | CallError::UnknownHttpCall(_)) => {
                self.state = State::Idle(vm);
                return Reply::Answered(Answer::Nothing, effects);
            }
            Err(error @ (CallError::Trapped(_) | CallError::AlreadyTrapped)) => error.to_string(),
        };
        self.on_trap(*vm, trap, caller);
        Reply::Trapped
    }

    /// Handles a trap of the module. After a stream's trap another VM is started at once: a client
    /// that can make a module trap must not keep it away from others.
    fn on_trap(&mut self, vm: Vm, trap: String, caller: Caller) {
        let mut owners: Vec<u64> = self.owners.values().copied().collect();
        owners.sort_unstable();
        owners.dedup();
        let again = match caller.fault {
            Fault::Stream(_) => self.now,
            Fault::Module => Nanos::from_millis(self.restart.crashed(self.now.as_millis())),
        };
        match caller.fault {
            Fault::Stream(_) => self.restart(),
            Fault::Module => self.go_down(again),
        }
        let (fault, connection) = (caller.fault, caller.connection);
        self.trapped = Some(TrappedVm { fault, connection, streams: vm.into_streams(), owners });
        let mut report = self.report();
        report.counters.traps += 1;
        report.push(Event::Trapped { trap, again });
    }

    /// Stays without a VM until this time.
    fn go_down(&mut self, again: Nanos) {
        self.drop_vm_work();
        self.state = State::Down(again);
        self.wait_queue.clear();
    }

    /// Prepares the start of another VM; connections keep their places in the wait queue.
    fn restart(&mut self) {
        self.drop_vm_work();
        self.state = State::Unstarted;
        self.wait_queue.clear_jobs();
    }

    /// Drops all pending work for a VM.
    fn drop_vm_work(&mut self) {
        self.report().memory_bytes = 0;
        self.tick = None;
        self.is_tick_waiting = false;
        self.effects.clear();
        self.http_calls.clear();
        self.asking.clear();
        self.pending.clear();
        self.owners.clear();
        drop(self.foreign_calls.take());
        self.foreign_calls.clear_pictures();
    }

    /// Takes the VM that has trapped since the last call.
    pub(crate) const fn take_trapped(&mut self) -> Option<TrappedVm> {
        self.trapped.take()
    }

    /// Takes an effect on a stream, with the number of its connection; only while no call runs.
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

    /// Takes an order for a stream's pictures, with the number of its connection; only while no
    /// call runs.
    pub(crate) fn take_picture_order(&mut self) -> Option<(u64, u32, PictureOrder)> {
        while self.is_idle() {
            let (context, order) = self.foreign_calls.take_order()?;
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
        self.wait_queue.push(Waiting::Connection(connection));
    }

    pub(crate) fn wait_for(&mut self, job: Job) {
        self.wait_queue.push(Waiting::Job(job));
    }

    pub(crate) fn waiting(&self) -> usize {
        self.wait_queue.len()
    }

    /// Pops the next entry of the wait queue, if a call may begin. A connection's turn lasts until
    /// [`Runner::end_turn`].
    pub(crate) fn next(&mut self) -> Option<Waiting> {
        if !self.may_begin() {
            return None;
        }
        self.wait_queue.pop()
    }

    /// Ends a connection's turn.
    pub(crate) const fn end_turn(&mut self) {
        self.wait_queue.end_turn();
    }

    /// Handles the deadlines that have passed.
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

    /// Makes a call whose result no connection needs.
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
                self.wait_queue.count_queue_call(queue);
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
            return Reply::Trapped;
        };
        self.foreign_calls.begin(caller.context, allowed);
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
        self.wait_queue.is_next(connection) && self.effects.is_empty() && self.may_begin()
    }

    fn call(&mut self, connection: u64, context: u32, call: Call, allowed: Allowed) -> Reply {
        let fault = Fault::Stream(context);
        self.make(Caller { connection: Some(connection), context, fault }, call, allowed)
    }

    fn take_requested(&mut self) -> Requested {
        self.foreign_calls.take()
    }

    fn foreign_calls(&self) -> &ForeignCalls {
        &self.foreign_calls
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
