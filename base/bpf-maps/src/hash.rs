//! Hash of keys: `hash_of` of `levels/bpf/c/flow.h` and `mask_key` of `levels/bpf/c/search.h`.

use crate::{HASH_KEYS, Key};

/// Returns the hash of a key: `start` and the sum of its 32-bit words, each times a random 64-bit
/// factor, modulo 2^64. The upper 32 bits of two different keys are equal with probability 2^-32,
/// whoever chose the keys, as long as nobody knows the factors (multiply-shift over vectors).
#[must_use]
pub fn key_hash(start: u64, key: &Key, factors: &[u64; HASH_KEYS]) -> u64 {
    let words: [u32; HASH_KEYS] = bytemuck::cast(*key);
    let products = words.iter().zip(factors);
    products
        .fold(start, |sum, (&word, &factor)| sum.wrapping_add(u64::from(word).wrapping_mul(factor)))
}
