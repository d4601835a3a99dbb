//! Tests of round trips through decoders that are independent of the encoders, where there are any.

mod common;

use common::{noise, text};
use content_coding::{BUFFERED_MAX, Coding, Encoder, Level, Pool, coded_length_max, memory_bytes};
use l7_testkit::{decoded, readable};
use proptest::prelude::*;

/// Encodes a body in one piece.
fn coded(coding: Coding, level: Level, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut encoder = Encoder::new(coding, level);
    encoder.write(body, &mut out).unwrap();
    encoder.finish(&mut out).unwrap();
    out
}

fn all() -> impl Iterator<Item = (Coding, Level)> {
    Coding::ALL.into_iter().flat_map(|coding| Level::all().map(move |level| (coding, level)))
}

#[test]
fn bodies_of_every_size_come_back_at_every_level() {
    let sizes = [0, 1, 2, 1_000, 25_000, BUFFERED_MAX, BUFFERED_MAX + 1, 300_000];
    for (coding, level) in all() {
        for size in sizes {
            for body in [text(size), noise(size)] {
                let coded = coded(coding, level, &body);
                assert!(decoded(coding, &coded) == body, "{coding} {level} {size}");
            }
        }
    }
}

#[test]
fn incompressible_bodies_grow_by_a_bounded_amount() {
    for (coding, level) in all() {
        for size in [0, 1, 100, BUFFERED_MAX, BUFFERED_MAX + 1, 1 << 20] {
            let length = coded(coding, level, &noise(size)).len();
            let max = coded_length_max(size, 0);
            assert!(length <= max, "{coding} {level}: {size} became {length}, more than {max}");
        }
    }
}

#[test]
fn flushed_output_can_be_decoded_before_more_comes() {
    for (coding, level) in all() {
        let pool = Pool::new();
        let mut encoder = pool.encoder(coding, level);
        let mut out = Vec::new();
        encoder.flush(&mut out).unwrap();
        assert_eq!(out, [], "nothing has come");
        let mut sent = Vec::new();
        for part in text(90_000).chunks(30_000) {
            encoder.write(part, &mut out).unwrap();
            encoder.flush(&mut out).unwrap();
            let length = out.len();
            encoder.flush(&mut out).unwrap();
            assert_eq!(out.len(), length, "{coding} {level}: nothing has come since");
            sent.extend_from_slice(part);
            assert!(readable(coding, &out) == sent, "{coding} {level}");
        }
        encoder.finish(&mut out).unwrap();
        assert!(decoded(coding, &out) == sent, "{coding} {level}");
    }
}

#[test]
fn a_body_that_has_ended_takes_no_more() {
    for coding in Coding::ALL {
        let mut encoder = Encoder::new(coding, Level::DEFAULT);
        let mut out = Vec::new();
        encoder.finish(&mut out).unwrap();
        let length = out.len();
        assert!(encoder.write(b"more", &mut out).is_err());
        assert!(encoder.flush(&mut out).is_err());
        let error = encoder.finish(&mut out).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("the encoder for {coding} gave up: the body has ended")
        );
        assert_eq!(out.len(), length);
    }
}

#[test]
fn the_level_changes_where_the_codec_can() {
    let (low, high) = (Level::MIN, Level::MAX);
    let body = text(400_000);
    let (first, rest) = body.split_at(200_000);
    for coding in Coding::ALL {
        let mut encoder = Encoder::new(coding, low);
        let mut out = Vec::new();
        encoder.write(&first[..10], &mut out).unwrap();
        assert_eq!(encoder.set_level(high, &mut out), Ok(high), "{coding}: it is still gathered");
        assert_eq!(encoder.set_level(low, &mut out), Ok(low));
        encoder.write(&first[10..], &mut out).unwrap();
        let changes = matches!(coding, Coding::Gzip | Coding::Deflate);
        let level = if changes { high } else { low };
        assert_eq!(encoder.set_level(high, &mut out), Ok(level), "{coding}");
        assert_eq!(encoder.level(), level);
        encoder.write(rest, &mut out).unwrap();
        encoder.finish(&mut out).unwrap();
        assert!(decoded(coding, &out) == body, "{coding}");
        let [fast, small] = [low, high].map(|level| coded(coding, level, &body).len());
        let expected = if changes { small..fast } else { fast..fast + 1 };
        assert!(expected.contains(&out.len()), "{coding}: {} of {expected:?}", out.len());
    }
}

