//! Listeners of one channel: their positions, notifications, and stall deadlines.

use super::{Effect, ListenerId};
use crate::cursor::{Cursor, Wants};
use crate::framing::Unit;
use crate::limits::LISTENER_STALL_MAX;
use crate::store::Store;
use std::collections::{BTreeMap, VecDeque};
use units::Nanos;

#[derive(Debug)]
struct Listener {
    wants: Wants,
    /// Position in the stream; `None` until the origin's head is here.
    cursor: Option<Cursor>,
    /// True if the listener was notified of bytes, and has not taken all of them since.
    is_notified: bool,
    /// Time at which the listener last took something, while there is more.
    taken_at: Nanos,
}

/// Listeners of one stream, by number.
#[derive(Debug)]
pub(super) struct Listeners {
    all: BTreeMap<ListenerId, Listener>,
    /// Lower bound of the listeners' positions.
    slowest: u64,
    /// Earliest time at which a listener may have to be dropped.
    stall_next: Option<Nanos>,
}

impl Default for Listeners {
    fn default() -> Self {
        Self { all: BTreeMap::new(), slowest: u64::MAX, stall_next: None }
    }
}

impl Listeners {
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(super) fn contains(&self, id: ListenerId) -> bool {
        self.all.contains_key(&id)
    }

    pub(super) fn ids(&self) -> Vec<ListenerId> {
        self.all.keys().copied().collect()
    }

    /// Returns what each listener has asked for.
    pub(super) fn wants(&self) -> impl Iterator<Item = (ListenerId, Wants)> {
        self.all.iter().map(|(id, listener)| (*id, listener.wants))
    }

    /// Returns what a listener has asked for.
    pub(super) fn wants_of(&self, id: ListenerId) -> Option<Wants> {
        self.all.get(&id).map(|listener| listener.wants)
    }

    /// Returns the cursor of a listener that has a head.
    pub(super) fn cursor_of(&self, id: ListenerId) -> Option<Cursor> {
        self.all.get(&id).and_then(|listener| listener.cursor.clone())
    }

    /// Returns all cursors; `None` for a listener without a head.
    pub(super) fn cursors(&self) -> impl Iterator<Item = Option<&Cursor>> {
        self.all.values().map(|listener| listener.cursor.as_ref())
    }

    /// Returns the bytes that the listeners hold.
    pub(super) fn memory(&self) -> usize {
        let rests: usize = self.cursors().flatten().map(Cursor::memory).sum();
        self.all.len() * (size_of::<Listener>() + size_of::<ListenerId>()) + rests
    }

    /// Returns the listeners that have taken all bytes that they were notified of.
    pub(super) fn idle(&self) -> Vec<ListenerId> {
        let idle = self.all.iter().filter(|(_, listener)| !listener.is_notified);
        idle.map(|(id, _)| *id).collect()
    }

    /// Advances a listener by the bytes it has taken. Returns the number of bytes that existed, and
    /// whether it has all; `None` if the listener is unknown or has no head.
    pub(super) fn handle_taken(
        &mut self,
        now: Nanos,
        id: ListenerId,
        length: usize,
        store: &Store,
    ) -> Option<(usize, bool)> {
        let listener = self.all.get_mut(&id)?;
        let cursor = listener.cursor.as_mut()?;
        let mut left = length;
        let mut next = cursor.piece(store).map(|piece| piece.len());
        while let Some(available) = next.filter(|_| left > 0) {
            let taken = available.min(left);
            left -= taken;
            cursor.advance(taken, store);
            next = cursor.piece(store).map(|piece| piece.len());
        }
        if left < length {
            listener.taken_at = now;
        }
        if next.is_none() {
            listener.is_notified = false;
        }
        Some((length - left, next.is_none()))
    }

    pub(super) fn insert(&mut self, now: Nanos, id: ListenerId, wants: Wants) {
        let listener = Listener { wants, cursor: None, is_notified: false, taken_at: now };
        self.all.insert(id, listener);
    }

