//! RCANE, figure 11: processor time of four sessions that always have work.
//!
//! A has no guarantee; B, C and D come 3, 6 and 9 s later, with 10, 20 and 30 % of each 4 ms and no
//! extra time. The paper's trace has a point for each period of each. Here a point has the time of
//! some 25 periods, as `tam session list` shows it; how far single periods deviated from their
//! slices is in the table, by the executor's own account.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::{Compared, Course, Drawn, Lab, Panel, Point, Quantity, Reference};
use crate::generator::{Generator, Traffic};
use crate::isolation::within;
use crate::line::Line;
use crate::{Party, SOURCE_PORT_FIRST, Work};

const NODE: &str = "bench-shares";
const LENGTH: usize = 80;
/// Packets per second of all four together: each has more than it can handle alone.
const RATE: u64 = 60_000;
/// Sessions in order of arrival: name, reservation, and the paper's percentage.
const SESSIONS: [(&str, Option<&str>, f64); 4] = [
    ("a", None, 100.0),
    ("b", Some("400us/4ms"), 10.0),
    ("c", Some("800us/4ms"), 20.0),
    ("d", Some("1200us/4ms"), 30.0),
];
/// Time between two arrivals.
const PHASE: Duration = Duration::from_secs(3);
const PHASE_QUICK: Duration = Duration::from_secs(1);
/// Time between two points.
const STEP: Duration = Duration::from_millis(100);
/// Seconds after an arrival that are not counted in its phase.
const UNSURE: f64 = 0.3;

/// Name of a metric, and its value.
type Metered = (String, f64);

/// Measures figure 11.
pub(super) fn shares(lab: &mut Lab<'_>) -> Result<Drawn> {
    let plan = lab.line.plan(NODE, None);
    let phase = if lab.options.quick { PHASE_QUICK } else { PHASE };
    let (points, kept) = lab.with_node(&plan, |lab| shared(lab, phase))?;
    Ok(drawn(points, phase, &kept))
}

fn shared(lab: &mut Lab<'_>, phase: Duration) -> Result<(Vec<Point>, Vec<Metered>)> {
    let traffic = Traffic { rate: Some(RATE), flows: 4, ..Traffic::flood(LENGTH) };
    let device = Line::ifindex(&lab.line.source, "s0")?;
    let generator = Generator::start(&lab.line.source, device, traffic)?;
    let mut points = Vec::new();
    let begin = Instant::now();
    let mut before = (begin, lab.subject.cpu(NODE)?);
    for (number, (name, cpu, _)) in SESSIONS.into_iter().enumerate() {
        (lab.progress)(&format!("{} comes", name.to_uppercase()));
        let flow = SOURCE_PORT_FIRST + number as u16;
        let party = Party { name, cpu, flow, work: Work::Bound, ..Party::default() };
        lab.subject.admit(NODE, &party)?;
        while begin.elapsed() < phase * (number as u32 + 1) {
            std::thread::sleep(STEP);
            let now = lab.subject.cpu(NODE)?;
            let at = Instant::now();
            points.extend(points_of(begin, &before, &(at, now.clone())));
            before = (at, now);
        }
    }
    let mut kept = Vec::new();
    for (name, ..) in SESSIONS.into_iter().filter(|(_, cpu, _)| cpu.is_some()) {
        let periods = lab.subject.kept(NODE, name)?;
        let points = within(&[], &periods, 0.99).context("no period ended")?;
        kept.push((name.to_uppercase(), points));
    }
    generator.stop()?;
    for (name, ..) in SESSIONS {
        lab.subject.evict(NODE, name)?;
    }
    Ok((points, kept))
}

/// Processor time of sessions by name, and the time of the reading.
type Used = (Instant, BTreeMap<String, Duration>);

fn points_of(begin: Instant, before: &Used, now: &Used) -> Vec<Point> {
    let passed = now.0.duration_since(before.0).as_secs_f64();
    let of = |(name, ..): (&str, Option<&str>, f64)| {
        let used = now.1.get(name)?.saturating_sub(before.1.get(name).copied().unwrap_or_default());
        Some(Point {
            curve: name.to_uppercase(),
            length: LENGTH,
            at_s: Some(now.0.duration_since(begin).as_secs_f64()),
            percent: Some(used.as_secs_f64() * 100.0 / passed),
            ..Point::default()
        })
    };
    SESSIONS.into_iter().filter_map(of).collect()
}

