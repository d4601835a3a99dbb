//! Services that come and go while traffic runs.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::common::{Line, PAYLOAD_ADDRESS, SOON, module};
use testkit::{Books, Service, root_or_skip, service_module, wait_for};

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

/// A module that writes into each packet how many it has counted, its version and its level.
/// What it counts lies at 0x9000; `more` are further fields, `first` what it does at first.
fn numbered(version: u32, imports: &str, first: &str, more: &str) -> Vec<u8> {
    let fields = format!(
        r#"{imports}
(memory (export "memory") 1)
(global (export "tam_counter_seen") i32 (i32.const 0x9008))
(func (export "on_packet") (result i32)
  {first}
  (i32.store (i32.const 0x9000) (i32.add (i32.load (i32.const 0x9000)) (i32.const 1)))
  (i64.store (i32.const 0x9008) (i64.add (i64.load (i32.const 0x9008)) (i64.const 1)))
  (i32.store16 (i32.sub (i32.const PAYLOAD) (i32.const 2)) (i32.const 0))
  (i32.store offset=4 (i32.const PAYLOAD) (i32.load (i32.const 0x9000)))
  (i32.store offset=8 (i32.const PAYLOAD) (i32.const {version}))
  (i32.store offset=12 (i32.const PAYLOAD) (i32.load8_u (i32.const 0x8038)))
  (i32.const 0))
{more}"#
    );
    let manifest = "window = 96\nlevels = [\"nic\", \"kernel\", \"user\"]";
    module("counted", manifest, &fields.replace("PAYLOAD", &PAYLOAD_ADDRESS.to_string()))
}

/// Versions that share their memory as it is.
fn in_memory(version: u32) -> Vec<u8> {
    numbered(version, "", "", "")
}

/// Versions with other constants, which hand their count over.
fn by_hooks(version: u32) -> Vec<u8> {
    let imports = r#"
(import "tam" "state_write" (func $write (param i32 i32) (result i32)))
(import "tam" "state_read" (func $read (param i32 i32) (result i32)))"#;
    let more = format!(
        r#"
(data (i32.const 0x9100) "this is version {version}")
(func (export "state_out") (result i32) (call $write (i32.const 0x9000) (i32.const 4)))
(func (export "state_in") (param $length i32) (result i32)
  (i32.ne (call $read (i32.const 0x9000) (local.get $length)) (i32.const 4)))"#
    );
    numbered(version, imports, "", &more)
}

/// What a receiver learns from one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    number: u32,
    count: u32,
    version: u32,
    level: u32,
}

