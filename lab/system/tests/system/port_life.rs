//! Ports whose devices disappear, come back under their name, or become others.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use api::PortInfo;
use netlink::offload::{Offload, OffloadState};
use testkit::{Net, NodeUnderTest, Service, leftovers, root_or_skip, service_module, wait_for};

use crate::common::{Ends, Line, PROGRAM_TIME_MAX, SOON, module};

/// Topology of three hosts around a router: its ports are `left`, `right` and `port3`.
const THREE: &str = r#"
[[host]]
name = "client"
[[host]]
name = "server"
[[host]]
name = "third"
[[router]]
name = "r1"
[[link]]
ends = ["client", "r1"]
[[link]]
ends = ["r1", "server"]
[[link]]
ends = ["r1", "third"]
"#;
/// Device of `port3`.
const DEVICE: &str = "to-third";

fn three() -> Line {
    let net = Net::up(THREE).unwrap();
    let node = NodeUnderTest::start(&net, "r1").unwrap();
    let line = Line { node, net };
    // The kernel tells a host a few errors at once and then one a second
    // (Documentation/networking/ip-sysctl.rst, icmp_ratelimit): here it has to tell each.
    let unlimited = || std::fs::write("/proc/sys/net/ipv4/icmp_ratelimit", "0");
    line.net.within("r1", unlimited).unwrap().unwrap();
    line.resolve_neighbours();
    line
}

fn port(line: &Line, name: &str) -> PortInfo {
    let ports = line.node.client().node().unwrap().ports;
    ports.into_iter().find(|port| port.name == name).unwrap()
}

fn becomes(line: &Line, name: &str, state: &str) -> PortInfo {
    let found = wait_for(SOON, || Some(port(line, name)).filter(|port| port.state == state));
    found.unwrap_or_else(|| panic!("not {state}: {:#?}", port(line, name)))
}

fn ip(line: &Line, node: &str, arguments: &str) {
    let argv: Vec<&str> = ["ip"].into_iter().chain(arguments.split_whitespace()).collect();
    line.run(node, &argv);
}

/// Removes the link between the router and the third host.
fn unplug(line: &Line) {
    let netlink = line.net.netlink("r1").unwrap();
    netlink.delete_link(netlink.link(DEVICE).unwrap().index).unwrap();
}

/// Recreates the link, with the same names and addresses. The router's end appears under its name
/// with GRO on.
fn plug(line: &Line) {
    let router = line.net.end("r1", "third").unwrap();
    let third = line.net.end("third", "r1").unwrap();
    let namespace = line.net.namespace("third").unwrap();
    let peer = format!("{} netns {}", third.device, namespace.name());
    ip(line, "r1", &format!("link add again type veth peer name {peer}"));
    line.run("r1", &["ethtool", "-K", "again", "tx", "off", "gro", "on"]);
    line.run("third", &["ethtool", "-K", &third.device, "tx", "off", "gro", "on"]);
    ip(line, "third", &format!("addr add {} dev {}", third.v4, third.device));
    ip(line, "third", &format!("link set {} up", third.device));
    let gateway = router.v4.address();
    ip(line, "third", &format!("route replace default via {gateway}"));
    ip(line, "r1", &format!("link set again name {DEVICE}"));
    ip(line, "r1", &format!("addr add {} dev {DEVICE}", router.v4));
}

fn received(line: &Line, port: &str) -> u64 {
    let stats = line.node.stats().unwrap();
    stats.ports.iter().find(|p| p.port == port).unwrap().rx_packets
}

/// Sends numbered datagrams from client to server until `stopping`, a thousand a second; returns
/// their number.
fn send_numbered(source: &UdpSocket, stopping: &AtomicBool) -> u64 {
    let mut number = 0_u64;
    while !stopping.load(Ordering::Relaxed) {
        source.send(&number.to_be_bytes()).unwrap();
        number += 1;
        std::thread::sleep(Duration::from_millis(1));
    }
    number
}

/// Returns the numbers that come until no more do, in order.
fn numbers(sink: &UdpSocket) -> Vec<u64> {
    let mut bytes = [0; 8];
    let next = || sink.recv(&mut bytes).ok().map(|_| u64::from_be_bytes(bytes));
    std::iter::from_fn(next).collect()
}

