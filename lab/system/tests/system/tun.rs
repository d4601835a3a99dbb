//! TUN ports: IP packets of a program enter a node as frames of a device do.
//!
//! ```text
//!  the test, at the other end of `vpn` 10.99.0.2 ── r1 ── server
//! ```

use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::OwnedFd;
use std::time::Duration;

use testkit::{Net, NodeUnderTest, Service, leftovers, root_or_skip, service_module, wait_for};
use wire::{FrameBuilder, parse_frame};

use crate::capture::packets_of;
use crate::common::{Line, PROGRAM_TIME_MAX, SOON, module};

const DEVICE: &str = "vpn";
const SELF: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 2);
const TUN_PORT: &str = "[[port]]\nname = \"vpn\"\nkind = \"tun\"\n";
/// Length of an Ethernet header.
const ETHERNET: usize = 14;
/// DSCP with which `monitor` marks.
const MARK: u8 = 46;

/// Program at the other end of the TUN device.
struct Tunnel(OwnedFd);

impl Tunnel {
    fn open(line: &Line) -> Self {
        let open = || sockets::tun::create(DEVICE, sockets::tun::Kind::Packets);
        let tunnel = Self(line.net.within("r1", open).unwrap().unwrap());
        let up = || line.net.netlink("r1").unwrap().link(DEVICE).unwrap().running.then_some(());
        assert!(wait_for(SOON, up).is_some(), "it has a carrier now");
        tunnel
    }

    fn send(&self, frame: &[u8]) {
        let sent = rustix::io::write(&self.0, &frame[ETHERNET..]).unwrap();
        assert_eq!(sent, frame.len() - ETHERNET);
    }

    /// Returns the next IP packet that `wanted` accepts, after an Ethernet header of zeros.
    fn receive(&self, wanted: impl Fn(&[u8]) -> bool) -> Option<Vec<u8>> {
        let mut buffer = vec![0; 9216];
        wait_for(SOON, || {
            let length = rustix::io::read(&self.0, &mut buffer).ok()?;
            let kind: [u8; 2] = if buffer[0] >> 4 == 4 { [8, 0] } else { [0x86, 0xdd] };
            let frame = [&[0; 12][..], &kind, &buffer[..length]].concat();
            wanted(&frame).then_some(frame)
        })
    }
}

/// Returns the usual lab and a node with a TUN port, to which the network behind it is routed.
fn with_tun() -> Line {
    let net = Net::line(1500).unwrap();
    let add = |text: String| text + TUN_PORT;
    let node = NodeUnderTest::start_edited(&net, "r1", "", add).unwrap();
    let line = Line { node, net };
    line.resolve_neighbours();
    line.run("r1", &["ip", "route", "add", "10.99.0.0/24", "dev", DEVICE]);
    let router = line.net.v4("r1", "server").unwrap().to_string();
    line.run("server", &["ip", "route", "add", "10.99.0.0/24", "via", &router]);
    line
}

fn to_server(line: &Line) -> FrameBuilder {
    let server = line.net.v4("server", "r1").unwrap();
    FrameBuilder::new().ethernet([0; 6], [0; 6]).ipv4(SELF, server, 64)
}

fn outcome(line: &Line, name: &str) -> u64 {
    let stats = line.node.stats().unwrap();
    let port = stats.ports.iter().find(|port| port.port == DEVICE).unwrap();
    assert_eq!(port.rx_packets, port.outcomes.values().sum::<u64>());
    port.outcomes[name]
}

/// Sends a datagram to the server, and one back; the server's has the mark, or not.
fn there_and_back(line: &Line, tunnel: &Tunnel, sink: &UdpSocket, mark: Option<u8>) {
    let port = sink.local_addr().unwrap().port();
    let frame = to_server(line).udp(4000, port).payload(b"by the tunnel").build();
    tunnel.send(&frame);
    let mut buffer = [0; 100];
    let (length, from) = sink.recv_from(&mut buffer).unwrap();
    assert_eq!(
        (&buffer[..length], from.to_string()),
        (&b"by the tunnel"[..], format!("{SELF}:4000"))
    );
    sink.send_to(b"and back", from).unwrap();
    let came = tunnel
        .receive(|frame| parse_frame(frame).is_ok_and(|packet| packet.destination_port == 4000));
    let came = came.expect("the answer leaves by the tunnel");
    assert!(came.ends_with(b"and back"));
    assert_eq!(came[15] >> 2, mark.unwrap_or(0), "{came:x?}");
}

