//! Tamanoir, figures 13 to 15: packet by packet through a node whose service is at two levels.
//!
//! The paper's packets take 7 µs within the kernel and about 2 ms through Java (200 bytes). In
//! figure 13 every second packet goes up; in figure 14 the first 500 do, and then the service is in
//! the kernel; in figure 15 the part at user level switches the part in the kernel between the two.
//! Here: a module that raises every second packet; a move after 500 packets; a move each 250
//! packets.

use std::time::{Duration, Instant};

use abi::Level;
use anyhow::{Result, ensure};

use super::{Compared, Drawn, Lab, Panel, Point, Quantity, Reference};
use crate::Service;
use crate::arrivals::Arrivals;
use crate::generator::{Generator, Traffic};
use crate::line::Line;
use crate::rounds::median;

/// Frame length in bytes, the paper's for small packets.
const LENGTH: usize = 200;
/// Packets per second: 0.5 ms apart, so that each has left when the next one comes.
const RATE: u64 = 2_000;
/// Packets of a figure.
const PACKETS: usize = 1_000;
/// Figure 14: packet at which the service moves.
const MOVE_AT: usize = 500;
/// Figure 15: packets between two moves.
const SWITCH_EACH: usize = 250;
/// Packets after a move that may be of either level: the duration of the request.
const UNSURE: usize = 100;
const NODE: &str = "bench-shift";
/// Time for all packets; the generator is slower than its pace only on a busy machine.
const RUN_TIMEOUT: Duration = Duration::from_secs(20);
/// Time for packets in flight.
const ARRIVAL: Duration = Duration::from_millis(50);
const PAPER_BELOW_US: f64 = 7.0;
const PAPER_USER_US: f64 = 2_000.0;

/// Measures figure 13.
pub(super) fn half_goes_up(lab: &mut Lab<'_>) -> Result<Drawn> {
    let plan = lab.line.plan(NODE, Some(Service::RaiseHalf));
    let series = lab.with_node(&plan, |lab| {
        lab.subject.move_to(NODE, Level::Nic)?;
        series(lab, &[])
    })?;
    let half = |odd| of(&series, |at| at % 2 == odd);
    // Which of the two goes up depends on the first packet.
    let (one, other) = (half(0), half(1));
    let (below, user) =
        (one.zip(other).map(|(a, b)| a.min(b)), one.zip(other).map(|(a, b)| a.max(b)));
    Ok(drawn(&series, below, user))
}

/// Measures figure 14.
pub(super) fn moves_down(lab: &mut Lab<'_>) -> Result<Drawn> {
    let plan = lab.line.plan(NODE, Some(Service::Monitor));
    let series = lab.with_node(&plan, |lab| series(lab, &[(MOVE_AT, Level::Nic)]))?;
    let user = of(&series, |at| at < MOVE_AT);
    let below = of(&series, |at| at >= MOVE_AT + UNSURE);
    Ok(drawn(&series, below, user))
}

/// Measures figure 15.
pub(super) fn switches(lab: &mut Lab<'_>) -> Result<Drawn> {
    let plan = lab.line.plan(NODE, Some(Service::Monitor));
    let switches: Vec<(usize, Level)> = (SWITCH_EACH..PACKETS)
        .step_by(SWITCH_EACH)
        .zip([Level::Nic, Level::User].into_iter().cycle())
        .collect();
    let series = lab.with_node(&plan, |lab| series(lab, &switches))?;
    let sure = |at: usize| at < SWITCH_EACH || at % SWITCH_EACH >= UNSURE;
    let stretch = |at: usize| at / SWITCH_EACH % 2;
    let user = of(&series, |at| sure(at) && stretch(at) == 0);
    let below = of(&series, |at| sure(at) && stretch(at) == 1);
    Ok(drawn(&series, below, user))
}

