//! Loading into a node while packets pass: from the request to the first packet that the
//! service has handled.
//!
//! ```text
//!            file or digest                        mark in the payload
//!  request ──────▶ node: store, check, compile, cell, kernel, rules
//!     │                                                    │
//!     t0      drip ─▶ s0 ═ n0 [ nothing, then the service ] n1 ═ d0 ─▶ first marked: t1
//! ```

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use abi::Level;
use anyhow::{Context as _, Result, ensure};
use engine::Engine;
use os::netns;
use rustix::fs::{Advice, fadvise};

use super::first::{Drip, First};
use super::module::{Size, module};
use super::program::{micros, sandboxed};
use crate::line::{self, Line};
use crate::measure::Reading;
use crate::report::{Better, GoalFor, Measured, Measurement};
use crate::rounds::{Pair, Rounds, median, percentile};
use crate::{Loaded, Module, Options, Subject, forward};

/// Of each kind.
const LOADS: u32 = 50;
const LOADS_QUICK: u32 = 5;
/// Microseconds for a module of about 2 KB.
const GOAL_COLD_US: f64 = 10_000.0;
const GOAL_WARM_US: f64 = 1_000.0;
/// Frames a second: one every 125 µs. Sending and forwarding one costs the machine some 35 µs.
const RATE: u32 = 8_000;
/// Before a load: a change of rules that comes sooner than the kernel's grace period (RCU, some
/// ticks) behind another one waits for its end, and a node that has just compiled something has
/// its next compile worker ready after some 150 ms; neither is what loading takes.
const REST: Duration = Duration::from_millis(300);
const NODE: &str = "bench-load";
/// The first mark; each module has the next one.
const MARK_FIRST: u32 = 0x4d00_0000;
const LEVELS: [Level; 2] = [Level::User, Level::Nic];

/// How a module comes to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// From a file that the node has never seen.
    Cold,
    /// From the node's store, by its digest: it ran before.
    Warm,
    /// As cold, in place of a version that runs.
    ReplaceCold,
    /// As warm, in place of a version that runs.
    ReplaceWarm,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Cold => "cold",
            Self::Warm => "warm",
            Self::ReplaceCold => "replace_cold",
            Self::ReplaceWarm => "replace_warm",
        }
    }

    const fn goal(self) -> f64 {
        match self {
            Self::Cold | Self::ReplaceCold => GOAL_COLD_US,
            Self::Warm | Self::ReplaceWarm => GOAL_WARM_US,
        }
    }
}

pub(super) fn run(
    options: &Options,
    subject: &mut dyn Subject,
    progress: &mut dyn FnMut(&str),
) -> Result<Measured> {
    line::needs_two_cpus()?;
    progress("making two lines of namespaces");
    let (line, plain) = (Line::new("load")?, Line::new("load-plain")?);
    let plan = line.plan(NODE, None);
    progress("starting a node");
    subject.start(&plan, 0)?;
    let measured = loaded(options, &line, &plain, subject, progress);
    subject.stop(NODE)?;
    measured
}

