//! Tests of the engine on small modules written as text.

use crate::{Engine, Instance, InstanceSpec, MemoryKind, Program, StartError, Trap, TrapKind};
use abi::packet::OwnedPacket;
use abi::{Meta, Verdict};
use std::collections::BTreeMap;

const META: Meta = Meta {
    packet_length: 0,
    window_length: 0,
    l3_offset: 14,
    l4_offset: 34,
    begins_with: abi::layout::BEGINS_WITH_ETHERNET,
    ip_version: 4,
    protocol: 17,
    flags: 0,
    port: 3,
    session: 1,
    rule: 9,
    flow_hash: 0x1234,
    lane: 0,
    now_ms: 42,
    mark: [0; 16],
};

/// Compiles `body` into a module with a memory of one page and starts it.
fn try_start(body: &str) -> Result<Instance<OwnedPacket>, StartError> {
    let text = format!("(module {body})");
    let engine = Engine::new().unwrap();
    let program = engine.program(&wat::parse_str(text).unwrap(), MemoryKind::Own).unwrap();
    let spec = InstanceSpec {
        window: 64,
        memory_pages_max: 2,
        parameters: BTreeMap::from([("dscp".to_owned(), vec![46])]),
        refusals: BTreeMap::from([(13, "'dscp' is over 63".to_owned())]),
        ports: BTreeMap::from([("left".to_owned(), 7)]),
        lane: 5,
        call_slices: 2,
        pace: None,
        memory: None,
        room: None,
    };
    program.start(&engine, &spec)
}

fn start(body: &str) -> Instance<OwnedPacket> {
    try_start(&format!(r#"{body} (memory (export "memory") 1)"#)).unwrap()
}

fn run(instance: &mut Instance<OwnedPacket>, bytes: &[u8]) -> (Vec<u8>, Result<Verdict, TrapKind>) {
    let (packet, verdict) = instance.on_packet(OwnedPacket::new(bytes.to_vec()), &META);
    (packet.into_bytes(), verdict.map_err(|trap| trap.kind))
}

#[test]
fn what_a_module_writes_into_the_window_is_in_the_packet() {
    let mut instance = start(
        r#"(func (export "on_packet") (result i32)
             (i32.store8 (i32.const 0x8104) (i32.const 99)) (i32.const 0))"#,
    );
    assert_eq!(run(&mut instance, &[1, 2, 3, 4]), (vec![1, 2, 99, 4], Ok(Verdict::PASS)));
}

#[test]
fn a_write_behind_a_short_packet_is_not_in_it() {
    let mut instance = start(
        r#"(func (export "on_packet") (result i32)
             (i32.store8 (i32.const 0x8110) (i32.const 99)) (i32.const 1))"#,
    );
    let expected = (vec![1, 2], Ok(Verdict::Drop { reason: 0 }));
    assert_eq!(run(&mut instance, &[1, 2]), expected);
}

#[test]
fn the_window_behind_a_short_packet_is_zero_each_time() {
    // The verdict's reason is the length after the packet; then it is overwritten.
    let mut instance = start(
        r#"(func (export "on_packet") (result i32)
             (i32.or (i32.const 1) (i32.shl (i32.load16_u (i32.const 0x8110)) (i32.const 16)))
             (i32.store16 (i32.const 0x8110) (i32.const 99)))"#,
    );
    for bytes in [vec![7; 2], vec![7; 14], vec![7; 40], vec![7; 14], vec![7; 15]] {
        let reason = match bytes.len() {
            15 => 7,
            40 => 0x0707,
            _ => 0,
        };
        assert_eq!(run(&mut instance, &bytes).1, Ok(Verdict::Drop { reason }), "{}", bytes.len());
    }
}

#[test]
fn metadata_lies_in_front_of_the_window() {
    // The verdict's reason is port + lane + window length + packet length.
    let mut instance = start(
        r#"(func (export "on_packet") (result i32)
             (i32.or (i32.const 1) (i32.shl
               (i32.add (i32.add (i32.load16_u (i32.const 0x8010)) (i32.load (i32.const 0x801c)))
                        (i32.add (i32.load (i32.const 0x8004)) (i32.load (i32.const 0x8000))))
               (i32.const 16))))"#,
    );
    let expected = Ok(Verdict::Drop { reason: 3 + 5 + 64 + 100 });
    assert_eq!(run(&mut instance, &[0; 100]).1, expected);
}

