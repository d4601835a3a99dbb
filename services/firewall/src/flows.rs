//! The flows that are known: a table of fixed size.
//!
//! ```text
//! hash of a flow ─▶ bucket ┌──────┬──────┬─ … ─┬──────┐
//!                          │ flow │ flow │     │ flow │  8 places
//!                          └──────┴──────┴─ … ─┴──────┘
//! ```
//!
//! A new flow takes a place that is empty or has expired, else that of the flow that has
//! waited longest for an answer or has ended. One that was answered is never thrown out: so
//! a flood of first packets throws out first packets, and no connection.

use crate::headers::Ends;

/// Places of a bucket.
const WAYS: usize = 8;
/// Buckets; a power of two, so that a hash becomes one by a mask.
const BUCKETS: usize = 4096;
const _: () = assert!(BUCKETS.is_power_of_two());
/// Bytes of a flow: module.toml's `memory_pages_max` counts on it.
const _: () = assert!(size_of::<Flow>() == 48);

/// Where a flow is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Phase {
    /// No flow: an empty place.
    None,
    /// Begun, and not answered.
    Opening,
    /// TCP: the other end has taken it, the first has not said that it knows.
    Answered,
    /// Both ends have spoken.
    Established,
    /// TCP: one end has closed it.
    Closing,
    /// TCP: both ends have.
    Closed,
    /// TCP: one end says that there is no such connection.
    Reset,
}

impl Phase {
    /// Whether the ends are done with it.
    pub const fn has_ended(self) -> bool {
        matches!(self, Self::Closed | Self::Reset)
    }

    /// Whether it makes room for another flow.
    const fn makes_room(self) -> bool {
        !matches!(self, Self::Established | Self::Closing)
    }
}

/// What a flow has besides its phase.
pub mod mark {
    /// Begun from inside.
    pub const FROM_INSIDE: u8 = 1 << 0;
    /// The end inside has sent FIN.
    pub const FIN_INSIDE: u8 = 1 << 1;
    /// The end outside has.
    pub const FIN_OUTSIDE: u8 = 1 << 2;
    /// The reset came from inside.
    pub const RESET_INSIDE: u8 = 1 << 3;
    /// It was established before the reset.
    pub const RESET_LATE: u8 = 1 << 4;
    /// It was there before the firewall: its beginning was not seen.
    pub const PICKED_UP: u8 = 1 << 5;
}

/// What a flow is found by: the same for both directions.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Key {
    inside: u128,
    outside: u128,
    /// The port inside, and the one outside.
    ports: u32,
    protocol: u8,
}

/// One flow.
#[derive(Clone, Copy)]
pub struct Flow {
    // The fields of its key, without the padding that a `Key` would have.
    inside: u128,
    outside: u128,
    ports: u32,
    protocol: u8,
    pub phase: Phase,
    pub marks: u8,
    pub expires_ms: u64,
}

/// What the table says of a key.
pub enum Look<'a> {
    /// The flow.
    Found(&'a mut Flow),
    /// There is none; this place is for it.
    Free(&'a mut Flow),
    /// There is none, and no place.
    Full,
}

/// All flows.
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

/// One step of a hash: what differs in one bit differs in half of them after two.
pub const fn mix(hash: u64, word: u64) -> u64 {
    // The fractional part of the golden ratio, which is odd.
    let product = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    product ^ product >> 32
}

impl Flow {
    const EMPTY: Self = Self {
        inside: 0,
        outside: 0,
        ports: 0,
        protocol: 0,
        phase: Phase::None,
        marks: 0,
        expires_ms: 0,
    };

    pub fn begin(key: &Key, from_inside: bool, picked_up: bool, expires_ms: u64) -> Self {
        let marks = if from_inside { mark::FROM_INSIDE } else { 0 }
            | if picked_up { mark::PICKED_UP } else { 0 };
        let Key { inside, outside, ports, protocol } = *key;
        Self { inside, outside, ports, protocol, phase: Phase::Opening, marks, expires_ms }
    }

    pub fn is_alive(&self, now: u64) -> bool {
        self.phase != Phase::None && now < self.expires_ms
    }

    pub fn has(&self, key: &Key) -> bool {
        let Self { inside, outside, ports, protocol, .. } = *self;
        *key == Key { inside, outside, ports, protocol }
    }

    /// Whether a packet comes from the end that began the flow.
    pub const fn is_from_first(&self, from_inside: bool) -> bool {
        (self.marks & mark::FROM_INSIDE != 0) == from_inside
    }

    /// A packet of a protocol without connections: an answer makes the flow last.
    pub fn answered_by(&mut self, from_inside: bool) {
        if !self.is_from_first(from_inside) {
            self.phase = Phase::Established;
        }
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

    /// Forgets every flow.
    pub fn flush(&mut self) {
        for flow in self.buckets.as_flattened_mut() {
            flow.phase = Phase::None;
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
            let age = match (alive, flow.phase.makes_room()) {
                (false, _) => 0,
                (true, true) => flow.expires_ms,
                (true, false) => u64::MAX,
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

    /// How many flows are unanswered, established, and ending.
    pub fn count(&self, now: u64) -> [u32; 3] {
        let mut counts = [0; 3];
        for flow in self.buckets.as_flattened().iter().filter(|flow| flow.is_alive(now)) {
            let which = match flow.phase {
                Phase::None | Phase::Opening | Phase::Answered => 0,
                Phase::Established => 1,
                Phase::Closing | Phase::Closed | Phase::Reset => 2,
            };
            counts[which] += 1;
        }
        counts
    }
}
