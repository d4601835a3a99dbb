//! Two routers fed the same packets: a node and plain Linux, in namespaces of the same shape.
//!
//! All packets that leave either must be equal, errors and answers included. 3,000 packets with
//! `make test-peers`, a tenth of them in each other run.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use testkit::{Net, NodeUnderTest, RawPort, Service, root_or_skip};
use wire::{FrameBuilder, VlanTag, protocol as p};

use crate::common::{Line, PROGRAM_TIME_MAX, SOON, module};
use crate::levels::BELOW;

/// Number of packets of a run, and of one with `TAM_SOAK`.
const PACKETS: [u32; 2] = [300, 3_000];
/// Seed of the draw of packets.
const SEED: u64 = 0x7a6d_616e_6475_6121;
/// UDP port of the packet that ends a run.
const MARKER: u16 = 9;
/// Longest frame of a device whose MTU is 1,500.
const FRAME_MAX: usize = 1_514;
/// Packets sent at once, fewer than the queue of a veth holds.
const BURST: usize = 100;

/// Generator of packets: the same seed gives the same packets.
struct Draw {
    state: u64,
    /// MAC addresses of client and router, and addresses of client, router and server.
    macs: [[u8; 6]; 2],
    v4: [Ipv4Addr; 3],
    v6: [Ipv6Addr; 3],
}

impl Draw {
    fn new(net: &Net) -> Self {
        let v4 = |node: &str, peer: &str| net.v4(node, peer).unwrap();
        let v6 = |node: &str, peer: &str| net.v6(node, peer).unwrap();
        Self {
            state: SEED,
            macs: [net.mac("client", "r1").unwrap(), net.mac("r1", "client").unwrap()],
            v4: [v4("client", "r1"), v4("r1", "client"), v4("server", "r1")],
            v6: [v6("client", "r1"), v6("r1", "client"), v6("server", "r1")],
        }
    }

