//! Memory of encoders, from measurements of their codecs' allocations (docs/guides/compress.md).

use crate::{BUFFERED_MAX, Coding, Level};
use units::Bytes;

/// Largest memory of a pool for bodies that are coded as a whole, once all levels have been used.
pub const SHARED_BYTES_MAX: usize = Level::COUNT * WHOLE_DEFLATE + WHOLE_ZSTD;
/// libdeflate's compressor of one level, with its output buffer.
pub(crate) const WHOLE_DEFLATE: usize = 752 << 10;
/// zstd context for bodies of at most [`BUFFERED_MAX`].
pub(crate) const WHOLE_ZSTD: usize = 2_048 << 10;
/// Stream of zlib-rs at any level: window, hash chains, pending output.
pub(crate) const DEFLATE: usize = 384 << 10;
/// Body in Brotli, by level: window, tables, commands, and the current block.
const BROTLI: [usize; Level::COUNT] = [
    4_608 << 10,
    4_608 << 10,
    6_656 << 10,
    7_168 << 10,
    8_192 << 10,
    8_192 << 10,
    8_192 << 10,
    8_192 << 10,
    8_192 << 10,
];
/// Stream of zstd, by level: window, tables, input and output of a block.
const ZSTD: [usize; Level::COUNT] = [
    1_536 << 10,
    1_792 << 10,
    2_304 << 10,
    3_584 << 10,
    2_816 << 10,
    2_816 << 10,
    2_816 << 10,
    2_816 << 10,
    2_816 << 10,
];

/// Returns the largest memory of one encoder, for a body of any length: the buffered input, while
/// it goes into the codec, and the codec. Output is on the caller's account.
#[must_use]
pub fn memory_bytes(coding: Coding, level: Level) -> Bytes {
    let codec = match coding {
        Coding::Deflate | Coding::Gzip => DEFLATE,
        Coding::Brotli => BROTLI[level.index()],
        Coding::Zstd => ZSTD[level.index()],
    };
    Bytes((BUFFERED_MAX + codec) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pool;

    #[test]
    fn a_stream_of_zstd_has_no_more_than_it_says() {
        for level in Level::all() {
            let pool = Pool::new();
            let mut encoder = pool.encoder(Coding::Zstd, level);
            encoder.write(&vec![b'a'; 3 << 20], &mut Vec::new()).unwrap();
            drop(encoder);
            let max = memory_bytes(Coding::Zstd, level);
            let has = pool.idle_bytes();
            assert!(has <= max && has.0 > max.0 / 2, "{level}: {has} of {max}");
        }
    }
}
