//! A picture as modules are shown it.
//!
//! ```text
//!   0               2               4       5       6               8
//!  +---------------+---------------+-------+-------+---------------+
//!  |     width     |    height     | pixels| flags |    change     |
//!  +---------------+---------------+-------+-------+---------------+
//!  |   time in ms since the first picture          |
//!  +-----------------------------------------------+  12
//!  |   length of what follows                      |
//!  +-----------------------------------------------+  16
//!  |   rows from the top, without padding; or one JPEG
//! ```

use crate::wish::Pixels;

/// In the flags: pictures were left out before this one.
pub const LEFT_OUT: u8 = 1;

/// What stands in front of a picture, all of it big-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Pixels of a row.
    pub width: u16,
    /// Rows.
    pub height: u16,
    /// 1 for `gray8`, 2 for `rgb24`, 3 for `mjpeg`.
    pub pixels: u8,
    /// [`LEFT_OUT`], or nothing.
    pub flags: u8,
    /// Which of the changes it follows; the first codec's have 0.
    pub change: u16,
    /// When it is shown, in milliseconds since the first picture.
    pub time_ms: u32,
    /// Bytes that follow.
    pub length: u32,
}

impl Header {
    /// Bytes of a header.
    pub const LENGTH: usize = 16;

    /// The number of a kind of pixels.
    #[must_use]
    pub const fn number_of(pixels: Pixels) -> u8 {
        match pixels {
            Pixels::Gray8 => 1,
            Pixels::Rgb24 => 2,
            Pixels::Mjpeg(_) => 3,
        }
    }

    /// As bytes.
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

    /// From bytes: with all that follows of a body, what is behind the header.
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
    fn a_header_lies_where_its_picture_says() {
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
