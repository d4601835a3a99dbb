//! Services that come and go while traffic runs.

use std::time::{Duration, Instant};

use crate::common::Line;
use testkit::{Books, Service, root_or_skip, service_module};

const PORT: u16 = 7000;
/// 2,000 packets a second.
const GAP: Duration = Duration::from_micros(500);
/// Three seconds of them.
const PACKETS: u32 = 6000;
/// Deployments and removals in that time.
const CHANGES: u32 = 10;

#[test]
fn no_packet_is_lost_or_overtaken_while_a_service_comes_and_goes() {
    if !root_or_skip("replacement under traffic") {
        return;
    }
    let line = Line::up();
    line.acquaint();
    let monitor = service_module("monitor").unwrap();
    // Compiled before the traffic starts; the code is kept.
    let service = Service { rules: &["proto udp dport 7000"], ..Service::default() };
    line.node.deploy(&monitor, &service).unwrap();
    line.node.remove("monitor").unwrap();
    let (receiver, sender) = (line.udp("server", PORT), line.udp("client", 0));
    sender.connect(line.server(PORT)).unwrap();
    let before = line.books();
    let mut served = 0;
    let numbers = std::thread::scope(|scope| {
        scope.spawn(|| {
            let start = Instant::now();
            for number in 0..PACKETS {
                let due = start + GAP * number;
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
                sender.send(&number.to_be_bytes()).unwrap();
            }
        });
        let received = scope.spawn(|| {
            let mut numbers = Vec::new();
            let mut payload = [0; 4];
            while numbers.len() < PACKETS as usize && receiver.recv(&mut payload).is_ok() {
                numbers.push(u32::from_be_bytes(payload));
            }
            numbers
        });
        for _ in 0..CHANGES {
            line.node.deploy(&monitor, &service).unwrap();
            std::thread::sleep(GAP * (PACKETS / CHANGES / 3));
            served += line.node.service("monitor").unwrap().stats.packets;
            line.node.remove("monitor").unwrap();
            std::thread::sleep(GAP * (PACKETS / CHANGES / 3));
        }
        received.join().unwrap()
    });
    let sent: Vec<u32> = (0..PACKETS).collect();
    let moved = numbers.windows(2).filter(|pair| pair[1] != pair[0] + 1).collect::<Vec<_>>();
    assert_eq!(numbers, sent, "{} arrived; out of order: {moved:?}", numbers.len());
    // The services' own counters went with them.
    let after = Books::settled(&line.net, &line.node).unwrap();
    let balance = after.since(&before);
    assert!(balance.holds() && balance.dropped() == 0, "{balance}");
    assert!(served > 100, "the service had {served} packets");
}
