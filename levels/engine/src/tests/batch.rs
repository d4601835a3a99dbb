//! Tests of batches, and of suspended calls.

use super::{META, OwnedPacket};
use crate::{
    Call, Done, Ended, Engine, Handled, Instance, InstanceSpec, MemoryKind, Pace, PaceDecision,
    Program, Ran, StartError, Started, Starting, TrapKind,
};
use abi::{Meta, Verdict};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Pace that answers from a script, each time that its [`Alarm`] has fired.
struct ScriptedPace {
    answers: RefCell<Vec<PaceDecision>>,
    calls: RefCell<Vec<u64>>,
}

impl std::fmt::Debug for ScriptedPace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ScriptedPace")
    }
}

impl Pace for ScriptedPace {
    fn decide(&self, call: u64) -> PaceDecision {
        if call.trailing_zeros() >= 40 {
            // No packet has begun: the loop around them cannot be suspended, so an answer would be
            // lost on it.
            return PaceDecision::Continue;
        }
        self.calls.borrow_mut().push(call);
        self.answers.borrow_mut().pop().unwrap_or(PaceDecision::Continue)
    }
}

/// Thread that raises the epoch repeatedly, as long as the value lives.
struct Alarm(Arc<AtomicBool>);

impl Alarm {
    fn new(engine: Engine) -> Self {
        let done = Arc::new(AtomicBool::new(false));
        let is_done = Arc::clone(&done);
        std::thread::spawn(move || {
            while !is_done.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_micros(50));
                engine.raise_epoch();
            }
        });
        Self(done)
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

type Ready = (Box<Instance<OwnedPacket>>, Rc<ScriptedPace>, Alarm);

