//! Accounts of port shares, in a cell's memory: the cell charges its packets to the same accounts
//! as modules below (`c/share.h`).

use std::io;
use std::mem::offset_of;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use bpf_maps::{Account, FUEL_SHIFT, LINES_MAX, PortShare as Record};

use crate::mapped::MappedWords;

const WORDS: usize = size_of::<Record>() / 8;

/// Accounts of all port shares.
#[derive(Debug)]
pub struct PortShares {
    words: MappedWords,
}

/// Packets and bytes that left directly from below user level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SentBelow {
    /// Number of packets.
    pub packets: u64,
    /// Bytes of the packets.
    pub bytes: u64,
}

impl PortShares {
    /// Maps the accounts in another process, which got the map's descriptor from the one that made
    /// it.
    ///
    /// # Errors
    /// The kernel does not map that much of it.
    pub fn from_fd(fd: &OwnedFd) -> io::Result<Self> {
        Ok(Self { words: MappedWords::new(fd.as_fd(), LINES_MAX * WORDS)? })
    }

    fn word(&self, index: u32, field: usize) -> Option<&AtomicU64> {
        self.words.word(index as usize * WORDS + field / 8)
    }

    fn load(&self, index: u32, field: usize) -> u64 {
        self.word(index, field).map_or(0, |word| word.load(Ordering::SeqCst))
    }

    /// Charges a packet of `bytes`, with `beside` bytes of overhead on the wire, to an account; the
    /// packet came from a module at `kernel`, or at user level. The balance may become negative,
    /// but by no more than the capacity: unused rate of others is not paid back.
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

    /// Returns the number of packets of modules at `kernel` that went to wait, by the last bit of
    /// the epoch.
    #[must_use]
    pub fn up(&self, index: u32) -> [u64; 2] {
        [0, 8].map(|at| self.load(index, offset_of!(Record, up) + at))
    }

    /// Sets the number of them that do not wait any more. A reader that sees it also sees that the
    /// device has them.
    pub fn set_gone(&self, index: u32, gone: u64) {
        if let Some(word) = self.word(index, offset_of!(Record, gone)) {
            word.store(gone, Ordering::SeqCst);
        }
    }

    /// Returns the packets and bytes that left directly from below.
    #[must_use]
    pub fn sent_below(&self, index: u32) -> SentBelow {
        let sent = offset_of!(Account, sent);
        SentBelow {
            packets: self.load(index, offset_of!(Account, packets)),
            bytes: self.load(index, sent).wrapping_add(self.load(index, sent + 8)),
        }
    }
}
