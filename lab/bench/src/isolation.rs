//! `tam bench isolation`: service of a victim session alone, and beside hostile sessions.
//!
//! ```text
//!              ┌ victim: what nobody else has of 256 flows ─▶ passes ─▶ n1 ═ d0 ─▶ arrivals
//! generator ─▶ n0 ┤
//!   CPU 0      └ hostile 1 … 100: a flow each ─▶ a module that does what it can   CPU 1: the cell
//! ```
//!
//! The victim reserves 1 ms of each 4 ms; each hostile session runs without a reservation and
//! always has work. There are two victims at user level: one with little work per packet, whose
//! packets are counted and timed; and one with more work than time, whose periods are compared with
//! the reservation by the executor's own account. A third victim runs at `nic`; its packets are
//! counted and timed. Finally the API is queried while a hundred hostile sessions of all kinds, and
//! packets of ever new flows, load the node.

use std::time::Duration;

use abi::Level;
use anyhow::{Context as _, Result};
use units::Nanos;

use crate::arrivals::Arrivals;
use crate::bare::{Bare, BusyCore};
use crate::generator::{Generator, Traffic};
use crate::line::{self, Line};
use crate::measurement::{Better, GoalFor, Measured, Measurement};
use crate::questions;
use crate::rounds::{Pair, Rounds, median};
use crate::{FLOWS, Hostile, Isolated, Options, Subject, VICTIM, Work};

const NODE: &str = "bench-isolation";
/// Kind and number of hostile sessions beside a victim at user level; the first case has none.
const CASES: [(Hostile, u16); 9] = [
    (Hostile::Endless, 0),
    (Hostile::Endless, 1),
    (Hostile::Endless, 10),
    (Hostile::Endless, 100),
    (Hostile::Memory, 10),
    (Hostile::Garbage, 10),
    (Hostile::Flood, FLOODS),
    (Hostile::Rules, 10),
    (Hostile::Reloads, 10),
];
const CASES_QUICK: [(Hostile, u16); 2] = [(Hostile::Endless, 0), (Hostile::Endless, 10)];
/// Kind and number of hostile sessions beside a victim at `nic`.
const CASES_NIC: [(Hostile, u16); 3] =
    [(Hostile::Endless, 0), (Hostile::Endless, 10), (Hostile::Below, 10)];
/// Sessions that are flooded: a power of two, like the flows of the second generator.
const FLOODS: u16 = 16;
/// Packets per second of all flows. The victim's part takes some hundredths of its reservation.
const RATE: u64 = 40_000;
/// Packets per second of all floods together: ten times the rest.
const FLOOD_RATE: u64 = 10 * RATE;
/// Flows of the packets sent beside a hundred hostile sessions: each packet is of a new flow for
/// the front door.
const FLOOD_FLOWS: u32 = 65_536;
const LENGTH: usize = 80;
const WINDOW: Duration = Duration::from_secs(4);
const WINDOW_QUICK: Duration = Duration::from_secs(2);
/// Time from the generator's first packet until counting starts.
const WARM_UP: Duration = Duration::from_millis(300);
/// Time after the generator's last packet until counting ends.
const ARRIVAL: Duration = Duration::from_millis(200);
/// Goal for 99 of a hundred periods, in percentage points of a period.
const GOAL_POINTS: f64 = 0.5;
const GOAL_PACKETS: f64 = 0.99;
/// Goal for 999 of a thousand packets: delay divided by that of a victim alone.
const GOAL_LATENCY: f64 = 2.0;
/// Goal at `nic`: microseconds of delay more than alone.
const GOAL_LATENCY_NIC: f64 = 5.0;
const ALONE: &str = "alone";
const ALONE_BUSY: &str = "alone, busy core";
const BARE: &str = "a bare loop";
/// Slice and period reserved for the victim.
const SLICE: Nanos = Nanos::from_millis(1);
const PERIOD: Nanos = Nanos::from_millis(4);

pub(crate) fn run(
    options: &Options,
    subject: &mut dyn Subject,
    progress: &mut dyn FnMut(&str),
) -> Result<Measured> {
    let line = line::only("isolation", progress)?;
    let plan = line.plan(NODE, None);
    subject.start(&plan, 0)?;
    let measured = measure(options, &line, subject, progress);
    let stopped = subject.stop(NODE);
    let measured = measured?;
    stopped?;
    Ok(measured)
}

