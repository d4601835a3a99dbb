//! `tam bench nat`: the service `nat` with the router's own address on ports in slow mode and on
//! fast ones, at each level, against the kernel's own masquerading.
//!
//! ```text
//! slow:   generator ─▶ [ node, nat; nftables: an empty forward chain ] ─▶ sink
//! fast:   generator ─▶ [ node, nat                                   ] ─▶ sink
//! kernel: generator ─▶ [ nftables: masquerade                        ] ─▶ sink
//! ```
//!
//! On a port in slow mode the kernel routes each packet after the module, and sets the module's
//! source address at the egress.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use abi::Level;
use anyhow::{Context as _, Result, ensure};
use namespaces::netns::{self, NetNs};

use crate::generator::Traffic;
use crate::line::{self, Line};
use crate::measure::{Reading, Window, measure};
use crate::measurement::{Better, Measured, Measurement};
use crate::rounds::{Pair, Rounds};
use crate::sink::{Kind, Sink};
use crate::started::with_nodes;
use crate::{Options, Service, Subject};

const LENGTH: usize = 64;
/// Flows in turn, as many as a household has, each with a mapping of its own.
const FLOWS: u32 = 256;
const LEVELS: [Level; 3] = [Level::Nic, Level::Kernel, Level::User];
/// Goal below user level: the rate on a port in slow mode divided by the kernel's masquerading.
const GOAL: f64 = 0.8;
/// Packets per second while a lane moves to its level: user level is idle between two of them.
const GENTLE: u64 = 1000;
/// Time within which the node notices netfilter rules, which it polls each 400 ms.
const NOTICED_WITHIN: Duration = Duration::from_millis(1000);

/// Ruleset that makes ports slow, as on every machine with Docker.
const SLOW: &str =
    "table ip slow { chain through { type filter hook forward priority filter; }; }\n";
const MASQUERADE: &str = "table ip out { chain out { type nat hook postrouting priority srcnat; \
                          oifname \"n1\" masquerade; }; }\n";
const BASELINE: &str = "kernel masquerading";

/// Three setups of translation, each in its line; the first two with a node.
struct Setups {
    slow: Line,
    fast: Line,
    kernel: Line,
}

/// Rates of one round of a level, in packets per second.
type Values = [f64; 3];

pub(crate) fn run(
    options: &Options,
    subject: &mut dyn Subject,
    progress: &mut dyn FnMut(&str),
) -> Result<Measured> {
    line::needs_two_cpus()?;
    progress("making three lines of namespaces");
    let setups =
        Setups { slow: Line::new("slow")?, fast: Line::new("fast")?, kernel: Line::new("kernel")? };
    nft(&setups.slow.node, SLOW)?;
    nft(&setups.kernel.node, MASQUERADE)?;
    let plans = [("bench-nat-slow", &setups.slow), ("bench-nat-fast", &setups.fast)]
        .map(|(name, line)| line.plan(name, Some(Service::Nat)));
    let names = plans.each_ref().map(|plan| plan.name.as_str());
    let measured = with_nodes(&plans, subject, progress, |subject, progress| {
        std::thread::sleep(NOTICED_WITHIN);
        take_turns(options, &setups, names, subject, progress)
    });
    let notes = vec![format!(
        "{LENGTH}-byte datagrams of {FLOWS} flows from inside to outside; a fast port's packets \
         leave by the front door, a slow one's by the kernel"
    )];
    Ok(Measured { measurements: measured?, notes })
}

