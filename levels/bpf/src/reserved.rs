//! Address space reserved for an arena, without memory.
//!
//! Every process that maps an arena reserves the same addresses first, because an arena has one
//! address in all processes.

use std::io;

use level::{GUARD, REACH};
use rustix::mm::{MapFlags, ProtFlags};

/// `REACH` + `GUARD` bytes of reserved addresses at a multiple of `REACH`. Freed on drop. An arena
/// begins on such a multiple, so that the low half of a pointer is the address in linear memory.
#[derive(Debug)]
pub struct Reservation {
    address: u64,
}

impl Reservation {
    /// Reserves at an address of the kernel's choice.
    ///
    /// # Errors
    /// The process has no such piece of address space left.
    pub fn new() -> io::Result<Self> {
        // One REACH more than needed contains an aligned piece.
        let found = map_nothing(0, 2 * REACH + GUARD)?;
        let address = found.next_multiple_of(REACH);
        unmap(found, address - found)?;
        let end = address + REACH + GUARD;
        unmap(end, found + 2 * REACH + GUARD - end)?;
        Ok(Self { address })
    }

    /// Reserves at a given address, where another process has it.
    ///
    /// # Errors
    /// `EINVAL` when the address is no multiple of [`REACH`], `EEXIST` when this process
    /// has something else there.
    pub fn at(address: u64) -> io::Result<Self> {
        if address == 0 || !address.is_multiple_of(REACH) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        map_nothing(address, REACH + GUARD)?;
        Ok(Self { address })
    }

    /// Returns the first address.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // Addresses that cannot be unmapped stay reserved: a leak of addresses, of no memory.
        let _ = unmap(self.address, REACH + GUARD);
    }
}

/// Reserves addresses; `address` 0 leaves the choice to the kernel.
fn map_nothing(address: u64, length: u64) -> io::Result<u64> {
    let mut flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    if address != 0 {
        flags |= MapFlags::FIXED_NOREPLACE;
    }
    let hint = std::ptr::without_provenance_mut(address as usize);
    // SAFETY: a new mapping of no access that replaces nothing.
    let found =
        unsafe { rustix::mm::mmap_anonymous(hint, length as usize, ProtFlags::empty(), flags) }?;
    Ok(found.addr() as u64)
}

fn unmap(address: u64, length: u64) -> io::Result<()> {
    if length == 0 {
        return Ok(());
    }
    let start = std::ptr::without_provenance_mut(address as usize);
    // SAFETY: a piece of our own reservation; nobody holds a reference into it.
    unsafe { rustix::mm::munmap(start, length as usize) }?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reservation_is_aligned_and_exclusive() {
        let first = Reservation::new().unwrap();
        assert!(first.address().is_multiple_of(REACH));
        assert_eq!(
            Reservation::at(first.address()).unwrap_err().kind(),
            io::ErrorKind::AlreadyExists
        );
        let address = first.address();
        drop(first);
        assert_eq!(Reservation::at(address).unwrap().address(), address);
        assert_eq!(
            Reservation::at(address + 4096).unwrap_err().kind(),
            io::ErrorKind::InvalidInput
        );
    }
}
