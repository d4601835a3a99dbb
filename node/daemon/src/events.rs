//! Events of a node, on their way to its log (`observe/event_log.rs`), and the clock by which they
//! have their times.

use api::{Event, EventKind, SCHEMA_VERSION};
use node::{Node, Owner};
use std::fmt::Display;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use units::{Name, RuleId};

/// Longest text of an event and of its reason, in bytes: two lines of a terminal.
const TEXT_LENGTH_MAX: usize = 400;

/// Event that has no number yet.
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
    /// Owner of the subject, who may see the event as the operator may.
    owner: Option<Owner>,
}

impl Note {
    /// Creates one event of this kind, with a sentence for people.
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

    /// Sets the owner of what it is about.
    pub(crate) fn owner(self, owner: Option<Owner>) -> Self {
        Self { owner, ..self }
    }

    /// Sets the number of times that it happened.
    pub(crate) fn count(self, count: u64) -> Self {
        Self { count, ..self }
    }

    /// Sets the service; module and session are added when the node knows it.
    pub(crate) fn service(self, service: impl Display) -> Self {
        Self { service: Some(service.to_string()), ..self }
    }

    /// Sets the rule; its session is added when the node knows it.
    pub(crate) fn rule(self, rule: RuleId) -> Self {
        Self { rule: Some(rule.0), ..self }
    }

    /// Sets the module.
    pub(crate) fn module(self, digest: impl Display) -> Self {
        Self { module: Some(digest.to_string()), ..self }
    }

    /// Sets the session.
    pub(crate) fn session(self, session: impl Display) -> Self {
        Self { session: Some(session.to_string()), ..self }
    }

    /// Sets the port.
    pub(crate) fn port(self, port: impl Display) -> Self {
        Self { port: Some(port.to_string()), ..self }
    }

    /// Sets the reason.
    pub(crate) fn reason(self, reason: impl Display) -> Self {
        Self { reason: Some(cut(reason.to_string())), ..self }
    }

    /// Adds what the node knows of its service and its rule.
    pub(crate) fn completed(mut self, node: &Node) -> Self {
        let service = self.service.as_deref().and_then(|name| Name::new(name).ok());
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

    /// Returns the service that it is about.
    pub(crate) fn service_name(&self) -> Option<&str> {
        self.service.as_deref()
    }

    /// Returns true when traffic can bring it about, as often as it likes.
    pub(crate) const fn repeats(&self) -> bool {
        use EventKind::{Drops, ModuleEvent, ModuleMissed, NoticesLost, ServiceTrapped};
        matches!(self.kind, Drops | ModuleEvent | ModuleMissed | NoticesLost | ServiceTrapped)
    }

    /// Returns the key that notes of the same event have.
    pub(crate) fn key(&self) -> RepeatKey {
        let (service, port, reason) =
            (self.service.clone(), self.port.clone(), self.reason.clone());
        RepeatKey { kind: self.kind, service, rule: self.rule, port, reason, line: None }
    }

    /// Returns the key of a module's own line: only the same line counts as one that comes again.
    pub(crate) fn line_key(&self) -> RepeatKey {
        let line = (self.kind == EventKind::ModuleEvent).then(|| self.text.clone());
        RepeatKey { line, ..self.key() }
    }

    /// Marks the event as one of the further lines of a module, which are counted together.
    pub(crate) fn further_line(self) -> Self {
        Self { text: cut(format!("further lines, the last: {}", self.text)), ..self }
    }

    /// Marks the event as one of the further events of its kind, which are counted together.
    pub(crate) fn of_others(self) -> Self {
        Self { reason: Some("others".to_owned()), ..Self::new(self.kind, self.text) }
            .count(self.count)
    }

    /// Adds the count of an earlier note of the same event.
    pub(crate) fn add(self, earlier: Option<Self>) -> Self {
        let count = self.count + earlier.map_or(0, |earlier| earlier.count);
        Self { count, ..self }
    }

    /// Returns the event with its number and time, in milliseconds since 1970, and its owner.
    pub(crate) fn into_event(self, seq: u64, time_ms: u64) -> (Event, Option<Owner>) {
        let event = Event {
            schema_version: SCHEMA_VERSION,
            seq,
            time_ms,
            kind: self.kind,
            count: self.count,
            service: self.service,
            rule: self.rule,
            module: self.module,
            session: self.session,
            port: self.port,
            reason: self.reason,
            text: self.text,
        };
        (event, self.owner)
    }
}

fn cut(mut text: String) -> String {
    if text.len() > TEXT_LENGTH_MAX {
        text.truncate(text.floor_char_boundary(TEXT_LENGTH_MAX));
        text.push('…');
    }
    text
}

/// Key of notes that are one event when they come again and again.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RepeatKey {
    kind: EventKind,
    service: Option<String>,
    rule: Option<u32>,
    port: Option<String>,
    reason: Option<String>,
    /// Line of a module; `None` for further lines, which are counted together.
    line: Option<String>,
}

impl RepeatKey {
    /// Returns true for a line of a module that is counted on its own.
    pub(crate) const fn is_line(&self) -> bool {
        self.line.is_some()
    }

    /// Returns true for a note about this service.
    pub(crate) fn is_of(&self, service: &str) -> bool {
        self.service.as_deref() == Some(service)
    }

    /// Returns true when both are of one kind and one service.
    pub(crate) fn is_of_same_service(&self, other: &Self) -> bool {
        self.kind == other.kind && self.service == other.service
    }
}

/// Returns the wall clock in nanoseconds since 1970.
pub(crate) fn wall_clock_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the wall clock in milliseconds since 1970.
pub(crate) fn wall_clock_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut() {
        let note = Note::new(EventKind::ModuleEvent, "é".repeat(TEXT_LENGTH_MAX));
        assert!(note.text.len() <= TEXT_LENGTH_MAX + '…'.len_utf8());
    }

    #[test]
    fn an_aggregated_event_keeps_its_kind_and_count_and_has_no_owner() {
        let note = Note::new(EventKind::Drops, "dropped").count(7).service("a").port("left");
        let (event, owner) = note.reason("trap").of_others().into_event(1, 2);
        assert_eq!(
            (event.kind, event.count, event.text.as_str()),
            (EventKind::Drops, 7, "dropped")
        );
        assert_eq!((event.service, event.port, event.session, owner), (None, None, None, None));
        assert_eq!(event.reason.as_deref(), Some("others"));
    }
}
