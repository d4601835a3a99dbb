//! What a filter tells whoever owns it.

use crate::limits::EVENTS_MAX;
use fanout::{Fanout, FanoutStats};
use proxy_wasm::abi::LogLevel;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
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
    /// Connections that ended because nothing moved on them, or a request's head took too long.
    pub idle: u64,
    /// Responses by the module in the server's place.
    pub local_responses: u64,
    /// Connections to servers that had another client before.
    pub servers_shared: u64,
    /// Servers that could not be reached.
    pub unreachable: u64,
    /// Connections and requests that passed, or went on, without the module, for it was down.
    pub unfiltered: u64,
    /// Connections and requests that were refused, for the module was down.
    pub failed_closed: u64,
    /// Connections and requests that were shown to another VM, for the module had fallen in a call
    /// for somebody else.
    pub shown_again: u64,
    /// Messages that cannot be sent as the module has made them.
    pub edits_refused: u64,
    /// Times that a module held more than it may.
    pub held_too_long: u64,
    /// HTTP calls of the module.
    pub calls: u64,
    /// Of these without an answer.
    pub calls_failed: u64,
    /// Responses whose bodies were coded.
    pub responses_coded: u64,
    /// Bytes of these bodies as they came of the module.
    pub coded_bytes_in: u64,
    /// Bytes that they became.
    pub coded_bytes_out: u64,
    /// Times that a module asked for a coding in vain: no memory, too late, or no such coding.
    pub codings_refused: u64,
    /// Encoders that gave up.
    pub codings_failed: u64,
    /// Requests that were given to shared streams.
    pub reflected: u64,
    /// Times that a module asked for that in vain.
    pub reflections_refused: u64,
    /// Responses whose bodies became pictures.
    pub transcoded: u64,
    /// Pictures that the module was shown.
    pub pictures: u64,
    /// Times that a module asked for pictures in vain.
    pub transcodings_refused: u64,
    /// Responses that were no video, or whose codec failed.
    pub transcodings_failed: u64,
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
    /// Bytes of linear memory that the VM has.
    pub(crate) memory_bytes: u64,
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
#[derive(Clone, Default)]
pub struct Reports {
    pub(crate) report: Rc<RefCell<Report>>,
    /// The shared streams, if the module may use them.
    pub(crate) fanout: Option<Rc<RefCell<Fanout>>>,
}

impl fmt::Debug for Reports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Reports").field(&self.report).finish()
    }
}

impl Reports {
    /// What has happened, the oldest first.
    #[must_use]
    pub fn poll_event(&self) -> Option<Event> {
        self.report.borrow_mut().events.pop_front()
    }

    /// What has been counted.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.report.borrow().counters
    }

    /// Bytes of linear memory that the module has now.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.report.borrow().memory_bytes
    }

    /// What has happened in the channels of shared streams; none if the module may not use them.
    #[must_use]
    pub fn fanout(&self) -> Option<FanoutStats> {
        self.fanout.as_ref().map(|fanout| fanout.borrow().stats())
    }

    pub(crate) fn count(&self, count: impl FnOnce(&mut Counters)) {
        count(&mut self.report.borrow_mut().counters);
    }
}