/// Measures the delay of each packet, with moves after these numbers of packets.
fn series(lab: &mut Lab<'_>, moves: &[(usize, Level)]) -> Result<Vec<Option<f64>>> {
    let traffic =
        Traffic { rate: Some(RATE), stamped: true, unbroken: true, ..Traffic::flood(LENGTH) };
    let arrivals = Arrivals::new(&lab.line, traffic.flows, traffic.stamp_at())?;
    let device = Line::ifindex(&lab.line.source, "s0")?;
    (lab.progress)(&format!("{PACKETS} packets"));
    let generator = Generator::start(&lab.line.source, device, traffic)?;
    let from = arrivals.begin(&generator);
    for (number, level) in moves {
        wait_for(&generator, from + *number as u64)?;
        lab.subject.move_to(NODE, *level)?;
    }
    wait_for(&generator, from + PACKETS as u64)?;
    std::thread::sleep(ARRIVAL);
    let series = arrivals.series(PACKETS);
    generator.stop()?;
    Ok(series)
}

fn wait_for(generator: &Generator, sent: u64) -> Result<()> {
    let begun = Instant::now();
    while generator.sent() < sent {
        ensure!(begun.elapsed() < RUN_TIMEOUT, "the generator sends less than {RATE} packets/s");
        std::thread::sleep(Duration::from_micros(100));
    }
    Ok(())
}

/// Returns the median delay of the packets with these numbers.
fn of(series: &[Option<f64>], which: impl Fn(usize) -> bool) -> Option<f64> {
    let delays: Vec<f64> = series
        .iter()
        .enumerate()
        .filter(|(at, _)| which(*at))
        .filter_map(|(_, delay)| *delay)
        .collect();
    (!delays.is_empty()).then(|| median(&delays))
}

fn drawn(series: &[Option<f64>], below: Option<f64>, user: Option<f64>) -> Drawn {
    let points: Vec<Point> = series
        .iter()
        .enumerate()
        .filter(|(_, delay)| delay.is_some())
        .map(|(number, delay)| Point {
            curve: "each packet".to_owned(),
            length: LENGTH,
            delay_us: *delay,
            number: Some(number),
            ..Point::default()
        })
        .collect();
    let time =
        |what: &str, paper, ours| Compared { what: what.to_owned(), unit: "us", paper, ours };
    let compared = vec![
        time("packets below user level, median", PAPER_BELOW_US, below),
        time("packets at user level, median", PAPER_USER_US, user),
        Compared {
            what: "user level, of below it".to_owned(),
            unit: "ratio",
            paper: PAPER_USER_US / PAPER_BELOW_US,
            ours: user.zip(below).map(|(user, below)| user / below),
        },
    ];
    let missing = series.len() - points.len();
    let notes = match missing {
        0 => Vec::new(),
        _ => vec![format!("{missing} of {} packets did not arrive", series.len())],
    };
    let (x, y) = (Quantity::Number, Quantity::Delay);
    let panels = vec![Panel { log_y: true, ..Panel::lines(x, y) }];
    let level = |what: &str, value| {
        Reference::level(y, "", format!("the paper, {what}: {value} µs"), value)
    };
    let references =
        vec![level("in the kernel", PAPER_BELOW_US), level("at user level (Java)", PAPER_USER_US)];
    let columns = &[Quantity::Number, Quantity::Delay];
    Drawn { points, compared, columns, panels, notes, references }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_packets_are_no_points_of_a_plot_and_are_counted_in_a_note() {
        let series = [Some(2.0), None, Some(4.0), Some(9.0)];
        assert_eq!(of(&series, |at| at < 3), Some(3.0));
        assert_eq!(of(&series, |at| at == 1), None);
        let drawn = drawn(&series, Some(2.0), Some(8.0));
        let numbers: Vec<Option<usize>> = drawn.points.iter().map(|point| point.number).collect();
        assert_eq!(numbers, [Some(0), Some(2), Some(3)]);
        assert_eq!(drawn.notes, ["1 of 4 packets did not arrive"]);
        assert_eq!(drawn.compared[2].ours, Some(4.0));
    }
}
