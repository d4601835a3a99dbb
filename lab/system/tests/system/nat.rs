//! Service `nat` between hosts that use ping, curl and iperf3, at each level, and while it moves.
//! The shared address is the router's own.

use std::net::{IpAddr, Ipv4Addr};

use crate::common::{Line, PROGRAM_TIME_MAX, SOON};
use crate::flows::{Conversation, LEVELS, fetches, iperf, move_about, pings};
use crate::netfilter::{nft, wait_noticed};
use testkit::{RawPort, Running, Service, root_or_skip, service_module, wait_for};
use wire::protocol;

/// Returns a line with NAT on the path, the client inside, and the address, which is the router's
/// own.
fn translated(level: &str) -> (Line, IpAddr) {
    let line = Line::up();
    let address = line.net.v4("r1", "server").unwrap();
    translated_to(line, address, level)
}

/// Sets up NAT on a line with any address.
fn translated_to(line: Line, address: Ipv4Addr, level: &str) -> (Line, IpAddr) {
    line.resolve_neighbours();
    let inside = format!("{}/32", line.net.v4("client", "r1").unwrap());
    let shown = address.to_string();
    let parameters = [("inside", &inside[..]), ("address", &shown)];
    let (out, back) = (format!("src {inside}"), format!("dst {shown}/32"));
    let rules = [&out[..], &back];
    let service = Service { rules: &rules, level, parameters: &parameters, ..Service::default() };
    let deployed = line.node.deploy(&service_module("nat").unwrap(), &service).unwrap();
    assert_eq!(deployed.service.level, level, "{}", deployed.service.level_reason);
    (line, address.into())
}

/// Returns a line as [`translated`], with an address that the network outside routes to the router.
fn translated_to_routed(level: &str) -> (Line, IpAddr) {
    let address = Ipv4Addr::new(198, 51, 100, 7);
    let line = Line::up();
    let routed = format!("{address}/32");
    let router = line.net.v4("r1", "server").unwrap().to_string();
    line.run("server", &["ip", "route", "add", &routed, "via", &router]);
    let router = line.net.v4("r1", "client").unwrap().to_string();
    line.run("client", &["ip", "route", "add", &routed, "via", &router]);
    translated_to(line, address, level)
}

