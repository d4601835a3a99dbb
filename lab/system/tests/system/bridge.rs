//! Bridged pairs: a node between two hosts of one network, without addresses.
//!
//! ```text
//!  client 10.9.0.1 ── left ═ r1 ═ right ── 10.9.0.2 server
//! ```

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use api::RuleRequest;
use testkit::{
    Net, NodeUnderTest, RawPort, Service, leftovers, root_or_skip, service_module, wait_for,
};
use wire::FrameBuilder;

use crate::capture::packets_of;
use crate::clean_end::kill;
use crate::common::{Line, PROGRAM_TIME_MAX, SOON, dscp, is_udp_to};

const SERVER: &str = "10.9.0.2";
const SERVER_V6: &str = "fd09::2";
/// DSCP with which `monitor` marks.
const MARK: u8 = 46;

/// Returns the usual lab as one network, with a bridging node in it.
fn in_line() -> Line {
    in_line_as(|text| text)
}

/// Returns such a lab with the node file changed.
fn in_line_as(edit: impl FnOnce(String) -> String) -> Line {
    let net = Net::line(1500).unwrap();
    let ip = |node: &str, arguments: &str| {
        let argv: Vec<&str> = ["ip"].into_iter().chain(arguments.split_whitespace()).collect();
        let output = net.run(node, &argv, PROGRAM_TIME_MAX).unwrap();
        assert!(output.status.success(), "{output:#?}");
    };
    for device in ["to-client", "to-server"] {
        ip("r1", &format!("addr flush dev {device}"));
    }
    for (host, number) in [("client", 1), ("server", 2)] {
        ip(host, "addr flush dev to-r1 scope global");
        ip(host, &format!("addr add 10.9.0.{number}/24 dev to-r1"));
        ip(host, &format!("addr add fd09::{number}/64 dev to-r1 nodad"));
    }
    let bridge = "bridge = [\"left\", \"right\"]";
    let node = NodeUnderTest::start_edited(&net, "r1", bridge, edit).unwrap();
    Line { node, net }
}

#[test]
fn two_packet_ports_are_a_bridge() {
    if !root_or_skip("a bridge of packet ports") {
        return;
    }
    let line = in_line_as(crate::packet::as_packets);
    assert!(ping(&line, SERVER).contains(" 3 received"));
    assert!(ping(&line, SERVER_V6).contains(" 3 received"));
    tcp(&line);
    assert!(outcomes(&line).iter().all(|(name, _)| name == "bridged"), "{:?}", outcomes(&line));
    let rules: &[&str] = &["proto icmp", "proto tcp"];
    let service = Service { rules, ..Service::default() };
    line.node.deploy(&service_module("monitor").unwrap(), &service).unwrap();
    assert!(ping(&line, SERVER).contains(" 3 received"));
    tcp(&line);
    let stats = line.node.service("monitor").unwrap().stats;
    assert!(stats.packets > 100 && stats.packets == stats.forwarded, "{stats:#?}");
    assert_eq!(outcomes(&line).len(), 2, "bridged and to_user: {:?}", outcomes(&line));
}

/// Pings the server; returns the output.
fn ping(line: &Line, address: &str) -> String {
    line.run("client", &["ping", "-c3", "-i0.05", "-W5", address])
}

/// Sends a megabyte from client to server over TCP, and back.
fn tcp(line: &Line) {
    let address: SocketAddr = format!("{SERVER}:0").parse().unwrap();
    let listener = line.net.within("server", || TcpListener::bind(address)).unwrap().unwrap();
    let to = listener.local_addr().unwrap();
    let sent: Vec<u8> = (0..1 << 20).map(|at: u32| (at % 251) as u8).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut connection, _) = listener.accept().unwrap();
            let mut bytes = vec![0; sent.len()];
            connection.read_exact(&mut bytes).unwrap();
            connection.write_all(&bytes).unwrap();
        });
        let mut connection =
            line.net.within("client", || TcpStream::connect_timeout(&to, SOON)).unwrap().unwrap();
        connection.set_read_timeout(Some(PROGRAM_TIME_MAX)).unwrap();
        connection.write_all(&sent).unwrap();
        let mut came = vec![0; sent.len()];
        connection.read_exact(&mut came).unwrap();
        assert!(came == sent, "the bytes that were sent come back");
    });
}

/// Returns the outcomes of both ports that are not zero, added up.
fn outcomes(line: &Line) -> Vec<(String, u64)> {
    let mut sums = std::collections::BTreeMap::new();
    for port in line.node.stats().unwrap().ports {
        for (name, count) in port.outcomes {
            *sums.entry(name).or_insert(0) += count;
        }
    }
    sums.into_iter().filter(|(_, count)| *count > 0).collect()
}

