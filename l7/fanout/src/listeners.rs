//! The listeners of all channels: those that wait for a head, and those that there is something to
//! send to.

use crate::limits::WAITING_LENGTH_MAX;
use crate::listener::{Listener, Waiting};
use http1::{Framing, ResponseHead};
use reflector::ListenerId;
use std::collections::{BTreeMap, VecDeque};

/// Listeners by number.
#[derive(Default)]
pub(crate) struct Listeners {
    all: BTreeMap<ListenerId, Listener>,
    /// Listeners that there is something to send to, each once.
    queue: VecDeque<ListenerId>,
    /// Memory of requests of those that wait, bytes.
    waiting: usize,
}

impl Listeners {
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn get(&self, id: ListenerId) -> Option<&Listener> {
        self.all.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: ListenerId) -> Option<&mut Listener> {
        self.all.get_mut(&id)
    }

    /// Returns the memory of requests of those that wait, bytes.
    pub(crate) const fn waiting(&self) -> usize {
        self.waiting
    }

    /// Returns the memory of all of them, bytes.
    pub(crate) fn memory(&self) -> usize {
        let each = size_of::<Listener>() + size_of::<ListenerId>();
        self.all.values().map(|it| each + it.memory()).sum()
    }

    /// Returns true when there is something to send.
    pub(crate) fn has_queued(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Returns true when there is room for one more request that waits.
    pub(crate) fn may_wait(&self, waiting: &Waiting) -> bool {
        self.waiting + waiting.memory() <= WAITING_LENGTH_MAX
    }

    pub(crate) fn insert(&mut self, id: ListenerId, listener: Listener) {
        self.waiting += memory_of(&listener);
        self.all.insert(id, listener);
    }

    /// Removes a listener; its place in the queue stays until its turn has come.
    pub(crate) fn remove(&mut self, id: ListenerId) -> Option<Listener> {
        let listener = self.all.remove(&id)?;
        self.waiting = self.waiting.saturating_sub(memory_of(&listener));
        Some(listener)
    }

    /// Begins a listener's response; returns false when its head cannot be written.
    pub(crate) fn answer(&mut self, id: ListenerId, head: &ResponseHead, body: Framing) -> bool {
        let Some(listener) = self.all.get_mut(&id) else { return true };
        self.waiting = self.waiting.saturating_sub(memory_of(listener));
        let is_written = listener.answer(head, body);
        if is_written {
            self.enqueue(id);
        }
        is_written
    }

    /// Queues a listener that there is something to send to.
    pub(crate) fn enqueue(&mut self, id: ListenerId) {
        if let Some(listener) = self.all.get_mut(&id)
            && listener.handle_queued()
        {
            self.queue.push_back(id);
        }
    }

    /// Takes the listener that is served next; it may be gone.
    pub(crate) fn pop(&mut self) -> Option<ListenerId> {
        let id = self.queue.pop_front()?;
        if let Some(listener) = self.all.get_mut(&id) {
            listener.handle_turn();
        }
        Some(id)
    }
}

/// Returns the memory of a listener's request while it waits, bytes.
fn memory_of(listener: &Listener) -> usize {
    listener.waiting().map_or(0, Waiting::memory)
}