#[test]
fn the_server_sees_the_external_address_and_the_client_gets_its_answers() {
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
fn an_error_about_an_answer_quotes_the_address_that_the_server_knows() {
    if !root_or_skip("NAT and errors that quote") {
        return;
    }
    for level in LEVELS {
        let (line, address) = translated(level);
        let (server, client) = (line.udp("server", 7000), line.udp("client", 0));
        client.send_to(b"there", line.server(7000)).unwrap();
        let (_, from) = server.recv_from(&mut [0; 8]).unwrap();
        let cable = RawPort::open(&line.net, "server", "r1").unwrap();
        server.set_ttl(1).unwrap();
        server.send_to(b"too late", from).unwrap();
        let is_error = |frame: &[u8]| frame.get(23) == Some(&protocol::ICMP) && frame[34] == 11;
        let error = cable.receive(SOON, is_error).unwrap().expect("time exceeded");
        let (quoted, IpAddr::V4(address)) = (&error[42..], address) else { unreachable!() };
        let known = (&address.octets()[..], &from.port().to_be_bytes()[..]);
        assert_eq!((&quoted[16..20], &quoted[22..24]), known, "{level}");
        let parsed = wire::parse_frame(&error).unwrap();
        assert!(wire::checksum::verify_l4(&error, &parsed), "{level}");
        assert_eq!(wire::checksum::checksum(&quoted[..20]), 0, "{level}");
    }
}

/// Runs `ping` once with these options; returns its output.
fn ping(line: &Line, options: &[&str]) -> String {
    let server = line.server(0).ip().to_string();
    let argv = [&["ping", "-c1", "-W2"], options, &[&server[..]]].concat();
    line.net.run("client", &argv, PROGRAM_TIME_MAX).unwrap().stdout
}

/// Changes the MTU towards the server, and flushes the client's cached path MTU.
fn set_mtu(line: &Line, mtu: u32) {
    for (host, device) in [("r1", "to-server"), ("server", "to-r1")] {
        line.run(host, &["ip", "link", "set", device, "mtu", &mtu.to_string()]);
    }
    let ports = || line.node.client().node().unwrap().ports;
    let is_it = |port: &api::PortInfo| port.device == "to-server" && port.mtu == mtu;
    let is_followed = || ports().iter().any(is_it).then_some(());
    assert!(wait_for(SOON, is_followed).is_some(), "{:?}", ports());
    forget_routes(line);
}

fn forget_routes(line: &Line) {
    line.run("client", &["ip", "route", "flush", "cache"]);
}

#[test]
fn packets_that_the_kernel_finishes_are_translated_as_by_its_masquerading() {
    if !root_or_skip("NAT by the kernel") {
        return;
    }
    for level in LEVELS {
        let (line, _) = translated(level);
        let server = line.server(0).ip();
        line.run("r1", &["ip", "neigh", "flush", "dev", "to-server"]);
        assert!(pings(&line, "client", server), "{level}: the next hop is not resolved");
        assert!(ping(&line, &["-t1"]).contains("Time to live exceeded"), "{level}");
        set_mtu(&line, 1300);
        assert!(ping(&line, &["-Mdo", "-s1400"]).contains("mtu = 1300"), "{level}");
        forget_routes(&line);
        assert!(ping(&line, &["-Mdont", "-s1400"]).contains(" 1 received"), "{level}: fragments");
        forget_routes(&line);
        assert!(fetches(&line, "client", "server", server), "{level}: its MTU is found");
        set_mtu(&line, 1500);
        // As on every machine with Docker.
        let chain = "table ip filter { chain forward { type filter hook forward priority 0; }; }";
        nft(&line.net, chain);
        wait_noticed(&line, true);
        assert!(pings(&line, "client", server), "{level}: slow mode");
        assert!(fetches(&line, "client", "server", server), "{level}: slow mode");
        assert!(ping(&line, &["-t1"]).contains("Time to live exceeded"), "{level}: slow mode");
        let stats = line.node.service("nat").unwrap().stats;
        assert_eq!(stats.dropped, [].into(), "{level}: {stats:#?}");
    }
}

#[test]
fn an_address_routed_to_the_router_works_as_external_address() {
    if !root_or_skip("NAT with a routed address") {
        return;
    }
    for level in LEVELS {
        let (line, _) = translated_to_routed(level);
        let server = line.server(0).ip();
        line.run("r1", &["ip", "neigh", "flush", "dev", "to-server"]);
        assert!(pings(&line, "client", server), "{level}: the next hop is not resolved");
        // The router's own errors are about what the client sent.
        assert!(ping(&line, &["-t1"]).contains("Time to live exceeded"), "{level}");
        set_mtu(&line, 1300);
        assert!(ping(&line, &["-Mdo", "-s1400"]).contains("mtu = 1300"), "{level}");
        forget_routes(&line);
        assert!(fetches(&line, "client", "server", server), "{level}: its MTU is found");
        // What the kernel has answered and dropped, it has counted by its reason.
        let stats = line.node.stats().unwrap();
        let places = stats.ports.iter().map(|port| &port.stack_dropped);
        let of = |reason: &str| -> u64 {
            let all = places.clone().chain([&stats.cell.stack_dropped]);
            all.filter_map(|counted| counted.get(reason)).sum()
        };
        assert_eq!(of("stack.ip_inhdr"), 1, "{level}: {stats:#?}");
        assert!(of("stack.pkt_too_big") >= 1, "{level}: {stats:#?}");
        assert_eq!(of("stack.ip_local_source"), 0, "{level}: {stats:#?}");
    }
}

/// Checks RFC 4787, REQ-9: packets from a mapped address of one inside host to that of another one,
/// and back.
fn two_inside_reach_each_other(line: &Line, address: IpAddr, level: &str) {
    let server = line.udp("server", 7000);
    let [one, other] = [line.udp("client", 0), line.udp("client", 0)];
    one.send_to(b"out", line.server(7000)).unwrap();
    let mut word = [0; 8];
    let (_, mapped) = server.recv_from(&mut word).unwrap();
    assert_eq!(mapped.ip(), address, "{level}");
    other.send_to(b"to one", mapped).unwrap();
    let (length, from) = one.recv_from(&mut word).unwrap();
    assert_eq!((&word[..length], from.ip()), (&b"to one"[..], address), "{level}");
    one.send_to(b"back", from).unwrap();
    let (length, from) = other.recv_from(&mut word).unwrap();
    assert_eq!((&word[..length], from), (&b"back"[..], mapped), "{level}");
    let stats = line.node.service("nat").unwrap().stats;
    assert_eq!((stats.counters["hairpins"], stats.dropped.len()), (2, 0), "{level}");
}

#[test]
fn two_inside_hosts_reach_each_other_by_the_routers_own_address() {
    if !root_or_skip("hairpinning") {
        return;
    }
    for level in LEVELS {
        let (line, address) = translated(level);
        two_inside_reach_each_other(&line, address, level);
    }
}

#[test]
fn two_inside_hosts_reach_each_other_by_an_address_routed_to_the_router() {
    if !root_or_skip("hairpinning with a routed address") {
        return;
    }
    for level in LEVELS {
        let (line, address) = translated_to_routed(level);
        two_inside_reach_each_other(&line, address, level);
        // The same where the kernel finishes each packet.
        let chain = "table ip filter { chain forward { type filter hook forward priority 0; }; }";
        nft(&line.net, chain);
        wait_noticed(&line, true);
        let before = line.node.service("nat").unwrap().stats.counters["hairpins"];
        let (server, one, other) =
            (line.udp("server", 7002), line.udp("client", 0), line.udp("client", 0));
        one.send_to(b"out", line.server(7002)).unwrap();
        let mut word = [0; 8];
        let (_, mapped) = server.recv_from(&mut word).unwrap();
        other.send_to(b"to one", mapped).unwrap();
        assert_eq!(one.recv_from(&mut word).unwrap().1.ip(), address, "{level}: slow mode");
        let stats = line.node.service("nat").unwrap().stats;
        assert_eq!(stats.counters["hairpins"], before + 1, "{level}: slow mode");
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
