//! `tam bench move`: moves of a service between its levels while numbered packets pass.
//!
//! ```text
//! generator ─▶ s0 ═ n0 [ nic ⇄ user ] n1 ═ d0 ─▶ arrivals: each number once, in order?
//!   number, time                                  when, behind the one before it?
//! ```
//!
//! The load is 0.9 of the capacity of the slower level, which is measured first. Blocks with moves
//! alternate with equally long ones without; disturbances by the machine are in both. A pause is
//! how much a packet's distance to the one before it grew between sending and arrival.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use abi::Level;
use anyhow::{Result, ensure};

use crate::arrivals::Arrivals;
use crate::generator::{Generator, Traffic};
use crate::line::{self, Line};
use crate::measure::{Reading, Window, measure};
use crate::measurement::{Better, GoalFor, Measured, Measurement};
use crate::rounds::median;
use crate::sink::{Kind, Sink};
use crate::{Options, Service, Subject};

/// Moves of a run, and the goals: no packet lost, duplicated or reordered, and a pause too short to
/// hear.
const MOVES: u32 = 1000;
const MOVES_QUICK: u32 = 50;
const GOAL_PAUSE_US: f64 = 50.0;
/// Frame length in bytes, with space for a stamp.
const LENGTH: usize = 64;
/// Number of flows, a power of two; order counts within a flow.
const FLOWS: u32 = 8;
/// Offered load as a share of the slower level's capacity.
const SHARE: f64 = 0.9;
/// Blocks with moves, and as many without; each ends with seconds in which nothing is measured.
const BLOCKS: u32 = 5;
const BLOCKS_QUICK: u32 = 2;
const NODE: &str = "bench-move";
/// Time between two moves, so that the end of one is not the beginning of the next.
const REST: Duration = Duration::from_millis(2);
/// Duration of a trial of one rate.
const TRIAL: Duration = Duration::from_millis(1000);
const TRIAL_QUICK: Duration = Duration::from_millis(300);
/// Time from the generator's first packet until the first step.
const WARM_UP: Duration = Duration::from_millis(200);
/// Time after the generator's last packet until the count ends.
const ARRIVAL: Duration = Duration::from_millis(100);
/// Read-only requests whose median is the baseline.
const REQUESTS: usize = 21;
const BASELINE: &str = "no_moves";

pub(crate) fn run(
    options: &Options,
    subject: &mut dyn Subject,
    progress: &mut dyn FnMut(&str),
) -> Result<Measured> {
    let line = line::only("move", progress)?;
    let plan = line.plan(NODE, Some(Service::Monitor));
    progress("starting a node");
    subject.start(&plan, 0)?;
    let measured = moved(options, &line, subject, progress);
    subject.stop(NODE)?;
    measured
}

fn moved(
    options: &Options,
    line: &Line,
    subject: &mut dyn Subject,
    progress: &mut dyn FnMut(&str),
) -> Result<Measured> {
    let mut notes = Vec::new();
    let capacities = capacities(options, line, subject, &mut notes, progress)?;
    ensure!(
        capacities.len() > 1,
        "the service runs at one level only, so there is nothing to move: {}",
        notes.join("; ")
    );
    let slowest = capacities.iter().map(|(_, rate)| *rate).fold(f64::INFINITY, f64::min);
    let rate = (slowest * SHARE) as u64;
    let (moves, blocks) = if options.quick { (MOVES_QUICK, BLOCKS_QUICK) } else { (MOVES, BLOCKS) };
    notes.push(format!("{moves} moves at {rate} packets/s in {FLOWS} flows"));
    let mut bench = Bench {
        line,
        traffic: stamped(rate),
        tour: tour(capacities.iter().map(|(level, _)| *level).collect()),
        next: 0,
        subject,
    };
    let (mut moving, mut quiet) = (Blocks::default(), Blocks::default());
    let steps = (moves / blocks) as usize;
    for block in 1..=blocks {
        progress(&format!("block {block} of {blocks}, {steps} moves"));
        bench.block(&vec![Step::Move; steps], &mut moving)?;
        // Waits as long as a move took so far.
        let each = Duration::from_secs_f64(median(&moving.took) / 1e6);
        progress(&format!("block {block} of {blocks}, no moves"));
        bench.block(&vec![Step::Quiet(each); steps], &mut quiet)?;
    }
    let request = request(bench.subject)?;
    notes
        .extend(alike(&moving.failures).map(|(why, count)| format!("{count} moves failed: {why}")));
    Ok(Measured { measurements: measurements(&moving, &quiet, request), notes })
}

