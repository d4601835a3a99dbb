//! Services joined into graphs: packets, marks and messages between modules at any levels.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use crate::common::{Line, PAYLOAD_ADDRESS, SOON, module};
use testkit::{Service, root_or_skip, wait_for};

const PORT: u16 = 7100;
const RULES: &[&str] = &["proto udp dport 7100"];
const BELOW: &str = "levels = [\"nic\", \"kernel\", \"user\"]";

/// Offsets of the values in the payload.
const NUMBER: usize = 0;
const FIRST_COUNT: usize = 4;
const FIRST_LEVEL: usize = 8;
const SECOND_COUNT: usize = 12;
const SECOND_LEVEL: usize = 16;
const EDGE: usize = 20;
const TELL: usize = 21;
const MARKED: usize = 22;
const LENGTH: usize = 24;

/// Module that passes packets by the edge that they name, with its count and its level in the mark;
/// message 1 makes it drop them, 2 forward them itself, 3 mark them, too.
const CLASSIFY: &str = r#"
(memory (export "memory") 1)
(func (export "on_message") (param $length i32) (result i32)
  (i32.store8 (i32.const 0x9010) (i32.load8_u (i32.const 0x8102)))
  (i32.const 0))
(func (export "on_packet") (result i32)
  (i32.store (i32.const 0x9000) (i32.add (i32.load (i32.const 0x9000)) (i32.const 1)))
  (i32.store (i32.const 0x8028) (i32.load (i32.const 0x9000)))
  (i32.store (i32.const 0x802c) (i32.load8_u (i32.const 0x8038)))
  (i32.store16 (i32.sub (i32.const PAYLOAD) (i32.const 2)) (i32.const 0))
  (if (i32.eq (i32.load8_u (i32.const 0x9010)) (i32.const 1)) (then (return (i32.const 0x50001))))
  (if (i32.eq (i32.load8_u (i32.const 0x9010)) (i32.const 2)) (then (return (i32.const 0x30000))))
  (if (i32.eq (i32.load8_u (i32.const 0x9010)) (i32.const 3)) (then
    (i32.store8 offset=22 (i32.const PAYLOAD) (i32.const 0x77))
    (return (i32.const 0x30000))))
  (i32.shl (i32.load8_u offset=20 (i32.const PAYLOAD)) (i32.const 16)))"#;

/// Module that writes the mark, its own count and its own level into the packet, and sends the
/// module before it the message that the packet names.
const HEAVY: &str = r#"
(import "tam" "message_send" (func $tell (param i32 i32) (result i32)))
(memory (export "memory") 1)
(func (export "on_packet") (result i32)
  (i32.store (i32.const 0x9000) (i32.add (i32.load (i32.const 0x9000)) (i32.const 1)))
  (i32.store offset=4 (i32.const PAYLOAD) (i32.load (i32.const 0x8028)))
  (i32.store offset=8 (i32.const PAYLOAD) (i32.load (i32.const 0x802c)))
  (i32.store offset=12 (i32.const PAYLOAD) (i32.load (i32.const 0x9000)))
  (i32.store offset=16 (i32.const PAYLOAD) (i32.load8_u (i32.const 0x8038)))
  (i32.store16 (i32.sub (i32.const PAYLOAD) (i32.const 2)) (i32.const 0))
  (if (i32.load8_u offset=21 (i32.const PAYLOAD)) (then
    (i32.store8 (i32.const 0x9020) (i32.load8_u offset=21 (i32.const PAYLOAD)))
    (drop (call $tell (i32.const 0x9020) (i32.const 1)))))
  (i32.const 0))"#;

fn classify() -> Vec<u8> {
    let fields = CLASSIFY.replace("PAYLOAD", &PAYLOAD_ADDRESS.to_string());
    module("classify", &format!("window = 96\n{BELOW}"), &fields)
}

fn heavy(name: &str) -> Vec<u8> {
    let fields = HEAVY.replace("PAYLOAD", &PAYLOAD_ADDRESS.to_string());
    module(name, &format!("window = 96\nneeds = [\"messages\"]\n{BELOW}"), &fields)
}

type Payload = [u8; LENGTH];

fn word(payload: &Payload, at: usize) -> u32 {
    u32::from_le_bytes([0, 1, 2, 3].map(|byte| payload[at + byte]))
}

/// Sender and receiver whose neighbours are resolved.
struct Flow {
    sender: UdpSocket,
    receiver: UdpSocket,
}

impl Flow {
    fn new(line: &Line) -> Self {
        let (receiver, sender) = (line.udp("server", PORT), line.udp("client", 0));
        sender.connect(line.server(PORT)).unwrap();
        Self { sender, receiver }
    }

