//! Queues in front of the cell: what a session has reserved it has, whatever others send; what does
//! not fit is dropped by the front door, on that session's account, and nothing else is.

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
/// Frames of a queue that nobody reserved.
const QUEUE_DEFAULT: u64 = 256;
const FRAME: u64 = 4096;

impl Line {
    /// `gold` with a queue of so many packets, and `hostile` with what nobody reserved; each has a
    /// service that counts and passes.
    fn with_queues(gold: u64, steps: u32) -> Self {
        let line = Self::up();
        line.acquaint();
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

    fn signal_cell(&self, signal: Signal) {
        let pid = self.node.cell().unwrap();
        kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
    }

    /// Packets for which its queue had no room, and what waits in it.
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
fn a_flood_in_front_of_a_cell_that_stands_still_takes_nobody_elses_room() {
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
fn beside_a_flood_of_more_than_ten_times_as_much_nothing_is_lost_of_what_was_promised() {
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
fn what_a_dead_cell_had_waiting_takes_no_room_of_the_next_one() {
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
    // What a service never saw, because its cell died, is in no counter of a service.
    let balance = Books::settled(&line.net, &line.node).unwrap().since(&before);
    assert!(balance.holds(), "{balance}");
    assert_eq!(balance.drops, BTreeMap::from([("cell.lost_with_cells".to_owned(), lost)]));
    assert_eq!((line.queue_of("gold"), line.queue_of("hostile")), ((0, 0), (0, 0)));
}
