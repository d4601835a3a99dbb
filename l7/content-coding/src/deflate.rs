//! gzip and deflate: small bodies by libdeflate, which codes them as a whole in half the time;
//! larger ones by zlib-rs.

use crate::memory::WHOLE_DEFLATE;
use crate::{Coding, Failed, Level};
use libdeflater::{CompressionLvl, Compressor};
use zlib_rs::adler32::adler32;
use zlib_rs::crc32::crc32;
use zlib_rs::{Deflate, DeflateConfig, DeflateFlush};

/// zlib-rs levels by level. Its level 1 is left out: its output is a third larger than zlib's, and
/// level 2 has a smaller one in two thirds of the time. So is its 8, which is slower than 9.
const STREAM_LEVELS: [i32; Level::COUNT] = [2, 3, 4, 5, 6, 6, 7, 9, 9];
/// libdeflate levels by level. Its level 1 has a smaller output than zlib's level 2.
const WHOLE_LEVELS: [i32; Level::COUNT] = [1, 2, 3, 4, 5, 6, 7, 8, 9];
/// Window of DEFLATE, 32 KiB; negative means raw DEFLATE, without a format around it.
const WINDOW_BITS: i32 = -15;
/// Header of gzip (RFC 1952, section 2.3): DEFLATE, no name, no time, unknown system.
const GZIP_HEAD: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff];
/// Header of zlib (RFC 1950, section 2.2): DEFLATE with a window of 32 KiB, the fastest level.
const ZLIB_HEAD: [u8; 2] = [0x78, 0x01];
/// Initial value of Adler-32 (RFC 1950, section 8.2).
const ADLER_START: u32 = 1;
/// Output space of one call: roughly the coded size of 64 KiB of text.
const OUT_STEP: usize = 8 * 1024;

/// Codec for bodies as a whole, with one compressor per level, shared by all encoders of a pool.
#[derive(Default)]
pub(crate) struct Whole {
    compressors: [Option<Compressor>; Level::COUNT],
    /// Output buffer, so that `out` grows by the actual size and not by the bound.
    scratch: Vec<u8>,
}

impl Whole {
    /// Returns the bytes of memory that a body of this level needs beyond those allocated.
    pub(crate) const fn needed_bytes(&self, level: Level) -> usize {
        if self.compressors[level.index()].is_some() { 0 } else { WHOLE_DEFLATE }
    }

    pub(crate) fn code(
        &mut self,
        coding: Coding,
        level: Level,
        body: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), Failed> {
        let failed = |reason| Failed { coding, reason };
        let compressor = match &mut self.compressors[level.index()] {
            Some(compressor) => compressor,
            empty => {
                let level = CompressionLvl::new(WHOLE_LEVELS[level.index()])
                    .map_err(|_| failed("libdeflate does not know this level"))?;
                empty.insert(Compressor::new(level))
            }
        };
        // Both formats have a bound; that of gzip is the larger one.
        let bound = compressor.gzip_compress_bound(body.len());
        if self.scratch.len() < bound {
            self.scratch.resize(bound, 0);
        }
        let written = match coding {
            Coding::Gzip => compressor.gzip_compress(body, &mut self.scratch),
            _ => compressor.zlib_compress(body, &mut self.scratch),
        };
        let written = written.map_err(|_| failed("libdeflate wrote more than its own bound"))?;
        out.extend_from_slice(self.scratch.get(..written).unwrap_or_default());
        Ok(())
    }
}

/// Stream of zlib-rs, which writes raw DEFLATE. The format around it is written here, so that the
/// level can change in the middle: zlib-rs itself cannot switch between its algorithms.
pub(crate) struct Stream {
    coding: Coding,
    level: Level,
    deflate: Deflate,
    /// CRC-32 or Adler-32 of the input so far.
    sum: u32,
    /// Length of the input so far, modulo 2^32: for gzip's trailer.
    length: u32,
    has_head: bool,
}

