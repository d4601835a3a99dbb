//! Picture with its header, as modules receive it.
//!
//! ```text
//!    0               2               4       5       6               8
//!   +---------------+---------------+-------+-------+---------------+
//!   |     width     |    height     | pixels| flags |    change     |
//!   +---------------+---------------+-------+-------+---------------+
//!   |   time in ms since the first picture          |
//!   +-----------------------------------------------+  12
//!   |   length of the data that follows             |
//!   +-----------------------------------------------+  16
//!   |   rows from the top, without padding; or one JPEG
//! ```

use crate::params::Pixels;

/// Flag: pictures were dropped before this one.
pub const LEFT_OUT: u8 = 1;

/// Header of a picture, all fields big-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Pixels of a row.
    pub width: u16,
    /// Rows.
    pub height: u16,
    /// 1 for `gray8`, 2 for `rgb24`, 3 for `mjpeg`.
    pub pixels: u8,
    /// [`LEFT_OUT`], or 0.
    pub flags: u8,
    /// Number of the parameter change that the picture follows; 0 for the first parameters.
    pub change: u16,
    /// Presentation time, in milliseconds since the first picture.
    pub time_ms: u32,
    /// Bytes of data that follow.
    pub length: u32,
}

impl Header {
    /// Length of a header in bytes.
    pub const LENGTH: usize = 16;

    /// Returns the number of a pixel format.
    #[must_use]
    pub const fn number_of(pixels: Pixels) -> u8 {
        match pixels {
            Pixels::Gray8 => 1,
            Pixels::Rgb24 => 2,
            Pixels::Mjpeg(_) => 3,
        }
    }

    /// Encodes the header.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        bytes[0..2].copy_from_slice(&self.width.to_be_bytes());
        bytes[2..4].copy_from_slice(&self.height.to_be_bytes());
        (bytes[4], bytes[5]) = (self.pixels, self.flags);
        bytes[6..8].copy_from_slice(&self.change.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.time_ms.to_be_bytes());
        bytes[12..16].copy_from_slice(&self.length.to_be_bytes());
        bytes
    }

    /// Decodes a header; returns it with the bytes after it.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (head, rest) = bytes.split_first_chunk::<{ Self::LENGTH }>()?;
        let [w0, w1, h0, h1, pixels, flags, c0, c1, t0, t1, t2, t3, l0, l1, l2, l3] = *head;
        let header = Self {
            width: u16::from_be_bytes([w0, w1]),
            height: u16::from_be_bytes([h0, h1]),
            pixels,
            flags,
            change: u16::from_be_bytes([c0, c1]),
            time_ms: u32::from_be_bytes([t0, t1, t2, t3]),
            length: u32::from_be_bytes([l0, l1, l2, l3]),
        };
        Some((header, rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_of_a_header_is_that_of_the_diagram() {
        let header = Header {
            width: 0x0102,
            height: 0x0304,
            pixels: Header::number_of(Pixels::Rgb24),
            flags: LEFT_OUT,
            change: 0x0506,
            time_ms: 0x0708_090a,
            length: 0x0b0c_0d0e,
        };
        let bytes = header.to_bytes();
        assert_eq!(bytes, [1, 2, 3, 4, 2, 1, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]);
        let mut more = bytes.to_vec();
        more.push(9);
        assert_eq!(Header::parse(&more), Some((header, &[9][..])));
        assert_eq!(Header::parse(&bytes[..15]), None);
    }
}
