//! Measuring: each packet over and over, ours and the baselines in turn.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bpf::Program;

use super::empty::{self, Restore};
use super::{Baseline, Function, Kind, Ours, Packet, Runner, Vectors, cpu, functions, verify};
use crate::Options;
use crate::report::{Better, GoalFor, Measurement};
use crate::rounds::{Pair, Rounds};

/// Runs of a program in one sample: 2 to 8 ms, so that neither the clock's
/// resolution nor the system call's 10 microseconds matter.
const REPEAT: u32 = 1 << 17;
/// Samples of each program in a round, in turn. The smallest counts: whatever else
/// happens on the machine, on the other thread of the same core for one, only adds.
const SAMPLES: usize = 5;
/// Rounds with `--quick`: one takes 3 s for each of the twelve, and 45 s are promised.
const ROUNDS_QUICK: u32 = 1;
/// Nanoseconds of ours divided by those of the baseline, for each function.
const GOAL: f64 = 1.3;
/// The same for the geometric mean of all.
const GOAL_MEAN: f64 = 1.10;
/// The first table: clang's programs have their tables where ours has them.
const NIC: &str = "nic";
/// The second table.
const MAPS: &str = "nic.maps";
/// The third table: clang's programs with a node's entry and exit in C around them.
const ENTRY: &str = "nic.entry";
/// Programs that take turns: ours, the three baselines, and the empty one.
const PROGRAMS: usize = 5;

pub(crate) fn run(options: &Options, progress: &mut dyn FnMut(&str)) -> Result<Vec<Measurement>> {
    let mut measurements = Vec::new();
    for function in functions()? {
        measurements.extend(measure(function, options, progress)?);
    }
    let means = [(NIC, Some(GOAL_MEAN)), (MAPS, None), (ENTRY, None)]
        .map(|(variant, goal)| mean(&measurements, variant, goal));
    measurements.extend(means);
    measurements.push(measure_entry(options)?);
    Ok(measurements)
}

/// One of the functions, against both baselines.
///
/// # Errors
/// When one of the three is refused, differs from its vectors, or cannot be run.
pub fn measure(
    function: &Function,
    options: &Options,
    progress: &mut dyn FnMut(&str),
) -> Result<[Measurement; 3]> {
    let _pinned = cpu::Pinned::new()?;
    let mut rounds = Rounds::default();
    let count = if options.quick { ROUNDS_QUICK } else { options.rounds() };
    for round in 1..=count {
        progress(&format!("{}, round {round} of {count}", function.name));
        rounds.add(Case::new(function)?.round()?);
    }
    Ok(compared(function.name, &rounds))
}

/// Ours against both baselines.
fn compared(function: &str, rounds: &Rounds) -> [Measurement; 3] {
    [
        (1, NIC, "clang, arena", Some(GOAL)),
        (2, MAPS, "clang, array maps", None),
        (3, ENTRY, "clang, arena, same entry", None),
    ]
    .map(|(baseline, variant, baseline_name, goal)| {
        rounds.compare(Pair {
            metric: format!("levels.{function}.{variant}"),
            unit: "ns/packet",
            baseline_name,
            baseline,
            better: Better::Lower,
            goal,
        })
    })
}

/// A function that can be run over and over.
pub trait Measured: Runner {
    /// What is run.
    fn program(&self) -> &Program;
    /// Makes ready for a packet.
    fn prepare(&self, packet: &[u8], now_ms: u64) -> Result<()>;
    /// That nothing went wrong so far.
    fn check(&self) -> Result<()>;
}

/// One function, ready to be measured: its tables are as the vectors leave them.
///
/// Each round loads all programs anew, since where the kernel puts the machine
/// code moves short programs by a tenth and more.
struct Case {
    empty: Program,
    /// Ours, then the baselines.
    programs: [Box<dyn Measured>; PROGRAMS - 1],
    vectors: Vectors,
}

impl Case {
    fn new(function: &Function) -> Result<Self> {
        let vectors = Vectors::parse(function.vectors)?;
        let ours =
            Ours::load(function.module).with_context(|| format!("the module {}", function.name))?;
        let baseline = |kind| Baseline::load(function, kind, &vectors.tables);
        let mut programs: [Box<dyn Measured>; PROGRAMS - 1] = [
            Box::new(ours),
            Box::new(baseline(Kind::Arena)?),
            Box::new(baseline(Kind::Maps)?),
            Box::new(baseline(Kind::ArenaWithEntry)?),
        ];
        for (name, program) in
            ["ours", "clang's with an arena", "clang's with maps", "clang's with an entry"]
                .iter()
                .zip(&mut programs)
        {
            let differences = verify(program.as_mut(), &vectors)?;
            if let Some(first) = differences.first() {
                let count = differences.len();
                bail!(
                    "{} as {name} differs from its vectors in {count} places: {first}",
                    function.name
                );
            }
        }
        Ok(Self { empty: empty::load()?, programs, vectors })
    }

