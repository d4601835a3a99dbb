//! Measuring: each packet over and over, ours and the baselines in turn.

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
/// Runs that show how long one takes.
const REPEAT_FIRST: u32 = 1 << 10;
/// A sample's length, so that neither the clock's resolution nor the system call's
/// 10 microseconds matter: 2 to 4 ms, or longer than that for [`REPEAT_MAX`] runs at most.
const SAMPLE_MIN: Duration = Duration::from_millis(2);
/// Samples of each program in a round, in turn. The smallest counts: whatever else
/// happens on the machine, on the other thread of the same core for one, only adds.
const SAMPLES: usize = 5;
/// The same with `--quick`, which promises 45 s for all.
const SAMPLES_QUICK: usize = 3;
/// Rounds with `--quick`: one takes a second for each function.
const ROUNDS_QUICK: u32 = 1;
/// Nanoseconds of ours divided by those of the baseline, for each function.
const GOAL: f64 = 1.4;
/// The same for the geometric mean of the first set.
const GOAL_MEAN: f64 = 1.10;
/// The same for the geometric mean of the functions that the compiler had not seen.
const GOAL_MEAN_UNSEEN: f64 = 1.15;
/// The first table: clang's programs have their tables where ours has them.
const NIC: &str = "nic";
/// The second table.
const MAPS: &str = "nic.maps";
/// The third table: clang's programs with a node's entry and exit in C around them.
const ENTRY: &str = "nic.entry";
/// Programs that take turns: ours, the three baselines, and the empty one.
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
    let samples = if options.quick { SAMPLES_QUICK } else { SAMPLES };
    for round in 1..=count {
        progress(&format!("{}, round {round} of {count}", function.name));
        rounds.add(Case::new(function)?.round(samples)?);
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
    /// Its metadata, and what it leaves.
    fn hand_over(&self) -> &Map;
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
    empty: Empty,
    /// The module's window.
    window: u32,
    /// Ours, then the baselines.
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

    /// Nanoseconds per packet of ours and the baselines, less the empty program's:
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

    /// Nanoseconds of ours, the baselines and the empty program over a packet.
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

/// The shortest time of each program over a packet, in nanoseconds; all but the
/// last, which is the empty one, must give the same answer.
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

/// How often a program is run for a sample, as the first one's time says; all run as often, for
/// their tables to stay alike. It is a power of two, since some functions undo at each second run
/// what they did.
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

/// The geometric mean of the ratios of one table of a set, as a measurement of its own.
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
