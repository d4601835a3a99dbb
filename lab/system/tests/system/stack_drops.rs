//! Packets that the kernel drops after the node left them to it: counted once, with a reason,
//! reported and captured.

use crate::capture::packets_of_request;
use crate::common::{Line, SOON, is_udp_to, module};
use crate::netfilter::{nft, wait_noticed};
use crate::packet::packet_line;
use api::EventKind;
use testkit::{Service, root_or_skip, wait_for};

/// L4 ports whose packets netfilter drops: the first plainly, the second after a module.
const PLAIN: u16 = 7001;
const SERVED: u16 = 7002;
const RULES: &[&str] = &["proto udp dport 7002"];
const FILTER: &str = "table ip filter {
  chain through { type filter hook forward priority filter; udp dport 7001-7002 drop; }
}";
const DROPPED: &str = "stack.netfilter_drop";
/// Module that returns `reroute`, which leaves the packet to the kernel.
const REROUTING: &str = r#"
(memory (export "memory") 1)
(func (export "on_packet") (result i32) (i32.const 0x100))"#;
const DATAGRAMS: usize = 3;

fn bytes_of(digits: &str) -> Vec<u8> {
    let pairs = digits.as_bytes().chunks_exact(2);
    pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

#[test]
fn kernel_drops_behind_packet_ports_are_counted_without_a_front_door() {
    if !root_or_skip("drops of the kernel's") {
        return;
    }
    let line = packet_line(1500);
    line.resolve_neighbours();
    nft(&line.net, FILTER);
    let wasm = module("rerouting", "window = 64", REROUTING);
    line.node.deploy(&wasm, &Service { rules: RULES, ..Service::default() }).unwrap();
    let before = line.books();
    let sender = line.udp("client", 0);
    for port in [PLAIN, SERVED] {
        (0..DATAGRAMS).for_each(|_| drop(sender.send_to(b"drop me", line.server(port))));
    }
    let there = DATAGRAMS as u64;
    let balance = line.balance_since(&before);
    let places = ["cell", "left"].map(|place| (format!("{place}.{DROPPED}"), there));
    assert_eq!(balance.drops, places.into(), "{balance}");
    let stats = line.node.stats().unwrap();
    let left = stats.ports.iter().find(|port| port.port == "left").unwrap();
    assert_eq!(left.stack_dropped, [(DROPPED.to_owned(), there)].into(), "{left:#?}");
    assert_eq!(stats.cell.stack_dropped.get(DROPPED), Some(&there), "{:#?}", stats.cell);
}

#[test]
fn kernel_drops_are_counted_by_reason_reported_and_captured() {
    if !root_or_skip("drops of the kernel's") {
        return;
    }
    let line = Line::up();
    line.resolve_neighbours();
    nft(&line.net, FILTER);
    wait_noticed(&line, true);
    let wasm = module("rerouting", "window = 64", REROUTING);
    line.node.deploy(&wasm, &Service { rules: RULES, ..Service::default() }).unwrap();
    let before = line.books();
    let sender = line.udp("client", 0);
    let request = api::CaptureRequest { dropped: true, ..Default::default() };
    let captured = packets_of_request(&line, &request, || {
        for port in [PLAIN, SERVED] {
            (0..DATAGRAMS).for_each(|_| drop(sender.send_to(b"drop me", line.server(port))));
        }
        line.balance_since(&before);
    });
    // What the cell hands over comes in by the port once more.
    let stats = line.node.stats().unwrap();
    let left = stats.ports.iter().find(|port| port.port == "left").unwrap();
    let there = DATAGRAMS as u64;
    assert_eq!(left.stack_dropped.get(DROPPED), Some(&(2 * there)), "{left:#?}");
    assert_eq!(stats.cell.stack_dropped.get(DROPPED), None, "{:#?}", stats.cell);
    let balance = line.balance_since(&before);
    assert_eq!(balance.dropped(), 2 * there, "{balance}");
    for port in [PLAIN, SERVED] {
        let of: Vec<_> =
            captured.iter().filter(|it| is_udp_to(&bytes_of(&it.bytes_hex), port)).collect();
        assert_eq!(of.len(), DATAGRAMS, "{captured:#?}");
        let named = |it: &&api::CapturedPacket| it.outcome.as_deref() == Some(DROPPED);
        assert!(of.iter().all(|it| it.dropped && it.seen_by == "kernel" && named(it)), "{of:#?}");
    }

    let listed = || {
        let reasons = line.node.client().why().unwrap().reasons;
        let those = reasons.into_iter().filter(|it| it.reason == DROPPED);
        let those: Vec<_> = those.filter(|it| it.packets == 2 * there).collect();
        (those.len() == 1).then_some(those)
    };
    let listed = wait_for(SOON, listed).expect("all in the list of reasons");
    assert!(listed.iter().all(|it| it.dropped && it.advice.contains("nft")), "{listed:#?}");
    assert!(listed.iter().any(|it| it.port.as_deref() == Some("left")), "{listed:#?}");
    let [client, server] = ["client", "server"].map(|host| line.net.v4(host, "r1").unwrap());
    let packet = format!("proto udp src {client} dst {server} dport {PLAIN} in left");
    let request = api::ExplainRequest { packet: Some(packet), ..Default::default() };
    let explained = line.node.client().explain(&request).unwrap();
    assert!(explained.steps.iter().any(|step| step.contains(DROPPED)), "{explained:#?}");
    // What comes again is told once a second.
    let events = || line.node.client().events(0, 0).unwrap().events;
    let all_are_told = || {
        let of =
            |it: &api::Event| it.kind == EventKind::Drops && it.reason.as_deref() == Some(DROPPED);
        let told: u64 = events().iter().filter(|it| of(it)).map(|it| it.count).sum();
        (told == 2 * there).then_some(())
    };
    assert!(wait_for(SOON, all_are_told).is_some(), "{:#?}", events());
    let events = events();
    assert!(!events.iter().any(|it| it.kind == EventKind::DropsUncounted), "{events:#?}");
}
