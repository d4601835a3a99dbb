//! Transfers of iperf3 over TCP and UDP, plainly and through a service that marks.

use crate::common::{Line, SOON, dscp, is_udp_to};
use serde_json::Value;
use std::time::Duration;
use testkit::{Balance, RawPort, Running, Service, root_or_skip, service_module};

/// Default L4 port of iperf3.
const PORT: u16 = 5201;
/// DSCP with which `monitor` marks: expedited forwarding (RFC 3246).
const MARK: u8 = 46;

#[test]
fn tcp_runs_plainly_and_through_a_service() {
    if !root_or_skip("iperf3 over TCP") {
        return;
    }
    let line = Line::up();
    line.resolve_neighbours();
    for service in [false, true] {
        if service {
            deploy_monitor(&line);
        }
        let before = line.books();
        let report = iperf(&line, &[]);
        let balance = line.balance_since(&before);
        let bytes = report["end"]["sum_received"]["bytes"].as_u64().unwrap();
        assert!(bytes > 10 << 20, "{bytes} bytes in two seconds; {balance}");
    }
    assert_all_marked(&line);
}

#[test]
fn udp_of_short_packets_is_counted_and_marked() {
    if root_or_skip("iperf3 over UDP, 64 bytes") {
        udp(64);
    }
}

#[test]
fn udp_of_long_packets_is_counted_and_marked() {
    if root_or_skip("iperf3 over UDP, 1400 bytes") {
        udp(1400);
    }
}

fn udp(length: u32) {
    let line = Line::up();
    line.resolve_neighbours();
    let wire = RawPort::open(&line.net, "server", "r1").unwrap();
    let wanted = ["-u", "-b", "100M", "-l", &length.to_string()];

    let before = line.books();
    let report = iperf(&line, &wanted);
    assert_losses_agree(&report, &line.balance_since(&before));
    let plain = wire.receive(SOON, |frame| is_udp_to(frame, PORT)).unwrap().unwrap();
    assert_eq!(dscp(&plain), 0, "plain forwarding marks nothing");

    deploy_monitor(&line);
    let wire = RawPort::open(&line.net, "server", "r1").unwrap();
    let before = line.books();
    let report = iperf(&line, &wanted);
    assert_losses_agree(&report, &line.balance_since(&before));
    let marked = wire.receive(SOON, |frame| is_udp_to(frame, PORT)).unwrap().unwrap();
    assert_eq!(dscp(&marked), MARK);
    assert_all_marked(&line);
}

fn deploy_monitor(line: &Line) {
    let rules = ["proto tcp", "proto udp"];
    let service = Service { rules: &rules, ..Service::default() };
    line.node.deploy(&service_module("monitor").unwrap(), &service).unwrap();
}

/// Checks that the service marked every packet unless it was marked already: a reset (RST) carries
/// the code point of the packet that it answers (net/ipv4/tcp_ipv4.c).
fn assert_all_marked(line: &Line) {
    let stats = line.node.service("monitor").unwrap().stats;
    assert_eq!(stats.counters["packets"], stats.packets, "{stats:#?}");
    let marked = stats.counters["marked"] + stats.counters["dscp_46"];
    assert_eq!(marked, stats.packets, "{stats:#?}");
    assert!(stats.counters["marked"] > stats.counters["dscp_46"], "{stats:#?}");
    assert!(stats.packets > 1000, "{stats:#?}");
}

/// Checks that the packets that iperf3 missed are those in the drop counters, and those that
/// arrived after its last read of the socket.
fn assert_losses_agree(report: &Value, balance: &Balance) {
    let sent = report["end"]["sum_sent"]["packets"].as_u64().unwrap();
    let seen = report["end"]["sum_received"]["packets"].as_u64().unwrap();
    let lost = report["end"]["sum_received"]["lost_packets"].as_u64().unwrap();
    assert!(sent > 1000 && balance.sent >= sent, "{sent} packets; {balance}");
    // iperf3 knows a packet as lost when a later one arrives.
    let missed = lost + sent.saturating_sub(seen);
    let known = balance.dropped() + balance.unread;
    assert!(known <= missed, "iperf3 missed {missed} of {sent}, {}; {balance}", balance.unread);
    let unseen = missed - known;
    assert!(
        unseen <= UNSEEN_MAX,
        "iperf3 missed {missed} of {sent}, {}; {balance}",
        balance.unread
    );
}

/// Packets that the server's socket held when it was closed: 212,992 bytes of buffer by the true
/// cost of a short packet, 768 bytes, and later arrivals.
const UNSEEN_MAX: u64 = 500;

/// Runs two seconds of iperf3 from client to server; returns its report.
fn iperf(line: &Line, more: &[&str]) -> Value {
    let namespace = line.net.namespace("server").unwrap();
    let server = Running::start(&namespace, &["iperf3", "-s", "-1", "-p", "5201"]).unwrap();
    let listening = testkit::wait_for(SOON, || {
        let sockets = line.run("server", &["ss", "-Hltn", "sport", "=", ":5201"]);
        (!sockets.is_empty()).then_some(())
    });
    assert!(listening.is_some(), "iperf3 does not listen");
    let address = line.server(PORT).ip().to_string();
    let mut argv = vec!["iperf3", "-c", &address, "-t", "2", "-J", "--get-server-output"];
    argv.extend(more);
    let report = serde_json::from_str(&line.run("client", &argv)).unwrap();
    let ended = server.wait(Duration::from_secs(20)).unwrap();
    assert!(ended.status.success(), "{ended:#?}");
    report
}
