//! Encoder of one body: buffered while it is small, then streamed.

use crate::{Coding, Failed, Level, Pool, brotli, deflate, memory, zstd};
use std::fmt;
use std::mem;
use units::Bytes;

/// Bytes that are buffered before a body gets a stream of its own. zlib outputs its first block
/// after 16,384 symbols, about as many bytes of text; so buffering adds little delay.
pub const BUFFERED_MAX: usize = 64 * 1024;

/// Returns the largest coded length of a body of `body_length` bytes with `flushes` flushes,
/// whatever its content: incompressible data is stored, with a header for each block.
#[must_use]
pub const fn coded_length_max(body_length: usize, flushes: usize) -> usize {
    // Headers, checksums and trailers of a format: at most 18 bytes. A stored block has 5 bytes
    // before at least 4 KiB; a flush or a change of level ends a block and adds another one.
    64 + body_length + body_length / 512 + 32 * flushes
}

/// Encoder of one body. When dropped, its parts return to their pool, at any point of the body.
pub struct Encoder {
    pool: Pool,
    coding: Coding,
    level: Level,
    phase: Phase,
}

enum Phase {
    /// Buffering; the input so far.
    Buffering(Vec<u8>),
    Streaming {
        stream: Stream,
        /// True if there was input since the last flush.
        is_unflushed: bool,
    },
    /// Finished or failed.
    Ended,
}

impl Encoder {
    /// Creates an encoder with a pool of its own: for a single body. [`Pool::encoder`] is for many.
    #[must_use]
    pub fn new(coding: Coding, level: Level) -> Self {
        Pool::new().encoder(coding, level)
    }

    pub(crate) const fn begin(pool: Pool, coding: Coding, level: Level, buffer: Vec<u8>) -> Self {
        Self { pool, coding, level, phase: Phase::Buffering(buffer) }
    }

    /// Encodes a part of the body; appends the output so far to `out`.
    ///
    /// # Errors
    /// The codec failed, or the body has been finished.
    pub fn write(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<(), Failed> {
        if input.is_empty() {
            return Ok(());
        }
        if let Phase::Buffering(buffer) = &mut self.phase
            && buffer.len() + input.len() <= BUFFERED_MAX
        {
            // Vec doubles its capacity: a body in many parts is moved a few times at most.
            buffer.reserve_exact(growth(buffer, input.len()));
            buffer.extend_from_slice(input);
            return Ok(());
        }
        let written = self.stream(out).and_then(|(stream, is_unflushed)| {
            *is_unflushed = true;
            stream.write(input, out)
        });
        self.or_end(written)
    }

    /// Outputs everything written so far: the receiver can decode it before more follows. For a
    /// body whose sender pauses; otherwise there is no output before 64 KiB of input, or its end.
    ///
    /// # Errors
    /// The same as of [`Encoder::write`].
    pub fn flush(&mut self, out: &mut Vec<u8>) -> Result<(), Failed> {
        if matches!(&self.phase, Phase::Buffering(buffer) if buffer.is_empty()) {
            return Ok(());
        }
        let flushed = self.stream(out).and_then(|(stream, is_unflushed)| {
            if mem::take(is_unflushed) { stream.flush(out) } else { Ok(()) }
        });
        self.or_end(flushed)
    }

    /// Ends the body: the output is complete then. An empty body has some bytes of output in every
    /// coding.
    ///
    /// # Errors
    /// The same as of [`Encoder::write`].
    pub fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), Failed> {
        match mem::replace(&mut self.phase, Phase::Ended) {
            Phase::Buffering(buffer) => {
                let coded = self.pool.code(self.coding, self.level, &buffer, out);
                self.pool.keep_buffer(buffer);
                coded
            }
            Phase::Streaming { mut stream, .. } => {
                stream.finish(out)?;
                self.pool.keep_stream(stream);
                Ok(())
            }
            Phase::Ended => Err(self.has_ended()),
        }
    }

    /// Changes the level from here on, and returns the level in effect. A buffered body takes any
    /// level; of streams only gzip and deflate can change, others keep theirs.
    ///
    /// # Errors
    /// The same as of [`Encoder::write`].
    pub fn set_level(&mut self, level: Level, out: &mut Vec<u8>) -> Result<Level, Failed> {
        let changed = match &mut self.phase {
            Phase::Buffering(_) => Ok(true),
            Phase::Streaming { stream: Stream::Deflate(stream), .. } => {
                stream.set_level(level, out).map(|()| true)
            }
            Phase::Streaming { .. } | Phase::Ended => Ok(false),
        };
        let changed = changed.inspect_err(|_| self.phase = Phase::Ended)?;
        if changed {
            self.level = level;
        }
        Ok(self.level)
    }

    /// Returns the coding.
    #[must_use]
    pub const fn coding(&self) -> Coding {
        self.coding
    }

    /// Returns the level.
    #[must_use]
    pub const fn level(&self) -> Level {
        self.level
    }

