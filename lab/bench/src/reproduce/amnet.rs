//! AMnet, "On the Performance of Active Networking Services", section IV: figures 3 and 4.
//!
//! Both come from one measurement: a source, a node and a sink in line, and a service that passes 0
//! to 4 times over every byte; a Pentium with 800 MHz and Ethernet with 100 Mbit/s. Absolute values
//! differ by the machine; compared are the proportions.

use anyhow::Result;

use super::{Compared, Drawn, Lab, Panel, Point, Quantity, Reference, megabits};
use crate::Service;
use crate::generator::Traffic;
use crate::measure::{Rates, Reading, Window, measure};
use crate::rounds::median;
use crate::sink::{Kind, Sink};

/// Packet size of the papers, in bytes.
const LENGTH: usize = 1460;
/// Sizes of figure 4, in bytes; the paper's knee is at 700.
const LENGTHS: [usize; 9] = [64, 128, 256, 400, 550, 700, 900, 1200, 1460];
/// Most passes of the papers' service.
const PASSES_MAX: u32 = 4;
/// The paper's throughput with no service, in Mbit/s (figure 3).
const PAPER_PLAIN: f64 = 92.0;
/// Throughput with one pass, in Mbit/s; the text also says 68.
const PAPER_ONE_PASS: f64 = 66.0;
/// Throughput lost by each further pass, in Mbit/s.
const PAPER_PER_PASS: f64 = 12.0;
/// Load of figure 4, in Mbit/s.
const PAPER_LOAD: f64 = 40.0;
/// Smallest packets that carry that load, in bytes.
const PAPER_KNEE: f64 = 700.0;
/// Loss share up to which a load counts as carried.
const LOSS_MAX: f64 = 0.05;
/// Measures figure 3.
pub(super) fn by_passes(lab: &mut Lab<'_>) -> Result<Drawn> {
    // The highest load is that at which one pass is far beyond its limit,
    // as the paper's wire was for its node.
    let limit = with_passes(lab, Some(1), |lab| rates(lab, LENGTH, None))?.counted;
    let loads = steps(lab.options.quick).map(|step| (limit * step) as u64);
    let mut points = Vec::new();
    for passes in [None, Some(1), Some(2), Some(3), Some(PASSES_MAX)] {
        let curve = curve(passes);
        points.extend(with_passes(lab, passes, |lab| {
            let point = |load| at_load(lab, &curve, LENGTH, Some(load));
            loads.clone().map(point).collect::<Result<Vec<Point>>>()
        })?);
    }
    let best = |passes| {
        let curve = curve(passes);
        let of_curve = points.iter().filter(|point| point.curve == curve);
        of_curve.map(|point| point.throughput.unwrap_or(0.0)).fold(0.0, f64::max)
    };
    let one = best(Some(1));
    let share = |passes: u32| Compared {
        what: format!("{passes} passes, of the best throughput with one"),
        unit: "ratio",
        paper: (PAPER_ONE_PASS - PAPER_PER_PASS * f64::from(passes - 1)) / PAPER_ONE_PASS,
        ours: Some(best(Some(passes)) / one),
    };
    let mut compared = vec![
        Compared {
            what: "no service, best throughput".to_owned(),
            unit: "Mbit/s",
            paper: PAPER_PLAIN,
            ours: Some(best(None)),
        },
        Compared {
            what: "1 pass, best throughput".to_owned(),
            unit: "Mbit/s",
            paper: PAPER_ONE_PASS,
            ours: Some(one),
        },
    ];
    compared.extend((2..=PASSES_MAX).map(share));
    let references = limits(one);
    Ok(Drawn { references, ..drawn(points, compared, Quantity::Offered) })
}

/// Measures figure 4.
pub(super) fn by_length(lab: &mut Lab<'_>) -> Result<Drawn> {
    let (load, points) = with_passes(lab, Some(1), |lab| {
        let limit = rates(lab, LENGTH, None)?.counted;
        // The same share of what full packets reach as in the paper.
        let load = limit * PAPER_LOAD / PAPER_ONE_PASS * LENGTH as f64;
        let mut points = Vec::new();
        for length in LENGTHS {
            points.push(at_load(lab, LOADED, length, Some((load / length as f64) as u64))?);
            points.push(at_load(lab, FLOODED, length, None)?);
        }
        Ok((load, points))
    })?;
    let wanted = (1.0 - LOSS_MAX) * megabits(load, 1);
    let knee = knee(&points, wanted);
    let compared = vec![
        Compared {
            what: "offered load".to_owned(),
            unit: "Mbit/s",
            paper: PAPER_LOAD,
            ours: Some(megabits(load, 1)),
        },
        Compared {
            what: "smallest packets that carry it".to_owned(),
            unit: "bytes",
            paper: PAPER_KNEE,
            ours: knee.map(|length| length as f64),
        },
    ];
    let wanted = Reference::level(
        Quantity::Throughput,
        LOADED,
        format!("the offered load, which the paper's node carries from {PAPER_KNEE} bytes on"),
        megabits(load, 1),
    );
    Ok(Drawn { references: vec![wanted], ..drawn(points, compared, Quantity::Length) })
}

