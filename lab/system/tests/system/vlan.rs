//! Tagged frames and fragments: matched, marked, and routed by the kernel where it must.
//!
//! The frames are raw: a kernel without 802.1Q devices has them too.

use crate::common::{Line, SOON, dscp, is_udp_to};
use testkit::{RawPort, Service, root_or_skip, service_module};

const PORT: u16 = 7000;
/// DSCP with which `monitor` marks: expedited forwarding (RFC 3246).
const MARK: u8 = 46;

fn deploy_monitor(line: &Line, rules: &[&str]) {
    let service = Service { rules, ..Service::default() };
    line.node.deploy(&service_module("monitor").unwrap(), &service).unwrap();
}

#[test]
fn a_tagged_frame_is_matched_by_its_vlan_and_marked() {
    if !root_or_skip("VLAN") {
        return;
    }
    let line = Line::up();
    line.resolve_neighbours();
    deploy_monitor(&line, &["vlan 0"]);
    let client = RawPort::open(&line.net, "client", "r1").unwrap();
    let server = RawPort::open(&line.net, "server", "r1").unwrap();
    // A priority without a VLAN (802.1Q, 9.6), which a kernel without 802.1Q devices takes, too.
    client.send(&line.frame().vlan(0).udp(4000, PORT).payload(b"tagged").build()).unwrap();
    let came = server.receive(SOON, |frame| is_udp_to(frame, PORT)).unwrap().unwrap();
    assert_eq!((&came[12..14], dscp(&came)), (&[8, 0][..], MARK));
    let stats = line.node.service("monitor").unwrap().stats;
    assert_eq!((stats.packets, stats.to_kernel), (1, 1), "{stats:#?}");
    line.books();
}

#[test]
fn a_frame_of_a_vlan_that_the_router_lacks_is_dropped_at_each_level() {
    if !root_or_skip("unknown VLAN") {
        return;
    }
    for level in ["nic", "kernel", "user"] {
        let line = Line::up();
        line.resolve_neighbours();
        let client = RawPort::open(&line.net, "client", "r1").unwrap();
        let server = RawPort::open(&line.net, "server", "r1").unwrap();
        let service = Service { rules: &["vlan 5"], level, ..Service::default() };
        line.node.deploy(&service_module("monitor").unwrap(), &service).unwrap();
        for tags in [&[5][..], &[5, 10]] {
            let tagged = tags.iter().fold(line.frame(), |frame, id| frame.vlan(*id));
            client.send(&tagged.udp(4000, PORT).payload(b"tagged").build()).unwrap();
        }
        assert!(server.collect(|frame| is_udp_to(frame, PORT)).unwrap().is_empty(), "{level}");
        let stats = line.node.service("monitor").unwrap().stats;
        assert_eq!((stats.packets, stats.to_kernel), (2, 2), "{level}: {stats:#?}");
        line.books();
    }
}

#[test]
fn frames_with_over_two_vlan_tags_go_to_the_kernel_or_are_dropped_if_there_are_rules() {
    if !root_or_skip("VLAN depth") {
        return;
    }
    let line = Line::up();
    line.resolve_neighbours();
    let client = RawPort::open(&line.net, "client", "r1").unwrap();
    let server = RawPort::open(&line.net, "server", "r1").unwrap();
    for (outcome, arrive) in [("kernel_vlan_depth", 2), ("drop_vlan_depth", 0)] {
        // Linux takes off tags of VLAN 0, and routes what is behind them.
        for tags in [3, 10] {
            let tagged = (1..=tags).fold(line.frame(), |frame, _| frame.vlan(0));
            client.send(&tagged.udp(4000, PORT).build()).unwrap();
        }
        let came = server.collect(|frame| is_udp_to(frame, PORT)).unwrap();
        assert_eq!(came.len(), arrive, "{outcome}");
        assert_eq!(line.node.stats().unwrap().ports[0].outcomes[outcome], 2);
        line.books();
        // A rule that is not asked, and cannot be.
        let rule = api::RuleRequest::new("proto udp dport 7", "drop");
        line.node.client().add_rules(&rule.into()).unwrap();
    }
}

#[test]
fn a_frame_with_two_vlan_tags_and_no_rule_is_left_to_the_kernel() {
    if !root_or_skip("two tags") {
        return;
    }
    let line = Line::up();
    line.resolve_neighbours();
    let client = RawPort::open(&line.net, "client", "r1").unwrap();
    client.send(&line.frame().vlan(10).vlan(20).udp(4000, PORT).build()).unwrap();
    assert_eq!(line.books().node.ports[0].outcomes["kernel_vlan_depth"], 1);
}

#[test]
fn all_fragments_of_a_datagram_match_the_rule_of_its_l4_port() {
    if !root_or_skip("fragments") {
        return;
    }
    let line = Line::up();
    line.resolve_neighbours();
    deploy_monitor(&line, &["proto udp dport 7000"]);
    let client = RawPort::open(&line.net, "client", "r1").unwrap();
    let server = RawPort::open(&line.net, "server", "r1").unwrap();
    let receiver = line.udp("server", PORT);
    let payload: Vec<u8> = (0..4000u32).map(|number| number as u8).collect();
    let datagram = line.frame().identification(7).udp(4000, PORT).payload(&payload);
    let fragments = datagram.build_fragments(1480);
    assert_eq!(fragments.len(), 3);
    for fragment in &fragments {
        client.send(fragment).unwrap();
    }
    let mut received = [0; 5000];
    let length = receiver.recv(&mut received).unwrap();
    assert_eq!(received[..length], payload, "put together by the server's kernel");
    let udp = |frame: &[u8]| frame[12..14] == [8, 0] && frame[23] == wire::protocol::UDP;
    let came = server.collect(udp).unwrap();
    assert_eq!(came.iter().map(|frame| dscp(frame)).collect::<Vec<_>>(), [MARK; 3]);
    let stats = line.node.service("monitor").unwrap().stats;
    assert_eq!((stats.packets, stats.forwarded), (3, 3), "{stats:#?}");

    // A later fragment whose first one nobody saw has no L4 ports: plainly, unmarked.
    let lost = line.frame().identification(8).udp(4000, PORT).payload(&payload);
    client.send(&lost.build_fragments(1480)[1]).unwrap();
    let came = server.receive(SOON, udp).unwrap().unwrap();
    assert_eq!(dscp(&came), 0);
    assert_eq!(line.node.service("monitor").unwrap().stats.packets, 3);
    line.books();
}
