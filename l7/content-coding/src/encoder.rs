//! One body under way: gathered while it is small, then a stream.

use crate::{Coding, Failed, Level, Pool, brotli, deflate, memory, zstd};
use std::fmt;
use std::mem;
use units::Bytes;

/// Bytes that are gathered before a body gets a stream of its own. zlib gives out its first block
/// after 16,384 symbols, which are about as many bytes of text; so nobody waits longer.
pub const GATHER_MAX: usize = 64 * 1024;

/// The most that a body of so many bytes becomes, with so many flushes between, whatever is in
/// it: what cannot be made smaller is stored, with a head for each block.
#[must_use]
pub const fn coded_length_max(body_length: usize, flushes: usize) -> usize {
    // Heads, sums and ends of a format: at most 18 bytes. A stored block has 5 bytes in front
    // of at least 4 KiB; a flush or a change of level ends a block and adds another one.
    64 + body_length + body_length / 512 + 32 * flushes
}

/// Codes one body. When it is dropped its parts go back to their pool, wherever it was.
pub struct Encoder {
    pool: Pool,
    coding: Coding,
    level: Level,
    phase: Phase,
}

enum Phase {
    /// All that has come.
    Gathering(Vec<u8>),
    Streaming {
        stream: Stream,
        /// Something has come since the last flush.
        is_dirty: bool,
    },
    /// It has been finished, or has given up.
    Ended,
}

impl Encoder {
    /// With a pool of its own: for a single body. [`Pool::encoder`] is for many.
    #[must_use]
    pub fn new(coding: Coding, level: Level) -> Self {
        Pool::new().encoder(coding, level)
    }

    pub(crate) const fn begin(pool: Pool, coding: Coding, level: Level, buffer: Vec<u8>) -> Self {
        Self { pool, coding, level, phase: Phase::Gathering(buffer) }
    }

    /// Takes a part of the body; what is coded of it so far goes behind `out`.
    ///
    /// # Errors
    /// When the codec gives up, or the body has been finished.
    pub fn write(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<(), Failed> {
        if input.is_empty() {
            return Ok(());
        }
        if let Phase::Gathering(buffer) = &mut self.phase
            && buffer.len() + input.len() <= GATHER_MAX
        {
            // Vec doubles its room: what comes in many parts is moved a few times at most.
            buffer.reserve_exact(room(buffer, input.len()));
            buffer.extend_from_slice(input);
            return Ok(());
        }
        let written = self.stream(out).and_then(|(stream, is_dirty)| {
            *is_dirty = true;
            stream.write(input, out)
        });
        self.or_end(written)
    }

    /// Gives out everything that has come: its receiver can decode it before more follows. It is
    /// for a body whose sender pauses; nothing of it is given out by itself before 64 KiB of it
    /// have come, or it ends.
    ///
    /// # Errors
    /// As [`Encoder::write`].
    pub fn flush(&mut self, out: &mut Vec<u8>) -> Result<(), Failed> {
        if matches!(&self.phase, Phase::Gathering(buffer) if buffer.is_empty()) {
            return Ok(());
        }
        let flushed =
            self.stream(out).and_then(
                |(stream, is_dirty)| {
                    if mem::take(is_dirty) { stream.flush(out) } else { Ok(()) }
                },
            );
        self.or_end(flushed)
    }

    /// Ends the body: what has been given out is whole then. An empty body is one, too, and has
    /// some bytes in every coding.
    ///
    /// # Errors
    /// As [`Encoder::write`].
    pub fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), Failed> {
        match mem::replace(&mut self.phase, Phase::Ended) {
            Phase::Gathering(buffer) => {
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

    /// Changes the level from here on. A body that is still gathered takes any; of streams only
    /// gzip and deflate can, the others keep theirs. Says which level it has now.
    ///
    /// # Errors
    /// As [`Encoder::write`].
    pub fn set_level(&mut self, level: Level, out: &mut Vec<u8>) -> Result<Level, Failed> {
        let changed = match &mut self.phase {
            Phase::Gathering(_) => Ok(true),
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

    /// Which coding it is.
    #[must_use]
    pub const fn coding(&self) -> Coding {
        self.coding
    }

    /// Which level it has.
    #[must_use]
    pub const fn level(&self) -> Level {
        self.level
    }

    /// What it holds now: at most [`memory_bytes`](crate::memory_bytes) of its coding and level.
    #[must_use]
    pub fn memory_bytes(&self) -> Bytes {
        match &self.phase {
            Phase::Gathering(buffer) => Bytes(buffer.capacity() as u64),
            Phase::Streaming { .. } => memory::memory_bytes(self.coding, self.level),
            Phase::Ended => Bytes::ZERO,
        }
    }

    /// The stream, which begins with what has been gathered.
    fn stream(&mut self, out: &mut Vec<u8>) -> Result<(&mut Stream, &mut bool), Failed> {
        if let Phase::Gathering(buffer) = &mut self.phase {
            let buffer = mem::take(buffer);
            let mut stream = self.pool.stream(self.coding, self.level)?;
            stream.write(&buffer, out)?;
            self.pool.keep_buffer(buffer);
            self.phase = Phase::Streaming { stream, is_dirty: true };
        }
        match &mut self.phase {
            Phase::Streaming { stream, is_dirty } => Ok((stream, is_dirty)),
            Phase::Gathering(_) | Phase::Ended => {
                Err(Failed { coding: self.coding, reason: ENDED })
            }
        }
    }

    /// A codec that has given up is not asked again.
    fn or_end(&mut self, result: Result<(), Failed>) -> Result<(), Failed> {
        result.inspect_err(|_| self.phase = Phase::Ended)
    }

    const fn has_ended(&self) -> Failed {
        Failed { coding: self.coding, reason: ENDED }
    }
}

const ENDED: &str = "the body has ended";

/// What a buffer has to grow by to take `length` more: twice what it has, but never beyond the
/// most that is gathered.
fn room(buffer: &Vec<u8>, length: usize) -> usize {
    let needed = buffer.len() + length;
    if needed <= buffer.capacity() {
        return 0;
    }
    needed.max(2 * buffer.capacity()).min(GATHER_MAX) - buffer.len()
}

impl Drop for Encoder {
    fn drop(&mut self) {
        match mem::replace(&mut self.phase, Phase::Ended) {
            Phase::Gathering(buffer) => self.pool.keep_buffer(buffer),
            Phase::Streaming { stream, .. } => self.pool.keep_stream(stream),
            Phase::Ended => {}
        }
    }
}

impl fmt::Debug for Encoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let phase = match &self.phase {
            Phase::Gathering(_) => "gathering",
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

/// A codec in the middle of a body.
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

    /// Whether it can begin a body of this coding.
    pub(crate) fn fits(&self, coding: Coding) -> bool {
        match self {
            Self::Deflate(_) => matches!(coding, Coding::Deflate | Coding::Gzip),
            Self::Brotli(_) => false,
            Self::Zstd(_) => coding == Coding::Zstd,
        }
    }

    pub(crate) fn begin(&mut self, coding: Coding, level: Level) -> Result<(), Failed> {
        match self {
            Self::Deflate(stream) => stream.begin(coding, level),
            Self::Brotli(stream) => {
                *stream = brotli::Stream::new(level, None);
                Ok(())
            }
            Self::Zstd(stream) => stream.begin(level),
        }
    }

    /// What it has while it waits, or 0 if it is not worth keeping.
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
