//! Bills of a node equal the packets sent and received: also when its daemon is killed, hands over,
//! or has no space on its disk, or when the service is removed.

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::time::Duration;

use api::{LedgerAmounts, LedgerRecord};
use daemon::ledger::files;
use ledger::Receipt;
use testkit::{Service, root_or_skip, service_module, wait_for};
use trust::PublicKey;

use crate::common::{Line, SOON};
use crate::disks::on_a_small_disk;
use crate::handover::deploy;

/// Packets to each service; in a soak run the million of the goal.
const PACKETS: u32 = 30_000;
const PACKETS_SOAK: u32 = 1_000_000;
/// Packets sent before the receiver is read: no queue on the path is shorter.
const BURST: u32 = 200;
/// Bytes of a frame: Ethernet, IPv4 and UDP headers, and the payload.
const FRAME_BYTES: u64 = 14 + 20 + 8 + 12;
const SERVICES: [(&str, &str, u16); 2] = [("up", "user", 7000), ("low", "nic", 7001)];
/// Time until a bill has been written; the node writes one each second.
const BILLED_WITHIN: Duration = Duration::from_secs(40);

/// Sender to a service, and receiver of the packets that it passes.
struct Flow {
    sender: UdpSocket,
    receiver: UdpSocket,
    sent: u32,
    received: u32,
}

impl Flow {
    fn new(line: &Line, port: u16) -> Self {
        let (receiver, sender) = (line.udp("server", port), line.udp("client", 0));
        sender.connect(line.server(port)).unwrap();
        Self { sender, receiver, sent: 0, received: 0 }
    }

    /// Sends `count` packets, all of which arrive.
    fn send(&mut self, count: u32) {
        let until = self.sent + count;
        while self.sent < until {
            for _ in 0..BURST.min(until - self.sent) {
                self.sender.send(&[7; 12]).unwrap();
                self.sent += 1;
            }
            while self.received < self.sent {
                self.receiver.recv(&mut [0; 12]).expect("every packet arrives");
                self.received += 1;
            }
        }
    }
}

pub fn records(line: &Line) -> Vec<LedgerRecord> {
    let (mut records, mut since) = (Vec::new(), 0);
    loop {
        let Ok(answer) = line.node.client().ledger(since) else { return records };
        records.extend(answer.records);
        since = answer.next;
        if !answer.more {
            return records;
        }
    }
}

/// Returns the billed amounts of each service.
fn billed(line: &Line) -> BTreeMap<String, LedgerAmounts> {
    let mut sums = BTreeMap::<String, LedgerAmounts>::new();
    for record in records(line) {
        let Some(service) = record.service else { continue };
        let (sum, used) = (sums.entry(service).or_default(), record.used);
        sum.packets_in += used.packets_in;
        sum.bytes_in += used.bytes_in;
        sum.packets_out += used.packets_out;
        sum.fuel_nic += used.fuel_nic;
        sum.fuel_kernel += used.fuel_kernel;
        sum.cpu_user_ns += used.cpu_user_ns;
        sum.memory_byte_seconds += used.memory_byte_seconds;
    }
    sums
}

/// Waits until this many packets were billed for a service, and no more.
fn assert_billed(line: &Line, service: &str, packets: u32) -> LedgerAmounts {
    let there = || {
        let sums = billed(line);
        let sum = sums.get(service).filter(|sum| sum.packets_in >= u64::from(packets))?;
        Some(*sum)
    };
    let sum = wait_for(BILLED_WITHIN, there);
    let sum = sum.unwrap_or_else(|| panic!("{:#?}\n{}", billed(line), line.node.log()));
    let expected = (u64::from(packets), u64::from(packets), u64::from(packets) * FRAME_BYTES);
    assert_eq!((sum.packets_in, sum.packets_out, sum.bytes_in), expected, "{service}");
    sum
}

