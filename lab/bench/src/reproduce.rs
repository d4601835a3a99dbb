//! `tam reproduce`: figures of the papers, measured again: CSV, a plot, and the paper's values
//! beside ours.
//!
//! The modules document each figure, and what stands for the paper's machines: `amnet`,
//! `compressing`, `servers` and `radio` (AMnet), `crossing` and `shifting` (Tamanoir), `promethos`,
//! `rcane`, `sane`. Absolute values differ by twenty years of machines; compared are the
//! proportions.
//!
//! Offered load is paced by the generator's clock, and the x axis is the load really sent, not the
//! requested one.

mod amnet;
mod compressing;
mod crossing;
mod garbage;
mod plot;
mod point;
mod promethos;
mod radio;
mod rcane;
mod sane;
mod servers;
mod shares;
mod shifting;
mod stamped;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde::Serialize;

use crate::line::Line;
use crate::{Bench, Options, Plan, Subject, frame};
use point::Quantity;

pub use point::Point;

const FIGURES: [Bench; 17] = [
    Bench {
        name: "amnet-3",
        what: "AMnet, figure 3: throughput under rising load, by passes over every byte",
    },
    Bench { name: "amnet-4", what: "AMnet, figure 4: throughput by packet size, at a fixed load" },
    Bench {
        name: "amnet-5",
        what: "AMnet, figure 5: the time to load files by their size, compressed on their way and plain",
    },
    Bench {
        name: "amnet-6",
        what: "AMnet, figure 6: the time to load pages of 1,000 web servers, 400 at once, by their size",
    },
    Bench {
        name: "amnet-radio",
        what: "AMnet, section IV: listeners of one MP3 stream on 100 Mbit/s, reflected and each from the station",
    },
    Bench {
        name: "tamanoir-11",
        what: "Tamanoir, figure 11: time to cross the node by packet size and level, UDP",
    },
    Bench {
        name: "tamanoir-12",
        what: "Tamanoir, figure 12: time to cross the node by packet size and level, TCP",
    },
    Bench {
        name: "tamanoir-13",
        what: "Tamanoir, figure 13: every second packet goes up to user level",
    },
    Bench {
        name: "tamanoir-14",
        what: "Tamanoir, figure 14: the service moves down after 500 packets",
    },
    Bench {
        name: "tamanoir-15",
        what: "Tamanoir, figure 15: the service is switched between two levels",
    },
    Bench {
        name: "promethos-4",
        what: "PromethOS NP, figure 4 and table 1: rate and delay under rising load, by level",
    },
    Bench {
        name: "sane-table1",
        what: "SANE, table 1: hashing 4 MB in C and as loaded code; the key exchange",
    },
    Bench {
        name: "sane-5",
        what: "SANE, figure 5: hashing by block size, and what authenticates packets here",
    },
    Bench {
        name: "rcane-11",
        what: "RCANE, figure 11: processor time of sessions that come one after another",
    },
    Bench {
        name: "rcane-12",
        what: "RCANE, figure 12: what sessions send by a port while guarantees change",
    },
    Bench {
        name: "rcane-13",
        what: "RCANE, figure 13: what a session receives by its period and its queue",
    },
    Bench {
        name: "rcane-16",
        what: "RCANE, figure 16: collecting garbage that somebody else makes, in one heap and in two",
    },
];

/// Returns all figures.
#[must_use]
pub fn figures() -> &'static [Bench] {
    &FIGURES
}

/// Value of the paper beside the measured one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// Description of the value.
    pub what: String,
    /// Unit of both values.
    pub unit: &'static str,
    /// Value in the paper.
    pub paper: f64,
    /// Measured value; `None` when no measurement corresponds.
    pub ours: Option<f64>,
}

/// Plot of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Panel {
    x: Quantity,
    y: Quantity,
    /// True for a logarithmic x axis.
    log_x: bool,
    log_y: bool,
    marks: Marks,
}

/// Style of a panel's points.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Marks {
    /// All curves as lines.
    Lines,
    /// Dots for the curves whose names begin with `curves`.
    Dots { curves: &'static str, beside: Straight },
}

/// Line through the origin, drawn beside dots for comparison.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Straight {
    name: &'static str,
    /// Slope: y for each unit of x.
    slope: f64,
}

impl Panel {
    const fn lines(x: Quantity, y: Quantity) -> Self {
        Self { x, y, log_x: false, log_y: false, marks: Marks::Lines }
    }

    const fn logarithmic(x: Quantity, y: Quantity) -> Self {
        Self { log_x: true, log_y: true, ..Self::lines(x, y) }
    }
}

/// Values of the paper in a plot, in the plot's units, as dashed lines.
#[derive(Clone, Debug, PartialEq)]
struct Reference {
    /// Quantity of the panels that show them.
    y: Quantity,
    /// Curve whose colour they take; grey if no curve has this name.
    curve: String,
    /// Name in the legend; equal names share one entry.
    name: String,
    course: Course,
}

