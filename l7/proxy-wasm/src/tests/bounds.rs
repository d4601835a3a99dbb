//! Tests of limits on memory, effects and numbers of items, and of their accounting.

use super::hostile::trap_of;
use super::{FAILED, NOW, OK, Script, Step, Tried, http, spec};
use crate::{Answer, Call, CallError, Effect, Shared, StartError, VmSpec, limits};
use engine::{MemoryAccount, Part, TrapKind};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Account that counts charges and releases.
#[derive(Debug, Default)]
struct Account {
    memory: Cell<u64>,
    tables: Cell<u64>,
    state: Cell<u64>,
    state_max: Cell<u64>,
}

impl Account {
    const fn of(&self, part: Part) -> &Cell<u64> {
        match part {
            Part::Memory => &self.memory,
            Part::Tables => &self.tables,
            Part::State => &self.state,
        }
    }
}

impl MemoryAccount for Account {
    fn take(&self, part: Part, bytes: u64) -> bool {
        let now = self.of(part).get() + bytes;
        if part == Part::State && now > self.state_max.get() {
            return false;
        }
        self.of(part).set(now);
        true
    }

    fn give(&self, part: Part, bytes: u64) {
        self.of(part).set(self.of(part).get() - bytes);
    }
}

fn accounted(state_max: u64) -> (Rc<Account>, VmSpec) {
    let account = Rc::new(Account::default());
    account.state_max.set(state_max);
    let room = Rc::clone(&account) as Rc<dyn MemoryAccount>;
    let shared = Rc::new(RefCell::new(Shared::new(Some(Rc::clone(&room)))));
    (account, VmSpec { room: Some(room), shared, ..spec() })
}

#[test]
fn memory_grows_to_its_limit_and_is_accounted() {
    let (account, spec) = accounted(1 << 20);
    let spec = VmSpec { memory_bytes_max: 4 << 16, ..spec };
    let body = "(i32.store (i32.const 0x700) (memory.grow (i32.const 3)))
                (i32.store (i32.const 0x704) (memory.grow (i32.const 1))) (i32.const 0)";
    let mut tried = Script::new().exporting("proxy_on_tick", body).start_with(spec);
    assert_eq!(account.memory.get(), 1 << 16);
    tried.call(Call::Tick).unwrap();
    assert_eq!((tried.word(0x700), tried.word(0x704) as i32), (1, -1));
    assert_eq!(account.memory.get(), 4 << 16);
    assert_eq!(tried.vm.as_ref().unwrap().memory_bytes(), 4 << 16);
    drop(tried);
    assert_eq!((account.memory.get(), account.tables.get()), (0, 0));
    let large =
        r#"(module (memory (export "memory") 300) (func (export "proxy_abi_version_0_2_1")))"#;
    let failure = Tried::start(&wat::parse_str(large).unwrap(), super::spec()).err().unwrap();
    assert!(matches!(failure.error, StartError::Instantiate(_)), "{failure:?}");
    let tables = r#"(module (memory (export "memory") 1) (table 200000 funcref)
                     (func (export "proxy_abi_version_0_2_1")))"#;
    let failure = Tried::start(&wat::parse_str(tables).unwrap(), super::spec()).err().unwrap();
    assert!(matches!(failure.error, StartError::Instantiate(_)), "{failure:?}");
}

#[test]
fn bytes_added_to_streams_are_charged_to_the_session() {
    let (account, spec) = accounted(1_000);
    let steps: [Step<'_>; 4] = [
        ("proxy_set_buffer_bytes", &[0, 0, 0, 0, 600]),
        ("proxy_set_buffer_bytes", &[0, 0, 0, 0, 600]),
        ("proxy_set_property", &[0, 11, 0, 90]),
        ("proxy_set_buffer_bytes", &[0, 0, 1200, 0, 0]),
    ];
    let script = Script::new().on("proxy_on_request_body", &steps[..3], 1);
    let mut tried = script.on("proxy_on_response_body", &steps[3..], 0).start_with(spec);
    let context = tried.create(http(&[]));
    tried.call(Call::RequestBody { context, is_last: false }).unwrap();
    assert_eq!(tried.answers(3), [OK, FAILED, OK]);
    assert_eq!(account.state.get(), 600 + 100);
    assert_eq!(tried.stream(context).downstream.body.len(), 600);
    // The data goes on: the caller has the bytes.
    tried.call(Call::ResponseBody { context, is_last: false }).unwrap();
    assert_eq!(account.state.get(), 100);
    tried.call(Call::End(context)).unwrap();
    assert_eq!(account.state.get(), 0);
    let context = tried.create(http(&[]));
    tried.call(Call::RequestBody { context, is_last: false }).unwrap();
    drop(tried);
    assert_eq!(account.state.get(), 0, "all of it when the VM goes");
}

