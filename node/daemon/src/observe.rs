//! Documents, counters and events of a node: what it shows, and nothing that it does.
//!
//! ```text
//!  owners ─ Daemon::view ─▶ View ─┬▶ documents ─▶ GET /v1/…
//!                                 └▶ counters ─▶ metrics
//!  Note ─▶ Observe: event log
//! ```
//!
//! Nothing of a node can be changed by way of a [`view::View`].

pub(crate) mod counters;
pub(crate) mod documents;
mod event_log;
pub(crate) mod exposition;
pub(crate) mod metrics;
pub(crate) mod reasons;
pub(crate) mod view;

use crate::control::authority::Sight;
use crate::events::{Note, wall_clock_ms};
use crate::reply::Reply;
use api::EventList;
use event_log::EventLog;
use units::Nanos;

/// Observations of a node: its events.
pub(crate) struct Observe {
    events: EventLog,
}

impl Observe {
    /// Creates the empty observations of a node that starts now.
    pub(crate) fn new() -> Self {
        Self { events: EventLog::new(wall_clock_ms()) }
    }

    /// Writes down an event.
    pub(crate) fn note(&mut self, now: Nanos, note: Note) {
        self.events.note(now, wall_clock_ms(), note);
    }

    /// Tells events that were held back long enough. Called with each heartbeat.
    pub(crate) fn handle_heartbeat(&mut self, now: Nanos) {
        self.events.handle_tick(now, wall_clock_ms());
    }

    /// Returns the number of events so far.
    pub(crate) const fn events_told(&self) -> u64 {
        self.events.told()
    }

    /// Answers `GET /v1/events`: the events behind `since`, waited for so many seconds.
    pub(crate) fn handle_events(
        &mut self,
        now: Nanos,
        (since, wait_seconds): (u64, u32),
        sight: Sight,
        reply: Reply<EventList>,
    ) {
        self.events.ask(now, since, wait_seconds, sight, reply);
    }
}
