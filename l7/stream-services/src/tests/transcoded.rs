//! Tests of video that its module gets as pictures, by real codecs: compared with ffmpeg's own
//! output for the same conversion.

use super::codecs::{Ffmpeg, Source, ffmpeg, has_ffmpeg, pictures, source};
use super::lab::{Lab, Peer, module, vm_spec};
use crate::TRANSCODE;
use mpeg2::{Header, LEFT_OUT, TranscodeParams};
use std::rc::Rc;
use std::time::Duration;

const SMALL: &str = "width=160 height=120 rate=10 pixels=rgb24";
const GRAY: &str = "width=97 height=61 rate=25 pixels=gray8";
const JPEG: &str = "width=160 height=120 rate=5 pixels=mjpeg quality=5";

/// Module code that calls the function with the text at an address, and logs status and result.
const ASK: &str = "
    (i32.store8 (i32.const 0x200) (i32.add (i32.const 48)
        (call $proxy_call_foreign_function (i32.const 0x100) (i32.const 18)
            (i32.const {place}) (i32.const {length}) (i32.const 0x300) (i32.const 0x304))))
    (drop (call $proxy_log (i32.const 2) (i32.const 0x200) (i32.const 1)))
    (if (i32.eq (i32.load8_u (i32.const 0x200)) (i32.const 48)) (then
        (drop (call $proxy_log (i32.const 2)
            (i32.load (i32.const 0x300)) (i32.load (i32.const 0x304))))))";

fn ask(place: u32, length: usize) -> String {
    ASK.replace("{place}", &place.to_string()).replace("{length}", &length.to_string())
}

/// Returns a module that transcodes every response's body with the parameters `params`. A request
/// with a path of two bytes (`/` and the index of other parameters) changes the first stream, and
/// is answered by the module.
pub(crate) fn transcoding(params: &str, others: &[&str]) -> Vec<u8> {
    let response = format!("{} (i32.const 0)", ask(0x1000, params.len()));
    let mut changes = String::new();
    for (count, other) in others.iter().enumerate() {
        let place = 0x1100 + 0x100 * count as u32;
        changes += &format!(
            "(if (i32.eq (i32.load8_u (i32.add (i32.load (i32.const 0x310)) (i32.const 1)))
                (i32.const {})) (then {}))",
            u32::from(b'0') + count as u32,
            ask(place, other.len())
        );
    }
    let request = format!(
        "(drop (call $proxy_get_header_map_value (i32.const 0) (i32.const 0x150) (i32.const 5)
            (i32.const 0x310) (i32.const 0x314)))
         (if (i32.eq (i32.load (i32.const 0x314)) (i32.const 2)) (then
            (drop (call $proxy_set_effective_context (i32.load (i32.const 0x320))))
            {changes}
            (drop (call $proxy_set_effective_context (local.get 0)))
            (drop (call $proxy_send_local_response (i32.const 200) (i32.const 0) (i32.const 0)
                (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const -1)))
            (return (i32.const 1))))
         (i32.store (i32.const 0x320) (local.get 0))
         (i32.const 0)"
    );
    let mut data: Vec<(u32, &[u8])> =
        vec![(0x100, TRANSCODE.as_bytes()), (0x150, b":path"), (0x1000, params.as_bytes())];
    for (count, other) in others.iter().enumerate() {
        data.push((0x1100 + 0x100 * count as u32, other.as_bytes()));
    }
    module(
        &[
            ("proxy_on_request_headers", &request),
            ("proxy_on_response_headers", &response),
            ("proxy_on_response_body", "(i32.const 0)"),
        ],
        &data,
    )
}

fn head(length: usize) -> String {
    format!(
        "HTTP/1.1 200 OK\r\nContent-Type: video/mpeg\r\nContent-Length: {length}\r\n\
         ETag: \"1\"\r\nAccept-Ranges: bytes\r\n\r\n"
    )
}