#[test]
fn each_trap_has_its_kind() {
    let cases = [
        ("unreachable", TrapKind::Unreachable),
        ("(i32.load (i32.const 65536))", TrapKind::MemoryOutOfBounds),
        ("(i32.div_u (i32.const 1) (i32.load (i32.const 0)))", TrapKind::Arithmetic),
        ("(call_indirect (result i32) (i32.const 9))", TrapKind::IndirectCall),
        ("(call $deep)", TrapKind::StackOverflow),
        ("(loop (br 0)) (i32.const 0)", TrapKind::TimeLimit),
        ("(i32.const 77)", TrapKind::NotAVerdict(Some(77))),
    ];
    let kinds = [MemoryKind::Own, MemoryKind::OwnPacked];
    for ((body, kind), memory) in cases.into_iter().flat_map(|it| kinds.map(|kind| (it, kind))) {
        let text = format!(
            r#"(module (memory (export "memory") 1) (table 1 funcref)
               (func $deep (result i32) (i32.add (i32.const 1) (call $deep)))
               (func (export "on_packet") (result i32) {body}))"#
        );
        let engine = Engine::new().unwrap();
        let program = engine.program(&wat::parse_str(text).unwrap(), memory).unwrap();
        let spec = InstanceSpec { memory_pages_max: 1, call_slices: 2, ..Default::default() };
        let mut instance = program.start(&engine, &spec).unwrap();
        let done = std::sync::atomic::AtomicBool::new(false);
        let (_, verdict) = std::thread::scope(|scope| {
            let (done, engine) = (&done, &engine);
            scope.spawn(move || {
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    std::thread::sleep(std::time::Duration::from_millis(1));
                    engine.raise_epoch();
                }
            });
            let result = run(&mut instance, &[0; 64]);
            done.store(true, std::sync::atomic::Ordering::Relaxed);
            result
        });
        assert_eq!(verdict, Err(kind), "{body}");
    }
}

#[test]
fn a_trap_names_its_function() {
    let mut instance = start(
        r#"(func $inner unreachable)
           (func (export "on_packet") (result i32) (call $inner) (i32.const 0))"#,
    );
    let (_, verdict) = instance.on_packet(OwnedPacket::new(vec![0; 60]), &META);
    let message = verdict.unwrap_err().to_string();
    assert!(message.contains("in function inner at module offset 0x"), "{message}");
}

/// Returns the module, its trap on a packet, and the offsets of its `unreachable`s.
fn trap_of(body: &str, function: &str) -> (Program<OwnedPacket>, Trap, Vec<usize>) {
    // A global that changes gets an export of the engine's own, in front of the code.
    let text = format!(
        r#"(module (import "tam" "now_ms" (func (result i64))) (memory (export "memory") 1)
           (global $g (mut i32) (i32.const 7))
           (func {function} (result i32) {body} (i32.const 0))
           (func (export "on_packet") (result i32) (call 1)))"#
    );
    let (engine, wasm) = (Engine::new().unwrap(), wat::parse_str(text).unwrap());
    let mut unreachables = Vec::new();
    for payload in wasmparser::Parser::new(0).parse_all(&wasm) {
        if let wasmparser::Payload::CodeSectionEntry(body) = payload.unwrap() {
            for operator in body.get_operators_reader().unwrap().into_iter_with_offsets() {
                let (operator, offset) = operator.unwrap();
                let is_unreachable = matches!(operator, wasmparser::Operator::Unreachable);
                unreachables.extend(is_unreachable.then_some(offset));
            }
        }
    }
    let program = engine.program(&wasm, MemoryKind::Own).unwrap();
    let spec = InstanceSpec { memory_pages_max: 1, call_slices: 2, ..Default::default() };
    let mut instance = program.start(&engine, &spec).unwrap();
    let (_, verdict) = instance.on_packet(OwnedPacket::new(vec![0; 60]), &META);
    (program, verdict.unwrap_err(), unreachables)
}

#[test]
fn the_place_of_a_byte_is_that_of_a_trap_there() {
    for function in ["$inner", ""] {
        let (program, trap, _) = trap_of("unreachable", function);
        let place = trap.place.unwrap();
        assert_eq!(program.place_at(place.offset.unwrap()), Some(place), "{function}");
        assert_eq!(program.place_at(0), None);
    }
}

