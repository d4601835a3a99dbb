//! Tests of `services/transcode` with real codecs: a device gets the output of ffmpeg for the same
//! conversion, packed.

use super::codecs::{Ffmpeg, Source, ffmpeg, has_ffmpeg, source};
use super::lab::{Lab, Peer, transcode, vm_spec};
use super::transcoded::body;
use mpeg2::TranscodeParams;
use std::rc::Rc;
use std::time::Duration;

/// Checked fields of a frame's head (docs/guides/transcode.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    size: (u16, u16),
    palette: u8,
    time_ms: u32,
    change: u16,
}

/// Returns the complete frames in the received bytes.
fn frames(received_bytes: &[u8]) -> Vec<(Head, Vec<u8>)> {
    let (body, _) = body(received_bytes);
    let (mut rest, mut frames) = (&body[..], Vec::new());
    while let Some((head, tail)) = rest.split_first_chunk::<20>() {
        assert_eq!(head[..2], *b"TF");
        let two = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
        let four = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
        let Some(pixels) = tail.get(..four(12) as usize) else { break };
        let size = (two(2), two(4));
        let head = Head { size, palette: head[6], time_ms: four(8), change: two(16) };
        frames.push((head, pixels.to_vec()));
        rest = &tail[pixels.len()..];
    }
    frames
}

fn lab(most: usize) -> (Lab, Rc<Ffmpeg>) {
    let codecs = Ffmpeg::new(most);
    (Lab::with_codecs(transcode(), vm_spec(), Rc::clone(&codecs) as _), codecs)
}

/// Returns a device that has sent a request, and the server that it reached.
fn asked(lab: &mut Lab, settings: &str) -> (Peer, Peer) {
    let mut client = lab.client();
    client.send(format!("GET /film.mpg?{settings}&a=1 HTTP/1.1\r\nHost: a\r\n\r\n"));
    let mut server = lab.server();
    lab.until_ends(&mut server, "\r\n\r\n");
    let request = server.text();
    assert!(request.starts_with("GET /film.mpg?a=1 HTTP/1.1\r\n"), "{request}");
    (client, server)
}

fn answer(server: &mut Peer, film: &[u8]) {
    let length = film.len();
    server.send(format!(
        "HTTP/1.1 200 OK\r\nContent-Type: video/mpeg\r\nContent-Length: {length}\r\n\r\n"
    ));
}

/// Returns a field of a response's head.
fn field(text: &str, name: &str) -> String {
    let mut lines = text.lines().filter_map(|line| line.split_once(": "));
    let found = lines.find(|(field, _)| field.eq_ignore_ascii_case(name));
    found.unwrap_or_else(|| panic!("no {name} in {text}")).1.to_owned()
}

#[test]
fn frames_are_ffmpegs_output_packed_for_the_display() {
    if !has_ffmpeg() {
        return;
    }
    for kind in [Source::Elementary, Source::Program, Source::Transport] {
        let (mut lab, _) = lab(1);
        let settings =
            "tamandua-size=98x61&tamandua-rate=25&tamandua-palette=bw&tamandua-dither=none";
        let (mut client, mut server) = asked(&mut lab, settings);
        let film = source(kind, "25", 4);
        answer(&mut server, &film);
        server.send(&film);
        lab.until(&mut [&mut client, &mut server], |peers| {
            peers[0].received_bytes.ends_with(b"0\r\n\r\n") || peers[0].is_over()
        });
        let text = client.text();
        assert_eq!(field(&text, "content-type"), "application/x-tamandua-frames");
        assert_eq!(field(&text, "tamandua-stream").len(), 32);
        let params = TranscodeParams::parse(b"width=98 height=61 rate=25 pixels=gray8").unwrap();
        let expected = ffmpeg(kind, &film, &params);
        let frames = frames(&client.received_bytes);
        assert_eq!(frames.len(), expected.len(), "{kind:?}: {:?}", lab.events);
        for (count, ((head, packed), pixels)) in frames.iter().zip(&expected).enumerate() {
            let time_ms = 40 * u32::try_from(count).unwrap();
            let same = Head { size: (98, 61), palette: 1, time_ms, change: 0 };
            assert_eq!(*head, same, "{kind:?}");
            let rows = pixels.chunks(98).flat_map(|row| {
                row.chunks(8).map(|eight| {
                    let bits = eight.iter().enumerate();
                    bits.fold(0, |byte, (at, grey)| byte | u8::from(*grey > 127) << (7 - at))
                })
            });
            assert_eq!(*packed, rows.collect::<Vec<u8>>(), "{kind:?}: picture {count}");
        }
    }
}

