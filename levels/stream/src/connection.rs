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
use crate::pipes::Pipes;
use crate::table::{ServiceNumber, Side};
use crate::way::{End, Moved, Way};

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

/// Of what comes then no event tells by itself.
const ENDINGS: EventFlags =
    EventFlags::RDHUP.union(EventFlags::HUP).union(EventFlags::ERR).union(EventFlags::PRI);

/// A socket with what the kernel said of it.
pub(crate) struct Socket {
    pub(crate) fd: OwnedFd,
    pub(crate) may_read: bool,
    pub(crate) may_write: bool,
    pub(crate) has_failed: bool,
    /// Its other side has ended it, or has said something urgent: what is behind the last bytes
    /// that came is found by reading alone.
    pub(crate) is_ending: bool,
    /// Its other side has ended it.
    is_whole: bool,
    /// What comes is acknowledged with what is said to it, as far as that does not take long.
    acknowledges_late: bool,
}

impl Socket {
    pub(crate) const fn new(fd: OwnedFd) -> Self {
        Self {
            fd,
            may_read: false,
            may_write: false,
            has_failed: false,
            is_ending: false,
            is_whole: false,
            acknowledges_late: false,
        }
    }

    /// One whose listener acknowledges late, or not.
    pub(crate) fn accepted(fd: OwnedFd, acknowledges_late: bool) -> Self {
        Self { acknowledges_late, ..Self::new(fd) }
    }

    /// Has it acknowledge late: the answer of a server that it connects to, first of all, with
    /// what it says then.
    pub(crate) fn acknowledge_late(&mut self) -> Result<(), Errno> {
        self.acknowledges_late = true;
        sockopt::set_tcp_quickack(&self.fd, false)
    }

    /// Acknowledges what has come, and from now on as usual.
    pub(crate) fn acknowledge(&mut self) -> Result<(), Errno> {
        if !std::mem::take(&mut self.acknowledges_late) {
            return Ok(());
        }
        sockopt::set_tcp_quickack(&self.fd, true)
    }

    /// The kernel has said something of it.
    pub(crate) fn happened(&mut self, flags: EventFlags) {
        self.may_read |= flags.intersects(EventFlags::IN | EventFlags::RDHUP);
        self.may_write |= flags.contains(EventFlags::OUT);
        self.has_failed |= flags.contains(EventFlags::ERR);
        self.is_ending |= flags.intersects(ENDINGS);
        self.is_whole |= flags.contains(EventFlags::RDHUP);
    }

    fn end(&mut self) -> End<'_> {
        let Self { fd, may_read, may_write, is_ending, is_whole, .. } = self;
        let (fd, is_ending, is_whole): (&OwnedFd, _, _) = (fd, *is_ending, *is_whole);
        End { socket: fd.as_fd(), may_read, may_write, is_ending, is_whole }
    }
}

/// Who connects to whom.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    pub(crate) client: SocketAddr,
    pub(crate) server: SocketAddr,
}

/// See above.
pub(crate) struct Connection {
    pub(crate) service: ServiceNumber,
    /// It is among those for which something can be done.
    pub(crate) is_ready: bool,
    /// What it has to send waits for that of others.
    pub(crate) is_gathered: bool,
    downstream: Socket,
    upstream: Socket,
    is_connecting: bool,
    /// Who is still to be connected with whom.
    target: Option<Target>,
    /// To the server, and to the client.
    up: Way,
    down: Way,
}

impl Connection {
    /// One that has been accepted, with a socket to connect to its server.
    pub(crate) fn accepted(
        service: ServiceNumber,
        accepted: OwnedFd,
        socket: OwnedFd,
        target: Target,
    ) -> Self {
        let (downstream, upstream) = (Socket::new(accepted), Socket::new(socket));
        let (is_connecting, target) = (true, Some(target));
        Self { is_connecting, target, ..Self::join(service, downstream, upstream) }
    }

    /// Connects to its server as its client, if that has not begun; whether that has another port.
    /// `None` if there is nothing to do.
    pub(crate) fn connect(&mut self, pipes: &mut Pipes) -> Option<Result<bool, Errno>> {
        let Target { client, server } = self.target.take()?;
        // What the client has said already goes with the acknowledgement of the server's answer.
        self.downstream.may_read = true;
        let gathered = self.up.gather(pipes, &mut self.downstream.end());
        self.downstream.has_failed |= gathered.is_err();
        let late = if self.up.is_held() { self.upstream.acknowledge_late() } else { Ok(()) };
        let (socket, mut other_port) = (&self.upstream.fd, false);
        let connected = late.and_then(|()| bind_as(socket, client, &mut other_port)).and_then(
            |()| match connect(socket, &server) {
                Err(Errno::INPROGRESS) => Ok(()),
                other => other,
            },
        );
        Some(connected.map(|()| other_port))
    }

