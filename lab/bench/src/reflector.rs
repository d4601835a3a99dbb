//! `tam bench reflector`: listeners of a live stream, against Icecast.
//!
//! ```text
//! listeners ─▶ s0 ═ n0 [ node: reflector ] n1 ═ d0 ─▶ station, which is asked
//! listeners ─▶ s0 ═ n0 [ Icecast ]         n1 ═ d0 ─▶ station, which sends
//!   CPU 0               CPU 1                          CPU 0
//! ```
//!
//! Both stations play the same frames. Details in docs/benchmarks/reflector.md.

pub(crate) mod crowd;
mod icecast;
pub(crate) mod station;

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use namespaces::netns;

use crate::line::{self, Line, NODE_CPU};
use crate::measurement::{Better, Measured, Measurement};
use crate::rounds::{Pair, Rounds, percentile};
use crate::streams::process::{ICECAST, Process, cpu_time, memory, on_cpu};
use crate::streams::{self, LOAD_CPU, ORIGIN};
use crate::{Options, Service, Subject};
use crowd::Crowd;
use station::{Attentive, Station};

/// Simultaneous listeners.
const LISTENERS: usize = 2000;
/// Goal: the node's processor time divided by Icecast's.
const GOAL_CPU: f64 = 0.5;
const NODE: &str = "bench-reflector";
const ICECAST_NAME: &str = "icecast2";
/// Path of the stream, below those of [`Service::Reflector`].
const PATH: &str = "/live/station.mp3";
/// New listeners per second.
const ARRIVALS: u32 = 500;
/// Descriptors of this program beside those of listeners.
const DESCRIPTORS: u64 = 200;
/// Time from the last arrival until all bursts are over.
const SETTLE: Duration = Duration::from_secs(3);
const SETTLE_QUICK: Duration = Duration::from_secs(2);
/// Time over which processor time and bytes are counted.
const WINDOW: Duration = Duration::from_secs(10);
const WINDOW_QUICK: Duration = Duration::from_secs(4);
/// Time from the last listener's end until the next ones come.
const REST: Duration = Duration::from_secs(1);
/// Time that the station plays before listeners come, so that bursts have data.
const FIRST: Duration = Duration::from_secs(5);
/// Data buffered before sending, which may be missing at either end of a window.
const LATE: Duration = Duration::from_secs(1);
/// Percentage of listeners that may receive less than is played before a run counts as invalid.
const SLOW_MAX: usize = 1;
/// Percentage of listeners that may receive nothing at all.
const GAVE_UP_MAX: usize = 5;

/// Contestant: a line, a station, and a listener that checks every byte.
struct Site {
    line: Line,
    at: SocketAddr,
    processes: Vec<u32>,
    attentive: Attentive,
    _station: Station,
}

/// Usage and results of one crowd.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    /// Percent of a core per thousand listeners.
    cpu: f64,
    /// Time from a listener's SYN to its first byte of audio, in milliseconds.
    join: f64,
    /// Memory in MB.
    memory: f64,
    /// Listeners that received less than was played.
    slow: usize,
    /// Listeners that received nothing for so long that they gave up.
    gave_up: usize,
}

pub(crate) fn run(
    options: &Options,
    subject: &mut dyn Subject,
    progress: &mut dyn FnMut(&str),
) -> Result<Measured> {
    line::needs_two_cpus()?;
    let version = ICECAST.version("-v")?;
    let needed = LISTENERS as u64 + DESCRIPTORS;
    streams::raise_descriptors(needed)?;
    let folder = streams::folder()?;
    progress("making two lines of namespaces, with a station each");
    let (ours, other, _icecast) = sites(folder.path(), subject)?;
    std::thread::sleep(FIRST);
    let measured = rounds(options, &[&ours, &other], progress);
    let ends = [ours, other].map(|site| site.attentive.end());
    subject.stop(NODE)?;
    let rounds = measured?;
    let mut notes = vec![
        version,
        format!(
            "{LISTENERS} listeners, {ARRIVALS} a second; a join ends with the first byte of audio; \
             memory is PSS of all processes, without what the kernel keeps for sockets; ours with \
             the daemon"
        ),
    ];
    for (end, name) in ends.into_iter().zip(["ours", ICECAST_NAME]) {
        let frames = end.with_context(|| format!("{name}: one who listened to every byte"))?;
        notes.push(format!("{name}: one heard {frames} frames, none missing, twice or broken"));
    }
    notes.extend(failures(&rounds));
    Ok(Measured { measurements: measurements(&rounds).to_vec(), notes })
}

fn sites(folder: &Path, subject: &mut dyn Subject) -> Result<(Site, Site, Process)> {
    let (ours, other) = (Line::of_tcp("reflector")?, Line::of_tcp("reflector-icecast")?);
    let station = Station::asked(&ours.destination, ORIGIN.parse()?, 1)?;
    subject.start(&streams::plan(&ours, NODE, Service::Reflector), 0)?;
    let processes = streams::node(subject, NODE)?;
    let ours = Site::new(ours, ORIGIN.parse()?, processes, station)?;
    let icecast = icecast::start((&other.node, NODE_CPU), folder)?;
    let station = Station::sends(&other.destination, icecast::at()?, PATH)?;
    let other = Site::new(other, icecast::at()?, icecast.pids(), station)?;
    Ok((ours, other, icecast))
}

impl Site {
    fn new(line: Line, at: SocketAddr, processes: Vec<u32>, station: Station) -> Result<Self> {
        let attentive = Attentive::start(&line.source, at, PATH)?;
        Ok(Self { line, at, processes, attentive, _station: station })
    }
}

