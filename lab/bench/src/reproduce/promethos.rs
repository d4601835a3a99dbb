//! PromethOS NP, figure 4 and table 1: transfer rate and delay under rising load, for a module that
//! does nothing, on two processors of one node ("A network processor for active networks").
//!
//! The paper's two processors are the host's (Xeon, 2.4 GHz) and the network card's own PowerPC;
//! here they are two levels: a sandboxed process on a core of its own (`user`), and the driver
//! (`nic`). The paper's nearer processor was the slower one; here it is the faster. Its round trip
//! went up to the module and back to the sender; here it is one way, from source to sink.
//!
//! The paper also found that the card forwards another, plain flow meanwhile: here half of the
//! packets match no rule while the other half is more than the service carries.

use abi::Level;
use anyhow::Result;

use super::stamped::{self, at};
use super::{Compared, Drawn, Lab, Panel, Point, Quantity, Reference};
use crate::Service;
use crate::generator::Traffic;

/// The paper's sizes, in bytes.
const LENGTHS: [usize; 2] = [72, 1460];
/// Packets per second; `None` for the highest rate possible.
const LOADS: [Option<u64>; 7] = [
    Some(1_000),
    Some(10_000),
    Some(100_000),
    Some(300_000),
    Some(1_000_000),
    Some(2_000_000),
    None,
];
const LOADS_QUICK: [Option<u64>; 4] = [Some(10_000), Some(300_000), Some(1_000_000), None];
/// Table 1: highest packet rate per second, least delay in microseconds; of 72 and 1,460 bytes.
const PAPER_HOST: [(f64, f64); 2] = [(297_985.0, 48.7), (81_846.0, 96.2)];
const PAPER_CARD: [(f64, f64); 2] = [(9_807.0, 124.3), (3_638.0, 786.6)];
/// Load of the service beside the plain flow, as a multiple of its capacity.
const OVERLOAD: f64 = 1.2;
/// Goal for the share of the plain flow that arrives.
const GOAL_KEPT: f64 = 0.99;
const NODE: &str = "bench-idle";
const NODE_BESIDE: &str = "bench-beside";
/// Match of the first of the generator's two flows, whose source port is 1,024.
const RULE_BESIDE: &str = "proto udp sport 1024";

/// Measures figure 4, table 1, and the plain flow.
pub(super) fn under_load(lab: &mut Lab<'_>) -> Result<Drawn> {
    let plan = lab.line.plan(NODE, Some(Service::Pass));
    (lab.progress)("starting a node");
    let (points, notes) = lab.with_node(&plan, |lab| {
        let (levels, notes) = stamped::levels(lab, NODE);
        let mut points = Vec::new();
        for level in levels {
            lab.subject.move_to(NODE, level)?;
            for length in LENGTHS {
                points.extend(loads(lab, level, length)?);
            }
        }
        Ok((points, notes))
    })?;
    let mut compared = table(&points);
    compared.push(Compared {
        what: format!("plain flow beside {OVERLOAD} of what user level carries"),
        unit: "ratio",
        paper: GOAL_KEPT,
        ours: plain_beside(lab, &points)?,
    });
    let columns = &[
        Quantity::Length,
        Quantity::OfferedPackets,
        Quantity::Packets,
        Quantity::Throughput,
        Quantity::Delay,
        Quantity::DelayP99,
    ];
    let panel = |y| Panel::logarithmic(Quantity::OfferedPackets, y);
    let panels = vec![panel(Quantity::Throughput), panel(Quantity::Delay)];
    let references = references();
    Ok(Drawn { points, compared, columns, panels, notes, references })
}

fn loads(lab: &mut Lab<'_>, level: Level, length: usize) -> Result<Vec<Point>> {
    let loads = if lab.options.quick { &LOADS_QUICK[..] } else { &LOADS[..] };
    loads
        .iter()
        .map(|&rate| {
            let load = rate.map_or("a flood".to_owned(), |rate| format!("{rate} packets/s"));
            (lab.progress)(&format!("{level}, {length} bytes, {load}"));
            let traffic = Traffic { rate, stamped: true, ..Traffic::flood(length) };
            let measured = stamped::rounds(&lab.line, traffic, lab)?;
            Ok(measured.point(&curve(level, length), length))
        })
        .collect()
}

