//! Codecs that wait for their next body, so that a response costs no large allocation.
//!
//! One pool belongs to one thread. What codes whole bodies is there once, at most
//! [`SHARED_BYTES_MAX`](crate::SHARED_BYTES_MAX); streams come back when their encoder is dropped,
//! and no more of them stay than [`IDLE_BYTES_MAX`] allows.

use crate::encoder::Stream;
use crate::{Coding, Encoder, Failed, GATHER_MAX, Level, deflate, zstd};
use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use units::Bytes;

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
}

impl Pool {
    /// An empty pool.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// An encoder for one body.
    #[must_use]
    pub fn encoder(&self, coding: Coding, level: Level) -> Encoder {
        let mut shelves = self.0.borrow_mut();
        let buffer = shelves.buffers.pop().unwrap_or_default();
        shelves.idle_bytes -= buffer.capacity();
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
        shelves.idle_bytes -= stream.idle_bytes();
        drop(shelves);
        stream.begin(coding, level)?;
        Ok(stream)
    }

    /// Takes back a stream, at whatever place of its body.
    pub(crate) fn keep_stream(&self, stream: Stream) {
        let mut shelves = self.0.borrow_mut();
        // Brotli's codec cannot begin again.
        let bytes = stream.idle_bytes();
        if bytes > 0 && shelves.idle_bytes + bytes <= IDLE_BYTES_MAX {
            shelves.idle_bytes += bytes;
            shelves.streams.push(stream);
        }
    }

    pub(crate) fn keep_buffer(&self, mut buffer: Vec<u8>) {
        let mut shelves = self.0.borrow_mut();
        let bytes = buffer.capacity();
        if bytes > 0 && bytes <= GATHER_MAX && shelves.idle_bytes + bytes <= IDLE_BYTES_MAX {
            buffer.clear();
            shelves.idle_bytes += bytes;
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
