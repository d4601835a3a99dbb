//! Service of a cell: its instances, their packet queues, the edges its packets take, its traps.
//!
//! ```text
//!   enqueue ─▶ lane: waiting ─ work(until) ─▶ finish ─▶ OutputEdges: out, or onward to the next service
//!                      ▲             │ turn over: a call is suspended
//!                      └─────────────┘ the next turn resumes it
//!   request ─▶ Agenda ─ run_step ─▶ hooks, starts, the next version ─▶ Notice
//! ```

mod agenda;
mod counters;
mod instances;
mod lane;
pub(crate) mod loader;
pub(crate) mod mailbox;
mod mappings;
pub(crate) mod message;
mod origin;
mod output_edges;
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

pub(crate) use agenda::Control;
pub(crate) use origin::Origin;
pub(crate) use replace::ReplaceOutcome;
pub(crate) use turns::{Aftermath, Notices, Outbox, Reply, TurnResult};

use crate::below::Record;
use crate::datapath::EgressPath;
use crate::memory::{Charge, Memory};
use crate::protocol::{ServiceReport, ServiceSpec};
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
use level::prefetch;
use output_edges::OutputEdges;
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

/// Time after which the start of a lane's instance is tried again.
const RESTART_AFTER: Millis = Millis(100);
/// Records of one service that are handled in a row, before those of other services.
const RECORDS_PER_TURN: usize = 64;
/// Period at which a lane below user level is checked for a trap.
const LOOK_BELOW: Millis = Millis(10);

/// Running service. Fields that each turn reads come first, and are prefetched; of those, the
/// fields that a packet reads when it is queued come first.
#[repr(C)]
pub(crate) struct Service {
    facts: Essentials,
    agenda: Agenda,
    instances: Instances,
    /// Time that a packet takes in its turns, as a moving average.
    packet: Nanos,
    output_edges: OutputEdges,
    /// Traps not yet reported to the daemon.
    untold: Vec<Trapped>,
    /// Events, frames and messages of ended calls.
    left: Vec<Emitted>,
    version: Version,
    /// Timer of the module, on the exact clock.
    timer: Option<Ticks>,
    /// Last batch before whose first packet the state of in-kernel programs was taken over.
    looked_in: Option<u64>,
    watching: Watching,
    succession: Succession,
}

const _: () = assert!(size_of::<Option<Service>>() == size_of::<Service>(), "nothing is in front");

/// Bytes of a service that a packet reads when it is queued.
const WAITING_LENGTH: usize = std::mem::offset_of!(Service, instances) + Instances::WAITING_LENGTH;

/// Parts of the service's facts that are read while it runs.
#[derive(Clone, Copy)]
struct Essentials {
    entry: EntryId,
    /// Session that pays.
    session: SessionId,
    /// Set if a call on a packet is so short that it need not be preemptible.
    brief: bool,
    /// Failure policy: packets that the service cannot handle are dropped if set, else forwarded
    /// plainly.
    closed: bool,
}

/// Subscription of a service to its session's queue.
#[derive(Default)]
struct Watching {
    wanted: Option<QueueWatch>,
    /// Set until the latest change of `wanted` has been applied.
    is_new: bool,
    /// Session whose queue it watches.
    within: Option<SessionId>,
}

/// Service with everything that its start needs.
pub(crate) struct Ready {
    pub(crate) program: Program<Packet>,
    pub(crate) facts: ServiceSpec,
    /// Ports by name.
    pub(crate) ports: BTreeMap<String, u16>,
    pub(crate) shared: Option<Shared>,
    /// Account of memory, and what the service is charged already.
    pub(crate) memory: Memory,
    pub(crate) charge: Charge,
}