#[test]
fn the_bill_of_a_number_of_packets_is_what_sender_and_receiver_count() {
    if !root_or_skip("bills") {
        return;
    }
    let packets = if std::env::var_os("TAM_SOAK").is_some() { PACKETS_SOAK } else { PACKETS };
    let mut line = Line::billed_each_second();
    line.resolve_neighbours();
    for (name, level, port) in SERVICES {
        deploy(&line, name, level, port);
    }
    let mut flows = SERVICES.map(|(_, _, port)| Flow::new(&line, port));
    let part = packets / 5;
    let send = |flows: &mut [Flow; 2]| flows.iter_mut().for_each(|flow| flow.send(part));
    send(&mut flows);
    // The daemon dies; what is sent while none is there is billed by the next.
    line.node.kill().unwrap();
    send(&mut flows);
    line.node.start_again(&line.net, "r1").unwrap();
    send(&mut flows);
    // It hands over to another one.
    assert!(line.node.take_over(&line.net, "r1").unwrap().success());
    send(&mut flows);
    // One service is removed, the other one ends with the node.
    flows.iter_mut().for_each(|flow| flow.send(packets - 4 * part));
    let counted: Vec<(u32, u32)> = flows.iter().map(|flow| (flow.sent, flow.received)).collect();
    assert_eq!(counted, [(packets, packets); 2]);
    line.node.client().remove("low", true).unwrap();
    let low = assert_billed(&line, "low", packets);
    assert!(low.fuel_nic >= u64::from(packets) && low.fuel_kernel == 0, "{low:?}");
    let node: PublicKey = line.node.client().node().unwrap().node_key.parse().unwrap();
    let directory = line.node.client().ledger_totals(0, u64::MAX).unwrap().directory;
    assert!(line.node.stop().unwrap().success());
    let (mut up, mut last) = (0, 0);
    let end = files::verify(directory.as_ref(), &node, |_, usage| {
        if usage.service.as_ref().is_some_and(|service| service.as_str() == "up") {
            up += usage.used.get(ledger::Field::PacketsIn);
            last += u32::from(usage.is_last);
        }
    });
    assert_eq!(end.unwrap().torn, None);
    assert_eq!((up, last), (u64::from(packets), 1), "the node's last bill");
    println!("{packets} packets to each of two services: sent, received and billed");
}

#[test]
fn a_receipt_is_verified_with_the_nodes_key_and_adds_up_to_the_bill() {
    if !root_or_skip("receipts") {
        return;
    }
    let line = Line::billed_each_second();
    line.resolve_neighbours();
    deploy(&line, "up", "user", 7000);
    let mut flow = Flow::new(&line, 7000);
    flow.send(500);
    let sum = assert_billed(&line, "up", 500);
    assert!(sum.memory_byte_seconds > 0, "{sum:?}");
    // What a compiler took is known when it has ended, and billed with the next record.
    let is_billed = || records(&line).iter().any(|it| it.used.compile_ns > 0).then_some(());
    wait_for(SOON, is_billed).expect("its compiler is billed");
    let info = line.node.client().node().unwrap();
    assert_eq!(info.ledger, "on");
    let node: PublicKey = info.node_key.parse().unwrap();
    let answer = line.node.client().ledger_receipt(&info.node_key, 0).unwrap();
    let receipt = Receipt::parse(&answer.receipt).unwrap();
    let usages = receipt.verify(&node).unwrap();
    let own: Vec<LedgerRecord> = usages.iter().map(|it| LedgerRecord::of(None, it)).collect();
    let all = records(&line);
    assert_eq!(own.len() as u64, answer.records);
    for (own, record) in own.iter().zip(all) {
        assert_eq!(*own, LedgerRecord { number: None, ..record });
    }
    // What a compiler took is there, and what was stored.
    let compiled: u64 = own.iter().map(|record| record.used.compile_ns).sum();
    let fetched: u64 = own.iter().map(|record| record.used.fetches).sum();
    assert!(compiled > 0 && fetched == 1, "{compiled} {fetched}");
    let changed = answer.receipt.replacen('A', "B", 1);
    assert!(
        Receipt::parse(&changed).is_err()
            || Receipt::parse(&changed).unwrap().verify(&node).is_err()
    );
    let nobody = "ed25519/d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";
    let refused = line.node.client().ledger_receipt(nobody, 0).unwrap_err();
    assert_eq!(refused.code(), api::ErrorCode::NotFound);
}

#[test]
fn a_node_without_room_for_its_ledger_takes_no_new_service_and_bills_later() {
    if !root_or_skip("a full disk under the ledger") {
        return;
    }
    let (disk, line) = on_a_small_disk(Line::billed_each_second(), "store.state");
    line.resolve_neighbours();
    deploy(&line, "up", "user", 7000);
    let mut flow = Flow::new(&line, 7000);
    flow.send(100);
    assert_billed(&line, "up", 100);
    disk.fill();
    flow.send(1000);
    let fails =
        || line.node.client().node().unwrap().ledger.contains("No space left").then_some(());
    wait_for(BILLED_WITHIN, fails).unwrap_or_else(|| panic!("{}", line.node.log()));
    let icmp = Service { name: "other", rules: &["proto icmp"], ..Service::default() };
    let refused = line.node.deploy(&service_module("monitor").unwrap(), &icmp).unwrap_err();
    assert!(format!("{refused:#}").contains("No space left"), "{refused:#}");
    // What runs goes on, and is kept.
    flow.send(1000);
    disk.clear();
    let taken = || line.node.deploy(&service_module("monitor").unwrap(), &icmp).ok();
    assert!(wait_for(SOON * 4, taken).is_some(), "{}", line.node.log());
    assert_billed(&line, "up", 2100);
    let events = line.node.client().events(0, 0).unwrap().events;
    let kinds: Vec<String> = events.iter().map(|event| event.kind.name()).collect();
    for kind in ["ledger_failed", "ledger_back"] {
        assert_eq!(kinds.iter().filter(|it| *it == kind).count(), 1, "{kinds:?}");
    }
}
