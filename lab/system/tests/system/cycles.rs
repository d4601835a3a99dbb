//! Redirect cycles: two ports of one node cabled to each other, and a module that sends every frame
//! out by one of them.
//!
//! ```text
//!  client ── left  r1  right ── server
//!               a  b
//!               ╚══╝
//! ```

use crate::common::{Line, SOON, is_udp_to, module};
use crate::verdicts::REDIRECT;
use api::ServiceStats;
use testkit::{Net, NodeUnderTest, RawPort, Service, root_or_skip, wait_for};

const LEVELS: [&str; 3] = ["user", "nic", "kernel"];
const PORT: u16 = 7000;
/// Rounds of identical frames after which a cycle is detected: `CYCLE_ROUNDS`.
const ROUNDS: u64 = 64;

/// Returns a line whose ports `a` and `b` have the address of `left`, so that each accepts a frame
/// of the client's.
fn looped() -> Line {
    let net = Net::line(1500).unwrap();
    let mac = net.mac("r1", "client").unwrap().map(|byte| format!("{byte:02x}")).join(":");
    let run = |arguments: &str| {
        let argv: Vec<&str> = arguments.split_whitespace().collect();
        let output = net.run("r1", &argv, SOON).unwrap();
        assert!(output.status.success(), "{arguments}: {output:#?}");
    };
    run(&format!("ip link add dev loop-a address {mac} type veth peer name loop-b address {mac}"));
    for device in ["loop-a", "loop-b"] {
        run(&format!("sysctl -qw net.ipv6.conf.{device}.disable_ipv6=1"));
        run(&format!("ethtool -K {device} tx off"));
        run(&format!("ip link set {device} up"));
    }
    let ports =
        ["a", "b"].map(|port| format!("[[port]]\nname = \"{port}\"\ndevice = \"loop-{port}\"\n"));
    let node = NodeUnderTest::start_edited(&net, "r1", "", |text| text + &ports.concat()).unwrap();
    let line = Line { node, net };
    line.resolve_neighbours();
    line
}

/// Returns a module that redirects to the port that its parameter names.
fn redirecting() -> Vec<u8> {
    let manifest = "window = 64\nlevels = [\"nic\", \"kernel\", \"user\"]\n\
                    [parameters.port]\ntype = \"text\"\n";
    module("redirecting", manifest, REDIRECT)
}

fn deploy(line: &Line, wasm: &[u8], name: &str, level: &str, rule: &str, port: &str) {
    let parameters = [("port", port)];
    let parameters: &[(&str, &str)] = if port.is_empty() { &[] } else { &parameters };
    let rules = [rule];
    let service = Service { name, level, rules: &rules, parameters, ..Service::default() };
    let deployed = line.node.deploy(wasm, &service).unwrap().service;
    assert_eq!(deployed.level, level, "{}", deployed.level_reason);
}

fn stats(line: &Line, service: &str) -> ServiceStats {
    line.node.service(service).unwrap().stats
}

fn cycles(stats: &ServiceStats) -> u64 {
    stats.dropped.get("redirect_cycle").copied().unwrap_or(0)
}

/// Returns the service's counters once this many frames have ended as cycles.
fn ended(line: &Line, service: &str, frames: u64) -> ServiceStats {
    let ended = || Some(stats(line, service)).filter(|stats| cycles(stats) == frames);
    wait_for(SOON * 4, ended).unwrap_or_else(|| panic!("{:#?}", stats(line, service)))
}

