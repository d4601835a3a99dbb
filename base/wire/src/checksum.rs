//! Checksums of parsed packets. Their arithmetic is in `sum.rs`; SCTP's CRC32c is not here.

use crate::parse::{Fragment, Parsed};
use crate::protocol as p;
pub use crate::sum::{Sum, checksum, update_u16, update_u32};

/// Result of checking an L4 checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum L4Checksum {
    /// The checksum is correct.
    Right,
    /// The checksum is wrong, or the lengths that it covers are.
    Wrong,
    /// The sender left it out, as UDP over IPv4 may (RFC 768).
    Absent,
    /// Not decidable: a fragment, or another protocol than TCP, UDP, ICMP and ICMPv6.
    Unknown,
}

/// Checks the L4 checksum in `frame`, the frame that `parsed` was read from.
///
/// The destination in the pseudo-header is that of the IP header: a packet on its way through a
/// routing header (RFC 8200 section 8.1) looks wrong.
#[must_use]
pub fn l4_checksum(frame: &[u8], parsed: &Parsed) -> L4Checksum {
    let Some(offset) = parsed.l4_offset.filter(|_| parsed.fragment == Fragment::None) else {
        return L4Checksum::Unknown;
    };
    let Some(mut segment) = frame.get(usize::from(offset)..parsed.ip_end()) else {
        return L4Checksum::Wrong;
    };
    let pseudo_header = match (parsed.protocol, parsed.ip_version) {
        (p::ICMP, 4) => false,
        (p::TCP | p::UDP, _) | (p::ICMPV6, 6) => true,
        _ => return L4Checksum::Unknown,
    };
    if parsed.protocol == p::UDP {
        let &[_, _, _, _, high, low, sum_high, sum_low, ..] = segment else {
            return L4Checksum::Wrong;
        };
        if sum_high == 0 && sum_low == 0 && parsed.ip_version == 4 {
            return L4Checksum::Absent;
        }
        let length = usize::from(u16::from_be_bytes([high, low]));
        if length < 8 || length > segment.len() || (sum_high == 0 && sum_low == 0) {
            return L4Checksum::Wrong;
        }
        segment = &segment[..length];
    }
    let sum = if pseudo_header { pseudo_header_of(parsed, segment.len()) } else { Sum::default() };
    if sum.with(segment).checksum() == 0 { L4Checksum::Right } else { L4Checksum::Wrong }
}

/// Returns true unless the L4 checksum is known to be wrong: correct, legally absent, or not
/// decidable by [`l4_checksum`].
#[must_use]
pub fn verify_l4(frame: &[u8], parsed: &Parsed) -> bool {
    l4_checksum(frame, parsed) != L4Checksum::Wrong
}

/// Returns the pseudo-header of a packet whose L4 part has `length` bytes.
fn pseudo_header_of(parsed: &Parsed, length: usize) -> Sum {
    // An IPv4 address is the first four bytes and zeros, which add nothing, and
    // the two pseudo-headers differ only in where zeros stand.
    Sum::pseudo_header_v6(parsed.source, parsed.destination, parsed.protocol, length as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sum::fold;

    #[test]
    fn blocks_sum_up_like_pairs() {
        let mut state = 1u32;
        let bytes: Vec<u8> = (0..300)
            .map(|at| {
                state = state.wrapping_mul(0x9e37_79b1).wrapping_add(at);
                // Many carries: most bytes are high.
                (state >> 24) as u8 | 0xc0
            })
            .collect();
        for length in 0..bytes.len() {
            let pairs = bytes[..length].chunks(2).map(|pair| {
                u64::from(pair[0]) << 8 | u64::from(pair.get(1).copied().unwrap_or_default())
            });
            assert_eq!(checksum(&bytes[..length]), !fold(pairs.sum()), "{length} bytes");
        }
        assert_eq!(checksum(&[0; 64]), u16::MAX);
        assert_eq!(checksum(&[0xff; 64]), 0);
    }

    #[test]
    fn the_example_of_rfc_1071_section_3_sums_up() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(!checksum(&bytes), 0xddf2);
    }

    #[test]
    fn the_example_of_rfc_1624_section_4_is_not_minus_zero() {
        assert_eq!(update_u16(0xdd2f, 0x5555, 0x3285), 0x0000);
    }

    #[test]
    fn an_odd_last_byte_counts_as_the_high_half_of_a_word() {
        assert_eq!(checksum(&[0x12]), checksum(&[0x12, 0x00]));
        assert_ne!(checksum(&[0x12]), checksum(&[0x00, 0x12]));
    }

    #[test]
    fn the_pseudo_headers_of_both_versions_agree_on_the_same_bytes() {
        let wide = |address: [u8; 4]| {
            let mut out = [0; 16];
            out[..4].copy_from_slice(&address);
            out
        };
        let (a, b) = ([192, 0, 2, 1], [198, 51, 100, 2]);
        let v4 = Sum::pseudo_header_v4(a, b, p::UDP, 0x1234);
        let v6 = Sum::pseudo_header_v6(wide(a), wide(b), p::UDP, 0x1234);
        assert_eq!(v4.checksum(), v6.checksum());
    }
}
