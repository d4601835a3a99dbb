//! UMEM: the memory of packets, and the pool of its free frames.
//!
//! ```text
//!  frame, FRAME_LENGTH bytes
//! ┌──────────────────────┬───────────────────────────────────────────┐
//! │ FRAME_HEADROOM       │ packet bytes                              │
//! │ (metadata at its end)│                                           │
//! └──────────────────────┴───────────────────────────────────────────┘
//! ```

use level::prefetch::{LINE, load_line};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::cell::{Cell, RefCell};
use std::io;
use std::num::NonZeroU32;
use std::ptr::NonNull;

/// Size of a frame in bytes: a page, the largest chunk that needs no huge pages.
pub const FRAME_LENGTH: usize = 4096;
/// Bytes that the kernel leaves free in front of a packet (`XDP_PACKET_HEADROOM`).
pub const FRAME_HEADROOM: usize = 256;

/// Frames reserved for packets that grow while they are handled; a batch of jumbo frames that all
/// grow at their end needs one each.
pub(crate) const RESERVE: usize = 64;

/// Packet memory of one cell, pinned by the kernel once a socket registers it.
#[derive(Debug)]
pub struct Umem {
    base: NonNull<u8>,
    length: usize,
    /// Frames reserved for packets that grow: in neither the pool nor a packet.
    reserve: RefCell<Vec<Frame>>,
    /// Number of the socket that each frame was given to last: the only record of which frames a
    /// vanished device still held.
    given_to: Vec<Cell<u16>>,
}

/// Frame of a UMEM, its number plus one: whoever holds the value owns its bytes.
#[derive(Debug)]
pub(crate) struct Frame(NonZeroU32);

/// Pool of the frames that are in no ring and in no packet.
#[derive(Debug)]
pub struct FramePool {
    free: Vec<Frame>,
    total: usize,
}

impl Umem {
    /// Maps `frames` frames of zeroed memory.
    ///
    /// # Errors
    /// The memory cannot be mapped.
    pub fn new(frames: u32) -> io::Result<(Self, FramePool)> {
        let length = frames as usize * FRAME_LENGTH;
        // SAFETY: a null hint lets the kernel choose the place, so nothing mapped is replaced.
        let base = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }?;
        let base: NonNull<u8> = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: the range is the mapping just made; the advice changes no contents. WHY: with
        // pages of 4 KiB the frames of a busy queue do not fit the TLB, and each packet waits for
        // two walks of the page table. A kernel without huge pages refuses, and small ones work.
        let _ = unsafe { madvise(base.as_ptr().cast(), length, Advice::LinuxHugepage) };
        // Frames are handed out from the low end, so that a short queue stays in the cache.
        let free = (1..=frames).rev().filter_map(NonZeroU32::new).map(Frame).collect();
        let reserve = RefCell::new(Vec::with_capacity(RESERVE));
        let given_to = vec![Cell::new(0); frames as usize];
        let umem = Self { base, length, reserve, given_to };
        Ok((umem, FramePool { free, total: frames as usize }))
    }

    /// Puts a frame of a packet that shrank into the reserve.
    pub(crate) fn reserve(&self, frame: Frame) {
        self.reserve.borrow_mut().push(frame);
    }

    /// Moves frames between pool and reserve until the reserve has its size.
    pub(crate) fn replenish(&self, pool: &mut FramePool) {
        let mut reserve = self.reserve.borrow_mut();
        while reserve.len() > RESERVE {
            reserve.pop().into_iter().for_each(|frame| pool.give(frame));
        }
        while reserve.len() < RESERVE {
            let Some(frame) = pool.take() else { return };
            reserve.push(frame);
        }
    }

    /// Takes a frame from the reserve, for a packet that grows.
    pub(crate) fn take_reserved(&self) -> Option<Frame> {
        self.reserve.borrow_mut().pop()
    }

    /// Records the socket that a frame goes to.
    #[inline]
    pub(crate) fn give_to(&self, frame: &Frame, socket: u16) {
        self.given_to[frame.index()].set(socket);
    }

    /// Reclaims all frames of a socket that is gone; no [`crate::Packet`] may be alive. Returns
    /// their number.
    pub(crate) fn reclaim(&self, socket: u16, pool: &mut FramePool) -> usize {
        let mut is_here = vec![false; self.given_to.len()];
        pool.free.iter().chain(&*self.reserve.borrow()).for_each(|f| is_here[f.index()] = true);
        let before = pool.free.len();
        for (index, _) in is_here.iter().enumerate().filter(|(_, is_here)| !**is_here) {
            if self.given_to[index].get() == socket {
                let number = u32::try_from(index + 1).ok().and_then(NonZeroU32::new);
                pool.free.extend(number.map(Frame));
            }
        }
        pool.free.len() - before
    }

    /// Returns the address of the memory, for its registration with the kernel.
    pub(crate) fn address(&self) -> u64 {
        self.base.as_ptr() as usize as u64
    }

    /// Returns the size of the memory in bytes.
    #[must_use]
    pub const fn length(&self) -> usize {
        self.length
    }

    /// Returns all bytes of a frame.
    pub(crate) fn bytes<'a>(&'a self, frame: &'a Frame) -> &'a [u8] {
        // SAFETY: `frame` lies within the mapping (Frame::at checks it) and its owner
        // is borrowed, so neither the kernel nor another packet writes to it.
        unsafe {
            std::slice::from_raw_parts(
                self.base.as_ptr().add(frame.address() as usize),
                FRAME_LENGTH,
            )
        }
    }

    /// Returns all bytes of a frame, mutable.
    pub(crate) fn bytes_mut<'a>(&'a self, frame: &'a mut Frame) -> &'a mut [u8] {
        // SAFETY: as in `bytes`; the frame's owner is borrowed mutably, so these
        // are the only references to its bytes.
        unsafe {
            std::slice::from_raw_parts_mut(
                self.base.as_ptr().add(frame.address() as usize),
                FRAME_LENGTH,
            )
        }
    }

    /// Prefetches the cache lines around `address`, where another CPU has just written a packet:
    /// its metadata in front, its headers behind. The first read of the metadata waited 50 ns for
    /// the other CPU's cache, 66 % of the loop's time.
    #[inline]
    pub(crate) fn load_ahead(&self, address: u64) {
        let at = self.base.as_ptr().cast_const().wrapping_add(address as usize);
        load_line(at.wrapping_sub(LINE));
        load_line(at);
    }

    /// Returns the frame that contains a descriptor's address, and the offset within it.
    ///
    /// The caller got the address from a ring, which passes each frame on once.
    pub(crate) fn frame_at(&self, address: u64) -> Option<(Frame, usize)> {
        let offset = (address % FRAME_LENGTH as u64) as usize;
        let index = address / FRAME_LENGTH as u64;
        let number = NonZeroU32::new(u32::try_from(index).ok()?.checked_add(1)?)?;
        (address < self.length as u64).then_some((Frame(number), offset))
    }
}

