//! What a session reserves, as it is asked for. Whether a node has that much, admission says.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use units::{Bytes, Name};

use crate::processor::VirtualProcessor;
use crate::share::Share;
use crate::text::{Size, optional_size};
use crate::weight::Weight;

/// Virtual processors of one session: one for each pool of its threads. Each takes a place in the
/// schedule of a guest core, also while it sleeps.
pub const PROCESSORS_MAX: usize = 8;
/// Ports of which one session reserves a share: a node has no more.
pub const SENDS_MAX: usize = 64;

/// What a session reserves; by default nothing.
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
    /// Time of packet cores, at `nic` and `kernel`; the machine's calibration makes it fuel.
    pub below: Option<Share>,
    /// Linear memories, tables, code, stacks, its queue and packets that wait, and what the node
    /// keeps for it, in one number: [`memory`](crate::memory).
    #[serde(with = "optional_size")]
    pub memory: Option<Bytes>,
    /// What waits for it at most, before any protocol work: a part of packet memory.
    #[serde(with = "optional_size")]
    pub queue: Option<Bytes>,
    /// Of ports' rates, by the port's name, at most [`SENDS_MAX`].
    pub send: BTreeMap<Name, Share>,
    /// Its part of what nobody reserved or uses, of processors and of ports.
    pub weight: Weight,
}

/// Why no node can have this reservation. The operator's fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReservationError {
    /// More than [`PROCESSORS_MAX`].
    #[error(
        "{found} virtual processors are asked for, a session has at most {PROCESSORS_MAX}; \
         ask for fewer with longer slices, or for a second session"
    )]
    Processors {
        /// How many.
        found: usize,
    },
    /// More than [`SENDS_MAX`].
    #[error("shares of {found} ports are asked for, a node has at most {SENDS_MAX} ports")]
    Sends {
        /// How many.
        found: usize,
    },
    /// No memory at all.
    #[error("0 bytes of memory are asked for; leave the memory out to reserve none")]
    NoMemory,
    /// A queue that holds nothing.
    #[error("a queue of 0 bytes is asked for; leave the queue out to reserve none")]
    NoQueue,
    /// A queue that is longer than all of its memory.
    #[error(
        "a queue of {queue} is asked for, and {memory} of memory, of which the queue is a part; \
         ask for more memory, or leave it out"
    )]
    QueueInMemory {
        /// The queue.
        queue: Size,
        /// All of the memory.
        memory: Size,
    },
}

impl Reservation {
    /// Whether some node could have it.
    ///
    /// # Errors
    /// When it names more than a session can have, or nothing where it should name something.
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
    fn what_is_left_out_is_not_reserved() {
        assert_eq!(read("{}").unwrap(), Reservation::default());
        assert_eq!(Reservation::default().weight.get(), 100);
    }

    #[test]
    fn what_is_not_known_is_refused() {
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
