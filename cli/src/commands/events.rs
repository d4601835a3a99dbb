//! `tam events`: what happened on a node, and what happens.

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

/// Arguments of `tam events`.
#[derive(Debug, Args)]
pub struct Events {
    /// Go on, and print what happens; one JSON document a line with --json
    #[arg(long, short)]
    follow: bool,
    /// Only those behind event number N, or of the last 30s, 10m, 2h
    #[arg(long, value_name = "N|AGE")]
    since: Option<Since>,
}

/// From where on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Since {
    Number(u64),
    Age(Duration),
}

impl FromStr for Since {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong =
            || format!("'{text}' is neither the number of an event nor an age: 30s, 10m, 2h");
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

/// How long one question waits while nothing happens.
const WAIT_SECONDS: u32 = 30;

impl Events {
    pub(crate) fn run(&self, context: &Context<'_>) -> Outcome {
        let client = context.client()?;
        let (mut since, earliest_ms) = match self.since {
            None => (0, 0),
            Some(Since::Number(number)) => (number, 0),
            Some(Since::Age(age)) => (0, age_ago(age)),
        };
        let mut all: Option<EventList> = None;
        let mut started_ms = None;
        while !context.output.is_closed() {
            let wait = if self.follow { WAIT_SECONDS } else { 0 };
            let mut list = client.events(since, wait)?;
            if *started_ms.get_or_insert(list.started_ms) != list.started_ms {
                let message = "the node was started anew: its events begin with 1 again";
                return Err(Failure::new(ErrorCode::Failed, message)
                    .help("`tam events --follow` again follows the new one"));
            }
            let ended = list.events.is_empty();
            since = list.last;
            if list.lost > 0 && !context.output.is_json() {
                context.output.note(&format!("{} older events are no longer kept", list.lost));
            }
            list.events.retain(|event| event.time_ms >= earliest_ms);
            if self.follow || !context.output.is_json() {
                for event in &list.events {
                    context.output.result(event, || line(event, &TimeZone::system()))?;
                }
            } else {
                match &mut all {
                    None => all = Some(list),
                    Some(all) => {
                        all.last = list.last;
                        all.events.extend(list.events);
                    }
                }
            }
            if ended && !self.follow {
                break;
            }
        }
        match all {
            Some(all) => context.output.result(&all, String::new),
            None => Ok(DONE),
        }
    }
}

fn age_ago(age: Duration) -> u64 {
    let now = Timestamp::now().as_millisecond();
    let age = i64::try_from(age.as_millis()).unwrap_or(i64::MAX);
    u64::try_from(now.saturating_sub(age)).unwrap_or(0)
}

fn ink(kind: EventKind) -> Ink {
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
        _ => Ink::Kind,
    }
}

/// Width of an event's kind: that of the longest one, `service_not_started`.
const KIND_WIDTH: usize = 19;

/// An event for people: time, kind, what happened, and of what.
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
        event.rule.map(|rule| format!("rule {rule}")),
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
    }

    #[test]
    fn the_longest_kind_keeps_its_distance() {
        let mut event: Event = serde_json::from_value(serde_json::json!({
            "schema_version": 1, "seq": 1, "time_ms": 0, "kind": "service_not_started",
            "count": 1, "text": "it never ran",
        }))
        .unwrap();
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
             [service monitor, rule 4, module 0123456789ab]"
        );
    }
}
