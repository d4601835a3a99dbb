//! The rooms of all sessions, in a cell's memory: what may wait for each, and what does. The front
//! door's half is `c/room.h`; who writes which field is drawn in `c/tam_maps.h`.

use std::io;
use std::mem::offset_of;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64};

use bpf_maps::{ROOMS_MAX, Room as Record};

use crate::mapped::MappedWords;

const WORDS: usize = size_of::<Record>() / 8;

/// The rooms of all sessions, and the one that some of them share.
#[derive(Debug)]
pub struct Rooms {
    words: MappedWords,
}

/// The words of one room.
#[derive(Clone, Copy, Debug)]
pub struct Room<'a> {
    /// Bytes that may wait; with 0 the front door counts nothing.
    pub most: &'a AtomicU64,
    /// Bytes that were given to user level, by the last bit of the epoch.
    pub sent: [&'a AtomicU64; 2],
    /// Packets for which the front door found no room.
    pub dropped: &'a AtomicU64,
    /// In which of the two what is sent up counts.
    pub epoch: &'a AtomicU32,
    /// Not 0: it counts in the shared room, too.
    pub shared: &'a AtomicU32,
    /// Bytes that the cell is done with.
    pub done: &'a AtomicU64,
}

impl Rooms {
    /// Maps them in another process, which got the map's descriptor from the one that made it.
    ///
    /// # Errors
    /// When the kernel does not map so much of it.
    pub fn given(fd: &OwnedFd) -> io::Result<Self> {
        Ok(Self { words: MappedWords::new(fd.as_fd(), ROOMS_MAX * WORDS)? })
    }

    /// The room of that number; `None` above the last.
    #[must_use]
    pub fn room(&self, number: usize) -> Option<Room<'_>> {
        let first = number.checked_mul(WORDS)?;
        let word = |at: usize| self.words.word(first + at / 8);
        let half = |at: usize| self.words.half(2 * first + at / 4);
        let sent = offset_of!(Record, sent);
        Some(Room {
            most: word(offset_of!(Record, most))?,
            sent: [word(sent)?, word(sent + 8)?],
            dropped: word(offset_of!(Record, dropped))?,
            epoch: half(offset_of!(Record, epoch))?,
            shared: half(offset_of!(Record, shared))?,
            done: word(offset_of!(Record, done))?,
        })
    }
}
