//! Listeners of all channels, with the queue of those to serve and the memory of those that wait
//! for a head.

use crate::limits::WAITING_LENGTH_MAX;
use crate::listener::{Listener, Waiting};
use http1::{Framing, ResponseHead};
use reflector::ListenerId;
use std::collections::{BTreeMap, VecDeque};

/// Listeners by number.
#[derive(Default)]
pub(crate) struct Listeners {
    all: BTreeMap<ListenerId, Listener>,
    /// Listeners with bytes to send, each once.
    queue: VecDeque<ListenerId>,
    /// Memory of waiting requests, in bytes.
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

    /// Returns the memory of waiting requests, in bytes.
    pub(crate) const fn waiting(&self) -> usize {
        self.waiting
    }

    /// Returns the memory of all listeners, in bytes.
    pub(crate) fn memory(&self) -> usize {
        let each = size_of::<Listener>() + size_of::<ListenerId>();
        self.all.values().map(|it| each + it.memory()).sum()
    }

    /// Returns true if a listener is queued.
    pub(crate) fn has_queued(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Returns true if another waiting request is within the limit.
    pub(crate) fn may_wait(&self, waiting: &Waiting) -> bool {
        self.waiting + waiting.memory() <= WAITING_LENGTH_MAX
    }

    pub(crate) fn insert(&mut self, id: ListenerId, listener: Listener) {
        self.waiting += memory_of(&listener);
        self.all.insert(id, listener);
    }

    /// Removes a listener; its entry in the queue stays until it is popped.
    pub(crate) fn remove(&mut self, id: ListenerId) -> Option<Listener> {
        let listener = self.all.remove(&id)?;
        self.waiting = self.waiting.saturating_sub(memory_of(&listener));
        Some(listener)
    }

    /// Starts a listener's response; returns false if its head cannot be written.
    pub(crate) fn answer(&mut self, id: ListenerId, head: &ResponseHead, body: Framing) -> bool {
        let Some(listener) = self.all.get_mut(&id) else { return true };
        self.waiting = self.waiting.saturating_sub(memory_of(listener));
        let is_written = listener.answer(head, body);
        if is_written {
            self.enqueue(id);
        }
        is_written
    }

    /// Queues a listener that has bytes to send.
    pub(crate) fn enqueue(&mut self, id: ListenerId) {
        if let Some(listener) = self.all.get_mut(&id)
            && listener.mark_queued()
        {
            self.queue.push_back(id);
        }
    }

    /// Pops the next listener to serve; it may be gone.
    pub(crate) fn pop(&mut self) -> Option<ListenerId> {
        let id = self.queue.pop_front()?;
        if let Some(listener) = self.all.get_mut(&id) {
            listener.mark_served();
        }
        Some(id)
    }
}

/// Returns the memory of a listener's request while it waits, in bytes.
fn memory_of(listener: &Listener) -> usize {
    listener.waiting().map_or(0, Waiting::memory)
}