/// Merges reasons that differ only in their numbers: the first of them, and how often they
/// occurred.
fn alike(failures: &BTreeMap<String, u64>) -> impl Iterator<Item = (&str, u64)> {
    let mut found: BTreeMap<String, (&str, u64)> = BTreeMap::new();
    for (why, count) in failures {
        let kind = why.chars().filter(|letter| !letter.is_ascii_digit()).collect();
        found.entry(kind).or_insert((why, 0)).1 += count;
    }
    found.into_values()
}

/// Returns the rate that each level carries without loss (RFC 2544 section 26.1), in packets per
/// second; levels that the node refuses are noted.
fn capacities(
    options: &Options,
    line: &Line,
    subject: &mut dyn Subject,
    notes: &mut Vec<String>,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<(Level, f64)>> {
    let mut capacities = Vec::new();
    for level in [Level::Nic, Level::Kernel, Level::User] {
        progress(&format!("what {level} carries"));
        if let Err(error) = subject.move_to(NODE, level) {
            notes.push(format!("not at {level}: {error:#}"));
            continue;
        }
        let most = flooded(options, line)?;
        let (trials, trial) = if options.quick { (4, TRIAL_QUICK) } else { (7, TRIAL) };
        let mut bench =
            Bench { line, traffic: stamped(0), tour: Vec::new(), next: 0, subject: &mut *subject };
        let (mut without_loss, mut with_loss) = (0.0, most);
        for _ in 0..trials {
            let rate = f64::midpoint(without_loss, with_loss);
            let mut found = Blocks::default();
            bench.traffic = stamped(rate as u64);
            bench.block(&[Step::Quiet(trial)], &mut found)?;
            *(if found.lost == 0 { &mut without_loss } else { &mut with_loss }) = rate;
        }
        ensure!(without_loss > 0.0, "{level} loses packets at {with_loss:.0} packets/s already");
        notes.push(format!(
            "{level} carries {without_loss:.0} packets/s of {LENGTH} bytes without loss in \
             {} ms, and {most:.0} when it is flooded",
            trial.as_millis()
        ));
        capacities.push((level, without_loss));
    }
    Ok(capacities)
}

/// Returns the rate of arrival when more is sent, in packets per second.
fn flooded(options: &Options, line: &Line) -> Result<f64> {
    let sink = Sink::new(line, Kind::Xdp)?;
    let mut read = || Ok(Reading::now(sink.packets()?));
    let window = Window::new(options.quick);
    Ok(measure(line, Traffic::flood(LENGTH), window, &mut read)?.counted)
}

/// Returns traffic of numbered frames at this rate.
fn stamped(rate: u64) -> Traffic {
    let (rate, flood) = (Some(rate), Traffic::flood(LENGTH));
    Traffic { rate, flows: FLOWS, stamped: true, unbroken: true, ..flood }
}

/// Returns the moves between user level, where it starts, and each other level.
fn tour(levels: Vec<Level>) -> Vec<Level> {
    let below = levels.into_iter().filter(|level| *level != Level::User);
    below.flat_map(|level| [level, Level::User]).collect()
}

struct Bench<'a> {
    line: &'a Line,
    traffic: Traffic,
    /// Levels to move to, cyclically.
    tour: Vec<Level>,
    /// Index of the next move in the tour.
    next: usize,
    subject: &'a mut dyn Subject,
}

/// Step while traffic flows.
#[derive(Clone, Copy, Debug)]
enum Step {
    Move,
    /// Pause without a move.
    Quiet(Duration),
}

/// Results of all blocks of one kind.
#[derive(Clone, Debug, Default)]
struct Blocks {
    sent: u64,
    lost: u64,
    reordered: u64,
    doubled: u64,
    /// Longest pause of each step, in microseconds.
    pauses: Vec<f64>,
    /// Duration of each move, in microseconds.
    took: Vec<f64>,
    /// Number of failed moves, by reason.
    failures: BTreeMap<String, u64>,
}

