//! Shares of a port hold for every sender: the node itself, or the kernel on its behalf.

use std::net::Ipv4Addr;
use std::time::Duration;

use api::SessionRequest;
use testkit::{Net, NodeUnderTest, Service, root_or_skip, wait_for};

use crate::common::{Line, PROGRAM_TIME_MAX, SOON, module};
use crate::egress::{PORTS, of_rate};
use crate::packet::packet_line;

const RATE: &str = "20Mbit/s";
const LEVELS: [&str; 3] = ["nic", "kernel", "user"];
/// Command that adds a rule of the kernel, which leads to the main routing table.
const RULE: [&str; 7] = ["ip", "rule", "add", "priority", "100", "lookup", "main"];
/// Ruleset that puts netfilter in use: a chain that drops nothing.
const NETFILTER: &str = "table ip t {\n chain f {\n type filter hook forward priority 0;\n }\n}";

/// Creates session and service at each level; each reserves a fifth of the port `right`.
fn serve(line: &Line, verdict: u32, levels: &[&str]) {
    let code = format!(
        r#"(memory (export "memory") 1 1) (func (export "on_packet") (result i32) (i32.const {verdict}))"#
    );
    let manifest = "window = 64\nmemory_pages_max = 1\nlevels = [\"nic\", \"kernel\", \"user\"]";
    for (level, port) in levels.iter().zip(PORTS) {
        line.with_share(level, Some("2ms/10ms"));
        let (name, rule) = (format!("at-{level}"), format!("proto udp dport {port}"));
        let (name, rules) = (name.as_str(), &[rule.as_str()][..]);
        let service = Service { name, session: level, level, rules, ..Service::default() };
        let deployed =
            line.node.deploy(&module("ends", manifest, &code), &service).unwrap().service;
        assert_eq!(deployed.level, *level, "{}", deployed.level_reason);
    }
}

/// Checks that no session sends more than its fifth of the rate, and that its account matches its
/// packets. A busy host can make it less: the rate itself is measured by `tam bench isolation`.
fn assert_held(line: &Line, why: &str) {
    let sent = || LEVELS.map(|level| line.sent_by(level).sent_bytes);
    let before = sent();
    let (counts, took) = line.flood(Duration::from_secs(1));
    let after = sent();
    let parts = of_rate(counts, took, 20e6);
    assert!(parts.iter().all(|part| (0.1..0.22).contains(part)), "{why}: {parts:?}");
    for at in 0..LEVELS.len() {
        // The account has what was sent before those that were counted, too.
        let least = counts[at] * 1442.0;
        assert!((after[at] - before[at]) as f64 >= least * 0.99, "{why}: {} sent", LEVELS[at]);
    }
}

/// Sets offloads of the far end of the port `right`.
fn gro(line: &Line, state: &str) {
    let device = &line.net.end("server", "r1").unwrap().device;
    line.run("server", &["ethtool", "-K", device, "gro", state]);
}

/// Waits until a port's slow reasons name this.
fn noticed(line: &Line, what: &str) {
    let reasons = || {
        let ports = line.node.client().node().unwrap().ports;
        ports[1].slow_reasons.join("; ").contains(what).then_some(())
    };
    assert!(wait_for(SOON, reasons).is_some(), "{what} is not noticed");
}

#[test]
fn a_share_of_a_port_holds_whatever_keeps_its_packets_off_the_fast_path() {
    if !root_or_skip("shares where the kernel routes") {
        return;
    }
    let line = Line::at_rate(RATE);
    line.resolve_neighbours();
    serve(&line, 0, &LEVELS);
    assert_held(&line, "the fast path");
    gro(&line, "off");
    noticed(&line, "takes no redirected frames");
    assert_held(&line, "an egress without redirect");
    line.run("r1", &RULE);
    noticed(&line, "routing rules");
    assert_held(&line, "routing rules");
    gro(&line, "on");
    line.run("r1", &["nft", NETFILTER]);
    noticed(&line, "netfilter");
    assert_held(&line, "netfilter");
}

#[test]
fn a_share_of_a_port_holds_for_what_modules_reroute_and_with_a_fast_path_always() {
    if !root_or_skip("shares where the kernel routes") {
        return;
    }
    let line = Line::at_rate_with(RATE, "fast_path = \"always\"");
    line.resolve_neighbours();
    serve(&line, 0x100, &LEVELS);
    assert_held(&line, "reroute");
    gro(&line, "off");
    noticed(&line, "takes no redirected frames");
    assert_held(&line, "reroute, and an egress without redirect");
}

