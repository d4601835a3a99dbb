//! Headers of AAC in ADTS: ISO/IEC 13818-7, 6.2; ISO/IEC 14496-3, 1.A.2.

use super::{Found, Frame};
use units::Nanos;

/// Sampling rates in Hz by index; 13 and 14 are reserved, 15 is forbidden here. ISO/IEC 14496-3,
/// 1.6.3.4.
const SAMPLINGS: [u64; 13] = [
    96_000, 88_200, 64_000, 48_000, 44_100, 32_000, 24_000, 22_050, 16_000, 12_000, 11_025, 8_000,
    7_350,
];

/// Parses the seven bytes of a header; a CRC of two bytes follows them.
pub(super) fn read(bytes: &[u8]) -> Found {
    let &[first, second, third, fourth, fifth, sixth, seventh, ..] = bytes else {
        let may = match bytes {
            [] | [0xff] => true,
            [0xff, second, ..] => second & 0xf6 == 0xf0,
            _ => false,
        };
        return if may { Found::More } else { Found::Nothing };
    };
    let Some(&sampling) = SAMPLINGS.get(usize::from(third >> 2 & 15)) else {
        return Found::Nothing;
    };
    let length = usize::from(fourth & 3) << 11 | usize::from(fifth) << 3 | usize::from(sixth >> 5);
    let header = if second & 1 == 1 { 7 } else { 9 };
    // The sync word, and layer 0.
    if first != 0xff || second & 0xf6 != 0xf0 || length <= header {
        return Found::Nothing;
    }
    let blocks = u64::from(seventh & 3) + 1;
    Found::Frame(Frame {
        length,
        duration: Nanos(blocks * 1_024 * 1_000_000_000 / sampling),
        // Fixed header, except the CRC flag and the private bits.
        kind: u32::from_be_bytes([0xff, second & 0xfe, third & 0xfd, fourth & 0xc0]),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_and_durations_are_those_of_the_standard() {
        let frames: [([u8; 7], usize, u64); 5] = [
            // LC, 44.1 kHz, stereo, 371 bytes: 128 kbit/s.
            ([0xff, 0xf1, 0x50, 0x80, 0x2e, 0x7f, 0xfc], 371, 23_219),
            // The same as MPEG-2, with CRC.
            ([0xff, 0xf8, 0x50, 0x80, 0x2e, 0x7f, 0xfc], 371, 23_219),
            // 48 kHz, the longest; 7,350 Hz, the shortest that has any payload.
            ([0xff, 0xf1, 0x4c, 0x83, 0xff, 0xff, 0xfc], 8_191, 21_333),
            ([0xff, 0xf1, 0x70, 0x40, 0x01, 0x1f, 0xfc], 8, 139_319),
            // Four raw data blocks.
            ([0xff, 0xf1, 0x4c, 0x80, 0x80, 0x1f, 0xff], 1_024, 85_333),
        ];
        for (header, length, micros) in frames {
            let Found::Frame(frame) = read(&header) else { panic!("{header:x?}") };
            assert_eq!((frame.length, frame.duration.0 / 1_000), (length, micros), "{header:x?}");
        }
    }

    #[test]
    fn invalid_headers_are_refused() {
        let refused: [[u8; 7]; 5] = [
            [0xff, 0xfb, 0x50, 0x80, 0x2e, 0x7f, 0xfc], // layer III
            [0xff, 0xf1, 0x74, 0x80, 0x2e, 0x7f, 0xfc], // sampling index 13
            [0xff, 0xf1, 0x50, 0x80, 0x00, 0xff, 0xfc], // 7 bytes: nothing but a header
            [0xff, 0xf0, 0x50, 0x80, 0x01, 0x3f, 0xfc], // 9 with CRC
            [0xff, 0xe1, 0x50, 0x80, 0x2e, 0x7f, 0xfc], // eleven bits of sync word
        ];
        for header in refused {
            assert_eq!(read(&header), Found::Nothing, "{header:x?}");
        }
        assert_eq!(read(&[0xff, 0xf1, 0x50]), Found::More);
    }
}
