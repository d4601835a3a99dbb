//! `tam events`: the journal of a node; with `--follow` new events as they happen.

use super::Context;
use crate::failure::{DONE, Failure, Outcome};
use crate::output::escaped;
use crate::style::{Ink, Stream};
use api::{ErrorCode, Event, EventKind, EventList};
use clap::Args;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use std::str::FromStr;
use std::time::Duration;

/// Seconds for which the node holds one request while nothing happens.
const WAIT_SECONDS: u32 = 30;
/// Columns of an event's kind: those of the longest one, `service_not_started`.
const KIND_WIDTH: usize = 19;

/// Arguments of `tam events`.
#[derive(Debug, Args)]
pub struct Events {
    /// Keep running, and print new events; one JSON document a line with --json
    #[arg(long, short)]
    follow: bool,
    /// Show only events after number N, or of the last 30s, 10m, 2h
    #[arg(long, value_name = "N|AGE")]
    since: Option<Since>,
}

/// Lower bound of the requested events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Since {
    /// Number of an event; those after it are requested.
    Number(u64),
    /// Age of the oldest event, counted back from now.
    Age(Duration),
}

/// Text that is neither an event number nor an age.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is neither the number of an event nor an age: 30s, 10m, 2h")]
struct SinceError {
    text: String,
}

/// Progress through the events of one node, page by page.
#[derive(Debug)]
struct Cursor {
    /// Number of the last event read; the next page begins behind it.
    last: u64,
    /// Unix time in milliseconds before which events are left out.
    earliest_ms: u64,
    /// Start of the node whose numbers these are; `None` before the first page.
    started_ms: Option<u64>,
}

/// Page of events, without those that were not requested.
#[derive(Debug)]
struct Page {
    list: EventList,
    /// True if the node had no more events.
    is_end: bool,
}

impl Events {
    pub(crate) fn run(&self, context: &Context<'_>) -> Outcome {
        let client = context.client()?;
        let wait_seconds = if self.follow { WAIT_SECONDS } else { 0 };
        let mut cursor = Cursor::new(self.since, Timestamp::now());
        let mut document = None;
        while !context.output.is_closed() {
            let page = cursor.advance(client.events(cursor.last, wait_seconds)?)?;
            if page.list.lost > 0 && !context.output.is_json() {
                context.output.note(&format!("{} older events are no longer kept", page.list.lost));
            }
            if self.follow || !context.output.is_json() {
                for event in &page.list.events {
                    context.output.result(event, || line(event, &TimeZone::system()))?;
                }
            } else {
                append(&mut document, page.list);
            }
            if page.is_end && !self.follow {
                break;
            }
        }
        match document {
            Some(document) => context.output.result(&document, String::new),
            None => Ok(DONE),
        }
    }
}

impl FromStr for Since {
    type Err = SinceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || SinceError { text: text.to_owned() };
        let number = |digits: &str| digits.parse::<u64>().map_err(|_| wrong());
        let Some(unit) = text.chars().last().filter(char::is_ascii_alphabetic) else {
            return Ok(Self::Number(number(text)?));
        };
        let seconds = match unit {
            's' => 1,
            'm' => 60,
            'h' => 3600,
            'd' => 86_400,
            _ => return Err(wrong()),
        };
        let seconds = number(&text[..text.len() - 1])?.checked_mul(seconds).ok_or_else(wrong)?;
        Ok(Self::Age(Duration::from_secs(seconds)))
    }
}

impl Cursor {
    fn new(since: Option<Since>, now: Timestamp) -> Self {
        let (last, earliest_ms) = match since {
            None => (0, 0),
            Some(Since::Number(number)) => (number, 0),
            Some(Since::Age(age)) => (0, before(now, age)),
        };
        Self { last, earliest_ms, started_ms: None }
    }

    /// Takes the node's answer to a request for the events after `last`.
    ///
    /// # Errors
    /// The node was restarted since the first page, so that numbers no longer match.
    fn advance(&mut self, mut list: EventList) -> Result<Page, Failure> {
        if *self.started_ms.get_or_insert(list.started_ms) != list.started_ms {
            let message = "the node was started anew: its events begin with 1 again";
            return Err(Failure::new(ErrorCode::Failed, message)
                .help("`tam events --follow` again follows the new one"));
        }
        self.last = list.last;
        let is_end = list.events.is_empty();
        list.events.retain(|event| event.time_ms >= self.earliest_ms);
        Ok(Page { list, is_end })
    }
}

