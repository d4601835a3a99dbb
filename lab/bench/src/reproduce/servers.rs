//! AMnet, "On the Performance of Active Networking Services", figure 6: a test machine loads the
//! index.html of 1,000 web servers through a node that compresses them, up to 400 at once.
//!
//! ```text
//!                                                                        ┌ a site ┐
//! a client ─▶ s0 ═ n0, 10 Mbit/s (TBF) [ compress ] n1 ═ d0 ─ distance ─▶│ a site │ 1,000
//!                └ to 10.203.0.0/17: the service's                       └ a site ┘
//!                └ to 10.203.128.0/17: forwarded
//! ```
//!
//! The servers are one program (`far`) with an address each; a thread (`distance`) delays their
//! frames by their round trips; distance, rate and page of each are generated (`sites`). All are
//! loaded through the service, and then all plainly.

mod distance;
mod far;
mod sites;
mod visits;

use std::sync::{Arc, mpsc};
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use namespaces::netns;
use units::BitsPerSecond;

use super::compressing::body;
use super::{Compared, Drawn, Lab, Marks, Panel, Point, Quantity, Straight};
use crate::line::{self, PORT_IN};
use crate::rounds::median;
use crate::streams::process::{cpu_time, memory, on_cpu};
use crate::streams::{self, LOAD_CPU};
use crate::{Plan, Service};
use sites::{CLOUDS, Site, Variant};
use visits::Visited;

/// Number of servers, as in the paper.
const SITES: usize = 1000;
const _: () = assert!(SITES <= sites::SITES_MAX);
/// Simultaneous connections, as in the paper.
const AT_ONCE: usize = 400;
/// Longest time that a server takes for its page; the quick run has no time for the paper's
/// longest-lived connections.
const TIME_MAX: Duration = Duration::from_secs(20);
const TIME_MAX_QUICK: Duration = Duration::from_secs(10);
/// Rate of the node's port to the client in Mbit/s: the wireless link.
const RATE: u32 = 10;
/// Time from the last FIN of a pass to the next one's first SYN.
const REST: Duration = Duration::from_secs(1);
/// Seconds between two lines of progress.
const SAID: usize = 5;
/// Descriptors of this program beside two for each connection.
const DESCRIPTORS: u64 = 200;
const NODE: &str = "bench-servers";
const RULE: &str = "dst 10.203.0.0/17 proto tcp dport 80";
/// Values of the paper: connections that the node handled, servers, and the highest rate in bit/s.
const PAPER_AT_ONCE: f64 = 400.0;
const PAPER_SITES: f64 = 1000.0;
const PAPER_RATE: BitsPerSecond = BitsPerSecond(800_000);

/// Pass over all servers.
#[derive(Clone, Debug, Default)]
struct Pass {
    /// Duration of each transfer in seconds; `None` for one that failed.
    times: Vec<Option<f64>>,
    /// Reasons of failed transfers.
    failed: Vec<String>,
    at_once: usize,
    took: Duration,
    /// Longest time for which the client stood still.
    pause: Duration,
    /// Bytes that the client has received.
    bytes: u64,
    /// Processor time of the cell; its peak memory is in MB.
    cpu: Duration,
    memory: f64,
}

/// Measures figure 6.
pub(super) fn crowded(lab: &mut Lab<'_>) -> Result<Drawn> {
    let time_max = if lab.options.quick { TIME_MAX_QUICK } else { TIME_MAX };
    line::needs_two_cpus()?;
    streams::raise_descriptors(2 * AT_ONCE as u64 + DESCRIPTORS)?;
    (lab.progress)(&format!("making {SITES} web servers"));
    let all: Arc<[Site]> = sites::sites(SITES, time_max).into();
    lab.line.carry_tcp()?;
    let beyond = lab.line.beyond()?;
    let servers = far::start(&beyond.namespace, Arc::clone(&all))?;
    let distance = distance::start(&lab.line, Arc::clone(&all))?;
    line::limit(&lab.line.node, PORT_IN, Some(RATE))?;
    let plan = Plan { rule: Some(RULE.to_owned()), ..lab.line.plan(NODE, Some(Service::Compress)) };
    (lab.progress)("starting a node with compress");
    let rounds = lab.options.rounds.unwrap_or(1);
    let passes = lab.with_node(&plan, |lab| {
        let mut passes = Vec::new();
        for _ in 0..rounds {
            passes.push([
                lab.unspoiled(|lab| pass(lab, &all, Variant::Compressed))?,
                lab.unspoiled(|lab| pass(lab, &all, Variant::Plain))?,
            ]);
        }
        Ok(passes)
    });
    for ended in [servers.end(), distance.end()] {
        ended?;
    }
    Ok(drawn(&all, &passes?))
}