/// Course of a reference.
#[derive(Clone, Debug, PartialEq)]
enum Course {
    /// The same value everywhere.
    Level(f64),
    /// Steps: from, to, and the value between.
    Steps(Vec<(f64, f64, f64)>),
    /// Straight line through the origin: y for each unit of x.
    Slope(f64),
}

impl Reference {
    fn level(y: Quantity, curve: &str, name: impl Into<String>, value: f64) -> Self {
        let (curve, name) = (curve.to_owned(), name.into());
        Self { y, curve, name, course: Course::Level(value) }
    }
}

/// Figure before it is written to files.
struct Drawn {
    points: Vec<Point>,
    compared: Vec<Compared>,
    columns: &'static [Quantity],
    panels: Vec<Panel>,
    notes: Vec<String>,
    /// Values of the paper, as far as they fit into the plots.
    references: Vec<Reference>,
}

/// Figure, measured again.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Reproduced {
    /// Name of the figure.
    pub figure: String,
    /// Measured points, which are also in the CSV.
    pub points: Vec<Point>,
    /// Values of the paper beside the measured ones.
    pub compared: Vec<Compared>,
    /// Notes for people: what was left out, and why.
    pub notes: Vec<String>,
    /// Path of the CSV.
    pub csv: PathBuf,
    /// Path of the plot.
    pub svg: PathBuf,
}

/// Measures a figure again and writes `NAME.csv` and `NAME.svg` into `folder`.
///
/// # Errors
/// The figure does not exist, the node does not come up, or the files cannot be written.
pub fn run(
    name: &str,
    options: &Options,
    subject: &mut dyn Subject,
    folder: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<Reproduced> {
    let lab = &mut Lab { options, line: Line::new("repro")?, subject, progress };
    let drawn = match name {
        "amnet-3" => amnet::by_passes(lab)?,
        "amnet-4" => amnet::by_length(lab)?,
        "amnet-5" => compressing::compressed(lab)?,
        "amnet-6" => servers::crowded(lab)?,
        "amnet-radio" => radio::radio(lab)?,
        "tamanoir-11" => crossing::crossing(lab, frame::Kind::Udp)?,
        "tamanoir-12" => crossing::crossing(lab, frame::Kind::Tcp)?,
        "tamanoir-13" => shifting::half_goes_up(lab)?,
        "tamanoir-14" => shifting::moves_down(lab)?,
        "tamanoir-15" => shifting::switches(lab)?,
        "promethos-4" => promethos::under_load(lab)?,
        "sane-table1" => sane::hash_table(lab)?,
        "sane-5" => sane::hash_by_length(lab)?,
        "rcane-11" => shares::shares(lab)?,
        "rcane-12" => rcane::transmission(lab)?,
        "rcane-13" => rcane::reception(lab)?,
        "rcane-16" => garbage::garbage(lab)?,
        _ => {
            let names: Vec<&str> = FIGURES.iter().map(|figure| figure.name).collect();
            bail!("there is no figure '{name}'; there are: {}", names.join(", "));
        }
    };
    std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    let csv = folder.join(format!("{name}.csv"));
    let svg = folder.join(format!("{name}.svg"));
    std::fs::write(&csv, point::to_csv(drawn.columns, &drawn.points))
        .with_context(|| format!("writing {}", csv.display()))?;
    let what = FIGURES.iter().find(|figure| figure.name == name).map_or(name, |it| it.what);
    plot::draw(&svg, what, &drawn)?;
    let Drawn { points, compared, notes, .. } = drawn;
    Ok(Reproduced { figure: name.to_owned(), points, compared, notes, csv, svg })
}

/// Longest pause of the whole machine that a run tolerates: a virtual machine whose host runs
/// others stands still with every program on it, which spoils timings.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Most spoiled runs in a row.
const SPOILED_MAX: usize = 3;

/// Line that figures are measured on, with the node in it. A figure is a function over it, in a
/// module of its own.
struct Lab<'a> {
    options: &'a Options,
    line: Line,
    subject: &'a mut dyn Subject,
    progress: &'a mut dyn FnMut(&str),
}

impl Lab<'_> {
    /// Runs a node while `work` runs.
    fn with_node<T>(
        &mut self,
        plan: &Plan,
        work: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        self.subject.start(plan, 0)?;
        let done = work(self);
        self.subject.stop(&plan.name)?;
        done
    }

    /// Repeats a run until the machine did not stand still during it; returns its result. Each run
    /// reports the longest pause.
    fn unspoiled<T>(
        &mut self,
        mut run: impl FnMut(&mut Self) -> Result<(T, Duration)>,
    ) -> Result<T> {
        for _ in 0..SPOILED_MAX {
            let (measured, pause) = run(self)?;
            if pause <= PAUSE_MAX {
                return Ok(measured);
            }
            let seconds = pause.as_secs_f64();
            (self.progress)(&format!("again: the machine stood still for {seconds:.1} s"));
        }
        bail!("the machine stood still in {SPOILED_MAX} runs: measure again when it is quiet")
    }
}

fn megabits(packets_per_second: f64, length: usize) -> f64 {
    packets_per_second * length as f64 * 8.0 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_megabit_is_a_million_bits() {
        assert_eq!(megabits(1000.0, 125), 1.0);
    }
}
