//! What is done with a service beside its packets: it starts, hears messages and timers, gives way
//! to another version.
//!
//! ```text
//!   controls ─▶ current: lane by lane ─▶ Told
//!     timer,         │ the turn is over: a hook stands still, and goes on in the next one
//!     message,       └─ a trap: that lane starts again first
//!     version
//! ```
//!
//! Where sessions take turns each step is one turn of its session; else all of them happen at
//! once. Packets that have not begun wait meanwhile, since a hook has its instance's memory, and
//! may have that of a lane below user level.

use super::lane::{Called, Lane};
use super::pools::Step;
use super::replace::ReplaceError;
use super::{RESTART_AFTER, Ready, Service, StartFailure, Turn};
use crate::below;
use crate::memory::Charge;
use crate::protocol::StateWay;
use crate::sched::pacer;
use crate::service::letter::Letter;
use crate::service::shared::Shared;
use abi::Event;
use engine::{Call, Ended, Engine, InstanceSpec, Kept, QueueEvent, StateError, Trap, TrapKind};
use session::memory::Low;
use units::{CoarseInstant, Millis, Nanos};

/// What waits for a service beside its packets: a burst of messages, and no more than a slow
/// module has answered within a second.
const CONTROLS_MAX: usize = 64;

/// One thing to do.
pub(crate) enum Control {
    /// `on_timer` in every lane that has timers.
    Timer,
    /// `on_message` in every lane that has messages.
    Message(Letter),
    /// `on_memory_low` in every lane.
    MemoryLow(Low),
    /// `on_queue` in every lane.
    Queue(QueueEvent),
    /// Another version takes its place.
    Replace(Box<Ready>, StateWay),
}

/// What is being done.
pub(super) enum Current {
    /// A hook, in this lane next; of a message with that.
    Hook { call: Call, lane: usize, answers: Vec<Option<i32>>, letter: Option<Letter> },
    /// Each lane leaves something to the next version.
    Keep {
        ready: Box<Ready>,
        way: StateWay,
        kept: Vec<Option<Kept>>,
        held: Vec<Charge>,
        from: Place,
    },
    /// The next version starts; what it is left is charged until it has.
    Next { next: Box<Service>, held: Vec<Charge>, from: Place },
}

/// Where a service was before it gave way, and when.
pub(super) struct Place {
    home: Option<u32>,
    since: Nanos,
}

/// What the daemon waits for.
pub(crate) enum Told {
    Started(Result<(), StartFailure>),
    Answered(Vec<Option<i32>>),
    /// How long no packet was handled.
    Replaced(Result<Nanos, ReplaceError>),
}

/// How far the instances of a service have started.
enum Starts {
    /// One stands still, or has not begun.
    More,
    All,
    Failed(StartFailure),
}

impl Service {
    /// Has something done. False when too much waits already.
    pub(crate) fn ask(&mut self, control: Control) -> bool {
        if let Control::Timer = control
            && self.controls.iter().any(|waits| matches!(waits, Control::Timer))
        {
            return true;
        }
        if let Control::MemoryLow(_) = control {
            // One is enough, the last: there is never more than one beyond the others.
            self.controls.retain(|waits| !matches!(waits, Control::MemoryLow(_)));
            self.controls.push_back(control);
            return true;
        }
        if let Control::Queue(event) = &control {
            return self.ask_queue(event.clone());
        }
        if self.controls.len() >= CONTROLS_MAX {
            return false;
        }
        self.controls.push_back(control);
        true
    }

    /// Of what a queue became the last counts; of what was dropped there the first that was not
    /// told yet. So there are never more than two beyond the others.
    fn ask_queue(&mut self, event: QueueEvent) -> bool {
        let is_drop = |event: &QueueEvent| matches!(event, QueueEvent::Dropped(_));
        let is_other = |waits: &Control| match waits {
            Control::Queue(waits) => is_drop(waits) != is_drop(&event),
            _ => true,
        };
        if is_drop(&event) && !self.controls.iter().all(is_other) {
            return false;
        }
        self.controls.retain(is_other);
        self.controls.push_back(Control::Queue(event));
        true
    }

