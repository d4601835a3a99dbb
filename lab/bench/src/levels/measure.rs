//! Measurement of functions: each packet repeatedly, module and baselines in turn.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bpf::{Map, Program};

use super::empty::{Empty, Restore};
use super::{Baseline, Function, Kind, Ours, Packet, Runner, Set, Vectors, cpu, functions, verify};
use crate::Options;
use crate::measurement::{Better, GoalFor, Measurement};
use crate::rounds::{Pair, Rounds};

/// Most runs of a program in one sample.
const REPEAT_MAX: u32 = 1 << 17;
/// Runs by which the time of one run is estimated.
const REPEAT_FIRST: u32 = 1 << 10;
/// Shortest sample, so that neither the clock's resolution nor the system call's 10 microseconds
/// matter: 2 to 4 ms, or longer if [`REPEAT_MAX`] runs take longer.
const SAMPLE_MIN: Duration = Duration::from_millis(2);
/// Samples of each program in a round, in turn. The smallest counts: disturbances, such as the
/// other thread of the same core, only add time.
const SAMPLES: usize = 5;
/// Samples with `--quick`, which promises 45 s in total.
const SAMPLES_QUICK: usize = 3;
/// Rounds with `--quick`: one takes a second for each function.
const ROUNDS_QUICK: u32 = 1;
/// Goal for each function: the module's nanoseconds divided by the baseline's.
const GOAL: f64 = 1.4;
/// Goal for the geometric mean of the first set.
const GOAL_MEAN: f64 = 1.10;
/// Goal for the geometric mean of the functions that the compiler had not seen.
const GOAL_MEAN_UNSEEN: f64 = 1.15;
/// Name of the first table: clang's programs have their tables in an arena, as modules do.
const NIC: &str = "nic";
/// Name of the second table: clang's programs have their tables in array maps.
const MAPS: &str = "nic.maps";
/// Name of the third table: clang's programs with a node's entry and exit in C around them.
const ENTRY: &str = "nic.entry";
/// Programs that run in turn: the module, the three baselines, and the empty one.
const PROGRAMS: usize = 5;

pub(crate) fn run(options: &Options, progress: &mut dyn FnMut(&str)) -> Result<Vec<Measurement>> {
    let mut all = Vec::new();
    for (set, name, goal) in [
        (Set::First, "levels.geomean", GOAL_MEAN),
        (Set::Unseen, "levels.unseen.geomean", GOAL_MEAN_UNSEEN),
    ] {
        let mut measurements = Vec::new();
        for function in functions()?.iter().filter(|function| function.set == set) {
            measurements.extend(measure(function, options, progress)?);
        }
        let means = [(NIC, Some(goal)), (MAPS, None), (ENTRY, None)]
            .map(|(variant, goal)| mean(&measurements, name, variant, goal));
        all.extend(measurements);
        all.extend(means);
    }
    all.push(measure_entry(options)?);
    Ok(all)
}

/// Measures one function against its baselines.
///
/// # Errors
/// A program is refused, differs from its vectors, or cannot be run.
pub fn measure(
    function: &Function,
    options: &Options,
    progress: &mut dyn FnMut(&str),
) -> Result<[Measurement; 3]> {
    let _pinned = cpu::Pinned::new()?;
    let mut rounds = Rounds::default();
    let count = if options.quick { ROUNDS_QUICK } else { options.rounds() };
    let samples = if options.quick { SAMPLES_QUICK } else { SAMPLES };
    for round in 1..=count {
        progress(&format!("{}, round {round} of {count}", function.name));
        rounds.add(Case::new(function)?.round(samples)?);
    }
    Ok(compared(function.name, &rounds))
}

/// Compares the module with the baselines.
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

/// Function that can be run repeatedly by the kernel.
pub trait Measured: Runner {
    /// Returns the program to run.
    fn program(&self) -> &Program;
    /// Returns the map of its metadata and results.
    fn hand_over(&self) -> &Map;
    /// Prepares the run for a packet.
    fn prepare(&self, packet: &[u8], now_ms: u64) -> Result<()>;
    /// Returns an error if a call has failed so far.
    fn check(&self) -> Result<()>;
}

/// Function ready to be measured: its tables are in the state that the vectors leave.
///
/// Each round loads all programs anew, since the address that the kernel gives the machine code
/// changes the time of short programs by a tenth and more.
struct Case {
    empty: Empty,
    /// Bytes of the module's window.
    window: u32,
    /// Module, then the baselines.
    programs: [Box<dyn Measured>; PROGRAMS - 1],
    vectors: Vectors,
}

impl Case {
    fn new(function: &Function) -> Result<Self> {
        let vectors = Vectors::parse(function.vectors)?;
        let ours =
            Ours::load(function.module).with_context(|| format!("the module {}", function.name))?;
        let window = ours.window();
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
        Ok(Self { empty: Empty::load()?, window, programs, vectors })
    }

