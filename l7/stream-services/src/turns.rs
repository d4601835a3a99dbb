//! Queue of the connections and calls that wait for the VM of a service. Makes no call itself.

use crate::module::Last;
use foldhash::{HashMap, HashMapExt as _};
use proxy_wasm::{HttpResponse, QUEUE_ITEMS_MAX};
use std::collections::VecDeque;

/// An entry of the queue: it waits until the VM is free.
pub(crate) enum Waiting {
    /// A connection that wants to make a call.
    Connection(u64),
    Job(Job),
}

/// A call whose answer no connection waits for.
pub(crate) enum Job {
    Last(Last),
    Finish(u32),
    Tick,
    Queue(u32),
    Response(HttpResponse),
}

/// Connections and calls that wait for the VM.
pub(crate) struct Turns {
    waiting: VecDeque<Waiting>,
    /// Calls that wait, by the shared queue that each is for.
    queues: HashMap<u32, usize>,
    /// The connection whose turn it is, though others wait.
    turn: Option<u64>,
}

impl Turns {
    pub(crate) fn new() -> Self {
        Self { waiting: VecDeque::new(), queues: HashMap::new(), turn: None }
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns true when nobody is in front of a connection.
    pub(crate) fn is_next(&self, connection: u64) -> bool {
        self.waiting.is_empty() || self.turn == Some(connection)
    }

    pub(crate) fn push(&mut self, waiting: Waiting) {
        self.waiting.push_back(waiting);
    }

    /// Adds one call for each item, and no more than a queue can have items: who fills it as it is
    /// emptied is told as often as that.
    pub(crate) fn push_queue(&mut self, queue: u32) {
        let told = self.queues.entry(queue).or_default();
        if *told < QUEUE_ITEMS_MAX {
            *told += 1;
            self.waiting.push_back(Waiting::Job(Job::Queue(queue)));
        }
    }

    /// Notes that a call for a queue is made.
    pub(crate) fn note_queue_call(&mut self, queue: u32) {
        if let Some(told) = self.queues.get_mut(&queue) {
            *told -= 1;
        }
    }

    /// Takes who is next. A connection's turn lasts until [`Turns::end_turn`].
    pub(crate) fn pop(&mut self) -> Option<Waiting> {
        let next = self.waiting.pop_front()?;
        if let Waiting::Connection(number) = next {
            self.turn = Some(number);
        }
        Some(next)
    }

    /// A connection has had its turn.
    pub(crate) const fn end_turn(&mut self) {
        self.turn = None;
    }

    /// Forgets the calls that were to be made; connections keep their places.
    pub(crate) fn forget_jobs(&mut self) {
        self.queues.clear();
        self.waiting.retain(|waiting| matches!(waiting, Waiting::Connection(_)));
    }

    /// Forgets everything that waits.
    pub(crate) fn clear(&mut self) {
        self.queues.clear();
        self.waiting.clear();
    }
}
