//! The rooms of all sessions, in a cell's memory: what may wait for each, and what does. The front
//! door's half is `c/room.h`; who writes which field is drawn in `c/tam_maps.h`.

use std::io;
use std::mem::offset_of;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use bpf_maps::{HEAD_BYTES, HEAD_NOT, HEAD_THERE, HEAD_WANTED, ROOMS_MAX, Room as Record};

use crate::mapped::MappedWords;

const WORDS: usize = size_of::<Record>() / 8;
/// A head with its state and its length.
const HEAD_WORDS: usize = 9;

const _: () = {
    let begin = offset_of!(Record, head_state);
    assert!(begin % 8 == 0 && offset_of!(Record, head) + HEAD_BYTES == begin + HEAD_WORDS * 8);
};

/// What a packet began with.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    bytes: [u8; HEAD_BYTES],
    length: usize,
}

impl Head {
    /// Its bytes, as far as there are any.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

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

    /// Whether the front door is to leave what packets begin with for which there is no room.
    pub fn want_heads(&self, number: usize, wanted: bool) {
        if let Some(state) = self.head_state(number) {
            // One that is being written is there in a moment, and nobody reads it.
            state.store(if wanted { HEAD_WANTED } else { HEAD_NOT }, Ordering::Release);
        }
    }

    /// What a packet began with for which there was no room, if one has been left; the next one
    /// may leave its own.
    #[must_use]
    pub fn take_head(&self, number: usize) -> Option<Head> {
        let state = self.head_state(number)?;
        if state.load(Ordering::Acquire) != HEAD_THERE {
            return None;
        }
        let first = number * WORDS + offset_of!(Record, head_state) / 8;
        let mut bytes = [0; HEAD_WORDS * 8];
        for (at, out) in bytes.chunks_exact_mut(8).enumerate() {
            out.copy_from_slice(
                &self.words.word(first + at)?.load(Ordering::Relaxed).to_le_bytes(),
            );
        }
        let from = offset_of!(Record, head) - offset_of!(Record, head_state);
        let at_length = offset_of!(Record, head_length) - offset_of!(Record, head_state);
        let length = usize::from(u16::from_le_bytes([bytes[at_length], bytes[at_length + 1]]));
        let mut head = Head { bytes: [0; HEAD_BYTES], length: length.min(HEAD_BYTES) };
        head.bytes.copy_from_slice(&bytes[from..from + HEAD_BYTES]);
        state.store(HEAD_WANTED, Ordering::Release);
        Some(head)
    }

    fn head_state(&self, number: usize) -> Option<&AtomicU32> {
        let first = number.checked_mul(2 * WORDS)?;
        self.words.half(first + offset_of!(Record, head_state) / 4)
    }
}
