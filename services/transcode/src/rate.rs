//! Byte rate: drops pictures so that a device gets no more than it chose.
//!
//! A token bucket of bits, filled by the pictures' own time: a kbit/s is a bit per millisecond. A
//! picture is sent while the level is positive, and takes all its bits, even beyond the level: so a
//! picture larger than the bucket is sent as well, and the level becomes negative. Between two
//! pictures at most the rate for that time, the capacity of the bucket, and the last picture are
//! sent.

use crate::limits::BURST_MS;

/// Token bucket of a byte rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRate {
    /// Rate in kbit/s; `None` means unlimited.
    kbits: Option<u32>,
    /// Bits that may be sent; negative after a large picture.
    level: i64,
    /// Time of the last picture passed to `take`.
    last_ms: u32,
}

impl ByteRate {
    /// Creates a full bucket for a rate.
    pub fn new(kbits: Option<u32>) -> Self {
        let level = kbits.map_or(0, capacity);
        Self { kbits, level, last_ms: 0 }
    }

    /// Sets another rate. A negative level remains, and a positive one does not grow.
    pub fn set(&mut self, kbits: Option<u32>) {
        let most = kbits.map_or(0, capacity);
        let before = self.kbits.map_or(most, |_| self.level);
        self.level = before.min(most);
        self.kbits = kbits;
    }

    /// Returns true if a picture with this time and length may be sent. Time that goes back adds
    /// nothing.
    pub fn take(&mut self, time_ms: u32, bytes: usize) -> bool {
        let passed = i64::from(time_ms.saturating_sub(self.last_ms));
        self.last_ms = time_ms;
        let Some(kbits) = self.kbits else { return true };
        self.level = (self.level + passed * i64::from(kbits)).min(capacity(kbits));
        let may = self.level > 0;
        if may {
            self.level -= i64::try_from(bytes).unwrap_or(i64::MAX / 16) * 8;
        }
        may
    }
}

/// Returns the capacity of a bucket in bits.
fn capacity(kbits: u32) -> i64 {
    i64::from(kbits) * BURST_MS
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn pictures_are_left_out_by_their_own_time() {
        // 80 kbit/s are 1,000 bytes in 100 ms: every second picture of 2,000 bytes is sent, when
        // the bucket of 2,500 bytes is used up.
        let mut rate = ByteRate::new(Some(80));
        let went: Vec<bool> = (0..10).map(|at| rate.take(at * 100, 2_000)).collect();
        assert_eq!(
            went,
            [true, true, true, false, true, false, true, false, true, false],
            "{rate:?}"
        );
        let mut any = ByteRate::new(None);
        assert!((0..10).all(|_| any.take(0, usize::MAX)));
    }

    #[test]
    fn a_picture_larger_than_the_token_bucket_is_sent_and_charged() {
        let mut rate = ByteRate::new(Some(8));
        assert!(rate.take(0, 10_000), "a full bucket");
        // 80,000 bits minus the 2,000 of the bucket, at 8 per millisecond.
        assert!(!rate.take(9_750, 1));
        assert!(rate.take(9_751, 1));
    }

    #[test]
    fn changing_the_byte_rate_keeps_debt_and_grants_no_credit() {
        let mut rate = ByteRate::new(Some(8));
        assert!(rate.take(0, 10_000));
        rate.set(Some(80));
        assert!(!rate.take(975, 1) && rate.take(976, 1));
        let mut free = ByteRate::new(None);
        free.set(Some(8));
        assert_eq!(free, ByteRate::new(Some(8)));
        let mut time = ByteRate::new(Some(8));
        assert!(time.take(1_000, 10_000) && !time.take(500, 1), "time went back");
    }

    proptest! {
        #[test]
        fn between_any_two_pictures_no_more_goes_than_the_rate(
            kbits in 1u32..2_000,
            pictures in proptest::collection::vec((0u32..500, 1usize..50_000), 1..100),
        ) {
            let mut rate = ByteRate::new(Some(kbits));
            let (mut now, mut went) = (0, Vec::new());
            for (pause, bytes) in pictures {
                now += pause;
                if rate.take(now, bytes) {
                    went.push((i64::from(now), bytes as i64 * 8));
                }
            }
            for from in 0..went.len() {
                let mut sum = 0;
                for to in from..went.len() {
                    let time = went[to].0 - went[from].0;
                    let most = (time + BURST_MS) * i64::from(kbits);
                    prop_assert!(sum < most, "before the last one");
                    sum += went[to].1;
                }
            }
        }
    }
}
