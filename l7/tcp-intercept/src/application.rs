//! Services that have the bytes of their connections in their own hands.
//!
//! ```text
//!                 accepted, ready, work
//!   Streams ────────────────────────────────▶ Application
//!           ◀──────────────────────────────── Io: receive, send, connect, finish, close, join
//! ```
//!
//! An application is told that something can be done at an [`End`], and does as much of it as it
//! wants to. What it does not read its sender may not send for long; what the kernel does not take
//! it keeps, or makes when there is room.

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
use crate::{Counts, Place, Sockets, rewatch, watch};

/// One end of a connection that an application has: its number is never given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct End(pub(crate) Key);

/// How far an end is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Its server has not answered.
    Connecting,
    /// Bytes can come and go.
    Open,
    /// Its server was not reached; it is to be closed.
    Unreachable,
    /// Its other end was reset, or is lost: nothing goes there any more. What came before can be read,
    /// for a minute at most, and then it has failed.
    Broken,
    /// The same, and there is nothing to be read; it is to be closed.
    Failed,
    /// There is no such end any more.
    Gone,
}

/// What came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// So many bytes, at least one.
    Bytes(usize),
    /// Nothing more will come.
    Ended,
    /// Nothing at the moment; the application is told when there is, or when the end has failed.
    Nothing,
}

/// Why an end is closed: what its service counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// What it was for is done. What was sent arrives; bytes of the other side that nobody has read
    /// make it a reset, as everywhere.
    Ended,
    /// It is reset, once what was sent has arrived.
    Reset,
    /// The server behind it cannot be reached; it is reset.
    Unreachable,
}

/// Who says something when, on a connection: what is acknowledged by itself, and what together with
/// what is said next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Talk {
    /// Anybody at any time.
    Free,
    /// Whoever connects speaks first and at once, and then each answers what the other has said.
    /// Who waits for more than has come says so: [`Io::await_more`].
    ByTurns,
}

/// What a service does with the bytes of its connections.
///
/// Ends are told of once when something changes: what can be done is to be done until it says that
/// nothing can, or [`Io::again`] be called.
pub trait Application {
    /// How clients talk.
    fn talk(&self) -> Talk {
        Talk::Free
    }

