//! Modules that never end: at user level they have had less than 10 ms of a processor when they are
//! ended, by the kernel's account of the cell, and below user level by the node's.

use std::time::Duration;

use api::{SessionCounts, SessionRequest};
use testkit::{Service, root_or_skip, wait_for};

use crate::common::{Line, SOON, module};
use crate::levels::BELOW;

/// Bound that is promised.
const AT_MOST: Duration = Duration::from_millis(10);
/// Calls of each kind until one has had less. A shared host may take the core away in the middle of
/// a call, and the time that passes meanwhile is on the account; a call that is ended too late is
/// so each time.
const ATTEMPTS: usize = 25;
const PORT: u16 = 7000;
const RULES: &[&str] = &["proto udp dport 7000"];

const PLAIN: &str = r#"(memory (export "memory") 1 64)
    (func (export "on_packet") (result i32) (i32.const 0))"#;
/// Code that never returns, whatever type is expected after it.
const ENDLESS: &str = "(loop (br 0))";

/// Returns a module whose callback never ends.
fn with_hook(hook: &str) -> String {
    format!("{PLAIN} {hook}")
}

fn user(name: &str, manifest: &str, fields: &str) -> Vec<u8> {
    let levels = "window = 64\nmemory_pages_max = 64\nlevels = [\"user\"]";
    module(name, &format!("{levels}\n{manifest}"), fields)
}

impl Line {
    /// Creates a session and its service, which gets the test's packets.
    fn with_runaway(&self, name: &str, wasm: &[u8], level: &'static str) {
        let memory = Some("4MiB".to_owned());
        let request = SessionRequest { name: name.to_owned(), memory, ..SessionRequest::default() };
        self.node.client().create_session(&request).unwrap();
        let service = Service { name, session: name, rules: RULES, level, ..Service::default() };
        self.node.deploy(wasm, &service).unwrap();
    }

    fn used_by(&self, session: &str) -> SessionCounts {
        self.node.client().session(session).unwrap().used.total
    }

    fn ended(&self, service: &str) -> u64 {
        let traps = self.node.service(service).unwrap().stats.traps;
        traps.get("time_limit").copied().unwrap_or(0)
    }

    /// Returns the processor time of the cell's executor: the first field of `schedstat`
    /// (Documentation/scheduler/sched-stats). The time charged to a session includes that in which
    /// other processes had the core.
    fn cell_time(&self) -> Duration {
        let path = format!("/proc/{}/schedstat", self.node.cell().unwrap());
        let stat = std::fs::read_to_string(path).unwrap();
        Duration::from_nanos(stat.split_ascii_whitespace().next().unwrap().parse().unwrap())
    }

    /// Repeats `act` until a call that it ended had at most the promised time; returns the
    /// shortest.
    fn least(
        &self,
        name: &str,
        time: impl Fn() -> Duration,
        mut act: impl FnMut(usize),
    ) -> Duration {
        let mut each = Vec::new();
        for attempt in 0..ATTEMPTS {
            let (before, ended) = (time(), self.ended(name));
            act(attempt);
            let more = wait_for(SOON, || match self.ended(name) - ended {
                0 => None,
                more => Some(more),
            });
            let more = more.unwrap_or_else(|| panic!("'{name}' was not ended"));
            each.push((time() - before) / more as u32);
            if each.last() < Some(&AT_MOST) {
                break;
            }
        }
        eprintln!("{name}: {each:?}");
        each.into_iter().min().unwrap()
    }
}