/// Decodes the received part of a chunked response body; returns true with it if the body is
/// complete.
pub(crate) fn body(received_bytes: &[u8]) -> (Vec<u8>, bool) {
    let Some(at) = received_bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
        return (Vec::new(), false);
    };
    let (mut rest, mut body) = (&received_bytes[at + 4..], Vec::new());
    while let Some(at) = rest.windows(2).position(|two| two == b"\r\n") {
        let length = std::str::from_utf8(&rest[..at]).unwrap();
        let length = usize::from_str_radix(length, 16).unwrap();
        rest = &rest[at + 2..];
        if length == 0 {
            return (body, true);
        }
        body.extend_from_slice(&rest[..length.min(rest.len())]);
        if rest.len() < length + 2 {
            break;
        }
        rest = &rest[length + 2..];
    }
    (body, false)
}

/// Returns a lab with a client that has sent a request, and the server that it reached.
fn asked(params: &str, others: &[&str], codecs: &Rc<Ffmpeg>) -> (Lab, Peer, Peer) {
    let codecs = Rc::clone(codecs);
    let mut lab = Lab::with_codecs(&transcoding(params, others), vm_spec(), codecs);
    let mut client = lab.client();
    client.send("GET /film HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut server = lab.server();
    lab.until_ends(&mut server, "\r\n\r\n");
    (lab, client, server)
}

/// Passes a complete film at once.
fn whole(params: &str, film: &[u8]) -> (Vec<u8>, Lab, Rc<Ffmpeg>) {
    let codecs = Ffmpeg::new(4);
    let (mut lab, mut client, mut server) = asked(params, &[], &codecs);
    server.send(head(film.len()));
    server.send(film);
    lab.until(&mut [&mut client, &mut server], |peers| {
        peers[0].received_bytes.ends_with(b"0\r\n\r\n") || peers[0].is_over()
    });
    let text = client.text();
    let text = &text[..text.find("\r\n\r\n").unwrap()];
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text} {:?}", lab.events);
    for gone in ["Content-Length", "ETag", "Accept-Ranges"] {
        assert!(!text.contains(gone), "{text}");
    }
    assert!(text.contains("Content-Type: video/mpeg\r\n"), "the module says what it is: {text}");
    let (received_bytes, is_whole) = body(&client.received_bytes);
    assert!(is_whole, "{:?}", lab.events);
    (received_bytes, lab, codecs)
}

#[test]
fn every_picture_of_each_format_is_ffmpegs() {
    if !has_ffmpeg() {
        return;
    }
    for (kind, params) in [
        (Source::Elementary, SMALL),
        (Source::Program, SMALL),
        (Source::Transport, SMALL),
        (Source::Elementary, GRAY),
        (Source::Transport, GRAY),
        (Source::Program, JPEG),
        (Source::Transport, JPEG),
    ] {
        let film = source(kind, "25", 4);
        let (received_bytes, lab, _) = whole(params, &film);
        let wanted = TranscodeParams::parse(params.as_bytes()).unwrap();
        // The file itself, with the demuxer that ffmpeg finds by its extension.
        let expected = ffmpeg(kind, &film, &wanted);
        let received_bytes = pictures(&received_bytes);
        assert_eq!(received_bytes.len(), expected.len(), "{kind:?} {params}");
        for (count, ((header, pixels), expected)) in
            received_bytes.iter().zip(&expected).enumerate()
        {
            assert_eq!(pixels, expected, "{kind:?} {params}: picture {count}");
            let time = wanted.rate.time_of(count as u64).as_millis();
            let (width, height) = (wanted.width, wanted.height);
            let facts = (header.width, header.height, u64::from(header.time_ms));
            assert_eq!(facts, (width, height, time), "{kind:?} {params}: picture {count}");
            assert_eq!((header.flags, header.change), (0, 0));
        }
        let counters = lab.reports.counters();
        assert_eq!((counters.transcoded, counters.pictures), (1, expected.len() as u64));
        assert_eq!(lab.log(), ["0", "started"]);
    }
}

