//! Log of a node's events: numbered, in memory, and bounded.
//!
//! ```text
//!  note ─▶ once and again? ─ no ──────────────▶ ┌───────────┐ ─▶ log of the process
//!             │ yes                             │ event log │ ─▶ who follows
//!             └─▶ first at once, the rest ─────▶ └───────────┘ ─▶ GET /v1/events
//!                 counted, one a second,             └▶ the oldest make room, counted
//!                 or with the next other event
//!                 of the same service
//! ```
//!
//! The log reads no clock: callers pass the time.

use crate::answer::error;
use crate::control::authority::Visibility;
use crate::events::{Note, RepeatKey};
use crate::reply::Reply;
use api::{ErrorCode, Event, EventKind, EventList, SCHEMA_VERSION};
use node::Owner;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use units::Nanos;

/// Events that are kept: a day of a node where something happens each 20 s, in 1 MiB.
const EVENTS_MAX: usize = 4096;
/// Events of one answer; the next question has the rest.
const ANSWER_EVENTS_MAX: usize = 1000;
/// Period at which a repeated event is reported.
const REPEATS_EVERY: Nanos = Nanos::from_millis(1000);
/// Kinds of repeated events that are counted apart at a time: the reasons of all services and
/// ports of a busy node. Further ones share one entry for each kind.
const REPEATS_MAX: usize = 1024;
/// Different lines of a service's module in [`REPEATS_EVERY`] that are separate events: what one
/// verbose call logs. Further ones are one event, with the last of them.
const LINES_MAX: usize = 16;
/// Longest wait of one question; the client asks again.
const WAIT_SECONDS_MAX: u32 = 60;
/// Questions that wait at a time.
const FOLLOWERS_MAX: usize = 32;

#[derive(Debug)]
struct Repeat {
    reported: Nanos,
    /// Sum of the notes that came since.
    waiting: Option<Note>,
}

/// Events of a node, oldest first.
#[derive(Debug)]
pub(crate) struct EventLog {
    started_ms: u64,
    events: VecDeque<LoggedEvent>,
    /// Number of the youngest.
    last: u64,
    repeats: BTreeMap<RepeatKey, Repeat>,
    followers: Vec<Follower>,
}

/// Event, with its owner.
#[derive(Debug)]
struct LoggedEvent {
    event: Event,
    owner: Option<Owner>,
}

#[derive(Debug)]
struct Follower {
    since: u64,
    until: Nanos,
    sight: Visibility,
    reply: Reply<EventList>,
}

impl EventLog {
    /// Creates an empty log of a node that starts now, in milliseconds since 1970.
    pub(crate) const fn new(started_ms: u64) -> Self {
        Self {
            started_ms,
            events: VecDeque::new(),
            last: 0,
            repeats: BTreeMap::new(),
            followers: Vec::new(),
        }
    }

    /// Records an event: in the log, for its followers, and in the log of the process.
    pub(super) fn note(&mut self, now: Nanos, time_ms: u64, note: Note) {
        let before = self.last;
        self.take(now, time_ms, note);
        self.notify_since(before, now);
    }

    /// Tells what waited long enough. Called again and again, with each heartbeat.
    pub(super) fn handle_tick(&mut self, now: Nanos, time_ms: u64) {
        let before = self.last;
        self.settle(now, time_ms);
        self.notify_since(before, now);
    }

    /// Returns the number of events so far.
    pub(super) const fn reported(&self) -> u64 {
        self.last
    }

    fn notify_since(&mut self, before: u64, now: Nanos) {
        let new = usize::try_from(self.last - before).unwrap_or(usize::MAX);
        self.youngest(new).for_each(log);
        self.answer(now);
    }

    /// Takes a note; returns true when it became an event at once.
    fn take(&mut self, now: Nanos, time_ms: u64, mut note: Note) -> bool {
        if note.repeats() {
            let mut key = note.line_key();
            if key.is_line() && !self.repeats.contains_key(&key) && self.is_talkative(&key) {
                note = note.further_line();
                key = note.key();
            }
            if self.repeats.len() >= REPEATS_MAX && !self.repeats.contains_key(&key) {
                note = note.of_others();
                key = note.key();
            }
            match self.repeats.entry(key) {
                Entry::Occupied(mut old)
                    if now.saturating_sub(old.get().reported) < REPEATS_EVERY =>
                {
                    let old = old.get_mut();
                    old.waiting = Some(note.add(old.waiting.take()));
                    return false;
                }
                Entry::Occupied(mut old) => {
                    let old = old.get_mut();
                    note = note.add(old.waiting.take());
                    old.reported = now;
                }
                Entry::Vacant(new) => {
                    new.insert(Repeat { reported: now, waiting: None });
                }
            }
        } else if let Some(service) = note.service_name() {
            // What led to this event stands before it.
            self.push_waiting(now, time_ms, service);
        }
        self.push(time_ms, note);
        true
    }

