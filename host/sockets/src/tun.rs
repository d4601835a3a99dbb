//! TUN and TAP devices: packets between a process and the kernel, through a descriptor.
//!
//! A TAP device carries frames to the cell from modules at kernel level, and to their arrival port
//! frames that only the kernel can finish: addressed to the node itself, to an unresolved
//! neighbour, or with an expired TTL. A TUN device carries those that cannot be returned to their
//! arrival port.

use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, open};
use std::io;

/// Longest device name, without the terminating zero (`IFNAMSIZ - 1`).
pub const DEVICE_NAME_MAX: usize = 15;

/// Kind of packets that a device carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// IP packets: TUN.
    Packets,
    /// Ethernet frames: TAP.
    Frames,
}

/// Creates the device `name` in the current network namespace, without packet information headers.
/// It exists as long as the descriptor, which is non-blocking.
///
/// # Errors
/// `InvalidInput` for a name that is too long; else as reported by the kernel.
pub fn create(name: &str, kind: Kind) -> io::Result<OwnedFd> {
    if name.is_empty() || name.len() > DEVICE_NAME_MAX {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("device name '{name}' must have 1 to {DEVICE_NAME_MAX} characters"),
        ));
    }
    let fd =
        open("/dev/net/tun", OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())?;
    // SAFETY: ifreq is a plain struct of integers and bytes, for which zeroes are valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    let kind = match kind {
        Kind::Packets => libc::IFF_TUN,
        Kind::Frames => libc::IFF_TAP,
    };
    request.ifr_ifru.ifru_flags = (kind | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: TUNSETIFF reads and writes one ifreq, which outlives the call.
    let done =
        unsafe { libc::ioctl(rustix::fd::AsRawFd::as_raw_fd(&fd), libc::TUNSETIFF, &mut request) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(fd) }
}

/// Creates a device that exists until it is removed: other programs open it by its name, one at a
/// time.
///
/// # Errors
/// Same as [`create`].
pub fn create_lasting(name: &str, kind: Kind) -> io::Result<()> {
    let fd = create(name, kind)?;
    // SAFETY: TUNSETPERSIST takes a number.
    let done = unsafe { libc::ioctl(rustix::fd::AsRawFd::as_raw_fd(&fd), libc::TUNSETPERSIST, 1) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