    fn below(&mut self, limit: usize) -> usize {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.state >> 33) as usize % limit
    }

    /// Returns an item of the list, the first in half of the draws.
    fn one<'list, T>(&mut self, list: &'list [T]) -> &'list T {
        if self.below(2) == 0 { &list[0] } else { &list[self.below(list.len())] }
    }

    /// Returns the next packet with a description.
    fn packet(&mut self, number: u32) -> (String, Vec<u8>) {
        let frame = FrameBuilder::new().ethernet(self.macs[0], self.macs[1]);
        let (tag, frame) =
            match *self.one(&["no tag", "no tag", "priority tag", "unknown VLAN", "two tags"]) {
                "priority tag" => ("priority tag", frame.vlan(0)),
                "unknown VLAN" => ("unknown VLAN", frame.vlan(77)),
                "two tags" => {
                    let outer = VlanTag {
                        protocol: p::ETHERTYPE_SERVICE_VLAN,
                        id: 5,
                        ..VlanTag::default()
                    };
                    ("two tags", frame.vlan_tag(outer).vlan(6))
                }
                _ => ("no tag", frame),
            };
        let (ip, frame) = if self.below(2) == 0 { self.v4(frame) } else { self.v6(frame) };
        let (l4, frame) = self.l4(frame, number);
        let (end, frame) = match *self.one(&["whole", "trailer", "cut short", "cut in L4", "lies"])
        {
            "trailer" => {
                let length = (frame.build().len() + 1 + self.below(120)).min(FRAME_MAX);
                ("trailer", frame.pad_to(length).build())
            }
            "cut short" => {
                let mut frame = frame.build();
                frame.truncate(frame.len() - 1 - self.below(4));
                ("cut short", frame)
            }
            "cut in L4" => {
                let mut frame = frame.build();
                let keep = self.below(frame.len() - 14);
                frame.truncate(14 + keep);
                ("cut in L4", frame)
            }
            "lies" => {
                let at = 14 + self.below(44);
                let byte = self.below(256) as u8;
                ("lies", frame.patch(at, &[byte]).build())
            }
            _ => ("whole", frame.build()),
        };
        (format!("{tag}, {ip}, {l4}, {end}"), frame)
    }

    fn v4(&mut self, frame: FrameBuilder) -> (String, FrameBuilder) {
        let [client, router, server] = self.v4;
        let host = |last: u8| Ipv4Addr::from((u32::from(client) & !0xff) | u32::from(last));
        let far = Ipv4Addr::new(10, 99, 0, 1);
        let source = *self.one(&[
            ("client", client),
            ("a neighbour", host(200)),
            ("the router's own", router),
            ("loopback", Ipv4Addr::LOCALHOST),
            ("nobody", Ipv4Addr::UNSPECIFIED),
            ("multicast", Ipv4Addr::new(224, 0, 0, 9)),
            ("everybody", Ipv4Addr::BROADCAST),
            ("the server's network", server),
            ("unknown", far),
            ("class E", Ipv4Addr::new(240, 0, 0, 1)),
        ]);
        let destination = *self.one(&[
            ("server", server),
            ("router", router),
            ("no route", far),
            ("loopback", Ipv4Addr::LOCALHOST),
            ("multicast", Ipv4Addr::new(224, 0, 0, 9)),
            ("everybody", Ipv4Addr::BROADCAST),
            ("broadcast there", Ipv4Addr::from(u32::from(server) | 0xff)),
            ("nobody", Ipv4Addr::UNSPECIFIED),
            ("class E", Ipv4Addr::new(240, 0, 0, 1)),
            ("back to the client", client),
        ]);
        let ttl = *self.one(&[64, 2, 1, 0, 255]);
        let frame = frame.ipv4(source.1, destination.1, ttl).dscp(self.below(64) as u8);
        let (what, frame) = match self.below(8) {
            0 => ("no-operation options", frame.options(&[1, 1, 1, 1])),
            1 => (
                "a first fragment",
                frame.identification(self.below(65536) as u32).fragment(0, true),
            ),
            2 => (
                "a later fragment",
                frame.identification(self.below(65536) as u32).fragment(64, false),
            ),
            3 => ("record route", frame.options(&[7, 7, 4, 0, 0, 0, 0])),
            _ => ("plain", frame),
        };
        (format!("IPv4 from {} to {}, TTL {ttl}, {what}", source.0, destination.0), frame)
    }

    fn v6(&mut self, frame: FrameBuilder) -> (String, FrameBuilder) {
        let [client, router, server] = self.v6;
        let network =
            |address: Ipv6Addr| Ipv6Addr::from(u128::from(address) & !0xffff_ffff_ffff_ffff);
        let far: Ipv6Addr = "2001:db8:99::1".parse().unwrap();
        let source = *self.one(&[
            ("client", client),
            ("the router's own", router),
            ("loopback", Ipv6Addr::LOCALHOST),
            ("nobody", Ipv6Addr::UNSPECIFIED),
            ("multicast", "ff02::9".parse().unwrap()),
            ("link-local", "fe80::1234".parse().unwrap()),
            ("unknown", far),
        ]);
        let destination = *self.one(&[
            ("server", server),
            ("router", router),
            ("no route", far),
            ("loopback", Ipv6Addr::LOCALHOST),
            ("multicast", "ff05::9".parse().unwrap()),
            ("subnet router", network(client)),
            ("nobody", Ipv6Addr::UNSPECIFIED),
            ("back to the client", client),
        ]);
        let hops = *self.one(&[64, 2, 1, 0, 255]);
        let frame = frame.ipv6(source.1, destination.1, hops).dscp(self.below(64) as u8);
        let pad = &[1, 4, 0, 0, 0, 0];
        let (what, frame) = match self.below(10) {
            0 => ("hop-by-hop", frame.extension(p::HOP_BY_HOP, pad)),
            1 => ("destination options", frame.extension(p::DESTINATION_OPTIONS, pad)),
            2 => (
                "a first fragment",
                frame.identification(self.below(65536) as u32).fragment(0, true),
            ),
            3 => (
                "a later fragment",
                frame.identification(self.below(65536) as u32).fragment(64, false),
            ),
            4 => {
                let many = (0..9).fold(frame, |it, _| it.extension(p::DESTINATION_OPTIONS, pad));
                ("nine headers", many)
            }
            5 => {
                let fragment = frame.identification(7).fragment(0, true);
                (
                    "options behind a fragment header",
                    fragment.extension(p::DESTINATION_OPTIONS, pad),
                )
            }
            _ => ("plain", frame),
        };
        (format!("IPv6 from {} to {}, hop limit {hops}, {what}", source.0, destination.0), frame)
    }

    fn l4(&mut self, frame: FrameBuilder, number: u32) -> (&'static str, FrameBuilder) {
        // Makes each packet another one, so that it is found again.
        let mut payload = number.to_be_bytes().to_vec();
        payload.resize(4 + *self.one(&[20, 0, 600, 1_300, 1_360, 1]), b'x');
        let (l4, frame) = match self.below(6) {
            0 => ("TCP", frame.tcp(4_000, 7_000, p::TCP_ACK)),
            1 => ("echo", frame.icmp_echo(1, number as u16)),
            2 => ("protocol 132", frame.protocol(132)),
            3 => ("protocol 253", frame.protocol(253)),
            _ => ("UDP", frame.udp(4_000, 7_000)),
        };
        (l4, frame.payload(&payload))
    }
}

