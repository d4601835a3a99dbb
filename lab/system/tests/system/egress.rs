//! A port's rate is shared as it was promised: of who always has packets each sends his share,
//! and those without one what is left.

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use api::{SessionChange, SessionRequest};
use testkit::{Net, NodeUnderTest, Service, root_or_skip};

use crate::common::{Ends, Line, module};

/// Each session's packets go to a port of their own.
const PORTS: [u16; 3] = [7000, 7001, 7002];
const PAYLOAD: [u8; 1400] = [0; 1400];
/// A packet on an Ethernet, in bits: with its headers, preamble, frame check sequence and gap.
const PACKET_BITS: f64 = (1400.0 + 28.0 + 14.0 + 24.0) * 8.0;
const PASSES: &str = r#"(memory (export "memory") 1 1)
    (func (export "on_packet") (result i32) (i32.const 0))"#;

impl Line {
    /// With a port `right` of which the node file says how much it sends.
    fn at_rate(rate: &str) -> Self {
        let net = Net::line(1500).unwrap();
        let with_rate = |text: String| {
            text.replace("name = \"right\"\n", &format!("name = \"right\"\nrate = \"{rate}\"\n"))
        };
        let node = NodeUnderTest::start_edited(&net, "r1", "", with_rate).unwrap();
        Self { node, net }
    }

    fn with_share(&self, name: &str, share: Option<&str>) {
        let send = share.map(|share| ("right".to_owned(), share.to_owned()));
        let request = SessionRequest {
            name: name.to_owned(),
            send: send.into_iter().collect(),
            queue: Some("256KiB".to_owned()),
            ..SessionRequest::default()
        };
        self.node.client().create_session(&request).unwrap();
    }

    fn passes(&self, session: &str, port: u16) {
        self.passes_at("user", &format!("of-{session}"), session, port);
    }

    fn passes_at(&self, level: &str, name: &str, session: &str, port: u16) {
        let manifest =
            "window = 64\nmemory_pages_max = 1\nlevels = [\"nic\", \"kernel\", \"user\"]";
        let (wasm, rule) = (module("passes", manifest, PASSES), format!("proto udp dport {port}"));
        let service = Service { name, session, level, rules: &[&rule], ..Service::default() };
        let deployed = self.node.deploy(&wasm, &service).unwrap().service;
        assert_eq!(deployed.level, level, "{}", deployed.level_reason);
    }

    /// All send more than the port does; how many packets of each came within the time.
    fn flood(&self, time: Duration) -> ([f64; 3], Duration) {
        let receivers = PORTS.map(|port| self.udp("server", port));
        let senders = PORTS.map(|port| self.sender_to(port));
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    for socket in &senders {
                        (0..2).for_each(|_| drop(socket.send(&PAYLOAD)));
                    }
                    std::thread::sleep(Duration::from_micros(900));
                }
            });
            let _ends = Ends(&over);
            // Until all queues are full.
            std::thread::sleep(Duration::from_millis(500));
            for receiver in &receivers {
                came(receiver);
            }
            let since = Instant::now();
            let mut counts = [0.0; 3];
            while since.elapsed() < time {
                std::thread::sleep(Duration::from_millis(20));
                for (count, receiver) in counts.iter_mut().zip(&receivers) {
                    *count += f64::from(came(receiver));
                }
            }
            (counts, since.elapsed())
        })
    }
}

/// How many packets wait in the socket.
fn came(receiver: &UdpSocket) -> u32 {
    let mut payload = [0; 1500];
    receiver.set_nonblocking(true).unwrap();
    (0..).take_while(|_| receiver.recv(&mut payload).is_ok()).count() as u32
}

/// Of all of them.
fn parts(counts: [f64; 3]) -> [f64; 3] {
    let all: f64 = counts.iter().sum();
    counts.map(|count| count / all)
}

fn assert_near(parts: [f64; 3], expected: [f64; 3]) {
    let is_near = parts.iter().zip(expected).all(|(part, expected)| (part - expected).abs() < 0.02);
    assert!(is_near, "{parts:?} instead of {expected:?}");
}

#[test]
fn each_session_sends_its_share_of_a_port_and_those_without_one_the_rest() {
    if !root_or_skip("shares of ports") {
        return;
    }
    let line = Line::at_rate("20Mbit/s");
    line.acquaint();
    line.with_share("gold", Some("5ms/10ms"));
    line.with_share("silver", Some("2ms/10ms"));
    line.with_share("rest", None);
    for (session, port) in ["gold", "silver", "rest"].into_iter().zip(PORTS) {
        line.passes(session, port);
    }
    let before = line.books();
    let (counts, took) = line.flood(Duration::from_secs(2));
    assert_near(parts(counts), [0.5, 0.2, 0.3]);
    // Never more than the port's rate: what it is ahead, and a packet of each, is for nothing.
    let bits = counts.iter().sum::<f64>() * PACKET_BITS;
    let most = 20e6 * took.as_secs_f64() * 1.02 + 10.0 * PACKET_BITS;
    assert!(bits < most, "{bits} of {most} bits in {took:?}");
    // Another promise counts from the next period on.
    let send = BTreeMap::from([("right".to_owned(), "7ms/10ms".to_owned())]);
    let more = SessionChange { send: Some(send), ..SessionChange::default() };
    line.node.client().set_session("silver", &more).unwrap_err();
    let send = BTreeMap::from([("right".to_owned(), "4ms/10ms".to_owned())]);
    let more = SessionChange { send: Some(send), ..SessionChange::default() };
    line.node.client().set_session("silver", &more).unwrap();
    let (counts, _) = line.flood(Duration::from_secs(2));
    assert_near(parts(counts), [0.5, 0.4, 0.1]);
    let balance = line.balance_since(&before);
    assert!(balance.dropped() > 0, "{balance}");
    let gold = line.node.client().session("gold").unwrap();
    assert!(gold.used.total.sent_bytes > Some(0), "{:?}", gold.used);
}

