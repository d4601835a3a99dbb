//! `tam bench user`: a service at user level against a plain AF_XDP program in C.
//!
//! Both have one socket a port, batches of 64, wake-up on need, polling when idle, the same CPU for
//! the application and CPU 0 for the kernel's part.

use anyhow::Result;

use crate::generator::Traffic;
use crate::line::{self, Line};
use crate::measure::{Reading, Window, measure};
use crate::measurement::{Better, Measurement};
use crate::plain_xsk::{Mode, PlainXsk};
use crate::rounds::{Pair, Rounds};
use crate::sink::{Kind, Sink};
use crate::{Options, Service, Subject};

const LENGTHS: [usize; 2] = [64, 1460];
/// Goal: the service's rate divided by the plain program's.
const GOAL: f64 = 0.9;

pub(crate) fn run(
    options: &Options,
    subject: &mut dyn Subject,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<Measurement>> {
    line::needs_two_cpus()?;
    progress("making two lines of namespaces");
    let lines = Lines { ours: Line::new("ours")?, plain: Line::new("plain")? };
    let mut measurements = Vec::new();
    for mode in [Mode::Forward, Mode::Drop] {
        let service = match mode {
            Mode::Forward => Service::Monitor,
            Mode::Drop => Service::Reception,
        };
        let plan = lines.ours.plan(&format!("bench-{}", name(mode)), Some(service));
        progress(&format!("starting a node for {}", name(mode)));
        subject.start(&plan, 0)?;
        let measured = in_mode(options, &lines, mode, subject, &plan.name, progress);
        subject.stop(&plan.name)?;
        measurements.extend(measured?);
    }
    Ok(measurements)
}

struct Lines {
    ours: Line,
    plain: Line,
}

const fn name(mode: Mode) -> &'static str {
    match mode {
        Mode::Forward => "forward",
        Mode::Drop => "reception",
    }
}

fn in_mode(
    options: &Options,
    lines: &Lines,
    mode: Mode,
    subject: &mut dyn Subject,
    node: &str,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<Measurement>> {
    let plain = PlainXsk::start(&lines.plain, mode, line::NODE_CPU)?;
    let ours_sink = Sink::new(&lines.ours, Kind::Xdp)?;
    let plain_sink = Sink::new(&lines.plain, Kind::Xdp)?;
    let window = Window::new(options.quick);
    let mut measurements = Vec::new();
    for length in LENGTHS {
        let traffic = Traffic::flood(length);
        let mut rounds = Rounds::default();
        for round in 1..=options.rounds() {
            let (name, last) = (name(mode), options.rounds());
            progress(&format!("{name}, {length} bytes, round {round} of {last}"));
            let ours = measure(&lines.ours, traffic, window, &mut || match mode {
                Mode::Forward => Ok(Reading::now(ours_sink.packets()?)),
                Mode::Drop => Ok(Reading::now(subject.handled(node)?)),
            })?;
            let plain = measure(&lines.plain, traffic, window, &mut || match mode {
                Mode::Forward => Ok(Reading::now(plain_sink.packets()?)),
                Mode::Drop => Ok(plain.received()),
            })?;
            rounds.add(vec![ours.counted, plain.counted]);
        }
        measurements.push(rounds.compare(Pair {
            metric: format!("user.{}.{length}", name(mode)),
            unit: "packets/s",
            baseline_name: "plain_xsk",
            baseline: 1,
            better: Better::Higher,
            goal: Some(GOAL),
        }));
    }
    Ok(measurements)
}
