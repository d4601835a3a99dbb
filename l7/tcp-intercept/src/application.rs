//! Applications: services that terminate their connections and handle the bytes themselves.
//!
//! ```text
//!                  accepted, ready, work
//!    Streams ────────────────────────────────▶ Application
//!            ◀──────────────────────────────── Io: receive, send, connect, finish, close, join
//! ```
//!
//! An application is notified when it can make progress at an [`End`], and does as much as it wants
//! to. Bytes that it does not read close the sender's window; bytes that the kernel does not accept
//! remain the application's, which sends them later or generates them when there is space.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{
    RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, connect, recv, send, sendmsg, shutdown,
    sockopt,
};
use units::Nanos;

use crate::closing::Closing;
use crate::connection::{Connection, Socket, bind_as};
use crate::table::{Key, ServiceNumber, Side, Table};
use crate::{Counts, Entry, Sockets, register, reregister};

/// Handle of one end of a connection that an application owns. Handles are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct End(pub(crate) Key);

/// State of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The server has not answered the connection attempt yet.
    Connecting,
    /// The connection is established in both directions.
    Open,
    /// The server was not reached; the application has to close the end.
    Unreachable,
    /// The peer has reset the connection or is lost: nothing can be sent. Bytes received before can
    /// be read for one minute at most (`RESET_TIME_MAX`); then the end has failed.
    Broken,
    /// Same as `Broken`, with nothing left to read; the application has to close the end.
    Failed,
    /// The end does not exist any more.
    Gone,
}

/// Result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// Number of bytes read, at least one.
    Bytes(usize),
    /// End of the stream: nothing more will come.
    Ended,
    /// No bytes at the moment; the application is notified when there are some, or when the end has
    /// failed.
    Nothing,
}

/// Reason for closing an end, as the service's counters show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// Regular close. Bytes already sent are delivered; unread bytes of the peer turn it into a
    /// reset, as with any socket.
    Ended,
    /// Reset, once the bytes already sent have been delivered.
    Reset,
    /// The server for this connection cannot be reached; the connection is reset.
    Unreachable,
}

/// Conversation pattern of a connection, which decides between immediate and delayed
/// acknowledgements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Talk {
    /// Both sides send at any time: acknowledgements are immediate.
    Free,
    /// The client speaks first and at once, then both sides alternate: an acknowledgement is
    /// delayed to go with the answer. An application that needs more input before it answers calls
    /// [`Io::await_more`].
    ByTurns,
}

/// Handler of the bytes of a service's connections.
///
/// Notifications are edge-triggered: the application does all it can at an end until a call reports
/// that nothing is possible, or calls [`Io::requeue`].
pub trait Application {
    /// Returns the conversation pattern of the clients.
    fn talk(&self) -> Talk {
        Talk::Free
    }

    /// Handles a new connection of a client to a server.
    fn accepted(&mut self, io: &mut Io<'_>, end: End, client: SocketAddr, server: SocketAddr);

    /// Handles an end at which progress may be possible, or whose [`State`] has changed.
    fn ready(&mut self, io: &mut Io<'_>, end: End);

    /// Sends the output that was batched: no other end is ready, or the service's turn ends.
    fn flush(&mut self, io: &mut Io<'_>) {
        let _ = io;
    }

    /// Returns the earliest time at which the application wants [`Application::work`] to be called.
    fn poll_timeout(&self) -> Option<Nanos> {
        None
    }

    /// Does work that was scheduled with [`Application::poll_timeout`]. The application returns by
    /// [`Io::until`].
    fn work(&mut self, io: &mut Io<'_>) {
        let _ = io;
    }
}

/// Socket of an application.
pub(crate) struct Single {
    pub(crate) service: ServiceNumber,
    pub(crate) is_ready: bool,
    /// Socket, `None` while there is none to connect with.
    socket: Option<Socket>,
    target: Option<Target>,
    is_unreachable: bool,
    /// True for an adopted socket, which is no connection of the service and is not counted.
    is_auxiliary: bool,
}

/// Destination and source address of an end that the application has opened.
#[derive(Clone, Copy)]
struct Target {
    from: Option<SocketAddr>,
    to: SocketAddr,
    talk: Talk,
    is_connecting: bool,
}

impl Single {
    pub(crate) fn accepted(service: ServiceNumber, fd: OwnedFd, talk: Talk) -> Self {
        let socket = Some(Socket::accepted(fd, matches!(talk, Talk::ByTurns)));
        Self {
            service,
            is_ready: false,
            socket,
            target: None,
            is_unreachable: false,
            is_auxiliary: false,
        }
    }

    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_ref()?.fd.as_fd())
    }

