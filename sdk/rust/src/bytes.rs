//! Numbers in network byte order, at offsets of a header that was copied out of a packet.
//!
//! ```
//! use tam::bytes::{put_u16, u16_at, u32_at};
//!
//! let mut udp = [0x0f, 0xa0, 0x00, 0x50, 0, 8, 0, 0];
//! assert_eq!((u16_at(&udp, 0), u16_at(&udp, 2)), (4000, 80));
//! put_u16(&mut udp, 2, 8080);
//! assert_eq!(u32_at(&udp, 0), 4000 << 16 | 8080);
//! ```

/// Returns the 16-bit number at offset `at`.
///
/// # Panics
/// `bytes` are too short. The check costs nothing if offset and length are known at compile time.
#[inline]
#[must_use]
pub const fn u16_at(bytes: &[u8], at: usize) -> u16 {
    (bytes[at] as u16) << 8 | bytes[at + 1] as u16
}

/// Returns the 32-bit number, such as an IPv4 address, at offset `at`.
///
/// # Panics
/// `bytes` are too short, as in [`u16_at`].
#[inline]
#[must_use]
pub const fn u32_at(bytes: &[u8], at: usize) -> u32 {
    (u16_at(bytes, at) as u32) << 16 | u16_at(bytes, at + 2) as u32
}

/// Writes a 16-bit number at offset `at`.
///
/// # Panics
/// `bytes` are too short, as in [`u16_at`].
#[inline]
pub const fn put_u16(bytes: &mut [u8], at: usize, value: u16) {
    let [high, low] = value.to_be_bytes();
    bytes[at] = high;
    bytes[at + 1] = low;
}

/// Writes a 32-bit number at offset `at`.
///
/// # Panics
/// `bytes` are too short, as in [`u16_at`].
#[inline]
pub const fn put_u32(bytes: &mut [u8], at: usize, value: u32) {
    put_u16(bytes, at, (value >> 16) as u16);
    put_u16(bytes, at + 2, value as u16);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_and_written_in_network_byte_order() {
        let mut bytes = [1, 2, 3, 4, 5];
        assert_eq!((u16_at(&bytes, 1), u32_at(&bytes, 1)), (0x0203, 0x0203_0405));
        put_u16(&mut bytes, 0, 0x0a0b);
        assert_eq!(bytes, [0x0a, 0x0b, 3, 4, 5]);
        put_u32(&mut bytes, 1, 0x0102_0304);
        assert_eq!(bytes, [0x0a, 1, 2, 3, 4]);
    }
}
