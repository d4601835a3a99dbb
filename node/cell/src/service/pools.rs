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

use super::{Service, module_meta};
use crate::sched::sessions::Task;
use abi::layout::MARK_LENGTH;
use abi::{Division, Event, KeyField, Pool as Declared};
use bpf_maps::PacketMeta;
use engine::Call;
use std::ops::Range;
use units::{CoarseInstant, EntryId};
use xsk::Packet;

/// One of a service's pools.
struct Pool {
    lanes: Range<usize>,
    processor: u16,
    events: Vec<Event>,
    /// The lane to have the next turn.
    turn: usize,
}

/// A service's pools, and how packets are divided.
pub(super) enum Pools {
    /// One of one lane, as most have: all that each packet asks for is here.
    One { processor: u16, events: Box<[Event]> },
    /// More lanes, or more pools.
    Several(Box<Several>),
}

pub(super) struct Several {
    all: Vec<Pool>,
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
    /// Pools that say nothing of it go by the virtual processor of their service's number.
    pub(super) fn new(
        entry: EntryId,
        lanes: usize,
        declared: &[Declared],
        flows_by: &[KeyField],
    ) -> Self {
        let of = |(lanes, pool): (Range<usize>, &Declared)| {
            let (processor, events) = (u16::from(pool.processor), pool.events.clone());
            Pool { turn: lanes.start, lanes, processor, events }
        };
        let mut all: Vec<Pool> = abi::lanes_of(declared).map(of).collect();
        if all.is_empty() {
            let events = Event::ALL.to_vec();
            all.push(Pool { lanes: 0..lanes, processor: entry.0, events, turn: 0 });
        }
        match all.as_slice() {
            [pool] if pool.lanes == (0..1) => {
                Self::One { processor: pool.processor, events: pool.events.as_slice().into() }
            }
            _ => {
                let division = Division::new(lanes, declared, flows_by);
                Self::Several(Box::new(Several { all, division }))
            }
        }
    }

    /// How many there are.
    #[inline]
    fn count(&self) -> usize {
        match self {
            Self::One { .. } => 1,
            Self::Several(several) => several.all.len(),
        }
    }

    /// The pool of a lane, by its number.
    #[inline]
    fn of(&self, lane: usize) -> usize {
        match self {
            Self::One { .. } => 0,
            Self::Several(several) => {
                several.all.iter().position(|pool| pool.lanes.contains(&lane)).unwrap_or(0)
            }
        }
    }

    #[inline]
    fn lanes(&self, pool: usize) -> Range<usize> {
        match self {
            Self::One { .. } => 0..usize::from(pool == 0),
            Self::Several(several) => several.all.get(pool).map_or(0..0, |it| it.lanes.clone()),
        }
    }

    #[inline]
    fn processor(&self, pool: usize, entry: EntryId) -> u16 {
        match self {
            Self::One { processor, .. } => *processor,
            Self::Several(several) => several.all.get(pool).map_or(entry.0, |it| it.processor),
        }
    }

    /// Whether a lane has such events.
    fn has(&self, lane: usize, event: Event) -> bool {
        match self {
            Self::One { events, .. } => events.contains(&event),
            Self::Several(several) => several.all[self.of(lane)].events.contains(&event),
        }
    }

    /// The first of a pool's lanes that has work, from that on whose turn it is; the next one has
    /// the next turn.
    #[inline]
    fn take_turn(&mut self, pool: usize, has_work: impl Fn(usize) -> bool) -> Option<usize> {
        let lanes = self.lanes(pool);
        match self {
            Self::One { .. } => lanes.into_iter().find(|&lane| has_work(lane)),
            Self::Several(several) => {
                let turn = &mut several.all.get_mut(pool)?.turn;
                let first = if lanes.contains(turn) { *turn } else { lanes.start };
                let mut in_turn = (first..lanes.end).chain(lanes.start..first);
                let lane = in_turn.find(|&lane| has_work(lane))?;
                *turn = lane + 1;
                Some(lane)
            }
        }
    }
}

impl Service {
    /// The lane of a packet.
    #[inline]
    pub(super) fn lane_of(&self, packet: &Packet, meta: &PacketMeta) -> usize {
        match &self.pools {
            Pools::One { .. } => 0,
            Pools::Several(several) => {
                let meta_of =
                    || module_meta(meta, self.facts.session, [0; MARK_LENGTH], CoarseInstant::ZERO);
                several.division.lane_of(packet, meta.flow_hash, meta_of)
            }
        }
    }

    /// What waits for turns on behalf of that pool.
    pub(crate) fn task(&self, pool: usize) -> Task {
        let entry = self.facts.entry;
        Task { entry, pool: pool as u8, processor: self.pools.processor(pool, entry) }
    }

    /// Other pools than this one that have work.
    pub(crate) fn others_that_want(&self, pool: usize) -> impl Iterator<Item = Task> {
        let others = (0..self.pools.count()).filter(move |&other| other != pool);
        others.filter(|&other| self.wants(other)).map(|other| self.task(other))
    }

    /// Whether a pool has work.
    #[inline]
    pub(crate) fn wants(&self, pool: usize) -> bool {
        let mut lanes = self.pools.lanes(pool);
        (self.held && pool == 0)
            || lanes.any(|lane| !self.lanes[lane].is_idle())
            || self.step().is_some_and(|step| self.pool_of(step.lane) == pool)
    }

    /// The pool that is to go on with what is asked for.
    pub(crate) fn asked_task(&self) -> Option<Task> {
        self.step().map(|step| self.task(self.pool_of(step.lane)))
    }

    #[inline]
    pub(super) fn pool_of(&self, lane: usize) -> usize {
        self.pools.of(lane)
    }

    /// The lane of a pool whose turn it is, of those that have work that may be done beside this
    /// step.
    pub(super) fn lane_in_turn(&mut self, pool: usize, step: Option<Step>) -> Option<usize> {
        let comes_first = |step: Step| step.is_alone || self.pool_of(step.lane) == pool;
        let is_gated = step.is_some_and(comes_first);
        let Self { pools, lanes, .. } = self;
        pools.take_turn(pool, |lane| match is_gated {
            // What is asked for waits only for calls that have begun.
            true => lanes[lane].stands_with_packets(),
            false => !lanes[lane].is_idle(),
        })
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
        (from..self.lanes.len()).find(|&lane| self.pools.has(lane, event))
    }
}