#[test]
fn a_module_that_never_ends_has_at_most_ten_milliseconds_wherever_it_runs() {
    if !root_or_skip("modules that never end") {
        return;
    }
    let on_packet = format!(
        r#"(memory (export "memory") 1 1)
        (func (export "on_packet") (result i32) {ENDLESS} (i32.const 0))"#
    );
    let line = Line::up();
    line.resolve_neighbours();
    line.with_runaway("on-packet", &user("on-packet", "", &on_packet), "user");
    let sender = line.sender_to(PORT);
    let send = |_| assert_eq!(sender.send(b"never").unwrap(), 5);
    let least = line.least("on-packet", || line.cell_time(), send);
    assert!(least < AT_MOST, "on_packet had {least:?}");
    line.node.client().remove_session("on-packet", true).unwrap();

    // In-kernel programs cannot be interrupted; fuel bounds them, and fuel takes time.
    for level in ["nic", "kernel"] {
        let wasm =
            module("below", &format!("window = 64\nmemory_pages_max = 1\n{BELOW}"), &on_packet);
        line.with_runaway("below", &wasm, level);
        assert_eq!(line.node.service("below").unwrap().level, level);
        let below = || Duration::from_nanos(line.used_by("below").below_ns.unwrap_or(0));
        let least = line.least("below", below, send);
        assert!(least > Duration::ZERO && least < AT_MOST, "on_packet at {level} had {least:?}");
        line.node.client().remove_session("below", true).unwrap();
    }

    let client = line.node.client();
    let message = |name: &'static str| move |_| drop(client.message(name, b"?").unwrap());
    let hook = with_hook(&format!(
        r#"(func (export "on_message") (param i32) (result i32) {ENDLESS} (i32.const 0))"#
    ));
    line.with_runaway("on-message", &user("on-message", "", &hook), "user");
    let least = line.least("on-message", || line.cell_time(), message("on-message"));
    assert!(least < AT_MOST, "on_message had {least:?}");
    client.remove_session("on-message", true).unwrap();

    let hook = with_hook(&format!(r#"(func (export "on_timer") {ENDLESS})"#));
    line.with_runaway("on-timer", &user("on-timer", "timer_ms = 50", &hook), "user");
    let least = line.least("on-timer", || line.cell_time(), |_| {});
    assert!(least < AT_MOST, "on_timer had {least:?}");
    client.remove_session("on-timer", true).unwrap();

    // Of 4 MiB less than an eighth is left.
    let hook = with_hook(&format!(
        r#"(func (export "on_memory_low") (param i32 i32) {ENDLESS})
        (func (export "on_message") (param i32) (result i32) (memory.grow (i32.const 44)))"#
    ));
    line.with_runaway("low", &user("low", "", &hook), "user");
    let least = line.least("low", || line.cell_time(), message("low"));
    assert!(least < AT_MOST, "on_memory_low had {least:?}");
}

#[test]
fn a_start_or_a_handover_that_never_ends_has_at_most_ten_milliseconds() {
    if !root_or_skip("modules that never end") {
        return;
    }
    let line = Line::up();
    let state = r#"(import "tam" "state_write" (func $write (param i32 i32) (result i32)))
        (import "tam" "state_read" (func (param i32 i32) (result i32)))"#;
    let done = "(i32.const 0)";
    let version = |number: usize, out: &str, takes: &str, starts: &str| {
        let fields = format!(
            r#"{state} {PLAIN} (data (i32.const 0x9100) "version {number}")
            (func (export "state_out") (result i32) (drop (call $write {done} (i32.const 4))) {out} {done})
            (func (export "state_in") (param i32) (result i32) {takes} {done})
            (func (export "on_start") (result i32) {starts} {done})"#
        );
        user("hook", "", &fields)
    };
    for (name, first, second, says) in [
        ("on-start", ("", "", ""), ("", "", ENDLESS), "on_start trapped"),
        ("state-out", (ENDLESS, "", ""), ("", "", ""), "state_out trapped"),
        ("state-in", ("", "", ""), ("", ENDLESS, ""), "state_in trapped"),
    ] {
        line.with_runaway(name, &version(0, first.0, first.1, first.2), "user");
        let service = Service { name, session: name, ..Service::default() };
        let mut each = Vec::new();
        for number in 1..=ATTEMPTS {
            let before = line.cell_time();
            let wasm = version(number, second.0, second.1, second.2);
            let refused = line.node.deploy(&wasm, &service).unwrap_err().to_string();
            assert!(refused.contains(says), "{refused}");
            each.push(line.cell_time() - before);
            if each.last() < Some(&AT_MOST) {
                break;
            }
        }
        eprintln!("{name}: {each:?}");
        let least = each.iter().min().unwrap();
        assert!(*least < AT_MOST, "{name} had {each:?}");
        line.node.client().remove_session(name, true).unwrap();
    }
}
