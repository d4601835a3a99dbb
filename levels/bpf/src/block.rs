//! Instance block: plain memory that programs reach by a constant address, an array map of one
//! value, mapped here.
//!
//! The owner defines the layout: the compiler's `layout` for the blocks of instances.

use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, AtomicU64};

use libbpf_sys as sys;

use crate::map::{Map, MapError};
use crate::mapped::MappedWords;
use crate::new_map::{MapSpec, NewMapError};

/// Failure to make or open a block.
#[derive(Debug, thiserror::Error)]
pub enum BlockError {
    /// The map could not be made.
    #[error(transparent)]
    New(#[from] NewMapError),
    /// The map could not be opened or mapped.
    #[error(transparent)]
    Map(#[from] MapError),
}

/// Block: numbers at byte offsets, each read and written atomically.
#[derive(Debug)]
pub struct Block {
    map: Map,
    mapped: MappedBlock,
}

impl AsFd for Block {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }
}

impl Deref for Block {
    type Target = MappedBlock;

    fn deref(&self) -> &MappedBlock {
        &self.mapped
    }
}

impl Block {
    /// Makes a block of `length` bytes, all zero, rounded up to 8.
    ///
    /// # Errors
    /// The kernel has no memory for it.
    pub fn create(name: &str, length: u32) -> Result<Self, BlockError> {
        let spec = MapSpec::mappable_array(length.next_multiple_of(8), 1);
        Self::new(Map::create(name, &spec)?)
    }

    /// Wraps a map, which may be pinned.
    ///
    /// # Errors
    /// The map is not a mappable array.
    pub fn new(map: Map) -> Result<Self, BlockError> {
        let mapped = MappedBlock { words: map_words(&map)?, length: map.info().value_size };
        Ok(Self { map, mapped })
    }

    /// Returns the map.
    #[must_use]
    pub fn map(&self) -> &Map {
        &self.map
    }
}

/// Block in this process's memory.
#[derive(Debug)]
pub struct MappedBlock {
    words: MappedWords,
    length: u32,
}

impl MappedBlock {
    /// Maps a block whose descriptor and length came from the process that made it. For a cell,
    /// which must not query maps.
    ///
    /// # Errors
    /// The kernel does not map that much of it.
    pub fn from_fd(fd: BorrowedFd<'_>, length: u32) -> io::Result<Self> {
        let length = length.next_multiple_of(8);
        Ok(Self { words: MappedWords::new(fd, length as usize / 8)?, length })
    }

    /// Returns the 8 bytes at an offset; `None` outside, or where the offset is no multiple of 8.
    #[must_use]
    pub fn u64(&self, offset: u32) -> Option<&AtomicU64> {
        let words = offset.is_multiple_of(8) && offset < self.length;
        words.then(|| self.words.word(offset as usize / 8)).flatten()
    }

    /// Returns the 4 bytes at an offset; `None` outside, or where the offset is no multiple of 4.
    #[must_use]
    pub fn u32(&self, offset: u32) -> Option<&AtomicU32> {
        let halves = offset.is_multiple_of(4) && offset < self.length;
        halves.then(|| self.words.half(offset as usize / 4)).flatten()
    }

    /// Returns the length in bytes.
    #[must_use]
    pub fn length(&self) -> u32 {
        self.length
    }
}

/// Maps the first value of an array made with `BPF_F_MMAPABLE`, whatever its size.
fn map_words(map: &Map) -> Result<MappedWords, MapError> {
    let info = map.info();
    if info.kind != sys::BPF_MAP_TYPE_ARRAY || info.flags & sys::BPF_F_MMAPABLE == 0 {
        return Err(MapError::NotMappable { map: info.name.clone() });
    }
    let words = (info.value_size as usize).div_ceil(8);
    MappedWords::new(map.as_fd(), words).map_err(|source| MapError::Kernel {
        map: info.name.clone(),
        action: "map into memory",
        source,
    })
}
