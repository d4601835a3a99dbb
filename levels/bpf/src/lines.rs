//! Accounts of shares of ports, in a cell's memory: what it sends pays from the same ones as what
//! modules below send (`c/share.h`).

use std::io;
use std::mem::offset_of;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use bpf_maps::{Account, FUEL_SHIFT, LINES_MAX, Line as Record};

use crate::mapped::MappedWords;

const WORDS: usize = size_of::<Record>() / 8;

/// The accounts of all shares of ports.
#[derive(Debug)]
pub struct Lines {
    words: MappedWords,
}

/// Packets and bytes that left straight from below.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SentBelow {
    /// Packets.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Lines {
    /// Maps them in another process, which got the map's descriptor from the one that made it.
    ///
    /// # Errors
    /// When the kernel does not map so much of it.
    pub fn given(fd: &OwnedFd) -> io::Result<Self> {
        Ok(Self { words: MappedWords::new(fd.as_fd(), LINES_MAX * WORDS)? })
    }

    fn word(&self, index: u32, field: usize) -> Option<&AtomicU64> {
        self.words.word(index as usize * WORDS + field / 8)
    }

    fn load(&self, index: u32, field: usize) -> u64 {
        self.word(index, field).map_or(0, |word| word.load(Ordering::SeqCst))
    }

    /// Has an account pay for a packet of so many bytes, and of so many beside it on the wire; it
    /// was with a module at `kernel`, or at user level. It may owe, but no more than it holds:
    /// what nobody else wanted is not to be given back.
    pub fn pay(&self, index: u32, bytes: u64, beside: u64, is_of_kernel: bool) {
        let sent = match is_of_kernel {
            true => offset_of!(Record, sent_up),
            false => offset_of!(Record, sent_above),
        };
        let (Some(left), Some(sent)) =
            (self.word(index, offset_of!(Account, left)), self.word(index, sent))
        else {
            return;
        };
        let price = (bytes + beside) << FUEL_SHIFT;
        let after = left.fetch_sub(price, Ordering::Relaxed).wrapping_sub(price) as i64;
        let full = self.load(index, offset_of!(Account, full));
        if after < 0 && after.unsigned_abs() > full {
            left.fetch_add(after.unsigned_abs() - full, Ordering::Relaxed);
        }
        sent.fetch_add(bytes, Ordering::Relaxed);
    }

    /// How many packets of modules at `kernel` went to wait, by the last bit of the epoch.
    #[must_use]
    pub fn up(&self, index: u32) -> [u64; 2] {
        [0, 8].map(|at| self.load(index, offset_of!(Record, up) + at))
    }

    /// Says how many of them do not wait any more. Whoever sees it sees the device have them.
    pub fn set_gone(&self, index: u32, gone: u64) {
        if let Some(word) = self.word(index, offset_of!(Record, gone)) {
            word.store(gone, Ordering::SeqCst);
        }
    }

    /// What left straight from below.
    #[must_use]
    pub fn sent_below(&self, index: u32) -> SentBelow {
        let sent = offset_of!(Account, sent);
        SentBelow {
            packets: self.load(index, offset_of!(Account, packets)),
            bytes: self.load(index, sent).wrapping_add(self.load(index, sent + 8)),
        }
    }
}
