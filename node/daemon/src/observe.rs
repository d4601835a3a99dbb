//! Documents, counters and events of a node: what it shows, and nothing that it does.
//!
//! ```text
//!  owners of the daemon ──▶ View ─┬▶ documents ─▶ GET /v1/…
//!                                 └▶ counters ─▶ metrics, Observe: drops
//!  Note ─▶ Observe: event log
//!  taps ─▶ Observe: captures ─▶ GET /v1/captures/N, poll_tap ─▶ cells
//! ```
//!
//! Nothing of a node can be changed by way of a [`view::View`].

pub(crate) mod capture;
pub(crate) mod counters;
pub(crate) mod documents;
pub(crate) mod drops;
mod event_log;
pub(crate) mod explain;
pub(crate) mod exposition;
pub(crate) mod metrics;
pub(crate) mod question;
mod reasons;
pub(crate) mod view;
mod why;

use crate::answer::Answer;
use crate::control::authority::Visibility;
use crate::events::{Note, wall_clock_ms};
use crate::reply::Reply;
use api::{
    CaptureEnded, CaptureRequest, CaptureStarted, CapturedPackets, EventKind, EventList,
    ExplainRequest, Explanation, WhyList,
};
use bpf::front_door::Explained;
use capture::Captures;
use cell::protocol::{CapturedFrame, ToCell};
use counters::queue_session;
use drops::Drops;
use drops::readings::{self, Place};
use event_log::EventLog;
use explain::Explaining;
use question::Question;
use units::{Nanos, RuleId};
use view::View;

/// Observations of a node: its events, drops and captures.
pub(crate) struct Observe {
    events: EventLog,
    drops: Drops,
    captures: Captures,
}

impl Observe {
    /// Creates the empty observations of a node that starts now.
    pub(crate) fn new() -> Self {
        let events = EventLog::new(wall_clock_ms());
        Self { events, drops: Drops::default(), captures: Captures::default() }
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
        self.events.reported()
    }

    /// Answers `GET /v1/events`: the events after number `since`, for which it waits this many
    /// seconds.
    pub(crate) fn handle_events(
        &mut self,
        now: Nanos,
        (since, wait_seconds): (u64, u32),
        sight: Visibility,
        reply: Reply<EventList>,
    ) {
        self.events.ask(now, since, wait_seconds, sight, reply);
    }

    /// Takes everything that the front door has counted so far as nothing new.
    pub(crate) fn begin_drops(&mut self, view: &View<'_>) {
        self.drops.begin(view.now, readings::of_ports(view));
    }

    /// Begins a comparison of drop counters; returns false when one is under way. The next report
    /// of the cells is to be followed by [`Observe::count_drops`].
    pub(crate) fn start_drops(&mut self) -> bool {
        self.drops.start()
    }

    /// Compares all drop counters with their previous values, and reports those that grew.
    pub(crate) fn count_drops(&mut self, view: &View<'_>) {
        let with_devices = self.drops.handle_report();
        let all = readings::of_all(view, with_devices);
        let rules = || readings::of_rules(view);
        let is_gone = |name: &_| view.node.service(name).is_none();
        let grown = self.drops.compare((view.now, wall_clock_ms()), all, rules, is_gone);
        for (place, count) in grown {
            self.note(view.now, note_of(view, place, count).completed(view.node));
        }
        let more = self.drops.handle_notices_lost(view.cells.report().notices_dropped);
        if more > 0 {
            let text = "events of modules and notices of traps were left out of a storm";
            self.note(view.now, Note::new(EventKind::NoticesLost, text).count(more));
        }
    }

    /// Answers `GET /v1/why`, limited to what the client may see.
    pub(crate) fn why_list(&self, view: &View<'_>, sight: &Visibility) -> WhyList {
        why::why_list(view, &self.drops, sight)
    }