/// Returns the mean of a curve between two moments.
fn mean(points: &[Point], curve: &str, from: f64, to: f64) -> Option<f64> {
    let values: Vec<f64> = points
        .iter()
        .filter(|it| it.curve == curve && it.at_s.is_some_and(|at| (from..to).contains(&at)))
        .filter_map(|point| point.percent)
        .collect();
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// Returns the percentage of the core reserved for a session, phase by phase; A has the remainder.
fn promised(session: usize, percent: f64, phase: f64) -> Vec<(f64, f64, f64)> {
    let of = |there: usize| match session {
        0 => 100.0 - SESSIONS[1..there].iter().map(|(.., percent)| percent).sum::<f64>(),
        _ => percent,
    };
    let phases = session + 1..=SESSIONS.len();
    phases.map(|there| ((there - 1) as f64 * phase, there as f64 * phase, of(there))).collect()
}

fn drawn(points: Vec<Point>, phase: Duration, kept: &[(String, f64)]) -> Drawn {
    let phase = phase.as_secs_f64();
    let mut compared = Vec::new();
    for there in 1..=SESSIONS.len() {
        let (from, to) = ((there - 1) as f64 * phase + UNSURE, there as f64 * phase);
        let promised: f64 = SESSIONS[1..there].iter().map(|(.., percent)| percent).sum();
        for (at, (name, _, percent)) in SESSIONS.into_iter().take(there).enumerate() {
            let curve = name.to_uppercase();
            compared.push(Compared {
                what: format!("{curve}, with {there} there"),
                unit: "% of the core",
                paper: if at == 0 { 100.0 - promised } else { percent },
                ours: mean(&points, &curve, from, to),
            });
        }
    }
    let mut notes = vec![
        "the paper's are what its text promises; its plot has no numbers. A has what the cell's own work leaves".to_owned(),
    ];
    for (name, points) in kept {
        let text = if *points < 100.0 { format!("{points}") } else { "more than 10".to_owned() };
        notes.push(format!("{name}: 99 of a hundred periods within {text} points of the slice"));
    }
    let references = SESSIONS
        .into_iter()
        .enumerate()
        .map(|(at, (name, _, percent))| Reference {
            y: Quantity::Percent,
            curve: name.to_uppercase(),
            name: "as the paper's text promises".to_owned(),
            course: Course::Steps(promised(at, percent, phase)),
        })
        .collect();
    let (x, y) = (Quantity::Seconds, Quantity::Percent);
    let panels = vec![Panel::lines(x, y)];
    let columns = &[Quantity::Seconds, Quantity::Percent];
    Drawn { points, compared, columns, panels, notes, references }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sessions_share_is_of_the_time_between_two_samples() {
        let begin = Instant::now();
        let ms = Duration::from_millis;
        let used = |a, b| [("a".to_owned(), ms(a)), ("b".to_owned(), ms(b))].into();
        let points = points_of(begin, &(begin, used(0, 5)), &(begin + ms(100), used(90, 15)));
        let of = |at: usize| (points[at].curve.as_str(), points[at].percent.unwrap().round());
        assert_eq!((of(0), of(1), points.len()), (("A", 90.0), ("B", 10.0), 2));
    }

    #[test]
    fn sessions_without_a_guarantee_get_the_remainder() {
        let drawn = drawn(Vec::new(), PHASE, &[("B".to_owned(), 0.2)]);
        let paper = |what: &str| drawn.compared.iter().find(|it| it.what == what).unwrap().paper;
        assert_eq!(paper("A, with 1 there"), 100.0);
        assert_eq!((paper("A, with 4 there"), paper("D, with 4 there")), (40.0, 30.0));
        assert!(drawn.notes[1].contains("within 0.2 points"), "{:?}", drawn.notes);
    }
}
