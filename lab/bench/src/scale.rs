//! `tam bench scale`: cost of a node with 10, 1,000 and 10,000 sessions, for each session and for
//! each packet.
//!
//! ```text
//! generator ─▶ n0 ─▶ a rule for each session ─▶ its service counts, passes ─▶ n1 ═ d0: counted
//!   CPU 0        └▶ packets without a session: dropped       CPU 1: the cell
//! ```
//!
//! Source ports make 16,384 flows, however many sessions there are. They are cut into as many equal
//! blocks as there are sessions, and more, up to a power of two: each session has a block, and so
//! one rule with one key; packets of the remaining blocks belong to a session that drops them. The
//! generator walks through the flows so that no two packets in a row are of one session and each
//! session's are evenly spread; with few sessions, too, packets of the remainder do not come
//! together. Every node is new: sessions are created by one change, and one more beside them by a
//! change of its own.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::arrivals::Arrivals;
use crate::generator::{Generator, Traffic};
use crate::line::{self, Line};
use crate::measurement::{Better, Measured};
use crate::rounds::{Pair, Rounds};
use crate::{Options, Populated, Processes, SOURCE_PORT_FIRST, Subject};

const NODE: &str = "bench-scale";
const SESSIONS: [u32; 3] = [10, 1_000, 10_000];
const SESSIONS_QUICK: [u32; 2] = [10, 1_000];
/// Source ports, with or without a session.
const FLOWS: u32 = 16_384;
const LENGTH: usize = 80;
/// Packets per second to all sessions together: the capacity of a cell with a thousand of them.
const RATE: u64 = 400_000;
/// Packets per second beyond the capacity with a thousand, so that the cell never idles and the
/// cost of a packet shows.
const RATE_BEYOND: u64 = 700_000;
/// Consecutive packets of a flow, as a sender's window or an aggregating device delivers them.
const TRAIN: u32 = 8;
const WINDOW: Duration = Duration::from_secs(4);
const WINDOW_QUICK: Duration = Duration::from_secs(2);
/// Time from the generator's first packet until counting starts: each flow has had some.
const WARM_UP: Duration = Duration::from_secs(1);
/// Time after the generator's last packet.
const ARRIVAL: Duration = Duration::from_millis(200);
/// Sessions created one by one beside the others; the median counts.
const ONE_BY_ONE: usize = 9;
/// Memory that a session's is compared with: its module's own, a page of WebAssembly, in bytes.
const PAGE: f64 = 65_536.0;
const GOAL_PACKET: f64 = 1.1;
const GOAL_PACKETS: f64 = 0.99;
const WITH_FEW: &str = "10 sessions";

pub(crate) fn run(
    options: &Options,
    subject: &mut dyn Subject,
    progress: &mut dyn FnMut(&str),
) -> Result<Measured> {
    let line = line::only("scale", progress)?;
    let cases: &[u32] = if options.quick { &SESSIONS_QUICK } else { &SESSIONS };
    let mut rounds: Vec<Vec<Seen>> = Vec::new();
    for round in 1..=options.rounds() {
        let mut seen = Vec::new();
        for &sessions in cases {
            progress(&format!("{sessions} sessions, round {round} of {}", options.rounds()));
            seen.push(with(&line, subject, sessions, options)?);
        }
        rounds.push(seen);
    }
    Ok(measured(cases, &rounds))
}

/// Results of a node with a number of sessions.
struct Seen {
    /// Memory growth of both processes for each session, in bytes.
    memory: f64,
    /// Milliseconds for each of the sessions created together.
    together: f64,
    /// Milliseconds for one more session.
    one: f64,
    /// Milliseconds until all sessions were listed.
    list: f64,
    /// Processor time of the cell for each packet in nanoseconds, no two in a row of one session.
    packet: f64,
    /// Processor time of the cell for each packet in nanoseconds, [`TRAIN`] in a row of one flow.
    train: f64,
    /// Share of the packets sent to sessions that arrived.
    packets: f64,
}

