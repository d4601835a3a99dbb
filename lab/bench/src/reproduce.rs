//! `tam reproduce`: figures of the papers, measured again: CSV, a plot, and the paper's
//! values beside ours.
//!
//! Both figures are of one measurement of AMnet: a source, a node and a sink
//! in line, and a service that passes 0 to 4 times over every byte. The paper:
//! "On the Performance of Active Networking Services", section IV, on a
//! Pentium with 800 MHz and Ethernet with 100 Mbit/s. Ours differ in the
//! absolute by the machine; what is compared are the proportions.
//!
//! Offered load is paced by the generator's clock, and what it really sent is
//! counted: that, not what was asked for, is the x axis.

mod plot;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use serde::Serialize;

use crate::generator::Traffic;
use crate::line::{self, Line};
use crate::measure::{Rates, Reading, Window, measure};
use crate::rounds::median;
use crate::sink::{Kind, Sink};
use crate::{Bench, Options, Plan, Service, Subject};

const FIGURES: [Bench; 2] = [
    Bench {
        name: "amnet-3",
        what: "AMnet, figure 3: throughput under rising load, by passes over every byte",
    },
    Bench { name: "amnet-4", what: "AMnet, figure 4: throughput by packet size, at a fixed load" },
];

/// The papers' packet size, in bytes.
const LENGTH: usize = 1460;
/// Sizes of figure 4; 700 is where the paper has its knee.
const LENGTHS: [usize; 9] = [64, 128, 256, 400, 550, 700, 900, 1200, 1460];
/// Most passes of the papers' service.
const PASSES_MAX: u32 = 4;
/// The paper's throughput with no service, in Mbit/s (figure 3).
const PAPER_PLAIN: f64 = 92.0;
/// With one pass; the text also says 68.
const PAPER_ONE_PASS: f64 = 66.0;
/// Each further pass costs this much.
const PAPER_PER_PASS: f64 = 12.0;
/// The load of figure 4.
const PAPER_LOAD: f64 = 40.0;
/// The smallest packets that carry that load.
const PAPER_KNEE: f64 = 700.0;
/// A load counts as carried when at most this share is lost.
const LOSS_MAX: f64 = 0.05;
/// The guest's CPU; the generator and the kernel's part have CPU 0.
const CELL_CPU: usize = 1;

/// All figures.
#[must_use]
pub fn figures() -> &'static [Bench] {
    &FIGURES
}

/// One measured point.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Point {
    /// The curve that it belongs to.
    pub curve: String,
    /// Bytes of each frame.
    pub length: usize,
    /// Mbit/s given to the node, median of the rounds.
    pub offered: f64,
    /// Mbit/s that arrived, median of the rounds.
    pub throughput: f64,
}

/// A value of the paper's beside ours.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// What it is.
    pub what: String,
    /// Of both values.
    pub unit: &'static str,
    /// As the paper has it.
    pub paper: f64,
    /// As measured; none when nothing measured fits.
    pub ours: Option<f64>,
}

/// A figure, measured again.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Reproduced {
    /// The figure's name.
    pub figure: String,
    /// The points, also in the CSV.
    pub points: Vec<Point>,
    /// The paper's values beside ours.
    pub compared: Vec<Compared>,
    /// Where the points were written.
    pub csv: PathBuf,
    /// Where the plot was written.
    pub svg: PathBuf,
}

/// Measures a figure again and writes `NAME.csv` and `NAME.svg` into `folder`.
///
/// # Errors
/// When there is no such figure, the node does not come up, or the files cannot be written.
pub fn run(
    name: &str,
    options: &Options,
    subject: &mut dyn Subject,
    folder: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<Reproduced> {
    let mut bench = Setup { options, line: Line::new("repro")?, subject, progress };
    let (points, compared, axis) = match name {
        "amnet-3" => {
            let (points, compared) = bench.by_passes()?;
            (points, compared, plot::Axis::Offered)
        }
        "amnet-4" => {
            let (points, compared) = bench.by_length()?;
            (points, compared, plot::Axis::Length)
        }
        _ => {
            let names: Vec<&str> = FIGURES.iter().map(|figure| figure.name).collect();
            bail!("there is no figure '{name}'; there are: {}", names.join(", "));
        }
    };
    std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    let csv = folder.join(format!("{name}.csv"));
    let svg = folder.join(format!("{name}.svg"));
    std::fs::write(&csv, to_csv(&points)).with_context(|| format!("writing {}", csv.display()))?;
    plot::draw(&svg, name, axis, &points, &compared)?;
    Ok(Reproduced { figure: name.to_owned(), points, compared, csv, svg })
}

struct Setup<'a> {
    options: &'a Options,
    line: Line,
    subject: &'a mut dyn Subject,
    progress: &'a mut dyn FnMut(&str),
}

