//! Chance that repeats itself: the same seed gives the same numbers everywhere.

use tam::hash::SplitMix64;

/// One in a million is 1, always is this.
pub const MILLION: u32 = 1_000_000;

/// A source of numbers.
pub struct Chance(SplitMix64);

impl Chance {
    pub const fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    /// A number from 0 to below `bound`; 0 when there is none. By multiplication: what it prefers
    /// some numbers by is below 2^-32 for the bounds that there are.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.0.draw()) * u128::from(bound)) >> 64) as u64
    }

    /// True so many times in a million. No number is used up for what never happens, so that a
    /// link that does not lose reorders the same packets as one that does not reorder loses.
    pub fn happens(&mut self, millionths: u32) -> bool {
        millionths > 0 && self.below(MILLION.into()) < millionths.into()
    }
}
