//! Packet counts by source prefix: a table of fixed size.
//!
//! ```text
//!  hash of a prefix ─▶ bucket ┌───────┬───────┬─ … ─┬───────┐
//!                             │ slot  │ slot  │     │ slot  │  8 slots
//!                             └───────┴───────┴─ … ─┴───────┘
//! ```
//!
//! A slot counts one prefix and is compared as a whole, so no packet is ever counted for another
//! prefix: attackers cannot push another prefix over the threshold, even if they know the hash. A
//! new prefix replaces the one with the fewest packets in this second and the one before, and
//! begins at 1: a flood of prefixes evicts prefixes that send little, which pass in any case. A
//! prefix over the threshold keeps its slot.

use tam::Packet;
use tam::hash::SplitMix64;

use crate::settings::Settings;

/// Slots of a bucket.
pub const WAYS: usize = 8;
/// Number of buckets; a power of two, so that the upper bits of a hash select one.
pub const BUCKETS: usize = 2048;
const _: () = assert!(BUCKETS.is_power_of_two());
/// Slot numbers have 16 bits.
const _: () = assert!(BUCKETS * WAYS <= 1 << 16);
/// Size of a slot in bytes, on which `memory_pages_max` in module.toml is based.
const _: () = assert!(size_of::<Place>() == 32);

/// Source prefix of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Prefix {
    /// First 64 bits of the address, zero after the prefix.
    pub bits: u64,
    /// IP version: 4 or 6.
    pub version: u8,
    /// Length in bits.
    pub length: u8,
}

tam::plain! {
    /// Slot of one prefix; times are in seconds of the node's time.
    struct Place {
        bits: u64,
        /// Packets in `second`; the next field counts the second before.
        count: u32,
        before: u32,
        second: u32,
        /// Second until which the prefix is over the threshold.
        until: u32,
        /// 0: an empty place.
        version: u8,
        length: u8,
        unused: [u8; 6],
    }
}

tam::plain! {
    /// Table of all prefixes.
    pub struct Table {
        /// Hash factors: a multiplier per IP version, and another one.
        factors: [u64; 3],
        places: [[Place; WAYS]; BUCKETS],
    }
}

/// Result of counting a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Finding {
    /// The prefix is not over the threshold.
    Harmless,
    /// The prefix has no slot: all slots of its bucket have prefixes over the threshold.
    Crowded,
    /// The prefix is over it, in this slot, and for so many seconds at least.
    Suspect { slot: u16, seconds: u16, is_new: bool },
}

impl Prefix {
    /// Returns the prefix of a packet; `None` for other protocols than IP, and truncated headers.
    pub fn of(packet: &mut Packet<'_>, settings: &Settings) -> Option<Self> {
        if let Some(ip) = packet.ipv4() {
            let address = u64::from(u32::from_be_bytes(ip.source())) << 32;
            return Some(Self::new(4, address, settings.prefix4));
        }
        let source = packet.ipv6()?.source();
        let address = (u128::from_be_bytes(source) >> 64) as u64;
        Some(Self::new(6, address, settings.prefix6))
    }

    pub const fn new(version: u8, address: u64, length: u8) -> Self {
        let behind = 64_u32.saturating_sub(length as u32);
        let bits = address >> behind << behind;
        Self { bits, version, length }
    }
}

impl Place {
    fn is_of(&self, prefix: &Prefix) -> bool {
        let Self { bits, version, length, .. } = *self;
        *prefix == Prefix { bits, version, length }
    }

    /// Returns the priority for keeping the slot.
    fn weight(&self, second: u32) -> u32 {
        if self.until > second {
            return u32::MAX;
        }
        let sent = match second.wrapping_sub(self.second) {
            0 => self.count.saturating_add(self.before),
            1 => self.count,
            _ => 0,
        };
        sent.min(u32::MAX - 1)
    }

    /// Counts a packet. Returns `None` if the prefix is not over the threshold, otherwise true if
    /// it has just exceeded it.
    fn count(&mut self, second: u32, settings: &Settings) -> Option<bool> {
        if self.second != second {
            self.before = match second.wrapping_sub(self.second) {
                1 => self.count,
                _ => 0,
            };
            (self.count, self.second) = (0, second);
        }
        self.count = self.count.saturating_add(1);
        let was_over = self.until > second;
        let most = if was_over { settings.threshold / 2 } else { settings.threshold };
        if self.count > most {
            // Whole seconds: the rest of the current one is added.
            self.until = second.saturating_add(1 + u32::from(settings.hold));
        }
        (self.until > second).then_some(!was_over)
    }
}

impl Table {
    pub fn begin(&mut self, seed: u64) {
        let mut chance = SplitMix64::new(seed);
        self.factors = [(); 3].map(|()| chance.draw() | 1);
    }

    /// Returns the bucket of a prefix. Without knowledge of the factors, colliding prefixes cannot
    /// be chosen.
    pub fn bucket(&self, prefix: &Prefix) -> usize {
        let first = self.factors[usize::from(prefix.version == 6)];
        let product = prefix.bits.wrapping_mul(first);
        let hash = (product ^ product >> 32).wrapping_mul(self.factors[2]);
        (hash >> (64 - BUCKETS.trailing_zeros())) as usize
    }

    pub fn count(&mut self, prefix: &Prefix, second: u32, settings: &Settings) -> Finding {
        let bucket = self.bucket(prefix);
        let places = &mut self.places[bucket];
        let (mut way, mut least, mut is_known) = (WAYS, u32::MAX, false);
        for (at, place) in places.iter().enumerate() {
            if place.is_of(prefix) {
                (way, is_known) = (at, true);
                break;
            }
            let weight = place.weight(second);
            if weight < least {
                (way, least) = (at, weight);
            }
        }
        let Some(place) = places.get_mut(way) else { return Finding::Crowded };
        if !is_known {
            let Prefix { bits, version, length } = *prefix;
            *place = Place { bits, version, length, second, ..Place::ZERO };
        }
        match place.count(second, settings) {
            None => Finding::Harmless,
            Some(is_new) => Finding::Suspect {
                slot: (bucket * WAYS + way) as u16,
                seconds: (place.until - second) as u16,
                is_new,
            },
        }
    }
}