impl Setup<'_> {
    /// Figure 3.
    fn by_passes(&mut self) -> Result<(Vec<Point>, Vec<Compared>)> {
        // The highest load is that at which one pass is far beyond its limit,
        // as the paper's wire was for its node.
        let limit = self.with_service(Some(1), |setup| setup.rates(LENGTH, None))?.counted;
        let loads = steps(self.options.quick).map(|step| (limit * step) as u64);
        let mut points = Vec::new();
        for passes in [None, Some(1), Some(2), Some(3), Some(PASSES_MAX)] {
            let curve = curve(passes);
            points.extend(self.with_service(passes, |setup| {
                let point = |load| setup.point(&curve, LENGTH, Some(load));
                loads.clone().map(point).collect::<Result<Vec<Point>>>()
            })?);
        }
        let best = |passes| {
            let curve = curve(passes);
            let of_curve = points.iter().filter(|point| point.curve == curve);
            of_curve.map(|point| point.throughput).fold(0.0, f64::max)
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
        Ok((points, compared))
    }

    /// Figure 4.
    fn by_length(&mut self) -> Result<(Vec<Point>, Vec<Compared>)> {
        let (load, points) = self.with_service(Some(1), |setup| {
            let limit = setup.rates(LENGTH, None)?.counted;
            // The same share of what full packets reach as in the paper.
            let load = limit * PAPER_LOAD / PAPER_ONE_PASS * LENGTH as f64;
            let mut points = Vec::new();
            for length in LENGTHS {
                points.push(setup.point(LOADED, length, Some((load / length as f64) as u64))?);
                points.push(setup.point(FLOODED, length, None)?);
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
        Ok((points, compared))
    }

    /// Runs a node with `touch`, or with no service, for as long as `work` takes.
    fn with_service<T>(
        &mut self,
        passes: Option<u32>,
        work: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        let name = passes.map_or("bench-plain".to_owned(), |passes| format!("bench-touch{passes}"));
        let plan = Plan {
            name,
            namespace: self.line.node.name().to_owned(),
            ports: [line::PORT_IN.to_owned(), line::PORT_OUT.to_owned()],
            service: passes.map(|passes| Service::Touch { passes }),
            rule: None,
            cell_cpu: CELL_CPU,
        };
        (self.progress)(&format!("starting a node with {}", curve(passes)));
        self.subject.start(&plan, 0)?;
        let done = work(self);
        self.subject.stop(&plan.name)?;
        done
    }

    fn point(&mut self, curve: &str, length: usize, rate: Option<u64>) -> Result<Point> {
        (self.progress)(&format!("{curve}, {length} bytes"));
        let Rates { offered, counted } = self.rates(length, rate)?;
        Ok(Point {
            curve: curve.to_owned(),
            length,
            offered: megabits(offered, length),
            throughput: megabits(counted, length),
        })
    }

    /// Packets per second, medians of the rounds.
    fn rates(&mut self, length: usize, rate: Option<u64>) -> Result<Rates> {
        let sink = Sink::new(&self.line, Kind::Xdp)?;
        let traffic = Traffic { rate, ..Traffic::flood(length) };
        let window = Window::new(self.options.quick);
        // One round of a figure with some thirty points is enough for its shape.
        let rounds = if self.options.quick { 1 } else { self.options.rounds().min(3) };
        let mut read = || Ok(Reading::now(sink.packets()?));
        let measured: Vec<Rates> = (0..rounds)
            .map(|_| measure(&self.line, traffic, window, &mut read))
            .collect::<Result<_>>()?;
        let of = |value: fn(&Rates) -> f64| median(&measured.iter().map(value).collect::<Vec<_>>());
        Ok(Rates { offered: of(|rates| rates.offered), counted: of(|rates| rates.counted) })
    }
}

/// The smallest packets that carry a load, and so do all larger ones.
fn knee(points: &[Point], wanted: f64) -> Option<usize> {
    let loaded = points.iter().rev().filter(|point| point.curve == LOADED);
    loaded.take_while(|point| point.throughput >= wanted).last().map(|point| point.length)
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

/// Loads as shares of what one pass can carry; the last ones overload every curve with a service.
fn steps(quick: bool) -> impl Iterator<Item = f64> + Clone {
    let count = if quick { 6 } else { 12 };
    (1..=count).map(move |step| 1.5 * f64::from(step) / f64::from(count))
}

fn megabits(packets_per_second: f64, length: usize) -> f64 {
    packets_per_second * length as f64 * 8.0 / 1e6
}

fn to_csv(points: &[Point]) -> String {
    let mut csv = String::from("curve,length_bytes,offered_mbit_s,throughput_mbit_s\n");
    for Point { curve, length, offered, throughput } in points {
        // Writing to a string cannot fail; a curve's name has at most commas.
        let _ = writeln!(csv, "\"{curve}\",{length},{offered:.3},{throughput:.3}");
    }
    csv
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_megabit_is_a_million_bits() {
        assert_eq!(megabits(1000.0, 125), 1.0);
    }

    #[test]
    fn the_knee_is_below_no_size_that_fails() {
        let point = |length, throughput| {
            let curve = LOADED.to_owned();
            Point { curve, length, offered: 40.0, throughput }
        };
        // 256 carries by luck: 400 does not.
        let points = [point(256, 40.0), point(400, 30.0), point(700, 39.0), point(1460, 40.0)];
        assert_eq!(knee(&points, 38.0), Some(700));
        assert_eq!(knee(&points, 41.0), None);
    }

    #[test]
    fn points_are_written_one_a_line() {
        let curve = "1 pass, fixed load".to_owned();
        let point = Point { curve, length: 700, offered: 40.0, throughput: 39.5 };
        let csv = to_csv(&[point]);
        assert_eq!(csv.lines().nth(1), Some("\"1 pass, fixed load\",700,40.000,39.500"));
    }

    #[test]
    fn loads_go_beyond_what_one_pass_carries() {
        let loads: Vec<f64> = steps(true).collect();
        assert_eq!((loads.len(), loads.last().copied()), (6, Some(1.5)));
    }
}
