//! More packets than a service can take: each one arrives or is in exactly one counter.

use std::net::SocketAddr;

use crate::common::Line;
use testkit::{Service, root_or_skip, service_module};

/// Packets of one burst: a hundred times what the rings hold.
const BURST: u64 = 200_000;
/// UDP payload that makes a frame of 64 bytes with its checksum sequence: 60 without.
const PAYLOAD: [u8; 18] = [7; 18];
/// Where the burst goes.
const PORT: u16 = 7000;

#[test]
fn a_burst_through_monitor_is_accounted_to_the_last_packet() {
    if root_or_skip("overload of monitor") {
        burst("monitor", &[]);
    }
}

#[test]
fn a_burst_through_touch_is_accounted_to_the_last_packet() {
    if root_or_skip("overload of touch") {
        burst("touch", &[("passes", "4")]);
    }
}

fn burst(module: &str, parameters: &[(&str, &str)]) {
    let line = Line::up();
    line.acquaint();
    let service = Service { rules: &["proto udp dport 7000"], parameters, ..Service::default() };
    line.node.deploy(&service_module(module).unwrap(), &service).unwrap();
    let receiver = line.udp("server", PORT);
    let before = line.books();
    let sender = line.udp("client", 0);
    send(&sender, line.server(PORT));
    let balance = line.balance_since(&before);
    assert_eq!(balance.sent, BURST);
    assert!(balance.received > 0, "{balance}");
    let stats = line.node.service(module).unwrap().stats;
    // What did not reach the service was dropped in front of it: by the sender's device or
    // the full ring.
    let behind = balance.drops.iter().filter(|(name, _)| name.starts_with("r1.to-server"));
    assert_eq!(stats.forwarded, balance.received + behind.map(|(_, n)| n).sum::<u64>());
    assert_eq!(stats.counters["packets"], stats.packets);
    drop(receiver);
    eprintln!("{module}: {balance}");
}

/// As fast as the socket takes them: the kernel says when its own queue is full by a drop.
fn send(sender: &std::net::UdpSocket, to: SocketAddr) {
    sender.connect(to).unwrap();
    for _ in 0..BURST {
        sender.send(&PAYLOAD).unwrap();
    }
}