#[test]
fn a_trap_has_the_place_of_its_instruction_whatever_branch_leads_there() {
    let cases = [
        ("unreachable", 0),
        ("(if (global.get $g) (then unreachable))", 0),
        (
            "(if (i32.eqz (global.get $g)) (then (global.set $g (i32.const 1))) (else unreachable))",
            0,
        ),
        ("(if (global.get $g) (then (drop (i32.const 3)) unreachable) (else unreachable))", 0),
        ("(block (br_if 0 (i32.eqz (global.get $g))) unreachable)", 0),
        ("(block $out (block (br_if 0 (global.get $g)) (br $out)) unreachable)", 0),
        ("(block $out (block (block (br_if 0 (global.get $g)) unreachable)) unreachable)", 1),
        (
            "(loop $l (br_if $l (i32.eqz (global.get $g))) (if (global.get $g) (then unreachable)))",
            0,
        ),
    ];
    for (body, which) in cases {
        let (_, trap, unreachables) = trap_of(body, "$inner");
        assert_eq!(trap.kind, TrapKind::Unreachable, "{body}");
        let place = trap.place.unwrap();
        assert_eq!(place.offset, Some(unreachables[which]), "{body}: {unreachables:#x?}");
    }
}

#[test]
fn memory_grows_to_its_limit_and_no_further() {
    let mut instance = start(
        r#"(func (export "on_packet") (result i32)
             (i32.or (i32.const 1) (i32.shl
               (i32.and (memory.grow (i32.const 1)) (i32.const 0xffff)) (i32.const 16))))"#,
    );
    assert_eq!(run(&mut instance, &[0; 60]).1, Ok(Verdict::Drop { reason: 1 }));
    assert_eq!(run(&mut instance, &[0; 60]).1, Ok(Verdict::Drop { reason: 0xffff }));
}

#[test]
fn host_functions_reach_behind_the_window() {
    // Loads byte 100 of the packet, stores it at 101, and sees its own window write at 0.
    let mut instance = start(
        r#"(import "tam" "packet_load" (func $load (param i32 i32 i32) (result i32)))
           (import "tam" "packet_store" (func $store (param i32 i32 i32) (result i32)))
           (func (export "on_packet") (result i32)
             (i32.store8 (i32.const 0x8102) (i32.const 7))
             (drop (call $load (i32.const 100) (i32.const 0) (i32.const 1)))
             (drop (call $store (i32.const 101) (i32.const 0) (i32.const 1)))
             (drop (call $load (i32.const 0) (i32.const 1) (i32.const 1)))
             (i32.or (i32.const 1) (i32.shl (i32.load8_u (i32.const 1)) (i32.const 16))))"#,
    );
    let mut packet = vec![0; 102];
    packet[100] = 55;
    let (bytes, verdict) = run(&mut instance, &packet);
    assert_eq!((bytes[0], bytes[100], bytes[101]), (7, 55, 55));
    assert_eq!(verdict, Ok(Verdict::Drop { reason: 7 }));
}

#[test]
fn a_range_outside_the_packet_is_an_error_for_the_module() {
    let mut instance = start(
        r#"(import "tam" "packet_load" (func $load (param i32 i32 i32) (result i32)))
           (func (export "on_packet") (result i32)
             (i32.or (i32.const 1) (i32.shl (i32.and (i32.const 0xffff)
               (call $load (i32.const 60) (i32.const 0) (i32.const 1))) (i32.const 16))))"#,
    );
    let expected = (abi::layout::host_error::OUT_OF_RANGE as u16, 60);
    let (bytes, verdict) = run(&mut instance, &[0; 60]);
    assert_eq!((verdict, bytes.len()), (Ok(Verdict::Drop { reason: expected.0 }), expected.1));
}

#[test]
fn a_resized_packet_is_shown_anew() {
    // Grows by 4 in front, writes there, and reports the new window length.
    let mut instance = start(
        r#"(import "tam" "packet_resize_head" (func $head (param i32) (result i32)))
           (func (export "on_packet") (result i32)
             (drop (call $head (i32.const 4)))
             (i32.store8 (i32.const 0x8102) (i32.const 9))
             (i32.or (i32.const 1) (i32.shl (i32.load (i32.const 0x8004)) (i32.const 16))))"#,
    );
    let (bytes, verdict) = run(&mut instance, &[1, 2, 3]);
    assert_eq!(bytes, [9, 0, 0, 0, 1, 2, 3]);
    assert_eq!(verdict, Ok(Verdict::Drop { reason: 7 }));
}

