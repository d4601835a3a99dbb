//! What bytes are in between two sockets: pipes, through which many go without coming to user
//! space, and buffers, through which few go with fewer calls of the kernel.

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

/// What is read into a buffer at once: more, and it is as well to pass by a pipe.
pub(crate) const COPIED_MAX: usize = 16 * 1024;

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
}

impl Default for Pipes {
    fn default() -> Self {
        Self { kept: Vec::new(), lent: 0, lent_max: LENT_MAX, buffers: Vec::new() }
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

    /// An empty buffer with room for [`COPIED_MAX`].
    pub(crate) fn buffer(&mut self) -> Vec<u8> {
        self.buffers.pop().unwrap_or_else(|| Vec::with_capacity(COPIED_MAX))
    }

    /// Takes one back.
    pub(crate) fn give_buffer(&mut self, mut buffer: Vec<u8>) {
        if self.buffers.len() < BUFFERS_KEPT_MAX && buffer.capacity() > 0 {
            buffer.clear();
            self.buffers.push(buffer);
        }
    }

    pub(crate) const fn count(&self) -> usize {
        self.kept.len() + self.lent
    }
}