/// By what each came of the port's rate.
fn of_rate(counts: [f64; 3], took: Duration, rate: f64) -> [f64; 3] {
    counts.map(|count| count * PACKET_BITS / took.as_secs_f64() / rate)
}

#[test]
fn below_user_level_no_session_sends_more_than_its_share_and_the_others_what_is_left() {
    if !root_or_skip("shares of ports") {
        return;
    }
    for level in ["nic", "kernel"] {
        let line = Line::at_rate("20Mbit/s");
        line.acquaint();
        line.with_share("gold", Some("5ms/10ms"));
        line.with_share("silver", Some("2ms/10ms"));
        line.with_share("rest", None);
        for (session, port) in ["gold", "silver", "rest"].into_iter().zip(PORTS) {
            line.passes_at(level, &format!("of-{session}"), session, port);
        }
        let before = line.books();
        let (counts, took) = line.flood(Duration::from_secs(2));
        assert_near(of_rate(counts, took, 20e6), [0.5, 0.2, 0.29]);
        // What a port has left goes to those without a share, and nothing to those with one.
        line.node
            .client()
            .set_session(
                "silver",
                &SessionChange { send: Some(BTreeMap::new()), ..SessionChange::default() },
            )
            .unwrap();
        let (counts, took) = line.flood(Duration::from_secs(2));
        let [gold, silver, rest] = of_rate(counts, took, 20e6);
        assert_near([gold, silver + rest, 0.0], [0.5, 0.49, 0.0]);
        let balance = line.balance_since(&before);
        let dropped = |service: &str| balance.drops.get(&format!("{service}.share")).copied();
        let all: u64 = ["of-gold", "of-silver", "of-rest"].into_iter().filter_map(dropped).sum();
        assert_eq!(balance.dropped(), all, "{balance}");
        let used = line.node.client().session("gold").unwrap().used;
        let [share] = used.send.as_slice() else { panic!("{:?}", used.send) };
        assert_eq!((share.port.as_str(), share.below.as_str()), ("right", "policed"));
        assert_eq!(Some(share.dropped_below), dropped("of-gold"));
        let forwarded = line.node.service("of-gold").unwrap().stats.forwarded;
        assert_eq!(share.sent_below_bytes, forwarded * (PAYLOAD.len() as u64 + 42));
        assert_eq!(share.sent_bytes, share.sent_below_bytes);
    }
}

#[test]
fn a_session_has_one_share_of_a_port_wherever_its_packets_leave_from() {
    if !root_or_skip("shares of ports") {
        return;
    }
    let line = Line::at_rate("20Mbit/s");
    line.acquaint();
    line.with_share("gold", Some("5ms/10ms"));
    for (level, port) in ["user", "nic", "kernel"].into_iter().zip(PORTS) {
        line.passes_at(level, &format!("at-{level}"), "gold", port);
    }
    let (counts, took) = line.flood(Duration::from_secs(2));
    let parts = of_rate(counts, took, 20e6);
    assert_near([parts.iter().sum(), 0.0, 0.0], [0.5, 0.0, 0.0]);
    let used = line.node.client().session("gold").unwrap().used;
    let [share] = used.send.as_slice() else { panic!("{:?}", used.send) };
    assert!(share.sent_bytes > share.sent_below_bytes, "{share:?}");
}

#[test]
fn what_waits_for_its_share_leaves_when_the_share_is_given_up_and_is_lost_for_no_reason() {
    if !root_or_skip("shares of ports") {
        return;
    }
    const PACKETS: u32 = 40;
    let line = Line::at_rate("10Mbit/s");
    line.acquaint();
    // A packet in a second: all but a few of them wait.
    line.with_share("slow", Some("2ms/1s"));
    line.passes("slow", PORTS[0]);
    let before = line.books();
    let (receiver, sender) = (line.udp("server", PORTS[0]), line.sender_to(PORTS[0]));
    (0..PACKETS).for_each(|number| {
        let mut payload = PAYLOAD;
        payload[..4].copy_from_slice(&number.to_be_bytes());
        sender.send(&payload).unwrap();
    });
    let mut payload = [0; 1500];
    receiver.recv(&mut payload).expect("the first has its share");
    let none = SessionChange { send: Some(BTreeMap::new()), ..SessionChange::default() };
    line.node.client().set_session("slow", &none).unwrap();
    let mut numbers = vec![0];
    while numbers.len() < PACKETS as usize {
        receiver.recv(&mut payload).unwrap_or_else(|error| panic!("{error}: {numbers:?} came"));
        numbers.push(u32::from_be_bytes(*payload.first_chunk().unwrap()));
    }
    assert_eq!(numbers, (0..PACKETS).collect::<Vec<_>>(), "in order");
    assert_eq!(line.balance_since(&before).dropped(), 0);
}
