//! Counters of sockets in the kernel.

use rustix::fd::BorrowedFd;
use std::io;
use std::os::fd::AsRawFd;

/// Returns the number of bytes that were written to a TCP socket and that its peer has not
/// acknowledged (`SIOCOUTQ`, include/uapi/linux/sockios.h); 0 for other sockets.
#[must_use]
pub fn unacknowledged(socket: BorrowedFd<'_>) -> usize {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the descriptor is open for the whole call; `SIOCOUTQ`, which is `TIOCOUTQ`, writes one
    // `int` to the address that it is given, which is that of one, borrowed mutably.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if result < 0 { 0 } else { usize::try_from(bytes).unwrap_or(0) }
}

/// Packets that the kernel dropped before an AF_XDP socket since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XdpDrops {
    /// Packets dropped because the receive ring, which is the session's queue, was full.
    pub ring_full: u64,
    /// Packets dropped because there was no free frame, or because they did not fit.
    pub other: u64,
}

/// Returns the drops of an AF_XDP socket (`XDP_STATISTICS`).
///
/// # Errors
/// `socket` is of another kind, or not set up yet.
pub fn xdp_drops(socket: BorrowedFd<'_>) -> io::Result<XdpDrops> {
    let counted = rustix::net::sockopt::xdp_statistics(socket)?;
    // `rx_dropped` includes packets that found no frame.
    Ok(XdpDrops { ring_full: counted.rx_ring_full.unwrap_or(0), other: counted.rx_dropped })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    #[test]
    fn bytes_beyond_the_receivers_window_are_unacknowledged() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut server = listener.accept().unwrap().0;
        assert_eq!(unacknowledged(client.as_fd()), 0);
        client.set_nonblocking(true).unwrap();
        let mut sent = 0;
        while let Ok(count) = client.write(&[0; 65_536]) {
            sent += count;
        }
        assert!((1..=sent).contains(&unacknowledged(client.as_fd())));
        server.read_exact(&mut vec![0; sent]).unwrap();
        // An answer acknowledges all that came before it.
        server.write_all(b"all").unwrap();
        client.set_nonblocking(false).unwrap();
        client.read_exact(&mut [0; 3]).unwrap();
        assert_eq!(unacknowledged(client.as_fd()), 0);
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(unacknowledged(file.as_fd()), 0);
    }
}
