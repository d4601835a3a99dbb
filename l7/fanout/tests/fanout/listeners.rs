//! Tests with slow, silent, and too many listeners, and with any cuts of the origin's bytes.

use crate::media::{frame, frames, in_a_row, numbers};
use crate::world::{CHUNKED, Ended, LIVE, Server, World, chunk};
use fanout::limits::UNSENT_MAX;
use fanout::{Fanout, Settings};
use l7_testkit::Left;
use proptest::prelude::*;
use reflector::Config;
use std::io::Write;
use std::net::Shutdown;
use std::rc::Rc;
use units::Bytes;

/// Settings with a ring of two seconds, so that slow listeners skip.
fn small() -> Settings {
    let channel = Config { ring_audio: Bytes(32 * 1024), ..Config::default() };
    Settings { channel, ..Settings::default() }
}

#[test]
fn a_slow_listener_skips_whole_frames_without_effect_on_others() {
    let mut world = World::new(small());
    let origin = Server::new();
    let mut quick = world.ask(&origin.get("/live", "HTTP/1.1", ""));
    let mut served = origin.accept(&mut world);
    served.send(&mut world, CHUNKED.as_bytes());
    let mut slow =
        ["HTTP/1.1", "HTTP/1.0"].map(|version| world.ask_slowly(&origin.get("/live", version, "")));
    world.until("all of them", |world| (world.stats().listeners == 3).then_some(()));
    let mut number = 0;
    // The kernel's buffers at both ends fill up before a listener skips.
    while world.stats().skips < 6 {
        served.send(&mut world, &chunk(&frames(number..number + 8)));
        number += 8;
        world.pass(400);
        quick.read();
        assert!(number < 40_000, "{:?}", world.stats());
    }
    served.send(&mut world, b"0\r\n\r\n");
    drop(served);
    let response = world.until("all of it", |_| quick.whole());
    assert_eq!(in_a_row(&response.body), 0..number);
    for client in &mut slow {
        let response = world.until("what it took", |_| client.whole());
        let (received, rest) = numbers(&response.body);
        assert_eq!(rest, 0, "whole frames");
        assert!(received.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(received[0] == 0 && received.last() == Some(&(number - 1)));
        let gaps = received.windows(2).filter(|pair| pair[0] + 1 < pair[1]).count();
        assert!(gaps > 0 && received.len() as u64 > number / 50, "{gaps} gaps, {}", received.len());
    }
    assert_eq!(world.stats().stalled, 0);
}

#[test]
fn a_listener_that_takes_nothing_is_reset_and_costs_little() {
    let mut world = World::new(small());
    let origin = Server::new();
    let mut quick = world.ask(&origin.get("/live", "HTTP/1.1", ""));
    let mut served = origin.accept(&mut world);
    served.send(&mut world, CHUNKED.as_bytes());
    let mut dead = world.ask_slowly(&origin.get("/live", "HTTP/1.1", ""));
    world.until("both", |world| (world.stats().listeners == 2).then_some(()));
    let mut number = 0;
    while world.stats().stalled == 0 {
        served.send(&mut world, &chunk(&frames(number..number + 8)));
        number += 8;
        world.pass(400);
        quick.read();
        assert!(number < 40_000, "{:?}", world.stats());
    }
    let stats = world.stats();
    assert_eq!((stats.listeners, stats.stalled), (1, 1));
    // The kernel doubles the requested buffer size, and the client's end has some KiB.
    let taken = stats.bytes_out.0 - quick.response().unwrap().body.len() as u64;
    assert!(taken < 3 * UNSENT_MAX as u64, "{taken} bytes for somebody who takes none");
    world.until("a reset", |_| {
        dead.read();
        (dead.end == Some(Ended::Reset)).then_some(())
    });
    assert_eq!(in_a_row(&quick.response().unwrap().body).start, 0);
}

#[test]
fn a_half_closed_client_may_listen_and_one_that_sends_too_much_is_reset() {
    let mut world = World::new(Settings::default());
    let origin = Server::new();
    let mut quiet = world.ask(&origin.get("/live", "HTTP/1.1", ""));
    let mut loud = world.ask(&origin.get("/live", "HTTP/1.1", ""));
    let mut pipelines = world.ask(&origin.get("/live", "HTTP/1.1", "").repeat(3));
    let mut served = origin.accept(&mut world);
    world.until("all of them", |world| (world.stats().listeners == 3).then_some(()));
    quiet.stream.shutdown(Shutdown::Write).unwrap();
    world.pass(100);
    served.send(&mut world, LIVE.as_bytes());
    served.send(&mut world, &frames(0..20));
    world.until("frames", |_| loud.body(417));
    let input = [b'x'; 17 * 1024];
    loud.stream.write_all(&input).unwrap();
    world.until("a reset", |_| {
        loud.read();
        (loud.end == Some(Ended::Reset)).then_some(())
    });
    served.send(&mut world, &frames(20..40));
    drop(served);
    for client in [&mut quiet, &mut pipelines] {
        let response = world.until("all of it", |_| client.whole());
        assert_eq!(in_a_row(&response.body), 0..40);
        assert_eq!(client.end, Some(Ended::Closed), "and no reset");
    }
}

#[test]
fn requests_beyond_the_limits_are_refused_and_may_be_repeated() {
    let channels = Settings { channels_max: 1, ..Settings::default() };
    let payload = Settings { payload_max: Bytes(12 * 1024 * 1024), ..Settings::default() };
    let listeners = Settings { listeners_max: 1, ..Settings::default() };
    for (settings, target) in [(channels, "/b"), (payload, "/b"), (listeners, "/a")] {
        let mut world = World::new(settings);
        let origin = Server::new();
        let first = world.ask(&origin.get("/a", "HTTP/1.1", ""));
        let served = origin.accept(&mut world);
        let mut second = world.ask(&origin.get(target, "HTTP/1.1", ""));
        let response = world.until("an answer", |_| second.whole());
        assert_eq!((response.head.status(), response.field("Retry-After")), (503, Some("10")));
        assert_eq!((world.stats().refused, world.stats().listeners), (1, 1));
        // A client that gets nothing and leaves is noticed by its reset.
        rustix::net::sockopt::set_socket_linger(&first.stream, Some(std::time::Duration::ZERO))
            .unwrap();
        drop((first, served));
        world.until("room", |world| (world.stats().channels == 0).then_some(()));
        let _third = world.ask(&origin.get(target, "HTTP/1.1", ""));
        origin.accept(&mut world);
        assert_eq!((world.stats().refused, world.stats().listeners), (1, 1));
    }
}

#[test]
fn payload_is_charged_to_the_services_account() {
    const VIDEO: u64 = 8 << 20;
    const AUDIO: u64 = 1 << 20;
    let left = Rc::new(Left::new(VIDEO + VIDEO / 2));
    let mut world = World::of(Fanout::new(Settings::default()).paid(Rc::clone(&left) as _));
    let origin = Server::new();
    let mut first = world.ask(&origin.get("/a", "HTTP/1.1", ""));
    let mut served = origin.accept(&mut world);
    // Until the kind of media is known.
    assert_eq!(left.0.get(), VIDEO / 2);
    let mut second = world.ask(&origin.get("/b", "HTTP/1.1", ""));
    let response = world.until("an answer", |_| second.whole());
    assert_eq!((response.head.status(), world.stats().refused), (503, 1));
    served.send(&mut world, LIVE.as_bytes());
    served.send(&mut world, &frames(0..4));
    world.until("a frame", |_| first.body(417));
    assert_eq!(left.0.get(), VIDEO + VIDEO / 2 - AUDIO);
    let _third = world.ask(&origin.get("/b", "HTTP/1.1", ""));
    origin.accept(&mut world);
    assert_eq!((left.0.get(), world.stats().channels), (VIDEO / 2 - AUDIO, 2));
    drop(world);
    assert_eq!(left.0.get(), VIDEO + VIDEO / 2, "nothing is left");
}

#[test]
fn small_segments_are_batched() {
    let mut world = World::new(Settings::default());
    let origin = Server::new();
    let mut client = world.ask(&origin.get("/live", "HTTP/1.1", ""));
    let mut served = origin.accept(&mut world);
    served.send(&mut world, LIVE.as_bytes());
    let mut all = frames(0..4);
    served.send(&mut world, &all);
    world.until("the first frame at once", |_| client.body(417));
    world.pass(1_100);
    for number in 4..40 {
        all.extend(frame(number));
        served.send(&mut world, &frame(number));
        world.pass(50);
    }
    drop(served);
    let response = world.until("all of it", |_| client.whole());
    assert!(response.body == all, "all of it");
    // One chunk per send: 36 frames in 1.8 s.
    let chunks = client.wire.windows(3).filter(|bytes| *bytes == b"\r\n\xff").count();
    assert!((3..=10).contains(&chunks), "{chunks} sends");
}

#[test]
fn an_origin_faster_than_all_listeners_waits_for_the_fastest() {
    let mut world = World::new(small());
    let origin = Server::new();
    let mut client = world.ask_slowly(&origin.get("/file", "HTTP/1.1", ""));
    let mut served = origin.accept(&mut world);
    served.send(&mut world, CHUNKED.as_bytes());
    let file = frames(0..4_000);
    let wire = [chunk(&file), b"0\r\n\r\n".to_vec()].concat();
    let mut rest = wire.as_slice();
    // The client takes at most 2 KiB a millisecond, of 1.6 MiB through a ring of 32 KiB.
    let response = world.until("all of it", |_| {
        rest = served.send_now(rest);
        client.read_some(2 * 1024);
        if rest.is_empty() { client.whole() } else { None }
    });
    assert_eq!(world.stats().skips, 0);
    assert!(response.body == file, "all of it");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// All listeners receive the same bytes, wherever the origin's are cut and however they are
    /// framed.
    #[test]
    fn listeners_get_the_same_wherever_the_origins_bytes_are_cut(
        parts in proptest::collection::vec(1_usize..3_000, 1..40),
        is_chunked in any::<bool>(),
        seconds in proptest::collection::vec(0_usize..40, 3),
    ) {
        let mut world = World::new(Settings::default());
        let origin = Server::new();
        let mut first = world.ask(&origin.get("/live", "HTTP/1.1", ""));
        let mut served = origin.accept(&mut world);
        let media = frames(0..60);
        let (mut wire, mut rest) = (Vec::new(), media.as_slice());
        let mut lengths = parts.iter().cycle();
        if is_chunked {
            wire.extend_from_slice(CHUNKED.as_bytes());
            while !rest.is_empty() {
                let (part, tail) = rest.split_at((*lengths.next().unwrap()).min(rest.len()));
                wire.extend(chunk(part));
                rest = tail;
            }
            wire.extend_from_slice(b"0\r\n\r\n");
        } else {
            wire.extend_from_slice(LIVE.as_bytes());
            wire.extend_from_slice(&media);
        }
        let mut others = Vec::new();
        let mut rest = wire.as_slice();
        let mut sends = 0;
        while !rest.is_empty() {
            if seconds.contains(&sends) {
                let version = if sends % 2 == 0 { "HTTP/1.0" } else { "HTTP/1.1" };
                others.push(world.ask(&origin.get("/live", version, "")));
                world.pass(50);
            }
            let (part, tail) = rest.split_at((*lengths.next().unwrap()).min(rest.len()));
            served.send(&mut world, part);
            world.pass(50);
            (rest, sends) = (tail, sends + 1);
        }
        drop(served);
        let response = world.until("all of it", |_| first.whole());
        prop_assert!(response.body == media, "all of it");
        for client in &mut others {
            let response = world.until("all of it", |_| client.whole());
            let received = in_a_row(&response.body);
            prop_assert_eq!(received, 0..60, "less than a burst: from the beginning");
        }
        prop_assert_eq!(world.stats().origins_opened, 1);
    }
}
