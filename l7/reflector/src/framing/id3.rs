//! Tags between frames: ID3v2.4.0, main structure, section 3.1. Older versions have the same
//! header.

use super::Found;
use crate::limits::ID3_LENGTH_MAX;

/// Parses an ID3v2 header: ten bytes, "ID3", a version, flags, four times seven bits of length.
pub(super) fn read(bytes: &[u8]) -> Found {
    let Some(&[major, minor, flags, a, b, c, d]) = bytes.get(3..10) else {
        let may = bytes.iter().zip(b"ID3").all(|(has, wants)| has == wants);
        return if may { Found::More } else { Found::Nothing };
    };
    let sizes = [a, b, c, d];
    if !bytes.starts_with(b"ID3")
        || major == 0xff
        || minor == 0xff
        || sizes.iter().any(|&s| s > 127)
    {
        return Found::Nothing;
    }
    let size = sizes.iter().fold(0, |sum, &size| sum << 7 | usize::from(size));
    let footer = if flags & 0x10 == 0 { 0 } else { 10 };
    let length = 10 + size + footer;
    if length > ID3_LENGTH_MAX { Found::Nothing } else { Found::Tag(length) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_has_four_times_seven_bits_of_length() {
        assert_eq!(read(b"ID3\x04\0\0\0\0\x02\x01"), Found::Tag(10 + 257));
        assert_eq!(read(b"ID3\x04\0\x10\0\0\0\x05"), Found::Tag(10 + 5 + 10));
        assert_eq!(read(b"ID3\x04\0\0\0\0\x80\0"), Found::Nothing);
        assert_eq!(read(b"ID3\xff\0\0\0\0\0\0"), Found::Nothing);
        assert_eq!(read(b"ID3\x04\0\0\x7f\x7f\x7f\x7f"), Found::Nothing, "too long");
        assert_eq!((read(b"ID"), read(b"IE")), (Found::More, Found::Nothing));
    }
}
