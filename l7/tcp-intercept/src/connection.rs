//! Intercepted connection: two sockets and the two directions between them.
//!
//! ```text
//!   accepted ─▶ connecting ─ server answers ─▶ open ─ both directions ended ─▶ closed
//!                   │ refuses, or no answer       │ one end resets
//!                   │                             ▼
//!                   └──────────▶ reset ◀──────── broken: bytes received before still pass
//! ```

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{bind, connect, sockopt};
use units::Nanos;

use crate::Counts;
use crate::closing::Closing;
use crate::direction::{Direction, End, Transfer};
use crate::pipes::Pipes;
use crate::table::{ServiceNumber, Side};

/// Outcome of one round of work on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Nothing can be done until an event comes.
    Blocked,
    /// More can be done, after other connections.
    Yielded,
    /// Both directions have ended.
    Ended,
    /// An end was reset.
    Reset,
    /// The server was not reached.
    Unreachable,
}

/// Events after which the end of the stream is not announced by a further event.
const ENDINGS: EventFlags =
    EventFlags::RDHUP.union(EventFlags::HUP).union(EventFlags::ERR).union(EventFlags::PRI);

/// Socket with its readiness as last reported by epoll.
pub(crate) struct Socket {
    pub(crate) fd: OwnedFd,
    pub(crate) may_read: bool,
    pub(crate) may_write: bool,
    /// True if the peer has reset the connection or is lost: nothing can be sent; bytes received
    /// before can still be read.
    pub(crate) is_broken: bool,
    /// True if a failed call has consumed the socket's error, which the kernel reports once: an end
    /// of the stream after the last bytes is then a reset, whatever the read returns.
    pub(crate) is_aborted: bool,
    /// True if nothing is left to be read either.
    pub(crate) has_failed: bool,
    /// True if the peer has sent a FIN or urgent data: only a read tells what follows the bytes
    /// received so far.
    pub(crate) may_end: bool,
    /// True if the peer has sent a FIN.
    has_fin: bool,
    /// True if acknowledgements are delayed to go with the next bytes sent.
    delays_acks: bool,
}

impl Socket {
    pub(crate) const fn new(fd: OwnedFd) -> Self {
        Self {
            fd,
            may_read: false,
            may_write: false,
            is_broken: false,
            is_aborted: false,
            has_failed: false,
            may_end: false,
            has_fin: false,
            delays_acks: false,
        }
    }

    /// Wraps an accepted socket, whose listener delays acknowledgements or not.
    pub(crate) fn accepted(fd: OwnedFd, delays_acks: bool) -> Self {
        Self { delays_acks, ..Self::new(fd) }
    }

    /// Delays acknowledgements: first of all the one of the server's SYN-ACK, which then goes with
    /// the first bytes sent.
    pub(crate) fn delay_acks(&mut self) -> Result<(), Errno> {
        self.delays_acks = true;
        sockopt::set_tcp_quickack(&self.fd, false)
    }

    /// Acknowledges the bytes received, and ends the delay of acknowledgements.
    pub(crate) fn acknowledge_now(&mut self) -> Result<(), Errno> {
        if !std::mem::take(&mut self.delays_acks) {
            return Ok(());
        }
        sockopt::set_tcp_quickack(&self.fd, true)
    }

    /// Updates the readiness from epoll's events.
    pub(crate) fn on_events(&mut self, flags: EventFlags) {
        self.may_read |= flags.intersects(EventFlags::IN | EventFlags::RDHUP);
        self.may_write |= flags.contains(EventFlags::OUT);
        if flags.contains(EventFlags::ERR) {
            self.may_read = true;
            self.is_broken = true;
        }
        self.may_end |= flags.intersects(ENDINGS);
        self.has_fin |= flags.contains(EventFlags::RDHUP);
    }

    /// Marks the socket as broken after a failed send: bytes received before can still be read.
    pub(crate) const fn lose(&mut self) {
        self.may_read = true;
        self.may_end = true;
        self.is_broken = true;
        self.is_aborted = true;
    }