#[test]
fn a_device_recreated_under_its_name_is_served_as_before() {
    if !root_or_skip("a device that vanishes") {
        return;
    }
    let mut line = three();
    let third = line.net.v4("third", "r1").unwrap().to_string();
    line.run("client", &["ping", "-c1", "-W5", &third]);
    let all = Service { rules: &["proto icmp", "proto udp"], ..Service::default() };
    line.node.deploy(&service_module("monitor").unwrap(), &all).unwrap();
    let before = line.books();
    let free = before.node.cell.frames_free;

    // Others do not notice: numbered datagrams cross the node all the while.
    let sink = line.udp("server", 7001);
    let source = line.udp("client", 7002);
    source.connect(line.server(7001)).unwrap();
    let stopping = AtomicBool::new(false);
    let sent = std::thread::scope(|scope| {
        let sender = scope.spawn(|| send_numbered(&source, &stopping));
        let ends = Ends(&stopping);
        for round in 1..=3 {
            comes_and_goes(&line, &third, round);
        }
        drop(ends);
        sender.join().unwrap()
    });
    assert_eq!(numbers(&sink), (0..sent).collect::<Vec<_>>());
    // No frame of packet memory stayed with the sockets of devices that are gone.
    let after = line.books();
    assert_eq!(after.node.cell.frames_free, free);

    // The end is clean while a device is gone, too.
    unplug(&line);
    becomes(&line, "port3", "away");
    assert!(line.node.stop().unwrap().success(), "{}", line.node.log());
    assert_eq!(leftovers(line.node.name()), [""; 0]);
    line.resolve_neighbours();
}

/// Removes the link to the third host, and recreates it.
fn comes_and_goes(line: &Line, third: &str, round: usize) {
    let ping = |count: &str| {
        let argv = ["ping", "-c", count, "-i0.05", "-W5", third];
        line.net.run("client", &argv, PROGRAM_TIME_MAX).unwrap().stdout
    };
    let first = port(line, "port3");
    unplug(line);
    let reason = becomes(line, "port3", "away").away_reason.unwrap();
    assert!(reason.contains(DEVICE) && reason.contains("gone"), "{reason}");
    let log = line.node.log();
    assert_eq!(log.matches("the port is away").count(), round, "{log}");
    // Packets routed there are left to the kernel, which has no route.
    let said = ping("1");
    assert!(said.contains("Unreachable"), "{said}");
    let came = received(line, "port3");
    assert!(came > 0, "its counters stay");

    plug(line);
    let back = becomes(line, "port3", "up");
    assert_ne!(back.ifindex, first.ifindex);
    assert!(back.offloads_off.iter().any(|name| name == "rx-gro"), "{back:#?}");
    // The first packet waits for the neighbour, in the kernel.
    let said = ping("1");
    assert!(said.contains(" 1 received"), "{said}");
    let served = line.node.service("monitor").unwrap().stats;
    let said = ping("3");
    assert!(said.contains(" 3 received"), "{said}");
    let now = line.node.service("monitor").unwrap().stats;
    assert!(now.forwarded >= served.forwarded + 6, "{served:#?} {now:#?}");
    assert!(received(line, "port3") >= came + 4, "they count on");
}

#[test]
fn a_renamed_device_gets_its_settings_back_and_is_served_when_it_has_its_name_again() {
    if !root_or_skip("a device with another name") {
        return;
    }
    let line = three();
    let has_gro = |device: &str| {
        let read = line.net.within("r1", || OffloadState::read(device)).unwrap();
        read.unwrap().is_on(Offload::Gro)
    };
    // A device that came with GRO, which the node must switch off.
    unplug(&line);
    becomes(&line, "port3", "away");
    plug(&line);
    becomes(&line, "port3", "up");
    assert!(!has_gro(DEVICE));
    let rename = |from: &str, to: &str| ip(&line, "r1", &format!("link set {from} name {to}"));
    rename(DEVICE, "elsewhere");
    let reason = becomes(&line, "port3", "away").away_reason.unwrap();
    assert!(reason.contains("elsewhere"), "{reason}");
    let shown = line.run("r1", &["ip", "-d", "link", "show", "elsewhere"]);
    assert!(!shown.contains("xdp"), "{shown}");
    assert!(has_gro("elsewhere"));
    rename("elsewhere", DEVICE);
    becomes(&line, "port3", "up");
    let third = line.net.v4("third", "r1").unwrap().to_string();
    line.run("client", &["ping", "-c2", "-i0.05", "-W5", &third]);
}

