//! Callbacks beside packets are charged to the session's turns, too: starts, messages, timers, and
//! the state that one version leaves to the next.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use api::SessionRequest;
use testkit::{Service, root_or_skip, wait_for};

use crate::common::{Ends, Line, SOON, module, steps_of_work};

const VICTIM: u16 = 7000;
const SLOW: u16 = 7001;
/// Slice of the slow session, without extra time. On a busy machine much of a slice passes before
/// the module runs.
const SLICE: &str = "200us/10ms";
/// Steps that take 0.4 ms or more on any machine: more than a slice, so that a period passes; on a
/// busy one far less than the 5 ms that end a call.
const STEPS: u32 = 400_000;
/// Time that a callback takes at least: most of that period.
const HOOK_TAKES: Duration = Duration::from_millis(8);

const COUNTS: &str = r#"
    (memory (export "memory") 1 1)
    (global (export "tam_counter_seen") i32 (i32.const 0x9000))
    (func (export "on_packet") (result i32)
      (i64.store (i32.const 0x9000) (i64.add (i64.load (i32.const 0x9000)) (i64.const 1)))
      (i32.const 0))"#;

/// Returns a module whose callbacks work for a while. A message's answer has the version in its
/// second byte, and in its first the packets that it and earlier versions have seen.
fn slow_hooks(version: u32) -> Vec<u8> {
    let work = steps_of_work(STEPS);
    let locals = "(local $step i32) (local $hash i32)";
    let fields = format!(
        r#"
    (import "tam" "state_write" (func $write (param i32 i32) (result i32)))
    (import "tam" "state_read" (func $read (param i32 i32) (result i32)))
    {COUNTS}
    (data (i32.const 0x9100) "this is version {version}")
    (func (export "on_start") (result i32) {locals} {work} (i32.const 0))
    (func (export "on_message") (param i32) (result i32) {locals} {work}
      (i32.or (i32.load8_u (i32.const 0x9000)) (i32.const {shown})))
    (func (export "state_out") (result i32) {locals} {work}
      (call $write (i32.const 0x9000) (i32.const 8)))
    (func (export "state_in") (param i32) (result i32) {locals} {work}
      (i32.ne (call $read (i32.const 0x9000) (local.get 0)) (i32.const 8)))"#,
        shown = version << 8
    );
    user("slow", "", &fields)
}

fn user(name: &str, manifest: &str, fields: &str) -> Vec<u8> {
    let levels = "window = 64\nmemory_pages_max = 1\nlevels = [\"user\"]";
    module(name, &format!("{levels}\n{manifest}"), fields)
}

fn with_session(line: &Line, name: &str, cpu: Option<&str>) {
    let request = SessionRequest {
        name: name.to_owned(),
        cpu: cpu.into_iter().map(str::to_owned).collect(),
        queue: cpu.map(|_| "1MiB".to_owned()),
        ..SessionRequest::default()
    };
    line.node.client().create_session(&request).unwrap();
}

fn serve(line: &Line, session: &str, wasm: &[u8], name: &str, port: u16) {
    let rule = format!("proto udp dport {port}");
    let service = Service { name, session, rules: &[&rule], ..Service::default() };
    line.node.deploy(wasm, &service).unwrap();
}

/// Returns a line with a session that reserves a quarter of the processor, whose service counts.
fn with_victim() -> Line {
    let line = Line::up();
    line.resolve_neighbours();
    with_session(&line, "gold", Some("1ms/4ms"));
    serve(&line, "gold", &user("count", "", COUNTS), "victim", VICTIM);
    line
}

/// Sends a packet for the victim each millisecond while `act` works: all arrive, in order. `act`
/// gets the number that has arrived so far.
fn beside_traffic(line: &Line, act: impl FnOnce(&AtomicU32)) {
    let (receiver, sender) = (line.udp("server", VICTIM), line.sender_to(VICTIM));
    receiver.set_read_timeout(Some(SOON)).unwrap();
    let (over, seen) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| {
            let mut number = 0u32;
            while !over.load(Ordering::Relaxed) {
                sender.send(&number.to_be_bytes()).unwrap();
                number += 1;
                std::thread::sleep(Duration::from_millis(1));
            }
            // One more packet, so that a waiting receiver returns soon.
            sender.send(&u32::MAX.to_be_bytes()).unwrap();
            number
        });
        let receiving = scope.spawn(|| {
            let mut payload = [0; 4];
            let mut next = 0u32;
            loop {
                assert_eq!(receiver.recv(&mut payload).unwrap(), 4, "packet {next}");
                match u32::from_be_bytes(payload) {
                    u32::MAX => return next,
                    number => assert_eq!(number, next, "in order"),
                }
                next += 1;
                seen.store(next, Ordering::Relaxed);
            }
        });
        let ends = Ends(&over);
        act(&seen);
        drop(ends);
        assert_eq!(sending.join().unwrap(), receiving.join().unwrap(), "all of them");
    });
}

