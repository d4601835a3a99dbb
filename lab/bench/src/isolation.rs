//! `tam bench isolation`: what a session has alone, and beside hostile ones.
//!
//! ```text
//!              ┌ victim: what nobody else has of 256 flows ─▶ passes ─▶ n1 ═ d0 ─▶ arrivals
//! generator ─▶ n0 ┤
//!   CPU 0      └ hostile 1 … 100: a flow each ─▶ a module that never ends     CPU 1: the cell
//! ```
//!
//! The victim is promised 1 ms of each 4 ms; each hostile session has a place without a promise,
//! and always work. Two victims: one that does next to nothing with its packets, whose packets are
//! counted and timed; and one that has more work than time, whose periods are held against the
//! promise by the executor's own account.

use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::arrivals::Arrivals;
use crate::generator::{Generator, Traffic};
use crate::line::{self, Line};
use crate::report::{Better, GoalFor, Measured, Measurement};
use crate::rounds::{Pair, Rounds, median};
use crate::{FLOWS, Options, Subject, Work};

const NODE: &str = "bench-isolation";
/// Hostile sessions beside the victim; the first is alone.
const HOSTILE: [u16; 4] = [0, 1, 10, 100];
const HOSTILE_QUICK: [u16; 2] = [0, 10];
/// Of all flows. What the victim has of it takes some hundredths of its promise.
const RATE: u64 = 40_000;
const LENGTH: usize = 80;
const WINDOW: Duration = Duration::from_secs(4);
const WINDOW_QUICK: Duration = Duration::from_secs(2);
/// From the generator's first packet on.
const WARM_UP: Duration = Duration::from_millis(300);
/// After its last one.
const ARRIVAL: Duration = Duration::from_millis(200);
/// Percentage points of a period: 99 of a hundred.
const GOAL_POINTS: f64 = 0.5;
const GOAL_PACKETS: f64 = 0.99;
/// 999 of a thousand packets, against those of a victim who is alone.
const GOAL_LATENCY: f64 = 2.0;
const ALONE: &str = "alone";

pub(crate) fn run(
    options: &Options,
    subject: &mut dyn Subject,
    progress: &mut dyn FnMut(&str),
) -> Result<Measured> {
    line::needs_two_cpus()?;
    progress("making a line of namespaces");
    let line = Line::new("isolation")?;
    let plan = line.plan(NODE, None);
    subject.start(&plan, 0)?;
    let measured = measure(options, &line, subject, progress);
    let stopped = subject.stop(NODE);
    let measured = measured?;
    stopped?;
    Ok(measured)
}

/// What one round with so many hostile sessions came to.
struct Seen {
    /// Of those that were sent to it, the victim's packets that came.
    packets: f64,
    /// Microseconds within which 999 of a thousand did.
    latency: f64,
    /// Percentage points within which 99 of a hundred periods were.
    points: f64,
}

fn measure(
    options: &Options,
    line: &Line,
    subject: &mut dyn Subject,
    progress: &mut dyn FnMut(&str),
) -> Result<Measured> {
    let hostile: &[u16] = if options.quick { &HOSTILE_QUICK } else { &HOSTILE };
    let window = if options.quick { WINDOW_QUICK } else { WINDOW };
    let mut rounds: Vec<Vec<Seen>> = Vec::new();
    for round in 1..=options.rounds() {
        let mut seen = Vec::new();
        for &count in hostile {
            progress(&format!("{count} hostile sessions, round {round} of {}", options.rounds()));
            seen.push(beside(line, subject, count, window)?);
        }
        rounds.push(seen);
    }
    let mut measured = Measured::default();
    for (at, count) in hostile.iter().enumerate() {
        let of = |value: fn(&Seen) -> f64| -> Vec<f64> {
            rounds.iter().map(|seen| value(&seen[at])).collect()
        };
        let alone = |value: fn(&Seen) -> f64| -> Vec<f64> {
            rounds.iter().map(|seen| value(&seen[0])).collect()
        };
        measured.measurements.push(points(*count, &of(|s| s.points), &alone(|s| s.points)));
        if at == 0 {
            continue;
        }
        for (metric, unit, better, goal, value) in [
            ("packets", "share", Better::Higher, GOAL_PACKETS, (|s| s.packets) as fn(&Seen) -> f64),
            ("latency", "us", Better::Lower, GOAL_LATENCY, |s| s.latency),
        ] {
            let mut pairs = Rounds::default();
            of(value).into_iter().zip(alone(value)).for_each(|(ours, alone)| {
                pairs.add(vec![ours, alone]);
            });
            measured.measurements.push(pairs.compare(Pair {
                metric: format!("isolation.{metric}.{count}"),
                unit,
                baseline_name: ALONE,
                baseline: 1,
                better,
                goal: Some(goal),
            }));
        }
    }
    Ok(measured)
}

