//! Properties for arbitrary bytes: frames and titles are the same wherever they are cut, frames are
//! found again after garbage, and there is no panic.

mod common;

use common::{Media, between, interleave, parts, separate};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use reflector::framing::{Entry, Format, Framer, Unit};
use reflector::icy::{Block, Event, Reader, StatusLine};
use reflector::limits::UNFRAMED_LENGTH_MAX;
use testbase::Chance;
use units::Nanos;

const FORMATS: [Option<Format>; 4] =
    [Some(Format::MpegAudio), Some(Format::Adts), Some(Format::TransportStream), None];
const MEDIA: [Media; 3] = [Media::Mp3, Media::Aac, Media::Ts];

fn format(media: Media) -> Option<Format> {
    match media {
        Media::Mp3 => Some(Format::MpegAudio),
        Media::Aac => Some(Format::Adts),
        Media::Ts => Some(Format::TransportStream),
        Media::Raw => None,
    }
}

/// Generates frames, with possible garbage between them.
fn stream() -> impl Strategy<Value = Vec<u8>> {
    let frames = (select(MEDIA.to_vec()), 0..1_000_u64, 1..12_u64)
        .prop_map(|(media, from, count)| media.frames(from..from + count));
    let tag = (0..3_000_usize).prop_map(|length| {
        let size = [(length >> 7) as u8, (length & 127) as u8];
        [b"ID3\x04\0\0\0\0".as_slice(), &size, &vec![7; length]].concat()
    });
    let lookalike = select(vec![
        &[0xff][..],
        &[0xff, 0xfb, 0x90, 0x00],
        &[0xff, 0xf1, 0x50, 0x80, 0x2e, 0x7f, 0xfc],
        &[0x47],
        b"ID3",
        b"ID3\x04\0\0\x7f\x7f\x7f\x7f",
    ]);
    let piece = prop_oneof![
        6 => frames,
        1 => tag,
        2 => vec(any::<u8>(), 0..700),
        2 => lookalike.prop_map(<[u8]>::to_vec),
    ];
    vec(piece, 0..8).prop_map(|pieces| pieces.concat())
}

#[derive(Debug, Default, PartialEq)]
struct Given {
    frames: Vec<(Vec<u8>, Nanos, Entry)>,
    raw: Vec<u8>,
    left_out: u64,
}

