//! Headers of MPEG audio: ISO/IEC 11172-3, 2.4.1.3 and 2.4.2.3; ISO/IEC 13818-3, 2.4.2.3 for the
//! lower sampling rates; "MPEG 2.5" is Fraunhofer's addition for 8 to 12 kHz, as players have it.

use super::Found;
use super::Frame;
use units::Nanos;

/// Bitrates in kbit/s by index 1 to 14. Index 0 is free format, 15 is forbidden.
type Rates = [u32; 14];

const V1_LAYER1: Rates = [32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448];
const V1_LAYER2: Rates = [32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384];
const V1_LAYER3: Rates = [32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320];
const V2_LAYER1: Rates = [32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256];
const V2_LAYER23: Rates = [8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160];

/// Mask of the header bits that are constant within a stream: sync word, version, layer, sampling
/// rate. Bitrate, padding, CRC and channel mode may change.
const KIND: [u8; 3] = [0xff, 0xfe, 0x0c];

/// Parses a header of four bytes. Free format is not supported: its headers do not give the frame's
/// length. A CRC is included in the length.
pub(super) fn read(bytes: &[u8]) -> Found {
    let &[first, second, third, fourth, ..] = bytes else {
        let may = match bytes {
            [] | [0xff] => true,
            [0xff, second, ..] => second & 0xe0 == 0xe0,
            _ => false,
        };
        return if may { Found::More } else { Found::Nothing };
    };
    let rate_index = usize::from(third >> 4);
    let is_one = second & 0x18 == 0x18;
    let layer = 4 - (second >> 1 & 3);
    let table = match (is_one, layer) {
        (true, 1) => V1_LAYER1,
        (true, 2) => V1_LAYER2,
        (true, _) => V1_LAYER3,
        (false, 1) => V2_LAYER1,
        (false, _) => V2_LAYER23,
    };
    let is_header = first == 0xff
        && second & 0xe0 == 0xe0
        && second & 0x18 != 0x08 // the version that is reserved
        && layer != 4
        && fourth & 3 != 2; // the emphasis that is reserved
    let sampling: u32 = match (second >> 3 & 3, third >> 2 & 3) {
        (3, 0) => 44_100,
        (3, 1) => 48_000,
        (3, 2) => 32_000,
        (2, 0) => 22_050,
        (2, 1) => 24_000,
        (2, 2) => 16_000,
        (0, 0) => 11_025,
        (0, 1) => 12_000,
        (0, 2) => 8_000,
        _ => return Found::Nothing,
    };
    let Some(kbits) = rate_index.checked_sub(1).and_then(|index| table.get(index)) else {
        return Found::Nothing;
    };
    if !is_header {
        return Found::Nothing;
    }
    let padding = u32::from(third >> 1 & 1);
    let samples: u32 = match (layer, is_one) {
        (1, _) => 384,
        (3, false) => 576,
        _ => 1_152,
    };
    // A slot is four bytes in layer I and one in the others; at most 448 * 125 * 1152.
    let length = if layer == 1 {
        (kbits * 12_000 / sampling + padding) * 4
    } else {
        kbits * samples * 125 / sampling + padding
    };
    let kind = [first & KIND[0], second & KIND[1], third & KIND[2], 0];
    Found::Frame(Frame {
        length: length as usize,
        duration: Nanos(u64::from(samples) * 1_000_000_000 / u64::from(sampling)),
        kind: u32::from_be_bytes(kind),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Header, frame length in bytes, duration in microseconds.
    const FRAMES: [([u8; 4], usize, u64); 16] = [
        // ISO/IEC 11172-3. Layer III, 128 kbit/s, 44.1 kHz: without and with padding, with CRC.
        ([0xff, 0xfb, 0x90, 0x00], 417, 26_122),
        ([0xff, 0xfb, 0x92, 0x00], 418, 26_122),
        ([0xff, 0xfa, 0x90, 0x00], 417, 26_122),
        // Layer III, 320 kbit/s at 48 kHz, 32 kbit/s at 32 kHz.
        ([0xff, 0xfb, 0xe4, 0x00], 960, 24_000),
        ([0xff, 0xfb, 0x18, 0x40], 144, 36_000),
        // Layer II, 192 kbit/s at 48 kHz, as in DVB; 384 kbit/s at 32 kHz, the longest.
        ([0xff, 0xfd, 0xa4, 0x00], 576, 24_000),
        ([0xff, 0xfd, 0xe8, 0x00], 1_728, 36_000),
        // Layer I, 384 kbit/s at 44.1 kHz with a slot of padding; 448 kbit/s at 32 kHz.
        ([0xff, 0xff, 0xc2, 0x00], 420, 8_707),
        ([0xff, 0xff, 0xe8, 0x00], 672, 12_000),
        // ISO/IEC 13818-3. Layer III, 64 kbit/s at 22.05 and 24 kHz: 576 samples.
        ([0xff, 0xf3, 0x80, 0x00], 208, 26_122),
        ([0xff, 0xf3, 0x84, 0x00], 192, 24_000),
        // Layer II, 160 kbit/s at 16 kHz: 1,152 samples. Layer I, 256 kbit/s at 24 kHz.
        ([0xff, 0xf5, 0xe8, 0x00], 1_440, 72_000),
        ([0xff, 0xf7, 0xe4, 0x00], 512, 16_000),
        // MPEG 2.5. Layer III, 8 kbit/s at 8 kHz, the shortest; 16 kbit/s at 11.025 kHz.
        ([0xff, 0xe3, 0x18, 0x00], 72, 72_000),
        ([0xff, 0xe3, 0x20, 0x00], 104, 52_244),
        // Layer II, 160 kbit/s at 8 kHz.
        ([0xff, 0xe5, 0xe8, 0x00], 2_880, 144_000),
    ];

    #[test]
    fn lengths_and_durations_are_those_of_the_standard() {
        for (header, length, micros) in FRAMES {
            let Found::Frame(frame) = read(&header) else { panic!("{header:x?}") };
            assert_eq!((frame.length, frame.duration.0 / 1_000), (length, micros), "{header:x?}");
        }
    }

    #[test]
    fn invalid_headers_are_refused() {
        let refused: [[u8; 4]; 7] = [
            [0xff, 0xfb, 0x00, 0x00], // free format
            [0xff, 0xfb, 0xf0, 0x00], // bitrate 15
            [0xff, 0xfb, 0x9c, 0x00], // sampling rate 3
            [0xff, 0xf9, 0x90, 0x00], // layer 0: ADTS
            [0xff, 0xeb, 0x90, 0x00], // version 1
            [0xff, 0xfb, 0x90, 0x02], // emphasis 2
            [0xfe, 0xfb, 0x90, 0x00], // no sync word
        ];
        for header in refused {
            assert_eq!(read(&header), Found::Nothing, "{header:x?}");
        }
        assert_eq!(read(&[0xff, 0xfb, 0x90]), Found::More);
        assert_eq!(read(&[0xff, 0x1b]), Found::Nothing);
    }

    #[test]
    fn kind_leaves_out_what_may_change() {
        let kind = |header: [u8; 4]| match read(&header) {
            Found::Frame(frame) => frame.kind,
            other => panic!("{other:?}"),
        };
        let usual = kind([0xff, 0xfb, 0x90, 0x00]);
        assert_eq!(usual, kind([0xff, 0xfa, 0xb2, 0x64]), "bitrate, padding, CRC, mode");
        assert_ne!(usual, kind([0xff, 0xfb, 0x94, 0x00]), "sampling rate");
        assert_ne!(usual, kind([0xff, 0xfd, 0x90, 0x00]), "layer");
        assert_ne!(usual, kind([0xff, 0xf3, 0x90, 0x00]), "version");
    }
}
