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
mod origin;
mod terms;

pub use terms::{
    Config, Connection, Counters, Effect, Ending, Failure, JoinError, ListenerId, Memory,
};

use crate::cursor::{Cursor, Pieces, Wants};
use crate::framing::{Framer, Unit};
use crate::icy::{Event, Reader};
use crate::limits::{ANSWER_LENGTH_MAX, LISTENERS_COUNT_MAX};
use crate::live::{Judged, Live, NotLive, end_to_end, failed, heads, judge, shown};
use crate::share::{Ask, Key};
use crate::store::Store;
use http1::{Framing, ResponseHead};
use listeners::Listeners;
use origin::{Due, Origin};
use std::collections::VecDeque;
use std::sync::Arc;
use units::{BitsPerSecond, Bytes, Nanos};

/// Raw bytes are added in parts of this, so that one read of the origin does not take the place
/// of everything that is kept.
const RAW_LENGTH_MAX: usize = 4 * 1024;

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

/// What a live stream has beside its payload.
#[derive(Debug)]
struct Stream {
    live: Live,
    /// For those who want the media, and for those who want titles.
    heads: [Arc<ResponseHead>; 2],
    reader: Reader,
    framer: Framer,
}

/// One URL's stream and its listeners.
#[derive(Debug)]
pub struct Channel {
    config: Config,
    key: Key,
    phase: Phase,
    origin: Origin,
    stream: Option<Stream>,
    store: Store,
    listeners: Listeners,
    /// For whom the origin was opened.
    first: Option<ListenerId>,
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
            phase: Phase::Idle,
            origin: Origin::new(Arc::new(ask.request().clone())),
            stream: None,
            store: Store::new(config.ring_audio()),
            listeners: Listeners::default(),
            first: None,
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
        if self.listeners.contains(id) {
            return Err(JoinError::Known);
        }
        if self.listeners.len() >= LISTENERS_COUNT_MAX {
            return Err(JoinError::Full);
        }
        match self.phase {
            Phase::Idle | Phase::Opening | Phase::Live => {}
            Phase::Answering | Phase::Draining(_) | Phase::Over => return Err(JoinError::Ending),
        }
        self.listeners.insert(now, id, wants);
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
                self.listeners.wake(now, id, &self.store, &mut self.effects);
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
        if self.listeners.contains(id) {
            self.remove(id);
        }
    }

    /// The origin has answered; interim heads are not for here.
    pub fn handle_upstream_head(
        &mut self,
        now: Nanos,
        connection: Connection,
        head: &ResponseHead,
        framing: Framing,
    ) {
        if !self.origin.is_waiting_for(connection) {
            return;
        }
        let judged = judge(head, framing, self.config.no_store);
        if self.phase == Phase::Live {
            return self.back_again(now, judged);
        }
        match judged {
            Ok(Judged::Live(live)) => self.go_live(now, head, live),
            Ok(Judged::Answer) => self.answer(now, head, framing),
            Err(why) => self.not_live(head, why),
        }
    }

    /// Bytes of the origin's body.
    pub fn handle_upstream_bytes(&mut self, now: Nanos, connection: Connection, bytes: &[u8]) {
        if bytes.is_empty() || !self.origin.note_bytes(now, connection) {
            return;
        }
        self.counters.bytes_in += Bytes(bytes.len() as u64);
        let before = self.store.edge();
        match self.phase {
            Phase::Live => self.take_media(bytes),
            Phase::Answering => {
                let length = self.store.edge().saturating_add(bytes.len() as u64);
                if length > ANSWER_LENGTH_MAX as u64 {
                    self.close();
                    return self.drain(now, Ending::OriginLost);
                }
                self.store.push(Unit::Raw(bytes));
            }
            Phase::Idle | Phase::Opening | Phase::Draining(_) | Phase::Over => {}
        }
        if self.store.edge() > before {
            self.wake_all(now);
        }
    }

    /// The origin's body has ended as its head says, or its connection before a head.
    pub fn handle_upstream_end(&mut self, now: Nanos, connection: Connection) {
        match (self.phase, self.origin.is_flowing_by(connection)) {
            _ if connection != self.origin.connection() => {}
            (Phase::Live, true) => {
                self.finish(false);
                self.drain(now, Ending::Complete);
            }
            (Phase::Answering, true) => self.drain(now, Ending::Complete),
            _ => self.handle_upstream_failed(now, connection, Failure::Reset),
        }
    }

    /// The origin was lost. While listeners play what they have it is tried again.
    pub fn handle_upstream_failed(&mut self, now: Nanos, connection: Connection, _: Failure) {
        if self.origin.is_waiting_for(connection) || self.origin.is_flowing_by(connection) {
            self.lose(now, (502, b"Bad Gateway"));
        }
    }

    /// A listener has taken so many bytes of its [`pieces`](Self::pieces). To be called before
    /// any other event, as those may add pieces between.
    pub fn handle_taken(&mut self, now: Nanos, id: ListenerId, length: usize) {
        let taken = self.listeners.handle_taken(now, id, length, &self.store);
        let Some((taken, has_all)) = taken else { return };
        self.counters.bytes_out += Bytes(taken as u64);
        if has_all && let Phase::Draining(ending) = self.phase {
            self.end(id, ending);
        }
    }

    /// The bytes for a listener, as far as they are here, at most `limit` of them.
    #[must_use]
    pub fn pieces(&self, id: ListenerId, limit: usize) -> Pieces<'_> {
        Pieces::new(self.listeners.cursor_of(id), &self.store, limit)
    }

    /// What is to be done next. To be asked until there is nothing.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// When [`handle_timeout`](Self::handle_timeout) has to be called, if nothing else happens.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Nanos> {
        [self.origin.poll_timeout(), self.listeners.poll_timeout()].into_iter().flatten().min()
    }

    /// Does what time brings.
    pub fn handle_timeout(&mut self, now: Nanos) {
        self.origin_timeout(now);
        if self.listeners.poll_timeout().is_some_and(|at| at <= now) {
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
        let mut cursors = self.listeners.cursors();
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
        let listeners = self.listeners.memory();
        let bytes = |count: usize| Bytes(count as u64);
        Memory { payload: bytes(ring + pending), index: bytes(index), listeners: bytes(listeners) }
    }

    fn origin_timeout(&mut self, now: Nanos) {
        match self.origin.due(now) {
            Some(Due::GivenUp) => {
                self.close();
                self.drain(now, Ending::OriginLost);
            }
            Some(Due::Silent) => {
                self.close();
                self.lose(now, (504, b"Gateway Timeout"));
            }
            Some(Due::Again) => self.open(now),
            None => {}
        }
    }

    fn go_live(&mut self, now: Nanos, head: &ResponseHead, live: Live) {
        let Some(heads) = heads(head, live.interval.is_some()) else {
            self.close();
            return self.fail((502, b"Bad Gateway"));
        };
        let ring = if live.is_video { self.config.ring_video() } else { self.config.ring_audio() };
        self.store = Store::new(ring);
        let (reader, framer) = (Reader::new(live.interval), Framer::new(live.format));
        self.stream = Some(Stream { live, heads, reader, framer });
        self.phase = Phase::Live;
        self.origin.begin_body(now);
        for id in self.listeners.ids() {
            self.begin(id);
        }
    }

    /// A redirect or an error goes to everybody who waits.
    fn answer(&mut self, now: Nanos, head: &ResponseHead, framing: Framing) {
        self.store = Store::new(ANSWER_LENGTH_MAX);
        self.phase = Phase::Answering;
        self.origin.begin_body(now);
        let head = Arc::new(end_to_end(head.clone()));
        for id in self.listeners.ids() {
            self.listeners.place(id, Cursor::new(0, None, Wants::Media));
            let head = Arc::clone(&head);
            self.effects.push_back(Effect::Head { to: id, head, body: framing });
        }
    }

    /// Has every listener ask the origin alone; the first has done so already.
    fn not_live(&mut self, head: &ResponseHead, why: NotLive) {
        // The origin was asked for titles: who did not ask for them cannot have this answer.
        let has_titles = head.headers.contains(b"icy-metaint");
        let fits = |wants: Wants| !has_titles || wants == Wants::Titles;
        let first = self.first.filter(|id| self.listeners.wants_of(*id).is_some_and(fits));
        let other = || self.listeners.wants().find(|(_, wants)| fits(*wants));
        let first = first.or_else(|| other().map(|(id, _)| id));
        match first {
            Some(to) => {
                let connection = self.origin.connection();
                self.effects.push_back(Effect::Pass { to, connection, why });
                self.origin.let_go();
            }
            None => self.close(),
        }
        for id in self.listeners.ids() {
            if Some(id) != first {
                self.effects.push_back(Effect::Alone { to: id, why });
            }
        }
        self.listeners.clear();
        self.over();
    }

    /// The origin answers again while listeners are in the middle of its stream.
    fn back_again(&mut self, now: Nanos, judged: Result<Judged, NotLive>) {
        match (judged, &mut self.stream) {
            (Ok(Judged::Live(live)), Some(stream))
                if live.content_type == stream.live.content_type =>
            {
                stream.reader = Reader::new(live.interval);
                self.origin.begin_body(now);
                self.counters.reconnects += 1;
            }
            // A server whose source is not back yet says 404 or 503.
            (Ok(Judged::Answer), _) => {
                self.close();
                self.origin.back_off(now);
            }
            _ => {
                self.close();
                self.drain(now, Ending::OriginChanged);
            }
        }
    }

    fn lose(&mut self, now: Nanos, (status, reason): (u16, &[u8])) {
        match self.phase {
            Phase::Opening => self.fail((status, reason)),
            Phase::Answering => self.drain(now, Ending::OriginLost),
            Phase::Live => {
                self.finish(true);
                self.origin.note_loss(now);
                self.origin.back_off(now);
                self.wake_all(now);
            }
            Phase::Idle | Phase::Draining(_) | Phase::Over => {}
        }
    }

    /// Answers all listeners with an error: none has a head yet, and the origin gives none.
    fn fail(&mut self, (status, reason): (u16, &[u8])) {
        self.origin.let_go();
        let head = failed(status, reason);
        for id in self.listeners.ids() {
            if let Some(head) = &head {
                let head = Arc::clone(head);
                self.effects.push_back(Effect::Head { to: id, head, body: Framing::Length(0) });
            }
            self.end(id, Ending::Complete);
        }
    }

    fn take_media(&mut self, mut bytes: &[u8]) {
        let Self { stream: Some(stream), store, listeners, counters, .. } = self else {
            return;
        };
        let Stream { reader, framer, .. } = stream;
        loop {
            let (taken, event) = reader.read(bytes);
            bytes = bytes.get(taken..).unwrap_or_default();
            match event {
                None => break,
                Some(Event::Title(block)) => {
                    counters.titles += u64::from(store.set_title(block));
                }
                Some(Event::Payload(payload)) => {
                    let mut add = |unit: Unit<'_>| counters.skips += add(store, listeners, unit);
                    framer.push(payload, &mut add);
                }
            }
        }
    }

    /// Gives on what is whole though nothing follows it.
    fn finish(&mut self, is_cut: bool) {
        let Self { stream: Some(stream), store, listeners, counters, .. } = self else {
            return;
        };
        let mut add = |unit: Unit<'_>| counters.skips += add(store, listeners, unit);
        if is_cut {
            stream.framer.restart(&mut add);
        } else {
            stream.framer.finish(&mut add);
        }
    }

    /// Gives a listener its head, and its place in the stream.
    fn begin(&mut self, id: ListenerId) {
        let (Some(stream), Some(wants)) = (&self.stream, self.listeners.wants_of(id)) else {
            return;
        };
        let has_titles = wants == Wants::Titles && stream.live.interval.is_some();
        let wants = if has_titles { Wants::Titles } else { Wants::Media };
        let head = Arc::clone(&stream.heads[usize::from(has_titles)]);
        let position = self.store.entry(0);
        // Who begins with the stream gets its tables as they come.
        let lead = stream.framer.preface().filter(|_| position > 0);
        self.listeners.place(id, Cursor::new(position, lead, wants));
        self.effects.push_back(Effect::Head { to: id, head, body: Framing::UntilClose });
    }

    /// Begins to drain: listeners that have taken everything are told that nothing more comes.
    fn drain(&mut self, now: Nanos, ending: Ending) {
        self.phase = Phase::Draining(ending);
        self.origin.let_go();
        self.origin.forget_loss();
        self.wake_all(now);
        for id in self.listeners.idle() {
            self.end(id, ending);
        }
    }

    fn drop_stalled(&mut self, now: Nanos) {
        for id in self.listeners.stalled(now) {
            self.counters.dropped += 1;
            self.end(id, Ending::Stalled);
        }
        self.listeners.set_next_stall();
    }

    fn end(&mut self, id: ListenerId, ending: Ending) {
        self.effects.push_back(Effect::End { to: id, ending });
        self.remove(id);
    }

    /// Forgets a listener, and closes with the last.
    fn remove(&mut self, id: ListenerId) {
        self.listeners.remove(id);
        if self.listeners.is_empty() {
            self.close();
            self.over();
        }
    }

    /// Ends the stream: nothing is waited for any more, and no payload kept.
    fn over(&mut self) {
        self.phase = Phase::Over;
        self.origin.let_go();
        self.origin.forget_loss();
        self.listeners.forget_stalls();
        if let Some(stream) = &mut self.stream {
            // What was left out stays counted.
            stream.framer.restart(&mut |_| {});
            stream.reader = Reader::new(None);
        }
        self.store = Store::new(self.store.limit());
    }

    /// Opens the next connection to the origin.
    fn open(&mut self, now: Nanos) {
        let opened = self.origin.open(now);
        self.effects.push_back(opened);
    }

    /// Closes the connection to the origin, if there is one.
    fn close(&mut self) {
        self.effects.extend(self.origin.close());
    }

    fn wake_all(&mut self, now: Nanos) {
        self.listeners.wake_all(now, &self.store, &mut self.effects);
    }
}

/// Adds a unit, raw bytes in parts; how many listeners went on near the edge.
fn add(store: &mut Store, listeners: &mut Listeners, unit: Unit<'_>) -> u64 {
    match unit {
        Unit::Frame { .. } => listeners.publish(store, unit),
        Unit::Raw(bytes) => {
            let parts = bytes.chunks(RAW_LENGTH_MAX);
            parts.map(|part| listeners.publish(store, Unit::Raw(part))).sum()
        }
    }
}
