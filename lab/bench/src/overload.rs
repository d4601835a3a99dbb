//! `tam bench overload`: offered loads from below a node's capacity to ten times that.
//!
//! ```text
//!              ┌ its ring: what finds no room there is dropped at the sender's cost
//! generator ─▶ n0 ─▶ front door, service ─▶ n1 ═ d0 ─▶ sink
//!   CPU 0             CPU 1
//! ```
//!
//! A wire does not wait for a node. So no part of the node may run on the generator's CPU, or the
//! two would share it and never be out of step: at `nic` and `kernel` the packets of n0 are
//! received by a kernel thread on CPU 1 (threaded NAPI); at `user` the cell has CPU 1 alone, and
//! the front door, which is then the wire's far end, fills its rings from CPU 0.
//!
//! Two services: the shortest one, whose peak is compared with that of a line without a service,
//! and one that works some microseconds on each packet, so that a generator can send ten times what
//! the node carries.

mod threaded;

use std::time::Duration;

use abi::Level;
use anyhow::{Result, bail, ensure};
use bpf::Link;
use namespaces::netns;

use crate::generator::Traffic;
use crate::line::{self, Line};
use crate::measure::{Reading, Window, measure_while};
use crate::measurement::{Better, Measured};
use crate::plain_xsk::{Mode, PlainXsk};
use crate::questions;
use crate::rounds::{Pair, Rounds, median};
use crate::sink::{self, Kind, Sink};
use crate::{Options, Service, Subject, forward};
use threaded::Threaded;

/// Smallest frames, for the most packets.
const LENGTH: usize = 64;
const NODE: &str = "bench-overload";
const LEVELS: [Level; 3] = [Level::Nic, Level::Kernel, Level::User];
/// Levels of a quick run; `kernel` has parts of both.
const LEVELS_QUICK: [Level; 2] = [Level::Nic, Level::User];
/// Offered loads as multiples of the highest rate carried, which is measured before; `None` for a
/// flood.
const AROUND: [Option<f64>; 6] = [Some(0.7), Some(0.85), Some(1.0), Some(1.15), Some(1.5), None];
const AROUND_QUICK: [Option<f64>; 3] = [Some(0.9), Some(1.1), None];
/// Offered loads of the curve, up to that of the goal.
const CURVE: [f64; 8] = [0.5, 0.7, 0.85, 1.0, 1.15, 2.0, 5.0, MOST];
const CURVE_QUICK: [f64; 4] = [0.5, 0.9, 1.1, MOST];
const MOST: f64 = 10.0;
/// Offered loads of the search for the peak, as multiples of what passes of a flood.
const SEARCH: [f64; 3] = [0.8, 1.0, 1.25];
/// Share of the highest load that has to be really offered for a judgement.
const MOST_REACHED: f64 = 0.95;
/// Goal: the rate that passes at ten times the peak load, divided by the peak.
const GOAL_MOST: f64 = 0.95;
/// Goal: the peak with the shortest service, divided by that of the baseline without a service.
const GOAL_PEAK: f64 = 0.9;
/// API requests to the idle node, for the baseline.
const QUESTIONS_IDLE: usize = 100;
/// Packets per second that load no level.
const TRICKLE: f64 = 1000.0;
const WITHOUT: &str = "no load";

pub(crate) fn run(
    options: &Options,
    subject: &mut dyn Subject,
    progress: &mut dyn FnMut(&str),
) -> Result<Measured> {
    line::needs_two_cpus()?;
    progress("making four lines of namespaces");
    let (ours, baselines) = (Line::new("overload")?, Baselines::new()?);
    let mut bench = Bench {
        options,
        ours: &Site::new(&ours)?,
        threaded: Threaded::new(line::NODE_CPU),
        subject,
        progress,
        measured: Measured::default(),
    };
    bench.service(Service::Pass, |bench, level| bench.peaks(level, &baselines))?;
    bench.service(Service::Work, Bench::curve)?;
    Ok(bench.measured)
}

/// Line with the sink at its end.
struct Site<'line> {
    line: &'line Line,
    sink: Sink<'line>,
}

impl<'line> Site<'line> {
    fn new(line: &'line Line) -> Result<Self> {
        Ok(Self { line, sink: Sink::new(line, Kind::Xdp)? })
    }
}

