//! Pool of idle codecs, so that a response costs no large allocation.
//!
//! A pool belongs to one thread. Codecs for whole bodies exist once, with at most
//! [`SHARED_BYTES_MAX`](crate::SHARED_BYTES_MAX); streams return when their encoder is dropped, up
//! to [`IDLE_BYTES_MAX`]. Memory in the pool is charged to its account, memory of an encoder is
//! not. If the account has no memory left for a shared codec, a body is coded by a stream.

use crate::encoder::Stream;
use crate::{BUFFERED_MAX, Coding, Encoder, Failed, Level, deflate, zstd};
use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use units::{Account, Bytes, Held};

/// Bytes of idle streams and empty buffers: some twenty streams, as many as a burst of large
/// responses on one core uses.
pub const IDLE_BYTES_MAX: usize = 16 << 20;

/// Factory of encoders that reuses the parts of earlier ones.
#[derive(Clone, Default)]
pub struct Pool(Rc<RefCell<Parts>>);

#[derive(Default)]
struct Parts {
    deflate: deflate::Whole,
    zstd: zstd::Whole,
    streams: Vec<Stream>,
    buffers: Vec<Vec<u8>>,
    idle_bytes: usize,
    /// Memory charged to the account.
    held: Held,
}

impl Parts {
    /// Charges so many more bytes to the account; returns false if it refuses.
    fn charge(&mut self, bytes: usize) -> bool {
        self.held.grow(self.held.bytes() + Bytes(bytes as u64))
    }

    /// Charges an idle part; returns false if it must not be kept.
    fn charge_idle(&mut self, bytes: usize) -> bool {
        let may = bytes > 0 && self.idle_bytes + bytes <= IDLE_BYTES_MAX && self.charge(bytes);
        self.idle_bytes += if may { bytes } else { 0 };
        may
    }

    /// Releases the charge of an idle part that is used again.
    fn release_idle(&mut self, bytes: usize) {
        self.idle_bytes -= bytes;
        self.held.shrink(self.held.bytes().saturating_sub(Bytes(bytes as u64)));
    }
}

impl Pool {
    /// Creates an empty pool without an account.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an empty pool with an account.
    #[must_use]
    pub fn paid(account: Rc<dyn Account>) -> Self {
        let parts = Parts { held: Held::new(Some(account)), ..Parts::default() };
        Self(Rc::new(RefCell::new(parts)))
    }

    /// Creates an encoder for one body.
    #[must_use]
    pub fn encoder(&self, coding: Coding, level: Level) -> Encoder {
        let mut parts = self.0.borrow_mut();
        let buffer = parts.buffers.pop().unwrap_or_default();
        parts.release_idle(buffer.capacity());
        drop(parts);
        Encoder::begin(self.clone(), coding, level, buffer)
    }

    /// Returns the memory of idle parts.
    #[must_use]
    pub fn idle_bytes(&self) -> Bytes {
        Bytes(self.0.borrow().idle_bytes as u64)
    }

    /// Encodes a complete body.
    pub(crate) fn code(
        &self,
        coding: Coding,
        level: Level,
        body: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), Failed> {
        let mut parts = self.0.borrow_mut();
        let needed_bytes = match coding {
            Coding::Deflate | Coding::Gzip => parts.deflate.needed_bytes(level),
            Coding::Zstd => parts.zstd.needed_bytes(),
            Coding::Brotli => 0,
        };
        if needed_bytes > 0 && !parts.charge(needed_bytes) {
            drop(parts);
            let mut stream = self.stream(coding, level)?;
            stream.write(body, out)?;
            stream.finish(out)?;
            self.keep_stream(stream);
            return Ok(());
        }
        match coding {
            Coding::Deflate | Coding::Gzip => parts.deflate.code(coding, level, body, out),
            Coding::Zstd => parts.zstd.code(level, body, out),
            Coding::Brotli => {
                let mut stream = crate::brotli::Stream::new(level, Some(body.len()));
                stream.write(body, out)?;
                stream.finish(out)
            }
        }
    }

    pub(crate) fn stream(&self, coding: Coding, level: Level) -> Result<Stream, Failed> {
        let mut parts = self.0.borrow_mut();
        let Some(at) = parts.streams.iter().position(|stream| stream.fits(coding)) else {
            drop(parts);
            return Stream::new(coding, level);
        };
        let mut stream = parts.streams.swap_remove(at);
        parts.release_idle(stream.idle_bytes());
        drop(parts);
        stream.restart(coding, level)?;
        Ok(stream)
    }

    /// Takes back a stream, at any point of its body.
    pub(crate) fn keep_stream(&self, stream: Stream) {
        let mut parts = self.0.borrow_mut();
        // Brotli's codec cannot be reset.
        if parts.charge_idle(stream.idle_bytes()) {
            parts.streams.push(stream);
        }
    }

    pub(crate) fn keep_buffer(&self, mut buffer: Vec<u8>) {
        let mut parts = self.0.borrow_mut();
        if buffer.capacity() <= BUFFERED_MAX && parts.charge_idle(buffer.capacity()) {
            buffer.clear();
            parts.buffers.push(buffer);
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = self.0.borrow();
        f.debug_struct("Pool")
            .field("streams", &parts.streams.len())
            .field("buffers", &parts.buffers.len())
            .field("idle_bytes", &parts.idle_bytes)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{WHOLE_DEFLATE, WHOLE_ZSTD};
    use l7_testkit::Left;

    fn pool(left: usize) -> (Pool, Rc<Left>) {
        let left = Rc::new(Left::new(left as u64));
        (Pool::paid(Rc::clone(&left) as _), left)
    }

    fn code(pool: &Pool, coding: Coding) -> Vec<u8> {
        let (mut encoder, mut out) = (pool.encoder(coding, Level::new(3).unwrap()), Vec::new());
        encoder.write(&b"what is said once, what is said twice, ".repeat(100), &mut out).unwrap();
        encoder.finish(&mut out).unwrap();
        out
    }

    #[test]
    fn idle_and_shared_codecs_are_charged_to_the_account() {
        const ALL: usize = 16 << 20;
        let (pool, left) = pool(ALL);
        let used = || ALL as u64 - left.0.get();
        for (coding, shared) in [
            (Coding::Gzip, WHOLE_DEFLATE),
            (Coding::Deflate, WHOLE_DEFLATE),
            (Coding::Zstd, WHOLE_DEFLATE + WHOLE_ZSTD),
        ] {
            code(&pool, coding);
            assert_eq!(used(), shared as u64 + pool.idle_bytes().0, "{coding}");
        }
        let mut encoder = pool.encoder(Coding::Gzip, Level::new(3).unwrap());
        encoder.write(&vec![1; 2 * BUFFERED_MAX], &mut Vec::new()).unwrap();
        let under_way = used();
        drop(encoder);
        assert!(used() > under_way, "a stream waits for the next body");
        drop(pool);
        assert_eq!(used(), 0);
    }

    #[test]
    fn without_memory_bodies_are_coded_and_nothing_is_kept() {
        for coding in Coding::ALL {
            let (pool, left) = pool(100);
            let coded = code(&pool, coding);
            assert!(coded.len() < 400, "{coding}: {} bytes", coded.len());
            assert_eq!((left.0.get(), pool.idle_bytes()), (100, Bytes::ZERO), "{coding}");
        }
    }
}
