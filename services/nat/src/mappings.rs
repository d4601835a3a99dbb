//! Mappings of the address' ports to hosts inside: a table of fixed size, in which a mapping's
//! index *is* its port.
//!
//! ```text
//!  port of the address ─▶ ┌────┬────┬─ … ─┬────┐ ┌─ … ─┐
//!                         │    │    │     │    │ │     │  32 ports a bucket
//!                         └────┴────┴─ … ─┴────┘ └─ … ─┘
//!                               ▲ a host has one of 17 candidates: the port that it has
//!                                 inside, or one in the bucket that its hash selects
//! ```
//!
//! A mapping is the same for all remote ends (endpoint-independent, RFC 4787, REQ-1), and its port
//! has the parity of the port inside (REQ-4). A new one takes an entry that is empty or has
//! expired, otherwise that of the mapping that has waited longest for an answer; an answered
//! mapping is never evicted.
//!
//! TCP mappings track their connections (RFC 7857, section 2): the first one is stored with the
//! mapping, further ones of the same port in a table of [`others`](crate::others). So the end of
//! one connection does not end another, and a segment of no connection changes nothing.

use tam::hash::{fold, mix};
use tam::track::tcp::RST;
use tam::track::{Connection, Phase};

use crate::Reason;
use crate::headers::Protocol;
use crate::others::{self, Change, Ends, Others};
use crate::settings::Settings;

/// Largest number of mapped ports: half of all, which keeps the table in 1.5 MiB.
pub const PORTS_MAX: usize = 32_768;
/// Ports of a bucket, half of them odd.
pub const BUCKET: usize = 32;
const PROTOCOLS: usize = 3;
/// Index of TCP among the protocols.
const TCP: usize = Protocol::Tcp as usize;
/// Size of a mapping in bytes, on which `memory_pages_max` in module.toml is based.
const _: () = assert!(size_of::<Mapping>() == 16);

/// Phase in the life of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Life {
    /// Empty entry.
    None,
    /// No answer yet; for TCP, no connection is established.
    Waiting,
    /// Answered: never evicted.
    Answered,
}

/// End inside: protocol, address and port.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Place {
    pub protocol: Protocol,
    pub address: u32,
    pub port: u16,
}

/// End outside: address and port, as a host inside sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    pub address: u32,
    pub port: u16,
}

/// Relevant fields of a packet for its mapping.
#[derive(Clone, Copy)]
pub struct Segment {
    pub remote: Remote,
    /// Flags of TCP.
    pub flags: u8,
    pub now: u64,
}

/// Host and port inside to which a port of the address is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapped {
    pub address: u32,
    pub port: u16,
}

/// Result of creating a mapping.
pub struct Made {
    /// True if another mapping was evicted for it.
    pub evicted: bool,
}

#[derive(Clone, Copy)]
struct Mapping {
    address: u32,
    port: u16,
    life: Life,
    /// TCP: 0 if it never had another connection than its first one, otherwise one more than the
    /// number of established others; [`UNCOUNTED`] once they exceeded the counter.
    others: u8,
    expires_ms: u64,
}

/// Value of [`Mapping::others`] for an unknown number: some may be established until the mapping
/// has been idle for long enough.
const UNCOUNTED: u8 = u8::MAX;

/// Connection stored with a TCP mapping: its first one, or the first one after that had ended.
#[derive(Clone, Copy)]
struct Main {
    address: u32,
    port: u16,
    connection: Connection,
}

/// Table of all mappings.
pub struct Mappings {
    first: u16,
    ports: usize,
    seed: u64,
    places: [[Mapping; PORTS_MAX]; PROTOCOLS],
    mains: [Main; PORTS_MAX],
    others: Others,
}

impl Main {
    const NONE: Self = Self { address: 0, port: 0, connection: Connection::NONE };

    const fn is_with(&self, remote: Remote) -> bool {
        let is_one = !matches!(self.connection.phase(), Phase::None);
        is_one && self.address == remote.address && self.port == remote.port
    }

    /// Returns true if another connection may be stored here.
    const fn is_free(&self) -> bool {
        self.connection.has_ended() || matches!(self.connection.phase(), Phase::None)
    }
}

