//! Intercepted TCP connections: the node is the server to the client and the client to the server,
//! with the addresses of both, transparent to either.
//!
//! ```text
//!   client ◀──▶ downstream socket ─ pipe ─▶ upstream socket ◀──▶ server
//!               (the server's       ◀─ pipe ─     (the client's
//!                address and port)                 address and port)
//! ```
//!
//! Bytes that no application handles go through pipes and never reach user space. Each direction
//! ends by itself, with its sender's FIN; a receiver that stops reading stops the sender; and a
//! reset of one end resets the other, after the bytes received before it. A service with an
//! [`Application`] owns both ends and connects to any server. No call blocks: [`Streams::poll`]
//! collects events, [`Streams::work`] does the pending work of one service, within its turn.
//!
//! The crate opens no sockets: listeners and unconnected sockets that may use foreign addresses
//! (`IP_TRANSPARENT`) come from a privileged caller, with all socket options set.

#![forbid(unsafe_code)]

mod application;
mod closing;
mod connection;
mod direction;
mod pipes;
mod table;

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::ops::AddAssign;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, acceptfrom_with, getsockname, sockopt};
use rustix::time::Timespec;
use serde::{Deserialize, Serialize};
use units::Nanos;

use application::Single;
pub use application::{Application, Closed, End, Io, Received, State, Talk};
pub use closing::Unacknowledged;
use closing::{Closing, RESET_TIME_MAX};
use connection::{Connection, Outcome, Target};
use pipes::Pipes;
pub use table::ServiceNumber;
use table::{Key, Side, Table};

/// Connections accepted per listener in one turn, so that open connections are not starved.
const ACCEPTED_MAX: usize = 64;
/// Events read from epoll by one poll.
const EVENTS_MAX: usize = 256;
/// Bytes that one connection moves in each direction before others of its service do.
const BURST_MAX: usize = 256 * 1024;
/// Connections in a batch of small sends: the receivers of the later ones are awake already, and
/// more would add latency.
pub const BATCH_MAX: usize = 16;
/// Time after which a server that does not answer is given up; Linux alone would take two minutes.
pub const CONNECT_TIME_MAX: Nanos = Nanos(30_000_000_000);

/// Counters of one service's connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Connections accepted.
    pub accepted: u64,
    /// Connections whose server could not be reached, so that the client was reset.
    pub unreachable: u64,
    /// Connections that a reset of one end ended at both.
    pub reset: u64,
    /// Connections that both ends ended.
    pub ended: u64,
    /// Connections that the server sees with another port than the client's, which was in use.
    pub other_port: u64,
    /// Bytes sent to servers.
    pub up: u64,
    /// Bytes sent to clients.
    pub down: u64,
}

impl Counts {
    /// Number of open connections.
    #[must_use]
    pub const fn open(&self) -> u64 {
        self.accepted - self.unreachable - self.reset - self.ended
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, others: Self) {
        let Self { accepted, unreachable, reset, ended, other_port, up, down } = others;
        self.accepted += accepted;
        self.unreachable += unreachable;
        self.reset += reset;
        self.ended += ended;
        self.other_port += other_port;
        self.up += up;
        self.down += down;
    }
}

/// Source of unconnected sockets that may bind to any address. Each is used once.
pub trait Sockets {
    /// Returns a socket for IPv6 or IPv4; `None` if there is none at the moment.
    fn take(&mut self, v6: bool) -> Option<OwnedFd>;
}

/// Listening socket of a service.
struct Listener {
    fd: OwnedFd,
    is_v6: bool,
    /// True if connections may be waiting to be accepted.
    may_accept: bool,
    /// True if connections wait in the kernel's backlog because a limit is reached.
    is_full: bool,
}

struct Service {
    listeners: Vec<Listener>,
    /// Owner of the connections; `None` if bytes go through pipes.
    application: Option<Box<dyn Application>>,
    /// Connections with work to do, each once.
    ready: VecDeque<Key>,
    /// Connections with a small amount to send, which is sent in one batch.
    batched: VecDeque<Key>,
    /// Ends that wait for a socket to connect with.
    unconnected: VecDeque<Key>,
    /// True if sockets for `unconnected` may be available again.
    may_connect: bool,
    counts: Counts,
}

