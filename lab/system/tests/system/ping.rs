//! Echo requests of both IP versions, plainly and through a service.

use crate::common::Line;
use testkit::{Service, root_or_skip, service_module};

#[test]
fn ping_crosses_a_node_plainly_and_through_a_service() {
    if !root_or_skip("ping") {
        return;
    }
    let line = Line::up();
    let addresses = [
        line.net.v4("server", "r1").unwrap().to_string(),
        line.net.v6("server", "r1").unwrap().to_string(),
    ];
    let ping = || {
        for address in &addresses {
            let said = line.run("client", &["ping", "-c20", "-i0.01", "-W5", address]);
            assert!(said.contains("20 packets transmitted, 20 received"), "{said}");
        }
    };
    line.resolve_neighbours();
    let before = line.books();
    ping();
    let balance = line.balance_since(&before);
    assert_eq!((balance.sent, balance.received), (40, 40), "20 requests and their replies");
    let plain = line.node.stats().unwrap();
    assert!(plain.ports.iter().all(|port| port.outcomes["forwarded"] >= 40), "{plain:#?}");

    let service = Service { rules: &["proto icmp", "proto icmpv6"], ..Service::default() };
    line.node.deploy(&service_module("monitor").unwrap(), &service).unwrap();
    let before = line.books();
    ping();
    let balance = line.balance_since(&before);
    assert_eq!((balance.sent, balance.received), (40, 40));
    let counters = line.node.service("monitor").unwrap().stats.counters;
    assert_eq!((counters["ipv4"], counters["dscp_0"] >= 40), (40, true), "{counters:?}");
    assert!(counters["ipv6"] >= 40, "neighbour discovery may come on top: {counters:?}");
}
