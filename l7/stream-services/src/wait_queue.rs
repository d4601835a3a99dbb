//! Queue of connections and calls that wait for the VM of a service. Makes no calls itself.

use crate::module::Last;
use foldhash::{HashMap, HashMapExt as _};
use proxy_wasm::{HttpResponse, QUEUE_ITEMS_MAX};
use std::collections::VecDeque;

/// Entry of the queue.
pub(crate) enum Waiting {
    /// Connection that wants to make a call.
    Connection(u64),
    Job(Job),
}

/// Call whose result no connection needs.
pub(crate) enum Job {
    Last(Last),
    Finish(u32),
    Tick,
    Queue(u32),
    Response(HttpResponse),
}

/// Connections and calls that wait for the VM.
pub(crate) struct WaitQueue {
    waiting: VecDeque<Waiting>,
    /// Waiting calls by shared queue.
    queues: HashMap<u32, usize>,
    /// Connection whose turn it is, ahead of the queue.
    turn: Option<u64>,
}

impl WaitQueue {
    pub(crate) fn new() -> Self {
        Self { waiting: VecDeque::new(), queues: HashMap::new(), turn: None }
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns true if no other entry is before the connection.
    pub(crate) fn is_next(&self, connection: u64) -> bool {
        self.waiting.is_empty() || self.turn == Some(connection)
    }

    pub(crate) fn push(&mut self, waiting: Waiting) {
        self.waiting.push_back(waiting);
    }

    /// Adds one call per item, at most as many as a queue can have items, so that a module that
    /// fills a queue while it is emptied is notified for each.
    pub(crate) fn push_queue(&mut self, queue: u32) {
        let waiting_calls = self.queues.entry(queue).or_default();
        if *waiting_calls < QUEUE_ITEMS_MAX {
            *waiting_calls += 1;
            self.waiting.push_back(Waiting::Job(Job::Queue(queue)));
        }
    }

    /// Records that a call for a queue is made.
    pub(crate) fn count_queue_call(&mut self, queue: u32) {
        if let Some(waiting_calls) = self.queues.get_mut(&queue) {
            *waiting_calls -= 1;
        }
    }

    /// Pops the next entry. A connection's turn lasts until [`WaitQueue::end_turn`].
    pub(crate) fn pop(&mut self) -> Option<Waiting> {
        let next = self.waiting.pop_front()?;
        if let Waiting::Connection(number) = next {
            self.turn = Some(number);
        }
        Some(next)
    }

    /// Ends a connection's turn.
    pub(crate) const fn end_turn(&mut self) {
        self.turn = None;
    }

    /// Drops the waiting calls; connections keep their places.
    pub(crate) fn clear_jobs(&mut self) {
        self.queues.clear();
        self.waiting.retain(|waiting| matches!(waiting, Waiting::Connection(_)));
    }

    /// Drops all entries.
    pub(crate) fn clear(&mut self) {
        self.queues.clear();
        self.waiting.clear();
    }
}
