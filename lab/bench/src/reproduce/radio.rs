//! AMnet, "On the Performance of Active Networking Services", section IV: the load test of the MP3
//! reflector, whose receivers "just received the stream without playing it", on Ethernet of 100
//! Mbit/s.
//!
//! ```text
//! listeners ─▶ s0 ═ n0, 100 Mbit/s (TBF) [ reflector ] n1 ═ d0, 100 Mbit/s (TBF) ─▶ a station
//!                └ to 10.201.0.1: the service's; to 10.201.0.2: forwarded, each to the station
//! ```
//!
//! Each number of listeners has a channel of its own, so that none gets data buffered long before:
//! near a line's limit that would take minutes.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result};
use namespaces::netns;

use super::{Compared, Drawn, Lab, Panel, Point, Quantity, Reference};
use crate::line::{self, NEAR_END, PORT_IN};
use crate::reflector::crowd::Crowd;
use crate::reflector::slow;
use crate::reflector::station::{Attentive, Station};
use crate::streams::process::{cpu_time, on_cpu};
use crate::streams::{self, LOAD_CPU};
use crate::{Plan, Service};

/// Rate of both lines, in Mbit/s.
const RATE: u32 = 100;
/// Numbers of listeners on the lines of 100 Mbit/s, which carry some 740.
const REFLECTED: [usize; 12] = [50, 100, 200, 400, 546, 600, 650, 700, 725, 750, 800, 1000];
const REFLECTED_QUICK: [usize; 3] = [200, 546, 1000];
/// Numbers of listeners that all connect to the station.
const DIRECT: [usize; 8] = [50, 100, 200, 400, 600, 700, 750, 1000];
const DIRECT_QUICK: [usize; 2] = [200, 1000];
/// Numbers of listeners without a limit between the node and them.
const FREE: [usize; 4] = [1000, 2000, 4000, 8000];
const FREE_QUICK: [usize; 1] = [2000];
/// New listeners per second.
const ARRIVALS: u32 = 1000;
/// Time from the last arrival until bytes are counted, and the time of the count.
const SETTLE: Duration = Duration::from_secs(3);
const SETTLE_QUICK: Duration = Duration::from_millis(1500);
const WINDOW: Duration = Duration::from_secs(5);
const WINDOW_QUICK: Duration = Duration::from_secs(3);
/// Time from the last listener's end until the next ones come.
const REST: Duration = Duration::from_millis(500);
/// Frames that the station sends together: 0.4 s, as the node buffers them.
const TOGETHER: u64 = 15;
/// Percentage of listeners that receive everything on a line that still carries them.
const CARRIED: f64 = 99.0;
/// Descriptors of this program beside those of listeners and of the station.
const DESCRIPTORS: u64 = 200;
const NODE: &str = "bench-radio";
const RULE: &str = "dst 10.201.0.1 proto tcp dport 80";
const SERVED: &str = "10.201.0.1:80";
const PLAIN: &str = "10.201.0.2:80";
const STATION: &str = "0.0.0.0:80";
/// Throughput of the paper in Mbit/s with its service and without, the listeners of 128 kbit/s that
/// it derives from that, and the number that its reflector is designed for.
const PAPER_RATE: f64 = 70.0;
const PAPER_RATE_PLAIN: f64 = 92.0;
const PAPER_LISTENERS: f64 = 546.0;
const PAPER_STREAMS: f64 = 1.0;

/// Path of the stream to the listeners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Delivery {
    Reflected,
    /// Direct: each listener connects to the station.
    Direct,
    /// Reflected, without a limit between the node and the listeners.
    Free,
}

impl Delivery {
    const ALL: [Self; 3] = [Self::Reflected, Self::Direct, Self::Free];

    const fn name(self) -> &'static str {
        match self {
            Self::Reflected => "reflector, 100 Mbit/s",
            Self::Direct => "each from the station, 100 Mbit/s",
            Self::Free => "reflector, only the uplink has 100 Mbit/s",
        }
    }

    const fn levels(self, quick: bool) -> &'static [usize] {
        match (self, quick) {
            (Self::Reflected, false) => &REFLECTED,
            (Self::Reflected, true) => &REFLECTED_QUICK,
            (Self::Direct, false) => &DIRECT,
            (Self::Direct, true) => &DIRECT_QUICK,
            (Self::Free, false) => &FREE,
            (Self::Free, true) => &FREE_QUICK,
        }
    }

    const fn at(self) -> &'static str {
        match self {
            Self::Reflected | Self::Free => SERVED,
            Self::Direct => PLAIN,
        }
    }
}

