//! Loading without a node: from a module's bytes to a program that can be given packets.
//!
//! ```text
//! ours      check ─▶ eBPF ─▶ arena, block, maps ─▶ verified and loaded by the kernel
//! baseline  check ─▶ machine code by Cranelift ─▶ an instance in the sandbox
//! ```
//!
//! Both are complete, from the same bytes, one after the other on one CPU; a deployment does both.
//! Nothing is cached from one load to the next.

use std::time::Instant;

use abi::check::Unverified;
use abi::packet::OwnedPacket;
use anyhow::{Context, Result};
use engine::{Engine, InstanceSpec, MemoryKind};

use crate::Options;
use crate::levels::{self, Ours};
use crate::measurement::{Better, GoalFor, Measurement};
use crate::rounds::{Pair, Rounds, median};

/// Loads of a round, of which the median counts.
const LOADS: usize = 9;
/// Goal in microseconds for a module of about 300 bytes, everything included.
const GOAL_MICROS: f64 = 5000.0;
/// Functions that a quick run measures in addition: a short and a long one.
const QUICK: [&str; 2] = ["dscp", "nat"];

pub(crate) fn run(options: &Options, progress: &mut dyn FnMut(&str)) -> Result<Vec<Measurement>> {
    let functions = levels::functions()?.iter().map(|function| (function.name, function.module));
    let cases = functions.filter(|(name, _)| !options.quick || QUICK.contains(name));
    let engine = Engine::new()?;
    let mut measurements = Vec::new();
    for (name, module) in [("nothing", levels::nothing()?)].into_iter().chain(cases) {
        let mut rounds = Rounds::default();
        for round in 1..=options.rounds() {
            progress(&format!("{name}, round {round} of {}", options.rounds()));
            let (mut ours, mut baseline) = (Vec::new(), Vec::new());
            for _ in 0..LOADS {
                ours.push(micros(|| Ours::load(module)).with_context(|| name.to_owned())?);
                baseline.push(micros(|| sandboxed(&engine, module))?);
            }
            rounds.add(vec![median(&ours), median(&baseline)]);
        }
        let compared = rounds.compare(Pair {
            metric: format!("load.{name}.{}.nic", module.len()),
            unit: "us",
            baseline_name: "Cranelift",
            baseline: 1,
            better: Better::Lower,
            goal: None,
        });
        let goal = (name == "nothing").then_some(GOAL_MICROS);
        measurements.push(Measurement { goal, goal_for: GoalFor::Ours, ..compared });
    }
    Ok(measurements)
}

/// Measures the time to make a value in microseconds; dropping it is not included.
pub(crate) fn micros<T>(make: impl FnOnce() -> Result<T>) -> Result<f64> {
    let start = Instant::now();
    let made = make()?;
    let took = start.elapsed();
    drop(made);
    Ok(took.as_nanos() as f64 / 1000.0)
}

/// Instantiates the same bytes at user level.
pub(crate) fn sandboxed(engine: &Engine, module: &[u8]) -> Result<engine::Instance<OwnedPacket>> {
    let checked = Unverified(module).check()?;
    let spec = InstanceSpec {
        window: checked.manifest.window,
        memory_pages_max: checked.memory.pages_max,
        call_slices: 5,
        ..InstanceSpec::default()
    };
    Ok(engine.program::<OwnedPacket>(module, MemoryKind::Own)?.start(engine, &spec)?)
}
