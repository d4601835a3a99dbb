//! Tests with generated streams, cut anywhere: extracted video, cuts for codecs, and the change
//! from one codec to another.

use mpeg2::limits::{AHEAD_LENGTH_MAX, KEPT_LENGTH_MAX, PROBE_LENGTH_MAX};
use mpeg2::{
    CodecId, Cut, Demuxer, Effect, End, Feed, Format, Header, LEFT_OUT, NotVideo, Scanner,
    TranscodeParams, Transcoding,
};
use proptest::prelude::*;
use std::collections::VecDeque;
use units::Nanos;

/// Kind of a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    I = 1,
    P = 2,
    B = 3,
}

/// Elementary stream in coding order: groups of `I B B P B B P B B`, at 25 pictures a second, with
/// a sequence header before each or before the first one only.
struct Film {
    bytes: Vec<u8>,
    /// Position of each I picture's headers, and its presentation time.
    cuts: Vec<Cut>,
}

fn code(kind: u8) -> [u8; 4] {
    [0, 0, 1, kind]
}

fn sequence(rate: u8) -> Vec<u8> {
    let mut bytes = code(0xb3).to_vec();
    bytes.extend([0x16, 0x01, 0x20, 0x20 | rate, 0x30, 0xd4, 0x00, 0x00]);
    // Sequence extension: main profile at main level, not progressive.
    bytes.extend(code(0xb5));
    bytes.extend([0x14, 0x82, 0x00, 0x01, 0x00, 0x00]);
    bytes
}

fn picture(reference: u16, kind: Kind, structure: u8, repeats: bool, slices: &[u8]) -> Vec<u8> {
    let mut bytes = code(0).to_vec();
    bytes.extend([(reference >> 2) as u8, (reference << 6) as u8 | (kind as u8) << 3, 0xff, 0xf8]);
    bytes.extend(code(0xb5));
    bytes.extend([0x8f, 0xff, 0xf0 | structure, if repeats { 0x1e } else { 0x1c }, 0x80]);
    bytes.extend(code(1));
    // Avoids accidental start codes.
    bytes.extend(slices.iter().map(|byte| byte | 1));
    bytes
}

fn film(groups: usize, all_headers: bool, slices: &[u8]) -> Film {
    let (mut bytes, mut cuts) = (Vec::new(), Vec::new());
    for group in 0..groups {
        let at = bytes.len() as u64;
        let has_headers = all_headers || group == 0;
        if has_headers {
            bytes.extend(sequence(3));
        }
        bytes.extend(code(0xb8));
        bytes.extend([0, 8, 0, 0x40]);
        // The first group has no picture before its I picture; the others have two B pictures.
        let order: &[(u16, Kind)] = match group {
            0 => &[(0, Kind::I), (3, Kind::P), (1, Kind::B), (2, Kind::B)],
            _ => &[
                (2, Kind::I),
                (0, Kind::B),
                (1, Kind::B),
                (5, Kind::P),
                (3, Kind::B),
                (4, Kind::B),
            ],
        };
        let before = if group == 0 { 0 } else { 4 + 6 * (group as u64 - 1) };
        for (reference, kind) in order {
            if *kind == Kind::I {
                let shown = before + u64::from(*reference);
                cuts.push(Cut { at, has_headers, time: Nanos(shown * 40_000_000) });
            }
            bytes.extend(picture(*reference, *kind, 3, false, slices));
        }
    }
    Film { bytes, cuts }
}

fn program_stream(video: &[u8], length: usize, mpeg1: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (count, part) in video.chunks(length).enumerate() {
        bytes.extend(code(0xba));
        match mpeg1 {
            true => bytes.extend([0x21, 0, 1, 0, 1, 0x80, 0, 1]),
            false => bytes.extend([0x44, 0, 4, 0, 4, 1, 0, 0, 3, 0xf8 | 2, 0xff, 0xff]),
        }
        if count % 3 == 0 {
            // Sound, and padding, which look like video inside.
            for kind in [0xc0, 0xbe] {
                bytes.extend(code(kind));
                bytes.extend([0, 6, 0, 0, 1, 0xb3, 0, 0]);
            }
        }
        let header: &[u8] = match (mpeg1, count % 2) {
            (true, 0) => &[0xff, 0xff, 0x60, 0x20, 0x21, 0, 1, 0, 1],
            (true, _) => &[0x0f],
            (false, 0) => &[0x81, 0x80, 5, 0x21, 0, 1, 0, 1],
            (false, _) => &[0x81, 0, 0],
        };
        bytes.extend(code(0xe0));
        bytes.extend(((header.len() + part.len()) as u16).to_be_bytes());
        bytes.extend(header);
        bytes.extend(part);
    }
    bytes.extend(code(0xb9));
    bytes
}

