//! Deterministic random decisions: the same seed gives the same numbers everywhere.

use tam::hash::SplitMix64;

/// Parts per million: 1 is one in a million, this is always.
pub const MILLION: u32 = 1_000_000;

/// Random number generator.
pub struct Chance(SplitMix64);

impl Chance {
    pub const fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    /// Returns a number below `bound`; 0 if `bound` is 0. By multiplication: the bias is below
    /// 2^-32 for the bounds in use.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.0.draw()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns true with this probability in parts per million. Uses up no number if the
    /// probability is 0, so that a link without loss reorders the same packets as one without
    /// reordering loses.
    pub fn happens(&mut self, millionths: u32) -> bool {
        millionths > 0 && self.below(MILLION.into()) < millionths.into()
    }
}
