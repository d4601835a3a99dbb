//! Counters of 64 bits that two processes share: a memory file, mapped by both.
//!
//! The length is sealed: the holder of its descriptor can change words, and nothing else.

use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, ftruncate, memfd_create,
};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};

/// Shared words, all zero at first.
#[derive(Debug)]
pub struct SharedWords {
    fd: OwnedFd,
    first: NonNull<AtomicU64>,
    count: usize,
}

/// Seals under which the length does not change any more.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

impl SharedWords {
    /// Creates this many words.
    ///
    /// # Errors
    /// The kernel has no memory or descriptors left.
    pub fn create(name: &str, count: usize) -> io::Result<Self> {
        let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, (count * size_of::<u64>()) as u64)?;
        fcntl_add_seals(&fd, SEALS)?;
        Self::map(fd, count)
    }

    /// Maps the words of a descriptor that another process sent.
    ///
    /// # Errors
    /// `InvalidData` when there are fewer, or their number may still change.
    pub fn from_fd(fd: OwnedFd, count: usize) -> io::Result<Self> {
        let length = rustix::fs::fstat(&fd)?.st_size;
        let is_long_enough = usize::try_from(length).is_ok_and(|l| l >= count * size_of::<u64>());
        if !is_long_enough || !fcntl_get_seals(&fd)?.contains(SealFlags::SHRINK) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Self::map(fd, count)
    }

    fn map(fd: OwnedFd, count: usize) -> io::Result<Self> {
        let (length, access) = (count * size_of::<u64>(), ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: a new mapping at an address that the kernel chooses touches no memory of ours.
        // WHY: two processes cannot count in the same memory without one.
        let address = unsafe { mmap(null_mut(), length, access, MapFlags::SHARED, &fd, 0) }?;
        let first = NonNull::new(address.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { fd, first, count })
    }

    /// Returns one of the words.
    ///
    /// # Panics
    /// The index `at` is out of bounds.
    #[must_use]
    pub fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at < self.count, "word {at} of {}", self.count);
        // SAFETY: the mapping begins at a page, is `count` words long and sealed at that, and
        // lives as long as this; the word is one of them. Whatever bits it has, it is a number,
        // and everybody changes it atomically.
        unsafe { self.first.add(at).as_ref() }
    }

    /// Adds to a word.
    pub fn add(&self, at: usize, count: u64) {
        self.word(at).fetch_add(count, Ordering::Relaxed);
    }

    /// Returns `N` words in a row.
    #[must_use]
    pub fn read<const N: usize>(&self, at: usize) -> [u64; N] {
        std::array::from_fn(|i| self.word(at + i).load(Ordering::Relaxed))
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        // SAFETY: the mapping is this one's and of this length, and no reference to a word
        // outlives it. What fails leaves it mapped, which costs memory only.
        let _ = unsafe { munmap(self.first.as_ptr().cast(), self.count * size_of::<u64>()) };
    }
}

impl AsFd for SharedWords {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_written_at_one_end_are_read_at_the_other() {
        let ours = SharedWords::create("test", 3).unwrap();
        let theirs = SharedWords::from_fd(ours.as_fd().try_clone_to_owned().unwrap(), 3).unwrap();
        ours.add(2, 40);
        theirs.add(2, 2);
        assert_eq!(ours.read::<2>(1), [0, 42]);
    }

    #[test]
    fn memory_that_can_become_shorter_is_not_taken() {
        let fd = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&fd, 64).unwrap();
        let other = fd.try_clone().unwrap();
        assert_eq!(SharedWords::from_fd(other, 8).unwrap_err().kind(), io::ErrorKind::InvalidData);
        fcntl_add_seals(&fd, SEALS).unwrap();
        assert!(ftruncate(&fd, 0).is_err());
        let more = SharedWords::from_fd(fd, 9).unwrap_err();
        assert_eq!(more.kind(), io::ErrorKind::InvalidData);
    }
}
