//! Connections by the hundred out of one thread: each is begun, and its socket says when it is
//! there.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SendFlags, SocketFlags, SocketType};

/// Events of a look.
const EVENTS: usize = 256;

/// Begins a connection, from the namespace of the calling thread.
pub(crate) fn dial(at: SocketAddr) -> Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)
        .context("making a client's socket")?;
    match net::connect(&socket, &at) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(error) => bail!("connecting to {at}: {error}"),
    }
}

/// Asks, on a connection that has just become writable.
pub(crate) fn ask(socket: &OwnedFd, request: &str) -> Result<()> {
    net::sockopt::socket_error(socket)?.context("a client's connection")?;
    let sent = net::send(socket, request.as_bytes(), SendFlags::NOSIGNAL).context("asking")?;
    ensure!(sent == request.len(), "a new connection takes {sent} bytes only");
    Ok(())
}

/// Sockets, by number, and what there is to be done with them.
#[derive(Debug)]
pub(crate) struct Watched {
    events: OwnedFd,
}

/// What a socket waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum For {
    /// Its connection, or room to send.
    Writing,
    Reading,
}

impl For {
    const fn flags(self) -> epoll::EventFlags {
        match self {
            Self::Writing => epoll::EventFlags::OUT,
            Self::Reading => epoll::EventFlags::IN,
        }
    }
}

impl Watched {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self { events: epoll::create(epoll::CreateFlags::CLOEXEC).context("making an epoll")? })
    }

    pub(crate) fn add(&self, socket: impl AsFd, number: u64, what: For) -> Result<()> {
        epoll::add(&self.events, socket, epoll::EventData::new_u64(number), what.flags())
            .context("watching a socket")
    }

    pub(crate) fn change(&self, socket: impl AsFd, number: u64, what: For) -> Result<()> {
        epoll::modify(&self.events, socket, epoll::EventData::new_u64(number), what.flags())
            .context("watching a socket")
    }

    pub(crate) fn remove(&self, socket: impl AsFd) -> Result<()> {
        epoll::delete(&self.events, socket).context("watching a socket no more")
    }

    /// The numbers of those that are ready; none after such a time.
    pub(crate) fn ready(&self, timeout: Duration) -> Result<Vec<u64>> {
        let timeout = Timespec {
            tv_sec: timeout.as_secs().cast_signed(),
            tv_nsec: i64::from(timeout.subsec_nanos()),
        };
        let mut found = Vec::with_capacity(EVENTS);
        let spare = rustix::buffer::spare_capacity(&mut found);
        match epoll::wait(&self.events, spare, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => bail!("waiting for sockets: {error}"),
        }
        Ok(found.into_iter().map(|event| event.data.u64()).collect())
    }
}