fn router_has_neighbours(line: &Line) -> bool {
    !line.run("r1", &["ip", "neigh", "show"]).trim().is_empty()
}

#[test]
fn two_hosts_of_one_network_communicate_through_a_bridged_pair() {
    if !root_or_skip("a bridged pair") {
        return;
    }
    let mut line = in_line();
    let before = line.books();
    // Packets that arrived while only one port was served had no other end yet.
    let early = outcomes(&line);
    for address in [SERVER, SERVER_V6] {
        let said = ping(&line, address);
        assert!(said.contains("ttl=64") && said.contains(" 3 received"), "no hop: {said}");
    }
    tcp(&line);
    line.balance_since(&before);
    let mut found = outcomes(&line);
    found.retain(|outcome| !early.contains(outcome));
    assert!(found.len() == 1 && found[0].0 == "bridged", "{found:?}");
    assert!(!router_has_neighbours(&line));
    let shown = line.node.client().node().unwrap().ports;
    assert_eq!(shown[0].bridge.as_deref(), Some("right"));
    let captured = packets_of(&line, &["right"], || {
        ping(&line, SERVER);
        std::thread::sleep(Duration::from_millis(100));
    });
    let pings = captured.iter().filter(|p| p.direction == "out" && p.length == 98);
    assert_eq!(pings.count(), 3, "as they leave by the other end: {captured:#?}");

    // TCP works also with checksum offload, and with a device that accepts no redirected frames.
    let gro = |state: &str| line.run("server", &["ethtool", "-K", "to-r1", "gro", state]);
    gro("off");
    let slow = || line.node.client().node().unwrap().ports[1].slow_reasons.len();
    assert!(wait_for(SOON, || (slow() == 1).then_some(())).is_some());
    tcp(&line);
    gro("on");
    line.run("client", &["ethtool", "-K", "to-r1", "tx", "on"]);
    tcp(&line);

    let promiscuous = |line: &Line| line.net.device("r1", "client").unwrap().promiscuous;
    assert!(promiscuous(&line));
    assert!(line.node.stop().unwrap().success());
    assert_eq!(leftovers(line.node.name()), [""; 0]);
    assert!(!promiscuous(&line));
}

#[test]
fn frames_of_any_kind_cross_unchanged_and_reach_no_kernel() {
    if !root_or_skip("frames of any kind") {
        return;
    }
    let line = in_line();
    line.node
        .deploy(
            &service_module("monitor").unwrap(),
            &Service { rules: &["any"], ..Service::default() },
        )
        .unwrap();
    // Packets that crossed before the second port was served do not matter here.
    let before = outcomes(&line);
    let client = RawPort::open(&line.net, "client", "r1").unwrap();
    let server = RawPort::open(&line.net, "server", "r1").unwrap();
    let raw = |destination: [u8; 6], ethertype: u16| {
        let mut frame = [&destination[..], &client.mac(), &ethertype.to_be_bytes()].concat();
        frame.extend(0..80);
        frame
    };
    let stranger = FrameBuilder::new().ethernet(client.mac(), [2, 9, 9, 9, 9, 9]).ipv4(
        [10, 9, 0, 1],
        [10, 9, 0, 77],
        1,
    );
    let deep = (1..=4).fold(stranger.clone(), |frame, id| frame.vlan(id));
    let mut lying = stranger.clone().udp(1, 2).build();
    lying[24] ^= 0xff;
    let kinds = [
        ("STP", raw([1, 0x80, 0xc2, 0, 0, 0], 38)),
        ("LLDP", raw([1, 0x80, 0xc2, 0, 0, 0x0e], 0x88cc)),
        ("a broadcast of no known type", raw([0xff; 6], 0x1234)),
        ("a frame for a stranger", raw([2, 9, 9, 9, 9, 9], 0x88b5)),
        ("a wrong checksum", lying),
    ];
    for (name, frame) in &kinds {
        for (from, to) in [(&client, &server), (&server, &client)] {
            from.send(frame).unwrap();
            let came = to.receive(SOON, |came| came == frame).unwrap();
            assert!(came.is_some(), "{name} does not cross");
        }
    }
    // What is IP is the service's: marked, its TTL as it was; tags stay where they are.
    for frame in [stranger.clone(), stranger.vlan(7)] {
        let frame = frame.udp(4000, 7000).payload(b"for a stranger").build();
        client.send(&frame).unwrap();
        let came = server.receive(SOON, |came| is_udp_to(came, 7000)).unwrap().unwrap();
        let at = came.len() - frame.len() + if frame[12] == 8 { 14 } else { 18 };
        assert_eq!((came[at + 1] >> 2, came[at + 8]), (MARK, 1), "{came:x?}");
        assert_eq!(came[..at], frame[..at]);
    }
    // The service's rule could not match it.
    client.send(&deep.udp(4000, 7000).build()).unwrap();
    assert!(server.collect(|came| is_udp_to(came, 7000)).unwrap().is_empty());
    let found = outcomes(&line);
    let new = found.iter().filter(|outcome| !before.contains(outcome));
    let names: Vec<&str> = new.map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["bridged", "drop_vlan_depth", "to_user"], "{found:?}");
    line.books();
}

