//! Usage of a session over time, one line for each resource; a character is a second or a minute.

use crate::amounts;
use crate::output::{self, Rows};
use api::{SessionDetails, SessionHistory, SessionStep};
use session::{Share, VirtualProcessor};

/// Blank-to-full scale of block characters: zero, and seven steps up to full.
const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// The same scale in ASCII, for terminals without block characters.
const ASCII: [char; 8] = ['_', '.', ':', '-', '=', '+', '*', '#'];

/// Returns the sparklines of seconds and of minutes; `None` for a session that never used anything.
pub(super) fn text(session: &SessionDetails) -> Option<String> {
    let SessionHistory { seconds, minutes } = session.used.history.as_ref()?;
    let marks = if output::is_utf8() { BLOCKS } else { ASCII };
    let mut text = rows(session, seconds, "seconds", marks)?.to_string();
    // Minutes add nothing while the seconds cover everything.
    if minutes.len() > 2 {
        text.push('\n');
        text.push_str(&rows(session, minutes, "minutes", marks)?.to_string());
    }
    Some(text)
}

fn rows(
    session: &SessionDetails,
    steps: &[SessionStep],
    unit: &str,
    marks: [char; 8],
) -> Option<Rows> {
    let (promised, count) = (&session.promised, steps.len());
    if count == 0 {
        return None;
    }
    let last = format!("the last {count} {unit}");
    let mut rows = Rows::new(["resource", &last, "at most", "a full block is"]);
    let mut row = |name: &str, of: &dyn Fn(&SessionStep) -> f64, most, shown: &Shown| {
        let values: Vec<f64> = steps.iter().map(of).collect();
        rows.add(line(name, &values, most, shown, marks));
    };
    let processors = promised.cpu.iter().filter_map(|text| text.parse::<VirtualProcessor>().ok());
    let cpu: f64 = processors.map(|processor| part(processor.share)).sum();
    let below = promised.below.as_ref().and_then(|text| text.parse::<Share>().ok()).map(part);
    row("cpu", &|step| part_of_core(step.cpu_ns, step), promise(cpu), &percent);
    row("below", &|step| part_of_core(step.below_ns, step), below, &percent);
    let memory = promised.memory_bytes.map(|bytes| bytes as f64);
    row("memory", &|step| step.memory_bytes as f64, memory, &size);
    row("dropped", &|step| step.queue_dropped as f64, None, &packets);
    row("sent at user", &|step| by_second(step.sent_bytes, step), None, &rate);
    row("came", &|step| by_second(step.bytes, step), None, &rate);
    Some(rows)
}

/// Formatter of a value.
type Shown = dyn Fn(f64) -> String;

fn line(
    name: &str,
    values: &[f64],
    promised: Option<f64>,
    shown: &Shown,
    marks: [char; 8],
) -> [String; 4] {
    let most = values.iter().copied().fold(0.0, f64::max);
    let full = match promised {
        Some(promised) => format!("{}, as promised", shown(promised)),
        None if most > 0.0 => "the most".to_owned(),
        None => "-".to_owned(),
    };
    [name.to_owned(), sparkline(values, promised.unwrap_or(most), marks), shown(most), full]
}

/// Returns a character for each value: the lowest is zero, the highest `full` and more.
fn sparkline(values: &[f64], full: f64, marks: [char; 8]) -> String {
    let mark = |value: &f64| {
        let part = if full > 0.0 { value / full } else { 0.0 };
        // The conversion saturates.
        let eighth = if *value > 0.0 { (part * 7.0).ceil().max(1.0) as usize } else { 0 };
        marks[eighth.min(7)]
    };
    values.iter().map(mark).collect()
}

fn promise(part: f64) -> Option<f64> {
    (part > 0.0).then_some(part)
}

fn part(share: Share) -> f64 {
    share.slice().0 as f64 / share.period().0 as f64
}

fn part_of_core(ns: u64, step: &SessionStep) -> f64 {
    ns as f64 / (step.length_ms.max(1) as f64 * 1e6)
}

fn by_second(count: u64, step: &SessionStep) -> f64 {
    count as f64 * 1000.0 / step.length_ms.max(1) as f64
}

fn percent(part: f64) -> String {
    format!("{:.1}%", part * 100.0)
}

fn size(bytes: f64) -> String {
    amounts::size(bytes as u64)
}

fn packets(count: f64) -> String {
    format!("{count:.0} packets")
}

fn rate(bytes: f64) -> String {
    amounts::rate((bytes * 8.0) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::{ReservationInfo, SessionUse};

    fn step(cpu_ms: u64, bytes: u64) -> SessionStep {
        let (cpu_ns, memory_bytes) = (cpu_ms * 1_000_000, 32 << 20);
        SessionStep { length_ms: 1000, cpu_ns, memory_bytes, bytes, ..SessionStep::default() }
    }

    fn gold(seconds: Vec<SessionStep>) -> SessionDetails {
        let promised = ReservationInfo {
            cpu: vec!["1ms/4ms+extra".into(), "5ms/20ms".into()],
            memory_bytes: Some(64 << 20),
            ..ReservationInfo::default()
        };
        let history = Some(SessionHistory { seconds, minutes: Vec::new() });
        SessionDetails {
            promised,
            used: SessionUse { history, ..SessionUse::default() },
            ..SessionDetails::default()
        }
    }

    #[test]
    fn zero_is_the_lowest_mark_and_the_reservation_or_more_the_highest() {
        for (values, full, blocks, ascii) in [
            (vec![], 1.0, "", ""),
            (vec![0.0, 0.0], 0.0, "▁▁", "__"),
            (vec![0.0, 0.001, 0.5, 0.99, 1.0, 7.0], 1.0, "▁▂▅███", "_.=###"),
            (vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], 7.0, "▂▃▄▅▆▇█", ".:-=+*#"),
            (vec![f64::NAN, f64::INFINITY], 1.0, "▁█", "_#"),
        ] {
            assert_eq!(sparkline(&values, full, BLOCKS), blocks);
            assert_eq!(sparkline(&values, full, ASCII), ascii);
        }
    }

    #[test]
    fn a_resource_graph_is_scaled_to_the_reservation_or_the_maximum() {
        let session = gold(vec![step(0, 0), step(250, 700), step(500, 1400), step(0, 0)]);
        let steps = &session.used.history.as_ref().unwrap().seconds;
        let text = rows(&session, steps, "seconds", ASCII).unwrap().to_string();
        let lines: Vec<&str> = text.lines().collect();
        for wanted in [
            "RESOURCE      THE LAST 4 SECONDS  AT MOST     A FULL BLOCK IS",
            "cpu           _=#_                50.0%       50.0%, as promised",
            "below         ____                0.0%        -",
            "memory        ====                32MiB       64MiB, as promised",
            "dropped       ____                0 packets   -",
            "came          _=#_                11.2kbit/s  the most",
        ] {
            assert!(lines.contains(&wanted), "no line '{wanted}' in\n{text}");
        }
    }

    #[test]
    fn a_session_without_steps_has_no_picture() {
        assert_eq!(text(&gold(Vec::new())), None);
        assert_eq!(text(&SessionDetails::default()), None);
    }

    #[test]
    fn minutes_are_shown_when_they_say_more_than_seconds() {
        let mut session = gold(vec![step(1, 1); 60]);
        session.used.history.as_mut().unwrap().minutes = vec![step(1, 1); 3];
        let text = text(&session).unwrap();
        assert!(
            text.contains("THE LAST 60 SECONDS") && text.contains("THE LAST 3 MINUTES"),
            "{text}"
        );
    }
}
