//! What was promised of each thing, added up.

use std::collections::BTreeMap;

use units::{Bytes, Name, Nanos};

use crate::executor::{LOAD_MAX, RULES};
use crate::processor::VirtualProcessor;
use crate::reservation::Reservation;
use crate::share::{Parts, Share, Time, WHOLE};
use crate::text::Size;

use super::{
    BELOW_SHARE_MAX, Capacity, GUEST_SHARE_MAX, Left, ONE_CORE_PERIOD_MIN, PORT_SHARE_MAX,
    PeriodOf, PortCapacity, Refusal,
};

/// Promises of one guest core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Core {
    slices: u64,
    /// The same with a stop for each slice.
    load: u64,
}

impl Core {
    fn has_room_for(self, share: Share) -> bool {
        self.slices + share.parts_per_million() <= GUEST_SHARE_MAX.0
            && self.load + RULES.cost(share) <= LOAD_MAX
    }

    /// The longest slice of this period that could be promised.
    fn room(self, period: Nanos) -> Nanos {
        let of_slices = slice_of(GUEST_SHARE_MAX.0.saturating_sub(self.slices), period);
        let of_load = slice_of(LOAD_MAX.saturating_sub(self.load), period);
        of_slices.min(of_load.saturating_sub(RULES.stop))
    }
}

/// The longest slice that is so many parts of a period.
fn slice_of(parts: u64, period: Nanos) -> Nanos {
    // At most some whole cores times a second: 10^6 * 10^9.
    Nanos(parts.min(WHOLE) * period.0 / WHOLE)
}

/// A slice in parts of its period, rounded down.
fn parts_of(slice: Nanos, period: Nanos) -> Parts {
    Parts(slice.0 * WHOLE / period.0)
}

/// All promises.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sums {
    guest: Vec<Core>,
    below: u64,
    memory: u64,
    packet_memory: u64,
    ports: BTreeMap<Name, u64>,
}

impl Sums {
    pub(super) fn new(capacity: &Capacity) -> Self {
        Self {
            guest: vec![Core::default(); usize::from(capacity.guest_cores)],
            below: 0,
            memory: 0,
            packet_memory: 0,
            ports: capacity.ports.keys().map(|name| (name.clone(), 0)).collect(),
        }
    }

    /// Adds a reservation, or some of it and says what does not fit. Virtual processors stay
    /// where they were if they can; where each of them lies now is the answer. `rest` of memory is
    /// in use without a promise.
    pub(super) fn add(
        &mut self,
        reservation: &Reservation,
        before: &[u16],
        capacity: &Capacity,
        rest: Bytes,
    ) -> Result<Vec<u16>, Refusal> {
        if capacity.one_core {
            refuse_short_periods(reservation)?;
        }
        let places = self.add_processors(&reservation.processors, before)?;
        if let Some(share) = reservation.below {
            self.add_below(share, capacity)?;
        }
        if let Some(asked) = reservation.memory {
            let left = capacity.memory.saturating_sub(Bytes(self.memory) + rest);
            if asked > left {
                let (asked, left, total) = (Size(asked), Size(left), Size(capacity.memory));
                return Err(Refusal::Memory { asked, left, total, rest: Size(rest) });
            }
            self.memory += asked.0;
        }
        if let Some(asked) = reservation.queue {
            let left = capacity.packet_memory.saturating_sub(Bytes(self.packet_memory));
            if asked > left {
                let (asked, left, total) = (Size(asked), Size(left), Size(capacity.packet_memory));
                return Err(Refusal::Queue { asked, left, total });
            }
            self.packet_memory += asked.0;
        }
        for (port, &share) in &reservation.send {
            self.add_port(port, share, capacity)?;
        }
        Ok(places)
    }

    /// Takes out what was added.
    pub(super) fn remove(&mut self, reservation: &Reservation, places: &[u16]) {
        for (processor, &place) in reservation.processors.iter().zip(places) {
            let core = &mut self.guest[usize::from(place)];
            core.slices -= processor.share.parts_per_million();
            core.load -= RULES.cost(processor.share);
        }
        self.below -= reservation.below.map_or(0, Share::parts_per_million);
        self.memory -= reservation.memory.map_or(0, |bytes| bytes.0);
        self.packet_memory -= reservation.queue.map_or(0, |bytes| bytes.0);
        for (port, share) in &reservation.send {
            if let Some(sum) = self.ports.get_mut(port) {
                *sum -= share.parts_per_million();
            }
        }
    }