/// Result for one number of listeners.
#[derive(Clone, Copy, Debug, PartialEq)]
struct ListenerResult {
    delivery: Delivery,
    listeners: usize,
    /// Audio that all listeners together received, in Mbit/s.
    delivered: f64,
    /// Number of listeners that received everything that was played.
    whole: usize,
    /// Traffic from the station including frame headers, in Mbit/s.
    uplink: f64,
    /// Connections at the station.
    streams: usize,
    /// Processor time of the cell, in percent of a core.
    cpu: f64,
}

impl ListenerResult {
    fn whole_percent(&self) -> f64 {
        self.whole as f64 / self.listeners as f64 * 100.0
    }

    fn point(&self) -> Point {
        Point {
            curve: self.delivery.name().to_owned(),
            listeners: Some(self.listeners),
            throughput: Some(self.delivered),
            whole: Some(self.whole_percent()),
            uplink: Some(self.uplink),
            percent: Some(self.cpu),
            ..Point::default()
        }
    }
}

/// Runs the load test.
pub(super) fn radio(lab: &mut Lab<'_>) -> Result<Drawn> {
    let quick = lab.options.quick;
    line::needs_two_cpus()?;
    let most = |delivery: Delivery| delivery.levels(quick).iter().copied().max().unwrap_or(0);
    let (reflected, direct) =
        (most(Delivery::Reflected).max(most(Delivery::Free)), most(Delivery::Direct));
    streams::raise_descriptors(reflected.max(2 * direct) as u64 + DESCRIPTORS)?;
    lab.line.carry_tcp()?;
    let station = Station::asked(&lab.line.destination, STATION.parse()?, TOGETHER)?;
    line::limit(&lab.line.destination, NEAR_END, Some(RATE))?;
    line::limit(&lab.line.node, PORT_IN, Some(RATE))?;
    let plan =
        Plan { rule: Some(RULE.to_owned()), ..lab.line.plan(NODE, Some(Service::Reflector)) };
    (lab.progress)("starting a node with reflector");
    let all = lab.with_node(&plan, |lab| {
        let mut all = Vec::new();
        for delivery in Delivery::ALL {
            if delivery == Delivery::Free {
                line::limit(&lab.line.node, PORT_IN, None)?;
            }
            for listeners in delivery.levels(quick) {
                (lab.progress)(&format!("{}: {listeners} listeners", delivery.name()));
                all.push(
                    middle(lab, delivery, *listeners, &station)
                        .with_context(|| format!("{listeners} listeners, {}", delivery.name()))?,
                );
            }
        }
        Ok(all)
    })?;
    Ok(drawn(&all))
}

/// Returns the round with the median throughput.
fn middle(
    lab: &mut Lab<'_>,
    delivery: Delivery,
    listeners: usize,
    station: &Station,
) -> Result<ListenerResult> {
    let mut rounds = Vec::new();
    for round in 0..lab.options.rounds.unwrap_or(1) {
        let path = format!("/live/{delivery:?}-{listeners}-{round}.mp3");
        rounds.push(lab.unspoiled(|lab| listen(lab, delivery, listeners, &path, station))??);
    }
    rounds.sort_by(|a: &ListenerResult, b: &ListenerResult| a.delivered.total_cmp(&b.delivered));
    rounds.get(rounds.len() / 2).copied().context("no round was asked for")
}

/// Measures one number of listeners; also returns the longest pause of the machine.
fn listen(
    lab: &mut Lab<'_>,
    delivery: Delivery,
    listeners: usize,
    path: &str,
    station: &Station,
) -> Result<(Result<ListenerResult>, Duration)> {
    let (settle, window) = match lab.options.quick {
        true => (SETTLE_QUICK, WINDOW_QUICK),
        false => (SETTLE, WINDOW),
    };
    let at: SocketAddr = delivery.at().parse()?;
    let cell = streams::node(lab.subject, NODE)?.split_off(1);
    let line = &lab.line;
    // Without the crowd the stream would begin with a burst for each.
    let attentive = Attentive::start(&line.source, at, path)?;
    let listens = || -> Result<(ListenerResult, Duration)> {
        let mut crowd = Crowd::new(at, path)?;
        crowd.arrive(listeners, ARRIVALS)?;
        crowd.listen(settle)?;
        let sent = || Ok::<u64, anyhow::Error>(line::bytes(&line.destination, NEAR_END)?[1]);
        let (before, used, uplink) = (crowd.heard(), cpu_time(&cell)?, sent()?);
        let listened = crowd.listen(window)?;
        let (after, uplink) = (crowd.heard(), sent()?.saturating_sub(uplink));
        let used = cpu_time(&cell)?.saturating_sub(used);
        let bytes = after.iter().sum::<u64>().saturating_sub(before.iter().sum());
        let seconds = listened.as_secs_f64();
        let heard = ListenerResult {
            delivery,
            listeners,
            delivered: megabits(bytes, seconds),
            whole: after.len().saturating_sub(slow(&before, &after, listened)),
            uplink: megabits(uplink, seconds),
            streams: station.listeners(),
            cpu: used.as_secs_f64() / seconds * 100.0,
        };
        Ok((heard, crowd.pause()))
    };
    let (heard, pause) = on_cpu(LOAD_CPU, || netns::in_namespace(&line.source, listens))???;
    std::thread::sleep(REST);
    let frames = attentive.end().context("one who listened to every byte");
    Ok((frames.map(|_| heard), pause))
}