fn pass(lab: &mut Lab<'_>, all: &[Site], way: Variant) -> Result<(Pass, Duration)> {
    let addresses: Vec<_> = (0..all.len()).map(|number| sites::address(number, way)).collect();
    let cell = streams::node(lab.subject, NODE)?.split_off(1);
    let (before, mut memory_max) = (cpu_time(&cell)?, memory(&cell)?);
    let source = &lab.line.source;
    let bytes = line::bytes(source, "s0")?[0];
    (lab.progress)(&format!("{}: {} servers, {AT_ONCE} at once", way.name(), all.len()));
    let (addresses, (sender, looks)) = (&addresses, mpsc::channel());
    let visited = std::thread::scope(|scope| {
        // Dropping the sender ends the samples.
        let mut look = move |done, connected| Ok(sender.send((done, connected))?);
        let visit = move || visits::visit(addresses, AT_ONCE, &mut look);
        let thread = scope.spawn(move || on_cpu(LOAD_CPU, || netns::in_namespace(source, visit)));
        for (second, (done, connected)) in looks.iter().enumerate() {
            memory_max = memory(&cell)?.max(memory_max);
            if second % SAID == SAID - 1 {
                let said = format!("{}: {done} done, {connected} under way", way.name());
                (lab.progress)(&said);
            }
        }
        thread.join().map_err(|_| anyhow!("a thread of the benchmark ended"))?
    });
    let Visited { visits, at_once, took, pause } = visited???;
    let mut pass = Pass {
        at_once,
        took,
        pause,
        bytes: line::bytes(source, "s0")?[0].saturating_sub(bytes),
        cpu: cpu_time(&cell)?.saturating_sub(before),
        memory: memory_max as f64 / 1e6,
        ..Pass::default()
    };
    for (number, (site, visit)) in all.iter().zip(visits).enumerate() {
        pass.times.push(visit.answer.is_ok().then_some(visit.time.as_secs_f64()));
        match visit.answer {
            Ok(answer) => {
                let is_whole = body(&answer)? == site.page;
                ensure!(is_whole, "{}: server {number}'s page has other bytes", way.name());
            }
            Err(why) => pass.failed.push(why),
        }
    }
    std::thread::sleep(REST);
    Ok((pass, pause))
}

/// Times of one server in seconds, medians over all passes.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Times {
    with: f64,
    without: f64,
}

impl Times {
    /// Returns the time that the service saves, in percent.
    fn gain(self) -> f64 {
        (1.0 - self.with / self.without) * 100.0
    }
}

/// Returns the times of each server that was loaded both ways.
fn times(count: usize, rounds: &[[Pass; 2]]) -> Vec<Option<Times>> {
    let of = |number: usize, way: usize| -> Option<f64> {
        let passes = rounds.iter().filter_map(|round| round.get(way));
        let all: Vec<f64> =
            passes.filter_map(|pass| pass.times.get(number).copied().flatten()).collect();
        (!all.is_empty()).then(|| median(&all))
    };
    (0..count).map(|it| Some(Times { with: of(it, 0)?, without: of(it, 1)? })).collect()
}

fn drawn(all: &[Site], rounds: &[[Pass; 2]]) -> Drawn {
    let times = times(all.len(), rounds);
    let both: Vec<(&Site, Times)> =
        all.iter().zip(&times).filter_map(|(site, times)| Some((site, (*times)?))).collect();
    let marks = |way: Variant| {
        let beside = Straight { name: "800 kbit/s", slope: 8e6 / PAPER_RATE.0 as f64 };
        Marks::Dots { curves: way.name(), beside }
    };
    let panel =
        |way| Panel { marks: marks(way), ..Panel::logarithmic(Quantity::Length, Quantity::Time) };
    Drawn {
        points: points(&both),
        compared: compared(&both, rounds),
        columns: &[Quantity::Length, Quantity::Time],
        panels: Variant::BOTH.map(panel).to_vec(),
        notes: notes(&both, rounds),
        references: Vec::new(),
    }
}

