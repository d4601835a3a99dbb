//! One intercepted connection.
//!
//! ```text
//!  accepted ─▶ connecting ─ the server answers ─▶ open ─ both ways have ended ─▶ closed
//!                  │ it refuses, or does not answer  │ one end resets
//!                  │                                 ▼
//!                  └──────────▶ reset ◀─────────── broken: what came before goes on
//! ```

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{bind, connect, sockopt};
use units::Nanos;

use crate::Counts;
use crate::closing::Closing;
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
    /// Its other side has reset it, or is lost: nothing goes there any more; what came before can
    /// still be read.
    pub(crate) is_broken: bool,
    /// A call has taken the kernel's error, which it says once: the end behind the last bytes is no
    /// orderly one, whatever reading says.
    pub(crate) is_cut: bool,
    /// There is nothing to be read from it either.
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
            is_broken: false,
            is_cut: false,
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
        if flags.contains(EventFlags::ERR) {
            self.may_read = true;
            self.is_broken = true;
        }
        self.is_ending |= flags.intersects(ENDINGS);
        self.is_whole |= flags.contains(EventFlags::RDHUP);
    }

    /// A call that sends has failed: what came before can still be read.
    pub(crate) const fn lose(&mut self) {
        self.may_read = true;
        self.is_ending = true;
        self.is_broken = true;
        self.is_cut = true;
    }

    fn end(&mut self) -> End<'_> {
        let Self { fd, may_read, may_write, is_ending, is_cut, .. } = self;
        let is_whole = self.is_whole && !self.is_broken;
        let (fd, is_ending, is_cut): (&OwnedFd, _, _) = (fd, *is_ending, *is_cut);
        End { socket: fd.as_fd(), may_read, may_write, is_ending, is_whole, is_cut }
    }

    /// Resets it, as soon as what was sent has arrived, if there is anybody.
    pub(crate) fn reset(self, closing: &mut Closing, now: Nanos) {
        if !self.is_broken {
            closing.reset(self.fd, now);
        }
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
    /// It is among those that are reset at one end.
    pub(crate) is_waited_for: bool,
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
        self.up.gather(pipes, &mut self.downstream.end());
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
            is_waited_for: false,
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
        self.downstream.is_broken = true;
        self.upstream.is_broken = true;
    }

    /// Whether one of the two ends is reset, while what came of it before may still be on its way.
    pub(crate) const fn is_broken(&self) -> bool {
        self.downstream.is_broken || self.upstream.is_broken
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
            if self.upstream.is_broken {
                return Err(After::Unreachable);
            }
            if self.downstream.is_broken {
                return Err(After::Reset);
            }
            if !self.upstream.may_write {
                return Err(After::Waits);
            }
            self.is_connecting = false;
        }
        Ok(())
    }

    /// Reads what has come, if it is little, and leaves it to be sent with that of others: a call
    /// of the kernel that sends wakes somebody, and one behind the other they wake him once.
    pub(crate) fn gather(&mut self, pipes: &mut Pipes) -> bool {
        if self.is_open().is_err() || self.is_broken() {
            return false;
        }
        let (mut downstream, mut upstream) = (self.downstream.end(), self.upstream.end());
        let up = self.up.gather(pipes, &mut downstream);
        let down = self.down.gather(pipes, &mut upstream);
        up || down
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
        let moved = self.pass(pipes, portion);
        if self.up.moved > before.0 && self.upstream.acknowledge().is_err() {
            self.upstream.lose();
        }
        counts.up += self.up.moved - before.0;
        counts.down += self.down.moved - before.1;
        match moved {
            (Moved::Ended, Moved::Ended) => After::Ended,
            (Moved::Cut | Moved::Ended, Moved::Cut | Moved::Ended) => After::Reset,
            (Moved::GoesOn, _) | (_, Moved::GoesOn) => After::GoesOn,
            _ => After::Waits,
        }
    }

    /// Moves bytes both ways. What is on its way to a socket that is broken is lost; what comes of
    /// one goes on.
    fn pass(&mut self, pipes: &mut Pipes, portion: usize) -> (Moved, Moved) {
        let mut went_up = Moved::Cut;
        if !self.upstream.is_broken {
            let (mut from, mut to) = (self.downstream.end(), self.upstream.end());
            let is_last = self.down.is_over();
            match self.up.advance(pipes, &mut from, &mut to, portion, is_last) {
                Ok(moved) => went_up = moved,
                Err(_) => self.upstream.lose(),
            }
        }
        if self.downstream.is_broken {
            return (went_up, Moved::Cut);
        }
        let (mut from, mut to) = (self.upstream.end(), self.downstream.end());
        let is_last = self.up.is_over();
        match self.down.advance(pipes, &mut from, &mut to, portion, is_last) {
            Ok(moved) => (went_up, moved),
            Err(_) => {
                self.downstream.lose();
                // What came of it is read now to its end.
                let goes_on = if went_up == Moved::Waits { Moved::GoesOn } else { went_up };
                (goes_on, Moved::Cut)
            }
        }
    }

    /// Both ends know that it is over.
    pub(crate) fn close(self, pipes: &mut Pipes) {
        self.up.close(pipes);
        self.down.close(pipes);
    }

    /// Both ends are told that it is over, behind what was sent to them.
    pub(crate) fn reset(self, pipes: &mut Pipes, closing: &mut Closing, now: Nanos) {
        self.downstream.reset(closing, now);
        self.upstream.reset(closing, now);
        self.up.close(pipes);
        self.down.close(pipes);
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{ErrorKind, Read, Write};
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::time::Duration;

    use rustix::event::{PollFd, PollFlags, poll};

    /// One end of a connection, and who is at the other.
    fn pair() -> (OwnedFd, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let socket = listener.accept().unwrap().0;
        socket.set_nonblocking(true).unwrap();
        (socket.into(), peer)
    }

    struct Lab {
        connection: Connection,
        client: TcpStream,
        server: Option<TcpStream>,
        pipes: Pipes,
        counts: Counts,
    }

    impl Lab {
        fn new() -> Self {
            let ((down, client), (up, server)) = (pair(), pair());
            let [down, up] = [down, up].map(|fd| {
                let mut socket = Socket::new(fd);
                (socket.may_read, socket.may_write) = (true, true);
                socket
            });
            let connection = Connection::join(ServiceNumber(0), down, up);
            let (pipes, counts) = (Pipes::default(), Counts::default());
            Self { connection, client, server: Some(server), pipes, counts }
        }

        fn server(&mut self) -> &mut TcpStream {
            self.server.as_mut().unwrap()
        }

        /// The server closes, with bytes of its client that it has not read.
        fn reset_server(&mut self) {
            let server = self.server.take().unwrap();
            while server.peek(&mut [0]).unwrap() == 0 {}
        }

        /// What the kernel says of a reset, once it has come.
        fn hear(&mut self, side: Side) {
            let socket = self.connection.socket(side);
            let mut polled = [PollFd::from_borrowed_fd(socket, PollFlags::empty())];
            poll(&mut polled, None).unwrap();
            let flags = EventFlags::IN | EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR;
            self.connection.happened(side, flags);
        }

        fn advance(&mut self) -> After {
            self.connection.advance(&mut self.pipes, &mut self.counts, 1 << 20)
        }

        /// All that the client gets once the connection is reset, and how that ends.
        fn end(mut self) -> (Vec<u8>, Option<ErrorKind>) {
            let mut closing = Closing::new(|_| 0);
            self.connection.reset(&mut self.pipes, &mut closing, Nanos(0));
            let mut came = Vec::new();
            let error = self.client.read_to_end(&mut came).err().map(|error| error.kind());
            (came, error)
        }
    }

    #[test]
    fn what_came_before_a_reset_goes_on_and_then_the_reset() {
        let mut lab = Lab::new();
        lab.client.write_all(b"unread").unwrap();
        assert_eq!(lab.advance(), After::Waits);
        lab.server().write_all(b"bye").unwrap();
        lab.reset_server();
        lab.hear(Side::Upstream);
        assert_eq!(lab.advance(), After::Reset);
        assert_eq!(lab.end(), (b"bye".to_vec(), Some(ErrorKind::ConnectionReset)));
    }

    #[test]
    fn what_came_before_a_reset_goes_on_though_a_send_has_failed_first() {
        let mut lab = Lab::new();
        lab.client.write_all(b"unread").unwrap();
        assert_eq!(lab.advance(), After::Waits);
        lab.server().write_all(b"bye").unwrap();
        lab.reset_server();
        // The kernel says of the reset when it is sent to, and then that nothing more comes.
        lab.client.write_all(b"more").unwrap();
        lab.client.shutdown(Shutdown::Write).unwrap();
        lab.connection.happened(Side::Downstream, EventFlags::IN | EventFlags::RDHUP);
        assert_eq!(lab.advance(), After::Reset);
        assert_eq!(lab.end(), (b"bye".to_vec(), Some(ErrorKind::ConnectionReset)));
    }

    #[test]
    fn a_reset_waits_for_a_receiver_that_takes_little_at_once() {
        const LENGTH: usize = 1 << 20;
        let mut lab = Lab::new();
        let buffer = 16 * 1024;
        sockopt::set_socket_send_buffer_size(&lab.connection.downstream.fd, buffer).unwrap();
        sockopt::set_socket_recv_buffer_size(&lab.client, buffer).unwrap();
        lab.client.write_all(b"unread").unwrap();
        assert_eq!(lab.advance(), After::Waits);
        // All of it is in the kernel's buffers between server and connection.
        sockopt::set_socket_recv_buffer_size(&lab.connection.upstream.fd, 4 * LENGTH).unwrap();
        lab.server().set_nonblocking(true).unwrap();
        let mut sent = 0;
        while let Ok(count) = lab.server().write(&vec![b'x'; LENGTH - sent]) {
            sent += count;
            if sent == LENGTH {
                break;
            }
        }
        lab.reset_server();
        lab.hear(Side::Upstream);
        lab.client.set_nonblocking(true).unwrap();
        let (mut came, mut part) = (0, vec![0; buffer]);
        let after = loop {
            match lab.advance() {
                After::Waits | After::GoesOn => {}
                after => break after,
            }
            while let Ok(count) = lab.client.read(&mut part) {
                came += count;
            }
            lab.connection.happened(Side::Downstream, EventFlags::OUT);
        };
        assert_eq!(after, After::Reset);
        lab.client.set_nonblocking(false).unwrap();
        let (rest, error) = lab.end();
        assert_eq!(error, Some(ErrorKind::ConnectionReset));
        // More than the receiver's own buffers hold.
        assert_eq!(came + rest.len(), sent);
        assert!(came > 128 * 1024, "{came} of {sent}");
    }

    #[test]
    fn a_clients_last_bytes_reach_its_server_before_its_reset() {
        let mut lab = Lab::new();
        lab.server().write_all(b"unread").unwrap();
        assert_eq!(lab.advance(), After::Waits);
        lab.client.write_all(b"bye").unwrap();
        sockopt::set_socket_linger(&lab.client, Some(Duration::ZERO)).unwrap();
        let server = lab.server.take().unwrap();
        lab.client = server;
        lab.hear(Side::Downstream);
        assert_eq!(lab.advance(), After::Reset);
        let (came, error) = lab.end();
        assert_eq!((&came[..], error), (&b"bye"[..], Some(ErrorKind::ConnectionReset)));
    }

    #[test]
    fn an_end_in_front_of_a_reset_is_an_end() {
        let mut lab = Lab::new();
        lab.server().write_all(b"bye").unwrap();
        lab.server().shutdown(Shutdown::Both).unwrap();
        lab.client.write_all(b"nobody reads this").unwrap();
        lab.client.shutdown(Shutdown::Write).unwrap();
        lab.connection.happened(Side::Upstream, EventFlags::IN | EventFlags::RDHUP);
        lab.connection.happened(Side::Downstream, EventFlags::IN | EventFlags::RDHUP);
        assert!(matches!(lab.advance(), After::Ended | After::Reset));
    }
}