fn program(engine: &Engine, body: &str, kind: MemoryKind) -> Program<OwnedPacket> {
    let text = format!(r#"(module {body} (memory (export "memory") 1))"#);
    engine.program(&wat::parse_str(text).unwrap(), kind).unwrap()
}

fn start(body: &str, answers: Vec<PaceDecision>, kind: MemoryKind) -> Ready {
    let engine = Engine::new().unwrap();
    let (spec, script) = spec(answers);
    let instance = program(&engine, body, kind).start(&engine, &spec).unwrap();
    (Box::new(instance), script, Alarm::new(engine))
}

fn spec(mut answers: Vec<PaceDecision>) -> (InstanceSpec, Rc<ScriptedPace>) {
    answers.reverse();
    let script =
        Rc::new(ScriptedPace { answers: RefCell::new(answers), calls: RefCell::default() });
    let pace: Rc<dyn Pace> = script.clone();
    let spec = InstanceSpec {
        window: 64,
        memory_pages_max: 1,
        lane: 5,
        pace: Some(pace),
        ..InstanceSpec::default()
    };
    (spec, script)
}

/// Module that adds the first byte of the packet to byte 0 of memory, loops four million times as
/// often as that byte says (a tenth of a second for 100), and drops with the sum as its reason.
const SUM: &str = r#"
    (func (export "on_packet") (result i32) (local $left i32)
      (local.set $left (i32.load8_u (i32.const 0x8102)))
      (i32.store8 (i32.const 0)
        (i32.add (i32.load8_u (i32.const 0)) (local.get $left)))
      (local.set $left (i32.shl (local.get $left) (i32.const 22)))
      (loop $again
        (local.set $left (i32.sub (local.get $left) (i32.const 1)))
        (br_if $again (i32.gt_s (local.get $left) (i32.const 0))))
      (i32.store8 (i32.const 0x8102) (i32.const 9))
      (i32.or (i32.const 1) (i32.shl (i32.load8_u (i32.const 0)) (i32.const 16))))"#;

fn push(instance: &mut Instance<OwnedPacket>, first: u8) {
    let meta = Meta { flow_hash: u32::from(first), ..META };
    instance.push(OwnedPacket::new(vec![first; 60]), meta);
}

fn at_rest(ran: Ran<OwnedPacket>) -> Box<Instance<OwnedPacket>> {
    match ran {
        Ran::Rest(instance, Done::Packets) => instance,
        Ran::Rest(_, done) => panic!("{done:?}"),
        Ran::Suspended(_) => panic!("a call stands still"),
    }
}

fn sums(mut pop: impl FnMut() -> Option<Handled<OwnedPacket>>) -> Vec<u16> {
    let reason = |handled: Handled<OwnedPacket>| match handled.verdict.unwrap() {
        Verdict::Drop { reason } => {
            assert_eq!(handled.packet.into_bytes()[0], 9);
            reason
        }
        verdict => panic!("{verdict:?}"),
    };
    std::iter::from_fn(|| pop().map(reason)).collect()
}

#[test]
fn packets_are_handled_in_order_by_one_memory() {
    let (mut instance, _, _alarm) = start(SUM, vec![], MemoryKind::Own);
    for first in [1, 2, 3, 4] {
        push(&mut instance, first);
    }
    assert_eq!(instance.waiting(), 4);
    let mut instance = at_rest(instance.run());
    assert_eq!(sums(|| instance.pop()), [1, 3, 6, 10]);
    assert_eq!(instance.waiting(), 0);
    push(&mut instance, 5);
    let mut instance = at_rest(instance.run());
    assert_eq!(sums(|| instance.pop()), [15]);
}

#[test]
fn counters_are_read_while_a_call_is_suspended() {
    let counter = r#"(global (export "tam_counter_sum") i32 (i32.const 0))"#;
    for kind in [MemoryKind::Own, MemoryKind::OwnPacked] {
        // The first decision may be requested before the module has begun.
        let answers = vec![PaceDecision::Continue, PaceDecision::Suspend];
        let (mut instance, _, _alarm) = start(&format!("{counter} {SUM}"), answers, kind);
        for first in [100, 1] {
            push(&mut instance, first);
        }
        let Ran::Suspended(suspended) = instance.run() else { panic!("nothing stands still") };
        assert_eq!(suspended.counters(), [("sum".to_owned(), 100)]);
        let instance = at_rest(suspended.resume());
        assert_eq!(instance.counters(), [("sum".to_owned(), 101)]);
    }
}

#[test]
fn a_suspended_call_resumes_where_it_was() {
    let answers = vec![
        PaceDecision::Continue,
        PaceDecision::Suspend,
        PaceDecision::Continue,
        PaceDecision::Suspend,
    ];
    let (mut instance, script, _alarm) = start(SUM, answers, MemoryKind::Own);
    for first in [1, 100, 3] {
        push(&mut instance, first);
    }
    let (mut ran, mut suspensions, mut seen) = (instance.run(), 0, Vec::new());
    let mut instance = loop {
        match ran {
            Ran::Rest(instance, _) => break instance,
            Ran::Suspended(mut suspended) => {
                suspensions += 1;
                seen.extend(sums(|| suspended.pop()));
                ran = suspended.resume();
            }
        }
    };
    seen.extend(sums(|| instance.pop()));
    assert_eq!((suspensions, seen), (2, vec![1, 101, 104]));
    assert!(script.calls.borrow().is_sorted(), "calls have rising numbers");
}

/// No alarm is set: the answer alone causes the repeated requests.
#[test]
fn a_closely_polled_call_asks_for_a_decision_at_each_loop() {
    let engine = Engine::new().unwrap();
    let (mut spec, _) = spec(vec![]);
    let close = Rc::new(Close { left: Cell::new(1000) });
    spec.pace = Some(Rc::clone(&close) as _);
    let instance = program(&engine, SUM, MemoryKind::Own).start(&engine, &spec).unwrap();
    let mut instance = Box::new(instance);
    push(&mut instance, 1);
    let Ran::Suspended(suspended) = instance.run() else { panic!("it was to stand still") };
    assert_eq!(close.left.replace(u32::MAX), 0);
    let mut instance = at_rest(suspended.resume());
    assert_eq!(sums(|| instance.pop()), [1]);
    push(&mut instance, 2);
    assert_eq!(at_rest(instance.run()).waiting(), 1, "nothing begins");
}

/// Pace that expects a number of requests, then stops the call once.
#[derive(Debug)]
struct Close {
    left: Cell<u32>,
}

impl Pace for Close {
    fn decide(&self, _: u64) -> PaceDecision {
        match self.left.get() {
            u32::MAX => PaceDecision::Continue,
            0 => PaceDecision::Suspend,
            left => {
                self.left.set(left - 1);
                PaceDecision::ContinueClosely
            }
        }
    }

    fn begins(&self) -> PaceDecision {
        match self.left.get() {
            u32::MAX => PaceDecision::Suspend,
            _ => PaceDecision::ContinueClosely,
        }
    }
}

#[test]
fn a_stopped_call_ends_with_its_packet_and_its_place_in_the_code() {
    let (mut instance, script, _alarm) = start(
        r#"(func $for_ever (loop (br 0)))
           (func (export "on_packet") (result i32)
             (if (i32.eq (i32.load8_u (i32.const 0x8102)) (i32.const 7)) (then (call $for_ever)))
             (i32.const 0))"#,
        vec![PaceDecision::Continue; 3],
        MemoryKind::Own,
    );
    script.answers.borrow_mut().insert(0, PaceDecision::Suspend);
    for first in [1, 7, 2] {
        push(&mut instance, first);
    }
    let Ran::Suspended(suspended) = instance.run() else { panic!("it never ends") };
    let mut instance = at_rest(suspended.stop());
    assert_eq!(instance.pop().unwrap().verdict, Ok(Verdict::PASS));
    let stopped = instance.pop().unwrap();
    assert_eq!(stopped.packet.into_bytes()[0], 7);
    let trap = stopped.verdict.unwrap_err();
    assert_eq!(trap.kind, TrapKind::TimeLimit);
    assert!(trap.to_string().contains("for_ever"), "{trap}");
    assert_eq!(
        instance.take_waiting().unwrap().into_bytes()[0],
        2,
        "it waits for another instance"
    );
}

#[test]
fn a_trap_ends_the_batch_and_leaves_what_waits() {
    let (mut instance, _, _alarm) = start(
        r#"(func (export "on_packet") (result i32)
             (if (i32.eq (i32.load8_u (i32.const 0x8102)) (i32.const 7)) (then unreachable))
             (if (i32.eq (i32.load8_u (i32.const 0x8102)) (i32.const 8)) (then (return (i32.const 77))))
             (i32.const 0))"#,
        vec![],
        MemoryKind::Own,
    );
    for (bad, kind) in [(7, TrapKind::Unreachable), (8, TrapKind::NotAVerdict(Some(77)))] {
        for first in [1, bad, 2] {
            push(&mut instance, first);
        }
        instance = at_rest(instance.run());
        assert!(instance.pop().unwrap().verdict.is_ok());
        assert_eq!(instance.pop().unwrap().verdict.unwrap_err().kind, kind);
        assert!(instance.pop().is_none());
        assert_eq!(instance.take_waiting().unwrap().into_bytes()[0], 2);
    }
}

