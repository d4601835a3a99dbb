//! `tam bench install`: how long a module takes that has to be fetched first, and what it costs
//! that nodes get to know each other.
//!
//! ```text
//!                     another node, which holds it
//!                          ║ j0
//!  drip ─▶ s0 ═ n0 [ node: fetch, verify, compile, attach ] n1 ═ d0 ─▶ first marked
//! ```
//!
//! docs/bench-install.md says it in whole sentences.

mod handshakes;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use abi::Level;
use anyhow::{Context as _, Result, ensure};
use engine::Engine;
use os::netns;

use crate::line::{self, Line};
use crate::load::first::{Drip, First};
use crate::load::module::{Size, module};
use crate::load::program::{micros, sandboxed};
use crate::measure::Reading;
use crate::report::{Better, GoalFor, Measured, Measurement};
use crate::rounds::{Pair, Rounds, median, percentile};
use crate::{Module, Options, Plan, Repository, Subject, forward};

/// Of each kind.
const LOADS: u32 = 100;
const LOADS_QUICK: u32 = 5;
/// Microseconds for a module of about 2 KB: at p99 when it is fetched, else the median.
const GOAL_COLD_US: f64 = 10_000.0;
const GOAL_WARM_US: f64 = 1_000.0;
/// As `tam bench load` has it, and for the same reasons.
const RATE: u32 = 8_000;
const REST: Duration = Duration::from_millis(300);
const NODE: &str = "bench-install";
const FROM: &str = "bench-install-from";
/// Where the other node serves what it holds.
const SERVES: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(10, 202, 0, 2)), 7443);
/// The first mark; each module has the next one.
const MARK_FIRST: u32 = 0x4e00_0000;
const LEVELS: [Level; 2] = [Level::User, Level::Nic];

pub(crate) fn run(
    options: &Options,
    subject: &mut dyn Subject,
    progress: &mut dyn FnMut(&str),
) -> Result<Measured> {
    line::needs_two_cpus()?;
    progress("making three lines of namespaces");
    let [line, from, plain] = ["install", "install-from", "install-plain"].map(Line::new);
    let (line, from, plain) = (line?, from?, plain?);
    line.join(&from)?;
    progress("starting two nodes");
    subject.start(&Plan { serves: Some(SERVES), ..from.plan(FROM, None) }, 0)?;
    let repository = Some(Repository { node: FROM.to_owned(), address: SERVES });
    let started = subject.start(&Plan { repository, ..line.plan(NODE, None) }, 0);
    let measured = started.and_then(|()| {
        let measured = fetched(options, &line, &plain, subject, progress);
        subject.stop(NODE)?;
        measured
    });
    subject.stop(FROM)?;
    let mut measured = measured?;
    measured.measurements.extend(handshakes::run(options, subject, progress)?);
    Ok(measured)
}

fn fetched(
    options: &Options,
    line: &Line,
    plain: &Line,
    subject: &mut dyn Subject,
    progress: &mut dyn FnMut(&str),
) -> Result<Measured> {
    let folder = tempfile::tempdir().context("making a folder for modules")?;
    let (first, drip) = (First::new(line)?, Drip::start(line, RATE)?);
    let mut bench = Bench {
        folder: folder.path().to_owned(),
        engine: Engine::new()?,
        plain,
        first,
        mark: MARK_FIRST,
        subject,
        found: BTreeMap::new(),
    };
    let loads = options.rounds.unwrap_or(if options.quick { LOADS_QUICK } else { LOADS });
    for load in 1..=loads {
        for level in LEVELS {
            progress(&format!("{level}, {load} of {loads}"));
            bench.round(level)?;
        }
    }
    drip.stop()?;
    let mut measured = Measured::default();
    measured.notes.push(
        "the connection to the other node stays open; only the first fetch opens it".to_owned(),
    );
    for (case, found) in bench.found {
        let name = case.name();
        measured.notes.push(format!(
            "{name}: first packet after {:.0} us, answered after {:.0} us (medians)",
            median(&found.ours),
            median(&found.answered)
        ));
        measured.measurements.extend(found.measurements(case));
    }
    Ok(measured)
}

