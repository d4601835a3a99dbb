//! Time below user level: a session is limited to its reservation, by the fuel that its modules
//! count.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use api::{Budget, SessionChange, SessionDetails, SessionRequest};
use testkit::{NodeUnderTest, Service, root_or_skip, wait_for};

use crate::common::{Ends, Line, SOON, module, steps_of_work};

const HEAVY: u16 = 7000;
const LIGHT: u16 = 7001;
/// Interval of the heavy session's packets: each uses 60,000 units of fuel, far more than a share
/// of one in a thousand allows on any machine.
const PACE: Duration = Duration::from_micros(500);
/// Speed that a node assumes until it has measured (`Speed::UNMEASURED` in `core/session`), in
/// units of fuel per ms.
const UNMEASURED: u64 = 500_000;
const MANIFEST: &str =
    "window = 64\nmemory_pages_max = 1\nlevels = [\"nic\", \"kernel\", \"user\"]";

/// Returns a module that passes its packets after `steps` steps of FNV-1a.
fn stepping(name: &str, steps: u32) -> Vec<u8> {
    let work = steps_of_work(steps);
    let fields = format!(
        r#"(memory (export "memory") 1 1)
    (func (export "on_packet") (result i32) (local $step i32) (local $hash i32)
      {work}
      (i32.const 0))"#
    );
    module(name, MANIFEST, &fields)
}

impl Line {
    fn promise(&self, name: &str, below: &str) {
        let request = SessionRequest {
            name: name.to_owned(),
            below: Some(below.to_owned()),
            ..SessionRequest::default()
        };
        self.node.client().create_session(&request).unwrap();
    }

    fn run_below(&self, session: &str, steps: u32, port: u16, level: &str, over: &str) {
        let rule = format!("proto udp dport {port}");
        let budget = Some(Budget { over: Some(over.to_owned()), ..Budget::default() });
        let rules: &[&str] = &[&rule];
        let service =
            Service { name: session, session, rules, level, budget, ..Service::default() };
        let deployed = self.node.deploy(&stepping(session, steps), &service).unwrap().service;
        assert_eq!(deployed.level, level, "{}", deployed.level_reason);
    }

    fn used(&self, session: &str) -> SessionDetails {
        self.node.client().session(session).unwrap()
    }

    fn speed_is_measured(&self) -> u64 {
        let speed = || self.node.client().node().unwrap().below_fuel_per_ms;
        let speed = wait_for(SOON, || speed().filter(|&speed| speed != UNMEASURED));
        speed.expect("the speed of this machine is measured when a node starts")
    }
}

/// Returns the fuel of a session over `time`, and the fuel that a share of one in a thousand allows
/// in it.
fn rate(line: &Line, session: &str, time: Duration, speed: u64) -> (f64, f64) {
    let (began, before) = (Instant::now(), line.used(session).used.total.fuel);
    std::thread::sleep(time);
    let used = line.used(session).used.total.fuel - before;
    (used as f64, began.elapsed().as_secs_f64() * speed as f64)
}

