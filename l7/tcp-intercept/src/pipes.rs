//! Storage for bytes between two sockets: pipes, which keep the bytes out of user space, and
//! buffers, for small amounts and for many small segments: a pipe has 16 slots, and a buffer takes
//! four times as many bytes of segments in one call.

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use std::os::fd::OwnedFd;

/// Empty pipes kept for reuse: a connection has one only while bytes are in it.
const KEPT_MAX: usize = 256;

/// Pipes in use at most. Beyond, bytes are copied, which leaves file descriptors for connections.
const LENT_MAX: usize = 2048;

/// Empty buffers kept for reuse: a connection has one only while its receiver is not ready.
const BUFFERS_KEPT_MAX: usize = 64;

/// Capacity of a buffer.
pub(crate) const COPIED_MAX: usize = 64 * 1024;
/// Capacity of a buffer while more than [`LENT_MAX`] are in use.
const COPIED_SMALL_MAX: usize = 16 * 1024;

/// Read and write end of a pipe.
pub(crate) struct Pipe {
    pub(crate) read: OwnedFd,
    pub(crate) write: OwnedFd,
}

/// Pools of empty pipes and buffers.
pub(crate) struct Pipes {
    kept: Vec<Pipe>,
    lent: usize,
    lent_max: usize,
    buffers: Vec<Vec<u8>>,
    buffers_lent: usize,
}

impl Default for Pipes {
    fn default() -> Self {
        let (kept, buffers) = (Vec::new(), Vec::new());
        Self { kept, lent: 0, lent_max: LENT_MAX, buffers, buffers_lent: 0 }
    }
}

impl Pipes {
    /// Creates a pool that behaves as if no file descriptor were free.
    #[cfg(test)]
    pub(crate) fn none() -> Self {
        Self { lent_max: 0, ..Self::default() }
    }

    /// Takes an empty pipe. Fails with `EMFILE` also if too many are in use.
    pub(crate) fn take(&mut self) -> Result<Pipe, Errno> {
        if self.lent >= self.lent_max {
            return Err(Errno::MFILE);
        }
        let pipe = match self.kept.pop() {
            Some(pipe) => pipe,
            None => {
                let (read, write) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC)?;
                Pipe { read, write }
            }
        };
        self.lent += 1;
        Ok(pipe)
    }

    /// Returns an empty pipe to the pool.
    pub(crate) fn give(&mut self, pipe: Pipe) {
        self.lent -= 1;
        if self.kept.len() < KEPT_MAX {
            self.kept.push(pipe);
        }
    }

    /// Closes a pipe that still holds bytes.
    pub(crate) fn close(&mut self, pipe: Pipe) {
        self.lent -= 1;
        drop(pipe);
    }

    /// Takes an empty buffer with [`COPIED_MAX`] bytes of capacity, or less if too many are in use.
    pub(crate) fn buffer(&mut self) -> Vec<u8> {
        let is_busy = self.buffers_lent >= LENT_MAX;
        self.buffers_lent += 1;
        match self.buffers.pop() {
            Some(buffer) => buffer,
            None if is_busy => Vec::with_capacity(COPIED_SMALL_MAX),
            None => Vec::with_capacity(COPIED_MAX),
        }
    }

    /// Returns a buffer to the pool; ignores one without memory.
    pub(crate) fn give_buffer(&mut self, mut buffer: Vec<u8>) {
        if buffer.capacity() == 0 {
            return;
        }
        self.buffers_lent -= 1;
        if self.buffers.len() < BUFFERS_KEPT_MAX && buffer.capacity() >= COPIED_MAX {
            buffer.clear();
            self.buffers.push(buffer);
        }
    }

    pub(crate) const fn count(&self) -> usize {
        self.kept.len() + self.lent
    }
}
