//! RCANE, figures 12 and 13: the rates at which sessions send by a port while their reservations
//! change, and the rate that one receives by its period and its queue.
//!
//! Figure 12: E has 2 ms of each 6 ms of a link of 100 Mbit/s, F 25 %, from 20 s on 45 %, from 22 s
//! on 65 %, from 24 s on 25 % again; D has no guarantee. All three send packets of 1,500 bytes all
//! the time. Here the port's rate in the node file stands for the link, and the measurement is
//! repeated at 1 Gbit/s.
//!
//! Figure 13: a session with a tenth of the processor is sent 97 Mbit/s, beside one that works all
//! the time, with 4 ms of each 10 ms. The paper's buffers hold 1.5 to 88 KB; here a queue is a
//! number of packets, each in a frame of packet memory.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use namespaces::netns;

use super::{Compared, Course, Drawn, Lab, Panel, Point, Quantity, Reference};
use crate::arrivals::Arrivals;
use crate::frame::DESTINATION_PORT;
use crate::generator::{Generator, Traffic};
use crate::line::{Line, PORT_OUT};
use crate::{Party, Plan, SOURCE_PORT_FIRST, Work};

const NODE: &str = "bench-rcane";
/// Frame length in bytes, of packets of 1,500 bytes.
const LENGTH: usize = 1_514;
/// Bits of a frame on an Ethernet: with preamble, frame check sequence and gap.
const WIRE_BITS: f64 = (LENGTH as f64 + 24.0) * 8.0;
/// Sessions of figure 12, each with one of the generator's flows.
const SESSIONS: [&str; 3] = ["d", "e", "f"];
/// Flows of the generator, a power of two; the rate of a flow without a session is not shared.
const FLOWS: u32 = 4;
const SHARE_E: &str = "2ms/6ms";
/// Reservations of F in order, in parts of 6 ms, with the paper's percentages.
const SHARES_F: [(&str, f64); 4] =
    [("1500us/6ms", 25.0), ("2700us/6ms", 45.0), ("3900us/6ms", 65.0), ("1500us/6ms", 25.0)];
/// Beginnings of the phases and the end, in seconds.
const PHASES: [f64; 5] = [0.0, 20.0, 22.0, 24.0, 26.0];
const PHASES_QUICK: [f64; 5] = [0.0, 1.0, 2.0, 3.0, 4.0];
/// Time between two points of the trace.
const STEP: Duration = Duration::from_millis(50);
/// Seconds after a change that are not counted in its phase: earlier queues are still in flight.
const UNSURE: f64 = 0.2;

/// Figure 13: periods of the receiver, each with a slice of a tenth, and its queue lengths in
/// packets: the paper's 1.5 to 88 KB.
const PERIODS: [(&str, f64); 4] =
    [("100us/1ms", 1.0), ("500us/5ms", 5.0), ("1ms/10ms", 10.0), ("2ms/20ms", 20.0)];
const QUEUES: [usize; 5] = [1, 4, 15, 30, 58];
const QUEUES_QUICK: [usize; 2] = [4, 58];
const BUSY: &str = "4ms/10ms";
/// Rate in packets per second: 97 Mbit/s of packets of 1,500 bytes.
const RECEIVED_RATE: u64 = 8_083;
const WINDOW: Duration = Duration::from_secs(2);
const WINDOW_QUICK: Duration = Duration::from_millis(700);
const WARM_UP: Duration = Duration::from_millis(300);
const FRAME: usize = 4_096;

/// Measures figure 12.
pub(super) fn transmission(lab: &mut Lab<'_>) -> Result<Drawn> {
    let phases = if lab.options.quick { PHASES_QUICK } else { PHASES };
    let mut drawn = transmission_at(lab, 100, phases)?;
    if !lab.options.quick {
        let fast = transmission_at(lab, 1_000, phases)?;
        drawn.compared.extend(fast.compared);
        drawn.notes.push("the plot is of 100 Mbit/s, the table of both".to_owned());
    }
    Ok(drawn)
}