    pub(crate) fn lane_count(&self) -> usize {
        self.lanes.len()
    }

    /// Whether there is something to do beside packets.
    #[inline]
    pub(crate) fn is_asked(&self) -> bool {
        self.has_controls() || self.lanes.iter().any(Lane::is_starting)
    }

    /// The same but for lanes that are starting.
    #[inline]
    pub(super) fn has_controls(&self) -> bool {
        self.is_new || self.current.is_some() || !self.controls.is_empty()
    }

    /// What is to be done next of that, and in which lane.
    pub(super) fn step(&self) -> Option<Step> {
        if let Some(lane) = self.lanes.iter().position(Lane::is_starting) {
            return Some(Step { lane, is_alone: self.is_new });
        }
        let first_with =
            |event| Step { lane: self.first_with(event, 0).unwrap_or(0), is_alone: false };
        match (self.current.as_deref(), self.controls.front()) {
            _ if self.is_new => Some(Step { lane: 0, is_alone: true }),
            (Some(Current::Hook { lane, .. }), _) => Some(Step { lane: *lane, is_alone: false }),
            (Some(Current::Keep { kept, .. }), _) => {
                Some(Step { lane: kept.len().min(self.lanes.len() - 1), is_alone: true })
            }
            (Some(Current::Next { .. }), _) | (None, Some(Control::Replace(..))) => {
                Some(Step { lane: 0, is_alone: true })
            }
            (None, Some(Control::Timer)) => Some(first_with(Event::Timer)),
            (None, Some(Control::Message(_))) => Some(first_with(Event::Message)),
            (None, Some(Control::MemoryLow(_) | Control::Queue(_))) => {
                Some(Step { lane: 0, is_alone: false })
            }
            (None, None) => None,
        }
    }

    /// Whether a step of that can be done now.
    pub(crate) fn may_answer(&self) -> bool {
        self.step().is_some_and(|step| self.may_take(step))
    }

    /// Not while a packet's call stands still there.
    pub(super) fn may_take(&self, step: Step) -> bool {
        match step.is_alone {
            true => !self.lanes.iter().any(Lane::stands_with_packets),
            false => !self.lanes[step.lane].stands_with_packets(),
        }
    }

    /// Does a step, at most until then.
    pub(crate) fn answer(&mut self, engine: &Engine, until: Nanos, now: CoarseInstant) -> Turn {
        let mut turn = Turn::default();
        if self.is_new || self.lanes.iter().any(Lane::is_starting) {
            self.go_on_starting(engine, until, now, &mut turn);
        } else if let Some(current) = self.current.take() {
            self.current = self.go_on(engine, *current, until, now, &mut turn).map(Box::new);
        } else if let Some(control) = self.controls.pop_front() {
            self.current = self.take_up(control, now, &mut turn).map(Box::new);
        }
        turn.after.emitted = true;
        turn.after.trapped |= !self.untold.is_empty() || self.sequel.is_some();
        self.settle_hold();
        turn
    }

    /// Begins something; what it takes besides is the lane's memory.
    fn take_up(
        &mut self,
        control: Control,
        now: CoarseInstant,
        turn: &mut Turn,
    ) -> Option<Current> {
        let lanes = self.lanes.len();
        match control {
            Control::Timer => {
                self.begin_hook(Call::Timer { now_ms: now.as_millis() }, None, now, turn)
            }
            Control::MemoryLow(low) => {
                self.begin_hook(super::memory::call(&low, now), None, now, turn)
            }
            Control::Queue(event) => {
                self.begin_hook(Call::Queue { event, now_ms: now.as_millis() }, None, now, turn)
            }
            Control::Message(letter) => {
                let call = Call::Message { message: letter.bytes(), now_ms: now.as_millis() };
                self.begin_hook(call, Some(letter), now, turn)
            }
            Control::Replace(ready, way) => {
                let (old, new) = (lanes, ready.facts.lanes.max(1));
                if way != StateWay::Empty && old != usize::from(new) {
                    turn.told = Some(Told::Replaced(Err(ReplaceError::Lanes { old, new })));
                    return None;
                }
                let home = self.shared.as_deref_mut().map(Shared::stay_above);
                let from = Place { home, since: pacer::now() };
                if self.hold(now) {
                    let (kept, held) = (Vec::new(), Vec::new());
                    return Some(Current::Keep { ready, way, kept, held, from });
                }
                self.go_home(&from);
                turn.told = Some(Told::Replaced(Err(ReplaceError::Busy)));
                None
            }
        }
    }