/// Result of one round of a case.
#[derive(Clone, Copy)]
struct Seen {
    /// Share of the victim's packets that arrived.
    packets: f64,
    /// Delay within which 999 of a thousand packets arrived, in microseconds.
    latency: f64,
    /// Deviation within which 99 of a hundred periods stayed, in percentage points; `None` at
    /// `nic`.
    points: Option<f64>,
}

/// Case: level of the victim, and the hostile sessions.
#[derive(Clone, Copy)]
struct Case {
    level: Level,
    kind: Hostile,
    count: u16,
    /// True if a load that is no session keeps the cell's core busy meanwhile.
    is_core_busy: bool,
}

impl Case {
    const fn kind_name(&self) -> &'static str {
        if self.is_core_busy { "busy core" } else { self.kind.name() }
    }

    /// Returns the metric's name, `isolation.METRIC.COUNT` for endless modules at user level.
    fn metric(&self, metric: &str) -> String {
        let level = if self.level == Level::Nic { "nic." } else { "" };
        let kind = match self.kind {
            _ if self.is_core_busy => "busy.".to_owned(),
            Hostile::Endless => String::new(),
            other => format!("{}.", other.name()),
        };
        format!("isolation.{level}{metric}.{kind}{}", self.count)
    }

    /// Returns the index of the case that this one is compared with: no hostile session, and a core
    /// as busy.
    fn alone(&self, cases: &[Self]) -> usize {
        let is_busy = self.level == Level::Nic && self.kind == Hostile::Endless && self.count > 0;
        let alone = cases.iter().position(|it| it.count == 0 && it.is_core_busy == is_busy);
        alone.unwrap_or(0)
    }
}

fn measure(
    options: &Options,
    line: &Line,
    subject: &mut dyn Subject,
    progress: &mut dyn FnMut(&str),
) -> Result<Measured> {
    let user: &[(Hostile, u16)] = if options.quick { &CASES_QUICK } else { &CASES };
    let nic: &[(Hostile, u16)] = if options.quick { &CASES_QUICK } else { &CASES_NIC };
    let of = |level, cases: &[(Hostile, u16)]| -> Vec<Case> {
        let case = |&(kind, count)| Case { level, kind, count, is_core_busy: false };
        cases.iter().map(case).collect()
    };
    // The victim alone, while a load that is no node keeps the cell's core busy: the effect of a
    // core on its neighbour is the machine's.
    let busy = Case { level: Level::Nic, kind: Hostile::Endless, count: 0, is_core_busy: true };
    let at_nic = of(Level::Nic, nic).into_iter().chain([busy]).collect();
    let window = if options.quick { WINDOW_QUICK } else { WINDOW };
    let mut measured = Measured::default();
    let bare = Bare::new(SLICE, PERIOD)?;
    let mut of_machine = Vec::new();
    for cases in [of(Level::User, user), at_nic] {
        let mut rounds: Vec<Vec<Seen>> = Vec::new();
        for round in 1..=options.rounds() {
            let mut seen = Vec::new();
            if cases[0].level == Level::User {
                progress(&format!("nothing but the timer, round {round} of {}", options.rounds()));
                of_machine.push(bare.points(window)?);
            }
            for case in &cases {
                let (level, kind, count) = (case.level, case.kind_name(), case.count);
                progress(&format!(
                    "at {level} beside {count} ({kind}), round {round} of {}",
                    options.rounds()
                ));
                let _busy = case.is_core_busy.then(BusyCore::new);
                seen.push(beside(line, subject, case, window)?);
            }
            rounds.push(seen);
        }
        compare(&cases, &rounds, &of_machine, &mut measured.measurements);
    }
    let count = if options.quick { 10 } else { 100 };
    let (mut idle, mut asked) = (Vec::new(), Vec::new());
    for round in 1..=options.rounds() {
        progress(&format!("the API beside {count} of all kinds, round {round}"));
        idle.extend(answers(line, subject, 0, window)?);
        asked.extend(answers(line, subject, count, window)?);
    }
    let metric = format!("isolation.api.p99.{count}");
    let api = questions::compare(metric, &asked, &idle, ALONE, options.rounds());
    measured.measurements.push(api);
    Ok(measured)
}