/// Ten packets every 5 ms until told to stop; then a few more that nobody awaits. `act` runs
/// meanwhile, and says when it is over.
fn under_traffic(line: &Line, act: impl FnOnce()) -> (u32, Vec<Seen>) {
    let (receiver, sender) = (line.udp("server", PORT), line.udp("client", 0));
    sender.connect(line.server(PORT)).unwrap();
    let stop = AtomicBool::new(false);
    let (stop, sent) = (&stop, AtomicU32::new(0));
    let sent = &sent;
    let seen = std::thread::scope(|scope| {
        scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                for _ in 0..10 {
                    let number = sent.fetch_add(1, Ordering::Relaxed);
                    let mut payload = [0; 16];
                    payload[..4].copy_from_slice(&number.to_le_bytes());
                    sender.send(&payload).unwrap();
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let received = scope.spawn(move || {
            let mut seen = Vec::new();
            let mut payload = [0; 16];
            loop {
                match receiver.recv(&mut payload) {
                    Ok(_) => {
                        let word = |at| {
                            u32::from_le_bytes([0, 1, 2, 3].map(|byte: usize| payload[at + byte]))
                        };
                        let [number, count, version, level] = [0, 4, 8, 12].map(word);
                        seen.push(Seen { number, count, version, level });
                    }
                    Err(_) if stop.load(Ordering::Relaxed) => return seen,
                    Err(_) => {}
                }
            }
        });
        act();
        stop.store(true, Ordering::Relaxed);
        received.join().unwrap()
    });
    (sent.load(Ordering::Relaxed), seen)
}

fn replaced_under_traffic(name: &str, version: fn(u32) -> Vec<u8>) {
    const VERSIONS: u32 = 6;
    if !root_or_skip(name) {
        return;
    }
    for level in ["user", "kernel", "nic"] {
        let line = Line::up();
        line.acquaint();
        let service = Service { rules: &["proto udp dport 7000"], level, ..Service::default() };
        let deployed = line.node.deploy(&version(1), &service).unwrap();
        assert_eq!(deployed.service.level, level, "{}", deployed.service.level_reason);
        let before = line.books();
        let (sent, seen) = under_traffic(&line, || {
            for number in 2..=VERSIONS {
                // Without rules: it keeps those of the version before.
                let service = Service { level, ..Service::default() };
                let deployed = line.node.deploy(&version(number), &service).unwrap();
                let replaced = deployed.replaced.expect("it took another one's place");
                assert!(replaced.state_kept);
                assert_eq!(deployed.service.level, level, "{}", deployed.service.level_reason);
            }
        });
        let expected: Vec<u32> = (0..sent).collect();
        let numbers: Vec<u32> = seen.iter().map(|seen| seen.number).collect();
        assert!(numbers == expected, "{level}: {} of {sent} came in order", in_order(&numbers));
        let counts: Vec<u32> = seen.iter().map(|seen| seen.count).collect();
        let expected: Vec<u32> = (1..=sent).collect();
        assert!(counts == expected, "{level}: {} of {sent} were counted", in_order(&counts));
        assert!(seen.is_sorted_by_key(|seen| seen.version), "{level}: an old version came back");
        let versions: BTreeSet<u32> = seen.iter().map(|seen| seen.version).collect();
        assert_eq!(versions, (1..=VERSIONS).collect(), "{level}");
        let levels: BTreeSet<u32> = seen.iter().map(|seen| seen.level).collect();
        let number = ["user", "nic", "kernel"].iter().position(|known| *known == level).unwrap();
        assert!(levels.contains(&(number as u32)), "{level}: it ran at {levels:?}");
        let service = line.node.service("counted").unwrap();
        assert_eq!(service.stats.counters["seen"], u64::from(sent), "{level}: the counter goes on");
        assert_eq!(service.rules.len(), 1);
        let balance = line.balance_since(&before);
        assert_eq!(balance.dropped(), 0, "{level}: {balance}");
    }
}

/// How many of the numbers follow the one before.
fn in_order(numbers: &[u32]) -> usize {
    numbers.windows(2).filter(|pair| pair[1] == pair[0] + 1).count()
}

#[test]
fn a_new_version_takes_over_memory_under_traffic_at_every_level() {
    replaced_under_traffic("replacement, memory", in_memory);
}

#[test]
fn a_new_version_takes_what_the_old_one_hands_over_at_every_level() {
    replaced_under_traffic("replacement, hooks", by_hooks);
}

#[test]
fn a_version_that_fails_at_once_is_put_back() {
    if !root_or_skip("replacement that fails") {
        return;
    }
    for level in ["user", "kernel", "nic"] {
        let line = Line::up();
        line.acquaint();
        let service = Service { rules: &["proto udp dport 7000"], level, ..Service::default() };
        line.node.deploy(&in_memory(1), &service).unwrap();
        let before = line.books();
        let service = Service { level, ..Service::default() };
        let (sent, seen) = under_traffic(&line, || {
            let traps = numbered(2, "", "unreachable", "");
            let error = line.node.deploy(&traps, &service).unwrap_err().to_string();
            assert!(error.contains("failed at once"), "{error}");
            let refuses = "(func (export \"on_start\") (result i32) (i32.const 9))";
            let refuses = numbered(3, "", "", refuses);
            let error = line.node.deploy(&refuses, &service).unwrap_err().to_string();
            assert!(error.contains("goes on as it was") && error.contains('9'), "{error}");
            let info = line.node.service("counted").unwrap();
            assert_eq!((info.state.as_str(), info.rules.len()), ("running", 1));
            // It is where it was, too.
            let back = wait_for(SOON, || {
                (line.node.service("counted").unwrap().level == level).then_some(())
            });
            assert!(back.is_some(), "{level}");
        });
        // The packet that it trapped on is lost, and no other.
        let balance = line.balance_since(&before);
        assert_eq!((balance.dropped(), seen.len() as u32), (1, sent - 1), "{level}: {balance}");
        let counts: Vec<u32> = seen.iter().map(|seen| seen.count).collect();
        let expected: Vec<u32> = (1..sent).collect();
        assert!(counts == expected, "{level}: {} were counted", in_order(&counts));
        assert!(seen.iter().all(|seen| seen.version == 1), "{level}");
        assert!(seen.is_sorted_by_key(|seen| seen.number), "{level}: overtaken");
        let service = line.node.service("counted").unwrap();
        assert_eq!(service.stats.traps.values().sum::<u64>(), 1);
    }
}

#[test]
fn state_is_lost_only_when_it_was_asked_for() {
    if !root_or_skip("replacement without state") {
        return;
    }
    let line = Line::up();
    let service = Service { rules: &["proto udp dport 7000"], ..Service::default() };
    line.node.deploy(&in_memory(1), &service).unwrap();
    let other = numbered(2, "", "", "(data (i32.const 0x9100) \"other constants\")");
    let error = line.node.deploy(&other, &Service::default()).unwrap_err().to_string();
    assert!(error.contains("--discard-state"), "{error}");
    let digest = line.node.client().store_module(other).unwrap().digest;
    let request =
        api::DeployRequest { module: digest.clone(), discard_state: true, ..Default::default() };
    let deployed = line.node.client().deploy(&request).unwrap();
    assert!(!deployed.replaced.unwrap().state_kept);
    assert_eq!(deployed.service.digest, digest);
    assert_eq!(deployed.service.rules.len(), 1);
}
