//! Verdicts on the wire: the path of a packet, its bytes, and the kernel's changes.

use crate::common::{Line, PAYLOAD_ADDRESS, SOON, is_udp_to, module};
use testkit::{Net, NodeUnderTest, RawPort, Service, root_or_skip, service_module};
use wire::checksum::{L4Checksum, l4_checksum};
use wire::{FrameBuilder, parse_frame};

const PORT: u16 = 7000;
const RULES: &[&str] = &["proto udp dport 7000"];

/// Returns a module whose verdict is the 32-bit number at the beginning of the UDP payload.
fn answer() -> Vec<u8> {
    let fields = format!(
        r#"(memory (export "memory") 1)
        (func (export "on_packet") (result i32) (i32.load (i32.const {PAYLOAD_ADDRESS})))"#
    );
    module(
        "answer",
        "window = 64\nlevels = [\"nic\", \"kernel\", \"user\"]\n[reasons]\n7 = \"too old\"\n",
        &fields,
    )
}

fn udp(line: &Line, payload: &[u8]) -> Vec<u8> {
    line.frame().udp(4000, PORT).payload(payload).build()
}

#[test]
fn a_bounced_packet_leaves_by_its_arrival_port_with_its_mac_addresses_swapped() {
    if !root_or_skip("bounce") {
        return;
    }
    for level in ["user", "nic", "kernel"] {
        let line = Line::up();
        let service = Service { rules: RULES, level, ..Service::default() };
        line.node.deploy(&answer(), &service).unwrap();
        let client = RawPort::open(&line.net, "client", "r1").unwrap();
        let sent = udp(&line, &[2, 0, 0, 0, 0xaa]);
        client.send(&sent).unwrap();
        // Long before anything else is sent this way: the kernel asks for neighbours after 5 s.
        let came = client.receive(SOON / 2, |frame| is_udp_to(frame, PORT)).unwrap();
        let came = came.unwrap_or_else(|| panic!("nothing came back from {level}"));
        assert_eq!((&came[..6], &came[6..12]), (&sent[6..12], &sent[..6]), "{level}");
        assert_eq!(came[12..], sent[12..], "nothing else changed, not even the TTL: {level}");
        assert_eq!(line.node.service("answer").unwrap().stats.bounced, 1, "{level}");
        line.books();
    }
}

#[test]
fn drops_are_counted_by_the_names_of_their_reasons() {
    if !root_or_skip("drops") {
        return;
    }
    let line = Line::up();
    line.resolve_neighbours();
    line.node.deploy(&answer(), &Service { rules: RULES, ..Service::default() }).unwrap();
    let (receiver, sender) = (line.udp("server", PORT), line.udp("client", 0));
    let before = line.books();
    for reason in [7, 7, 9, 0] {
        sender.send_to(&[1, 0, reason, 0], line.server(PORT)).unwrap();
    }
    // A number that is no verdict: dropped as a trap.
    sender.send_to(&[0xff; 4], line.server(PORT)).unwrap();
    sender.send_to(&[0; 4], line.server(PORT)).unwrap();
    assert_eq!(receiver.recv(&mut [0; 8]).unwrap(), 4);
    let balance = line.balance_since(&before);
    assert_eq!((balance.sent, balance.received), (6, 1));
    let expected = [
        ("answer.module.0", 1),
        ("answer.module.9", 1),
        ("answer.module.too old", 2),
        ("answer.trap", 1),
    ];
    assert_eq!(balance.drops, expected.map(|(name, n)| (name.to_owned(), n)).into());
}

/// Module that redirects to the port that its parameter names.
pub const REDIRECT: &str = r#"
(import "tam" "param_load" (func $param (param i32 i32 i32 i32) (result i32)))
(import "tam" "port_find" (func $port (param i32 i32) (result i32)))
(memory (export "memory") 1)
(data (i32.const 0x9000) "port")
(func (export "on_start") (result i32)
  (i32.store (i32.const 0x9100) (call $port (i32.const 0x9010)
    (call $param (i32.const 0x9000) (i32.const 4) (i32.const 0x9010) (i32.const 32))))
  (i32.shr_s (i32.load (i32.const 0x9100)) (i32.const 31)))
