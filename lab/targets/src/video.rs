//! Any bytes as a stream of video, and as a codec's output: results are the same wherever the bytes
//! are cut, and memory is bounded.

use mpeg2::limits::{AHEAD_LENGTH_MAX, KEPT_LENGTH_MAX, PROBE_LENGTH_MAX};
use mpeg2::{CodecId, Cut, Demuxer, Feed, Format, Header, Splitter, TranscodeParams, Transcoding};
use units::Nanos;

/// Findings in a stream.
#[derive(Debug, PartialEq)]
struct Found {
    format: Option<Format>,
    is_video: bool,
    video: Vec<u8>,
    cuts: Vec<Cut>,
    headers: Vec<u8>,
}

pub fn stream(bytes: &[u8]) {
    // The first byte says in how many parts the others come.
    let (first, rest) = bytes.split_first().map_or((0, bytes), |(first, rest)| (*first, rest));
    let whole = found(rest, rest.len().max(1));
    assert_eq!(whole, found(rest, usize::from(first).max(1)));
    assert!(whole.video.len() <= rest.len());
    for cut in &whole.cuts {
        assert!(cut.at < whole.video.len() as u64);
        assert!(cut.has_headers || !whole.headers.is_empty());
    }
    play(rest, usize::from(first).max(1));
}

fn found(bytes: &[u8], part: usize) -> Found {
    let (mut demuxer, mut feed) = (Demuxer::new(), Feed::default());
    let (mut video, mut cuts) = (Vec::new(), Vec::new());
    let mut is_video = true;
    let mut fed = 0;
    let mut push = |video: &[u8], cuts: &mut Vec<Cut>| {
        feed.push(&video[fed..], |cut| cuts.push(cut));
        fed = video.len();
    };
    for part in bytes.chunks(part) {
        is_video = is_video && demuxer.push(part, &mut video).is_ok();
        assert!(demuxer.memory() <= PROBE_LENGTH_MAX + part.len() || !is_video);
        push(&video, &mut cuts);
    }
    is_video = is_video && demuxer.finish(&mut video).is_ok();
    push(&video, &mut cuts);
    let headers = feed.headers().to_vec();
    Found { format: demuxer.format(), is_video, video, cuts, headers }
}

/// Runs a transcoding whose codec returns its input.
fn play(bytes: &[u8], part: usize) {
    let params = |text: &str| TranscodeParams::parse(text.as_bytes()).expect("it is one");
    let mut transcoding = Transcoding::new(params("width=16 height=16 rate=25 pixels=gray8"));
    let now = Nanos::from_millis(1);
    let (mut body, mut codecs) = (Vec::new(), vec![CodecId(0)]);
    for (count, part) in bytes.chunks(part).enumerate() {
        transcoding.handle_bytes(part);
        if count == 2 {
            transcoding.change(params("width=17 height=16 rate=5 pixels=mjpeg quality=3"));
            codecs.push(CodecId(1));
        }
        for id in &codecs {
            let fed = transcoding.input(*id).to_vec();
            transcoding.handle_fed(*id, fed.len());
            if transcoding.wants_output(now, *id) {
                transcoding.handle_output(now, *id, &fed);
            }
        }
        transcoding.take(now, &mut body);
        assert!(transcoding.memory() <= 2 * (KEPT_LENGTH_MAX + AHEAD_LENGTH_MAX) + bytes.len());
    }
    transcoding.handle_server_end();
    let mut rest = &body[..];
    while let Some((header, behind)) = Header::parse(rest) {
        rest = behind.get(header.length as usize..).expect("pictures are whole");
    }
    assert!(rest.is_empty(), "pictures are whole");
}