impl Mapping {
    const EMPTY: Self = Self { address: 0, port: 0, life: Life::None, others: 0, expires_ms: 0 };

    fn is_alive(&self, now: u64) -> bool {
        self.life != Life::None && now < self.expires_ms
    }

    fn is_of(&self, place: &Place, now: u64) -> bool {
        self.address == place.address && self.port == place.port && self.is_alive(now)
    }

    /// Returns the eviction order: lower values are evicted first; `u64::MAX` means never.
    fn age(&self, now: u64) -> u64 {
        match (self.is_alive(now), self.life) {
            (false, _) => 0,
            (true, Life::Answered) => u64::MAX,
            (true, _) => self.expires_ms,
        }
    }

    /// Counts a change of another connection that became established, or no longer is.
    const fn count(&mut self, (before, after): Change) {
        match (before.is_lasting(), after.is_lasting()) {
            (false, true) if self.others != UNCOUNTED => self.others += 1,
            (true, false) if self.others > 1 && self.others != UNCOUNTED => self.others -= 1,
            _ => {}
        }
    }

    /// Updates the mapping after a segment of one of its connections, which keeps it for `kept`
    /// milliseconds.
    fn follow(&mut self, main: Connection, kept: Option<u64>, now: u64) {
        let others_last = self.others > 1;
        self.life = match main.is_lasting() || others_last {
            true => Life::Answered,
            false => Life::Waiting,
        };
        let Some(kept) = kept else { return };
        // A connection that ends or begins does not shorten the time of established ones.
        let lasts = others_last || main.phase() == Phase::Established;
        self.expires_ms = (now + kept).max(if lasts { self.expires_ms } else { 0 });
    }
}

impl Place {
    /// Returns the hash: a one-bit difference changes about half of its bits.
    fn hash(&self, seed: u64) -> u64 {
        let word = u64::from(self.address) << 16 | u64::from(self.port);
        mix(mix(fold(seed ^ word), 0), 0) >> 32
    }
}

impl Mappings {
    pub const fn new() -> Self {
        let places = [[Mapping::EMPTY; PORTS_MAX]; PROTOCOLS];
        let (mains, others) = ([Main::NONE; PORTS_MAX], Others::new());
        // All zeros: the module's file need not contain them.
        Self { first: 0, ports: 0, seed: 0, places, mains, others }
    }

    /// Initialises `ports` ports from `first`, both multiples of [`BUCKET`].
    pub fn begin(&mut self, first: u16, ports: usize, seed: u64) {
        (self.first, self.ports, self.seed) = (first, ports, seed);
        self.others.begin(seed);
        self.flush();
    }

    /// Removes every mapping.
    pub fn flush(&mut self) {
        for mapping in self.places.as_flattened_mut() {
            mapping.life = Life::None;
        }
        self.others.flush();
    }

    /// Returns the index of a port, if it may be mapped.
    fn index(&self, port: u16) -> Option<usize> {
        let index = usize::from(port.checked_sub(self.first)?);
        (index < self.ports).then_some(index)
    }

    /// Returns the first index of the bucket's ports with the parity of `place`'s port.
    fn bucket(&self, place: &Place) -> usize {
        let buckets = (self.ports / BUCKET) as u64;
        // A 32-bit hash times a count: the high half is less than the count.
        let bucket = ((place.hash(self.seed) * buckets) >> 32) as usize;
        (bucket * BUCKET + usize::from(place.port & 1)) & (PORTS_MAX - 1)
    }

    fn port(&self, index: usize) -> u16 {
        self.first.wrapping_add(index as u16)
    }

    /// Returns the mapped port of an end inside, if there is one.
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