    fn send(&self, number: u32, edge: u8, tell: u8) {
        let mut payload = [0; LENGTH];
        payload[NUMBER..][..4].copy_from_slice(&number.to_le_bytes());
        (payload[EDGE], payload[TELL]) = (edge, tell);
        self.sender.send(&payload).unwrap();
    }

    fn receive(&self) -> Option<Payload> {
        let mut payload = [0; LENGTH];
        (self.receiver.recv(&mut payload).ok()? == LENGTH).then_some(payload)
    }

    fn one(&self, number: u32, edge: u8, tell: u8) -> Option<Payload> {
        self.send(number, edge, tell);
        self.receive()
    }
}

/// Returns a line with `classify` at one level, and after it `heavy` at another.
fn graph([first, second]: [&str; 2]) -> Line {
    let line = Line::up();
    line.resolve_neighbours();
    let service = Service { level: second, ..Service::default() };
    line.node.deploy(&heavy("heavy"), &service).unwrap();
    let service = Service { level: first, then: &["heavy"], rules: RULES, ..Service::default() };
    let deployed = line.node.deploy(&classify(), &service).unwrap().service;
    assert_eq!(deployed.level, first, "{}", deployed.level_reason);
    assert_eq!(deployed.then, [(0, "heavy".to_owned())].into());
    line
}

fn number_of(level: &str) -> u32 {
    ["user", "nic", "kernel"].iter().position(|&known| known == level).unwrap() as u32
}

#[test]
fn a_packet_goes_from_module_to_module_with_its_mark_at_any_levels() {
    if !root_or_skip("graphs") {
        return;
    }
    let pairs = [
        ["user", "user"],
        ["nic", "nic"],
        ["nic", "kernel"],
        ["nic", "user"],
        ["kernel", "kernel"],
        ["kernel", "user"],
    ];
    for levels in pairs {
        let line = graph(levels);
        let (flow, before) = (Flow::new(&line), line.books());
        for number in 1..=50 {
            let found = flow.one(number, 0, 0).unwrap();
            let words = [NUMBER, FIRST_COUNT, FIRST_LEVEL, SECOND_COUNT, SECOND_LEVEL]
                .map(|at| word(&found, at));
            let [first, second] = levels.map(number_of);
            assert_eq!(words, [number, number, first, number, second], "{levels:?}");
        }
        // By an edge that leads nowhere: forwarded.
        let found = flow.one(51, 1, 0).unwrap();
        assert_eq!((word(&found, NUMBER), word(&found, SECOND_COUNT)), (51, 0), "{levels:?}");
        let balance = line.balance_since(&before);
        assert_eq!((balance.sent, balance.dropped()), (51, 0), "{levels:?}: {balance}");
        let stats = ["classify", "heavy"].map(|name| line.node.service(name).unwrap().stats);
        let counts = stats.map(|s| (s.packets, s.passed_on, s.forwarded, s.bytes));
        let length = (14 + 20 + 8 + LENGTH) as u64;
        assert_eq!(counts, [(51, 50, 1, 51 * length), (50, 0, 50, 50 * length)], "{levels:?}");
    }
}

#[test]
fn a_packet_never_goes_down_a_graph() {
    if !root_or_skip("graphs upwards") {
        return;
    }
    for levels in [["user", "nic"], ["user", "kernel"], ["kernel", "nic"]] {
        let line = graph(levels);
        let (flow, before) = (Flow::new(&line), line.books());
        for number in 1..=50 {
            let found = flow.one(number, 0, 0).unwrap();
            let words = [SECOND_COUNT, SECOND_LEVEL].map(|at| word(&found, at));
            assert_eq!(words, [number, 0], "{levels:?}: handled at user level, in one memory");
        }
        assert_eq!(line.balance_since(&before).dropped(), 0);
        assert_eq!(line.node.service("heavy").unwrap().level, levels[1]);
    }
}

