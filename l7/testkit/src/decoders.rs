//! Decoders of content codings: gzip and deflate by miniz (flate2), which shares nothing with the encoders; br and
//! zstd by their libraries' decoders.

use content_coding::Coding;
use std::io::Read;

/// Decoder of coded bytes.
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

/// Decodes a complete body.
///
/// # Panics
/// The bytes are no valid body, bytes follow it, or it is complete without its last byte.
#[must_use]
pub fn decoded(coding: Coding, coded: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    decoder(coding, coded).read_to_end(&mut body).expect("a coded body, and nothing behind it");
    // A body without its last byte must be invalid: every byte counts.
    if let Some((_, short)) = coded.split_last() {
        let mut rest = Vec::new();
        let read = decoder(coding, short).read_to_end(&mut rest);
        assert!(read.is_err(), "{coding}: the last byte says nothing");
    }
    body
}

/// Decodes as much as possible of a body that has not ended.
#[must_use]
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