    pub(crate) fn on_events(&mut self, flags: EventFlags) {
        let Some(socket) = &mut self.socket else { return };
        socket.on_events(flags);
        if let Some(target) = self.target.as_mut().filter(|target| target.is_connecting) {
            if socket.is_broken {
                self.is_unreachable = true;
            } else if socket.may_write {
                target.is_connecting = false;
            }
        }
    }

    pub(crate) fn is_connecting(&self) -> bool {
        self.target.is_some_and(|target| target.is_connecting) && !self.is_unreachable
    }

    pub(crate) const fn fail_connecting(&mut self) {
        self.is_unreachable = true;
    }

    fn state(&self) -> State {
        match &self.socket {
            _ if self.is_unreachable => State::Unreachable,
            _ if self.is_connecting() => State::Connecting,
            Some(socket) if socket.has_failed => State::Failed,
            Some(socket) if socket.is_broken => State::Broken,
            Some(_) => State::Open,
            None => State::Failed,
        }
    }

    /// Returns true if the peer is gone.
    pub(crate) fn is_broken(&self) -> bool {
        self.socket.as_ref().is_some_and(|socket| socket.is_broken)
    }

    /// Marks the end as failed: nothing more can be read from it.
    pub(crate) fn fail(&mut self) {
        if let Some(socket) = &mut self.socket {
            socket.has_failed = true;
        }
    }

    /// Closes the end with a reset, after the bytes already sent.
    pub(crate) fn reset(self, closing: &mut Closing, now: Nanos) {
        if let Some(socket) = self.socket {
            socket.reset(closing, now);
        }
    }
}

/// Operations available to an application during a callback.
pub struct Io<'a> {
    pub(crate) service: ServiceNumber,
    pub(crate) epoll: BorrowedFd<'a>,
    pub(crate) table: &'a mut Table<Entry>,
    pub(crate) ready: &'a mut VecDeque<Key>,
    pub(crate) counts: &'a mut Counts,
    pub(crate) connecting: &'a mut VecDeque<(Nanos, Key)>,
    pub(crate) broken: &'a mut VecDeque<(Nanos, Key)>,
    pub(crate) closing: &'a mut Closing,
    /// Ends that wait for a socket.
    pub(crate) unconnected: &'a mut VecDeque<Key>,
    pub(crate) sockets: &'a mut dyn Sockets,
    pub(crate) now: Nanos,
    pub(crate) until: Nanos,
}