    pub(super) fn left(&self, capacity: &Capacity) -> Left {
        let of_core = |core: &Core| {
            let slices = GUEST_SHARE_MAX.0.saturating_sub(core.slices);
            Parts(slices.min(LOAD_MAX.saturating_sub(core.load)))
        };
        let of_port = |(name, sum): (&Name, &u64)| {
            (name.clone(), Parts(PORT_SHARE_MAX.0.saturating_sub(*sum)))
        };
        Left {
            guest: self.guest.iter().map(of_core).collect(),
            below: Parts(below_of(capacity).0.saturating_sub(self.below)),
            memory: capacity.memory.saturating_sub(Bytes(self.memory)),
            packet_memory: capacity.packet_memory.saturating_sub(Bytes(self.packet_memory)),
            ports: self.ports.iter().map(of_port).collect(),
        }
    }

    fn add_processors(
        &mut self,
        processors: &[VirtualProcessor],
        before: &[u16],
    ) -> Result<Vec<u16>, Refusal> {
        let mut places = vec![0; processors.len()];
        // The largest first: small ones find a place beside them.
        let mut order: Vec<usize> = (0..processors.len()).collect();
        order.sort_by_key(|&at| core::cmp::Reverse(RULES.cost(processors[at].share)));
        for at in order {
            let asked = processors[at];
            let has_room = |place: &u16| {
                let core = self.guest.get(usize::from(*place));
                core.is_some_and(|core| core.has_room_for(asked.share))
            };
            let stays = before.get(at).copied().filter(has_room);
            let cores = u16::try_from(self.guest.len()).unwrap_or(u16::MAX);
            let Some(place) = stays.or_else(|| (0..cores).find(has_room)) else {
                return Err(self.refuse_processor(asked));
            };
            let core = &mut self.guest[usize::from(place)];
            core.slices += asked.share.parts_per_million();
            core.load += RULES.cost(asked.share);
            places[at] = place;
        }
        Ok(places)
    }

    fn refuse_processor(&self, asked: VirtualProcessor) -> Refusal {
        let period = asked.share.period();
        let room = self.guest.iter().map(|core| core.room(period)).max().unwrap_or(Nanos::ZERO);
        let total = if self.guest.is_empty() { Parts(0) } else { GUEST_SHARE_MAX };
        let fits = Share::new(room, period).ok();
        Refusal::Processor { asked, left: parts_of(room, period), total, fits }
    }

    fn add_below(&mut self, asked: Share, capacity: &Capacity) -> Result<(), Refusal> {
        let total = below_of(capacity);
        // Where packets come in nobody can choose: one share is never more than one core has.
        let left = Parts(total.0.saturating_sub(self.below).min(BELOW_SHARE_MAX.0));
        if asked.parts_per_million() > left.0 {
            let fits = Share::new(slice_of(left.0, asked.period()), asked.period()).ok();
            return Err(Refusal::Below { asked, left, total, fits });
        }
        self.below += asked.parts_per_million();
        Ok(())
    }

    fn add_port(&mut self, name: &Name, asked: Share, capacity: &Capacity) -> Result<(), Refusal> {
        if capacity.ports_unheld {
            return Err(Refusal::PortUnheld { port: name.clone() });
        }
        let (Some(port), Some(sum)) = (capacity.ports.get(name), self.ports.get_mut(name)) else {
            let known = capacity.ports.keys().cloned().collect();
            return Err(Refusal::PortUnknown { port: name.clone(), known });
        };
        let least = least_slice(port);
        if asked.slice() < least {
            let (port, packet) = (name.clone(), port.packet_max);
            return Err(Refusal::PortSlice { port, asked, least: Time(least), packet });
        }
        let left = Parts(PORT_SHARE_MAX.0.saturating_sub(*sum));
        if asked.parts_per_million() > left.0 {
            let slice = slice_of(left.0, asked.period());
            let fits = Share::new(slice, asked.period()).ok().filter(|_| slice >= least);
            let port = name.clone();
            return Err(Refusal::Port { port, asked, left, total: PORT_SHARE_MAX, fits });
        }
        *sum += asked.parts_per_million();
        Ok(())
    }
}

/// What of all packet cores together can be promised.
fn below_of(capacity: &Capacity) -> Parts {
    Parts(BELOW_SHARE_MAX.0 * u64::from(capacity.packet_cores))
}

/// What a port's longest packet takes; for ever when it sends nothing.
fn least_slice(port: &PortCapacity) -> Nanos {
    let bits = u128::from(port.packet_max.0) * 8;
    let nanos = (bits * 1_000_000_000).div_ceil(u128::from(port.rate.0.max(1)));
    Nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

fn refuse_short_periods(reservation: &Reservation) -> Result<(), Refusal> {
    let processors = reservation.processors.iter().map(|it| (PeriodOf::Processor, it.share));
    let below = reservation.below.iter().map(|share| (PeriodOf::Below, *share));
    let ports = reservation.send.iter().map(|(name, share)| (PeriodOf::Port(name.clone()), *share));
    let mut all = processors.chain(below).chain(ports);
    match all.find(|(_, share)| share.period() < ONE_CORE_PERIOD_MIN) {
        Some((of, share)) => Err(Refusal::OneCore { of, period: Time(share.period()) }),
        None => Ok(()),
    }
}