#[test]
fn a_session_is_limited_to_its_in_kernel_time_and_others_lose_no_packet() {
    if !root_or_skip("time below user level") {
        return;
    }
    for level in ["nic", "kernel"] {
        let line = Line::up();
        line.resolve_neighbours();
        let speed = line.speed_is_measured();
        // One in a thousand: speed per millisecond is fuel a second.
        line.promise("heavy", "100us/100ms");
        line.promise("light", "20ms/100ms");
        line.run_below("heavy", 4_200, HEAVY, level, "drop");
        line.run_below("light", 5, LIGHT, level, "drop");
        let (heavy, light) = (line.sender_to(HEAVY), line.sender_to(LIGHT));
        let (receiver, _sink) = (line.udp("server", LIGHT), line.udp("server", HEAVY));
        let before = line.books();
        let over = AtomicBool::new(false);
        let (sent_heavy, sent_light) = std::thread::scope(|scope| {
            let _ends = Ends(&over);
            let sending = scope.spawn(|| {
                let (start, mut sent) = (Instant::now(), 0u32);
                while !over.load(Ordering::Relaxed) {
                    heavy.send(&[0; 18]).unwrap();
                    light.send(&sent.to_be_bytes()).unwrap();
                    sent += 1;
                    let due = start + PACE * sent;
                    std::thread::sleep(due.saturating_duration_since(Instant::now()));
                }
                (sent, sent)
            });
            // What an account holds in the beginning is used up.
            std::thread::sleep(Duration::from_millis(1_000));
            let (used, fair) = rate(&line, "heavy", Duration::from_secs(4), speed);
            // Never more. `tam bench isolation` measures how close it comes, as a sender may be
            // stalled.
            assert!((fair * 0.5..fair * 1.05).contains(&used), "{level}: {used} of {fair}");
            // Something else is promised while it runs. Both levels have one account; that `nic` keeps to
            // it tests of the front door show (`an_account_fills_with_the_kernels_ticks_…`).
            if level == "nic" {
                over.store(true, Ordering::Relaxed);
                return sending.join().unwrap();
            }
            let set = |below: &str| {
                let below = Some(below.to_owned());
                let change = SessionChange { below, ..SessionChange::default() };
                line.node.client().set_session("heavy", &change).unwrap();
            };
            set("200us/100ms");
            std::thread::sleep(Duration::from_millis(500));
            let (used, fair) = rate(&line, "heavy", Duration::from_secs(4), 2 * speed);
            assert!((fair * 0.5..fair * 1.05).contains(&used), "{level}: {used} of {fair}");
            over.store(true, Ordering::Relaxed);
            sending.join().unwrap()
        });
        let balance = line.balance_since(&before);
        let dropped = |session: &str| {
            let stats = line.node.service(session).unwrap().stats;
            (stats.packets, stats.dropped.get("budget").copied().unwrap_or(0))
        };
        let (came, over_promise) = dropped("heavy");
        assert_eq!(came, u64::from(sent_heavy));
        assert!(over_promise > 0 && over_promise < came, "{over_promise} of {came}");
        assert_eq!(dropped("light"), (u64::from(sent_light), 0));
        assert_eq!(balance.dropped(), over_promise, "{balance}");
        let mut payload = [0; 64];
        let arrived = std::iter::from_fn(|| receiver.recv(&mut payload).ok()).count();
        assert_eq!(arrived as u64, u64::from(sent_light), "{level}");
        // One account: time below beside what was promised.
        let used = line.used("heavy").used.total;
        let below = used.below_ns.unwrap();
        assert_eq!(
            below,
            u64::try_from(u128::from(used.fuel) * 1_000_000 / u128::from(speed)).unwrap()
        );
        assert_eq!(used.all_levels_ns, Some(below + used.cpu_ns.unwrap_or(0)));
    }
}

#[test]
fn unreserved_in_kernel_time_is_limited_only_beside_a_reservation_also_by_the_next_daemon() {
    if !root_or_skip("time below user level") {
        return;
    }
    let mut line = Line::up();
    line.resolve_neighbours();
    line.speed_is_measured();
    let rule = format!("proto udp dport {HEAVY}");
    let budget = Some(Budget { over: Some("drop".to_owned()), ..Budget::default() });
    let rules: &[&str] = &[&rule];
    let service = Service { rules, level: "nic", budget, ..Service::default() };
    line.node.deploy(&stepping("free", 4_200), &service).unwrap();
    let (sender, _sink) = (line.sender_to(HEAVY), line.udp("server", HEAVY));
    let send = |count: u32| (0..count).for_each(|_| assert_eq!(sender.send(&[0; 18]).unwrap(), 18));
    let dropped = |node: &NodeUnderTest| {
        let stats = node.service("free").unwrap().stats;
        (stats.packets, stats.dropped.get("budget").copied().unwrap_or(0))
    };
    send(500);
    assert_eq!(dropped(&line.node), (500, 0), "nobody was promised anything");
    // All that can be promised is, so that the rest is a hundredth of a core.
    while line.node.client().sessions().unwrap().left.unwrap().below_parts > 0 {
        let left = line.node.client().sessions().unwrap().left.unwrap().below_parts;
        let name = format!("s{left}");
        line.promise(&name, &format!("{}us/100ms", left.min(500_000) / 10));
    }
    let before = dropped(&line.node);
    send(2_000);
    let (packets, over) = dropped(&line.node);
    assert_eq!((packets - before.0, before.1), (2_000, 0));
    assert!(over > 0 && over < 2_000, "{over}");
    // Another daemon goes on with the same accounts.
    let speed = line.node.client().node().unwrap().below_fuel_per_ms;
    line.node.kill().unwrap();
    line.node.start_again(&line.net, "r1").unwrap();
    assert_eq!(line.node.client().node().unwrap().below_fuel_per_ms, speed);
    send(2_000);
    let after = dropped(&line.node);
    assert!(after.0 - packets == 2_000 && after.1 > over, "{after:?}");
}