#[test]
fn bytes_removed_again_are_released() {
    let (account, spec) = accounted(2_000);
    let mut steps: Vec<Step<'_>> = Vec::new();
    for _ in 0..50 {
        steps.extend([
            ("proxy_add_header_map_value", [0, 0x300, 100, 0, 100].as_slice()),
            ("proxy_replace_header_map_value", &[0, 0x300, 100, 0, 700]),
            ("proxy_remove_header_map_value", &[0, 0x300, 100]),
            ("proxy_set_property", &[0x300, 20, 0, 200]),
            ("proxy_set_property", &[0x300, 20, 0, 20]),
        ] as [Step<'_>; 5]);
    }
    let script = Script::new().data(0x300, &[b'x'; 100]);
    let mut tried = script.on("proxy_on_request_headers", &steps, 1).start_with(spec);
    let context = tried.create(http(&[("a", "b")]));
    tried.call(Call::RequestHeaders { context, is_last: false }).unwrap();
    assert_eq!(tried.answers(steps.len()), vec![OK; steps.len()]);
    assert_eq!(account.state.get(), 40, "the property");
}

#[test]
fn shared_data_is_charged_to_the_session() {
    let (account, spec) = accounted(1_000);
    let steps: [Step<'_>; 3] = [
        ("proxy_set_shared_data", &[0, 10, 0, 600, 0]),
        ("proxy_set_shared_data", &[0, 11, 0, 600, 0]),
        ("proxy_set_shared_data", &[0, 10, 0, 6, 0]),
    ];
    let mut tried = Script::new().on("proxy_on_tick", &steps, 0).start_with(spec);
    tried.call(Call::Tick).unwrap();
    assert_eq!((tried.answers(3), account.state.get()), (vec![OK, FAILED, OK], 16));
    drop(tried);
    assert_eq!(account.state.get(), 0);
}

/// Returns a body that makes a call `count` times, and stores the last result.
fn often(script: &mut Script, count: u32, name: &str, arguments: &[i64]) -> String {
    let call = script.invocation(name, arguments);
    format!(
        "(loop (i32.store (i32.const 0x700) {call})
           (i32.store (i32.const 0x704) (i32.add (i32.const 1) (i32.load (i32.const 0x704))))
           (br_if 0 (i32.lt_u (i32.load (i32.const 0x704)) (i32.const {count}))))
         (i32.const 0)"
    )
}

fn repeated(count: u32, name: &str, arguments: &[i64]) -> (Tried, crate::Outcome) {
    let mut script = Script::new();
    let body = often(&mut script, count, name, arguments);
    let mut tried = script.exporting("proxy_on_request_headers", &body).start();
    let context = tried.create(http(&[]));
    let call = Call::RequestHeaders { context, is_last: true };
    let (vm, outcome) = tried.vm.take().unwrap().call(call, NOW).finish();
    tried.vm = Some(vm);
    (tried, outcome)
}

#[test]
fn effects_have_an_end() {
    let (tried, outcome) = repeated(100_000, "proxy_continue_stream", &[0]);
    assert_eq!(outcome.effects.len(), limits::EFFECTS_PER_CALL_MAX);
    assert_eq!(tried.word(0x700), FAILED);
    let response = [403, 0, 0, 0, 0, 0, 0, -1];
    let (tried, outcome) = repeated(100_000, "proxy_send_local_response", &response);
    assert_eq!((outcome.effects.len(), tried.word(0x700)), (1, OK), "one for each stream");
    let (tried, outcome) = repeated(100_000, "proxy_log", &[2, 0x300, 100]);
    let lines = limits::LOG_BYTES_PER_CALL_MAX / 100;
    assert_eq!((outcome.effects.len(), tried.word(0x700)), (lines, OK));
    assert_eq!(outcome.log_lines_dropped, 100_000 - lines as u64);
    let (_, outcome) = repeated(100_000, "proxy_log", &[2, 0x300, 0]);
    assert_eq!(outcome.effects.len(), limits::LOG_LINES_PER_CALL_MAX);
    let (_, outcome) = repeated(1, "proxy_log", &[2, 0, 50_000]);
    let is_cut = |it: &Effect| matches!(it, Effect::Log { text, .. } if text.len() == limits::LOG_LENGTH_MAX);
    assert!(outcome.effects.iter().all(is_cut), "{outcome:?}");
}

#[test]
fn http_calls_have_an_end() {
    let headers = super::fields(&[(":method", "GET"), (":path", "/"), (":authority", "x")]);
    let headers = headers.serialise();
    let mut script = Script::new().data(0x300, b"authority").data(0x320, &headers);
    let size = headers.len() as i64;
    let call = [0x300, 9, 0x320, size, 0, 0, 0, 0, 1, 0x400];
    let body = often(&mut script, 5_000, "proxy_http_call", &call);
    let mut tried = script.exporting("proxy_on_tick", &body).start();
    tried.call(Call::Tick).unwrap();
    assert_eq!(tried.word(0x700), FAILED);
    assert_eq!(tried.vm.as_ref().unwrap().http_calls().count(), limits::HTTP_CALLS_MAX);
}

#[test]
fn buffers_and_properties_have_an_end() {
    let mut script = Script::new();
    let body = often(&mut script, 20, "proxy_set_buffer_bytes", &[0, 0, 0, 0, 60_000]);
    let mut tried = script.exporting("proxy_on_request_body", &body).start();
    let context = tried.create(http(&[]));
    tried.call(Call::RequestBody { context, is_last: true }).unwrap();
    assert_eq!(tried.word(0x700), FAILED);
    assert_eq!(tried.stream(context).downstream.body.len(), 17 * 60_000);

    // The counter is the path.
    let mut script = Script::new();
    let body = often(&mut script, 100, "proxy_set_property", &[0x704, 4, 0, 1]);
    let mut tried = script.exporting("proxy_on_tick", &body).start();
    tried.call(Call::Tick).unwrap();
    assert_eq!(tried.word(0x700), FAILED);
}

#[test]
fn contexts_have_an_end() {
    let mut tried = Script::new().start();
    for _ in 0..limits::CONTEXTS_MAX {
        tried.create(http(&[]));
    }
    let one_more = http(&[("a", "b")]);
    let refused = tried.call(Call::Create(Box::new(one_more.clone())));
    assert_eq!(refused, Err(CallError::TooManyContexts(Box::new(one_more))));
    tried.call(Call::End(7)).unwrap();
    tried.create(http(&[]));
}

#[test]
fn a_trap_returns_the_streams() {
    let script = Script::new().exporting("proxy_on_tick", "unreachable");
    let steps: [Step<'_>; 2] =
        [("proxy_add_header_map_value", &[0, 0x300, 1, 0x300, 1]), ("proxy_close_stream", &[0])];
    let script = script.data(0x300, b"x").on("proxy_on_request_headers", &steps, 1);
    let mut tried = script.start();
    let context = tried.create(http(&[]));
    tried.call(Call::RequestHeaders { context, is_last: true }).unwrap();
    assert_eq!(trap_of(tried.call(Call::Tick)), TrapKind::Unreachable);
    let vm = tried.vm.take().unwrap();
    assert_eq!(vm.contexts().collect::<Vec<_>>(), [context]);
    let mut streams = vm.into_streams();
    let stream = streams.remove(&context).unwrap();
    assert!(stream.downstream.is_paused());
    // Another VM starts with the original data.
    let mut tried = Script::new().start();
    let context = tried.create(*stream);
    assert!(!tried.stream(context).downstream.is_paused());
    assert_eq!(tried.stream(context).downstream.headers, super::fields(&[("x", "x")]));
    assert!(matches!(tried.call(Call::End(context)), Ok(Answer::Ended(Some(_)))));
}

#[test]
fn effects_before_a_trap_are_kept() {
    let mut script = Script::new().data(0x300, b"last words");
    let log = script.invocation("proxy_log", &[5, 0x300, 10]);
    let exit = script.invocation("proc_exit", &[1]);
    let body = format!("(drop {log}) {exit} (i32.const 0)");
    let mut tried = script.exporting("proxy_on_tick", &body).start();
    assert_eq!(trap_of(tried.call(Call::Tick)), TrapKind::Other);
    assert_eq!(tried.log, ["last words"]);
}
