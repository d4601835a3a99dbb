//! ICMP errors: extent of the quoted packet, and offset of its L4 header.

use crate::bytes::u16_at;

/// Bytes before the quoted datagram (RFC 792, RFC 4443).
pub const HEADER_LENGTH: usize = 8;

/// Returns the end of the datagram that an ICMP error quotes, at most `end`, the end of the error
/// itself. Bytes after it are padding or an extension (RFC 4884, section 4), and must not be
/// changed with the quoted headers.
///
/// `header` is the error's first bytes, at offset `at`; `ip_version` is 4 or 6.
#[inline]
#[must_use]
pub const fn quoted_end(
    ip_version: u8,
    header: &[u8; HEADER_LENGTH],
    at: usize,
    end: usize,
) -> usize {
    let length = match (ip_version, header[0]) {
        // Unreachable, time exceeded, parameter problem: length in 32-bit words.
        (4, 3 | 11 | 12) => header[5] as usize * 4,
        // Unreachable, time exceeded: length in 64-bit words.
        (6, 1 | 3) => header[4] as usize * 8,
        _ => 0,
    };
    let quoted_end = at + HEADER_LENGTH + length;
    // 0: the sender supports no extensions, or has added none.
    if length == 0 || quoted_end > end { end } else { quoted_end }
}

/// Returns the offset of the L4 header of an IPv4 packet that an error quotes, and the end of that
/// packet or its quotation. `header` is its IPv4 header, at offset `at`, and `end` is the
/// [end](quoted_end) of the quotation.
///
/// `None` if it is no IPv4 header, or belongs to a fragment other than the first, which has no L4
/// header.
#[inline]
#[must_use]
pub fn quoted_l4(header: &[u8; 20], at: usize, end: usize) -> Option<(usize, usize)> {
    let length = usize::from(header[0] & 0x0f) * 4;
    let is_first = u16_at(header, 6) & 0x1fff == 0;
    if header[0] >> 4 != 4 || length < 20 || !is_first {
        return None;
    }
    Some((at + length, end.min(at + usize::from(u16_at(header, 2)))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quoted_packet_has_an_l4_header_if_it_is_ipv4_and_no_later_fragment() {
        // 24 bytes of header and 16 after them; more fragments follow.
        let header = [0x46, 0, 0, 40, 0, 1, 0x20, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        assert_eq!(quoted_l4(&header, 42, 200), Some((66, 82)), "the packet was shorter");
        assert_eq!(quoted_l4(&header, 42, 70), Some((66, 70)), "the quotation is");
        for (at, byte) in [(0, 0x66), (0, 0x44), (7, 1), (6, 0x10)] {
            let mut other = header;
            other[at] = byte;
            assert_eq!(quoted_l4(&other, 42, 200), None, "byte {at}");
        }
    }

    #[test]
    fn the_quoted_datagram_ends_where_rfc_4884_says_and_never_behind_the_error() {
        let unreachable = |words| [3, 4, 0, 0, 0, words, 5, 120];
        assert_eq!(quoted_end(4, &unreachable(0), 34, 100), 100);
        assert_eq!(quoted_end(4, &unreachable(7), 34, 100), 34 + 8 + 28);
        assert_eq!(quoted_end(4, &unreachable(32), 34, 100), 100);
        // A redirect has an address in this field.
        assert_eq!(quoted_end(4, &[5, 0, 0, 0, 10, 1, 2, 3], 34, 100), 100);
        assert_eq!(quoted_end(6, &[3, 0, 0, 0, 6, 0, 0, 0], 54, 200), 54 + 8 + 48);
        // Packet too big has an MTU in this field.
        assert_eq!(quoted_end(6, &[2, 0, 0, 0, 0, 0, 5, 0], 54, 200), 200);
        assert_eq!(quoted_end(6, &[2, 0, 0, 0, 1, 0, 0, 0], 54, 200), 200);
    }
}
