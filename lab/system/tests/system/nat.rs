//! The service `nat` between hosts that ping, curl and iperf3, at each level, and while it
//! moves. The address that those inside share is the router's own.

use std::net::IpAddr;

use crate::common::Line;
use crate::flows::{Conversation, LEVELS, fetches, iperf, move_about, pings};
use testkit::{Running, Service, root_or_skip, service_module};

/// NAT on the way, with the client inside; and the address.
fn translated(level: &str) -> (Line, IpAddr) {
    let line = Line::up();
    line.acquaint();
    let inside = format!("{}/32", line.net.v4("client", "r1").unwrap());
    let address = line.net.v4("r1", "server").unwrap();
    let shown = address.to_string();
    let parameters = [("inside", &inside[..]), ("address", &shown)];
    let (out, back) = (format!("src {inside}"), format!("dst {shown}/32"));
    let rules = [&out[..], &back];
    let service = Service { rules: &rules, level, parameters: &parameters, ..Service::default() };
    let deployed = line.node.deploy(&service_module("nat").unwrap(), &service).unwrap();
    assert_eq!(deployed.service.level, level, "{}", deployed.service.level_reason);
    (line, address.into())
}

#[test]
fn the_server_sees_the_address_and_the_client_gets_its_answers() {
    if !root_or_skip("NAT") {
        return;
    }
    for level in LEVELS {
        let (line, address) = translated(level);
        let server = line.server(0).ip();
        assert!(pings(&line, "client", server), "{level}");
        assert!(fetches(&line, "client", "server", server), "{level}");
        let mut talk = Conversation::begin(&line);
        talk.goes_on();
        assert_eq!(talk.seen.ip(), address, "{level}");
        let counters = line.node.service("nat").unwrap().stats.counters;
        assert_eq!((counters["mapped"], counters["dropped"]), (3, 0), "{level}: {counters:?}");
        // The router answers for itself, to either side.
        assert!(pings(&line, "server", address) && pings(&line, "client", address), "{level}");
        let stats = line.node.service("nat").unwrap().stats;
        assert_eq!(stats.counters["mapped"], counters["mapped"], "{level}: nobody's business");
        assert_eq!(stats.below.packets > 0, level != "user");
    }
}

#[test]
fn a_udp_conversation_and_an_error_about_it_are_translated() {
    if !root_or_skip("NAT of UDP") {
        return;
    }
    for level in LEVELS {
        let (line, address) = translated(level);
        let (server, client) = (line.udp("server", 7000), line.udp("client", 0));
        client.connect(line.server(7000)).unwrap();
        client.send(b"there").unwrap();
        let mut word = [0; 8];
        let (length, from) = server.recv_from(&mut word).unwrap();
        assert_eq!((&word[..length], from.ip()), (&b"there"[..], address), "{level}");
        server.send_to(b"back", from).unwrap();
        assert_eq!(client.recv(&mut word).unwrap(), 4, "{level}");
        // Nobody listens there: the kernel's ICMP error finds the client's socket.
        client.connect(line.server(7001)).unwrap();
        client.send(b"?").unwrap();
        let refused = client.recv(&mut word).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused, "{level}");
        let counters = line.node.service("nat").unwrap().stats.counters;
        assert_eq!((counters["errors"], counters["mapped"]), (1, 1), "{level}: {counters:?}");
    }
}

#[test]
fn a_connection_lives_while_the_nat_moves() {
    if !root_or_skip("NAT while it moves") {
        return;
    }
    let (line, address) = translated("nic");
    let mut talk = Conversation::begin(&line);
    talk.goes_on();
    for more in [&[][..], &["-R"]] {
        let mut moves = 0;
        let bytes = iperf(&line, more, |_: &Running| moves = move_about(&line, "nat"));
        assert!(bytes > 1 << 20 && moves > 5, "{bytes} bytes through {moves} moves, {more:?}");
        talk.goes_on();
    }
    assert_eq!(talk.seen.ip(), address);
    let stats = line.node.service("nat").unwrap().stats;
    assert_eq!(stats.dropped, [].into(), "{stats:#?}");
}
