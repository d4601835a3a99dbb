//! Instances of a service, one for each lane, and the ownership of their memory: this thread, or
//! programs below user level.
//!
//! ```text
//!   hold ─▶ no program runs ─▶ a hook, a start, a packet that the front door has not counted
//!                                      └─ settle: nothing here needs the memory ─▶ given back
//! ```

use super::counters::Counters;
use super::lane::{Called, Lane};
use super::pools::{Pools, Step};
use super::version::{StartFailure, Version};
use super::{Origin, RESTART_AFTER};
use crate::protocol::ServiceReport;
use crate::sched::Portion;
use crate::sched::pacer::{self, Pacer};
use crate::sched::sessions::Task;
use crate::service::shared::Shared;
use abi::Event;
use engine::{Call, Engine, Trap};
use smallvec::SmallVec;
use std::rc::Rc;
use units::{CoarseInstant, EntryId, Nanos};
use xsk::{FramePool, Packet};

/// Progress of the start of a service's instances.
pub(super) enum Starts {
    /// Unfinished: a start is suspended, or has not begun.
    More,
    All,
    Failed(StartFailure),
}

/// Result of a run below user level.
pub(super) enum Below {
    /// Trap, after which the instance must be discarded.
    Trapped(Trap),
    /// State that has been taken over, if there was any.
    Nothing,
}

/// Owner of a service's instances. Fields that a packet reads when it is queued come first.
#[repr(C)]
pub(super) struct Instances {
    /// Set while no program may be in the instances' memory: for a hook, a starting instance, or a
    /// packet that the front door has not counted.
    is_held: bool,
    pools: Pools,
    lanes: SmallVec<[Lane; 1]>,
    /// Memory and lane shared with in-kernel programs, of a service that can leave user level; it
    /// has one lane.
    shared: Option<Box<Shared>>,
    pacer: Rc<Pacer>,
}

impl Instances {
    /// Bytes that a packet reads when it is queued.
    pub(super) const WAITING_LENGTH: usize =
        std::mem::offset_of!(Self, lanes) + size_of::<usize>() + Lane::WAITING_LENGTH;

    /// Creates lanes whose instances are to start.
    pub(super) fn new(
        pools: Pools,
        lanes: SmallVec<[Lane; 1]>,
        shared: Option<Shared>,
        pacer: &Rc<Pacer>,
    ) -> Self {
        let shared = shared.map(Box::new);
        Self { is_held: false, pools, lanes, shared, pacer: Rc::clone(pacer) }
    }

    /// Returns the number of lanes.
    pub(super) fn lanes(&self) -> usize {
        self.lanes.len()
    }

    /// Returns a lane.
    #[inline]
    pub(super) fn lane(&self, lane: usize) -> &Lane {
        &self.lanes[lane]
    }

    /// Returns a lane.
    #[inline]
    pub(super) fn lane_mut(&mut self, lane: usize) -> &mut Lane {
        &mut self.lanes[lane]
    }

    /// Returns the pacer of the running instance.
    pub(super) const fn pacer(&self) -> &Rc<Pacer> {
        &self.pacer
    }

    /// Returns the memory shared with the kernel, of a service that can leave user level.
    #[inline]
    pub(super) fn shared(&self) -> Option<&Shared> {
        self.shared.as_deref()
    }

    /// Returns the memory shared with the kernel, of a service that can leave user level.
    #[inline]
    pub(super) fn shared_mut(&mut self) -> Option<&mut Shared> {
        self.shared.as_deref_mut()
    }

    /// Returns true while no program may be in the instances' memory.
    #[inline]
    pub(super) const fn is_held(&self) -> bool {
        self.is_held
    }

