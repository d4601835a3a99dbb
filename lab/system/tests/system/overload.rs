//! More packets than a service can handle: each one arrives or is in exactly one counter.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::Signal;

use crate::common::{Ends, Line, PAYLOAD_ADDRESS, SOON, module};
use crate::levels::BELOW;
use testkit::{Service, root_or_skip, service_module, wait_for};

/// Packets of one burst: a hundred times the capacity of the rings.
const BURST: u64 = 200_000;
/// UDP payload that makes a frame of 64 bytes with its checksum sequence: 60 without.
const PAYLOAD: [u8; 18] = [7; 18];
/// L4 port of the burst.
const PORT: u16 = 7000;

#[test]
fn a_burst_through_monitor_is_accounted_to_the_last_packet() {
    if root_or_skip("overload of monitor") {
        burst("monitor", &[]);
    }
}

#[test]
fn a_burst_through_touch_is_accounted_to_the_last_packet() {
    if root_or_skip("overload of touch") {
        burst("touch", &[("passes", "4")]);
    }
}

fn burst(module: &str, parameters: &[(&str, &str)]) {
    let line = Line::up();
    line.resolve_neighbours();
    let service = Service { rules: &["proto udp dport 7000"], parameters, ..Service::default() };
    line.node.deploy(&service_module(module).unwrap(), &service).unwrap();
    let receiver = line.udp("server", PORT);
    let before = line.books();
    let sender = line.udp("client", 0);
    send(&sender, line.server(PORT));
    let balance = line.balance_since(&before);
    assert_eq!(balance.sent, BURST);
    assert!(balance.received > 0, "{balance}");
    let stats = line.node.service(module).unwrap().stats;
    // What did not reach the service was dropped in front of it: by the sender's device or
    // the full ring.
    let behind = balance.drops.iter().filter(|(name, _)| name.starts_with("r1.to-server"));
    assert_eq!(stats.forwarded, balance.received + behind.map(|(_, n)| n).sum::<u64>());
    assert_eq!(stats.counters["packets"], stats.packets);
    drop(receiver);
    eprintln!("{module}: {balance}");
}

/// Sends as fast as the socket accepts: the kernel reports a full queue of its own by a drop.
fn send(sender: &std::net::UdpSocket, to: SocketAddr) {
    sender.connect(to).unwrap();
    for _ in 0..BURST {
        sender.send(&PAYLOAD).unwrap();
    }
}

/// Module that works some microseconds on each packet, and writes into it how many it has seen.
const WORK: &str = r#"
(memory (export "memory") 1 1)
(func (export "on_packet") (result i32)
  (local $step i32) (local $hash i32)
  (loop $more
    (local.set $hash (i32.mul (i32.xor (local.get $hash) (local.get $step)) (i32.const 16777619)))
    (br_if $more (i32.lt_u
      (local.tee $step (i32.add (local.get $step) (i32.const 1))) (i32.const 4000))))
  (i32.store (i32.const 0x9004) (local.get $hash))
  (i32.store (i32.const 0x9000) (i32.add (i32.load (i32.const 0x9000)) (i32.const 1)))
  (i32.store offset=4 (i32.const PAYLOAD) (i32.load (i32.const 0x9000)))
  (i32.store16 (i32.sub (i32.const PAYLOAD) (i32.const 2)) (i32.const 0))
  (i32.const 0))"#;

#[test]
fn a_service_moves_down_from_an_overloaded_user_level() {
    if !root_or_skip("moves under overload") {
        return;
    }
    let line = Line::up();
    line.resolve_neighbours();
    let fields = WORK.replace("PAYLOAD", &PAYLOAD_ADDRESS.to_string());
    let wasm = module("work", &format!("window = 64\nmemory_pages_max = 1\n{BELOW}"), &fields);
    let rules: &[&str] = &["proto udp dport 7000"];
    let service = Service { rules, level: "user", ..Service::default() };
    line.node.deploy(&wasm, &service).unwrap();
    let (receiver, sender) = (line.udp("server", PORT), line.udp("client", 0));
    sender.connect(line.server(PORT)).unwrap();
    let before = line.books();
    let (end, drained) = (AtomicBool::new(false), AtomicBool::new(false));
    let seen = std::thread::scope(|scope| {
        let send = scope.spawn(|| {
            let (mut number, mut payload) = (0_u32, [0; 8]);
            while !end.load(Ordering::Relaxed) {
                payload[..4].copy_from_slice(&number.to_le_bytes());
                sender.send(&payload).unwrap();
                number += 1;
            }
        });
        let receive = scope.spawn(|| {
            let (mut seen, mut payload) = (Vec::new(), [0; 8]);
            loop {
                match receiver.recv(&mut payload) {
                    Ok(_) => {
                        let word = |at: usize| {
                            u32::from_le_bytes([0, 1, 2, 3].map(|byte| payload[at + byte]))
                        };
                        seen.push((word(0), word(4)));
                    }
                    Err(_) if drained.load(Ordering::Relaxed) => return seen,
                    Err(_) => {}
                }
            }
        });
        let (drains, ends) = (Ends(&drained), Ends(&end));
        let client = line.node.client();
        let lost = || {
            let ports = line.node.stats().unwrap().ports;
            ports.iter().map(|port| port.socket_ring_full + port.socket_dropped).sum::<u64>()
        };
        let begun = lost();
        // The machine may run either process first, so the cell is stopped for a moment.
        line.signal_cell(Signal::STOP);
        let overloaded = wait_for(SOON, || (lost() > begun).then_some(()));
        line.signal_cell(Signal::CONT);
        overloaded.expect("its ring is full");
        // By way of each level, more than once; from `nic` to `kernel` by way of user level.
        for level in ["nic", "kernel", "user", "kernel", "nic", "user", "nic"] {
            assert_eq!(client.move_service("work", level).unwrap().level, level);
            if level == "user" {
                continue;
            }
            let below = || line.node.service("work").unwrap().stats.below.packets;
            let came = below();
            wait_for(SOON, || (below() > came + 1000).then_some(()))
                .unwrap_or_else(|| panic!("its packets do not come to {level}"));
        }
        drop(ends);
        send.join().unwrap();
        drop(drains);
        receive.join().unwrap()
    });
    // In order, and each packet by the same memory as the one before it.
    let wrong = seen.windows(2).find(|two| two[0].0 >= two[1].0 || two[0].1 >= two[1].1);
    assert_eq!(wrong, None);
    let balance = line.balance_since(&before);
    assert_eq!(balance.received, seen.len() as u64, "{balance}");
    let forwarded = line.node.service("work").unwrap().stats.forwarded;
    assert_eq!(seen.last().map(|last| u64::from(last.1)), Some(forwarded));
}
