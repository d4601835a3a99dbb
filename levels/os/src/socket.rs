//! What the kernel counts on a socket of another process.

use rustix::fd::BorrowedFd;
use std::io;

/// Packets that the kernel dropped in front of an AF_XDP socket since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XdpDrops {
    /// The receive ring, which is the session's queue, was full.
    pub ring_full: u64,
    /// There was no free frame, or the packet did not fit.
    pub other: u64,
}

/// Asks for the drops of an AF_XDP socket (`XDP_STATISTICS`).
///
/// # Errors
/// When `socket` is none, or not set up yet.
pub fn xdp_drops(socket: BorrowedFd<'_>) -> io::Result<XdpDrops> {
    let counted = rustix::net::sockopt::xdp_statistics(socket)?;
    // `rx_dropped` has the packets that found no frame, too.
    Ok(XdpDrops { ring_full: counted.rx_ring_full.unwrap_or(0), other: counted.rx_dropped })
}