impl Stream {
    pub(crate) fn new(coding: Coding, level: Level) -> Self {
        let config = DeflateConfig {
            level: STREAM_LEVELS[level.index()],
            window_bits: WINDOW_BITS,
            ..DeflateConfig::default()
        };
        let deflate = Deflate::new_with_config(config);
        Self { coding, level, deflate, sum: start(coding), length: 0, has_head: false }
    }

    pub(crate) fn write(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<(), Failed> {
        self.head(out);
        self.sum = match self.coding {
            Coding::Gzip => crc32(self.sum, input),
            _ => adler32(self.sum, input),
        };
        self.length = self.length.wrapping_add(input.len() as u32);
        self.run(input, DeflateFlush::NoFlush, out)
    }

    pub(crate) fn flush(&mut self, out: &mut Vec<u8>) -> Result<(), Failed> {
        self.head(out);
        self.run(&[], DeflateFlush::SyncFlush, out)
    }

    pub(crate) fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), Failed> {
        self.head(out);
        self.run(&[], DeflateFlush::Finish, out)?;
        match self.coding {
            Coding::Gzip => {
                out.extend_from_slice(&self.sum.to_le_bytes());
                out.extend_from_slice(&self.length.to_le_bytes());
            }
            _ => out.extend_from_slice(&self.sum.to_be_bytes()),
        }
        Ok(())
    }

    /// Changes the level: ends the output at a byte boundary and restarts the codec. The later
    /// output cannot refer to the earlier, which costs some hundred bytes per change.
    pub(crate) fn set_level(&mut self, level: Level, out: &mut Vec<u8>) -> Result<(), Failed> {
        if STREAM_LEVELS[level.index()] != STREAM_LEVELS[self.level.index()] {
            self.flush(out)?;
            self.apply(level)?;
        }
        self.level = level;
        Ok(())
    }

    /// Prepares the stream for another body.
    pub(crate) fn restart(&mut self, coding: Coding, level: Level) -> Result<(), Failed> {
        self.coding = coding;
        (self.sum, self.length, self.has_head) = (start(coding), 0, false);
        self.apply(level)
    }

    fn apply(&mut self, level: Level) -> Result<(), Failed> {
        self.level = level;
        self.deflate.reset();
        match self.deflate.set_level(STREAM_LEVELS[level.index()]) {
            Ok(zlib_rs::Status::Ok) => Ok(()),
            _ => Err(self.failed("zlib-rs does not change its level")),
        }
    }

    fn head(&mut self, out: &mut Vec<u8>) {
        if !std::mem::replace(&mut self.has_head, true) {
            let head = if self.coding == Coding::Gzip { &GZIP_HEAD[..] } else { &ZLIB_HEAD };
            out.extend_from_slice(head);
        }
    }

    fn run(&mut self, input: &[u8], flush: DeflateFlush, out: &mut Vec<u8>) -> Result<(), Failed> {
        let mut rest = input;
        loop {
            let before = out.len();
            out.resize(before + OUT_STEP, 0);
            let space = out.get_mut(before..).unwrap_or_default();
            let (read, written) = (self.deflate.total_in(), self.deflate.total_out());
            let status = self.deflate.compress(rest, space, flush);
            let read = (self.deflate.total_in() - read) as usize;
            let written = (self.deflate.total_out() - written) as usize;
            out.truncate(before + written);
            rest = rest.get(read..).unwrap_or_default();
            match status {
                Ok(zlib_rs::Status::StreamEnd) => return Ok(()),
                // Output space is left, so the codec has no more output.
                Ok(_) if rest.is_empty() && written < OUT_STEP => return Ok(()),
                Ok(_) if read == 0 && written == 0 => {
                    return Err(self.failed("zlib-rs does not go on"));
                }
                Ok(_) => {}
                Err(error) => return Err(self.failed(error.as_str())),
            }
        }
    }

    const fn failed(&self, reason: &'static str) -> Failed {
        Failed { coding: self.coding, reason }
    }
}

/// Returns the initial value of a checksum.
const fn start(coding: Coding) -> u32 {
    if matches!(coding, Coding::Gzip) { 0 } else { ADLER_START }
}
