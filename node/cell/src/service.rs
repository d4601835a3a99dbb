//! Service of a cell: its instances, what waits for them, where its packets go, its traps.
//!
//! ```text
//!   enqueue ─▶ lane: waiting ─ work(until) ─▶ finish ─▶ Outlet: out, or onward to the next service
//!                      ▲             │ turn over: a call stands still
//!                      └─────────────┘ the next turn goes on with it
//!   ask ─▶ Agenda ─ answer ─▶ hooks, starts, the next version ─▶ Told
//! ```

mod agenda;
mod counters;
mod instances;
mod lane;
pub(crate) mod letter;
pub(crate) mod loader;
pub(crate) mod mailbox;
mod mappings;
mod outlet;
mod pools;
mod programs;
mod replace;
pub(crate) mod shared;
pub(crate) mod table;
#[cfg(test)]
mod tests;
mod turns;
mod version;
mod watch;
mod way;

pub(crate) use agenda::Control;
pub(crate) use replace::Sequel;
pub(crate) use turns::{Aftermath, Notices, Outbox, Told, Turn};
pub(crate) use way::Way;

use crate::below::Record;
use crate::datapath::Exits;
use crate::memory::{Charge, Memory};
use crate::protocol::{ServiceFacts, ServiceReport};
use crate::sched::pacer::Pacer;
use crate::sched::sessions::Task;
use crate::sched::{FILL, Portion};
use abi::layout::{EDGES_MAX, MARK_LENGTH};
use agenda::Agenda;
use bpf_maps::META_DATA;
use counters::Ending;
use engine::{Emitted, Engine, Handled, Kept, Pace, Program, QueueWatch, Trap};
use instances::{Below, Instances, Starts};
use lane::Lane;
use level::ahead;
use outlet::Outlet;
use pools::{Pools, Step};
use replace::Succession;
use shared::Shared;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::rc::Rc;
use turns::{Running, Trapped};
use units::{Bytes, CoarseInstant, Edge, EntryId, Millis, Nanos, SessionId, Ticks};
use version::Version;
use xsk::{FramePool, Packet};

/// A lane whose instance could not be started again is tried after so long.
const RESTART_AFTER: Millis = Millis(100);
/// Records of one service that are handled before others have their turn.
const RECORDS_PER_TURN: usize = 64;
/// How often a lane below is looked at for a trap.
const LOOK_BELOW: Millis = Millis(10);

/// A service that runs. What each turn looks at comes first, and is what is loaded ahead of it; of
/// that first what a packet looks at that comes to wait.
#[repr(C)]
pub(crate) struct Service {
    facts: Essentials,
    agenda: Agenda,
    instances: Instances,
    /// How long a packet takes in its turns, of late.
    packet: Nanos,
    outlet: Outlet,
    /// Traps that the daemon has not heard of.
    untold: Vec<Trapped>,
    /// What calls that are over left beside their verdicts.
    left: Vec<Emitted>,
    version: Version,
    /// Timer of the module, on the exact clock.
    timer: Option<Ticks>,
    /// The batch before whose first packet was looked for what the module did below.
    looked_in: Option<u64>,
    watching: Watching,
    succession: Succession,
}

const _: () = assert!(size_of::<Option<Service>>() == size_of::<Service>(), "nothing is in front");

/// Bytes of it that a packet looks at that comes to wait.
const WAITING_LENGTH: usize = std::mem::offset_of!(Service, instances) + Instances::WAITING_LENGTH;

/// What of a service's facts is asked for while it runs.
#[derive(Clone, Copy)]
struct Essentials {
    entry: EntryId,
    /// The session that pays.
    session: SessionId,
    /// Whether a call on a packet is over before anybody could want to interrupt it.
    brief: bool,
    /// Packets that it cannot have are dropped; else they are forwarded plainly.
    closed: bool,
}

/// Watch of a service over its session's queue.
#[derive(Default)]
struct Watching {
    wanted: Option<QueueWatch>,
    /// Set until the latest wish has been taken up.
    is_new: bool,
    /// Session whose queue it watches.
    within: Option<SessionId>,
}

