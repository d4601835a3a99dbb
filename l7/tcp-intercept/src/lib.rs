//! Intercepted TCP connections: the node is the server to the client and the client to the
//! server, with the addresses of both, and neither notices.
//!
//! ```text
//!  client ◀──▶ downstream socket ─ pipe ─▶ upstream socket ◀──▶ server
//!              (the server's       ◀─ pipe ─     (the client's
//!               address and port)                 address and port)
//! ```
//!
//! Bytes that nobody wants to see go through pipes and never come to user space: each direction
//! ends by itself, as its sender ended it; what one end does not take the other may not send; and
//! a reset of one is a reset of the other, behind the bytes that came before it. A service with an [`Application`] has each end in its
//! own hands, and connects to whom it likes. Nothing here waits: [`Streams::look`] asks what has
//! happened, [`Streams::work`] does what can be done for one service, so far as its turn goes.
//!
//! It opens no socket: listeners and unconnected sockets that may have other people's addresses
//! come from who may make them, with what is to hold for all connections set.

#![forbid(unsafe_code)]

mod application;
mod closing;
mod connection;
mod pipes;
mod table;
mod way;

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
use connection::{After, Connection, Target};
use pipes::Pipes;
pub use table::ServiceNumber;
use table::{Key, Side, Table};

/// Connections that one look accepts: what is open has its turn between two looks.
const ACCEPTED_MAX: usize = 64;
/// What one look hears of.
const EVENTS_MAX: usize = 256;
/// Bytes that one connection moves each way before others of its service do.
const PORTION: usize = 256 * 1024;
/// Connections with little to send before it goes: those behind the first find their receivers
/// awake, and more would have to wait for long.
pub const GATHERED_MAX: usize = 16;
/// A server that does not answer is given up after so long; Linux alone would take two minutes.
pub const CONNECT_TIME_MAX: Nanos = Nanos(30_000_000_000);

/// What became of the connections of one service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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

/// Unconnected sockets that may connect from any address: each is used once.
pub trait Sockets {
    /// One for IPv6 or for IPv4; `None` when there is none at the moment.
    fn take(&mut self, v6: bool) -> Option<OwnedFd>;
}

/// Where connections of a service come to.
struct Listener {
    fd: OwnedFd,
    is_v6: bool,
    /// It may have more to accept.
    accepts: bool,
    /// It has, and there is no room for it: it waits with the kernel.
    is_held: bool,
}

struct Service {
    listeners: Vec<Listener>,
    /// Who has its connections in hand, if anybody has.
    application: Option<Box<dyn Application>>,
    /// Connections that something can be done for, each once.
    ready: VecDeque<Key>,
    /// Connections with little to send, which goes together with that of others.
    gathered: VecDeque<Key>,
    /// Ends that wait for a socket to connect with.
    unconnected: VecDeque<Key>,
    /// There may be sockets for them again.
    may_connect: bool,
    counts: Counts,
}

/// What has a number.
enum Place {
    /// Two ends and pipes between them.
    Pair(Connection),
    /// An application's.
    Single(Single),
}

impl Place {
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
    table: Table<Place>,
    connections_max: usize,
    /// Unconnected sockets, for IPv4 and IPv6, that nobody came for.
    spare: [Option<OwnedFd>; 2],
    pipes: Pipes,
    /// Connections whose server has not answered, the oldest first.
    connecting: VecDeque<(Nanos, Key)>,
    /// Connections that are reset at one end, what came before being on its way, the oldest first.
    broken: VecDeque<(Nanos, Key)>,
    closing: Closing,
    /// When it was looked last.
    looked: Nanos,
}

