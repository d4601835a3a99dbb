//! Pools of a service's lanes: their events, and their virtual processors.
//!
//! ```text
//!   packet ─▶ its flow's key ─▶ one of the lanes that have packets ┐
//!   timer, message ───────────▶ each lane that has it              ├─▶ its pool ─▶ the session's
//!   start, state, memory ─────▶ each lane                          ┘    virtual processor
//! ```
//!
//! Each pool has turns of its own, so a suspended call in one does not delay another. A service
//! without pools has a single one, whose virtual processor follows from the service's number.

use abi::{Event, KeyField, LaneSelector, Pool as Declared};
use std::ops::Range;
use units::EntryId;
use xsk::Packet;

/// Pool of a service.
struct Pool {
    lanes: Range<usize>,
    processor: u16,
    events: Vec<Event>,
    /// Lane to run next.
    turn: usize,
}

/// Pools of a service, and the division of packets among them.
pub(super) enum Pools {
    /// Single pool of one lane, as most services have; all that a packet reads is here.
    One { processor: u16, events: Box<[Event]> },
    /// Several lanes or pools.
    Several(Box<Several>),
}

pub(super) struct Several {
    all: Vec<Pool>,
    division: LaneSelector,
}

/// Next work beside packets.
#[derive(Clone, Copy)]
pub(super) struct Step {
    pub(super) lane: usize,
    /// Set if no lane may take packets meanwhile; else only that lane's pool may not.
    pub(super) is_alone: bool,
}

impl Pools {
    /// Creates the pools. Without declared pools, the virtual processor follows from the service's
    /// number.
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
                let division = LaneSelector::new(lanes, declared, flows_by);
                Self::Several(Box::new(Several { all, division }))
            }
        }
    }

    /// Returns the number of pools.
    #[inline]
    pub(super) fn count(&self) -> usize {
        match self {
            Self::One { .. } => 1,
            Self::Several(several) => several.all.len(),
        }
    }

    /// Returns the index of a lane's pool.
    #[inline]
    pub(super) fn of(&self, lane: usize) -> usize {
        match self {
            Self::One { .. } => 0,
            Self::Several(several) => {
                several.all.iter().position(|pool| pool.lanes.contains(&lane)).unwrap_or(0)
            }
        }
    }

    #[inline]
    pub(super) fn lanes(&self, pool: usize) -> Range<usize> {
        match self {
            Self::One { .. } => 0..usize::from(pool == 0),
            Self::Several(several) => several.all.get(pool).map_or(0..0, |it| it.lanes.clone()),
        }
    }

    #[inline]
    pub(super) fn processor(&self, pool: usize, entry: EntryId) -> u16 {
        match self {
            Self::One { processor, .. } => *processor,
            Self::Several(several) => several.all.get(pool).map_or(entry.0, |it| it.processor),
        }
    }

    /// Returns true if a lane handles such events.
    pub(super) fn has(&self, lane: usize, event: Event) -> bool {
        match self {
            Self::One { events, .. } => events.contains(&event),
            Self::Several(several) => several.all[self.of(lane)].events.contains(&event),
        }
    }

    /// Returns the next lane of a pool that has work, in rotation.
    #[inline]
    pub(super) fn take_turn(
        &mut self,
        pool: usize,
        has_work: impl Fn(usize) -> bool,
    ) -> Option<usize> {
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

    /// Returns the lane of a packet; `meta` is what the module would see of it.
    #[inline]
    pub(super) fn lane_of(
        &self,
        packet: &Packet,
        flow_hash: u32,
        meta: impl Fn() -> abi::Meta,
    ) -> usize {
        match self {
            Self::One { .. } => 0,
            Self::Several(several) => several.division.lane_of(packet, flow_hash, meta),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use units::Name;

    const ENTRY: EntryId = EntryId(7);

    fn pool(lanes: u16, processor: u8, events: &[Event]) -> Declared {
        Declared { name: Name::new("a").unwrap(), lanes, processor, events: events.to_vec() }
    }

    fn several() -> Pools {
        let packets = pool(3, 0, &[Event::Packet]);
        let others = pool(1, 2, &[Event::Timer, Event::Message]);
        Pools::new(ENTRY, 4, &[packets, others], &[])
    }

    /// Returns the next `N` lanes that run, of those with work.
    fn turns<const N: usize>(pools: &mut Pools, pool: usize, work: &[usize]) -> [usize; N] {
        [(); N].map(|()| pools.take_turn(pool, |lane| work.contains(&lane)).unwrap())
    }

    #[test]
    fn a_service_without_pools_has_one_pool_on_the_processor_of_its_entry() {
        for lanes in [1, 3] {
            let pools = Pools::new(ENTRY, lanes, &[], &[]);
            assert_eq!((pools.count(), pools.lanes(0), pools.lanes(1).len()), (1, 0..lanes, 0));
            assert_eq!((pools.processor(0, ENTRY), pools.of(lanes - 1)), (ENTRY.0, 0));
            assert!(Event::ALL.iter().all(|event| pools.has(lanes - 1, *event)));
        }
    }

    #[test]
    fn each_lane_has_the_events_of_its_pool() {
        let pools = several();
        assert_eq!((pools.count(), pools.lanes(0), pools.lanes(1)), (2, 0..3, 3..4));
        assert_eq!((pools.processor(0, ENTRY), pools.processor(1, ENTRY)), (0, 2));
        assert_eq!([0, 2, 3].map(|lane| pools.of(lane)), [0, 0, 1]);
        assert!(pools.has(2, Event::Packet) && !pools.has(2, Event::Timer));
        assert!(pools.has(3, Event::Message) && !pools.has(3, Event::Packet));
    }

    #[test]
    fn lanes_of_a_pool_take_turns_and_those_without_work_are_left_out() {
        let mut pools = several();
        assert_eq!(turns(&mut pools, 0, &[0, 1, 2, 3]), [0, 1, 2, 0]);
        assert_eq!(turns(&mut pools, 0, &[0, 2]), [2, 0, 2]);
        assert_eq!(turns(&mut pools, 1, &[0, 3]), [3, 3]);
        assert_eq!(pools.take_turn(0, |_| false), None);
        assert_eq!(pools.take_turn(5, |_| true), None, "there is no such pool");
    }

    #[test]
    fn one_lane_has_every_turn_of_its_pool_and_every_packet() {
        let mut pools = Pools::new(ENTRY, 1, &[], &[]);
        assert_eq!(turns(&mut pools, 0, &[0]), [0, 0]);
        assert_eq!(pools.take_turn(0, |_| false), None);
        assert_eq!(pools.take_turn(1, |_| true), None);
    }
}