#[test]
fn a_frame_that_a_module_sends_in_a_loop_is_dropped_with_a_reason() {
    if !root_or_skip("redirect cycles") {
        return;
    }
    for level in LEVELS {
        let line = looped();
        deploy(&line, &redirecting(), "round", level, "proto udp dport 7000", "b");
        let client = RawPort::open(&line.net, "client", "r1").unwrap();
        for frame in 1..=2 {
            client.send(&line.frame().udp(4000 + frame, PORT).payload(b"round").build()).unwrap();
            let stats = ended(&line, "round", u64::from(frame));
            let rounds = stats.redirected;
            assert!(rounds > ROUNDS * u64::from(frame), "{level}: {rounds} rounds");
        }
        // The cycle has ended, and is reported.
        let books = line.books();
        std::thread::sleep(SOON / 10);
        assert_eq!(stats(&line, "round").packets, books.node.services["round"].packets, "{level}");
        let why = || {
            let reasons = line.node.client().why().ok()?.reasons;
            reasons.into_iter().find(|found| found.reason == "redirect_cycle" && found.packets == 2)
        };
        let why = wait_for(SOON, why).unwrap_or_else(|| panic!("{level}: not in `why`"));
        assert_eq!(why.service.as_deref(), Some("round"));
        assert!(why.meaning.contains("cabled") && why.advice.contains("in PORT"), "{why:#?}");
        // Others do not notice.
        line.resolve_neighbours();
    }
}

#[test]
fn a_frame_bounced_between_two_ports_is_dropped_with_a_reason() {
    if !root_or_skip("bounce cycles") {
        return;
    }
    let fields = r#"(memory (export "memory") 1)
        (func (export "on_packet") (result i32) (i32.const 2))"#;
    let manifest = "window = 64\nlevels = [\"nic\", \"kernel\", \"user\"]\n";
    let bouncing = module("bouncing", manifest, fields);
    // At `nic` tests of the front door show it, at user level one of the cell's data path.
    let level = "kernel";
    let line = looped();
    deploy(&line, &bouncing, "bounce", level, "in a proto udp dport 7000", "");
    deploy(&line, &bouncing, "back", level, "in b proto udp dport 7000", "");
    deploy(&line, &redirecting(), "enter", level, "in left proto udp dport 7000", "b");
    // With both addresses the same it is for the node's ports at each end.
    let mac = line.net.mac("r1", "client").unwrap();
    let (from, to) = (line.net.v4("client", "r1").unwrap(), line.net.v4("server", "r1").unwrap());
    let frame = wire::FrameBuilder::new().ethernet(mac, mac).ipv4(from, to, 64);
    let client = RawPort::open(&line.net, "client", "r1").unwrap();
    client.send(&frame.udp(4000, PORT).payload(b"to and fro").build()).unwrap();
    let over = || {
        let [one, other] = ["bounce", "back"].map(|service| stats(&line, service));
        (cycles(&one) + cycles(&other) == 1).then_some(one.bounced + other.bounced)
    };
    let bounces = wait_for(SOON * 4, over).unwrap_or_else(|| panic!("{level}: it goes on"));
    assert!(bounces >= ROUNDS, "{level}: {bounces} bounces");
    line.books();
}

#[test]
fn frames_that_look_alike_and_cross_a_cable_once_are_no_cycle() {
    if !root_or_skip("frames across a cable") {
        return;
    }
    // As above.
    let level = "kernel";
    let line = looped();
    deploy(&line, &redirecting(), "out", level, "in left proto udp dport 7000", "b");
    deploy(&line, &redirecting(), "on", level, "in a proto udp dport 7000", "right");
    let (client, server) = (
        RawPort::open(&line.net, "client", "r1").unwrap(),
        RawPort::open(&line.net, "server", "r1").unwrap(),
    );
    let frame = line.frame().udp(4000, PORT).payload(b"always the same").build();
    let sent = 8 * ROUNDS;
    for _ in 0..sent {
        client.send(&frame).unwrap();
    }
    let came = server.collect(|frame| is_udp_to(frame, PORT)).unwrap();
    assert_eq!(came.len() as u64, sent, "{level}");
    assert!(came.iter().all(|came| *came == frame), "{level}");
    assert_eq!(cycles(&stats(&line, "out")) + cycles(&stats(&line, "on")), 0, "{level}");
}