#[test]
fn a_share_of_a_port_is_held_after_its_device_came_back_as_another() {
    if !root_or_skip("shares of a port that comes back") {
        return;
    }
    let line = Line::at_rate(RATE);
    line.resolve_neighbours();
    serve(&line, 0, &LEVELS);
    let (router, server) = ("to-server", line.net.end("server", "r1").unwrap());
    let (near, far) = (line.net.end("r1", "server").unwrap().v4, server.v4);
    let netlink = line.net.netlink("r1").unwrap();
    netlink.delete_link(netlink.link(router).unwrap().index).unwrap();
    let is = |state: &str| {
        let state = state.to_owned();
        let found = || (line.node.client().node().unwrap().ports[1].state == state).then_some(());
        assert!(wait_for(SOON, found).is_some(), "not {state}");
    };
    is("away");
    // As a new pair is: GRO off at its far end.
    let namespace = line.net.namespace("server").unwrap();
    let device = server.device.as_str();
    let peer = namespace.name();
    let make = ["ip", "link", "add", router, "type", "veth", "peer", "name", device, "netns", peer];
    line.run("r1", &make);
    line.run("r1", &["ethtool", "-K", router, "tx", "off"]);
    line.run("server", &["ethtool", "-K", device, "tx", "off"]);
    line.run("server", &["ip", "addr", "add", &far.to_string(), "dev", device]);
    line.run("server", &["ip", "link", "set", device, "up"]);
    let gateway = near.address().to_string();
    line.run("server", &["ip", "route", "replace", "default", "via", &gateway]);
    line.run("r1", &["ip", "addr", "add", &near.to_string(), "dev", router]);
    line.run("r1", &["ip", "link", "set", router, "up"]);
    is("up");
    let v4 = line.net.v4("server", "r1").unwrap().to_string();
    let answers = || {
        let pinged =
            line.net.run("client", &["ping", "-c1", "-W1", &v4], PROGRAM_TIME_MAX).unwrap();
        pinged.status.success().then_some(())
    };
    assert!(wait_for(SOON, answers).is_some(), "the way is there again");
    assert_held(&line, "a port that came back");
}

#[test]
fn a_share_of_a_tun_port_is_held() {
    if !root_or_skip("a share of a TUN port") {
        return;
    }
    const DEVICE: &str = "vpn";
    const PACKETS: u32 = 600;
    let net = Net::line(1500).unwrap();
    let add =
        |text: String| text + "[[port]]\nname = \"vpn\"\nkind = \"tun\"\nrate = \"2Mbit/s\"\n";
    let node = NodeUnderTest::start_edited(&net, "r1", "", add).unwrap();
    let line = Line { node, net };
    line.resolve_neighbours();
    line.run("r1", &["ip", "route", "add", "10.99.0.0/24", "dev", DEVICE]);
    let router = line.net.v4("r1", "client").unwrap().to_string();
    line.run("client", &["ip", "route", "replace", "10.99.0.0/24", "via", &router]);
    let open = || sockets::tun::create(DEVICE, sockets::tun::Kind::Packets);
    let tunnel = line.net.within("r1", open).unwrap().unwrap();
    let up = || line.net.netlink("r1").unwrap().link(DEVICE).unwrap().running.then_some(());
    assert!(wait_for(SOON, up).is_some(), "it has a carrier");
    // No service is at `kernel` on a node with a TUN port.
    for (level, port) in [("nic", PORTS[0]), ("user", PORTS[1])] {
        let send = [("vpn".to_owned(), "20ms/100ms".to_owned())].into();
        let request = SessionRequest {
            name: level.to_owned(),
            send,
            queue: Some("64KiB".to_owned()),
            ..SessionRequest::default()
        };
        line.node.client().create_session(&request).unwrap();
        line.passes_at(level, &format!("at-{level}"), level, port);
    }
    let senders = [PORTS[0], PORTS[1]].map(|port| {
        let sender = line.udp("client", 0);
        sender.connect((Ipv4Addr::new(10, 99, 0, 2), port)).unwrap();
        sender
    });
    let begin = std::time::Instant::now();
    let mut counts = [0u32; 2];
    let mut buffer = vec![0; 9216];
    let mut read = |counts: &mut [u32; 2]| {
        while let Ok(length) = rustix::io::read(&tunnel, &mut buffer) {
            let port = u16::from_be_bytes([buffer[22], buffer[23]]);
            if length > 1000 && buffer[9] == 17 {
                counts[usize::from(port - PORTS[0])] += 1;
            }
        }
    };
    for _ in 0..PACKETS {
        senders.iter().for_each(|sender| drop(sender.send(&[0; 1400])));
        read(&mut counts);
        std::thread::sleep(Duration::from_millis(2));
    }
    let took = begin.elapsed().as_secs_f64();
    read(&mut counts);
    // A fifth of the rate, and what an account holds: two slices and a tick, and a packet. What
    // user level queued is behind its rate, never ahead of it.
    let each = 2e6 / 8.0 * 0.2 / 1442.0;
    for (level, came) in ["nic", "user"].into_iter().zip(counts) {
        let most = each * (took + 0.25) * 1.02 + 2.0;
        assert!(f64::from(came) <= most && f64::from(came) >= each * took * 0.9, "{level}: {came}");
        let used = line.node.client().session(level).unwrap().used;
        assert!(used.send[0].sent_bytes >= u64::from(came) * 1428, "{level}: {:?}", used.send);
    }
}

#[test]
fn a_share_of_a_port_is_refused_where_it_could_not_be_enforced() {
    if !root_or_skip("shares of packet ports") {
        return;
    }
    let line = packet_line(1500);
    let request = SessionRequest {
        name: "gold".to_owned(),
        send: [("right".to_owned(), "2ms/10ms".to_owned())].into(),
        ..SessionRequest::default()
    };
    let refused = line.node.client().create_session(&request).unwrap_err().to_string();
    assert!(refused.contains("cannot be enforced") && refused.contains("front door"), "{refused}");
}
