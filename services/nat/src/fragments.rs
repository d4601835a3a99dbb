//! Recipients of later fragments of a datagram to the address: these have no ports, and follow the
//! first fragment. Copies of fragments that come before the first one are held, and sent after it
//! (RFC 4787, REQ-14).

use tam::Packet;
use tam::table::oldest;

use crate::edit::{self, End};
use crate::headers::Headers;

/// Time in which fragments of a datagram may come, in milliseconds (RFC 1122, section 3.3.2: 60 s
/// to 120 s).
const WAIT_MS: u64 = 60_000;
const WAYS: usize = 4;
const BUCKETS: usize = 64;

/// Time for which a fragment is held, in milliseconds: Linux's reassembly timeout. Reordered
/// fragments arrive within milliseconds; a held one may be replaced earlier.
const HELD_MS: u64 = 30_000;
/// Length of the largest packet that is held, in bytes: Ethernet's MTU.
const HELD_LENGTH_MAX: usize = 1500;
/// Fragments that are held per datagram: as many as can be sent per packet.
const HELD_WAYS: usize = 4;
const HELD_BUCKETS: usize = 16;
/// Length of the Ethernet header at the beginning of frames that are sent.
const ETHERNET: usize = 14;
const IPV4: usize = 20;

/// Destination of a datagram's fragments.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Fate {
    /// Address of the recipient inside; 0 means that they belong to no mapping.
    pub inside: u32,
    /// True if they come from another host inside (hairpinning).
    pub turned: bool,
}

#[derive(Clone, Copy)]
struct Datagram {
    source: u32,
    id: u16,
    protocol: u8,
    fate: Fate,
    expires_ms: u64,
}

#[derive(Clone, Copy)]
struct Held {
    source: u32,
    id: u16,
    protocol: u8,
    /// Length of the IP packet in bytes.
    length: u16,
    expires_ms: u64,
    frame: [u8; ETHERNET + HELD_LENGTH_MAX],
}

/// Datagrams whose first fragment was received, and held fragments that wait for theirs.
pub struct Datagrams {
    known: [[Datagram; WAYS]; BUCKETS],
    held: [[Held; HELD_WAYS]; HELD_BUCKETS],
}

impl Fate {
    /// Fragments without a mapping.
    pub const NOBODYS: Self = Self { inside: 0, turned: false };
}

impl Datagram {
    const EMPTY: Self = Self { source: 0, id: 0, protocol: 0, fate: Fate::NOBODYS, expires_ms: 0 };

    fn is_of(&self, headers: &Headers, now: u64) -> bool {
        let Headers { source, id, protocol, .. } = *headers;
        (self.source, self.id, self.protocol) == (source, id, protocol) && now < self.expires_ms
    }
}

impl Held {
    const EMPTY: Self = Self {
        source: 0,
        id: 0,
        protocol: 0,
        length: 0,
        expires_ms: 0,
        frame: [0; ETHERNET + HELD_LENGTH_MAX],
    };

    fn is_of(&self, headers: &Headers, now: u64) -> bool {
        let Headers { source, id, protocol, .. } = *headers;
        (self.source, self.id, self.protocol) == (source, id, protocol) && now < self.expires_ms
    }

    /// Sends the fragment to the destination of the first one; returns false if sending fails.
    fn send(&mut self, fate: Fate, address: u32) -> bool {
        let Some(ip) = self.frame[ETHERNET..].first_chunk_mut::<IPV4>() else { return false };
        translate(ip, fate, address);
        let end = ETHERNET + usize::from(self.length).min(HELD_LENGTH_MAX);
        tam::send(tam::BY_ROUTE, &self.frame[..end]).is_ok()
    }
}

/// Translates the addresses in a fragment's IP header.
pub fn translate(ip: &mut [u8; IPV4], fate: Fate, address: u32) {
    if fate.turned {
        edit::address(ip, End::Source, address);
    }
    edit::address(ip, End::Destination, fate.inside);
}

/// Returns the bucket. Identifications are sequential or random: both distribute evenly.
const fn bucket(headers: &Headers, buckets: usize) -> usize {
    (headers.id ^ headers.id >> 6) as usize % buckets
}

impl Datagrams {
    pub const fn new() -> Self {
        Self {
            known: [[Datagram::EMPTY; WAYS]; BUCKETS],
            held: [[Held::EMPTY; HELD_WAYS]; HELD_BUCKETS],
        }
    }

    pub fn begin(&mut self) {
        for datagram in self.known.as_flattened_mut() {
            datagram.expires_ms = 0;
        }
        for held in self.held.as_flattened_mut() {
            held.expires_ms = 0;
        }
    }

    /// Returns the destination of a fragment, if its first one was received.
    pub fn find(&self, headers: &Headers, now: u64) -> Option<Fate> {
        let ways = &self.known[bucket(headers, BUCKETS)];
        Some(ways.iter().find(|datagram| datagram.is_of(headers, now))?.fate)
    }

    /// Adds a datagram; the oldest one is replaced.
    pub fn add(&mut self, headers: &Headers, now: u64) {
        let ways = &mut self.known[bucket(headers, BUCKETS)];
        let age = |datagram: &Datagram| match datagram.is_of(headers, now) {
            true => 0,
            false => datagram.expires_ms,
        };
        let Headers { source, id, protocol, fate, .. } = *headers;
        if let Some(place) = oldest(ways, age) {
            *place = Datagram { source, id, protocol, fate, expires_ms: now + WAIT_MS };
        }
    }

    /// Holds a fragment until its first one comes; replaces the oldest one, unless it belongs to
    /// the same datagram. Returns true if the fragment is held.
    pub fn hold(&mut self, packet: &Packet<'_>, headers: &Headers, now: u64) -> bool {
        let length = headers.end - headers.l3_at;
        if !(IPV4..=HELD_LENGTH_MAX).contains(&length) {
            return false;
        }
        let ways = &mut self.held[bucket(headers, HELD_BUCKETS)];
        let age = |held: &Held| match held.is_of(headers, now) {
            true => u64::MAX,
            false => held.expires_ms,
        };
        let Some(held) = oldest(ways, age) else { return false };
        let Headers { source, id, protocol, .. } = *headers;
        (held.source, held.id, held.protocol) = (source, id, protocol);
        (held.length, held.expires_ms) = (length as u16, now + HELD_MS);
        (held.frame[12], held.frame[13]) = (0x08, 0x00);
        packet.load(headers.l3_at, &mut held.frame[ETHERNET..ETHERNET + length]).is_ok()
    }

    /// Sends the fragments that were held for a first one, to its destination; returns their
    /// number. Those without a mapping are not sent: the router has them already.
    pub fn release(&mut self, headers: &Headers, address: u32, now: u64) -> u64 {
        let mut count = 0;
        for held in &mut self.held[bucket(headers, HELD_BUCKETS)] {
            if held.is_of(headers, now) {
                held.expires_ms = 0;
                let is_sent = headers.fate.inside != 0 && held.send(headers.fate, address);
                count += u64::from(is_sent);
            }
        }
        count
    }
}