impl Io<'_> {
    /// Returns the time of the callback, which is constant while the application works.
    #[must_use]
    pub const fn now(&self) -> Nanos {
        self.now
    }

    /// Returns the time by which the application has to return; other services are next then.
    #[must_use]
    pub const fn until(&self) -> Nanos {
        self.until
    }

    /// Returns the state of an end.
    #[must_use]
    pub fn state(&mut self, end: End) -> State {
        self.single(end).map_or(State::Gone, |single| single.state())
    }

    fn single(&mut self, end: End) -> Option<&mut Single> {
        match self.table.get_mut(end.0) {
            Some(Entry::Single(single)) if single.service == self.service => Some(single),
            _ => None,
        }
    }

    fn socket(&mut self, end: End) -> Option<&mut Socket> {
        self.single(end).filter(|single| single.state() == State::Open)?.socket.as_mut()
    }

    /// Returns a socket that can be read, even if its peer is gone.
    fn readable(&mut self, end: End) -> Option<&mut Socket> {
        let may_read = |state| matches!(state, State::Open | State::Broken);
        self.single(end).filter(|single| may_read(single.state()))?.socket.as_mut()
    }

    /// Reads received bytes.
    pub fn receive(&mut self, end: End, buffer: &mut [u8]) -> Received {
        let capacity = buffer.len();
        let Some(socket) = self.readable(end) else { return Received::Nothing };
        while socket.may_read {
            match recv(&socket.fd, &mut *buffer, RecvFlags::DONTWAIT) {
                Ok((0, _)) if socket.is_aborted => {
                    self.fail(end);
                    break;
                }
                Ok((0, _)) => return Received::Ended,
                Ok((count, _)) => {
                    // A short read empties the socket: an event announces later bytes.
                    socket.may_read &= count == capacity || socket.may_end;
                    return Received::Bytes(count);
                }
                Err(Errno::AGAIN) => socket.may_read = false,
                Err(Errno::INTR) => {}
                Err(_) => {
                    self.fail(end);
                    break;
                }
            }
        }
        Received::Nothing
    }

    /// Announces that the application needs more input before it answers: received bytes are
    /// acknowledged now.
    pub fn await_more(&mut self, end: End) {
        let Some(socket) = self.socket(end) else { return };
        if socket.acknowledge_now().is_err() {
            self.lose(end);
        }
    }

    /// Sends bytes, and returns how many the kernel accepted. The application is notified when the
    /// kernel accepts more.
    pub fn send(&mut self, end: End, bytes: &[IoSlice<'_>]) -> usize {
        self.send_with(end, bytes, SendFlags::empty())
    }

    /// Sends the last bytes: [`Io::finish`] follows as soon as all are accepted, so that the FIN
    /// goes with them.
    pub fn send_last(&mut self, end: End, bytes: &[IoSlice<'_>]) -> usize {
        self.send_with(end, bytes, SendFlags::MORE)
    }

    fn send_with(&mut self, end: End, bytes: &[IoSlice<'_>], flags: SendFlags) -> usize {
        let Some(single) = self.single(end) else { return 0 };
        let (is_down, is_auxiliary) = (single.target.is_none(), single.is_auxiliary);
        let Some(socket) = self.socket(end) else { return 0 };
        let mut taken = 0;
        while socket.may_write && bytes.iter().any(|some| !some.is_empty()) {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL | flags;
            let sent = match bytes {
                [one] => send(&socket.fd, one, flags),
                _ => sendmsg(&socket.fd, bytes, &mut SendAncillaryBuffer::default(), flags),
            };
            match sent {
                Ok(count) => {
                    taken = count;
                    break;
                }
                Err(Errno::AGAIN) => socket.may_write = false,
                Err(Errno::INTR) => {}
                Err(_) => {
                    self.lose(end);
                    return 0;
                }
            }
        }
        if is_auxiliary {
            return taken;
        }
        if is_down {
            self.counts.down += taken as u64;
        } else {
            self.counts.up += taken as u64;
        }
        taken
    }

    /// Limits the bytes that the kernel buffers for an end's peer to about `bytes`, and as many
    /// again for its own bookkeeping. Without a limit the buffer for a distant peer grows to
    /// megabytes.
    pub fn limit_unsent(&mut self, end: End, bytes: usize) {
        let Some(socket) = self.socket(end) else { return };
        if sockopt::set_socket_send_buffer_size(&socket.fd, bytes).is_err() {
            self.lose(end);
        }
    }

    /// Returns true if the kernel may accept bytes.
    #[must_use]
    pub fn may_send(&mut self, end: End) -> bool {
        self.socket(end).is_some_and(|socket| socket.may_write)
    }

    /// Marks an end as failed and notifies the application at once.
    fn fail(&mut self, end: End) {
        if let Some(single) = self.single(end) {
            single.fail();
        }
        self.requeue(end);
    }

    /// Marks an end as broken: bytes received before can still be read.
    fn lose(&mut self, end: End) {
        let Some(socket) = self.single(end).and_then(|single| single.socket.as_mut()) else {
            return;
        };
        socket.lose();
        self.broken.push_back((self.now, end.0));
        self.requeue(end);
    }

    /// Notifies the application of an end once more, after other ends.
    pub fn requeue(&mut self, end: End) {
        if let Some(single) = self.single(end)
            && !std::mem::replace(&mut single.is_ready, true)
        {
            self.ready.push_back(end.0);
        }
    }

    /// Closes the sending direction: the peer receives a FIN.
    pub fn finish(&mut self, end: End) {
        let Some(socket) = self.socket(end) else { return };
        match shutdown(&socket.fd, Shutdown::Write) {
            Ok(()) | Err(Errno::NOTCONN) => {}
            Err(_) => self.lose(end),
        }
    }

    /// Closes an end.
    pub fn close(&mut self, end: End, why: Closed) {
        if self.single(end).is_none() {
            return;
        }
        let Some(Entry::Single(single)) = self.table.remove(end.0) else { return };
        if single.target.is_none() && !single.is_auxiliary {
            match why {
                Closed::Ended => self.counts.ended += 1,
                Closed::Reset => self.counts.reset += 1,
                Closed::Unreachable => self.counts.unreachable += 1,
            }
        }
        if why != Closed::Ended {
            single.reset(self.closing, self.now);
        }
    }

    /// Registers a socket that is connected to something else, such as a codec process: an end like
    /// others, but not counted. Returns `None` if epoll refuses it.
    pub fn adopt(&mut self, fd: OwnedFd) -> Option<End> {
        let key = self.table.insert(Entry::Single(Single {
            service: self.service,
            is_ready: false,
            socket: None,
            target: None,
            is_unreachable: false,
            is_auxiliary: true,
        }));
        if register(self.epoll, fd.as_fd(), key.with(Side::Downstream)).is_err() {
            self.table.remove(key);
            return None;
        }
        self.single(End(key))?.socket = Some(Socket::new(fd));
        Some(End(key))
    }

    /// Connects to a server, from the address `from` of a client if one is given. The application
    /// is notified when the end is [`State::Open`] or [`State::Unreachable`].
    pub fn connect(&mut self, from: Option<SocketAddr>, to: SocketAddr, talk: Talk) -> End {
        let key = self.table.insert(Entry::Single(Single {
            service: self.service,
            is_ready: false,
            socket: None,
            target: Some(Target { from, to, talk, is_connecting: true }),
            is_unreachable: false,
            is_auxiliary: false,
        }));
        self.connecting.push_back((self.now, key));
        let socket = self.sockets.take(to.is_ipv6());
        match socket {
            Some(socket) => self.connect_with(key, socket),
            None => self.unconnected.push_back(key),
        }
        End(key)
    }

    /// Connects the ends that wait for a socket, as far as there are sockets.
    pub(crate) fn connect_waiting(&mut self) {
        while let Some(&key) = self.unconnected.front() {
            let waiting = self.single(End(key)).filter(|single| single.is_connecting());
            if let Some(target) = waiting.and_then(|single| single.target) {
                let Some(socket) = self.sockets.take(target.to.is_ipv6()) else { return };
                self.connect_with(key, socket);
            }
            self.unconnected.pop_front();
        }
    }

    fn connect_with(&mut self, key: Key, fd: OwnedFd) {
        let Some(target) = self.single(End(key)).and_then(|single| single.target) else { return };
        let (mut socket, mut other_port) = (Socket::new(fd), false);
        let delayed = match target.talk {
            Talk::Free => Ok(()),
            Talk::ByTurns => socket.delay_acks(),
        };
        let fd = &socket.fd;
        let connected = delayed
            .and_then(|()| target.from.map_or(Ok(()), |from| bind_as(fd, from, &mut other_port)))
            .and_then(|()| match connect(fd, &target.to) {
                Err(Errno::INPROGRESS) => Ok(()),
                other => other,
            })
            .and_then(|()| register(self.epoll, fd.as_fd(), key.with(Side::Downstream)));
        self.counts.other_port += u64::from(other_port);
        let Some(single) = self.single(End(key)) else { return };
        match connected {
            Ok(()) => single.socket = Some(socket),
            Err(_) => {
                single.is_unreachable = true;
                self.requeue(End(key));
            }
        }
    }

    /// Splices two ends: from now on bytes pass between them in both directions unseen. Both must
    /// be open or broken, one of them accepted, and all bytes read from them sent; otherwise both
    /// are reset.
    pub fn join(&mut self, downstream: End, upstream: End) {
        if [downstream, upstream].iter().any(|&end| self.readable(end).is_none()) {
            self.close(downstream, Closed::Reset);
            self.close(upstream, Closed::Reset);
            return;
        }
        let mut take = |end: End| match self.table.remove(end.0) {
            Some(Entry::Single(single)) => single.socket,
            _ => None,
        };
        let (Some(mut down), Some(mut up)) = (take(downstream), take(upstream)) else { return };
        let acknowledged = down.acknowledge_now().and_then(|()| up.acknowledge_now());
        let key = self.table.insert(Entry::Pair(Connection::join(self.service, down, up)));
        let Some(Entry::Pair(connection)) = self.table.get_mut(key) else { return };
        let epoll = self.epoll;
        let mut sides = Side::BOTH.into_iter();
        let registered =
            sides.try_for_each(|side| reregister(epoll, connection.socket(side), key.with(side)));
        connection.is_ready = true;
        if acknowledged.and(registered).is_err() {
            connection.fail();
        }
        self.ready.push_back(key);
    }
}
