//! What a filter tells whoever owns it.

use crate::limits::EVENTS_MAX;
use proxy_wasm::abi::LogLevel;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use units::Nanos;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A line of the module's: it may hold control characters.
    Log {
        /// How grave.
        level: LogLevel,
        /// The line.
        text: String,
    },
    /// A VM runs from now on.
    Started,
    /// It did not start.
    StartFailed {
        /// Why.
        reason: String,
        /// When it is tried again.
        again: Nanos,
    },
    /// The module fell, and its VM with it.
    Trapped {
        /// How.
        trap: String,
        /// When another VM is started.
        again: Nanos,
    },
    /// What a module has made cannot be passed on, or the like: a hint for its author.
    Warning(String),
}

/// What a filter has counted since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// TCP connections that came.
    pub connections: u64,
    /// Requests whose head was read.
    pub requests: u64,
    /// Requests and responses that were refused as no valid messages.
    pub refused: u64,
    /// Responses by the module in the server's place.
    pub local_responses: u64,
    /// Servers that could not be reached.
    pub unreachable: u64,
    /// Connections and requests that passed, or went on, without the module, for it was down.
    pub unfiltered: u64,
    /// Connections and requests that were refused, for the module was down.
    pub failed_closed: u64,
    /// Messages that cannot be sent as the module has made them.
    pub edits_refused: u64,
    /// Times that a module held more than it may.
    pub held_too_long: u64,
    /// HTTP calls of the module.
    pub calls: u64,
    /// Of these without an answer.
    pub calls_failed: u64,
    /// Times that the module fell.
    pub traps: u64,
    /// VMs that did not start.
    pub starts_failed: u64,
    /// Times that a call stood still because its turn was over.
    pub suspended: u64,
    /// Lines of the log beyond what a call may leave, and events that nobody polled in time.
    pub events_dropped: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Report {
    events: VecDeque<Event>,
    pub(crate) counters: Counters,
}

impl Report {
    pub(crate) fn push(&mut self, event: Event) {
        if self.events.len() >= EVENTS_MAX {
            self.counters.events_dropped += 1;
            return;
        }
        self.events.push_back(event);
    }
}

/// A filter's events and counters, beside the filter itself: that is with its streams.
#[derive(Clone, Debug, Default)]
pub struct Reports(pub(crate) Rc<RefCell<Report>>);

impl Reports {
    /// What has happened, the oldest first.
    #[must_use]
    pub fn poll_event(&self) -> Option<Event> {
        self.0.borrow_mut().events.pop_front()
    }

    /// What has been counted.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.0.borrow().counters
    }
}
