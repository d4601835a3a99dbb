//! `tam bench auth`: cost of authenticating the sender of active packets.
//!
//! ```text
//! generator ─▶ s0 ═ n0 [ node: cell opens, window, dispatch, module drops ]
//!    of an association, encrypted │ from anyone │ by a rule, without being one: `bench user`
//! ```
//!
//! Each packet is different and sealed before the measurement: none is accepted twice. Compared are
//! the cell's processor time per packet, and packets per second.

use anyhow::{Context as _, Result, ensure};

use crate::generator::{Datagrams, Generator, Traffic};
use crate::line::{self, Line};
use crate::measure::{Reading, Window};
use crate::measurement::{Better, Measured};
use crate::rounds::{Pair, Rounds, median};
use crate::started::with_nodes;
use crate::{Calls, Options, Service, Subject, Vouched};

/// Payload lengths in bytes, each with the goal: the cost of an association's packet divided by
/// that of a packet from anyone. The first three are sizes of other papers, the last that of SANE's
/// active ping. For short payloads the association may take 15 % of the total (1 / 0.85); for long
/// ones AES itself takes more.
const LENGTHS: [(usize, f64); 4] = [(64, 1.18), (512, 1.18), (1460, 1.25), (2230, 1.35)];
/// Bytes of an active packet beside its payload: headers, and the tag.
const AROUND: usize = 14 + 20 + 8 + 48 + 16;
/// MTU for the longest payload.
const MTU: u32 = 3000;
/// UDP port of the node's associations.
const PORT: u16 = 7443;
/// Packets per second, more than a cell carries. As many are sealed for each second of a window,
/// and some more for the start and the end.
const RATE: f64 = 2_000_000.0;
const MORE: f64 = 1.2;
/// Most bytes of sealed packets; it bounds the packets per second of long payloads.
const SEALED_MAX: usize = 3 << 30;
/// Goal for packets from anyone: cost divided by that of a packet matched by a rule.
const GOAL_ANYONE: f64 = 1.1;
/// Handshakes that are timed.
const HANDSHAKES: usize = 20;
const NODES: [&str; 2] = ["bench-called", "bench-ruled"];

pub(crate) fn run(
    options: &Options,
    subject: &mut dyn Subject,
    progress: &mut dyn FnMut(&str),
) -> Result<Measured> {
    line::needs_two_cpus()?;
    progress("making two lines of namespaces");
    let lines = [Line::new("called")?, Line::new("ruled")?];
    lines.iter().try_for_each(|line| line.set_mtu(MTU))?;
    let plans = [
        crate::Plan { is_called: true, ..lines[0].plan(NODES[0], None) },
        lines[1].plan(NODES[1], Some(Service::Reception)),
    ];
    with_nodes(&plans, subject, progress, |subject, progress| {
        take_turns(options, &lines, subject, progress)
    })
}

fn take_turns(
    options: &Options,
    lines: &[Line; 2],
    subject: &mut dyn Subject,
    progress: &mut dyn FnMut(&str),
) -> Result<Measured> {
    let window = Window::new(options.quick);
    let mut measured = Measured::default();
    let mut handshakes = Vec::new();
    for _ in 0..HANDSHAKES {
        let associated = subject.associate(NODES[0], lines[0].source.name())?;
        handshakes.push(associated.handshake.as_secs_f64() * 1e3);
    }
    for (length, goal) in LENGTHS {
        let (mut cpu, mut rates) = (Rounds::default(), Rounds::default());
        for round in 1..=options.rounds() {
            progress(&format!("{length} bytes, round {round} of {}", options.rounds()));
            let calls = subject.associate(NODES[0], lines[0].source.name())?.calls;
            let cases = one_round(lines, subject, calls, window, length)?;
            cpu.add(cases.iter().map(|case| case.cpu_ns).collect());
            rates.add(cases.iter().map(|case| case.rate).collect());
        }
        let pair = |case: &str, unit, baseline_name, baseline, better, goal| Pair {
            metric: format!("auth.{case}.{length}"),
            unit,
            baseline_name,
            baseline,
            better,
            goal,
        };
        let added = pair("cpu", "ns/packet", "from_anyone", 1, Better::Lower, Some(goal));
        let added = cpu.compare(added);
        let ns = added.ours - added.baseline;
        let rate = pair("rate", "packets/s", "from_anyone", 1, Better::Higher, Some(0.85));
        let plain = pair("anyone", "ns/packet", "by_a_rule", 1, Better::Lower, Some(GOAL_ANYONE));
        let plain = cpu.without_first().compare(plain);
        measured.measurements.extend([added, rates.compare(rate), plain]);
        measured.notes.push(format!(
            "{length} bytes: an association adds {ns:.0} ns to a packet{}",
            if length == LENGTHS[0].0 { " (goal: at most 250 ns)" } else { "" }
        ));
    }
    measured.notes.push(format!(
        "the key exchange, three messages and the node's word that the keys are in place: {:.2} ms (median of {HANDSHAKES}; SANE: 2.4 s with a 256-bit exponent)",
        median(&handshakes)
    ));
    Ok(measured)
}

/// Cost of packets of one kind.
struct Case {
    cpu_ns: f64,
    rate: f64,
}

/// Measures one round: packets of an association, from anyone, and by a rule.
fn one_round(
    lines: &[Line; 2],
    subject: &mut dyn Subject,
    mut calls: Calls,
    window: Window,
    length: usize,
) -> Result<Vec<Case>> {
    let seconds = (window.warm_up + window.length).as_secs_f64();
    let wanted = (RATE * MORE * seconds) as usize;
    let count = wanted.min(SEALED_MAX / (length + AROUND));
    let rate = (count as f64 / MORE / seconds) as u64;
    let mut cases = Vec::new();
    for vouched in [Vouched::Yes, Vouched::No] {
        let mut next = || calls(length, vouched);
        // Packets from anyone are all the same.
        let (count, again) = if vouched == Vouched::Yes { (count, false) } else { (1, true) };
        let datagrams = Datagrams { count, again, next: &mut next };
        let device = Line::ifindex(&lines[0].source, "s0")?;
        let generator = Generator::start_with(&lines[0].source, device, (PORT, rate), datagrams)?;
        let most = (!again).then_some(count as u64);
        cases.push(counted(subject, NODES[0], window, generator, most)?);
    }
    let device = Line::ifindex(&lines[1].source, "s0")?;
    let traffic = Traffic { rate: Some(rate), ..Traffic::flood(length + AROUND) };
    let generator = Generator::start(&lines[1].source, device, traffic)?;
    cases.push(counted(subject, NODES[1], window, generator, None)?);
    Ok(cases)
}

fn counted(
    subject: &mut dyn Subject,
    node: &str,
    window: Window,
    generator: Generator,
    most: Option<u64>,
) -> Result<Case> {
    std::thread::sleep(window.warm_up);
    let before = subject.cell_use(node)?;
    let begun = Reading::now(before.packets);
    std::thread::sleep(window.length);
    let after = subject.cell_use(node)?;
    let ended = Reading::now(after.packets);
    let sent = generator.stop()?;
    ensure!(
        most.is_none_or(|most| sent < most),
        "all {sent} packets were sent before the window was over: it took longer than it should"
    );
    let packets = after.packets - before.packets;
    ensure!(packets > 0, "the node {node} has handled no packet");
    let rate = ended.rate_since(begun).context("the clock stands")?;
    Ok(Case { cpu_ns: (after.cpu_ns - before.cpu_ns) as f64 / packets as f64, rate })
}