fn take_turns(
    options: &Options,
    setups: &Setups,
    [slow, fast]: [&str; 2],
    subject: &mut dyn Subject,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<Measurement>> {
    let sinks = [&setups.slow, &setups.fast, &setups.kernel].map(|line| Sink::new(line, Kind::Xdp));
    let [slow_sink, fast_sink, kernel_sink] = sinks;
    let (slow_sink, fast_sink, kernel_sink) = (slow_sink?, fast_sink?, kernel_sink?);
    let traffic = Traffic { flows: FLOWS, ..Traffic::flood(LENGTH) };
    let gentle = Traffic { rate: Some(GENTLE), ..traffic };
    let window = Window::new(options.quick);
    let rate = |line: &Line, sink: &Sink<'_>| -> Result<f64> {
        let mut read = || Ok(Reading::now(sink.packets()?));
        Ok(measure(line, traffic, window, &mut read)?.counted)
    };
    let mut all: [Vec<Values>; LEVELS.len()] = Default::default();
    for round in 1..=options.rounds() {
        for (level, values) in LEVELS.into_iter().zip(&mut all) {
            progress(&format!("{level}, round {round} of {}", options.rounds()));
            let mut ours = |name: &str, line: &Line, sink: &Sink<'_>| -> Result<f64> {
                subject.move_to(name, level)?;
                // A lane goes down in a gap, which a flood from the first packet on does not have.
                measure(line, gentle, window, &mut || Ok(Reading::now(sink.packets()?)))?;
                let (handled, arrived) = (subject.handled(name)?, sink.packets()?);
                let rate = rate(line, sink)?;
                let (handled, arrived) =
                    (subject.handled(name)? - handled, sink.packets()? - arrived);
                ensure!(
                    handled >= arrived && arrived > 0,
                    "{arrived} packets came out, and {handled} of them were translated: is \
                     something else between the ends of the line?"
                );
                Ok(rate)
            };
            let slow = ours(slow, &setups.slow, &slow_sink)?;
            let fast = ours(fast, &setups.fast, &fast_sink)?;
            values.push([slow, fast, rate(&setups.kernel, &kernel_sink)?]);
        }
    }
    Ok(LEVELS.into_iter().zip(&all).flat_map(|(level, values)| compared(level, values)).collect())
}

/// Compares a level's rounds: a slow port, and a fast one.
fn compared(level: Level, values: &[Values]) -> [Measurement; 2] {
    [("slow", 0, (level != Level::User).then_some(GOAL)), ("fast", 1, None)].map(
        |(port, at, goal)| {
            let mut rounds = Rounds::default();
            values.iter().for_each(|round| rounds.add(vec![round[at], round[2]]));
            rounds.compare(Pair {
                metric: format!("nat.{port}.{level}"),
                unit: "packets/s",
                baseline_name: BASELINE,
                baseline: 1,
                better: Better::Higher,
                goal,
            })
        },
    )
}

/// Loads an nftables ruleset in a namespace.
fn nft(namespace: &NetNs, ruleset: &str) -> Result<()> {
    let mut command = Command::new("nft");
    command.args(["-f", "-"]).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut child = netns::command_in(namespace, &mut command)?
        .spawn()
        .context("running 'nft': is the package nftables installed?")?;
    if let Some(mut input) = child.stdin.take() {
        input.write_all(ruleset.as_bytes()).context("writing to 'nft'")?;
    }
    let output = child.wait_with_output().context("waiting for 'nft'")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "nft in {}: {}", namespace.name(), said.trim());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_ports_have_a_goal_below_user_level_and_all_one_baseline() {
        let rounds = [[80.0, 200.0, 100.0], [45.0, 100.0, 50.0]];
        let [slow, fast] = compared(Level::Nic, &rounds);
        assert_eq!((slow.metric.as_str(), slow.goal), ("nat.slow.nic", Some(GOAL)));
        assert!((slow.ratio - 0.85).abs() < 1e-9 && slow.reached() == Some(true), "{slow:?}");
        assert_eq!((fast.metric.as_str(), fast.goal, fast.ratio), ("nat.fast.nic", None, 2.0));
        let [slow, _] = compared(Level::User, &rounds);
        assert_eq!((slow.metric.as_str(), slow.goal), ("nat.slow.user", None));
    }
}
