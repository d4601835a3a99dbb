//! Internet checksum (RFC 1071), updated incrementally when the covered bytes change.

/// Returns `checksum` after one 16-bit word that it covers has changed from `old` to `new`:
/// RFC 1624, equation 3, HC' = ~(~HC + ~m + m').
#[inline]
#[must_use]
pub const fn after16(checksum: u16, old: u16, new: u16) -> u16 {
    let sum = !checksum as u32 + !old as u32 + new as u32;
    // Three 16-bit numbers: at most 2 in the carry, so two folds are enough.
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    !(sum as u16)
}

/// Returns `checksum` after two neighbouring words, such as an IPv4 address, have changed.
#[inline]
#[must_use]
pub const fn after32(checksum: u16, old: u32, new: u32) -> u16 {
    let high = after16(checksum, (old >> 16) as u16, (new >> 16) as u16);
    after16(high, old as u16, new as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the Internet checksum, not complemented: RFC 1071, section 4.1.
    fn sum(words: &[u16]) -> u16 {
        let sum: u32 = words.iter().map(|word| u32::from(*word)).sum();
        let sum = (sum & 0xffff) + (sum >> 16);
        !(((sum & 0xffff) + (sum >> 16)) as u16)
    }

    #[test]
    fn the_example_of_rfc_1624_comes_out_right() {
        // Section 4: 0xdd2f becomes 0x0000 after 0x5555 has become 0x3285.
        assert_eq!(after16(0xdd2f, 0x5555, 0x3285), 0x0000);
    }

    #[test]
    fn a_changed_address_leaves_the_sum_over_everything_as_it_was() {
        let mut words = [0x4500, 0x0054, 0x4000, 0x4011, 0, 0x0a00, 0x0005, 0xc000, 0x0207];
        words[4] = sum(&words);
        for (old, new) in [(0x0a00_0005, 0xc633_6401), (0xc633_6401, 0), (0, 0xffff_ffff)] {
            words[4] = after32(words[4], old, new);
            (words[5], words[6]) = ((new >> 16) as u16, new as u16);
            assert_eq!(sum(&words), 0, "{old:#x} to {new:#x}");
        }
    }
}
