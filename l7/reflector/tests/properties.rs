//! Properties for any schedule: the cuts of the origin's bytes change nothing, listeners get whole
//! frames in order, memory is bounded, and there is no panic.

mod common;

use common::{Media, Segment, ask, between, interleave, parts, separate};
use http1::Framing;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use reflector::limits::{ICY_INTERVAL, UNFRAMED_LENGTH_MAX};
use reflector::{Channel, Config, Connection, Ending, Failure, ListenerId, Wants};
use testbase::Chance;
use units::{Bytes, Nanos};

const MEDIA: [Media; 3] = [Media::Mp3, Media::Aac, Media::Ts];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Two waiting listeners, one of them with titles: each gets the same, wherever the bytes are
    /// cut.
    #[test]
    fn listeners_get_the_same_wherever_the_origins_bytes_are_cut(
        media in select(vec![Media::Mp3, Media::Aac, Media::Ts, Media::Raw]),
        count in 50..250_u64,
        interval in 500..9_000_usize,
        titles in vec((0..60_000_usize, "[a-z]{1,40}"), 0..4),
        cuts in vec(any::<Index>(), 0..20),
        seed in any::<u64>(),
    ) {
        let mut titles = titles;
        titles.sort();
        let titles: Vec<(usize, &str)> = titles.iter().map(|(at, title)| (*at, title.as_str())).collect();
        let wire = interleave(&media.frames(0..count), interval, &titles);
        let received = |parts: &[&[u8]], seed: u64| {
            let mut numbers = Chance(seed);
            let mut run = Segment::new(1024 * 1024);
            run.join(0, Wants::Media);
            run.join(1, Wants::Titles);
            let metaint = interval.to_string();
            run.head(200, &[("Content-Type", media.content_type()), ("icy-metaint", &metaint)]);
            for part in parts {
                run.bytes(part);
                // Blocks are chosen when they are reached: listeners at the edge have the same.
                run.take_all(1);
                run.take(0, numbers.below(3_000) as usize);
            }
            run.end();
            for id in [0, 1] {
                run.take_all(id);
                assert_eq!(run.of(id).ending, Some(Ending::Complete));
            }
            (run.of(0).bytes.clone(), run.of(1).bytes.clone())
        };
        let (plain, titled) = received(&[&wire], 0);
        prop_assert_eq!(media.numbers(&plain).0, (0..count).collect::<Vec<_>>());
        prop_assert_eq!(&separate(&titled, ICY_INTERVAL as usize).0, &plain);
        let (cut_plain, cut_titled) = received(&parts(&wire, &cuts), seed);
        prop_assert_eq!(cut_plain, plain);
        prop_assert_eq!(cut_titled, titled);
    }
}

/// Step of a random schedule.
#[derive(Clone, Copy, Debug)]
enum Step {
    Bytes { length: usize },
    Garbage { length: usize },
    Join { titles: bool },
    Leave { which: Index },
    Take { which: Index, limit: usize },
    Reset,
    Pass { millis: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (1..9_000_usize).prop_map(|length| Step::Bytes { length }),
        1 => (1..600_usize).prop_map(|length| Step::Garbage { length }),
        3 => any::<bool>().prop_map(|titles| Step::Join { titles }),
        2 => any::<Index>().prop_map(|which| Step::Leave { which }),
        12 => (any::<Index>(), 0..12_000_usize).prop_map(|(which, limit)| Step::Take { which, limit }),
        1 => Just(Step::Reset),
        3 => (0..3_000_u64).prop_map(|millis| Step::Pass { millis }),
    ]
}

/// Ring size: small, so that many listeners skip.
const RING: usize = 32 * 1024;