/// Returns a packet of 188 bytes; stuffing fills what the payload leaves.
fn packet(pid: u16, is_start: bool, counter: u8, payload: &[u8]) -> Vec<u8> {
    let start = if is_start { 0x40 } else { 0 };
    let mut bytes = vec![0x47, start | (pid >> 8) as u8, pid as u8, 0x10 | counter & 0x0f];
    let space = 184 - payload.len();
    if space > 0 {
        bytes[3] |= 0x20;
        bytes.push((space - 1) as u8);
        if space > 1 {
            bytes.push(0);
            bytes.resize(bytes.len() + space - 2, 0xff);
        }
    }
    bytes.extend(payload);
    assert_eq!(bytes.len(), 188);
    bytes
}

fn tables() -> Vec<u8> {
    // The first program is the network's, then one with sound and video.
    let association =
        [0, 0, 0xb0, 17, 0, 1, 0xc1, 0, 0, 0, 0, 0xe0, 0x10, 0, 1, 0xe1, 0x00, 1, 2, 3, 4];
    let map = [
        0, 2, 0xb0, 27, 0, 1, 0xc1, 0, 0, 0xe1, 0x01, 0xf0, 2, 9, 0, 3, 0xe1, 0x02, 0xf0, 2, 8, 0,
        2, 0xe1, 0x01, 0xf0, 0, 1, 2, 3, 4,
    ];
    [packet(0, true, 0, &association), packet(0x100, true, 0, &map)].concat()
}

fn transport_stream(video: &[u8], length: usize) -> Vec<u8> {
    let mut bytes = tables();
    let mut counter = 0;
    for part in video.chunks(length) {
        let mut pes = code(0xe0).to_vec();
        pes.extend([0, 0, 0x81, 0x80, 5, 0x21, 0, 1, 0, 1]);
        pes.extend(part);
        for (count, payload) in pes.chunks(170).enumerate() {
            counter = (counter + 1) % 16;
            let video = packet(0x101, count == 0, counter, payload);
            bytes.extend(&video);
            if count == 1 {
                // A packet may be sent twice, and others come in between.
                bytes.extend(&video);
                bytes.extend(packet(0x102, true, 0, &[0, 0, 1, 0xc0, 0, 0, 0x81, 0, 0, 1]));
            }
        }
    }
    bytes
}

/// Splits bytes into parts of these lengths, repeatedly.
fn parts<'bytes>(bytes: &'bytes [u8], lengths: &[usize]) -> Vec<&'bytes [u8]> {
    let (mut rest, mut all) = (bytes, Vec::new());
    for length in lengths.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let (part, tail) = rest.split_at((*length).clamp(1, rest.len()));
        all.push(part);
        rest = tail;
    }
    all
}

fn demuxed(bytes: &[u8], lengths: &[usize]) -> Result<(Vec<u8>, Option<Format>), NotVideo> {
    let (mut demuxer, mut video) = (Demuxer::new(), Vec::new());
    for part in parts(bytes, lengths) {
        demuxer.push(part, &mut video)?;
        assert!(demuxer.memory() <= PROBE_LENGTH_MAX + part.len());
    }
    demuxer.finish(&mut video)?;
    Ok((video, demuxer.format()))
}

