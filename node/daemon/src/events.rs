//! The journal: what happened on this node, numbered, in memory, and never too much of it.
//!
//! ```text
//!  Daemon::note ─▶ once and again? ─ no ──────────────▶ ┌─────────┐ ─▶ log
//!                     │ yes                             │ journal │ ─▶ who follows
//!                     └─▶ first at once, the rest ─────▶ └─────────┘ ─▶ GET /v1/events
//!                         counted, one a second              └▶ the oldest make room, counted
//! ```
//!
//! It reads no clock: whoever notes says when it is.

use crate::control::authority::Sight;
use crate::daemon::Daemon;
use crate::http::error;
use crate::reply::Reply;
use api::{ErrorCode, Event, EventKind, EventList, SCHEMA_VERSION};
use node::{Node, Owner};
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Display;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::time::Duration;
use units::{Nanos, RuleId};

/// Events that are kept: a day of a node where something happens each 20 s, in 1 MiB.
const EVENTS_MAX: usize = 4096;
/// Events of one answer; the next question has the rest.
const ANSWER_EVENTS_MAX: usize = 1000;
/// What comes again and again is told so often.
const REPEATS_EVERY: Nanos = Nanos::from_millis(1000);
/// Kinds of repeated events that are counted apart at a time: the reasons of all services and
/// ports of a busy node. Further ones share one entry for each kind.
const REPEATS_MAX: usize = 1024;
/// Different lines of a service's module in [`REPEATS_EVERY`] that are told apart: what one call says when
/// it is asked for much. Further ones are one event, with the last of them.
const LINES_MAX: usize = 16;
/// Longest wait of one question; the client asks again.
const WAIT_SECONDS_MAX: u32 = 60;
/// Questions that wait at a time.
const FOLLOWERS_MAX: usize = 32;
/// Longest text of an event and of its reason, in bytes: two lines of a terminal.
const TEXT_LENGTH_MAX: usize = 400;

/// Something to be told: what [`Daemon::note`] takes.
#[derive(Clone, Debug)]
#[must_use = "an event that is not noted did not happen"]
pub(crate) struct Note {
    kind: EventKind,
    text: String,
    count: u64,
    service: Option<String>,
    rule: Option<u32>,
    module: Option<String>,
    session: Option<String>,
    port: Option<String>,
    reason: Option<String>,
    /// Whose business it is, beside the operator's.
    owner: Option<Owner>,
}

impl Note {
    /// One event of this kind, with a sentence for people.
    pub(crate) fn new(kind: EventKind, text: impl Into<String>) -> Self {
        Self {
            kind,
            text: cut(text.into()),
            count: 1,
            service: None,
            rule: None,
            module: None,
            session: None,
            port: None,
            reason: None,
            owner: None,
        }
    }

    /// Of what somebody has.
    pub(crate) fn owner(self, owner: Option<Owner>) -> Self {
        Self { owner, ..self }
    }

    /// So often.
    pub(crate) fn count(self, count: u64) -> Self {
        Self { count, ..self }
    }

    /// Of this service; module and session are added when the node knows it.
    pub(crate) fn service(self, service: impl Display) -> Self {
        Self { service: Some(service.to_string()), ..self }
    }

    /// Of this rule; its session is added when the node knows it.
    pub(crate) fn rule(self, rule: RuleId) -> Self {
        Self { rule: Some(rule.0), ..self }
    }

    /// Of this module.
    pub(crate) fn module(self, digest: impl Display) -> Self {
        Self { module: Some(digest.to_string()), ..self }
    }

    /// Of this session.
    pub(crate) fn session(self, session: impl Display) -> Self {
        Self { session: Some(session.to_string()), ..self }
    }

    /// Of this port.
    pub(crate) fn port(self, port: impl Display) -> Self {
        Self { port: Some(port.to_string()), ..self }
    }

    /// Why.
    pub(crate) fn reason(self, reason: impl Display) -> Self {
        Self { reason: Some(cut(reason.to_string())), ..self }
    }