    /// Records what a service has repeated and is still counted.
    fn push_waiting(&mut self, now: Nanos, time_ms: u64, service: &str) {
        let of_service = self.repeats.iter_mut().filter(|(key, _)| key.is_of(service));
        let counted = of_service.filter_map(|(_, repeat)| {
            let waiting = repeat.waiting.take()?;
            repeat.reported = now;
            Some(waiting)
        });
        let counted: Vec<Note> = counted.collect();
        counted.into_iter().for_each(|note| self.push(time_ms, note));
    }

    /// Returns true if a service's module has logged as many different lines as are separate
    /// events.
    fn is_talkative(&self, key: &RepeatKey) -> bool {
        self.repeats.keys().filter(|it| it.is_of_same_service(key)).count() >= LINES_MAX
    }

    /// Tells what waited long enough, and forgets what did not come again.
    fn settle(&mut self, now: Nanos, time_ms: u64) {
        let mut due = Vec::new();
        self.repeats.retain(|_, repeat| {
            if now.saturating_sub(repeat.reported) < REPEATS_EVERY {
                return true;
            }
            repeat.reported = now;
            let waiting = repeat.waiting.take();
            let comes_again = waiting.is_some();
            due.extend(waiting);
            comes_again
        });
        due.into_iter().for_each(|note| self.push(time_ms, note));
    }

    fn push(&mut self, time_ms: u64, note: Note) {
        self.last += 1;
        if self.events.len() == EVENTS_MAX {
            self.events.pop_front();
        }
        let (event, owner) = note.into_event(self.last, time_ms);
        self.events.push_back(LoggedEvent { event, owner });
    }

    /// Events behind a number.
    fn since(&self, since: u64, sight: &Visibility) -> EventList {
        let first = self.events.front().map_or(self.last + 1, |reported| reported.event.seq);
        let skip = usize::try_from((since + 1).saturating_sub(first)).unwrap_or(usize::MAX);
        let is_seen = |reported: &&LoggedEvent| {
            let session = reported.event.session.as_deref().unwrap_or_default();
            sight.has(session, reported.owner)
        };
        let seen = self.events.iter().skip(skip).filter(is_seen).take(ANSWER_EVENTS_MAX);
        let events: Vec<Event> = seen.map(|reported| reported.event.clone()).collect();
        let is_full = events.len() == ANSWER_EVENTS_MAX;
        EventList {
            schema_version: SCHEMA_VERSION,
            started_ms: self.started_ms,
            last: match events.last() {
                Some(event) if is_full => event.seq,
                _ => self.last.max(since),
            },
            lost: first.saturating_sub(since.saturating_add(1)),
            events,
        }
    }

    /// Answers `GET /v1/events` now, or when something happens.
    pub(super) fn ask(
        &mut self,
        now: Nanos,
        since: u64,
        wait_seconds: u32,
        sight: Visibility,
        reply: Reply<EventList>,
    ) {
        let list = self.since(since.min(u64::MAX - 1), &sight);
        if !list.events.is_empty() || wait_seconds == 0 {
            return reply.ok(list);
        }
        self.followers.retain(|follower| !follower.reply.is_abandoned());
        if self.followers.len() == FOLLOWERS_MAX {
            let message = format!("{FOLLOWERS_MAX} others wait for events already");
            let help = Some("ask without waiting, or end one of them");
            return reply.refuse(error(ErrorCode::Limit, message, help));
        }
        let wait = u64::from(wait_seconds.min(WAIT_SECONDS_MAX)) * 1000;
        let until = Nanos(now.0.saturating_add(Nanos::from_millis(wait).0));
        self.followers.push(Follower { since, until, sight, reply });
    }