#[test]
fn packets_of_a_tunnel_are_routed_and_served_like_others() {
    if !root_or_skip("a TUN port") {
        return;
    }
    let mut line = with_tun();
    let shown = line.node.client().node().unwrap().ports.remove(2);
    assert_eq!((shown.kind.as_str(), shown.device.as_str()), ("tun", DEVICE));
    let tunnel = Tunnel::open(&line);
    let sink = line.udp("server", 7009);
    there_and_back(&line, &tunnel, &sink, None);
    assert!(outcome(&line, "forwarded") >= 1);
    // What the kernel answers comes back whole: a packet whose time is up.
    let server = line.net.v4("server", "r1").unwrap();
    let late = FrameBuilder::new().ethernet([0; 6], [0; 6]).ipv4(SELF, server, 1).udp(1, 2).build();
    tunnel.send(&late);
    let is_exceeded = |frame: &[u8]| frame[23] == 1 && frame[34] == 11;
    assert!(tunnel.receive(is_exceeded).is_some(), "time exceeded");
    assert_eq!(outcome(&line, "kernel_ttl"), 1);

    for level in ["user", "nic"] {
        let service = Service { rules: &["proto udp"], level, ..Service::default() };
        line.node.deploy(&service_module("monitor").unwrap(), &service).unwrap();
        let before = line.node.service("monitor").unwrap().stats.packets;
        for _ in 0..5 {
            there_and_back(&line, &tunnel, &sink, Some(MARK));
        }
        let service = line.node.service("monitor").unwrap();
        assert_eq!(service.level, level, "{}", service.level_reason);
        // There by the tunnel, back by the server's port.
        assert_eq!(service.stats.packets - before, 10, "{:#?}", service.stats);
        line.node.remove("monitor").unwrap();
    }
    // At kernel level there is no Ethernet header: it runs above, and says why.
    let service = Service { rules: &["proto udp"], level: "kernel", ..Service::default() };
    line.node.deploy(&service_module("monitor").unwrap(), &service).unwrap();
    let service = line.node.service("monitor").unwrap();
    assert_eq!(service.level, "user");
    assert!(service.level_reason.contains(DEVICE), "{}", service.level_reason);
    there_and_back(&line, &tunnel, &sink, Some(MARK));

    drop(tunnel);
    assert!(line.node.stop().unwrap().success(), "{}", line.node.log());
    assert_eq!(leftovers(line.node.name()), [""; 0]);
    assert!(line.net.netlink("r1").unwrap().link(DEVICE).is_err(), "it was made, and is gone");
}

#[test]
fn a_module_sends_packets_out_of_a_tunnel_without_their_ethernet_header() {
    if !root_or_skip("verdicts at a TUN port") {
        return;
    }
    let line = with_tun();
    let tunnel = Tunnel::open(&line);
    let bounce = r#"(memory (export "memory") 1)
        (func (export "on_packet") (result i32) (i32.const 2))"#;
    let redirect = r#"(memory (export "memory") 1)
        (func (export "on_packet") (result i32) (i32.const 0x20003))"#;
    let client = testkit::RawPort::open(&line.net, "client", "r1").unwrap();
    let there_and_back = |level: &str| {
        let service = Service { rules: &["in vpn"], level, ..Service::default() };
        let levels = "window = 64\nlevels = [\"nic\", \"user\"]";
        line.node.deploy(&module("bounce", levels, bounce), &service).unwrap();
        let frame = to_server(&line).udp(4001, 9).payload(&[9; 60]).build();
        tunnel.send(&frame);
        let back = tunnel.receive(|came| came[ETHERNET..] == frame[ETHERNET..]);
        assert!(back.is_some(), "{level}: it bounces");
        line.node.remove("bounce").unwrap();

        let service = Service { rules: &["in left proto udp"], level, ..Service::default() };
        line.node.deploy(&module("redirect", levels, redirect), &service).unwrap();
        let frame = line.frame().udp(4002, 9).payload(&[8; 60]).build();
        client.send(&frame).unwrap();
        let came = tunnel.receive(|came| came[ETHERNET..] == frame[ETHERNET..]);
        assert!(came.is_some(), "{level}: it goes into the tunnel");
        let stats = line.node.service("redirect").unwrap();
        assert_eq!((stats.level.as_str(), stats.stats.redirected), (level, 1));
        line.node.remove("redirect").unwrap();
        // What the cell's tap and the ring have is at the daemon.
        std::thread::sleep(Duration::from_millis(200));
    };
    for level in ["user", "nic"] {
        let captured = packets_of(&line, &["vpn"], || there_and_back(level));
        // Captured with an Ethernet header as all that comes by it: the headers of zeros.
        let left = captured.iter().filter(|p| p.direction == "out" && p.length == 102);
        let lengths: Vec<usize> = left.map(|packet| packet.bytes_hex.len()).collect();
        assert_eq!(lengths, [204, 204], "{level}: bounced and redirected: {captured:#?}");
    }
}

#[test]
fn a_tun_port_on_a_device_with_ethernet_is_refused() {
    if !root_or_skip("a TUN port that is none") {
        return;
    }
    let net = Net::line(1500).unwrap();
    let kind = |text: String| text.replacen("device =", "kind = \"tun\"\ndevice =", 1);
    let said = NodeUnderTest::start_edited(&net, "r1", "", kind).unwrap_err().to_string();
    assert!(said.contains("to-client") && said.contains("no TUN device"), "{said}");
    let argv = ["ip", "tuntap", "add", "mode", "tun", "name", "t9"];
    assert!(net.run("r1", &argv, PROGRAM_TIME_MAX).unwrap().status.success());
    let other = |text: String| text.replace("\"to-client\"", "\"t9\"");
    let said = NodeUnderTest::start_edited(&net, "r1", "", other).unwrap_err().to_string();
    assert!(said.contains("t9") && said.contains("kind = \"tun\""), "{said}");
}
