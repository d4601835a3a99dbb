//! One stream: from the first listener to the last.
//!
//! ```text
//!           join            head: live                    end
//!   Idle ─▶ Opening ─┬────▶ Live ⇄ lost, back-off ─┬────▶ Draining ─▶ Over
//!                    │ head: 3xx, 4xx, 5xx         └ given up ─▶ │      ▲
//!                    ├────▶ Answering ───────────────────────────┘      │
//!                    └ no head: 502, 504 ── not live: Pass, Alone ──────┤
//!   the last listener leaves: from anywhere ────────────────────────────┘
//! ```

mod listeners;
mod terms;
mod upstream;

pub use terms::{
    Config, Connection, Counters, Effect, Ending, Failure, JoinError, ListenerId, Memory,
};

use crate::cursor::{Cursor, Pieces, Wants};
use crate::framing::Framer;
use crate::icy::Reader;
use crate::limits::LISTENERS_COUNT_MAX;
use crate::live::{Live, shown};
use crate::share::{Ask, Key};
use crate::store::Store;
use http1::{RequestHead, ResponseHead};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use units::{BitsPerSecond, Bytes, Nanos};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Nobody has come yet.
    Idle,
    /// The first head is waited for.
    Opening,
    /// Everybody has a head and gets the stream.
    Live,
    /// Everybody has the head of a redirect or an error, and gets its body.
    Answering,
    /// Nothing more comes; who has taken everything gets this ending.
    Draining(Ending),
    /// There is nobody any more.
    Over,
}

/// The connection to the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    Closed,
    /// The head is waited for.
    Waiting {
        until: Nanos,
    },
    /// Bytes come.
    Flowing {
        since: Nanos,
        silent_at: Nanos,
    },
    /// It is tried again later.
    BackOff {
        until: Nanos,
    },
}

/// What a live stream has beside its payload.
#[derive(Debug)]
struct Stream {
    live: Live,
    /// For those who want the media, and for those who want titles.
    heads: [Arc<ResponseHead>; 2],
    reader: Reader,
    framer: Framer,
}

#[derive(Debug)]
struct Listener {
    wants: Wants,
    /// None until the origin's head is here.
    cursor: Option<Cursor>,
    /// It was told that there are bytes, and has not taken all of them since.
    is_told: bool,
    /// When it last took something, while there is more.
    waits_since: Nanos,
}

/// One URL's stream and its listeners.
#[derive(Debug)]
pub struct Channel {
    config: Config,
    key: Key,
    request: Arc<RequestHead>,
    phase: Phase,
    link: Link,
    connection: Connection,
    /// Pauses that were made without a stable connection between them.
    attempts: u32,
    /// When the origin was lost, if nothing has come since.
    lost: Option<Nanos>,
    stream: Option<Stream>,
    store: Store,
    listeners: BTreeMap<ListenerId, Listener>,
    /// For whom the origin was opened.
    first: Option<ListenerId>,
    /// No listener's position is in front of this.
    slowest: u64,
    /// No listener has to be dropped before this.
    stall_next: Option<Nanos>,
    effects: VecDeque<Effect>,
    counters: Counters,
}

impl Channel {
    /// For what this request asks; nobody listens yet.
    #[must_use]
    pub fn new(config: Config, ask: &Ask) -> Self {
        Self {
            config,
            key: ask.key().clone(),
            request: Arc::new(ask.request().clone()),
            phase: Phase::Idle,
            link: Link::Closed,
            connection: Connection(0),
            attempts: 0,
            lost: None,
            stream: None,
            store: Store::new(config.ring_audio()),
            listeners: BTreeMap::new(),
            first: None,
            slowest: u64::MAX,
            stall_next: None,
            effects: VecDeque::new(),
            counters: Counters::default(),
        }
    }

    /// Somebody asks for this stream. The first opens the origin; who comes later begins a burst
    /// before the live edge.
    ///
    /// # Errors
    /// When the channel takes nobody: it is ending (a new one has to be made), or full.
    pub fn handle_join(
        &mut self,
        now: Nanos,
        id: ListenerId,
        wants: Wants,
    ) -> Result<(), JoinError> {
        if self.listeners.contains_key(&id) {
            return Err(JoinError::Known);
        }
        if self.listeners.len() >= LISTENERS_COUNT_MAX {
            return Err(JoinError::Full);
        }
        match self.phase {
            Phase::Idle | Phase::Opening | Phase::Live => {}
            Phase::Answering | Phase::Draining(_) | Phase::Over => return Err(JoinError::Ending),
        }
        let listener = Listener { wants, cursor: None, is_told: false, waits_since: now };
        self.listeners.insert(id, listener);
        self.counters.joined(self.listeners.len());
        match self.phase {
            Phase::Idle => {
                self.phase = Phase::Opening;
                self.first = Some(id);
                self.open(now);
            }
            Phase::Live => {
                if self.store.edge() > 0 {
                    self.counters.joins_from_ring += 1;
                }
                self.begin(id);
                self.wake(now, id);
            }
            _ => {}
        }
        Ok(())
    }

    /// Somebody has gone. The origin is closed with the last.
    pub fn handle_leave(&mut self, id: ListenerId) {
        let mut closed = None;
        self.effects.retain(|effect| {
            if let Effect::Pass { to, connection, .. } = effect
                && *to == id
            {
                closed = Some(*connection);
            }
            effect.to() != Some(id)
        });
        self.effects.extend(closed.map(|connection| Effect::Close { connection }));
        if self.listeners.contains_key(&id) {
            self.remove(id);
        }
    }

