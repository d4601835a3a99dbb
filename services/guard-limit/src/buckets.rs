//! A token bucket for each place of guard's table: the mark says which one. So there is no
//! hash here, nothing to fill up, and no prefix that another one could throw out.

/// Places that guard's table has.
pub const PLACES: usize = 16_384;
/// A packet, in tokens: a limit of n packets a second is n tokens a millisecond.
const PACKET: u64 = 1000;
/// How much of a bucket's limit it holds: that of so many milliseconds.
const DEPTH_MS: u64 = 100;

/// What guard says of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mark {
    /// The first 64 bits of the source, those behind the prefix zero.
    pub bits: u64,
    /// 4 or 6.
    pub version: u8,
    /// How many bits the prefix has.
    pub length: u8,
    /// The prefix's place in guard's table.
    pub slot: u16,
    /// For how many seconds guard does not let it through, whatever comes.
    pub seconds: u16,
}

/// A prefix that was taken up.
pub struct Woken {
    /// There was none before it.
    pub slept: bool,
    /// It is in the place of another one, whose time is over.
    pub in_place: bool,
}

tam::plain! {
    struct Bucket {
        bits: u64,
        tokens: u64,
        filled_ms: u64,
        /// Let go at this time; 0: asleep.
        until_ms: u64,
        version: u8,
        length: u8,
        unused: [u8; 6],
    }
}

tam::plain! {
    /// All of them.
    pub struct Buckets {
        /// Prefixes that are limited now.
        awake: u64,
        places: [Bucket; PLACES],
    }
}

impl Mark {
    /// `None` when it is not of guard's making.
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
    /// Takes up the mark's prefix, if it is not yet.
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

    /// Whether there is a token for a packet of a prefix that is awake.
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

    /// Lets go of prefixes whose time is over, and says of each how many are left.
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

/// Tokens of a full bucket; any limit lets one packet through at a time, 0 none.
fn depth(limit: u32) -> u64 {
    match limit {
        0 => 0,
        limit => (u64::from(limit) * DEPTH_MS).max(PACKET),
    }
}