(func (export "on_packet") (result i32)
  (i32.or (i32.const 3) (i32.shl (i32.load (i32.const 0x9100)) (i32.const 16))))"#;

#[test]
fn a_redirected_packet_leaves_as_it_is_by_the_port_that_the_module_found() {
    if !root_or_skip("redirect") {
        return;
    }
    let line = Line::up();
    let wasm = module("redirect", "window = 64\n[parameters.port]\ntype = \"text\"\n", REDIRECT);
    let to = |port| Service { parameters: port, rules: RULES, ..Service::default() };
    let refusal = line.node.deploy(&wasm, &to(&[("port", "middle")])).unwrap_err().to_string();
    assert!(refusal.contains("on_start"), "{refusal}");
    assert!(line.node.client().services().unwrap().services.is_empty());

    line.node.deploy(&wasm, &to(&[("port", "right")])).unwrap();
    let client = RawPort::open(&line.net, "client", "r1").unwrap();
    let server = RawPort::open(&line.net, "server", "r1").unwrap();
    let sent = udp(&line, b"as it is");
    client.send(&sent).unwrap();
    let came = server.receive(SOON, |frame| is_udp_to(frame, PORT)).unwrap().unwrap();
    assert_eq!(came, sent);
    assert_eq!(line.node.service("redirect").unwrap().stats.redirected, 1);
    line.books();
}

#[test]
fn a_rerouted_packet_goes_where_the_module_addressed_it() {
    if !root_or_skip("reroute") {
        return;
    }
    reroutes(&ThreeHosts::up(|text| text));
    // Without TUN devices.
    reroutes(&ThreeHosts::up(crate::packet::as_packets));
}

fn reroutes(line: &ThreeHosts) {
    // 10.77.2.2 becomes 10.77.3.2: one 16-bit word of the destination grows by 0x0100 or
    // 0x0001, by where the byte stands, and the checksums shrink by as much (RFC 1624).
    let ip = 0x8102 + 14;
    let fields = format!(
        r#"(memory (export "memory") 1)
        (func $less (param $at i32)
          (local $sum i32)
          (local.set $sum (i32.sub (i32.load16_u (local.get $at)) (i32.const 1)))
          (i32.store16 (local.get $at)
            (i32.add (local.get $sum) (i32.shr_s (local.get $sum) (i32.const 31)))))
        (func (export "on_packet") (result i32)
          (i32.store8 (i32.const {destination}) (i32.const 3))
          (call $less (i32.const {checksum}))
          (call $less (i32.const {udp_checksum}))
          (i32.const 0x100))"#,
        destination = ip + 18,
        checksum = ip + 10,
        udp_checksum = ip + 26,
    );
    let wasm = module("reroute", "window = 64", &fields);
    line.node.deploy(&wasm, &Service { rules: RULES, ..Service::default() }).unwrap();
    let client = RawPort::open(&line.net, "client", "r1").unwrap();
    let other = RawPort::open(&line.net, "other", "r1").unwrap();
    let (from, router) = (client.mac(), line.net.mac("r1", "client").unwrap());
    let addresses = ["client", "server", "other"].map(|host| line.net.v4(host, "r1").unwrap());
    let sent = FrameBuilder::new()
        .ethernet(from, router)
        .ipv4(addresses[0], addresses[1], 64)
        .udp(4000, PORT)
        .payload(b"elsewhere")
        .build();
    client.send(&sent).unwrap();
    let came = other.receive(SOON, |frame| is_udp_to(frame, PORT)).unwrap().unwrap();
    let parsed = parse_frame(&came).unwrap();
    assert_eq!(came[30..34], addresses[2].octets());
    assert_eq!((parsed.ttl, l4_checksum(&came, &parsed)), (63, L4Checksum::Right));
    assert_eq!(line.node.service("reroute").unwrap().stats.to_kernel, 1);
}

/// Line with a third host behind the router.
struct ThreeHosts {
    node: NodeUnderTest,
    net: Net,
}