#[test]
fn events_of_a_call_are_returned_with_its_packet() {
    let (mut instance, _, _alarm) = start(
        r#"(import "tam" "event" (func $event (param i32 i32 i32) (result i32)))
           (func (export "on_packet") (result i32)
             (i32.store8 (i32.const 0x8030) (i32.load8_u (i32.const 0x8102)))
             (if (i32.eq (i32.load8_u (i32.const 0x8102)) (i32.const 2))
               (then (drop (call $event (i32.const 5) (i32.const 0) (i32.const 0)))))
             (i32.const 0))"#,
        vec![],
        MemoryKind::Own,
    );
    for first in [1, 2, 3] {
        push(&mut instance, first);
    }
    let mut instance = at_rest(instance.run());
    let events: Vec<usize> = std::iter::from_fn(|| instance.pop())
        .map(|handled| handled.emitted.map_or(0, |emitted| emitted.events.len()))
        .collect();
    assert_eq!(events, [0, 1, 0]);
}

#[test]
fn two_calls_are_suspended_at_once_and_resume_in_any_order() {
    let answers = || vec![PaceDecision::Suspend, PaceDecision::Continue, PaceDecision::Suspend];
    let (mut one, _, _alarm_one) = start(SUM, answers(), MemoryKind::Own);
    let (mut other, _, _alarm_other) = start(SUM, answers(), MemoryKind::Own);
    push(&mut one, 50);
    push(&mut other, 60);
    let Ran::Suspended(one) = one.run() else { panic!("it was to stand still") };
    let Ran::Suspended(other) = other.run() else { panic!("it was to stand still") };
    let Ran::Suspended(one) = one.resume() else { panic!("it was to stand still once more") };
    let Ran::Suspended(other) = other.resume() else { panic!("it was to stand still once more") };
    let mut other = at_rest(other.resume());
    let mut one = at_rest(one.resume());
    assert_eq!((sums(|| one.pop()), sums(|| other.pop())), (vec![50], vec![60]));
}

/// Module whose hooks all loop for long enough that the alarm fires on a busy machine, too, and
/// return what the hooks before them counted.
const HOOKS: &str = r#"
    (import "tam" "state_write" (func $write (param i32 i32) (result i32)))
    (global $done (mut i32) (i32.const 0))
    (func $work (local $left i32)
      (local.set $left (i32.const 160000000))
      (loop $again
        (local.set $left (i32.sub (local.get $left) (i32.const 1)))
        (br_if $again (local.get $left)))
      (global.set $done (i32.add (global.get $done) (i32.const 1))))
    (func (export "on_packet") (result i32)
      (i32.or (i32.const 1) (i32.shl (global.get $done) (i32.const 16))))
    (func (export "on_start") (result i32) (call $work) (i32.const 0))
    (func (export "on_timer") (call $work))
    (func (export "on_message") (param i32) (result i32)
      (call $work) (i32.add (i32.mul (global.get $done) (i32.const 100)) (local.get 0)))
    (func (export "state_out") (result i32)
      (call $work)
      (i32.store (i32.const 0) (global.get $done))
      (call $write (i32.const 0) (i32.const 4)))
    (func (export "state_in") (param i32) (result i32) (call $work) (i32.const 0))"#;

