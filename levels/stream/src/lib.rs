//! Intercepted TCP connections: the node is the server to the client and the client to the
//! server, with the addresses of both, and neither notices.
//!
//! ```text
//!  client ◀──▶ downstream socket ─ pipe ─▶ upstream socket ◀──▶ server
//!              (the server's       ◀─ pipe ─     (the client's
//!               address and port)                 address and port)
//! ```
//!
//! Bytes that nobody wants to see go through pipes and never come to user space; those of a service
//! with a [`Handler`] are read, handed over, and what it makes of them is written. Each direction
//! ends by itself, as its sender ended it; what one end does not take the other may not send; and
//! a reset of one is a reset of the other. Nothing here waits: [`Streams::look`] asks what has
//! happened, [`Streams::work`] does what can be done for one service, so far as its turn goes.
//!
//! It opens no socket: listeners and unconnected sockets that may have other people's addresses
//! come from who may make them.

#![forbid(unsafe_code)]

mod connection;
mod handled;
mod handler;
mod pipes;
mod table;
mod way;

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, accept_with, getpeername, getsockname};
use rustix::time::Timespec;
use units::Nanos;

use connection::{After, Connection};
use handled::READ_MAX;
pub use handler::{Handler, Handlers, Side};
use pipes::Pipes;
pub use table::ServiceNumber;
use table::{Key, Table};

/// Connections that one look accepts: what is open has its turn between two looks.
const ACCEPTED_MAX: usize = 64;
/// What one look hears of.
const EVENTS_MAX: usize = 256;
/// Bytes that one connection moves each way before others of its service do.
const PORTION: usize = 256 * 1024;
/// A server that does not answer is given up after so long; Linux alone would take two minutes.
pub const CONNECT_TIME_MAX: Nanos = Nanos(30_000_000_000);

/// What became of the connections of one service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// That came.
    pub accepted: u64,
    /// Whose server could not be reached, so that the client was reset.
    pub unreachable: u64,
    /// That a reset of one end ended at both.
    pub reset: u64,
    /// That both ends ended.
    pub ended: u64,
    /// That the server sees with another port than the client's, which was in use.
    pub other_port: u64,
    /// Bytes to servers.
    pub up: u64,
    /// Bytes to clients.
    pub down: u64,
}

impl Counts {
    /// Connections that are open.
    #[must_use]
    pub const fn open(&self) -> u64 {
        self.accepted - self.unreachable - self.reset - self.ended
    }
}

/// Unconnected sockets that may connect from any address: each is used once.
pub trait Sockets {
    /// One for IPv6 or for IPv4; `None` when there is none at the moment.
    fn take(&mut self, v6: bool) -> Option<OwnedFd>;
}

struct Service {
    /// And whether each is for IPv6.
    listeners: Vec<(OwnedFd, bool)>,
    /// Who wants to see its bytes, if anybody does.
    handlers: Option<Box<dyn Handlers>>,
    /// Listeners that may have more to accept.
    accepts: bool,
    /// They have, and there is no room for it: it waits with the kernel.
    is_held: bool,
    /// Connections that something can be done for, each once.
    ready: VecDeque<Key>,
    counts: Counts,
}

/// All intercepted connections of one thread.
pub struct Streams {
    epoll: OwnedFd,
    services: Vec<Option<Service>>,
    table: Table<Connection>,
    connections_max: usize,
    /// Unconnected sockets, for IPv4 and IPv6, that nobody came for.
    spare: [Option<OwnedFd>; 2],
    pipes: Pipes,
    /// For what is read on its way to a handler.
    buffer: Vec<u8>,
    /// Connections whose server has not answered, the oldest first.
    connecting: VecDeque<(Nanos, Key)>,
}