/// Returns the Unix time of `age` before `now`, in milliseconds; 0 when that is before 1970.
fn before(now: Timestamp, age: Duration) -> u64 {
    let age = i64::try_from(age.as_millis()).unwrap_or(i64::MAX);
    u64::try_from(now.as_millisecond().saturating_sub(age)).unwrap_or(0)
}

/// Adds a page to the document of all pages, which has the number of lost events of the first one.
fn append(document: &mut Option<EventList>, page: EventList) {
    match document {
        None => *document = Some(page),
        Some(document) => {
            document.last = page.last;
            document.events.extend(page.events);
        }
    }
}

/// Returns the colour of an event's kind: red for what failed, yellow for what may have to be acted
/// upon.
const fn ink(kind: EventKind) -> Ink {
    match kind {
        EventKind::CellLost
        | EventKind::ServiceNotStarted
        | EventKind::ServiceFailed
        | EventKind::ServiceTrapped
        | EventKind::MoveFailed
        | EventKind::StateLost
        | EventKind::PortGone
        | EventKind::LedgerFailed
        | EventKind::CapabilityEnded
        | EventKind::ModuleMissed => Ink::Bad,
        EventKind::Drops
        | EventKind::CellSilent
        | EventKind::PortSlow
        | EventKind::PortFallback
        | EventKind::DropsUncounted
        | EventKind::NoticesLost
        | EventKind::ServicePolicy
        | EventKind::CallRefused
        | EventKind::ClockOdd => Ink::Warning,
        EventKind::NodeStarted
        | EventKind::BpfSwitched
        | EventKind::CellReady
        | EventKind::ServiceStarted
        | EventKind::ServiceMoved
        | EventKind::ServiceReplaced
        | EventKind::ServicePutBack
        | EventKind::ServiceRemoved
        | EventKind::ServiceCalled
        | EventKind::SessionCreated
        | EventKind::SessionChanged
        | EventKind::SessionRemoved
        | EventKind::RulesAdded
        | EventKind::RulesRemoved
        | EventKind::PortChanged
        | EventKind::PortBack
        | EventKind::ModuleEvent
        | EventKind::ModuleFetched
        | EventKind::StateApplied
        | EventKind::StateRolledBack
        | EventKind::LedgerBack
        | EventKind::Other => Ink::Kind,
    }
}