fn cuts(bytes: &[u8], lengths: &[usize]) -> (Vec<Cut>, Vec<u8>) {
    let (mut feed, mut all) = (Feed::default(), Vec::new());
    for part in parts(bytes, lengths) {
        feed.push(part, |cut| all.push(cut));
        let end = feed.end();
        if let Some(cut) = feed.cut() {
            let at = usize::try_from(cut.at).unwrap();
            assert_eq!(feed.since(cut.at), &bytes[at..usize::try_from(end).unwrap()]);
        }
        feed.forget(end, Nanos(u64::MAX));
        assert!(feed.memory() <= 2 * (KEPT_LENGTH_MAX + part.len()));
    }
    (all, feed.headers().to_vec())
}

fn lengths() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(prop_oneof![1_usize..6, 1_usize..400, 1_usize..4_000], 1..6)
}

fn slices() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 1..300)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn the_video_of_each_format_is_the_same_wherever_it_is_cut(
        lengths in lengths(),
        slices in slices(),
        packet in 20_usize..2_000,
        noise in prop::collection::vec(1_u8..0x47, 0..50),
    ) {
        let film = film(4, true, &slices).bytes;
        let streams = [
            (Format::Elementary, film.clone()),
            (Format::Program, program_stream(&film, packet, false)),
            (Format::Program, program_stream(&film, packet, true)),
            (Format::Transport, transport_stream(&film, packet)),
        ];
        for (format, stream) in streams {
            // Joined after bytes that are no stream.
            let stream = [noise.clone(), stream].concat();
            let (video, found) = demuxed(&stream, &lengths).unwrap();
            prop_assert_eq!(found, Some(format));
            prop_assert!(video == film, "{:?}: {} bytes of {}", format, video.len(), film.len());
        }
    }

    #[test]
    fn cuts_and_their_times_are_the_same_wherever_a_stream_is_cut(
        lengths in lengths(),
        slices in slices(),
        all_headers: bool,
    ) {
        let film = film(5, all_headers, &slices);
        let (found, headers) = cuts(&film.bytes, &lengths);
        prop_assert_eq!(found, film.cuts);
        prop_assert_eq!(headers, sequence(3));
    }

    #[test]
    fn a_stream_resynchronises_after_a_gap(
        slices in slices(),
        at in 0.1_f64..0.3,
        length in 1_usize..700,
        by in any::<u8>(),
    ) {
        // A wrong length hides 64 KiB.
        let slices = [&slices[..], &[9; 300]].concat();
        let film = film(60, true, &slices).bytes;
        for stream in [program_stream(&film, 500, false), transport_stream(&film, 500)] {
            let mut broken = stream.clone();
            // After the tables, which are there once.
            let from = (stream.len() as f64 * at) as usize + 2 * 188;
            let until = (from + length).min(stream.len());
            if by % 2 == 0 {
                broken.drain(from..until);
            } else {
                broken[from..until].fill(by);
            }
            let Ok((video, Some(_))) = demuxed(&broken, &[1_000]) else { continue };
            // The last group is unchanged.
            let last = film.len() - film.len() / 60;
            prop_assert!(video.ends_with(&film[last..]));
        }
    }
}

#[test]
fn fields_repeated_fields_and_long_groups_have_their_times() {
    // Two fields of a frame are one picture, whatever kind the second one is.
    let mut bytes = sequence(3);
    for (reference, kind) in [(0, Kind::I), (0, Kind::P), (1, Kind::P), (1, Kind::P)] {
        bytes.extend(picture(reference, kind, if reference % 2 == 0 { 1 } else { 2 }, false, &[1]));
    }
    bytes.extend(code(0xb8));
    bytes.extend([0, 8, 0, 0x40]);
    bytes.extend(picture(0, Kind::I, 1, false, &[1; 20]));
    bytes.extend(picture(0, Kind::I, 2, false, &[1; 20]));
    let (found, _) = cuts(&bytes, &[7]);
    let times: Vec<u64> = found.iter().map(|cut| cut.time.0 / 1_000_000).collect();
    assert_eq!(times, [0, 80], "{found:?}");
    // A repeated field takes half a frame more.
    let mut bytes = sequence(3);
    for (reference, repeats) in [(0, true), (1, false), (2, true), (3, false)] {
        let kind = if reference == 0 { Kind::I } else { Kind::P };
        bytes.extend(picture(reference, kind, 3, repeats, &[1]));
    }
    bytes.extend(code(0xb8));
    bytes.extend([0, 8, 0, 0x40]);
    bytes.extend(picture(0, Kind::I, 3, false, &[1; 20]));
    let (found, _) = cuts(&bytes, &[7]);
    assert_eq!(found[1].time, Nanos(200_000_000));
    // Without groups temporal references wrap around at 1,024.
    let mut bytes = sequence(3);
    for shown in 0..2_500_u16 {
        let kind = if shown % 500 == 0 { Kind::I } else { Kind::P };
        bytes.extend(picture(shown % 1024, kind, 3, false, &[1; 20]));
    }
    let (found, _) = cuts(&bytes, &[1_000]);
    let times: Vec<u64> = found.iter().map(|cut| cut.time.0 / 40_000_000).collect();
    assert_eq!(times, [0, 500, 1_000, 1_500, 2_000]);
}

