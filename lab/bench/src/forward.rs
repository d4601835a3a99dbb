//! `tam bench forward`: plain forwarding, with and without rules that do not match.
//!
//! The node and three baselines, each in a line of its own: (a) the smallest XDP program that
//! forwards correctly, (b) a fixed redirect, which is no router, (c) the kernel without any
//! program.

use anyhow::Result;
use bpf::{Link, Object, Update, XdpMode, objects};
use bytemuck::{Pod, Zeroable};
use namespaces::netns;

use crate::generator::Traffic;
use crate::line::{self, Line};
use crate::measure::{Reading, Window, measure};
use crate::measurement::{Better, Measurement};
use crate::rounds::{Pair, Rounds};
use crate::sink::{Kind, Sink};
use crate::{Options, Subject};

/// Frame lengths in bytes: the smallest, and a full one as in the papers.
const LENGTHS: [usize; 2] = [64, 1460];
/// Rules of the other case; the number that the issue asks for.
const RULES: u32 = 1000;

/// Goal: the node's rate divided by the XDP forwarder's.
const GOAL_XDP: f64 = 0.95;
/// Goal: the node's rate divided by the kernel's, both with the XDP sink.
const GOAL_KERNEL: f64 = 3.0;

pub(crate) const FIB_FORWARD: &str = "fib_forward";
const FIXED_REDIRECT: &str = "fixed_redirect";
const KERNEL: &str = "kernel";

/// Forwarder under test, in its line.
struct Contestant {
    name: &'static str,
    line: Line,
    /// Attachments of a baseline's program.
    _links: Vec<Link>,
}

