//! Token buckets, one per slot of guard's table: the mark has the slot. So no hash is needed, and
//! no prefix can evict another.

/// Number of slots in guard's table.
pub const PLACES: usize = 16_384;
/// Cost of a packet in tokens: a limit of n packets a second is n tokens a millisecond.
const PACKET: u64 = 1000;
/// Depth of a bucket in milliseconds of its limit.
const DEPTH_MS: u64 = 100;

/// Content of guard's mark.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mark {
    /// First 64 bits of the source address, zero after the prefix.
    pub bits: u64,
    /// IP version: 4 or 6.
    pub version: u8,
    /// Length of the prefix in bits.
    pub length: u8,
    /// Slot of the prefix in guard's table.
    pub slot: u16,
    /// Number of seconds for which guard will mark the prefix in any case.
    pub seconds: u16,
}

/// Prefix that has become limited.
pub struct Woken {
    /// True if no other prefix was limited before.
    pub slept: bool,
    /// True if it replaces another prefix of the slot, whose time is over.
    pub in_place: bool,
}

tam::plain! {
    struct Bucket {
        bits: u64,
        tokens: u64,
        filled_ms: u64,
        /// Time at which the limit ends; 0 means not limited.
        until_ms: u64,
        version: u8,
        length: u8,
        unused: [u8; 6],
    }
}

tam::plain! {
    /// Buckets of all slots.
    pub struct Buckets {
        /// Number of prefixes that are limited now.
        awake: u64,
        places: [Bucket; PLACES],
    }
}

impl Mark {
    /// Parses a mark; returns `None` if it is not guard's.
    pub fn read(mark: &[u8; 16]) -> Option<Self> {
        let [b0, b1, b2, b3, b4, b5, b6, b7, version, length, slot @ .., _, _] = *mark;
        let [s0, s1, t0, t1] = slot;
        let mark = Self {
            bits: u64::from_be_bytes([b0, b1, b2, b3, b4, b5, b6, b7]),
            version,
            length,
            slot: u16::from_le_bytes([s0, s1]),
            seconds: u16::from_le_bytes([t0, t1]),
        };
        let is_known = matches!(version, 4 | 6) && usize::from(mark.slot) < PLACES;
        is_known.then_some(mark)
    }
}

impl Bucket {
    fn is_of(&self, mark: &Mark) -> bool {
        (self.bits, self.version, self.length) == (mark.bits, mark.version, mark.length)
    }
}

impl Buckets {
    /// Begins to limit the mark's prefix, unless it is limited already.
    pub fn wake(&mut self, mark: &Mark, now_ms: u64, limit: u32) -> Option<Woken> {
        let place = &mut self.places[usize::from(mark.slot) % PLACES];
        let (is_awake, is_its) = (place.until_ms != 0, place.is_of(mark));
        place.until_ms = now_ms + u64::from(mark.seconds) * 1000;
        if is_awake && is_its {
            return None;
        }
        let Mark { bits, version, length, .. } = *mark;
        let (tokens, until_ms) = (depth(limit), place.until_ms);
        *place =
            Bucket { bits, tokens, filled_ms: now_ms, until_ms, version, length, unused: [0; 6] };
        self.awake += u64::from(!is_awake);
        Some(Woken { slept: !is_awake && self.awake == 1, in_place: is_awake })
    }

    /// Takes a token for a packet of a limited prefix; returns false if there is none.
    pub fn take(&mut self, mark: &Mark, now_ms: u64, limit: u32) -> bool {
        let place = &mut self.places[usize::from(mark.slot) % PLACES];
        let passed_ms = now_ms.saturating_sub(place.filled_ms);
        place.filled_ms = now_ms;
        let more = passed_ms.saturating_mul(u64::from(limit));
        place.tokens = place.tokens.saturating_add(more).min(depth(limit));
        let has_one = place.tokens >= PACKET;
        if has_one {
            place.tokens -= PACKET;
        }
        has_one
    }

    /// Ends the limits whose time is over, and calls `tell` for each with the number of those left.
    pub fn let_go(&mut self, now_ms: u64, mut tell: impl FnMut(&Mark, u64)) {
        if self.awake == 0 {
            return;
        }
        for (slot, place) in self.places.iter_mut().enumerate() {
            if place.until_ms == 0 || now_ms < place.until_ms {
                continue;
            }
            place.until_ms = 0;
            self.awake -= 1;
            let Bucket { bits, version, length, .. } = *place;
            let mark = Mark { bits, version, length, slot: slot as u16, seconds: 0 };
            tell(&mark, self.awake);
        }
    }
}

/// Returns the tokens of a full bucket; any limit lets one packet through at a time, 0 none.
fn depth(limit: u32) -> u64 {
    match limit {
        0 => 0,
        limit => (u64::from(limit) * DEPTH_MS).max(PACKET),
    }
}
