//! BPF arenas: memory that programs and processes share, at one address.
//!
//! ```text
//!  address ┌──────────────┐ a multiple of 4 GiB, the same in every process
//!          │ populated    │ reads and writes
//!          ├──────────────┤
//!          │ arena        │ a program reads 0 and loses its writes
//!          ├──────────────┤
//!          │ reserved     │ nothing, up to REACH + GUARD
//!          └──────────────┘
//! ```
//!
//! An [`Arena`] is the kernel's object, with or without a mapping in this
//! process; a [`MappedArena`] is that mapping. Needs Linux 6.9. Contents are not interpreted here.
//!
//! Pages are allocated when a process touches them for the first time, so the process that maps
//! them touches them, before a program runs. (A program could allocate them,
//! `bpf_arena_alloc_pages`; making one for each arena takes 0.5 ms, and a page by way of a process
//! 0.001 ms.)

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use level::{REACH, SharedMemory};
use libbpf_sys as sys;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise};

use crate::map::Map;
use crate::new_map::MapSpec;
use crate::reserved::Reservation;

/// Size of an arena page in bytes: the kernel's, on every machine that we support.
pub const ARENA_PAGE: u64 = 4096;

/// Failure to make or use an arena.
#[derive(Debug, thiserror::Error)]
pub enum ArenaError {
    /// The kernel is too old for arenas, or lacks a JIT.
    #[error(
        "this kernel has no BPF arenas (Linux 6.9 with the BPF JIT has them); modules run at user level here"
    )]
    Unsupported,
    /// The number of pages is zero or exceeds a 32-bit address.
    #[error("an arena has 1 to {most} pages, not {pages}")]
    Size {
        /// Requested number of pages.
        pages: u64,
        /// Largest number of pages, the reach of a 32-bit address.
        most: u64,
    },
    /// The map is of another kind.
    #[error("the map {map} is no arena")]
    NoArena {
        /// Name of the map.
        map: String,
    },
    /// The range exceeds the populated pages.
    #[error("bytes {start} to {end} are not in the {populated} populated bytes of the arena")]
    OutOfRange {
        /// First byte of the range.
        start: u64,
        /// End of the range, exclusive.
        end: u64,
        /// Populated bytes.
        populated: u64,
    },
    /// The reservation is not at the arena's address.
    #[error("the arena belongs at {expected:#x}, not at the reserved {found:#x}")]
    Elsewhere {
        /// Address of the arena.
        expected: u64,
        /// Address of the reservation.
        found: u64,
    },
    /// The kernel refused for another reason.
    #[error("cannot {action} an arena of {pages} pages: {source}")]
    Kernel {
        /// Action that was tried.
        action: &'static str,
        /// Number of pages of the arena.
        pages: u64,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// Arena; the kernel frees it when no descriptor, mapping, pin or program is left.
#[derive(Debug)]
pub struct Arena {
    map: Map,
    pages: u64,
    address: u64,
}

impl AsFd for Arena {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }
}

impl Arena {
    /// Makes an arena of at most `pages` pages, none populated, for the reserved addresses (of this
    /// process or of the one that will map it).
    ///
    /// # Errors
    /// [`ArenaError::Unsupported`] on a kernel without arenas.
    pub fn create(name: &str, pages: u64, address: u64) -> Result<Self, ArenaError> {
        let most = REACH / ARENA_PAGE;
        if pages == 0 || pages > most {
            return Err(ArenaError::Size { pages, most });
        }
        let spec = MapSpec {
            kind: sys::BPF_MAP_TYPE_ARENA,
            max_entries: pages as u32,
            flags: sys::BPF_F_MMAPABLE,
            extra: address,
            ..MapSpec::default()
        };
        let map = Map::create(name, &spec).map_err(|error| match error.source.raw_os_error() {
            // The type of map is unknown, or a flag of a known type.
            Some(libc::EINVAL | libc::EOPNOTSUPP) => ArenaError::Unsupported,
            _ => ArenaError::Kernel { action: "make", pages, source: error.source },
        })?;
        Ok(Self { map, pages, address })
    }

    /// Wraps a map, which may be pinned.
    ///
    /// # Errors
    /// [`ArenaError::NoArena`] when it is another kind of map.
    pub fn new(map: Map) -> Result<Self, ArenaError> {
        let info = map.info();
        if info.kind != sys::BPF_MAP_TYPE_ARENA {
            return Err(ArenaError::NoArena { map: info.name.clone() });
        }
        let (pages, address) = (u64::from(info.max_entries), info.extra);
        Ok(Self { map, pages, address })
    }

    /// Returns the largest number of pages.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Returns the address at which every process maps it.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Returns the map.
    #[must_use]
    pub fn map(&self) -> &Map {
        &self.map
    }
}

/// Arena in this process's memory; lives as long as the mapping.
///
/// Programs and other processes read and write it at any time: bytes are copied in and out, none is
/// borrowed.
#[derive(Debug)]
pub struct MappedArena {
    reservation: Reservation,
    /// Bytes from the beginning that may be accessed.
    populated: u64,
}