fn started(mut starting: Starting<OwnedPacket>) -> (Box<Instance<OwnedPacket>>, usize) {
    let mut suspensions = 0;
    loop {
        match starting.resume() {
            Started::Ended(ended) => return (ended.unwrap(), suspensions),
            Started::Suspended(again) => (starting, suspensions) = (again, suspensions + 1),
        }
    }
}

fn called(mut ran: Ran<OwnedPacket>) -> (Box<Instance<OwnedPacket>>, Ended, usize) {
    let mut suspensions = 0;
    loop {
        match ran {
            Ran::Rest(instance, Done::Call(ended)) => return (instance, ended, suspensions),
            Ran::Rest(_, Done::Packets) => panic!("packets were not asked for"),
            Ran::Suspended(suspended) => (ran, suspensions) = (suspended.resume(), suspensions + 1),
        }
    }
}

#[test]
fn suspended_hooks_resume_where_they_were() {
    let engine = Engine::new().unwrap();
    let program = program(&engine, HOOKS, MemoryKind::Own);
    let _alarm = Alarm::new(engine.clone());
    let (spec, script) = spec(vec![]);
    // Once each, and once more for the second half of a start.
    let once = || script.answers.borrow_mut().push(PaceDecision::Suspend);
    once();
    let (instance, suspensions) = started(program.begin(&engine, &spec, None, 0).unwrap());
    assert_eq!(suspensions, 1, "on_start");
    once();
    let (instance, ended, suspensions) = called(instance.call(Call::Timer { now_ms: 0 }));
    assert!(matches!((ended, suspensions), (Ended::Timer(Ok(())), 1)));
    once();
    let message = Call::Message { message: [1, 2, 3].into(), now_ms: 0 };
    let (mut instance, ended, suspensions) = called(instance.call(message));
    assert!(matches!((ended, suspensions), (Ended::Message(Ok(Some(303))), 1)));
    push(&mut instance, 1);
    let mut instance = at_rest(instance.run());
    assert!(instance.pop().unwrap().verdict.is_ok(), "packets come between");
    once();
    let (_, ended, suspensions) = called(instance.call(Call::StateOut { now_ms: 0 }));
    let Ended::State(Ok(kept)) = ended else { panic!("{ended:?}") };
    assert_eq!(suspensions, 1, "state_out");
    once();
    once();
    let starting = program.begin(&engine, &spec, Some(kept), 0).unwrap();
    let (_, suspensions) = started(starting);
    assert_eq!(suspensions, 2, "with what was kept");
}

#[test]
fn hooks_trap_with_the_time_limit_when_they_are_stopped() {
    let endless = "(loop (br 0))";
    let body = format!(
        r#"(func (export "on_packet") (result i32) (i32.const 0))
           (func (export "on_message") (param i32) (result i32) {endless} (i32.const 0))
           (func (export "on_timer") {endless})"#
    );
    for call in [Call::Timer { now_ms: 0 }, Call::Message { message: Rc::default(), now_ms: 0 }] {
        let (instance, script, _alarm) =
            start(&body, vec![PaceDecision::Continue, PaceDecision::Stop], MemoryKind::Own);
        let (_, ended, suspensions) = called(instance.call(call));
        let (Ended::Timer(Err(trap)) | Ended::Message(Err(trap))) = ended else {
            panic!("{ended:?}")
        };
        assert_eq!((trap.kind, suspensions), (TrapKind::TimeLimit, 0));
        assert_eq!(script.calls.borrow().len(), 2);
    }
    let body = format!(
        r#"(func (export "on_packet") (result i32) (i32.const 0))
           (func (export "on_start") (result i32) {endless} (i32.const 0))"#
    );
    let engine = Engine::new().unwrap();
    let program = program(&engine, &body, MemoryKind::Own);
    let _alarm = Alarm::new(engine.clone());
    let (spec, _) = spec(vec![PaceDecision::Suspend, PaceDecision::Continue, PaceDecision::Stop]);
    let Started::Suspended(starting) = program.begin(&engine, &spec, None, 0).unwrap().resume()
    else {
        panic!("it was to stand still")
    };
    let Started::Ended(Err(StartError::Trapped(trap))) = starting.resume() else {
        panic!("it was to stop")
    };
    assert_eq!(trap.kind, TrapKind::TimeLimit);
}