    fn end(&mut self) -> End<'_> {
        let Self { fd, may_read, may_write, may_end, is_aborted, .. } = self;
        let has_fin = self.has_fin && !self.is_broken;
        let (fd, may_end, is_aborted): (&OwnedFd, _, _) = (fd, *may_end, *is_aborted);
        End { socket: fd.as_fd(), may_read, may_write, may_end, has_fin, is_aborted }
    }

    /// Resets the socket, as soon as the bytes sent are acknowledged, unless the peer is gone.
    pub(crate) fn reset(self, closing: &mut Closing, now: Nanos) {
        if !self.is_broken {
            closing.reset(self.fd, now);
        }
    }
}

/// Addresses of the client and of the server.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    pub(crate) client: SocketAddr,
    pub(crate) server: SocketAddr,
}

/// Intercepted connection; the module's documentation has its states.
pub(crate) struct Connection {
    pub(crate) service: ServiceNumber,
    /// True if the connection is in its service's queue of ready connections.
    pub(crate) is_ready: bool,
    /// True if its pending bytes wait in the batch of its service.
    pub(crate) is_batched: bool,
    /// True if it is in the queue of connections that are reset at one end.
    pub(crate) is_queued_broken: bool,
    downstream: Socket,
    upstream: Socket,
    is_connecting: bool,
    /// Addresses for the connection to the server, until the attempt begins.
    target: Option<Target>,
    /// Directions to the server and to the client.
    up: Direction,
    down: Direction,
}

impl Connection {
    /// Creates a connection that has been accepted, with an unconnected socket for its server.
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

    /// Starts the connection to the server from the client's address. Returns true if another port
    /// had to be used, and `None` if the attempt has begun already.
    pub(crate) fn connect(&mut self, pipes: &mut Pipes) -> Option<Result<bool, Errno>> {
        let Target { client, server } = self.target.take()?;
        // Bytes of the client that are there already go with the acknowledgement of the SYN-ACK.
        self.downstream.may_read = true;
        self.up.read_small(pipes, &mut self.downstream.end());
        let delayed = if self.up.has_bytes() { self.upstream.delay_acks() } else { Ok(()) };
        let (socket, mut other_port) = (&self.upstream.fd, false);
        let connected =
            delayed.and_then(|()| bind_as(socket, client, &mut other_port)).and_then(|()| {
                match connect(socket, &server) {
                    Err(Errno::INPROGRESS) => Ok(()),
                    other => other,
                }
            });
        Some(connected.map(|()| other_port))
    }

    /// Creates a connection of two established sockets.
    pub(crate) fn join(service: ServiceNumber, downstream: Socket, upstream: Socket) -> Self {
        let (up, down) = (Direction::default(), Direction::default());
        Self {
            service,
            is_ready: false,
            is_batched: false,
            is_queued_broken: false,
            downstream,
            upstream,
            is_connecting: false,
            target: None,
            up,
            down,
        }
    }

    /// Marks both ends as broken.
    pub(crate) const fn fail(&mut self) {
        self.downstream.is_broken = true;
        self.upstream.is_broken = true;
    }

    /// Returns true if one of the two ends is reset, while bytes received from it may still be in
    /// transit.
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

    /// Updates the readiness of one socket from epoll's events.
    pub(crate) fn on_events(&mut self, side: Side, flags: EventFlags) {
        let socket = match side {
            Side::Downstream => &mut self.downstream,
            Side::Upstream => &mut self.upstream,
        };
        socket.on_events(flags);
    }

    /// Checks that bytes can pass; the error is the outcome if they cannot.
    fn is_open(&mut self) -> Result<(), Outcome> {
        if self.is_connecting {
            if self.upstream.is_broken {
                return Err(Outcome::Unreachable);
            }
            if self.downstream.is_broken {
                return Err(Outcome::Reset);
            }
            if !self.upstream.may_write {
                return Err(Outcome::Blocked);
            }
            self.is_connecting = false;
        }
        Ok(())
    }

