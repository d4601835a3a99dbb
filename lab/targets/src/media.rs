//! Any bytes as the output of a radio station: frames and titles are the same wherever the bytes
//! are cut, every byte is accounted for, and accepted titles can be written again.

use reflector::framing::{Format, Framer, Unit};
use reflector::icy::{Block, Event, Reader, StatusLine};
use reflector::limits::UNFRAMED_LENGTH_MAX;

const FORMATS: [Option<Format>; 4] =
    [Some(Format::MpegAudio), Some(Format::Adts), Some(Format::TransportStream), None];

/// Results of the reader: lengths of frames, all bytes passed on, and those that were not.
#[derive(Debug, Default, PartialEq)]
struct Given {
    frames: Vec<(usize, u64)>,
    bytes: Vec<u8>,
    left_out: u64,
}

pub fn frames(bytes: &[u8]) {
    // The first byte says in how many parts the others come.
    let (first, rest) = bytes.split_first().map_or((0, bytes), |(first, rest)| (*first, rest));
    let length = usize::from(first).max(1);
    for format in FORMATS {
        let whole = framed(format, rest, rest.len().max(1));
        assert_eq!(whole, framed(format, rest, length));
        assert_eq!(whole.bytes.len() as u64 + whole.left_out, rest.len() as u64);
    }
}

fn framed(format: Option<Format>, bytes: &[u8], part: usize) -> Given {
    let (mut framer, mut given) = (Framer::new(format), Given::default());
    let mut give = |unit: Unit<'_>| match unit {
        Unit::Frame { bytes, duration, .. } => {
            assert!(matches!(bytes.len(), 8..=8_191));
            given.frames.push((bytes.len(), duration.0));
            given.bytes.extend_from_slice(bytes);
        }
        Unit::Raw(bytes) => given.bytes.extend_from_slice(bytes),
    };
    for part in bytes.chunks(part) {
        framer.push(part, &mut give);
        assert!(framer.memory() <= 2 * UNFRAMED_LENGTH_MAX);
    }
    framer.finish(&mut give);
    given.left_out = framer.left_out();
    given
}

pub fn titles(bytes: &[u8]) {
    let (first, rest) = bytes.split_first().map_or((0, bytes), |(first, rest)| (*first, rest));
    for interval in [None, Some(u32::from(first)), Some(u32::from(first) * 256)] {
        let whole = separated(interval, rest, rest.len().max(1));
        assert_eq!(whole, separated(interval, rest, usize::from(first % 16) + 1));
    }
    let mut line = StatusLine::new();
    let mut head = Vec::new();
    for part in rest.chunks(usize::from(first % 4) + 1) {
        let (before, after) = line.take(part);
        head.extend_from_slice(before);
        head.extend_from_slice(after);
    }
    head.extend_from_slice(line.held());
    match rest.strip_prefix(b"ICY ") {
        Some(rest) => assert_eq!(head.strip_prefix(b"HTTP/1.0 "), Some(rest)),
        None => assert_eq!(head, rest),
    }
}

/// Returns the payload, and each title with its position.
fn separated(interval: Option<u32>, bytes: &[u8], part: usize) -> (Vec<u8>, Vec<(usize, Block)>) {
    let (mut reader, mut payload, mut titles) = (Reader::new(interval), Vec::new(), Vec::new());
    for mut part in bytes.chunks(part) {
        loop {
            let (taken, event) = reader.read(part);
            part = &part[taken..];
            match event {
                None => break,
                Some(Event::Payload(bytes)) => payload.extend_from_slice(bytes),
                Some(Event::Title(block)) => {
                    // Some servers fill up more than they have to.
                    let text = block.text();
                    let written = Block::new(text);
                    assert_eq!(written.text(), text);
                    assert!(written.as_bytes().len() <= block.as_bytes().len());
                    assert!(block.stream_title().is_none_or(|title| title.len() <= 4_080));
                    titles.push((payload.len(), block));
                }
            }
        }
        assert!(part.is_empty(), "everything is taken");
    }
    (payload, titles)
}

pub fn frame_seeds() -> Vec<Vec<u8>> {
    let repeated = |header: &[u8], length: usize| {
        let mut frame = header.to_vec();
        frame.resize(length, 0x55);
        frame.repeat(4)
    };
    let tag = b"ID3\x04\0\0\0\0\0\x05abcde";
    let mp3 = repeated(&[0xff, 0xfb, 0x90, 0x64], 417);
    let low = repeated(&[0xff, 0xf3, 0x80, 0x00], 208);
    let layer2 = repeated(&[0xff, 0xfd, 0xa4, 0x00], 576);
    let aac = repeated(&[0xff, 0xf1, 0x50, 0x80, 0x2e, 0x7f, 0xfc], 371);
    let pat = [0x47, 0x40, 0, 0x10, 0, 0, 0xb0, 13, 0, 1, 0xc1, 0, 0, 0, 1, 0xf0, 0, 1, 2, 3, 4];
    let pmt = [
        0x47, 0x50, 0, 0x10, 0, 2, 0xb0, 18, 0, 1, 0xc1, 0, 0, 0xe1, 1, 0xf0, 0, 0x1b, 0xe1, 1,
        0xf0, 0, 1, 2, 3, 4,
    ];
    let clock = [0x47, 0x41, 1, 0x30, 7, 0x50, 0, 0, 0x10, 0, 0x7e, 0];
    let ts = [repeated(&pat, 188), repeated(&pmt, 188), repeated(&clock, 188)].concat();
    let all: [&[&[u8]]; 7] = [
        &[b"\x10", &mp3],
        &[b"\x07", tag, &mp3, tag, &mp3],
        &[b"\x80", &mp3, b"garbage\xff\xfb", &mp3[..300], &low],
        &[b"\xff", &layer2],
        &[b"\x01", &aac, b"\xff", &aac],
        &[b"\xbc", &ts],
        &[b"\x2f", b"G", &ts[..500], b"GGG", &ts],
    ];
    all.map(<[&[u8]]>::concat).to_vec()
}

pub fn title_seeds() -> Vec<Vec<u8>> {
    let block = |text: &[u8]| Block::new(text).as_bytes().to_vec();
    let (one, two) = (block(b"StreamTitle='A - B';StreamUrl='';"), block(b"StreamTitle='C"));
    vec![
        [b"\x04abcd", one.as_slice(), b"efgh\0ijkl", &two, b"mn"].concat(),
        [b"\x01a", two.as_slice(), b"b\0c\xffd"].concat(),
        b"\x00no blocks at all".to_vec(),
        b"\x02ICY 200 OK\r\nicy-name:a\r\nicy-metaint:8192\r\n\r\n".to_vec(),
        b"\x03HTTP/1.0 200 OK\r\n".to_vec(),
        b"\x01IC".to_vec(),
    ]
}