#[test]
fn a_device_changes_its_stream_while_it_plays() {
    if !has_ffmpeg() {
        return;
    }
    let (mut lab, codecs) = lab(1);
    let (mut client, mut server) = asked(&mut lab, "tamandua-size=160x120&tamandua-rate=25");
    let film = source(Source::Transport, "25", 8);
    answer(&mut server, &film);
    let mut parts = film.chunks(film.len().div_ceil(200));
    let mut play = |lab: &mut Lab, client: &mut Peer, count: usize| {
        for part in parts.by_ref().take(count) {
            server.send(part);
            lab.until(&mut [&mut server, client], |peers| peers[0].has_sent());
            lab.skip(Duration::from_millis(40));
            // A codec takes real time.
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    play(&mut lab, &mut client, 50);
    lab.until(&mut [&mut client], |peers| !frames(&peers[0].received_bytes).is_empty());
    let id = field(&client.text(), "tamandua-stream");
    for (change, settings, size, palette) in [
        (1, "tamandua-size=64x48", (64, 48), 3),
        (2, "tamandua-palette=rgb565", (64, 48), 7),
        (3, "tamandua-dither=floyd", (64, 48), 7),
    ] {
        let mut control = lab.client();
        control.send(format!(
            "POST /tamandua/control?tamandua-stream={id}&{settings} HTTP/1.1\r\nHost: a\r\n\
             Content-Length: 0\r\n\r\n"
        ));
        lab.until_ends(&mut control, "}\n");
        let text = control.text();
        assert!(
            text.starts_with("HTTP/1.1 200 ") && text.contains(&format!("\"change\":{change}")),
            "{text}"
        );
        play(&mut lab, &mut client, 48);
        lab.until(&mut [&mut client], |peers| {
            frames(&peers[0].received_bytes).last().is_some_and(|(head, _)| head.change == change)
        });
        let all = frames(&client.received_bytes);
        let (last, _) = all.last().unwrap();
        assert_eq!((last.size, last.palette), (size, palette));
    }
    let all = frames(&client.received_bytes);
    for two in all.windows(2) {
        let (before, after) = (two[0].0, two[1].0);
        assert!(after.change >= before.change, "{after:?} behind {before:?}");
        // The first frame after a change may repeat the last one before it, in its new form.
        let is_newer = after.time_ms >= before.time_ms + u32::from(after.change == before.change);
        assert!(is_newer, "{after:?} behind {before:?}");
        assert!(after.time_ms - before.time_ms <= 200, "a gap: {after:?} behind {before:?}");
    }
    for (head, packed) in &all {
        let length = match head.change {
            0 => 160 * 120 / 2,
            1 => 64 * 48 / 2,
            _ => 64 * 48 * 2,
        };
        assert_eq!(packed.len(), length, "{head:?}");
    }
    assert_eq!(codecs.streams(), 1);
}

#[test]
fn a_stream_beyond_the_limit_is_refused_at_once() {
    let (mut lab, _) = lab(0);
    let (mut client, mut server) = asked(&mut lab, "tamandua-rate=5");
    answer(&mut server, &[0; 100]);
    lab.until_ends(&mut client, "}\n");
    let text = client.text();
    assert!(text.starts_with("HTTP/1.1 503 "), "{text}");
    assert_eq!(field(&text, "retry-after"), "10");
    assert!(text.contains("there are too many"), "{text}");
}