    /// Returns nanoseconds per packet of the module and the baselines, less the empty program's:
    /// the mean over the packets.
    fn round(&self, samples: usize) -> Result<Vec<f64>> {
        let measured: Vec<&Packet> = self.vectors.packets.iter().filter(|p| p.measured).collect();
        let mut sums = [0.0; PROGRAMS - 1];
        for packet in &measured {
            for program in &self.programs {
                program.prepare(&packet.frame, packet.now_ms)?;
            }
            let nanos = self.nanos(packet, samples)?;
            for program in &self.programs {
                program.check()?;
            }
            for (sum, nanos_of) in sums.iter_mut().zip(nanos) {
                *sum += nanos_of - nanos[PROGRAMS - 1];
            }
        }
        Ok(sums.iter().map(|sum| sum / measured.len() as f64).collect())
    }

    /// Returns nanoseconds of the module, the baselines and the empty program over a packet.
    fn nanos(&self, packet: &Packet, samples: usize) -> Result<[f64; PROGRAMS]> {
        let [ours, arena, maps, entry] =
            self.programs.each_ref().map(|program| (program.program(), program.hand_over()));
        let empty = (&self.empty.program, self.empty.hand_over.map());
        let programs = [ours, arena, maps, entry, empty];
        if !self.vectors.restored && !self.vectors.restored_head {
            return in_turn(&programs.map(|(program, _)| program), packet, samples);
        }
        let mut restoring = Vec::with_capacity(PROGRAMS);
        for (program, hand_over) in programs {
            restoring.push(if self.vectors.restored_head {
                Restore::head(&packet.frame, self.window, program, hand_over)?
            } else {
                Restore::part(&packet.frame, program)?
            });
        }
        in_turn(&std::array::from_fn(|at| restoring[at].program()), packet, samples)
    }
}

/// Returns the shortest time of each program over a packet, in nanoseconds; all but the last, which
/// is the empty one, must give the same result.
fn in_turn<const N: usize>(
    programs: &[&Program; N],
    packet: &Packet,
    samples: usize,
) -> Result<[f64; N]> {
    let repeat = repeat_of(programs, packet)?;
    let mut shortest = [f64::INFINITY; N];
    let mut answers = [const { None }; N];
    for turn in 0..samples {
        // There and back, so that a drift of the machine's speed meets all alike.
        for step in 0..N {
            let at = if turn % 2 == 0 { step } else { N - 1 - step };
            let begun = cpu::time();
            let run = programs[at].test_run(&packet.frame, None, repeat)?;
            let nanos = nanos_each(cpu::time().saturating_sub(begun), repeat);
            shortest[at] = shortest[at].min(nanos);
            answers[at] = Some((run.retval, run.data_out));
        }
    }
    ensure!(
        answers[..N - 1].windows(2).all(|pair| pair[0] == pair[1]),
        "after {repeat} runs over '{}' the programs do not agree: {answers:?}",
        packet.about
    );
    Ok(shortest)
}

/// Returns how often a program is run for a sample, by the first program's time; all run equally
/// often so that their tables stay alike. The number is a power of two, since some functions undo
/// at each second run what they did.
fn repeat_of<const N: usize>(programs: &[&Program; N], packet: &Packet) -> Result<u32> {
    let mut enough = REPEAT_MAX;
    for program in programs.iter().rev() {
        let begun = cpu::time();
        program.test_run(&packet.frame, None, REPEAT_FIRST)?;
        let each = (cpu::time().saturating_sub(begun) / REPEAT_FIRST).as_nanos();
        let runs = u32::try_from(SAMPLE_MIN.as_nanos() / each.max(1));
        enough = runs.unwrap_or(REPEAT_MAX).next_power_of_two();
    }
    Ok(enough.clamp(REPEAT_FIRST, REPEAT_MAX))
}

fn nanos_each(time: Duration, repeat: u32) -> f64 {
    time.as_nanos() as f64 / f64::from(repeat)
}

/// Measures entry and exit of a module: one that does nothing, against an empty XDP program. This
/// cost is part of every figure of a module above.
///
/// # Errors
/// A program of the two is refused.
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
        let (nothing, empty) = (Ours::load(module).context("the empty module")?, Empty::load()?);
        nothing.prepare(&packet.frame, packet.now_ms)?;
        rounds.add(in_turn(&[nothing.program(), &empty.program], &packet, SAMPLES)?.to_vec());
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

/// Returns the geometric mean of the ratios of one table of a set, as a measurement of its own.
fn mean(set: &[Measurement], name: &str, variant: &str, goal: Option<f64>) -> Measurement {
    let of_table: Vec<&Measurement> = set
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
        metric: if goal.is_some() { name.to_owned() } else { format!("{name}.{variant}") },
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
