//! Pools of a service's lanes: which have which events, and on which virtual processor.
//!
//! ```text
//!   packet ─▶ its flow's key ─▶ one of the lanes that have packets ┐
//!   timer, message ───────────▶ each lane that has it              ├─▶ its pool ─▶ the session's
//!   start, state, memory ─────▶ each lane                          ┘    virtual processor
//! ```
//!
//! Each pool waits for turns of its own: what stands still in one keeps nothing from another. A
//! service without pools is one pool, whose virtual processor goes by the service's number.

use super::{Lane, Service, module_meta};
use crate::sessions::Task;
use abi::layout::MARK_LENGTH;
use abi::{Division, Event, KeyField, Pool as Declared};
use bpf_maps::PacketMeta;
use engine::Call;
use smallvec::SmallVec;
use std::ops::Range;
use units::EntryId;
use xsk::Packet;

/// One of a service's pools.
pub(super) struct Pool {
    lanes: Range<usize>,
    processor: Option<u8>,
    events: Vec<Event>,
    /// The lane to have the next turn.
    turn: usize,
}

/// A service's pools, and how packets are divided.
pub(super) struct Pools {
    all: SmallVec<[Pool; 1]>,
    division: Division,
}

/// What is to be done beside packets, next.
#[derive(Clone, Copy)]
pub(super) struct Step {
    pub(super) lane: usize,
    /// No packet goes into any lane meanwhile; else into none of that lane's pool.
    pub(super) is_alone: bool,
}

impl Pools {
    pub(super) fn new(lanes: usize, declared: &[Declared], flows_by: &[KeyField]) -> Self {
        let of = |(lanes, pool): (Range<usize>, &Declared)| {
            let (processor, events) = (Some(pool.processor), pool.events.clone());
            Pool { turn: lanes.start, lanes, processor, events }
        };
        let mut all: SmallVec<[Pool; 1]> = abi::lanes_of(declared).map(of).collect();
        if all.is_empty() {
            let events = Event::ALL.to_vec();
            all.push(Pool { lanes: 0..lanes, processor: None, events, turn: 0 });
        }
        Self { all, division: Division::new(lanes, declared, flows_by) }
    }

    /// The virtual processor of the only pool, if it has one lane.
    pub(super) fn single(&self, entry: EntryId) -> Option<u16> {
        match self.all.as_slice() {
            [pool] if pool.lanes == (0..1) => Some(pool.processor.map_or(entry.0, u16::from)),
            _ => None,
        }
    }

    /// The pool of a lane, by its number.
    fn of(&self, lane: usize) -> usize {
        self.all.iter().position(|pool| pool.lanes.contains(&lane)).unwrap_or(0)
    }

    fn lanes(&self, pool: usize) -> Range<usize> {
        self.all.get(pool).map_or(0..0, |pool| pool.lanes.clone())
    }

    /// The lanes of a pool, that first whose turn it is.
    fn in_turn(&self, pool: usize) -> impl Iterator<Item = usize> + use<> {
        let (lanes, turn) = self.all.get(pool).map_or((0..0, 0), |it| (it.lanes.clone(), it.turn));
        let turn = if lanes.contains(&turn) { turn } else { lanes.start };
        (turn..lanes.end).chain(lanes.start..turn)
    }
}

impl Service {
    /// The lane of a packet.
    #[inline]
    pub(super) fn lane_of(&self, packet: &Packet, meta: &PacketMeta) -> usize {
        if self.single.is_some() {
            return 0;
        }
        let meta_of = || module_meta(meta, self.facts.session, [0; MARK_LENGTH], 0);
        self.pools.division.lane_of(packet, meta.flow_hash, meta_of)
    }

    /// What waits for turns on behalf of that pool.
    pub(crate) fn task(&self, pool: usize) -> Task {
        let entry = self.facts.entry;
        let processor = self.single.unwrap_or_else(|| {
            let processor = self.pools.all.get(pool).and_then(|pool| pool.processor);
            processor.map_or(entry.0, u16::from)
        });
        Task { entry, pool: pool as u8, processor }
    }

    /// Other pools than this one that have work.
    pub(crate) fn others_that_want(&self, pool: usize) -> impl Iterator<Item = Task> {
        let pools = if self.single.is_some() { 1 } else { self.pools.all.len() };
        let others = (0..pools).filter(move |&other| other != pool);
        others.filter(|&other| self.wants(other)).map(|other| self.task(other))
    }

    /// Whether a pool has work.
    #[inline]
    pub(crate) fn wants(&self, pool: usize) -> bool {
        if self.single.is_some() {
            return pool == 0 && (self.held || self.has_controls() || !self.lanes[0].is_idle());
        }
        let mut lanes = self.pools.lanes(pool);
        (self.held && pool == 0)
            || lanes.any(|lane| !self.lanes[lane].is_idle())
            || self.step().is_some_and(|step| self.pools.of(step.lane) == pool)
    }

    /// The pool that is to go on with what is asked for.
    pub(crate) fn asked_task(&self) -> Option<Task> {
        self.step().map(|step| self.task(self.pools.of(step.lane)))
    }

    pub(super) fn pool_of(&self, lane: usize) -> usize {
        if self.single.is_some() { 0 } else { self.pools.of(lane) }
    }

    /// The lane of a pool whose turn it is, of those that have work that may be done beside this
    /// step.
    pub(super) fn lane_in_turn(&mut self, pool: usize, step: Option<Step>) -> Option<usize> {
        let comes_first = |step: Step| step.is_alone || self.pool_of(step.lane) == pool;
        let is_gated = step.is_some_and(comes_first);
        let has_work = |lane: &Lane| match is_gated {
            // What is asked for waits only for calls that have begun.
            true => lane.stands_with_packets(),
            false => !lane.is_idle(),
        };
        if self.single.is_some() {
            return (pool == 0 && has_work(&self.lanes[0])).then_some(0);
        }
        let lane = self.pools.in_turn(pool).find(|&lane| has_work(&self.lanes[lane]))?;
        self.pools.all[pool].turn = lane + 1;
        Some(lane)
    }

    /// The first lane from that one on which a hook is for.
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

    pub(super) fn first_with(&self, event: Event, from: usize) -> Option<usize> {
        let has = |&lane: &usize| self.pools.all[self.pools.of(lane)].events.contains(&event);
        (from..self.lanes.len()).find(has)
    }
}