#[test]
fn another_mtu_is_followed_at_all_levels_or_refused_with_the_reason() {
    if !root_or_skip("another MTU") {
        return;
    }
    let line = Line::up();
    line.resolve_neighbours();
    let all = Service { rules: &["proto icmp"], ..Service::default() };
    line.node.deploy(&service_module("monitor").unwrap(), &all).unwrap();
    let set = |mtu: u32| {
        for (node, peer) in [("client", "r1"), ("r1", "client"), ("r1", "server"), ("server", "r1")]
        {
            let device = line.net.device(node, peer).unwrap().index;
            line.net.netlink(node).unwrap().set_mtu(device, mtu).unwrap();
        }
    };
    let server = line.net.v4("server", "r1").unwrap().to_string();
    let ping = |size: &str| {
        let argv = ["ping", "-c3", "-i0.05", "-W5", "-Mdo", "-s", size, &server];
        let output = line.net.run("client", &argv, PROGRAM_TIME_MAX).unwrap().stdout;
        output.contains(" 3 received")
    };
    let follows = |mtu: u32| {
        let all = || ["left", "right"].iter().all(|name| port(&line, name).mtu == mtu);
        assert!(wait_for(SOON, || all().then_some(())).is_some(), "{mtu}");
    };
    assert!(!ping("8000"));
    set(9000);
    follows(9000);
    let before = line.node.service("monitor").unwrap().stats;
    assert!(ping("8000"));
    let after = line.node.service("monitor").unwrap().stats;
    assert_eq!(after.forwarded - before.forwarded, 6, "not by the kernel: {after:#?}");

    // What no level can serve is the kernel's altogether.
    set(9500);
    for name in ["left", "right"] {
        let reason = becomes(&line, name, "away").away_reason.unwrap();
        assert!(reason.contains("9500") && reason.contains("9000"), "{reason}");
    }
    assert!(ping("9400"));
    assert_eq!(line.node.service("monitor").unwrap().stats.packets, after.packets);
    set(1500);
    follows(1500);
    assert!(ping("1000"));
    assert_eq!(line.node.service("monitor").unwrap().stats.packets, after.packets + 6);
    line.books();
}

#[test]
fn packets_of_a_missing_or_recreated_port_do_not_bypass_a_closed_service() {
    if !root_or_skip("closed ports that are away") {
        return;
    }
    let mut line = three();
    let drops = module(
        "drops",
        "window = 64",
        "(memory (export \"memory\") 1)\n(func (export \"on_packet\") (result i32) (i32.const 1))",
    );
    let service = Service { rules: &["proto udp"], on_failure: "closed", ..Service::default() };
    line.node.deploy(&drops, &service).unwrap();
    const PORT: u16 = 7100;
    let sink = line.udp("server", PORT);
    let source = line.udp("third", 0);
    source.connect(line.server(PORT)).unwrap();
    // Whether something does within the time that the socket waits.
    let arrives = || sink.recv(&mut [0; 8]).is_ok();
    let set = |line: &Line, what: &str| ip(line, "r1", &format!("link set {DEVICE} {what}"));
    let stopping = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // All the while, also while one state of the port becomes another.
        scope.spawn(|| send_all_the_while(&source, &stopping));
        let ends = Ends(&stopping);
        assert!(!arrives(), "served");
        for _ in 0..3 {
            set(&line, "mtu 9500");
            becomes(&line, "port3", "away");
            assert!(!arrives(), "another MTU");
            set(&line, "mtu 1500");
            becomes(&line, "port3", "up");
            assert!(!arrives(), "the MTU that it had");
        }
        // As a firewall's reload does it.
        line.run("r1", &["nft", "flush", "ruleset"]);
        let closed = || line.run("r1", &["nft", "list", "tables"]).contains("tamandua-ports-");
        wait_for(SOON, || closed().then_some(())).expect("it is closed again");
        unplug(&line);
        plug(&line);
        set(&line, "up");
        assert!(!arrives(), "made anew");
        becomes(&line, "port3", "up");
        assert!(!arrives(), "served again");
        becomes(&line, "port3", "up");
        assert!(!arrives(), "served again");
        line.node.kill().unwrap();
        set(&line, "mtu 9500");
        line.node.start_again(&line.net, "r1").unwrap();
        becomes(&line, "port3", "away");
        assert!(!arrives(), "another MTU since no daemon was there");
        set(&line, "mtu 1500");
        becomes(&line, "port3", "up");
        line.node.kill().unwrap();
        unplug(&line);
        plug(&line);
        set(&line, "up");
        assert!(!arrives(), "made anew without a daemon");
        line.node.start_again(&line.net, "r1").unwrap();
        becomes(&line, "port3", "up");
        assert!(!arrives(), "after a start");
        line.node.remove("drops").unwrap();
        wait_for(SOON, || arrives().then_some(())).expect("nothing is closed any more");
        drop(ends);
    });
}

/// Sends datagrams, a thousand a second, also while the link is missing or no route exists.
fn send_all_the_while(source: &UdpSocket, stopping: &AtomicBool) {
    while !stopping.load(Ordering::Relaxed) {
        let _ = source.send(&[0; 8]);
        std::thread::sleep(Duration::from_millis(1));
    }
}
