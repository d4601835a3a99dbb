//! Modules that trap and modules that never end: the handling of their packets, and of other
//! sessions'.

use std::time::{Duration, Instant};

use crate::common::{Line, PAYLOAD_ADDRESS, SOON, module};
use testkit::{Service, root_or_skip};

const PORT: u16 = 7000;
const RULES: &[&str] = &["proto udp dport 7000"];

/// Module that traps on the third packet of each instance.
const EVERY_THIRD: &str = r#"
(memory (export "memory") 1)
(global (export "tam_counter_seen") i32 (i32.const 0x9000))
(func (export "on_packet") (result i32)
  (i64.store (i32.const 0x9000) (i64.add (i64.load (i32.const 0x9000)) (i64.const 1)))
  (if (i64.eq (i64.load (i32.const 0x9000)) (i64.const 3)) (then unreachable))
  (i32.const 0))"#;

#[test]
fn a_packet_that_traps_is_dropped_and_the_instance_replaced() {
    if !root_or_skip("traps") {
        return;
    }
    let line = Line::up();
    line.resolve_neighbours();
    let wasm = module("third", "window = 64", EVERY_THIRD);
    line.node.deploy(&wasm, &Service { rules: RULES, ..Service::default() }).unwrap();
    let (receiver, sender) = (line.udp("server", PORT), line.udp("client", 0));
    let before = line.books();
    let mut received = Vec::new();
    for number in 0..300u32 {
        sender.send_to(&number.to_be_bytes(), line.server(PORT)).unwrap();
        if number % 3 != 2 {
            let mut payload = [0; 4];
            receiver.recv(&mut payload).unwrap();
            received.push(u32::from_be_bytes(payload));
        }
    }
    let passed: Vec<u32> = (0..300).filter(|number| number % 3 != 2).collect();
    assert_eq!(received, passed, "all others arrive, in order");
    let balance = line.balance_since(&before);
    assert_eq!((balance.sent, balance.received), (300, 200));
    assert_eq!(balance.drops, [("third.trap".to_owned(), 100)].into());
    let service = line.node.service("third").unwrap();
    assert_eq!(service.stats.traps, [("unreachable".to_owned(), 100)].into());
    assert_eq!((service.stats.lanes_running, service.restarts), (1, 0));
    assert!(service.stats.last_trap.unwrap().contains("unreachable"));
}

/// Attempts of the test below. On a busy machine some are late; a mechanism that does not work is
/// late each time.
const ATTEMPTS: usize = 9;
/// Time within which the next packet arrives: 10 ms of processor time are promised, and its path
/// and a busy machine come on top.
const NEXT_ARRIVES_WITHIN: Duration = Duration::from_millis(20);

#[test]
fn an_endless_loop_costs_one_packet_and_ten_milliseconds() {
    if !root_or_skip("endless loops") {
        return;
    }
    let line = Line::up();
    line.resolve_neighbours();
    let wasm = module(
        "loop",
        "window = 64",
        &format!(
            r#"(memory (export "memory") 1)
        (func (export "on_packet") (result i32)
          (if (i32.eq (i32.load8_u (i32.const {PAYLOAD_ADDRESS})) (i32.const 0x4c))
            (then (loop $for_ever (br $for_ever))))
          (i32.const 0))"#
        ),
    );
    line.node.deploy(&wasm, &Service { rules: RULES, ..Service::default() }).unwrap();
    let (receiver, sender) = (line.udp("server", PORT), line.udp("client", 0));
    sender.connect(line.server(PORT)).unwrap();
    receiver.set_read_timeout(Some(SOON)).unwrap();
    let before = line.books();
    let mut delays = Vec::new();
    let mut payload = [0; 8];
    for _ in 0..ATTEMPTS {
        let start = Instant::now();
        sender.send(b"Loop").unwrap();
        sender.send(b"next").unwrap();
        assert_eq!(receiver.recv(&mut payload).unwrap(), 4);
        delays.push(start.elapsed());
        assert_eq!(&payload[..4], b"next");
        assert_eq!(line.node.service("loop").unwrap().state, "running", "the API answers");
    }
    let least = *delays.iter().min().unwrap();
    assert!(least < NEXT_ARRIVES_WITHIN, "{delays:?}");
    let balance = line.balance_since(&before);
    let attempts = ATTEMPTS as u64;
    assert_eq!((balance.sent, balance.received), (2 * attempts, attempts));
    assert_eq!(balance.drops, [("loop.trap".to_owned(), attempts)].into());
    let traps = line.node.service("loop").unwrap().stats.traps;
    assert_eq!(traps, [("time_limit".to_owned(), attempts)].into());
}