    /// A hook in each lane that it is for, if there is one.
    fn begin_hook(
        &mut self,
        call: Call,
        letter: Option<Letter>,
        now: CoarseInstant,
        turn: &mut Turn,
    ) -> Option<Current> {
        let lanes = self.lanes.len();
        let asked = letter.as_ref().is_some_and(Letter::is_of_daemon);
        let first = self.lane_for(&call, 0).filter(|_| self.hold(now));
        let Some(lane) = first else {
            turn.told = asked.then(|| Told::Answered(vec![None; lanes]));
            return None;
        };
        let answers = Vec::with_capacity(if asked { lanes } else { 0 });
        Some(Current::Hook { call, lane, answers, letter })
    }

    fn go_on(
        &mut self,
        engine: &Engine,
        current: Current,
        until: Nanos,
        now: CoarseInstant,
        turn: &mut Turn,
    ) -> Option<Current> {
        match current {
            Current::Hook { call, lane, mut answers, mut letter } => {
                let called = self.lanes[lane].call(&self.pacer, until, &call);
                if let Some(letter) = letter.as_mut().filter(|_| !matches!(called, Called::Empty)) {
                    letter.delivered();
                }
                let answer = match called {
                    Called::Stands => return Some(Current::Hook { call, lane, answers, letter }),
                    Called::Ended(Ended::Message(Ok(answer))) => answer,
                    Called::Ended(Ended::Message(Err(trap)) | Ended::Timer(Err(trap))) => {
                        self.replace(lane, trap, now);
                        None
                    }
                    Called::Empty | Called::Ended(_) => None,
                };
                answers.push(answer);
                if let Some(lane) = self.lane_for(&call, lane + 1) {
                    return Some(Current::Hook { call, lane, answers, letter });
                }
                let asked = letter.as_ref().is_some_and(Letter::is_of_daemon);
                turn.told = asked.then_some(Told::Answered(answers));
                None
            }
            Current::Keep { ready, way, mut kept, mut held, from } => {
                if kept.len() < self.lanes.len() {
                    match self.keep(way, kept.len(), &mut held, until, now) {
                        Ok(Some(one)) => kept.push(one),
                        Ok(None) => {}
                        Err(error) => return self.stay(error, &from, turn),
                    }
                    return Some(Current::Keep { ready, way, kept, held, from });
                }
                let next = Box::new(Self::begin(*ready, &self.pacer, kept, now));
                Some(Current::Next { next, held, from })
            }
            Current::Next { mut next, held, from } => match next.start_on(engine, until, now) {
                Starts::More => Some(Current::Next { next, held, from }),
                Starts::Failed(error) => self.stay(error.into(), &from, turn),
                Starts::All => {
                    self.let_go();
                    self.give_way(*next, now);
                    let took = pacer::now().saturating_sub(from.since);
                    turn.told = Some(Told::Replaced(Ok(took)));
                    None
                }
            },
        }
    }