    /// Adds what the node knows of its service and its rule.
    pub(crate) fn completed(mut self, node: &Node) -> Self {
        let service = self.service.as_deref().and_then(|name| units::Name::new(name).ok());
        if let Some(service) = service.and_then(|name| node.service(&name)) {
            self.module = self.module.or_else(|| Some(service.module.digest.clone()));
            self.session = self.session.or_else(|| Some(service.session.to_string()));
            self.owner = self.owner.or(service.owner);
        }
        if let Some(rule) = self.rule.filter(|_| self.session.is_none()) {
            let payer = node.rule_payer(RuleId(rule));
            self.session = payer.map(|(session, _)| session.to_string());
            self.owner = self.owner.or(payer.and_then(|(_, owner)| owner));
        }
        self
    }

    fn key(&self) -> RepeatKey {
        let (service, port, reason) =
            (self.service.clone(), self.port.clone(), self.reason.clone());
        RepeatKey { kind: self.kind, service, rule: self.rule, port, reason, line: None }
    }

    /// The key of a line of a module's own: only the same line counts as one that comes again.
    fn line_key(&self) -> RepeatKey {
        let line = (self.kind == EventKind::ModuleEvent).then(|| self.text.clone());
        RepeatKey { line, ..self.key() }
    }
}

/// What traffic can bring about, as often as it likes.
const fn repeats(kind: EventKind) -> bool {
    use EventKind::{Drops, ModuleEvent, ModuleMissed, NoticesLost, ServiceTrapped};
    matches!(kind, Drops | ModuleEvent | ModuleMissed | NoticesLost | ServiceTrapped)
}