impl Service {
    /// Creates a service whose lanes are to start ([`Service::run_step`]), each with the state that
    /// an earlier instance left, if any.
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
        let ServiceSpec { entry, session, brief, closed, .. } = facts;
        Self {
            facts: Essentials { entry, session, brief, closed },
            agenda: Agenda::new(),
            instances: Instances::new(pools, lanes, shared, pacer),
            packet: Nanos::ZERO,
            output_edges: OutputEdges::new(entry),
            untold: Vec::new(),
            left: Vec::new(),
            version,
            timer: period.map(|period| Ticks::start(now.as_nanos(), period)),
            looked_in: None,
            watching: Watching::default(),
            succession: Succession::default(),
        }
    }

    /// Prefetches what a packet reads when it is queued, without reading any of it.
    #[inline]
    pub(crate) fn load_for_packet(slot: &Option<Self>) {
        prefetch::load_first(slot, WAITING_LENGTH);
    }

    /// Prefetches what a turn reads here.
    #[inline]
    pub(crate) fn load_for_turn(slot: &Option<Self>) {
        prefetch::load_first(slot, std::mem::offset_of!(Self, version));
    }

    /// Prefetches in steps what a turn with a packet reads beyond the service itself: each step
    /// needs what the one before has loaded.
    #[inline]
    pub(crate) fn load_ahead(&self, step: u8) {
        self.instances.load_ahead(step);
    }

    /// Returns the number of the service.
    #[inline]
    pub(crate) const fn entry(&self) -> EntryId {
        self.facts.entry
    }

    /// Returns the session that pays.
    #[inline]
    pub(crate) const fn session(&self) -> SessionId {
        self.facts.session
    }

    /// Returns the number of bytes that its packets had when they were sent.
    pub(crate) const fn bytes_out(&self) -> Bytes {
        self.output_edges.counters().bytes_out()
    }

    /// Returns the counters and states of the service.
    pub(crate) fn report(&mut self) -> ServiceReport {
        let mut report = self.output_edges.counters().report();
        self.instances.report(&mut report);
        report
    }

    /// Returns the number of lanes.
    pub(crate) fn lane_count(&self) -> usize {
        self.instances.lanes()
    }

    /// Returns true if an edge of the service leads directly to `entry`.
    pub(crate) fn leads_to(&self, entry: EntryId) -> bool {
        self.output_edges.leads_to(entry)
    }

    /// Returns the session whose queue it watches.
    pub(crate) const fn watches_in(&self) -> Option<SessionId> {
        self.watching.within
    }

    /// Returns the level (`LEVEL_*`) at which the daemon wants its packets; `None` if it cannot
    /// leave user level.
    pub(crate) fn home(&self) -> Option<u32> {
        self.instances.shared().map(Shared::home)
    }

    /// Returns the memory shared with the kernel, of a service that can leave user level.
    pub(crate) fn shared(&self) -> Option<&Shared> {
        self.instances.shared()
    }

    /// Returns the memory shared with the kernel, of a service that can leave user level.
    pub(crate) fn shared_mut(&mut self) -> Option<&mut Shared> {
        self.instances.shared_mut()
    }

    /// Returns true until the daemon has confirmed that it knows the running version.
    pub(crate) const fn is_unknown(&self) -> bool {
        self.succession.is_unknown()
    }

    /// Returns the epochs of packets here that were counted by the lane of `entry`.
    pub(crate) fn epochs_counted_by(&self, entry: EntryId) -> impl Iterator<Item = u8> {
        let own = self.facts.entry;
        self.instances.origins().filter_map(move |origin| origin.epoch_counted_by(entry, own))
    }

    /// Returns true if nothing waits and no call is suspended.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        !self.agenda.has_work() && self.instances.is_idle()
    }

    /// Returns true if the next turn is so short that it need not be preemptible: there are only
    /// packets, and the module is bounded.
    #[inline]
    pub(crate) fn is_brief(&self) -> bool {
        self.facts.brief && !self.is_blocked()
    }

    /// Returns true if packets cannot begin: a call is suspended, a packet that the front door did
    /// not count uses the lane, or a request comes first.
    pub(crate) fn is_blocked(&self) -> bool {
        self.instances.is_held()
            || self.agenda.has_work()
            || self.instances.starting().is_some()
            || self.instances.is_suspended()
    }

    /// Returns true if a request can make progress now.
    pub(crate) fn may_run_step(&self) -> bool {
        self.step().is_some_and(|step| self.instances.may_take(step))
    }

    /// Returns true if a pool has work.
    #[inline]
    pub(crate) fn wants(&self, pool: usize) -> bool {
        self.instances.wants(pool, || self.step())
    }

    /// Returns the other pools with work, as tasks.
    pub(crate) fn others_that_want(&self, pool: usize) -> impl Iterator<Item = Task> {
        let others = (0..self.instances.pools().count()).filter(move |&other| other != pool);
        others
            .filter(|&other| self.wants(other))
            .map(|other| self.instances.task(self.facts.entry, other))
    }

    /// Returns the task of the pool that handles the next request.
    pub(crate) fn request_task(&self) -> Option<Task> {
        self.step()
            .map(|step| self.instances.task(self.facts.entry, self.instances.pool_of(step.lane)))
    }

    /// Returns the number of packets that fit into `time`, if each takes `sending` to be sent, and
    /// the time to send them.
    pub(crate) fn fit(&self, time: Nanos, sending: Nanos) -> (u64, Nanos) {
        let packets = (time.0 / (self.packet.0 + sending.0).max(1)).clamp(1, FILL);
        (packets, Nanos(packets * sending.0))
    }

    /// Returns the next step of a request, with its lane.
    #[inline]
    fn step(&self) -> Option<Step> {
        self.agenda.step(&self.instances)
    }

    /// Counts bytes of packets that were sent.
    #[inline]
    pub(crate) const fn count_sent(&mut self, bytes: u64) {
        self.output_edges.counters_mut().count_sent(bytes);
    }

    /// Sets the failure policy: packets that the service cannot handle are dropped if set, else
    /// forwarded plainly.
    pub(crate) const fn set_closed(&mut self, closed: bool) {
        self.facts.closed = closed;
    }

    /// Sets the edges out of the service.
    pub(crate) const fn set_edges(&mut self, edges: [Edge; EDGES_MAX]) {
        self.output_edges.set_edges(edges);
    }

    /// Counts a confirmation by the daemon that it knows a change of version.
    pub(crate) const fn become_known(&mut self) {
        self.succession.become_known();
    }

    /// Allows packets to be handled at this level. Returns false if a program stays in the lane.
    pub(crate) fn set_level(&mut self, level: u32, now: CoarseInstant) -> bool {
        let set = self.alone(now, |service| service.shared_mut().map(|it| it.set_home(level)));
        set.flatten().is_some()
    }

    /// Queues a request. Returns false if the queue is full.
    pub(crate) fn request(&mut self, control: Control) -> bool {
        self.agenda.request(control)
    }

    /// Runs the service on one packet and applies the verdict. A packet counted by the front door
    /// is counted as gone here, or by [`Service::release`] after the last service, if it is passed
    /// on.
    #[inline]
    pub(crate) fn handle(
        &mut self,
        engine: &Engine,
        packet: Packet,
        origin: &Origin,
        now: CoarseInstant,
        egress_path: &mut EgressPath<'_>,
    ) -> Aftermath {
        self.output_edges.counters_mut().count_in(&packet);
        if origin.is_counted() || self.instances.shared().is_none() {
            // The state of in-kernel programs is taken over before the first packet of a batch.
            // They cannot have run between two packets of it, since the lane goes down only when
            // all are gone. Checking for each packet would take the lane's cache line from the
            // front door each time.
            if self.looked_in != origin.batch {
                self.looked_in = origin.batch;
                if self.instances.has_run() {
                    self.take_over(now);
                }
            }
            let mut after = self.run(engine, packet, origin, now, egress_path);
            let is_through = origin.is_counted() && !after.passed_on;
            after.is_leaving = is_through && self.instances.release(origin.meta.epoch());
            return after;
        }
        // The lane may be below user level and did not count this packet, which never goes down.
        let mut packet = Some(packet);
        let after = self.alone(now, |service| {
            Some(service.run(engine, packet.take()?, origin, now, egress_path))
        });
        if let Some(packet) = packet {
            egress_path.recycle(packet);
            self.output_edges.counters_mut().count(Ending::Down);
        }
        after.flatten().unwrap_or_default()
    }

    #[inline]
    fn run(
        &mut self,
        engine: &Engine,
        packet: Packet,
        origin: &Origin,
        now: CoarseInstant,
        egress_path: &mut EgressPath<'_>,
    ) -> Aftermath {
        let index = self.lane_of(&packet, origin);
        if self.instances.lane(index).is_starting() {
            self.start_all(engine, now);
        }
        let Some(instance) = self.instances.lane_mut(index).instance() else {
            let passed_on =
                self.output_edges.go_without(packet, origin, self.facts.closed, egress_path);
            let trapped = !self.untold.is_empty();
            return Aftermath { trapped, passed_on, ..Aftermath::default() };
        };
        let begun = self.output_edges.counters().begin_call();
        let meta = origin.module_meta(self.facts.session, now);
        let handled = instance.handle(packet, &meta);
        self.output_edges.counters_mut().end_call(begun);
        let after = self.finish(index, handled, origin, now, egress_path);
        if after.trapped {
            self.start_all(engine, now);
            self.settle_hold();
        }
        after
    }

    /// Returns the lane of a packet.
    #[inline]
    fn lane_of(&self, packet: &Packet, origin: &Origin) -> usize {
        let meta = || {
            let mark = [0; MARK_LENGTH];
            origin::module_meta(&origin.meta, self.facts.session, mark, CoarseInstant::ZERO)
        };
        self.instances.pools().lane_of(packet, origin.meta.flow_hash, meta)
    }

    /// Applies a module's verdict to a packet.
    #[inline]
    fn finish(
        &mut self,
        index: usize,
        handled: Handled<Packet>,
        origin: &Origin,
        now: CoarseInstant,
        egress_path: &mut EgressPath<'_>,
    ) -> Aftermath {
        let Handled { packet, verdict, mark, emitted } = handled;
        let is_data = origin.meta.flags & META_DATA != 0;
        if let Some(capture) = egress_path.capture().filter(|_| !is_data) {
            capture.on_verdict(
                (self.facts.entry, self.facts.session),
                &origin.meta,
                &packet,
                &verdict,
            );
        }
        let has_emitted = emitted.is_some();
        if let Some(emitted) = emitted {
            self.left.push(*emitted);
        }
        let passed_on = match verdict {
            Ok(verdict) => self.output_edges.deliver(packet, verdict, (origin, mark), egress_path),
            Err(trap) => {
                egress_path.recycle(packet);
                self.output_edges.counters_mut().count(Ending::Trap);
                self.replace(index, trap, now);
                false
            }
        };
        let trapped = !self.untold.is_empty();
        Aftermath { trapped, emitted: has_emitted, passed_on, is_leaving: false }
    }

    /// Queues a packet for the session's turn. Returns the task if it had no work before.
    #[inline]
    pub(crate) fn enqueue(&mut self, packet: Packet, origin: Origin) -> Option<Task> {
        let index = self.lane_of(&packet, &origin);
        let pool = self.instances.pool_of(index);
        let has_come_to_work = !self.wants(pool);
        self.instances.lane_mut(index).push(packet, origin);
        has_come_to_work.then(|| self.instances.task(self.facts.entry, pool))
    }

    /// Drops a packet for which there was no queue credit.
    pub(crate) fn refuse(
        &mut self,
        packet: Packet,
        origin: &Origin,
        pool: &mut FramePool,
    ) -> TurnResult {
        let mut turn = TurnResult::default();
        self.output_edges.counters_mut().count_in(&packet);
        self.output_edges.counters_mut().count(Ending::Queue);
        packet.recycle(pool);
        self.through(origin, &mut turn);
        turn
    }

    /// Runs a pool for one turn: the next lane with work, as far as `portion` allows.
    pub(crate) fn work(
        &mut self,
        engine: &Engine,
        pool: usize,
        portion: Portion,
        now: CoarseInstant,
        egress_path: &mut EgressPath<'_>,
    ) -> TurnResult {
        let step = self.step();
        let is_ours = |step: Step| self.instances.pool_of(step.lane) == pool;
        if step.is_some_and(|step| is_ours(step) && self.instances.may_take(step)) {
            return self.run_step(engine, portion.until, now);
        }
        let mut turn = TurnResult::default();
        let Some(index) = self.instances.take_turn(pool, step) else { return turn };
        let mut running = Running::new(now, egress_path, &mut turn);
        if self.instances.lane(index).is_empty() {
            running.bypass(self, index);
            return turn;
        }
        if !self.instances.lane(index).is_suspended() {
            if !running.may_begin(self, index) {
                running.give_up(self, index);
                return turn;
            }
            if self.instances.lane(index).is_starting() {
                // The instance trapped below user level, and is started again first.
                turn.after.trapped = true;
                return turn;
            }
        }
        let ran = if self.facts.brief && !self.instances.lane(index).is_suspended() {
            running.run_briefly(self, index, portion)
        } else {
            running.run(self, index, portion)
        };
        if let Some(each) = ran.0.checked_div(turn.handled) {
            self.packet = Nanos((7 * self.packet.0 + each) / 8);
        }
        self.output_edges.counters_mut().count_calls(turn.handled, ran);
        self.settle_hold();
        turn
    }

    /// Counts a packet that has left its graph as gone from the lane that counted it.
    fn through(&mut self, origin: &Origin, turn: &mut TurnResult) {
        match origin.counted_by {
            _ if origin.is_counted() => {
                turn.after.is_leaving |= self.instances.release(origin.meta.epoch())
            }
            Some(entry) => turn.departed.push((entry, origin.meta.epoch())),
            None => {}
        }
    }

    /// Returns the packet that was passed on, with its origin for the next service.
    #[inline]
    pub(crate) fn take_onward(&mut self) -> Option<(Packet, Origin)> {
        self.output_edges.take_onward()
    }

    /// Counts a packet of its lane that has left the last service of its graph. Returns true if
    /// [`Service::publish_departures`] must be called.
    #[inline]
    pub(crate) fn release(&mut self, epoch: u8) -> bool {
        self.instances.release(epoch)
    }

    /// Publishes departures, once the devices have sent all packets.
    pub(crate) fn publish_departures(&mut self) {
        self.instances.publish_departures();
    }

    /// Ends every lane. Returns the queued packets, and the origins of those that were dropped.
    pub(crate) fn dissolve(
        &mut self,
        pool: &mut FramePool,
    ) -> (Vec<(Packet, Origin)>, Vec<Origin>) {
        self.instances.dissolve(pool)
    }

    /// Runs one step of a request, until `until` at most.
    pub(crate) fn run_step(
        &mut self,
        engine: &Engine,
        until: Nanos,
        now: CoarseInstant,
    ) -> TurnResult {
        let mut turn = TurnResult::default();
        if self.agenda.is_new() || self.instances.starting().is_some() {
            let reply = match self.start_on(engine, until, now) {
                Starts::More => None,
                Starts::All => Some(Ok(())),
                Starts::Failed(error) => Some(Err(error)),
            };
            if let Some(reply) = reply
                && self.agenda.take_new()
            {
                turn.reply = Some(Reply::Started(reply));
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

    /// Continues the start of the first lane that is starting.
    fn start_on(&mut self, engine: &Engine, until: Nanos, now: CoarseInstant) -> Starts {
        let Self { agenda, instances, version, output_edges, .. } = self;
        let of = (engine, &*version);
        instances.start_on(of, agenda.is_new(), (until, now), output_edges.counters_mut())
    }

    /// Starts all lanes that are to start, without a time limit: for cells whose sessions do not
    /// take turns.
    #[cold]
    fn start_all(&mut self, engine: &Engine, now: CoarseInstant) {
        while self.instances.starting().is_some() {
            self.start_on(engine, Nanos(u64::MAX), now);
        }
    }

    /// Discards a trapped instance and starts another; or puts the old version back, if the module
    /// is a new version on probation. Records the trap for the daemon.
    fn replace(&mut self, lane: usize, trap: Trap, now: CoarseInstant) {
        // Frames that the call has sent are sent, however it ends.
        if let Some(instance) = self.instances.lane_mut(lane).instance()
            && instance.has_emitted()
        {
            self.left.push(instance.take_emitted());
        }
        if !self.put_back(&trap) {
            self.instances.start_again(lane, now);
        }
        self.output_edges.counters_mut().count_trap(&trap);
        self.untold.push(Trapped { lane: lane as u32, trap });
    }

    /// Takes over the state that in-kernel programs left.
    #[cold]
    fn take_over(&mut self, now: CoarseInstant) {
        if let Below::Trapped(trap) = self.instances.take_over(&self.version) {
            self.replace(0, trap, now);
        }
    }

    /// Takes the memory of the service for this thread until [`Service::settle_hold`]. Returns
    /// false if a program stays in it.
    fn hold(&mut self, now: CoarseInstant) -> bool {
        if !self.instances.hold() {
            return false;
        }
        if self.instances.has_run() {
            self.take_over(now);
        }
        true
    }

    /// Returns the memory when nothing here needs it any more.
    fn settle_hold(&mut self) {
        self.instances.settle(self.agenda.is_at_work());
    }

    /// Runs `act` while no program can be in the instances' memory. Returns `None`, without running
    /// it, if a program stays there.
    fn alone<R>(&mut self, now: CoarseInstant, act: impl FnOnce(&mut Self) -> R) -> Option<R> {
        if self.is_blocked() || !self.hold(now) {
            return None;
        }
        let result = act(self);
        self.settle_hold();
        Some(result)
    }

    /// Queues what is due by the exact clock (timers, restarts of lanes) and returns the next time
    /// to be called. A timer hook that still waits covers later ticks.
    pub(crate) fn tick(&mut self, now: CoarseInstant) -> CoarseInstant {
        if !self.is_blocked() {
            let has_trapped = self.shared().is_some_and(|shared| shared.trapped().is_some());
            if has_trapped && self.hold(now) {
                self.settle_hold();
            }
            self.instances.try_again(now);
        }
        if self.timer.as_mut().is_some_and(|timer| timer.take(now.as_nanos())) {
            self.request(Control::Timer);
        }
        let timer_at =
            self.timer.map_or(CoarseInstant::NEVER, |timer| CoarseInstant::from_nanos(timer.due()));
        let restart = self.instances.restart_at();
        // Due work waits until the suspended call has ended.
        let restart = if self.is_blocked() { restart.max(now + Millis(1)) } else { restart };
        let below = self.instances.shared().filter(|shared| shared.may_be_below());
        let look = below.map_or(CoarseInstant::NEVER, |_| now + LOOK_BELOW);
        let watch = self.succession.handle_timeout(now);
        restart.min(timer_at).min(look).min(watch)
    }

    /// Replaces this version by another; this one is kept while the other is on probation.
    fn give_way(&mut self, mut next: Self, now: CoarseInstant) {
        next.inherit(self);
        next.agenda.take_new();
        next.succession = self.succession.next();
        let old = std::mem::replace(self, next);
        let succession = Succession::default();
        self.succession.keep(Box::new(Self { succession, ..old }), now);
    }

    /// Puts the old version back if this one, which trapped, is on probation.
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

    /// Takes over from `before`: counters, edges, lane, and queued packets.
    fn inherit(&mut self, before: &mut Self) {
        self.output_edges.inherit(&mut before.output_edges);
        self.untold = std::mem::take(&mut before.untold);
        for (packet, origin) in before.instances.take_all_waiting() {
            self.enqueue(packet, origin);
        }
        self.left.append(&mut before.left);
        self.agenda.inherit(&mut before.agenda);
        // Its own subscription, in place of that of the version before.
        (self.watching.within, self.watching.is_new) = (before.watching.within, true);
        self.looked_in = before.looked_in;
        self.instances.inherit(&mut before.instances);
    }

    /// Sends the frames that lanes emitted since the last call; events and messages go into
    /// `outbox`.
    pub(crate) fn take_emitted(&mut self, egress_path: &mut EgressPath<'_>, outbox: &mut Outbox) {
        let entry = self.facts.entry;
        self.left.extend(self.instances.take_emitted());
        for emitted in self.left.drain(..) {
            if emitted.watch.is_some() {
                (self.watching.wanted, self.watching.is_new) = (emitted.watch, true);
            }
            outbox.events.extend(emitted.events.into_iter().map(|event| (entry, event)));
            outbox.messages.extend(emitted.messages.into_iter().map(|message| (entry, message)));
            for sent in emitted.sent {
                self.output_edges.send(sent.port, &sent.frame, egress_path);
            }
        }
    }

    /// Sends the frames that in-kernel programs emitted; events and messages go into `outbox`.
    /// Handles a bounded number of records.
    pub(crate) fn take_records(&mut self, egress_path: &mut EgressPath<'_>, outbox: &mut Outbox) {
        let Self { facts, output_edges, instances, succession, .. } = self;
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
                Ok(Record::Send { port, frame, .. }) => output_edges.send(port, frame, egress_path),
                Err(error) => output_edges.counters_mut().note_failure(error.to_string()),
            });
            match taken {
                Ok(Some(())) => {}
                // Records of the old version come first, and it is asked until it has none.
                Ok(None) if before.take().is_none() => now = None,
                Ok(None) => {}
                Err(error) => {
                    output_edges.counters_mut().note_failure(error.to_string());
                    return;
                }
            }
        }
    }

    /// Returns the change of its queue subscription, if there is one: the session that it no longer
    /// watches, and the new thresholds.
    pub(crate) fn take_watch(&mut self) -> Option<(Option<SessionId>, Option<QueueWatch>)> {
        if !std::mem::take(&mut self.watching.is_new) {
            return None;
        }
        let before = self.watching.within.take();
        self.watching.within = self.watching.wanted.map(|_| self.facts.session);
        Some((before, self.watching.wanted))
    }

    /// Returns traps and the outcome of a replacement since the last call.
    pub(crate) fn take_notices(&mut self) -> Notices {
        Notices {
            trapped: std::mem::take(&mut self.untold),
            traps: self.output_edges.counters().traps(),
            sequel: self.succession.take_outcome(),
        }
    }
}