fn with(line: &Line, subject: &mut dyn Subject, sessions: u32, options: &Options) -> Result<Seen> {
    let plan = crate::Plan { ledger_every: Some(3600), ..line.plan(NODE, None) };
    subject.start(&plan, 0)?;
    let seen = measure(line, subject, sessions, options);
    let stopped = subject.stop(NODE);
    let seen = seen?;
    stopped?;
    Ok(seen)
}

fn measure(
    line: &Line,
    subject: &mut dyn Subject,
    sessions: u32,
    options: &Options,
) -> Result<Seen> {
    // Resources that a node's first service creates for all are not charged to the others.
    let single = Populated { sessions: 1, ..populated(sessions) };
    subject.populate(NODE, &single)?;
    let before = subject.processes(NODE)?;
    let all = populated(sessions);
    let together = subject.populate(NODE, &all)?;
    let after = subject.processes(NODE)?;
    let mut one = Vec::new();
    for _ in 0..ONE_BY_ONE {
        one.push(subject.one_more(NODE)?.as_secs_f64() * 1e3);
    }
    let begun = Instant::now();
    let listed = subject.sessions(NODE)?;
    let list = begun.elapsed();
    ensure!(listed >= sessions as usize, "only {listed} of {sessions} sessions are there");
    let (_, packets) = traffic(line, subject, &all, (options, RATE, 1))?;
    let (packet, _) = traffic(line, subject, &all, (options, RATE_BEYOND, 1))?;
    let (train, _) = traffic(line, subject, &all, (options, RATE_BEYOND, TRAIN))?;
    let more = |of: fn(&Processes) -> u64| of(&after) as f64 - of(&before) as f64;
    Ok(Seen {
        memory: (more(|it| it.cell_bytes) + more(|it| it.node_bytes)) / f64::from(sessions - 1),
        together: together.as_secs_f64() * 1e3 / f64::from(sessions - 1),
        one: crate::rounds::median(&one),
        list: list.as_secs_f64() * 1e3,
        packet,
        train,
        packets,
    })
}

const fn populated(sessions: u32) -> Populated {
    let blocks = sessions.next_power_of_two();
    Populated { sessions, block: (FLOWS / blocks) as u16, blocks }
}

/// Returns the cell's nanoseconds for each packet, and the share of the packets sent to sessions
/// that arrived.
fn traffic(
    line: &Line,
    subject: &mut dyn Subject,
    all: &Populated,
    (options, rate, train): (&Options, u64, u32),
) -> Result<(f64, f64)> {
    let window = if options.quick { WINDOW_QUICK } else { WINDOW };
    let flood = Traffic::flood(LENGTH);
    // So many packets a second to sessions, whatever goes to none.
    let share = f64::from(all.sessions) / f64::from(all.blocks);
    let rate = (rate as f64 / share) as u64;
    let traffic = Traffic {
        rate: Some(rate),
        flows: FLOWS,
        scattered: true,
        train,
        stamped: true,
        unbroken: true,
        ..flood
    };
    let arrivals = Arrivals::new(line, 1, traffic.stamp_at())?;
    let device = Line::ifindex(&line.source, "s0")?;
    let generator = Generator::start(&line.source, device, traffic)?;
    std::thread::sleep(WARM_UP);
    let first = arrivals.begin(&generator);
    let before = subject.processes(NODE)?;
    std::thread::sleep(window);
    let after = subject.processes(NODE)?;
    let came_meanwhile = arrivals.counts()?.packets;
    let last = generator.sent();
    generator.stop()?;
    std::thread::sleep(ARRIVAL);
    let sent = (last - first) as f64 * share;
    let came = arrivals.counts()?.packets;
    ensure!(came_meanwhile > 0, "no packet of a session came");
    let cpu = after.cell_cpu.saturating_sub(before.cell_cpu);
    Ok((cpu.as_nanos() as f64 / came_meanwhile as f64, came as f64 / sent))
}