    /// Reads a small amount of received bytes and leaves them for the batch. Each send wakes a
    /// process; sends in a row wake the receiver once.
    pub(crate) fn read_small(&mut self, pipes: &mut Pipes) -> bool {
        if self.is_open().is_err() || self.is_broken() {
            return false;
        }
        let (mut downstream, mut upstream) = (self.downstream.end(), self.upstream.end());
        let up = self.up.read_small(pipes, &mut downstream);
        let down = self.down.read_small(pipes, &mut upstream);
        up || down
    }

    /// Moves bytes, about `burst` in each direction at most.
    pub(crate) fn advance(
        &mut self,
        pipes: &mut Pipes,
        counts: &mut Counts,
        burst: usize,
    ) -> Outcome {
        if let Err(outcome) = self.is_open() {
            return outcome;
        }
        let before = (self.up.delivered, self.down.delivered);
        let transfers = self.pass(pipes, burst);
        if self.up.delivered > before.0 && self.upstream.acknowledge_now().is_err() {
            self.upstream.lose();
        }
        counts.up += self.up.delivered - before.0;
        counts.down += self.down.delivered - before.1;
        match transfers {
            (Transfer::Ended, Transfer::Ended) => Outcome::Ended,
            (Transfer::Aborted | Transfer::Ended, Transfer::Aborted | Transfer::Ended) => {
                Outcome::Reset
            }
            (Transfer::Yielded, _) | (_, Transfer::Yielded) => Outcome::Yielded,
            _ => Outcome::Blocked,
        }
    }

    /// Moves bytes in both directions. Bytes for a broken socket are lost; bytes from it still
    /// pass.
    fn pass(&mut self, pipes: &mut Pipes, burst: usize) -> (Transfer, Transfer) {
        let mut up_transfer = Transfer::Aborted;
        if !self.upstream.is_broken {
            let (mut from, mut to) = (self.downstream.end(), self.upstream.end());
            let is_last = self.down.is_over();
            match self.up.advance(pipes, &mut from, &mut to, burst, is_last) {
                Ok(transfer) => up_transfer = transfer,
                Err(_) => self.upstream.lose(),
            }
        }
        if self.downstream.is_broken {
            return (up_transfer, Transfer::Aborted);
        }
        let (mut from, mut to) = (self.upstream.end(), self.downstream.end());
        let is_last = self.up.is_over();
        match self.down.advance(pipes, &mut from, &mut to, burst, is_last) {
            Ok(transfer) => (up_transfer, transfer),
            Err(_) => {
                self.downstream.lose();
                // Bytes received from the broken client are now read to their end.
                let up_transfer =
                    if up_transfer == Transfer::Blocked { Transfer::Yielded } else { up_transfer };
                (up_transfer, Transfer::Aborted)
            }
        }
    }

    /// Closes the connection after both directions have ended.
    pub(crate) fn close(self, pipes: &mut Pipes) {
        self.up.close(pipes);
        self.down.close(pipes);
    }

    /// Resets both ends, after the bytes that were sent to them.
    pub(crate) fn reset(self, pipes: &mut Pipes, closing: &mut Closing, now: Nanos) {
        self.downstream.reset(closing, now);
        self.upstream.reset(closing, now);
        self.up.close(pipes);
        self.down.close(pipes);
    }
}

