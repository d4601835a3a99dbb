//! Tests of the link with frames, on a node with a cable for the clock, and of its parts.

use super::chance::{Chance, MILLION};
use super::clock::{Clock, TICK_IDLE_US, TICK_US, Tick};
use super::held::{CAPACITY, Held, NoRoom, Order};
use super::settings::{Settings, refuse};
use super::way::{Fate, Way};
use super::{
    DUPLICATED, HELD, LINK, LOST, NO_ROOM, QUEUE_FULL, RECEIVED, REORDERED, SENT, TICKS, on_packet,
    on_start,
};
use std::collections::VecDeque;
use tam::Verdict;
use tam::testing::Node;

const LEFT: u16 = 0;
const RIGHT: u16 = 1;
const TICK: u16 = 2;
const TOCK: u16 = 3;
/// Ethernet overhead of a tick in bytes.
const ETHERNET_REST: u64 = 24;

/// Simulated node whose port `tick` is cabled to `tock` and sends 8 Mbit/s. The module's time
/// advances in steps of 4 ms, as on a kernel with 250 Hz.
struct Line {
    node: Option<Node>,
    now_us: u64,
    /// Frames on the clock's cable, with their arrival times.
    cable: VecDeque<(u64, Vec<u8>)>,
    free_at: u64,
    /// Frames sent: time, port, bytes.
    left: Vec<(u64, u16, Vec<u8>)>,
}

impl Line {
    fn new(parameters: &[(&str, &str)]) -> Self {
        Self::started(parameters).unwrap()
    }

    fn started(parameters: &[(&str, &str)]) -> Result<Self, u16> {
        let texts = [("a", "left"), ("b", "right"), ("clock", "tick")];
        let node = Node::new().with_window(64).with_port("right", RIGHT).with_port("tick", TICK);
        let node = texts
            .iter()
            .chain(parameters)
            .fold(node, |node, (name, value)| node.with_parameter(name, value.as_bytes()));
        let mut node = node.with_port("tock", TOCK);
        // State that the previous test has left in this program's memory.
        LINK.with(|link| {
            link.clock = Clock::new();
            for held in &mut link.held {
                while let Some(due) = held.due(u64::MAX) {
                    held.sent(due);
                    HELD.add(u64::MAX);
                }
            }
        });
        node.start(on_start)?;
        let now_us = 1_000_003_100;
        Ok(Self {
            node: Some(node),
            now_us,
            cable: VecDeque::new(),
            free_at: now_us,
            left: Vec::new(),
        })
    }

    /// Delivers a frame at a port now.
    fn comes(&mut self, port: u16, frame: &[u8]) -> Verdict {
        let mut node = self.node.take().unwrap().arriving_at(port);
        node.set_now_ms(self.now_us / 4_000 * 4);
        let outcome = node.packet(on_packet, frame);
        self.node = Some(node);
        let redirected = match outcome.verdict {
            Verdict::Redirect { port } => Some((port, outcome.bytes)),
            _ => None,
        };
        for (port, frame) in outcome.sent.into_iter().chain(redirected) {
            match port {
                TICK => self.onto_cable(frame),
                port => self.left.push((self.now_us, port, frame)),
            }
        }
        outcome.verdict
    }

    /// Puts a frame on the cable: it waits until the wire is free, and arrives when it leaves.
    fn onto_cable(&mut self, frame: Vec<u8>) {
        let leaves = self.now_us.max(self.free_at);
        self.free_at = leaves + frame.len() as u64 + ETHERNET_REST;
        self.cable.push_back((leaves, frame));
    }

    /// Advances the time, and the clock with it.
    fn until(&mut self, end_us: u64) {
        while let Some((_, frame)) = self.cable.pop_front_if(|(at, _)| *at <= end_us) {
            self.now_us = self.now_us.max(self.free_at - frame.len() as u64 - ETHERNET_REST);
            self.comes(TOCK, &frame);
        }
        self.now_us = end_us;
    }

    fn pass(&mut self, us: u64) {
        self.until(self.now_us + us);
    }
}

