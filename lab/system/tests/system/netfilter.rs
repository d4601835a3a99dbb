//! Netfilter beside a node: packets that its rules apply to take the kernel's path, packet for
//! packet, with and without a service that handles some of them.

use std::net::{IpAddr, UdpSocket};

use crate::common::{Line, PROGRAM_TIME_MAX, SOON};
use crate::flows::{Conversation, LEVELS, fetches, pings};
use testkit::{Net, NodeUnderTest, Service, root_or_skip, service_module, wait_for};

/// Datagrams of one count.
const DATAGRAMS: u64 = 200;
/// L4 ports of traffic that netfilter counts, that it drops, and that a service handles.
const PLAIN: u16 = 7000;
const DROPPED: u16 = 7001;
const SERVED: u16 = 7002;

/// Ruleset with the kernel's NAT, and counters of packets forwarded there.
const MASQUERADE: &str = r#"table ip nat {
  counter plain-there { }
  counter plain-back { }
  counter served-there { }
  counter served-back { }
  chain out { type nat hook postrouting priority srcnat; oifname "to-server" masquerade; }
  chain through { type filter hook forward priority filter;
    udp dport 7000 counter name plain-there
    udp sport 7000 counter name plain-back
    udp dport 7002 counter name served-there
    udp sport 7002 counter name served-back
  }
}"#;
/// Ruleset that drops one flow, and counts another one.
const FILTER: &str = r#"table ip filter {
  counter dropped { }
  counter passed { }
  chain through { type filter hook forward priority filter;
    udp dport 7000 counter name passed
    udp dport 7001 counter name dropped drop
  }
}"#;

/// Runs an nftables command, or a file's text, in the router.
pub fn nft(net: &Net, text: &str) {
    let output = net.run("r1", &["nft", text], PROGRAM_TIME_MAX).unwrap();
    assert!(output.status.success(), "{text}: {output:#?}");
}

/// Returns the packets of a named counter of the router's.
fn counted(net: &Net, table: &str, counter: &str) -> u64 {
    let argv = ["nft", "-j", "list", "counter", "ip", table, counter];
    let output = net.run("r1", &argv, PROGRAM_TIME_MAX).unwrap();
    let listed: serde_json::Value = serde_json::from_str(&output.stdout).unwrap();
    let objects = listed["nftables"].as_array().unwrap();
    objects.iter().find_map(|object| object["counter"]["packets"].as_u64()).unwrap()
}

/// Waits until `tam show` names netfilter at every port, or at none any more.
pub fn wait_noticed(line: &Line, there: bool) {
    let reasons = || {
        let ports = line.node.client().node().unwrap().ports;
        ports.into_iter().map(|port| port.slow_reasons.join("; ")).collect::<Vec<_>>()
    };
    let all = || reasons().iter().all(|why| why.contains("netfilter") == there).then_some(());
    assert!(wait_for(SOON, all).is_some(), "{:?}", reasons());
}

/// Returns the packets with this outcome in the front door, at both ports together.
fn outcome(line: &Line, name: &str) -> u64 {
    let ports = line.node.stats().unwrap().ports;
    ports.iter().map(|port| port.outcomes.get(name).copied().unwrap_or(0)).sum()
}

/// Sends numbered datagrams to the server, each of which it answers; returns how many arrived there
/// and back, and the source addresses that the server saw.
fn exchange(line: &Line, port: u16) -> (u64, u64, Vec<IpAddr>) {
    let (server, client) = (line.udp("server", port), line.udp("client", 0));
    client.connect(line.server(port)).unwrap();
    let mut seen = Vec::new();
    let (mut there, mut back) = (0, 0);
    for number in 0..DATAGRAMS {
        client.send(&number.to_be_bytes()).unwrap();
        let mut word = [0; 8];
        let Ok((8, from)) = server.recv_from(&mut word) else { break };
        assert_eq!(u64::from_be_bytes(word), number);
        there += 1;
        seen.push(from.ip());
        server.send_to(&word, from).unwrap();
        let Ok(8) = client.recv(&mut word) else { break };
        assert_eq!(u64::from_be_bytes(word), number);
        back += 1;
    }
    seen.dedup();
    (there, back, seen)
}