fn compare(
    cases: &[Case],
    rounds: &[Vec<Seen>],
    of_machine: &[f64],
    measurements: &mut Vec<Measurement>,
) {
    let column = |at: usize, value: fn(&Seen) -> f64| -> Vec<f64> {
        rounds.iter().map(|seen| value(&seen[at])).collect()
    };
    for (at, case) in cases.iter().enumerate() {
        if case.level == Level::User {
            let points = |seen: &Seen| seen.points.unwrap_or(100.0);
            let (ours, alone) = (column(at, points), column(0, points));
            let (baseline, name) = if at == 0 { (of_machine, BARE) } else { (&*alone, ALONE) };
            measurements.push(points_of(case, &ours, (baseline, name)));
        }
        if at == 0 {
            continue;
        }
        let is_below = case.level == Level::Nic;
        let latency = if is_below { GOAL_LATENCY_NIC } else { GOAL_LATENCY };
        let alone = case.alone(cases);
        let baseline_name = if cases[alone].is_core_busy { ALONE_BUSY } else { ALONE };
        for (metric, unit, better, goal, value) in [
            ("packets", "share", Better::Higher, GOAL_PACKETS, (|s| s.packets) as fn(&Seen) -> f64),
            ("latency", "us", Better::Lower, latency, |s| s.latency),
        ] {
            let mut pairs = Rounds::default();
            column(at, value).into_iter().zip(column(alone, value)).for_each(|(ours, alone)| {
                pairs.add(vec![ours, alone]);
            });
            let mut compared = pairs.compare(Pair {
                metric: case.metric(metric),
                unit,
                baseline_name,
                baseline: 1,
                better,
                goal: (case.count > 0).then_some(goal),
            });
            if is_below && metric == "latency" {
                compared.goal_for = GoalFor::Difference;
            }
            measurements.push(compared);
        }
    }
}

