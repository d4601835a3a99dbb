//! Services that are deployed, replaced and removed while traffic runs.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::common::{Ends, Line, PAYLOAD_ADDRESS, SOON, module};
use testkit::{Books, Service, root_or_skip, service_module, wait_for};

const PORT: u16 = 7000;
/// Interval of packets: 2,000 per second.
const GAP: Duration = Duration::from_micros(500);
/// Packets of three seconds.
const PACKETS: u32 = 6000;
/// Deployments and removals in that time.
const CHANGES: u32 = 10;

#[test]
fn no_packet_is_lost_or_overtaken_while_a_service_is_deployed_and_removed() {
    if !root_or_skip("replacement under traffic") {
        return;
    }
    comes_and_goes("monitor", &service_module("monitor").unwrap());
}

#[test]
fn packets_queued_at_a_slow_service_are_not_overtaken_when_it_is_removed() {
    if !root_or_skip("removal of a slow service") {
        return;
    }
    // Some 0.1 ms each: of ten packets four find one before them.
    let waste = "(local $n i32) (local.set $n (i32.const 100000)) (loop $again
        (br_if $again (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))";
    comes_and_goes("counted", &numbered(1, "", waste, ""));
}

fn comes_and_goes(name: &str, wasm: &[u8]) {
    let line = Line::up();
    line.resolve_neighbours();
    // Compiled before the traffic starts; the code is kept.
    let service = Service { rules: &["proto udp dport 7000"], ..Service::default() };
    line.node.deploy(wasm, &service).unwrap();
    line.node.remove(name).unwrap();
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
                // Room behind it for what a module writes.
                let mut payload = [0; 16];
                payload[..4].copy_from_slice(&number.to_le_bytes());
                sender.send(&payload).unwrap();
            }
        });
        let received = scope.spawn(|| {
            let mut numbers = Vec::new();
            let mut payload = [0; 16];
            while numbers.len() < PACKETS as usize && receiver.recv(&mut payload).is_ok() {
                numbers.push(u32::from_le_bytes([0, 1, 2, 3].map(|at: usize| payload[at])));
            }
            numbers
        });
        for _ in 0..CHANGES {
            line.node.deploy(wasm, &service).unwrap();
            std::thread::sleep(GAP * (PACKETS / CHANGES / 3));
            served += line.node.service(name).unwrap().stats.packets;
            line.node.remove(name).unwrap();
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

/// Returns a module that writes its count, its version and its level into each packet. The count is
/// at 0x9000; `more` are further fields, `first` the code at the start of `on_packet`.
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

/// Returns a version that takes over the memory as it is.
fn in_memory(version: u32) -> Vec<u8> {
    numbered(version, "", "", "")
}

/// Returns a version with other constants, which hands its count over by callbacks.
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

/// Values in one received packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    number: u32,
    count: u32,
    version: u32,
    level: u32,
}

/// Sends ten packets every 5 ms until asked to stop, and then a few more that are not awaited, while
/// `act` runs; returns the number sent and the packets received.
fn under_traffic(line: &Line, act: impl FnOnce()) -> (u32, Vec<Seen>) {
    let (receiver, sender) = (line.udp("server", PORT), line.udp("client", 0));
    sender.connect(line.server(PORT)).unwrap();
    let (stop, flows) = (&AtomicBool::new(false), &AtomicBool::new(false));
    let sent = &AtomicU32::new(0);
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
                        flows.store(true, Ordering::Relaxed);
                    }
                    Err(_) if stop.load(Ordering::Relaxed) => return seen,
                    Err(_) => {}
                }
            }
        });
        let ends = Ends(stop);
        // The version that is there sees packets before anything changes.
        let flows = wait_for(SOON, || flows.load(Ordering::Relaxed).then_some(()));
        assert!(flows.is_some(), "nothing came through");
        act();
        drop(ends);
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
        line.resolve_neighbours();
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

