//! All channels of one service, and whose each end is.

use crate::head::Refused;
use crate::limits::{
    CHANNELS_COUNT_MAX, KEY_LENGTH_MAX, LEAVING_MAX, ORIGIN_PORTION, PAYLOAD_MAX, SENDS_MAX,
    WAITING_LENGTH_MAX,
};
use crate::listener::{Listener, StationId, Waiting};
use crate::relay::{After, Relay};
use crate::station::{Name, Named, Station};
use crate::stats::FanoutStats;
use crate::{chunk::Chunk, head};
use http1::{RequestHead, Version};
use reflector::limits::LISTENERS_COUNT_MAX;
use reflector::{Ask, Channel, Config, ListenerId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;
use tcp_intercept::{Closed, End, Io, State, Talk};
use units::{Account, Bytes, Held, Nanos};

/// With whose address an origin is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Source {
    /// The node's: a channel belongs to nobody among its listeners.
    #[default]
    Node,
    /// The address of the client that the connection is opened for. When that one has gone, bytes
    /// for it still come here.
    Client,
}

/// What an operator chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Of each channel: rings, and what `no-store` means.
    pub channel: Config,
    /// With whose address origins are asked.
    pub source: Source,
    /// Channels at once.
    pub channels_max: usize,
    /// Listeners of one channel, no more than `reflector` allows.
    pub listeners_max: usize,
    /// Payload that all channels together may come to keep.
    pub payload_max: Bytes,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            channel: Config::default(),
            source: Source::default(),
            channels_max: CHANNELS_COUNT_MAX,
            listeners_max: LISTENERS_COUNT_MAX,
            payload_max: PAYLOAD_MAX,
        }
    }
}

/// Which requests ask for the same, as a module says it. Those who go to different servers never
/// do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Key(Option<Box<[u8]>>);

/// The module's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a channel's key has {found} bytes, and may have {KEY_LENGTH_MAX}: shorten it, or hash it")]
pub struct KeyTooLong {
    /// How many it has.
    pub found: usize,
}

impl Key {
    /// Reads a module's key. An empty one is what the request says itself: authority, path, and
    /// what answers may depend on (`reflector::Ask`).
    ///
    /// # Errors
    /// When it is too long.
    pub fn new(bytes: &[u8]) -> Result<Self, KeyTooLong> {
        if bytes.len() > KEY_LENGTH_MAX {
            return Err(KeyTooLong { found: bytes.len() });
        }
        Ok(Self((!bytes.is_empty()).then(|| bytes.into())))
    }
}

/// Somebody who asks for a stream.
#[derive(Clone, Debug)]
pub struct Join {
    /// The stream.
    pub key: Key,
    /// Who asks.
    pub client: SocketAddr,
    /// Whom: where the connection was going.
    pub server: SocketAddr,
    /// The request as it is to be sent.
    pub request: RequestHead,
    /// Bytes behind its head that have been read.
    pub received: Vec<u8>,
}

/// Whose an end is.
pub(crate) enum Role {
    Listener(ListenerId),
    Origin(StationId),
    Relay(u64),
    /// Nobody's any more: what is left to send, and whether the end of it was told.
    Leaving {
        out: Vec<u8>,
        is_told: bool,
    },
}

/// All channels of one service.
pub struct Fanout {
    pub(crate) settings: Settings,
    account: Option<Rc<dyn Account>>,
    pub(crate) roles: BTreeMap<End, Role>,
    pub(crate) stations: BTreeMap<StationId, Station>,
    /// Those that somebody may join.
    pub(crate) names: BTreeMap<Name, StationId>,
    pub(crate) listeners: BTreeMap<ListenerId, Listener>,
    pub(crate) relays: BTreeMap<u64, Relay>,
    /// The next number of anything: each is given once.
    pub(crate) number: u64,
    /// Listeners that there is something to send to, each once.
    pub(crate) queue: VecDeque<ListenerId>,
    pub(crate) timers: BTreeSet<(Nanos, StationId)>,
    /// Ends that leave, and until when, the oldest first.
    pub(crate) leaving: VecDeque<(Nanos, End)>,
    pub(crate) buffer: Box<[u8]>,
    pub(crate) body: Vec<u8>,
    /// What all channels may come to keep.
    pub(crate) payload: Bytes,
    /// Memory of requests of those who wait.
    pub(crate) waiting: usize,
    pub(crate) stats: FanoutStats,
}

/// Bytes of one read: as much as a listener is sent at once.
const READ_LENGTH: usize = 64 * 1024;

const _: () = assert!(READ_LENGTH <= ORIGIN_PORTION);