/// Router between two hosts that do not answer, and the packets that leave it.
struct Router {
    net: Net,
    ends: [RawPort; 2],
}

impl Router {
    fn new(net: Net) -> Self {
        for (name, value) in [
            ("net.ipv4.icmp_ratelimit", "0"),
            ("net.ipv6.icmp.ratelimit", "0"),
            ("net.ipv4.icmp_msgs_per_sec", "1000000"),
            ("net.ipv4.icmp_msgs_burst", "1000000"),
        ] {
            let path = format!("/proc/sys/{}", name.replace('.', "/"));
            // Not in the namespaces of every kernel.
            drop(net.within("r1", || std::fs::write(path, value)).unwrap());
        }
        let silent = "table inet silent {\nchain input {\n\
            type filter hook input priority 0;\n\
            icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept;\ndrop;\n}\n}";
        for host in ["client", "server"] {
            let output = net.run(host, &["nft", silent], PROGRAM_TIME_MAX).unwrap();
            assert!(output.status.success(), "{output:?}");
        }
        let ends = ["client", "server"].map(|host| RawPort::open(&net, host, "r1").unwrap());
        Self { net, ends }
    }

    /// Sends packets; returns how often each frame left the router at each of its ends.
    fn run(&self, packets: &[(String, Vec<u8>)]) -> BTreeMap<(usize, Vec<u8>), u32> {
        let mut left = BTreeMap::new();
        for burst in packets.chunks(BURST) {
            for (_, frame) in burst {
                self.ends[0].send(frame).unwrap();
            }
            self.send_marker();
            for (end, port) in self.ends.iter().enumerate() {
                if end == 1 {
                    let is_marker = |frame: &[u8]| crate::common::is_udp_to(frame, MARKER);
                    let mut others = Vec::new();
                    let keep = std::cell::RefCell::new(&mut others);
                    let came = port.receive(SOON, |frame| {
                        keep.borrow_mut().push(frame.to_vec());
                        is_marker(frame)
                    });
                    came.unwrap().expect("the marker arrives");
                    others.pop();
                    others.into_iter().for_each(|frame| self.count(&mut left, end, &frame));
                }
                for frame in port.collect(|_| true).unwrap() {
                    self.count(&mut left, end, &frame);
                }
            }
        }
        left
    }

    fn send_marker(&self) {
        let draw = Draw::new(&self.net);
        let frame = FrameBuilder::new().ethernet(draw.macs[0], draw.macs[1]);
        let frame = frame.ipv4(draw.v4[0], draw.v4[2], 64).udp(4_000, MARKER);
        self.ends[0].send(&frame.payload(b"that was all").build()).unwrap();
    }

    /// Counts a frame that came from the router, without parts that differ from run to run: MAC
    /// addresses, identification and flow label of the router's own packets, and padding up to the
    /// 60 bytes that every frame has on a wire. The kernel limits the rate of "no route"
    /// (`net.ipv4.route.error_burst`), and reports an unreachable neighbour seconds later and for
    /// the few packets that wait for it: both are left out.
    fn count(&self, left: &mut BTreeMap<(usize, Vec<u8>), u32>, end: usize, frame: &[u8]) {
        let router = self.net.mac("r1", ["client", "server"][end]).unwrap();
        if frame.len() < 15 || frame[6..12] != router {
            return;
        }
        let mut frame = frame[12..].to_vec();
        if let Ok(packet) = wire::parse_frame(&[&[0; 12], &frame[..]].concat())
            && frame.len() <= 48
        {
            frame.truncate(packet.ip_end() - 12);
        }
        let ethertype = u16::from_be_bytes([frame[0], frame[1]]);
        let own = |frame: &[u8], at: usize, length: usize| {
            let draw = Draw::new(&self.net);
            let peer = ["client", "server"][end];
            let v4 = [draw.v4[1], self.net.v4("r1", peer).unwrap()].map(|it| it.octets().to_vec());
            let v6 = [draw.v6[1], self.net.v6("r1", peer).unwrap()].map(|it| it.octets().to_vec());
            let source = frame.get(at..at + length).unwrap_or_default();
            v4.iter().chain(&v6).any(|it| it == source) || source.starts_with(&[0xfe, 0x80])
        };
        match ethertype {
            p::ETHERTYPE_IPV4 if frame.len() >= 22 && own(&frame, 14, 4) => {
                // Behind options, which an error repeats.
                let at = 2 + usize::from(frame[2] & 15) * 4;
                if frame[11] == p::ICMP && matches!(frame.get(at..at + 2), Some(&[3, 0 | 1])) {
                    return;
                }
                frame[6..8].fill(0);
                frame[12..14].fill(0);
            }
            p::ETHERTYPE_IPV6 if frame.len() >= 43 => {
                // Neighbour and router discovery, and group membership: no forwarded packet's.
                let kind = if frame[8] == 0 { frame.get(50) } else { frame.get(42) };
                let icmp = frame[8] == p::ICMPV6 || frame[8] == 0 && frame[42] == p::ICMPV6;
                if icmp && kind.is_some_and(|it| matches!(it, 130..=137 | 143)) {
                    return;
                }
                if frame[8] == p::ICMPV6 && frame.get(42..44) == Some(&[1, 3]) {
                    return;
                }
                if own(&frame, 10, 16) {
                    frame[3..6].fill(0);
                }
            }
            p::ETHERTYPE_ARP => return,
            _ => {}
        }
        *left.entry((end, frame)).or_default() += 1;
    }
}

