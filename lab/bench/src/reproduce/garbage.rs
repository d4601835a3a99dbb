//! RCANE, figure 16: garbage collection that one party causes for another.
//!
//! A and B get packets in turn. A packet of B makes 4 objects, one of A 4 and later 400. In (a)
//! both are of one session and share a heap, in (b) each has a session and a heap of its own; B, or
//! the shared session, reserves 1 ms of each 4 ms. A heap is a module's memory, and the collector a
//! part of the module (`heap.wat`): it marks and sweeps, a part with each packet. Counted are the
//! objects and references that it visits for each packet of A and of B; the paper's plot shows the
//! time for this.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::{Compared, Drawn, Lab, Panel, Point, Quantity};
use crate::generator::{Generator, Traffic};
use crate::line::Line;
use crate::{Party, SOURCE_PORT_FIRST, Work};

const NODE: &str = "bench-garbage";
const LENGTH: usize = 80;
/// Packets per second of both together.
const RATE: u64 = 20_000;
const PROMISE: &str = "1ms/4ms";
/// Objects that a packet of A makes, before and after the change.
const LITTLE: u32 = 4;
const MUCH: u32 = 400;
const PHASE: Duration = Duration::from_secs(8);
const PHASE_QUICK: Duration = Duration::from_secs(2);
/// Time between two points.
const STEP: Duration = Duration::from_millis(100);
/// Seconds after a change that are not counted in its phase.
const UNSURE: f64 = 0.5;
/// Parties, as the module's counters name them.
const WHO: [&str; 2] = ["a", "b"];

/// Objects visited by a heap's collector so far, and packets, of A and of B.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    looked: [u64; 2],
    packets: [u64; 2],
}

/// Measures figure 16.
pub(super) fn garbage(lab: &mut Lab<'_>) -> Result<Drawn> {
    let plan = lab.line.plan(NODE, None);
    let (one, two) = lab.with_node(&plan, |lab| {
        let both = Party {
            name: "both",
            cpu: Some(PROMISE),
            flow: SOURCE_PORT_FIRST,
            flows: 2,
            work: Work::Heap,
            ..Party::default()
        };
        let one = collected(lab, "one heap", &[both])?;
        let a = Party { name: "a", cpu: None, flows: 1, ..both };
        let b = Party { name: "b", flow: SOURCE_PORT_FIRST + 1, flows: 1, ..both };
        Ok((one, collected(lab, "two heaps", &[a, b])?))
    })?;
    Ok(drawn(one, two, if lab.options.quick { PHASE_QUICK } else { PHASE }))
}

/// Measures a point of A and of B for each step.
fn collected(lab: &mut Lab<'_>, heaps: &str, parties: &[Party<'_>]) -> Result<Vec<Point>> {
    for party in parties {
        lab.subject.admit(NODE, party)?;
    }
    let traffic = Traffic { rate: Some(RATE), flows: 2, ..Traffic::flood(LENGTH) };
    let device = Line::ifindex(&lab.line.source, "s0")?;
    let generator = Generator::start(&lab.line.source, device, traffic)?;
    let phase = if lab.options.quick { PHASE_QUICK } else { PHASE };
    let mut points = Vec::new();
    let (begin, mut before) = (Instant::now(), counted(lab, parties)?);
    for (number, objects) in [LITTLE, MUCH].into_iter().enumerate() {
        (lab.progress)(&format!("{heaps}, {objects} objects for each packet of A"));
        lab.subject.send_message(NODE, parties[0].name, &objects.to_le_bytes())?;
        while begin.elapsed() < phase * (number as u32 + 1) {
            std::thread::sleep(STEP);
            let at = begin.elapsed().as_secs_f64();
            let now = counted(lab, parties)?;
            points.extend(points_of(heaps, at, &before, &now));
            before = now;
        }
    }
    generator.stop()?;
    for party in parties {
        lab.subject.evict(NODE, party.name)?;
    }
    Ok(points)
}