/// Binds to the client's address, with its port unless that is in use.
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

    /// Returns one end of a connection, and its peer.
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

        /// Closes the server's socket with unread bytes of the client, which sends a reset.
        fn reset_server(&mut self) {
            let server = self.server.take().unwrap();
            while server.peek(&mut [0]).unwrap() == 0 {}
        }

        /// Waits for the peer's reset, and reports its events.
        fn await_reset(&mut self, side: Side) {
            let socket = self.connection.socket(side);
            let mut polled = [PollFd::from_borrowed_fd(socket, PollFlags::empty())];
            poll(&mut polled, None).unwrap();
            let flags = EventFlags::IN | EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR;
            self.connection.on_events(side, flags);
        }

        fn advance(&mut self) -> Outcome {
            self.connection.advance(&mut self.pipes, &mut self.counts, 1 << 20)
        }

        /// Returns all bytes that the client receives until the connection is reset, and the final
        /// error.
        fn end(mut self) -> (Vec<u8>, Option<ErrorKind>) {
            let mut closing = Closing::new(|_| 0);
            self.connection.reset(&mut self.pipes, &mut closing, Nanos(0));
            let mut received = Vec::new();
            let error = self.client.read_to_end(&mut received).err().map(|error| error.kind());
            (received, error)
        }
    }

    #[test]
    fn bytes_before_a_reset_are_delivered_and_then_the_reset() {
        let mut lab = Lab::new();
        lab.client.write_all(b"unread").unwrap();
        assert_eq!(lab.advance(), Outcome::Blocked);
        lab.server().write_all(b"bye").unwrap();
        lab.reset_server();
        lab.await_reset(Side::Upstream);
        assert_eq!(lab.advance(), Outcome::Reset);
        assert_eq!(lab.end(), (b"bye".to_vec(), Some(ErrorKind::ConnectionReset)));
    }

    #[test]
    fn bytes_before_a_reset_are_delivered_though_a_send_has_failed_first() {
        let mut lab = Lab::new();
        lab.client.write_all(b"unread").unwrap();
        assert_eq!(lab.advance(), Outcome::Blocked);
        lab.server().write_all(b"bye").unwrap();
        lab.reset_server();
        // The kernel reports the reset on a send, and from then on an end of the stream.
        lab.client.write_all(b"more").unwrap();
        lab.client.shutdown(Shutdown::Write).unwrap();
        lab.connection.on_events(Side::Downstream, EventFlags::IN | EventFlags::RDHUP);
        assert_eq!(lab.advance(), Outcome::Reset);
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
        assert_eq!(lab.advance(), Outcome::Blocked);
        // All bytes are in the kernel's buffers between server and connection.
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
        lab.await_reset(Side::Upstream);
        lab.client.set_nonblocking(true).unwrap();
        let (mut received, mut part) = (0, vec![0; buffer]);
        let outcome = loop {
            match lab.advance() {
                Outcome::Blocked | Outcome::Yielded => {}
                outcome => break outcome,
            }
            while let Ok(count) = lab.client.read(&mut part) {
                received += count;
            }
            lab.connection.on_events(Side::Downstream, EventFlags::OUT);
        };
        assert_eq!(outcome, Outcome::Reset);
        lab.client.set_nonblocking(false).unwrap();
        let (rest, error) = lab.end();
        assert_eq!(error, Some(ErrorKind::ConnectionReset));
        // More than the receiver's own buffers hold.
        assert_eq!(received + rest.len(), sent);
        assert!(received > 128 * 1024, "{received} of {sent}");
    }

    #[test]
    fn a_clients_last_bytes_reach_its_server_before_its_reset() {
        let mut lab = Lab::new();
        lab.server().write_all(b"unread").unwrap();
        assert_eq!(lab.advance(), Outcome::Blocked);
        lab.client.write_all(b"bye").unwrap();
        sockopt::set_socket_linger(&lab.client, Some(Duration::ZERO)).unwrap();
        let server = lab.server.take().unwrap();
        lab.client = server;
        lab.await_reset(Side::Downstream);
        assert_eq!(lab.advance(), Outcome::Reset);
        let (received, error) = lab.end();
        assert_eq!((&received[..], error), (&b"bye"[..], Some(ErrorKind::ConnectionReset)));
    }

    #[test]
    fn a_fin_before_a_reset_is_a_regular_end() {
        let mut lab = Lab::new();
        lab.server().write_all(b"bye").unwrap();
        lab.server().shutdown(Shutdown::Both).unwrap();
        lab.client.write_all(b"nobody reads this").unwrap();
        lab.client.shutdown(Shutdown::Write).unwrap();
        lab.connection.on_events(Side::Upstream, EventFlags::IN | EventFlags::RDHUP);
        lab.connection.on_events(Side::Downstream, EventFlags::IN | EventFlags::RDHUP);
        assert!(matches!(lab.advance(), Outcome::Ended | Outcome::Reset));
    }
}