fn packets(net: &Net, count: u32) -> Vec<(String, Vec<u8>)> {
    let mut draw = Draw::new(net);
    (0..count).map(|number| draw.packet(number)).collect()
}

/// Describes the frames that only one of two routers sent, with the packets that may have caused
/// them.
fn differences(
    linux: &BTreeMap<(usize, Vec<u8>), u32>,
    node: &BTreeMap<(usize, Vec<u8>), u32>,
    packets: &[(String, Vec<u8>)],
) -> Vec<String> {
    let mut lines = Vec::new();
    let keys: std::collections::BTreeSet<_> = linux.keys().chain(node.keys()).collect();
    for key in keys {
        let [by_linux, by_node] = [linux, node].map(|it| it.get(key).copied().unwrap_or(0));
        if by_linux == by_node {
            continue;
        }
        let (end, frame) = key;
        // The longest common run of bytes finds a packet again, also when it is quoted.
        let number = packets.iter().enumerate().max_by_key(|(number, (_, sent))| {
            let payload = (*number as u32).to_be_bytes();
            let has =
                frame.windows(4).any(|it| it == payload) && sent.windows(4).any(|it| it == payload);
            (has, std::cmp::Reverse(sent.len().abs_diff(frame.len() + 12)))
        });
        let (number, (name, _)) = number.expect("there are packets");
        let to = ["client", "server"][*end];
        lines.push(format!(
            "to {to}: {by_linux} of Linux, {by_node} of the node; packet {number}: {name}\n  {}",
            hex::encode(&frame[..frame.len().min(90)])
        ));
    }
    lines
}

/// Runs plain Linux, and a node with the service at that level; returns the differences.
fn compare(level: Option<&str>) -> Vec<String> {
    let count = PACKETS[usize::from(std::env::var_os("TAM_SOAK").is_some())];
    let plain = Net::line(1_500).unwrap();
    for address in [
        plain.v4("server", "r1").unwrap().to_string(),
        plain.v6("server", "r1").unwrap().to_string(),
    ] {
        let ping = plain.run("client", &["ping", "-c1", "-W5", &address], PROGRAM_TIME_MAX);
        assert!(ping.unwrap().status.success());
    }
    let linux = Router::new(plain);
    let Line { node, net } = Line::up();
    let line = Line { node, net };
    line.resolve_neighbours();
    if let Some(level) = level {
        let pass = r#"(memory (export "memory") 1 1)
            (func (export "on_packet") (result i32) (i32.const 0))"#;
        let wasm = module("pass", &format!("window = 64\nmemory_pages_max = 1\n{BELOW}"), pass);
        let service = Service { rules: &["any"], level, ..Service::default() };
        assert_eq!(line.node.deploy(&wasm, &service).unwrap().service.level, level);
    }
    let Line { node, net } = line;
    let beside: NodeUnderTest = node;
    let router = Router::new(net);
    let sent = packets(&linux.net, count);
    let by_linux = linux.run(&sent);
    let by_node = router.run(&packets(&router.net, count));
    assert!(by_linux.len() > sent.len() / 4, "{} of {} came", by_linux.len(), sent.len());
    let lines = differences(&by_linux, &by_node, &sent);
    if !lines.is_empty() {
        eprintln!("{}", beside.log());
    }
    drop(beside);
    lines
}

#[test]
fn a_node_sends_what_plain_linux_sends() {
    if !root_or_skip("two forwarders") {
        return;
    }
    let found: Vec<String> = [None, Some("nic"), Some("kernel"), Some("user")]
        .into_iter()
        .flat_map(|level| {
            let lines = compare(level).into_iter();
            lines.map(move |line| format!("{}: {line}", level.unwrap_or("no service")))
        })
        .collect();
    assert!(found.is_empty(), "{} differences\n{}", found.len(), found.join("\n"));
}
