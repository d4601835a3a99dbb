//! All channels of one service: dispatches events of ends to their owners, and executes the
//! channels' effects.
//!
//! ```text
//!   end ─ Role ─▶ Listeners ─┐           ┌─▶ Listeners: heads, bytes to send
//!               ─▶ Stations ─┼─ Effect ──┼─▶ Stations: origins
//!               ─▶ relays    ┘           ├─▶ relays: responses that are not shared
//!               ─▶ Departures            └─▶ Departures: responses that are over
//! ```

use crate::departures::Departures;
use crate::head::{self, Refused};
use crate::limits::{ORIGIN_BURST, SENDS_MAX, UNSENT_MAX};
use crate::listener::{Listener, StationId, Waiting};
use crate::listeners::Listeners;
use crate::relay::{Outcome, Relay};
use crate::settings::{Join, Key, Settings, Source};
use crate::station::{Input, KeySource, Name, Origin};
use crate::stations::{Numbers, Stations};
use crate::stats::FanoutStats;
use http1::{Framing, RequestHead, ResponseHead, Version};
use reflector::{Ask, Connection, Effect, Ending, Failure, ListenerId};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use tcp_intercept::{Closed, End, Io, Received, State, Talk};
use units::{Account, Bytes, Nanos};

/// Owner of an end.
#[derive(Clone, Copy)]
enum Role {
    Listener(ListenerId),
    Origin(StationId),
    Relay(u64),
}

/// All channels of one service.
pub struct Fanout {
    settings: Settings,
    /// Owners of ends, except those in `departures`.
    roles: BTreeMap<End, Role>,
    stations: Stations,
    listeners: Listeners,
    relays: BTreeMap<u64, Relay>,
    departures: Departures,
    numbers: Numbers,
    /// Buffer for reads.
    buffer: Box<[u8]>,
    /// Buffer for a part of a body without its chunk framing.
    body: Vec<u8>,
    stats: FanoutStats,
}

/// Bytes of one read: as many as one send to a listener has.
const READ_LENGTH: usize = 64 * 1024;

const _: () = assert!(READ_LENGTH <= ORIGIN_BURST);

/// Sends to one listener before others are served: a burst is sent at once.
const SENDS_PER_TURN: usize = 4;

