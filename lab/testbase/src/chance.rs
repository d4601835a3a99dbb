//! Numbers of chance that repeat themselves.

/// A source of numbers that a seed repeats: `SplitMix64` (Steele, Lea, Flood: "Fast splittable
/// pseudorandom number generators", 2014).
#[derive(Clone, Debug)]
pub struct Chance(pub u64);

impl Chance {
    /// Returns the next number.
    pub const fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `bound`, or 0 where that is 0.
    pub const fn below(&mut self, bound: u64) -> u64 {
        self.draw() % if bound == 0 { 1 } else { bound }
    }

    /// Returns an index below a length, or 0 where that is 0.
    pub const fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// Returns one of these values.
    ///
    /// # Panics
    /// The slice is empty.
    pub const fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.index(all.len())]
    }

    /// Returns a number from `least` to `most`, both included.
    pub const fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.draw() % (most - least + 1)
    }

    /// Returns true once in so many times, and never in 0 times.
    pub const fn one_in(&mut self, times: u64) -> bool {
        times > 0 && self.draw().is_multiple_of(times)
    }

    /// Fills a buffer.
    pub fn fill(&mut self, buffer: &mut [u8]) {
        buffer.iter_mut().for_each(|byte| *byte = self.draw() as u8);
    }

    /// Returns so many bytes.
    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.fill(&mut bytes);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::Chance;

    #[test]
    fn the_numbers_are_those_of_splitmix64() {
        // The first ones of the authors' implementation (prng.di.unimi.it/splitmix64.c), seed 0.
        let mut chance = Chance(0);
        assert_eq!([chance.draw(), chance.draw()], [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4]);
        assert_eq!(Chance(0).bytes(2), [0xaf, 0xf4]);
    }

    #[test]
    fn numbers_keep_to_their_bounds() {
        let mut chance = Chance(1);
        for _ in 0..1_000 {
            assert!(chance.below(3) < 3 && (5..=7).contains(&chance.between(5, 7)));
        }
        assert!(!chance.one_in(0) && chance.one_in(1));
        assert_eq!(chance.below(0), 0);
    }
}
