//! Pictures as the node passes them (docs/reference/stream-functions.md): a part of the body has
//! one or more complete ones.
//!
//! ```text
//!   0               2               4       6       8               12              16
//!  +-------+-------+-------+-------+---+---+-------+---------------+---------------+
//!  |     width     |    height     |pix|flg| change|   time in ms  |     length    | pixels …
//!  +---------------+---------------+---+---+-------+---------------+---------------+
//! ```

use crate::choice::Size;

/// Bytes before a picture's pixels.
const HEAD_LENGTH: usize = 16;
/// Flag: pictures were dropped before this one.
const LEFT_OUT: u8 = 1;

/// Format of the bytes after a picture's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pixels {
    /// Grey, a byte per pixel, 0 black.
    Grey,
    /// Red, green and blue, a byte each.
    Rgb,
    /// JPEG file.
    Jpeg,
}

/// Picture of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Picture<'a> {
    /// Size of the picture.
    pub size: Size,
    /// Format of `bytes`.
    pub pixels: Pixels,
    /// True if the node dropped pictures before this one.
    pub left_out: bool,
    /// Number of the node's last change that the picture follows.
    pub change: u16,
    /// Milliseconds since the first picture.
    pub time_ms: u32,
    /// Pixels, with the length that the size gives.
    pub bytes: &'a [u8],
}

impl Picture<'_> {
    /// Returns the number of pixels that have to be packed.
    pub fn count(&self) -> u32 {
        u32::from(self.size.width) * u32::from(self.size.height)
    }
}

/// The node passed an invalid picture: a fault of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// Offset in the part of the body.
    pub at: usize,
    /// Description of the error.
    pub why: &'static str,
}

/// Iterator over the pictures in a part of the body, up to the first invalid one.
#[derive(Clone, Copy, Debug)]
pub struct Pictures<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Pictures<'a> {
    /// Creates the iterator over `bytes`.
    pub fn of(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    fn read(&mut self) -> Result<Picture<'a>, &'static str> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let (head, rest) = rest.split_first_chunk::<HEAD_LENGTH>().ok_or("its head is cut off")?;
        let [w0, w1, h0, h1, pixels, flags, c0, c1, t0, t1, t2, t3, l0, l1, l2, l3] = *head;
        let size =
            Size { width: u16::from_be_bytes([w0, w1]), height: u16::from_be_bytes([h0, h1]) };
        let length = u32::from_be_bytes([l0, l1, l2, l3]) as usize;
        let bytes = rest.get(..length).ok_or("its pixels are cut off")?;
        let count = usize::from(size.width) * usize::from(size.height);
        let (pixels, is_right) = match pixels {
            1 => (Pixels::Grey, length == count),
            2 => (Pixels::Rgb, length == 3 * count),
            3 => (Pixels::Jpeg, length > 0),
            _ => return Err("its pixels are of no known kind"),
        };
        if !is_right || count == 0 {
            return Err("it has not as many bytes as its size says");
        }
        self.at += HEAD_LENGTH + length;
        Ok(Picture {
            size,
            pixels,
            left_out: flags & LEFT_OUT != 0,
            change: u16::from_be_bytes([c0, c1]),
            time_ms: u32::from_be_bytes([t0, t1, t2, t3]),
            bytes,
        })
    }
}

impl<'a> Iterator for Pictures<'a> {
    type Item = Result<Picture<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.bytes.len() {
            return None;
        }
        let at = self.at;
        Some(self.read().map_err(|why| {
            // The following pictures cannot be located.
            self.at = self.bytes.len();
            Malformed { at, why }
        }))
    }
}

/// Encodes a picture in the node's format.
#[cfg(test)]
pub(crate) fn written(picture: &Picture<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(picture.size.width.to_be_bytes());
    bytes.extend(picture.size.height.to_be_bytes());
    bytes.push(match picture.pixels {
        Pixels::Grey => 1,
        Pixels::Rgb => 2,
        Pixels::Jpeg => 3,
    });
    bytes.push(u8::from(picture.left_out));
    bytes.extend(picture.change.to_be_bytes());
    bytes.extend(picture.time_ms.to_be_bytes());
    bytes.extend(u32::try_from(picture.bytes.len()).unwrap_or(u32::MAX).to_be_bytes());
    bytes.extend(picture.bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn picture(bytes: &[u8]) -> Picture<'_> {
        Picture {
            size: Size { width: 2, height: 3 },
            pixels: Pixels::Grey,
            left_out: true,
            change: 513,
            time_ms: 70_000,
            bytes,
        }
    }

    #[test]
    fn a_part_is_whole_pictures() {
        let one = picture(&[1, 2, 3, 4, 5, 6]);
        let two = Picture { pixels: Pixels::Rgb, left_out: false, bytes: &[7; 18], ..one };
        let three = Picture { pixels: Pixels::Jpeg, bytes: b"jpeg", ..one };
        let part = [written(&one), written(&two), written(&three)].concat();
        let read: Result<Vec<_>, _> = Pictures::of(&part).collect();
        assert_eq!(read.unwrap(), [one, two, three]);
        assert_eq!(Pictures::of(&[]).count(), 0);
    }

    #[test]
    fn what_is_no_picture_is_told_with_its_place() {
        let good = written(&picture(&[0; 6]));
        let changed = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            bytes
        };
        for (part, at, says) in [
            ([&good[..], &good[..15]].concat(), 22, "its head"),
            ([&good[..], &good[..21]].concat(), 22, "its pixels are cut"),
            (changed(4, 9), 0, "no known kind"),
            (changed(4, 2), 0, "as its size says"),
            (changed(1, 3), 0, "as its size says"),
            (changed(12, 255), 0, "its pixels are cut"),
            (written(&Picture { size: Size { width: 0, height: 9 }, ..picture(&[]) }), 0, "size"),
        ] {
            let error = Pictures::of(&part).find_map(Result::err).unwrap();
            assert!(error.at == at && error.why.contains(says), "{error:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_pictures_or_refused_with_their_offset(bytes in proptest::collection::vec(0u8..4, 0..200)) {
            let mut length = 0;
            for picture in Pictures::of(&bytes) {
                match picture {
                    Ok(picture) => length += HEAD_LENGTH + picture.bytes.len(),
                    Err(malformed) => {
                        prop_assert_eq!(malformed.at, length);
                        return Ok(());
                    }
                }
            }
            prop_assert_eq!(length, bytes.len());
        }
    }
}
