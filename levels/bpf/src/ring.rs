//! Reader of a BPF ring buffer (`BPF_MAP_TYPE_RINGBUF`), in our memory.
//!
//! ```text
//! page 0 │ consumer: position of the next read    read, write
//! page 1 │ producer: end of the reserved bytes    read
//! data   │ ┌ u32 length, bits BUSY and DISCARD    read, mapped twice in a row:
//!        │ │ u32 the kernel's                     a record never breaks
//!        │ └ the bytes, up to a multiple of 8
//! ```
//!
//! Positions count bytes since the map was made; modulo the data's length they
//! are offsets. Only mapping involves the kernel: a confined cell can read.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use rustix::mm::{MapFlags, ProtFlags};

/// Bit of a record's length: still being written (`BPF_RINGBUF_BUSY_BIT`).
const BUSY: u32 = 1 << 31;
/// Bit of a record's length: discarded by its writer (`BPF_RINGBUF_DISCARD_BIT`).
const DISCARDED: u32 = 1 << 30;
/// Length of a record's header, and alignment of records, bytes (`BPF_RINGBUF_HDR_SZ`).
const HEADER: u64 = 8;

/// Impossible record: the ring is not written by the kernel, or has another reader. Reading stops
/// there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the ring buffer has a record of {length} bytes at {position}, where {written} bytes are written; it has another reader, or another size than was said: it must be made anew"
)]
pub struct BrokenRing {
    /// Position of the record.
    pub position: u64,
    /// Length that the record claims, without the header.
    pub length: u32,
    /// Bytes available from its position on, with the header.
    pub written: u64,
}

/// Single reader of a ring buffer. Begins where the last one stopped.
///
/// To wait for records, poll its descriptor for reading. The descriptor is ready while anything is
/// reserved and not yet read, so also while a record is being written.
#[derive(Debug)]
pub struct RingBuffer {
    fd: OwnedFd,
    consumer: Region,
    /// Producer's page, and the data twice.
    produced: Region,
    /// Length of the data in bytes: a power of two.
    length: u64,
    /// Position of the next read; the consumer's page only repeats it.
    position: u64,
}

impl AsFd for RingBuffer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl RingBuffer {
    /// Maps a ring buffer whose descriptor and length of data (its `max_entries`) came from the
    /// process that made it. It takes one reader at a time: two at once would read bytes that the
    /// kernel is overwriting.
    ///
    /// # Errors
    /// `InvalidInput` when the length is not a power of two, or no multiple of a page;
    /// else the kernel's error: it is no ring buffer, or has fewer bytes.
    pub fn from_fd(fd: BorrowedFd<'_>, length: u32) -> io::Result<Self> {
        let page = rustix::param::page_size();
        if !length.is_power_of_two() || !(length as usize).is_multiple_of(page) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let fd = fd.try_clone_to_owned()?;
        let both = ProtFlags::READ | ProtFlags::WRITE;
        let consumer = Region::map(fd.as_fd(), 0, page, both)?;
        let data = 2 * length as usize;
        let produced = Region::map(fd.as_fd(), page as u64, page + data, ProtFlags::READ)?;
        let position = consumer.u64(0).load(Ordering::Relaxed);
        Ok(Self { fd, consumer, produced, length: u64::from(length), position })
    }

    /// Calls `read` on the next record, and frees its space; returns `None` when there is none, or
    /// the next one is still being written. Skips discarded records. The bytes lie in the ring; if
    /// `read` panics, the record stays the next one.
    ///
    /// # Errors
    /// [`BrokenRing`] at an impossible record, each time; nothing is read then.
    pub fn next<T>(&mut self, read: impl FnOnce(&[u8]) -> T) -> Result<Option<T>, BrokenRing> {
        while let Some(record) = self.record()? {
            let end = self.position + record.size();
            if record.is_discarded {
                self.free_until(end);
                continue;
            }
            let answer = read(self.produced.bytes(self.data(HEADER), record.length as usize));
            self.free_until(end);
            return Ok(Some(answer));
        }
        Ok(None)
    }

    /// Returns the next record, if it is complete.
    fn record(&self) -> Result<Option<Header>, BrokenRing> {
        // Pairs with the kernel's release after it wrote a header with BUSY.
        let written = self.produced.u64(0).load(Ordering::Relaxed).wrapping_sub(self.position);
        // For read-only memory Rust allows no stronger load.
        fence(Ordering::Acquire);
        if written == 0 {
            return Ok(None);
        }
        let broken = |length| BrokenRing { position: self.position, length, written };
        if written > self.length || !self.position.is_multiple_of(HEADER) {
            return Err(broken(0));
        }
        // Pairs with the exchange that clears BUSY when the bytes are complete.
        let word = self.produced.u32(self.data(0)).load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        if word & BUSY != 0 {
            return Ok(None);
        }
        let header = Header { length: word & !DISCARDED, is_discarded: word & DISCARDED != 0 };
        if header.size() > written {
            return Err(broken(header.length));
        }
        Ok(Some(header))
    }

    /// Returns the offset in the mapping of a byte at a distance from the position.
    fn data(&self, behind: u64) -> usize {
        rustix::param::page_size() + ((self.position & (self.length - 1)) + behind) as usize
    }

    fn free_until(&mut self, position: u64) {
        self.position = position;
        // Pairs with the kernel's acquire: reads are complete before the bytes are overwritten.
        self.consumer.u64(0).store(position, Ordering::Release);
    }
}

/// Header of a record.
#[derive(Clone, Copy, Debug)]
struct Header {
    length: u32,
    is_discarded: bool,
}

impl Header {
    /// Returns the record's size in the ring, with the header.
    fn size(self) -> u64 {
        (u64::from(self.length) + HEADER).next_multiple_of(HEADER)
    }
}

/// Part of the map in our memory.
#[derive(Debug)]
struct Region {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: the memory is shared with the kernel anyway, and belongs to no thread.
unsafe impl Send for Region {}

impl Region {
    fn map(fd: BorrowedFd<'_>, offset: u64, bytes: usize, access: ProtFlags) -> io::Result<Self> {
        let anywhere = std::ptr::null_mut();
        // SAFETY: a new mapping at an address of the kernel's choice; it shadows nothing.
        let start =
            unsafe { rustix::mm::mmap(anywhere, bytes, access, MapFlags::SHARED, fd, offset) }?;
        Ok(Self { start: start.cast(), bytes })
    }

    fn u64(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at + 8 <= self.bytes, "a word of the region");
        // SAFETY: within the mapping and aligned (checked; a mapping begins on a page); all,
        // the kernel too, touch positions as words only.
        unsafe { &*self.start.add(at).cast() }
    }

    fn u32(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4) && at + 4 <= self.bytes, "a half word of the region");
        // SAFETY: as in `u64`, of the lengths in front of records.
        unsafe { &*self.start.add(at).cast() }
    }

    /// Returns the bytes of a record that is complete and not yet freed.
    fn bytes(&self, at: usize, length: usize) -> &[u8] {
        assert!(at + length <= self.bytes, "bytes of the region");
        // SAFETY: within the mapping (checked). Nobody writes them: the kernel does not before the
        // consumer's position is behind them, and that moves when this borrow has ended.
        unsafe { std::slice::from_raw_parts(self.start.add(at), length) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: our own mapping of that size; every reference into it borrowed self.
        let _ = unsafe { rustix::mm::munmap(self.start.cast(), self.bytes) };
    }
}

#[cfg(test)]
#[path = "ring/tests.rs"]
mod tests;
