//! Random packets and random operations of a module: the engine against a few lines of Rust that
//! follow docs/reference/module-abi.md.

#![forbid(unsafe_code)]

use abi::host::FRAME_LENGTH_MIN;
use abi::layout::{WINDOW_ADDRESS, host_error};
use abi::packet::{OwnedPacket, RESIZE_ROOM};
use abi::{Meta, Verdict};
use conformance::{Case, Ending, Level, LevelError, Module, Outcome, User};
use engine::{Engine, InstanceSpec, MemoryKind, Program};
use proptest::prelude::*;
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Module that executes its parameter `steps`, 6 bytes a step: kind, a (u16), b (u16), v (u8).
///
/// ```text
/// 0  window[a] = v                     3  packet_resize_head(v as i8 * 2)
/// 1  packet_store(a, v v v ..., b)     4  packet_resize_tail(v as i8 * 2)
/// 2  packet_load(a, window + b, v)
/// ```
///
/// The counter `results` is a polynomial in the host functions' return values.
const STEPS: &str = r#"(module
  (import "tam" "packet_load" (func $load (param i32 i32 i32) (result i32)))
  (import "tam" "packet_store" (func $store (param i32 i32 i32) (result i32)))
  (import "tam" "packet_resize_head" (func $head (param i32) (result i32)))
  (import "tam" "packet_resize_tail" (func $tail (param i32) (result i32)))
  (import "tam" "param_load" (func $param (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 4)
  (data (i32.const 0x9000) "steps")
  (global (export "tam_counter_results") i32 (i32.const 0x9008))
  (global $end (mut i32) (i32.const 0))
  (func (export "on_start") (result i32)
    (global.set $end (i32.add (i32.const 0xa000) (call $param
      (i32.const 0x9000) (i32.const 5) (i32.const 0xa000) (i32.const 0x1000))))
    (i32.const 0))
  (func $do (param $kind i32) (param $a i32) (param $b i32) (param $v i32) (result i32)
    (local $delta i32)
    (local.set $delta (i32.mul (i32.const 2) (i32.extend8_s (local.get $v))))
    (if (i32.eq (local.get $kind) (i32.const 1))
      (then
        (memory.fill (i32.const 0x10000) (local.get $v) (i32.const 0x10000))
        (return (call $store (local.get $a) (i32.const 0x10000) (local.get $b)))))
    (if (i32.eq (local.get $kind) (i32.const 2))
      (then (return (call $load
        (local.get $a) (i32.add (i32.const 0x8102) (local.get $b)) (local.get $v)))))
    (if (i32.eq (local.get $kind) (i32.const 3)) (then (return (call $head (local.get $delta)))))
    (if (i32.eq (local.get $kind) (i32.const 4)) (then (return (call $tail (local.get $delta)))))
    (i32.store8 (i32.add (i32.const 0x8102) (local.get $a)) (local.get $v))
    (i32.const 0))
  (func (export "on_packet") (result i32)
    (local $at i32)
    (local.set $at (i32.const 0xa000))
    (block $done (loop $next
      (br_if $done (i32.ge_u (local.get $at) (global.get $end)))
      (i64.store (i32.const 0x9008) (i64.add
        (i64.mul (i64.load (i32.const 0x9008)) (i64.const 31))
        (i64.extend_i32_s (call $do
          (i32.load8_u (local.get $at)) (i32.load16_u offset=1 (local.get $at))
          (i32.load16_u offset=3 (local.get $at)) (i32.load8_u offset=5 (local.get $at))))))
      (local.set $at (i32.add (local.get $at) (i32.const 6)))
      (br $next)))
    (i32.const 0)))"#;

/// Bytes of the window that a module may write: those before its data.
const WINDOW_ROOM: u16 = 2048;

#[derive(Clone, Copy, Debug)]
struct Step {
    kind: u8,
    a: u16,
    b: u16,
    v: u8,
}

fn step() -> impl Strategy<Value = Step> {
    // Offsets cluster around windows and packets, where things go wrong.
    let near = prop_oneof![0u16..80, 0u16..300, 1000u16..2100, Just(u16::MAX)];
    (0u8..5, near, 0u16..300, any::<u8>()).prop_map(|(kind, a, b, v)| {
        let a = if kind == 0 { a % WINDOW_ROOM } else { a };
        Step { kind, a, b, v }
    })
}

/// Executes a step as the document specifies: packet and window are one.
fn follow(packet: &mut Vec<u8>, window: usize, step: Step) -> i32 {
    let Step { kind, a, b, v } = step;
    let (a, b) = (usize::from(a), usize::from(b));
    let shown = window.min(packet.len());
    let resize = 2 * isize::from(v as i8);
    match kind {
        0 => {
            if a < shown {
                packet[a] = v;
            }
        }
        1 => match packet.get_mut(a..a + b) {
            Some(range) => range.fill(v),
            None => return host_error::OUT_OF_RANGE,
        },
        2 => {
            let Some(range) = packet.get(a..a + usize::from(v)) else {
                return host_error::OUT_OF_RANGE;
            };
            let range = range.to_vec();
            for (at, byte) in range.into_iter().enumerate() {
                if b + at < shown {
                    packet[b + at] = byte;
                }
            }
        }
        _ => {
            let count = resize.unsigned_abs();
            let in_front = kind == 3;
            if resize >= 0 {
                if count > RESIZE_ROOM {
                    return host_error::OVER_LIMIT;
                }
                let at = if in_front { 0 } else { packet.len() };
                packet.splice(at..at, std::iter::repeat_n(0, count));
            } else if packet.len() < count + FRAME_LENGTH_MIN {
                return host_error::OVER_LIMIT;
            } else if in_front {
                packet.drain(..count);
            } else {
                packet.truncate(packet.len() - count);
            }
        }
    }
    0
}

const META: Meta = Meta {
    packet_length: 0,
    window_length: 0,
    l3_offset: abi::layout::OFFSET_NONE,
    l4_offset: abi::layout::OFFSET_NONE,
    begins_with: abi::layout::BEGINS_WITH_ETHERNET,
    ip_version: 0,
    protocol: 0,
    flags: 0,
    port: 0,
    session: 1,
    rule: 0,
    flow_hash: 0,
    lane: 0,
    now_ms: 0,
    mark: [0; 16],
};

/// Returns the packet and the module's results after all steps.
fn run(
    engine: &Engine,
    program: &Program<OwnedPacket>,
    window: u32,
    steps: &[Step],
    packet: &[u8],
) -> (Vec<u8>, u64) {
    let bytes = steps.iter().flat_map(|Step { kind, a, b, v }| {
        let ([a0, a1], [b0, b1]) = (a.to_le_bytes(), b.to_le_bytes());
        [*kind, a0, a1, b0, b1, *v]
    });
    let parameters = BTreeMap::from([("steps".to_owned(), bytes.collect())]);
    let spec = InstanceSpec {
        window,
        memory_pages_max: 4,
        parameters,
        call_slices: 1000,
        ..InstanceSpec::default()
    };
    let mut instance = program.start(engine, &spec).unwrap();
    let (packet, verdict) = instance.on_packet(OwnedPacket::new(packet.to_vec()), &META);
    assert_eq!(verdict, Ok(Verdict::PASS));
    let results = instance.counters().remove(0).1;
    (packet.into_bytes(), results)
}

#[test]
fn whatever_a_module_does_to_a_packet_is_what_the_abi_says() {
    let engine = Engine::new().unwrap();
    let program = engine.program(&wat::parse_str(STEPS).unwrap(), MemoryKind::Own).unwrap();
    let windows = prop_oneof![Just(0usize), Just(1), 1usize..200, Just(2048)];
    let packets = prop_oneof![
        proptest::collection::vec(any::<u8>(), 1..300),
        proptest::collection::vec(any::<u8>(), 1900..2300),
    ];
    let steps = proptest::collection::vec(step(), 0..40);
    let config = ProptestConfig { cases: 2000, failure_persistence: None, ..Default::default() };
    proptest!(config, |(window in windows, packet in packets, steps in steps)| {
        let mut expected = packet.clone();
        let results = steps.iter().fold(0u64, |results, step| {
            let result = follow(&mut expected, window, *step);
            results.wrapping_mul(31).wrapping_add(i64::from(result) as u64)
        });
        let found = run(&engine, &program, window as u32, &steps, &packet);
        prop_assert_eq!(found, (expected, results));
    });
    assert_eq!(WINDOW_ADDRESS, 0x8102, "the module's text has it as a number");
}

#[test]
fn touch_reads_what_a_loop_over_the_bytes_reads() {
    let user = RefCell::new(User::new().unwrap());
    let case = |passes: u8, frame: &[u8]| Case {
        name: "random".to_owned(),
        file: String::new(),
        line: 0,
        module: Module::Service("touch".to_owned()),
        parameters: BTreeMap::from([("passes".to_owned(), passes.to_string())]),
        refused: BTreeMap::new(),
        before: Vec::new(),
        frame: frame.to_vec(),
        expected: Outcome::of(Ending::Pass(0), Some(frame.to_vec())),
    };
    if let Err(LevelError::Module(error)) = user.borrow_mut().run(&case(1, &[0])) {
        // tests/table.rs counts it as skipped.
        eprintln!("not run: {error}");
        return;
    }
    let frames = prop_oneof![
        proptest::collection::vec(any::<u8>(), 1..100),
        proptest::collection::vec(any::<u8>(), 2000..4200),
    ];
    let config = ProptestConfig { cases: 64, failure_persistence: None, ..Default::default() };
    proptest!(config, |(frame in frames, passes in 0u8..=4)| {
        let outcome = user.borrow_mut().run(&case(passes, &frame)).unwrap();
        let pass = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
        let hash = (0..passes).fold(0x811c_9dc5, |hash, _| frame.iter().fold(hash, pass));
        let expected = if passes == 0 { 0 } else { u64::from(hash) };
        prop_assert_eq!(outcome.counters["checksum"], expected);
        prop_assert_eq!(outcome.frame.as_deref(), Some(&frame[..]));
    });
}