/// Entry of the connection table.
enum Entry {
    /// Two ends with pipes between them.
    Pair(Connection),
    /// End that an application owns.
    Single(Single),
}

impl Entry {
    const fn service(&self) -> ServiceNumber {
        match self {
            Self::Pair(connection) => connection.service,
            Self::Single(single) => single.service,
        }
    }

    fn is_connecting(&self) -> bool {
        match self {
            Self::Pair(connection) => connection.is_connecting(),
            Self::Single(single) => single.is_connecting(),
        }
    }

    fn is_ready_mut(&mut self) -> &mut bool {
        match self {
            Self::Pair(connection) => &mut connection.is_ready,
            Self::Single(single) => &mut single.is_ready,
        }
    }

    fn reset(self, pipes: &mut Pipes, closing: &mut Closing, now: Nanos) {
        match self {
            Self::Pair(connection) => connection.reset(pipes, closing, now),
            Self::Single(single) => single.reset(closing, now),
        }
    }
}

/// All intercepted connections of one thread.
pub struct Streams {
    epoll: OwnedFd,
    services: Vec<Option<Service>>,
    table: Table<Entry>,
    connections_max: usize,
    /// Unconnected sockets, for IPv4 and IPv6, left over from an accept that found no connection.
    unused: [Option<OwnedFd>; 2],
    pipes: Pipes,
    /// Connections whose server has not answered, the oldest first.
    connecting: VecDeque<(Nanos, Key)>,
    /// Connections that are reset at one end with bytes still in transit, the oldest first.
    broken: VecDeque<(Nanos, Key)>,
    closing: Closing,
    /// Time of the last poll.
    polled_at: Nanos,
}

