//! Tests of the lines, generators, sinks and baselines themselves. They need root, and skip with a
//! note otherwise. They judge no speed.

use std::time::Duration;

use crate::arrivals::Arrivals;
use crate::frame;
use crate::generator::{Generator, Traffic};
use crate::line::Line;
use crate::measure::{Rates, Reading, Window, measure};
use crate::plain_xsk::{Mode, PlainXsk};
use crate::sink::{Kind, Sink};

/// Packets per second, slow enough for every machine that tests run on.
const RATE: u64 = 20_000;
const WINDOW: Window =
    Window { warm_up: Duration::from_millis(100), length: Duration::from_millis(300) };

fn privileged() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        testbase::skip_this("network namespaces and BPF programs need root");
    }
    root
}

/// Sends a slow stream of frames through a line; returns the rates.
fn through(line: &Line, kind: Kind, length: usize, flows: u32) -> Rates {
    let sink = Sink::new(line, kind).unwrap();
    let traffic = Traffic { rate: Some(RATE), flows, ..Traffic::flood(length) };
    measure(line, traffic, WINDOW, &mut || Ok(Reading::now(sink.packets().unwrap()))).unwrap()
}

/// Checks that the pace is not exceeded and that nearly all packets arrive. (The pace is not
/// reached where other tests use the CPU.)
fn assert_all_arrives(rates: Rates) {
    let Rates { offered, counted } = rates;
    assert!(offered > 0.0 && offered < 1.2 * RATE as f64, "{rates:?}");
    assert!((counted / offered - 1.0).abs() < 0.2, "{rates:?}");
}

#[test]
fn the_kernel_forwards_along_a_line_to_both_sinks() {
    if !privileged() {
        return;
    }
    let line = Line::new("t-kernel").unwrap();
    assert_all_arrives(through(&line, Kind::Xdp, 64, 1));
    assert_all_arrives(through(&line, Kind::Ordinary, 1460, 1));
}

#[test]
fn stamped_frames_arrive_once_and_in_order() {
    if !privileged() {
        return;
    }
    let line = Line::new("t-stamped").unwrap();
    for kind in [frame::Kind::Udp, frame::Kind::Tcp] {
        let traffic =
            Traffic { rate: Some(RATE), flows: 4, kind, stamped: true, ..Traffic::flood(100) };
        let arrivals = Arrivals::new(&line, traffic.flows, traffic.stamp_at()).unwrap();
        let device = Line::ifindex(&line.source, "s0").unwrap();
        let generator = Generator::start(&line.source, device, traffic).unwrap();
        std::thread::sleep(WINDOW.warm_up);
        let from = arrivals.begin(&generator);
        std::thread::sleep(WINDOW.length);
        let sent = generator.stop().unwrap() - from;
        std::thread::sleep(WINDOW.warm_up);
        let counts = arrivals.counts().unwrap();
        assert_eq!((counts.packets, counts.doubled, counts.reordered), (sent, 0, 0), "{kind:?}");
        assert!(sent > 0 && (0..4).all(|flow| arrivals.of_flow(flow).abs_diff(sent / 4) <= 1));
        assert!(arrivals.delay(0.5).unwrap() > 0.0);
    }
}

#[test]
fn many_flows_arrive_with_right_checksums() {
    if !privileged() {
        return;
    }
    // The kernel drops an IPv4 header whose checksum is wrong.
    let line = Line::new("t-flows").unwrap();
    assert_all_arrives(through(&line, Kind::Xdp, 64, 1 << 12));
}

#[test]
fn the_xdp_baselines_forward_without_the_kernel() {
    if !privileged() {
        return;
    }
    for attach in [crate::forward::fib_forward, crate::forward::fixed_redirect] {
        let line = Line::new("t-xdp").unwrap();
        namespaces::netns::in_namespace(&line.node, || {
            namespaces::sysctl::write("net.ipv4.ip_forward", "0").unwrap();
        })
        .unwrap();
        let none = through(&line, Kind::Xdp, 64, 1);
        assert!(none.counted < 1.0, "the kernel does not forward: {none:?}");
        // The FIB helper asks whether forwarding is on, as the kernel does.
        let links = namespaces::netns::in_namespace(&line.node, || {
            namespaces::sysctl::write("net.ipv4.ip_forward", "1").unwrap();
            attach(&line)
        });
        let _links = links.unwrap().unwrap();
        assert_all_arrives(through(&line, Kind::Xdp, 64, 1));
        assert_all_arrives(through(&line, Kind::Ordinary, 1460, 1));
    }
}

#[test]
fn the_plain_program_forwards_and_receives() {
    if !privileged() {
        return;
    }
    let line = Line::new("t-plain").unwrap();
    {
        let plain = PlainXsk::start(&line, Mode::Forward, 0).unwrap();
        assert_all_arrives(through(&line, Kind::Xdp, 1460, 1));
        assert!(plain.received().packets > 0);
    }
    let plain = PlainXsk::start(&line, Mode::Drop, 0).unwrap();
    let traffic = Traffic { rate: Some(RATE), ..Traffic::flood(64) };
    let rates = measure(&line, traffic, WINDOW, &mut || Ok(plain.received())).unwrap();
    assert_all_arrives(rates);
}

#[test]
fn a_line_leaves_nothing_behind() {
    if !privileged() {
        return;
    }
    let ours = || -> Vec<String> {
        let names = namespaces::netns::list().unwrap().into_iter();
        names.filter(|name| name.starts_with("tt-bench-t-gone")).collect()
    };
    let line = Line::new("t-gone").unwrap();
    assert_eq!(ours().len(), 3);
    drop(line);
    assert!(ours().is_empty());
}