fn megabits(bytes: u64, seconds: f64) -> f64 {
    bytes as f64 * 8.0 / 1e6 / seconds
}

/// Returns the result with the most listeners of which nearly all received everything.
fn carried(all: &[ListenerResult], delivery: Delivery) -> Option<&ListenerResult> {
    let of_way =
        all.iter().filter(|heard| heard.delivery == delivery && heard.whole_percent() >= CARRIED);
    of_way.max_by_key(|heard| heard.listeners)
}

fn drawn(all: &[ListenerResult]) -> Drawn {
    let of = |delivery: Delivery| all.iter().filter(move |heard| heard.delivery == delivery);
    let most = |delivery| of(delivery).map(|heard| heard.delivered).reduce(f64::max);
    let reflected = || of(Delivery::Reflected).chain(of(Delivery::Free));
    let compared = vec![
        Compared {
            what: "throughput, most on 100 Mbit/s".to_owned(),
            unit: "Mbit/s",
            paper: PAPER_RATE,
            ours: most(Delivery::Reflected),
        },
        Compared {
            what: "the same beside plain forwarding".to_owned(),
            unit: "times",
            paper: PAPER_RATE / PAPER_RATE_PLAIN,
            ours: most(Delivery::Reflected)
                .zip(most(Delivery::Direct))
                .map(|(ours, plain)| ours / plain),
        },
        Compared {
            what: "listeners of 128 kbit/s who hear all, on 100 Mbit/s".to_owned(),
            unit: "listeners",
            paper: PAPER_LISTENERS,
            ours: carried(all, Delivery::Reflected).map(|heard| heard.listeners as f64),
        },
        Compared {
            what: "streams on the uplink, at most".to_owned(),
            unit: "streams",
            paper: PAPER_STREAMS,
            ours: reflected().map(|heard| heard.streams as f64).reduce(f64::max),
        },
    ];
    let told = |heard: &ListenerResult| {
        format!(
            "{}: {} listeners hear all, {:.1} Mbit/s; {:.2} Mbit/s from the station by {} \
             connections; {:.1} % of a core for the cell",
            heard.delivery.name(),
            heard.listeners,
            heard.delivered,
            heard.uplink,
            heard.streams,
            heard.cpu
        )
    };
    let panel = |y| Panel { log_x: true, ..Panel::lines(Quantity::Listeners, y) };
    Drawn {
        points: all.iter().map(ListenerResult::point).collect(),
        compared,
        columns: &[
            Quantity::Listeners,
            Quantity::Throughput,
            Quantity::Whole,
            Quantity::Uplink,
            Quantity::Percent,
        ],
        panels: vec![
            Panel::logarithmic(Quantity::Listeners, Quantity::Throughput),
            panel(Quantity::Whole),
            Panel::logarithmic(Quantity::Listeners, Quantity::Uplink),
        ],
        references: vec![Reference::level(
            Quantity::Throughput,
            Delivery::Reflected.name(),
            format!("the paper, reflected: about {PAPER_RATE} Mbit/s"),
            PAPER_RATE,
        )],
        notes: Delivery::ALL
            .into_iter()
            .filter_map(|delivery| carried(all, delivery))
            .map(told)
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_links_capacity_is_where_nearly_all_listeners_hear_everything() {
        let heard = |delivery, listeners: usize, whole, delivered, streams| ListenerResult {
            delivery,
            listeners,
            delivered,
            whole,
            uplink: 0.14,
            streams,
            cpu: 3.0,
        };
        let drawn = drawn(&[
            heard(Delivery::Reflected, 200, 200, 25.5, 1),
            heard(Delivery::Reflected, 700, 694, 89.0, 1),
            heard(Delivery::Reflected, 1000, 3, 94.5, 1),
            heard(Delivery::Direct, 1000, 600, 189.0, 1001),
            heard(Delivery::Direct, 200, 200, 25.5, 201),
            heard(Delivery::Free, 2000, 2000, 255.0, 1),
        ]);
        let ours: Vec<f64> = drawn.compared.iter().map(|one| one.ours.unwrap()).collect();
        assert_eq!(ours, [94.5, 0.5, 700.0, 1.0]);
        assert_eq!(drawn.points[2].whole, Some(0.3));
        assert_eq!(drawn.notes.len(), 3);
        assert!(drawn.notes[1].contains("200 listeners") && drawn.notes[1].contains("by 201 conn"));
        assert_eq!(megabits(1_000_000, 4.0), 2.0);
    }
}