    /// Of two sockets that are open.
    pub(crate) fn join(service: ServiceNumber, downstream: Socket, upstream: Socket) -> Self {
        let (up, down) = (Way::default(), Way::default());
        Self {
            service,
            is_ready: false,
            is_gathered: false,
            downstream,
            upstream,
            is_connecting: false,
            target: None,
            up,
            down,
        }
    }

    /// It can be of no use any more.
    pub(crate) const fn fail(&mut self) {
        self.downstream.has_failed = true;
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
        socket.happened(flags);
    }

    /// Whether bytes can pass; what becomes of it where they cannot.
    fn is_open(&mut self) -> Result<(), After> {
        if self.is_connecting {
            if self.upstream.has_failed {
                return Err(After::Unreachable);
            }
            if self.downstream.has_failed {
                return Err(After::Reset);
            }
            if !self.upstream.may_write {
                return Err(After::Waits);
            }
            self.is_connecting = false;
        }
        if self.upstream.has_failed || self.downstream.has_failed {
            return Err(After::Reset);
        }
        Ok(())
    }

    /// Reads what has come, if it is little, and leaves it to be sent with that of others: a call
    /// of the kernel that sends wakes somebody, and one behind the other they wake him once.
    pub(crate) fn gather(&mut self, pipes: &mut Pipes) -> bool {
        if self.is_open().is_err() {
            return false;
        }
        let (mut downstream, mut upstream) = (self.downstream.end(), self.upstream.end());
        let up = self.up.gather(pipes, &mut downstream);
        let down = self.down.gather(pipes, &mut upstream);
        // The kernel says once why a socket has failed.
        self.downstream.has_failed |= up.is_err();
        self.upstream.has_failed |= down.is_err();
        matches!((up, down), (Ok(true), Ok(_)) | (Ok(_), Ok(true)))
    }

    /// Does what can be done, about so many bytes each way at most.
    pub(crate) fn advance(
        &mut self,
        pipes: &mut Pipes,
        counts: &mut Counts,
        portion: usize,
    ) -> After {
        if let Err(after) = self.is_open() {
            return after;
        }
        let before = (self.up.moved, self.down.moved);
        let mut moved = self.pass(pipes, portion);
        if self.up.moved > before.0
            && let Err(error) = self.upstream.acknowledge()
        {
            moved = Err(error);
        }
        counts.up += self.up.moved - before.0;
        counts.down += self.down.moved - before.1;
        match moved {
            Ok((Moved::Ended, Moved::Ended)) => After::Ended,
            Ok((Moved::GoesOn, _) | (_, Moved::GoesOn)) => After::GoesOn,
            Ok(_) => After::Waits,
            Err(_) => After::Reset,
        }
    }

    fn pass(&mut self, pipes: &mut Pipes, portion: usize) -> Result<(Moved, Moved), Errno> {
        let (mut downstream, mut upstream) = (self.downstream.end(), self.upstream.end());
        let (up, down) = (&mut self.up, &mut self.down);
        let is_last = down.is_over();
        let went_up = up.advance(pipes, &mut downstream, &mut upstream, portion, is_last)?;
        let is_last = up.is_over();
        let went_down = down.advance(pipes, &mut upstream, &mut downstream, portion, is_last)?;
        Ok((went_up, went_down))
    }

    /// Both ends know that it is over.
    pub(crate) fn close(self, pipes: &mut Pipes) {
        self.up.close(pipes);
        self.down.close(pipes);
    }

    /// Both ends are told that it is over, now.
    pub(crate) fn reset(self, pipes: &mut Pipes) {
        reset(&self.downstream.fd);
        reset(&self.upstream.fd);
        self.close(pipes);
    }
}

/// Has a socket reset its connection when it is closed. One that is closed already does not mind.
pub(crate) fn reset(socket: &OwnedFd) {
    let _ = sockopt::set_socket_linger(socket, Some(Duration::ZERO));
}

/// Takes the client's address, and its port unless that is in use.
pub(crate) fn bind_as(
    socket: &OwnedFd,
    client: SocketAddr,
    other_port: &mut bool,
) -> Result<(), Errno> {
    match bind(socket, &client) {
        Err(Errno::ADDRINUSE | Errno::ACCESS) => {
            *other_port = true;
            bind(socket, &SocketAddr::new(client.ip(), 0))
        }
        other => other,
    }
}
