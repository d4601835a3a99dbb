//! Hundreds of non-blocking connections from one thread: each socket becomes writable once it is
//! connected.

use std::cell::Cell;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SendFlags, SocketFlags, SocketType};

/// Most events of one poll.
const EVENTS: usize = 256;

/// Starts a connection from the namespace of the calling thread.
pub(crate) fn dial(at: SocketAddr) -> Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)
        .context("making a client's socket")?;
    match net::connect(&socket, &at) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(error) => bail!("connecting to {at}: {error}"),
    }
}

/// Sends a request on a connection that has just become writable.
pub(crate) fn ask(socket: &OwnedFd, request: &str) -> Result<()> {
    net::sockopt::socket_error(socket)?.context("a client's connection")?;
    let sent = net::send(socket, request.as_bytes(), SendFlags::NOSIGNAL).context("asking")?;
    ensure!(sent == request.len(), "a new connection takes {sent} bytes only");
    Ok(())
}

/// Poller of sockets by number.
#[derive(Debug)]
pub(crate) struct Watched {
    events: OwnedFd,
    looked: Cell<Option<Instant>>,
    pause: Cell<Duration>,
}

/// Readiness that a socket waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum For {
    /// Connection established, or space to send.
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
        let events = epoll::create(epoll::CreateFlags::CLOEXEC).context("making an epoll")?;
        Ok(Self { events, looked: Cell::default(), pause: Cell::default() })
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

    /// Waits up to `timeout`; returns the numbers of ready sockets.
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
        let now = Instant::now();
        if let Some(before) = self.looked.replace(Some(now)) {
            self.pause.set(self.pause.get().max(now.saturating_duration_since(before)));
        }
        Ok(found.into_iter().map(|event| event.data.u64()).collect())
    }

    /// Returns the longest time between two polls. One far beyond the polls' timeouts means that
    /// the machine stood still, not that a peer was slow.
    pub(crate) fn pause(&self) -> Duration {
        self.pause.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    /// Time beyond every wait of a test.
    const TIME_MAX: Duration = Duration::from_secs(10);

    #[test]
    fn a_socket_says_when_it_is_connected_and_when_there_is_an_answer() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let sockets = Watched::new().unwrap();
        let socket = dial(listener.local_addr().unwrap()).unwrap();
        sockets.add(&socket, 7, For::Writing).unwrap();
        assert_eq!(sockets.ready(TIME_MAX).unwrap(), [7]);
        ask(&socket, "a question").unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        let mut question = [0; 10];
        stream.read_exact(&mut question).unwrap();
        assert_eq!(&question, b"a question");
        sockets.change(&socket, 7, For::Reading).unwrap();
        assert!(sockets.ready(Duration::ZERO).unwrap().is_empty());
        stream.write_all(b"an answer").unwrap();
        assert_eq!(sockets.ready(TIME_MAX).unwrap(), [7]);
        sockets.remove(&socket).unwrap();
        assert!(sockets.ready(Duration::ZERO).unwrap().is_empty());
    }

    #[test]
    fn a_missing_server_refuses_connections() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        drop(listener);
        let sockets = Watched::new().unwrap();
        let socket = dial(at).unwrap();
        sockets.add(&socket, 1, For::Writing).unwrap();
        assert_eq!(sockets.ready(TIME_MAX).unwrap(), [1]);
        let refused = format!("{:#}", ask(&socket, "a question").unwrap_err());
        assert!(refused.contains("a client's connection: Connection refused"), "{refused}");
    }

    #[test]
    fn a_pause_between_two_polls_is_noticed() {
        let sockets = Watched::new().unwrap();
        assert_eq!(sockets.pause(), Duration::ZERO);
        sockets.ready(Duration::ZERO).unwrap();
        let pause = Duration::from_millis(20);
        std::thread::sleep(pause);
        sockets.ready(Duration::ZERO).unwrap();
        assert!(sockets.pause() >= pause);
    }
}
