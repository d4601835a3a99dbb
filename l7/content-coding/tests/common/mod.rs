//! Bodies, and decoders: gzip and deflate by miniz (flate2), which shares nothing with the
//! encoders; br and zstd by their libraries' decoders. `programs.rs` asks other programs.

#![allow(dead_code, reason = "each test file uses what it needs")]

use content_coding::Coding;
use std::io::Read;

/// Text that repeats itself as pages do: marks, words, numbers; the same each time.
pub fn text(length: usize) -> Vec<u8> {
    const WORDS: [&str; 16] = [
        "<div class=\"row\">",
        "</div>\n",
        "<a href=\"/item/",
        "\">",
        "</a> ",
        "price ",
        "the ",
        "function ",
        "return ",
        "router ",
        "of the ",
        "packet",
        "<li>",
        "</li>\n",
        "const ",
        "= ",
    ];
    let mut text = Vec::with_capacity(length + 32);
    let mut random = Random(7);
    while text.len() < length {
        let draw = random.next();
        text.extend_from_slice(WORDS[(draw % 16) as usize].as_bytes());
        if draw & 0x300 == 0 {
            text.extend_from_slice((draw >> 40).to_string().as_bytes());
        }
    }
    text.truncate(length);
    text
}

/// Bytes without any order.
pub fn noise(length: usize) -> Vec<u8> {
    let mut random = Random(length as u64 + 1);
    (0..length).map(|_| (random.next() >> 33) as u8).collect()
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }
}

/// A decoder over coded bytes.
fn decoder<'a>(coding: Coding, coded: &'a [u8]) -> Box<dyn Read + 'a> {
    match coding {
        Coding::Deflate => Box::new(flate2::read::ZlibDecoder::new(coded)),
        Coding::Gzip => Box::new(flate2::read::GzDecoder::new(coded)),
        Coding::Brotli => Box::new(brotli::Decompressor::new(coded, 4_096)),
        Coding::Zstd => {
            Box::new(Zstd { context: zstd_safe::DCtx::create(), coded, has_ended: false })
        }
    }
}

/// The whole body; panics when it is none, or when something is behind it.
pub fn decoded(coding: Coding, coded: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    decoder(coding, coded).read_to_end(&mut body).unwrap();
    // A body that lacks its end is none: every byte counts.
    if let Some((_, short)) = coded.split_last() {
        let mut rest = Vec::new();
        let read = decoder(coding, short).read_to_end(&mut rest);
        assert!(read.is_err(), "{coding}: the last byte says nothing");
    }
    body
}

/// What can be read of a body that has not ended.
pub fn readable(coding: Coding, coded: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    let mut decoder = decoder(coding, coded);
    let mut part = [0; 4_096];
    while let Ok(length @ 1..) = decoder.read(&mut part) {
        body.extend_from_slice(&part[..length]);
    }
    body
}

/// zstd's decoder as a reader; the end of the input within a frame is an error.
struct Zstd<'a> {
    context: zstd_safe::DCtx<'static>,
    coded: &'a [u8],
    has_ended: bool,
}

impl Read for Zstd<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        if self.has_ended {
            assert!(self.coded.is_empty(), "something is behind the frame");
            return Ok(0);
        }
        let mut input = zstd_safe::InBuffer::around(self.coded);
        let mut output = zstd_safe::OutBuffer::around(out);
        let wants = self
            .context
            .decompress_stream(&mut output, &mut input)
            .map_err(|code| std::io::Error::other(zstd_safe::get_error_name(code)))?;
        let written = output.pos();
        self.coded = &self.coded[input.pos()..];
        self.has_ended = wants == 0;
        if written == 0 && wants > 0 && self.coded.is_empty() {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        Ok(written)
    }
}