/// Sends datagrams one way, then one to a port that nobody drops; returns how many arrived before
/// it.
fn send(line: &Line, port: u16, last: u16) -> u64 {
    let (server, end) = (line.udp("server", port), line.udp("server", last));
    let client = line.udp("client", 0);
    for _ in 0..DATAGRAMS {
        client.send_to(b"one", line.server(port)).unwrap();
    }
    client.send_to(b"end", line.server(last)).unwrap();
    assert_eq!(end.recv(&mut [0; 8]).unwrap(), 3);
    waiting(&server)
}

/// Returns the number of datagrams that wait in a socket.
fn waiting(socket: &UdpSocket) -> u64 {
    socket.set_nonblocking(true).unwrap();
    (0..).take_while(|_| socket.recv(&mut [0; 8]).is_ok()).count() as u64
}

#[test]
fn the_kernels_nat_beside_a_node_translates_every_packet() {
    if !root_or_skip("the kernel's NAT beside a node") {
        return;
    }
    let net = Net::line(1500).unwrap();
    nft(&net, MASQUERADE);
    let node = NodeUnderTest::start(&net, "r1").unwrap();
    let line = Line { node, net };
    wait_noticed(&line, true);
    line.resolve_neighbours();
    let address = IpAddr::from(line.net.v4("r1", "server").unwrap());
    let all = (DATAGRAMS, DATAGRAMS, vec![address]);
    let before = outcome(&line, "kernel_slow");
    assert_eq!(exchange(&line, PLAIN), all);
    // The answers are to the router's own address until the kernel has translated them.
    assert!(outcome(&line, "kernel_slow") >= before + 2 * DATAGRAMS);
    let mut talk = Conversation::begin(&line);
    talk.goes_on();
    assert_eq!(talk.seen.ip(), address);
    assert!(fetches(&line, "client", "server", line.server(0).ip()));

    // A service on other traffic: that is served, and translated all the same.
    let rule = format!("proto udp dport {SERVED}");
    let wasm = service_module("monitor").unwrap();
    let (mut plain, mut served) = (DATAGRAMS, 0);
    for level in LEVELS {
        let service = Service { rules: &[&rule], level, ..Service::default() };
        let deployed = line.node.deploy(&wasm, &service).unwrap();
        assert_eq!(deployed.service.level, level, "{}", deployed.service.level_reason);
        assert_eq!(exchange(&line, PLAIN), all, "{level}");
        assert_eq!(exchange(&line, SERVED), all, "{level}");
        talk.goes_on();
        (plain, served) = (plain + DATAGRAMS, served + DATAGRAMS);
        for (counter, count) in [
            ("plain-there", plain),
            ("plain-back", plain),
            ("served-there", served),
            ("served-back", served),
        ] {
            assert_eq!(counted(&line.net, "nat", counter), count, "{level}: {counter}");
        }
        let stats = line.node.service("monitor").unwrap().stats;
        assert_eq!((stats.packets, stats.to_kernel), (DATAGRAMS, DATAGRAMS), "{level}: {stats:#?}");
        line.node.remove("monitor").unwrap();
    }
    assert_eq!(outcome(&line, "forwarded"), 0, "nothing goes past netfilter");
}

#[test]
fn a_rule_of_nftables_drops_its_flow_from_the_next_poll_on() {
    if !root_or_skip("nftables beside a node") {
        return;
    }
    // There before the node, and again while it runs.
    let net = Net::line(1500).unwrap();
    nft(&net, FILTER);
    let node = NodeUnderTest::start(&net, "r1").unwrap();
    let line = Line { node, net };
    line.resolve_neighbours();
    for round in ["before the node", "while it runs"] {
        wait_noticed(&line, true);
        assert_eq!(send(&line, PLAIN, SERVED), DATAGRAMS, "{round}");
        assert_eq!(send(&line, DROPPED, SERVED), 0, "{round}");
        assert_eq!(counted(&line.net, "filter", "passed"), DATAGRAMS, "{round}");
        assert_eq!(counted(&line.net, "filter", "dropped"), DATAGRAMS, "{round}");
        nft(&line.net, "delete table ip filter");

        // Without it both take the fast path.
        wait_noticed(&line, false);
        let before = outcome(&line, "forwarded");
        for port in [PLAIN, DROPPED] {
            assert_eq!(send(&line, port, SERVED), DATAGRAMS, "{round}");
        }
        assert_eq!(outcome(&line, "forwarded"), before + 2 * (DATAGRAMS + 1), "{round}");
        nft(&line.net, FILTER);
    }
    assert!(pings(&line, "client", line.server(0).ip()));
    line.books();
}
