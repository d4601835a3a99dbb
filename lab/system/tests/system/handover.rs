//! Handover from one daemon to the next without interruption: the first was killed, or hands over.
//!
//! Three services, one at each level, stamp numbered packets all the while; at the receiver every
//! number comes once and in order, with the stamps of one memory.

use std::net::UdpSocket;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::clean_end::{gone, kill};
use crate::common::{Line, SOON};
use crate::levels::{BELOW, Stamped, stamped, stamper};
use testkit::{Service, leftovers, root_or_skip, tam, wait_for};

/// Most packets that are lost with a killed cell: those that arrive during one batch of work on a
/// busy machine, at two packets a millisecond. The rings have space for more.
pub const IN_RINGS_MAX: usize = 600;
/// Packets before a cell is killed: more than can be lost with it.
const BEFORE: u32 = IN_RINGS_MAX as u32 + 100;
/// Interval of packets: 1,000 per second to each service.
const GAP: Duration = Duration::from_millis(1);
const SERVICES: [(&str, &str, u16); 3] =
    [("up", "user", 7000), ("low", "nic", 7001), ("mid", "kernel", 7002)];

/// Sender and receiver for each service.
pub struct Flows(Vec<[UdpSocket; 2]>);

/// Number of packets sent to each service.
pub struct Sent<'a>(&'a AtomicU32);

impl Sent<'_> {
    pub fn more(&self, count: u32) {
        let enough = self.0.load(Ordering::Relaxed) + count;
        let is_sent = || (self.0.load(Ordering::Relaxed) >= enough).then_some(());
        wait_for(GAP * count * 20 + SOON, is_sent).expect("the sender goes on");
    }
}

impl Flows {
    pub fn new(line: &Line, ports: &[u16]) -> Self {
        let pair = |port: &u16| {
            let (receiver, sender) = (line.udp("server", *port), line.udp("client", 0));
            sender.connect(line.server(*port)).unwrap();
            [sender, receiver]
        };
        Self(ports.iter().map(pair).collect())
    }

    /// Sends packets while `act` runs; returns its result, the number sent to each service, and the
    /// packets received from each.
    pub fn during<R>(&self, act: impl FnOnce(&Sent<'_>) -> R) -> (R, u32, Vec<Vec<Stamped>>) {
        let (sent, done, drained) =
            (AtomicU32::new(0), AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let receive = |receiver: &UdpSocket| {
                let (mut arrived, mut payload) = (Vec::new(), [0; 12]);
                loop {
                    match receiver.recv(&mut payload) {
                        Ok(_) => arrived.push(stamped(&payload)),
                        Err(_) if drained.load(Ordering::Relaxed) => return arrived,
                        Err(_) => {}
                    }
                }
            };
            let receivers: Vec<_> =
                self.0.iter().map(|[_, receiver]| scope.spawn(move || receive(receiver))).collect();
            let sender = scope.spawn(|| {
                let start = Instant::now();
                while !done.load(Ordering::Relaxed) {
                    let number = sent.load(Ordering::Relaxed);
                    let due = start + GAP * number;
                    std::thread::sleep(due.saturating_duration_since(Instant::now()));
                    let mut payload = [0; 12];
                    payload[..4].copy_from_slice(&number.to_le_bytes());
                    for [sender, _] in &self.0 {
                        sender.send(&payload).unwrap();
                    }
                    sent.store(number + 1, Ordering::Relaxed);
                }
            });
            // Also when a check in it fails: else the threads would never end.
            let answer =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| act(&Sent(&sent))));
            done.store(true, Ordering::Relaxed);
            sender.join().unwrap();
            drained.store(true, Ordering::Relaxed);
            let arrived = receivers.into_iter().map(|one| one.join().unwrap()).collect();
            let answer = answer.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            (answer, sent.load(Ordering::Relaxed), arrived)
        })
    }
}

/// Returns a line with one service at each level, and flows to them.
fn three() -> (Line, Flows) {
    let line = Line::up();
    line.resolve_neighbours();
    for (name, level, port) in SERVICES {
        deploy(&line, name, level, port);
    }
    let flows = Flows::new(&line, &SERVICES.map(|(_, _, port)| port));
    (line, flows)
}

pub fn deploy(line: &Line, name: &str, level: &str, port: u16) {
    let rule = format!("proto udp dport {port}");
    let service = Service { name, rules: &[&rule], level, ..Service::default() };
    let deployed = line.node.deploy(&stamper(BELOW), &service).unwrap().service;
    assert_eq!(deployed.level, level, "{}", deployed.level_reason);
}

fn levels(line: &Line) -> [String; 3] {
    SERVICES.map(|(name, _, _)| line.node.service(name).unwrap().level)
}

/// Checks that every packet came once and in order, and met one memory and one global.
fn assert_complete(sent: u32, arrived: &[Vec<Stamped>]) {
    for ((name, _, _), arrived) in SERVICES.iter().zip(arrived) {
        let expected = (0..sent).map(|number| (number, number + 1, number + 1));
        let wrong = arrived.iter().copied().zip(expected).find(|(found, wanted)| found != wanted);
        assert_eq!(wrong, None, "{name}: {} of {sent} arrived", arrived.len());
        assert_eq!(arrived.len(), sent as usize, "{name}");
    }
}

fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

fn pins(line: &Line) -> Vec<String> {
    let folder = Path::new("/sys/fs/bpf/tamandua").join(line.node.name().as_str());
    let names = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        names.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn services_run_on_without_a_killed_daemon_and_the_next_one_adopts_them() {
    if !root_or_skip("a killed daemon under load") {
        return;
    }
    let (mut line, flows) = three();
    let (cell, before) = (line.node.cell().unwrap(), line.books());
    let (moves, sent, arrived) = flows.during(|sent| {
        let mut moves = 0;
        for _ in 0..2 {
            sent.more(100);
            line.node.kill().unwrap();
            sent.more(400);
            line.node.start_again(&line.net, "r1").unwrap();
            assert_eq!(line.node.cell().unwrap(), cell, "{}", line.node.log());
            assert_eq!(levels(&line), SERVICES.map(|(_, level, _)| level), "{}", line.node.log());
            let client = line.node.client();
            for (name, home, _) in SERVICES {
                for level in ["kernel", "nic", "user", home] {
                    let moved = client.move_service(name, level).unwrap();
                    assert_eq!(moved.level, level);
                    moves += 1;
                    sent.more(5);
                }
                let answers = client.message(name, b"").unwrap().answers;
                assert!(answers[0].unwrap() > 500, "{name} counts on: {answers:?}");
            }
        }
        moves
    });
    assert_complete(sent, &arrived);
    assert_eq!(moves, 24);
    let balance = line.balance_since(&before);
    assert_eq!(balance.dropped(), 0, "{balance}");
    for (name, _, _) in SERVICES {
        let service = line.node.service(name).unwrap();
        assert_eq!((service.stats.packets, service.restarts), (u64::from(sent), 0), "{name}");
    }
    // What the next daemon compiles runs in the cell of the first.
    deploy(&line, "new", "nic", 7003);
    for name in ["up", "low", "mid", "new"] {
        line.node.remove(name).unwrap();
    }
    assert!(line.node.client().rules().unwrap().rules.is_empty());
    assert!(line.node.stop().unwrap().success(), "{}", line.node.log());
    assert_eq!(leftovers(line.node.name()), [""; 0]);
    assert!(gone(cell), "the cell runs on");
}

#[test]
fn a_daemon_hands_over_to_another_and_no_packet_notices() {
    if !root_or_skip("a handover") {
        return;
    }
    let (mut line, flows) = three();
    let cell = line.node.cell().unwrap();
    let first = line.node.pid().unwrap();
    let ((), sent, arrived) = flows.during(|sent| {
        for _ in 0..3 {
            sent.more(200);
            assert!(line.node.take_over(&line.net, "r1").unwrap().success());
        }
        sent.more(200);
    });
    assert_complete(sent, &arrived);
    assert_eq!(line.node.cell().unwrap(), cell, "{}", line.node.log());
    assert_ne!(line.node.pid().unwrap(), first);
    assert_eq!(levels(&line), SERVICES.map(|(_, level, _)| level));
    assert_eq!(line.node.service("low").unwrap().stats.packets, u64::from(sent));
}

#[test]
fn rules_hold_when_a_node_without_services_is_handed_over() {
    if !root_or_skip("a handover of rules") {
        return;
    }
    let mut line = Line::up();
    line.resolve_neighbours();
    let rule = api::RuleRequest::new("proto udp dport 7000", "drop");
    line.node.client().add_rules(&rule.into()).unwrap();
    let flows = Flows::new(&line, &[7000]);
    // Its cell, which has nothing to run, ends with the daemon before.
    let ((), sent, arrived) = flows.during(|sent| {
        for _ in 0..4 {
            sent.more(50);
            assert!(line.node.take_over(&line.net, "r1").unwrap().success());
        }
        sent.more(50);
    });
    let log = line.node.log();
    assert_eq!(
        (arrived[0].len(), log.matches("cannot be adopted").count()),
        (0, 0),
        "{sent}: {log}"
    );
}

#[test]
fn when_cell_and_daemon_are_both_gone_services_start_anew_and_forwarding_never_stops() {
    if !root_or_skip("a killed daemon and a killed cell") {
        return;
    }
    let (mut line, flows) = three();
    let cell = line.node.cell().unwrap();
    let ((), sent, arrived) = flows.during(|sent| {
        sent.more(BEFORE);
        line.node.kill().unwrap();
        sent.more(50);
        kill(cell);
        sent.more(200);
        line.node.start_again(&line.net, "r1").unwrap();
        let run = || {
            let run = SERVICES.iter().all(|(name, level, _)| {
                let service = line.node.service(name).unwrap();
                (service.state.as_str(), service.level.as_str()) == ("running", *level)
            });
            run.then_some(())
        };
        wait_for(SOON, run).unwrap_or_else(|| panic!("{}", line.node.log()));
        sent.more(200);
    });
    assert_ne!(line.node.cell().unwrap(), cell);
    for ((name, level, _), arrived) in SERVICES.iter().zip(&arrived) {
        // What was in the dead cell's rings is lost; below user level there was nothing.
        let lost = sent as usize - arrived.len();
        assert!(lost <= if *level == "user" { IN_RINGS_MAX } else { 0 }, "{name}: {lost} are lost");
        assert!(arrived.is_sorted_by(|a, b| a.0 < b.0), "{name}");
        let last = arrived.last().unwrap();
        // It has not seen those of before; the one before it would have seen all.
        assert!(last.1 > 0 && last.1 + BEFORE < sent, "{name} is a new instance: {last:?}");
        let service = line.node.service(name).unwrap();
        assert_eq!(service.restarts, 1, "{name}");
    }
}

#[test]
fn objects_of_another_version_are_removed_and_services_start_anew() {
    if !root_or_skip("another version") {
        return;
    }
    let (mut line, _flows) = three();
    let cell = line.node.cell().unwrap();
    line.node.kill().unwrap();
    let record = Path::new(api::RUN_DIRECTORY).join(line.node.name().as_str()).join("running.json");
    let text = std::fs::read_to_string(&record).unwrap();
    let mut document: serde_json::Value = serde_json::from_str(&text).unwrap();
    document["fingerprint"] = "0".repeat(32).into();
    std::fs::write(&record, document.to_string()).unwrap();
    line.node.start_again(&line.net, "r1").unwrap();
    assert!(line.node.log().contains("of another version"), "{}", line.node.log());
    assert!(gone(cell), "its cell runs on");
    wait_restarted(&line);
    line.resolve_neighbours();

    // A record that cannot be read is no better.
    let cell = line.node.cell().unwrap();
    line.node.kill().unwrap();
    std::fs::write(&record, &text[..text.len() / 2]).unwrap();
    line.node.start_again(&line.net, "r1").unwrap();
    assert!(gone(cell));
    wait_restarted(&line);
    line.resolve_neighbours();
}

/// Waits until the services of the node's state run with counters that begin at zero.
fn wait_restarted(line: &Line) {
    for name in ["up", "low", "mid"] {
        let runs = || line.node.service(name).ok().filter(|it| it.state == "running");
        let service = wait_for(SOON, runs).expect("it is desired");
        assert_eq!(service.stats.packets, 0, "{name} is as it was");
    }
}

#[test]
fn cleanup_ends_the_cell_of_a_dead_daemon_too() {
    if !root_or_skip("cleanup") {
        return;
    }
    let (mut line, _flows) = three();
    let cell = line.node.cell().unwrap();
    let name = line.node.name().to_string();
    let cleanup =
        [tam().display().to_string(), "node".into(), "--cleanup".into(), name, "--json".into()];
    let argv: Vec<&str> = cleanup.iter().map(String::as_str).collect();
    let refused = line.net.run("r1", &argv, SOON).unwrap();
    assert!(!refused.status.success(), "a node that runs is not cleaned up: {refused:?}");
    line.node.kill().unwrap();
    assert!(!has_ended(cell), "the cell goes on without a daemon");
    let output = line.net.run("r1", &argv, SOON * 4).unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(output.stdout.contains(&format!("cell {cell}")), "{}", output.stdout);
    assert!(gone(cell));
    assert_eq!(leftovers(line.node.name()), [""; 0]);
    let links = line.net.netlink("r1").unwrap().links().unwrap();
    assert!(
        !links.iter().any(|link| link.name.starts_with("tam-") || link.name.starts_with("tup-"))
    );
    line.resolve_neighbours();
}

fn has_ended(pid: u32) -> bool {
    !Path::new(&format!("/proc/{pid}")).exists()
}

/// Tests that inspect the whole machine, or end processes of others: they run alone.
mod alone {
    use super::*;

    #[test]
    fn daemon_after_daemon_leaks_no_descriptor_no_pin_and_nothing_in_the_kernel() {
        if !root_or_skip("descriptors of daemons") {
            return;
        }
        let (mut line, _flows) = three();
        let (cell, mut seen) = (line.node.cell().unwrap(), Vec::new());
        let mut held = None;
        for _ in 0..5 {
            line.node.kill().unwrap();
            line.node.start_again(&line.net, "r1").unwrap();
            line.node.stats().unwrap();
            // A connection of the API may be about to end.
            std::thread::sleep(GAP * 50);
            let daemon = line.node.pid().unwrap();
            seen.push((descriptors(daemon), descriptors(cell), pins(&line)));
            // Freed late, so that is waited for.
            let counts = || bpf::Inventory::take().unwrap().counts();
            let first = *held.get_or_insert_with(counts);
            let no_more =
                || counts().iter().zip(first).all(|(now, first)| *now <= first).then_some(());
            let kept = wait_for(SOON, no_more);
            assert!(kept.is_some(), "programs, maps, links: {:?}, at first {first:?}", counts());
        }
        assert!(seen.windows(2).all(|pair| pair[0] == pair[1]), "{seen:#?}");
        line.node.remove("low").unwrap();
        let left = pins(&line);
        assert_eq!(left.len(), seen[0].2.len() - 4, "arena, block, ring and program: {left:?}");
    }
}
