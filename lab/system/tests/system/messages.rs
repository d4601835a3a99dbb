//! Control messages: from a client of the API into the lanes of a service, and what they answer.

use testkit::{RawPort, Service, root_or_skip, wait_for};

use crate::common::{Line, SOON, dscp, is_udp_to, module};

const PORT: u16 = 7100;

/// Marks each packet with the DSCP that the last message said: one byte, at most 63.
const MARKER: &str = r#"
(memory (export "memory") 1)
(func (export "on_message") (param $length i32) (result i32)
  (if (i32.ne (local.get $length) (i32.const 1)) (then (return (i32.const -1))))
  (if (i32.gt_u (i32.load8_u (i32.const 0x8102)) (i32.const 63)) (then (return (i32.const -2))))
  (if (i32.eq (i32.load8_u (i32.const 0x8102)) (i32.const 13)) (then unreachable))
  (i32.store8 (i32.const 0x9000) (i32.load8_u (i32.const 0x8102)))
  (i32.const 0))
(func (export "on_packet") (result i32)
  (local $dscp i32) (local $sum i32)
  (local.set $dscp (i32.load8_u (i32.const 0x9000)))
  ;; RFC 1624: the checksum as the first word goes from 45 00 to 45 xx.
  (local.set $sum (i32.add
    (i32.sub (i32.const 0xffff) (i32.or
      (i32.shl (i32.load8_u (i32.const 0x811a)) (i32.const 8))
      (i32.load8_u (i32.const 0x811b))))
    (i32.shl (local.get $dscp) (i32.const 2))))
  (local.set $sum (i32.add (i32.and (local.get $sum) (i32.const 0xffff))
    (i32.shr_u (local.get $sum) (i32.const 16))))
  (local.set $sum (i32.sub (i32.const 0xffff) (local.get $sum)))
  (i32.store8 (i32.const 0x811a) (i32.shr_u (local.get $sum) (i32.const 8)))
  (i32.store8 (i32.const 0x811b) (local.get $sum))
  (i32.store8 (i32.const 0x8111) (i32.shl (local.get $dscp) (i32.const 2)))
  (i32.const 0))"#;

#[test]
fn a_message_changes_what_a_service_does_while_packets_pass() {
    if !root_or_skip("control messages") {
        return;
    }
    let line = Line::up();
    line.resolve_neighbours();
    let wasm = module("marker", "window = 64", MARKER);
    let rules = &["proto udp dport 7100"];
    line.node.deploy(&wasm, &Service { rules, ..Service::default() }).unwrap();
    let capture = RawPort::open(&line.net, "server", "r1").unwrap();
    let marked = || {
        line.udp("client", 0).send_to(b"hello", line.server(PORT)).unwrap();
        let frame = capture.receive(SOON, |frame| is_udp_to(frame, PORT)).unwrap().unwrap();
        assert!(wire::parse_frame(&frame).is_ok(), "its checksum is right: {frame:02x?}");
        dscp(&frame)
    };
    let before = line.books();
    let client = line.node.client();
    let say = |data: &[u8]| client.message("marker", data).unwrap().answers;
    for mark in [46, 0, 8, 63] {
        assert_eq!(say(&[mark]), [Some(0)], "taken");
        assert_eq!(marked(), mark);
    }
    // What the module does not take, it says, and goes on as before.
    assert_eq!((say(&[64]), say(b"")), (vec![Some(-2)], vec![Some(-1)]));
    assert_eq!(marked(), 63);
    let balance = line.balance_since(&before);
    assert_eq!(balance.dropped(), 0, "{balance}");

    // A message that traps costs the lane its memory, and no packet.
    assert_eq!(say(&[13]), [None]);
    assert_eq!(marked(), 0, "a fresh memory");
    let service = line.node.service("marker").unwrap();
    assert_eq!(service.stats.traps, [("unreachable".to_owned(), 1)].into());
}

/// Drops each packet, and sends a message as often as it may and once more; counts those that the
/// node accepted.
const TELLS: &str = r#"
(import "tam" "message_send" (func $tell (param i32 i32) (result i32)))
(memory (export "memory") 1)
(global (export "tam_counter_taken") i32 (i32.const 0x9010))
(func (export "on_packet") (result i32) (local $tries i32)
  (loop $again
    (if (i32.eqz (call $tell (i32.const 0x9000) (i32.const 8))) (then
      (i64.store (i32.const 0x9010) (i64.add (i64.load (i32.const 0x9010)) (i64.const 1)))))
    (local.set $tries (i32.add (local.get $tries) (i32.const 1)))
    (br_if $again (i32.lt_u (local.get $tries) (i32.const 5))))
  (i32.const 1))"#;

/// Passes each packet on, and counts messages.
const HEARS: &str = r#"
(memory (export "memory") 1)
(global (export "tam_counter_heard") i32 (i32.const 0x9010))
(func (export "on_packet") (result i32) (i32.const 0))
(func (export "on_message") (param i32) (result i32)
  (i64.store (i32.const 0x9010) (i64.add (i64.load (i32.const 0x9010)) (i64.const 1)))
  (i32.const 0))"#;

#[test]
fn each_accepted_message_is_delivered_or_counted_also_in_a_storm_with_pools() {
    if !root_or_skip("a storm of messages") {
        return;
    }
    let line = Line::up();
    line.resolve_neighbours();
    line.with_session("gold", ["1ms/50ms", "1ms/50ms"], None);
    let tells = module("tells", "window = 64\nneeds = [\"messages\"]", TELLS);
    line.node.deploy(&tells, &Service { session: "gold", ..Service::default() }).unwrap();
    let pools = "window = 64\n[pools.packets]\nprocessor = 0\nevents = [\"packet\"]\n\
        [pools.messages]\nprocessor = 1\nevents = [\"message\"]\n";
    let rule = format!("proto udp dport {PORT}");
    let (then, rules) = (["tells"], [&*rule]);
    let hears = Service { session: "gold", then: &then, rules: &rules, ..Service::default() };
    line.node.deploy(&module("hears", pools, HEARS), &hears).unwrap();
    let sender = line.sender_to(PORT);
    (0..3_000u32).for_each(|number| drop(sender.send(&number.to_be_bytes())));
    let ended = || {
        let counted = |name| line.node.service(name).unwrap().stats.counters;
        let (taken, heard) = (counted("tells")["taken"], counted("hears")["heard"]);
        let messages = line.node.stats().unwrap().cell.messages;
        let sum = messages.delivered + messages.dropped + messages.unheard;
        // The counters are of several reports: they agree when nothing is under way any more.
        (taken > 1_000 && taken == sum && heard == messages.delivered).then_some(messages)
    };
    let Some(messages) = wait_for(SOON, ended) else {
        panic!("{:?}", line.node.stats().unwrap());
    };
    assert_eq!(messages.unheard, 0, "{messages:?}");
}
