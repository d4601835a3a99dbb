//! Who inside has which port of the address: a table of fixed size, in which a mapping's
//! place *is* its port.
//!
//! ```text
//! port of the address ─▶ ┌────┬────┬─ … ─┬────┐ ┌─ … ─┐
//!                        │    │    │     │    │ │     │  32 ports a bucket
//!                        └────┴────┴─ … ─┴────┘ └─ … ─┘
//!                              ▲ who asks is in one of 17 places: the port that they have
//!                                inside, or one of a bucket, as a hash of them says
//! ```
//!
//! A mapping is the same wherever its packets go (endpoint-independent, RFC 4787, REQ-1), and
//! its port is odd where the port inside is (REQ-4). A new one takes a place that is empty or
//! has expired, else that of the mapping that has waited longest for an answer; one that was
//! answered is never thrown out.

use crate::Reason;
use crate::headers::Protocol;
use crate::settings::Settings;

/// Ports that can be mapped, at most: half of all, which keeps the table in 1.5 MiB.
pub const PORTS_MAX: usize = 32_768;
/// Ports of a bucket, half of them odd.
pub const BUCKET: usize = 32;
const PROTOCOLS: usize = 3;
/// Bytes of a mapping: module.toml's `memory_pages_max` counts on it.
const _: () = assert!(size_of::<Mapping>() == 16);

const FIN: u8 = 1 << 0;
const SYN: u8 = 1 << 1;
const RST: u8 = 1 << 2;

/// A TCP connection that begins or ends is kept this long (RFC 5382, REQ-5: 4 minutes).
const TRANSITORY_MS: u64 = 240_000;

/// Where a mapping is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Phase {
    /// An empty place.
    None,
    /// Nobody has answered.
    Opening,
    /// Somebody has.
    Answered,
    /// TCP: whoever is inside has gone on then.
    Established,
    /// TCP: an end has closed or reset it.
    Closing,
}

/// Somebody inside, with their port.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Place {
    pub protocol: Protocol,
    pub address: u32,
    pub port: u16,
}

/// Who a port of the address is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapped {
    pub address: u32,
    pub port: u16,
}

/// A new mapping.
pub struct Made {
    /// Another one made room for it.
    pub evicted: bool,
}

#[derive(Clone, Copy)]
struct Mapping {
    address: u32,
    port: u16,
    phase: Phase,
    expires_ms: u64,
}

/// All mappings.
pub struct Mappings {
    first: u16,
    ports: usize,
    seed: u64,
    places: [[Mapping; PORTS_MAX]; PROTOCOLS],
}

impl Mapping {
    const EMPTY: Self = Self { address: 0, port: 0, phase: Phase::None, expires_ms: 0 };

    fn is_alive(&self, now: u64) -> bool {
        self.phase != Phase::None && now < self.expires_ms
    }

    fn is_of(&self, place: &Place, now: u64) -> bool {
        self.address == place.address && self.port == place.port && self.is_alive(now)
    }

    /// The lower, the sooner it makes room; `u64::MAX`: never.
    fn age(&self, now: u64) -> u64 {
        match (self.is_alive(now), self.phase) {
            (false, _) => 0,
            (true, Phase::Opening | Phase::Closing) => self.expires_ms,
            (true, _) => u64::MAX,
        }
    }

    /// A packet from inside.
    fn sent(&mut self, protocol: Protocol, flags: u8) {
        self.phase = match self.phase {
            _ if flags & (RST | FIN) != 0 => Phase::Closing,
            // Another connection with the same port.
            Phase::Closing if flags & SYN != 0 => Phase::Opening,
            Phase::Answered if protocol == Protocol::Tcp && flags & SYN == 0 => Phase::Established,
            phase => phase,
        };
    }

    /// A packet from outside.
    fn received(&mut self, flags: u8) {
        self.phase = match self.phase {
            _ if flags & (RST | FIN) != 0 => Phase::Closing,
            Phase::Opening => Phase::Answered,
            phase => phase,
        };
    }

    fn keep(&mut self, protocol: Protocol, settings: &Settings, now: u64) {
        self.expires_ms = now
            + match (protocol, self.phase) {
                (Protocol::Udp, _) => settings.udp_ms,
                (Protocol::Icmp, _) => settings.icmp_ms,
                (Protocol::Tcp, Phase::Established) => settings.tcp_ms,
                (Protocol::Tcp, _) => TRANSITORY_MS,
            };
    }
}

