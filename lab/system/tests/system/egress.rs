//! Sharing of a port's rate by reservations: a session that always has packets sends its share, and
//! sessions without a reservation share the rest.

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use api::{SendUse, SessionChange, SessionRequest};
use testkit::{Net, NodeUnderTest, Service, root_or_skip, wait_for};

use crate::common::{Ends, Line, SOON, module};

/// L4 ports of the sessions' packets.
pub const PORTS: [u16; 3] = [7000, 7001, 7002];
const PAYLOAD: [u8; 1400] = [0; 1400];
/// Bits of a packet on an Ethernet: with its headers, preamble, frame check sequence and gap.
const PACKET_BITS: f64 = (1400.0 + 28.0 + 14.0 + 24.0) * 8.0;
/// Longest time between two rounds of a sender in which no session loses any of its share: half of
/// the burst that a share's account holds, where packets do not queue (`nic`).
const SENDER_PAUSE_MAX: Duration = Duration::from_millis(5);
/// Longest time between two reads of a receiver in which its socket's buffer does not overflow.
const RECEIVER_PAUSE_MAX: Duration = Duration::from_millis(45);
/// Time in which all queues are full again.
const SETTLED_IN: Duration = Duration::from_millis(300);
/// Longest duration of a flood.
const FLOOD_MAX: Duration = Duration::from_secs(60);
const PASSES: &str = r#"(memory (export "memory") 1 1)
    (func (export "on_packet") (result i32) (i32.const 0))"#;

impl Line {
    /// Returns a line with a port `right` of this rate in the node file.
    pub fn at_rate(rate: &str) -> Self {
        Self::at_rate_with(rate, "")
    }

    /// Returns such a line with more in the node file.
    pub fn at_rate_with(rate: &str, more: &str) -> Self {
        let net = Net::line(1500).unwrap();
        let with_rate = |text: String| {
            text.replace("name = \"right\"\n", &format!("name = \"right\"\nrate = \"{rate}\"\n"))
        };
        let node = NodeUnderTest::start_edited(&net, "r1", more, with_rate).unwrap();
        Self { node, net }
    }

    pub fn with_share(&self, name: &str, share: Option<&str>) {
        self.with_queue(name, share, "256KiB");
    }

    fn with_queue(&self, name: &str, share: Option<&str>, queue: &str) {
        let send = share.map(|share| ("right".to_owned(), share.to_owned()));
        let request = SessionRequest {
            name: name.to_owned(),
            send: send.into_iter().collect(),
            queue: Some(queue.to_owned()),
            ..SessionRequest::default()
        };
        self.node.client().create_session(&request).unwrap();
    }

    /// Returns the session's usage of its share of the port `right`.
    pub fn sent_by(&self, session: &str) -> SendUse {
        let used = self.node.client().session(session).unwrap().used;
        let [share] = used.send.as_slice() else { panic!("{:?}", used.send) };
        share.clone()
    }

    fn passes(&self, session: &str, port: u16) {
        self.passes_at("user", &format!("of-{session}"), session, port);
    }

    pub fn passes_at(&self, level: &str, name: &str, session: &str, port: u16) {
        let manifest =
            "window = 64\nmemory_pages_max = 1\nlevels = [\"nic\", \"kernel\", \"user\"]";
        let (wasm, rule) = (module("passes", manifest, PASSES), format!("proto udp dport {port}"));
        let service = Service { name, session, level, rules: &[&rule], ..Service::default() };
        let deployed = self.node.deploy(&wasm, &service).unwrap().service;
        assert_eq!(deployed.level, level, "{}", deployed.level_reason);
    }

    /// Counts each session's packets while all send more than the port carries, for `time` in
    /// total.
    ///
    /// Times in which this machine did something else do not count: after a pause of the sender a
    /// queue may have been empty, and after one of the receiver its socket may have been full.
    pub fn flood(&self, time: Duration) -> ([f64; 3], Duration) {
        let receivers = PORTS.map(|port| self.udp("server", port));
        let senders = PORTS.map(|port| self.sender_to(port));
        let (over, longest_pause_us) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut last = Instant::now();
                while !over.load(Ordering::Relaxed) {
                    for socket in &senders {
                        (0..2).for_each(|_| drop(socket.send(&PAYLOAD)));
                    }
                    let pause = last.elapsed().as_micros() as u64;
                    longest_pause_us.fetch_max(pause, Ordering::Relaxed);
                    last = Instant::now();
                    std::thread::sleep(Duration::from_micros(900));
                }
            });
            let _ends = Ends(&over);
            let (begin, mut last) = (Instant::now(), Instant::now());
            // Until all queues are full.
            let mut settled_in = SETTLED_IN;
            let (mut counts, mut counted) = ([0.0; 3], Duration::ZERO);
            while counted < time {
                assert!(begin.elapsed() < FLOOD_MAX, "this machine always does something else");
                std::thread::sleep(Duration::from_millis(20));
                let came = receivers.each_ref().map(|receiver| f64::from(came(receiver)));
                let took = last.elapsed();
                last += took;
                let pause = Duration::from_micros(longest_pause_us.swap(0, Ordering::Relaxed));
                if pause > SENDER_PAUSE_MAX || took > RECEIVER_PAUSE_MAX {
                    settled_in = SETTLED_IN;
                } else if settled_in > Duration::ZERO {
                    settled_in = settled_in.saturating_sub(took);
                } else {
                    counted += took;
                    counts.iter_mut().zip(came).for_each(|(count, came)| *count += came);
                }
            }
            (counts, counted)
        })
    }
}

