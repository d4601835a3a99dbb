//! Admission control: decides whether a node can guarantee one more reservation. An admitted
//! reservation stays guaranteed until it is released; a refusal changes nothing.
//!
//! ```text
//!              admit ┌──────────┐ change
//!  Reservation ─────▶│   held   │◀────────┐   Ok: the sums have it
//!                    └──────────┘─────────┘   Refusal: the sums are as before
//!                         │ release
//!                         ▼ the sums are as if it had never been
//!
//!  sums:  guest core 0 ▓▓▓▓▓▓▓░░|·     each virtual processor lies on one core
//!         guest core 1 ▓▓░░░░░░░|·     · kept for housekeeping and best effort
//!         packet cores ▓▓▓░░|·····     all of them together
//!         memory, packet memory, each port
//! ```
//!
//! Only sums are kept here. The order of execution is decided by [`crate::executor`], which meets
//! every deadline of a set that was admitted. Sums are in whole parts per million, each reservation
//! rounded up.

mod refusal;
mod sums;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use units::{BitsPerSecond, Bytes, Name, Nanos, SessionId};

use crate::memory::queue_default;
use crate::reservation::Reservation;
use crate::share::{Parts, WHOLE};
use crate::text::Size;

pub use refusal::{PeriodOf, Refusal};
use sums::Sums;

/// Largest part of a guest core that can be reserved: 90 %. The remainder serves the cell's own
/// work, which no session is charged for, and keeps sessions without a reservation from starving.
pub const GUEST_SHARE_MAX: Parts = Parts(900_000);
/// Largest part of each packet core that can be reserved for services at `nic` and `kernel`: 50 %.
/// The other half receives and forwards, so that modules never take the time of plain forwarding.
pub const BELOW_SHARE_MAX: Parts = Parts(500_000);
/// Largest part of a port's rate that can be reserved: 99 %. RCANE's measurements reserve 98.3 %.
/// The remainder lets sessions without a share make slow progress.
pub const PORT_SHARE_MAX: Parts = Parts(990_000);
/// Shortest period on a node with a single core: there the kernel, the daemon and the cell preempt
/// each other at ticks, and shares are met only as means over some hundred milliseconds.
pub const ONE_CORE_PERIOD_MIN: Nanos = Nanos::from_millis(100);

const _: () = assert!(GUEST_SHARE_MAX.0 <= crate::executor::LOAD_MAX);
const _: () = assert!(crate::executor::LOAD_MAX < WHOLE && PORT_SHARE_MAX.0 < WHOLE);

/// Capacity of a node that can be reserved.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capacity {
    /// Number of cores with a cell that runs modules.
    pub guest_cores: u16,
    /// Number of cores that receive packets.
    pub packet_cores: u16,
    /// Memory for sessions, without what the node itself needs.
    pub memory: Bytes,
    /// Packet memory for sessions' queues, without what is kept for sessions that reserve none.
    pub packet_memory: Bytes,
    /// Ports by name.
    pub ports: BTreeMap<Name, PortCapacity>,
    /// True if shares of ports cannot be enforced: without a front door the kernel sends services'
    /// packets, and charges them to no session. Shares are then refused.
    pub ports_unheld: bool,
    /// True if guest and packet cores are the same single core; then periods below
    /// [`ONE_CORE_PERIOD_MIN`] are refused.
    pub one_core: bool,
}

/// Capacity of one port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortCapacity {
    /// Line rate.
    pub rate: BitsPerSecond,
    /// Longest packet. A slice below its transmission time is refused, since packets are not
    /// fragmented.
    pub packet_max: Bytes,
}

/// Capacity that can still be reserved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Left {
    /// Unreserved part of each guest core. Short periods can use less of it, since each slice
    /// counts with the overrun of stopping it.
    pub guest: Vec<Parts>,
    /// Unreserved part of all packet cores together.
    pub below: Parts,
    /// Unreserved memory.
    pub memory: Bytes,
    /// Unreserved packet memory.
    pub packet_memory: Bytes,
    /// Unreserved part of each port's rate.
    pub ports: BTreeMap<Name, Parts>,
}

#[derive(Clone, Debug)]
struct Held {
    reservation: Reservation,
    /// Guest core of each virtual processor, in the reservation's order.
    cores: Vec<u16>,
}

/// Reservations that a node has admitted, and their sums.
#[derive(Clone, Debug)]
pub struct Admission {
    capacity: Capacity,
    sums: Sums,
    held: BTreeMap<SessionId, Held>,
    used: MemoryUsed,
}

/// Memory in use, which cannot be reclaimed. What sessions without a memory reservation use is not
/// reservable, and a session cannot reserve less than it uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryUsed {
    /// Sum over all sessions without a memory reservation.
    pub unreserved: Bytes,
    /// Usage by session, where it is known.
    pub by: BTreeMap<SessionId, UsedBy>,
}

