//! Processor time charged to sessions, compared with the kernel's account of the cell.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use api::SessionRequest;
use testkit::{Service, root_or_skip};

use crate::common::{Ends, Line, module, steps_of_work};
use crate::turns::counting;

/// Duration of the load: the kernel's ticks of 10 ms are less than a hundredth of it.
const LOAD: Duration = Duration::from_secs(4);
/// Largest difference as a share of the kernel's account, on an idle machine. Turns are measured by
/// wall time: while other processes have the cell's core, somebody is charged for it. The kernel
/// reports how long that was, too.
const APART: f64 = 0.05;
/// Smallest share of the kernel's account that is charged to the packets' principals: the rest is
/// the cell's own.
const TO_PRINCIPALS: f64 = 0.5;
/// Ticks of `utime` and `stime` per second: USER_HZ, the same on all common architectures.
const USER_HZ: u64 = 100;

const ENDLESS: &str = r#"(memory (export "memory") 1 1)
    (func (export "on_packet") (result i32) (loop (br 0)) (i32.const 0))"#;

/// Returns a module that works each millisecond, whether packets come or not.
fn ticking() -> String {
    let work = steps_of_work(20_000);
    format!(
        r#"(memory (export "memory") 1 1)
    (func (export "on_packet") (result i32) (i32.const 0))
    (func (export "on_timer") (local $step i32) (local $hash i32) {work})"#
    )
}

/// Returns the processor time of a process in the kernel's account: fields 14 and 15 of `stat`
/// (proc(5)).
fn kernels_account(process: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    // After the name, which may contain blanks.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_ascii_whitespace().collect();
    let ticks = |at: usize| fields[at].parse::<u64>().unwrap();
    Duration::from_millis((ticks(11) + ticks(12)) * 1000 / USER_HZ)
}

/// Returns how long a process was ready to run without a core: the second field of `schedstat`
/// (Documentation/scheduler/sched-stats).
fn kept_waiting(process: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{process}/schedstat")).unwrap();
    Duration::from_nanos(stat.split_ascii_whitespace().nth(1).unwrap().parse().unwrap())
}

/// Returns the time charged to each session at user level.
fn charged(line: &Line) -> Vec<(String, Duration)> {
    let sessions = line.node.client().sessions().unwrap().sessions;
    let cpu = |ns: Option<u64>| Duration::from_nanos(ns.unwrap_or(0));
    sessions.into_iter().map(|it| (it.name, cpu(it.used.total.cpu_ns))).collect()
}

#[test]
fn time_charged_to_sessions_is_what_the_kernel_accounts_to_the_cell() {
    if !root_or_skip("accounts of processor time") {
        return;
    }
    let line = Line::up();
    line.resolve_neighbours();
    let timer = "timer_ms = 1\n";
    let kinds = [
        ("gold", Some("1ms/4ms"), counting(500), ""),
        ("silver", Some("400us/4ms+extra"), counting(100), ""),
        ("ticks", Some("500us/5ms"), ticking(), timer),
        ("endless", None, ENDLESS.to_owned(), ""),
        ("tin", None, counting(2000), ""),
    ];
    for (number, (name, cpu, fields, manifest)) in kinds.iter().enumerate() {
        let request = SessionRequest {
            name: (*name).to_owned(),
            cpu: cpu.iter().map(|share| (*share).to_owned()).collect(),
            ..SessionRequest::default()
        };
        line.node.client().create_session(&request).unwrap();
        let manifest =
            format!("window = 64\nmemory_pages_max = 1\nlevels = [\"user\"]\n{manifest}");
        let rule = format!("proto udp dport {}", 7000 + number);
        let service = Service { name, session: name, rules: &[&rule], ..Service::default() };
        line.node.deploy(&module(name, &manifest, fields), &service).unwrap();
    }
    let senders: Vec<_> = (0..kinds.len() as u16).map(|at| line.sender_to(7000 + at)).collect();
    let over = AtomicBool::new(false);
    let (kernel, waited, before, after) = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                for sender in &senders {
                    // No program listens at the server, which answers with ICMP errors.
                    let _ = sender.send(b"work");
                }
                std::thread::sleep(Duration::from_micros(300));
            }
        });
        let _ends = Ends(&over);
        let cell = line.node.cell().unwrap();
        std::thread::sleep(Duration::from_millis(200));
        let waited = kept_waiting(cell);
        let (before, begin) = (charged(&line), kernels_account(cell));
        std::thread::sleep(LOAD);
        let (after, end) = (charged(&line), kernels_account(cell));
        (end - begin, kept_waiting(cell) - waited, before, after)
    });
    let used: Vec<(String, Duration)> = after
        .into_iter()
        .map(|(name, after)| {
            let before = before.iter().find(|(it, _)| *it == name).unwrap().1;
            (name, after - before)
        })
        .collect();
    let sum: Duration = used.iter().map(|(_, used)| *used).sum();
    let says = format!("{sum:?} charged, {kernel:?} used, {waited:?} waited: {used:?}");
    assert!(sum.as_secs_f64() > kernel.as_secs_f64() * (1.0 - APART), "{says}");
    assert!(sum.as_secs_f64() < (kernel + waited).as_secs_f64() * (1.0 + APART), "{says}");
    let principals = used.iter().filter(|(name, _)| name != "system").map(|(_, used)| *used);
    let part = principals.sum::<Duration>().as_secs_f64() / kernel.as_secs_f64();
    assert!(part > TO_PRINCIPALS, "{part:.3} of it to those who had it done: {used:?}");
    for (name, _, _, _) in &kinds {
        let (_, used) = used.iter().find(|(it, _)| it == name).unwrap();
        assert!(*used > Duration::ZERO, "'{name}' worked");
    }
    eprintln!("{says}; {part:.3} to principals");
}
