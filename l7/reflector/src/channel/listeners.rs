//! What happens to listeners: they begin, are told of bytes, skip, and end.

use super::{Channel, Counters, Effect, Ending, Link, Listener, ListenerId, Phase};
use crate::cursor::{Cursor, Wants};
use crate::framing::Unit;
use crate::icy::Reader;
use crate::limits::LISTENER_STALL_MAX;
use crate::store::Store;
use http1::Framing;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use units::Nanos;

impl Channel {
    /// Gives a listener its head, and its place in the stream.
    pub(super) fn begin(&mut self, id: ListenerId) {
        let (Some(stream), Some(listener)) = (&self.stream, self.listeners.get_mut(&id)) else {
            return;
        };
        let has_titles = listener.wants == Wants::Titles && stream.live.interval.is_some();
        let wants = if has_titles { Wants::Titles } else { Wants::Media };
        let head = Arc::clone(&stream.heads[usize::from(has_titles)]);
        let position = self.store.entry(0);
        // Who begins with the stream gets its tables as they come.
        let lead = stream.framer.preface().filter(|_| position > 0);
        listener.cursor = Some(Cursor::new(position, lead, wants));
        self.slowest = self.slowest.min(position);
        self.effects.push_back(Effect::Head { to: id, head, body: Framing::UntilClose });
    }

    /// Tells a listener that there are bytes, if there are and it does not know.
    pub(super) fn wake(&mut self, now: Nanos, id: ListenerId) {
        let Self { listeners, store, stall_next, effects, .. } = self;
        if let Some(listener) = listeners.get_mut(&id)
            && listener.wake(now, store)
        {
            told(now, id, stall_next, effects);
        }
    }

    /// Tells everybody.
    pub(super) fn wake_all(&mut self, now: Nanos) {
        let Self { listeners, store, stall_next, effects, .. } = self;
        for (id, listener) in listeners {
            if listener.wake(now, store) {
                told(now, *id, stall_next, effects);
            }
        }
    }

    /// Who has taken everything is told that nothing more comes.
    pub(super) fn drain(&mut self, now: Nanos, ending: Ending) {
        self.phase = Phase::Draining(ending);
        self.link = Link::Closed;
        self.lost = None;
        self.wake_all(now);
        let done = self.listeners.iter().filter(|(_, listener)| !listener.is_told);
        let done: Vec<ListenerId> = done.map(|(id, _)| *id).collect();
        for id in done {
            self.end(id, ending);
        }
    }

    pub(super) fn drop_stalled(&mut self, now: Nanos) {
        let stalled = |listener: &Listener| listener.waits_since + LISTENER_STALL_MAX;
        let all = self.listeners.iter().filter(|(_, listener)| listener.is_told);
        let gone: Vec<ListenerId> =
            all.filter(|(_, listener)| stalled(listener) <= now).map(|(id, _)| *id).collect();
        for id in gone {
            self.counters.dropped += 1;
            self.end(id, Ending::Stalled);
        }
        let told = self.listeners.values().filter(|listener| listener.is_told);
        self.stall_next = told.map(stalled).min();
    }

    pub(super) fn end(&mut self, id: ListenerId, ending: Ending) {
        self.effects.push_back(Effect::End { to: id, ending });
        self.remove(id);
    }

    /// Forgets a listener, and closes with the last.
    pub(super) fn remove(&mut self, id: ListenerId) {
        self.listeners.remove(&id);
        if self.listeners.is_empty() {
            self.close();
            self.over();
        }
    }

    /// Nothing is waited for any more, and no payload kept.
    pub(super) fn over(&mut self) {
        self.phase = Phase::Over;
        self.link = Link::Closed;
        (self.lost, self.stall_next) = (None, None);
        if let Some(stream) = &mut self.stream {
            // What was left out stays counted.
            stream.framer.restart(&mut |_| {});
            stream.reader = Reader::new(None);
        }
        self.store = Store::new(self.store.limit());
    }

    /// Adds a unit of payload; who is about to lose what it has not taken goes on near the edge.
    pub(super) fn publish(
        store: &mut Store,
        listeners: &mut BTreeMap<ListenerId, Listener>,
        slowest: &mut u64,
        counters: &mut Counters,
        unit: Unit<'_>,
    ) {
        let tail = store.tail_for(&unit);
        if tail > *slowest {
            let half = (store.limit() / 2) as u64;
            let target = store.entry(tail.max(store.edge().saturating_sub(half)));
            *slowest = u64::MAX;
            for cursor in listeners.values_mut().filter_map(|listener| listener.cursor.as_mut()) {
                if cursor.position() < tail {
                    cursor.skip(target, store);
                    counters.skips += 1;
                }
                *slowest = (*slowest).min(cursor.position());
            }
        }
        store.forget(tail);
        store.push(unit);
    }
}

impl Listener {
    /// Whether it has to be told that there are bytes.
    fn wake(&mut self, now: Nanos, store: &Store) -> bool {
        let Some(cursor) = self.cursor.as_ref().filter(|_| !self.is_told) else { return false };
        if cursor.piece(store).is_none() {
            return false;
        }
        (self.is_told, self.waits_since) = (true, now);
        true
    }
}

fn told(
    now: Nanos,
    id: ListenerId,
    stall_next: &mut Option<Nanos>,
    effects: &mut VecDeque<Effect>,
) {
    let stalled = now + LISTENER_STALL_MAX;
    *stall_next = Some(stall_next.map_or(stalled, |at| at.min(stalled)));
    effects.push_back(Effect::Ready { to: id });
}
