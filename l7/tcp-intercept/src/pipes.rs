//! What bytes are in between two sockets: pipes, through which they go without coming to user
//! space, and buffers, for few, and for those that come in many small pieces: a pipe has 16 places,
//! and a buffer takes four times as many bytes of segments in one call.

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use std::os::fd::OwnedFd;

/// Empty pipes that are kept: a connection has one only while bytes are in it.
const KEPT_MAX: usize = 256;

/// Those that are in use at most: beyond, bytes are copied, and descriptors are for connections.
const LENT_MAX: usize = 2048;

/// Empty buffers that are kept: a connection has one only while its receiver does not take what is
/// in it.
const BUFFERS_KEPT_MAX: usize = 64;

/// What is read into a buffer at once.
pub(crate) const COPIED_MAX: usize = 64 * 1024;
/// The same while more than [`LENT_MAX`] wait for their receivers.
const COPIED_LITTLE_MAX: usize = 16 * 1024;

/// Both ends of one.
pub(crate) struct Pipe {
    pub(crate) read: OwnedFd,
    pub(crate) write: OwnedFd,
}

/// Empty ones.
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
    /// As if there were no descriptor for any.
    #[cfg(test)]
    pub(crate) fn none() -> Self {
        Self { lent_max: 0, ..Self::default() }
    }

    /// An empty pipe; as without a free descriptor when too many are in use.
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

    /// Takes back one that is empty.
    pub(crate) fn give(&mut self, pipe: Pipe) {
        self.lent -= 1;
        if self.kept.len() < KEPT_MAX {
            self.kept.push(pipe);
        }
    }

    /// One with bytes in it is nobody's any more.
    pub(crate) fn close(&mut self, pipe: Pipe) {
        self.lent -= 1;
        drop(pipe);
    }

    /// An empty buffer with room for [`COPIED_MAX`], or less when too many are in use.
    pub(crate) fn buffer(&mut self) -> Vec<u8> {
        let is_many = self.buffers_lent >= LENT_MAX;
        self.buffers_lent += 1;
        match self.buffers.pop() {
            Some(buffer) => buffer,
            None if is_many => Vec::with_capacity(COPIED_LITTLE_MAX),
            None => Vec::with_capacity(COPIED_MAX),
        }
    }

    /// Takes one back, if it is one.
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