/// Compares the victim's periods; the goal applies to the points themselves.
fn points_of(case: &Case, ours: &[f64], (baseline, name): (&[f64], &'static str)) -> Measurement {
    let (least, most) = ours
        .iter()
        .fold((f64::INFINITY, 0.0), |(least, most), &points| (points.min(least), points.max(most)));
    let rounds = ours.len() as u32;
    let (ours, baseline) = (median(ours), median(baseline));
    Measurement {
        metric: case.metric("cpu"),
        unit: "points",
        ours,
        baseline,
        baseline_name: name,
        ratio: ours / baseline,
        better: Better::Lower,
        goal: Some(GOAL_POINTS),
        goal_for: GoalFor::Ours,
        rounds,
        spread: if ours > 0.0 { (most - least) / ours } else { 0.0 },
    }
}

fn beside(line: &Line, subject: &mut dyn Subject, case: &Case, window: Duration) -> Result<Seen> {
    let isolated = |work| Isolated {
        victim: work,
        level: case.level,
        hostile: case.count,
        kinds: std::slice::from_ref(&case.kind),
    };
    let flows = case.count.max(1).into();
    let is_flood = case.kind == Hostile::Flood;
    let flood = is_flood.then_some(Traffic { rate: Some(FLOOD_RATE), flows, ..flood() });
    let (packets, latency) = with(subject, &isolated(Work::Light), |_| {
        // Packets that hostile modules pass arrive, too.
        let others = (FLOWS.into(), case.count.into());
        let arrivals = Arrivals::without(line, 1, traffic().stamp_at(), others)?;
        let flood = flood.map(|traffic| start(line, traffic)).transpose()?;
        let generator = start(line, traffic())?;
        let first = arrivals.begin(&generator);
        std::thread::sleep(window);
        let last = generator.sent();
        generator.stop()?;
        flood.map(Generator::stop).transpose()?;
        std::thread::sleep(ARRIVAL);
        let sent = (last - first) as f64 * f64::from(FLOWS - case.count) / f64::from(FLOWS);
        let latency = arrivals.delay(0.999).context("none of the victim's packets came")?;
        Ok((arrivals.counts()?.packets as f64 / sent, latency))
    })?;
    if case.level == Level::Nic {
        return Ok(Seen { packets, latency, points: None });
    }
    let points = with(subject, &isolated(Work::Bound), |subject| {
        let flood = flood.map(|traffic| start(line, traffic)).transpose()?;
        let generator = start(line, traffic())?;
        let before = subject.kept(NODE, VICTIM)?;
        std::thread::sleep(window);
        let after = subject.kept(NODE, VICTIM)?;
        generator.stop()?;
        flood.map(Generator::stop).transpose()?;
        within(&before, &after, 0.99).context("no period of the victim ended")
    })?;
    Ok(Seen { packets, latency, points: Some(points) })
}

/// Returns the time of each API request in microseconds, beside `hostile` sessions of all kinds
/// while packets of ever new flows arrive as fast as they can be sent.
fn answers(
    line: &Line,
    subject: &mut dyn Subject,
    hostile: u16,
    window: Duration,
) -> Result<Vec<f64>> {
    let isolated =
        Isolated { victim: Work::Light, level: Level::User, hostile, kinds: &Hostile::ALL };
    with(subject, &isolated, |subject| {
        let traffic = Traffic { flows: FLOOD_FLOWS, ..flood() };
        let generator = (hostile > 0).then(|| start(line, traffic)).transpose()?;
        let times = questions::ask_for(subject, NODE, window)?;
        generator.map(Generator::stop).transpose()?;
        Ok(times)
    })
}

/// Runs `work` with a victim and hostile sessions on the node.
fn with<R>(
    subject: &mut dyn Subject,
    isolated: &Isolated<'_>,
    act: impl FnOnce(&mut dyn Subject) -> Result<R>,
) -> Result<R> {
    subject.isolate(NODE, isolated)?;
    let result = act(subject);
    let rejoined = subject.rejoin(NODE, isolated.hostile);
    let result = result?;
    rejoined?;
    Ok(result)
}

const fn traffic() -> Traffic {
    let flood = Traffic::flood(LENGTH);
    Traffic { rate: Some(RATE), flows: FLOWS as u32, stamped: true, unbroken: true, ..flood }
}

/// Returns traffic that is not counted on arrival.
const fn flood() -> Traffic {
    Traffic::flood(LENGTH)
}

fn start(line: &Line, traffic: Traffic) -> Result<Generator> {
    let device = Line::ifindex(&line.source, "s0")?;
    let generator = Generator::start(&line.source, device, traffic)?;
    std::thread::sleep(WARM_UP);
    Ok(generator)
}

/// Returns the deviation within which this share of the periods stayed that ended between two
/// readings, in percentage points; 100 for those beyond the last bound.
pub(crate) fn within(
    before: &[(Option<f64>, u64)],
    after: &[(Option<f64>, u64)],
    share: f64,
) -> Option<f64> {
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
    use super::*;

    #[test]
    fn a_metric_name_has_level_neighbour_kind_and_count() {
        let case = |level, kind| Case { level, kind, count: 10, is_core_busy: false };
        let user = case(Level::User, Hostile::Endless);
        assert_eq!(user.metric("cpu"), "isolation.cpu.10");
        let nic = case(Level::Nic, Hostile::Below);
        assert_eq!(nic.metric("latency"), "isolation.nic.latency.below.10");
        let busy = Case { is_core_busy: true, count: 0, ..case(Level::Nic, Hostile::Endless) };
        assert_eq!(busy.metric("latency"), "isolation.nic.latency.busy.0");
        let idle = Case { is_core_busy: false, ..busy };
        let cases = [idle, nic, case(Level::Nic, Hostile::Endless), busy];
        assert_eq!(cases.map(|case| case.alone(&cases)), [0, 0, 3, 0]);
    }

    #[test]
    fn periods_are_counted_between_two_samples() {
        let before = [(Some(0.1), 100), (Some(0.5), 50), (None, 7)];
        let after = [(Some(0.1), 190), (Some(0.5), 59), (None, 8)];
        assert_eq!(within(&before, &after, 0.9), Some(0.1));
        assert_eq!(within(&before, &after, 0.99), Some(0.5));
        assert_eq!(within(&before, &after, 1.0), Some(100.0));
        assert_eq!(within(&after, &after, 0.9), None);
        assert_eq!(within(&[], &after, 0.7), Some(0.1));
    }
}
