//! Notifications of changes in a namespace's network, by kind only: the reader looks at the details
//! itself.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::RecvFlags;
use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::NetlinkError;
use super::own::{RTM_TYPE_OFFSET, RTN_LOCAL};
use super::socket::{Socket, messages, receive};
use namespaces::netns::{NetNs, in_namespace};

/// Receive buffer: fits a burst of the size of a full routing table; the kernel counts this memory
/// only when it is used.
const EVENT_BUFFER: usize = 4 * 1024 * 1024;
/// Largest datagram of events; the kernel sends each message in its own.
const DATAGRAM_MAX: usize = 32 * 1024;

/// Kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// A device was added, removed or changed.
    Link,
    /// An address was added or removed, or a prefix whose packets end on this machine.
    Address,
    /// A route or a next hop object was added, removed or changed.
    Route,
    /// A neighbour was added, removed, or changed its state.
    Neighbour,
    /// A routing rule was added or removed.
    Rule,
    /// A setting of a device, or of all, has changed: forwarding, reverse path filter.
    Setting,
    /// Notifications were lost: anything may have changed.
    Lost,
}

/// Multicast groups (include/uapi/linux/rtnetlink.h): link, neigh, v4 address, v4 route,
/// v4 rule, v6 address, v6 route, v6 rule, v4 netconf, v6 netconf, next hop objects (which change
/// without a route's notification where `net.ipv4.nexthop_compat_mode` is 0).
const GROUPS: [u32; 11] = [1, 3, 5, 7, 8, 9, 11, 19, 24, 25, 32];

/// Subscription to the changes of one namespace, from the moment it was opened.
#[derive(Debug)]
pub struct Monitor {
    socket: Socket,
    buffer: Vec<u8>,
    waiting: VecDeque<Change>,
}

impl Monitor {
    /// Opens a subscription to the calling thread's namespace.
    ///
    /// # Errors
    /// The kernel gives no socket.
    pub fn open() -> Result<Self, NetlinkError> {
        let mask = GROUPS.iter().fold(0, |mask, group| mask | 1 << (group - 1));
        let socket = Socket::open(None, mask).map_err(|source| NetlinkError::Open { source })?;
        // Without CAP_NET_ADMIN the default size stays, and bursts end in `Change::Lost`.
        let _ = set_socket_recv_buffer_size_force(socket.fd(), EVENT_BUFFER);
        Ok(Self { socket, buffer: vec![0; DATAGRAM_MAX], waiting: VecDeque::new() })
    }

    /// Opens a subscription to another namespace; the calling thread does not move.
    ///
    /// # Errors
    /// The namespace cannot be entered or the kernel gives no socket.
    pub fn open_in(namespace: &NetNs) -> Result<Self, NetlinkError> {
        in_namespace(namespace, Self::open)?
    }

    /// Returns the next change, blocking at most `patience`; `None` if nothing changed.
    ///
    /// # Errors
    /// The socket fails.
    pub fn next_within(&mut self, patience: Duration) -> io::Result<Option<Change>> {
        if self.waiting.is_empty() {
            let fd = self.socket.fd();
            let timeout = Timespec {
                tv_sec: i64::try_from(patience.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: patience.subsec_nanos().into(),
            };
            match poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&timeout)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(None),
                other => other?,
            };
            self.read()?;
        }
        Ok(self.waiting.pop_front())
    }

    /// Returns the next change, for async code: cancelling it loses nothing.
    ///
    /// # Errors
    /// The socket fails, or outside a tokio runtime with I/O.
    pub async fn next(&mut self) -> io::Result<Change> {
        loop {
            if let Some(change) = self.waiting.pop_front() {
                return Ok(change);
            }
            self.readable().await?;
            self.read()?;
        }
    }

    async fn readable(&self) -> io::Result<()> {
        let fd = self.socket.fd().as_fd();
        // SAFETY: the descriptor is borrowed from `self` for longer than the registration lives,
        // which ends with this function or when its future is dropped; nobody closes it or puts
        // another in its place meanwhile.
        // WHY: the safe constructor is deprecated in favour of this one.
        let registered = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }?;
        registered.readable().await?.retain_ready();
        Ok(())
    }

    /// Reads one datagram, if one is there.
    fn read(&mut self) -> io::Result<()> {
        match receive(self.socket.fd(), &mut self.buffer, RecvFlags::DONTWAIT) {
            Ok(datagram) => {
                let changes = messages(datagram)
                    .flatten()
                    .filter_map(|message| change_of(message.message_type(), message.payload()));
                self.waiting.extend(changes);
            }
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                self.waiting.push_back(Change::Lost);
            }
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                self.waiting.push_back(Change::Lost);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

impl AsFd for Monitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.fd().as_fd()
    }
}

/// Returns the kind of change of a message. Message types come in groups of four: NEW, DEL, GET,
/// SET.
fn change_of(kind: u16, payload: &[u8]) -> Option<Change> {
    match kind {
        16 | 17 | 19 => Some(Change::Link),
        20 | 21 => Some(Change::Address),
        // A route that ends here belongs to an address, and is sent after the address's
        // notification.
        24 | 25 if payload.get(RTM_TYPE_OFFSET) == Some(&RTN_LOCAL) => Some(Change::Address),
        24 | 25 | 104 | 105 => Some(Change::Route),
        28 | 29 => Some(Change::Neighbour),
        32 | 33 => Some(Change::Rule),
        80 | 81 => Some(Change::Setting),
        _ => None,
    }
}