    pub(super) fn remove(&mut self, id: ListenerId) {
        self.all.remove(&id);
    }

    pub(super) fn clear(&mut self) {
        self.all.clear();
    }

    /// Sets a listener's position in the stream.
    pub(super) fn set_cursor(&mut self, id: ListenerId, cursor: Cursor) {
        if let Some(listener) = self.all.get_mut(&id) {
            self.slowest = self.slowest.min(cursor.position());
            listener.cursor = Some(cursor);
        }
    }

    /// Clears the stall deadline of all listeners.
    pub(super) const fn forget_stalls(&mut self) {
        self.stall_next = None;
    }

    /// Notifies a listener of bytes, if there are some and it was not notified yet.
    pub(super) fn wake(
        &mut self,
        now: Nanos,
        id: ListenerId,
        store: &Store,
        effects: &mut VecDeque<Effect>,
    ) {
        if let Some(listener) = self.all.get_mut(&id)
            && listener.wake(now, store)
        {
            notify(now, id, &mut self.stall_next, effects);
        }
    }

    /// Notifies every listener of bytes, if there are some and it was not notified yet.
    pub(super) fn wake_all(&mut self, now: Nanos, store: &Store, effects: &mut VecDeque<Effect>) {
        for (id, listener) in &mut self.all {
            if listener.wake(now, store) {
                notify(now, *id, &mut self.stall_next, effects);
            }
        }
    }

    /// Adds a unit of payload. Listeners that would lose bytes they have not taken skip to a
    /// position near the edge. Returns their number.
    pub(super) fn publish(&mut self, store: &mut Store, unit: Unit<'_>) -> u64 {
        let mut skips = 0;
        let tail = store.tail_for(&unit);
        if tail > self.slowest {
            let half = (store.limit() / 2) as u64;
            let target = store.entry(tail.max(store.edge().saturating_sub(half)));
            self.slowest = u64::MAX;
            for cursor in self.all.values_mut().filter_map(|listener| listener.cursor.as_mut()) {
                if cursor.position() < tail {
                    cursor.skip(target, store);
                    skips += 1;
                }
                self.slowest = self.slowest.min(cursor.position());
            }
        }
        store.forget(tail);
        store.push(unit);
        skips
    }

    /// Returns the time at which [`Listeners::stalled`] has to be called.
    pub(super) const fn poll_timeout(&self) -> Option<Nanos> {
        self.stall_next
    }

    /// Returns the listeners that have taken nothing for too long.
    pub(super) fn stalled(&self, now: Nanos) -> Vec<ListenerId> {
        let all = self.all.iter().filter(|(_, listener)| listener.is_notified);
        all.filter(|(_, listener)| listener.stall_deadline() <= now).map(|(id, _)| *id).collect()
    }

    /// Computes anew which listener stalls next.
    pub(super) fn set_next_stall(&mut self) {
        let notified = self.all.values().filter(|listener| listener.is_notified);
        self.stall_next = notified.map(Listener::stall_deadline).min();
    }
}

impl Listener {
    /// Returns true if the listener has to be notified of bytes, and marks it as notified.
    fn wake(&mut self, now: Nanos, store: &Store) -> bool {
        let Some(cursor) = self.cursor.as_ref().filter(|_| !self.is_notified) else { return false };
        if cursor.piece(store).is_none() {
            return false;
        }
        (self.is_notified, self.taken_at) = (true, now);
        true
    }

    fn stall_deadline(&self) -> Nanos {
        self.taken_at + LISTENER_STALL_MAX
    }
}

fn notify(
    now: Nanos,
    id: ListenerId,
    stall_next: &mut Option<Nanos>,
    effects: &mut VecDeque<Effect>,
) {
    let stalled = now + LISTENER_STALL_MAX;
    *stall_next = Some(stall_next.map_or(stalled, |at| at.min(stalled)));
    effects.push_back(Effect::Ready { to: id });
}
