//! Tests of one channel's service to its listeners: joining, skipping, titles, memory.

mod common;

use common::{Media, Segment, interleave, separate};
use reflector::limits::{ICY_INTERVAL, LISTENER_STALL_MAX};
use reflector::{Ending, JoinError, ListenerId, Wants};
use units::{Bytes, Nanos};

const RING: u64 = 1024 * 1024;
const MP3: (&str, &str) = ("Content-Type", "audio/mpeg");

#[test]
fn the_first_opens_the_origin_and_the_last_closes_it() {
    let mut run = Segment::new(RING);
    assert_eq!(run.opened, 0);
    run.join(1, Wants::Media);
    assert!(run.is_open);
    run.join(2, Wants::Titles);
    assert_eq!(run.opened, 1);
    run.head(200, &[MP3]);
    run.bytes(&Media::Mp3.frames(0..10));
    run.leave(1);
    run.take_all(2);
    assert_eq!(Media::Mp3.numbers(&run.of(2).bytes).0, (0..9).collect::<Vec<_>>());
    assert!(run.is_open);
    run.leave(2);
    assert!(!run.is_open && run.channel.is_over());
    assert_eq!(run.channel.poll_timeout(), None);
    assert_eq!(run.channel.memory().payload, Bytes(0));
    let late = run.channel.handle_join(run.now, ListenerId(3), Wants::Media);
    assert_eq!(late, Err(JoinError::Ending));
}

#[test]
fn a_joiner_begins_with_a_whole_frame_four_seconds_ago() {
    let mut run = Segment::live(RING, Media::Mp3);
    run.bytes(&Media::Mp3.frames(0..1_000));
    run.join(1, Wants::Media);
    run.take_all(1);
    let (numbers, rest) = Media::Mp3.numbers(&run.of(1).bytes);
    // 4 s of 26.122 ms: 153.1 frames.
    assert_eq!((numbers[0], numbers.len(), rest), (999 - 154, 154, 0));
    assert_eq!(run.channel.counters().joins_from_ring, 1);
    let (time, bytes) = run.channel.kept();
    assert!(time.unwrap() > Nanos::from_millis(26_000) && bytes > Bytes(416_000));
    let rate = run.channel.bitrate().unwrap().0;
    assert!((127_000..129_000).contains(&rate), "{rate}");
}

#[test]
fn a_listener_behind_by_more_than_the_ring_skips_to_whole_frames_near_the_edge() {
    for already in [0, 1, 100, 417, 418, 1_000] {
        let mut run = Segment::live(64 * 1024, Media::Mp3);
        run.join(1, Wants::Media);
        run.bytes(&Media::Mp3.frames(0..4));
        run.take(0, already);
        run.bytes(&Media::Mp3.frames(4..1_000));
        run.take_all(0);
        let (numbers, rest) = Media::Mp3.numbers(&run.of(0).bytes);
        assert_eq!(rest, 0, "{already}");
        assert_eq!(numbers.last(), Some(&998));
        assert!(numbers.is_sorted() && numbers.len() < 200);
        assert_eq!(numbers.contains(&0), already > 0, "what it had begun is whole");
        assert!(run.channel.counters().skips >= 2);
        assert_eq!(run.of(0).ending, None);
    }
}

#[test]
fn a_stalled_listener_is_dropped_and_an_idle_one_is_not() {
    let mut run = Segment::live(RING, Media::Mp3);
    run.join(1, Wants::Media);
    run.bytes(&Media::Mp3.frames(0..10));
    run.take_all(1);
    run.pass(LISTENER_STALL_MAX.as_millis() / 2 - 4_000);
    run.bytes(&Media::Mp3.frames(10..11));
    run.take_all(1);
    run.pass(LISTENER_STALL_MAX.as_millis() / 2);
    run.bytes(&Media::Mp3.frames(11..12));
    run.take_all(1);
    run.pass(5_000);
    assert_eq!(run.of(0).ending, Some(Ending::Stalled));
    assert_eq!(run.of(1).ending, None);
    assert_eq!(run.channel.counters().dropped, 1);
}

#[test]
fn titles_go_to_those_who_asked_at_exact_intervals() {
    let interval = ICY_INTERVAL as usize;
    let payload = Media::Mp3.frames(0..300);
    let titles = [(0, "StreamTitle='one';"), (40_000, "StreamTitle='two';")];
    let mut run = Segment::new(RING);
    run.join(0, Wants::Media);
    run.join(1, Wants::Titles);
    run.head(200, &[MP3, ("icy-metaint", "8192"), ("icy-name", "a")]);
    run.bytes(&interleave(&payload, 8192, &titles));
    run.join(2, Wants::Titles);
    for id in 0..3 {
        run.take_all(id);
    }
    let metaint = |run: &Segment, id| {
        let head = run.of(id).head.clone().unwrap();
        assert_eq!(head.headers.get(b"icy-name"), Some(&b"a"[..]));
        head.headers.get(b"icy-metaint").map(<[u8]>::to_vec)
    };
    assert_eq!(metaint(&run, 0), None);
    assert_eq!(metaint(&run, 1), Some(ICY_INTERVAL.to_string().into_bytes()));
    let (received, at) = separate(&run.of(1).bytes, interval);
    assert_eq!(received, run.of(0).bytes);
    // The origin sends the title at 8,192 and 40,960; a listener gets it at its next block.
    let expected = [(interval, titles[0].1.to_owned()), (3 * interval, titles[1].1.to_owned())];
    assert_eq!(at, expected);
    let (received, at) = separate(&run.of(2).bytes, interval);
    assert_eq!(Media::Mp3.numbers(&received).0.last(), Some(&298));
    assert_eq!(at, [(interval, titles[1].1.to_owned())]);
    assert_eq!(run.channel.title().as_deref(), Some("two"));
    assert_eq!(run.channel.counters().titles, 2);
}

