//! Events and frames of a module in the kernel, as the cell reads them.

use std::sync::atomic::Ordering;

use cell::below::Record;
use wasm_lab::{Instance, Loaded};
use wasm_to_bpf::{Entry, Flavour, Options, layout};

const INSTANCE: u64 = 0xfeed_0001_0002_0003;
/// Address of the module's own frame, and its length, which is more than programs copy at once.
const FRAME: u64 = 0x9200;
const FRAME_LENGTH: usize = 1300;
/// Address where the module leaves the results of its calls.
const RESULTS: usize = 0x9000;

/// Module that emits two events, a frame from memory, one that is the packet's head, and one for no
/// port.
const MODULE: &str = r#"(module
  (import "tam" "event" (func $event (param i32 i32 i32) (result i32)))
  (import "tam" "packet_send" (func $send (param i32 i32 i32) (result i32)))
  (import "tam" "message_send" (func $message (param i32 i32) (result i32)))
  (memory (export "memory") 1)
  (data (i32.const 0x9100) "hello")
  (func (export "on_packet") (result i32)
    (i32.store (i32.const 0x9000)
      (call $event (i32.const 7) (i32.const 0x9100) (i32.const 5)))
    (i32.store (i32.const 0x9004)
      (call $event (i32.const -1) (i32.const 0) (i32.const 0)))
    (i32.store (i32.const 0x9008)
      (call $send (i32.const 0x9200) (i32.const 1300) (i32.const 3)))
    (i32.store (i32.const 0x900c)
      (call $send (i32.const 0x8102) (i32.const 60) (i32.const 127)))
    (i32.store (i32.const 0x9010)
      (call $send (i32.const 0x9200) (i32.const 60) (i32.const 4)))
    (i32.store (i32.const 0x9014) (call $message (i32.const 0x9101) (i32.const 3)))
    ;; Events and messages are counted together: one more, and none after it.
    (i32.store (i32.const 0x9018) (call $message (i32.const 0x8102) (i32.const 1)))
    (i32.store (i32.const 0x901c) (call $message (i32.const 0x9101) (i32.const 3)))
    ;; By the node's routes; a port that no number of 16 bits is.
    (i32.store (i32.const 0x9020)
      (call $send (i32.const 0x9200) (i32.const 60) (i32.const 0xffff)))
    (i32.store (i32.const 0x9024)
      (call $send (i32.const 0x9200) (i32.const 60) (i32.const 0x1ffff)))
    (i32.const 0)))"#;

/// Module that sends the longest possible frame, and raises an event about it.
const GREEDY: &str = r#"(module
  (import "tam" "event" (func $event (param i32 i32 i32) (result i32)))
  (import "tam" "packet_send" (func $send (param i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (func (export "on_packet") (result i32)
    (i32.store (i32.const 0x9000)
      (call $send (i32.const 0x9200) (i32.const 9018) (i32.const 3)))
    (i32.store (i32.const 0x9004)
      (call $event (i32.const 1) (i32.const 0x9200) (i32.const 256)))
    (i32.const 0)))"#;

fn loaded(text: &str, flavour: Flavour) -> (Instance, Loaded) {
    let bytes = wat::parse_str(text).unwrap();
    let entry = Entry::Packet { window: 64, standalone: true };
    let options = Options { entry, flavour, memory_pages_max: 1, functions: Default::default() };
    let program = wasm_to_bpf::compile(&bytes, &options).unwrap();
    let instance = Instance::new(&program.image).unwrap();
    let set = |offset, value| instance.block().u64(offset).unwrap().store(value, Ordering::Release);
    set(layout::INSTANCE, INSTANCE);
    // Ports 3 and 127.
    set(layout::PORTS, 1 << 3);
    set(layout::PORTS + 8, 1 << 63);
    let program = instance.load(&program).unwrap();
    (instance, program)
}

fn packet() -> Vec<u8> {
    // Test-run refuses an IP packet without its header: this is none.
    (0..100).map(|byte| if byte == 12 { 0 } else { byte }).collect()
}

fn results<const N: usize>(instance: &Instance) -> [i32; N] {
    let memory = instance.memory().unwrap();
    std::array::from_fn(|at| {
        let bytes = memory[RESULTS + 4 * at..].first_chunk().unwrap();
        i32::from_le_bytes(*bytes)
    })
}

#[test]
fn events_and_frames_reach_the_reader_whole_and_in_order() {
    if !testbase::root_or_skip("events and frames of programs") {
        return;
    }
    let frame: Vec<u8> = (0..FRAME_LENGTH).map(|at| (at / 5) as u8).collect();
    for flavour in [Flavour::Xdp, Flavour::Tc] {
        let (instance, program) = loaded(MODULE, flavour);
        instance.write(FRAME, &frame).unwrap();
        let mut ring = instance.records().unwrap();
        let packet = packet();
        // The same for each packet: what is counted is counted for one.
        for _ in 0..3 {
            instance.packet(&program, &packet).unwrap();
            assert_eq!(results(&instance), [0, 0, 0, 0, -2, 0, 0, -3, 0, -2], "{flavour:?}");
        }
        for _ in 0..3 {
            for expected in [
                Record::Event { instance: INSTANCE, code: 7, data: b"hello" },
                Record::Event { instance: INSTANCE, code: u32::MAX, data: b"" },
                Record::Send { instance: INSTANCE, port: 3, frame: &frame },
                Record::Send { instance: INSTANCE, port: 127, frame: &packet[..60] },
                Record::Message { instance: INSTANCE, message: b"ell" },
                Record::Message { instance: INSTANCE, message: &packet[..1] },
                Record::Send { instance: INSTANCE, port: 0xffff, frame: &frame[..60] },
            ] {
                let read = ring.next(|bytes| assert_eq!(Record::parse(bytes), Ok(expected)));
                assert_eq!(read, Ok(Some(())), "{flavour:?}");
            }
        }
        assert_eq!(ring.next(|_| ()), Ok(None), "{flavour:?}");
    }
}

#[test]
fn a_full_ring_refuses_frames_and_counts_what_it_lost() {
    if !testbase::root_or_skip("events and frames of programs") {
        return;
    }
    let (instance, program) = loaded(GREEDY, Flavour::Xdp);
    let mut ring = instance.records().unwrap();
    let lost = || instance.block().u64(layout::LOST).unwrap().load(Ordering::Acquire);
    // Far more than the ring holds.
    let runs = 400;
    for _ in 0..runs {
        instance.packet(&program, &packet()).unwrap();
    }
    // The frame is over its limit, and the node omits the event.
    assert_eq!(results(&instance), [-3, 0]);
    let (mut frames, mut events) = (0, 0);
    while let Some(is_frame) = ring
        .next(|bytes| match Record::parse(bytes).unwrap() {
            Record::Send { frame, .. } => frame.len() == 9_018,
            Record::Event { data, .. } => {
                assert_eq!(data.len(), 256);
                false
            }
            Record::Message { .. } => unreachable!("it sends none"),
        })
        .unwrap()
    {
        *(if is_frame { &mut frames } else { &mut events }) += 1;
    }
    assert!(frames >= 6 && events >= 6, "{frames} frames, {events} events");
    assert_eq!(frames + events + lost(), 2 * runs);

    let before = lost();
    instance.packet(&program, &packet()).unwrap();
    assert_eq!((results(&instance), lost()), ([0, 0], before));
}