/// Returns how many of the numbers follow the one before.
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
fn a_version_that_fails_at_once_is_replaced_by_the_previous_one() {
    if !root_or_skip("replacement that fails") {
        return;
    }
    for level in ["user", "kernel", "nic"] {
        let line = Line::up();
        line.resolve_neighbours();
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
fn state_is_discarded_only_on_request() {
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

/// Returns a node file with the service `counted` in this version, and `more`.
fn file(digest: &str, more: &str) -> String {
    format!(
        "[[service]]\nname = \"counted\"\nmodule = \"{digest}\"\n\
         rules = [\"proto udp dport 7000\"]\n{more}"
    )
}

#[test]
fn an_applied_version_takes_over_the_state_of_the_previous_one() {
    if !root_or_skip("versions applied") {
        return;
    }
    // At one level: how a version takes over is the same as without a file, which is shown above at each.
    let level = "nic";
    let line = Line::up();
    line.resolve_neighbours();
    let digests: Vec<String> = (1..=3).map(|n| line.store(&in_memory(n))).collect();
    let at_level = format!("level = \"{level}\"\n");
    line.apply(&file(&digests[0], &at_level));
    let first = line.node.service("counted").unwrap();
    assert_eq!(first.level, level, "{}", first.level_reason);
    let before = line.books();
    let (sent, seen) = under_traffic(&line, || {
        let second = line.apply(&file(&digests[1], &at_level));
        let change = &second.changes[0];
        assert_eq!((change.replaced, &change.state_lost), (true, &None), "{change:?}");
        // A rule and a parameter of the graph come with the third.
        let drop = "[[rule]]\nmatch = \"proto tcp dport 23\"\naction = \"drop\"\n";
        line.apply(&file(&digests[2], &format!("{at_level}{drop}")));
        assert_eq!(line.rules().len(), 2);
        // Back to the second, by the same way.
        let request = api::RollbackRequest::default();
        let back = line.node.client().rollback(&request).unwrap();
        assert!(back.changes[0].replaced && back.changes[0].state_lost.is_none());
        // And to the first, since nobody confirms that it is to be the third again.
        line.apply(&file(&digests[0], &at_level));
        let unconfirmed = |request: &mut api::ApplyRequest| request.confirm_s = Some(1);
        line.try_apply(&file(&digests[2], &at_level), unconfirmed).unwrap();
        let back = wait_for(SOON, || {
            let service = line.node.service("counted").unwrap();
            let is_back = service.digest == digests[0] && line.node.client().confirm().is_err();
            is_back.then_some(())
        });
        assert!(back.is_some(), "{}", line.node.log());
    });
    let expected: Vec<u32> = (0..sent).collect();
    let numbers: Vec<u32> = seen.iter().map(|seen| seen.number).collect();
    assert!(numbers == expected, "{level}: {} of {sent} came in order", in_order(&numbers));
    let counts: Vec<u32> = seen.iter().map(|seen| seen.count).collect();
    let expected: Vec<u32> = (1..=sent).collect();
    assert!(counts == expected, "{level}: {} of {sent} were counted", in_order(&counts));
    let mut versions: Vec<u32> = seen.iter().map(|seen| seen.version).collect();
    versions.dedup();
    assert_eq!(versions, [1, 2, 3, 2, 1, 3, 1], "{level}");
    let last = line.node.service("counted").unwrap();
    assert_eq!((last.entry, last.restarts), (first.entry, 0), "{level}");
    assert_eq!(last.stats.packets, u64::from(sent), "{level}");
    let balance = line.balance_since(&before);
    assert_eq!(balance.dropped(), 0, "{level}: {balance}");
}

#[test]
fn an_applied_version_that_fails_at_once_reverts_the_whole_change() {
    if !root_or_skip("an applied version that fails") {
        return;
    }
    let level = "nic";
    let line = Line::up();
    line.resolve_neighbours();
    let second = |digest: &str| {
        let module = format!("[[service]]\nname = \"second\"\nmodule = \"{digest}\"\n");
        format!("level = \"{level}\"\n{module}rules = [\"proto udp dport 7001\"]\n")
    };
    let digests = [1, 2].map(|version| line.store(&in_memory(version)));
    line.apply(&file(&digests[0], &second(&digests[0])));
    let known = (line.services(), line.rules(), line.generation());
    let before = line.books();
    let (sent, seen) = under_traffic(&line, || {
        let broken = [
            (numbered(7, "", "unreachable", ""), "'counted' failed at once"),
            (
                numbered(8, "", "", "(func (export \"on_start\") (result i32) (i32.const 9))"),
                "'counted' goes on as it was",
            ),
        ];
        for (wasm, says) in broken {
            let text = format!(
                "{}[[rule]]\nmatch = \"any\"\naction = \"forward\"\npriority = 1\n",
                file(&line.store(&wasm), &second(&digests[1]))
            );
            let said = line.try_apply(&text, |_| {}).unwrap_err().to_string();
            assert!(said.contains(says), "{said}");
            assert_eq!((line.services(), line.rules(), line.generation()), known);
            for name in ["counted", "second"] {
                let service = line.node.service(name).unwrap();
                let is = (service.digest.as_str(), service.state.as_str(), service.restarts);
                assert_eq!(is, (digests[0].as_str(), "running", 0), "{name}");
            }
        }
    });
    // The packet that it trapped on is lost, and no other.
    let balance = line.balance_since(&before);
    assert_eq!((balance.dropped(), seen.len() as u32), (1, sent - 1), "{level}: {balance}");
    let counts: Vec<u32> = seen.iter().map(|seen| seen.count).collect();
    let expected: Vec<u32> = (1..sent).collect();
    assert!(counts == expected, "{level}: {} were counted", in_order(&counts));
    assert!(seen.is_sorted_by_key(|seen| seen.number), "{level}: overtaken");
    assert!(seen.iter().all(|seen| seen.version == 1), "{level}");
}

#[test]
fn an_applied_file_discards_service_state_only_where_allowed() {
    if !root_or_skip("applied without state") {
        return;
    }
    let line = Line::up();
    let first = line.store(&in_memory(1));
    let other = line.store(&numbered(2, "", "", "(data (i32.const 0x9100) \"other constants\")"));
    line.apply(&file(&first, ""));
    let known = (line.generation(), line.node.service("counted").unwrap().entry);
    let constants = (file(&other, ""), "line 2, column 8", "constants");
    let session = (file(&first, "session = \"system\"\n"), "line 5, column 11", "session");
    for (text, place, why) in [&constants, &session] {
        for dry_run in [true, false] {
            let refused = line.try_apply(text, |request| request.dry_run = dry_run).unwrap_err();
            let said = refused.to_string();
            assert_eq!(refused.code(), api::ErrorCode::Failed, "{said}");
            assert!(said.contains(place) && said.contains(why), "{said}");
            assert!(said.contains("'counted' would lose") && said.contains("--discard-state"));
        }
        let would = line.try_apply(text, |request| {
            (request.dry_run, request.discard_state) = (true, true);
        });
        let lost = would.unwrap().changes[0].state_lost.clone();
        assert!(lost.is_some_and(|lost| lost.contains(why)));
    }
    let service = line.node.service("counted").unwrap();
    assert_eq!(
        (line.generation(), service.entry, service.digest),
        (known.0, known.1, first.clone())
    );

    let discard = |request: &mut api::ApplyRequest| request.discard_state = true;
    line.try_apply(&constants.0, discard).unwrap();
    let service = line.node.service("counted").unwrap();
    assert_eq!((service.entry, service.rules.len()), (known.1, 1), "it has the other's place");
    // The way back is open, and what that costs is said.
    let back = line.node.client().rollback(&api::RollbackRequest::default()).unwrap();
    assert!(back.changes[0].state_lost.is_some(), "{:?}", back.changes);
    assert_eq!(line.node.service("counted").unwrap().digest, first);
    line.try_apply(&session.0, discard).unwrap();
    let service = line.node.service("counted").unwrap();
    assert_eq!((service.session.as_str(), service.rules.len()), ("system", 1));
    let events = line.node.client().events(0, 0).unwrap().events;
    let lost = events.iter().filter(|event| event.kind == api::EventKind::StateLost);
    assert_eq!(lost.count(), 3, "{events:#?}");
}
