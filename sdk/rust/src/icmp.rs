//! ICMP errors: how much of the packet that they are about they quote.

/// Bytes in front of the quoted datagram (RFC 792, RFC 4443).
pub const HEADER_LENGTH: usize = 8;

/// Returns where the datagram ends that an ICMP error quotes, at most at `end`, where the error
/// itself ends: behind it come no more bytes of that datagram but padding or an extension
/// (RFC 4884, section 4), which nobody who reads or changes the quoted headers may touch.
///
/// `header` are the error's first bytes, which lie at `at`; `ip_version` is 4 or 6.
#[inline]
#[must_use]
pub const fn quoted_end(
    ip_version: u8,
    header: &[u8; HEADER_LENGTH],
    at: usize,
    end: usize,
) -> usize {
    let length = match (ip_version, header[0]) {
        // Unreachable, time exceeded, parameter problem: in 32-bit words.
        (4, 3 | 11 | 12) => header[5] as usize * 4,
        // Unreachable, time exceeded: in 64-bit words.
        (6, 1 | 3) => header[4] as usize * 8,
        _ => 0,
    };
    let quoted_end = at + HEADER_LENGTH + length;
    // 0: whoever sent it knows no extensions, or has none.
    if length == 0 || quoted_end > end { end } else { quoted_end }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quoted_datagram_ends_where_rfc_4884_says_and_never_behind_the_error() {
        let unreachable = |words| [3, 4, 0, 0, 0, words, 5, 120];
        assert_eq!(quoted_end(4, &unreachable(0), 34, 100), 100);
        assert_eq!(quoted_end(4, &unreachable(7), 34, 100), 34 + 8 + 28);
        assert_eq!(quoted_end(4, &unreachable(32), 34, 100), 100);
        // A redirect has an address there.
        assert_eq!(quoted_end(4, &[5, 0, 0, 0, 10, 1, 2, 3], 34, 100), 100);
        assert_eq!(quoted_end(6, &[3, 0, 0, 0, 6, 0, 0, 0], 54, 200), 54 + 8 + 48);
        // Packet too big has an MTU there.
        assert_eq!(quoted_end(6, &[2, 0, 0, 0, 0, 0, 5, 0], 54, 200), 200);
        assert_eq!(quoted_end(6, &[2, 0, 0, 0, 1, 0, 0, 0], 54, 200), 200);
    }
}