#[test]
fn a_module_controls_the_previous_one_of_its_graph_by_messages() {
    if !root_or_skip("messages in graphs") {
        return;
    }
    for levels in [["user", "user"], ["nic", "user"], ["nic", "nic"], ["kernel", "kernel"]] {
        let line = graph(levels);
        let flow = Flow::new(&line);
        assert_eq!(word(&flow.one(1, 0, 0).unwrap(), SECOND_COUNT), 1);
        // From now on the first module forwards itself; the packet with the message still arrived
        // here.
        assert_eq!(word(&flow.one(2, 0, 2).unwrap(), SECOND_COUNT), 2);
        let by_itself = || (word(&flow.one(3, 0, 0)?, SECOND_COUNT) == 0).then_some(());
        assert!(
            wait_for(SOON, by_itself).is_some(),
            "{levels:?}: it was told to forward by itself"
        );
        let client = line.node.client();
        client.message("classify", &[3]).unwrap();
        let found = flow.one(4, 0, 0).unwrap();
        assert_eq!((word(&found, SECOND_COUNT), found[MARKED]), (0, 0x77), "{levels:?}");
        client.message("classify", &[1]).unwrap();
        flow.send(5, 0, 0);
        let dropped = || line.node.service("classify").unwrap().stats.dropped;
        let is_dropped = || dropped().contains_key("module.5").then_some(());
        assert!(wait_for(SOON, is_dropped).is_some(), "{levels:?}: {:?}", dropped());
    }
}

#[test]
fn services_of_a_graph_move_under_traffic_and_each_packet_meets_both_once_in_order() {
    if !root_or_skip("graphs under traffic") {
        return;
    }
    const PACKETS: u32 = 8000;
    const GAP: Duration = Duration::from_micros(500);
    let line = graph(["nic", "nic"]);
    let (flow, before) = (Flow::new(&line), line.books());
    let (arrived, moves) = std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let start = Instant::now();
            for number in 1..=PACKETS {
                let due = start + GAP * number;
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
                flow.send(number, 0, 0);
            }
        });
        let received = scope.spawn(|| {
            std::iter::from_fn(|| flow.receive()).take(PACKETS as usize).collect::<Vec<_>>()
        });
        let (client, mut moves) = (line.node.client(), 0);
        let steps = [
            ("heavy", "user"),
            ("classify", "kernel"),
            ("heavy", "kernel"),
            ("classify", "nic"),
            ("classify", "user"),
            ("heavy", "nic"),
            ("classify", "nic"),
        ];
        while !sender.is_finished() {
            for (service, level) in steps {
                client.move_service(service, level).unwrap();
                moves += 1;
                std::thread::sleep(GAP * 7);
            }
        }
        (received.join().unwrap(), moves)
    });
    for (number, found) in (1..).zip(&arrived) {
        let words = [NUMBER, FIRST_COUNT, SECOND_COUNT].map(|at| word(found, at));
        assert_eq!(words, [number; 3], "after {moves} moves");
    }
    assert_eq!(arrived.len(), PACKETS as usize, "after {moves} moves");
    assert!(moves > 100, "only {moves} moves");
    assert_eq!(line.balance_since(&before).dropped(), 0);
}

#[test]
fn a_graph_has_at_most_eight_services() {
    if !root_or_skip("long graphs") {
        return;
    }
    let line = Line::up();
    line.resolve_neighbours();
    let names: Vec<String> = (1..=8).map(|number| format!("s{number}")).collect();
    for (index, name) in names.iter().enumerate() {
        let then: Vec<&str> =
            index.checked_sub(1).map(|at| names[at].as_str()).into_iter().collect();
        let rules = if index == 7 { RULES } else { &[] };
        let service = Service { name, level: "nic", then: &then, rules, ..Service::default() };
        let module = if index == 7 { classify() } else { heavy("heavy") };
        line.node.deploy(&module, &service).unwrap();
    }
    let flow = Flow::new(&line);
    for number in 1..=20 {
        let found = flow.one(number, 0, 0).unwrap();
        assert_eq!([NUMBER, SECOND_COUNT].map(|at| word(&found, at)), [number; 2]);
    }
    for name in &names {
        let below = line.node.service(name).unwrap().stats.below.packets;
        assert_eq!(below, 20, "{name}");
    }
    let service = Service { name: "s9", then: &["s8"], ..Service::default() };
    let refused = line.node.deploy(&classify(), &service).unwrap_err().to_string();
    assert!(refused.contains("at most 8"), "{refused}");
}

#[test]
fn a_service_forwards_after_its_next_service_was_removed() {
    if !root_or_skip("graphs that end") {
        return;
    }
    let line = graph(["nic", "user"]);
    let flow = Flow::new(&line);
    assert_eq!(word(&flow.one(1, 0, 0).unwrap(), SECOND_COUNT), 1);
    let client = line.node.client();
    let refused = client.remove("heavy", false).unwrap_err().to_string();
    assert!(refused.contains("comes after classify"), "{refused}");
    line.node.remove("heavy").unwrap();
    let found = flow.one(2, 0, 0).unwrap();
    assert_eq!((word(&found, NUMBER), word(&found, SECOND_COUNT)), (2, 0));
    assert_eq!(line.node.service("classify").unwrap().then, [].into());
}
