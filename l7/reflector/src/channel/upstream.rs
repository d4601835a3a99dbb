//! What the origin does, and what that means for everybody.

use super::{Channel, Connection, Counters, Effect, Ending, Failure, Link, ListenerId, Phase};
use super::{Listener, Stream};
use crate::cursor::{Cursor, Wants};
use crate::framing::{Framer, Unit};
use crate::icy::{Event, Reader};
use crate::limits::{
    ANSWER_LENGTH_MAX, BACK_OFF_MAX, BACK_OFF_MIN, HEAD_WAIT_MAX, RECONNECT_MAX, SILENCE_MAX,
    STABLE,
};
use crate::live::{Judged, Live, NotLive, end_to_end, failed, heads, judge};
use crate::store::Store;
use http1::{Framing, ResponseHead};
use std::collections::BTreeMap;
use std::sync::Arc;
use units::{Bytes, Nanos};

/// Raw bytes are added in parts of this, so that one read of the origin does not take the place
/// of everything that is kept.
const RAW_LENGTH_MAX: usize = 4 * 1024;

impl Channel {
    /// The origin has answered; interim heads are not for here.
    pub fn handle_upstream_head(
        &mut self,
        now: Nanos,
        connection: Connection,
        head: &ResponseHead,
        framing: Framing,
    ) {
        if !self.is_waiting_for(connection) {
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
        let Link::Flowing { since, .. } = self.link else { return };
        if connection != self.connection || bytes.is_empty() {
            return;
        }
        self.counters.bytes_in += Bytes(bytes.len() as u64);
        self.link = Link::Flowing { since, silent_at: now + SILENCE_MAX };
        self.lost = None;
        if now.saturating_sub(since) >= STABLE {
            self.attempts = 0;
        }
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
        match (self.phase, self.link) {
            _ if connection != self.connection => {}
            (Phase::Live, Link::Flowing { .. }) => {
                self.finish(false);
                self.drain(now, Ending::Complete);
            }
            (Phase::Answering, Link::Flowing { .. }) => self.drain(now, Ending::Complete),
            _ => self.handle_upstream_failed(now, connection, Failure::Reset),
        }
    }

    /// The origin was lost. While listeners play what they have it is tried again.
    pub fn handle_upstream_failed(&mut self, now: Nanos, connection: Connection, _: Failure) {
        if connection == self.connection
            && matches!(self.link, Link::Waiting { .. } | Link::Flowing { .. })
        {
            self.lose(now, (502, b"Bad Gateway"));
        }
    }

    pub(super) fn upstream_timeout(&mut self, now: Nanos) {
        if self.gives_up().is_some_and(|at| at <= now) {
            self.close();
            return self.drain(now, Ending::OriginLost);
        }
        match self.link {
            Link::Waiting { until } | Link::Flowing { silent_at: until, .. } if until <= now => {
                self.close();
                self.lose(now, (504, b"Gateway Timeout"));
            }
            Link::BackOff { until } if until <= now => self.open(now),
            _ => {}
        }
    }

    /// When the origin is not tried any more.
    pub(super) fn gives_up(&self) -> Option<Nanos> {
        self.lost.map(|lost| lost + RECONNECT_MAX)
    }

    /// Opens the next connection to the origin.
    pub(super) fn open(&mut self, now: Nanos) {
        self.connection = Connection(self.connection.0.wrapping_add(1));
        self.link = Link::Waiting { until: now + HEAD_WAIT_MAX };
        let request = Arc::clone(&self.request);
        self.effects.push_back(Effect::Open { connection: self.connection, request });
    }

    /// Closes the connection to the origin, if there is one.
    pub(super) fn close(&mut self) {
        if matches!(self.link, Link::Waiting { .. } | Link::Flowing { .. }) {
            self.effects.push_back(Effect::Close { connection: self.connection });
        }
        self.link = Link::Closed;
    }

    fn is_waiting_for(&self, connection: Connection) -> bool {
        connection == self.connection && matches!(self.link, Link::Waiting { .. })
    }

    fn flowing(now: Nanos) -> Link {
        Link::Flowing { since: now, silent_at: now + SILENCE_MAX }
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
        self.link = Self::flowing(now);
        for id in self.ids() {
            self.begin(id);
        }
    }

    /// A redirect or an error goes to everybody who waits.
    fn answer(&mut self, now: Nanos, head: &ResponseHead, framing: Framing) {
        self.store = Store::new(ANSWER_LENGTH_MAX);
        self.phase = Phase::Answering;
        self.link = Self::flowing(now);
        let head = Arc::new(end_to_end(head.clone()));
        for (id, listener) in &mut self.listeners {
            listener.cursor = Some(Cursor::new(0, None, Wants::Media));
            let head = Arc::clone(&head);
            self.effects.push_back(Effect::Head { to: *id, head, body: framing });
        }
        self.slowest = 0;
    }

    /// Everybody asks the origin alone; the first has done so already.
    fn not_live(&mut self, head: &ResponseHead, why: NotLive) {
        // The origin was asked for titles: who did not ask for them cannot have this answer.
        let has_titles = head.headers.contains(b"icy-metaint");
        let fits = |listener: &Listener| !has_titles || listener.wants == Wants::Titles;
        let first = self.first.filter(|id| self.listeners.get(id).is_some_and(fits));
        let mut others = self.listeners.iter().filter(|(_, listener)| fits(listener));
        let first = first.or_else(|| others.next().map(|(id, _)| *id));
        match first {
            Some(to) => {
                let connection = self.connection;
                self.effects.push_back(Effect::Pass { to, connection, why });
                self.link = Link::Closed;
            }
            None => self.close(),
        }
        for id in self.ids() {
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
                self.link = Self::flowing(now);
                self.counters.reconnects += 1;
            }
            // A server whose source is not back yet says 404 or 503.
            (Ok(Judged::Answer), _) => {
                self.close();
                self.back_off(now);
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
                self.lost = self.lost.or(Some(now));
                self.back_off(now);
                self.wake_all(now);
            }
            Phase::Idle | Phase::Draining(_) | Phase::Over => {}
        }
    }