/// Returns the counters, which belong to the whole program.
fn counts() -> [u64; 8] {
    [&RECEIVED, &SENT, &LOST, &QUEUE_FULL, &NO_ROOM, &DUPLICATED, &REORDERED, &HELD]
        .map(tam::Counter::value)
}

fn since(before: [u64; 8]) -> [u64; 8] {
    let now = counts();
    core::array::from_fn(|at| now[at].wrapping_sub(before[at]))
}

/// Asserts that every packet has exactly one fate.
fn assert_balance(before: [u64; 8]) {
    let [received, sent, lost, full, no_room, duplicated, _, held] = since(before);
    assert_eq!(received + duplicated, sent + lost + full + no_room + held, "{:?}", since(before));
}

/// Returns a frame with a number in it.
fn numbered(number: u32, length: usize) -> Vec<u8> {
    let mut frame = vec![0; length];
    frame[12..14].copy_from_slice(&[0x08, 0x00]);
    frame[20..24].copy_from_slice(&number.to_be_bytes());
    frame
}

fn number_of(frame: &[u8]) -> u32 {
    u32::from_be_bytes(frame[20..24].try_into().unwrap())
}

#[test]
fn a_packet_comes_out_at_the_other_end_when_it_is_due() {
    let mut line = Line::new(&[("delay", "10ms/25ms")]);
    let before = counts();
    // The clock finds its step.
    line.comes(LEFT, &numbered(0, 60));
    line.pass(50_000);
    line.left.clear();
    for number in 0..200 {
        let (from, to, delay) = match number % 3 {
            0 => (RIGHT, LEFT, 25_000),
            _ => (LEFT, RIGHT, 10_000),
        };
        let came = line.now_us;
        let frame = numbered(number, 60 + number as usize * 7);
        assert_eq!(line.comes(from, &frame), Verdict::Drop { reason: 3 });
        line.pass(30_000 + u64::from(number) * 37);
        let [(left, port, bytes)] = &line.left[..] else { panic!("{:?}", line.left) };
        assert_eq!((*port, bytes), (to, &frame));
        assert!((*left).abs_diff(came + delay) <= 1_000, "{} of {delay}", left - came);
        line.left.clear();
    }
    assert_balance(before);
    assert_eq!(since(before)[7], 0, "nothing is held");
}

#[test]
fn order_is_kept_under_jitter() {
    let mut line = Line::new(&[("delay", "5ms"), ("jitter", "20ms")]);
    let before = counts();
    for number in 0..500 {
        line.comes(LEFT, &numbered(number, 100));
        line.pass(700);
    }
    line.pass(40_000);
    let numbers: Vec<u32> = line.left.iter().map(|(_, _, frame)| number_of(frame)).collect();
    assert_eq!(numbers, (0..500).collect::<Vec<_>>());
    assert_balance(before);
}

#[test]
fn reordering_delays_some_frames_and_loses_or_doubles_none() {
    let mut line = Line::new(&[("delay", "3ms"), ("reorder", "10%"), ("late", "4ms")]);
    let before = counts();
    for number in 0..2_000 {
        line.comes(LEFT, &numbered(number, 80));
        line.pass(500);
    }
    line.pass(50_000);
    let mut numbers: Vec<u32> = line.left.iter().map(|(_, _, frame)| number_of(frame)).collect();
    let mut most = 0;
    let late = numbers.iter().filter(|number| {
        most = most.max(**number);
        **number < most
    });
    let late = late.count() as u64;
    let [.., reordered, held] = since(before);
    assert_eq!((late, held), (reordered, 0), "each that was held longer was passed");
    assert!((140..=260).contains(&reordered), "{reordered} of 2000");
    numbers.sort_unstable();
    assert_eq!(numbers, (0..2_000).collect::<Vec<_>>());
    assert_balance(before);
}