#[test]
fn streams_without_video_are_refused() {
    let page = b"<html>".repeat(20_000);
    assert_eq!(demuxed(&page, &[1_000]), Err(NotVideo::Format));
    assert_eq!(demuxed(b"", &[1]), Err(NotVideo::Format));
    // Joined in the middle of a large group it is an elementary stream: its next sequence header is
    // beyond the probe length.
    let rows: Vec<u8> =
        (1..=36).flat_map(|row| [&code(row)[..], &[0x55; 3_000]].concat()).collect();
    assert!(rows.len() > PROBE_LENGTH_MAX);
    let found = demuxed(&[&[0x55; 100], &rows[..]].concat(), &[1_000]).unwrap();
    assert_eq!(found, (rows, Some(Format::Elementary)));
    // A transport stream with another coding is reported by its name.
    let mut other = transport_stream(&[1; 2_000], 500);
    for (kind, coding) in [(0x1b, "H.264"), (0x24, "H.265")] {
        let map = &mut other[188..376];
        let at = map.windows(5).position(|five| five[1..] == [0xe1, 0x01, 0xf0, 0]).unwrap();
        map[at] = kind;
        assert_eq!(demuxed(&other, &[100]), Err(NotVideo::Coding { coding }));
    }
    assert_eq!(demuxed(&[0x47; 187], &[1]), Err(NotVideo::Format));
    let mut transcoding = Transcoding::new(params(25));
    transcoding.handle_bytes(&page);
    assert_eq!(transcoding.ended(), Some(End::NotVideo(NotVideo::Format)));
    assert!(!transcoding.wants_bytes());
    // A stream without any cut.
    let mut transcoding = Transcoding::new(params(25));
    transcoding.handle_bytes(&sequence(3));
    for _ in 0..200 {
        transcoding.handle_bytes(&[1; 100_000]);
        assert!(transcoding.memory() < 2 * KEPT_LENGTH_MAX);
    }
    assert_eq!(transcoding.ended(), Some(End::NotVideo(NotVideo::NoPicture)));
    let mut transcoding = Transcoding::new(params(25));
    transcoding.handle_bytes(&sequence(3));
    transcoding.handle_server_end();
    assert_eq!(transcoding.ended(), Some(End::NotVideo(NotVideo::NoPicture)));
}

fn params(rate: u32) -> TranscodeParams {
    TranscodeParams::parse(format!("width=16 height=16 rate={rate} pixels=gray8").as_bytes())
        .unwrap()
}

fn landscape(is_wide: bool) -> TranscodeParams {
    let (width, height) = if is_wide { (32, 16) } else { (16, 32) };
    let text = format!("width={width} height={height} rate=25 pixels=gray8");
    TranscodeParams::parse(text.as_bytes()).unwrap()
}

/// Fake codec that outputs each picture of a film, in presentation order, at 25 a second: a
/// picture's first four bytes are its time.
#[derive(Default)]
struct Codec {
    fed: Vec<u8>,
    given: u64,
    has_ended: bool,
    out: VecDeque<Vec<u8>>,
}