fn transmission_at(lab: &mut Lab<'_>, megabits: u64, phases: [f64; 5]) -> Result<Drawn> {
    let plan = Plan { rate: Some(megabits), ..lab.line.plan(NODE, None) };
    let trace = lab.with_node(&plan, |lab| trace(lab, megabits, phases))?;
    Ok(drawn(&trace, megabits, phases))
}

/// Records the arrival time and the flow of each packet.
fn trace(lab: &mut Lab<'_>, megabits: u64, phases: [f64; 5]) -> Result<Vec<(f64, usize)>> {
    for (at, name) in SESSIONS.into_iter().enumerate() {
        let send = [None, Some(SHARE_E), Some(SHARES_F[0].0)][at];
        let party = Party {
            name,
            send: send.map(|share| (PORT_OUT, share)),
            flow: SOURCE_PORT_FIRST + at as u16,
            ..Party::default()
        };
        lab.subject.admit(NODE, &party)?;
    }
    // Each of the flows is a little more than the whole port.
    let rate = (megabits as f64 * 1e6 / WIRE_BITS * f64::from(FLOWS) * 1.1) as u64;
    let traffic = Traffic { rate: Some(rate), flows: FLOWS, ..Traffic::flood(LENGTH) };
    let device = Line::ifindex(&lab.line.source, "s0")?;
    let receiver = Receiver::start(&lab.line)?;
    let generator = Generator::start(&lab.line.source, device, traffic)?;
    std::thread::sleep(WARM_UP);
    let begin = Instant::now();
    for (phase, (share, percent)) in SHARES_F.into_iter().enumerate() {
        (lab.progress)(&format!("{megabits} Mbit/s, F has {percent} %"));
        if phase > 0 {
            lab.subject.promise(NODE, "f", (PORT_OUT, share))?;
        }
        let until = Duration::from_secs_f64(phases[phase + 1]);
        std::thread::sleep(until.saturating_sub(begin.elapsed()));
    }
    generator.stop()?;
    let came = receiver.stop()?;
    for name in SESSIONS {
        lab.subject.evict(NODE, name)?;
    }
    let of = |(when, port): (Instant, u16)| {
        let flow = usize::from(port.checked_sub(SOURCE_PORT_FIRST)?);
        let at = when.checked_duration_since(begin)?;
        (flow < SESSIONS.len()).then_some((at.as_secs_f64(), flow))
    };
    Ok(came.into_iter().filter_map(of).collect())
}

/// Measures figure 13.
pub(super) fn reception(lab: &mut Lab<'_>) -> Result<Drawn> {
    let plan = lab.line.plan(NODE, None);
    let points = lab.with_node(&plan, receptions)?;
    Ok(drawn_reception(points))
}

fn receptions(lab: &mut Lab<'_>) -> Result<Vec<Point>> {
    let quick = lab.options.quick;
    let queues: &[usize] = if quick { &QUEUES_QUICK } else { &QUEUES };
    let window = if quick { WINDOW_QUICK } else { WINDOW };
    let busy = Party {
        name: "busy",
        cpu: Some(BUSY),
        flow: SOURCE_PORT_FIRST + 1,
        work: Work::Bound,
        ..Party::default()
    };
    lab.subject.admit(NODE, &busy)?;
    let mut points = Vec::new();
    for (share, period) in PERIODS {
        for &packets in queues {
            (lab.progress)(&format!("a period of {period} ms, a queue of {packets} packets"));
            let receiver = Party {
                name: "receiver",
                cpu: Some(share),
                queue: Some(packets * FRAME),
                flow: SOURCE_PORT_FIRST,
                ..Party::default()
            };
            lab.subject.admit(NODE, &receiver)?;
            let share = received(lab, window);
            lab.subject.evict(NODE, receiver.name)?;
            points.push(Point {
                curve: format!("{period} ms"),
                length: LENGTH,
                buffer: Some(packets),
                throughput: Some(share? * 97.0),
                ..Point::default()
            });
        }
    }
    lab.subject.evict(NODE, busy.name)?;
    Ok(points)
}