/// Returns the points, by way, and by cloud within it.
fn points(both: &[(&Site, Times)]) -> Vec<Point> {
    let mut points = Vec::new();
    for way in Variant::BOTH {
        for (cloud, milliseconds) in CLOUDS.into_iter().enumerate() {
            let of_cloud = both.iter().filter(|(site, _)| site.cloud == cloud);
            points.extend(of_cloud.map(|(site, times)| Point {
                curve: format!("{}, {milliseconds} ms", way.name()),
                length: site.page.len(),
                time_us: Some(
                    1e6 * if way == Variant::Compressed { times.with } else { times.without },
                ),
                ..Point::default()
            }));
        }
    }
    points
}

fn compared(both: &[(&Site, Times)], rounds: &[[Pass; 2]]) -> Vec<Compared> {
    let with = || rounds.iter().map(|[with, _]| with);
    let least = |of: fn(&Pass) -> usize| with().map(of).min().map(|least| least as f64);
    let rate = |(site, times): &(&Site, Times)| site.page.len() as f64 * 8.0 / 1e3 / times.with;
    vec![
        Compared {
            what: "connections at once".to_owned(),
            unit: "connections",
            paper: PAPER_AT_ONCE,
            ours: least(|pass| pass.at_once),
        },
        Compared {
            what: "transfers, each of another server".to_owned(),
            unit: "transfers",
            paper: PAPER_SITES,
            ours: least(|pass| pass.times.iter().flatten().count()),
        },
        Compared {
            what: "the fastest transfer".to_owned(),
            unit: "kbit/s",
            paper: PAPER_RATE.0 as f64 / 1e3,
            ours: both.iter().map(rate).reduce(f64::max),
        },
    ]
}

fn notes(both: &[(&Site, Times)], rounds: &[[Pass; 2]]) -> Vec<String> {
    let gain = |wanted: &dyn Fn(&Site) -> bool| {
        let gains: Vec<f64> =
            both.iter().filter(|(site, _)| wanted(site)).map(|(_, times)| times.gain()).collect();
        format!("{:+.1} %", median(&gains))
    };
    let clouds: Vec<String> = CLOUDS
        .into_iter()
        .enumerate()
        .map(|(cloud, ms)| format!("{ms} ms {}", gain(&|site: &Site| site.cloud == cloud)))
        .collect();
    let mut notes = vec![
        format!(
            "time saved, in the median: {}; by round trip: {}",
            gain(&|_: &Site| true),
            clouds.join(", ")
        ),
        format!(
            "of slow servers {}, of the others {}",
            gain(&|site: &Site| site.is_slow()),
            gain(&|site: &Site| !site.is_slow())
        ),
    ];
    let lost = |(_, times): &(&Site, Times)| (times.with - times.without) * 1e3;
    let slower = both.iter().filter(|one| lost(one) > 0.0).count();
    if let Some(worst) = both.iter().max_by(|a, b| lost(a).total_cmp(&lost(b))) {
        notes.push(format!(
            "{slower} of {} are slower with the service, the worst by {:.0} ms of {:.0} ms",
            both.len(),
            lost(worst),
            worst.1.without * 1e3
        ));
    }
    for (at, way) in Variant::BOTH.into_iter().enumerate() {
        let of = |value: &dyn Fn(&Pass) -> f64| {
            let all: Vec<f64> =
                rounds.iter().filter_map(|round| round.get(at)).map(value).collect();
            median(&all)
        };
        notes.push(format!(
            "{}: all within {:.1} s, up to {:.0} connections at once, {:.1} MB over the link, no \
             pause of the machine above {:.0} ms; the cell used {:.2} s of its core, and {:.0} MB",
            way.name(),
            of(&|pass| pass.took.as_secs_f64()),
            of(&|pass| pass.at_once as f64),
            of(&|pass| pass.bytes as f64 / 1e6),
            of(&|pass| pass.pause.as_secs_f64() * 1e3),
            of(&|pass| pass.cpu.as_secs_f64()),
            of(&|pass| pass.memory),
        ));
        let failed: Vec<&String> =
            rounds.iter().filter_map(|round| round.get(at)).flat_map(|pass| &pass.failed).collect();
        if let Some(first) = failed.first() {
            notes.push(format!("{}: {} failed, the first: {first}", way.name(), failed.len()));
        }
    }
    notes
}

#[cfg(test)]
mod tests;
