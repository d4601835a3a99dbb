//! Reservations as sessions request them. Checks limits that hold on every node; whether a node has
//! the capacity is decided by [`crate::admission`].

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use units::{Bytes, Name};

use crate::processor::VirtualProcessor;
use crate::share::Share;
use crate::text::{Size, optional_size};
use crate::weight::Weight;

/// Largest number of virtual processors of one session: one for each pool of its threads. Each
/// occupies an entry in a guest core's schedule, also while it sleeps.
pub const PROCESSORS_MAX: usize = 8;
/// Largest number of ports of which one session reserves a share; a node has no more ports.
pub const SENDS_MAX: usize = 64;

/// Resources that a session reserves; by default nothing.
///
/// In JSON and TOML: `cpu = ["1ms/4ms+extra"]`, `below = "400us/4ms"`, `memory = "64MiB"`,
/// `queue = "256KiB"`, `send = { right = "2ms/6ms" }`, `weight = 200`; what is left out is not
/// reserved.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Reservation {
    /// Shares of guest cores, at most [`PROCESSORS_MAX`].
    #[serde(rename = "cpu")]
    pub processors: Vec<VirtualProcessor>,
    /// Time of packet cores for services at `nic` and `kernel`; converted to fuel by the machine's
    /// measured speed.
    pub below: Option<Share>,
    /// Total memory: linear memories, tables, code, stacks, its queue with the packets in it, and
    /// the node's own bookkeeping for the session ([`memory`](crate::memory)).
    #[serde(with = "optional_size")]
    pub memory: Option<Bytes>,
    /// Packet queue in front of its services, before any protocol work: a part of packet memory.
    #[serde(with = "optional_size")]
    pub queue: Option<Bytes>,
    /// Shares of ports' rates, by the port's name, at most [`SENDS_MAX`].
    pub send: BTreeMap<Name, Share>,
    /// Weight by which it takes part in the surplus of processors and ports.
    pub weight: Weight,
}

/// Error of a reservation that no node can admit. The operator's fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReservationError {
    /// More virtual processors than [`PROCESSORS_MAX`].
    #[error(
        "{found} virtual processors are requested, and a session has at most {PROCESSORS_MAX}; \
         request fewer with longer slices, or make a second session"
    )]
    Processors {
        /// Number requested.
        found: usize,
    },
    /// Shares of more ports than [`SENDS_MAX`].
    #[error("shares of {found} ports are requested, and a node has at most {SENDS_MAX} ports")]
    Sends {
        /// Number requested.
        found: usize,
    },
    /// A memory reservation of 0 bytes.
    #[error("0 bytes of memory are requested; omit the memory to reserve none")]
    NoMemory,
    /// A queue of 0 bytes.
    #[error("a queue of 0 bytes is requested; omit the queue to reserve none")]
    NoQueue,
    /// A queue larger than the session's whole memory.
    #[error(
        "a queue of {queue} is requested with {memory} of memory, and the queue is a part of the \
         memory; request more memory, or omit it"
    )]
    QueueInMemory {
        /// Requested queue.
        queue: Size,
        /// Requested memory.
        memory: Size,
    },
}

impl Reservation {
    /// Checks the limits that hold on every node.
    ///
    /// # Errors
    /// A count above its maximum, a size of 0, or a queue larger than the memory.
    pub fn check(&self) -> Result<(), ReservationError> {
        if self.processors.len() > PROCESSORS_MAX {
            return Err(ReservationError::Processors { found: self.processors.len() });
        }
        if self.send.len() > SENDS_MAX {
            return Err(ReservationError::Sends { found: self.send.len() });
        }
        if self.memory == Some(Bytes::ZERO) {
            return Err(ReservationError::NoMemory);
        }
        if self.queue == Some(Bytes::ZERO) {
            return Err(ReservationError::NoQueue);
        }
        if let (Some(queue), Some(memory)) = (self.queue, self.memory)
            && queue > memory
        {
            let (queue, memory) = (Size(queue), Size(memory));
            return Err(ReservationError::QueueInMemory { queue, memory });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Reservation, serde_json::Error> {
        serde_json::from_str(json)
    }

    #[test]
    fn a_reservation_is_text_where_people_write_it() {
        let json = r#"{"cpu":["1ms/4ms+extra","2ms/20ms"],"below":"400us/4ms","memory":"64MiB",
            "queue":"256KiB","send":{"right":"2ms/6ms"},"weight":200}"#;
        let reservation = read(json).unwrap();
        assert_eq!(reservation.processors.len(), 2);
        assert_eq!(reservation.memory, Some(Bytes(64 << 20)));
        assert_eq!(reservation.check(), Ok(()));
        let written = serde_json::to_string(&reservation).unwrap();
        assert_eq!(written, json.replace(['\n', ' '], ""));
    }

    #[test]
    fn omitted_fields_reserve_nothing() {
        assert_eq!(read("{}").unwrap(), Reservation::default());
        assert_eq!(Reservation::default().weight.get(), 100);
    }

    #[test]
    fn unknown_fields_and_invalid_values_are_refused() {
        assert!(read(r#"{"cpus":[]}"#).is_err());
        assert!(read(r#"{"cpu":["5ms/4ms"]}"#).is_err());
        assert!(read(r#"{"memory":"64MB"}"#).is_err());
    }

    #[test]
    fn a_reservation_has_limits() {
        let processor: VirtualProcessor = "1ms/4ms".parse().unwrap();
        let many = Reservation { processors: vec![processor; 9], ..Reservation::default() };
        assert_eq!(many.check(), Err(ReservationError::Processors { found: 9 }));
        let none = Reservation { memory: Some(Bytes::ZERO), ..Reservation::default() };
        assert_eq!(none.check(), Err(ReservationError::NoMemory));
        let none = Reservation { queue: Some(Bytes::ZERO), ..Reservation::default() };
        assert_eq!(none.check(), Err(ReservationError::NoQueue));
        let (queue, memory) = (Some(Bytes(8192)), Some(Bytes(4096)));
        let beyond = Reservation { queue, memory, ..Reservation::default() };
        assert!(matches!(beyond.check(), Err(ReservationError::QueueInMemory { .. })));
    }
}
