//! Any bytes as a body: however it is divided, flushed or its level changed, the output decodes to
//! it and is no longer than the bound.

use content_coding::{Coding, Encoder, Level, coded_length_max};
use std::io::Read;

/// Longest body in bytes: beyond what is buffered, so that there are streams as well.
const BODY_LENGTH_MAX: usize = 150_000;

pub fn encode(bytes: &[u8]) {
    // Parameters of the run: coding and level, length of parts, repetitions, breaks.
    let Some((&[how, part, repetitions, breaks], rest)) = bytes.split_first_chunk() else { return };
    let coding = Coding::ALL[usize::from(how) % 4];
    let level = |number: u8| Level::new(number % 9 + 1).expect("it is from 1 to 9");
    let body = rest.repeat(usize::from(repetitions) + 1);
    let body = &body[..body.len().min(BODY_LENGTH_MAX)];

    let mut encoder = Encoder::new(coding, level(how / 4));
    let (mut out, mut broken) = (Vec::new(), 0);
    for (number, part) in body.chunks(usize::from(part) * 64 + 1_000).enumerate() {
        encoder.write(part, &mut out).expect("there is memory");
        if breaks != 0 && number % usize::from(breaks) == 0 {
            encoder.flush(&mut out).expect("there is memory");
            encoder.set_level(level(number as u8), &mut out).expect("there is memory");
            broken += 2;
        }
    }
    encoder.finish(&mut out).expect("there is memory");
    assert!(out.len() <= coded_length_max(body.len(), broken));
    assert!(decoded(coding, &out, body.len()) == body, "{coding}: another body");
}

fn decoded(coding: Coding, coded: &[u8], length: usize) -> Vec<u8> {
    let mut body = Vec::with_capacity(length + 1);
    match coding {
        Coding::Deflate => flate2::read::ZlibDecoder::new(coded).read_to_end(&mut body),
        Coding::Gzip => flate2::read::GzDecoder::new(coded).read_to_end(&mut body),
        Coding::Brotli => brotli::Decompressor::new(coded, 4_096).read_to_end(&mut body),
        Coding::Zstd => zstd_safe::DCtx::create()
            .decompress(&mut body, coded)
            .map_err(|_| std::io::Error::other("no frame of zstd, or one of another length")),
    }
    .expect("it is a whole body");
    body
}

pub fn seeds() -> Vec<Vec<u8>> {
    let text = "<li><a href=\"/item/17\">packets and routers</a></li>\n".repeat(30);
    let of = |how: u8, part, repetitions, breaks| {
        [&[how, part, repetitions, breaks], text.as_bytes()].concat()
    };
    let small = (0..4).map(|coding| of(coding, 255, 0, 0));
    let large = (0..4).map(|coding| of(coding + 8, 10, 60, 7));
    small.chain(large).chain([vec![0, 0, 0, 0]]).collect()
}