/// Baselines without a service, one for each level, in lines of their own.
struct Baselines {
    xdp: Line,
    kernel: Line,
    plain: Line,
    _links: Vec<Link>,
}

impl Baselines {
    fn new() -> Result<Self> {
        let (xdp, kernel) = (Line::new("overload-xdp")?, Line::new("overload-kernel")?);
        let plain = Line::new("overload-plain")?;
        let links = netns::in_namespace(&xdp.node, || forward::fib_forward(&xdp))??;
        Ok(Self { xdp, kernel, plain, _links: links })
    }

    const fn of(&self, level: Level) -> (&'static str, &Line) {
        match level {
            Level::User => ("plain_xsk", &self.plain),
            Level::Kernel => ("kernel", &self.kernel),
            _ => (forward::FIB_FORWARD, &self.xdp),
        }
    }
}

struct Bench<'a> {
    options: &'a Options,
    ours: &'a Site<'a>,
    threaded: Threaded,
    subject: &'a mut dyn Subject,
    progress: &'a mut dyn FnMut(&str),
    measured: Measured,
}

/// Result of one load, in packets per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Carried {
    offered: f64,
    /// Packets that found no space in the ring of n0.
    at_the_ring: f64,
    delivered: f64,
}

impl Carried {
    /// Returns the share of the lost packets that was dropped at the ring.
    fn share_at_the_ring(&self) -> f64 {
        self.at_the_ring / (self.offered - self.delivered).max(1.0)
    }
}

/// Results of several loads, round by round.
#[derive(Clone, Debug, Default)]
struct Curve {
    /// Offered loads in packets per second; `None` for the generator's highest rate.
    rates: Vec<Option<f64>>,
    rounds: Vec<Vec<Carried>>,
}

impl Curve {
    /// Returns the results of one of the loads.
    fn at(&self, load: usize) -> impl Iterator<Item = Carried> {
        self.rounds.iter().filter_map(move |round| round.get(load).copied())
    }

    /// Returns the rate that passed, in packets per second, over all windows.
    fn delivered(&self) -> f64 {
        self.rounds.iter().flatten().map(|carried| carried.delivered).sum()
    }

    fn median(&self, load: usize, of: fn(Carried) -> f64) -> f64 {
        median(&self.at(load).map(of).collect::<Vec<_>>())
    }

    /// Returns the load at which most passes, by the medians: of single values the largest would be
    /// the luckiest.
    fn best(&self) -> usize {
        let delivered = |load: &usize| self.median(*load, |it| it.delivered);
        let by = |a: &usize, b: &usize| delivered(a).total_cmp(&delivered(b));
        (0..self.rates.len()).max_by(by).unwrap_or(0)
    }

    /// Returns the rate really offered as a load, divided by what passes at the best one.
    fn reached(&self, load: usize) -> f64 {
        self.median(load, |it| it.offered) / self.median(self.best(), |it| it.delivered)
    }
}