/// Measures the share of a plain flow that arrives beside an overloaded service at user level.
fn plain_beside(lab: &mut Lab<'_>, points: &[Point]) -> Result<Option<f64>> {
    let length = LENGTHS[0];
    let Some((most, _)) = best(points, Level::User, length) else { return Ok(None) };
    let plan = crate::Plan {
        rule: Some(RULE_BESIDE.to_owned()),
        ..lab.line.plan(NODE_BESIDE, Some(Service::Pass))
    };
    // Every second packet is the plain flow's.
    let rate = Some((2.0 * OVERLOAD * most) as u64);
    let traffic = Traffic { rate, flows: 2, stamped: true, ..Traffic::flood(length) };
    (lab.progress)("a plain flow beside");
    lab.with_node(&plan, |lab| Ok(Some(stamped::rounds(&lab.line, traffic, lab)?.kept)))
}

fn curve(level: Level, length: usize) -> String {
    format!("{}, {length} bytes", at(level))
}

/// Returns the highest packet rate, and the least delay.
fn best(points: &[Point], level: Level, length: usize) -> Option<(f64, f64)> {
    let curve = curve(level, length);
    let of_curve = || points.iter().filter(|point| point.curve == curve);
    let most = of_curve().filter_map(|point| point.packets).reduce(f64::max)?;
    let least = of_curve().filter_map(|point| point.delay_us).reduce(f64::min)?;
    Some((most, least))
}

/// Returns table 1 for the plots: the best rate as Mbit/s, and the least delay.
fn references() -> Vec<Reference> {
    let mut references = Vec::new();
    for (level, whose, paper) in
        [(Level::User, "host", PAPER_HOST), (Level::Nic, "card's processor", PAPER_CARD)]
    {
        for (length, (most, least)) in LENGTHS.into_iter().zip(paper) {
            let curve = curve(level, length);
            let name = format!("the paper's {whose}, {length} bytes");
            let most = super::megabits(most, length);
            references.push(Reference::level(Quantity::Throughput, &curve, name.clone(), most));
            let name = format!("{name} (round trip)");
            references.push(Reference::level(Quantity::Delay, &curve, name, least));
        }
    }
    references
}

/// Compares with table 1: the host's processor with user level, the card's with the driver.
fn table(points: &[Point]) -> Vec<Compared> {
    let mut compared = Vec::new();
    for (level, whose, paper) in
        [(Level::User, "host", PAPER_HOST), (Level::Nic, "card's processor", PAPER_CARD)]
    {
        for (length, (most, least)) in LENGTHS.into_iter().zip(paper) {
            let ours = best(points, level, length);
            let what = |of: &str| format!("{level} ({whose}), {length} bytes, {of}");
            compared.push(Compared {
                what: what("most"),
                unit: "packets/s",
                paper: most,
                ours: ours.map(|(most, _)| most),
            });
            compared.push(Compared {
                what: what("least delay"),
                unit: "us",
                paper: least,
                ours: ours.map(|(_, least)| least),
            });
        }
    }
    compared
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_the_best_of_each_curve() {
        let point = |packets, delay| Point {
            curve: curve(Level::User, 72),
            length: 72,
            packets: Some(packets),
            delay_us: Some(delay),
            ..Point::default()
        };
        let table = table(&[point(1_000.0, 30.0), point(300_000.0, 90.0), point(250_000.0, 9e3)]);
        let ours: Vec<Option<f64>> = table.iter().map(|compared| compared.ours).collect();
        assert_eq!(ours[..3], [Some(300_000.0), Some(30.0), None]);
        assert_eq!(table.len(), 8);
    }
}
