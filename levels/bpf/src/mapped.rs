//! Array maps in our memory, for words that are read or written all the time.
//!
//! `map` checks which maps can be mapped.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use bytemuck::Pod;

/// Array map in our memory: words are read and written without a system call.
///
/// ```text
/// │ entry 0: words 0, 1, … (each 8 bytes) │ entry 1 │ … │
/// ```
///
/// Each word is atomic, an entry of several words is not.
#[derive(Debug)]
pub struct MappedArray<T> {
    words: MappedWords,
    entries: usize,
    entry: std::marker::PhantomData<fn() -> T>,
}

impl<T: Pod> MappedArray<T> {
    /// Words of one entry: the kernel rounds entries up to 8 bytes.
    const STRIDE: usize = size_of::<T>().div_ceil(8);

    pub(crate) fn new(fd: BorrowedFd<'_>, entries: usize) -> io::Result<Self> {
        let words = MappedWords::new(fd, entries * Self::STRIDE)?;
        Ok(Self { words, entries, entry: std::marker::PhantomData })
    }

    /// Returns one word of an entry; `None` when there is no such entry or word.
    #[must_use]
    pub fn word(&self, index: usize, word: usize) -> Option<&AtomicU64> {
        if index >= self.entries || word >= Self::STRIDE {
            return None;
        }
        self.words.word(index * Self::STRIDE + word)
    }

    /// Reads an entry, word by word (each `Acquire`).
    #[must_use]
    pub fn load(&self, index: usize) -> Option<T> {
        let words: Option<Vec<u64>> = (0..Self::STRIDE)
            .map(|word| Some(self.word(index, word)?.load(Ordering::Acquire)))
            .collect();
        Some(bytemuck::pod_read_unaligned(&bytemuck::cast_slice(&words?)[..size_of::<T>()]))
    }

    /// Writes an entry, word by word (each `Release`); returns whether there is such an entry.
    pub fn store(&self, index: usize, value: &T) -> bool {
        let mut words = vec![0u64; Self::STRIDE];
        bytemuck::cast_slice_mut(&mut words)[..size_of::<T>()]
            .copy_from_slice(bytemuck::bytes_of(value));
        words.iter().enumerate().all(|(at, &bits)| match self.word(index, at) {
            Some(word) => {
                word.store(bits, Ordering::Release);
                true
            }
            None => false,
        })
    }
}

/// Bytes of an array map in our memory, as atomics.
#[derive(Debug)]
pub(crate) struct MappedWords {
    start: *mut AtomicU64,
    words: usize,
    bytes: usize,
}

// SAFETY: the region is shared with the kernel anyway and only touched through atomics.
unsafe impl Send for MappedWords {}
// SAFETY: as above.
unsafe impl Sync for MappedWords {}

impl MappedWords {
    /// Maps the first `words` words of an array map.
    pub(crate) fn new(fd: BorrowedFd<'_>, words: usize) -> io::Result<Self> {
        // array_map_mmap (kernel/bpf/arraymap.c) takes at most the rounded-up size.
        let bytes = (words * 8).next_multiple_of(rustix::param::page_size());
        let protection = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice; it shadows nothing.
        let address = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                bytes,
                protection,
                rustix::mm::MapFlags::SHARED,
                fd,
                0,
            )
        }?;
        Ok(Self { start: address.cast(), words, bytes })
    }

    /// Returns the word of that number.
    pub(crate) fn word(&self, index: usize) -> Option<&AtomicU64> {
        // SAFETY: the index is within the mapping (checked), which is aligned to
        // a page, lives as long as self and is only used through atomics.
        (index < self.words).then(|| unsafe { &*self.start.add(index) })
    }

    /// Returns the half word of that number, two to a word. A caller uses a location as words or as
    /// halves, as its owner defines it, not as both.
    pub(crate) fn half(&self, index: usize) -> Option<&AtomicU32> {
        // SAFETY: as in `word`; a half is aligned where its word is.
        (index / 2 < self.words).then(|| unsafe { &*self.start.cast::<AtomicU32>().add(index) })
    }
}

impl Drop for MappedWords {
    fn drop(&mut self) {
        // SAFETY: our own mapping of that size; every reference to a word borrowed self.
        let _ = unsafe { rustix::mm::munmap(self.start.cast(), self.bytes) };
    }
}