impl Bench<'_> {
    /// Runs the steps while traffic flows, and adds the results.
    fn block(&mut self, steps: &[Step], into: &mut Blocks) -> Result<()> {
        let arrivals = Arrivals::new(self.line, FLOWS, self.traffic.stamp_at())?;
        let device = Line::ifindex(&self.line.source, "s0")?;
        let generator = Generator::start(&self.line.source, device, self.traffic)?;
        std::thread::sleep(WARM_UP);
        let from = arrivals.begin(&generator);
        for step in steps {
            arrivals.take_pause();
            self.step(*step, into);
            std::thread::sleep(REST);
            into.pauses.push(arrivals.take_pause());
        }
        let sent = generator.stop()?;
        std::thread::sleep(ARRIVAL);
        ensure!(sent > from, "the generator sent only {sent} packets");
        let counts = arrivals.counts()?;
        into.sent += sent - from;
        into.lost += (sent - from).saturating_sub(counts.packets);
        into.reordered += counts.reordered;
        into.doubled += counts.doubled;
        Ok(())
    }

    /// Performs one step. A move that fails leaves the service where it is, and is tried again
    /// later.
    fn step(&mut self, step: Step, into: &mut Blocks) {
        let begun = Instant::now();
        let level = match step {
            Step::Quiet(length) => return std::thread::sleep(length),
            Step::Move => self.tour[self.next],
        };
        match self.subject.move_to(NODE, level) {
            Ok(()) => {
                into.took.push(begun.elapsed().as_secs_f64() * 1e6);
                self.next = (self.next + 1) % self.tour.len();
            }
            Err(error) => {
                *into.failures.entry(format!("to {level}: {error:#}")).or_default() += 1;
            }
        }
    }
}

/// Returns the time of a read-only request, in microseconds.
fn request(subject: &mut dyn Subject) -> Result<f64> {
    let times: Vec<f64> = (0..REQUESTS)
        .map(|_| {
            let begun = Instant::now();
            subject.handled(NODE)?;
            Ok(begun.elapsed().as_secs_f64() * 1e6)
        })
        .collect::<Result<_>>()?;
    Ok(median(&times))
}

fn measurements(moving: &Blocks, quiet: &Blocks, request: f64) -> Vec<Measurement> {
    let count = |metric: &str, unit, of: fn(&Blocks) -> u64| Measurement {
        metric: format!("move.{metric}"),
        unit,
        goal: Some(0.0),
        goal_for: GoalFor::Ours,
        ..single(of(moving) as f64, of(quiet) as f64, BASELINE)
    };
    let longest = |blocks: &Blocks| blocks.pauses.iter().copied().fold(0.0, f64::max);
    let time = |metric: &str, goal, pair| Measurement {
        metric: format!("move.{metric}"),
        unit: "us",
        goal,
        goal_for: GoalFor::Difference,
        ..pair
    };
    vec![
        count("lost", "packets", |blocks| blocks.lost),
        count("reordered", "packets", |blocks| blocks.reordered),
        count("doubled", "packets", |blocks| blocks.doubled),
        count("failed", "moves", |blocks| blocks.failures.values().sum()),
        time(
            "pause.longest",
            Some(GOAL_PAUSE_US),
            single(longest(moving), longest(quiet), BASELINE),
        ),
        time(
            "pause.median",
            Some(GOAL_PAUSE_US),
            single(median(&moving.pauses), median(&quiet.pauses), BASELINE),
        ),
        time("took", None, single(median(&moving.took), request, "question")),
    ]
}

/// Returns a measurement of the whole run, which is one round.
fn single(ours: f64, baseline: f64, baseline_name: &'static str) -> Measurement {
    Measurement {
        metric: String::new(),
        unit: "",
        ours,
        baseline,
        baseline_name,
        // Nothing beside nothing is equal; something beside nothing has no ratio (null in JSON).
        ratio: if ours == baseline { 1.0 } else { ours / baseline },
        better: Better::Lower,
        goal: None,
        goal_for: GoalFor::Ratio,
        rounds: 1,
        spread: 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tour_comes_back_to_user_level_each_time() {
        use Level::{Kernel, Nic, User};
        assert_eq!(tour(vec![Nic, Kernel, User]), [Nic, User, Kernel, User]);
        assert_eq!(tour(vec![Nic, User]), [Nic, User]);
    }

    #[test]
    fn counts_are_judged_by_themselves_and_pauses_by_the_difference() {
        let blocks = |lost, pauses: &[f64]| Blocks {
            lost,
            pauses: pauses.to_vec(),
            took: vec![900.0],
            ..Blocks::default()
        };
        let judged = |moving: &Blocks, quiet: &Blocks| -> BTreeMap<String, Option<bool>> {
            let all = measurements(moving, quiet, 300.0);
            all.into_iter().map(|m| (m.metric.clone(), m.reached())).collect()
        };
        let good = judged(&blocks(0, &[70.0, 90.0]), &blocks(3, &[60.0, 41.0]));
        assert_eq!(good["move.lost"], Some(true));
        assert_eq!(good["move.pause.longest"], Some(true));
        assert_eq!(good["move.took"], None);
        let bad = judged(&blocks(1, &[70.0, 111.0]), &blocks(3, &[60.0, 41.0]));
        assert_eq!(bad["move.lost"], Some(false));
        assert_eq!(bad["move.pause.longest"], Some(false));
        assert_eq!(bad["move.pause.median"], Some(true));
    }
}
