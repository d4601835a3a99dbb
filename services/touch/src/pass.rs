//! Pass over bytes: the 32-bit FNV-1a hash (RFC 9923, section 2).
//!
//! Also compiled natively, as the reference for measurements of the module.

/// Hash of no bytes.
pub const BASIS: u32 = 0x811c_9dc5;
/// Prime of the 32-bit FNV.
const PRIME: u32 = 0x0100_0193;

/// Returns the hash of `bytes`.
#[must_use]
pub fn pass(bytes: &[u8]) -> u32 {
    pass_on(BASIS, bytes)
}

/// Continues from the hash of the bytes before `bytes`.
#[must_use]
#[inline]
pub fn pass_on(hash: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(hash, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(PRIME))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_that_of_the_published_vectors() {
        // FNV test vectors of RFC 9923 for the empty string, "a" and "foobar".
        for (text, hash) in [("", 0x811c_9dc5), ("a", 0xe40c_292c), ("foobar", 0xbf9c_f968)] {
            assert_eq!(pass(text.as_bytes()), hash, "{text:?}");
        }
    }

    #[test]
    fn a_pass_in_pieces_is_one_pass() {
        assert_eq!(pass_on(pass(b"foo"), b"bar"), pass(b"foobar"));
    }
}
