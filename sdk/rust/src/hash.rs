//! Deterministic hashes and pseudo-random numbers, for tables of fixed size that are filled by
//! untrusted packets. Not cryptographic: the [`seed`] prevents attackers from choosing entries of
//! one bucket.

use crate::host::{now_ms, parameter};

/// Fractional part of the golden ratio in 64 bits, which is odd.
const GOLDEN_RATIO: u64 = 0x9e37_79b9_7f4a_7c15;

/// Returns the seed from a parameter of type `u64`, or one derived from the time if there is none
/// or it is 0. Only in `on_start` and `on_message`, as [`parameter`].
#[must_use]
pub fn seed(parameter_name: &str) -> u64 {
    match parameter(parameter_name).unwrap_or(0) {
        0 => now_ms(),
        seed => seed,
    }
}

/// Mixes another word into a hash: after two words, inputs that differ in one bit differ in half of
/// the bits.
#[inline]
#[must_use]
pub const fn mix(hash: u64, word: u64) -> u64 {
    fold((hash ^ word).wrapping_mul(GOLDEN_RATIO))
}

/// Returns a hash whose lower half depends on the upper one, too.
#[inline]
#[must_use]
pub const fn fold(hash: u64) -> u64 {
    hash ^ hash >> 32
}

/// Pseudo-random number generator SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom
/// number generators", 2014): one addition and a hash per number. The same seed gives the same
/// numbers everywhere; not for secrets.
#[derive(Clone, Copy, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// Creates a generator with a seed.
    #[inline]
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next number.
    #[inline]
    pub const fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN_RATIO);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_splitmix64() {
        // First numbers of the authors' implementation (prng.di.unimi.it/splitmix64.c), seed 0.
        let mut chance = SplitMix64::new(0);
        let drawn = [(); 3].map(|()| chance.draw());
        assert_eq!(drawn, [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4, 0x06c4_5d18_8009_454f]);
    }

    #[test]
    fn one_bit_of_a_word_changes_about_half_of_a_hash() {
        let hash = |word| mix(mix(7, word), 0);
        for bit in 0..64 {
            let changed = (hash(0) ^ hash(1 << bit)).count_ones();
            assert!((16..=48).contains(&changed), "bit {bit}: {changed}");
        }
    }

    #[test]
    fn the_seed_is_the_operators_or_the_time() {
        use crate::testing::Node;
        let seed_with = |value: u64| {
            let mut node = Node::new().with_parameter("seed", &value.to_le_bytes());
            node.set_now_ms(1_234);
            node.start(|| Err(seed("seed") as u16)).unwrap_err()
        };
        assert_eq!((seed_with(9), seed_with(0)), (9, 1_234));
    }
}