impl Fanout {
    /// Without channels, and without anybody who pays for what they keep.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            account: None,
            roles: BTreeMap::new(),
            stations: BTreeMap::new(),
            names: BTreeMap::new(),
            listeners: BTreeMap::new(),
            relays: BTreeMap::new(),
            number: 0,
            queue: VecDeque::new(),
            timers: BTreeSet::new(),
            leaving: VecDeque::new(),
            buffer: vec![0; READ_LENGTH].into(),
            body: Vec::new(),
            payload: Bytes::ZERO,
            waiting: 0,
            stats: FanoutStats::default(),
        }
    }

    /// One whose channels keep no more than this account has room for: who asks for one more is
    /// refused.
    #[must_use]
    pub fn paid(self, account: Rc<dyn Account>) -> Self {
        Self { account: Some(account), ..self }
    }

    /// Somebody asks for a stream: from now on its end is looked after here. It joins the channel,
    /// opens it as the first, goes to its server alone if what it asks for cannot be shared, or is
    /// refused if there is no room.
    pub fn join(&mut self, io: &mut Io<'_>, end: End, join: Join) {
        if io.state(end) != State::Open {
            return io.close(end, Closed::Reset);
        }
        let Join { key, client, server, request, received } = join;
        let ask = Ask::new(&request);
        let waiting = Box::new(Waiting { client, server, request, received });
        let Ok(ask) = ask else { return self.go_alone(io, end, *waiting) };
        let key = match key {
            Key(Some(bytes)) => Named::Module(bytes),
            Key(None) => Named::Request(Box::new(ask.key().clone())),
        };
        let version = waiting.request.version();
        let name = Name { server, key };
        let memory = waiting.memory();
        let has_room = self.waiting + memory <= WAITING_LENGTH_MAX;
        let station_id = if has_room { self.station(&name, &ask, client) } else { None };
        let Some(station_id) = station_id else {
            return self.refuse(io, end, Refused::Busy, version);
        };
        let id = ListenerId(self.next_number());
        let now = io.now();
        let Some(station) = self.stations.get_mut(&station_id) else { return };
        let is_full = station.listeners >= self.settings.listeners_max.max(1);
        if is_full || station.channel.handle_join(now, id, ask.wants()).is_err() {
            return self.refuse(io, end, Refused::Busy, version);
        }
        station.listeners += 1;
        self.waiting += memory;
        self.stats.joined += 1;
        let said = waiting.received.len();
        let listener = Listener {
            end,
            station: station_id,
            version,
            waiting: Some(waiting),
            out: Vec::new(),
            is_chunked: false,
            chunk: Chunk::default(),
            is_queued: false,
            said,
        };
        self.listeners.insert(id, listener);
        self.roles.insert(end, Role::Listener(id));
        self.settle(io, station_id);
    }

    /// Whether an end is looked after here.
    #[must_use]
    pub fn owns(&self, end: End) -> bool {
        self.roles.contains_key(&end)
    }

    /// Something may be done at an end that is owned here.
    pub fn ready(&mut self, io: &mut Io<'_>, end: End) {
        match self.roles.get(&end) {
            Some(&Role::Listener(id)) => self.listener_ready(io, end, id),
            Some(&Role::Origin(id)) => self.origin_ready(io, end, id),
            Some(&Role::Relay(number)) => self.advance(io, number),
            Some(Role::Leaving { .. }) => self.see_off(io, end),
            None => {}
        }
    }

    /// When it wants to work, at the earliest; the past is at once.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Nanos> {
        if !self.queue.is_empty() {
            return Some(Nanos::ZERO);
        }
        let timer = self.timers.first().map(|(at, _)| *at);
        let leaving = self.leaving.front().map(|(at, _)| *at);
        [timer, leaving].into_iter().flatten().min()
    }

    /// That time has come: does a portion of what is due.
    pub fn work(&mut self, io: &mut Io<'_>) {
        let now = io.now();
        if let Some(&(_, id)) = self.timers.first().filter(|(at, _)| *at <= now) {
            self.time(io, id);
        }
        while let Some((_, end)) = self.leaving.pop_front_if(|(at, _)| *at <= now) {
            if let Some(Role::Leaving { out, .. }) = self.roles.get(&end) {
                let why = if out.is_empty() { Closed::Ended } else { Closed::Reset };
                self.close(io, end, why);
            }
        }
        for _ in 0..SENDS_MAX {
            let Some(id) = self.queue.pop_front() else { break };
            if let Some(listener) = self.listeners.get_mut(&id) {
                listener.is_queued = false;
                self.serve(io, id);
            }
        }
    }

    /// What has happened, and what there is.
    #[must_use]
    pub fn stats(&self) -> FanoutStats {
        let mut stats = self.stats;
        let mut others = self.buffer.len() + self.body.capacity();
        for station in self.stations.values() {
            stats.add(station.channel.counters());
            stats.memory.add(station.channel.memory());
            others += station.memory();
        }
        let each = size_of::<Listener>() + size_of::<ListenerId>();
        let listeners: usize = self.listeners.values().map(|it| each + it.memory()).sum();
        let relays: usize = self.relays.values().map(Relay::memory).sum();
        let roles = self.roles.len() * (size_of::<End>() + size_of::<Role>());
        stats.memory.listeners += Bytes((listeners + relays + roles) as u64);
        stats.memory.others = Bytes(others as u64);
        (stats.payload_max, stats.waiting) = (self.payload, Bytes(self.waiting as u64));
        stats.channels = self.stations.len() as u64;
        stats.listeners = self.listeners.len() as u64;
        stats.left = stats.joined - stats.listeners;
        stats
    }

    pub(crate) const fn next_number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    /// The channel of this name, a new one if there is none that somebody may join; none if there
    /// is no room.
    fn station(&mut self, name: &Name, ask: &Ask, client: SocketAddr) -> Option<StationId> {
        let there = self.names.get(name).copied();
        let open = there.filter(|id| self.stations.get(id).is_some_and(|it| it.channel.is_open()));
        if open.is_some() {
            return open;
        }
        let channel = Channel::new(self.settings.channel, ask);
        let payload_max = channel.payload_max();
        let has_room = self.payload + payload_max <= self.settings.payload_max;
        if !has_room || self.stations.len() >= self.settings.channels_max {
            return None;
        }
        let share = Held::take(self.account.clone(), payload_max)?;
        let id = StationId(self.next_number());
        let name = name.clone();
        self.names.insert(name.clone(), id);
        self.payload += payload_max;
        let station =
            Station { channel, name, client, origin: None, listeners: 0, timer: None, share };
        self.stations.insert(id, station);
        Some(id)
    }

    /// Its time has come for a channel.
    fn time(&mut self, io: &mut Io<'_>, id: StationId) {
        let now = io.now();
        let Some(station) = self.stations.get_mut(&id) else { return };
        if station.channel.poll_timeout().is_some_and(|at| at <= now) {
            station.channel.handle_timeout(now);
        }
        let origin = station.origin.as_ref();
        if origin.is_some_and(|origin| origin.is_due(now)) {
            self.hear(io, id);
        }
        self.settle(io, id);
    }

    /// Somebody asks its server for itself.
    pub(crate) fn go_alone(&mut self, io: &mut Io<'_>, end: End, waiting: Waiting) {
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

    pub(crate) fn relay(&mut self, io: &mut Io<'_>, relay: Relay) {
        let number = self.next_number();
        for end in [relay.downstream, relay.upstream] {
            self.roles.insert(end, Role::Relay(number));
        }
        self.relays.insert(number, relay);
        self.advance(io, number);
    }

    fn advance(&mut self, io: &mut Io<'_>, number: u64) {
        let Some(relay) = self.relays.get_mut(&number) else { return };
        let after = relay.advance(io);
        if after == After::Waits {
            return;
        }
        let Some(relay) = self.relays.remove(&number) else { return };
        self.roles.remove(&relay.upstream);
        self.roles.remove(&relay.downstream);
        if after == After::Unreachable {
            let out = head::refusal(Refused::Unreachable, relay.version);
            self.leave(io, relay.downstream, out);
        }
    }

    fn refuse(&mut self, io: &mut Io<'_>, end: End, why: Refused, version: Version) {
        self.stats.refused += 1;
        self.leave(io, end, head::refusal(why, version));
    }

    /// A response is over, but for these bytes.
    pub(crate) fn leave(&mut self, io: &mut Io<'_>, end: End, out: Vec<u8>) {
        self.roles.insert(end, Role::Leaving { out, is_told: false });
        self.leaving.push_back((io.now() + LEAVING_MAX, end));
        self.see_off(io, end);
    }

    pub(crate) fn close(&mut self, io: &mut Io<'_>, end: End, why: Closed) {
        self.roles.remove(&end);
        io.close(end, why);
        // Nobody is waited for who has gone.
        while self.leaving.pop_front_if(|(_, end)| !self.roles.contains_key(end)).is_some() {}
    }

    /// Whose address an origin sees.
    pub(crate) const fn from(&self, client: SocketAddr) -> Option<SocketAddr> {
        match self.settings.source {
            Source::Client => Some(client),
            Source::Node => None,
        }
    }
}
