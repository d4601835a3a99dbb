//! Sums of all admitted reservations by resource, and the checks against capacity.

use std::collections::BTreeMap;

use units::{Bytes, Name, Nanos};

use crate::executor::{LOAD_MAX, PARAMS};
use crate::processor::VirtualProcessor;
use crate::reservation::Reservation;
use crate::share::{Parts, Share, Time, WHOLE};
use crate::text::Size;

use super::{
    BELOW_SHARE_MAX, Capacity, GUEST_SHARE_MAX, Left, ONE_CORE_PERIOD_MIN, PORT_SHARE_MAX,
    PeriodOf, PortCapacity, Refusal,
};

/// Sums of one guest core, in parts per million.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Core {
    slices: u64,
    /// Sum of slices, each with the overrun of stopping it.
    load: u64,
}

impl Core {
    fn fits(self, share: Share) -> bool {
        self.slices + share.parts_per_million() <= GUEST_SHARE_MAX.0
            && self.load + PARAMS.cost(share) <= LOAD_MAX
    }

    /// Returns the longest slice of this period that could still be reserved.
    fn longest_slice(self, period: Nanos) -> Nanos {
        let of_slices = slice_of(GUEST_SHARE_MAX.0.saturating_sub(self.slices), period);
        let of_load = slice_of(LOAD_MAX.saturating_sub(self.load), period);
        of_slices.min(of_load.saturating_sub(PARAMS.overrun_max))
    }
}

/// Returns the longest slice that is `parts` per million of `period`.
fn slice_of(parts: u64, period: Nanos) -> Nanos {
    // Largest product: 10^6 parts times 10^9 ns.
    Nanos(parts.min(WHOLE) * period.0 / WHOLE)
}

/// Returns a slice in parts per million of its period, rounded down.
fn parts_of(slice: Nanos, period: Nanos) -> Parts {
    Parts(slice.0 * WHOLE / period.0)
}

/// Sums of all reservations: cores and ports in parts per million, memory in bytes.
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

    /// Adds a reservation and returns the guest core of each virtual processor, which stays on its
    /// core of `before` if it fits there. On a refusal some of it may have been added: call it on a
    /// copy. `unreserved_use` is memory in use without a reservation.
    pub(super) fn add(
        &mut self,
        reservation: &Reservation,
        before: &[u16],
        capacity: &Capacity,
        unreserved_use: Bytes,
    ) -> Result<Vec<u16>, Refusal> {
        if capacity.one_core {
            refuse_short_periods(reservation)?;
        }
        let cores = self.add_processors(&reservation.processors, before)?;
        if let Some(share) = reservation.below {
            self.add_below(share, capacity)?;
        }
        if let Some(requested) = reservation.memory {
            let left = capacity.memory.saturating_sub(Bytes(self.memory) + unreserved_use);
            if requested > left {
                let (requested, left, total) = (Size(requested), Size(left), Size(capacity.memory));
                return Err(Refusal::Memory {
                    requested,
                    left,
                    total,
                    unreserved: Size(unreserved_use),
                });
            }
            self.memory += requested.0;
        }
        if let Some(requested) = reservation.queue {
            let left = capacity.packet_memory.saturating_sub(Bytes(self.packet_memory));
            if requested > left {
                let (requested, left, total) =
                    (Size(requested), Size(left), Size(capacity.packet_memory));
                return Err(Refusal::Queue { requested, left, total });
            }
            self.packet_memory += requested.0;
        }
        for (port, &share) in &reservation.send {
            self.add_port(port, share, capacity)?;
        }
        Ok(cores)
    }

    /// Subtracts a reservation that was added, with its virtual processors on `cores`.
    pub(super) fn remove(&mut self, reservation: &Reservation, cores: &[u16]) {
        for (processor, &core) in reservation.processors.iter().zip(cores) {
            let core = &mut self.guest[usize::from(core)];
            core.slices -= processor.share.parts_per_million();
            core.load -= PARAMS.cost(processor.share);
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
        let mut cores = vec![0; processors.len()];
        // Largest first, so that small ones fill the gaps.
        let mut order: Vec<usize> = (0..processors.len()).collect();
        order.sort_by_key(|&at| core::cmp::Reverse(PARAMS.cost(processors[at].share)));
        for at in order {
            let requested = processors[at];
            let has_capacity = |core: &u16| {
                let core = self.guest.get(usize::from(*core));
                core.is_some_and(|core| core.fits(requested.share))
            };
            let unmoved = before.get(at).copied().filter(has_capacity);
            let count = u16::try_from(self.guest.len()).unwrap_or(u16::MAX);
            let Some(core) = unmoved.or_else(|| (0..count).find(has_capacity)) else {
                return Err(self.refuse_processor(requested));
            };
            let sums = &mut self.guest[usize::from(core)];
            sums.slices += requested.share.parts_per_million();
            sums.load += PARAMS.cost(requested.share);
            cores[at] = core;
        }
        Ok(cores)
    }

    fn refuse_processor(&self, requested: VirtualProcessor) -> Refusal {
        let period = requested.share.period();
        let slice =
            self.guest.iter().map(|core| core.longest_slice(period)).max().unwrap_or(Nanos::ZERO);
        let total = if self.guest.is_empty() { Parts(0) } else { GUEST_SHARE_MAX };
        let fits = Share::new(slice, period).ok();
        Refusal::Processor { requested, left: parts_of(slice, period), total, fits }
    }

    fn add_below(&mut self, requested: Share, capacity: &Capacity) -> Result<(), Refusal> {
        let total = below_of(capacity);
        // The core that a packet arrives on cannot be chosen, so a share is never more than one
        // core has.
        let left = Parts(total.0.saturating_sub(self.below).min(BELOW_SHARE_MAX.0));
        if requested.parts_per_million() > left.0 {
            let fits = Share::new(slice_of(left.0, requested.period()), requested.period()).ok();
            return Err(Refusal::Below { requested, left, total, fits });
        }
        self.below += requested.parts_per_million();
        Ok(())
    }

    fn add_port(
        &mut self,
        name: &Name,
        requested: Share,
        capacity: &Capacity,
    ) -> Result<(), Refusal> {
        if capacity.ports_unheld {
            return Err(Refusal::PortUnheld { port: name.clone() });
        }
        let (Some(port), Some(sum)) = (capacity.ports.get(name), self.ports.get_mut(name)) else {
            let known = capacity.ports.keys().cloned().collect();
            return Err(Refusal::PortUnknown { port: name.clone(), known });
        };
        let least = least_slice(port);
        if requested.slice() < least {
            let (port, packet) = (name.clone(), port.packet_max);
            return Err(Refusal::PortSlice { port, requested, least: Time(least), packet });
        }
        let left = Parts(PORT_SHARE_MAX.0.saturating_sub(*sum));
        if requested.parts_per_million() > left.0 {
            let slice = slice_of(left.0, requested.period());
            let fits = Share::new(slice, requested.period()).ok().filter(|_| slice >= least);
            let port = name.clone();
            return Err(Refusal::Port { port, requested, left, total: PORT_SHARE_MAX, fits });
        }
        *sum += requested.parts_per_million();
        Ok(())
    }
}

/// Returns the reservable part of all packet cores together.
fn below_of(capacity: &Capacity) -> Parts {
    Parts(BELOW_SHARE_MAX.0 * u64::from(capacity.packet_cores))
}

/// Returns the transmission time of the port's longest packet; `u64::MAX` if its rate is 0.
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
