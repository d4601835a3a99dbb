//! Loading into a node while packets pass: from the request to the first packet that the service
//! has handled.
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

use abi::Level;
use anyhow::{Context as _, Result};
use rustix::fs::{Advice, fadvise};

use super::first::Drip;
use super::module::{Size, module};
use super::timed::{GOAL_COLD_US, GOAL_WARM_US, LEVELS, RATE, Stopwatch, Times};
use crate::line::{self, Line};
use crate::measurement::Measured;
use crate::rounds::median;
use crate::{Module, Options, Subject};

/// Loads of each kind.
const LOADS: u32 = 50;
const LOADS_QUICK: u32 = 5;
const NODE: &str = "bench-load";
/// Mark of the first module; each further module has the next number.
const MARK_FIRST: u32 = 0x4d00_0000;

/// Kind of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// Load from a file that the node has never seen.
    Cold,
    /// Load from the node's store, by the digest of a module that ran before.
    Warm,
    /// Load like [`Self::Cold`], replacing a running version.
    ReplaceCold,
    /// Load like [`Self::Warm`], replacing a running version.
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
    let stopwatch = Stopwatch::new(NODE, line, plain)?;
    let drip = Drip::start(line, RATE)?;
    let mut bench = Bench {
        folder: folder.path().to_owned(),
        stopwatch,
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
    for (case, times) in found {
        let is_stored = matches!(case.kind, Kind::Cold | Kind::ReplaceCold);
        measured.notes.push(times.note(&case.name(), is_stored));
        let both = times.measurements(&case.name(), case.level, [case.goal(), None]);
        measured.measurements.extend(both);
    }
    Ok(measured)
}

struct Bench<'a> {
    folder: PathBuf,
    stopwatch: Stopwatch<'a>,
    /// Mark of the module that was made last.
    mark: u32,
    subject: &'a mut dyn Subject,
    found: BTreeMap<Case, Times>,
    gaps: Vec<f64>,
}

/// Measured case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Case {
    size: Size,
    level: Level,
    kind: Kind,
}

/// Module that no node has loaded yet.
struct Fresh {
    file: PathBuf,
    mark: u32,
    wasm: Vec<u8>,
}

impl Bench<'_> {
    /// Loads once for each kind, with a baseline for each.
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

    /// Measures one load and a baseline; returns the module's digest.
    fn timed(&mut self, case: Case, module: Module<'_>, fresh: &Fresh) -> Result<String> {
        let what = (&fresh.wasm[..], fresh.mark);
        let took = self.stopwatch.load(self.subject, module, what, case.level);
        let took = took.with_context(|| case.name())?;
        self.gaps.push(took.gap);
        self.found.entry(case).or_default().add(&took);
        Ok(took.loaded.digest)
    }

    /// Makes a module with a new mark, on the disk and not in the page cache.
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

    /// Returns the goal for the median; `None` for a large module.
    fn goal(self) -> Option<f64> {
        (self.size == Size::Small).then(|| self.kind.goal())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_small_module_has_goals() {
        let goal = |size, kind| Case { size, level: Level::Nic, kind }.goal();
        assert_eq!(goal(Size::Small, Kind::Warm), Some(GOAL_WARM_US));
        assert_eq!(goal(Size::Small, Kind::ReplaceCold), Some(GOAL_COLD_US));
        assert_eq!(goal(Size::Large, Kind::ReplaceCold), None);
    }
}