#[test]
fn a_pool_gives_a_used_encoder_the_same_output() {
    let pool = Pool::new();
    for (coding, level) in all().chain(all()) {
        for body in [text(20_000), text(200_000)] {
            // An encoder dropped in the middle of a body leaves nothing behind.
            let mut dropped = pool.encoder(coding, level);
            dropped.write(&noise(body.len()), &mut Vec::new()).unwrap();
            drop(dropped);
            let mut encoder = pool.encoder(coding, level);
            let mut out = Vec::new();
            for part in body.chunks(16_384) {
                encoder.write(part, &mut out).unwrap();
            }
            encoder.finish(&mut out).unwrap();
            assert!(decoded(coding, &out) == body, "{coding} {level}");
            let mut fresh = Encoder::new(coding, level);
            let mut expected = Vec::new();
            for part in body.chunks(16_384) {
                fresh.write(part, &mut expected).unwrap();
            }
            fresh.finish(&mut expected).unwrap();
            assert!(out == expected, "{coding} {level}");
        }
    }
}

#[test]
fn idle_memory_is_bounded_and_an_encoders_memory_is_known() {
    let pool = Pool::new();
    for (coding, level) in all() {
        let mut encoders: Vec<_> = (0..60).map(|_| pool.encoder(coding, level)).collect();
        let part = text(70_000);
        for encoder in encoders.iter_mut().take(30) {
            encoder.write(&part[..1_000], &mut Vec::new()).unwrap();
            let held = encoder.memory_bytes().0;
            assert!((1_000..=BUFFERED_MAX as u64).contains(&held), "{coding} {level}: {held}");
        }
        // Brotli's codec is not kept, so one is enough.
        for encoder in encoders.iter_mut().take(if coding == Coding::Brotli { 1 } else { 30 }) {
            encoder.write(&part, &mut Vec::new()).unwrap();
            assert_eq!(encoder.memory_bytes(), memory_bytes(coding, level));
        }
        drop(encoders);
        assert!(pool.idle_bytes().0 <= content_coding::IDLE_BYTES_MAX as u64, "{coding} {level}");
    }
    assert!(pool.idle_bytes().0 > 0);
}

/// Operation on a body.
#[derive(Clone, Debug)]
enum Step {
    Write(usize),
    Flush,
    Level(u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0_usize..40_000).prop_map(Step::Write),
        1 => Just(Step::Flush),
        1 => (1_u8..=9).prop_map(Step::Level),
    ];
    prop::collection::vec(step, 0..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_body_is_the_same_wherever_parts_end_and_flushes_come(
        coding in prop::sample::select(Coding::ALL.as_slice()),
        level in 1_u8..=9, steps in steps(), seed in any::<u8>(),
    ) {
        let mut source: Vec<u8> = text(300_000);
        source.extend(noise(200_000));
        source.rotate_left(usize::from(seed) * 1_900);
        let mut encoder = Encoder::new(coding, Level::new(level).unwrap());
        let (mut out, mut sent, mut breaks) = (Vec::new(), 0, 1);
        for step in steps {
            match step {
                Step::Write(length) => {
                    encoder.write(&source[sent..sent + length], &mut out).unwrap();
                    sent += length;
                }
                Step::Flush => encoder.flush(&mut out).unwrap(),
                Step::Level(level) => {
                    encoder.set_level(Level::new(level).unwrap(), &mut out).unwrap();
                }
            }
            breaks += 1;
            if matches!(step, Step::Flush) {
                prop_assert!(readable(coding, &out) == source[..sent]);
            }
        }
        encoder.finish(&mut out).unwrap();
        prop_assert!(decoded(coding, &out) == source[..sent]);
        prop_assert!(out.len() <= coded_length_max(sent, breaks));
    }
}
