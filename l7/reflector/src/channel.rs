//! Channel: one URL's stream, from the first listener to the last.
//!
//! ```text
//!            join            head: live                    end
//!    Idle ─▶ Opening ─┬────▶ Live ⇄ lost, back-off ─┬────▶ Draining ─▶ Over
//!                     │ head: 3xx, 4xx, 5xx         └ given up ─▶ │      ▲
//!                     ├────▶ Answering ───────────────────────────┘      │
//!                     └ no head: 502, 504 ── not live: Pass, Alone ──────┤
//!    the last listener leaves: from any phase ───────────────────────────┘
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
use crate::live::{
    Classified, Live, NotLive, classify, displayed_title, end_to_end, failed, heads,
};
use crate::share::{Ask, Key};
use crate::store::Store;
use http1::{Framing, ResponseHead};
use listeners::Listeners;
use origin::{Deadline, Origin};
use std::collections::VecDeque;
use std::sync::Arc;
use units::{BitsPerSecond, Bytes, Nanos};

/// Largest part in which raw bytes are added, so that one read from the origin does not displace
/// the whole ring.
const RAW_LENGTH_MAX: usize = 4 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Idle: no listener has joined yet.
    Idle,
    /// Waiting for the origin's first head.
    Opening,
    /// Live: all listeners have a head and get the stream.
    Live,
    /// All listeners have the head of a redirect or an error, and get its body.
    Answering,
    /// No more bytes will come; a listener that has taken all of them gets this ending.
    Draining(Ending),
    /// No listener is left.
    Over,
}

/// State of a live stream besides its payload.
#[derive(Debug)]
struct Stream {
    live: Live,
    /// Heads for listeners that want the media alone, and for those that want titles.
    heads: [Arc<ResponseHead>; 2],
    reader: Reader,
    framer: Framer,
}

/// Channel: one URL's stream and its listeners.
#[derive(Debug)]
pub struct Channel {
    config: Config,
    key: Key,
    phase: Phase,
    origin: Origin,
    stream: Option<Stream>,
    store: Store,
    listeners: Listeners,
    /// Listener for which the origin was opened.
    first: Option<ListenerId>,
    effects: VecDeque<Effect>,
    counters: Counters,
}

impl Channel {
    /// Creates a channel for the stream that a request asks for, without listeners.
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