/// Measures the share of the receiver's packets that it handled.
fn received(lab: &Lab<'_>, window: Duration) -> Result<f64> {
    let device = Line::ifindex(&lab.line.source, "s0")?;
    // The busy session has the other flow, at the same rate: more than it can do.
    let traffic = Traffic {
        rate: Some(2 * RECEIVED_RATE),
        flows: 2,
        stamped: true,
        unbroken: true,
        ..Traffic::flood(LENGTH)
    };
    let arrivals = Arrivals::new(&lab.line, 1, traffic.stamp_at())?;
    let generator = Generator::start(&lab.line.source, device, traffic)?;
    std::thread::sleep(WARM_UP);
    let first = arrivals.begin(&generator);
    std::thread::sleep(window);
    let last = generator.sent();
    generator.stop()?;
    std::thread::sleep(WARM_UP);
    ensure!(last > first, "the generator sent nothing");
    Ok(arrivals.counts()?.packets as f64 / ((last - first) as f64 / 2.0))
}

/// Receiver at the end of the line.
struct Receiver {
    ended: Arc<AtomicBool>,
    thread: JoinHandle<Vec<(Instant, u16)>>,
}

impl Receiver {
    fn start(line: &Line) -> Result<Self> {
        let socket = netns::in_namespace(&line.destination, || {
            UdpSocket::bind(("0.0.0.0", DESTINATION_PORT)).context("binding the receiver's socket")
        })??;
        rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, 64 << 20)?;
        socket.set_read_timeout(Some(Duration::from_millis(50)))?;
        let ended = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&ended);
        let thread = std::thread::spawn(move || {
            let mut came = Vec::with_capacity(1 << 20);
            // Only the packet's sender is evaluated.
            let mut byte = [0; 1];
            while !over.load(Ordering::Relaxed) {
                if let Ok((_, from)) = socket.recv_from(&mut byte) {
                    came.push((Instant::now(), from.port()));
                }
            }
            came
        });
        Ok(Self { ended, thread })
    }

    fn stop(self) -> Result<Vec<(Instant, u16)>> {
        self.ended.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow!("the receiver failed"))
    }
}

/// Returns the rate of a session on the wire between two moments, in Mbit/s.
fn rate(trace: &[(f64, usize)], session: usize, from: f64, to: f64) -> f64 {
    let packets = trace.iter().filter(|(at, of)| *of == session && (from..to).contains(at)).count();
    packets as f64 * WIRE_BITS / 1e6 / (to - from)
}

/// Returns the percentages of the port for D, E and F while F reserves `percent`.
fn shares_of_paper(percent: f64) -> [f64; 3] {
    [100.0 - 100.0 / 3.0 - percent, 100.0 / 3.0, percent]
}