#[test]
fn a_burst_leaves_together_although_a_call_sends_four() {
    let mut line = Line::new(&[("delay", "20ms")]);
    let before = counts();
    for number in 0..100 {
        line.comes(LEFT, &numbered(number, 1_400));
    }
    let came = line.now_us;
    line.pass(30_000);
    let times = line.left.iter().map(|(left, ..)| left - came);
    let (first, last) = (times.clone().min().unwrap(), times.max().unwrap());
    // The clock has found its step in the meantime: 4 ms at most.
    assert!(first >= 15_000 && last <= 24_000 && last - first <= 4_500, "{first} to {last}");
    assert_eq!(line.left.len(), 100);
    assert_balance(before);
}

#[test]
fn the_rate_is_kept_and_its_queue_is_bounded() {
    // 1,250 bytes in each millisecond.
    let mut line = Line::new(&[("rate", "10Mbit"), ("queue", "12500B")]);
    let before = counts();
    for number in 0..4_000 {
        line.comes(LEFT, &numbered(number, 1_250));
        line.pass(500);
    }
    let [received, sent, _, full, ..] = since(before);
    assert_eq!(received, 4_000);
    // Half of them pass in the two seconds, and ten wait.
    assert!((1_985..=2_001).contains(&sent), "{sent}");
    assert!((1_985..=2_001).contains(&full), "{full}");
    line.pass(20_000);
    assert_eq!(since(before)[7], 0);
    assert_balance(before);
    let gaps = line.left.windows(2).map(|pair| pair[1].0 - pair[0].0);
    assert!(gaps.clone().max().unwrap() <= 2_000, "{:?}", gaps.max());
}

#[test]
fn losses_and_copies_without_delay_need_no_clock() {
    let mut line = Line::new(&[("loss", "20%/0%"), ("duplicate", "0%/50%")]);
    let (before, ticks) = (counts(), TICKS.value());
    let mut passed = 0;
    for number in 0..5_000 {
        match line.comes(LEFT, &numbered(number, 60)) {
            Verdict::PASS => passed += 1,
            verdict => assert_eq!(verdict, Verdict::Drop { reason: 1 }),
        }
        assert_eq!(line.comes(RIGHT, &numbered(number, 60)), Verdict::PASS);
    }
    let [_, sent, lost, .., duplicated, _, held] = since(before);
    assert!((900..=1_100).contains(&lost) && lost + passed == 5_000, "{lost}");
    assert!((2_350..=2_650).contains(&duplicated), "{duplicated}");
    assert_eq!(sent, passed + 5_000 + duplicated);
    assert_eq!((held, TICKS.value(), line.cable.len()), (0, ticks, 0));
    assert_eq!(line.left.len() as u64, duplicated);
    assert_balance(before);
}

#[test]
fn a_lost_tick_is_detected_and_the_clock_continues() {
    let mut line = Line::new(&[("delay", "10ms")]);
    let before = counts();
    line.comes(LEFT, &numbered(1, 60));
    line.pass(3_000);
    line.cable.clear();
    line.pass(100_000);
    assert!(line.left.is_empty());
    line.comes(LEFT, &numbered(2, 60));
    line.pass(20_000);
    assert_eq!(line.left.len(), 2);
    assert_eq!(line.cable.len(), 1, "one tick goes round");
    assert_balance(before);
}

#[test]
fn forged_ticks_are_dropped_and_the_clock_stops_when_idle() {
    let mut line = Line::new(&[("delay", "1ms")]);
    line.comes(LEFT, &numbered(1, 60));
    line.pass(5_000);
    let (_, tick) = line.cable.front().cloned().unwrap();
    let ticks = TICKS.value();
    let mut forged = tick.clone();
    forged[20] ^= 1;
    assert_eq!(line.comes(TOCK, &forged), Verdict::Drop { reason: 5 });
    // A frame at an end is a packet, even if it looks like a tick.
    assert_eq!(line.comes(RIGHT, &tick), Verdict::Drop { reason: 3 });
    assert_eq!(line.comes(TOCK, &numbered(1, 60)), Verdict::PASS);
    assert_eq!(TICKS.value(), ticks);
    line.pass(11_000_000);
    assert!(line.cable.is_empty(), "nothing came for 10 s");
    line.left.clear();
    line.comes(LEFT, &numbered(2, 60));
    line.pass(10_000);
    assert_eq!(line.left.len(), 1);
}