    /// Adds a listener. The first opens the origin; later ones begin a burst before the live edge.
    ///
    /// # Errors
    /// The channel accepts no listener: it is ending (the caller creates a new one), or full.
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
                self.start_listener(id);
                self.listeners.wake(now, id, &self.store, &mut self.effects);
            }
            _ => {}
        }
        Ok(())
    }

    /// Removes a listener. The origin is closed with the last.
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

    /// Handles the head of the origin's response; the caller keeps interim heads to itself.
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
        let classified = classify(head, framing, self.config.no_store);
        if self.phase == Phase::Live {
            return self.on_reconnected(now, classified);
        }
        match classified {
            Ok(Classified::Live(live)) => self.start_live(now, head, live),
            Ok(Classified::Response) => self.answer(now, head, framing),
            Err(why) => self.decline_sharing(head, why),
        }
    }

    /// Handles bytes of the origin's body.
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

    /// Handles the regular end of the origin's body, or the end of its connection before a head.
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

    /// Handles the loss of the origin. Reconnects while listeners play what they have.
    pub fn handle_upstream_failed(&mut self, now: Nanos, connection: Connection, _: Failure) {
        if self.origin.is_waiting_for(connection) || self.origin.is_flowing_by(connection) {
            self.lose(now, (502, b"Bad Gateway"));
        }
    }

    /// Handles that a listener has taken `length` bytes of its [`pieces`](Self::pieces). Must be
    /// called before any other event, as other events may insert pieces.
    pub fn handle_taken(&mut self, now: Nanos, id: ListenerId, length: usize) {
        let taken = self.listeners.handle_taken(now, id, length, &self.store);
        let Some((taken, has_all)) = taken else { return };
        self.counters.bytes_out += Bytes(taken as u64);
        if has_all && let Phase::Draining(ending) = self.phase {
            self.end(id, ending);
        }
    }

    /// Returns the bytes available for a listener, at most `limit` of them.
    #[must_use]
    pub fn pieces(&self, id: ListenerId, limit: usize) -> Pieces<'_> {
        Pieces::new(self.listeners.cursor_of(id), &self.store, limit)
    }

    /// Returns the next effect. The caller polls until there is none.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Returns the time at which [`handle_timeout`](Self::handle_timeout) has to be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Nanos> {
        [self.origin.poll_timeout(), self.listeners.poll_timeout()].into_iter().flatten().min()
    }

    /// Handles the deadlines that have passed.
    pub fn handle_timeout(&mut self, now: Nanos) {
        self.origin_timeout(now);
        if self.listeners.poll_timeout().is_some_and(|at| at <= now) {
            self.drop_stalled(now);
        }
    }

    /// Returns true if no listener is left: the channel can be dropped.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// Returns true if a listener may join.
    #[must_use]
    pub fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Idle | Phase::Opening | Phase::Live)
    }

    /// Returns the channel's key.
    #[must_use]
    pub const fn key(&self) -> &Key {
        &self.key
    }

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let listeners_now = self.listeners.len() as u64;
        let left_out = self.stream.as_ref().map_or(0, |stream| stream.framer.left_out());
        Counters { listeners_now, bytes_left_out: Bytes(left_out), ..self.counters }
    }

    /// Returns the current title, without control characters.
    #[must_use]
    pub fn title(&self) -> Option<String> {
        self.store.title_now().and_then(displayed_title)
    }

    /// Returns the playing time and the bytes of the media in the ring. The time is `None` for
    /// media whose headers do not give it.
    #[must_use]
    pub fn kept(&self) -> (Option<Nanos>, Bytes) {
        let (time, bytes) = self.store.kept();
        ((time > 0).then_some(Nanos(time)), Bytes(bytes))
    }

    /// Returns the bitrate of the media in the ring, rounded down.
    #[must_use]
    pub fn bitrate(&self) -> Option<BitsPerSecond> {
        let (time, bytes) = self.store.kept();
        let bits = u128::from(bytes) * 8_000_000_000;
        let rate = bits.checked_div(u128::from(time))?;
        Some(BitsPerSecond(u64::try_from(rate).unwrap_or(u64::MAX)))
    }

    /// Returns true if a listener can use more bytes of the origin. False while all listeners are
    /// behind by more than half of the ring: an origin that sends faster than all of them take, for
    /// example a file that is not recognised as one, would make them skip. The caller may then
    /// pause reading, for less than [`SILENCE_MAX`](crate::limits::SILENCE_MAX).
    #[must_use]
    pub fn wants_more(&self) -> bool {
        let (edge, half) = (self.store.edge(), (self.store.limit() / 2) as u64);
        let lags = |cursor: &Cursor| edge.saturating_sub(cursor.position()) > half;
        let mut cursors = self.listeners.cursors();
        self.phase != Phase::Live || !cursors.all(|cursor| cursor.is_some_and(lags))
    }

    /// Returns the upper limit of the payload kept. Known from the origin's head on.
    #[must_use]
    pub fn payload_max(&self) -> Bytes {
        let length = match self.phase {
            Phase::Idle | Phase::Opening => self.config.ring_audio().max(self.config.ring_video()),
            Phase::Over => 0,
            Phase::Live | Phase::Answering | Phase::Draining(_) => self.store.limit(),
        };
        Bytes(length as u64)
    }

    /// Returns the memory that the channel holds.
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
            Some(Deadline::Expired) => {
                self.close();
                self.drain(now, Ending::OriginLost);
            }
            Some(Deadline::Silent) => {
                self.close();
                self.lose(now, (504, b"Gateway Timeout"));
            }
            Some(Deadline::Retry) => self.open(now),
            None => {}
        }
    }

    fn start_live(&mut self, now: Nanos, head: &ResponseHead, live: Live) {
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
            self.start_listener(id);
        }
    }

    /// Sends a redirect or an error to all waiting listeners.
    fn answer(&mut self, now: Nanos, head: &ResponseHead, framing: Framing) {
        self.store = Store::new(ANSWER_LENGTH_MAX);
        self.phase = Phase::Answering;
        self.origin.begin_body(now);
        let head = Arc::new(end_to_end(head.clone()));
        for id in self.listeners.ids() {
            self.listeners.set_cursor(id, Cursor::new(0, None, Wants::Media));
            let head = Arc::clone(&head);
            self.effects.push_back(Effect::Head { to: id, head, body: framing });
        }
    }

    /// Makes each listener ask the origin on its own; the first one inherits the open connection.
    fn decline_sharing(&mut self, head: &ResponseHead, why: NotLive) {
        // The request asked for titles: a listener that did not want them cannot use this response.
        let has_titles = head.headers.contains(b"icy-metaint");
        let fits = |wants: Wants| !has_titles || wants == Wants::Titles;
        let first = self.first.filter(|id| self.listeners.wants_of(*id).is_some_and(fits));
        let other = || self.listeners.wants().find(|(_, wants)| fits(*wants));
        let first = first.or_else(|| other().map(|(id, _)| id));
        match first {
            Some(to) => {
                let connection = self.origin.connection();
                self.effects.push_back(Effect::Pass { to, connection, why });
                self.origin.release();
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

    /// Handles a new head of the origin while listeners are in the middle of its stream.
    fn on_reconnected(&mut self, now: Nanos, classified: Result<Classified, NotLive>) {
        match (classified, &mut self.stream) {
            (Ok(Classified::Live(live)), Some(stream))
                if live.content_type == stream.live.content_type =>
            {
                stream.reader = Reader::new(live.interval);
                self.origin.begin_body(now);
                self.counters.reconnects += 1;
            }
            // A server whose source is not connected yet responds with 404 or 503.
            (Ok(Classified::Response), _) => {
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

    /// Sends an error to all listeners: none has a head yet, and the origin sends none.
    fn fail(&mut self, (status, reason): (u16, &[u8])) {
        self.origin.release();
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

    /// Emits the frames that are complete though no header follows them.
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

    /// Sends a listener its head, and sets its position in the stream.
    fn start_listener(&mut self, id: ListenerId) {
        let (Some(stream), Some(wants)) = (&self.stream, self.listeners.wants_of(id)) else {
            return;
        };
        let has_titles = wants == Wants::Titles && stream.live.interval.is_some();
        let wants = if has_titles { Wants::Titles } else { Wants::Media };
        let head = Arc::clone(&stream.heads[usize::from(has_titles)]);
        let position = self.store.entry(0);
        // A listener that begins with the stream gets its tables from the stream itself.
        let lead = stream.framer.preface().filter(|_| position > 0);
        self.listeners.set_cursor(id, Cursor::new(position, lead, wants));
        self.effects.push_back(Effect::Head { to: id, head, body: Framing::UntilClose });
    }

    /// Begins to drain: no more bytes will come, and listeners that have taken all are ended.
    fn drain(&mut self, now: Nanos, ending: Ending) {
        self.phase = Phase::Draining(ending);
        self.origin.release();
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

    /// Removes a listener, and closes the channel with the last.
    fn remove(&mut self, id: ListenerId) {
        self.listeners.remove(id);
        if self.listeners.is_empty() {
            self.close();
            self.over();
        }
    }

    /// Ends the channel: drops deadlines and payload.
    fn over(&mut self) {
        self.phase = Phase::Over;
        self.origin.release();
        self.origin.forget_loss();
        self.listeners.forget_stalls();
        if let Some(stream) = &mut self.stream {
            // The count of skipped bytes is kept.
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

/// Adds a unit, raw bytes in parts; returns the number of listeners that skipped ahead.
fn add(store: &mut Store, listeners: &mut Listeners, unit: Unit<'_>) -> u64 {
    match unit {
        Unit::Frame { .. } => listeners.publish(store, unit),
        Unit::Raw(bytes) => {
            let parts = bytes.chunks(RAW_LENGTH_MAX);
            parts.map(|part| listeners.publish(store, Unit::Raw(part))).sum()
        }
    }
}