#[test]
fn a_module_reads_its_parameters_and_ports_when_it_starts() {
    let instance = start(
        r#"(import "tam" "param_load" (func $param (param i32 i32 i32 i32) (result i32)))
           (import "tam" "port_find" (func $port (param i32 i32) (result i32)))
           (data (i32.const 0x9000) "dscpleft")
           (global (export "tam_counter_dscp") i32 (i32.const 0x9100))
           (global (export "tam_counter_port") i32 (i32.const 0x9108))
           (func (export "on_start") (result i32)
             (i32.sub (call $param (i32.const 0x9000) (i32.const 4) (i32.const 0x9100) (i32.const 8))
                      (i32.const 1))
             (i32.store (i32.const 0x9108) (call $port (i32.const 0x9004) (i32.const 4))))
           (func (export "on_packet") (result i32) (i32.const 0))"#,
    );
    let mut counters = instance.counters();
    counters.sort();
    assert_eq!(counters, [("dscp".to_owned(), 46), ("port".to_owned(), 7)]);
}

#[test]
fn a_module_may_refuse_to_start() {
    let memory = r#"(memory (export "memory") 1)"#;
    let packet = r#"(func (export "on_packet") (result i32) (i32.const 0))"#;
    let refused = try_start(&format!(
        r#"{memory} {packet} (func (export "on_start") (result i32) (i32.const 12))"#
    ));
    assert_eq!(
        refused.err().unwrap().to_string(),
        "on_start returned 12: the module refuses its parameters"
    );
    let named = try_start(&format!(
        r#"{memory} {packet} (func (export "on_start") (result i32) (i32.const 13))"#
    ));
    assert_eq!(
        named.err().unwrap().to_string(),
        "the module refuses to start: 'dscp' is over 63 (on_start returned 13)"
    );
    let trapped = try_start(&format!(
        r#"{memory} {packet} (func (export "on_start") (result i32) unreachable)"#
    ));
    assert!(matches!(trapped, Err(StartError::Trapped(_))));
    let large = try_start(&format!(r#"(memory (export "memory") 3) {packet}"#));
    assert!(matches!(large, Err(StartError::Instantiate(_))));
}

#[test]
fn frames_sent_by_a_call_are_limited() {
    let mut instance = start(
        r#"(import "tam" "packet_send" (func $send (param i32 i32 i32) (result i32)))
           (func (export "on_packet") (result i32)
             (drop (call $send (i32.const 0x9000) (i32.const 60) (i32.const 8)))
             (drop (call $send (i32.const 0x9000) (i32.const 60) (i32.const 7)))
             (drop (call $send (i32.const 0x9000) (i32.const 60) (i32.const 7)))
             (drop (call $send (i32.const 0x9000) (i32.const 60) (i32.const 7)))
             (drop (call $send (i32.const 0x9000) (i32.const 60) (i32.const 7)))
             (i32.or (i32.const 1) (i32.shl (i32.and (i32.const 0xffff)
               (call $send (i32.const 0x9000) (i32.const 60) (i32.const 7))) (i32.const 16))))"#,
    );
    let (_, verdict) = run(&mut instance, &[0; 60]);
    let over = abi::layout::host_error::OVER_LIMIT as u16;
    assert_eq!(verdict, Ok(Verdict::Drop { reason: over }));
    let sent = instance.take_emitted().sent;
    assert_eq!(sent.iter().map(|s| (s.port, s.frame.len())).collect::<Vec<_>>(), [(7, 60); 4]);
}

#[test]
fn a_frame_goes_by_route_where_no_port_is_named() {
    let mut instance = start(
        r#"(import "tam" "packet_send" (func $send (param i32 i32 i32) (result i32)))
           (func (export "on_packet") (result i32)
             (drop (call $send (i32.const 0x9000) (i32.const 60) (i32.const 0x1ffff)))
             (call $send (i32.const 0x9000) (i32.const 60) (i32.const 0xffff)))"#,
    );
    let (_, verdict) = run(&mut instance, &[0; 60]);
    assert_eq!(verdict, Ok(Verdict::PASS));
    let sent = instance.take_emitted().sent;
    let ports: Vec<_> = sent.iter().map(|sent| sent.port).collect();
    assert_eq!(ports, [abi::layout::SEND_BY_ROUTE]);
}

#[path = "tests/batch.rs"]
mod batch;

#[path = "tests/packed.rs"]
mod packed;

#[path = "tests/memory_account.rs"]
mod memory_account;

#[path = "tests/shared.rs"]
mod shared;

mod state {
    //! Tests of one instance replacing another.

    use super::*;
    use crate::{Call, Done, Ended, Kept, Program, Ran};

    const HANDS_OVER: &str = r#"
(import "tam" "state_write" (func $write (param i32 i32) (result i32)))
(import "tam" "state_read" (func $read (param i32 i32) (result i32)))
(memory (export "memory") 1)
(global $count (mut i32) (i32.const 5))
(global (export "tam_counter_seen") i32 (i32.const 0x9008))
(func (export "on_packet") (result i32)
  (global.set $count (i32.add (global.get $count) (i32.const 1)))
  (i64.store (i32.const 0x9008) (i64.add (i64.load (i32.const 0x9008)) (i64.const 1)))
  ;; in the wrong hook
  (if (i32.ne (call $write (i32.const 0) (i32.const 1)) (i32.const -4)) (then (unreachable)))
  (i32.shl (global.get $count) (i32.const 16)) (i32.or (i32.const 1)))
(func (export "state_out") (result i32)
  (i32.store (i32.const 0x9000) (global.get $count))
  (drop (call $write (i32.const 0x9000) (i32.const 1)))
  (drop (call $write (i32.const 0x9001) (i32.const 3)))
  ;; beyond memory
  (if (i32.ne (call $write (i32.const 0) (i32.const 65537)) (i32.const -1)) (then (unreachable)))
  (i32.const 0))
(func (export "state_in") (param $length i32) (result i32)
  (if (i32.ne (local.get $length) (i32.const 4)) (then (return (i32.const 7))))
  (if (i32.ne (call $read (i32.const 0x9000) (i32.const 9)) (i32.const 4)) (then (unreachable)))
  (if (call $read (i32.const 0x9000) (i32.const 9)) (then (unreachable)))
  (global.set $count (i32.load (i32.const 0x9000)))
  (i32.const 0))"#;

    fn program(engine: &Engine) -> Program<OwnedPacket> {
        let wasm = wat::parse_str(format!("(module {HANDS_OVER})")).unwrap();
        engine.program(&wasm, MemoryKind::Own).unwrap()
    }

    fn spec() -> InstanceSpec {
        InstanceSpec { window: 64, memory_pages_max: 1, call_slices: 1, ..InstanceSpec::default() }
    }

    fn reason(instance: &mut Instance<OwnedPacket>) -> u16 {
        let packet = OwnedPacket::new(vec![0; 64]);
        match instance.on_packet(packet, &META).1.unwrap() {
            Verdict::Drop { reason } => reason,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn handed_over_state_is_taken_by_the_next_version_and_counters_continue() {
        let engine = Engine::new().unwrap();
        let program = program(&engine);
        let mut old = program.start(&engine, &spec()).unwrap();
        assert_eq!((reason(&mut old), reason(&mut old)), (6, 7));
        let Ran::Rest(mut old, done) = Box::new(old).call(Call::StateOut { now_ms: 0 }) else {
            panic!("nobody sets a pace")
        };
        let Done::Call(Ended::State(Ok(kept))) = done else { panic!("{done:?}") };
        let mut new = program.start_with(&engine, &spec(), Some(kept), 0).unwrap();
        assert_eq!(reason(&mut new), 8);
        assert_eq!(new.counters(), [("seen".to_owned(), 3)]);
        assert_eq!(reason(&mut old), 8, "the old one is as it was");
    }

    #[test]
    fn memory_and_globals_are_taken_over_as_they_are() {
        let engine = Engine::new().unwrap();
        let program = program(&engine);
        let mut old = program.start(&engine, &spec()).unwrap();
        assert_eq!(reason(&mut old), 6);
        let kept = old.save_memory();
        let mut new = program.start_with(&engine, &spec(), Some(kept), 0).unwrap();
        assert_eq!(reason(&mut new), 7);
        assert_eq!(new.counters(), [("seen".to_owned(), 2)]);
    }

    #[test]
    fn state_that_cannot_be_used_is_refused() {
        let engine = Engine::new().unwrap();
        let program = program(&engine);
        let wrong = Kept::Handed { bytes: vec![0; 5], counters: Vec::new() };
        let error = program.start_with(&engine, &spec(), Some(wrong), 0).err().unwrap().to_string();
        assert!(error.contains("state_in returned 7"), "{error}");
        let large = Kept::Memory { bytes: vec![0; 2 << 16], globals: Vec::new() };
        let error = program.start_with(&engine, &spec(), Some(large), 0).err().unwrap().to_string();
        assert!(error.contains("131072 bytes"), "{error}");
    }
}
