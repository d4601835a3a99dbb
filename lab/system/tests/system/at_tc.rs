//! Ports for streams alone, whose front door is behind the kernel's receive path.

use crate::capture::packets_of;
use crate::common::{Line, SOON, passing};
use crate::packet::{outcomes, rule};
use crate::streams::{
    PORT, deploy, kernel_state, pair, server, stats, talks, two_connections_have_every_byte,
};
use netlink::offload::{Offload, OffloadState};
use testkit::{Net, NodeUnderTest, Service, root_or_skip, wait_for};

/// Most bytes of payload in a frame.
const SEGMENT: u64 = 1460;

fn at_tc(text: String) -> String {
    text.replace("device =", "mode = \"tc\"\ndevice =")
}

/// Returns a line whose node file is changed by `edit`.
fn line_with(edit: impl Fn(String) -> String) -> Line {
    let net = Net::line(1500).unwrap();
    let node = NodeUnderTest::start_edited(&net, "r1", "", edit).unwrap();
    let line = Line { node, net };
    line.resolve_neighbours();
    line
}

#[test]
fn connections_at_tc_have_their_addresses_and_every_byte_and_count_as_their_frames() {
    if !root_or_skip("ports at tc") {
        return;
    }
    let net = Net::line(1500).unwrap();
    let device = net.device("r1", "client").unwrap().name;
    let on = || netlink::offload::enable(&device, &[Offload::Gro]).map(drop);
    net.within("r1", on).unwrap().unwrap();
    let node = NodeUnderTest::start_edited(&net, "r1", "", at_tc).unwrap();
    let line = Line { node, net };
    line.resolve_neighbours();
    let state = line.net.within("r1", || OffloadState::read(&device)).unwrap().unwrap();
    assert!(state.is_on(Offload::Gro), "the device is as it was");
    let ports = line.node.client().node().unwrap().ports;
    for port in &ports {
        assert_eq!((port.mode.as_str(), port.offloads_off.len()), ("tc", 0));
        assert!(port.mode_cost.contains("streams only"), "{}", port.mode_cost);
    }
    deploy(&line, &[&format!("proto tcp dport {PORT}")]);
    two_connections_have_every_byte(&line);
    // Joined or not: each frame has its headers, and no more than a segment.
    let (port, frames) = (line.node.stats().unwrap().ports.remove(0), (8 << 20) / SEGMENT);
    assert!(port.outcomes["intercepted"] >= frames, "{port:#?}");
    assert_eq!(port.to_services(), port.outcomes["intercepted"]);
    assert!(port.rx_packets >= frames && port.rx_bytes > (8 << 20) + 54 * frames, "{port:#?}");
    let rules = line.node.client().rules().unwrap().rules;
    let (counted, bytes) = (rules[0].packets, rules[0].bytes);
    assert!(counted >= 2 * frames && bytes > (16 << 20) + 108 * frames, "{counted} {bytes}");
}

#[test]
fn at_tc_packets_of_no_stream_are_left_to_the_kernel_or_dropped_by_a_rule() {
    if !root_or_skip("ports at tc") {
        return;
    }
    let line = line_with(at_tc);
    deploy(&line, &[&format!("proto tcp dport {PORT}")]);
    line.node.client().add_rules(&rule("proto udp dport 7001", "drop")).unwrap();
    let (receiver, dropped) = (line.udp("server", 7000), line.udp("server", 7001));
    let before = outcomes(&line);
    for port in [7001, 7000] {
        let sender = line.sender_to(port);
        for _ in 0..10 {
            sender.send(b"datagram").unwrap();
        }
    }
    for _ in 0..10 {
        assert_eq!(receiver.recv(&mut [0; 64]).unwrap(), 8);
    }
    assert!(dropped.recv(&mut [0; 64]).is_err(), "what came before it did not arrive");
    let after = outcomes(&line);
    let more = |name: &str| after[name] - before.get(name).copied().unwrap_or_default();
    assert!(more("kernel_slow") >= 10, "{after:?}");
    assert_eq!(more("drop_rule"), 10, "{after:?}");
    // A connection older than the service bypasses it to its end.
    line.node.remove("streams").unwrap();
    let listener = server(&line, false, PORT);
    let (mut client, mut accepted) = pair(&line, &listener);
    deploy(&line, &[&format!("proto tcp dport {PORT}")]);
    talks(&mut client, &mut accepted);
    assert_eq!(stats(&line).accepted, 0);
}