    /// Returns the memory held now: at most [`memory_bytes`](crate::memory_bytes) of its coding and
    /// level.
    #[must_use]
    pub fn memory_bytes(&self) -> Bytes {
        match &self.phase {
            Phase::Buffering(buffer) => Bytes(buffer.capacity() as u64),
            Phase::Streaming { .. } => memory::memory_bytes(self.coding, self.level),
            Phase::Ended => Bytes::ZERO,
        }
    }

    /// Returns the stream; creates it from the buffered input if there is none.
    fn stream(&mut self, out: &mut Vec<u8>) -> Result<(&mut Stream, &mut bool), Failed> {
        if let Phase::Buffering(buffer) = &mut self.phase {
            let buffer = mem::take(buffer);
            let mut stream = self.pool.stream(self.coding, self.level)?;
            stream.write(&buffer, out)?;
            self.pool.keep_buffer(buffer);
            self.phase = Phase::Streaming { stream, is_unflushed: true };
        }
        match &mut self.phase {
            Phase::Streaming { stream, is_unflushed } => Ok((stream, is_unflushed)),
            Phase::Buffering(_) | Phase::Ended => {
                Err(Failed { coding: self.coding, reason: ENDED })
            }
        }
    }

    /// Marks the body as ended if the codec failed.
    fn or_end(&mut self, result: Result<(), Failed>) -> Result<(), Failed> {
        result.inspect_err(|_| self.phase = Phase::Ended)
    }

    const fn has_ended(&self) -> Failed {
        Failed { coding: self.coding, reason: ENDED }
    }
}

const ENDED: &str = "the body has ended";

/// Returns the capacity to reserve for `length` more bytes: twice the present one, at most the
/// buffering limit.
fn growth(buffer: &Vec<u8>, length: usize) -> usize {
    let needed = buffer.len() + length;
    if needed <= buffer.capacity() {
        return 0;
    }
    needed.max(2 * buffer.capacity()).min(BUFFERED_MAX) - buffer.len()
}

impl Drop for Encoder {
    fn drop(&mut self) {
        match mem::replace(&mut self.phase, Phase::Ended) {
            Phase::Buffering(buffer) => self.pool.keep_buffer(buffer),
            Phase::Streaming { stream, .. } => self.pool.keep_stream(stream),
            Phase::Ended => {}
        }
    }
}

impl fmt::Debug for Encoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let phase = match &self.phase {
            Phase::Buffering(_) => "gathering",
            Phase::Streaming { .. } => "streaming",
            Phase::Ended => "ended",
        };
        f.debug_struct("Encoder")
            .field("coding", &self.coding)
            .field("level", &self.level)
            .field("phase", &phase)
            .finish_non_exhaustive()
    }
}

/// Codec state of a streamed body.
pub(crate) enum Stream {
    Deflate(deflate::Stream),
    Brotli(brotli::Stream),
    Zstd(zstd::Stream),
}

impl Stream {
    pub(crate) fn new(coding: Coding, level: Level) -> Result<Self, Failed> {
        Ok(match coding {
            Coding::Deflate | Coding::Gzip => Self::Deflate(deflate::Stream::new(coding, level)),
            Coding::Brotli => Self::Brotli(brotli::Stream::new(level, None)),
            Coding::Zstd => Self::Zstd(zstd::Stream::new(level)?),
        })
    }

    /// Returns true if the stream can be reused for a body of this coding.
    pub(crate) fn fits(&self, coding: Coding) -> bool {
        match self {
            Self::Deflate(_) => matches!(coding, Coding::Deflate | Coding::Gzip),
            Self::Brotli(_) => false,
            Self::Zstd(_) => coding == Coding::Zstd,
        }
    }

    pub(crate) fn restart(&mut self, coding: Coding, level: Level) -> Result<(), Failed> {
        match self {
            Self::Deflate(stream) => stream.restart(coding, level),
            Self::Brotli(stream) => {
                *stream = brotli::Stream::new(level, None);
                Ok(())
            }
            Self::Zstd(stream) => stream.restart(level),
        }
    }

    /// Returns the memory of an idle stream, or 0 if it is not worth keeping.
    pub(crate) fn idle_bytes(&self) -> usize {
        match self {
            Self::Deflate(_) => memory::DEFLATE,
            Self::Brotli(_) => 0,
            Self::Zstd(stream) => stream.memory_bytes(),
        }
    }

    pub(crate) fn write(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<(), Failed> {
        match self {
            Self::Deflate(stream) => stream.write(input, out),
            Self::Brotli(stream) => stream.write(input, out),
            Self::Zstd(stream) => stream.write(input, out),
        }
    }

    fn flush(&mut self, out: &mut Vec<u8>) -> Result<(), Failed> {
        match self {
            Self::Deflate(stream) => stream.flush(out),
            Self::Brotli(stream) => stream.flush(out),
            Self::Zstd(stream) => stream.flush(out),
        }
    }

    pub(crate) fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), Failed> {
        match self {
            Self::Deflate(stream) => stream.finish(out),
            Self::Brotli(stream) => stream.finish(out),
            Self::Zstd(stream) => stream.finish(out),
        }
    }
}