/// Asserts that a listener has received whole frames, in order and without repetition; the last may
/// be incomplete.
fn check(media: Media, bytes: &[u8], titles: bool) {
    let payload = if titles { separate(bytes, ICY_INTERVAL as usize).0 } else { bytes.to_vec() };
    let (numbers, rest) = media.numbers(&payload);
    assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "{numbers:?}");
    assert!(rest < 600, "{rest} bytes are no frame");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn listeners_get_whole_frames_in_order_and_memory_is_bounded(
        media in select(MEDIA.to_vec()),
        steps in vec(step(), 1..300),
        seed in any::<u64>(),
    ) {
        let mut numbers = Chance(seed);
        let mut run = Segment::new(RING as u64);
        let fields = [("Content-Type", media.content_type()), ("icy-metaint", "1024")];
        run.join(0, Wants::Titles);
        run.head(200, &fields);
        let (mut next_id, mut number) = (1, 0);
        // The origin's stream has blocks of 1,024 bytes of payload and an empty title.
        let (mut source, mut until) = (Vec::new(), 1024);
        let mut titled = vec![true];
        for step in steps {
            if run.channel.is_over() {
                break;
            }
            let here: Vec<u64> = run.ids().into_iter().filter(|&id| run.of(id).ending.is_none()).collect();
            match step {
                Step::Bytes { length } | Step::Garbage { length } if run.is_open => {
                    if matches!(step, Step::Garbage { .. }) {
                        // Between frames, as of a server that loses its source.
                        source.extend(numbers.bytes(length).into_iter().map(between));
                        source.extend(media.frames(number..number + 8));
                        number += 8;
                    }
                    while source.len() < length {
                        source.extend(media.frame(number));
                        number += 1;
                    }
                    let mut wire = Vec::new();
                    for byte in source.drain(..length) {
                        wire.push(byte);
                        until -= 1;
                        if until == 0 {
                            wire.push(0);
                            until = 1024;
                        }
                    }
                    run.bytes(&wire);
                }
                Step::Bytes { .. } | Step::Garbage { .. } => {}
                Step::Join { titles } if run.channel.is_open() => {
                    run.join(next_id, if titles { Wants::Titles } else { Wants::Media });
                    titled.push(titles);
                    next_id += 1;
                }
                Step::Join { .. } => {}
                Step::Leave { which } => {
                    let id = here[which.index(here.len())];
                    let received = run.leave(id);
                    check(media, &received.bytes, titled[id as usize]);
                }
                Step::Take { which, limit } => {
                    run.take(here[which.index(here.len())], limit);
                }
                Step::Reset if run.is_open => {
                    run.reset();
                    // The next connection begins anywhere in a frame.
                    source = media.frame(number).split_off(numbers.below(180) as usize + 1);
                    (number, until) = (number + 1, 1024);
                }
                Step::Reset => {}
                Step::Pass { millis } => {
                    run.pass(millis);
                    if run.is_open && run.channel.poll_timeout().is_some() {
                        // Ignored unless the channel waits for a head.
                        run.head(200, &fields);
                    }
                }
            }
            let memory = run.channel.memory();
            prop_assert!(memory.payload <= Bytes((RING + 2 * UNFRAMED_LENGTH_MAX + 8_192) as u64));
            prop_assert!(memory.index <= Bytes((RING / 2 + 8_192) as u64), "{:?}", memory);
        }
        for id in run.ids() {
            check(media, &run.of(id).bytes, titled[id as usize]);
        }
        for id in run.ids() {
            if run.of(id).ending.is_none() {
                run.leave(id);
            }
        }
        prop_assert!(run.channel.is_over() && !run.is_open);
        prop_assert_eq!(run.channel.poll_timeout(), None);
        prop_assert_eq!(run.channel.memory().payload, Bytes(0));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    /// Events in any order, including ones that a correct caller never sends.
    #[test]
    fn no_events_panic(steps in vec((0..12_u8, any::<u8>(), any::<u16>()), 0..60)) {
        let config = Config { ring_audio: Bytes(0), ..Config::default() };
        let (mut channel, mut now) = (Channel::new(config, &ask(Wants::Media)), Nanos(0));
        for (kind, small, large) in steps {
            let (id, connection) = (ListenerId(u64::from(small % 4)), Connection(u32::from(small % 4)));
            match kind {
                0 => drop(channel.handle_join(now, id, Wants::Titles)),
                1 => channel.handle_leave(id),
                2 => {
                    let types = ["audio/mpeg", "audio/aac", "video/mp2t", "audio/x", "text/html"];
                    let fields = [("Content-Type", types[usize::from(small % 5)]), ("icy-metaint", "3")];
                    let status = [200, 200, 200, 302, 500][usize::from(large % 5)];
                    let head = common::head(status, &fields);
                    channel.handle_upstream_head(now, connection, &head, Framing::UntilClose);
                }
                3..=6 => {
                    let bytes = Chance(u64::from(large)).bytes(usize::from(large) / 16);
                    channel.handle_upstream_bytes(now, connection, &bytes);
                }
                7 => channel.handle_upstream_end(now, connection),
                8 => channel.handle_upstream_failed(now, connection, Failure::Connect),
                9 => channel.handle_taken(now, id, usize::from(large)),
                10 => {
                    now += Nanos::from_millis(u64::from(large));
                    channel.handle_timeout(now);
                }
                _ => while channel.poll_effect().is_some() {},
            }
            let pieces: usize = channel.pieces(id, usize::from(large)).map(|piece| piece.len()).sum();
            prop_assert!(pieces <= usize::from(large));
        }
        let _ = (channel.bitrate(), channel.title(), channel.kept(), channel.counters());
        let mut effects = 0;
        while let Some(effect) = channel.poll_effect() {
            effects += 1;
            prop_assert!(effects < 1_000, "{:?}", effect);
        }
    }
}