/// Memory that one session uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsedBy {
    /// Bytes in use, without its reserved queue.
    pub bytes: Bytes,
    /// True if the session reserved no memory, so that its bytes are part of
    /// [`MemoryUsed::unreserved`].
    pub without_promise: bool,
}

impl Admission {
    /// Makes the admission control of a node without reservations.
    #[must_use]
    pub fn new(capacity: Capacity) -> Self {
        let (held, used) = (BTreeMap::new(), MemoryUsed::default());
        Self { sums: Sums::new(&capacity), capacity, held, used }
    }

    /// Replaces the record of memory in use.
    pub fn set_used(&mut self, used: MemoryUsed) {
        self.used = used;
    }

    /// Returns the last record of memory in use.
    #[must_use]
    pub const fn used(&self) -> &MemoryUsed {
        &self.used
    }

    /// Admits a session's reservation, all of it or nothing.
    ///
    /// # Errors
    /// Some of it cannot be guaranteed (the refusal has what is left and what to change), or the
    /// session holds a reservation already.
    pub fn admit(&mut self, id: SessionId, reservation: &Reservation) -> Result<(), Refusal> {
        if self.held.contains_key(&id) {
            return Err(Refusal::Held { id });
        }
        self.hold(id, reservation)
    }

    /// Replaces a session's reservation, all of it or nothing.
    ///
    /// # Errors
    /// Errors of [`Admission::admit`], in which case the old reservation stays in place; the
    /// session holds no reservation.
    pub fn change(&mut self, id: SessionId, reservation: &Reservation) -> Result<(), Refusal> {
        if !self.held.contains_key(&id) {
            return Err(Refusal::Unknown { id });
        }
        self.hold(id, reservation)
    }

    /// Removes a session's reservation and returns it.
    pub fn release(&mut self, id: SessionId) -> Option<Reservation> {
        let held = self.held.remove(&id)?;
        self.sums.remove(&held.reservation, &held.cores);
        Some(held.reservation)
    }

    /// Returns a session's reservation.
    #[must_use]
    pub fn reservation(&self, id: SessionId) -> Option<&Reservation> {
        Some(&self.held.get(&id)?.reservation)
    }

    /// Returns the guest core, counted from 0, of each of a session's virtual processors.
    #[must_use]
    pub fn cores(&self, id: SessionId) -> Option<&[u16]> {
        Some(&self.held.get(&id)?.cores)
    }

    /// Returns the capacity that can still be reserved.
    #[must_use]
    pub fn left(&self) -> Left {
        let mut left = self.sums.left(&self.capacity);
        left.memory = left.memory.saturating_sub(self.used.unreserved);
        left
    }

    /// Returns the total capacity of the node.
    #[must_use]
    pub const fn capacity(&self) -> &Capacity {
        &self.capacity
    }

    fn hold(&mut self, id: SessionId, reservation: &Reservation) -> Result<(), Refusal> {
        reservation.check()?;
        let mut sums = self.sums.clone();
        let mut before: &[u16] = &[];
        let mut memory_before = None;
        if let Some(held) = self.held.get(&id) {
            sums.remove(&held.reservation, &held.cores);
            before = &held.cores;
            memory_before = held.reservation.memory;
        }
        let in_use = self.unreserved_use(id, memory_before, reservation)?;
        let cores = sums.add(reservation, before, &self.capacity, in_use)?;
        self.sums = sums;
        self.held.insert(id, Held { reservation: reservation.clone(), cores });
        Ok(())
    }

    /// Returns the memory that other sessions use without a reservation, or zero where the memory
    /// reservation does not grow. Refuses a reservation below the session's own use.
    fn unreserved_use(
        &self,
        id: SessionId,
        before: Option<Bytes>,
        reservation: &Reservation,
    ) -> Result<Bytes, Refusal> {
        let Some(requested) = reservation.memory.filter(|requested| Some(*requested) != before)
        else {
            return Ok(Bytes::ZERO);
        };
        let known = self.used.by.get(&id).copied().unwrap_or_default();
        let queue = reservation.queue.unwrap_or_else(|| queue_default(Some(requested)));
        let used = known.bytes + queue;
        if requested < used {
            return Err(Refusal::MemoryUsed { requested: Size(requested), used: Size(used) });
        }
        // A decrease is always possible.
        if Some(requested) < before {
            return Ok(Bytes::ZERO);
        }
        let own = if known.without_promise { known.bytes } else { Bytes::ZERO };
        Ok(self.used.unreserved.saturating_sub(own))
    }
}

#[cfg(test)]
mod tests;