/// Reads and counts the packets that wait in the socket.
fn came(receiver: &UdpSocket) -> u32 {
    let mut payload = [0; 1500];
    receiver.set_nonblocking(true).unwrap();
    (0..).take_while(|_| receiver.recv(&mut payload).is_ok()).count() as u32
}

/// Returns the payload of the packet of that number.
fn numbered(number: u32) -> [u8; PAYLOAD.len()] {
    let mut payload = PAYLOAD;
    payload[..4].copy_from_slice(&number.to_be_bytes());
    payload
}

fn send_all(sender: &UdpSocket, numbers: std::ops::Range<u32>) {
    for number in numbers {
        sender.send(&numbered(number)).unwrap();
    }
}

fn number_of(payload: &[u8]) -> u32 {
    u32::from_be_bytes(*payload.first_chunk().unwrap())
}

/// Returns numbers and arrival times of the packets that come until none has for half a second.
fn numbers(receiver: &UdpSocket) -> Vec<(u32, Instant)> {
    let mut payload = [0; 1500];
    std::iter::from_fn(|| {
        receiver.recv(&mut payload).ok()?;
        Some((number_of(&payload), Instant::now()))
    })
    .collect()
}

/// Returns each count as a share of the sum.
fn parts(counts: [f64; 3]) -> [f64; 3] {
    let all: f64 = counts.iter().sum();
    counts.map(|count| count / all)
}

fn assert_near(parts: [f64; 3], expected: [f64; 3]) {
    let is_near = parts.iter().zip(expected).all(|(part, expected)| (part - expected).abs() < 0.02);
    assert!(is_near, "{parts:?} instead of {expected:?}");
}

