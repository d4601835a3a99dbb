//! Stamped traffic through a line: the share that arrives, and its delay.

use anyhow::{Result, ensure};

use super::{Lab, Point, megabits};
use crate::arrivals::Arrivals;
use crate::generator::{Generator, Traffic};
use crate::line::Line;
use crate::measure::{Reading, Window};
use crate::rounds::median;
use abi::Level;

/// Result of one measurement, or the median of several.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Stamped {
    /// Packets per second given to the node.
    pub(super) offered: f64,
    /// Packets per second that arrived.
    pub(super) arrived: f64,
    /// Median delay from source to sink, in microseconds.
    pub(super) delay: f64,
    /// Delay from source to sink of 99 % of the packets, in microseconds.
    pub(super) delay_p99: f64,
    /// Share of the last flow's packets that arrived.
    pub(super) kept: f64,
}

impl Stamped {
    pub(super) fn point(&self, curve: &str, length: usize) -> Point {
        Point {
            curve: curve.to_owned(),
            length,
            offered: Some(megabits(self.offered, length)),
            throughput: Some(megabits(self.arrived, length)),
            offered_packets: Some(self.offered),
            packets: Some(self.arrived),
            delay_us: Some(self.delay),
            delay_p99_us: Some(self.delay_p99),
            ..Point::default()
        }
    }
}

/// Returns the medians of some rounds.
pub(super) fn rounds(line: &Line, traffic: Traffic, lab: &Lab<'_>) -> Result<Stamped> {
    let count = if lab.options.quick { 1 } else { lab.options.rounds().min(3) };
    let window = Window::new(lab.options.quick);
    let all: Vec<Stamped> =
        (0..count).map(|_| once(line, traffic, window)).collect::<Result<_>>()?;
    let of = |value: fn(&Stamped) -> f64| median(&all.iter().map(value).collect::<Vec<_>>());
    Ok(Stamped {
        offered: of(|stamped| stamped.offered),
        arrived: of(|stamped| stamped.arrived),
        delay: of(|stamped| stamped.delay),
        delay_p99: of(|stamped| stamped.delay_p99),
        kept: of(|stamped| stamped.kept),
    })
}

fn once(line: &Line, traffic: Traffic, window: Window) -> Result<Stamped> {
    let arrivals = Arrivals::new(line, traffic.flows, traffic.stamp_at())?;
    let device = Line::ifindex(&line.source, "s0")?;
    let generator = Generator::start(&line.source, device, traffic)?;
    std::thread::sleep(window.warm_up);
    let from = arrivals.begin(&generator);
    let sent_before = Reading::now(generator.sent());
    let before = Reading::now(arrivals.counts()?.packets);
    std::thread::sleep(window.length);
    let sent_after = Reading::now(generator.sent());
    let after = Reading::now(arrivals.counts()?.packets);
    let sent = generator.stop()?;
    std::thread::sleep(window.warm_up);
    let rate = |before: Reading, after: Reading| after.rate_since(before).unwrap_or(0.0);
    let (delay, delay_p99) = (arrivals.delay(0.5), arrivals.delay(0.99));
    ensure!(delay.is_some(), "nothing arrived of {} packets that were sent", sent - from.min(sent));
    let flows = u64::from(traffic.flows);
    let of_last = sent.saturating_sub(from) / flows;
    Ok(Stamped {
        offered: rate(sent_before, sent_after),
        arrived: rate(before, after),
        delay: delay.unwrap_or(0.0),
        delay_p99: delay_p99.unwrap_or(0.0),
        kept: arrivals.of_flow(traffic.flows as usize - 1) as f64 / of_last.max(1) as f64,
    })
}

/// Returns the levels at which the service of a node can run, best first, and notes why the others
/// failed. The service is at the last one afterwards.
pub(super) fn levels(lab: &mut Lab<'_>, node: &str) -> (Vec<Level>, Vec<String>) {
    let mut notes = Vec::new();
    let fits = |level: &Level| match lab.subject.move_to(node, *level) {
        Ok(()) => true,
        Err(error) => {
            notes.push(format!("not at {level}: {error:#}"));
            false
        }
    };
    let levels = [Level::Nic, Level::Kernel, Level::User].into_iter().filter(fits).collect();
    (levels, notes)
}

/// Returns the name of a level's curve.
pub(super) fn at(level: Level) -> String {
    format!("service at {level}")
}