/// A service that only has to start.
pub(crate) struct Ready {
    pub(crate) program: Program<Packet>,
    pub(crate) facts: ServiceFacts,
    /// Ports by name.
    pub(crate) ports: BTreeMap<String, u16>,
    pub(crate) shared: Option<Shared>,
    /// The account of memory, and what it is charged already.
    pub(crate) memory: Memory,
    pub(crate) charge: Charge,
}

impl Service {
    /// Begins a service whose lanes are to start, with what an instance before has left for each,
    /// if any: [`Service::answer`].
    pub(crate) fn begin(
        ready: Ready,
        pacer: &Rc<Pacer>,
        kept: Vec<Option<Kept>>,
        now: CoarseInstant,
    ) -> Self {
        let Ready { program, facts, ports, shared, memory, charge } = ready;
        let pace: Rc<dyn Pace> = Rc::clone(pacer) as _;
        let version = Version::new(program, &facts, ports, shared.as_ref(), (memory, charge), pace);
        let kept = kept.into_iter().chain(std::iter::repeat_with(|| None));
        let lanes: SmallVec<[Lane; 1]> =
            (0..facts.lanes.max(1)).zip(kept).map(|(_, kept)| Lane::new(kept)).collect();
        let pools = Pools::new(facts.entry, lanes.len(), &facts.pools, &facts.flows_by);
        let period = facts.timer_ms.map(|period| Nanos::from_millis(u64::from(period)));
        let ServiceFacts { entry, session, brief, closed, .. } = facts;
        Self {
            facts: Essentials { entry, session, brief, closed },
            agenda: Agenda::new(),
            instances: Instances::new(pools, lanes, shared, pacer),
            packet: Nanos::ZERO,
            outlet: Outlet::new(entry),
            untold: Vec::new(),
            left: Vec::new(),
            version,
            timer: period.map(|period| Ticks::start(now.as_nanos(), period)),
            looked_in: None,
            watching: Watching::default(),
            succession: Succession::default(),
        }
    }

    /// Starts loading what a packet looks at that comes to wait. Nothing of it is read for that.
    #[inline]
    pub(crate) fn load_for_packet(place: &Option<Self>) {
        ahead::load_first(place, WAITING_LENGTH);
    }

    /// Starts loading what a turn looks at here.
    #[inline]
    pub(crate) fn load_for_turn(place: &Option<Self>) {
        ahead::load_first(place, std::mem::offset_of!(Self, version));
    }

    /// Starts loading what a turn with a packet looks at behind the service itself, step by step:
    /// each needs what the one before has loaded.
    #[inline]
    pub(crate) fn load_ahead(&self, step: u8) {
        self.instances.load_ahead(step);
    }

    /// Returns its entry.
    #[inline]
    pub(crate) const fn entry(&self) -> EntryId {
        self.facts.entry
    }

    /// Returns the session that pays for it.
    #[inline]
    pub(crate) const fn session(&self) -> SessionId {
        self.facts.session
    }

    /// Returns how many bytes its packets had when they were sent.
    pub(crate) const fn bytes_out(&self) -> Bytes {
        self.outlet.counters().bytes_out()
    }

    /// Returns what happened so far.
    pub(crate) fn report(&mut self) -> ServiceReport {
        let mut report = self.outlet.counters().report();
        self.instances.report(&mut report);
        report
    }

    /// Returns how many lanes it has.
    pub(crate) fn lane_count(&self) -> usize {
        self.instances.lanes()
    }

    /// Returns whether an edge of it leads straight to that one.
    pub(crate) fn leads_to(&self, entry: EntryId) -> bool {
        self.outlet.leads_to(entry)
    }

    /// Returns the session in whose queue it watches.
    pub(crate) const fn watches_in(&self) -> Option<SessionId> {
        self.watching.within
    }

    /// Returns the level at which the daemon wants its packets, as `LEVEL_*`; `None` when it cannot
    /// leave user level.
    pub(crate) fn home(&self) -> Option<u32> {
        self.instances.shared().map(Shared::home)
    }

    /// Returns what a service that can leave user level shares.
    pub(crate) fn shared(&self) -> Option<&Shared> {
        self.instances.shared()
    }

