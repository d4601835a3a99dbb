//! Array maps in our memory, for words that are read or written all the time.
//!
//! Which maps can be mapped is checked where they are: in `map`.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use bytemuck::Pod;

/// An array map in our memory: words are read and written without a system call.
///
/// ```text
/// │ entry 0: words 0, 1, … (each 8 bytes) │ entry 1 │ … │
/// ```
///
/// Each word is atomic, an entry of several words is not.
#[derive(Debug)]
pub struct MappedArray<T> {
    words: *mut AtomicU64,
    entries: usize,
    bytes: usize,
    entry: std::marker::PhantomData<T>,
}

// SAFETY: the region is shared with the kernel anyway and only touched through atomics.
unsafe impl<T> Send for MappedArray<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for MappedArray<T> {}

impl<T: Pod> MappedArray<T> {
    /// Words of one entry: the kernel rounds entries up to 8 bytes.
    const STRIDE: usize = size_of::<T>().div_ceil(8);

    pub(crate) fn new(fd: &OwnedFd, entries: usize) -> io::Result<Self> {
        // array_map_mmap (kernel/bpf/arraymap.c) takes at most the rounded-up size.
        let bytes = (entries * Self::STRIDE * 8).next_multiple_of(rustix::param::page_size());
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
        Ok(Self { words: address.cast(), entries, bytes, entry: std::marker::PhantomData })
    }

    /// One word of an entry; `None` when there is no such entry or word.
    #[must_use]
    pub fn word(&self, index: usize, word: usize) -> Option<&AtomicU64> {
        if index >= self.entries || word >= Self::STRIDE {
            return None;
        }
        // SAFETY: index and word are within the mapping (checked above), which
        // is aligned to a page, lives as long as self and is only used through atomics.
        Some(unsafe { &*self.words.add(index * Self::STRIDE + word) })
    }

    /// Reads an entry, word by word (each `Acquire`).
    #[must_use]
    pub fn load(&self, index: usize) -> Option<T> {
        let words: Option<Vec<u64>> = (0..Self::STRIDE)
            .map(|word| Some(self.word(index, word)?.load(Ordering::Acquire)))
            .collect();
        Some(bytemuck::pod_read_unaligned(&bytemuck::cast_slice(&words?)[..size_of::<T>()]))
    }

    /// Writes an entry, word by word (each `Release`); answers whether there is such an entry.
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

impl<T> Drop for MappedArray<T> {
    fn drop(&mut self) {
        // SAFETY: our own mapping of that size; every reference to a word borrowed self.
        let _ = unsafe { rustix::mm::munmap(self.words.cast(), self.bytes) };
    }
}