#[test]
fn a_service_on_a_bridged_pair_has_its_verdicts_at_each_level() {
    if !root_or_skip("a service in line") {
        return;
    }
    let line = in_line();
    ping(&line, SERVER);
    let server = RawPort::open(&line.net, "server", "r1").unwrap();
    let service = Service { rules: &["proto icmp", "proto tcp"], ..Service::default() };
    line.node.deploy(&service_module("monitor").unwrap(), &service).unwrap();
    let mut ran_below = 0;
    for level in ["user", "nic", "kernel"] {
        line.node.client().move_service("monitor", level).unwrap();
        let settled = || {
            ping(&line, SERVER);
            let service = line.node.service("monitor").unwrap();
            assert_eq!(service.level, level, "{}", service.level_reason);
            let below = service.stats.below.packets - service.stats.below.raised;
            let has_run = below > std::mem::replace(&mut ran_below, below);
            (level == "user" || has_run).then_some(())
        };
        assert!(wait_for(SOON, settled).is_some(), "{level}");
        let before = line.books();
        let said = ping(&line, SERVER);
        assert!(said.contains("ttl=64") && said.contains(" 3 received"), "{level}: {said}");
        tcp(&line);
        let balance = line.balance_since(&before);
        assert_eq!(balance.dropped(), 0, "{balance}");
        let stats = line.node.service("monitor").unwrap().stats;
        assert_eq!(stats.packets, stats.forwarded, "{level}: {stats:#?}");
        let echo = |frame: &[u8]| frame[12..14] == [8, 0] && frame[23] == 1;
        let came = server.collect(echo).unwrap();
        let marked = came.iter().rev().take(3).all(|frame| dscp(frame) == MARK && frame[22] == 64);
        assert!(came.len() >= 3 && marked, "{level}");
    }
    line.node.remove("monitor").unwrap();
    // A rule can drop; what it does not match crosses.
    let rule = RuleRequest::new("proto icmp ip 4", "drop");
    line.node.client().add_rules(&rule.into()).unwrap();
    let argv = ["ping", "-c2", "-i0.05", "-W1", SERVER];
    let said = line.net.run("client", &argv, PROGRAM_TIME_MAX).unwrap().stdout;
    assert!(said.contains(" 0 received"), "{said}");
    ping(&line, SERVER_V6);
    tcp(&line);
}

#[test]
fn a_bridge_forwards_without_its_cell_and_counts_frames_for_a_missing_end() {
    if !root_or_skip("a bridge in trouble") {
        return;
    }
    let line = in_line();
    ping(&line, SERVER);
    let all = Service { rules: &["any"], ..Service::default() };
    line.node.deploy(&service_module("monitor").unwrap(), &all).unwrap();
    let cell = line.node.cell().unwrap();
    let argv = ["ping", "-c40", "-i0.02", "-W2", SERVER];
    std::thread::scope(|scope| {
        let ping = scope.spawn(|| line.run("client", &argv));
        std::thread::sleep(Duration::from_millis(200));
        kill(cell);
        let said = ping.join().unwrap();
        // Packets in the dead cell's rings are lost.
        let received = said.split(", ").find_map(|part| part.strip_suffix(" received"));
        assert!(received.and_then(|n| n.parse::<u32>().ok()).unwrap() >= 39, "{said}");
    });
    let netlink = line.net.netlink("r1").unwrap();
    netlink.delete_link(netlink.link("to-server").unwrap().index).unwrap();
    let away = || line.node.client().node().unwrap().ports[1].state == "away";
    assert!(wait_for(SOON, || away().then_some(())).is_some());
    line.node.remove("monitor").unwrap();
    let client = RawPort::open(&line.net, "client", "r1").unwrap();
    let frame = FrameBuilder::new()
        .ethernet(client.mac(), [0xff; 6])
        .ipv4([10, 9, 0, 1], [10, 9, 0, 255], 64)
        .udp(1, 2)
        .build();
    client.send(&frame).unwrap();
    let gone = || outcomes(&line).iter().any(|(name, _)| name == "drop_egress_gone");
    assert!(wait_for(SOON, || gone().then_some(())).is_some(), "{:?}", outcomes(&line));
}