/// Formats an event as a line for people: time, kind, sentence, and the objects that it is about.
fn line(event: &Event, zone: &TimeZone) -> String {
    let time =
        i64::try_from(event.time_ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    let time = time.map_or_else(String::new, |time| {
        time.to_zoned(zone.clone()).strftime("%Y-%m-%d %H:%M:%S%.3f").to_string()
    });
    let kind = format!("{:<KIND_WIDTH$}", event.kind.name());
    let mut text = format!("{time}  {}  ", Stream::Output.paint(ink(event.kind), &kind));
    if event.count > 1 {
        text.push_str(&format!("{} × ", event.count));
    }
    text.push_str(&escaped(&event.text));
    if let Some(reason) = &event.reason {
        text.push_str(&format!(": {}", escaped(reason)));
    }
    let of = [
        event.service.as_ref().map(|service| format!("service {service}")),
        event.port.as_ref().map(|port| format!("port {port}")),
        event.rule.map(|rule| format!("rule #{rule}")),
        event.module.as_ref().map(|module| format!("module {}", super::short_digest(module))),
        event.session.as_ref().map(|session| format!("session {session}")),
    ];
    let of: Vec<String> = of.into_iter().flatten().collect();
    if !of.is_empty() {
        text.push_str(&format!("  [{}]", escaped(&of.join(", "))));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn since_is_a_number_or_an_age() {
        assert_eq!("17".parse(), Ok(Since::Number(17)));
        assert_eq!("10m".parse(), Ok(Since::Age(Duration::from_secs(600))));
        for wrong in ["", "m", "10w", "-1", "1.5h", "99999999999999999999s", "10µ"] {
            assert!(wrong.parse::<Since>().is_err(), "{wrong}");
        }
        let error = "10w".parse::<Since>().unwrap_err().to_string();
        assert_eq!(error, "'10w' is neither the number of an event nor an age: 30s, 10m, 2h");
    }

    fn event(seq: u64, time_ms: u64) -> Event {
        serde_json::from_value(serde_json::json!({
            "schema_version": 1, "seq": seq, "time_ms": time_ms, "kind": "drops",
            "count": 1, "text": "",
        }))
        .unwrap()
    }

    /// Events of a node that started at the millisecond 5.
    fn page(events: &[(u64, u64)]) -> EventList {
        let events: Vec<Event> = events.iter().map(|&(seq, at)| event(seq, at)).collect();
        let last = events.last().map_or(0, |event| event.seq);
        EventList { schema_version: 1, started_ms: 5, events, last, lost: 0 }
    }

    fn numbers(list: &EventList) -> Vec<u64> {
        list.events.iter().map(|event| event.seq).collect()
    }

    #[test]
    fn reading_begins_where_it_is_said_and_goes_on_behind_the_last_event() {
        let now = Timestamp::from_millisecond(60_000).unwrap();
        assert_eq!(Cursor::new(None, now).last, 0);
        let mut cursor = Cursor::new(Some(Since::Number(7)), now);
        assert_eq!(cursor.last, 7);
        let read = cursor.advance(page(&[(8, 1), (9, 2)])).unwrap();
        assert_eq!((numbers(&read.list), cursor.last, read.is_end), (vec![8, 9], 9, false));
    }

    #[test]
    fn events_before_an_age_are_left_out_and_do_not_end_the_reading() {
        let now = Timestamp::from_millisecond(60_000).unwrap();
        let mut cursor = Cursor::new(Some(Since::Age(Duration::from_secs(10))), now);
        let read = cursor.advance(page(&[(1, 1), (2, 49_999)])).unwrap();
        assert_eq!((numbers(&read.list), cursor.last, read.is_end), (vec![], 2, false));
        let read = cursor.advance(page(&[(3, 50_000)])).unwrap();
        assert_eq!(numbers(&read.list), [3]);
        assert!(cursor.advance(page(&[])).unwrap().is_end);
        let always = Cursor::new(Some(Since::Age(Duration::from_secs(u64::MAX))), now);
        assert_eq!(always.earliest_ms, 0, "an age before 1970 leaves out nothing");
    }

    #[test]
    fn numbers_of_a_node_that_was_started_anew_are_not_mixed_with_those_before() {
        let mut cursor = Cursor::new(None, Timestamp::UNIX_EPOCH);
        cursor.advance(page(&[(1, 1)])).unwrap();
        let anew = EventList { started_ms: 6, ..page(&[(1, 1)]) };
        let failure = cursor.advance(anew).unwrap_err();
        assert!(failure.message.contains("started anew"), "{}", failure.message);
    }

    #[test]
    fn one_document_has_the_events_of_all_pages_and_what_the_first_one_had_lost() {
        let mut document = None;
        append(&mut document, EventList { lost: 4, ..page(&[(5, 1), (6, 1)]) });
        append(&mut document, page(&[(7, 1)]));
        let document = document.unwrap();
        assert_eq!((numbers(&document), document.last, document.lost), (vec![5, 6, 7], 7, 4));
    }

    #[test]
    fn the_longest_kind_keeps_its_distance() {
        let mut event = Event {
            kind: EventKind::ServiceNotStarted,
            text: "it never ran".into(),
            ..event(1, 0)
        };
        let text = |event: &Event| line(event, &TimeZone::UTC);
        let longest = text(&event);
        assert!(longest.ends_with("service_not_started  it never ran"), "{longest}");
        event.kind = EventKind::Drops;
        assert_eq!(text(&event).find("it never"), longest.find("it never"));
    }

    #[test]
    fn an_event_is_one_line_that_no_terminal_obeys() {
        let event = Event {
            schema_version: 1,
            seq: 1,
            time_ms: 1_000,
            kind: EventKind::Drops,
            count: 12,
            service: Some("monitor".into()),
            rule: Some(4),
            module: Some("sha256:0123456789abcdef".into()),
            session: None,
            port: None,
            reason: Some("trap".into()),
            text: "packets were \u{1b}dropped".into(),
        };
        assert_eq!(
            line(&event, &TimeZone::UTC),
            "1970-01-01 00:00:01.000  drops                12 × packets were \\u{1b}dropped: trap  \
             [service monitor, rule #4, module 0123456789ab]"
        );
    }
}