impl Fanout {
    /// Creates a fan-out without channels, and without an account for their memory.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            roles: BTreeMap::new(),
            stations: Stations::new(settings),
            listeners: Listeners::default(),
            relays: BTreeMap::new(),
            departures: Departures::default(),
            numbers: Numbers::default(),
            buffer: vec![0; READ_LENGTH].into(),
            body: Vec::new(),
            stats: FanoutStats::default(),
        }
    }

    /// Sets the account that channels' payload is charged to: requests beyond its limit are
    /// refused.
    #[must_use]
    pub fn paid(mut self, account: Rc<dyn Account>) -> Self {
        self.stations.set_account(account);
        self
    }

    /// Handles a request for a stream and takes over its end: joins the channel, opens it for the
    /// first listener, relays the request if it cannot be shared, or refuses it if a limit is
    /// reached.
    pub fn join(&mut self, io: &mut Io<'_>, end: End, join: Join) {
        if io.state(end) != State::Open {
            return io.close(end, Closed::Reset);
        }
        let Join { key, client, server, request, received } = join;
        let ask = Ask::new(&request);
        let waiting = Box::new(Waiting { client, server, request, received });
        let Ok(ask) = ask else { return self.relay_request(io, end, *waiting) };
        let key = match key {
            Key(Some(bytes)) => KeySource::Module(bytes),
            Key(None) => KeySource::Request(Box::new(ask.key().clone())),
        };
        let version = waiting.request.version();
        let name = Name { server, key };
        let fits = self.listeners.may_wait(&waiting);
        let (stations, numbers) = (&mut self.stations, &mut self.numbers);
        let station_id =
            fits.then(|| stations.find_or_open(&name, &ask, client, numbers)).flatten();
        let Some(station_id) = station_id else {
            return self.refuse(io, end, Refused::Busy, version);
        };
        let id = ListenerId(self.numbers.next());
        let now = io.now();
        let Some(station) = self.stations.get_mut(station_id) else { return };
        let is_full = station.listeners() >= self.settings.listeners_max.max(1);
        if is_full || station.channel.handle_join(now, id, ask.wants()).is_err() {
            return self.refuse(io, end, Refused::Busy, version);
        }
        station.handle_join();
        self.stats.joined += 1;
        self.listeners.insert(id, Listener::new(end, station_id, waiting));
        self.roles.insert(end, Role::Listener(id));
        self.update(io, station_id);
    }

    /// Returns true if the end belongs to this fan-out.
    #[must_use]
    pub fn owns(&self, end: End) -> bool {
        self.roles.contains_key(&end) || self.departures.has(end)
    }

    /// Handles events of an end that belongs to this fan-out.
    pub fn ready(&mut self, io: &mut Io<'_>, end: End) {
        match self.roles.get(&end) {
            Some(&Role::Listener(id)) => self.listener_ready(io, end, id),
            Some(&Role::Origin(id)) => self.origin_ready(io, end, id),
            Some(&Role::Relay(number)) => self.advance(io, number),
            None => self.departures.handle_ready(io, end, &mut self.buffer),
        }
    }

    /// Returns the earliest time at which [`Fanout::work`] has to be called; a time in the past
    /// means at once.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Nanos> {
        if self.listeners.has_queued() {
            return Some(Nanos::ZERO);
        }
        let timers = [self.stations.poll_timeout(), self.departures.poll_timeout()];
        timers.into_iter().flatten().min()
    }

    /// Does a portion of the work that is due.
    pub fn work(&mut self, io: &mut Io<'_>) {
        if let Some(id) = self.stations.due(io.now()) {
            self.handle_channel_timeout(io, id);
        }
        self.departures.handle_timeout(io);
        for _ in 0..SENDS_MAX {
            let Some(id) = self.listeners.pop() else { break };
            self.send_to(io, id);
        }
    }

    /// Returns the statistics.
    #[must_use]
    pub fn stats(&self) -> FanoutStats {
        let mut stats = self.stats;
        let mut others = self.buffer.len() + self.body.capacity();
        for station in self.stations.iter() {
            stats.add(station.channel.counters());
            stats.memory.add(station.channel.memory());
            others += station.memory();
        }
        let relays: usize = self.relays.values().map(Relay::memory).sum();
        let roles = self.roles.len() * (size_of::<End>() + size_of::<Role>());
        let ends = self.listeners.memory() + relays + roles + self.departures.memory();
        stats.memory.listeners += Bytes(ends as u64);
        stats.memory.others = Bytes(others as u64);
        stats.payload_max = self.stations.payload();
        stats.waiting = Bytes(self.listeners.waiting() as u64);
        stats.channels = self.stations.len() as u64;
        stats.listeners = self.listeners.len() as u64;
        stats.left = stats.joined - stats.listeners;
        stats
    }

    /// Handles a channel's timeout.
    fn handle_channel_timeout(&mut self, io: &mut Io<'_>, id: StationId) {
        let now = io.now();
        let Some(station) = self.stations.get_mut(id) else { return };
        if station.channel.poll_timeout().is_some_and(|at| at <= now) {
            station.channel.handle_timeout(now);
        }
        let origin = station.origin.as_ref();
        if origin.is_some_and(|origin| origin.is_due(now)) {
            self.read_origin(io, id);
        }
        self.update(io, id);
    }

    /// Relays a client's request to its server on a connection of its own.
    fn relay_request(&mut self, io: &mut Io<'_>, end: End, waiting: Waiting) {
        let Waiting { client, server, request, received } = waiting;
        let mut up = head::last_request(&request);
        if head::has_more(&request) {
            up.extend(received);
        }
        let upstream = io.connect(self.from(client), server, Talk::Free);
        self.stats.alone += 1;
        self.relay(
            io,
            Relay { downstream: end, upstream, version: request.version(), up, down: Vec::new() },
        );
    }

    fn relay(&mut self, io: &mut Io<'_>, relay: Relay) {
        let number = self.numbers.next();
        for end in [relay.downstream, relay.upstream] {
            self.roles.insert(end, Role::Relay(number));
        }
        self.relays.insert(number, relay);
        self.advance(io, number);
    }

    fn advance(&mut self, io: &mut Io<'_>, number: u64) {
        let Some(relay) = self.relays.get_mut(&number) else { return };
        let outcome = relay.advance(io);
        if outcome == Outcome::Blocked {
            return;
        }
        let Some(relay) = self.relays.remove(&number) else { return };
        self.roles.remove(&relay.upstream);
        self.roles.remove(&relay.downstream);
        if outcome == Outcome::Unreachable {
            let out = head::refusal(Refused::Unreachable, relay.version);
            self.depart(io, relay.downstream, out);
        }
    }

    fn refuse(&mut self, io: &mut Io<'_>, end: End, why: Refused, version: Version) {
        self.stats.refused += 1;
        self.depart(io, end, head::refusal(why, version));
    }

    /// Ends a response after these bytes.
    fn depart(&mut self, io: &mut Io<'_>, end: End, out: Vec<u8>) {
        self.departures.add(io, end, out, &mut self.buffer);
    }

    fn close(&mut self, io: &mut Io<'_>, end: End, why: Closed) {
        self.roles.remove(&end);
        io.close(end, why);
    }

    /// Returns the source address of connections to origins, unless it is the node's.
    const fn from(&self, client: SocketAddr) -> Option<SocketAddr> {
        match self.settings.source {
            Source::Client => Some(client),
            Source::Node => None,
        }
    }

    fn listener_ready(&mut self, io: &mut Io<'_>, end: End, id: ListenerId) {
        let Some(listener) = self.listeners.get_mut(id) else { return };
        let station = listener.station();
        if io.state(end) != State::Open {
            self.drop_listener(io, id);
            return self.update(io, station);
        }
        // Further input of a client is discarded; a client that has closed its sending direction
        // may still listen.
        while let Received::Bytes(count) = io.receive(end, &mut self.buffer) {
            if !listener.count_input(count) {
                self.drop_listener(io, id);
                return self.update(io, station);
            }
        }
        self.send_to(io, id);
    }

    /// Sends a listener the bytes available for it.
    fn send_to(&mut self, io: &mut Io<'_>, id: ListenerId) {
        let Some(listener) = self.listeners.get_mut(id) else { return };
        let station_id = listener.station();
        let Some(station) = self.stations.get_mut(station_id) else { return };
        let now = io.now();
        let mut may_continue = true;
        for _ in 0..SENDS_PER_TURN {
            let sent = listener.send(io, &station.channel, id);
            station.channel.handle_taken(now, id, sent.data);
            may_continue = sent.may_continue;
            if !may_continue {
                break;
            }
        }
        station.resume();
        self.update(io, station_id);
        if may_continue {
            self.listeners.enqueue(id);
        }
    }

    fn origin_ready(&mut self, io: &mut Io<'_>, end: End, id: StationId) {
        let now = io.now();
        let Some(station) = self.stations.get_mut(id) else { return };
        let Some(origin) = station.origin.as_mut().filter(|origin| origin.end == end) else {
            return;
        };
        match io.state(end) {
            State::Connecting => return,
            State::Open | State::Broken => {
                origin.ask(io);
                origin.is_readable = true;
                if origin.is_due(now) {
                    self.read_origin(io, id);
                }
            }
            State::Unreachable => self.fail_origin(io, id, Failure::Connect),
            State::Failed | State::Gone => self.fail_origin(io, id, Failure::Reset),
        }
        self.update(io, id);
    }

    fn fail_origin(&mut self, io: &mut Io<'_>, id: StationId, failure: Failure) {
        let Some(station) = self.stations.get_mut(id) else { return };
        let Some(origin) = station.origin.take() else { return };
        self.stats.origin_failures += 1;
        station.channel.handle_upstream_failed(io.now(), origin.connection, failure);
        self.close(io, origin.end, Closed::Reset);
    }

    /// Reads from an origin, at most a portion.
    fn read_origin(&mut self, io: &mut Io<'_>, id: StationId) {
        let now = io.now();
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut body = std::mem::take(&mut self.body);
        let mut length = 0;
        while let Some(station) = self.stations.get_mut(id).filter(|_| length < ORIGIN_BURST) {
            if !station.may_read(now) {
                break;
            }
            let limit = station.read_length().min(buffer.len());
            let Some(origin) = &mut station.origin else { break };
            match io.receive(origin.end, &mut buffer[..limit]) {
                Received::Bytes(count) => {
                    length += count;
                    if !self.take(io, id, &buffer[..count], &mut body) {
                        break;
                    }
                }
                Received::Ended => {
                    if self.stations.get_mut(id).is_some_and(|station| station.is_whole()) {
                        self.end_origin(io, id);
                    } else {
                        self.fail_origin(io, id, Failure::Reset);
                    }
                    break;
                }
                Received::Nothing => {
                    origin.is_readable = false;
                    if length > 0 {
                        origin.batch(now, length);
                    }
                    break;
                }
            }
        }
        // The rest after a portion remains due: its time has not changed.
        (self.buffer, self.body) = (buffer, body);
    }

    /// Passes bytes of an origin to its channel; returns true if more can be handled.
    fn take(&mut self, io: &mut Io<'_>, id: StationId, bytes: &[u8], body: &mut Vec<u8>) -> bool {
        let now = io.now();
        let Some(station) = self.stations.get_mut(id) else { return false };
        let mut result = station.receive(now, bytes, body);
        while let Ok(Input::Head { left }) = result {
            // A listener for which the response is not shared takes the connection, with all bytes
            // read from it.
            self.update(io, id);
            let Some(station) = self.stations.get_mut(id) else { return false };
            if station.origin.is_none() {
                return false;
            }
            station.drop_raw();
            let rest = bytes.get(bytes.len().saturating_sub(left)..).unwrap_or_default();
            result = station.decode(now, rest, body);
        }
        match result {
            Ok(Input::Consumed) => true,
            Ok(Input::Head { .. }) => false,
            Ok(Input::End) => {
                self.end_origin(io, id);
                false
            }
            Err(_) => {
                self.fail_origin(io, id, Failure::Reset);
                false
            }
        }
    }

    /// Ends an origin's body.
    fn end_origin(&mut self, io: &mut Io<'_>, id: StationId) {
        let Some(station) = self.stations.get_mut(id) else { return };
        let Some(origin) = station.origin.take() else { return };
        station.channel.handle_upstream_end(io.now(), origin.connection);
        self.close(io, origin.end, Closed::Ended);
    }

    /// Executes a channel's effects, updates its timer, and drops it when no listener is left.
    fn update(&mut self, io: &mut Io<'_>, id: StationId) {
        loop {
            let Some(station) = self.stations.get_mut(id) else { return };
            let Some(effect) = station.channel.poll_effect() else { break };
            self.act(io, id, effect);
        }
        if let Some(station) = self.stations.update(id) {
            self.stats.add(station.channel.counters());
            if let Some(origin) = station.origin {
                self.close(io, origin.end, Closed::Ended);
            }
        }
    }

    fn act(&mut self, io: &mut Io<'_>, id: StationId, effect: Effect) {
        match effect {
            Effect::Open { connection, request } => self.open(io, id, connection, &request),
            Effect::Close { connection } => self.close_origin(io, id, connection),
            Effect::Head { to, head, body } => self.answer(io, to, &head, body),
            Effect::Ready { to } => self.listeners.enqueue(to),
            Effect::End { to, ending } => self.end(io, to, ending),
            Effect::Pass { to, connection, .. } => self.pass(io, id, to, connection),
            Effect::Alone { to, .. } => self.relay_listener(io, to),
        }
    }

    fn open(
        &mut self,
        io: &mut Io<'_>,
        id: StationId,
        connection: Connection,
        request: &RequestHead,
    ) {
        let Some(station) = self.stations.get(id) else { return };
        let (from, to) = (self.from(station.client()), station.name().server);
        let end = io.connect(from, to, Talk::Free);
        self.stats.origins_opened += 1;
        self.roles.insert(end, Role::Origin(id));
        let Some(station) = self.stations.get_mut(id) else { return };
        let origin = Origin::new(end, connection, head::request(request));
        if let Some(before) = station.origin.replace(origin) {
            self.close(io, before.end, Closed::Ended);
        }
    }

    fn close_origin(&mut self, io: &mut Io<'_>, id: StationId, connection: Connection) {
        let Some(station) = self.stations.get_mut(id) else { return };
        if let Some(origin) = station.origin.take_if(|it| it.connection == connection) {
            self.close(io, origin.end, Closed::Ended);
        }
    }

    /// Starts a listener's response.
    fn answer(&mut self, io: &mut Io<'_>, to: ListenerId, head: &ResponseHead, body: Framing) {
        let Some(listener) = self.listeners.get(to) else { return };
        io.limit_unsent(listener.end(), UNSENT_MAX);
        if !self.listeners.answer(to, head, body) {
            self.drop_listener(io, to);
        }
    }

    /// Ends a listener's response. The channel has dropped the listener.
    fn end(&mut self, io: &mut Io<'_>, to: ListenerId, ending: Ending) {
        let Some(listener) = self.remove(to) else { return };
        let end = listener.end();
        match listener.end_of_body().filter(|_| ending.is_clean()) {
            Some(out) => self.depart(io, end, out),
            None => self.close(io, end, Closed::Reset),
        }
    }

    /// Removes a listener whose end is gone.
    fn drop_listener(&mut self, io: &mut Io<'_>, id: ListenerId) {
        let Some(listener) = self.remove(id) else { return };
        self.close(io, listener.end(), Closed::Reset);
        if let Some(station) = self.stations.get_mut(listener.station()) {
            station.channel.handle_leave(id);
        }
    }

    fn remove(&mut self, id: ListenerId) -> Option<Listener> {
        let listener = self.listeners.remove(id)?;
        self.roles.remove(&listener.end());
        if let Some(station) = self.stations.get_mut(listener.station()) {
            station.handle_leave();
        }
        Some(listener)
    }

    /// Hands a response that is not shared to the listener for which it was requested.
    fn pass(&mut self, io: &mut Io<'_>, id: StationId, to: ListenerId, connection: Connection) {
        let Some(station) = self.stations.get_mut(id) else { return };
        let origin = station.origin.take_if(|it| it.connection == connection);
        let Some(origin) = origin else { return self.relay_listener(io, to) };
        let version = self.listeners.get(to).map(Listener::version);
        let Some(version) = version.filter(|&version| origin.fits(version)) else {
            self.close(io, origin.end, Closed::Ended);
            return self.relay_listener(io, to);
        };
        let Some(listener) = self.remove(to) else { return };
        self.stats.alone += 1;
        let (upstream, down) = origin.into_parts();
        self.relay(
            io,
            Relay { downstream: listener.end(), upstream, version, up: Vec::new(), down },
        );
    }

    /// Makes a listener's request go to the origin on a connection of its own.
    fn relay_listener(&mut self, io: &mut Io<'_>, to: ListenerId) {
        let Some(listener) = self.remove(to) else { return };
        let end = listener.end();
        match listener.into_waiting() {
            Some(waiting) => self.relay_request(io, end, *waiting),
            None => self.close(io, end, Closed::Reset),
        }
    }
}
