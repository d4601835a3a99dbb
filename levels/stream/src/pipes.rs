//! Pipes through which bytes go from socket to socket without coming to user space.

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use std::os::fd::OwnedFd;

/// Empty pipes that are kept: a connection has one only while bytes are in it.
const KEPT_MAX: usize = 256;

/// Those that are in use at most: beyond, bytes are copied, and descriptors are for connections.
const LENT_MAX: usize = 2048;

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
}

impl Default for Pipes {
    fn default() -> Self {
        Self { kept: Vec::new(), lent: 0, lent_max: LENT_MAX }
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

    pub(crate) const fn count(&self) -> usize {
        self.kept.len() + self.lent
    }
}