struct Bench<'a> {
    folder: PathBuf,
    engine: Engine,
    plain: &'a Line,
    first: First,
    /// Of the module that was made last.
    mark: u32,
    subject: &'a mut dyn Subject,
    found: BTreeMap<Case, Found>,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Case {
    /// It was there already, and had run.
    is_warm: bool,
    level: Level,
}

/// What it took, in microseconds.
#[derive(Clone, Debug, Default)]
struct Found {
    rounds: Rounds,
    ours: Vec<f64>,
    baseline: Vec<f64>,
    answered: Vec<f64>,
}

impl Bench<'_> {
    /// A module that only the other node has, and the same again.
    fn round(&mut self, level: Level) -> Result<()> {
        self.mark += 1;
        let wasm = module(Size::Small, self.mark)?;
        let file = self.folder.join(format!("{:x}.wasm", self.mark));
        std::fs::write(&file, &wasm).context("writing a module")?;
        let digest = self.subject.store(FROM, &file)?;
        for is_warm in [false, true] {
            self.timed(Case { is_warm, level }, &digest, &wasm)?;
            self.subject.remove(NODE)?;
        }
        Ok(())
    }

    fn timed(&mut self, case: Case, digest: &str, wasm: &[u8]) -> Result<()> {
        std::thread::sleep(REST);
        let baseline = self.baseline(case.level, wasm)?;
        std::thread::sleep(REST / 3);
        self.first.want(self.mark);
        let begun = Reading::now(0).nanos;
        let loaded = self.subject.deploy(NODE, Module::Stored(digest), case.level);
        let loaded = loaded.with_context(|| case.name())?;
        let came = self.first.came()?;
        ensure!(came.nanos > begun, "a packet of the module came before it was asked for");
        let came_us = (came.nanos - begun) as f64 / 1e3;
        let found = self.found.entry(case).or_default();
        found.rounds.add(vec![came_us, baseline]);
        found.ours.push(came_us);
        found.baseline.push(baseline);
        found.answered.push(loaded.answered.as_secs_f64() * 1e6);
        Ok(())
    }

    /// What the same level takes without a node, in microseconds.
    fn baseline(&self, level: Level, wasm: &[u8]) -> Result<f64> {
        if level == Level::User {
            return micros(|| sandboxed(&self.engine, wasm));
        }
        netns::in_namespace(&self.plain.node, || micros(|| forward::fib_forward(self.plain)))?
    }
}

impl Case {
    fn name(self) -> String {
        format!("install.{}.small.{}", if self.is_warm { "warm" } else { "cold" }, self.level)
    }
}

impl Found {
    /// The median, and the slowest of a hundred: the one of the two that has a goal.
    fn measurements(&self, case: Case) -> [Measurement; 2] {
        let baseline_name = match case.level {
            Level::User => "Cranelift",
            _ => forward::FIB_FORWARD,
        };
        let compared = self.rounds.compare(Pair {
            metric: case.name(),
            unit: "us",
            baseline_name,
            baseline: 1,
            better: Better::Lower,
            goal: None,
        });
        let goal = case.is_warm.then_some(GOAL_WARM_US);
        let median = Measurement { goal, goal_for: GoalFor::Ours, ..compared };
        let (ours, baseline) = (percentile(&self.ours, 99), percentile(&self.baseline, 99));
        let slowest = Measurement {
            metric: format!("{}.p99", case.name()),
            ours,
            baseline,
            ratio: ours / baseline,
            goal: (!case.is_warm).then_some(GOAL_COLD_US),
            ..median.clone()
        };
        [median, slowest]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fetch_has_its_goal_at_p99_and_what_is_there_at_its_median() {
        let mut found = Found::default();
        found.rounds.add(vec![900.0, 450.0]);
        found.ours.push(900.0);
        found.baseline.push(450.0);
        let reached = |is_warm| {
            let both = found.measurements(Case { is_warm, level: Level::Nic });
            both.map(|it| (it.metric.clone(), it.reached()))
        };
        let named = |text: &str, reached| (text.to_owned(), reached);
        assert_eq!(
            reached(false),
            [
                named("install.cold.small.nic", None),
                named("install.cold.small.nic.p99", Some(true))
            ]
        );
        assert_eq!(
            reached(true),
            [
                named("install.warm.small.nic", Some(true)),
                named("install.warm.small.nic.p99", None)
            ]
        );
    }
}