/// Sends a film as it plays: some bytes, then a pause.
fn play(lab: &mut Lab, client: &mut Peer, server: &mut Peer, film: &[u8], parts: usize) {
    for part in film.chunks(film.len().div_ceil(parts)) {
        server.send(part);
        lab.until(&mut [server, client], |peers| peers[0].has_sent());
        lab.skip(Duration::from_millis(40));
        client.step();
        // A codec starts in real time.
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn received_bytes(client: &Peer) -> Vec<(Header, Vec<u8>)> {
    pictures(&body(&client.received_bytes).0)
}

/// Runs until the client has received this many pictures.
fn until_pictures(
    lab: &mut Lab,
    client: &mut Peer,
    server: &mut Peer,
    holds: impl Fn(&[(Header, Vec<u8>)]) -> bool,
) {
    lab.until(&mut [client, server], |peers| holds(&received_bytes(peers[0])));
}

#[test]
fn a_change_while_it_plays_leaves_no_gap() {
    if !has_ffmpeg() {
        return;
    }
    let parameters = [SMALL, GRAY, JPEG];
    let codecs = Ffmpeg::new(1);
    let (mut lab, mut client, mut server) = asked(SMALL, &[GRAY, JPEG], &codecs);
    let film = source(Source::Transport, "25", 8);
    server.send(head(film.len()));
    let (first, rest) = film.split_at(film.len() / 4);
    let (second, third) = rest.split_at(rest.len() / 3);
    play(&mut lab, &mut client, &mut server, first, 50);
    until_pictures(&mut lab, &mut client, &mut server, |all| !all.is_empty());
    for (place, part) in [(0, second), (1, third)] {
        // The device requests other parameters on a connection of its own.
        let mut control = lab.client();
        control.send(format!("GET /{place} HTTP/1.1\r\nHost: a\r\n\r\n"));
        lab.until_ends(&mut control, "\r\n\r\n");
        assert!(lab.log().ends_with(&["0".to_owned(), "changed".to_owned()]), "{:?}", lab.log());
        let wanted = place + 1;
        play(&mut lab, &mut client, &mut server, part, 50);
        until_pictures(&mut lab, &mut client, &mut server, |all| {
            all.iter().any(|(header, _)| header.change == wanted)
        });
    }
    lab.until(&mut [&mut client, &mut server], |peers| {
        peers[0].received_bytes.ends_with(b"0\r\n\r\n")
    });
    let all = received_bytes(&client);
    // Each picture follows its parameters, in the order of requests and of time, and is labelled
    // with them.
    let mut before = (0, 0);
    for (header, pixels) in &all {
        assert!((header.change, header.time_ms) >= before, "{header:?} behind {before:?}");
        assert!(header.time_ms >= before.1, "{header:?} behind {before:?}");
        assert!(header.time_ms - before.1 <= 200, "a gap: {header:?} behind {before:?}");
        before = (header.change, header.time_ms);
        let params =
            TranscodeParams::parse(parameters[usize::from(header.change)].as_bytes()).unwrap();
        assert_eq!((header.width, header.height), (params.width, params.height));
        assert_eq!(header.pixels, Header::number_of(params.pixels));
        assert_eq!(pixels.len(), params.picture_length().unwrap_or(pixels.len()));
        assert_eq!(header.flags, 0, "{header:?}");
    }
    assert_eq!(before.0, 2);
    assert!(before.1 >= 7_500, "the film to its end: {before:?}");
    // The pictures of the second codec are those of one that has decoded the whole film, at the
    // same times.
    let gray = TranscodeParams::parse(GRAY.as_bytes()).unwrap();
    let expected = ffmpeg(Source::Transport, &film, &gray);
    let seconds: Vec<_> = all.iter().filter(|(header, _)| header.change == 1).collect();
    assert!(seconds.len() >= 10, "{}", seconds.len());
    for (header, pixels) in seconds {
        assert_eq!(pixels, &expected[header.time_ms as usize / 40], "{header:?}");
    }
    lab.rest(&mut [&mut client, &mut server]);
    assert!(codecs.children.borrow().is_empty() && codecs.streams() == 0);
}

#[test]
fn a_change_of_a_film_that_comes_faster_than_it_plays_leaves_no_gap() {
    if !has_ffmpeg() {
        return;
    }
    let codecs = Ffmpeg::new(1);
    let (mut lab, mut client, mut server) = asked(SMALL, &[GRAY], &codecs);
    let film = source(Source::Program, "25", 20);
    server.send(head(film.len()));
    server.send(&film);
    until_pictures(&mut lab, &mut client, &mut server, |all| !all.is_empty());
    let mut control = lab.client();
    control.send("GET /0 HTTP/1.1\r\nHost: a\r\n\r\n");
    lab.until(&mut [&mut client, &mut server, &mut control], |peers| {
        peers[0].received_bytes.ends_with(b"0\r\n\r\n") && !peers[2].received_bytes.is_empty()
    });
    let (mut time, mut changes) = (0, 0);
    for (header, _) in received_bytes(&client) {
        assert!(header.time_ms >= time && header.time_ms - time <= 200, "{header:?} behind {time}");
        (time, changes) = (header.time_ms, header.change);
    }
    assert!(time >= 19_500 && changes == 1, "{time} {changes}");
}

#[test]
fn a_slow_client_gets_fewer_pictures_and_never_old_ones() {
    if !has_ffmpeg() {
        return;
    }
    const LARGE: &str = "width=352 height=288 rate=25 pixels=gray8";
    let codecs = Ffmpeg::new(1);
    let wasm = transcoding(LARGE, &[]);
    let mut lab = Lab::with_codecs(&wasm, vm_spec(), Rc::<Ffmpeg>::clone(&codecs));
    let mut client = lab.client();
    client.send("GET /film HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut server = lab.server();
    lab.until_ends(&mut server, "\r\n\r\n");
    let film = source(Source::Elementary, "25", 6);
    server.send(head(film.len()));
    let parts: Vec<&[u8]> = film.chunks(film.len().div_ceil(150)).collect();
    // The client reads everything for a second, nothing for four, then everything again: more than
    // the kernel buffers. The codec takes real time, so that only the client causes delays.
    for (count, part) in parts.iter().enumerate() {
        server.send(part);
        for _ in 0..20 {
            lab.step();
            server.step();
            if !(25..125).contains(&count) {
                client.step();
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        lab.skip(Duration::from_millis(40));
    }
    lab.until(&mut [&mut client, &mut server], |peers| {
        peers[0].received_bytes.ends_with(b"0\r\n\r\n")
    });
    let all = received_bytes(&client);
    let left_out: Vec<_> = all.windows(2).filter(|two| two[1].0.flags == LEFT_OUT).collect();
    assert!(!left_out.is_empty(), "{} pictures", all.len());
    let longest = left_out.iter().map(|two| two[1].0.time_ms - two[0].0.time_ms).max();
    assert!(longest.is_some_and(|longest| longest > 1_000), "{longest:?}");
    for two in all.windows(2) {
        let passed = two[1].0.time_ms - two[0].0.time_ms;
        assert!(passed == 40 || two[1].0.flags == LEFT_OUT, "{two:?}");
    }
    assert!(all.len() < 130, "{}", all.len());
    assert!(all.last().is_some_and(|(header, _)| header.time_ms >= 5_800), "to its end");
}

#[test]
fn a_response_without_video_is_refused_and_its_codec_is_gone() {
    if !has_ffmpeg() {
        return;
    }
    let page = b"<html>no film</html>".repeat(10_000);
    let start = source(Source::Elementary, "25", 1);
    // Valid headers of a film, with garbage for its pictures.
    let mut broken = start[..200].to_vec();
    broken.extend(std::iter::repeat_n(0x55, 300_000));
    for (film, why) in [(&page, "no MPEG-2"), (&b"\0\0\x01".to_vec(), "no MPEG-2"), (&broken, "")] {
        let codecs = Ffmpeg::new(1);
        let (mut lab, mut client, mut server) = asked(SMALL, &[], &codecs);
        server.send(head(film.len()));
        server.send(film);
        lab.until(&mut [&mut client, &mut server], |peers| !peers[0].received_bytes.is_empty());
        let text = client.text();
        if why.is_empty() {
            // A decoder outputs something for any input, but the response must not hang.
            lab.until(&mut [&mut client, &mut server], |peers| {
                peers[0].received_bytes.ends_with(b"0\r\n\r\n") || peers[0].text().contains(" 502 ")
            });
        } else {
            assert!(text.starts_with("HTTP/1.1 502 ") && text.contains(why), "{text}");
            assert_eq!(lab.reports.counters().transcodings_failed, 1);
        }
        lab.rest(&mut [&mut client, &mut server]);
        assert!(codecs.children.borrow().is_empty() && codecs.streams() == 0);
    }
}

#[test]
fn a_missing_or_crashing_codec_is_an_error_response() {
    for program in ["/nonexistent/ffmpeg", "false"] {
        let codecs = Ffmpeg::new(1);
        *codecs.program.borrow_mut() = program.to_owned();
        let (mut lab, mut client, mut server) = asked(SMALL, &[], &codecs);
        server.send(head(100_000));
        server.send([0, 0, 1, 0xb3]);
        lab.until(&mut [&mut client, &mut server], |peers| !peers[0].received_bytes.is_empty());
        assert!(client.text().starts_with("HTTP/1.1 502 "), "{}", client.text());
        lab.rest(&mut [&mut client, &mut server]);
        assert!(codecs.children.borrow().is_empty() && codecs.streams() == 0);
        let is_said = |event: &crate::Event| matches!(event, crate::Event::Warning(text) if text.contains("a codec has ended"));
        assert!(program == "false" || lab.events.iter().any(is_said), "{:?}", lab.events);
    }
}

#[test]
fn a_killed_codec_truncates_its_stream() {
    if !has_ffmpeg() {
        return;
    }
    let codecs = Ffmpeg::new(1);
    let (mut lab, mut client, mut server) = asked(SMALL, &[], &codecs);
    let film = source(Source::Elementary, "25", 4);
    server.send(head(film.len()));
    server.send(&film[..film.len() / 2]);
    until_pictures(&mut lab, &mut client, &mut server, |all| all.len() > 3);
    codecs.children.borrow_mut().values_mut().for_each(|child| child.kill().unwrap());
    lab.until(&mut [&mut client, &mut server], |peers| peers[0].is_over());
    assert!(!client.received_bytes.ends_with(b"0\r\n\r\n"), "it does not pass for whole");
    lab.rest(&mut [&mut server]);
    assert!(codecs.children.borrow().is_empty() && codecs.streams() == 0);
}

#[test]
fn a_stream_beyond_the_limit_is_refused_and_a_free_share_is_reused() {
    if !has_ffmpeg() {
        return;
    }
    let codecs = Ffmpeg::new(1);
    let (mut lab, mut client, mut server) = asked(SMALL, &[], &codecs);
    let film = source(Source::Elementary, "25", 2);
    server.send(head(film.len()));
    server.send(&film[..film.len() / 2]);
    until_pictures(&mut lab, &mut client, &mut server, |all| !all.is_empty());
    let mut second = lab.client();
    second.send("GET /film HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut other = lab.server();
    other.send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody");
    lab.until_ends(&mut second, "body");
    assert_eq!(lab.log(), ["0", "started", "0", "refused busy there are too many"]);
    assert_eq!(lab.reports.counters().transcodings_refused, 1);
    // The first client leaves; its codec ends, and its share is free.
    super::lab::reset(client);
    lab.until(&mut [&mut server], |peers| peers[0].is_over());
    assert!(codecs.children.borrow().is_empty() && codecs.streams() == 0);
    second.received_bytes.clear();
    second.send("GET /film HTTP/1.1\r\nHost: a\r\n\r\n");
    lab.rest(&mut [&mut second, &mut other]);
    other.send(head(film.len()));
    other.send(&film);
    lab.until(&mut [&mut second, &mut other], |peers| {
        peers[0].received_bytes.ends_with(b"0\r\n\r\n")
    });
    assert!(!received_bytes(&second).is_empty());
}

#[test]
fn a_response_that_was_held_may_still_become_pictures() {
    if !has_ffmpeg() {
        return;
    }
    // The head is held until a tick, in whose call the pictures begin.
    let tick = format!(
        "(drop (call $proxy_set_effective_context (i32.load (i32.const 0x320))))
         {}
         (drop (call $proxy_continue_stream (i32.const 1)))
         (call $proxy_set_tick_period_milliseconds (i32.const 0))",
        ask(0x1000, SMALL.len())
    );
    let wasm = module(
        &[
            ("proxy_on_vm_start", "(i32.const 1)"),
            ("proxy_on_request_headers", "(i32.const 0)"),
            (
                "proxy_on_response_headers",
                "(i32.store (i32.const 0x320) (local.get 0))
                 (drop (call $proxy_set_tick_period_milliseconds (i32.const 10)))
                 (i32.const 1)",
            ),
            ("proxy_on_response_body", "(i32.const 0)"),
            ("proxy_on_tick", &tick),
        ],
        &[(0x100, TRANSCODE.as_bytes()), (0x1000, SMALL.as_bytes())],
    );
    let codecs = Ffmpeg::new(1);
    let mut lab = Lab::with_codecs(&wasm, vm_spec(), Rc::<Ffmpeg>::clone(&codecs));
    let mut client = lab.client();
    client.send("GET /film HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut server = lab.server();
    let film = source(Source::Elementary, "25", 1);
    lab.until_ends(&mut server, "\r\n\r\n");
    server.send(head(film.len()));
    server.send(&film);
    lab.rest(&mut [&mut client, &mut server]);
    assert!(client.received_bytes.is_empty());
    lab.skip(Duration::from_millis(20));
    lab.until(&mut [&mut client, &mut server], |peers| {
        peers[0].received_bytes.ends_with(b"0\r\n\r\n")
    });
    assert_eq!(received_bytes(&client).len(), 10);
    assert_eq!(lab.log(), ["0", "started"]);
}

#[test]
fn responses_that_cannot_be_transcoded_are_reported_and_pass() {
    let bodiless = "HTTP/1.1 204 No Content\r\n\r\n";
    let codecs = Ffmpeg::new(1);
    let (mut lab, mut client, mut server) = asked(SMALL, &[], &codecs);
    server.send(bodiless);
    lab.until_ends(&mut client, "\r\n\r\n");
    assert_eq!(client.text(), bodiless);
    assert_eq!(lab.log(), ["0", "refused not-video the response has no body"]);
    // Invalid parameters, and a context without a response.
    let (mut lab, mut client, mut server) = asked("width=1", &[SMALL], &codecs);
    server.send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody");
    lab.until_ends(&mut client, "body");
    client.send("GET /0 HTTP/1.1\r\nHost: a\r\n\r\n");
    lab.rest(&mut [&mut client]);
    assert_eq!(lab.log(), ["2", "2"]);
    // Without the grant the function does not exist.
    let wasm = transcoding(SMALL, &[]);
    let mut lab = Lab::granted(&wasm, vm_spec(), crate::Capabilities::default());
    let mut client = lab.client();
    client.send("GET /film HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut server = lab.server();
    server.send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody");
    lab.until_ends(&mut client, "body");
    assert_eq!(lab.log(), ["1"]);
    assert_eq!(codecs.streams(), 0);
}