pub fn pictures(bytes: &[u8]) {
    let (first, rest) = bytes.split_first().map_or((0, bytes), |(first, rest)| (*first, rest));
    for params in [
        "width=16 height=16 rate=1 pixels=rgb24",
        "width=16 height=16 rate=1 pixels=mjpeg quality=2",
    ] {
        let params = TranscodeParams::parse(params.as_bytes()).expect("it is one");
        let whole = split(&params, rest, rest.len().max(1));
        let parts = split(&params, rest, usize::from(first).max(1));
        assert_eq!(whole, parts);
    }
    if let Ok(params) = TranscodeParams::parse(bytes) {
        assert_eq!(TranscodeParams::parse(params.to_string().as_bytes()), Ok(params));
        assert!(params.arguments().iter().all(|argument| !argument.contains(char::is_whitespace)));
    }
}

fn split(params: &TranscodeParams, bytes: &[u8], part: usize) -> Vec<Vec<u8>> {
    let (mut splitter, mut all) = (Splitter::new(params), Vec::new());
    for part in bytes.chunks(part) {
        let mut result = splitter.push(part);
        while result.is_ok() {
            let Some(picture) = splitter.first() else { break };
            all.push(picture.to_vec());
            result = splitter.take();
        }
        if result.is_err() {
            break;
        }
    }
    all
}

/// Returns an I picture of one slice, alone, in a pack, and in packets.
pub fn stream_seeds() -> Vec<Vec<u8>> {
    let video = [
        &[0, 0, 1, 0xb3, 0x16, 0x01, 0x20, 0x23, 0x30, 0xd4, 0, 0][..],
        &[0, 0, 1, 0xb5, 0x14, 0x82, 0, 1, 0, 0],
        &[0, 0, 1, 0xb8, 0, 8, 0, 0x40],
        &[0, 0, 1, 0, 0, 0x0f, 0xff, 0xf8, 0, 0, 1, 0xb5, 0x8f, 0xff, 0xf3, 0x1c, 0x80],
        &[0, 0, 1, 1, 0x22, 0x55, 0x55, 0x55, 0x55],
        &[0, 0, 1, 0, 0, 0x57, 0xff, 0xf8, 0, 0, 1, 1, 0x22, 0x55, 0x55, 0x55, 0x55, 0x55],
    ]
    .concat();
    let mut packed = vec![0, 0, 1, 0xba, 0x44, 0, 4, 0, 4, 1, 0, 0, 3, 0xf8];
    packed.extend([0, 0, 1, 0xe0, 0, video.len() as u8 + 3, 0x81, 0, 0]);
    packed.extend(&video);
    let mut packets = Vec::new();
    let tables: [(u8, u8, &[u8]); 2] = [
        (0, 0, &[0, 0, 0xb0, 13, 0, 1, 0xc1, 0, 0, 0, 1, 0xe1, 0x00, 1, 2, 3, 4]),
        (
            1,
            0,
            &[
                0, 2, 0xb0, 18, 0, 1, 0xc1, 0, 0, 0xe1, 0x01, 0xf0, 0, 2, 0xe1, 1, 0xf0, 0, 1, 2,
                3, 4,
            ],
        ),
    ];
    let mut pes = vec![0, 0, 1, 0xe0, 0, 0, 0x81, 0, 0];
    pes.extend(&video);
    let all = tables.into_iter().chain([(1, 1, &pes[..])]);
    for (high, low, payload) in all.chain([(0x1f, 0xff, &[][..]), (0x1f, 0xff, &[][..])]) {
        packets.extend([0x47, 0x40 | high, low, 0x10]);
        packets.extend(payload.iter().take(184));
        packets.resize(packets.len().next_multiple_of(188), 0xff);
    }
    [video, packed, packets].map(|stream| [vec![7], stream].concat()).into()
}

pub fn picture_seeds() -> Vec<Vec<u8>> {
    let mut jpeg = vec![5, 0xff, 0xd8, 0xff, 0xfe, 0, 4, 0xff, 0xd9, 0xff, 0xda, 0, 2, 9];
    jpeg.extend([0xff, 0, 1, 0xff, 0xd0, 2, 0xff, 0xd9, 0xff, 0xd8, 0xff, 0xd9]);
    vec![jpeg, vec![9; 1_600], b"width=16 height=17 rate=12.5 pixels=mjpeg quality=31".to_vec()]
}