fn cut(mut text: String) -> String {
    if text.len() > TEXT_LENGTH_MAX {
        text.truncate(text.floor_char_boundary(TEXT_LENGTH_MAX));
        text.push('…');
    }
    text
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct RepeatKey {
    kind: EventKind,
    service: Option<String>,
    rule: Option<u32>,
    port: Option<String>,
    reason: Option<String>,
    /// A module's line; none for the lines beyond those that are told apart.
    line: Option<String>,
}

#[derive(Debug)]
struct Repeat {
    told: Nanos,
    /// What came since, counted.
    waiting: Option<Note>,
}

/// What happened, oldest first.
#[derive(Debug)]
pub(crate) struct Journal {
    started_ms: u64,
    events: VecDeque<Told>,
    /// Number of the youngest.
    last: u64,
    repeats: BTreeMap<RepeatKey, Repeat>,
    followers: Vec<Follower>,
}

/// An event, and whose business it is.
#[derive(Debug)]
struct Told {
    event: Event,
    owner: Option<Owner>,
}

#[derive(Debug)]
struct Follower {
    since: u64,
    until: Nanos,
    sight: Sight,
    reply: Reply<EventList>,
}

impl Journal {
    /// An empty one of a node that starts now.
    pub(crate) fn new() -> Self {
        Self {
            started_ms: wall_clock_ms(),
            events: VecDeque::new(),
            last: 0,
            repeats: BTreeMap::new(),
            followers: Vec::new(),
        }
    }

    /// Takes a note; true when it became an event at once.
    fn take(&mut self, now: Nanos, time_ms: u64, mut note: Note) -> bool {
        if repeats(note.kind) {
            let mut key = note.line_key();
            if key.line.is_some() && !self.repeats.contains_key(&key) && self.is_talkative(&key) {
                note.text = cut(format!("further lines, the last: {}", note.text));
                key = note.key();
            }
            if self.repeats.len() >= REPEATS_MAX && !self.repeats.contains_key(&key) {
                (note.service, note.rule, note.port) = (None, None, None);
                (note.module, note.session, note.owner) = (None, None, None);
                note.reason = Some("others".to_owned());
                key = note.key();
            }
            let repeat = self.repeats.entry(key);
            match repeat {
                std::collections::btree_map::Entry::Occupied(mut old)
                    if now.saturating_sub(old.get().told) < REPEATS_EVERY =>
                {
                    let old = old.get_mut();
                    note.count += old.waiting.as_ref().map_or(0, |waiting| waiting.count);
                    old.waiting = Some(note);
                    return false;
                }
                std::collections::btree_map::Entry::Occupied(mut old) => {
                    let old = old.get_mut();
                    note.count += old.waiting.take().map_or(0, |waiting| waiting.count);
                    old.told = now;
                }
                std::collections::btree_map::Entry::Vacant(new) => {
                    new.insert(Repeat { told: now, waiting: None });
                }
            }
        }
        self.push(time_ms, note);
        true
    }

    /// Whether a service's module has said as many different lines as are told apart.
    fn is_talkative(&self, key: &RepeatKey) -> bool {
        let same = |it: &&RepeatKey| it.kind == key.kind && it.service == key.service;
        self.repeats.keys().filter(same).count() >= LINES_MAX
    }

    /// Tells what waited long enough, and forgets what did not come again.
    fn settle(&mut self, now: Nanos, time_ms: u64) {
        let mut due = Vec::new();
        self.repeats.retain(|_, repeat| {
            if now.saturating_sub(repeat.told) < REPEATS_EVERY {
                return true;
            }
            repeat.told = now;
            let waiting = repeat.waiting.take();
            let comes_again = waiting.is_some();
            due.extend(waiting);
            comes_again
        });
        due.into_iter().for_each(|note| self.push(time_ms, note));
    }

    fn push(&mut self, time_ms: u64, note: Note) {
        let owner = note.owner;
        self.last += 1;
        if self.events.len() == EVENTS_MAX {
            self.events.pop_front();
        }
        let event = Event {
            schema_version: SCHEMA_VERSION,
            seq: self.last,
            time_ms,
            kind: note.kind,
            count: note.count,
            service: note.service,
            rule: note.rule,
            module: note.module,
            session: note.session,
            port: note.port,
            reason: note.reason,
            text: note.text,
        };
        self.events.push_back(Told { event, owner });
    }

    /// Events behind a number.
    fn since(&self, since: u64, sight: &Sight) -> EventList {
        let first = self.events.front().map_or(self.last + 1, |told| told.event.seq);
        let skip = usize::try_from((since + 1).saturating_sub(first)).unwrap_or(usize::MAX);
        let is_seen = |told: &&Told| {
            let session = told.event.session.as_deref().unwrap_or_default();
            sight.has(session, told.owner)
        };
        let seen = self.events.iter().skip(skip).filter(is_seen).take(ANSWER_EVENTS_MAX);
        let events: Vec<Event> = seen.map(|told| told.event.clone()).collect();
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

    /// Answers a question now, or when something happens.
    fn ask(
        &mut self,
        now: Nanos,
        since: u64,
        wait_seconds: u32,
        sight: Sight,
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

    /// Answers those who wait: all when there is something new, else whose time is over.
    fn answer(&mut self, now: Nanos) {
        for follower in std::mem::take(&mut self.followers) {
            let over = follower.until <= now;
            if !over && follower.since >= self.last {
                self.followers.push(follower);
                continue;
            }
            let list = self.since(follower.since, &follower.sight);
            if list.events.is_empty() && !over {
                // What happened is not his business.
                self.followers.push(Follower { since: list.last, ..follower });
            } else {
                follower.reply.ok(list);
            }
        }
    }

    fn youngest(&self, count: usize) -> impl Iterator<Item = &Event> {
        let old = self.events.len().saturating_sub(count);
        self.events.iter().skip(old).map(|told| &told.event)
    }
}

impl Daemon {
    /// Writes down what happened: for the journal, for who follows it, and for the log.
    pub(crate) fn note(&mut self, note: Note) {
        let note = note.completed(self.control.node());
        let before = self.journal.last;
        self.journal.take(self.now(), wall_clock_ms(), note);
        self.told_since(before);
    }

    /// How many events there were.
    pub(crate) const fn events_told(&self) -> u64 {
        self.journal.last
    }

    /// Looks after what waits: called again and again, with each heartbeat.
    pub(crate) fn settle_journal(&mut self) {
        let before = self.journal.last;
        self.journal.settle(self.now(), wall_clock_ms());
        self.told_since(before);
    }

    /// Answers `GET /v1/events`.
    pub(crate) fn events(
        &mut self,
        since: u64,
        wait_seconds: u32,
        sight: Sight,
        reply: Reply<EventList>,
    ) {
        let now = self.now();
        self.journal.ask(now, since, wait_seconds, sight, reply);
    }

    fn told_since(&mut self, before: u64) {
        let new = usize::try_from(self.journal.last - before).unwrap_or(usize::MAX);
        self.journal.youngest(new).for_each(log);
        let now = self.now();
        self.journal.answer(now);
    }
}

/// An event as a line of the log.
fn log(event: &Event) {
    let kind = event.kind.name();
    let mut line = event.text.clone();
    if let Some(reason) = &event.reason {
        line.push_str(&format!(": {reason}"));
    }
    let of = [
        event.service.as_ref().map(|service| format!("service {service}")),
        event.port.as_ref().map(|port| format!("port {port}")),
        event.rule.map(|rule| format!("rule {rule}")),
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

/// Nanoseconds since 1970.
pub(crate) fn wall_clock_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Milliseconds since 1970.
pub(crate) fn wall_clock_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanos = REPEATS_EVERY;

    fn dropped(reason: &str, count: u64) -> Note {
        Note::new(EventKind::Drops, "packets were dropped").reason(reason).count(count)
    }

    fn all() -> Sight {
        Sight::of_everything()
    }

    fn told(journal: &Journal) -> Vec<(u64, u64)> {
        journal.events.iter().map(|told| (told.event.seq, told.event.count)).collect()
    }

    #[test]
    fn the_first_drop_is_told_at_once_and_the_others_once_a_second_with_their_count() {
        let mut journal = Journal::new();
        assert!(journal.take(Nanos(0), 0, dropped("trap", 2)));
        for packet in 1..=100 {
            assert!(!journal.take(Nanos(packet), 0, dropped("trap", 1)));
        }
        assert!(journal.take(Nanos(101), 0, dropped("budget", 1)), "another reason");
        journal.settle(Nanos(102), 0);
        assert_eq!(told(&journal), [(1, 2), (2, 1)]);
        journal.settle(SECOND, 0);
        journal.settle(Nanos(SECOND.0 + 1), 0);
        assert_eq!(told(&journal), [(1, 2), (2, 1), (3, 100)]);
        journal.settle(Nanos(3 * SECOND.0), 0);
        assert!(journal.repeats.is_empty(), "what does not come again is forgotten");
    }

    #[test]
    fn only_the_same_line_of_a_module_comes_again() {
        let says = |line: &str| {
            let note = Note::new(EventKind::ModuleEvent, format!("the module says: {line}"));
            note.service("a")
        };
        let mut journal = Journal::new();
        for line in ["one", "two", "one", "one"] {
            journal.take(Nanos(0), 0, says(line));
        }
        journal.settle(SECOND, 0);
        let told = |journal: &Journal| -> Vec<(u64, String)> {
            let events = journal.events.iter();
            events.map(|told| (told.event.count, told.event.text.clone())).collect()
        };
        let line = |count, line: &str| (count, format!("the module says: {line}"));
        assert_eq!(told(&journal), [line(1, "one"), line(1, "two"), line(2, "one")]);
        // Who says very much is told with the last of it.
        let mut journal = Journal::new();
        for number in 0..LINES_MAX + 5 {
            journal.take(Nanos(0), 0, says(&number.to_string()));
        }
        journal.settle(SECOND, 0);
        let told = told(&journal);
        let further = |number: usize| format!("further lines, the last: the module says: {number}");
        assert_eq!(told.len(), LINES_MAX + 2);
        assert_eq!(told[LINES_MAX], (1, further(LINES_MAX)));
        assert_eq!(told[LINES_MAX + 1], (4, further(LINES_MAX + 4)));
    }

    #[test]
    fn what_an_operator_does_is_told_each_time() {
        let mut journal = Journal::new();
        for _ in 0..3 {
            assert!(journal.take(Nanos(0), 0, Note::new(EventKind::RulesAdded, "a rule")));
        }
        assert_eq!(journal.last, 3);
    }

    #[test]
    fn the_oldest_make_room_and_who_asks_for_them_hears_how_many_are_lost() {
        let mut journal = Journal::new();
        let more = 10;
        for _ in 0..EVENTS_MAX + more {
            journal.take(Nanos(0), 0, Note::new(EventKind::CellReady, ""));
        }
        let list = journal.since(3, &all());
        assert_eq!(list.lost, more as u64 - 3);
        assert_eq!((list.events[0].seq, list.events.len()), (more as u64 + 1, ANSWER_EVENTS_MAX));
        let rest = journal.since(journal.last - 1, &all());
        assert_eq!((rest.lost, rest.events.len(), rest.last), (0, 1, journal.last));
        let none = journal.since(journal.last, &all());
        assert_eq!((none.lost, none.events.len(), none.last), (0, 0, journal.last));
        assert_eq!(journal.since(u64::MAX - 1, &all()).events, []);
    }

    #[test]
    fn a_storm_of_reasons_does_not_grow_the_journal_without_end() {
        let mut journal = Journal::new();
        for reason in 0..2 * REPEATS_MAX {
            journal.take(Nanos(0), 0, dropped(&reason.to_string(), 1));
        }
        assert_eq!(journal.repeats.len(), REPEATS_MAX + 1);
        journal.settle(SECOND, 0);
        let sum: u64 = journal.events.iter().map(|told| told.event.count).sum();
        assert_eq!(sum, 2 * REPEATS_MAX as u64, "none is uncounted");
    }

    #[test]
    fn who_follows_is_answered_when_something_happens_or_the_time_is_over() {
        let mut journal = Journal::new();
        let (reply, mut answer) = Reply::pair();
        journal.ask(Nanos(0), 0, 1, all(), reply);
        assert!(answer.try_answer().is_none());
        journal.take(Nanos(1), 7, Note::new(EventKind::CellReady, "ready"));
        journal.answer(Nanos(1));
        let list = answer.try_answer().unwrap().unwrap();
        assert_eq!((list.last, list.events[0].time_ms), (1, 7));
        let (reply, mut answer) = Reply::pair();
        journal.ask(Nanos(1), 1, 1, all(), reply);
        journal.answer(SECOND);
        assert!(answer.try_answer().is_none());
        journal.answer(Nanos(SECOND.0 + 1));
        assert_eq!(answer.try_answer().unwrap().unwrap().events, []);
    }

    #[test]
    fn only_so_many_wait_at_a_time() {
        let mut journal = Journal::new();
        let mut answers = Vec::new();
        for _ in 0..=FOLLOWERS_MAX {
            let (reply, answer) = Reply::pair();
            journal.ask(Nanos(0), 0, 60, all(), reply);
            answers.push(answer);
        }
        let refusal = answers.pop().unwrap().try_answer().unwrap().unwrap_err();
        assert_eq!(refusal.code, ErrorCode::Limit);
        answers.pop();
        let (reply, mut answer) = Reply::pair();
        journal.ask(Nanos(0), 0, 60, all(), reply);
        assert!(answer.try_answer().is_none(), "one is gone, so there is room");
    }

    #[test]
    fn a_long_text_is_cut() {
        let note = Note::new(EventKind::ModuleEvent, "é".repeat(TEXT_LENGTH_MAX));
        assert!(note.text.len() <= TEXT_LENGTH_MAX + '…'.len_utf8());
    }
}