impl Bench<'_> {
    /// Returns the number of rounds; a quick run has one.
    fn rounds(&self) -> u32 {
        if self.options.quick { self.options.rounds.unwrap_or(1) } else { self.options.rounds() }
    }

    /// Runs a node with a service and calls `work` at each level.
    fn service(
        &mut self,
        service: Service,
        mut work: impl FnMut(&mut Self, Level) -> Result<()>,
    ) -> Result<()> {
        let plan = self.ours.line.plan(NODE, Some(service));
        (self.progress)(&format!("starting a node with the service {service:?}"));
        self.subject.start(&plan, 0)?;
        let levels: &[_] = if self.options.quick { &LEVELS_QUICK } else { &LEVELS };
        let worked = levels.iter().try_for_each(|&level| {
            if let Err(error) = self.subject.move_to(NODE, level) {
                self.measured.notes.push(format!("{service:?}: not at {level}: {error:#}"));
                return Ok(());
            }
            // The service was at another level before, and moves by user level.
            self.load(None, Some(TRICKLE))?;
            work(self, level)
        });
        self.subject.stop(NODE)?;
        worked
    }

    /// Measures the highest rate that the shortest service passes, and the share of it under a
    /// flood.
    fn peaks(&mut self, level: Level, baselines: &Baselines) -> Result<()> {
        let (baseline_name, baseline) = baselines.of(level);
        let _plain = match level {
            Level::User => Some(PlainXsk::start(baseline, Mode::Forward, line::NODE_CPU)?),
            _ => None,
        };
        let baseline = Site::new(baseline)?;
        let shares: &[_] = if self.options.quick { &AROUND_QUICK } else { &AROUND };
        self.receive(baseline.line, level)?;
        self.receive(self.ours.line, level)?;
        let mut curves = [Curve::default(), Curve::default()];
        for (curve, of) in curves.iter_mut().zip([None, Some(&baseline)]) {
            (self.progress)(&format!("{level}, how much about passes"));
            let about = self.about(of)?;
            curve.rates = shares.iter().map(|share| Some(about * (*share)?)).collect();
        }
        for round in 1..=self.rounds() {
            let rounds = self.rounds();
            (self.progress)(&format!("{level}, the peak, round {round} of {rounds}"));
            for (curve, of) in curves.iter_mut().zip([None, Some(&baseline)]) {
                self.round(curve, of)?;
            }
        }
        let [ours, other] = &curves;
        let pair = |metric: &str, baseline_name, goal| Pair {
            metric: format!("overload.{level}.pass.{metric}"),
            unit: "packets/s",
            baseline_name,
            baseline: 1,
            better: Better::Higher,
            goal,
        };
        let (mut peaks, mut floods) = (Rounds::default(), Rounds::default());
        for (ours, other) in ours.at(ours.best()).zip(other.at(other.best())) {
            peaks.add(vec![ours.delivered, other.delivered]);
        }
        for (flood, peak) in ours.at(shares.len() - 1).zip(ours.at(ours.best())) {
            floods.add(vec![flood.delivered, peak.delivered]);
        }
        self.measured.measurements.extend([
            peaks.compare(pair("peak", baseline_name, Some(GOAL_PEAK))),
            floods.compare(pair("flood", "peak", None)),
        ]);
        self.measured.notes.push(format!(
            "{level}, the shortest service: flooded is {:.1} times its peak, {baseline_name} {:.1} times",
            ours.reached(shares.len() - 1),
            other.reached(shares.len() - 1),
        ));
        Ok(())
    }

    /// Measures a service that works on each packet, up to ten times its capacity.
    fn curve(&mut self, level: Level) -> Result<()> {
        self.receive(self.ours.line, level)?;
        let (mut answers, mut idle) = (Vec::new(), Vec::new());
        for _ in 0..QUESTIONS_IDLE {
            idle.push(questions::ask(self.subject, NODE)?);
        }
        (self.progress)(&format!("{level}, how much about a service that works lets pass"));
        let about = self.about(None)?;
        let multiples: &[f64] = if self.options.quick { &CURVE_QUICK } else { &CURVE };
        let rates = multiples.iter().map(|multiple| Some(about * multiple)).collect();
        let mut curve = Curve { rates, rounds: Vec::new() };
        let handled = self.subject.handled(NODE)?;
        for round in 1..=self.rounds() {
            let rounds = self.rounds();
            (self.progress)(&format!("{level}, up to ten times, round {round} of {rounds}"));
            self.round(&mut curve, None)?;
            // Outside of the rounds, since API requests take the node's time.
            answers.extend(self.overloaded(about * MOST)?);
        }
        // A service that traps too often is bypassed.
        let handled = self.subject.handled(NODE)? - handled;
        let passed = curve.delivered() * Window::new(self.options.quick).length.as_secs_f64();
        ensure!(
            handled as f64 >= passed * 0.99,
            "at {level} {passed:.0} packets passed and the service handled {handled} of them: does it trap?"
        );
        let last = multiples.len() - 1;
        let reached = curve.reached(last);
        self.measured.notes.push(format!(
            "{level}: {MOST} times was {reached:.1} times; {:.0} % of what did not pass found no \
             room in the ring of n0, the node dropped the rest",
            100.0 * median(&curve.at(last).map(|it| it.share_at_the_ring()).collect::<Vec<_>>())
        ));
        for (at, multiple) in multiples.iter().enumerate() {
            let mut rounds = Rounds::default();
            for (carried, peak) in curve.at(at).zip(curve.at(curve.best())) {
                rounds.add(vec![carried.delivered, peak.delivered]);
            }
            let judged = at == last && reached >= MOST * MOST_REACHED;
            self.measured.measurements.push(rounds.compare(Pair {
                metric: format!("overload.{level}.work.{}", times(*multiple)),
                unit: "packets/s",
                baseline_name: "peak",
                baseline: 1,
                better: Better::Higher,
                goal: judged.then_some(GOAL_MOST),
            }));
        }
        let metric = format!("overload.{level}.api.p99");
        let api = questions::compare(metric, &answers, &idle, WITHOUT, 1);
        self.measured.measurements.push(api);
        Ok(())
    }

    /// Estimates the highest rate that passes at any load.
    fn about(&mut self, of: Option<&Site<'_>>) -> Result<f64> {
        let flood = self.load(of, None)?.delivered;
        // The rate under a flood may be far below the capacity; the search goes up from there.
        SEARCH.iter().try_fold(flood, |most, share| {
            Ok(self.load(of, Some(most * share))?.delivered.max(most))
        })
    }

    /// Measures each load of a curve once more.
    fn round(&mut self, curve: &mut Curve, of: Option<&Site<'_>>) -> Result<()> {
        let carried = curve.rates.iter().map(|rate| self.load(of, *rate)).collect::<Result<_>>()?;
        curve.rounds.push(carried);
        Ok(())
    }

    /// Sets where the packets that enter the node of a line are received.
    fn receive(&self, line: &Line, level: Level) -> Result<()> {
        self.threaded.set(line, level != Level::User)
    }

    /// Offers a rate, or with `None` the generator's highest, and returns the result.
    fn load(&mut self, of: Option<&Site<'_>>, rate: Option<f64>) -> Result<Carried> {
        self.load_while(of, rate, &mut |_, length| {
            std::thread::sleep(length);
            Ok(())
        })
    }

    /// Returns the times of API requests under a load, in microseconds.
    fn overloaded(&mut self, rate: f64) -> Result<Vec<f64>> {
        let mut answers = Vec::new();
        self.load_while(None, Some(rate), &mut |bench, length| {
            answers = questions::ask_for(bench.subject, NODE, length)?;
            Ok(())
        })?;
        Ok(answers)
    }

    fn load_while(
        &mut self,
        of: Option<&Site<'_>>,
        rate: Option<f64>,
        meanwhile: &mut dyn FnMut(&mut Self, Duration) -> Result<()>,
    ) -> Result<Carried> {
        let site = of.unwrap_or(self.ours);
        let traffic = Traffic { rate: rate.map(|rate| rate as u64), ..Traffic::flood(LENGTH) };
        let window = Window::new(self.options.quick);
        let mut at_the_ring = Vec::new();
        let mut read = || {
            let reading = Reading::now(site.sink.packets()?);
            let packets = netns::in_namespace(&site.line.source, || sink::unsent("s0"))??;
            at_the_ring.push(Reading { packets, ..reading });
            Ok(reading)
        };
        let rates = measure_while(site.line, traffic, window, &mut read, &mut |length| {
            meanwhile(self, length)
        })?;
        let [before, after] = at_the_ring[..] else { bail!("the load was not read twice") };
        let at_the_ring = after.rate_since(before).unwrap_or_default();
        Ok(Carried { offered: rates.offered, at_the_ring, delivered: rates.counted })
    }
}

/// Formats a multiple for a metric's name, without a dot, which separates the parts of the name.
fn times(multiple: f64) -> String {
    format!("x{multiple}").replace('.', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_the_load_with_the_best_median_and_not_the_luckiest_round() {
        let round = |delivered: [f64; 3]| {
            let carried = |delivered| Carried { offered: 30.0, at_the_ring: 5.0, delivered };
            delivered.map(carried).to_vec()
        };
        let curve = Curve {
            rates: vec![None; 3],
            rounds: vec![round([5.0, 9.0, 8.0]), round([5.0, 9.0, 20.0]), round([5.0, 9.0, 7.0])],
        };
        assert_eq!(curve.best(), 1);
        assert_eq!(curve.reached(2), 30.0 / 9.0);
        assert_eq!(curve.rounds[0][0].share_at_the_ring(), 0.2);
    }

    #[test]
    fn a_multiple_is_one_part_of_a_metric() {
        assert_eq!((times(0.5).as_str(), times(10.0).as_str()), ("x0_5", "x10"));
    }
}