impl Drop for Umem {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and no frame can be reached without the UMEM;
        // the kernel keeps its own pin on the pages.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.length) };
        debug_assert!(unmapped.is_ok(), "the mapping was made by Umem::new");
    }
}

impl Frame {
    /// Returns the descriptor address of the frame's first byte.
    pub(crate) const fn address(&self) -> u64 {
        (self.0.get() as u64 - 1) * FRAME_LENGTH as u64
    }

    /// Returns the frame's number, counted from 1.
    pub(crate) const fn number(&self) -> u32 {
        self.0.get()
    }

    /// Returns the frame's index, counted from 0.
    const fn index(&self) -> usize {
        self.0.get() as usize - 1
    }
}

impl FramePool {
    /// Takes a free frame.
    pub(crate) fn take(&mut self) -> Option<Frame> {
        self.free.pop()
    }

    /// Returns a frame to the pool.
    pub(crate) fn give(&mut self, frame: Frame) {
        debug_assert!(self.free.len() < self.total, "a frame was given back twice");
        self.free.push(frame);
    }

    /// Returns the number of free frames.
    #[must_use]
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Returns the number of frames of the UMEM.
    #[must_use]
    pub const fn total(&self) -> usize {
        self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_of_a_vanished_socket_are_reclaimed_and_no_others() {
        let (umem, mut pool) = Umem::new(RESERVE as u32 + 6).unwrap();
        umem.replenish(&mut pool);
        // Two sockets hold two frames each; a third one had two that are back.
        for socket in [1, 2, 1, 2, 3, 3] {
            let frame = pool.take().unwrap();
            umem.give_to(&frame, socket);
            if socket == 3 {
                pool.give(frame);
            }
        }
        assert_eq!(pool.free(), 2);
        assert_eq!(umem.reclaim(1, &mut pool), 2);
        assert_eq!(umem.reclaim(1, &mut pool), 0, "they are here");
        assert_eq!(umem.reclaim(3, &mut pool), 0);
        assert_eq!(umem.reclaim(2, &mut pool), 2);
        assert_eq!(pool.free() + RESERVE, pool.total());
        let mut numbers: Vec<u32> = pool.free.iter().map(|frame| frame.0.get()).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), pool.free(), "each once");
    }
}
