//! Flow table of fixed size.
//!
//! ```text
//!  hash of a flow ─▶ bucket ┌──────┬──────┬─ … ─┬──────┐
//!                           │ flow │ flow │     │ flow │  8 entries
//!                           └──────┴──────┴─ … ─┴──────┘
//! ```
//!
//! A new flow takes an entry that is empty or has expired, otherwise that of the flow that has
//! waited longest for an answer or has ended. An answered flow is never evicted: a flood of first
//! packets evicts first packets, and no connection.

use crate::headers::Ends;
use tam::hash::mix;
use tam::track::{Connection, Phase};

/// Entries of a bucket.
const WAYS: usize = 8;
/// Number of buckets; a power of two, so that a mask maps a hash to a bucket.
const BUCKETS: usize = 4096;
const _: () = assert!(BUCKETS.is_power_of_two());
/// Size of a flow in bytes, on which `memory_pages_max` in module.toml is based.
const _: () = assert!(size_of::<Flow>() == 48);

/// Key of a flow: the same for both directions.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Key {
    inside: u128,
    outside: u128,
    /// L4 ports inside and outside.
    ports: u32,
    protocol: u8,
}

/// Flow.
#[derive(Clone, Copy)]
pub struct Flow {
    // Fields of its key, without the padding that a `Key` would have.
    inside: u128,
    outside: u128,
    ports: u32,
    protocol: u8,
    pub connection: Connection,
    pub expires_ms: u64,
}

/// Result of a lookup.
pub enum Look<'a> {
    /// Known flow.
    Found(&'a mut Flow),
    /// Unknown flow, with an entry for it.
    Free(&'a mut Flow),
    /// Unknown flow, without a free entry.
    Full,
}

/// Table of all flows.
pub struct Table {
    seed: u64,
    buckets: [[Flow; WAYS]; BUCKETS],
}

impl Key {
    pub fn new(ends: &Ends, from_inside: bool) -> Self {
        let Ends { protocol, source, destination, source_port, destination_port } = *ends;
        let (inside, outside, port_inside, port_outside) = match from_inside {
            true => (source, destination, source_port, destination_port),
            false => (destination, source, destination_port, source_port),
        };
        let ports = u32::from(port_inside) << 16 | u32::from(port_outside);
        Self { inside, outside, ports, protocol }
    }

    fn hash(&self, seed: u64) -> u64 {
        let rest = u64::from(self.ports) << 8 | u64::from(self.protocol);
        let mixed = mix(mix(seed, self.inside as u64), (self.inside >> 64) as u64);
        mix(mix(mix(mixed, self.outside as u64), (self.outside >> 64) as u64), rest)
    }
}

impl Flow {
    const EMPTY: Self = Self {
        inside: 0,
        outside: 0,
        ports: 0,
        protocol: 0,
        connection: Connection::NONE,
        expires_ms: 0,
    };

    pub fn begin(key: &Key, connection: Connection, expires_ms: u64) -> Self {
        let Key { inside, outside, ports, protocol } = *key;
        Self { inside, outside, ports, protocol, connection, expires_ms }
    }

    pub fn is_alive(&self, now: u64) -> bool {
        self.connection.phase() != Phase::None && now < self.expires_ms
    }

    pub fn has(&self, key: &Key) -> bool {
        let Self { inside, outside, ports, protocol, .. } = *self;
        *key == Key { inside, outside, ports, protocol }
    }
}

impl Table {
    pub const fn new() -> Self {
        Self { seed: 0, buckets: [[Flow::EMPTY; WAYS]; BUCKETS] }
    }

    pub fn begin(&mut self, seed: u64) {
        self.seed = seed;
        self.flush();
    }

    /// Removes every flow.
    pub fn flush(&mut self) {
        for flow in self.buckets.as_flattened_mut() {
            flow.connection = Connection::NONE;
        }
    }

    pub fn look(&mut self, key: &Key, now: u64) -> Look<'_> {
        let bucket = key.hash(self.seed) as usize & (BUCKETS - 1);
        let flows = &mut self.buckets[bucket];
        let (mut found, mut free, mut oldest) = (WAYS, WAYS, u64::MAX);
        for (way, flow) in flows.iter().enumerate() {
            let alive = flow.is_alive(now);
            if alive && flow.has(key) {
                found = way;
                break;
            }
            let age = match (alive, flow.connection.is_lasting()) {
                (false, _) => 0,
                (true, false) => flow.expires_ms,
                (true, true) => u64::MAX,
            };
            if age < oldest {
                (free, oldest) = (way, age);
            }
        }
        match (found < WAYS, free < WAYS) {
            (true, _) => Look::Found(&mut flows[found]),
            (false, true) => Look::Free(&mut flows[free]),
            (false, false) => Look::Full,
        }
    }

    /// Returns the numbers of unanswered, established, and ending flows.
    pub fn count(&self, now: u64) -> [u32; 3] {
        let mut counts = [0; 3];
        for flow in self.buckets.as_flattened().iter().filter(|flow| flow.is_alive(now)) {
            let which = match flow.connection.phase() {
                Phase::None | Phase::Opening | Phase::Answered => 0,
                Phase::Established => 1,
                _ => 2,
            };
            counts[which] += 1;
        }
        counts
    }
}