impl MappedArena {
    /// Makes an arena at an address of our choice and maps it, with `populated` of its pages
    /// populated.
    ///
    /// # Errors
    /// Same as [`Arena::create`]; also, the process lacks address space.
    pub fn create(name: &str, pages: u64, populated: u64) -> Result<(Arena, Self), ArenaError> {
        let reservation = Reservation::new().map_err(|source| ArenaError::Kernel {
            action: "reserve addresses for",
            pages,
            source,
        })?;
        let arena = Arena::create(name, pages, reservation.address())?;
        let mapped = Self::new(&arena, reservation, populated)?;
        Ok((arena, mapped))
    }

    /// Maps an arena into reserved addresses, and populates its first `populated` pages (zeros), if
    /// they are not yet.
    ///
    /// # Errors
    /// [`ArenaError::Elsewhere`] when they are not the arena's own addresses,
    /// [`ArenaError::OutOfRange`] when it has fewer pages; and when there is no memory.
    pub fn new(
        arena: &Arena,
        reservation: Reservation,
        populated: u64,
    ) -> Result<Self, ArenaError> {
        let (expected, found) = (arena.address, reservation.address());
        if expected != found {
            return Err(ArenaError::Elsewhere { expected, found });
        }
        if populated > arena.pages {
            let [end, populated] = [populated, arena.pages].map(|pages| pages * ARENA_PAGE);
            return Err(ArenaError::OutOfRange { start: 0, end, populated });
        }
        Self::map(arena.as_fd(), reservation, arena.pages, populated)
    }

    /// Maps an arena whose descriptor and address came from the process that made it, and populates
    /// all of its pages. For a cell, which must not query maps.
    ///
    /// # Errors
    /// The addresses are taken here, the kernel does not map it there, or there is no
    /// memory.
    pub fn from_fd(fd: BorrowedFd<'_>, address: u64, pages: u64) -> Result<Self, ArenaError> {
        let reservation = Reservation::at(address).map_err(|source| ArenaError::Kernel {
            action: "reserve the addresses of",
            pages,
            source,
        })?;
        Self::map(fd, reservation, pages, pages)
    }

    fn map(
        fd: BorrowedFd<'_>,
        reservation: Reservation,
        pages: u64,
        populated: u64,
    ) -> Result<Self, ArenaError> {
        let start = std::ptr::without_provenance_mut(reservation.address() as usize);
        let length = (pages.min(REACH / ARENA_PAGE) * ARENA_PAGE) as usize;
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: it replaces the beginning of our own reservation, which is as
        // long as any arena and which nobody holds a reference into.
        let answer = unsafe {
            rustix::mm::mmap(start, length, ProtFlags::READ | ProtFlags::WRITE, flags, fd, 0)
        };
        if let Err(source) = answer {
            return Err(ArenaError::Kernel { action: "map", pages, source: source.into() });
        }
        let mapped = Self { reservation, populated: populated * ARENA_PAGE };
        match mapped.populate() {
            Ok(()) => Ok(mapped),
            Err(source) => Err(ArenaError::Kernel { action: "populate", pages, source }),
        }
    }

    fn populate(&self) -> io::Result<()> {
        let start = std::ptr::with_exposed_provenance_mut(self.reservation.address() as usize);
        let length = self.populated as usize;
        // SAFETY: the beginning of our own mapping (the length is the arena's at most); what lies
        // there is not changed.
        Ok(unsafe { madvise(start, length, Advice::LinuxPopulateWrite) }?)
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// [`ArenaError::OutOfRange`] beyond the populated pages.
    pub fn read(&self, address: u64, into: &mut [u8]) -> Result<(), ArenaError> {
        let from = self.range(address, into.len())?;
        // SAFETY: the range is mapped and populated (checked); `into` is ours, so
        // the two do not overlap. Another writer at the same time may mix old and
        // new bytes, which is what callers are told.
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// [`ArenaError::OutOfRange`] beyond the populated pages.
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<(), ArenaError> {
        let to = self.range(address, bytes.len())?;
        // SAFETY: as in `read`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        Ok(())
    }

    /// Returns the number of populated bytes from the beginning.
    #[must_use]
    pub fn populated(&self) -> u64 {
        self.populated
    }

    fn range(&self, start: u64, length: usize) -> Result<*mut u8, ArenaError> {
        let end = start.saturating_add(length as u64);
        let populated = self.populated;
        if end > populated {
            return Err(ArenaError::OutOfRange { start, end, populated });
        }
        let address = self.reservation.address() + start;
        Ok(std::ptr::with_exposed_provenance_mut(address as usize))
    }
}

// SAFETY: the populated bytes stay readable and writable while the mapping
// lives; behind them is the rest of the arena, whose pages have memory from their first
// use on, and behind the arena lies our own reservation. No reference into it is given out.
unsafe impl SharedMemory for MappedArena {
    fn address(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.reservation.address() as usize)
    }

    fn length(&self) -> usize {
        self.populated as usize
    }
}

#[cfg(test)]
#[path = "arena/tests.rs"]
mod tests;
