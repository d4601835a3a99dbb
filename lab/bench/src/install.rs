//! `tam bench install`: time to run a module that has to be fetched first, and cost of handshakes
//! between nodes.
//!
//! ```text
//!                     another node, which holds it
//!                          ║ j0
//!  drip ─▶ s0 ═ n0 [ node: fetch, verify, compile, attach ] n1 ═ d0 ─▶ first marked
//! ```
//!
//! Details in docs/benchmarks/install.md.

mod handshakes;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use abi::Level;
use anyhow::{Context as _, Result};

use crate::line::{self, Line};
use crate::load::first::Drip;
use crate::load::module::{Size, module};
use crate::load::timed::{GOAL_COLD_US, GOAL_WARM_US, LEVELS, RATE, Stopwatch, Times};
use crate::measurement::Measured;
use crate::{Module, Options, Plan, Repository, Subject};

/// Loads of each kind.
const LOADS: u32 = 100;
const LOADS_QUICK: u32 = 5;
const NODE: &str = "bench-install";
const FROM: &str = "bench-install-from";
/// Address where the other node serves its modules.
const SERVES: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(10, 202, 0, 2)), 7443);
/// Mark of the first module; each further module has the next number.
const MARK_FIRST: u32 = 0x4e00_0000;

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
    let (stopwatch, drip) = (Stopwatch::new(NODE, line, plain)?, Drip::start(line, RATE)?);
    let mut bench = Bench {
        folder: folder.path().to_owned(),
        stopwatch,
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
    for (case, times) in bench.found {
        measured.notes.push(times.note(&case.name(), false));
        let both = times.measurements(&case.name(), case.level, case.goals());
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
}

/// Measured case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Case {
    /// True if the module is in the node's store already and has run.
    is_warm: bool,
    level: Level,
}

impl Bench<'_> {
    /// Loads a module that only the other node has, and then the same module again.
    fn round(&mut self, level: Level) -> Result<()> {
        self.mark += 1;
        let wasm = module(Size::Small, self.mark)?;
        let file = self.folder.join(format!("{:x}.wasm", self.mark));
        std::fs::write(&file, &wasm).context("writing a module")?;
        let digest = self.subject.store(FROM, &file)?;
        for is_warm in [false, true] {
            let case = Case { is_warm, level };
            let (module, what) = (Module::Stored(&digest), (&wasm[..], self.mark));
            let took = self.stopwatch.load(self.subject, module, what, level);
            let took = took.with_context(|| case.name())?;
            self.found.entry(case).or_default().add(&took);
            self.subject.remove(NODE)?;
        }
        Ok(())
    }
}

impl Case {
    fn name(self) -> String {
        format!("install.{}.small.{}", if self.is_warm { "warm" } else { "cold" }, self.level)
    }
    /// Returns the goals for median and p99: fetched modules have one at p99, stored ones at the
    /// median.
    fn goals(self) -> [Option<f64>; 2] {
        if self.is_warm { [Some(GOAL_WARM_US), None] } else { [None, Some(GOAL_COLD_US)] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cold_fetch_has_its_goal_at_p99_and_a_warm_start_at_the_median() {
        let goals = |is_warm| Case { is_warm, level: Level::Nic }.goals();
        assert_eq!(goals(false), [None, Some(10_000.0)]);
        assert_eq!(goals(true), [Some(1_000.0), None]);
    }
}
