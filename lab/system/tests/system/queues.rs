//! Queues in front of the cell: a session keeps its reserved queue, whatever others send; packets
//! beyond it are dropped by the front door, on that session's account, and no others are.

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::time::Duration;

use api::SessionRequest;
use rustix::process::{Pid, Signal, kill_process};
use testkit::{Books, Service, root_or_skip, wait_for};

use crate::common::{Line, SOON, module};
use crate::turns::{counting, numbers};

const GOLD: u16 = 7000;
const HOSTILE: u16 = 7001;
/// Frames of a queue without a reservation.
const QUEUE_DEFAULT: u64 = 256;
const FRAME: u64 = 4096;

impl Line {
    /// Returns a line with `gold` with a queue of `gold` packets, and `hostile` without a
    /// reservation; each has a service that counts and passes.
    fn with_queues(gold: u64, steps: u32) -> Self {
        let line = Self::up();
        line.resolve_neighbours();
        for (name, port, queue, steps) in
            [("gold", GOLD, Some(gold * FRAME), 10), ("hostile", HOSTILE, None, steps)]
        {
            let request = SessionRequest {
                name: name.to_owned(),
                cpu: queue.map(|_| "1ms/4ms".to_owned()).into_iter().collect(),
                queue: queue.map(|bytes| format!("{}KiB", bytes / 1024)),
                ..SessionRequest::default()
            };
            line.node.client().create_session(&request).unwrap();
            let manifest = "window = 64\nmemory_pages_max = 1\nlevels = [\"user\"]";
            let wasm = module("count", manifest, &counting(steps));
            let rule = format!("proto udp dport {port}");
            let service = Service { name, session: name, rules: &[&rule], ..Service::default() };
            line.node.deploy(&wasm, &service).unwrap();
        }
        line
    }

    /// Sends a signal to the cell's process.
    pub fn signal_cell(&self, signal: Signal) {
        let pid = self.node.cell().unwrap();
        kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
    }

    /// Returns the packets dropped because the session's queue was full, and those that wait in it.
    fn queue_of(&self, session: &str) -> (u64, u64) {
        let used = self.node.client().session(session).unwrap().used;
        (used.total.queue_dropped.unwrap_or(0), used.queue_bytes.unwrap_or(0))
    }
}

fn send(sender: &UdpSocket, numbers: std::ops::Range<u32>) {
    for number in numbers {
        sender.send(&number.to_be_bytes()).unwrap();
    }
}

#[test]
fn a_flood_before_a_stopped_cell_takes_no_queue_credit_of_other_sessions() {
    if !root_or_skip("queues in front of the cell") {
        return;
    }
    const PACKETS: u32 = 200;
    const FLOOD: u32 = 100;
    let line = Line::with_queues(u64::from(PACKETS), 10);
    let receivers = [line.udp("server", GOLD), line.udp("server", HOSTILE)];
    let (gold, hostile) = (line.sender_to(GOLD), line.sender_to(HOSTILE));
    let before = line.books();
    line.signal_cell(Signal::STOP);
    // A hundred times as much, and ten times what all rings hold: first the flood, then the other.
    send(&hostile, 0..PACKETS * FLOOD / 2);
    for number in 0..PACKETS {
        send(&gold, number..number + 1);
        send(&hostile, 0..FLOOD / 2);
    }
    // One more than it reserved.
    send(&gold, PACKETS..PACKETS + 1);
    // Longer than what is lost is waited for: what lies in the rings is not.
    std::thread::sleep(Duration::from_millis(2_500));
    line.signal_cell(Signal::CONT);
    assert_eq!(numbers(&receivers[0]), (0..PACKETS).collect::<Vec<_>>(), "all of them, in order");
    assert_eq!(numbers(&receivers[1]).len() as u64, QUEUE_DEFAULT);
    let dropped = u64::from(PACKETS * FLOOD) - QUEUE_DEFAULT;
    let balance = line.balance_since(&before);
    let drops = BTreeMap::from([("left.drop_queue".to_owned(), dropped + 1)]);
    assert_eq!(balance.drops, drops, "no ring was full, and no memory missing");
    assert_eq!((line.queue_of("hostile"), line.queue_of("gold")), ((dropped, 0), (1, 0)));
}