#[test]
fn the_same_seed_gives_the_same_losses_and_delays() {
    let run = |seed: u64| {
        let node = [("delay", "2ms"), ("jitter", "3ms"), ("loss", "5%"), ("reorder", "5%")];
        let mut line = Line::new(&node);
        line.node = line.node.take().map(|node| node.with_parameter("seed", &seed.to_le_bytes()));
        line.node.as_mut().unwrap().start(on_start).unwrap();
        let begin = line.now_us;
        for number in 0..1_000 {
            line.comes(LEFT, &numbered(number, 200));
            line.pass(400);
        }
        line.pass(20_000);
        line.left
            .into_iter()
            .map(|(at, _, frame)| (at - begin, number_of(&frame)))
            .collect::<Vec<_>>()
    };
    let (first, again, other) = (run(7), run(7), run(8));
    assert_eq!(first, again);
    assert_ne!(first, other);
}

#[test]
fn parameters_that_cannot_be_are_refused() {
    let refused = |name: &'static str, value: &str| Line::started(&[(name, value)]).err();
    for (name, value, code) in [
        ("a", "nowhere", refuse::PORTS),
        ("b", "left", refuse::PORTS),
        ("delay", "10", refuse::TIME),
        ("delay", "61s", refuse::TIME),
        ("jitter", "0.0001us", refuse::TIME),
        ("late", "-1ms", refuse::TIME),
        ("loss", "101%", refuse::SHARE),
        ("loss", "0.00001%", refuse::SHARE),
        ("reorder", "1", refuse::SHARE),
        ("duplicate", "1%/", refuse::SHARE),
        ("burst", "10001", refuse::BURST),
        ("rate", "999bit", refuse::RATE),
        ("rate", "10MBit", refuse::RATE),
        ("rate", "99999999999999999999Gbit", refuse::RATE),
        ("queue", "1KiB", refuse::QUEUE),
        ("queue", "5MiB", refuse::QUEUE),
    ] {
        assert_eq!(refused(name, value), Some(code), "{name} = {value}");
    }
    assert_eq!(Line::started(&[("delay", "1ms"), ("clock", "none")]).err(), Some(refuse::CLOCK));
    assert!(Line::started(&[("loss", "1%"), ("clock", "none")]).is_ok());
}

#[test]
fn texts_are_read_with_their_units() {
    let read = |name: &'static str, value: &'static str| {
        Settings::read(|wanted| (wanted == name).then_some(value)).unwrap()
    };
    let [a, b] = read("delay", "1.5ms/2s");
    assert_eq!((a.delay_us, b.delay_us), (1_500, 2_000_000));
    let [a, b] = read("loss", "0.1% / 0.0001%");
    assert_eq!((a.loss, b.loss), (1_000, 1));
    assert_eq!(read("rate", "10Mbit")[0].rate, 10_000_000);
    assert_eq!(read("rate", "0/2.5kbit").map(|it| it.rate), [0, 2_500]);
    assert_eq!(read("queue", "1MiB")[1].queue, 1 << 20);
    assert_eq!(read("seed", "9"), [Settings::PLAIN; 2]);
}

#[test]
fn bursts_are_as_long_and_losses_as_many_as_was_said() {
    for (loss, burst) in [(10_000, 0), (10_000, 4), (200_000, 10), (500_000, 1), (1_000_000, 3)] {
        let settings = Settings { loss, burst, ..Settings::PLAIN };
        let mut way = Way::new(3);
        let fates: Vec<bool> =
            (0..1_000_000).map(|now| way.come(now, 100, &settings) == Fate::Lost).collect();
        let lost = fates.iter().filter(|lost| **lost).count() as f64;
        let runs = 1.max(fates.windows(2).filter(|pair| pair[0] && !pair[1]).count()) as f64;
        let share = lost / f64::from(loss);
        assert!((0.94..1.06).contains(&share), "{loss}, {burst}: {lost}");
        if burst > 0 && loss < MILLION {
            let length = lost / runs / f64::from(burst);
            assert!((0.94..1.06).contains(&length), "{loss}, {burst}: {}", lost / runs);
        }
    }
}