fn measured(cases: &[u32], rounds: &[Vec<Seen>]) -> Measured {
    let mut measured = Measured::default();
    let mut compare = |at: usize, what: &What, baseline: &dyn Fn(&[Seen]) -> f64| {
        let mut pairs = Rounds::default();
        for seen in rounds {
            pairs.add(vec![(what.of)(&seen[at]), baseline(seen)]);
        }
        measured.measurements.push(pairs.compare(Pair {
            metric: format!("scale.{}.{}", what.metric, cases[at]),
            unit: what.unit,
            baseline_name: what.baseline_name,
            baseline: 1,
            better: what.better,
            goal: what.goal,
        }));
    };
    for at in 0..cases.len() {
        compare(at, &MEMORY, &|_| PAGE);
    }
    for at in 0..cases.len() {
        compare(at, &PACKETS, &|seen| seen[0].packets);
    }
    for what in [&TOGETHER, &ONE, &LIST, &PACKET, &TRAINS] {
        for at in 1..cases.len() {
            compare(at, what, &|seen| (what.of)(&seen[0]));
        }
    }
    measured.notes.push(format!(
        "no two packets in a row are of one session, however many there are; in trains {TRAIN} are"
    ));
    measured
}

/// Metric of the benchmark.
struct What {
    metric: &'static str,
    unit: &'static str,
    baseline_name: &'static str,
    better: Better,
    goal: Option<f64>,
    of: fn(&Seen) -> f64,
}

const MEMORY: What = What {
    metric: "memory",
    unit: "bytes",
    baseline_name: "its module's page of memory",
    better: Better::Lower,
    goal: None,
    of: |seen| seen.memory,
};
const PACKETS: What = What {
    metric: "packets",
    unit: "share",
    baseline_name: WITH_FEW,
    better: Better::Higher,
    goal: Some(GOAL_PACKETS),
    of: |seen| seen.packets,
};
const TOGETHER: What = What {
    metric: "together",
    unit: "ms",
    baseline_name: WITH_FEW,
    better: Better::Lower,
    goal: None,
    of: |seen| seen.together,
};
const ONE: What = What { metric: "one", of: |seen| seen.one, ..TOGETHER };
const LIST: What = What { metric: "list", of: |seen| seen.list, ..TOGETHER };
const PACKET: What = What {
    metric: "packet",
    unit: "ns",
    goal: Some(GOAL_PACKET),
    of: |seen| seen.packet,
    ..TOGETHER
};

const TRAINS: What = What { metric: "train", of: |seen| seen.train, goal: None, ..PACKET };

const _: () = assert!(SOURCE_PORT_FIRST as u32 + FLOWS < 1 << 16, "flows are source ports");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_are_cut_into_blocks_that_a_rule_has_one_key_for() {
        for sessions in SESSIONS {
            let Populated { block, blocks, .. } = populated(sessions);
            assert!(blocks >= sessions && blocks < 2 * sessions);
            assert_eq!(u32::from(block) * blocks, FLOWS);
            assert_eq!(SOURCE_PORT_FIRST % block, 0, "aligned, or it would take two keys");
        }
    }

    #[test]
    fn rounds_are_compared_with_their_own_baseline() {
        let seen = |packet| Seen {
            memory: 2.0 * PAGE,
            together: 1.0,
            one: 5.0,
            list: 7.0,
            packet,
            train: packet,
            packets: 1.0,
        };
        let all = measured(&[10, 1_000], &[vec![seen(100.0), seen(120.0)]]).measurements;
        let find = |metric: &str| all.iter().find(|it| it.metric == metric).unwrap();
        assert_eq!(find("scale.memory.10").ratio, 2.0);
        assert_eq!(find("scale.packet.1000").reached(), Some(false));
        assert_eq!((find("scale.list.1000").goal, all.len()), (None, 9));
    }
}