impl Streams {
    /// Creates an empty set of at most `connections_max` simultaneous connections: two file
    /// descriptors each, and two more while bytes are in a pipe, as far as there are any. Further
    /// connections wait in the kernel's backlog.
    ///
    /// # Errors
    /// No file descriptor is free.
    pub fn new(connections_max: usize, unacknowledged: Unacknowledged) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self {
            epoll,
            services: Vec::new(),
            table: Table::default(),
            connections_max,
            unused: [None, None],
            pipes: Pipes::default(),
            connecting: VecDeque::new(),
            broken: VecDeque::new(),
            closing: Closing::new(unacknowledged),
            polled_at: Nanos::ZERO,
        })
    }

    /// Adds a service with its listeners and the application that owns its connections; without
    /// one, bytes go through pipes.
    ///
    /// # Errors
    /// A file descriptor is no listener.
    pub fn add(
        &mut self,
        listeners: Vec<OwnedFd>,
        application: Option<Box<dyn Application>>,
    ) -> io::Result<ServiceNumber> {
        let free = self.services.iter().position(Option::is_none);
        let at = free.unwrap_or(self.services.len());
        let number = ServiceNumber(u16::try_from(at).map_err(|_| Errno::NOSPC)?);
        let talk = application.as_ref().map_or(Talk::Free, |it| it.talk());
        let registered = |(at, fd): (u16, OwnedFd)| -> io::Result<Listener> {
            let data = epoll::EventData::new_u64(number.listener(at));
            epoll::add(&self.epoll, &fd, data, LISTENER_EVENTS)?;
            let is_v6 = getsockname(&fd)?.address_family() == AddressFamily::INET6;
            acknowledges(&fd, talk)?;
            Ok(Listener { fd, is_v6, may_accept: true, is_full: false })
        };
        let listeners = (0..).zip(listeners).map(registered).collect::<io::Result<Vec<_>>>()?;
        if at == self.services.len() {
            self.services.push(None);
        }
        self.services[at] = Some(Service {
            listeners,
            application,
            ready: VecDeque::new(),
            batched: VecDeque::new(),
            unconnected: VecDeque::new(),
            may_connect: false,
            counts: Counts::default(),
        });
        Ok(number)
    }

    /// Moves the listeners of one service to another, which has none yet: new connections belong to
    /// it, open ones stay.
    ///
    /// # Errors
    /// A service of the two does not exist.
    pub fn hand_over(&mut self, from: ServiceNumber, to: ServiceNumber) -> io::Result<()> {
        let talk = self.service(to).ok_or(Errno::NOENT)?.talk();
        let service = self.service_mut(from).ok_or(Errno::NOENT)?;
        let mut listeners = std::mem::take(&mut service.listeners);
        for (at, listener) in (0..).zip(&mut listeners) {
            let data = epoll::EventData::new_u64(to.listener(at));
            epoll::modify(&self.epoll, &listener.fd, data, LISTENER_EVENTS)?;
            acknowledges(&listener.fd, talk)?;
            listener.may_accept = true;
        }
        if let Some(service) = self.service_mut(to) {
            service.listeners = listeners;
        }
        Ok(())
    }

    /// Removes a service: its connections are reset at both ends.
    pub fn remove(&mut self, number: ServiceNumber) -> Option<Counts> {
        let service = self.services.get_mut(usize::from(number.0))?.take()?;
        for key in self.table.keys() {
            if self.table.get_mut(key).is_some_and(|it| it.service() == number)
                && let Some(entry) = self.table.remove(key)
            {
                entry.reset(&mut self.pipes, &mut self.closing, self.polled_at);
            }
        }
        Some(service.counts)
    }

    /// Returns the counters of a service's connections.
    #[must_use]
    pub fn counts(&self, number: ServiceNumber) -> Option<Counts> {
        Some(self.service(number)?.counts)
    }

    /// Returns the number of pipes, in use or kept for reuse; each has two file descriptors.
    #[must_use]
    pub const fn pipes(&self) -> usize {
        self.pipes.count()
    }

    fn service(&self, number: ServiceNumber) -> Option<&Service> {
        self.services.get(usize::from(number.0))?.as_ref()
    }

    /// Collects the events since the last poll.
    ///
    /// # Errors
    /// The call to epoll fails.
    pub fn poll(&mut self, now: Nanos) -> io::Result<()> {
        self.polled_at = now;
        let mut events = [epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(0),
        }; EVENTS_MAX];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let count = match epoll::wait(&self.epoll, &mut events[..], Some(&at_once)) {
            Err(Errno::INTR) => 0,
            other => other?,
        };
        for event in &events[..count] {
            let (flags, data) = (event.flags, event.data.u64());
            if let Some((number, at)) = ServiceNumber::of_listener(data) {
                let service = self.service_mut(number);
                if let Some(listener) = service.and_then(|it| it.listeners.get_mut(usize::from(at)))
                {
                    listener.may_accept = true;
                }
                continue;
            }
            let (key, side) = Key::and_side(data);
            match self.table.get_mut(key) {
                Some(Entry::Pair(connection)) => connection.on_events(side, flags),
                Some(Entry::Single(single)) => {
                    let was_broken = single.is_broken();
                    single.on_events(flags);
                    if single.is_broken() && !was_broken {
                        self.broken.push_back((now, key));
                    }
                }
                None => continue,
            }
            self.wake(key);
        }
        self.expire_connecting(now);
        self.expire_broken(now);
        self.closing.handle_timeout(now);
        if self.table.take_removed() {
            self.retry_waiting();
        }
        Ok(())
    }

    /// Retries connections that wait for an unconnected socket: the caller has some again.
    pub fn retry_waiting(&mut self) {
        for service in self.services.iter_mut().flatten() {
            service.may_connect = !service.unconnected.is_empty();
            for listener in &mut service.listeners {
                listener.may_accept |= std::mem::take(&mut listener.is_full);
            }
        }
    }

    /// Gives up connections whose server did not answer within [`CONNECT_TIME_MAX`].
    fn expire_connecting(&mut self, now: Nanos) {
        while let Some(&(since, key)) = self.connecting.front() {
            match self.table.get_mut(key) {
                Some(entry) if entry.is_connecting() => {
                    if now.saturating_sub(since) < CONNECT_TIME_MAX {
                        return;
                    }
                    match entry {
                        Entry::Pair(_) => self.end(key, Outcome::Unreachable),
                        Entry::Single(single) => {
                            single.fail_connecting();
                            self.wake(key);
                        }
                    }
                }
                _ => {}
            }
            self.connecting.pop_front();
        }
    }

    /// Resets connections that did not deliver their remaining bytes within `RESET_TIME_MAX` after
    /// a reset of one end.
    fn expire_broken(&mut self, now: Nanos) {
        let is_due = |(since, _): &mut (Nanos, Key)| now.saturating_sub(*since) >= RESET_TIME_MAX;
        while let Some((_, key)) = self.broken.pop_front_if(is_due) {
            match self.table.get_mut(key) {
                Some(Entry::Pair(_)) => self.end(key, Outcome::Reset),
                Some(Entry::Single(single)) => {
                    single.fail();
                    self.wake(key);
                }
                None => {}
            }
        }
    }

    fn wake(&mut self, key: Key) {
        let Some(entry) = self.table.get_mut(key) else { return };
        if !std::mem::replace(entry.is_ready_mut(), true)
            && let Some(Some(service)) = self.services.get_mut(usize::from(entry.service().0))
        {
            service.ready.push_back(key);
        }
    }

    /// Returns the services with work to do.
    pub fn ready(&self, now: Nanos) -> impl Iterator<Item = ServiceNumber> {
        let numbers = self.services.iter().enumerate();
        numbers
            .filter(move |(_, it)| it.as_ref().is_some_and(|service| service.has_work(now)))
            .map(|(at, _)| ServiceNumber(at as u16))
    }

    /// Returns the next time after `polled_at`, that of the last poll, at which work is due without
    /// an event.
    #[must_use]
    pub fn poll_timeout(&self, polled_at: Nanos) -> Option<Nanos> {
        let connecting = self.connecting.front().map(|(since, _)| *since + CONNECT_TIME_MAX);
        let applications = self.services.iter().flatten().filter_map(Service::poll_timeout);
        let broken = self.broken.front().map(|(since, _)| *since + RESET_TIME_MAX);
        let own = [connecting, broken, self.closing.poll_timeout()];
        applications.chain(own.into_iter().flatten()).filter(|&at| at > polled_at).min()
    }

    /// Works for a service: accepts connections, then handles one ready connection, until `until`
    /// if an application observes it. Returns true if more work is ready.
    pub fn work(
        &mut self,
        number: ServiceNumber,
        sockets: &mut dyn Sockets,
        now: Nanos,
        until: Nanos,
    ) -> bool {
        self.accept(number, sockets, now, until);
        if self.service(number).is_some_and(|service| service.is_due(now)) {
            self.with_application(number, sockets, now, until, |application, io| {
                application.work(io)
            });
        }
        let Some(Some(service)) = self.services.get_mut(usize::from(number.0)) else {
            return false;
        };
        if let Some(key) = service.ready.pop_front() {
            match self.table.get_mut(key) {
                Some(Entry::Pair(connection)) => {
                    connection.is_ready = false;
                    // A batched connection is advanced with its batch.
                    if !connection.is_batched {
                        if connection.read_small(&mut self.pipes) {
                            self.defer(number, key);
                        } else {
                            self.advance(key);
                        }
                    }
                }
                Some(Entry::Single(single)) => {
                    single.is_ready = false;
                    self.with_application(number, sockets, now, until, |application, io| {
                        application.ready(io, End(key));
                    });
                }
                None => {}
            }
        }
        let has_more = |it: &Self| it.service(number).is_some_and(|service| service.has_work(now));
        if has_more(self) {
            return true;
        }
        self.flush(number, sockets, now, until);
        has_more(self)
    }

    /// Moves bytes of a connection without an application.
    fn advance(&mut self, key: Key) {
        if self.connect(key) {
            return;
        }
        let Self { services, table, pipes, .. } = self;
        let Some(Entry::Pair(connection)) = table.get_mut(key) else { return };
        let service = services.get_mut(usize::from(connection.service.0));
        let Some(Some(service)) = service else { return };
        let was_broken = connection.is_queued_broken;
        let outcome = connection.advance(pipes, &mut service.counts, BURST_MAX);
        connection.is_queued_broken |= connection.is_broken();
        if connection.is_queued_broken && !was_broken {
            self.broken.push_back((self.polled_at, key));
        }
        match outcome {
            Outcome::Blocked => {}
            Outcome::Yielded => self.wake(key),
            outcome => self.end(key, outcome),
        }
    }

    /// Adds a connection to the batch of those that have something to send, or a server to connect
    /// to.
    fn defer(&mut self, number: ServiceNumber, key: Key) {
        let Some(Entry::Pair(connection)) = self.table.get_mut(key) else { return };
        connection.is_batched = true;
        let Some(service) = self.service_mut(number) else { return };
        service.batched.push_back(key);
        if service.batched.len() >= BATCH_MAX {
            self.send_batch(number);
        }
    }

    fn send_batch(&mut self, number: ServiceNumber) {
        while let Some(key) = self.service_mut(number).and_then(|it| it.batched.pop_front()) {
            if let Some(Entry::Pair(connection)) = self.table.get_mut(key) {
                connection.is_batched = false;
            }
            self.advance(key);
        }
    }

    /// Sends the batch of a service at the end of its turn.
    pub fn flush(
        &mut self,
        number: ServiceNumber,
        sockets: &mut dyn Sockets,
        now: Nanos,
        until: Nanos,
    ) {
        self.send_batch(number);
        self.with_application(number, sockets, now, until, |application, io| application.flush(io));
    }

    /// Calls a service's application.
    fn with_application(
        &mut self,
        number: ServiceNumber,
        sockets: &mut dyn Sockets,
        now: Nanos,
        until: Nanos,
        act: impl FnOnce(&mut dyn Application, &mut Io<'_>),
    ) {
        let Self { epoll, services, table, connecting, broken, closing, unused, .. } = self;
        let Some(Some(service)) = services.get_mut(usize::from(number.0)) else { return };
        let Service { application, ready, unconnected, counts, .. } = service;
        let Some(application) = application else { return };
        let mut sockets = UnusedFirst { unused, sockets };
        let mut io = Io {
            service: number,
            epoll: epoll.as_fd(),
            table,
            ready,
            counts,
            connecting,
            broken,
            closing,
            unconnected,
            sockets: &mut sockets,
            now,
            until,
        };
        act(&mut **application, &mut io);
    }

    fn end(&mut self, key: Key, outcome: Outcome) {
        let Some(Entry::Pair(connection)) = self.table.remove(key) else { return };
        if let Some(Some(service)) = self.services.get_mut(usize::from(connection.service.0)) {
            match outcome {
                Outcome::Unreachable => service.counts.unreachable += 1,
                Outcome::Reset => service.counts.reset += 1,
                Outcome::Ended => service.counts.ended += 1,
                Outcome::Blocked | Outcome::Yielded => {}
            }
        }
        match outcome {
            Outcome::Ended => connection.close(&mut self.pipes),
            _ => connection.reset(&mut self.pipes, &mut self.closing, self.polled_at),
        }
    }

    /// Accepts connections, within the limits.
    fn accept(
        &mut self,
        number: ServiceNumber,
        sockets: &mut dyn Sockets,
        now: Nanos,
        until: Nanos,
    ) {
        let Some(service) = self.service_mut(number) else { return };
        let has_application = service.application.is_some();
        if std::mem::take(&mut service.may_connect) {
            self.with_application(number, sockets, now, until, |_, io| io.connect_waiting());
        }
        let listeners = self.service(number).map_or(0, |service| service.listeners.len());
        for at in 0..listeners {
            let Some(listener) = self.listener(number, at) else { return };
            if !std::mem::take(&mut listener.may_accept) {
                continue;
            }
            for attempt in 0..=ACCEPTED_MAX {
                if attempt == ACCEPTED_MAX {
                    let Some(listener) = self.listener(number, at) else { return };
                    listener.may_accept = true;
                    break;
                }
                let is_done = match has_application {
                    true => self.accept_single(number, at, sockets, now, until),
                    false => self.accept_pair(number, at, sockets, now),
                };
                if is_done {
                    break;
                }
            }
        }
    }

    fn service_mut(&mut self, number: ServiceNumber) -> Option<&mut Service> {
        self.services.get_mut(usize::from(number.0))?.as_mut()
    }

    fn listener(&mut self, number: ServiceNumber, at: usize) -> Option<&mut Listener> {
        self.service_mut(number)?.listeners.get_mut(at)
    }

    /// Accepts a connection that goes through pipes; returns true if there is none, or a limit is
    /// reached.
    fn accept_pair(
        &mut self,
        number: ServiceNumber,
        at: usize,
        sockets: &mut dyn Sockets,
        now: Nanos,
    ) -> bool {
        let Self { services, table, connecting, connections_max, unused, .. } = self;
        let Some(Some(service)) = services.get_mut(usize::from(number.0)) else { return true };
        let Some(listener) = service.listeners.get_mut(at) else { return true };
        let is_v6 = listener.is_v6;
        let mut sockets = UnusedFirst { unused, sockets };
        let socket = if table.len() < *connections_max { sockets.take(is_v6) } else { None };
        let Some(socket) = socket else {
            listener.is_full = true;
            return true;
        };
        let (accepted, client, server) = match accept_one(listener.fd.as_fd()) {
            Ok(Some(accepted)) => accepted,
            other => {
                // No connection waits, or no file descriptor is free.
                unused[usize::from(is_v6)] = Some(socket);
                listener.is_full |= other.is_err();
                return true;
            }
        };
        service.counts.accepted += 1;
        let target = Target { client, server };
        let connection = Connection::accepted(number, accepted, socket, target);
        let key = table.insert(Entry::Pair(connection));
        connecting.push_back((now, key));
        self.defer(number, key);
        false
    }

    /// Connects an accepted connection to its server; returns false if that has begun already.
    fn connect(&mut self, key: Key) -> bool {
        let Self { epoll, services, table, pipes, .. } = self;
        let Some(Entry::Pair(connection)) = table.get_mut(key) else { return false };
        let Some(connected) = connection.connect(pipes) else { return false };
        let registered = connected.and_then(|is_other_port| {
            let mut both = Side::BOTH.into_iter();
            both.try_for_each(|side| {
                register(epoll.as_fd(), connection.socket(side), key.with(side))
            })?;
            Ok(is_other_port)
        });
        let service = services.get_mut(usize::from(connection.service.0)).and_then(Option::as_mut);
        match (registered, service) {
            (Ok(is_other_port), Some(service)) => {
                service.counts.other_port += u64::from(is_other_port);
            }
            (Ok(_), None) => {}
            (Err(_), _) => self.end(key, Outcome::Unreachable),
        }
        true
    }

    /// Accepts a connection for the service's application; returns true if there is none, or a
    /// limit is reached.
    fn accept_single(
        &mut self,
        number: ServiceNumber,
        at: usize,
        sockets: &mut dyn Sockets,
        now: Nanos,
        until: Nanos,
    ) -> bool {
        let is_full = self.table.len() >= self.connections_max;
        let Some(service) = self.service_mut(number) else { return true };
        let talk = service.talk();
        let Some(listener) = service.listeners.get_mut(at) else { return true };
        let accepted = if is_full { Err(Errno::MFILE) } else { accept_one(listener.fd.as_fd()) };
        let (accepted, client, server) = match accepted {
            Ok(Some(accepted)) => accepted,
            other => {
                listener.is_full |= other.is_err();
                return true;
            }
        };
        service.counts.accepted += 1;
        let single = Single::accepted(number, accepted, talk);
        let key = self.table.insert(Entry::Single(single));
        let Some(Entry::Single(single)) = self.table.get_mut(key) else { return false };
        let registered =
            single.fd().map(|fd| register(self.epoll.as_fd(), fd, key.with(Side::Downstream)));
        if !matches!(registered, Some(Ok(()))) {
            if let Some(entry) = self.table.remove(key) {
                entry.reset(&mut self.pipes, &mut self.closing, now);
            }
            if let Some(service) = self.service_mut(number) {
                service.counts.reset += 1;
            }
            return false;
        }
        self.with_application(number, sockets, now, until, |application, io| {
            application.accepted(io, End(key), client, server);
        });
        false
    }
}

