//! Who the later fragments of a datagram from outside are for: they have no ports, and go
//! where the first one went. Those that come before it are not translated; hosts send them
//! in order.

use crate::headers::Headers;

/// How long fragments of a datagram may come (RFC 1122, section 3.3.2: 60 s to 120 s).
const WAIT_MS: u64 = 60_000;
const WAYS: usize = 4;
const BUCKETS: usize = 64;

#[derive(Clone, Copy)]
struct Datagram {
    source: u32,
    id: u16,
    protocol: u8,
    inside: u32,
    expires_ms: u64,
}

/// Datagrams whose first fragment came.
pub struct Datagrams([[Datagram; WAYS]; BUCKETS]);

impl Datagram {
    const EMPTY: Self = Self { source: 0, id: 0, protocol: 0, inside: 0, expires_ms: 0 };

    fn is_of(&self, headers: &Headers, now: u64) -> bool {
        let Headers { source, id, protocol, .. } = *headers;
        (self.source, self.id, self.protocol) == (source, id, protocol) && now < self.expires_ms
    }
}

/// Identifications count up or are drawn: either spreads.
const fn bucket(headers: &Headers) -> usize {
    (headers.id ^ headers.id >> 6) as usize % BUCKETS
}

impl Datagrams {
    pub const fn new() -> Self {
        Self([[Datagram::EMPTY; WAYS]; BUCKETS])
    }

    pub fn begin(&mut self) {
        for datagram in self.0.as_flattened_mut() {
            datagram.expires_ms = 0;
        }
    }

    /// Who a fragment is for.
    pub fn find(&self, headers: &Headers, now: u64) -> Option<u32> {
        let ways = &self.0[bucket(headers)];
        Some(ways.iter().find(|datagram| datagram.is_of(headers, now))?.inside)
    }

    /// Keeps a datagram; that which came first makes room.
    pub fn add(&mut self, headers: &Headers, inside: u32, now: u64) {
        let ways = &mut self.0[bucket(headers)];
        let (mut way, mut oldest) = (0, u64::MAX);
        for (at, datagram) in ways.iter().enumerate() {
            let age = if datagram.is_of(headers, now) { 0 } else { datagram.expires_ms };
            if age < oldest {
                (way, oldest) = (at, age);
            }
        }
        let Headers { source, id, protocol, .. } = *headers;
        ways[way] = Datagram { source, id, protocol, inside, expires_ms: now + WAIT_MS };
    }
}
