//! Further TCP connections of mappings that have more than one: a table of fixed size.
//!
//! Few mappings have several: systems use a separate port for each connection if possible. A new
//! connection takes an entry that is empty or has expired, otherwise that of the one that has
//! waited longest; an established one is never evicted.

use tam::hash::{fold, mix};
use tam::table::oldest;
use tam::track::{Connection, Phase, tcp};

use crate::mappings::Remote;
use crate::settings::Settings;

/// Entries of a bucket.
const WAYS: usize = 8;
/// Number of buckets: in all, one entry for eight TCP mappings.
const BUCKETS: usize = 512;
const _: () = assert!(BUCKETS.is_power_of_two());
/// Size of a connection in bytes, on which `memory_pages_max` in module.toml is based.
const _: () = assert!(size_of::<Other>() == 24);

/// Time for which a connection that begins or ends is kept (RFC 5382, REQ-5: 4 minutes).
pub const TRANSITORY_MS: u64 = 240_000;

/// Both ends of a connection: inside and outside.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Ends {
    pub address: u32,
    pub port: u16,
    pub remote: Remote,
}

/// State of a connection before and after a segment.
pub type Change = (Connection, Connection);

/// Entry of the table: one connection.
#[derive(Clone, Copy)]
pub struct Other {
    address: u32,
    remote_address: u32,
    port: u16,
    remote_port: u16,
    pub connection: Connection,
    expires_ms: u64,
}

/// Table of further connections.
pub struct Others {
    seed: u64,
    buckets: [[Other; WAYS]; BUCKETS],
}

/// Returns the connection that a segment from inside begins.
pub const fn begin(flags: u8) -> Connection {
    match tcp::is_first(flags) {
        true => Connection::begin(true),
        // The connection existed before, or the segment answers one from outside.
        false => Connection::pick_up(true, flags),
    }
}

/// Handles a segment in a connection.
pub fn follow(connection: &mut Connection, from_inside: bool, flags: u8) -> Change {
    let before = *connection;
    // Ports reused by either end: the host inside opens or accepts.
    if before.has_ended() && from_inside && flags & (tcp::SYN | tcp::RST) == tcp::SYN {
        *connection = begin(flags);
    } else {
        connection.segment(from_inside, flags);
    }
    (before, *connection)
}

/// Returns the milliseconds for which a segment keeps its connection and the mapping, or `None` if
/// it does not. Hosts outside cannot prolong a connection that has ended or has not begun.
pub fn keeps_for((before, after): Change, from_inside: bool, settings: &Settings) -> Option<u64> {
    match after.phase() {
        Phase::Established => Some(settings.tcp_ms),
        _ if from_inside || (before.is_lasting() && before != after) => Some(TRANSITORY_MS),
        _ => None,
    }
}

impl Ends {
    /// Returns the bucket for a connection. Attackers choose remote ends freely, so that the hash
    /// includes a secret.
    fn bucket(&self, seed: u64) -> usize {
        let Self { address, port, remote } = *self;
        let inside = u64::from(address) << 16 | u64::from(port);
        let outside = u64::from(remote.address) << 16 | u64::from(remote.port);
        let hash = mix(mix(fold(seed), inside), outside);
        (hash >> 32) as usize & (BUCKETS - 1)
    }
}

impl Other {
    const EMPTY: Self = Self {
        address: 0,
        remote_address: 0,
        port: 0,
        remote_port: 0,
        connection: Connection::NONE,
        expires_ms: 0,
    };

    fn has(&self, ends: &Ends) -> bool {
        let remote = Remote { address: self.remote_address, port: self.remote_port };
        *ends == Ends { address: self.address, port: self.port, remote }
    }

    /// Keeps the connection for `kept` milliseconds, if given.
    pub fn keep(&mut self, kept: Option<u64>, now: u64) {
        self.expires_ms = kept.map_or(self.expires_ms, |kept| now + kept);
    }

    /// Returns the eviction order: lower values are evicted first; `u64::MAX` means never.
    fn age(&self, now: u64) -> u64 {
        match (now < self.expires_ms, self.connection.is_lasting()) {
            (false, _) => 0,
            (true, false) => self.expires_ms,
            (true, true) => u64::MAX,
        }
    }
}

impl Others {
    pub const fn new() -> Self {
        Self { seed: 0, buckets: [[Other::EMPTY; WAYS]; BUCKETS] }
    }

    pub fn begin(&mut self, seed: u64) {
        self.seed = seed;
        self.flush();
    }

    /// Removes every connection.
    pub fn flush(&mut self) {
        for other in self.buckets.as_flattened_mut() {
            other.expires_ms = 0;
        }
    }

    /// Returns a connection, if it is known.
    pub fn find(&mut self, ends: &Ends, now: u64) -> Option<&mut Other> {
        let ways = &mut self.buckets[ends.bucket(self.seed)];
        ways.iter_mut().find(|other| now < other.expires_ms && other.has(ends))
    }

    /// Adds a connection; returns false if all entries of its bucket are established.
    pub fn add(&mut self, ends: &Ends, connection: Connection, now: u64) -> bool {
        let ways = &mut self.buckets[ends.bucket(self.seed)];
        let Some(place) = oldest(ways, |other| other.age(now)) else { return false };
        let Ends { address, port, remote } = *ends;
        *place = Other {
            address,
            remote_address: remote.address,
            port,
            remote_port: remote.port,
            connection,
            expires_ms: now + TRANSITORY_MS,
        };
        true
    }
}
