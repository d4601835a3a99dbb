//! Frame for a device: a head of 20 bytes and the packed pixels, or a part of a
//! `multipart/x-mixed-replace` body with a JPEG.
//!
//! ```text
//!   0               2               4               6       7       8
//!  +-------+-------+-------+-------+-------+-------+-------+-------+
//!  |  'T'  |  'F'  |     width     |    height     |palette| flags |
//!  +-------+-------+-------+-------+-------+-------+-------+-------+ 8
//!  |          time in ms           |    length of the pixels       |
//!  +-------+-------+-------+-------+-------+-------+-------+-------+ 16
//!  |    change     |    dropped    |  pixels …
//!  +-------+-------+-------+-------+ 20
//!   flags: layout in bits 0 and 1; bit 7: the node dropped pictures before this one
//! ```

use crate::choice::Size;
use std::io::Write;

/// Magic number at the beginning of a frame.
pub const MAGIC: [u8; 2] = *b"TF";
/// Bytes before a frame's pixels.
pub const HEAD_LENGTH: usize = 20;
/// Media type of a response of frames.
pub const FRAMES_TYPE: &str = "application/x-tamandua-frames";
/// Media type of a response of JPEGs.
pub const MJPEG_TYPE: &str = "multipart/x-mixed-replace; boundary=tamandua";
/// Largest length of a part's head, in bytes.
pub const PART_LENGTH_MAX: usize = 160;
/// End of a multipart body.
pub const PARTS_END: &[u8] = b"--tamandua--\r\n";
/// Flag: the node dropped pictures before this one.
const NODE_LEFT_OUT: u8 = 0x80;

/// Head of a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Size of the picture.
    pub size: Size,
    /// Number of the palette.
    pub palette: u8,
    /// Number of the layout.
    pub layout: u8,
    /// True if the node dropped pictures before this one: it, or the device, is slower than the
    /// stream.
    pub node_left_out: bool,
    /// Milliseconds since the first picture.
    pub time_ms: u32,
    /// Length of the pixels in bytes.
    pub length: u32,
    /// Number of the device's last change that the picture follows.
    pub change: u16,
    /// Number of pictures dropped before this one to keep the byte rate, 65,535 at most.
    pub left_out: u16,
}

impl Head {
    /// Encodes the head of a frame.
    pub fn to_bytes(self) -> [u8; HEAD_LENGTH] {
        let [w0, w1] = self.size.width.to_be_bytes();
        let [h0, h1] = self.size.height.to_be_bytes();
        let flags = self.layout | if self.node_left_out { NODE_LEFT_OUT } else { 0 };
        let [t0, t1, t2, t3] = self.time_ms.to_be_bytes();
        let [l0, l1, l2, l3] = self.length.to_be_bytes();
        let [c0, c1] = self.change.to_be_bytes();
        let [o0, o1] = self.left_out.to_be_bytes();
        let [m0, m1] = MAGIC;
        [
            m0,
            m1,
            w0,
            w1,
            h0,
            h1,
            self.palette,
            flags, // what it is
            t0,
            t1,
            t2,
            t3,
            l0,
            l1,
            l2,
            l3, // when, and how long
            c0,
            c1,
            o0,
            o1,
        ]
    }

    /// Appends the head of a multipart part, before a JPEG.
    pub fn write_part(self, out: &mut Vec<u8>) {
        // Writing to a vector cannot fail.
        let _ = write!(
            out,
            "--tamandua\r\nContent-Type: image/jpeg\r\nContent-Length: {}\r\n\
             Tamandua-Time: {}\r\nTamandua-Change: {}\r\nTamandua-Left-Out: {}\r\n\r\n",
            self.length, self.time_ms, self.change, self.left_out
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: Head = Head {
        size: Size { width: 160, height: 257 },
        palette: 3,
        layout: 2,
        node_left_out: true,
        time_ms: 0x01020304,
        length: 0x0a0b0c0d,
        change: 7,
        left_out: 258,
    };

    #[test]
    fn a_frame_head_has_the_documented_layout() {
        let expected = [
            b'T', b'F', 0, 160, 1, 1, 3, 0x82, 1, 2, 3, 4, 10, 11, 12, 13, 0, 7, 1, 2, //
        ];
        assert_eq!(HEAD.to_bytes(), expected);
        let none = Head { node_left_out: false, layout: 0, ..HEAD };
        assert_eq!(none.to_bytes()[7], 0);
    }

    #[test]
    fn a_part_has_its_length_and_is_no_longer_than_is_said() {
        let mut part = Vec::new();
        HEAD.write_part(&mut part);
        let text = String::from_utf8(part).unwrap();
        assert_eq!(
            text,
            "--tamandua\r\nContent-Type: image/jpeg\r\nContent-Length: 168496141\r\n\
             Tamandua-Time: 16909060\r\nTamandua-Change: 7\r\nTamandua-Left-Out: 258\r\n\r\n"
        );
        let mut longest = Vec::new();
        let most = Head { time_ms: !0, length: !0, change: !0, left_out: !0, ..HEAD };
        most.write_part(&mut longest);
        assert!(longest.len() + 2 <= PART_LENGTH_MAX, "{}", longest.len());
    }
}