    /// Returns the port of a packet from inside; creates a mapping if there is none.
    pub fn outgoing(
        &mut self,
        place: &Place,
        segment: &Segment,
        settings: &Settings,
    ) -> Result<(u16, Option<Made>), Reason> {
        let now = segment.now;
        let (index, made) = match self.look(place, now).and_then(|port| self.index(port)) {
            Some(index) => (index, None),
            // A reset of an unknown connection begins nothing.
            None if segment.flags & RST != 0 => return Err(Reason::NoMapping),
            None => {
                let index = self.room(place, now).ok_or(Reason::NoPort)?;
                (index, Some(self.make(index, place, now)))
            }
        };
        let index = index & (PORTS_MAX - 1);
        match place.protocol {
            Protocol::Tcp => self.segment(index, true, segment, settings),
            Protocol::Udp => self.keep(place.protocol, index, now + settings.udp_ms),
            Protocol::Icmp => self.keep(place.protocol, index, now + settings.icmp_ms),
        }
        Ok((self.port(index), made))
    }

    fn keep(&mut self, protocol: Protocol, index: usize, until: u64) {
        self.places[protocol as usize][index].expires_ms = until;
    }

    /// Handles a TCP segment in its connection; a segment of no connection, such as a forged reset,
    /// changes nothing.
    fn segment(&mut self, index: usize, from_inside: bool, segment: &Segment, settings: &Settings) {
        let Segment { remote, flags, now } = *segment;
        let (mapping, main) = (&mut self.places[TCP][index], &mut self.mains[index]);
        let ends = Ends { address: mapping.address, port: mapping.port, remote };
        let is_main = main.is_with(remote);
        let mut other = None;
        if !is_main {
            if mapping.others != 0 {
                other = self.others.find(&ends, now);
            }
            if other.is_none() {
                // The host inside begins a connection, or answers one.
                if from_inside && flags & RST == 0 {
                    self.begin_connection(index, &ends, flags, now);
                }
                return;
            }
        }
        let connection = match &mut other {
            Some(other) => &mut other.connection,
            None => &mut main.connection,
        };
        let change = others::follow(connection, from_inside, flags);
        let kept = others::keeps_for(change, from_inside, settings);
        if let Some(other) = other {
            other.keep(kept, now);
            mapping.count(change);
        }
        mapping.follow(main.connection, kept, now);
    }

    /// Begins a connection of a mapping: stores it as the main one, if that has ended.
    fn begin_connection(&mut self, index: usize, ends: &Ends, flags: u8, now: u64) {
        let (mapping, main) = (&mut self.places[TCP][index], &mut self.mains[index]);
        let connection = others::begin(flags);
        if main.is_free() {
            let Remote { address, port } = ends.remote;
            *main = Main { address, port, connection };
        } else {
            let added = self.others.add(ends, connection, now);
            mapping.others = if added { mapping.others.max(1) } else { UNCOUNTED };
        }
        mapping.follow(main.connection, Some(others::TRANSITORY_MS), now);
    }

    /// Returns the index for a new mapping: preferably the port that `place` has inside.
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
        *mapping = Mapping { address, port, life: Life::Waiting, others: 0, expires_ms: 0 };
        if place.protocol == Protocol::Tcp {
            self.mains[index & (PORTS_MAX - 1)] = Main::NONE;
        }
        Made { evicted }
    }

    /// Returns the host inside to which a port of the address is mapped.
    pub fn find(&self, (protocol, port): (Protocol, u16), now: u64) -> Option<Mapped> {
        let mapping = self.places[protocol as usize][self.index(port)?];
        let Mapping { address, port, .. } = mapping;
        mapping.is_alive(now).then_some(Mapped { address, port })
    }

    /// Handles a packet from outside for an existing mapping. It prolongs TCP mappings only: hosts
    /// outside must not keep a mapping that no host inside uses (RFC 4787, REQ-6).
    pub fn incoming(
        &mut self,
        (protocol, port): (Protocol, u16),
        segment: &Segment,
        settings: &Settings,
    ) {
        let Some(index) = self.index(port) else { return };
        let index = index & (PORTS_MAX - 1);
        match protocol {
            Protocol::Tcp => self.segment(index, false, segment, settings),
            _ => self.places[protocol as usize][index].life = Life::Answered,
        }
    }

    /// Returns the number of mappings per protocol.
    pub fn count(&self, now: u64) -> [u32; PROTOCOLS] {
        let count = |places: &[Mapping; PORTS_MAX]| {
            places.iter().filter(|mapping| mapping.is_alive(now)).count() as u32
        };
        [count(&self.places[0]), count(&self.places[1]), count(&self.places[2])]
    }
}
