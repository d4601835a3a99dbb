//! One intercepted connection.
//!
//! ```text
//!  accepted ─▶ connecting ─ the server answers ─▶ open ─ both ways have ended ─▶ closed
//!                  │ it refuses, or does not answer  │ one end resets
//!                  └──────────▶ reset ◀──────────────┘
//! ```

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{bind, connect, sockopt};

use crate::Counts;
use crate::handled::Handled;
use crate::handler::{Handler, Side};
use crate::pipes::Pipes;
use crate::table::ServiceNumber;
use crate::way::{End, Moved, Way};

/// An end that says nothing is asked after so long whether it is still there, then so many times
/// so often: who is gone without a word holds a connection for ten minutes and a half.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(600);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_COUNT: u32 = 3;

/// What is to become of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    /// Nothing, until something happens.
    Waits,
    /// It goes on when others have had their turn.
    GoesOn,
    /// Both ways have ended.
    Ended,
    /// One end was reset.
    Reset,
    /// Its server was not reached.
    Unreachable,
}

/// A socket with what the kernel said of it.
struct Socket {
    fd: OwnedFd,
    may_read: bool,
    may_write: bool,
    has_failed: bool,
}

impl Socket {
    const fn new(fd: OwnedFd) -> Self {
        Self { fd, may_read: false, may_write: false, has_failed: false }
    }

    fn end(&mut self) -> End<'_> {
        let Self { fd, may_read, may_write, .. } = self;
        let fd: &OwnedFd = fd;
        End { socket: fd.as_fd(), may_read, may_write }
    }
}

/// See above.
pub(crate) struct Connection {
    pub(crate) service: ServiceNumber,
    /// It is among those for which something can be done.
    pub(crate) is_ready: bool,
    downstream: Socket,
    upstream: Socket,
    is_connecting: bool,
    passes: Passes,
}

/// How bytes come from one end to the other.
enum Passes {
    /// By pipes: to the server, and to the client.
    Spliced {
        up: Way,
        down: Way,
    },
    Handled(Box<Handled>),
}

impl Connection {
    /// Connects to the server of an accepted connection as its client; whether that has another
    /// port. If it fails, the client is reset.
    pub(crate) fn open(
        service: ServiceNumber,
        accepted: OwnedFd,
        socket: OwnedFd,
        client: SocketAddr,
        server: SocketAddr,
        handler: Option<Box<dyn Handler>>,
    ) -> Result<(Self, bool), Errno> {
        let mut other_port = false;
        let connected = bind_as(&socket, client, &mut other_port)
            .and_then(|()| match connect(&socket, &server) {
                Err(Errno::INPROGRESS) => Ok(()),
                other => other,
            })
            .and_then(|()| prepare(&accepted))
            .and_then(|()| prepare(&socket));
        if let Err(error) = connected {
            reset(&accepted);
            return Err(error);
        }
        let connection = Self {
            service,
            is_ready: false,
            downstream: Socket::new(accepted),
            upstream: Socket::new(socket),
            is_connecting: true,
            passes: match handler {
                Some(handler) => Passes::Handled(Box::new(Handled::new(handler))),
                None => Passes::Spliced { up: Way::default(), down: Way::default() },
            },
        };
        Ok((connection, other_port))
    }

    pub(crate) fn socket(&self, side: Side) -> BorrowedFd<'_> {
        match side {
            Side::Downstream => self.downstream.fd.as_fd(),
            Side::Upstream => self.upstream.fd.as_fd(),
        }
    }

    pub(crate) const fn is_connecting(&self) -> bool {
        self.is_connecting
    }

    /// The kernel has said something of one of the two.
    pub(crate) fn happened(&mut self, side: Side, flags: EventFlags) {
        let socket = match side {
            Side::Downstream => &mut self.downstream,
            Side::Upstream => &mut self.upstream,
        };
        socket.may_read |= flags.intersects(EventFlags::IN | EventFlags::RDHUP);
        socket.may_write |= flags.contains(EventFlags::OUT);
        socket.has_failed |= flags.contains(EventFlags::ERR);
    }

    /// Does what can be done, about so many bytes each way at most.
    pub(crate) fn advance(
        &mut self,
        (pipes, buffer): (&mut Pipes, &mut [u8]),
        counts: &mut Counts,
        portion: usize,
    ) -> After {
        if self.is_connecting {
            if self.upstream.has_failed {
                return After::Unreachable;
            }
            if self.downstream.has_failed {
                return After::Reset;
            }
            if !self.upstream.may_write {
                return After::Waits;
            }
            self.is_connecting = false;
        }
        if self.upstream.has_failed || self.downstream.has_failed {
            return After::Reset;
        }
        let before = self.passes.moved();
        let (downstream, upstream) = (self.downstream.end(), self.upstream.end());
        let moved = self.passes.advance((pipes, buffer), [downstream, upstream], portion);
        let after = self.passes.moved();
        counts.down += after[0] - before[0];
        counts.up += after[1] - before[1];
        match moved {
            Ok(Moved::Ended) => After::Ended,
            Ok(Moved::GoesOn) => After::GoesOn,
            Ok(Moved::Waits) => After::Waits,
            Err(_) => After::Reset,
        }
    }

    /// Both ends know that it is over.
    pub(crate) fn close(self, pipes: &mut Pipes) {
        if let Passes::Spliced { up, down } = self.passes {
            up.close(pipes);
            down.close(pipes);
        }
    }

    /// Both ends are told that it is over, now.
    pub(crate) fn reset(self, pipes: &mut Pipes) {
        reset(&self.downstream.fd);
        reset(&self.upstream.fd);
        self.close(pipes);
    }
}

impl Passes {
    /// Bytes that have arrived at the client and at the server.
    fn moved(&self) -> [u64; 2] {
        match self {
            Self::Spliced { up, down } => [down.moved, up.moved],
            Self::Handled(handled) => handled.moved,
        }
    }

    fn advance(
        &mut self,
        (pipes, buffer): (&mut Pipes, &mut [u8]),
        [mut downstream, mut upstream]: [End<'_>; 2],
        portion: usize,
    ) -> Result<Moved, Errno> {
        let (up, down) = match self {
            Self::Handled(handled) => {
                return handled.advance(buffer, [downstream, upstream], portion);
            }
            Self::Spliced { up, down } => (
                up.advance(pipes, &mut downstream, &mut upstream, portion)?,
                down.advance(pipes, &mut upstream, &mut downstream, portion)?,
            ),
        };
        Ok(match (up, down) {
            (Moved::Ended, Moved::Ended) => Moved::Ended,
            (Moved::GoesOn, _) | (_, Moved::GoesOn) => Moved::GoesOn,
            _ => Moved::Waits,
        })
    }
}

/// Has a socket reset its connection when it is closed. One that is closed already does not mind.
pub(crate) fn reset(socket: &OwnedFd) {
    let _ = sockopt::set_socket_linger(socket, Some(Duration::ZERO));
}

/// Takes the client's address, and its port unless that is in use.
fn bind_as(socket: &OwnedFd, client: SocketAddr, other_port: &mut bool) -> Result<(), Errno> {
    match bind(socket, &client) {
        Err(Errno::ADDRINUSE | Errno::ACCESS) => {
            *other_port = true;
            bind(socket, &SocketAddr::new(client.ip(), 0))
        }
        other => other,
    }
}

/// Bytes leave when they come, and an end that has vanished is noticed.
fn prepare(socket: &OwnedFd) -> Result<(), Errno> {
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_tcp_keepidle(socket, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(socket, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(socket, KEEPALIVE_COUNT)?;
    sockopt::set_socket_keepalive(socket, true)
}