impl Service {
    fn poll_timeout(&self) -> Option<Nanos> {
        self.application.as_ref()?.poll_timeout()
    }

    fn is_due(&self, now: Nanos) -> bool {
        self.poll_timeout().is_some_and(|at| at <= now)
    }

    /// Returns the conversation pattern of its clients.
    fn talk(&self) -> Talk {
        self.application.as_ref().map_or(Talk::Free, |it| it.talk())
    }

    fn has_work(&self, now: Nanos) -> bool {
        let may_accept = self.may_connect || self.listeners.iter().any(|it| it.may_accept);
        may_accept || !self.ready.is_empty() || self.is_due(now)
    }
}

/// Source of sockets that returns left-over ones first.
struct UnusedFirst<'a> {
    unused: &'a mut [Option<OwnedFd>; 2],
    sockets: &'a mut dyn Sockets,
}

impl Sockets for UnusedFirst<'_> {
    fn take(&mut self, v6: bool) -> Option<OwnedFd> {
        self.unused[usize::from(v6)].take().or_else(|| self.sockets.take(v6))
    }
}

impl AsFd for Streams {
    /// Descriptor that is readable when a poll would return events.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// Events to report for each listener.
const LISTENER_EVENTS: epoll::EventFlags = epoll::EventFlags::IN.union(epoll::EventFlags::ET);

/// Sets immediate or delayed acknowledgements for the connections of a listener.
fn acknowledges(listener: &OwnedFd, talk: Talk) -> Result<(), Errno> {
    sockopt::set_tcp_quickack(listener, talk == Talk::Free)
}

/// Events to report for each socket.
const SOCKET_EVENTS: epoll::EventFlags = epoll::EventFlags::IN
    .union(epoll::EventFlags::OUT)
    .union(epoll::EventFlags::RDHUP)
    .union(epoll::EventFlags::PRI)
    .union(epoll::EventFlags::ET);

fn register(epoll: BorrowedFd<'_>, socket: BorrowedFd<'_>, data: u64) -> Result<(), Errno> {
    epoll::add(epoll, socket, epoll::EventData::new_u64(data), SOCKET_EVENTS)
}

/// Registers a socket under another key.
fn reregister(epoll: BorrowedFd<'_>, socket: BorrowedFd<'_>, data: u64) -> Result<(), Errno> {
    epoll::modify(epoll, socket, epoll::EventData::new_u64(data), SOCKET_EVENTS)
}

/// Accepts a connection: its socket, the client's address, and the original destination; `None`
/// when none waits.
fn accept_one(
    listener: BorrowedFd<'_>,
) -> Result<Option<(OwnedFd, SocketAddr, SocketAddr)>, Errno> {
    loop {
        match acceptfrom_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
            Ok((socket, client)) => {
                // A connection that was reset in the backlog has no peer address.
                let client = client.and_then(|it| SocketAddr::try_from(it).ok());
                let server = getsockname(&socket).ok().and_then(|it| SocketAddr::try_from(it).ok());
                if let (Some(client), Some(server)) = (client, server) {
                    return Ok(Some((socket, client, server)));
                }
            }
            Err(Errno::INTR | Errno::CONNABORTED) => {}
            Err(Errno::AGAIN) => return Ok(None),
            Err(error) => return Err(error),
        }
    }
}
