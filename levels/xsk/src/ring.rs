//! The four rings of a socket: single producer, single consumer, shared with the kernel.
//!
//! ```text
//!          consumer ─▶            producer ─▶
//!  ┌───────┬──────────────────────┬─────────┐
//!  │ free  │ entries to be read   │ free    │   indices count up and wrap at 2^32,
//!  └───────┴──────────────────────┴─────────┘   slot = index & mask
//! ```
//!
//! The kernel side is `net/xdp/xsk_queue.h`: the producer writes entries and
//! then stores its index with release; the consumer loads it with acquire.

use rustix::fd::BorrowedFd;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::net::xdp::XdpRingOffset;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// Set in a ring's flags word when the kernel waits for a system call (`XDP_RING_NEED_WAKEUP`).
const NEED_WAKEUP: u32 = 1;

/// Ring of entries `T`, mapped from a socket.
#[derive(Debug)]
pub(crate) struct Ring<T> {
    base: NonNull<u8>,
    length: usize,
    offsets: XdpRingOffset,
    entries: u32,
    /// Index of this process: the producer's index of a ring that this process fills, else the
    /// consumer's.
    own: u32,
    /// Index of the other side, as last loaded.
    other: u32,
    kind: std::marker::PhantomData<T>,
}

impl<T: Copy> Ring<T> {
    /// Maps the ring at `page_offset` of the socket; `entries` as set by its socket option.
    pub(crate) fn map(
        socket: BorrowedFd<'_>,
        page_offset: u64,
        offsets: XdpRingOffset,
        entries: u32,
    ) -> io::Result<Self> {
        assert!(entries.is_power_of_two(), "the kernel refuses other sizes");
        let length = offsets.desc as usize + entries as usize * size_of::<T>();
        // SAFETY: a null hint lets the kernel choose the place, so nothing mapped is replaced.
        let base = unsafe {
            mmap(
                std::ptr::null_mut(),
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::POPULATE,
                socket,
                page_offset,
            )
        }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self {
            base,
            length,
            offsets,
            entries,
            own: 0,
            other: 0,
            kind: std::marker::PhantomData,
        })
    }

    /// Returns a word of the ring's header.
    fn word(&self, offset: u64) -> &AtomicU32 {
        debug_assert!(offset as usize + 4 <= self.length);
        // SAFETY: the kernel's offsets lie within the mapping and are aligned to a
        // cache line; the word lives as long as the mapping, which `self` owns.
        unsafe { &*self.base.as_ptr().add(offset as usize).cast::<AtomicU32>() }
    }

    /// Returns the slot of an index.
    fn slot(&self, index: u32) -> *mut T {
        let at = (index & (self.entries - 1)) as usize;
        // SAFETY: `at` is below `entries`, and the mapping holds that many entries behind `desc`.
        unsafe { self.base.as_ptr().add(self.offsets.desc as usize).cast::<T>().add(at) }
    }

    /// Returns the number of free entries, at most `wanted`. For rings that this process fills.
    pub(crate) fn free_entries(&mut self, wanted: u32) -> u32 {
        let mut free = self.entries - self.own.wrapping_sub(self.other);
        if free < wanted {
            self.other = self.word(self.offsets.consumer).load(Ordering::Acquire);
            free = self.entries - self.own.wrapping_sub(self.other);
        }
        free.min(wanted)
    }

    /// Writes the next entry; the caller has reserved it with `free_entries`.
    pub(crate) fn write(&mut self, entry: T) {
        debug_assert!(self.own.wrapping_sub(self.other) < self.entries, "no entry was reserved");
        // SAFETY: the slot is ours until `publish` (the consumer's index has not
        // passed it), and entries are plain values of the kernel's layout.
        unsafe { self.slot(self.own).write(entry) };
        self.own = self.own.wrapping_add(1);
    }

    /// Publishes all written entries to the kernel.
    pub(crate) fn publish(&self) {
        self.word(self.offsets.producer).store(self.own, Ordering::Release);
    }

    /// Returns true if the kernel has consumed every entry written. For rings that this process
    /// fills.
    pub(crate) fn is_taken(&self) -> bool {
        self.word(self.offsets.consumer).load(Ordering::Acquire) == self.own
    }

    /// Iterates over the entries that the kernel has not consumed. For rings that this process
    /// fills.
    pub(crate) fn untaken(&self) -> impl Iterator<Item = T> {
        let taken = self.word(self.offsets.consumer).load(Ordering::Acquire);
        let count = self.own.wrapping_sub(taken).min(self.entries);
        (0..count).map(move |ahead| {
            // SAFETY: slots between the consumer's index and ours were written by `write`, and
            // are not written again while `self` is borrowed.
            unsafe { self.slot(taken.wrapping_add(ahead)).read() }
        })
    }

    /// Iterates over the entries that were produced, by either side, and not consumed. For a
    /// process that is neither side: it has the socket of one that is gone.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = T> {
        let taken = self.word(self.offsets.consumer).load(Ordering::Acquire);
        let written = self.word(self.offsets.producer).load(Ordering::Acquire);
        let count = written.wrapping_sub(taken).min(self.entries);
        (0..count).map(move |ahead| {
            // SAFETY: slots between the two indexes are written; should the kernel write more
            // meanwhile, it is behind the producer's index, and entries are plain values.
            unsafe { self.slot(taken.wrapping_add(ahead)).read() }
        })
    }

    /// Returns the number of entries to read, at most `wanted`. For rings that the kernel fills.
    pub(crate) fn filled(&mut self, wanted: u32) -> u32 {
        let mut filled = self.other.wrapping_sub(self.own);
        if filled < wanted {
            self.other = self.word(self.offsets.producer).load(Ordering::Acquire);
            filled = self.other.wrapping_sub(self.own);
        }
        filled.min(wanted)
    }

    /// Returns the entry at offset `ahead` from the next one; the caller has checked `filled`.
    pub(crate) fn read(&self, ahead: u32) -> T {
        debug_assert!(ahead < self.other.wrapping_sub(self.own), "not filled");
        // SAFETY: the producer's index, loaded with acquire, has passed this slot,
        // and the kernel does not write it again before `release`.
        unsafe { self.slot(self.own.wrapping_add(ahead)).read() }
    }

    /// Returns `count` read entries to the kernel.
    pub(crate) fn release(&mut self, count: u32) {
        self.own = self.own.wrapping_add(count);
        self.word(self.offsets.consumer).store(self.own, Ordering::Release);
    }

    /// Returns true if the kernel looks at the ring only after a system call.
    pub(crate) fn needs_wakeup(&self) -> bool {
        match self.offsets.flags {
            Some(flags) => self.word(flags).load(Ordering::Relaxed) & NEED_WAKEUP != 0,
            None => true,
        }
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `map` and no reference outlives `self`.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.length) };
        debug_assert!(unmapped.is_ok(), "the mapping was made by Ring::map");
    }
}
