//! Mutations of valid inputs, the same for the same seed: a fuzzer without feedback, for a stable
//! compiler.

/// Byte values at edges of ranges.
const EDGES: [u8; 8] = [0, 1, 7, 0x20, 0x7f, 0x80, 0xfe, 0xff];
/// Most changes of one input.
const CHANGES_MAX: usize = 6;
/// Longest input in bytes; a longer one only takes longer.
const LENGTH_MAX: usize = 1 << 16;
/// Most bytes that one change inserts, duplicates or removes.
const PIECE_MAX: usize = 40;

/// Generator of mutations, repeatable by its seed: SplitMix64 (Steele, Lea, Flood 2014).
#[derive(Clone, Debug)]
pub struct Mutations {
    state: u64,
}

impl Mutations {
    /// Returns the generator of a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    fn below(&mut self, bound: usize) -> usize {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % bound.max(1) as u64) as usize
    }

    /// Returns the next input: one of `seeds`, changed in a few positions. Pieces come from any of
    /// them.
    ///
    /// # Panics
    /// `seeds` is empty.
    pub fn next(&mut self, seeds: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = seeds[self.below(seeds.len())].clone();
        for _ in 0..=self.below(CHANGES_MAX) {
            self.change(&mut bytes, seeds);
        }
        bytes.truncate(LENGTH_MAX);
        bytes
    }

    fn change(&mut self, bytes: &mut Vec<u8>, seeds: &[Vec<u8>]) {
        let at = self.below(bytes.len() + 1);
        let (begin, end) = self.range(bytes.len());
        match self.below(9) {
            0 => self.put(bytes, at, |mutations, byte| byte ^ (1 << mutations.below(8))),
            1 => self.put(bytes, at, |mutations, _| EDGES[mutations.below(EDGES.len())]),
            2 => self.put(bytes, at, |mutations, _| mutations.below(256) as u8),
            // Another digit, letter or sign of a text.
            3 => self.put(bytes, at, |mutations, _| (0x20 + mutations.below(0x5f)) as u8),
            4 => bytes.truncate(at),
            5 => drop(bytes.drain(begin..end)),
            6 => {
                let piece = bytes[begin..end].to_vec();
                drop(bytes.splice(at..at, piece));
            }
            7 => {
                let other = &seeds[self.below(seeds.len())];
                let (begin, end) = self.range(other.len());
                drop(bytes.splice(at..at, other[begin..end].iter().copied()));
            }
            // A length or an offset of four bytes.
            _ => {
                let (low, shift) = (self.below(usize::MAX), self.below(32));
                let number = (low as u32 >> shift).to_le_bytes();
                for (byte, new) in bytes.iter_mut().skip(at).zip(number) {
                    *byte = new;
                }
            }
        }
    }

    fn put(&mut self, bytes: &mut [u8], at: usize, new: impl Fn(&mut Self, u8) -> u8) {
        if let Some(byte) = bytes.get_mut(at) {
            *byte = new(self, *byte);
        }
    }

    /// Returns a random range within `length` bytes.
    fn range(&mut self, length: usize) -> (usize, usize) {
        let begin = self.below(length + 1);
        (begin, begin + self.below((length - begin).min(PIECE_MAX) + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_its_mutations_and_they_differ() {
        let seeds = [b"proto udp".to_vec(), vec![0; 60]];
        let take = |seed| {
            let mut mutations = Mutations::new(seed);
            (0..100).map(|_| mutations.next(&seeds)).collect::<Vec<_>>()
        };
        assert_eq!(take(1), take(1));
        assert_ne!(take(1), take(2));
        let changed = take(1).iter().filter(|bytes| !seeds.contains(bytes)).count();
        assert!(changed > 80, "{changed}");
    }
}
