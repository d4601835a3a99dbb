//! Queue credits of all sessions, in a cell's memory: the limit of each queue, and its length. The
//! front door's half is `c/credits.h`; `c/tam_maps.h` draws the writer of each field.

use std::io;
use std::mem::offset_of;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use bpf_maps::{HEAD_BYTES, HEAD_NOT, HEAD_THERE, HEAD_WANTED, QueueCredits as Record, ROOMS_MAX};

use crate::mapped::MappedWords;

const WORDS: usize = size_of::<Record>() / 8;
/// Words of a head with its state and its length.
const HEAD_WORDS: usize = 9;

const _: () = {
    let begin = offset_of!(Record, head_state);
    assert!(begin % 8 == 0 && offset_of!(Record, head) + HEAD_BYTES == begin + HEAD_WORDS * 8);
};

/// Beginning of a dropped packet.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    bytes: [u8; HEAD_BYTES],
    length: usize,
}

impl Head {
    /// Returns its bytes, as far as there are any.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// Queue credits of all sessions, and the record that some of them share.
#[derive(Debug)]
pub struct CreditTable {
    words: MappedWords,
}

/// Words of one session's record.
#[derive(Clone, Copy, Debug)]
pub struct CreditRecord<'a> {
    /// Limit of the queue in bytes; with 0 the front door counts nothing.
    pub most: &'a AtomicU64,
    /// Bytes given to user level, by the last bit of the epoch.
    pub sent: [&'a AtomicU64; 2],
    /// Packets that the front door dropped for lack of credit.
    pub dropped: &'a AtomicU64,
    /// Epoch, which selects the counter of `sent`.
    pub epoch: &'a AtomicU32,
    /// Not 0: packets count in the shared record, too.
    pub shared: &'a AtomicU32,
    /// Bytes that the cell has released.
    pub done: &'a AtomicU64,
}

impl CreditTable {
    /// Maps the records in another process, which got the map's descriptor from the one that made
    /// it.
    ///
    /// # Errors
    /// The kernel does not map that much of it.
    pub fn from_fd(fd: &OwnedFd) -> io::Result<Self> {
        Ok(Self { words: MappedWords::new(fd.as_fd(), ROOMS_MAX * WORDS)? })
    }

    /// Returns the record of that number; `None` above the last.
    #[must_use]
    pub fn room(&self, number: usize) -> Option<CreditRecord<'_>> {
        let first = number.checked_mul(WORDS)?;
        let word = |at: usize| self.words.word(first + at / 8);
        let half = |at: usize| self.words.half(2 * first + at / 4);
        let sent = offset_of!(Record, sent);
        Some(CreditRecord {
            most: word(offset_of!(Record, most))?,
            sent: [word(sent)?, word(sent + 8)?],
            dropped: word(offset_of!(Record, dropped))?,
            epoch: half(offset_of!(Record, epoch))?,
            shared: half(offset_of!(Record, shared))?,
            done: word(offset_of!(Record, done))?,
        })
    }

    /// Sets whether the front door is to save the beginning of packets dropped for lack of credit.
    pub fn want_heads(&self, number: usize, wanted: bool) {
        if let Some(state) = self.head_state(number) {
            // A head that is being written is complete in a moment, and is not read.
            state.store(if wanted { HEAD_WANTED } else { HEAD_NOT }, Ordering::Release);
        }
    }

    /// Takes the beginning of a packet dropped for lack of credit, if one was saved; the next one
    /// may save its own.
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
