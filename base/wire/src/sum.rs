//! Internet checksum (RFC 1071): whole, with pseudo-headers, and updated in place (RFC 1624).
//!
//! Arithmetic only. Values are in the host's order: a checksum is stored with `to_be_bytes`.

/// Returns the checksum of `bytes`: the complement of their one's complement sum.
///
/// Over a header that contains its own checksum it is 0 when that is correct.
#[must_use]
pub fn checksum(bytes: &[u8]) -> u16 {
    Sum::default().with(bytes).checksum()
}

/// Bytes that are added in parallel.
const BLOCK: usize = 32;

/// Open sum of the Internet checksum: pieces are added, then it is closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum(u64);

impl Sum {
    /// Starts with the pseudo-header of TCP, UDP and others over IPv4 (RFC 9293 section 3.1);
    /// `length` counts the L4 header and its payload, in bytes.
    #[must_use]
    pub fn pseudo_header_v4(
        source: [u8; 4],
        destination: [u8; 4],
        protocol: u8,
        length: u16,
    ) -> Self {
        let [high, low] = length.to_be_bytes();
        Self::default().with(&source).with(&destination).with(&[0, protocol, high, low])
    }

    /// Starts with the pseudo-header over IPv6 (RFC 8200 section 8.1); `length` counts the L4
    /// header and its payload, in bytes.
    #[must_use]
    pub fn pseudo_header_v6(
        source: [u8; 16],
        destination: [u8; 16],
        next_header: u8,
        length: u32,
    ) -> Self {
        let sum = Self::default().with(&source).with(&destination);
        sum.with(&length.to_be_bytes()).with(&[0, 0, 0, next_header])
    }

    /// Adds a piece that begins at an even position. A piece of odd length counts as if a zero byte
    /// followed, so only the last piece may be odd.
    #[must_use]
    #[inline]
    pub fn with(mut self, bytes: &[u8]) -> Self {
        // Words of 32 bits in the host's order, lane by lane: the sum has its bytes swapped where
        // the words had them swapped (RFC 1071 section 2, B and C).
        let (blocks, rest) = bytes.as_chunks::<BLOCK>();
        let mut lanes = [0; BLOCK / 4];
        for block in blocks {
            for (lane, word) in lanes.iter_mut().zip(block.as_chunks::<4>().0) {
                *lane += u64::from(u32::from_ne_bytes(*word));
            }
        }
        self.0 += u64::from(u16::from_be(fold(lanes.iter().sum())));
        let (pairs, rest) = rest.as_chunks::<2>();
        for pair in pairs {
            self.0 += u64::from(u16::from_be_bytes(*pair));
        }
        if let [last] = rest {
            self.0 += u64::from(*last) << 8;
        }
        self
    }

    /// Closes the sum: folded to 16 bits, complemented.
    #[must_use]
    pub const fn checksum(self) -> u16 {
        !fold(self.0)
    }
}

/// Returns the checksum after the 16-bit word `old`, at an even position, became `new` (RFC 1624
/// equation 3).
///
/// Equal to the recomputed checksum, unless all covered bytes are now zero, which no header is.
#[must_use]
pub const fn update_u16(checksum: u16, old: u16, new: u16) -> u16 {
    !fold(!checksum as u64 + !old as u64 + new as u64)
}

/// Updates a checksum for 32 bits at an even position, such as an IPv4 address.
#[must_use]
pub const fn update_u32(checksum: u16, old: u32, new: u32) -> u16 {
    let high = update_u16(checksum, (old >> 16) as u16, (new >> 16) as u16);
    update_u16(high, old as u16, new as u16)
}

/// Folds the carries back in until none is left: each round takes 15 bits or more off the sum, so
/// four or five are enough for any `u64`.
pub(crate) const fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}