    /// Nanoseconds per packet of ours and the baselines, less the empty program's:
    /// the mean over the packets.
    fn round(&self) -> Result<Vec<f64>> {
        let measured: Vec<&Packet> = self.vectors.packets.iter().filter(|p| p.measured).collect();
        let mut sums = [0.0; PROGRAMS - 1];
        for packet in &measured {
            let restore =
                self.vectors.restored.then(|| Restore::load(&packet.frame)).transpose()?;
            for program in &self.programs {
                program.prepare(&packet.frame, packet.now_ms)?;
            }
            let [ours, arena, maps, entry] =
                self.programs.each_ref().map(|program| program.program());
            let nanos =
                in_turn(&[ours, arena, maps, entry, &self.empty], packet, restore.as_ref())?;
            for program in &self.programs {
                program.check()?;
            }
            for (sum, nanos_of) in sums.iter_mut().zip(nanos) {
                *sum += nanos_of - nanos[PROGRAMS - 1];
            }
        }
        Ok(sums.iter().map(|sum| sum / measured.len() as f64).collect())
    }
}

/// The shortest time of each program over a packet, in nanoseconds; all but the
/// last, which is the empty one, must give the same answer.
fn in_turn<const N: usize>(
    programs: &[&Program; N],
    packet: &Packet,
    restore: Option<&Restore>,
) -> Result<[f64; N]> {
    let mut samples = [f64::INFINITY; N];
    let mut answers = [const { None }; N];
    for turn in 0..SAMPLES {
        // There and back, so that a drift of the machine's speed meets all alike.
        for step in 0..N {
            let at = if turn % 2 == 0 { step } else { N - 1 - step };
            let program = match restore {
                Some(restore) => restore.before(programs[at])?,
                None => programs[at],
            };
            let begun = cpu::time();
            let run = program.test_run(&packet.frame, None, REPEAT)?;
            samples[at] = samples[at].min(nanos_each(cpu::time().saturating_sub(begun)));
            answers[at] = Some((run.retval, run.data_out));
        }
    }
    ensure!(
        answers[..N - 1].windows(2).all(|pair| pair[0] == pair[1]),
        "after {REPEAT} runs over '{}' the programs do not agree: {answers:?}",
        packet.about
    );
    Ok(samples)
}

fn nanos_each(time: Duration) -> f64 {
    time.as_nanos() as f64 / f64::from(REPEAT)
}

/// What entering and leaving a module costs: one that does nothing, beside an
/// empty XDP program. It is part of every figure of ours above.
///
/// # Errors
/// When one of the two is refused.
pub fn measure_entry(options: &Options) -> Result<Measurement> {
    let _pinned = cpu::Pinned::new()?;
    let packet = Packet {
        about: "any".to_owned(),
        now_ms: 1,
        frame: vec![0; 64],
        verdict: 0,
        after: None,
        measured: true,
    };
    let module = functions::compiled()?.nothing;
    let mut rounds = Rounds::default();
    for _ in 0..options.rounds() {
        let (nothing, empty) = (Ours::load(module).context("the empty module")?, empty::load()?);
        nothing.prepare(&packet.frame, packet.now_ms)?;
        rounds.add(in_turn(&[nothing.program(), &empty], &packet, None)?.to_vec());
    }
    Ok(rounds.compare(Pair {
        metric: "levels.nothing.nic".to_owned(),
        unit: "ns/packet, gross",
        baseline_name: "an empty XDP program",
        baseline: 1,
        better: Better::Lower,
        goal: None,
    }))
}

/// The geometric mean of the ratios of one table, as a measurement of its own.
fn mean(measurements: &[Measurement], variant: &str, goal: Option<f64>) -> Measurement {
    let of_table: Vec<&Measurement> = measurements
        .iter()
        .filter(|m| {
            m.goal.is_some() == goal.is_some() && m.metric.ends_with(&format!(".{variant}"))
        })
        .collect();
    let geometric = |of: &dyn Fn(&Measurement) -> f64| {
        let logarithms: f64 = of_table.iter().map(|m| of(m).ln()).sum();
        (logarithms / of_table.len().max(1) as f64).exp()
    };
    Measurement {
        metric: if goal.is_some() {
            "levels.geomean".to_owned()
        } else {
            format!("levels.geomean.{variant}")
        },
        unit: "ns/packet",
        ours: geometric(&|m| m.ours),
        baseline: geometric(&|m| m.baseline),
        baseline_name: of_table.first().map_or("none", |m| m.baseline_name),
        ratio: geometric(&|m| m.ratio),
        better: Better::Lower,
        goal,
        goal_for: GoalFor::Ratio,
        rounds: of_table.first().map_or(0, |m| m.rounds),
        spread: of_table.iter().map(|m| m.spread).fold(0.0, f64::max),
    }
}