    /// Answers waiting clients: all if there is something new, else those whose time is over.
    fn answer(&mut self, now: Nanos) {
        for follower in std::mem::take(&mut self.followers) {
            let over = follower.until <= now;
            if !over && follower.since >= self.last {
                self.followers.push(follower);
                continue;
            }
            let list = self.since(follower.since, &follower.sight);
            if list.events.is_empty() && !over {
                // It may not see what happened.
                self.followers.push(Follower { since: list.last, ..follower });
            } else {
                follower.reply.ok(list);
            }
        }
    }

    fn youngest(&self, count: usize) -> impl Iterator<Item = &Event> {
        let old = self.events.len().saturating_sub(count);
        self.events.iter().skip(old).map(|reported| &reported.event)
    }
}

/// Writes an event as a line of the log of the process.
fn log(event: &Event) {
    let kind = event.kind.name();
    let mut line = event.text.clone();
    if let Some(reason) = &event.reason {
        line.push_str(&format!(": {reason}"));
    }
    let of = [
        event.service.as_ref().map(|service| format!("service {service}")),
        event.port.as_ref().map(|port| format!("port {port}")),
        event.rule.map(|rule| format!("rule #{rule}")),
        (event.count > 1).then(|| format!("{} times", event.count)),
    ];
    let of: Vec<String> = of.into_iter().flatten().collect();
    if !of.is_empty() {
        line.push_str(&format!(" [{}]", of.join(", ")));
    }
    match event.kind {
        EventKind::CellLost | EventKind::ServiceFailed | EventKind::PortGone => {
            tracing::error!(kind, "{line}");
        }
        EventKind::CellSilent
        | EventKind::ServiceNotStarted
        | EventKind::ServiceTrapped
        | EventKind::ServicePolicy
        | EventKind::ServicePutBack
        | EventKind::MoveFailed
        | EventKind::NoticesLost => tracing::warn!(kind, "{line}"),
        _ => tracing::info!(kind, "{line}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanos = REPEATS_EVERY;

    fn dropped(reason: &str, count: u64) -> Note {
        Note::new(EventKind::Drops, "packets were dropped").reason(reason).count(count)
    }

    fn all() -> Visibility {
        Visibility::of_everything()
    }

    fn reported(events: &EventLog) -> Vec<(u64, u64)> {
        events.events.iter().map(|reported| (reported.event.seq, reported.event.count)).collect()
    }

    #[test]
    fn the_first_drop_is_told_at_once_and_the_others_once_a_second_with_their_count() {
        let mut events = EventLog::new(0);
        assert!(events.take(Nanos(0), 0, dropped("trap", 2)));
        for packet in 1..=100 {
            assert!(!events.take(Nanos(packet), 0, dropped("trap", 1)));
        }
        assert!(events.take(Nanos(101), 0, dropped("budget", 1)), "another reason");
        events.settle(Nanos(102), 0);
        assert_eq!(reported(&events), [(1, 2), (2, 1)]);
        events.settle(SECOND, 0);
        events.settle(Nanos(SECOND.0 + 1), 0);
        assert_eq!(reported(&events), [(1, 2), (2, 1), (3, 100)]);
        events.settle(Nanos(3 * SECOND.0), 0);
        assert!(events.repeats.is_empty(), "what does not come again is forgotten");
    }

    #[test]
    fn a_cause_that_is_counted_stands_before_its_effect() {
        let of = |kind, service: &str| Note::new(kind, "").service(service);
        let trapped = |service| of(EventKind::ServiceTrapped, service);
        let mut events = EventLog::new(0);
        for service in ["a", "a", "b", "a", "b"] {
            events.take(Nanos(0), 0, trapped(service));
        }
        events.take(Nanos(1), 0, of(EventKind::ServicePolicy, "a"));
        let reported = |events: &EventLog| -> Vec<(EventKind, u64)> {
            events.events.iter().map(|it| (it.event.kind, it.event.count)).collect()
        };
        let (trap, policy) = (EventKind::ServiceTrapped, EventKind::ServicePolicy);
        let until_policy = [(trap, 1), (trap, 1), (trap, 2), (policy, 1)];
        assert_eq!(reported(&events), until_policy);
        events.settle(SECOND, 0);
        assert_eq!(reported(&events)[4..], [(trap, 1)], "what another service repeats still waits");
    }

    #[test]
    fn only_the_same_line_of_a_module_comes_again() {
        let says = |line: &str| {
            let note = Note::new(EventKind::ModuleEvent, format!("the module says: {line}"));
            note.service("a")
        };
        let mut events = EventLog::new(0);
        for line in ["one", "two", "one", "one"] {
            events.take(Nanos(0), 0, says(line));
        }
        events.settle(SECOND, 0);
        let reported = |events: &EventLog| -> Vec<(u64, String)> {
            let events = events.events.iter();
            events.map(|reported| (reported.event.count, reported.event.text.clone())).collect()
        };
        let line = |count, line: &str| (count, format!("the module says: {line}"));
        assert_eq!(reported(&events), [line(1, "one"), line(1, "two"), line(2, "one")]);
        // A verbose module is reported with its last line.
        let mut events = EventLog::new(0);
        for number in 0..LINES_MAX + 5 {
            events.take(Nanos(0), 0, says(&number.to_string()));
        }
        events.settle(SECOND, 0);
        let reported = reported(&events);
        let further = |number: usize| format!("further lines, the last: the module says: {number}");
        assert_eq!(reported.len(), LINES_MAX + 2);
        assert_eq!(reported[LINES_MAX], (1, further(LINES_MAX)));
        assert_eq!(reported[LINES_MAX + 1], (4, further(LINES_MAX + 4)));
    }

    #[test]
    fn what_an_operator_does_is_told_each_time() {
        let mut events = EventLog::new(0);
        for _ in 0..3 {
            assert!(events.take(Nanos(0), 0, Note::new(EventKind::RulesAdded, "a rule")));
        }
        assert_eq!(events.last, 3);
    }

    #[test]
    fn the_oldest_events_are_evicted_and_their_number_is_reported_as_lost() {
        let mut events = EventLog::new(0);
        let more = 10;
        for _ in 0..EVENTS_MAX + more {
            events.take(Nanos(0), 0, Note::new(EventKind::CellReady, ""));
        }
        let list = events.since(3, &all());
        assert_eq!(list.lost, more as u64 - 3);
        assert_eq!((list.events[0].seq, list.events.len()), (more as u64 + 1, ANSWER_EVENTS_MAX));
        let rest = events.since(events.last - 1, &all());
        assert_eq!((rest.lost, rest.events.len(), rest.last), (0, 1, events.last));
        let none = events.since(events.last, &all());
        assert_eq!((none.lost, none.events.len(), none.last), (0, 0, events.last));
        assert_eq!(events.since(u64::MAX - 1, &all()).events, []);
    }

    #[test]
    fn a_storm_of_reasons_does_not_grow_the_log_without_end() {
        let mut events = EventLog::new(0);
        for reason in 0..2 * REPEATS_MAX {
            events.take(Nanos(0), 0, dropped(&reason.to_string(), 1));
        }
        assert_eq!(events.repeats.len(), REPEATS_MAX + 1);
        events.settle(SECOND, 0);
        let sum: u64 = events.events.iter().map(|reported| reported.event.count).sum();
        assert_eq!(sum, 2 * REPEATS_MAX as u64, "none is uncounted");
    }

    #[test]
    fn a_follower_of_events_is_answered_at_the_next_event_or_its_timeout() {
        let mut events = EventLog::new(0);
        let (reply, mut answer) = Reply::pair();
        events.ask(Nanos(0), 0, 1, all(), reply);
        assert!(answer.try_answer().is_none());
        events.take(Nanos(1), 7, Note::new(EventKind::CellReady, "ready"));
        events.answer(Nanos(1));
        let list = answer.try_answer().unwrap().unwrap();
        assert_eq!((list.last, list.events[0].time_ms), (1, 7));
        let (reply, mut answer) = Reply::pair();
        events.ask(Nanos(1), 1, 1, all(), reply);
        events.answer(SECOND);
        assert!(answer.try_answer().is_none());
        events.answer(Nanos(SECOND.0 + 1));
        assert_eq!(answer.try_answer().unwrap().unwrap().events, []);
    }

    #[test]
    fn the_number_of_waiting_followers_is_limited() {
        let mut events = EventLog::new(0);
        let mut answers = Vec::new();
        for _ in 0..=FOLLOWERS_MAX {
            let (reply, answer) = Reply::pair();
            events.ask(Nanos(0), 0, 60, all(), reply);
            answers.push(answer);
        }
        let refusal = answers.pop().unwrap().try_answer().unwrap().unwrap_err();
        assert_eq!(refusal.code, ErrorCode::Limit);
        answers.pop();
        let (reply, mut answer) = Reply::pair();
        events.ask(Nanos(0), 0, 60, all(), reply);
        assert!(answer.try_answer().is_none(), "one is gone, so there is room");
    }
}