/// The victim's periods; the goal is for the points themselves, since alone they are next to none.
fn points(hostile: u16, ours: &[f64], alone: &[f64]) -> Measurement {
    let (least, most) = ours
        .iter()
        .fold((f64::INFINITY, 0.0), |(least, most), &points| (points.min(least), points.max(most)));
    let (ours, baseline) = (median(ours), median(alone));
    Measurement {
        metric: format!("isolation.cpu.{hostile}"),
        unit: "points",
        ours,
        baseline,
        baseline_name: ALONE,
        ratio: ours / baseline,
        better: Better::Lower,
        goal: Some(GOAL_POINTS),
        goal_for: GoalFor::Ours,
        rounds: 0,
        spread: if ours > 0.0 { (most - least) / ours } else { 0.0 },
    }
}

fn beside(line: &Line, subject: &mut dyn Subject, hostile: u16, window: Duration) -> Result<Seen> {
    let (packets, latency) = with(subject, Work::Light, hostile, |_| {
        let arrivals = Arrivals::new(line, 1, traffic().stamp_at())?;
        let generator = start(line)?;
        let first = arrivals.begin(&generator);
        std::thread::sleep(window);
        let last = generator.sent();
        generator.stop()?;
        std::thread::sleep(ARRIVAL);
        let sent = (last - first) as f64 * f64::from(FLOWS - hostile) / f64::from(FLOWS);
        let latency = arrivals.delay(0.999).context("none of the victim's packets came")?;
        Ok((arrivals.counts()?.packets as f64 / sent, latency))
    })?;
    let points = with(subject, Work::Bound, hostile, |subject| {
        let generator = start(line)?;
        let before = subject.kept(NODE)?;
        std::thread::sleep(window);
        let after = subject.kept(NODE)?;
        generator.stop()?;
        within(&before, &after, 0.99).context("no period of the victim ended")
    })?;
    Ok(Seen { packets, latency, points })
}

/// Has a victim and so many hostile sessions meanwhile.
fn with<R>(
    subject: &mut dyn Subject,
    victim: Work,
    hostile: u16,
    act: impl FnOnce(&mut dyn Subject) -> Result<R>,
) -> Result<R> {
    subject.isolate(NODE, victim, hostile)?;
    let result = act(subject);
    let rejoined = subject.rejoin(NODE, hostile);
    let result = result?;
    rejoined?;
    Ok(result)
}

const fn traffic() -> Traffic {
    let flood = Traffic::flood(LENGTH);
    Traffic { rate: Some(RATE), flows: FLOWS as u32, stamped: true, unbroken: true, ..flood }
}

fn start(line: &Line) -> Result<Generator> {
    let device = Line::ifindex(&line.source, "s0")?;
    let generator = Generator::start(&line.source, device, traffic())?;
    std::thread::sleep(WARM_UP);
    Ok(generator)
}

/// Percentage points within which this share of the periods was that ended between two looks;
/// a hundred for those beyond all bounds.
fn within(before: &[(Option<f64>, u64)], after: &[(Option<f64>, u64)], share: f64) -> Option<f64> {
    let earlier = |at: usize| before.get(at).map_or(0, |(_, count)| *count);
    let ended: Vec<(f64, u64)> = after
        .iter()
        .enumerate()
        .map(|(at, (points, count))| (points.unwrap_or(100.0), count.saturating_sub(earlier(at))))
        .collect();
    let all: u64 = ended.iter().map(|(_, count)| count).sum();
    let mut sum = 0;
    ended.into_iter().find_map(|(points, count)| {
        sum += count;
        (all > 0 && sum as f64 >= all as f64 * share).then_some(points)
    })
}

#[cfg(test)]
mod tests {
    use super::within;

    #[test]
    fn periods_are_those_between_two_looks() {
        let before = [(Some(0.1), 100), (Some(0.5), 50), (None, 7)];
        let after = [(Some(0.1), 190), (Some(0.5), 59), (None, 8)];
        assert_eq!(within(&before, &after, 0.9), Some(0.1));
        assert_eq!(within(&before, &after, 0.99), Some(0.5));
        assert_eq!(within(&before, &after, 1.0), Some(100.0));
        assert_eq!(within(&after, &after, 0.9), None);
        assert_eq!(within(&[], &after, 0.7), Some(0.1));
    }
}