    /// Begins the answer to `POST /v1/why`.
    ///
    /// # Errors
    /// The request has a mistake, or the front door cannot be copied.
    pub(crate) fn explain(&self, view: &View<'_>, request: &ExplainRequest) -> Answer<Explaining> {
        explain::begin(view, &self.drops, request)
    }

    /// Returns the explanation of a frame that the kernel has run the front door over.
    ///
    /// # Errors
    /// The kernel did not run it, or the port is gone.
    pub(crate) fn explained(
        &self,
        view: &View<'_>,
        question: &Question,
        explained: Result<Explained, String>,
    ) -> Answer<Explanation> {
        explain::finish(view, &self.drops, question, explained)
    }

    /// Returns true while there is a capture.
    pub(crate) fn is_capturing(&self) -> bool {
        self.captures.is_any()
    }

    /// Returns the rule of a capture, if it exists and captures one rule's packets.
    pub(crate) fn rule_of_capture(&self, id: u32) -> Option<RuleId> {
        self.captures.rule_of(id)
    }

    /// Returns the message to a cell that begins, if it is to have taps.
    pub(crate) fn first_tap(&self) -> Option<ToCell> {
        self.captures.is_any().then(|| self.captures.tap())
    }

    /// Returns the message to all cells, if captures came or went since it was last asked for.
    pub(crate) fn poll_tap(&mut self) -> Option<ToCell> {
        self.captures.poll_tap()
    }

    /// Begins a capture.
    ///
    /// # Errors
    /// A capture runs already, the request names what is not there, or the ports cannot be
    /// tapped.
    pub(crate) fn begin_capture(
        &mut self,
        view: &View<'_>,
        request: &CaptureRequest,
    ) -> Answer<CaptureStarted> {
        self.captures.begin(view, request)
    }

    /// Answers `GET /v1/captures/N`, now or when a packet has been captured, for which it waits
    /// this many seconds.
    pub(crate) fn handle_captured(
        &mut self,
        view: &View<'_>,
        (id, wait_seconds): (u32, u32),
        reply: Reply<CapturedPackets>,
    ) {
        self.captures.ask(view, (id, wait_seconds), reply);
    }

    /// Checks that there is a capture, which ends when the cells have handed over its packets.
    ///
    /// # Errors
    /// No such capture runs.
    pub(crate) fn check_capture(&self, id: u32) -> Answer<()> {
        self.captures.check(id)
    }

    /// Ends a capture; returns the packets that no client has fetched yet.
    ///
    /// # Errors
    /// No such capture runs.
    pub(crate) fn end_capture(&mut self, view: &View<'_>, id: u32) -> Answer<CaptureEnded> {
        self.captures.end(view, id)
    }

    /// Takes captured packets, and ends captures that are not polled.
    pub(crate) fn handle_capture_tick(&mut self, view: &View<'_>) {
        self.captures.handle_tick(view);
    }

    /// Takes a packet that the cell has seen.
    pub(crate) fn handle_tapped(&mut self, view: &View<'_>, tapped: &CapturedFrame) {
        self.captures.handle_tapped(view, tapped);
    }
}

/// Returns the event of packets that were dropped.
fn note_of(view: &View<'_>, place: Place, count: u64) -> Note {
    let meaning = reasons::of(&place.reason).0;
    let text = format!("packets were dropped: {meaning}");
    let mut note = Note::new(EventKind::Drops, text).count(count).reason(&place.reason);
    if let Some(port) = place.port {
        let live = view.plane.ports().iter().find(|live| *live.name() == port);
        if let Some(live) = live.filter(|_| place.reason.starts_with("socket_")) {
            note = note.session(queue_session(view, live));
        }
        note = note.port(port);
    }
    if let Some(service) = place.service {
        let rules = view.state.rules_to(&service);
        note = note.service(service);
        // With several it is not known which one a packet came by.
        if let [rule] = rules[..] {
            note = note.rule(rule);
        }
    }
    if let Some(rule) = place.rule {
        note = note.rule(rule);
    }
    note
}

#[cfg(test)]
mod tests;