/// Runs a node with `touch`, or with no service, for as long as `work` takes.
fn with_passes<T>(
    lab: &mut Lab<'_>,
    passes: Option<u32>,
    work: impl FnOnce(&mut Lab<'_>) -> Result<T>,
) -> Result<T> {
    (lab.progress)(&format!("starting a node with {}", curve(passes)));
    let name = passes.map_or("bench-plain".to_owned(), |passes| format!("bench-touch{passes}"));
    let plan = lab.line.plan(&name, passes.map(|passes| Service::Touch { passes }));
    lab.with_node(&plan, work)
}

fn at_load(lab: &mut Lab<'_>, curve: &str, length: usize, rate: Option<u64>) -> Result<Point> {
    (lab.progress)(&format!("{curve}, {length} bytes"));
    let Rates { offered, counted } = rates(lab, length, rate)?;
    Ok(Point {
        curve: curve.to_owned(),
        length,
        offered: Some(megabits(offered, length)),
        throughput: Some(megabits(counted, length)),
        ..Point::default()
    })
}

/// Returns packets per second, as medians of the rounds.
fn rates(lab: &mut Lab<'_>, length: usize, rate: Option<u64>) -> Result<Rates> {
    let sink = Sink::new(&lab.line, Kind::Xdp)?;
    let traffic = Traffic { rate, ..Traffic::flood(length) };
    let window = Window::new(lab.options.quick);
    // One round of a figure with some thirty points is enough for its shape.
    let rounds = if lab.options.quick { 1 } else { lab.options.rounds().min(3) };
    let mut read = || Ok(Reading::now(sink.packets()?));
    let measured: Vec<Rates> = (0..rounds)
        .map(|_| measure(&lab.line, traffic, window, &mut read))
        .collect::<Result<_>>()?;
    let of = |value: fn(&Rates) -> f64| median(&measured.iter().map(value).collect::<Vec<_>>());
    Ok(Rates { offered: of(|rates| rates.offered), counted: of(|rates| rates.counted) })
}

/// Returns the index of the smallest packets from which on every size carries the load.
fn knee(points: &[Point], wanted: f64) -> Option<usize> {
    let loaded = points.iter().rev().filter(|point| point.curve == LOADED);
    loaded
        .take_while(|point| point.throughput.is_some_and(|rate| rate >= wanted))
        .last()
        .map(|point| point.length)
}

/// Returns the paper's best throughputs, scaled so that one pass matches the measured one.
fn limits(one: f64) -> Vec<Reference> {
    let limit = |passes: u32| {
        let paper = PAPER_ONE_PASS - PAPER_PER_PASS * f64::from(passes - 1);
        let name = format!("the paper's limits, of {PAPER_ONE_PASS} Mbit/s with 1 pass");
        let value = one * paper / PAPER_ONE_PASS;
        Reference::level(Quantity::Throughput, &curve(Some(passes)), name, value)
    };
    (1..=PASSES_MAX).map(limit).collect()
}

const LOADED: &str = "1 pass, fixed load";
const FLOODED: &str = "1 pass, as much as the source sends";

fn curve(passes: Option<u32>) -> String {
    match passes {
        None => "no service".to_owned(),
        Some(1) => "1 pass".to_owned(),
        Some(passes) => format!("{passes} passes"),
    }
}

/// Returns loads as shares of the capacity with one pass; the last ones overload every curve with a
/// service.
fn steps(quick: bool) -> impl Iterator<Item = f64> + Clone {
    let count = if quick { 6 } else { 12 };
    (1..=count).map(move |step| 1.5 * f64::from(step) / f64::from(count))
}

fn drawn(points: Vec<Point>, compared: Vec<Compared>, x: Quantity) -> Drawn {
    let columns = &[Quantity::Length, Quantity::Offered, Quantity::Throughput];
    let panels = vec![Panel::lines(x, Quantity::Throughput)];
    Drawn { points, compared, columns, panels, notes: Vec::new(), references: Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_knee_is_below_no_size_that_fails() {
        let point = |length, throughput| {
            let curve = LOADED.to_owned();
            let throughput = Some(throughput);
            Point { curve, length, throughput, ..Point::default() }
        };
        // 256 carries by luck: 400 does not.
        let points = [point(256, 40.0), point(400, 30.0), point(700, 39.0), point(1460, 40.0)];
        assert_eq!(knee(&points, 38.0), Some(700));
        assert_eq!(knee(&points, 41.0), None);
    }

    #[test]
    fn offered_loads_exceed_the_capacity_of_one_pass() {
        let loads: Vec<f64> = steps(true).collect();
        assert_eq!((loads.len(), loads.last().copied()), (6, Some(1.5)));
    }
}