/// Random frames of all lengths, compared with a list of their due times.
#[test]
fn held_frames_come_out_whole_in_the_order_of_their_due_times() {
    let mut chance = Chance::new(11);
    let mut held = Box::new(Held::EMPTY);
    let mut model: Vec<(u64, Order, u32, Vec<u8>)> = Vec::new();
    let (mut now, mut full, mut bytes) = (0, 0, 0);
    for round in 0..60_000_u32 {
        now += 1;
        // Full in one phase, nearly empty in the next.
        let fills = round / 6_000 % 2 == 0;
        if chance.below(10) < if fills { 9 } else { 2 } {
            let length = 14 + chance.below(9_000) as usize;
            let frame: Vec<u8> = (0..length).map(|at| (at as u32 ^ round) as u8).collect();
            let (order, due) = match chance.happens(50_000) {
                true => (Order::Late, now + 400),
                false => (Order::OnTime, now),
            };
            let copies = 1 + chance.below(2) as u32;
            let fill = |to: &mut [u8]| {
                to.copy_from_slice(&frame);
                Ok::<_, ()>(())
            };
            match held.push(order, due, copies, length, fill) {
                Ok(()) => {
                    bytes += length;
                    model.push((due, order, copies, frame));
                }
                Err(NoRoom) => {
                    full += 1;
                    // Late frames block the rest.
                    assert!(bytes > CAPACITY / 4, "{bytes} bytes are no reason");
                }
            }
            continue;
        }
        let first = model
            .iter()
            .enumerate()
            .min_by_key(|(_, (due, order, ..))| (*due, *order == Order::Late))
            .map(|(at, _)| at);
        assert_eq!(held.next_due(), first.map(|at| model[at].0));
        let Some(at) = first.filter(|at| model[*at].0 <= now) else {
            assert_eq!(held.due(now), None);
            continue;
        };
        let due = held.due(now).unwrap();
        assert!(held.frame(due) == model[at].3, "round {round}");
        held.sent(due);
        model[at].2 -= 1;
        if model[at].2 == 0 {
            bytes -= model.remove(at).3.len();
        }
    }
    assert!(full > 100, "it was full {full} times");
    while let Some(due) = held.due(u64::MAX) {
        held.sent(due);
    }
    assert!(held.is_empty());
    // The ring is free again: it holds as much as ever.
    let frame = |_: &mut [u8]| Ok::<_, ()>(());
    let count = (0..).take_while(|_| held.push(Order::OnTime, 0, 1, 1_000, frame).is_ok()).count();
    assert_eq!(count, CAPACITY / 1_024);
}

#[test]
fn a_frame_that_cannot_be_read_takes_no_room() {
    let mut held = Box::new(Held::EMPTY);
    assert_eq!(held.push(Order::OnTime, 0, 1, 100, |_| Err(())), Err(NoRoom));
    assert!(held.is_empty() && held.due(u64::MAX).is_none());
}

#[test]
fn the_clock_goes_by_its_ticks_and_keeps_to_the_nodes_time() {
    let mut clock = Clock::new();
    let mut head = [0; 64];
    let mut tick = clock.start(1_000);
    clock.packet(1_000);
    for number in 0..1_000_u64 {
        tick.write(&mut head);
        assert_eq!(Tick::read(&head), Some(tick));
        // Half a millisecond each; the node's time advances in steps of 4.
        assert!(clock.tick(1_000 + number / 8 * 4, tick));
        assert!(!clock.tick(1_000 + number / 8 * 4, tick), "each counts once");
        assert!(clock.now().abs_diff(1_000_000 + number * 500) <= 500, "{}", clock.now());
        tick = clock.next(if number % 2 == 0 { TICK_US } else { TICK_IDLE_US / 2 });
    }
    // It stood still together with the node.
    clock.packet(9_000);
    assert_eq!(clock.now(), 9_000_000);
    assert!(clock.stands(9_000));
    assert_eq!(Tick::read(&head[..20]), None);
}