#[test]
fn without_titles_of_the_origin_no_listener_gets_blocks() {
    let mut run = Segment::new(RING);
    run.join(0, Wants::Titles);
    run.head(200, &[MP3]);
    run.bytes(&Media::Mp3.frames(0..200));
    run.take_all(0);
    assert!(!run.of(0).head.as_ref().unwrap().headers.contains(b"icy-metaint"));
    assert_eq!(Media::Mp3.numbers(&run.of(0).bytes).0.len(), 199);
}

/// Returns a packet of each table, and one of the video that is marked for random access.
fn tables() -> (Vec<u8>, Vec<u8>) {
    let packet = |pid: u16, start: u8, rest: &[u8]| {
        let mut packet = vec![0x47, start | (pid >> 8) as u8, pid as u8];
        packet.extend_from_slice(rest);
        packet.resize(188, 0xff);
        packet
    };
    let pat = [0x10, 0, 0x00, 0xb0, 13, 0, 1, 0xc1, 0, 0, 0, 1, 0xf0, 0x00, 1, 2, 3, 4];
    let pmt = [
        0x10, 0, 0x02, 0xb0, 18, 0, 1, 0xc1, 0, 0, 0xe1, 0x01, 0xf0, 0, 0x1b, 0xe1, 0x01, 0xf0, 0,
        1, 2, 3, 4,
    ];
    let tables = [packet(0, 0x40, &pat), packet(0x1000, 0x40, &pmt)].concat();
    let random = packet(0x101, 0x40, &[0x30, 1, 0x40]);
    (tables, random)
}

#[test]
fn a_joiner_of_a_transport_stream_gets_its_tables_first() {
    let (tables, random) = tables();
    let mut run = Segment::live(RING, Media::Ts);
    run.bytes(&tables);
    run.bytes(&Media::Ts.frames(0..500));
    run.bytes(&random);
    run.bytes(&Media::Ts.frames(500..600));
    run.join(1, Wants::Media);
    run.take_all(0);
    run.take_all(1);
    let received = &run.of(1).bytes;
    assert_eq!(received[..376], tables);
    assert_eq!(received[376..564], random);
    assert_eq!(Media::Ts.numbers(&received[564..]), ((500..598).collect(), 0));
    assert!(run.of(0).bytes.starts_with(&[tables, Media::Ts.frame(0)].concat()));
}

#[test]
fn a_stream_without_frames_is_passed_raw() {
    let mut run = Segment::live(RING, Media::Mp3);
    let bytes = Media::Raw.frames(0..1_000);
    run.bytes(&bytes);
    run.take_all(0);
    assert_eq!(run.of(0).bytes, bytes);
}

#[test]
fn payload_is_in_memory_once() {
    let mut run = Segment::live(RING, Media::Mp3);
    run.bytes(&Media::Mp3.frames(0..5_000));
    let before = run.channel.memory();
    for id in 1..=1_000 {
        run.join(id, Wants::Titles);
    }
    let after = run.channel.memory();
    assert_eq!((before.payload, before.index), (after.payload, after.index));
    assert!(after.listeners.0 / 1_000 < 256, "{after:?}");
}

#[test]
fn a_listener_that_left_gets_no_effects() {
    let mut run = Segment::live(RING, Media::Mp3);
    run.bytes(&Media::Mp3.frames(0..10));
    run.channel.handle_join(run.now, ListenerId(1), Wants::Media).unwrap();
    run.channel.handle_leave(ListenerId(1));
    assert_eq!(run.channel.poll_effect(), None);
    assert!(run.is_open && !run.channel.is_over());
}

#[test]
fn a_skip_leaves_a_margin_to_the_tail() {
    let mut run = Segment::live(64 * 1024, Media::Ts);
    let (tables, random) = tables();
    run.bytes(&[tables, random].concat());
    run.bytes(&Media::Ts.frames(0..400));
    assert_eq!(run.channel.counters().skips, 1);
    run.take_all(0);
    let (numbers, rest) = Media::Ts.numbers(&run.of(0).bytes);
    assert!(numbers.len() > 150 && numbers.last() == Some(&397) && rest == 0, "{numbers:?}");
}

#[test]
fn more_bytes_are_wanted_while_a_listener_keeps_up() {
    let mut run = Segment::live(64 * 1024, Media::Mp3);
    assert!(run.channel.wants_more());
    run.bytes(&Media::Mp3.frames(0..70));
    assert!(run.channel.wants_more(), "behind by less than half of the ring");
    run.bytes(&Media::Mp3.frames(70..100));
    assert!(!run.channel.wants_more());
    run.join(1, Wants::Media);
    run.take_all(1);
    assert!(run.channel.wants_more(), "one is there who has all");
    run.leave(1);
    assert!(!run.channel.wants_more());
    run.take(0, 20_000);
    assert!(run.channel.wants_more());
}
