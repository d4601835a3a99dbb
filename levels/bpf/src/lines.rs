//! Accounts of shares of ports, in a cell's memory: what it sends pays from the same ones as what
//! modules below send (`c/share.h`).

use std::io;
use std::mem::offset_of;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;

use bpf_maps::{Account, FUEL_SHIFT, LINES_MAX};

use crate::mapped::MappedWords;

const WORDS: usize = size_of::<Account>() / 8;

/// The accounts of all shares of ports.
#[derive(Debug)]
pub struct Lines {
    words: MappedWords,
}

impl Lines {
    /// Maps them in another process, which got the map's descriptor from the one that made it.
    ///
    /// # Errors
    /// When the kernel does not map so much of it.
    pub fn given(fd: &OwnedFd) -> io::Result<Self> {
        Ok(Self { words: MappedWords::new(fd.as_fd(), LINES_MAX * WORDS)? })
    }

    /// Has an account pay for a packet of so many bytes, and of so many beside it on the wire. It
    /// may owe.
    pub fn pay(&self, index: u32, bytes: u64, beside: u64) {
        let word = |field: usize| self.words.word(index as usize * WORDS + field / 8);
        if let (Some(left), Some(sent)) =
            (word(offset_of!(Account, left)), word(offset_of!(Account, sent_above)))
        {
            left.fetch_sub((bytes + beside) << FUEL_SHIFT, Ordering::Relaxed);
            sent.fetch_add(bytes, Ordering::Relaxed);
        }
    }
}
