//! Codecs that wait for their next body, so that a response costs no large allocation.
//!
//! One pool belongs to one thread. What codes whole bodies is there once, at most
//! [`SHARED_BYTES_MAX`](crate::SHARED_BYTES_MAX); streams come back when their encoder is dropped,
//! and no more of them stay than [`IDLE_BYTES_MAX`] allows. What is here is on the pool's account,
//! and what an encoder has is not: without room for what all share a body is coded by a stream.

use crate::encoder::Stream;
use crate::{Coding, Encoder, Failed, GATHER_MAX, Level, deflate, zstd};
use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use units::{Account, Bytes, Held};

/// Bytes of streams and of empty buffers that wait: some twenty streams, which a burst of large
/// responses on one core has under way.
pub const IDLE_BYTES_MAX: usize = 16 << 20;

/// Where encoders come from, and where they leave what the next one can use.
#[derive(Clone, Default)]
pub struct Pool(Rc<RefCell<Shelves>>);

#[derive(Default)]
struct Shelves {
    deflate: deflate::Whole,
    zstd: zstd::Whole,
    streams: Vec<Stream>,
    buffers: Vec<Vec<u8>>,
    idle_bytes: usize,
    /// All of it.
    held: Held,
}

impl Shelves {
    /// Whether there may be so much more.
    fn take(&mut self, bytes: usize) -> bool {
        self.held.grow(self.held.bytes() + Bytes(bytes as u64))
    }

    /// Whether so much more may wait.
    fn keep(&mut self, bytes: usize) -> bool {
        let may = bytes > 0 && self.idle_bytes + bytes <= IDLE_BYTES_MAX && self.take(bytes);
        self.idle_bytes += if may { bytes } else { 0 };
        may
    }

    /// So much does not wait any more.
    fn lend(&mut self, bytes: usize) {
        self.idle_bytes -= bytes;
        self.held.shrink(self.held.bytes().saturating_sub(Bytes(bytes as u64)));
    }
}

impl Pool {
    /// An empty pool.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty pool with an account.
    #[must_use]
    pub fn paid(account: Rc<dyn Account>) -> Self {
        let shelves = Shelves { held: Held::new(Some(account)), ..Shelves::default() };
        Self(Rc::new(RefCell::new(shelves)))
    }

    /// An encoder for one body.
    #[must_use]
    pub fn encoder(&self, coding: Coding, level: Level) -> Encoder {
        let mut shelves = self.0.borrow_mut();
        let buffer = shelves.buffers.pop().unwrap_or_default();
        shelves.lend(buffer.capacity());
        drop(shelves);
        Encoder::begin(self.clone(), coding, level, buffer)
    }

    /// What waits to be used again.
    #[must_use]
    pub fn idle_bytes(&self) -> Bytes {
        Bytes(self.0.borrow().idle_bytes as u64)
    }

    /// Codes a body that is there as a whole.
    pub(crate) fn code(
        &self,
        coding: Coding,
        level: Level,
        body: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), Failed> {
        let mut shelves = self.0.borrow_mut();
        let wants = match coding {
            Coding::Deflate | Coding::Gzip => shelves.deflate.wants(level),
            Coding::Zstd => shelves.zstd.wants(),
            Coding::Brotli => 0,
        };
        if wants > 0 && !shelves.take(wants) {
            drop(shelves);
            let mut stream = self.stream(coding, level)?;
            stream.write(body, out)?;
            stream.finish(out)?;
            self.keep_stream(stream);
            return Ok(());
        }
        match coding {
            Coding::Deflate | Coding::Gzip => shelves.deflate.code(coding, level, body, out),
            Coding::Zstd => shelves.zstd.code(level, body, out),
            Coding::Brotli => {
                let mut stream = crate::brotli::Stream::new(level, Some(body.len()));
                stream.write(body, out)?;
                stream.finish(out)
            }
        }
    }

    pub(crate) fn stream(&self, coding: Coding, level: Level) -> Result<Stream, Failed> {
        let mut shelves = self.0.borrow_mut();
        let Some(at) = shelves.streams.iter().position(|stream| stream.fits(coding)) else {
            drop(shelves);
            return Stream::new(coding, level);
        };
        let mut stream = shelves.streams.swap_remove(at);
        shelves.lend(stream.idle_bytes());
        drop(shelves);
        stream.begin(coding, level)?;
        Ok(stream)
    }

    /// Takes back a stream, at whatever place of its body.
    pub(crate) fn keep_stream(&self, stream: Stream) {
        let mut shelves = self.0.borrow_mut();
        // Brotli's codec cannot begin again.
        if shelves.keep(stream.idle_bytes()) {
            shelves.streams.push(stream);
        }
    }

    pub(crate) fn keep_buffer(&self, mut buffer: Vec<u8>) {
        let mut shelves = self.0.borrow_mut();
        if buffer.capacity() <= GATHER_MAX && shelves.keep(buffer.capacity()) {
            buffer.clear();
            shelves.buffers.push(buffer);
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shelves = self.0.borrow();
        f.debug_struct("Pool")
            .field("streams", &shelves.streams.len())
            .field("buffers", &shelves.buffers.len())
            .field("idle_bytes", &shelves.idle_bytes)
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
    fn what_waits_and_what_all_bodies_share_is_on_an_account() {
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
        encoder.write(&vec![1; 2 * GATHER_MAX], &mut Vec::new()).unwrap();
        let under_way = used();
        drop(encoder);
        assert!(used() > under_way, "a stream waits for the next body");
        drop(pool);
        assert_eq!(used(), 0);
    }

    #[test]
    fn without_room_bodies_are_coded_and_nothing_is_kept() {
        for coding in Coding::ALL {
            let (pool, left) = pool(100);
            let coded = code(&pool, coding);
            assert!(coded.len() < 400, "{coding}: {} bytes", coded.len());
            assert_eq!((left.0.get(), pool.idle_bytes()), (100, Bytes::ZERO), "{coding}");
        }
    }
}
