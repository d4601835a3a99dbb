//! TCP sockets with foreign addresses: they accept connections to any address, and connect from any
//! (`IP_TRANSPARENT`).

use nix::sys::socket::{setsockopt, sockopt};
use rustix::net::{
    AddressFamily, SocketAddrAny, SocketFlags, SocketType, bind, getsockname, ipproto, listen,
    socket_with, sockopt as options,
};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// Limit of connections that wait to be accepted: more than come in the time that a busy cell is
/// away, or the kernel's own limit where that is lower (`net.core.somaxconn`).
const BACKLOG: i32 = 4096;
/// Limit of IPv4 ports that are tried until one is free for IPv6, too.
const ATTEMPTS_MAX: usize = 16;

/// Keepalive: a silent peer is probed after this time, then a number of times at an interval. A
/// peer that vanished holds a connection for ten minutes and a half.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(600);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_COUNT: u32 = 3;

/// Listeners for intercepted connections: one port on the loopback addresses.
#[derive(Debug)]
pub struct Listeners {
    /// Listener on 127.0.0.1.
    pub v4: OwnedFd,
    /// Listener on `::1`; `None` where the kernel has no IPv6.
    pub v6: Option<OwnedFd>,
    /// Port of both listeners.
    pub port: u16,
}

impl Listeners {
    /// Opens listeners in the calling thread's namespace.
    ///
    /// # Errors
    /// The caller lacks `CAP_NET_ADMIN`, or no port is free.
    pub fn open() -> io::Result<Self> {
        let mut last = io::Error::from(io::ErrorKind::AddrInUse);
        for _ in 0..ATTEMPTS_MAX {
            let v4 = listener((Ipv4Addr::LOCALHOST, 0).into())?;
            let port = port_of(&v4)?;
            match listener((Ipv6Addr::LOCALHOST, port).into()) {
                Ok(v6) => return Ok(Self { v4, v6: Some(v6), port }),
                Err(error) if has_no_v6(&error) => return Ok(Self { v4, v6: None, port }),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

fn has_no_v6(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL))
}

fn listener(at: SocketAddr) -> io::Result<OwnedFd> {
    let socket = unconnected(at.is_ipv6())?;
    if at.is_ipv6() {
        options::set_ipv6_v6only(&socket, true)?;
    }
    bind(&socket, &at)?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

fn port_of(socket: &impl AsFd) -> io::Result<u16> {
    let address: SocketAddrAny = getsockname(socket)?;
    let address = SocketAddr::try_from(address).map_err(io::Error::from)?;
    Ok(address.port())
}

/// Returns a socket that may connect from any address. Binding and connecting it needs no
/// capability.
///
/// # Errors
/// The caller lacks `CAP_NET_ADMIN`, or no descriptor is free.
pub fn unconnected(v6: bool) -> io::Result<OwnedFd> {
    let family = if v6 { AddressFamily::INET6 } else { AddressFamily::INET };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
    setsockopt(&socket, sockopt::IpTransparent, &true)?;
    // The client's own port may be in use from another of its connections that has ended.
    options::set_socket_reuseaddr(&socket, true)?;
    // No delay for small writes, and detection of peers that vanish. Accepted sockets inherit both
    // from the listener.
    options::set_tcp_nodelay(&socket, true)?;
    // An urgent byte stays in its place among the others (RFC 6093, section 5): read out of band, it
    // would be lost.
    options::set_socket_oobinline(&socket, true)?;
    options::set_tcp_keepidle(&socket, KEEPALIVE_IDLE)?;
    options::set_tcp_keepintvl(&socket, KEEPALIVE_INTERVAL)?;
    options::set_tcp_keepcnt(&socket, KEEPALIVE_COUNT)?;
    options::set_socket_keepalive(&socket, true)?;
    Ok(socket)
}
