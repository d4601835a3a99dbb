//! `tam bench ledger`: cost of recording the usage of principals.
//!
//! Records per second to the disk, against a loop that appends the same bytes and syncs as often,
//! in the same folder; and packets per second of a service at user level on a node that reads its
//! meters and writes its ledger each second (ten times as often as by default), against one that
//! does so once an hour. Details in docs/benchmarks/ledger.md.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result};

use crate::generator::Traffic;
use crate::line::{self, Line};
use crate::measure::{Reading, Window, measure};
use crate::measurement::{Better, Measured};
use crate::rounds::{Pair, Rounds};
use crate::sink::{Kind, Sink};
use crate::{Options, Service, Subject};

/// Records of a batch: those of one service, and those of a full node.
const BATCHES: [u16; 2] = [2, 512];
/// Batches of a round.
const APPENDS: u64 = 100;
const APPENDS_QUICK: u64 = 20;
/// Goal: records per second divided by plain appends.
const GOAL_RECORDS: f64 = 0.8;
/// Goal: packets with accounting divided by those without; the cost is below 1 %.
const GOAL_PACKETS: f64 = 0.99;
/// Seconds between two ledger writes: with accounting, and practically without.
const EVERY: [u64; 2] = [1, 3600];
const LENGTH: usize = 64;

pub(crate) fn run(
    options: &Options,
    subject: &mut dyn Subject,
    progress: &mut dyn FnMut(&str),
) -> Result<Measured> {
    line::needs_two_cpus()?;
    let mut measured = Measured::default();
    for batch in BATCHES {
        let appends = if options.quick { APPENDS_QUICK } else { APPENDS };
        let folder = tempfile::tempdir().context("making a folder for a ledger")?;
        let mut rounds = Rounds::default();
        for round in 1..=options.rounds() {
            progress(&format!("batches of {batch} records, round {round} of {}", options.rounds()));
            rounds.add(records(subject, folder.path(), round, batch, appends)?.to_vec());
        }
        measured.measurements.push(rounds.compare(Pair {
            metric: format!("ledger.records.batch{batch}"),
            unit: "records/s",
            baseline_name: "plain_appends",
            baseline: 1,
            better: Better::Higher,
            goal: Some(GOAL_RECORDS),
        }));
    }
    measured.measurements.push(packets(options, subject, progress)?.compare(Pair {
        metric: format!("ledger.packets.{LENGTH}"),
        unit: "packets/s",
        baseline_name: "every_hour",
        baseline: 1,
        better: Better::Higher,
        goal: Some(GOAL_PACKETS),
    }));
    Ok(measured)
}

/// Measures records per second, the ledger's and those of plain appends.
fn records(
    subject: &mut dyn Subject,
    folder: &Path,
    round: u32,
    batch: u16,
    appends: u64,
) -> Result<[f64; 2]> {
    let mut append = subject.ledger(&folder.join(format!("ledger-{round}")), batch)?;
    // The first batch creates the file and the first record of each meter; later ones are alike.
    let first = append()?;
    let mut written = Vec::new();
    let begun = Instant::now();
    for _ in 0..appends {
        written.push(append()?);
    }
    let ours = begun.elapsed().as_secs_f64();

    let plain = File::create(folder.join(format!("plain-{round}")))?;
    plain.write_all_at(&first, 0)?;
    plain.sync_all()?;
    let mut at = first.len() as u64;
    let begun = Instant::now();
    for bytes in &written {
        plain.write_all_at(bytes, at)?;
        plain.sync_data()?;
        at += bytes.len() as u64;
    }
    let baseline = begun.elapsed().as_secs_f64();
    let records = f64::from(batch) * appends as f64;
    Ok([records / ours, records / baseline])
}

/// Measures packets per second through a service on two nodes that write more and less often.
fn packets(
    options: &Options,
    subject: &mut dyn Subject,
    progress: &mut dyn FnMut(&str),
) -> Result<Rounds> {
    progress("making two lines of namespaces");
    let lines = [Line::new("ledger-on")?, Line::new("ledger-off")?];
    let mut names = Vec::new();
    let mut measured = Ok(Rounds::default());
    for (line, every) in lines.iter().zip(EVERY) {
        let plan = crate::Plan {
            ledger_every: Some(every),
            ..line.plan(&format!("bench-ledger{every}"), Some(Service::Monitor))
        };
        progress(&format!("starting a node that bills every {every} s"));
        if let Err(error) = subject.start(&plan, 0) {
            measured = Err(error);
            break;
        }
        names.push(plan.name);
    }
    if measured.is_ok() {
        measured = take_turns(options, &lines, progress);
    }
    for name in names {
        subject.stop(&name)?;
    }
    measured
}

fn take_turns(
    options: &Options,
    lines: &[Line; 2],
    progress: &mut dyn FnMut(&str),
) -> Result<Rounds> {
    let sinks = lines.iter().map(|line| Sink::new(line, Kind::Xdp)).collect::<Result<Vec<_>>>()?;
    let (window, traffic) = (Window::new(options.quick), Traffic::flood(LENGTH));
    let mut rounds = Rounds::default();
    for round in 1..=options.rounds() {
        progress(&format!("packets, round {round} of {}", options.rounds()));
        let rates = lines.iter().zip(&sinks).map(|(line, sink)| {
            let mut read = || Ok(Reading::now(sink.packets()?));
            Ok(measure(line, traffic, window, &mut read)?.counted)
        });
        rounds.add(rates.collect::<Result<_>>()?);
    }
    Ok(rounds)
}