impl Codec {
    /// Takes at most `most` bytes of its input.
    fn run(&mut self, transcoding: &mut Transcoding, id: CodecId, most: usize) {
        let input = transcoding.input(id);
        let part = input[..input.len().min(most)].to_vec();
        self.fed.extend_from_slice(&part);
        transcoding.handle_fed(id, part.len());
        self.has_ended |= transcoding.finishes(id);
        // It was started at an I picture, which it shows first.
        let (mut scanner, mut first) = (Scanner::default(), None);
        scanner.read(0, &self.fed, |cut| first = first.or(Some(cut)));
        let Some(first) = first else { return };
        assert_eq!((first.at, first.has_headers), (0, true));
        let pictures = self.fed.windows(4).filter(|four| **four == [0, 0, 1, 0]).count() as u64;
        // B pictures before the I picture cannot be shown; the last one waits for the next.
        let skipped = first.time.0 / 40_000_000;
        let whole = pictures.saturating_sub(skipped + u64::from(!self.has_ended));
        for _ in self.given..whole {
            self.out.push_back((self.given as u32).to_be_bytes().repeat(128));
            self.given += 1;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Pictures come in the order of time, a change neither drops nor repeats any, and nothing
    /// accumulates, with any speed of server, codecs and client.
    #[test]
    fn one_codec_follows_another_without_a_gap(
        groups in 5_usize..30,
        part in 1_usize..3_000,
        speeds in prop::collection::vec(1_usize..20_000, 3),
        changes in prop::collection::vec(0_usize..100, 0..3),
        late_start in 0_usize..30,
    ) {
        let film = film(groups, true, &[5; 100]);
        let mut transcoding = Transcoding::new(landscape(false));
        let mut codecs: Vec<(CodecId, Codec, usize)> = Vec::new();
        let mut server = film.bytes.chunks(part);
        let (mut pictures, mut round) = (Vec::new(), 0_usize);
        let mut requested = 0_u16;
        while transcoding.ended().is_none() {
            round += 1;
            prop_assert!(round < 200_000, "it ends");
            if changes.contains(&round) {
                requested += 1;
                // Another size with the same number of bytes.
                transcoding.change(landscape(requested % 2 == 1));
            }
            while let Some(effect) = transcoding.poll_effect() {
                match effect {
                    Effect::Start(id, _) => codecs.push((id, Codec::default(), round + late_start)),
                    Effect::Stop(id) => codecs.retain(|(codec, ..)| *codec != id),
                }
            }
            prop_assert!(codecs.len() <= 2);
            if transcoding.wants_bytes() {
                match server.next() {
                    Some(part) => transcoding.handle_bytes(part),
                    None => transcoding.handle_server_end(),
                }
            }
            prop_assert!(transcoding.memory() <= 3 * (KEPT_LENGTH_MAX + AHEAD_LENGTH_MAX));
            let now = Nanos::from_millis(1);
            let mut ended = Vec::new();
            for (id, codec, starts) in &mut codecs {
                if round < *starts {
                    continue;
                }
                codec.run(&mut transcoding, *id, speeds[id.0 as usize % speeds.len()]);
                while transcoding.wants_output(now, *id) {
                    let Some(out) = codec.out.pop_front() else {
                        if codec.has_ended {
                            ended.push(*id);
                        }
                        break;
                    };
                    transcoding.handle_output(now, *id, &out);
                }
            }
            for id in ended {
                transcoding.handle_codec_end(now, id);
            }
            let mut body = Vec::new();
            while transcoding.take(now, &mut body) {}
            let mut rest = &body[..];
            while let Some((header, tail)) = Header::parse(rest) {
                pictures.push(header);
                rest = &tail[header.length as usize..];
            }
        }
        prop_assert_eq!(transcoding.ended(), Some(End::Whole));
        let all = 4 + 6 * (groups as u32 - 1);
        let times: Vec<u32> = pictures.iter().map(|header| header.time_ms).collect();
        let mut unique = times.clone();
        unique.dedup();
        // The new codec may show the last moment once more, with the new parameters.
        prop_assert!(times.len() - unique.len() <= usize::from(requested));
        prop_assert_eq!(unique, (0..all).map(|count| count * 40).collect::<Vec<_>>());
        prop_assert!(pictures.iter().map(|header| header.change).is_sorted());
        prop_assert!(pictures.iter().all(|header| header.flags & LEFT_OUT == 0));
    }
}