impl Streams {
    /// Of a thread that has none, and is to have so many at once: two descriptors each, and two
    /// more while bytes are on their way, as far as there are any. Those that come beyond wait
    /// with the kernel, up to its backlog.
    ///
    /// # Errors
    /// Without a free descriptor.
    pub fn new(connections_max: usize) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self {
            epoll,
            services: Vec::new(),
            table: Table::default(),
            connections_max,
            spare: [None, None],
            pipes: Pipes::default(),
            buffer: vec![0; READ_MAX],
            connecting: VecDeque::new(),
        })
    }

    /// Adds a service with the listeners that its connections come to, and who wants to see their
    /// bytes.
    ///
    /// # Errors
    /// When a listener is none.
    pub fn add(
        &mut self,
        listeners: Vec<OwnedFd>,
        handlers: Option<Box<dyn Handlers>>,
    ) -> io::Result<ServiceNumber> {
        let free = self.services.iter().position(Option::is_none);
        let at = free.unwrap_or(self.services.len());
        let number = ServiceNumber(u16::try_from(at).map_err(|_| Errno::NOSPC)?);
        let watched = |listener: OwnedFd| -> io::Result<(OwnedFd, bool)> {
            let data = epoll::EventData::new_u64(number.listeners());
            let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
            epoll::add(&self.epoll, &listener, data, flags)?;
            let is_v6 = getsockname(&listener)?.address_family() == AddressFamily::INET6;
            Ok((listener, is_v6))
        };
        let listeners = listeners.into_iter().map(watched).collect::<io::Result<Vec<_>>>()?;
        if at == self.services.len() {
            self.services.push(None);
        }
        let (ready, counts) = (VecDeque::new(), Counts::default());
        self.services[at] =
            Some(Service { listeners, handlers, accepts: true, is_held: false, ready, counts });
        Ok(number)
    }

    /// Removes a service: its connections are reset at both ends.
    pub fn remove(&mut self, number: ServiceNumber) -> Option<Counts> {
        let service = self.services.get_mut(usize::from(number.0))?.take()?;
        for key in self.table.keys() {
            if self.table.get_mut(key).is_some_and(|it| it.service == number)
                && let Some(connection) = self.table.remove(key)
            {
                connection.reset(&mut self.pipes);
            }
        }
        Some(service.counts)
    }

    /// What became of a service's connections.
    #[must_use]
    pub fn counts(&self, number: ServiceNumber) -> Option<Counts> {
        Some(self.service(number)?.counts)
    }

    /// Descriptors of pipes that are in use or kept, two each.
    #[must_use]
    pub const fn pipes(&self) -> usize {
        self.pipes.count()
    }

    fn service(&self, number: ServiceNumber) -> Option<&Service> {
        self.services.get(usize::from(number.0))?.as_ref()
    }

    /// Hears what has happened since the last look.
    ///
    /// # Errors
    /// When the kernel does not say.
    pub fn look(&mut self, now: Nanos) -> io::Result<()> {
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
            if let Some(number) = ServiceNumber::of_listeners(data) {
                if let Some(Some(service)) = self.services.get_mut(usize::from(number.0)) {
                    service.accepts = true;
                }
                continue;
            }
            let (key, side) = Key::and_side(data);
            if let Some(connection) = self.table.get_mut(key) {
                connection.happened(side, flags);
                self.wake(key);
            }
        }
        self.give_up(now);
        if self.table.len() < self.connections_max {
            for service in self.services.iter_mut().flatten() {
                service.accepts |= std::mem::take(&mut service.is_held);
            }
        }
        Ok(())
    }

    /// Connections whose server took too long.
    fn give_up(&mut self, now: Nanos) {
        while let Some(&(since, key)) = self.connecting.front() {
            match self.table.get_mut(key) {
                Some(connection) if connection.is_connecting() => {
                    if now.saturating_sub(since) < CONNECT_TIME_MAX {
                        return;
                    }
                    self.end(key, After::Unreachable);
                }
                _ => {}
            }
            self.connecting.pop_front();
        }
    }

    fn wake(&mut self, key: Key) {
        let Some(connection) = self.table.get_mut(key) else { return };
        if !std::mem::replace(&mut connection.is_ready, true)
            && let Some(Some(service)) = self.services.get_mut(usize::from(connection.service.0))
        {
            service.ready.push_back(key);
        }
    }

    /// Services for which something can be done.
    pub fn ready(&self) -> impl Iterator<Item = ServiceNumber> {
        let has_work = |service: &Service| service.accepts || !service.ready.is_empty();
        let numbers = self.services.iter().enumerate();
        numbers
            .filter(move |(_, it)| it.as_ref().is_some_and(has_work))
            .map(|(at, _)| ServiceNumber(at as u16))
    }

    /// Does something for a service: accepts what has come, then one portion for a connection.
    /// Whether there is more to do at once.
    pub fn work(&mut self, number: ServiceNumber, sockets: &mut dyn Sockets, now: Nanos) -> bool {
        self.accept(number, sockets, now);
        let Some(Some(service)) = self.services.get_mut(usize::from(number.0)) else {
            return false;
        };
        let Some(key) = service.ready.pop_front() else { return service.accepts };
        let counts = &mut service.counts;
        if let Some(connection) = self.table.get_mut(key) {
            connection.is_ready = false;
            let room = (&mut self.pipes, &mut self.buffer[..]);
            match connection.advance(room, counts, PORTION) {
                After::Waits => {}
                After::GoesOn => self.wake(key),
                after => self.end(key, after),
            }
        }
        self.service(number).is_some_and(|service| service.accepts || !service.ready.is_empty())
    }

    fn end(&mut self, key: Key, after: After) {
        let Some(connection) = self.table.remove(key) else { return };
        if let Some(Some(service)) = self.services.get_mut(usize::from(connection.service.0)) {
            match after {
                After::Unreachable => service.counts.unreachable += 1,
                After::Reset => service.counts.reset += 1,
                After::Ended => service.counts.ended += 1,
                After::Waits | After::GoesOn => {}
            }
        }
        match after {
            After::Ended => connection.close(&mut self.pipes),
            _ => connection.reset(&mut self.pipes),
        }
    }

    /// Accepts connections that have come, as far as there are sockets to connect with.
    fn accept(&mut self, number: ServiceNumber, sockets: &mut dyn Sockets, now: Nanos) {
        let Self { epoll, services, table, connecting, pipes, connections_max, spare, .. } = self;
        let Some(Some(service)) = services.get_mut(usize::from(number.0)) else { return };
        if !service.accepts {
            return;
        }
        service.accepts = false;
        for (listener, is_v6) in &service.listeners {
            for attempt in 0..=ACCEPTED_MAX {
                if table.len() >= *connections_max {
                    service.is_held = true;
                    return;
                }
                if attempt == ACCEPTED_MAX {
                    service.accepts = true;
                    break;
                }
                let spare = &mut spare[usize::from(*is_v6)];
                let Some(socket) = spare.take().or_else(|| sockets.take(*is_v6)) else {
                    service.is_held = true;
                    break;
                };
                let (accepted, client, server) = match accept_one(listener.as_fd()) {
                    Ok(Some(accepted)) => accepted,
                    other => {
                        // Nothing waits, or there is no descriptor for it.
                        *spare = Some(socket);
                        service.is_held |= other.is_err();
                        break;
                    }
                };
                service.counts.accepted += 1;
                let handlers = service.handlers.as_mut();
                let handler = handlers.and_then(|all| all.open(client, server));
                let opened = Connection::open(number, accepted, socket, client, server, handler);
                let Ok((connection, is_other_port)) = opened else {
                    service.counts.unreachable += 1;
                    continue;
                };
                service.counts.other_port += u64::from(is_other_port);
                let key = table.insert(connection);
                let watched =
                    table.get_mut(key).map(|connection| watch(epoll.as_fd(), key, connection));
                if !matches!(watched, Some(Ok(()))) {
                    service.counts.unreachable += 1;
                    if let Some(connection) = table.remove(key) {
                        connection.reset(pipes);
                    }
                    continue;
                }
                connecting.push_back((now, key));
            }
        }
    }
}

impl AsFd for Streams {
    /// Readable when a look would hear something.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

fn watch(epoll: BorrowedFd<'_>, key: Key, connection: &Connection) -> io::Result<()> {
    use epoll::EventFlags as Flags;
    let flags = Flags::IN | Flags::OUT | Flags::RDHUP | Flags::ET;
    for side in [Side::Downstream, Side::Upstream] {
        let data = epoll::EventData::new_u64(key.with(side));
        epoll::add(epoll, connection.socket(side), data, flags)?;
    }
    Ok(())
}

/// A connection that has come: its socket, its client's address, and where it was going; `None`
/// when none waits.
fn accept_one(
    listener: BorrowedFd<'_>,
) -> Result<Option<(OwnedFd, SocketAddr, SocketAddr)>, Errno> {
    loop {
        match accept_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
            Ok(socket) => {
                // One that was reset while it waited has no peer.
                let client =
                    getpeername(&socket).ok().and_then(|it| SocketAddr::try_from(it?).ok());
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
