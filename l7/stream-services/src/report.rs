//! Events and counters of a filter for its owner.

use crate::limits::EVENTS_MAX;
use fanout::{Fanout, FanoutStats};
use proxy_wasm::abi::LogLevel;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::rc::Rc;
use units::Nanos;

/// Event of a filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Line of the module's log; may contain control characters.
    Log {
        /// Severity.
        level: LogLevel,
        /// Text of the line.
        text: String,
    },
    /// A VM was started.
    Started,
    /// A VM did not start.
    StartFailed {
        /// Reason of the failure.
        reason: String,
        /// Time of the next attempt.
        again: Nanos,
    },
    /// The module trapped, and its VM is gone.
    Trapped {
        /// Description of the trap.
        trap: String,
        /// Time at which another VM is started.
        again: Nanos,
    },
    /// Hint for the module's author, for example that an edited message is not valid.
    Warning(String),
}

/// Counters of a filter since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// TCP connections accepted.
    pub connections: u64,
    /// Requests whose head was read.
    pub requests: u64,
    /// Requests and responses refused as invalid.
    pub refused: u64,
    /// Connections ended by an idle timeout, or a slow request head.
    pub idle: u64,
    /// Responses of the module in place of the server's.
    pub local_responses: u64,
    /// Server connections reused from another client.
    pub servers_shared: u64,
    /// Servers that could not be reached.
    pub unreachable: u64,
    /// Connections and requests that passed, or continued, without the module, because it was down.
    pub unfiltered: u64,
    /// Connections and requests refused because the module was down.
    pub failed_closed: u64,
    /// Connections and requests passed to another VM, because the module trapped in a call for
    /// another stream.
    pub shown_again: u64,
    /// Messages that cannot be sent as the module has edited them.
    pub edits_refused: u64,
    /// Times that a module held more than the limit.
    pub held_too_long: u64,
    /// HTTP calls of the module.
    pub calls: u64,
    /// HTTP calls without a response.
    pub calls_failed: u64,
    /// Responses whose bodies were coded.
    pub responses_coded: u64,
    /// Bytes of these bodies before coding.
    pub coded_bytes_in: u64,
    /// Bytes of these bodies after coding.
    pub coded_bytes_out: u64,
    /// Refused requests for coding: no memory, too late, or an unknown coding.
    pub codings_refused: u64,
    /// Encoders that failed.
    pub codings_failed: u64,
    /// Requests handed over to shared streams.
    pub reflected: u64,
    /// Refused requests for that.
    pub reflections_refused: u64,
    /// Responses whose bodies were transcoded into pictures.
    pub transcoded: u64,
    /// Pictures passed to the module.
    pub pictures: u64,
    /// Refused requests for pictures.
    pub transcodings_refused: u64,
    /// Responses that were no video, or whose codec failed.
    pub transcodings_failed: u64,
    /// Traps of the module.
    pub traps: u64,
    /// VMs that did not start.
    pub starts_failed: u64,
    /// Calls that were suspended because their turn was over.
    pub suspended: u64,
    /// Log lines beyond the limit of a call, and events beyond the queue's.
    pub events_dropped: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Report {
    events: VecDeque<Event>,
    pub(crate) counters: Counters,
    /// Bytes of the VM's linear memory.
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

/// Events and counters of a filter, accessible while the filter itself is with its streams.
#[derive(Clone, Default)]
pub struct Reports {
    pub(crate) report: Rc<RefCell<Report>>,
    /// Shared streams, if the module may use them.
    pub(crate) fanout: Option<Rc<RefCell<Fanout>>>,
}

impl fmt::Debug for Reports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Reports").field(&self.report).finish()
    }
}

impl Reports {
    /// Returns the next event, the oldest first.
    #[must_use]
    pub fn poll_event(&self) -> Option<Event> {
        self.report.borrow_mut().events.pop_front()
    }

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.report.borrow().counters
    }

    /// Returns the bytes of the module's linear memory.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.report.borrow().memory_bytes
    }

    /// Returns the statistics of shared streams; `None` if the module may not use them.
    #[must_use]
    pub fn fanout(&self) -> Option<FanoutStats> {
        self.fanout.as_ref().map(|fanout| fanout.borrow().stats())
    }

    pub(crate) fn count(&self, count: impl FnOnce(&mut Counters)) {
        count(&mut self.report.borrow_mut().counters);
    }
}
