//! Tests of all events of an origin, and their effects on listeners.

mod common;

use common::{Media, Segment};
use http1::Framing;
use reflector::limits::{ANSWER_LENGTH_MAX, HEAD_WAIT_MAX, RECONNECT_MAX, SILENCE_MAX, STABLE};
use reflector::{Ending, JoinError, ListenerId, NotLive, Wants};
use units::Bytes;

const RING: u64 = 1024 * 1024;
const MP3: (&str, &str) = ("Content-Type", "audio/mpeg");

#[test]
fn the_end_of_the_origin_comes_behind_what_is_there() {
    let mut run = Segment::live(RING, Media::Mp3);
    run.join(1, Wants::Media);
    run.bytes(&Media::Mp3.frames(0..10));
    run.take_all(1);
    run.bytes(&Media::Mp3.frame(10)[..100]);
    run.end();
    let late = run.channel.handle_join(run.now, ListenerId(9), Wants::Media);
    assert_eq!(late, Err(JoinError::Ending));
    for id in [0, 1] {
        assert_eq!(run.of(id).ending, None);
        run.take_all(id);
        assert_eq!(Media::Mp3.numbers(&run.of(id).bytes), ((0..10).collect(), 0));
        assert_eq!(run.of(id).ending, Some(Ending::Complete));
    }
    assert!(run.channel.is_over() && run.opened == 1);
    assert_eq!(run.channel.counters().bytes_left_out, Bytes(100));
}

#[test]
fn a_redirect_or_an_error_goes_to_everybody_who_waits_as_it_is() {
    for (status, body) in [(302, &b""[..]), (404, b"no such mount"), (503, b"full")] {
        let mut run = Segment::new(RING);
        run.join(0, Wants::Media);
        run.join(1, Wants::Titles);
        let framing = Framing::Length(body.len() as u64);
        run.framed_head(status, &[("Location", "/b"), ("Retry-After", "3")], framing);
        let late = run.channel.handle_join(run.now, ListenerId(9), Wants::Media);
        assert_eq!(late, Err(JoinError::Ending));
        run.bytes(body);
        run.end();
        for id in [0, 1] {
            run.take_all(id);
            let received = run.of(id);
            let head = received.head.as_ref().unwrap();
            assert_eq!((head.status(), received.bytes.as_slice()), (status, body));
            assert_eq!(head.headers.get(b"Location"), Some(&b"/b"[..]));
            assert_eq!(received.ending, Some(Ending::Complete));
        }
        assert!(run.channel.is_over());
    }
}

#[test]
fn an_answer_without_end_is_cut() {
    let mut run = Segment::new(RING);
    run.join(0, Wants::Media);
    run.head(500, &[]);
    run.bytes(&vec![0; ANSWER_LENGTH_MAX]);
    run.bytes(b"x");
    run.take_all(0);
    assert_eq!(run.of(0).ending, Some(Ending::OriginLost));
    assert!(!run.is_open && run.channel.is_over());
}

#[test]
fn an_unreachable_origin_is_a_bad_gateway() {
    let mut run = Segment::new(RING);
    run.join(0, Wants::Media);
    run.join(1, Wants::Media);
    run.reset();
    for id in [0, 1] {
        assert_eq!(run.of(id).head.as_ref().unwrap().status(), 502);
        assert_eq!(run.of(id).ending, Some(Ending::Complete));
    }
    let mut run = Segment::new(RING);
    run.join(0, Wants::Media);
    run.pass(HEAD_WAIT_MAX.as_millis());
    assert_eq!(run.of(0).head.as_ref().unwrap().status(), 504);
    assert!(!run.is_open && run.channel.is_over());
}

#[test]
fn a_response_that_is_not_live_goes_to_the_first_and_the_others_ask_alone() {
    let mut run = Segment::new(RING);
    for id in 0..3 {
        run.join(id, Wants::Media);
    }
    run.framed_head(200, &[MP3], Framing::Length(9));
    let why = Some(NotLive::LengthKnown { length: 9 });
    assert_eq!((run.of(0).passed, run.of(1).alone, run.of(2).alone), (why, why, why));
    assert!(run.channel.is_over());
    // No listener asked for the titles in the stream.
    let mut run = Segment::new(RING);
    run.join(0, Wants::Media);
    run.head(200, &[MP3, ("icy-metaint", "8192"), ("Set-Cookie", "a=b")]);
    assert_eq!((run.of(0).passed, run.of(0).alone), (None, Some(NotLive::SetCookie)));
    assert!(!run.is_open);
    // The first listener has left meanwhile.
    let mut run = Segment::new(RING);
    run.join(0, Wants::Media);
    run.join(1, Wants::Media);
    run.leave(0);
    run.head(200, &[("Content-Type", "text/html")]);
    assert_eq!(run.of(1).passed, Some(NotLive::NotMedia));
}