#[test]
fn a_reserved_queue_loses_nothing_beside_a_flood_of_over_ten_times_its_rate() {
    if !root_or_skip("queues in front of the cell") {
        return;
    }
    const PACKETS: u32 = 1000;
    // More than a core does.
    let line = Line::with_queues(256, 200_000);
    let receivers = [line.udp("server", GOLD), line.udp("server", HOSTILE)];
    let (gold, hostile) = (line.sender_to(GOLD), line.sender_to(HOSTILE));
    let before = line.books();
    for number in 0..PACKETS {
        send(&gold, number..number + 1);
        send(&hostile, 0..15);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(numbers(&receivers[0]), (0..PACKETS).collect::<Vec<_>>(), "all of them, in order");
    let passed = numbers(&receivers[1]).len() as u64;
    let balance = line.balance_since(&before);
    let dropped = u64::from(PACKETS) * 15 - passed;
    let drops = BTreeMap::from([("left.drop_queue".to_owned(), dropped)]);
    assert!(dropped > 0 && balance.drops == drops, "{balance}");
    assert_eq!((line.queue_of("hostile"), line.queue_of("gold")), ((dropped, 0), (0, 0)));
}

#[test]
fn packets_lost_with_a_dead_cell_take_no_queue_credit_of_the_next_one() {
    if !root_or_skip("queues in front of the cell") {
        return;
    }
    const PACKETS: u32 = 100;
    let line = Line::with_queues(u64::from(PACKETS), 10);
    let receiver = line.udp("server", GOLD);
    let (gold, hostile) = (line.sender_to(GOLD), line.sender_to(HOSTILE));
    let before = line.books();
    line.signal_cell(Signal::STOP);
    send(&gold, 0..PACKETS);
    send(&hostile, 0..PACKETS);
    let pid = line.node.cell().unwrap();
    line.signal_cell(Signal::KILL);
    let is_back = || {
        let node = line.node.client().node().ok()?;
        let services = line.node.client().services().ok()?.services;
        let run = services.iter().all(|service| service.state == "running");
        (run && node.cell_pid.is_some_and(|new| new != pid)).then_some(())
    };
    wait_for(SOON, is_back).expect("another cell");
    // The sockets are there when the cell has bound them.
    let first = || {
        send(&gold, 0..1);
        let forwarded = line.node.service("gold").unwrap().stats.forwarded;
        (forwarded > 0).then_some(())
    };
    wait_for(SOON, first).expect("packets come to the new cell");
    numbers(&receiver);
    line.signal_cell(Signal::STOP);
    send(&gold, 0..PACKETS);
    line.signal_cell(Signal::CONT);
    assert_eq!(numbers(&receiver).len() as u32, PACKETS, "all of its queue is there");
    let lost = u64::from(2 * PACKETS);
    // Packets that a service never saw, because its cell died, are in no counter of a service.
    let balance = Books::settled(&line.net, &line.node).unwrap().since(&before);
    assert!(balance.holds(), "{balance}");
    assert_eq!(balance.drops, BTreeMap::from([("cell.lost_with_cells".to_owned(), lost)]));
    assert_eq!((line.queue_of("gold"), line.queue_of("hostile")), ((0, 0), (0, 0)));
}

/// Module that watches its session's queue and counts its notifications; of a packet's head it
/// keeps the UDP port.
const WATCHING: &str = r#"
(import "tam" "queue_watch" (func $watch (param i32 i32) (result i32)))
(memory (export "memory") 1 1)
(global (export "tam_counter_short") i32 (i32.const 0x9000))
(global (export "tam_counter_long") i32 (i32.const 0x9008))
(global (export "tam_counter_dropped") i32 (i32.const 0x9010))
(global (export "tam_counter_length") i32 (i32.const 0x9018))
(global (export "tam_counter_port") i32 (i32.const 0x9020))
(func (export "on_start") (result i32)
  (if (i32.ne (call $watch (i32.const 101) (i32.const 0)) (i32.const -1)) (then (return (i32.const 1))))
  (if (i32.ne (call $watch (i32.const 10) (i32.const 11)) (i32.const -1)) (then (return (i32.const 2))))
  (call $watch (i32.const 50) (i32.const 10)))
(func (export "on_packet") (result i32)
  (if (i32.ne (call $watch (i32.const 1) (i32.const 1)) (i32.const -4)) (then unreachable))
  (i32.const 0))
(func (export "on_queue") (param $what i32) (param $value i32) (local $at i32)
  (local.set $at (i32.add (i32.const 0x9000) (i32.mul (local.get $what) (i32.const 8))))
  (i64.store (local.get $at) (i64.add (i64.load (local.get $at)) (i64.const 1)))
  (if (i32.eq (local.get $what) (i32.const 2)) (then
    (i64.store (i32.const 0x9018) (i64.extend_i32_u (local.get $value)))
    (i64.store (i32.const 0x9020) (i64.or
      (i64.shl (i64.load8_u (i32.const 0x8126)) (i64.const 8))
      (i64.load8_u (i32.const 0x8127)))))))"#;

#[test]
fn a_module_that_watches_its_queue_is_notified_of_its_length_and_of_drops() {
    if !root_or_skip("queues that are watched") {
        return;
    }
    let line = Line::up();
    line.resolve_neighbours();
    line.with_session("gold", ["1ms/4ms"], Some("256KiB"));
    let manifest = "window = 64\nmemory_pages_max = 1\nneeds = [\"queues\"]";
    let wasm = module("watch", manifest, WATCHING);
    let rule = format!("proto udp dport {GOLD}");
    let service = Service { name: "watch", session: "gold", rules: &[&rule], ..Service::default() };
    line.node.deploy(&wasm, &service).unwrap();
    let (receiver, sender) = (line.udp("server", GOLD), line.sender_to(GOLD));
    let heard = || {
        let counters = line.node.service("watch").unwrap().stats.counters;
        ["long", "short", "dropped", "length", "port"].map(|name| counters[name])
    };
    send(&sender, 0..20);
    assert_eq!(numbers(&receiver).len(), 20);
    assert_eq!(heard(), [0; 5], "that was not half of 64 packets");
    for round in 1..=2 {
        line.signal_cell(Signal::STOP);
        send(&sender, 0..100);
        line.signal_cell(Signal::CONT);
        assert_eq!(numbers(&receiver), (0..64).collect::<Vec<_>>());
        // Ethernet, IPv4, UDP and a number of 4 bytes.
        let all = [round, round, round, 14 + 20 + 8 + 4, u64::from(GOLD)];
        assert!(wait_for(SOON, || (heard() == all).then_some(())).is_some(), "{:?}", heard());
    }
    assert_eq!(line.queue_of("gold"), (2 * 36, 0));
}
