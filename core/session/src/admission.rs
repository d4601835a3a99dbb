//! Whether a node can keep one more promise. What it says yes to it has, for as long as it is
//! held; what it refuses changes nothing.
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
//! It only adds up: who runs when is the matter of [`crate::executor`], and what fits here has no
//! missed deadline there. Sums are of whole parts of a million, each rounded up.

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

/// What of a guest core can be promised. The rest is for the cell's own work, which no session is
/// charged for, and so that those who reserved nothing are never shut out.
pub const GUEST_SHARE_MAX: Parts = Parts(900_000);
/// What of each packet core can be promised for services at `nic` and `kernel`. The other half is
/// for receiving and forwarding: a packet that nobody asked for never pays for those that
/// somebody did.
pub const BELOW_SHARE_MAX: Parts = Parts(500_000);
/// What of a port's rate can be promised. RCANE's figures promise 98.3 % of theirs; with the rest
/// those who reserved nothing are slow, but get through.
pub const PORT_SHARE_MAX: Parts = Parts(990_000);
/// The shortest period that is promised on a node with one core only: there the kernel, the
/// daemon and the cell take the core from each other by its ticks, and only means over some
/// hundred milliseconds hold.
pub const ONE_CORE_PERIOD_MIN: Nanos = Nanos::from_millis(100);

const _: () = assert!(GUEST_SHARE_MAX.0 <= crate::executor::LOAD_MAX);
const _: () = assert!(crate::executor::LOAD_MAX < WHOLE && PORT_SHARE_MAX.0 < WHOLE);

/// What a node has to give.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capacity {
    /// Cores with a cell that runs modules.
    pub guest_cores: u16,
    /// Cores that receive packets.
    pub packet_cores: u16,
    /// Memory for sessions, without what the node needs for itself.
    pub memory: Bytes,
    /// Memory in which packets wait, without what the node keeps for those without a queue.
    pub packet_memory: Bytes,
    /// Its ports.
    pub ports: BTreeMap<Name, PortCapacity>,
    /// Nothing holds what services send to shares of these ports, so none is promised: the kernel
    /// sends it for them, and nobody can be asked where.
    pub ports_unheld: bool,
    /// Whether all of it is one core: then no period below [`ONE_CORE_PERIOD_MIN`] is promised.
    pub one_core: bool,
}

/// What a port has to give.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortCapacity {
    /// What it sends.
    pub rate: BitsPerSecond,
    /// Its longest packet: no slice is shorter, since packets are not cut.
    pub packet_max: Bytes,
}

/// What can still be promised.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Left {
    /// Of each guest core. Short periods leave less, since each slice counts with a stop.
    pub guest: Vec<Parts>,
    /// Of all packet cores together.
    pub below: Parts,
    /// Of memory.
    pub memory: Bytes,
    /// Of packet memory.
    pub packet_memory: Bytes,
    /// Of each port's rate.
    pub ports: BTreeMap<Name, Parts>,
}

#[derive(Clone, Debug)]
struct Held {
    reservation: Reservation,
    /// On which guest core each virtual processor lies.
    places: Vec<u16>,
}

/// What was promised to whom.
#[derive(Clone, Debug)]
pub struct Admission {
    capacity: Capacity,
    sums: Sums,
    held: BTreeMap<SessionId, Held>,
    used: MemoryUsed,
}

/// What of memory is in use and cannot be taken back: what sessions use that reserved none is
/// there for no promise, and nobody is promised less than it uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryUsed {
    /// By all that reserved none, together.
    pub rest: Bytes,
    /// By those of which it is known.
    pub by: BTreeMap<SessionId, UsedBy>,
}

/// What one session has in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsedBy {
    /// Without a queue that it reserved.
    pub bytes: Bytes,
    /// It is a part of what all use that reserved none.
    pub without_promise: bool,
}

impl Admission {
    /// Of a node that has promised nothing.
    #[must_use]
    pub fn new(capacity: Capacity) -> Self {
        let (held, used) = (BTreeMap::new(), MemoryUsed::default());
        Self { sums: Sums::new(&capacity), capacity, held, used }
    }

    /// Says what of memory is in use now.
    pub fn set_used(&mut self, used: MemoryUsed) {
        self.used = used;
    }

    /// What of memory was last known to be in use.
    #[must_use]
    pub const fn used(&self) -> &MemoryUsed {
        &self.used
    }

    /// Promises a session what it reserves, all of it or nothing.
    ///
    /// # Errors
    /// When some of it cannot be guaranteed, with what is left and what to change; when the
    /// session holds a reservation already.
    pub fn admit(&mut self, id: SessionId, reservation: &Reservation) -> Result<(), Refusal> {
        if self.held.contains_key(&id) {
            return Err(Refusal::Held { id });
        }
        self.hold(id, reservation)
    }

    /// Promises a session something else instead, all of it or nothing.
    ///
    /// # Errors
    /// As [`Admission::admit`], and what it holds stays; when it holds nothing.
    pub fn change(&mut self, id: SessionId, reservation: &Reservation) -> Result<(), Refusal> {
        if !self.held.contains_key(&id) {
            return Err(Refusal::Unknown { id });
        }
        self.hold(id, reservation)
    }

    /// Takes back what was promised a session; what that was.
    pub fn release(&mut self, id: SessionId) -> Option<Reservation> {
        let held = self.held.remove(&id)?;
        self.sums.remove(&held.reservation, &held.places);
        Some(held.reservation)
    }

    /// What a session was promised.
    #[must_use]
    pub fn reservation(&self, id: SessionId) -> Option<&Reservation> {
        Some(&self.held.get(&id)?.reservation)
    }

    /// On which guest core, counted from 0, each of its virtual processors lies.
    #[must_use]
    pub fn places(&self, id: SessionId) -> Option<&[u16]> {
        Some(&self.held.get(&id)?.places)
    }

    /// What can still be promised.
    #[must_use]
    pub fn left(&self) -> Left {
        let mut left = self.sums.left(&self.capacity);
        left.memory = left.memory.saturating_sub(self.used.rest);
        left
    }

    /// What the node has to give.
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
            sums.remove(&held.reservation, &held.places);
            before = &held.places;
            memory_before = held.reservation.memory;
        }
        let rest = self.rest_beside(id, memory_before, reservation)?;
        let places = sums.add(reservation, before, &self.capacity, rest)?;
        self.sums = sums;
        self.held.insert(id, Held { reservation: reservation.clone(), places });
        Ok(())
    }

    /// What others use without a promise, for one that is to be promised so much memory.
    fn rest_beside(
        &self,
        id: SessionId,
        before: Option<Bytes>,
        reservation: &Reservation,
    ) -> Result<Bytes, Refusal> {
        let Some(asked) = reservation.memory.filter(|asked| Some(*asked) != before) else {
            return Ok(Bytes::ZERO);
        };
        let known = self.used.by.get(&id).copied().unwrap_or_default();
        let queue = reservation.queue.unwrap_or_else(|| queue_default(Some(asked)));
        let used = known.bytes + queue;
        if asked < used {
            return Err(Refusal::MemoryUsed { asked: Size(asked), used: Size(used) });
        }
        // Less is always to be had.
        if Some(asked) < before {
            return Ok(Bytes::ZERO);
        }
        let own = if known.without_promise { known.bytes } else { Bytes::ZERO };
        Ok(self.used.rest.saturating_sub(own))
    }
}

#[cfg(test)]
mod tests;
