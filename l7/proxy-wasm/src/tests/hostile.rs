//! Tests of hostile or faulty modules: none does harm.

use super::{FAILED, HEAP, NO_MEMORY_THERE, NOW, OK, Script, Step, Tried, engine, http, spec};
use crate::{Answer, Call, CallError, Ran, StartError, Started, Starting, VmSpec};
use engine::{Pace, PaceDecision, Trap, TrapKind};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Thread that raises the epoch every millisecond, until it is dropped.
struct Clock {
    stop: std::sync::Arc<std::sync::atomic::AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Clock {
    fn start() -> Self {
        use std::sync::atomic::{AtomicBool, Ordering};
        let stop = std::sync::Arc::new(AtomicBool::new(false));
        let flag = std::sync::Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            while !flag.load(Ordering::Relaxed) {
                engine().raise_epoch();
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        self.stop.store(true, std::sync::atomic::Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

/// Pace that suspends a call `left` times, and then returns `last`.
#[derive(Debug)]
struct Turns {
    left: Cell<u32>,
    last: PaceDecision,
    calls: RefCell<Vec<u64>>,
}

impl Pace for Turns {
    fn decide(&self, call: u64) -> PaceDecision {
        self.calls.borrow_mut().push(call);
        match self.left.get() {
            0 => self.last,
            left => {
                self.left.set(left - 1);
                PaceDecision::Suspend
            }
        }
    }
}

fn turns(left: u32, last: PaceDecision) -> (Rc<Turns>, VmSpec) {
    let pace = Rc::new(Turns { left: Cell::new(left), last, calls: RefCell::new(Vec::new()) });
    let spec = VmSpec { pace: Some(Rc::clone(&pace) as Rc<dyn Pace>), ..spec() };
    (pace, spec)
}

pub(super) fn trap_of(answer: Result<Answer, CallError>) -> TrapKind {
    match answer {
        Err(CallError::Trapped(Trap { kind, .. })) => kind,
        other => panic!("no trap: {other:?}"),
    }
}

const ENDLESS: &str = "(loop (br 0)) (i32.const 0)";
/// Body that loops for many turns.
const WAITING: &str = "(loop
    (i32.store (i32.const 0x704) (i32.add (i32.const 1) (i32.load (i32.const 0x704))))
    (br_if 0 (i32.lt_u (i32.load (i32.const 0x704)) (i32.const 300000000))))
    (i32.const 0)";

#[test]
fn a_loop_without_end_is_stopped() {
    let _clock = Clock::start();
    for (pace, spec) in [turns(0, PaceDecision::Stop), turns(3, PaceDecision::Stop)] {
        let mut tried = Script::new().exporting("proxy_on_tick", ENDLESS).start_with(spec);
        assert_eq!(trap_of(tried.call(Call::Tick)), TrapKind::TimeLimit);
        assert!(tried.vm.as_ref().unwrap().has_trapped());
        assert_eq!(tried.call(Call::Tick), Err(CallError::AlreadyTrapped));
        let calls = pace.calls.borrow();
        assert!(calls.iter().all(|call| *call == calls[0]), "it is one call");
    }
    let tried = Script::new().exporting("proxy_on_tick", ENDLESS);
    let mut tried = tried.start_with(VmSpec { call_slices: 2, ..spec() });
    assert_eq!(trap_of(tried.call(Call::Tick)), TrapKind::TimeLimit, "nobody sets a pace");
}

#[test]
fn a_call_is_suspended_and_stopped_or_resumed() {
    let _clock = Clock::start();
    let suspended = || {
        let (pace, spec) = turns(u32::MAX, PaceDecision::Stop);
        let tried = Script::new().exporting("proxy_on_tick", WAITING).start_with(spec);
        match tried.vm.unwrap().call(Call::Tick, NOW) {
            Ran::Suspended(suspended) => (pace, suspended),
            Ran::Ended(..) => panic!("it waits for 300 million rounds"),
        }
    };
    let (_, call) = suspended();
    let (mut vm, outcome) = call.stop().finish();
    assert_eq!(trap_of(outcome.answer), TrapKind::TimeLimit);
    assert!(vm.has_trapped() && vm.stream_mut(2).is_none());
    let (pace, call) = suspended();
    let Ran::Suspended(call) = call.resume() else { panic!("its turn is over again") };
    pace.left.set(0);
    let (_, outcome) = call.stop().finish();
    assert_eq!(trap_of(outcome.answer), TrapKind::TimeLimit);
    let (_, call) = suspended();
    drop(call);
}

#[test]
fn a_suspended_call_completes() {
    let _clock = Clock::start();
    let (pace, spec) = turns(3, PaceDecision::Continue);
    let mut tried = Script::new().exporting("proxy_on_tick", WAITING).start_with(spec);
    let mut times = 0;
    let mut ran = tried.vm.take().unwrap().call(Call::Tick, NOW);
    let outcome = loop {
        match ran {
            Ran::Ended(vm, outcome) => {
                tried.vm = Some(vm);
                break outcome;
            }
            Ran::Suspended(suspended) => {
                times += 1;
                ran = suspended.resume();
            }
        }
    };
    assert_eq!((times, outcome.answer), (3, Ok(Answer::Nothing)));
    assert_eq!(tried.word(0x704), 300_000_000);
    assert_eq!(pace.left.get(), 0);
}

#[test]
fn an_allocator_that_does_not_end_is_stopped_in_the_middle_of_a_host_function() {
    let _clock = Clock::start();
    for turns in [turns(0, PaceDecision::Stop), turns(2, PaceDecision::Stop)] {
        let script = Script::new().exporting("proxy_on_memory_allocate", ENDLESS);
        let steps: [Step<'_>; 1] = [("proxy_get_header_map_pairs", &[0, 0x400, 0x404])];
        let mut tried = script.on("proxy_on_request_headers", &steps, 0).start_with(turns.1);
        let context = tried.create(http(&[("a", "b")]));
        let call = Call::RequestHeaders { context, is_last: true };
        assert_eq!(trap_of(tried.call(call)), TrapKind::TimeLimit);
    }
}

#[test]
fn a_start_without_end_is_stopped() {
    let _clock = Clock::start();
    for callback in ["_initialize", "_start", "proxy_on_vm_start", "proxy_on_configure"] {
        let script = Script::new().exporting(callback, ENDLESS);
        let program = engine().program(&wat::parse_str(script.text()).unwrap()).unwrap();
        let (_, spec) = turns(1, PaceDecision::Stop);
        let starting = match Starting::new(&program, spec, NOW).resume() {
            Started::Suspended(starting) => starting,
            Started::Ended(_) => panic!("{callback} has no end"),
        };
        let Started::Ended(Err(failure)) = starting.stop() else { panic!("{callback} goes on") };
        assert!(
            matches!(&failure.error, StartError::Trapped(name, trap)
                if *name == callback && trap.kind == TrapKind::TimeLimit),
            "{failure:?}"
        );
    }
    // A start section runs under the same pace.
    let text = r#"(module (memory (export "memory") 1) (func (export "proxy_abi_version_0_2_1"))
                   (func $loop (loop (br 0))) (start $loop))"#;
    let spec = VmSpec { call_slices: 2, ..spec() };
    let failure = Tried::start(&wat::parse_str(text).unwrap(), spec).err().unwrap();
    assert!(matches!(failure.error, StartError::Trapped("the start function", _)), "{failure:?}");
}

#[test]
fn recursion_ends_with_the_stack() {
    let text = r#"(module (memory (export "memory") 1) (func (export "proxy_abi_version_0_2_1"))
        (func $deep (param i32) (result i32) (i32.add (i32.const 1) (call $deep (local.get 0))))
        (func (export "proxy_on_tick") (param i32) (drop (call $deep (local.get 0)))))"#;
    assert_eq!(trap_of(Tried::text(text).call(Call::Tick)), TrapKind::StackOverflow);
}

/// An allocator that calls the host function that needs it is refused at the second level.
#[test]
fn a_recursive_allocator_is_refused() {
    let mut script = Script::new();
    let again = script.invocation("proxy_get_header_map_pairs", &[0, 0x400, 0x404]);
    let body = format!("(i32.store (i32.const 0x700) {again}) (i32.const {HEAP})");
    let script = script.exporting("proxy_on_memory_allocate", &body);
    let steps: [Step<'_>; 1] = [("proxy_get_header_map_pairs", &[0, 0x408, 0x40c])];
    let mut tried = script.on("proxy_on_request_headers", &steps, 0).start();
    let context = tried.create(http(&[("a", "b")]));
    tried.call(Call::RequestHeaders { context, is_last: true }).unwrap();
    assert_eq!((tried.answers(1), tried.word(0x700)), (vec![OK], FAILED));
}

#[test]
fn an_allocator_may_return_anything() {
    let cases = [
        ("(i32.const 0)", vec![NO_MEMORY_THERE]),
        ("(i32.const -1)", vec![NO_MEMORY_THERE]),
        ("(i32.const 0xffff)", vec![NO_MEMORY_THERE]),
        ("(i32.const 0x10000)", vec![NO_MEMORY_THERE]),
        // Overlapping its own result: the last write counts.
        ("(i32.const 0x400)", vec![OK]),
        // Grows the memory in between.
        ("(drop (memory.grow (i32.const 1))) (i32.const 0x10000)", vec![OK]),
    ];
    for (body, expected) in cases {
        let script = Script::new().exporting("proxy_on_memory_allocate", body);
        let steps: [Step<'_>; 1] = [("proxy_get_header_map_pairs", &[0, 0x400, 0x404])];
        let mut tried = script.on("proxy_on_request_headers", &steps, 0).start();
        let context = tried.create(http(&[("a", "b")]));
        tried.call(Call::RequestHeaders { context, is_last: true }).unwrap();
        assert_eq!(tried.answers(1), expected, "{body}");
    }
    let text = r#"(module (import "env" "proxy_get_current_time_nanoseconds" (func (param i32) (result i32)))
        (import "env" "proxy_get_property" (func $get (param i32 i32 i32 i32) (result i32)))
        (memory (export "memory") 1) (func (export "proxy_abi_version_0_2_1"))
        (data (i32.const 0x300) "plugin_name")
        (func (export "proxy_on_tick") (param i32) (i32.store (i32.const 0x1000)
          (call $get (i32.const 0x300) (i32.const 11) (i32.const 0x400) (i32.const 0x404)))))"#;
    let mut tried = Tried::text(text);
    tried.call(Call::Tick).unwrap();
    assert_eq!(tried.answers(1), [FAILED], "it has none");
    let script = Script::new().exporting("proxy_on_memory_allocate", "unreachable");
    let steps: [Step<'_>; 1] = [("proxy_get_header_map_pairs", &[0, 0x400, 0x404])];
    let mut tried = script.on("proxy_on_request_headers", &steps, 0).start();
    let context = tried.create(http(&[("a", "b")]));
    let call = Call::RequestHeaders { context, is_last: true };
    assert_eq!(trap_of(tried.call(call)), TrapKind::Unreachable, "its trap is the call's");
}

/// An item stays in its queue until the module has received it.
#[test]
fn an_item_without_memory_stays_in_its_queue() {
    let spec = spec();
    let shared = Rc::clone(&spec.shared);
    shared.borrow_mut().register("vm", b"q", 3).unwrap();
    shared.borrow_mut().enqueue(1, b"item").unwrap();
    let script = Script::new().exporting("proxy_on_memory_allocate", "(i32.const 0)");
    let steps: [Step<'_>; 1] = [("proxy_dequeue_shared_queue", &[1, 0x400, 0x404])];
    let mut tried = script.on("proxy_on_tick", &steps, 0).start_with(spec);
    tried.call(Call::Tick).unwrap();
    assert_eq!(tried.answers(1), [NO_MEMORY_THERE]);
    assert_eq!(shared.borrow_mut().dequeue(1), Ok(b"item".to_vec()));
}