fn rounds(
    options: &Options,
    sites: &[&Site; 2],
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<[Run; 2]>> {
    let count = streams::rounds(options);
    let mut rounds = Vec::new();
    for round in 1..=count {
        let mut runs = [Run::default(); 2];
        for ((site, name), run) in sites.iter().zip(["ours", ICECAST_NAME]).zip(&mut runs) {
            progress(&format!("{LISTENERS} listeners of {name}, round {round} of {count}"));
            *run = one(options, site).with_context(|| format!("listeners of {name}"))?;
            std::thread::sleep(REST);
        }
        rounds.push(runs);
    }
    Ok(rounds)
}

/// Measures one crowd that comes, listens and leaves.
fn one(options: &Options, site: &Site) -> Result<Run> {
    let (settle, window) = match options.quick {
        true => (SETTLE_QUICK, WINDOW_QUICK),
        false => (SETTLE, WINDOW),
    };
    let listens = || -> Result<Run> {
        sandbox::cores::pin_to(LOAD_CPU)?;
        let mut crowd = Crowd::new(site.at, PATH)?;
        let gave_up = crowd.arrive(LISTENERS, ARRIVALS)?;
        ensure!(
            gave_up * 100 <= LISTENERS * GAVE_UP_MAX,
            "{gave_up} of {LISTENERS} listeners heard nothing at all"
        );
        crowd.listen(settle)?;
        let (heard, used) = (crowd.heard(), cpu_time(&site.processes)?);
        let listened = crowd.listen(window)?;
        let used = cpu_time(&site.processes)?.saturating_sub(used);
        let slow = slow(&heard, &crowd.heard(), listened);
        ensure!(
            slow * 100 <= LISTENERS * SLOW_MAX,
            "{slow} of {LISTENERS} listeners heard less than was played"
        );
        Ok(Run {
            cpu: used.as_secs_f64() / listened.as_secs_f64() * 100.0 * 1000.0 / heard.len() as f64,
            join: percentile(&crowd.joins(), 99) * 1e3,
            memory: memory(&site.processes)? as f64 / 1e6,
            slow,
            gave_up,
        })
    };
    on_cpu(LOAD_CPU, || netns::in_namespace(&site.line.source, listens))??
}

/// Returns the number of listeners that received less than was played while they listened, by the
/// bytes of each before and after.
pub(crate) fn slow(before: &[u64], after: &[u64], listened: Duration) -> usize {
    let least = station::RATE * listened.saturating_sub(LATE).as_secs_f64();
    after.iter().zip(before).filter(|(after, before)| ((*after - *before) as f64) < least).count()
}

/// Returns a sentence for each contestant whose listeners received too little.
fn failures(rounds: &[[Run; 2]]) -> Vec<String> {
    let of = |at: usize, count: fn(&Run) -> usize| -> usize {
        rounds.iter().map(|round| count(&round[at])).sum()
    };
    let mut notes = Vec::new();
    for (at, name) in ["ours", ICECAST_NAME].into_iter().enumerate() {
        let (slow, gave_up) = (of(at, |run| run.slow), of(at, |run| run.gave_up));
        if slow + gave_up > 0 {
            notes.push(format!(
                "{name}: {gave_up} of {} listeners gave up, {slow} heard less than was played",
                rounds.len() * LISTENERS
            ));
        }
    }
    notes
}

fn measurements(rounds: &[[Run; 2]]) -> [Measurement; 3] {
    let compare = |what: &str, unit, goal, of: fn(&Run) -> f64| {
        let mut values = Rounds::default();
        rounds.iter().for_each(|round| values.add(round.iter().map(of).collect()));
        values.compare(Pair {
            metric: format!("reflector.{LISTENERS}.{what}"),
            unit,
            baseline_name: ICECAST_NAME,
            baseline: 1,
            better: Better::Lower,
            goal,
        })
    };
    [
        compare("cpu", "%/1000", Some(GOAL_CPU), |run| run.cpu),
        compare("join.p99", "ms", None, |run| run.join),
        compare("memory", "MB", None, |run| run.memory),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_judged_and_the_rest_reported() {
        let run = |cpu| Run { cpu, join: 4.0, memory: 20.0, slow: 0, gave_up: 0 };
        let all =
            measurements(&[[run(4.0), run(10.0)], [run(6.0), run(10.0)], [run(4.5), run(10.0)]]);
        assert_eq!((all[0].ratio, all[0].reached()), (0.45, Some(true)));
        assert_eq!(all[0].metric, "reflector.2000.cpu");
        assert!(all[1..].iter().all(|it| it.goal.is_none() && it.better == Better::Lower));
    }

    #[test]
    fn a_listener_that_receives_less_than_the_bit_rate_is_slow() {
        // Between 15,963 and 15,964 bytes a second.
        let after = [1000 + 4 * 15_964, 1000 + 4 * 15_963, 200_000];
        assert_eq!(slow(&[1000; 3], &after, Duration::from_secs(5)), 1);
    }

    #[test]
    fn listeners_that_hear_too_little_are_told() {
        let (good, bad) = (Run::default(), Run { slow: 2, gave_up: 1, ..Run::default() });
        assert_eq!(
            failures(&[[good, bad], [good, bad]]),
            ["icecast2: 2 of 4000 listeners gave up, 4 heard less than was played"]
        );
        assert!(failures(&[[good, good]]).is_empty());
    }
}