impl Place {
    /// What differs in one bit differs in about half of the hash's.
    fn hash(&self, seed: u64) -> u64 {
        let mut hash = seed ^ (u64::from(self.address) << 16 | u64::from(self.port));
        for _ in 0..2 {
            // The fractional part of the golden ratio, which is odd.
            hash = (hash ^ hash >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
        hash >> 32
    }
}

impl Mappings {
    pub const fn new() -> Self {
        let places = [[Mapping::EMPTY; PORTS_MAX]; PROTOCOLS];
        // All zeros: what is not takes room in the module.
        Self { first: 0, ports: 0, seed: 0, places }
    }

    /// Begins with `ports` ports from `first`, both multiples of [`BUCKET`].
    pub fn begin(&mut self, first: u16, ports: usize, seed: u64) {
        (self.first, self.ports, self.seed) = (first, ports, seed);
        self.flush();
    }

    /// Forgets every mapping.
    pub fn flush(&mut self) {
        for mapping in self.places.as_flattened_mut() {
            mapping.phase = Phase::None;
        }
    }

    /// The index of a port, if it may be mapped.
    fn index(&self, port: u16) -> Option<usize> {
        let index = usize::from(port.checked_sub(self.first)?);
        (index < self.ports).then_some(index)
    }

    /// The first index of the bucket's ports that are odd where `place`'s is.
    fn bucket(&self, place: &Place) -> usize {
        let buckets = (self.ports / BUCKET) as u64;
        // A 32-bit hash times a count, of which the high half is below the count.
        let bucket = ((place.hash(self.seed) * buckets) >> 32) as usize;
        (bucket * BUCKET + usize::from(place.port & 1)) & (PORTS_MAX - 1)
    }

    fn port(&self, index: usize) -> u16 {
        self.first.wrapping_add(index as u16)
    }

    /// The port of somebody inside, if they have one.
    pub fn look(&self, place: &Place, now: u64) -> Option<u16> {
        let places = &self.places[place.protocol as usize];
        if let Some(index) = self.index(place.port)
            && places[index].is_of(place, now)
        {
            return Some(place.port);
        }
        let begin = self.bucket(place);
        let bucket = places[begin..].iter().take(BUCKET).step_by(2);
        let at = bucket.enumerate().find(|(_, mapping)| mapping.is_of(place, now))?.0;
        Some(self.port(begin + at * 2))
    }

    /// A packet from inside: its port, which is made if there is none.
    pub fn outgoing(
        &mut self,
        place: &Place,
        flags: u8,
        settings: &Settings,
        now: u64,
    ) -> Result<(u16, Option<Made>), Reason> {
        let (index, made) = match self.look(place, now).and_then(|port| self.index(port)) {
            Some(index) => (index, None),
            // A reset of what is not there begins nothing.
            None if flags & RST != 0 => return Err(Reason::NoMapping),
            None => {
                let index = self.room(place, now).ok_or(Reason::NoPort)?;
                (index, Some(self.make(index, place, now)))
            }
        };
        let port = self.port(index);
        let mapping = &mut self.places[place.protocol as usize][index & (PORTS_MAX - 1)];
        mapping.sent(place.protocol, flags);
        mapping.keep(place.protocol, settings, now);
        Ok((port, made))
    }

    /// Where a new mapping can be: the port that `place` has inside, if that is free.
    fn room(&self, place: &Place, now: u64) -> Option<usize> {
        let places = &self.places[place.protocol as usize];
        let preserved = self.index(place.port);
        let (mut best, mut youngest) = (None, u64::MAX);
        if let Some(index) = preserved {
            let age = places[index].age(now);
            if age == 0 {
                return preserved;
            }
            if age < youngest {
                (best, youngest) = (preserved, age);
            }
        }
        let begin = self.bucket(place);
        for (at, mapping) in places[begin..].iter().take(BUCKET).step_by(2).enumerate() {
            let age = mapping.age(now);
            if age < youngest {
                (best, youngest) = (Some(begin + at * 2), age);
            }
        }
        best
    }

    fn make(&mut self, index: usize, place: &Place, now: u64) -> Made {
        let mapping = &mut self.places[place.protocol as usize][index & (PORTS_MAX - 1)];
        let evicted = mapping.is_alive(now);
        let Place { address, port, .. } = *place;
        *mapping = Mapping { address, port, phase: Phase::Opening, expires_ms: 0 };
        Made { evicted }
    }

    /// Who a port of the address is for.
    pub fn find(&self, (protocol, port): (Protocol, u16), now: u64) -> Option<Mapped> {
        let mapping = self.places[protocol as usize][self.index(port)?];
        let Mapping { address, port, .. } = mapping;
        mapping.is_alive(now).then_some(Mapped { address, port })
    }

    /// A packet from outside for a mapping that is there. Only TCP's are kept longer by it:
    /// nobody outside may keep a mapping that nobody inside uses (RFC 4787, REQ-6).
    pub fn incoming(
        &mut self,
        (protocol, port): (Protocol, u16),
        flags: u8,
        settings: &Settings,
        now: u64,
    ) {
        let Some(index) = self.index(port) else { return };
        let mapping = &mut self.places[protocol as usize][index];
        let closes = mapping.phase != Phase::Closing;
        mapping.received(flags);
        let closes = closes && mapping.phase == Phase::Closing;
        if closes || (protocol == Protocol::Tcp && mapping.phase == Phase::Established) {
            mapping.keep(protocol, settings, now);
        }
    }

    /// How many mappings there are, of each protocol.
    pub fn count(&self, now: u64) -> [u32; PROTOCOLS] {
        let count = |places: &[Mapping; PORTS_MAX]| {
            places.iter().filter(|mapping| mapping.is_alive(now)).count() as u32
        };
        [count(&self.places[0]), count(&self.places[1]), count(&self.places[2])]
    }
}