#[test]
fn rules_that_need_the_driver_are_refused_where_they_may_meet_a_port_at_tc() {
    if !root_or_skip("ports at tc") {
        return;
    }
    // The port to the client only.
    let line = line_with(|text| text.replacen("device =", "mode = \"tc\"\ndevice =", 1));
    let ports = line.node.client().node().unwrap().ports;
    let (tc, native) = (ports[0].name.clone(), ports[1].name.clone());
    assert_eq!((ports[0].mode.as_str(), ports[1].mode.as_str()), ("tc", "native"));
    let serve = |rule: &str| {
        let service = Service { name: "counts", rules: &[rule], ..Service::default() };
        line.node.deploy(&passing("counts"), &service)
    };
    for rule in ["proto udp dport 7000", &format!("in {tc} proto udp")] {
        let said = serve(rule).unwrap_err().to_string();
        assert!(said.contains(&tc) && said.contains("mode is \"tc\""), "{said}");
    }
    assert!(line.node.service("counts").is_err(), "nothing is left of it");
    let client = line.node.client();
    let said = client.add_rules(&rule("proto udp", &format!("out {native}"))).unwrap_err();
    assert!(said.to_string().contains("'in' with another port"), "{said}");
    serve(&format!("in {native} proto udp dport 7000")).unwrap();
    // What comes back from the server has the service, and leaves by the port at tc.
    let (there, here) = (line.udp("client", 7000), line.udp("server", 0));
    here.connect(there.local_addr().unwrap()).unwrap();
    for _ in 0..10 {
        here.send(b"back").unwrap();
        assert_eq!(there.recv(&mut [0; 64]).unwrap(), 4);
    }
    assert_eq!(line.node.service("counts").unwrap().stats.packets, 10);
    // And streams go through both.
    deploy(&line, &[&format!("proto tcp dport {PORT}")]);
    let listener = server(&line, false, PORT);
    let (mut client, mut accepted) = pair(&line, &listener);
    talks(&mut client, &mut accepted);
    assert_eq!(stats(&line).accepted, 1);
}

#[test]
fn a_port_at_tc_is_captured_and_outlives_its_daemon() {
    if !root_or_skip("ports at tc") {
        return;
    }
    let mut line = line_with(at_tc);
    let before = kernel_state(&line);
    deploy(&line, &[&format!("proto tcp dport {PORT}")]);
    let listener = server(&line, false, PORT);
    let (mut client, mut accepted) = pair(&line, &listener);
    let name = line.node.client().node().unwrap().ports[0].name.clone();
    let captured = packets_of(&line, &[&name], || talks(&mut client, &mut accepted));
    let intercepted = captured.iter().filter(|packet| {
        packet.direction == "in" && packet.outcome.as_deref() == Some("intercepted")
    });
    assert!(intercepted.count() >= 2, "{captured:#?}");
    assert!(captured.iter().any(|packet| packet.direction == "out"), "{captured:#?}");
    line.node.kill().unwrap();
    talks(&mut client, &mut accepted);
    let Line { node, net } = &mut line;
    node.start_again(net, "r1").unwrap();
    let ports = line.node.client().node().unwrap().ports;
    assert!(ports.iter().all(|port| port.mode == "tc" && port.state != "away"), "{ports:#?}");
    talks(&mut client, &mut accepted);
    for _ in 0..20 {
        let (mut client, mut accepted) = pair(&line, &listener);
        talks(&mut client, &mut accepted);
    }
    assert_eq!(stats(&line).accepted, 21);
    // Its end leaves nothing of it.
    line.node.remove("streams").unwrap();
    let gone = wait_for(SOON, || (kernel_state(&line) == before).then_some(()));
    assert!(gone.is_some(), "{}", kernel_state(&line));
    assert!(line.node.stop().unwrap().success());
    let left = bpf::front_door::pinned_nodes().unwrap();
    assert!(!left.contains(&line.node.name().to_string()), "{left:?}");
}
