//! Malformed, truncated and foreign frames: they are counted, and nothing else happens.

use std::collections::BTreeMap;

use crate::common::Line;
use testkit::{RawPort, Service, root_or_skip, service_module, wait_for};
use wire::samples::{Mutations, samples};

/// Shortest frame that a packet socket sends: an Ethernet header.
const FRAME_LENGTH_MIN: usize = 14;
/// Longest frame of a link with an MTU of 9,000.
const FRAME_LENGTH_MAX: usize = 9014;
/// Number of mutated frames in a run; the seed makes them the same each time.
const MUTATIONS: usize = 3000;
const SEED: u64 = 2;

#[test]
fn every_malformed_frame_is_counted_under_its_reason() {
    if !root_or_skip("bad frames") {
        return;
    }
    let line = Line::with_mtu(9000);
    line.resolve_neighbours();
    send_all(&line);
}

#[test]
fn malformed_frames_reach_no_service_and_unusual_ones_do_no_harm() {
    if !root_or_skip("bad frames and a service") {
        return;
    }
    let line = Line::with_mtu(9000);
    line.resolve_neighbours();
    let all = Service { rules: &["any"], ..Service::default() };
    line.node.deploy(&service_module("monitor").unwrap(), &all).unwrap();
    send_all(&line);
    let service = line.node.service("monitor").unwrap();
    assert_eq!((service.state.as_str(), service.restarts), ("running", 0));
    assert_eq!(service.stats.traps, BTreeMap::new());
    assert!(service.stats.packets > 0);
}

/// Sends every sample and many mutations, and compares the counters with the results of the parser
/// in Rust.
fn send_all(line: &Line) {
    let client = RawPort::open(&line.net, "client", "r1").unwrap();
    let router = line.net.mac("r1", "client").unwrap();
    let frames = samples().into_iter().map(|sample| sample.frame);
    let frames = frames.chain(Mutations::new(SEED).take(MUTATIONS)).chain([vec![0; 15]]);
    let mut expected: BTreeMap<String, u64> = BTreeMap::new();
    let before = line.books().node.ports[0].clone();
    let has_rules = !line.node.client().rules().unwrap().rules.is_empty();
    let mut sent = 0;
    for mut frame in frames {
        if frame.len() < FRAME_LENGTH_MIN || frame.len() > FRAME_LENGTH_MAX {
            continue;
        }
        frame[..6].copy_from_slice(&router);
        if let Err(outcome) = wire::parse_frame(&frame) {
            // No rule can match it.
            let is_hidden = has_rules && outcome == wire::Outcome::VlanDepth;
            let name = if is_hidden { "drop_vlan_depth" } else { outcome.name() };
            *expected.entry(name.to_owned()).or_default() += 1;
        }
        client.send(&frame).unwrap();
        sent += 1;
        // The device's ring holds 256 frames; what overflows it would be lost before the node.
        if sent % 64 == 0 {
            let arrived = |line: &Line| line.node.stats().unwrap().ports[0].rx_packets;
            let target = before.rx_packets + sent;
            let all = wait_for(crate::common::SOON, || (arrived(line) >= target).then_some(()));
            assert!(all.is_some(), "frames were lost in front of the node");
        }
    }
    let after = line.books().node.ports[0].clone();
    let drops = |name: &&String| name.starts_with("drop_");
    for name in after.outcomes.keys().filter(drops) {
        let found = after.outcomes[name] - before.outcomes[name];
        assert_eq!(found, expected.get(name).copied().unwrap_or(0), "{name}");
    }
    assert!(after.rx_packets - before.rx_packets >= sent);
    let told = expected.keys().filter(drops).count();
    assert_eq!(
        told,
        5 + usize::from(has_rules),
        "the samples reach every reason of the parser: {expected:?}"
    );
    // The node lives, and forwards.
    line.resolve_neighbours();
}