#[test]
fn each_session_sends_its_port_share_and_sessions_without_one_divide_the_rest() {
    if !root_or_skip("shares of ports") {
        return;
    }
    let line = Line::at_rate("20Mbit/s");
    line.resolve_neighbours();
    line.with_share("gold", Some("5ms/10ms"));
    line.with_share("silver", Some("2ms/10ms"));
    line.with_share("rest", None);
    for (session, port) in ["gold", "silver", "rest"].into_iter().zip(PORTS) {
        line.passes(session, port);
    }
    let before = line.books();
    let (counts, took) = line.flood(Duration::from_secs(2));
    assert_near(parts(counts), [0.5, 0.2, 0.3]);
    // Never more than the port's rate, apart from the burst and a packet of each session.
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

/// Returns each count as a share of the port's rate.
pub fn of_rate(counts: [f64; 3], took: Duration, rate: f64) -> [f64; 3] {
    counts.map(|count| count * PACKET_BITS / took.as_secs_f64() / rate)
}

#[test]
fn below_user_level_sessions_are_held_to_their_port_shares_and_others_to_the_rest() {
    if !root_or_skip("shares of ports") {
        return;
    }
    for level in ["nic", "kernel"] {
        let line = Line::at_rate("20Mbit/s");
        line.resolve_neighbours();
        line.with_share("gold", Some("5ms/10ms"));
        line.with_share("silver", Some("2ms/10ms"));
        line.with_share("rest", None);
        for (session, port) in ["gold", "silver", "rest"].into_iter().zip(PORTS) {
            line.passes_at(level, &format!("of-{session}"), session, port);
        }
        let before = line.books();
        let (counts, took) = line.flood(Duration::from_secs(2));
        assert_near(of_rate(counts, took, 20e6), [0.5, 0.2, 0.29]);
        // The rest of a port's rate goes to sessions without a share, and none of it to those with
        // one. At `nic` tests of the front door show it
        // (`those_without_a_share_have_what_is_left_together_…`).
        if level == "kernel" {
            let none = SessionChange { send: Some(BTreeMap::new()), ..SessionChange::default() };
            line.node.client().set_session("silver", &none).unwrap();
            let (counts, took) = line.flood(Duration::from_secs(2));
            let [gold, silver, rest] = of_rate(counts, took, 20e6);
            assert_near([gold, silver + rest, 0.0], [0.5, 0.49, 0.0]);
        }
        let balance = line.balance_since(&before);
        let dropped = |service: &str| balance.drops.get(&format!("{service}.share")).copied();
        let all: u64 = ["of-gold", "of-silver", "of-rest"].into_iter().filter_map(dropped).sum();
        assert_eq!(balance.dropped(), all, "{balance}");
        let used = line.node.client().session("gold").unwrap().used;
        let [share] = used.send.as_slice() else { panic!("{:?}", used.send) };
        let how = (share.nic.as_str(), share.kernel.as_str(), share.user.as_str());
        assert_eq!((share.port.as_str(), how), ("right", ("policed", "queued", "queued")));
        let (sent, drops) = match level {
            "nic" => (share.sent_nic_bytes, share.dropped_nic),
            _ => (share.sent_kernel_bytes, share.dropped_kernel),
        };
        assert_eq!(Some(drops), dropped("of-gold"));
        assert_eq!(share.dropped_nic + share.dropped_kernel, drops);
        let forwarded = line.node.service("of-gold").unwrap().stats.forwarded;
        assert_eq!(sent, forwarded * (PAYLOAD.len() as u64 + 42));
        assert_eq!(share.sent_bytes, sent);
        assert_eq!(share.waited_kernel > 0, level == "kernel", "{share:?}");
    }
}

#[test]
fn a_session_has_one_share_of_a_port_wherever_its_packets_leave_from() {
    if !root_or_skip("shares of ports") {
        return;
    }
    let line = Line::at_rate("20Mbit/s");
    line.resolve_neighbours();
    line.with_share("gold", Some("5ms/10ms"));
    for (level, port) in ["user", "nic", "kernel"].into_iter().zip(PORTS) {
        line.passes_at(level, &format!("at-{level}"), "gold", port);
    }
    let (counts, took) = line.flood(Duration::from_secs(2));
    let parts = of_rate(counts, took, 20e6);
    assert_near([parts.iter().sum(), 0.0, 0.0], [0.5, 0.0, 0.0]);
    let used = line.node.client().session("gold").unwrap().used;
    let [share] = used.send.as_slice() else { panic!("{:?}", used.send) };
    assert!(share.sent_bytes > share.sent_nic_bytes + share.sent_kernel_bytes, "{share:?}");
}

#[test]
fn packets_waiting_for_a_port_share_are_sent_without_loss_when_it_is_removed() {
    if !root_or_skip("shares of ports") {
        return;
    }
    const PACKETS: u32 = 40;
    let line = Line::at_rate("10Mbit/s");
    line.resolve_neighbours();
    // A packet in a second: all but a few of them wait.
    line.with_share("slow", Some("2ms/1s"));
    line.passes("slow", PORTS[0]);
    let before = line.books();
    let (receiver, sender) = (line.udp("server", PORTS[0]), line.sender_to(PORTS[0]));
    send_all(&sender, 0..PACKETS);
    let mut payload = [0; 1500];
    receiver.recv(&mut payload).expect("the first has its share");
    let none = SessionChange { send: Some(BTreeMap::new()), ..SessionChange::default() };
    line.node.client().set_session("slow", &none).unwrap();
    let came: Vec<u32> = numbers(&receiver).into_iter().map(|(number, _)| number).collect();
    assert_eq!(came, (1..PACKETS).collect::<Vec<_>>(), "in order");
    assert_eq!(line.balance_since(&before).dropped(), 0);
}

/// Burst of three times the session's share for two seconds: the excess waits, and nothing is lost.
/// A session beside it that keeps to its share never waits for it.
#[test]
fn at_kernel_a_burst_waits_for_its_share_and_is_sent_in_order_without_a_loss() {
    if !root_or_skip("shares of ports") {
        return;
    }
    const BURST: u32 = 960;
    const STEADY: u32 = 300;
    let line = Line::at_rate("20Mbit/s");
    line.resolve_neighbours();
    // 170 packets in a second, and room for 1,024.
    line.with_queue("gold", Some("1ms/10ms"), "4MiB");
    line.with_share("silver", Some("5ms/10ms"));
    for (session, port) in ["gold", "silver"].into_iter().zip(PORTS) {
        line.passes_at("kernel", &format!("of-{session}"), session, port);
    }
    let before = line.books();
    let receivers = [PORTS[0], PORTS[1]].map(|port| line.udp("server", port));
    let senders = [PORTS[0], PORTS[1]].map(|port| line.sender_to(port));
    let begin = Instant::now();
    let [gold, silver] = std::thread::scope(|scope| {
        let [of_gold, of_silver] = &senders;
        scope.spawn(move || {
            for number in 0..BURST {
                of_gold.send(&numbered(number)).unwrap();
                std::thread::sleep(Duration::from_micros(1_900));
            }
        });
        scope.spawn(move || {
            for number in 0..STEADY {
                of_silver.send(&numbered(number)).unwrap();
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let came = receivers.each_ref().map(|receiver| scope.spawn(move || numbers(receiver)));
        came.map(|it| it.join().unwrap())
    });
    let order =
        |came: &[(u32, Instant)]| came.iter().map(|(number, _)| *number).collect::<Vec<_>>();
    assert_eq!(order(&gold), (0..BURST).collect::<Vec<_>>());
    assert_eq!(order(&silver), (0..STEADY).collect::<Vec<_>>());
    assert_eq!(line.balance_since(&before).dropped(), 0);
    // No faster than the share: two slices ahead, a tick of at most 10 ms, and a packet.
    let took = gold.last().unwrap().1.saturating_duration_since(begin).as_secs_f64();
    let share = 20e6 / 10.0 / PACKET_BITS;
    let most = share * (took + 0.02 + 0.01) + 2.0;
    assert!(f64::from(BURST) <= most * 1.02, "{BURST} of {most} packets in {took} s");
    let used = line.sent_by("gold");
    assert!(used.waited_kernel > 500 && used.dropped_kernel == 0, "{used:?}");
    let bytes = u64::from(BURST) * (PAYLOAD.len() as u64 + 42);
    assert_eq!((used.sent_kernel_bytes, used.sent_bytes), (bytes, bytes));
    let used = line.sent_by("silver");
    assert_eq!((used.waited_kernel, used.dropped_kernel), (0, 0), "{used:?}");
    // When nothing waits any more packets leave straight again.
    let before = line.sent_by("gold").waited_kernel;
    for number in 0..20 {
        senders[0].send(&numbered(number)).unwrap();
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(order(&numbers(&receivers[0])), (0..20).collect::<Vec<_>>());
    assert_eq!(line.sent_by("gold").waited_kernel, before);
    for service in ["of-gold", "of-silver"] {
        assert_eq!(line.node.service(service).unwrap().level, "kernel");
    }
}

#[test]
fn packets_waiting_at_kernel_are_sent_when_the_share_or_session_is_removed() {
    if !root_or_skip("shares of ports") {
        return;
    }
    const PACKETS: u32 = 40;
    let none = SessionChange { send: Some(BTreeMap::new()), ..SessionChange::default() };
    for name in ["changed", "removed"] {
        let line = Line::at_rate("10Mbit/s");
        line.resolve_neighbours();
        // A packet or two in a second: all others wait.
        line.with_share(name, Some("2ms/1s"));
        line.passes_at("kernel", "slow", name, PORTS[0]);
        let before = line.books();
        let (receiver, sender) = (line.udp("server", PORTS[0]), line.sender_to(PORTS[0]));
        send_all(&sender, 0..PACKETS);
        let waits = || (line.sent_by(name).waited_kernel >= u64::from(PACKETS) - 6).then_some(());
        wait_for(SOON, waits).unwrap_or_else(|| panic!("{:?}", line.sent_by(name)));
        let client = line.node.client();
        match name {
            "changed" => drop(client.set_session(name, &none).unwrap()),
            _ => drop(client.remove_session(name, true).unwrap()),
        }
        let came: Vec<u32> = numbers(&receiver).into_iter().map(|(number, _)| number).collect();
        assert_eq!(came, (0..PACKETS).collect::<Vec<_>>(), "{name}: in order");
        if name == "changed" {
            assert_eq!(line.balance_since(&before).dropped(), 0);
        }
    }
}

#[test]
fn a_service_moves_while_its_packets_wait_and_none_overtakes_another() {
    if !root_or_skip("shares of ports") {
        return;
    }
    const EACH: u32 = 60;
    let line = Line::at_rate("20Mbit/s");
    line.resolve_neighbours();
    // 170 packets in a second: a third of one for each burst.
    line.with_queue("gold", Some("1ms/10ms"), "4MiB");
    line.passes_at("kernel", "moving", "gold", PORTS[0]);
    let before = line.books();
    let (receiver, sender) = (line.udp("server", PORTS[0]), line.sender_to(PORTS[0]));
    let mut sent = 0;
    let mut burst = || {
        send_all(&sender, sent..sent + EACH);
        sent += EACH;
    };
    let came = std::thread::scope(|scope| {
        let came = scope.spawn(|| numbers(&receiver));
        burst();
        for _ in 0..2 {
            line.node.client().move_service("moving", "user").unwrap();
            burst();
            // It moves when none of its packets waits, or stays.
            let _ = line.node.client().move_service("moving", "kernel");
            burst();
        }
        came.join().unwrap()
    });
    let came: Vec<u32> = came.into_iter().map(|(number, _)| number).collect();
    assert_eq!(came, (0..sent).collect::<Vec<_>>());
    assert_eq!(line.balance_since(&before).dropped(), 0);
}