#[test]
fn a_lost_origin_is_tried_again_and_frames_stay_whole() {
    let mut run = Segment::live(RING, Media::Mp3);
    run.bytes(&Media::Mp3.frames(0..10));
    run.bytes(&Media::Mp3.frame(10)[..200]);
    run.reset();
    run.take_all(0);
    assert_eq!(Media::Mp3.numbers(&run.of(0).bytes), ((0..10).collect(), 0));
    assert!(!run.is_open);
    run.pass(300);
    assert!(run.is_open && run.opened == 2);
    // The server's source is not connected yet.
    run.framed_head(404, &[], Framing::Length(3));
    assert!(!run.is_open);
    run.join(1, Wants::Media);
    run.pass(600);
    run.head(200, &[MP3]);
    run.bytes(&Media::Mp3.frame(499)[50..]);
    run.bytes(&Media::Mp3.frames(500..520));
    run.take_all(0);
    run.take_all(1);
    let expected: Vec<u64> = (0..10).chain(500..519).collect();
    assert_eq!(Media::Mp3.numbers(&run.of(0).bytes), (expected.clone(), 0));
    assert_eq!(Media::Mp3.numbers(&run.of(1).bytes), (expected, 0));
    assert_eq!(run.channel.counters().reconnects, 1);
}

#[test]
fn an_origin_that_does_not_come_back_ends_all() {
    let mut run = Segment::live(RING, Media::Mp3);
    run.join(1, Wants::Media);
    run.bytes(&Media::Mp3.frames(0..10));
    run.reset();
    run.take_all(0);
    let mut passed = 0;
    while passed < RECONNECT_MAX.as_millis() {
        if run.is_open {
            run.reset();
        }
        run.take(1, 1);
        run.pass(50);
        passed += 50;
    }
    run.take_all(0);
    assert_eq!(run.of(0).ending, Some(Ending::OriginLost));
    assert!((8..16).contains(&run.opened), "it pauses longer each time: {}", run.opened);
    assert_eq!(run.of(1).ending, None);
    run.take_all(1);
    assert_eq!(Media::Mp3.numbers(&run.of(1).bytes).0.len(), 10);
    assert_eq!(run.of(1).ending, Some(Ending::OriginLost));
    assert!(run.channel.is_over());
}

#[test]
fn an_origin_that_is_silent_is_lost() {
    let mut run = Segment::live(RING, Media::Mp3);
    run.bytes(&Media::Mp3.frames(0..10));
    run.take_all(0);
    run.pass(SILENCE_MAX.as_millis() - 1);
    assert_eq!(run.opened, 1);
    run.pass(1);
    assert!(!run.is_open);
    run.pass(250);
    assert_eq!(run.opened, 2);
}

#[test]
fn another_content_type_ends_all() {
    for answer in [&[("Content-Type", "audio/aac")][..], &[MP3, ("Set-Cookie", "a=b")]] {
        let mut run = Segment::live(RING, Media::Mp3);
        run.bytes(&Media::Mp3.frames(0..10));
        run.reset();
        run.pass(300);
        run.head(200, answer);
        assert!(!run.is_open);
        run.take_all(0);
        assert_eq!(run.of(0).bytes.len(), Media::Mp3.frames(0..10).len());
        assert_eq!(run.of(0).ending, Some(Ending::OriginChanged));
    }
}

#[test]
fn events_of_a_connection_that_was_closed_change_nothing() {
    let mut run = Segment::live(RING, Media::Mp3);
    let old = run.connection;
    run.bytes(&Media::Mp3.frames(0..10));
    run.take_all(0);
    run.pass(SILENCE_MAX.as_millis());
    run.pass(250);
    run.take_all(0);
    run.head(200, &[MP3]);
    run.channel.handle_upstream_bytes(run.now, old, &Media::Mp3.frames(10..20));
    run.channel.handle_upstream_end(run.now, old);
    run.channel.handle_upstream_failed(run.now, old, reflector::Failure::Connect);
    run.poll();
    assert!(run.is_open);
    assert_eq!(run.take(0, 1_000), 0);
}

#[test]
fn a_response_passed_to_a_listener_that_left_is_closed() {
    let mut run = Segment::new(RING);
    run.join(0, Wants::Media);
    let head = common::head(200, &[("Content-Type", "text/html")]);
    run.channel.handle_upstream_head(run.now, run.connection, &head, Framing::UntilClose);
    run.leave(0);
    assert!(!run.is_open && run.channel.is_over());
}

#[test]
fn pauses_are_short_again_after_a_stable_connection() {
    let mut run = Segment::live(RING, Media::Mp3);
    let pause = |run: &mut Segment| {
        run.reset();
        let before = run.now;
        let at = run.channel.poll_timeout().unwrap();
        run.pass(at.saturating_sub(before).as_millis());
        run.head(200, &[MP3]);
        at.saturating_sub(before).as_millis()
    };
    assert_eq!(pause(&mut run), 250);
    run.bytes(&Media::Mp3.frames(0..10));
    assert_eq!(pause(&mut run), 500);
    run.pass(STABLE.as_millis());
    run.bytes(&Media::Mp3.frames(10..20));
    assert_eq!(pause(&mut run), 250);
}
