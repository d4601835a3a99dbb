//! Datagrams whose first fragment passed: later fragments, which have no L4 ports, follow it.
//!
//! A later fragment that comes before the first one is dropped; hosts send them in order.

use tam::hash::mix;
use tam::table::oldest;
use tam::{Packet, protocol};

use crate::Reason;
use crate::headers::{EXTENSIONS_MAX, Headers, IPV6_LENGTH};

/// Time in which fragments of a datagram may come, in milliseconds: the longest reassembly timeout
/// of hosts (RFC 1122, section 3.3.2: 60 s to 120 s; Linux 30 s).
const WAIT_MS: u64 = 60_000;
const WAYS: usize = 4;
const BUCKETS: usize = 128;
/// Flag "more fragments": RFC 791, section 3.1, and RFC 8200, section 4.5.
const MORE_V4: u16 = 1 << 13;
const MORE_V6: u16 = 1 << 0;
/// Smallest offset of a later TCP fragment in bytes: a smaller one could overwrite ports and flags
/// that were checked (RFC 1858, RFC 3128).
const TCP_OFFSET_MIN: u16 = 24;

/// Fields that all fragments of a datagram have in common.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Datagram {
    source: u128,
    destination: u128,
    id: u32,
    protocol: u8,
}

/// Datagrams whose first fragment passed recently.
pub struct Datagrams {
    seed: u64,
    buckets: [[(Datagram, u64); WAYS]; BUCKETS],
}

impl Datagram {
    /// Returns the datagram of a fragment, and true if the fragment is all of it.
    pub fn of(packet: &Packet<'_>, headers: &Headers) -> Result<(Self, bool), Reason> {
        let Headers { source, destination, .. } = *headers;
        let (id, offset, is_last, protocol) = match headers.version {
            4 => {
                let (id, field) = headers.fragment;
                (id.into(), field << 3, field & MORE_V4 == 0, headers.protocol)
            }
            _ => {
                let (id, field) = Self::id_v6(packet, headers).ok_or(Reason::CutShort)?;
                // Only the first fragment has the protocol (RFC 8200, section 4.5).
                (id, field & 0xfff8, field & MORE_V6 == 0, 0)
            }
        };
        if headers.protocol == protocol::TCP && offset != 0 && offset < TCP_OFFSET_MIN {
            return Err(Reason::Fragment);
        }
        // Atomic fragment (RFC 6946).
        let is_all = is_last && offset == 0;
        Ok((Self { source, destination, id, protocol }, is_all))
    }

    /// Returns the identification in IPv6's fragment header, and its offset with the flag "more
    /// fragments".
    fn id_v6(packet: &Packet<'_>, headers: &Headers) -> Option<(u32, u16)> {
        let (mut next, mut at) = (headers.next, headers.l3 + IPV6_LENGTH);
        for _ in 0..EXTENSIONS_MAX {
            let extension: [u8; 8] = packet.take_within(at, headers.end)?;
            if next == protocol::FRAGMENT {
                let id = u32::from_be_bytes(*extension.last_chunk()?);
                return Some((id, u16::from_be_bytes([extension[2], extension[3]])));
            }
            next = extension[0];
            at += (usize::from(extension[1]) + 1) * 8;
        }
        None
    }

    const EMPTY: Self = Self { source: 0, destination: 0, id: 0, protocol: 0 };

    fn hash(&self, seed: u64) -> u64 {
        let rest = u64::from(self.id) << 8 | u64::from(self.protocol);
        let low = mix(mix(seed, self.source as u64), self.destination as u64);
        mix(mix(mix(low, (self.source >> 64) as u64), (self.destination >> 64) as u64), rest)
    }
}

impl Datagrams {
    pub const fn new() -> Self {
        Self { seed: 0, buckets: [[(Datagram::EMPTY, 0); WAYS]; BUCKETS] }
    }

    pub fn begin(&mut self, seed: u64) {
        self.seed = seed;
        for place in self.buckets.as_flattened_mut() {
            place.1 = 0;
        }
    }

    pub fn has(&self, datagram: &Datagram, now: u64) -> bool {
        let bucket = &self.buckets[datagram.hash(self.seed) as usize & (BUCKETS - 1)];
        bucket.iter().any(|(known, expires_ms)| now < *expires_ms && known == datagram)
    }

    /// Adds a datagram; the oldest one is replaced.
    pub fn add(&mut self, datagram: &Datagram, now: u64) {
        let bucket = &mut self.buckets[datagram.hash(self.seed) as usize & (BUCKETS - 1)];
        let age = |(known, expires_ms): &_| if known == datagram { 0 } else { *expires_ms };
        if let Some(place) = oldest(bucket, age) {
            *place = (*datagram, now + WAIT_MS);
        }
    }
}