impl ThreeHosts {
    fn up(edit: impl FnOnce(String) -> String) -> Self {
        let hosts = ["client", "server", "other"];
        let host = |name| format!("[[host]]\nname = \"{name}\"\n");
        let link = |name| format!("[[link]]\nends = [\"{name}\", \"r1\"]\n");
        let [hosts, links] = [hosts.map(host).concat(), hosts.map(link).concat()];
        let net = Net::up(&format!("{hosts}[[router]]\nname = \"r1\"\n{links}")).unwrap();
        let node = NodeUnderTest::start_edited(&net, "r1", "", edit).unwrap();
        Self { node, net }
    }
}

#[test]
fn the_router_answers_for_itself_through_a_service_that_takes_everything() {
    if !root_or_skip("local delivery") {
        return;
    }
    let line = Line::up();
    let all = Service { rules: &["any"], ..Service::default() };
    line.node.deploy(&service_module("monitor").unwrap(), &all).unwrap();
    for (near, far) in [
        (
            line.net.v4("r1", "client").unwrap().to_string(),
            line.net.v4("r1", "server").unwrap().to_string(),
        ),
        (
            line.net.v6("r1", "client").unwrap().to_string(),
            line.net.v6("r1", "server").unwrap().to_string(),
        ),
    ] {
        line.run("client", &["ping", "-c3", "-i0.05", "-W5", &near]);
        line.run("client", &["ping", "-c3", "-i0.05", "-W5", &far]);
    }
    let stats = line.node.service("monitor").unwrap().stats;
    assert!(stats.to_kernel >= 12, "{stats:#?}");
    line.books();
}

#[test]
fn neighbour_discovery_is_the_kernels_under_a_rule_that_takes_everything() {
    if !root_or_skip("neighbour discovery") {
        return;
    }
    let line = Line::up();
    let all = Service { rules: &["any"], ..Service::default() };
    line.node.deploy(&service_module("monitor").unwrap(), &all).unwrap();
    // Nobody knows anybody yet: requests and replies wait for advertisements.
    let server = line.net.v6("server", "r1").unwrap().to_string();
    let said = line.run("client", &["ping", "-c3", "-i0.2", "-W5", &server]);
    assert!(said.contains(" 3 received"), "{said}");
}

#[test]
fn a_ttl_that_ends_in_a_service_is_answered_by_the_kernel() {
    if !root_or_skip("TTL") {
        return;
    }
    let line = Line::up();
    line.resolve_neighbours();
    let all = Service { rules: &["any"], ..Service::default() };
    line.node.deploy(&service_module("monitor").unwrap(), &all).unwrap();
    let client = RawPort::open(&line.net, "client", "r1").unwrap();
    let addresses = ["client", "server"].map(|host| line.net.v4(host, "r1").unwrap());
    let sent = line.frame().ipv4(addresses[0], addresses[1], 1).udp(4000, PORT).build();
    client.send(&sent).unwrap();
    // Time exceeded in transit (RFC 792): type 11, code 0, from the router's near address.
    let exceeded = |frame: &[u8]| {
        frame.len() > 36 && frame[12..14] == [8, 0] && frame[23] == 1 && frame[34..36] == [11, 0]
    };
    let came = client.receive(SOON, exceeded).unwrap().unwrap();
    assert_eq!(came[26..30], line.net.v4("r1", "client").unwrap().octets());
    line.books();
}

#[test]
fn the_first_packet_to_an_unknown_neighbour_is_not_lost() {
    if !root_or_skip("neighbours") {
        return;
    }
    for service in [false, true] {
        let line = Line::up();
        if service {
            let all = Service { rules: RULES, ..Service::default() };
            line.node.deploy(&service_module("monitor").unwrap(), &all).unwrap();
        }
        let (receiver, sender) = (line.udp("server", PORT), line.udp("client", 0));
        receiver.set_read_timeout(Some(SOON)).unwrap();
        let before = line.books();
        sender.send_to(b"first", line.server(PORT)).unwrap();
        assert_eq!(receiver.recv(&mut [0; 8]).unwrap(), 5);
        let balance = line.balance_since(&before);
        assert_eq!((balance.sent, balance.received), (1, 1));
        let neighbour = line.node.stats().unwrap().ports[0].outcomes["kernel_neighbour"];
        assert_eq!(neighbour, u64::from(!service), "the neighbour was not unknown");
    }
}
