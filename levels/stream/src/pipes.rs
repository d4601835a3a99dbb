//! Pipes through which bytes go from socket to socket without coming to user space.

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use std::os::fd::OwnedFd;

/// Empty pipes that are kept: a connection has one only while bytes are in it.
const KEPT_MAX: usize = 256;

/// Both ends of one.
pub(crate) struct Pipe {
    pub(crate) read: OwnedFd,
    pub(crate) write: OwnedFd,
}

/// Empty ones.
#[derive(Default)]
pub(crate) struct Pipes {
    kept: Vec<Pipe>,
    lent: usize,
}

impl Pipes {
    /// An empty pipe.
    pub(crate) fn take(&mut self) -> Result<Pipe, Errno> {
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