fn counted(lab: &mut Lab<'_>, parties: &[Party<'_>]) -> Result<Counted> {
    let mut sum = Counted::default();
    for party in parties {
        let counters = lab.subject.counters(NODE, party.name)?;
        for (at, who) in WHO.into_iter().enumerate() {
            let of = |what: &str| {
                let name = format!("{what}_{who}");
                counters.get(&name).copied().with_context(|| format!("no counter '{name}'"))
            };
            sum.looked[at] += of("looked")?;
            sum.packets[at] += of("packets")?;
        }
    }
    Ok(sum)
}

fn points_of(heaps: &str, at: f64, before: &Counted, now: &Counted) -> Vec<Point> {
    let of = |who: usize| {
        let packets = now.packets[who].saturating_sub(before.packets[who]);
        let looked = now.looked[who].saturating_sub(before.looked[who]);
        (packets > 0).then(|| Point {
            curve: curve(heaps, WHO[who]),
            length: LENGTH,
            at_s: Some(at),
            looked: Some(looked as f64 / packets as f64),
            ..Point::default()
        })
    };
    [of(0), of(1)].into_iter().flatten().collect()
}

fn curve(heaps: &str, who: &str) -> String {
    format!("{}, {heaps}", who.to_uppercase())
}

/// Returns the mean of a curve between two moments.
fn mean(points: &[Point], curve: &str, from: f64, to: f64) -> Option<f64> {
    let values: Vec<f64> = points
        .iter()
        .filter(|it| it.curve == curve && it.at_s.is_some_and(|at| (from..to).contains(&at)))
        .filter_map(|point| point.looked)
        .collect();
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

fn drawn(one: Vec<Point>, two: Vec<Point>, phase: Duration) -> Drawn {
    let (change, end) = (phase.as_secs_f64(), 2.0 * phase.as_secs_f64());
    let points: Vec<Point> = one.into_iter().chain(two).collect();
    let before = |curve: &str| mean(&points, curve, UNSURE, change);
    let after = |curve: &str| mean(&points, curve, change + UNSURE, end);
    let mut notes = vec![
        "the paper's plot has no numbers: of B in one heap it says 'an irregular but substantial amount', of B in its own that it is unaffected, which is 1".to_owned(),
    ];
    for heaps in ["one heap", "two heaps"] {
        for who in WHO {
            let curve = curve(heaps, who);
            if let (Some(before), Some(after)) = (before(&curve), after(&curve)) {
                notes.push(format!(
                    "{curve}: {before:.1} objects and places for each packet, then {after:.1}"
                ));
            }
        }
    }
    let own = curve("two heaps", "b");
    let compared = vec![Compared {
        what: "B in its own heap, when A makes much garbage, against before".to_owned(),
        unit: "times",
        paper: 1.0,
        ours: after(&own).zip(before(&own)).map(|(after, before)| after / before),
    }];
    let (x, y) = (Quantity::Seconds, Quantity::Looked);
    let panels = vec![Panel::lines(x, y)];
    let columns = &[Quantity::Seconds, Quantity::Looked];
    Drawn { points, compared, columns, panels, notes, references: Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scanned_objects_are_reported_per_packet_of_each_user() {
        let before = Counted { looked: [100, 10], packets: [10, 10] };
        let now = Counted { looked: [300, 15], packets: [20, 15] };
        let points = points_of("one heap", 1.0, &before, &now);
        let of = |at: usize| (points[at].curve.as_str(), points[at].looked);
        assert_eq!(of(0), ("A, one heap", Some(20.0)));
        assert_eq!(of(1), ("B, one heap", Some(1.0)));
        assert!(points_of("one heap", 1.0, &now, &now).is_empty(), "nothing of no packet");
    }

    #[test]
    fn phases_are_compared_without_their_beginnings() {
        let point = |at: f64, looked: f64| Point {
            curve: curve("two heaps", "b"),
            at_s: Some(at),
            looked: Some(looked),
            ..Point::default()
        };
        // Values just after a change belong to neither phase.
        let points = vec![point(0.1, 99.0), point(1.0, 4.0), point(2.1, 99.0), point(3.0, 5.0)];
        let drawn = drawn(Vec::new(), points, PHASE_QUICK);
        assert_eq!(drawn.compared[0].ours, Some(1.25));
    }
}