    /// What a lane leaves to the next version; nothing where no instance runs. `None`: it stands
    /// still.
    fn keep(
        &mut self,
        way: StateWay,
        lane: usize,
        held: &mut Vec<Charge>,
        until: Nanos,
        now: CoarseInstant,
    ) -> Result<Option<Option<Kept>>, ReplaceError> {
        match way {
            StateWay::Empty => Ok(Some(None)),
            StateWay::Memory => {
                let Some(instance) = self.lanes[lane].instance() else { return Ok(Some(None)) };
                let bytes = instance.memory_bytes();
                held.push(self.memory.charge_state(self.facts.session, bytes)?);
                Ok(Some(Some(instance.keep_memory())))
            }
            StateWay::Hooks => {
                match self.lanes[lane].call(
                    &self.pacer,
                    until,
                    &Call::StateOut { now_ms: now.as_millis() },
                ) {
                    Called::Stands => Ok(None),
                    // Charged to its instance until now.
                    Called::Ended(Ended::State(Ok(state))) => {
                        held.push(self.memory.charge_state(self.facts.session, state.length())?);
                        Ok(Some(Some(state)))
                    }
                    Called::Ended(Ended::State(Err(error))) => {
                        if let StateError::Trapped(_, trap) = &error {
                            // That was the end of the instance.
                            self.replace(lane, trap.clone(), now);
                        }
                        Err(error.into())
                    }
                    Called::Empty | Called::Ended(_) => Ok(Some(None)),
                }
            }
        }
    }

    /// No other version takes its place: back to where it was, if it can go there.
    fn stay(&mut self, error: ReplaceError, from: &Place, turn: &mut Turn) -> Option<Current> {
        self.go_home(from);
        turn.told = Some(Told::Replaced(Err(error)));
        None
    }

    fn go_home(&mut self, from: &Place) {
        if let (Some(shared), Some(home)) = (&mut self.shared, from.home) {
            shared.set_home(home);
        }
    }

    fn go_on_starting(
        &mut self,
        engine: &Engine,
        until: Nanos,
        now: CoarseInstant,
        turn: &mut Turn,
    ) {
        let told = match self.start_on(engine, until, now) {
            Starts::More => return,
            Starts::All => Ok(()),
            Starts::Failed(error) => Err(error),
        };
        if std::mem::take(&mut self.is_new) {
            turn.told = Some(Told::Started(told));
        }
    }

    /// Goes on with the first lane that is starting. Those of a service that runs already are
    /// tried again later if they fail.
    fn start_on(&mut self, engine: &Engine, until: Nanos, now: CoarseInstant) -> Starts {
        let Some(index) = self.lanes.iter().position(Lane::is_starting) else {
            return Starts::All;
        };
        let spec = InstanceSpec { lane: index as u32, ..(*self.spec).clone() };
        let (program, shared, is_new) = (&self.program, self.shared.as_deref(), self.is_new);
        let room = &self.room;
        let make = |kept| {
            // What one before was refused is not why this one does not start.
            room.take_short();
            if let Some(shared) = shared.filter(|_| !is_new) {
                shared.clear_memory();
            }
            program.begin(engine, &spec, kept, now.as_millis())
        };
        match self.lanes[index].start_on(&self.pacer, until, make) {
            None => return Starts::More,
            Some(Ok(())) => {
                if let Some(shared) = shared.filter(|_| !is_new) {
                    shared.clear_trap();
                }
            }
            Some(Err(error)) if is_new => return Starts::Failed(self.why(error)),
            Some(Err(error)) => {
                let error = self.why(error);
                self.report.last_trap = Some(format!("not started again: {error}"));
                self.lanes[index].restart_at = now + RESTART_AFTER;
            }
        }
        match self.lanes.iter().any(Lane::is_starting) {
            true => Starts::More,
            false => Starts::All,
        }
    }

    /// Starts to the end what is to start: where nobody takes turns.
    #[cold]
    pub(super) fn start_all(&mut self, engine: &Engine, now: CoarseInstant) {
        while self.lanes.iter().any(Lane::is_starting) {
            self.start_on(engine, Nanos(u64::MAX), now);
        }
    }

