//! Responsiveness of the API beside hostile sessions.

use std::fmt::Write as _;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use testkit::{root_or_skip, wait_for};

use crate::common::{Ends, Line, SOON, module};

/// Number of hostile sessions.
const HOSTILE: u16 = 100;
const PORT: u16 = 7000;
const QUESTIONS: usize = 400;
/// Packets of the flood between two pauses, at which its sender checks for the end: some 50,000 a
/// second, ten times what modules that have 5 ms for each could handle, and more.
const AT_ONCE: usize = 100;
const PAUSE: Duration = Duration::from_millis(2);

/// Kinds of hostile modules: calls that never end; timers that never end; memory that grows without
/// end; and one that grows on each packet and then never ends.
const KINDS: [&str; 4] = [
    r#"(memory (export "memory") 1 64)
    (func (export "on_packet") (result i32) (loop (br 0)) (i32.const 0))"#,
    r#"(memory (export "memory") 1 64)
    (func (export "on_packet") (result i32) (i32.const 0))
    (func (export "on_timer") (loop (br 0)))"#,
    r#"(memory (export "memory") 1 64)
    (func (export "on_packet") (result i32) (drop (memory.grow (i32.const 1))) (i32.const 0))"#,
    r#"(memory (export "memory") 1 64)
    (func (export "on_packet") (result i32)
      (drop (memory.grow (i32.const 1))) (loop (br 0)) (i32.const 0))"#,
];

fn flood(senders: &[UdpSocket], over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        for sender in senders.iter().cycle().take(AT_ONCE) {
            // A full queue of the client's own is no failure.
            let _ = sender.send(&[7; 400]);
        }
        std::thread::sleep(PAUSE);
    }
}

#[test]
fn beside_a_hundred_hostile_sessions_the_api_answers_every_question() {
    if !root_or_skip("the API beside hostile sessions") {
        return;
    }
    let line = Line::up();
    line.resolve_neighbours();
    let manifest = |fields: &str| {
        let timer = if fields.contains("on_timer") { "timer_ms = 1" } else { "" };
        format!("window = 64\nmemory_pages_max = 64\nlevels = [\"user\"]\n{timer}")
    };
    let modules: Vec<String> = KINDS
        .iter()
        .enumerate()
        .map(|(at, fields)| line.store(&module(&format!("hostile{at}"), &manifest(fields), fields)))
        .collect();
    let mut text = String::new();
    for number in 0..HOSTILE {
        let (name, module) = (format!("h{number}"), &modules[usize::from(number) % KINDS.len()]);
        let promise =
            if number % 8 == 0 { "cpu = [\"50us/10ms\"]\nmemory = \"2MiB\"\n" } else { "" };
        write!(
            text,
            "[[session]]\nname = \"{name}\"\n{promise}\
             [[service]]\nname = \"{name}\"\nmodule = \"{module}\"\nsession = \"{name}\"\n\
             rules = [\"proto udp dport {}\"]\n",
            PORT + number
        )
        .unwrap();
    }
    line.apply(&text);
    let senders: Vec<UdpSocket> =
        (0..HOSTILE).map(|number| line.sender_to(PORT + number)).collect();
    let over = AtomicBool::new(false);
    let mut took = std::thread::scope(|scope| {
        scope.spawn(|| flood(&senders, &over));
        let _ends = Ends(&over);
        std::thread::sleep(Duration::from_millis(300));
        let client = line.node.client();
        let ask = |number: usize| {
            let begin = Instant::now();
            match number % 4 {
                0 => drop(client.node().unwrap()),
                1 => drop(client.session(&format!("h{}", number % usize::from(HOSTILE))).unwrap()),
                2 => drop(client.services().unwrap()),
                _ => drop(client.stats().unwrap()),
            }
            begin.elapsed()
        };
        (0..QUESTIONS).map(ask).collect::<Vec<Duration>>()
    });
    took.sort_unstable();
    let (middle, most) = (took[QUESTIONS / 2], took[QUESTIONS * 99 / 100]);
    // How soon is for `tam bench isolation` to say.
    eprintln!("99 of a hundred within {most:?}, half within {middle:?}");
    // Of little time 5 ms take a while, and what waits is still there.
    let traps = || line.node.service("h0").unwrap().stats.traps;
    let was_ended = wait_for(SOON, || traps().contains_key("time_limit").then_some(()));
    assert!(was_ended.is_some(), "they were hostile: {:?}", traps());
}