    /// Returns true if no packet waits, no call is suspended and no lane is starting.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        !self.is_held && self.lanes.iter().all(Lane::is_idle)
    }

    /// Returns true if a call is suspended.
    pub(super) fn is_suspended(&self) -> bool {
        self.lanes.iter().any(Lane::is_suspended)
    }

    /// Returns the first lane whose instance is to start, or is starting.
    #[inline]
    pub(super) fn starting(&self) -> Option<usize> {
        self.lanes.iter().position(Lane::is_starting)
    }

    /// Returns true if a step can be run: no packet's call is suspended in its way.
    pub(super) fn may_take(&self, step: Step) -> bool {
        match step.is_alone {
            true => !self.lanes.iter().any(Lane::is_suspended_in_packets),
            false => !self.lanes[step.lane].is_suspended_in_packets(),
        }
    }

    /// Returns the pool of a lane.
    #[inline]
    pub(super) fn pool_of(&self, lane: usize) -> usize {
        self.pools.of(lane)
    }

    /// Returns the division of packets among lanes and pools.
    #[inline]
    pub(super) const fn pools(&self) -> &Pools {
        &self.pools
    }

    /// Returns the task that the schedule runs for a pool.
    pub(super) fn task(&self, entry: EntryId, pool: usize) -> Task {
        Task { entry, pool: pool as u8, processor: self.pools.processor(pool, entry) }
    }

    /// Returns true if a pool has work. `step` returns the next step beside packets, and is called
    /// last: if a packet waits, as in most cases, it need not be computed.
    #[inline]
    pub(super) fn wants(&self, pool: usize, step: impl FnOnce() -> Option<Step>) -> bool {
        let mut lanes = self.pools.lanes(pool);
        (self.is_held && pool == 0)
            || lanes.any(|lane| !self.lanes[lane].is_idle())
            || step().is_some_and(|step| self.pool_of(step.lane) == pool)
    }

    /// Returns the first lane, from `from` on, that handles a hook.
    pub(super) fn lane_for(&self, call: &Call, from: usize) -> Option<usize> {
        let event = match call {
            Call::Timer { .. } => Event::Timer,
            Call::Message { .. } => Event::Message,
            Call::MemoryLow { .. } | Call::Queue { .. } | Call::StateOut { .. } => {
                return (from < self.lanes.len()).then_some(from);
            }
        };
        self.first_with(event, from)
    }

    /// Returns the first lane, from `from` on, that handles such events.
    pub(super) fn first_with(&self, event: Event, from: usize) -> Option<usize> {
        (from..self.lanes.len()).find(|&lane| self.pools.has(lane, event))
    }

    /// Returns the origins of all packets that are not finished.
    pub(super) fn origins(&self) -> impl Iterator<Item = &Origin> {
        self.lanes.iter().flat_map(Lane::origins)
    }

    /// Prefetches in steps what a packet's call reads.
    #[inline]
    pub(super) fn load_ahead(&self, step: u8) {
        if let Some(lane) = self.lanes.first() {
            lane.load_ahead(step);
        }
    }

    /// Adds the state of the instances to a report.
    pub(super) fn report(&mut self, report: &mut ServiceReport) {
        for lane in self.lanes.iter_mut().filter(|lane| !lane.is_empty()) {
            report.lanes_running += 1;
            report.memory_bytes += lane.memory_bytes();
            for (name, value) in lane.counters() {
                let sum = report.counters.entry(name.clone()).or_default();
                *sum = sum.wrapping_add(*value);
            }
        }
    }

    /// Returns the time of the next attempt to start a lane's instance.
    pub(super) fn restart_at(&self) -> CoarseInstant {
        let waiting = self.lanes.iter().filter(|lane| lane.is_empty());
        waiting.map(|lane| lane.restart_at).min().unwrap_or(CoarseInstant::NEVER)
    }

    /// Returns the next lane of a pool, in rotation, with work that may be done beside a step.
    pub(super) fn take_turn(&mut self, pool: usize, step: Option<Step>) -> Option<usize> {
        let comes_first = |step: Step| step.is_alone || self.pool_of(step.lane) == pool;
        let is_gated = step.is_some_and(comes_first);
        let Self { pools, lanes, .. } = self;
        pools.take_turn(pool, |lane| match is_gated {
            // Requests wait only for calls that have begun.
            true => lanes[lane].is_suspended_in_packets(),
            false => !lanes[lane].is_idle(),
        })
    }

    /// Runs a lane's module on packets of the same kind until its portion is used up; `meta`
    /// returns a packet's metadata for the module. Returns the time that it ran.
    pub(super) fn run(
        &mut self,
        lane: usize,
        portion: Portion,
        meta: impl Fn(&Origin) -> abi::Meta,
    ) -> Nanos {
        let lane = &mut self.lanes[lane];
        lane.fill(portion.packets, meta);
        let begin = pacer::now();
        lane.run(&self.pacer, portion.until);
        pacer::now().saturating_sub(begin)
    }

    /// Runs a hook in a lane, or resumes the suspended one, until `until` at most.
    pub(super) fn call(&mut self, lane: usize, until: Nanos, call: &Call) -> Called {
        self.lanes[lane].call(&self.pacer, until, call)
    }

    /// Returns frames, events and messages that hooks left in instances.
    pub(super) fn take_emitted(&mut self) -> impl Iterator<Item = engine::Emitted> {
        let hooks = self.lanes.iter_mut().filter_map(Lane::instance);
        hooks.filter(|instance| instance.has_emitted()).map(|instance| instance.take_emitted())
    }

    /// Continues the start of the first lane that is starting, until `until` at most. If the
    /// service runs already (`is_new` is false), a failed start is tried again later.
    pub(super) fn start_on(
        &mut self,
        (engine, version): (&Engine, &Version),
        is_new: bool,
        (until, now): (Nanos, CoarseInstant),
        counters: &mut Counters,
    ) -> Starts {
        let Some(index) = self.starting() else { return Starts::All };
        let Self { lanes, shared, pacer, .. } = self;
        let shared = shared.as_deref().filter(|_| !is_new);
        let make = |kept| {
            if let Some(shared) = shared {
                shared.clear_memory();
            }
            version.begin(engine, index, kept, now)
        };
        match lanes[index].start_on(pacer, until, make) {
            None => return Starts::More,
            Some(Ok(())) => {
                if let Some(shared) = shared {
                    shared.clear_trap();
                }
            }
            Some(Err(error)) if is_new => return Starts::Failed(version.why(error)),
            Some(Err(error)) => {
                counters.note_failure(format!("not started again: {}", version.why(error)));
                lanes[index].restart_at = now + RESTART_AFTER;
            }
        }
        if self.starting().is_some() { Starts::More } else { Starts::All }
    }

    /// Discards a lane's instance and has another start. No program may be in its memory until it
    /// has: if one stays there, the start is tried again later.
    pub(super) fn start_again(&mut self, lane: usize, now: CoarseInstant) {
        self.is_held = self.is_held || self.shared().is_none_or(Shared::take);
        let lane = &mut self.lanes[lane];
        match self.is_held {
            true => lane.start(),
            false => {
                lane.clear();
                lane.restart_at = now + RESTART_AFTER;
            }
        }
    }

    /// Starts lanes again whose time has come.
    pub(super) fn try_again(&mut self, now: CoarseInstant) {
        for index in 0..self.lanes.len() {
            let lane = &self.lanes[index];
            if lane.is_empty() && lane.restart_at <= now {
                self.start_again(index, now);
            }
        }
    }

    /// Returns true, once, if the module has run in the kernel since the last call: its state must
    /// be taken over.
    #[inline]
    pub(super) fn has_run(&self) -> bool {
        self.shared().is_some_and(Shared::has_run)
    }

    /// Takes over the state that in-kernel programs left.
    #[cold]
    pub(super) fn take_over(&mut self, version: &Version) -> Below {
        let Some(shared) = self.shared.as_deref() else { return Below::Nothing };
        match (shared.trapped(), self.lanes[0].instance()) {
            (Some((cause, place)), _) => Below::Trapped(version.trap_of(cause, place)),
            (None, Some(instance)) => {
                shared.load(instance);
                Below::Nothing
            }
            (None, None) => Below::Nothing,
        }
    }

    /// Takes the memory for this thread until [`Self::settle`]. Returns false if a program stays in
    /// it.
    pub(super) fn hold(&mut self) -> bool {
        let Some(shared) = self.shared() else { return true };
        if !self.is_held {
            self.is_held = shared.take();
        }
        self.is_held
    }

    /// Returns the memory when nothing here needs it any more; `is_called` states that a hook does.
    pub(super) fn settle(&mut self, is_called: bool) {
        let is_needed =
            || self.starting().is_some() || is_called || !self.lanes.iter().all(Lane::is_through);
        if self.is_held && !is_needed() {
            self.let_go();
        }
    }

    /// Returns the memory.
    pub(super) fn let_go(&mut self) {
        if std::mem::take(&mut self.is_held)
            && let Some(shared) = self.shared.as_deref()
        {
            shared.give_back(self.lanes[0].instance());
        }
    }

    /// Counts a packet of the lane that has left its graph. Returns true if the lane is a shared
    /// one.
    #[inline]
    pub(super) fn release(&mut self, epoch: u8) -> bool {
        let Some(shared) = self.shared_mut() else { return false };
        shared.release(epoch);
        true
    }

    /// Publishes departures, once the devices have sent all packets.
    pub(super) fn publish_departures(&mut self) {
        if let Some(shared) = self.shared.as_deref_mut() {
            shared.publish_departures(self.lanes[0].instance());
        }
    }

    /// Takes over the shared lane of another version.
    pub(super) fn inherit(&mut self, before: &mut Self) {
        if let Some(shared) = before.shared_mut() {
            shared.retire(self.shared_mut());
        }
    }

    /// Takes all queued packets. No call may be suspended.
    pub(super) fn take_all_waiting(&mut self) -> Vec<(Packet, Origin)> {
        self.lanes.iter_mut().flat_map(Lane::take_all_waiting).collect()
    }

    /// Ends every lane. Returns the queued packets, and the origins of those that were dropped.
    pub(super) fn dissolve(
        &mut self,
        pool: &mut FramePool,
    ) -> (Vec<(Packet, Origin)>, Vec<Origin>) {
        let mut given_up = Vec::new();
        let lanes = self.lanes.iter_mut();
        let waiting = lanes.flat_map(|lane| lane.dissolve(pool, &mut given_up)).collect();
        (waiting, given_up)
    }
}