fn loaded(
    options: &Options,
    line: &Line,
    plain: &Line,
    subject: &mut dyn Subject,
    progress: &mut dyn FnMut(&str),
) -> Result<Measured> {
    let folder = tempfile::tempdir().context("making a folder for modules")?;
    let first = First::new(line)?;
    let drip = Drip::start(line, RATE)?;
    let mut bench = Bench {
        folder: folder.path().to_owned(),
        engine: Engine::new()?,
        plain,
        first,
        mark: MARK_FIRST,
        subject,
        found: BTreeMap::new(),
        gaps: Vec::new(),
    };
    let loads = if options.quick { LOADS_QUICK } else { LOADS };
    let loads = options.rounds.unwrap_or(loads);
    for load in 1..=loads {
        for size in Size::ALL {
            for level in LEVELS {
                progress(&format!("{} at {level}, {load} of {loads}", size.name()));
                bench.round(size, level)?;
            }
        }
    }
    drip.stop()?;
    let Bench { found, gaps, .. } = bench;
    let mut measured = Measured::default();
    measured.notes.push(format!(
        "{RATE} packets/s meanwhile: a first packet came {:.0} us behind the one before it (median)",
        median(&gaps)
    ));
    for (case, found) in found {
        measured.notes.push(found.note(case));
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
    gaps: Vec<f64>,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Case {
    size: Size,
    level: Level,
    kind: Kind,
}

/// What loads of one kind took, in microseconds.
#[derive(Clone, Debug, Default)]
struct Found {
    rounds: Rounds,
    ours: Vec<f64>,
    baseline: Vec<f64>,
    stored: Vec<f64>,
    answered: Vec<f64>,
}

/// A module that nobody has loaded yet.
struct Fresh {
    file: PathBuf,
    mark: u32,
    wasm: Vec<u8>,
}

impl Bench<'_> {
    /// Each kind once, each with a baseline beside it.
    fn round(&mut self, size: Size, level: Level) -> Result<()> {
        let (one, other) = (self.fresh(size)?, self.fresh(size)?);
        let case = |kind| Case { size, level, kind };
        let first = self.timed(case(Kind::Cold), Module::File(&one.file), &one)?;
        let second = self.timed(case(Kind::ReplaceCold), Module::File(&other.file), &other)?;
        self.subject.remove(NODE)?;
        self.timed(case(Kind::Warm), Module::Stored(&first), &one)?;
        self.timed(case(Kind::ReplaceWarm), Module::Stored(&second), &other)?;
        self.subject.remove(NODE)
    }

    /// One load and a baseline; the module's digest.
    fn timed(&mut self, case: Case, module: Module<'_>, fresh: &Fresh) -> Result<String> {
        std::thread::sleep(REST);
        let baseline = self.baseline(case.level, &fresh.wasm)?;
        std::thread::sleep(REST / 3);
        let (came_us, loaded) =
            self.load(module, fresh.mark, case.level).with_context(|| case.name())?;
        self.found.entry(case).or_default().add(came_us, baseline, &loaded);
        Ok(loaded.digest)
    }

    /// Microseconds from the request to the service's first packet.
    fn load(&mut self, module: Module<'_>, mark: u32, level: Level) -> Result<(f64, Loaded)> {
        self.first.want(mark);
        let begun = Reading::now(0).nanos;
        let loaded = self.subject.deploy(NODE, module, level)?;
        let came = self.first.came()?;
        ensure!(came.nanos > begun, "a packet of the module came before it was asked for");
        self.gaps.push(came.gap_ns as f64 / 1e3);
        Ok(((came.nanos - begun) as f64 / 1e3, loaded))
    }

    /// What the same level takes without a node, in microseconds.
    fn baseline(&self, level: Level, wasm: &[u8]) -> Result<f64> {
        if level == Level::User {
            return micros(|| sandboxed(&self.engine, wasm));
        }
        netns::in_namespace(&self.plain.node, || micros(|| forward::fib_forward(self.plain)))?
    }

    /// Makes a module that there has not been yet, on the disk and not in the page cache.
    fn fresh(&mut self, size: Size) -> Result<Fresh> {
        self.mark += 1;
        let (mark, wasm) = (self.mark, module(size, self.mark)?);
        let file = self.folder.join(format!("{mark:x}.wasm"));
        std::fs::write(&file, &wasm).context("writing a module")?;
        forget_pages(&file).context("having the kernel forget a module's pages")?;
        Ok(Fresh { file, mark, wasm })
    }
}

fn forget_pages(file: &Path) -> std::io::Result<()> {
    let file = File::open(file)?;
    // Only pages that are on the disk can be forgotten.
    file.sync_all()?;
    Ok(fadvise(&file, 0, None, Advice::DontNeed)?)
}

impl Case {
    fn name(self) -> String {
        format!("load.{}.{}.{}", self.kind.name(), self.size.name(), self.level)
    }
}

impl Found {
    fn add(&mut self, came_us: f64, baseline: f64, loaded: &Loaded) {
        self.rounds.add(vec![came_us, baseline]);
        self.ours.push(came_us);
        self.baseline.push(baseline);
        self.stored.push(loaded.stored.as_secs_f64() * 1e6);
        self.answered.push(loaded.answered.as_secs_f64() * 1e6);
    }

    /// The median, which has the goal, and the slowest of a hundred.
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
        let goal = (case.size == Size::Small).then(|| case.kind.goal());
        let median = Measurement { goal, goal_for: GoalFor::Ours, ..compared };
        let (ours, baseline) = (percentile(&self.ours, 99), percentile(&self.baseline, 99));
        let slowest = Measurement {
            metric: format!("{}.p99", case.name()),
            ours,
            baseline,
            ratio: ours / baseline,
            goal: None,
            ..median.clone()
        };
        [median, slowest]
    }

    /// Where the time went, as far as it is seen from outside.
    fn note(&self, case: Case) -> String {
        let stored = match case.kind {
            Kind::Cold | Kind::ReplaceCold => {
                format!("stored after {:.0} us, ", median(&self.stored))
            }
            Kind::Warm | Kind::ReplaceWarm => String::new(),
        };
        format!(
            "{}: {stored}first packet after {:.0} us, answered after {:.0} us (medians)",
            case.name(),
            median(&self.ours),
            median(&self.answered)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_small_module_has_goals_and_only_its_median() {
        let mut found = Found::default();
        let loaded = Loaded { digest: String::new(), ..Loaded::default() };
        found.add(900.0, 450.0, &loaded);
        let case = |size, kind| Case { size, level: Level::Nic, kind };
        let [median, slowest] = found.measurements(case(Size::Small, Kind::Warm));
        assert_eq!((median.metric.as_str(), median.reached()), ("load.warm.small.nic", Some(true)));
        assert_eq!((slowest.metric.as_str(), slowest.reached()), ("load.warm.small.nic.p99", None));
        let [large, _] = found.measurements(case(Size::Large, Kind::ReplaceCold));
        assert_eq!((large.metric.as_str(), large.goal), ("load.replace_cold.large.nic", None));
    }
}