#[test]
fn long_hooks_are_suspended_and_other_sessions_run_meanwhile() {
    if !root_or_skip("hooks that take turns") {
        return;
    }
    let line = with_victim();
    with_session(&line, "slow", Some(SLICE));
    let (slow, receiver) = (line.sender_to(SLOW), line.udp("server", SLOW));
    receiver.set_read_timeout(Some(SOON)).unwrap();
    let mut payload = [0; 4];
    beside_traffic(&line, |seen| {
        // The victim's packets arrived during a callback, which was preempted for them.
        let takes_turns = |what: &str, act: &mut dyn FnMut()| {
            let (since, before) = (Instant::now(), seen.load(Ordering::Relaxed));
            act();
            let (took, came) = (since.elapsed(), seen.load(Ordering::Relaxed) - before);
            assert!(took >= HOOK_TAKES, "{what} took {took:?}");
            assert!(came >= 3, "{what}: {came} packets came in {took:?}");
        };
        takes_turns("on_start", &mut || serve(&line, "slow", &slow_hooks(1), "slow", SLOW));
        for _ in 0..3 {
            slow.send(b"seen").unwrap();
            receiver.recv(&mut payload).unwrap();
        }
        takes_turns("on_message", &mut || {
            let answers = line.node.client().message("slow", b"?").unwrap().answers;
            assert_eq!(answers, [Some(0x103)]);
        });
        takes_turns("another version", &mut || {
            let service = Service { name: "slow", session: "slow", ..Service::default() };
            line.node.deploy(&slow_hooks(2), &service).unwrap();
        });
        slow.send(b"seen").unwrap();
        receiver.recv(&mut payload).unwrap();
        let answers = line.node.client().message("slow", b"?").unwrap().answers;
        assert_eq!(answers, [Some(0x204)], "what the version before knew");
    });
    let slow = line.node.service("slow").unwrap();
    assert!(slow.stats.traps.is_empty(), "{:?}: a turn that is over is no time limit", slow.stats);
}

#[test]
fn hooks_that_never_end_are_ended_wherever_they_run_and_nobody_waits_for_them() {
    if !root_or_skip("hooks that take turns") {
        return;
    }
    let line = with_victim();
    let endless = "(loop (br 0))";
    let timer = format!(r#"{COUNTS} (func (export "on_timer") {endless})"#);
    let message = format!(
        r#"{COUNTS} (func (export "on_message") (param i32) (result i32) {endless} (i32.const 0))"#
    );
    let starts =
        format!(r#"{COUNTS} (func (export "on_start") (result i32) {endless} (i32.const 0))"#);
    let hands_over = format!(
        r#"(import "tam" "state_write" (func (param i32 i32) (result i32)))
        (import "tam" "state_read" (func (param i32 i32) (result i32)))
        {COUNTS}
        (func (export "state_out") (result i32) {endless} (i32.const 0))
        (func (export "state_in") (param i32) (result i32) (i32.const 0))"#
    );
    for name in ["ticks", "hears", "starts", "hands-over"] {
        with_session(&line, name, None);
    }
    beside_traffic(&line, |_| {
        serve(&line, "ticks", &user("ticks", "timer_ms = 1", &timer), "ticks", SLOW);
        serve(&line, "hears", &user("hears", "", &message), "hears", SLOW + 1);
        serve(&line, "hands-over", &user("hands-over", "", &hands_over), "hands-over", SLOW + 2);
        let client = line.node.client();
        for _ in 0..3 {
            assert_eq!(client.message("hears", b"?").unwrap().answers, [None]);
        }
        let wasm = user("starts", "", &starts);
        let service = Service { name: "starts", session: "starts", ..Service::default() };
        let refused = line.node.deploy(&wasm, &service).unwrap_err().to_string();
        assert!(refused.contains("on_start trapped"), "{refused}");
        let service = Service { name: "hands-over", session: "hands-over", ..Service::default() };
        let another = hands_over.replace("(memory", "(data (i32.const 0x9100) \"2\") (memory");
        let another = user("hands-over", "", &another);
        let refused = line.node.deploy(&another, &service).unwrap_err().to_string();
        assert!(refused.contains("state_out trapped"), "{refused}");
    });
    let traps = |name: &str| line.node.service(name).unwrap().stats.traps["time_limit"];
    assert!(wait_for(SOON, || (traps("ticks") >= 2).then_some(())).is_some(), "the timer goes on");
    assert_eq!((traps("hears"), traps("hands-over")), (3, 1));
    // Behind each trap another instance has started, and handles packets.
    for port in [SLOW + 1, SLOW + 2] {
        let (receiver, sender): (UdpSocket, UdpSocket) =
            (line.udp("server", port), line.sender_to(port));
        receiver.set_read_timeout(Some(SOON)).unwrap();
        sender.send(b"here").unwrap();
        assert_eq!(receiver.recv(&mut [0; 4]).unwrap(), 4);
    }
}