fn framed(format: Option<Format>, parts: &[&[u8]]) -> Given {
    let (mut framer, mut given) = (Framer::new(format), Given::default());
    let mut give = |unit: Unit<'_>| match unit {
        Unit::Frame { bytes, duration, entry } => {
            given.frames.push((bytes.to_vec(), duration, entry));
        }
        Unit::Raw(bytes) => given.raw.extend_from_slice(bytes),
    };
    for part in parts {
        framer.push(part, &mut give);
        assert!(framer.memory() <= 2 * UNFRAMED_LENGTH_MAX);
    }
    framer.finish(&mut give);
    given.left_out = framer.left_out();
    given
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn frames_are_the_same_wherever_bytes_are_cut(
        bytes in stream(),
        cuts in vec(any::<Index>(), 0..12),
    ) {
        for format in FORMATS {
            let whole = framed(format, &[&bytes]);
            prop_assert_eq!(&whole, &framed(format, &parts(&bytes, &cuts)));
            let single: Vec<&[u8]> = bytes.chunks(1).collect();
            prop_assert_eq!(&whole, &framed(format, &single));
            let given: usize = whole.frames.iter().map(|(bytes, ..)| bytes.len()).sum();
            prop_assert_eq!((given + whole.raw.len()) as u64 + whole.left_out, bytes.len() as u64);
        }
    }

    /// A stream without frames becomes raw at the same byte, wherever it is cut.
    #[test]
    fn frames_are_given_up_at_the_same_byte(
        garbage in UNFRAMED_LENGTH_MAX - 1_500..UNFRAMED_LENGTH_MAX + 500,
        before in 0..6_u64,
        part in prop_oneof![1..20_usize, 1..5_000_usize],
        media in select(MEDIA.to_vec()),
    ) {
        let garbage = Chance(garbage as u64).bytes(garbage).into_iter().map(between);
        let mut bytes = media.frames(0..before);
        bytes.extend(garbage);
        bytes.extend(media.frames(before..before + 10));
        let parts: Vec<&[u8]> = bytes.chunks(part).collect();
        prop_assert_eq!(framed(format(media), &[&bytes]), framed(format(media), &parts));
    }

    /// Garbage costs at most the frame before it, which no header confirms; in a transport stream
    /// two packets.
    #[test]
    fn frames_are_found_again_behind_garbage(
        media in select(MEDIA.to_vec()),
        garbage in vec(vec(any::<u8>(), 1..400), 1..5),
    ) {
        let (mut bytes, mut number, mut last) = (Vec::new(), 0, Vec::new());
        for garbage in &garbage {
            bytes.extend(media.frames(number..number + 20));
            number += 20;
            last.push(number - 1);
            if media == Media::Ts {
                last.push(number - 2);
            }
            bytes.extend(garbage.iter().map(|&byte| between(byte)));
        }
        bytes.extend(media.frames(number..number + 20));
        let given = framed(format(media), &[&bytes]);
        prop_assert!(given.raw.is_empty());
        let frames: Vec<u8> = given.frames.into_iter().flat_map(|(bytes, ..)| bytes).collect();
        let (numbers, rest) = media.numbers(&frames);
        prop_assert_eq!(rest, 0);
        prop_assert!(numbers.is_sorted());
        for number in 0..number + 20 {
            prop_assert!(numbers.contains(&number) || last.contains(&number), "{}", number);
        }
    }

    #[test]
    fn titles_are_read_as_a_naive_reader_does(
        payload in vec(any::<u8>(), 0..600),
        interval in 1..64_u32,
        titles in vec((0..600_usize, "[a-z']{1,40}"), 0..5),
        cuts in vec(any::<Index>(), 0..8),
    ) {
        let mut titles = titles;
        titles.sort();
        let titles: Vec<(usize, &str)> = titles.iter().map(|(at, title)| (*at, title.as_str())).collect();
        let wire = interleave(&payload, interval as usize, &titles);
        let (mut reader, mut received, mut blocks) = (Reader::new(Some(interval)), Vec::new(), Vec::new());
        for mut part in parts(&wire, &cuts) {
            while let (taken, Some(event)) = reader.read(part) {
                part = &part[taken..];
                match event {
                    Event::Payload(bytes) => received.extend_from_slice(bytes),
                    Event::Title(block) => {
                        let text = String::from_utf8_lossy(block.text()).into_owned();
                        prop_assert_eq!(&Block::new(text.as_bytes()), &block);
                        blocks.push((received.len(), text));
                    }
                }
            }
        }
        prop_assert_eq!((received, blocks), separate(&wire, interval as usize));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn no_bytes_panic(bytes in vec(prop_oneof![3 => any::<u8>(), 1 => select(b"\xff\xfb\xf1\x47ID3\x10\x00".to_vec())], 0..600)) {
        for format in FORMATS {
            let _ = framed(format, &[&bytes]);
        }
        let mut reader = Reader::new(Some(u32::from(bytes.first().copied().unwrap_or(0))));
        let mut rest = bytes.as_slice();
        while let (taken, Some(event)) = reader.read(rest) {
            rest = &rest[taken..];
            if let Event::Title(block) = event {
                let _ = (block.text(), block.stream_title());
            }
        }
        let (first, second) = StatusLine::new().take(&bytes);
        prop_assert!(first.len() + second.len() <= bytes.len() + 5);
    }
}

/// A false tag header of ten bytes does not skip megabytes.
#[test]
fn a_tag_is_skipped_only_where_one_is_expected() {
    let tag = b"ID3\x04\0\0\x00\x7f\x7f\x7f";
    let frames = Media::Mp3.frames(0..20);
    let given = framed(format(Media::Mp3), &[b"x", tag, &frames]);
    assert_eq!((given.frames.len(), given.left_out), (20, 11));
    let given = framed(format(Media::Mp3), &[tag, &frames]);
    assert_eq!((given.frames.len(), given.raw.len()), (0, 0));
}

/// A header in garbage that claims a long frame does not cost the frames after it, though the
/// stream ends before the claimed length. Found by a property test.
#[test]
fn a_false_header_does_not_hide_the_last_frames() {
    let garbage = [255, 240, 0, 19, 228];
    let frames = Media::Aac.frames(0..10);
    let given = framed(format(Media::Aac), &[&garbage, &frames]);
    assert_eq!((given.frames.len(), given.left_out), (10, 5));
    let given = framed(format(Media::Aac), &[&frames, &garbage, &frames, &frames[..99]]);
    assert_eq!((given.frames.len(), given.left_out), (20, 5 + 99));
}