    /// A connection has come, from a client on its way to a server.
    fn accepted(&mut self, io: &mut Io<'_>, end: End, client: SocketAddr, server: SocketAddr);

    /// Something may be done at an end, or it has another [`State`].
    fn ready(&mut self, io: &mut Io<'_>, end: End);

    /// Nothing else is ready at the moment, or its turn ends: what it has gathered to send goes now.
    fn flush(&mut self, io: &mut Io<'_>) {
        let _ = io;
    }

    /// When it wants to work beside that, at the earliest.
    fn poll_timeout(&self) -> Option<Nanos> {
        None
    }

    /// That time has come. It works until [`Io::until`] at most.
    fn work(&mut self, io: &mut Io<'_>) {
        let _ = io;
    }
}

/// A socket of an application.
pub(crate) struct Single {
    pub(crate) service: ServiceNumber,
    pub(crate) is_ready: bool,
    /// None while there is no socket to connect with.
    socket: Option<Socket>,
    target: Option<Target>,
    is_unreachable: bool,
    /// It is no connection of the service's, and counts nowhere.
    is_beside: bool,
}

/// Where an end that the application has opened goes to, and from where.
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
            is_beside: false,
        }
    }

    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_ref()?.fd.as_fd())
    }

    pub(crate) fn happened(&mut self, flags: EventFlags) {
        let Some(socket) = &mut self.socket else { return };
        socket.happened(flags);
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

    pub(crate) const fn give_up(&mut self) {
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

    /// Whether its other side is gone.
    pub(crate) fn is_broken(&self) -> bool {
        self.socket.as_ref().is_some_and(|socket| socket.is_broken)
    }

    /// There is nothing more to be read from it.
    pub(crate) fn fail(&mut self) {
        if let Some(socket) = &mut self.socket {
            socket.has_failed = true;
        }
    }

    /// It is over, behind what was sent.
    pub(crate) fn reset(self, closing: &mut Closing, now: Nanos) {
        if let Some(socket) = self.socket {
            socket.reset(closing, now);
        }
    }
}

/// What an application may do while it is asked.
pub struct Io<'a> {
    pub(crate) service: ServiceNumber,
    pub(crate) epoll: BorrowedFd<'a>,
    pub(crate) table: &'a mut Table<Place>,
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
    /// The time: it stands still while the application works.
    #[must_use]
    pub const fn now(&self) -> Nanos {
        self.now
    }

    /// Until when the application may work; others are next then.
    #[must_use]
    pub const fn until(&self) -> Nanos {
        self.until
    }

    /// How far an end is.
    #[must_use]
    pub fn state(&mut self, end: End) -> State {
        self.single(end).map_or(State::Gone, |single| single.state())
    }

    fn single(&mut self, end: End) -> Option<&mut Single> {
        match self.table.get_mut(end.0) {
            Some(Place::Single(single)) if single.service == self.service => Some(single),
            _ => None,
        }
    }

    fn socket(&mut self, end: End) -> Option<&mut Socket> {
        self.single(end).filter(|single| single.state() == State::Open)?.socket.as_mut()
    }

    /// A socket that can be read, though its other side may be gone.
    fn readable(&mut self, end: End) -> Option<&mut Socket> {
        let may_read = |state| matches!(state, State::Open | State::Broken);
        self.single(end).filter(|single| may_read(single.state()))?.socket.as_mut()
    }

    /// Reads what has come.
    pub fn receive(&mut self, end: End, buffer: &mut [u8]) -> Received {
        let room = buffer.len();
        let Some(socket) = self.readable(end) else { return Received::Nothing };
        while socket.may_read {
            match recv(&socket.fd, &mut *buffer, RecvFlags::DONTWAIT) {
                Ok((0, _)) if socket.is_cut => {
                    self.fail(end);
                    break;
                }
                Ok((0, _)) => return Received::Ended,
                Ok((count, _)) => {
                    // Less than there was room for: an event tells of what comes from now on.
                    socket.may_read &= count == room || socket.is_ending;
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

    /// More is to come of an end before anything is said to it: what came is acknowledged now.
    pub fn await_more(&mut self, end: End) {
        let Some(socket) = self.socket(end) else { return };
        if socket.acknowledge().is_err() {
            self.lose(end);
        }
    }

    /// Sends bytes; how many the kernel has taken. The application is told when it takes more.
    pub fn send(&mut self, end: End, bytes: &[IoSlice<'_>]) -> usize {
        self.send_with(end, bytes, SendFlags::empty())
    }

    /// The same of the last bytes: [`Io::finish`] follows as soon as all are taken, and goes with
    /// them.
    pub fn send_last(&mut self, end: End, bytes: &[IoSlice<'_>]) -> usize {
        self.send_with(end, bytes, SendFlags::MORE)
    }

    fn send_with(&mut self, end: End, bytes: &[IoSlice<'_>], flags: SendFlags) -> usize {
        let Some(single) = self.single(end) else { return 0 };
        let (is_down, is_beside) = (single.target.is_none(), single.is_beside);
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
        if is_beside {
            return taken;
        }
        if is_down {
            self.counts.down += taken as u64;
        } else {
            self.counts.up += taken as u64;
        }
        taken
    }

    /// Has the kernel keep about so many bytes that an end's other side has not taken, and as many
    /// again for its own book-keeping; without, it keeps more and more for who is far away, up to
    /// megabytes.
    pub fn limit_unsent(&mut self, end: End, bytes: usize) {
        let Some(socket) = self.socket(end) else { return };
        if sockopt::set_socket_send_buffer_size(&socket.fd, bytes).is_err() {
            self.lose(end);
        }
    }

    /// Whether the kernel may take bytes.
    #[must_use]
    pub fn may_send(&mut self, end: End) -> bool {
        self.socket(end).is_some_and(|socket| socket.may_write)
    }

    /// The application is told at once of an end that turns out to have failed.
    fn fail(&mut self, end: End) {
        if let Some(single) = self.single(end) {
            single.fail();
        }
        self.again(end);
    }

    /// The same of an end whose other side turns out to be gone: what came before can be read.
    fn lose(&mut self, end: End) {
        let Some(socket) = self.single(end).and_then(|single| single.socket.as_mut()) else {
            return;
        };
        socket.lose();
        self.broken.push_back((self.now, end.0));
        self.again(end);
    }

    /// Has the application told of an end once more, when others have had their turn.
    pub fn again(&mut self, end: End) {
        if let Some(single) = self.single(end)
            && !std::mem::replace(&mut single.is_ready, true)
        {
            self.ready.push_back(end.0);
        }
    }

    /// The other side gets nothing more, and is told.
    pub fn finish(&mut self, end: End) {
        let Some(socket) = self.socket(end) else { return };
        match shutdown(&socket.fd, Shutdown::Write) {
            Ok(()) | Err(Errno::NOTCONN) => {}
            Err(_) => self.lose(end),
        }
    }

    /// Lets go of an end.
    pub fn close(&mut self, end: End, why: Closed) {
        if self.single(end).is_none() {
            return;
        }
        let Some(Place::Single(single)) = self.table.remove(end.0) else { return };
        if single.target.is_none() && !single.is_beside {
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

    /// Takes a socket that is connected to somebody else, as a process beside this one: it is an end
    /// like others, and counts nowhere. `None` when the kernel does not tell of it.
    pub fn adopt(&mut self, fd: OwnedFd) -> Option<End> {
        let key = self.table.insert(Place::Single(Single {
            service: self.service,
            is_ready: false,
            socket: None,
            target: None,
            is_unreachable: false,
            is_beside: true,
        }));
        if watch(self.epoll, fd.as_fd(), key.with(Side::Downstream)).is_err() {
            self.table.remove(key);
            return None;
        }
        self.single(End(key))?.socket = Some(Socket::new(fd));
        Some(End(key))
    }

    /// Connects to a server, with this address of a client's if one is named. The application is
    /// told when it is [`State::Open`], or [`State::Unreachable`].
    pub fn connect(&mut self, from: Option<SocketAddr>, to: SocketAddr, talk: Talk) -> End {
        let key = self.table.insert(Place::Single(Single {
            service: self.service,
            is_ready: false,
            socket: None,
            target: Some(Target { from, to, talk, is_connecting: true }),
            is_unreachable: false,
            is_beside: false,
        }));
        self.connecting.push_back((self.now, key));
        let socket = self.sockets.take(to.is_ipv6());
        match socket {
            Some(socket) => self.connect_with(key, socket),
            None => self.unconnected.push_back(key),
        }
        End(key)
    }

    /// Ends that wait for a socket get one each, as far as there are any.
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
        let late = match target.talk {
            Talk::Free => Ok(()),
            Talk::ByTurns => socket.acknowledge_late(),
        };
        let fd = &socket.fd;
        let connected = late
            .and_then(|()| target.from.map_or(Ok(()), |from| bind_as(fd, from, &mut other_port)))
            .and_then(|()| match connect(fd, &target.to) {
                Err(Errno::INPROGRESS) => Ok(()),
                other => other,
            })
            .and_then(|()| watch(self.epoll, fd.as_fd(), key.with(Side::Downstream)));
        self.counts.other_port += u64::from(other_port);
        let Some(single) = self.single(End(key)) else { return };
        match connected {
            Ok(()) => single.socket = Some(socket),
            Err(_) => {
                single.is_unreachable = true;
                self.again(End(key));
            }
        }
    }

    /// From now on bytes go from one end to the other, both ways, and nobody sees them. Both are
    /// open, or broken; one of them was accepted, and nothing read from them is left to send; else
    /// they are reset.
    pub fn join(&mut self, downstream: End, upstream: End) {
        if [downstream, upstream].iter().any(|&end| self.readable(end).is_none()) {
            self.close(downstream, Closed::Reset);
            self.close(upstream, Closed::Reset);
            return;
        }
        let mut take = |end: End| match self.table.remove(end.0) {
            Some(Place::Single(single)) => single.socket,
            _ => None,
        };
        let (Some(mut down), Some(mut up)) = (take(downstream), take(upstream)) else { return };
        let acknowledged = down.acknowledge().and_then(|()| up.acknowledge());
        let key = self.table.insert(Place::Pair(Connection::join(self.service, down, up)));
        let Some(Place::Pair(connection)) = self.table.get_mut(key) else { return };
        let epoll = self.epoll;
        let mut again = Side::BOTH.into_iter();
        let watched =
            again.try_for_each(|side| rewatch(epoll, connection.socket(side), key.with(side)));
        connection.is_ready = true;
        if acknowledged.and(watched).is_err() {
            connection.fail();
        }
        self.ready.push_back(key);
    }
}