    /// Throws a trapped instance away and has another start in its place; or, when the module is
    /// a new version of a service, has the one before back.
    pub(super) fn replace(&mut self, lane: usize, trap: Trap, now: CoarseInstant) {
        // What a call was told is sent is sent, however the call ends.
        if let Some(instance) = self.lanes[lane].instance().filter(|it| it.has_emitted()) {
            self.left.push(instance.take_emitted());
        }
        if !self.put_back(&trap) {
            self.start_again(lane, now);
        }
        self.note_trap(lane, trap);
    }

    /// Nobody below may be in its memory until it has.
    fn start_again(&mut self, lane: usize, now: CoarseInstant) {
        self.held = self.held || self.shared.as_deref().is_none_or(Shared::take);
        let lane = &mut self.lanes[lane];
        match self.held {
            true => lane.start(),
            false => {
                lane.clear();
                lane.restart_at = now + RESTART_AFTER;
            }
        }
    }

    /// Goes on from what the module did below user level.
    #[cold]
    pub(super) fn take_over(&mut self, now: CoarseInstant) {
        let Some(shared) = &self.shared else { return };
        match (shared.trapped(), self.lanes[0].instance()) {
            (Some((cause, place)), _) => {
                let unknown = Trap { kind: TrapKind::Other, place: None };
                let trap = below::trap_of(&self.program, cause, place).unwrap_or(unknown);
                self.replace(0, trap, now);
            }
            (None, Some(instance)) => shared.load(instance),
            (None, None) => {}
        }
    }

    /// Has the memory of the service for itself until [`Service::settle_hold`]: nobody below is
    /// in it. False when a program stays there.
    pub(super) fn hold(&mut self, now: CoarseInstant) -> bool {
        let Some(shared) = &self.shared else { return true };
        if !self.held {
            if !shared.take() {
                return false;
            }
            self.held = true;
        }
        if shared.has_run() {
            self.take_over(now);
        }
        true
    }

    /// Gives the memory back when nothing here needs it any more.
    pub(super) fn settle_hold(&mut self) {
        let is_needed = || {
            let starting = self.lanes.iter().any(Lane::is_starting);
            starting || self.current.is_some() || !self.lanes.iter().all(Lane::is_through)
        };
        if self.held && !is_needed() {
            self.let_go();
        }
    }

    fn let_go(&mut self) {
        if std::mem::take(&mut self.held)
            && let Some(shared) = &self.shared
        {
            shared.give_back(self.lanes[0].instance());
        }
    }

    /// Asks for what is due by the exact clock (the timer's hook, lanes that wait to be started
    /// again) and returns when to be called next. A hook that still waits stands for the ticks
    /// behind it.
    pub(crate) fn tick(&mut self, now: CoarseInstant) -> CoarseInstant {
        if !self.stands() {
            self.look_for_traps(now);
            self.try_again(now);
        }
        if self.timer.as_mut().is_some_and(|timer| timer.take(now.as_nanos())) {
            self.ask(Control::Timer);
        }
        let timer_at =
            self.timer.map_or(CoarseInstant::NEVER, |timer| CoarseInstant::from_nanos(timer.due()));
        let waiting = self.lanes.iter().filter(|lane| lane.is_empty());
        let restart = waiting.map(|lane| lane.restart_at).min().unwrap_or(CoarseInstant::NEVER);
        // What is due waits until the call has ended that stands still.
        let restart = if self.stands() { restart.max(now + Millis(1)) } else { restart };
        let below = self.shared.as_ref().filter(|shared| shared.may_be_below());
        let look = below.map_or(CoarseInstant::NEVER, |_| now + super::LOOK_BELOW);
        let watch = self.watch(now);
        restart.min(timer_at).min(look).min(watch)
    }

    fn look_for_traps(&mut self, now: CoarseInstant) {
        let below = self.shared.as_ref();
        if below.is_some_and(|shared| shared.trapped().is_some()) && self.hold(now) {
            self.settle_hold();
        }
    }

    fn try_again(&mut self, now: CoarseInstant) {
        for index in 0..self.lanes.len() {
            let lane = &self.lanes[index];
            if lane.is_empty() && lane.restart_at <= now {
                self.start_again(index, now);
            }
        }
    }
}
