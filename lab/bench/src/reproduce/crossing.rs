//! Tamanoir, figures 11 and 12: the time that a packet takes to cross the node, by its size and the
//! level of the service (section 4.1 of the paper).
//!
//! The paper's service marks and counts packets; in the kernel it is a netfilter module, at user
//! level Java: a dual Pentium III with 1 GHz and Fast Ethernet, ANEP packets of up to several
//! kilobytes. Here it is `monitor` at each level, one packet a frame. The paper's user level
//! terminated TCP and sent the data anew; here each segment is marked as it passes, so the paper's
//! delay for collecting small packets has no counterpart.
//!
//! Time is from the source's stamp to the sink's program. A fixed redirect in the node's place
//! shows how much of that is the line's own; it and the kernel's forwarding take turns with the
//! node.

use abi::Level;
use anyhow::Result;

use super::stamped::{self, at};
use super::{Compared, Drawn, Lab, Panel, Point, Quantity, Reference};
use crate::generator::Traffic;
use crate::line::Line;
use crate::{Service, forward, frame};

/// Frame lengths in bytes; the paper's small packets have 200.
const LENGTHS: [usize; 5] = [80, 200, 512, 1024, 1460];
/// Packets per second, far from every limit, so that none waits for another one.
const RATE: u64 = 2_000;
const NODE: &str = "bench-cross";
const FIXED: &str = "the line alone (fixed redirect)";
const KERNEL: &str = "the kernel's forwarding";
/// Time of the paper within the kernel at every size, in microseconds: both figures.
const PAPER_KERNEL_US: f64 = 7.0;
/// Shortest time of the paper for small packets at user level, in microseconds: figure 11.
const PAPER_USER_UDP_US: f64 = 500.0;
/// Time of the paper for packets below 4,096 bytes at user level, in microseconds: figure 12.
const PAPER_USER_TCP_US: f64 = 16_000.0;
/// Frame length that is compared with the paper's values, in bytes.
const COMPARED_LENGTH: usize = 200;

/// Measures figures 11 and 12.
pub(super) fn crossing(lab: &mut Lab<'_>, kind: frame::Kind) -> Result<Drawn> {
    let (fixed, kernel) = (Line::new("fixed")?, Line::new("kernel")?);
    let _links = namespaces::netns::in_namespace(&fixed.node, || forward::fixed_redirect(&fixed))??;
    let plan = lab.line.plan(NODE, Some(Service::Monitor));
    (lab.progress)("starting a node");
    let (points, notes) = lab.with_node(&plan, |lab| {
        let (levels, notes) = stamped::levels(lab, NODE);
        let mut points = Vec::new();
        for length in LENGTHS {
            let traffic =
                Traffic { rate: Some(RATE), kind, stamped: true, ..Traffic::flood(length) };
            (lab.progress)(&format!("{length} bytes"));
            for (curve, line) in [(FIXED, &fixed), (KERNEL, &kernel)] {
                let measured = stamped::rounds(line, traffic, lab)?;
                points.push(measured.point(curve, length));
            }
            for level in &levels {
                lab.subject.move_to(NODE, *level)?;
                let measured = stamped::rounds(&lab.line, traffic, lab)?;
                points.push(measured.point(&at(*level), length));
            }
        }
        Ok((points, notes))
    })?;
    let compared = compared(&points, kind);
    let columns = &[Quantity::Length, Quantity::Delay, Quantity::DelayP99];
    let (x, y) = (Quantity::Length, Quantity::Delay);
    let panels = vec![Panel { log_y: true, ..Panel::lines(x, y) }];
    let references = references(kind);
    Ok(Drawn { points, compared, columns, panels, notes, references })
}

const fn paper_user(kind: frame::Kind) -> f64 {
    match kind {
        frame::Kind::Udp => PAPER_USER_UDP_US,
        frame::Kind::Tcp => PAPER_USER_TCP_US,
    }
}

fn references(kind: frame::Kind) -> Vec<Reference> {
    let level = |curve: &str, what: &str, value| {
        let name = format!("the paper, {what}: {value} µs");
        Reference::level(Quantity::Delay, curve, name, value)
    };
    vec![
        level(KERNEL, "in the kernel", PAPER_KERNEL_US),
        level(&at(Level::User), "at user level (Java)", paper_user(kind)),
    ]
}

fn compared(points: &[Point], kind: frame::Kind) -> Vec<Compared> {
    let ours = |curve: &str| {
        points
            .iter()
            .find(|point| point.curve == curve && point.length == COMPARED_LENGTH)
            .and_then(|point| point.delay_us)
    };
    let paper_user = paper_user(kind);
    let (nic, user) = (ours(&at(Level::Nic)), ours(&at(Level::User)));
    let time = |what: &str, paper, ours| Compared {
        what: format!("{what}, {COMPARED_LENGTH} bytes"),
        unit: "us",
        paper,
        ours,
    };
    vec![
        time("the kernel's forwarding", PAPER_KERNEL_US, ours(KERNEL)),
        time("service below user level (nic)", PAPER_KERNEL_US, nic),
        time("service at user level", paper_user, user),
        Compared {
            what: "user level, of below it".to_owned(),
            unit: "ratio",
            paper: paper_user / PAPER_KERNEL_US,
            ours: user.zip(nic).map(|(user, nic)| user / nic),
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_values_are_compared_at_the_same_packet_size() {
        let point = |curve: &str, length, delay| Point {
            curve: curve.to_owned(),
            length,
            delay_us: Some(delay),
            ..Point::default()
        };
        let points = [
            point(&at(Level::Nic), 80, 1.0),
            point(&at(Level::Nic), COMPARED_LENGTH, 5.0),
            point(&at(Level::User), COMPARED_LENGTH, 20.0),
        ];
        let ours: Vec<Option<f64>> =
            compared(&points, frame::Kind::Udp).iter().map(|compared| compared.ours).collect();
        assert_eq!(ours, [None, Some(5.0), Some(20.0), Some(4.0)]);
    }
}