    fn back_off(&mut self, now: Nanos) {
        let pause = BACK_OFF_MIN.0.saturating_mul(1 << self.attempts.min(16));
        self.attempts = self.attempts.saturating_add(1);
        self.link = Link::BackOff { until: now + Nanos(pause.min(BACK_OFF_MAX.0)) };
    }

    /// Nobody has a head yet, and the origin gives none.
    fn fail(&mut self, (status, reason): (u16, &[u8])) {
        self.link = Link::Closed;
        let head = failed(status, reason);
        for id in self.ids() {
            if let Some(head) = &head {
                let head = Arc::clone(head);
                self.effects.push_back(Effect::Head { to: id, head, body: Framing::Length(0) });
            }
            self.end(id, Ending::Complete);
        }
    }

    fn ids(&self) -> Vec<ListenerId> {
        self.listeners.keys().copied().collect()
    }

    fn take_media(&mut self, mut bytes: &[u8]) {
        let Self { stream: Some(stream), store, listeners, slowest, counters, .. } = self else {
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
                    let mut add = |unit: Unit<'_>| add(store, listeners, slowest, counters, unit);
                    framer.push(payload, &mut add);
                }
            }
        }
    }

    /// Gives on what is whole though nothing follows it.
    fn finish(&mut self, is_cut: bool) {
        let Self { stream: Some(stream), store, listeners, slowest, counters, .. } = self else {
            return;
        };
        let mut add = |unit: Unit<'_>| add(store, listeners, slowest, counters, unit);
        if is_cut {
            stream.framer.restart(&mut add);
        } else {
            stream.framer.finish(&mut add);
        }
    }
}

/// Adds a unit; raw bytes in parts.
fn add(
    store: &mut Store,
    listeners: &mut BTreeMap<ListenerId, Listener>,
    slowest: &mut u64,
    counters: &mut Counters,
    unit: Unit<'_>,
) {
    match unit {
        Unit::Frame { .. } => Channel::publish(store, listeners, slowest, counters, unit),
        Unit::Raw(bytes) => {
            for part in bytes.chunks(RAW_LENGTH_MAX) {
                Channel::publish(store, listeners, slowest, counters, Unit::Raw(part));
            }
        }
    }
}