fn drawn(trace: &[(f64, usize)], megabits: u64, phases: [f64; 5]) -> Drawn {
    let step = STEP.as_secs_f64();
    let steps = (phases[4] / step) as usize;
    let mut points = Vec::new();
    for (session, name) in SESSIONS.into_iter().enumerate() {
        points.extend((0..steps).map(|number| {
            let from = number as f64 * step;
            Point {
                curve: name.to_uppercase(),
                length: LENGTH,
                at_s: Some(from),
                throughput: Some(rate(trace, session, from, from + step)),
                ..Point::default()
            }
        }));
    }
    let mut compared = Vec::new();
    for (phase, (_, percent)) in SHARES_F.into_iter().enumerate() {
        let rates: [f64; 3] =
            [0, 1, 2].map(|of| rate(trace, of, phases[phase] + UNSURE, phases[phase + 1]));
        let paper = shares_of_paper(percent);
        for ((name, ours), paper) in SESSIONS.into_iter().zip(rates).zip(paper) {
            compared.push(Compared {
                what: format!(
                    "{}, F promised {percent} %, at {megabits} Mbit/s",
                    name.to_uppercase()
                ),
                unit: "% of the port",
                paper,
                ours: Some(ours * 100.0 / megabits as f64),
            });
        }
    }
    let (x, y) = (Quantity::Seconds, Quantity::Throughput);
    let panels = vec![Panel::lines(x, y)];
    let columns = &[Quantity::Seconds, Quantity::Throughput];
    let steps = |session: usize| {
        let step = |(phase, (_, percent)): (usize, (_, f64))| {
            let part = shares_of_paper(percent)[session] / 100.0;
            (phases[phase], phases[phase + 1], part * megabits as f64)
        };
        SHARES_F.into_iter().enumerate().map(step).collect()
    };
    let reference = |(session, name): (usize, &str)| Reference {
        y,
        curve: name.to_uppercase(),
        name: "as the paper's text promises".to_owned(),
        course: Course::Steps(steps(session)),
    };
    let references = SESSIONS.into_iter().enumerate().map(reference).collect();
    let notes = vec!["the paper's are what its text promises; its plot has no numbers".to_owned()];
    Drawn { points, compared, columns, panels, notes, references }
}

fn drawn_reception(points: Vec<Point>) -> Drawn {
    let of = |period: f64, packets: usize| {
        let curve = format!("{period} ms");
        let is = |point: &&Point| point.curve == curve && point.buffer == Some(packets);
        points.iter().find(is).and_then(|point| point.throughput)
    };
    let compared =
        |what: &str, ours| Compared { what: what.to_owned(), unit: "Mbit/s", paper: 97.0, ours };
    let compared = vec![
        compared("a period of 1 ms, 4 packets", of(1.0, 4)),
        compared("a period of 20 ms, 58 packets (88 KB)", of(20.0, 58)),
    ];
    let (x, y) = (Quantity::Buffer, Quantity::Throughput);
    let panels = vec![Panel::lines(x, y)];
    let columns = &[Quantity::Buffer, Quantity::Throughput];
    let notes = vec!["the paper says of both that all of 97 Mbit/s is processed".to_owned()];
    let all = Reference::level(y, "", "the paper: all of 97 Mbit/s", 97.0);
    Drawn { points, compared, columns, panels, notes, references: vec![all] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_cut_into_phases_and_sessions() {
        // F (2) sends a packet in each millisecond, D (0) in each fourth.
        let trace: Vec<(f64, usize)> = (0..4000)
            .map(|ms| (f64::from(ms) / 1e3, 2))
            .chain((0..1000).map(|n| (f64::from(n) / 250.0, 0)))
            .collect();
        let near = |a: f64, b: f64| (a - b).abs() < b * 0.01;
        assert!(near(rate(&trace, 2, 1.0, 2.0), WIRE_BITS / 1e3));
        assert!(near(rate(&trace, 0, 0.0, 4.0), WIRE_BITS / 4e3));
        assert_eq!(rate(&trace, 1, 0.0, 4.0), 0.0);
        let drawn = drawn(&trace, 100, PHASES_QUICK);
        assert_eq!(drawn.compared.len(), 12);
        assert_eq!(drawn.points.len(), 3 * 80);
    }

    #[test]
    fn measured_reception_is_looked_up_by_period_and_queue() {
        let point = |curve: &str, buffer, throughput| Point {
            curve: curve.to_owned(),
            buffer: Some(buffer),
            throughput: Some(throughput),
            ..Point::default()
        };
        let drawn = drawn_reception(vec![point("1 ms", 4, 96.0), point("20 ms", 4, 12.0)]);
        assert_eq!(drawn.compared[0].ours, Some(96.0));
        assert_eq!(drawn.compared[1].ours, None);
    }
}
