//! Measurement of one load of a module into a node while packets pass, and of its baseline: for
//! `tam bench load` and `tam bench install`.

use std::time::Duration;

use abi::Level;
use anyhow::{Result, ensure};
use engine::Engine;
use namespaces::netns;

use super::first::FirstPacket;
use super::program::{micros, sandboxed};
use crate::line::Line;
use crate::measure::Reading;
use crate::measurement::{Better, GoalFor, Measurement};
use crate::rounds::{Pair, Rounds, median, percentile};
use crate::{Loaded, Module, Subject, forward};

/// Goal in microseconds for a module of about 2 KB.
pub(crate) const GOAL_COLD_US: f64 = 10_000.0;
pub(crate) const GOAL_WARM_US: f64 = 1_000.0;
/// Frames per second: one every 125 µs. Sending and forwarding one costs the machine some 35 µs.
pub(crate) const RATE: u32 = 8_000;
/// Pause before a load. A change of rules that comes sooner than the kernel's grace period (RCU,
/// some ticks) after another waits for its end, and a node that has just compiled has its next
/// compile worker ready after some 150 ms; neither is part of loading.
const REST: Duration = Duration::from_millis(300);
/// Levels that modules are loaded at.
pub(crate) const LEVELS: [Level; 2] = [Level::User, Level::Nic];

/// Stopwatch for loads into one node.
pub(crate) struct Stopwatch<'a> {
    node: &'static str,
    first: FirstPacket,
    /// Line without a node, for the baseline.
    plain: &'a Line,
    engine: Engine,
}

/// Times of one load, in microseconds.
#[derive(Clone, Debug, Default)]
pub(crate) struct LoadTimes {
    /// Time until the service's first packet.
    pub(crate) came: f64,
    /// Distance of that packet to the one before it.
    pub(crate) gap: f64,
    baseline: f64,
    pub(crate) loaded: Loaded,
}

impl<'a> Stopwatch<'a> {
    /// Returns a stopwatch for the node of this name, in the middle of a line.
    pub(crate) fn new(node: &'static str, line: &Line, plain: &'a Line) -> Result<Self> {
        Ok(Self { node, first: FirstPacket::new(line)?, plain, engine: Engine::new()? })
    }

    /// Measures a baseline, then one load of a module that gives its packets this mark.
    pub(crate) fn load(
        &mut self,
        subject: &mut dyn Subject,
        module: Module<'_>,
        (wasm, mark): (&[u8], u32),
        level: Level,
    ) -> Result<LoadTimes> {
        std::thread::sleep(REST);
        let baseline = self.baseline(level, wasm)?;
        std::thread::sleep(REST / 3);
        self.first.expect(mark);
        let begun = Reading::now(0).nanos;
        let loaded = subject.deploy(self.node, module, level)?;
        let came = self.first.wait()?;
        ensure!(came.nanos > begun, "a packet of the module came before it was asked for");
        let (gap, came) = (came.gap_ns as f64 / 1e3, (came.nanos - begun) as f64 / 1e3);
        Ok(LoadTimes { came, gap, baseline, loaded })
    }

    /// Returns the time of the same level without a node, in microseconds.
    fn baseline(&self, level: Level, wasm: &[u8]) -> Result<f64> {
        if level == Level::User {
            return micros(|| sandboxed(&self.engine, wasm));
        }
        netns::in_namespace(&self.plain.node, || micros(|| forward::fib_forward(self.plain)))?
    }
}

/// Times of loads of one kind, in microseconds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Times {
    rounds: Rounds,
    ours: Vec<f64>,
    baseline: Vec<f64>,
    stored: Vec<f64>,
    answered: Vec<f64>,
}

impl Times {
    pub(crate) fn add(&mut self, took: &LoadTimes) {
        self.rounds.add(vec![took.came, took.baseline]);
        self.ours.push(took.came);
        self.baseline.push(took.baseline);
        self.stored.push(took.loaded.stored.as_secs_f64() * 1e6);
        self.answered.push(took.loaded.answered.as_secs_f64() * 1e6);
    }

    /// Returns the median and the slowest of a hundred, each with its goal.
    pub(crate) fn measurements(
        &self,
        metric: &str,
        level: Level,
        goals: [Option<f64>; 2],
    ) -> [Measurement; 2] {
        let baseline_name = match level {
            Level::User => "Cranelift",
            _ => forward::FIB_FORWARD,
        };
        let compared = self.rounds.compare(Pair {
            metric: metric.to_owned(),
            unit: "us",
            baseline_name,
            baseline: 1,
            better: Better::Lower,
            goal: None,
        });
        let median = Measurement { goal: goals[0], goal_for: GoalFor::Ours, ..compared };
        let (ours, baseline) = (percentile(&self.ours, 99), percentile(&self.baseline, 99));
        let slowest = Measurement {
            metric: format!("{metric}.p99"),
            ours,
            baseline,
            ratio: ours / baseline,
            goal: goals[1],
            ..median.clone()
        };
        [median, slowest]
    }

    /// Describes the parts of the time that are visible from outside.
    pub(crate) fn note(&self, metric: &str, is_stored: bool) -> String {
        let stored = match is_stored {
            true => format!("stored after {:.0} us, ", median(&self.stored)),
            false => String::new(),
        };
        format!(
            "{metric}: {stored}first packet after {:.0} us, answered after {:.0} us (medians)",
            median(&self.ours),
            median(&self.answered)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_and_the_slowest_have_goals_of_their_own() {
        let mut times = Times::default();
        times.add(&LoadTimes { came: 900.0, baseline: 450.0, ..LoadTimes::default() });
        let reached = |goals| {
            let both = times.measurements("load.warm.small.nic", Level::Nic, goals);
            both.map(|it| (it.metric.clone(), it.reached()))
        };
        let (median, slowest) = ("load.warm.small.nic", "load.warm.small.nic.p99");
        let named = |name: &str, reached| (name.to_owned(), reached);
        assert_eq!(
            reached([Some(1000.0), None]),
            [named(median, Some(true)), named(slowest, None)]
        );
        assert_eq!(
            reached([None, Some(800.0)]),
            [named(median, None), named(slowest, Some(false))]
        );
    }
}