impl Streams {
    /// Of a thread that has none, and is to have so many at once: two descriptors each, and two
    /// more while bytes are on their way, as far as there are any. Those that come beyond wait
    /// with the kernel, up to its backlog. `unacknowledged` asks the kernel for it.
    ///
    /// # Errors
    /// Without a free descriptor.
    pub fn new(connections_max: usize, unacknowledged: Unacknowledged) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self {
            epoll,
            services: Vec::new(),
            table: Table::default(),
            connections_max,
            spare: [None, None],
            pipes: Pipes::default(),
            connecting: VecDeque::new(),
            broken: VecDeque::new(),
            closing: Closing::new(unacknowledged),
            looked: Nanos::ZERO,
        })
    }

    /// Adds a service with the listeners that its connections come to, and who has them in hand;
    /// without, they go to their servers through pipes.
    ///
    /// # Errors
    /// When a listener is none.
    pub fn add(
        &mut self,
        listeners: Vec<OwnedFd>,
        application: Option<Box<dyn Application>>,
    ) -> io::Result<ServiceNumber> {
        let free = self.services.iter().position(Option::is_none);
        let at = free.unwrap_or(self.services.len());
        let number = ServiceNumber(u16::try_from(at).map_err(|_| Errno::NOSPC)?);
        let talk = application.as_ref().map_or(Talk::Free, |it| it.talk());
        let watched = |(at, fd): (u16, OwnedFd)| -> io::Result<Listener> {
            let data = epoll::EventData::new_u64(number.listener(at));
            epoll::add(&self.epoll, &fd, data, LISTENED)?;
            let is_v6 = getsockname(&fd)?.address_family() == AddressFamily::INET6;
            acknowledges(&fd, talk)?;
            Ok(Listener { fd, is_v6, accepts: true, is_held: false })
        };
        let listeners = (0..).zip(listeners).map(watched).collect::<io::Result<Vec<_>>>()?;
        if at == self.services.len() {
            self.services.push(None);
        }
        self.services[at] = Some(Service {
            listeners,
            application,
            ready: VecDeque::new(),
            gathered: VecDeque::new(),
            unconnected: VecDeque::new(),
            may_connect: false,
            counts: Counts::default(),
        });
        Ok(number)
    }

    /// Has connections of one service that come from now on be another one's, which has none yet;
    /// those that are open stay.
    ///
    /// # Errors
    /// Without one of the two.
    pub fn hand_over(&mut self, from: ServiceNumber, to: ServiceNumber) -> io::Result<()> {
        let talk = self.service(to).ok_or(Errno::NOENT)?.talk();
        let service = self.service_mut(from).ok_or(Errno::NOENT)?;
        let mut listeners = std::mem::take(&mut service.listeners);
        for (at, listener) in (0..).zip(&mut listeners) {
            let data = epoll::EventData::new_u64(to.listener(at));
            epoll::modify(&self.epoll, &listener.fd, data, LISTENED)?;
            acknowledges(&listener.fd, talk)?;
            listener.accepts = true;
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
                && let Some(place) = self.table.remove(key)
            {
                place.reset(&mut self.pipes, &mut self.closing, self.looked);
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
        self.looked = now;
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
                    listener.accepts = true;
                }
                continue;
            }
            let (key, side) = Key::and_side(data);
            match self.table.get_mut(key) {
                Some(Place::Pair(connection)) => connection.happened(side, flags),
                Some(Place::Single(single)) => {
                    let was_broken = single.is_broken();
                    single.happened(flags);
                    if single.is_broken() && !was_broken {
                        self.broken.push_back((now, key));
                    }
                }
                None => continue,
            }
            self.wake(key);
        }
        self.give_up(now);
        self.give_up_broken(now);
        self.closing.handle_timeout(now);
        if self.table.take_lost() {
            self.go_on();
        }
        Ok(())
    }

    /// There are unconnected sockets again: what waited for one is tried once more.
    pub fn go_on(&mut self) {
        for service in self.services.iter_mut().flatten() {
            service.may_connect = !service.unconnected.is_empty();
            for listener in &mut service.listeners {
                listener.accepts |= std::mem::take(&mut listener.is_held);
            }
        }
    }

    /// Connections whose server took too long.
    fn give_up(&mut self, now: Nanos) {
        while let Some(&(since, key)) = self.connecting.front() {
            match self.table.get_mut(key) {
                Some(place) if place.is_connecting() => {
                    if now.saturating_sub(since) < CONNECT_TIME_MAX {
                        return;
                    }
                    match place {
                        Place::Pair(_) => self.end(key, After::Unreachable),
                        Place::Single(single) => {
                            single.give_up();
                            self.wake(key);
                        }
                    }
                }
                _ => {}
            }
            self.connecting.pop_front();
        }
    }

    /// Connections of which too little was taken since one end was reset.
    fn give_up_broken(&mut self, now: Nanos) {
        let is_due = |(since, _): &mut (Nanos, Key)| now.saturating_sub(*since) >= RESET_TIME_MAX;
        while let Some((_, key)) = self.broken.pop_front_if(is_due) {
            match self.table.get_mut(key) {
                Some(Place::Pair(_)) => self.end(key, After::Reset),
                Some(Place::Single(single)) => {
                    single.fail();
                    self.wake(key);
                }
                None => {}
            }
        }
    }

    fn wake(&mut self, key: Key) {
        let Some(place) = self.table.get_mut(key) else { return };
        if !std::mem::replace(place.is_ready_mut(), true)
            && let Some(Some(service)) = self.services.get_mut(usize::from(place.service().0))
        {
            service.ready.push_back(key);
        }
    }

    /// Services for which something can be done.
    pub fn ready(&self, now: Nanos) -> impl Iterator<Item = ServiceNumber> {
        let numbers = self.services.iter().enumerate();
        numbers
            .filter(move |(_, it)| it.as_ref().is_some_and(|service| service.has_work(now)))
            .map(|(at, _)| ServiceNumber(at as u16))
    }

    /// When there is something to do, though nothing happens: the next time after this one, at which
    /// it was looked.
    #[must_use]
    pub fn poll_timeout(&self, looked: Nanos) -> Option<Nanos> {
        let connecting = self.connecting.front().map(|(since, _)| *since + CONNECT_TIME_MAX);
        let applications = self.services.iter().flatten().filter_map(Service::poll_timeout);
        let broken = self.broken.front().map(|(since, _)| *since + RESET_TIME_MAX);
        let own = [connecting, broken, self.closing.poll_timeout()];
        applications.chain(own.into_iter().flatten()).filter(|&at| at > looked).min()
    }

    /// Does something for a service: accepts what has come, then one portion for a connection, until
    /// then at most where an application knows when to stop. Whether there is more to do at once.
    pub fn work(
        &mut self,
        number: ServiceNumber,
        sockets: &mut dyn Sockets,
        now: Nanos,
        until: Nanos,
    ) -> bool {
        self.accept(number, sockets, now, until);
        if self.service(number).is_some_and(|service| service.is_due(now)) {
            self.ask(number, sockets, now, until, |application, io| application.work(io));
        }
        let Some(Some(service)) = self.services.get_mut(usize::from(number.0)) else {
            return false;
        };
        if let Some(key) = service.ready.pop_front() {
            match self.table.get_mut(key) {
                Some(Place::Pair(connection)) => {
                    connection.is_ready = false;
                    // One that is gathered is advanced with the others.
                    if !connection.is_gathered {
                        if connection.gather(&mut self.pipes) {
                            self.gather(number, key);
                        } else {
                            self.advance(key);
                        }
                    }
                }
                Some(Place::Single(single)) => {
                    single.is_ready = false;
                    self.ask(number, sockets, now, until, |application, io| {
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

    /// Does what can be done for a connection whose bytes nobody sees.
    fn advance(&mut self, key: Key) {
        if self.connect(key) {
            return;
        }
        let Self { services, table, pipes, .. } = self;
        let Some(Place::Pair(connection)) = table.get_mut(key) else { return };
        let service = services.get_mut(usize::from(connection.service.0));
        let Some(Some(service)) = service else { return };
        let was_broken = connection.is_waited_for;
        let after = connection.advance(pipes, &mut service.counts, PORTION);
        connection.is_waited_for |= connection.is_broken();
        if connection.is_waited_for && !was_broken {
            self.broken.push_back((self.looked, key));
        }
        match after {
            After::Waits => {}
            After::GoesOn => self.wake(key),
            after => self.end(key, after),
        }
    }

    /// Has a connection wait for others that have something to send, or to connect for.
    fn gather(&mut self, number: ServiceNumber, key: Key) {
        let Some(Place::Pair(connection)) = self.table.get_mut(key) else { return };
        connection.is_gathered = true;
        let Some(service) = self.service_mut(number) else { return };
        service.gathered.push_back(key);
        if service.gathered.len() >= GATHERED_MAX {
            self.send_gathered(number);
        }
    }

    fn send_gathered(&mut self, number: ServiceNumber) {
        while let Some(key) = self.service_mut(number).and_then(|it| it.gathered.pop_front()) {
            if let Some(Place::Pair(connection)) = self.table.get_mut(key) {
                connection.is_gathered = false;
            }
            self.advance(key);
        }
    }

    /// Sends what was gathered of a service: its turn ends.
    pub fn flush(
        &mut self,
        number: ServiceNumber,
        sockets: &mut dyn Sockets,
        now: Nanos,
        until: Nanos,
    ) {
        self.send_gathered(number);
        self.ask(number, sockets, now, until, |application, io| application.flush(io));
    }

    /// Lets a service's application do something.
    fn ask(
        &mut self,
        number: ServiceNumber,
        sockets: &mut dyn Sockets,
        now: Nanos,
        until: Nanos,
        act: impl FnOnce(&mut dyn Application, &mut Io<'_>),
    ) {
        let Self { epoll, services, table, connecting, broken, closing, spare, .. } = self;
        let Some(Some(service)) = services.get_mut(usize::from(number.0)) else { return };
        let Service { application, ready, unconnected, counts, .. } = service;
        let Some(application) = application else { return };
        let mut sockets = Spare { spare, sockets };
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

    fn end(&mut self, key: Key, after: After) {
        let Some(Place::Pair(connection)) = self.table.remove(key) else { return };
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
            _ => connection.reset(&mut self.pipes, &mut self.closing, self.looked),
        }
    }

    /// Accepts connections that have come, as far as there is room for them.
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
            self.ask(number, sockets, now, until, |_, io| io.connect_waiting());
        }
        let listeners = self.service(number).map_or(0, |service| service.listeners.len());
        for at in 0..listeners {
            let Some(listener) = self.listener(number, at) else { return };
            if !std::mem::take(&mut listener.accepts) {
                continue;
            }
            for attempt in 0..=ACCEPTED_MAX {
                if attempt == ACCEPTED_MAX {
                    let Some(listener) = self.listener(number, at) else { return };
                    listener.accepts = true;
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

    /// Accepts one that goes through pipes; true when there is none, or no room.
    fn accept_pair(
        &mut self,
        number: ServiceNumber,
        at: usize,
        sockets: &mut dyn Sockets,
        now: Nanos,
    ) -> bool {
        let Self { services, table, connecting, connections_max, spare, .. } = self;
        let Some(Some(service)) = services.get_mut(usize::from(number.0)) else { return true };
        let Some(listener) = service.listeners.get_mut(at) else { return true };
        let is_v6 = listener.is_v6;
        let mut sockets = Spare { spare, sockets };
        let socket = if table.len() < *connections_max { sockets.take(is_v6) } else { None };
        let Some(socket) = socket else {
            listener.is_held = true;
            return true;
        };
        let (accepted, client, server) = match accept_one(listener.fd.as_fd()) {
            Ok(Some(accepted)) => accepted,
            other => {
                // Nothing waits, or there is no descriptor for it.
                spare[usize::from(is_v6)] = Some(socket);
                listener.is_held |= other.is_err();
                return true;
            }
        };
        service.counts.accepted += 1;
        let target = Target { client, server };
        let connection = Connection::accepted(number, accepted, socket, target);
        let key = table.insert(Place::Pair(connection));
        connecting.push_back((now, key));
        self.gather(number, key);
        false
    }

    /// Connects to the server of a connection that was accepted; false when there is nothing to do.
    fn connect(&mut self, key: Key) -> bool {
        let Self { epoll, services, table, pipes, .. } = self;
        let Some(Place::Pair(connection)) = table.get_mut(key) else { return false };
        let Some(connected) = connection.connect(pipes) else { return false };
        let watched = connected.and_then(|is_other_port| {
            let mut both = Side::BOTH.into_iter();
            both.try_for_each(|side| {
                watch(epoll.as_fd(), connection.socket(side), key.with(side))
            })?;
            Ok(is_other_port)
        });
        let service = services.get_mut(usize::from(connection.service.0)).and_then(Option::as_mut);
        match (watched, service) {
            (Ok(is_other_port), Some(service)) => {
                service.counts.other_port += u64::from(is_other_port);
            }
            (Ok(_), None) => {}
            (Err(_), _) => self.end(key, After::Unreachable),
        }
        true
    }

    /// Accepts one for the service's application; true when there is none, or no room.
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
                listener.is_held |= other.is_err();
                return true;
            }
        };
        service.counts.accepted += 1;
        let single = Single::accepted(number, accepted, talk);
        let key = self.table.insert(Place::Single(single));
        let Some(Place::Single(single)) = self.table.get_mut(key) else { return false };
        let watched =
            single.fd().map(|fd| watch(self.epoll.as_fd(), fd, key.with(Side::Downstream)));
        if !matches!(watched, Some(Ok(()))) {
            if let Some(place) = self.table.remove(key) {
                place.reset(&mut self.pipes, &mut self.closing, now);
            }
            if let Some(service) = self.service_mut(number) {
                service.counts.reset += 1;
            }
            return false;
        }
        self.ask(number, sockets, now, until, |application, io| {
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

    /// How its clients talk.
    fn talk(&self) -> Talk {
        self.application.as_ref().map_or(Talk::Free, |it| it.talk())
    }

    fn has_work(&self, now: Nanos) -> bool {
        let may_accept = self.may_connect || self.listeners.iter().any(|it| it.accepts);
        may_accept || !self.ready.is_empty() || self.is_due(now)
    }
}

/// Sockets, first those that nobody came for.
struct Spare<'a> {
    spare: &'a mut [Option<OwnedFd>; 2],
    sockets: &'a mut dyn Sockets,
}

impl Sockets for Spare<'_> {
    fn take(&mut self, v6: bool) -> Option<OwnedFd> {
        self.spare[usize::from(v6)].take().or_else(|| self.sockets.take(v6))
    }
}

impl AsFd for Streams {
    /// Readable when a look would hear something.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// What the kernel says of each listener.
const LISTENED: epoll::EventFlags = epoll::EventFlags::IN.union(epoll::EventFlags::ET);

/// Has connections that will come to a listener acknowledge what comes as its clients talk.
fn acknowledges(listener: &OwnedFd, talk: Talk) -> Result<(), Errno> {
    sockopt::set_tcp_quickack(listener, talk == Talk::Free)
}

/// What the kernel says of each socket.
const WATCHED: epoll::EventFlags = epoll::EventFlags::IN
    .union(epoll::EventFlags::OUT)
    .union(epoll::EventFlags::RDHUP)
    .union(epoll::EventFlags::PRI)
    .union(epoll::EventFlags::ET);

fn watch(epoll: BorrowedFd<'_>, socket: BorrowedFd<'_>, data: u64) -> Result<(), Errno> {
    epoll::add(epoll, socket, epoll::EventData::new_u64(data), WATCHED)
}

/// The same of one that has another number from now on.
fn rewatch(epoll: BorrowedFd<'_>, socket: BorrowedFd<'_>, data: u64) -> Result<(), Errno> {
    epoll::modify(epoll, socket, epoll::EventData::new_u64(data), WATCHED)
}

/// A connection that has come: its socket, its client's address, and where it was going; `None`
/// when none waits.
fn accept_one(
    listener: BorrowedFd<'_>,
) -> Result<Option<(OwnedFd, SocketAddr, SocketAddr)>, Errno> {
    loop {
        match acceptfrom_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
            Ok((socket, client)) => {
                // One that was reset while it waited has no peer.
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
