//! Device that accepts no redirected frames: its packets take the kernel's path, and the node
//! reports why.

use testkit::{Net, NodeUnderTest, Service, root_or_skip, service_module, wait_for};

use crate::common::{Line, PROGRAM_TIME_MAX, SOON};

#[test]
fn an_egress_device_without_redirects_is_served_by_the_kernel_and_reported() {
    if !root_or_skip("an egress without redirect") {
        return;
    }
    let net = Net::line(1500).unwrap();
    let gro = |state: &str| {
        let device = net.end("server", "r1").unwrap().device.clone();
        let run = net.run("server", &["ethtool", "-K", &device, "gro", state], PROGRAM_TIME_MAX);
        assert!(run.unwrap().status.success());
    };
    gro("off");
    let node = NodeUnderTest::start(&net, "r1").unwrap();
    let reasons = || {
        let ports = node.client().node().unwrap().ports;
        ports.into_iter().map(|port| (port.name, port.slow_reasons.join("; "))).collect::<Vec<_>>()
    };
    let [left, right] = &reasons()[..] else { panic!("{:?}", reasons()) };
    assert_eq!(left, &("left".to_owned(), String::new()));
    assert!(right.0 == "right" && right.1.contains("takes no redirected frames"), "{right:?}");

    // It is looked at again and again.
    for (state, slow) in [("on", false), ("off", true)] {
        gro(state);
        let noticed = || (reasons()[1].1.is_empty() != slow).then_some(());
        assert!(wait_for(SOON, noticed).is_some(), "GRO {state}: {:?}", reasons());
    }

    let line = Line { node, net };
    line.resolve_neighbours();
    let before = line.books();
    for service in [None, Some("monitor")] {
        if let Some(name) = service {
            let all = Service { rules: &["proto icmp"], ..Service::default() };
            line.node.deploy(&service_module(name).unwrap(), &all).unwrap();
        }
        let server = line.net.v4("server", "r1").unwrap().to_string();
        line.run("client", &["ping", "-c5", "-i0.01", "-W5", &server]);
    }
    let balance = line.balance_since(&before);
    assert_eq!((balance.sent, balance.received, balance.dropped()), (20, 20, 0));
    let stats = line.node.stats().unwrap();
    let outcome = |port: &str, outcome: &str| {
        let port = stats.ports.iter().find(|p| p.port == port).unwrap();
        port.outcomes.get(outcome).copied().unwrap_or(0)
    };
    assert!(outcome("left", "kernel_slow") >= 5, "to the server: {stats:#?}");
    assert!(outcome("right", "forwarded") >= 5, "from the server: {stats:#?}");
    assert_eq!(line.node.service("monitor").unwrap().stats.packets, 10);
}