    /// A listener has taken so many bytes of its [`pieces`](Self::pieces). To be called before
    /// any other event, as those may add pieces between.
    pub fn handle_taken(&mut self, now: Nanos, id: ListenerId, length: usize) {
        let Some(listener) = self.listeners.get_mut(&id) else { return };
        let Some(cursor) = &mut listener.cursor else { return };
        let mut left = length;
        let mut next = cursor.piece(&self.store).map(|piece| piece.len());
        while let Some(available) = next.filter(|_| left > 0) {
            let taken = available.min(left);
            left -= taken;
            cursor.advance(taken, &self.store);
            next = cursor.piece(&self.store).map(|piece| piece.len());
        }
        self.counters.bytes_out += Bytes((length - left) as u64);
        if left < length {
            listener.waits_since = now;
        }
        if next.is_none() {
            listener.is_told = false;
            if let Phase::Draining(ending) = self.phase {
                self.end(id, ending);
            }
        }
    }

    /// The bytes for a listener, as far as they are here, at most `limit` of them.
    #[must_use]
    pub fn pieces(&self, id: ListenerId, limit: usize) -> Pieces<'_> {
        let cursor = self.listeners.get(&id).and_then(|listener| listener.cursor.clone());
        Pieces::new(cursor, &self.store, limit)
    }

    /// What is to be done next. To be asked until there is nothing.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// When [`handle_timeout`](Self::handle_timeout) has to be called, if nothing else happens.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Nanos> {
        let link = match self.link {
            Link::Closed => None,
            Link::Waiting { until } | Link::BackOff { until } => Some(until),
            Link::Flowing { silent_at, .. } => Some(silent_at),
        };
        [link, self.gives_up(), self.stall_next].into_iter().flatten().min()
    }

    /// Does what time brings.
    pub fn handle_timeout(&mut self, now: Nanos) {
        self.upstream_timeout(now);
        if self.stall_next.is_some_and(|at| at <= now) {
            self.drop_stalled(now);
        }
    }

    /// Whether nobody is left: the channel can be forgotten.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// Whether somebody may join.
    #[must_use]
    pub fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Idle | Phase::Opening | Phase::Live)
    }

    /// What names it.
    #[must_use]
    pub const fn key(&self) -> &Key {
        &self.key
    }

    /// What has happened so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let listeners_now = self.listeners.len() as u64;
        let left_out = self.stream.as_ref().map_or(0, |stream| stream.framer.left_out());
        Counters { listeners_now, bytes_left_out: Bytes(left_out), ..self.counters }
    }

    /// What is playing, without control characters.
    #[must_use]
    pub fn title(&self) -> Option<String> {
        self.store.title_now().and_then(shown)
    }

    /// How much media is kept: how long it plays, and bytes. No time where no header tells it.
    #[must_use]
    pub fn kept(&self) -> (Option<Nanos>, Bytes) {
        let (time, bytes) = self.store.kept();
        ((time > 0).then_some(Nanos(time)), Bytes(bytes))
    }

    /// The bitrate of what is kept, rounded down.
    #[must_use]
    pub fn bitrate(&self) -> Option<BitsPerSecond> {
        let (time, bytes) = self.store.kept();
        let bits = u128::from(bytes) * 8_000_000_000;
        let rate = bits.checked_div(u128::from(time))?;
        Some(BitsPerSecond(u64::try_from(rate).unwrap_or(u64::MAX)))
    }

    /// Whether the origin's bytes are of use to anybody. They are not while everybody is behind by
    /// more than half of the ring: an origin that sends faster than all take, a file that does not
    /// say so, would have them skip. Whoever reads it may wait then, for less than
    /// [`SILENCE_MAX`](crate::limits::SILENCE_MAX).
    #[must_use]
    pub fn wants_more(&self) -> bool {
        let (edge, half) = (self.store.edge(), (self.store.limit() / 2) as u64);
        let is_behind = |cursor: &Cursor| edge.saturating_sub(cursor.position()) > half;
        let mut cursors = self.listeners.values().map(|listener| listener.cursor.as_ref());
        self.phase != Phase::Live || !cursors.all(|cursor| cursor.is_some_and(is_behind))
    }

    /// The most payload that it may come to keep. It is known with the origin's head.
    #[must_use]
    pub fn payload_max(&self) -> Bytes {
        let length = match self.phase {
            Phase::Idle | Phase::Opening => self.config.ring_audio().max(self.config.ring_video()),
            Phase::Over => 0,
            Phase::Live | Phase::Answering | Phase::Draining(_) => self.store.limit(),
        };
        Bytes(length as u64)
    }

    /// Memory that it holds.
    #[must_use]
    pub fn memory(&self) -> Memory {
        let (ring, index) = self.store.memory();
        let stream = self.stream.as_ref();
        let pending = stream.map_or(0, |stream| stream.framer.memory() + stream.reader.memory());
        let rests = self.listeners.values().filter_map(|listener| listener.cursor.as_ref());
        let rests: usize = rests.map(Cursor::memory).sum();
        let each = size_of::<Listener>() + size_of::<ListenerId>();
        let listeners = self.listeners.len() * each + rests;
        let bytes = |count: usize| Bytes(count as u64);
        Memory { payload: bytes(ring + pending), index: bytes(index), listeners: bytes(listeners) }
    }
}