pub(crate) fn run(
    options: &Options,
    subject: &mut dyn Subject,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<Measurement>> {
    progress("making four lines of namespaces");
    let contestants = [
        Contestant { name: "ours", line: Line::new("ours")?, _links: Vec::new() },
        baseline(FIB_FORWARD, fib_forward)?,
        baseline(FIXED_REDIRECT, fixed_redirect)?,
        baseline(KERNEL, |_| Ok(Vec::new()))?,
    ];
    let mut measurements = Vec::new();
    for rules in [0, RULES] {
        let plan = contestants[0].line.plan(&format!("bench-rules{rules}"), None);
        progress(&format!("starting a node with {rules} rules"));
        subject.start(&plan, rules)?;
        let measured = with_rules(options, &contestants, rules, progress);
        subject.stop(&plan.name)?;
        measurements.extend(measured?);
    }
    Ok(measurements)
}

/// Measures all cases with one number of rules.
fn with_rules(
    options: &Options,
    contestants: &[Contestant],
    rules: u32,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<Measurement>> {
    let mut measurements = Vec::new();
    for kind in [Kind::Xdp, Kind::Ordinary] {
        // The quick run leaves out what the other cases imply.
        let taking_part = match (kind, rules, options.quick) {
            (Kind::Ordinary, 1.., true) => continue,
            (Kind::Ordinary, 0, true) | (_, 1.., _) => &contestants[..2],
            _ => contestants,
        };
        let sinks: Vec<Sink<'_>> =
            taking_part.iter().map(|c| Sink::new(&c.line, kind)).collect::<Result<_>>()?;
        for length in LENGTHS {
            let rounds = take_turns(options, taking_part, &sinks, length, &mut |round| {
                progress(&format!(
                    "{}, {length} bytes, {rules} rules, round {round} of {}",
                    kind.name(),
                    options.rounds()
                ));
            })?;
            let case = Case { kind, length, rules };
            measurements.extend(
                (1..taking_part.len())
                    .map(|at| rounds.compare(case.against(at, taking_part[at].name))),
            );
        }
    }
    Ok(measurements)
}

fn take_turns(
    options: &Options,
    contestants: &[Contestant],
    sinks: &[Sink<'_>],
    length: usize,
    progress: &mut dyn FnMut(u32),
) -> Result<Rounds> {
    let (window, traffic) = (Window::new(options.quick), Traffic::flood(length));
    let mut rounds = Rounds::default();
    for round in 1..=options.rounds() {
        progress(round);
        let rates = contestants.iter().zip(sinks).map(|(contestant, sink)| {
            let mut read = || Ok(Reading::now(sink.packets()?));
            Ok(measure(&contestant.line, traffic, window, &mut read)?.counted)
        });
        rounds.add(rates.collect::<Result<_>>()?);
    }
    Ok(rounds)
}

/// Case: what is sent, and where it is counted.
#[derive(Clone, Copy)]
struct Case {
    kind: Kind,
    length: usize,
    rules: u32,
}

impl Case {
    fn against(self, at: usize, baseline_name: &'static str) -> Pair {
        let mut metric = format!("forward.{}.{}", self.kind.name(), self.length);
        if self.rules > 0 {
            metric.push_str(&format!(".rules{}", self.rules));
        }
        let goal = match baseline_name {
            FIB_FORWARD => Some(GOAL_XDP),
            KERNEL => {
                metric.push_str(".over_kernel");
                // The ordinary sink is slower than the forwarders.
                (self.kind == Kind::Xdp).then_some(GOAL_KERNEL)
            }
            _ => {
                metric.push_str(".over_fixed");
                None
            }
        };
        Pair {
            metric,
            unit: "packets/s",
            baseline_name,
            baseline: at,
            better: Better::Higher,
            goal,
        }
    }
}

fn baseline(
    name: &'static str,
    attach: impl FnOnce(&Line) -> Result<Vec<Link>> + Send,
) -> Result<Contestant> {
    let line = Line::new(name)?;
    // Devices are named by their number in the node's namespace.
    let links = netns::in_namespace(&line.node, || attach(&line))??;
    Ok(Contestant { name, line, _links: links })
}

pub(crate) fn fib_forward(line: &Line) -> Result<Vec<Link>> {
    let object = Object::open(objects::bench::FIB_FORWARD, FIB_FORWARD)?.load()?;
    let (inside, outside) =
        (Line::ifindex(&line.node, line::PORT_IN)?, Line::ifindex(&line.node, line::PORT_OUT)?);
    let devices = object.map("devices")?;
    devices.update(&inside, &inside, Update::Any)?;
    devices.update(&outside, &outside, Update::Any)?;
    let program = object.program("fib_forward")?;
    // On both ports, as a node has it.
    Ok(vec![
        program.attach_xdp(inside, XdpMode::Native)?,
        program.attach_xdp(outside, XdpMode::Native)?,
    ])
}

/// `struct macs` of fixed_redirect.bpf.c.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Macs([[u8; 6]; 2]);

pub(crate) fn fixed_redirect(line: &Line) -> Result<Vec<Link>> {
    let mut open = Object::open(objects::bench::FIXED_REDIRECT, FIXED_REDIRECT)?;
    open.set_global("macs", &Macs([line::MAC_DESTINATION, line::MAC_OUT]))?;
    let object = open.load()?;
    let (inside, outside) =
        (Line::ifindex(&line.node, line::PORT_IN)?, Line::ifindex(&line.node, line::PORT_OUT)?);
    object.map("device")?.update(&0u32, &outside, Update::Any)?;
    Ok(vec![object.program("fixed_redirect")?.attach_xdp(inside, XdpMode::Native)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_name_case_size_and_variant() {
        let metric = |kind, rules, name| Case { kind, length: 64, rules }.against(1, name).metric;
        assert_eq!(metric(Kind::Xdp, 0, FIB_FORWARD), "forward.xdp_sink.64");
        assert_eq!(metric(Kind::Ordinary, 1000, FIB_FORWARD), "forward.sink.64.rules1000");
        assert_eq!(metric(Kind::Xdp, 0, KERNEL), "forward.xdp_sink.64.over_kernel");
    }

    #[test]
    fn only_the_xdp_sink_has_a_goal_over_the_kernel() {
        let goal = |kind| Case { kind, length: 64, rules: 0 }.against(3, KERNEL).goal;
        assert_eq!((goal(Kind::Xdp), goal(Kind::Ordinary)), (Some(GOAL_KERNEL), None));
    }
}