    /// Returns what a service that can leave user level shares.
    pub(crate) fn shared_mut(&mut self) -> Option<&mut Shared> {
        self.instances.shared_mut()
    }

    /// Returns whether the daemon does not know yet that this version runs.
    pub(crate) const fn is_unknown(&self) -> bool {
        self.succession.is_unknown()
    }

    /// Returns the epochs of packets here that the lane of `entry` has counted.
    pub(crate) fn epochs_counted_by(&self, entry: EntryId) -> impl Iterator<Item = u8> {
        let own = self.facts.entry;
        self.instances.ways().filter_map(move |way| way.epoch_counted_by(entry, own))
    }

    /// Returns whether nothing waits and nothing stands still.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        !self.agenda.has_work() && self.instances.is_idle()
    }

    /// Returns whether its next turn is over so soon that nobody has to interrupt it: there are
    /// packets only, and its module is brief.
    #[inline]
    pub(crate) fn is_brief(&self) -> bool {
        self.facts.brief && !self.stands()
    }

    /// Returns whether a call stands still, a packet that the front door has not counted has the
    /// lane, or something is to be done that comes first.
    pub(crate) fn stands(&self) -> bool {
        self.instances.is_held()
            || self.agenda.has_work()
            || self.instances.starting().is_some()
            || self.instances.stands()
    }

    /// Returns whether a step beside packets can be done now.
    pub(crate) fn may_answer(&self) -> bool {
        self.step().is_some_and(|step| self.instances.may_take(step))
    }

    /// Returns whether a pool has work.
    #[inline]
    pub(crate) fn wants(&self, pool: usize) -> bool {
        self.instances.wants(pool, || self.step())
    }

    /// Returns other pools than this one that have work.
    pub(crate) fn others_that_want(&self, pool: usize) -> impl Iterator<Item = Task> {
        let others = (0..self.instances.pools().count()).filter(move |&other| other != pool);
        others
            .filter(|&other| self.wants(other))
            .map(|other| self.instances.task(self.facts.entry, other))
    }

    /// Returns the pool that is to go on with what is asked for.
    pub(crate) fn asked_task(&self) -> Option<Task> {
        self.step()
            .map(|step| self.instances.task(self.facts.entry, self.instances.pool_of(step.lane)))
    }

    /// Returns for how many packets there is time, when each takes so long to be sent, and how long
    /// it takes to send them.
    pub(crate) fn fit(&self, time: Nanos, sending: Nanos) -> (u64, Nanos) {
        let packets = (time.0 / (self.packet.0 + sending.0).max(1)).clamp(1, FILL);
        (packets, Nanos(packets * sending.0))
    }

    /// Returns what is to be done next beside packets, and in which lane.
    #[inline]
    fn step(&self) -> Option<Step> {
        self.agenda.step(&self.instances)
    }

    /// Counts bytes that its packets had when they were sent.
    #[inline]
    pub(crate) const fn count_sent(&mut self, bytes: u64) {
        self.outlet.counters_mut().count_sent(bytes);
    }

    /// Has packets that it cannot have dropped from now on, or forwarded plainly.
    pub(crate) const fn set_closed(&mut self, closed: bool) {
        self.facts.closed = closed;
    }

    /// Has what passes it go there from now on.
    pub(crate) const fn set_edges(&mut self, edges: [Edge; EDGES_MAX]) {
        self.outlet.set_edges(edges);
    }

    /// Notes that the daemon has heard of one more change of its version.
    pub(crate) const fn become_known(&mut self) {
        self.succession.become_known();
    }

    /// Lets packets be handled at this level. Returns false when a program stays in the lane.
    pub(crate) fn set_level(&mut self, level: u32, now: CoarseInstant) -> bool {
        let set = self.alone(now, |service| service.shared_mut().map(|it| it.set_home(level)));
        set.flatten().is_some()
    }

    /// Has something done. Returns false when too much waits already.
    pub(crate) fn ask(&mut self, control: Control) -> bool {
        self.agenda.ask(control)
    }

    /// Runs the service on one packet and does what it says. What the front door has counted
    /// leaves here, or, when it is passed on, by [`Service::leave`] behind the last service.
    #[inline]
    pub(crate) fn handle(
        &mut self,
        engine: &Engine,
        packet: Packet,
        way: &Way,
        now: CoarseInstant,
        exits: &mut Exits<'_>,
    ) -> Aftermath {
        self.outlet.counters_mut().count_in(&packet);
        if way.is_counted() || self.instances.shared().is_none() {
            // What the module did below is taken over before the first packet of a batch: it cannot
            // have run again between two of them, since the lane goes below only when all are gone.
            // To look for each would take the lane's cache line from the front door each time.
            if self.looked_in != way.batch {
                self.looked_in = way.batch;
                if self.instances.has_run() {
                    self.take_over(now);
                }
            }
            let mut after = self.run(engine, packet, way, now, exits);
            let is_through = way.is_counted() && !after.passed_on;
            after.leaves = is_through && self.instances.leave(way.meta.epoch());
            return after;
        }
        // Its lane may be below, and has not heard of this packet: it never goes down.
        let mut packet = Some(packet);
        let after =
            self.alone(now, |service| Some(service.run(engine, packet.take()?, way, now, exits)));
        if let Some(packet) = packet {
            exits.recycle(packet);
            self.outlet.counters_mut().count(Ending::Down);
        }
        after.flatten().unwrap_or_default()
    }

    #[inline]
    fn run(
        &mut self,
        engine: &Engine,
        packet: Packet,
        way: &Way,
        now: CoarseInstant,
        exits: &mut Exits<'_>,
    ) -> Aftermath {
        let index = self.lane_of(&packet, way);
        if self.instances.lane(index).is_starting() {
            self.start_all(engine, now);
        }
        let Some(instance) = self.instances.lane_mut(index).instance() else {
            let passed_on = self.outlet.go_without(packet, way, self.facts.closed, exits);
            let trapped = !self.untold.is_empty();
            return Aftermath { trapped, passed_on, ..Aftermath::default() };
        };
        let begun = self.outlet.counters().begin_call();
        let meta = way.module_meta(self.facts.session, now);
        let handled = instance.handle(packet, &meta);
        self.outlet.counters_mut().end_call(begun);
        let after = self.finish(index, handled, way, now, exits);
        if after.trapped {
            self.start_all(engine, now);
            self.settle_hold();
        }
        after
    }

    /// Returns the lane of a packet.
    #[inline]
    fn lane_of(&self, packet: &Packet, way: &Way) -> usize {
        let meta = || {
            let mark = [0; MARK_LENGTH];
            way::module_meta(&way.meta, self.facts.session, mark, CoarseInstant::ZERO)
        };
        self.instances.pools().lane_of(packet, way.meta.flow_hash, meta)
    }

    /// Does what a module says of a packet.
    #[inline]
    fn finish(
        &mut self,
        index: usize,
        handled: Handled<Packet>,
        way: &Way,
        now: CoarseInstant,
        exits: &mut Exits<'_>,
    ) -> Aftermath {
        let Handled { packet, verdict, mark, emitted } = handled;
        let is_data = way.meta.flags & META_DATA != 0;
        if let Some(tap) = exits.tap().filter(|_| !is_data) {
            tap.decided((self.facts.entry, self.facts.session), &way.meta, &packet, &verdict);
        }
        let has_emitted = emitted.is_some();
        if let Some(emitted) = emitted {
            self.left.push(*emitted);
        }
        let passed_on = match verdict {
            Ok(verdict) => self.outlet.deliver(packet, verdict, (way, mark), exits),
            Err(trap) => {
                exits.recycle(packet);
                self.outlet.counters_mut().count(Ending::Trap);
                self.replace(index, trap, now);
                false
            }
        };
        let trapped = !self.untold.is_empty();
        Aftermath { trapped, emitted: has_emitted, passed_on, leaves: false }
    }

    /// Has a packet wait for the session's turn; returns what waits for that, if it had nothing to
    /// do before.
    #[inline]
    pub(crate) fn enqueue(&mut self, packet: Packet, way: Way) -> Option<Task> {
        let index = self.lane_of(&packet, &way);
        let pool = self.instances.pool_of(index);
        let has_come_to_work = !self.wants(pool);
        self.instances.lane_mut(index).push(packet, way);
        has_come_to_work.then(|| self.instances.task(self.facts.entry, pool))
    }

    /// Ends a packet for which there was no room.
    pub(crate) fn refuse(&mut self, packet: Packet, way: &Way, pool: &mut FramePool) -> Turn {
        let mut turn = Turn::default();
        self.outlet.counters_mut().count_in(&packet);
        self.outlet.counters_mut().count(Ending::Queue);
        packet.recycle(pool);
        self.through(way, &mut turn);
        turn
    }

    /// Works on what waits for a pool, one lane in a turn, as far as its portion goes.
    pub(crate) fn work(
        &mut self,
        engine: &Engine,
        pool: usize,
        portion: Portion,
        now: CoarseInstant,
        exits: &mut Exits<'_>,
    ) -> Turn {
        let step = self.step();
        let is_ours = |step: Step| self.instances.pool_of(step.lane) == pool;
        if step.is_some_and(|step| is_ours(step) && self.instances.may_take(step)) {
            return self.answer(engine, portion.until, now);
        }
        let mut turn = Turn::default();
        let Some(index) = self.instances.take_turn(pool, step) else { return turn };
        let mut running = Running::new(now, exits, &mut turn);
        if self.instances.lane(index).is_empty() {
            running.bypass(self, index);
            return turn;
        }
        if !self.instances.lane(index).stands() {
            if !running.may_begin(self, index) {
                running.give_up(self, index);
                return turn;
            }
            if self.instances.lane(index).is_starting() {
                // It trapped below, and starts again first.
                turn.after.trapped = true;
                return turn;
            }
        }
        let ran = if self.facts.brief && !self.instances.lane(index).stands() {
            running.run_briefly(self, index, portion)
        } else {
            running.run(self, index, portion)
        };
        if let Some(each) = ran.0.checked_div(turn.handled) {
            self.packet = Nanos((7 * self.packet.0 + each) / 8);
        }
        self.outlet.counters_mut().count_calls(turn.handled, ran);
        self.settle_hold();
        turn
    }

    /// Notes that a packet has left its graph: the lane that has counted it may know.
    fn through(&mut self, way: &Way, turn: &mut Turn) {
        match way.counted_by {
            _ if way.is_counted() => turn.after.leaves |= self.instances.leave(way.meta.epoch()),
            Some(entry) => turn.departed.push((entry, way.meta.epoch())),
            None => {}
        }
    }

    /// Returns the packet that was passed on, and how it comes to the next service.
    #[inline]
    pub(crate) fn take_onward(&mut self) -> Option<(Packet, Way)> {
        self.outlet.take_onward()
    }

    /// Notes that a packet which its lane has counted has left the last service of its graph;
    /// returns true when it is to [`Service::depart`].
    #[inline]
    pub(crate) fn leave(&mut self, epoch: u8) -> bool {
        self.instances.leave(epoch)
    }

    /// Notes that the devices have all packets that left.
    pub(crate) fn depart(&mut self) {
        self.instances.depart();
    }

    /// Ends every lane; returns what waited for them, and how those came that were given up.
    pub(crate) fn dissolve(&mut self, pool: &mut FramePool) -> (Vec<(Packet, Way)>, Vec<Way>) {
        self.instances.dissolve(pool)
    }

    /// Does a step beside packets, at most until then.
    pub(crate) fn answer(&mut self, engine: &Engine, until: Nanos, now: CoarseInstant) -> Turn {
        let mut turn = Turn::default();
        if self.agenda.is_new() || self.instances.starting().is_some() {
            let told = match self.start_on(engine, until, now) {
                Starts::More => None,
                Starts::All => Some(Ok(())),
                Starts::Failed(error) => Some(Err(error)),
            };
            if let Some(told) = told
                && self.agenda.take_new()
            {
                turn.told = Some(Told::Started(told));
            }
        } else if let Some(current) = self.agenda.take_current() {
            let current = current.go_on(self, engine, (until, now), &mut turn);
            self.agenda.set_current(current);
        } else if let Some(control) = self.agenda.take_control() {
            let current = control.take_up(self, now, &mut turn);
            self.agenda.set_current(current);
        }
        turn.after.emitted = true;
        turn.after.trapped |= !self.untold.is_empty() || self.succession.has_sequel();
        self.settle_hold();
        turn
    }

    /// Goes on with the first lane that is starting.
    fn start_on(&mut self, engine: &Engine, until: Nanos, now: CoarseInstant) -> Starts {
        let Self { agenda, instances, version, outlet, .. } = self;
        let of = (engine, &*version);
        instances.start_on(of, agenda.is_new(), (until, now), outlet.counters_mut())
    }

    /// Starts to the end what is to start: where nobody takes turns.
    #[cold]
    fn start_all(&mut self, engine: &Engine, now: CoarseInstant) {
        while self.instances.starting().is_some() {
            self.start_on(engine, Nanos(u64::MAX), now);
        }
    }

    /// Throws a trapped instance away and has another start in its place; or, when the module is
    /// a new version of a service, has the one before back. Notes the trap for the daemon.
    fn replace(&mut self, lane: usize, trap: Trap, now: CoarseInstant) {
        // What a call was told is sent is sent, however the call ends.
        if let Some(instance) = self.instances.lane_mut(lane).instance()
            && instance.has_emitted()
        {
            self.left.push(instance.take_emitted());
        }
        if !self.put_back(&trap) {
            self.instances.start_again(lane, now);
        }
        self.outlet.counters_mut().count_trap(&trap);
        self.untold.push(Trapped { lane: lane as u32, trap });
    }

    /// Goes on from what the module did below user level.
    #[cold]
    fn take_over(&mut self, now: CoarseInstant) {
        if let Below::Trapped(trap) = self.instances.take_over(&self.version) {
            self.replace(0, trap, now);
        }
    }

    /// Has the memory of the service for itself until [`Service::settle_hold`]: nobody below is
    /// in it. Returns false when a program stays there.
    fn hold(&mut self, now: CoarseInstant) -> bool {
        if !self.instances.hold() {
            return false;
        }
        if self.instances.has_run() {
            self.take_over(now);
        }
        true
    }

    /// Gives the memory back when nothing here needs it any more.
    fn settle_hold(&mut self) {
        self.instances.settle(self.agenda.is_at_work());
    }

    /// Does something with the instances while nobody below can be in their memory. Not at
    /// all when a program stays there: `None`.
    fn alone<R>(&mut self, now: CoarseInstant, act: impl FnOnce(&mut Self) -> R) -> Option<R> {
        if self.stands() || !self.hold(now) {
            return None;
        }
        let result = act(self);
        self.settle_hold();
        Some(result)
    }

    /// Asks for what is due by the exact clock (the timer's hook, lanes that wait to be started
    /// again) and returns when to be called next. A hook that still waits stands for the ticks
    /// behind it.
    pub(crate) fn tick(&mut self, now: CoarseInstant) -> CoarseInstant {
        if !self.stands() {
            let has_trapped = self.shared().is_some_and(|shared| shared.trapped().is_some());
            if has_trapped && self.hold(now) {
                self.settle_hold();
            }
            self.instances.try_again(now);
        }
        if self.timer.as_mut().is_some_and(|timer| timer.take(now.as_nanos())) {
            self.ask(Control::Timer);
        }
        let timer_at =
            self.timer.map_or(CoarseInstant::NEVER, |timer| CoarseInstant::from_nanos(timer.due()));
        let restart = self.instances.restart_at();
        // What is due waits until the call has ended that stands still.
        let restart = if self.stands() { restart.max(now + Millis(1)) } else { restart };
        let below = self.instances.shared().filter(|shared| shared.may_be_below());
        let look = below.map_or(CoarseInstant::NEVER, |_| now + LOOK_BELOW);
        let watch = self.succession.handle_timeout(now);
        restart.min(timer_at).min(look).min(watch)
    }

    /// Gives another version this one's place; this one is kept while the other is watched.
    fn give_way(&mut self, mut next: Self, now: CoarseInstant) {
        next.inherit(self);
        next.agenda.take_new();
        next.succession = self.succession.next();
        let old = std::mem::replace(self, next);
        let succession = Succession::default();
        self.succession.keep(Box::new(Self { succession, ..old }), now);
    }

    /// Has the version before back, if this one was still watched: it trapped.
    fn put_back(&mut self, trap: &Trap) -> bool {
        let Some(before) = self.succession.take_before() else { return false };
        let mut old = *before;
        old.inherit(self);
        if let Some(shared) = old.instances.shared() {
            shared.clear_trap();
        }
        old.succession = self.succession.next();
        old.succession.put_back(trap.to_string());
        *self = old;
        true
    }

    /// Goes on where `before` was: its counters, its edges, its lane, and what waits.
    fn inherit(&mut self, before: &mut Self) {
        self.outlet.inherit(&mut before.outlet);
        self.untold = std::mem::take(&mut before.untold);
        for (packet, way) in before.instances.take_all_waiting() {
            self.enqueue(packet, way);
        }
        self.left.append(&mut before.left);
        self.agenda.inherit(&mut before.agenda);
        // Its own wishes, in place of those of the one before.
        (self.watching.within, self.watching.is_new) = (before.watching.within, true);
        self.looked_in = before.looked_in;
        self.instances.inherit(&mut before.instances);
    }

    /// Sends frames that the lanes left since the last call; the rest goes into `outbox`.
    pub(crate) fn take_emitted(&mut self, exits: &mut Exits<'_>, outbox: &mut Outbox) {
        let entry = self.facts.entry;
        self.left.extend(self.instances.take_emitted());
        for emitted in self.left.drain(..) {
            if emitted.watch.is_some() {
                (self.watching.wanted, self.watching.is_new) = (emitted.watch, true);
            }
            outbox.events.extend(emitted.events.into_iter().map(|event| (entry, event)));
            outbox.messages.extend(emitted.messages.into_iter().map(|message| (entry, message)));
            for sent in emitted.sent {
                self.outlet.send(sent.port, &sent.frame, exits);
            }
        }
    }

    /// Sends frames that in-kernel programs left; the rest goes into `outbox`. Takes at most so
    /// much that others have their turn.
    pub(crate) fn take_records(&mut self, exits: &mut Exits<'_>, outbox: &mut Outbox) {
        let Self { facts, outlet, instances, succession, .. } = self;
        let entry = facts.entry;
        let mut before = succession.shared_before();
        let mut now = instances.shared_mut();
        for _ in 0..RECORDS_PER_TURN {
            let Some(shared) = before.as_mut().or(now.as_mut()) else { return };
            let taken = shared.next_record(|bytes| match Record::parse(bytes) {
                Ok(Record::Event { code, data, .. }) => {
                    let data = data.to_vec();
                    outbox.events.push((entry, engine::Event { code, data }));
                }
                Ok(Record::Message { message, .. }) => {
                    outbox.messages.push((entry, message.to_vec()));
                }
                Ok(Record::Send { port, frame, .. }) => outlet.send(port, frame, exits),
                Err(error) => outlet.counters_mut().note_failure(error.to_string()),
            });
            match taken {
                Ok(Some(())) => {}
                // The version before is asked first, and not again.
                Ok(None) if before.take().is_none() => now = None,
                Ok(None) => {}
                Err(error) => {
                    outlet.counters_mut().note_failure(error.to_string());
                    return;
                }
            }
        }
    }

    /// Returns what is to be said of its session's queue from now on, if that is news: in which
    /// session no more, and in which.
    pub(crate) fn take_watch(&mut self) -> Option<(Option<SessionId>, Option<QueueWatch>)> {
        if !std::mem::take(&mut self.watching.is_new) {
            return None;
        }
        let before = self.watching.within.take();
        self.watching.within = self.watching.wanted.map(|_| self.facts.session);
        Some((before, self.watching.wanted))
    }

    /// Returns traps since the last call, and what became of a replacement.
    pub(crate) fn take_notices(&mut self) -> Notices {
        Notices {
            trapped: std::mem::take(&mut self.untold),
            traps: self.outlet.counters().traps(),
            sequel: self.succession.take_sequel(),
        }
    }
}
