//! Chance that repeats itself: the same seed gives the same numbers everywhere.
//!
//! SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014): one
//! addition and a hash for each number. It is no secret and keeps none.

/// One in a million is 1, always is this.
pub const MILLION: u32 = 1_000_000;

/// A source of numbers.
pub struct Chance(u64);

impl Chance {
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from 0 to below `bound`; 0 when there is none. By multiplication: what it prefers
    /// some numbers by is below 2^-32 for the bounds that there are.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// True so many times in a million. No number is used up for what never happens, so that a
    /// link that does not lose reorders the same packets as one that does not reorder loses.
    pub fn happens(&mut self, millionths: u32) -> bool {
        millionths > 0 && self.below(MILLION.into()) < millionths.into()
    }
}
