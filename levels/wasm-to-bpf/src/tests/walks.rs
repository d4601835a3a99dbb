//! Walks over the window: loops that carry loaded values, and loops that stop where the packet
//! does.

use super::{bytes, packet, plain};
use crate::interpret::Machine;
use crate::ir::{Op, Region, Unit};
use crate::unit;

const WINDOW: u32 = 64;

/// Returns a module with this body; its locals are `$length`, the window's, and some others.
fn module(body: &str) -> Vec<u8> {
    bytes(&format!(
        r#"(module (memory (export "memory") 1)
        (func (export "on_packet") (result i32) (local $length i32) (local $at i32)
            (local $place i32) (local $next i32) (local $end i32) (local $sum i32)
            (local.set $length (i32.load (i32.const 0x8004)))
            {body}))"#
    ))
}

/// Runs a module on a packet before the passes and after them, and returns its result.
fn result(module: &[u8], packet_bytes: &[u8]) -> u64 {
    let all = [plain(module, &packet(WINDOW)), unit(module, &packet(WINDOW)).expect("it compiles")];
    let results = all.map(|(unit, image)| {
        let mut machine = Machine::new(&unit, &image);
        machine.window = Some((0x8102, 0x8102 + WINDOW));
        let length = packet_bytes.len().min(WINDOW as usize);
        machine.memory[0x8000] = packet_bytes.len() as u8;
        machine.memory[0x8004] = length as u8;
        machine.memory[0x8102..0x8102 + length].copy_from_slice(&packet_bytes[..length]);
        let result = machine.run(&[]).expect("no trap");
        (result, machine.fuel)
    });
    assert_eq!(results[0], results[1], "passes change the meaning");
    results[0].0[0]
}

/// Counts the reads of the window at the beginning of loops.
fn reads_in_headers(unit: &Unit) -> usize {
    let headers = unit.functions[0].blocks.iter().filter(|block| block.is_loop_header);
    let instructions = headers.flat_map(|header| &header.instructions);
    let is_read =
        |op: &Op| matches!(op, Op::Load { access, .. } if access.region == Region::Window);
    instructions.filter(|instruction| is_read(&instruction.op)).count()
}

/// Returns a walk from header to header that carries the address of the header's first byte; `more`
/// uses the address, too.
fn headers(more: &str) -> Vec<u8> {
    module(&format!(
        "(if (i32.lt_u (local.get $length) (i32.const 20)) (then (return (i32.const 0))))
        (local.set $place (i32.const 0x8106))
        (local.set $at (i32.const 10))
        (loop $go
            (local.set $next (i32.load8_u (local.get $place)))
            {more}
            (local.set $sum (i32.add (local.get $sum) (local.get $next)))
            (if (i32.gt_u (local.get $at) (i32.const 40)) (then (return (local.get $sum))))
            (if (i32.gt_u (i32.add (local.get $at) (i32.const 8)) (local.get $length))
                (then (return (local.get $sum))))
            (local.set $place (i32.add (local.get $at) (i32.const 0x8102)))
            (local.set $at (i32.add (local.get $at)
                (i32.add (i32.and (local.get $next) (i32.const 7)) (i32.const 1))))
            (br $go))
        (i32.const 0)"
    ))
}

#[test]
fn a_loop_over_headers_carries_the_loaded_value_and_not_its_address() {
    let carries = |module: &[u8]| {
        let (unit, _) = unit(module, &packet(WINDOW)).expect("it compiles");
        assert!(unit.functions[0].blocks.iter().any(|block| block.is_loop_header));
        reads_in_headers(&unit) == 0
    };
    let walk = headers("");
    assert!(carries(&walk));
    for length in [10, 20, 27, 40, 64, 90] {
        let bytes: Vec<u8> = (0..length).map(|at| (at * 37 % 251) as u8).collect();
        let sum = result(&walk, &bytes);
        assert_eq!(sum > 0, length >= 20, "{length} bytes: {sum}");
    }
    // The loop needs the address, or writes in front of the read in the next iteration.
    assert!(!carries(&headers("(i32.store (i32.const 0x9000) (local.get $place))")));
}

/// Returns a loop that reads bytes from offset 8 on until the packet ends, as LLVM emits it.
fn to_end(begin: u32, rounds: u32) -> Vec<u8> {
    module(&format!(
        "(if (i32.lt_u (local.get $length) (i32.const 8)) (then (return (i32.const 0))))
        (local.set $end (i32.sub (local.get $length) (i32.const 8)))
        (local.set $at (i32.const {begin}))
        (loop $go
            (if (i32.eq (local.get $at) (local.get $end)) (then (return (local.get $sum))))
            (local.set $sum (i32.add (local.get $sum)
                (i32.load8_u offset=0x810a (local.get $at))))
            (local.set $at (i32.add (local.get $at) (i32.const 1)))
            (br_if $go (i32.lt_u (local.get $at) (i32.const {rounds}))))
        (local.get $sum)"
    ))
}

#[test]
fn a_loop_that_stays_within_the_packet_checks_for_its_end_once() {
    // Counts the comparisons with the packet's end, and whether the module's own are among them.
    let questions = |module: &[u8]| {
        let program = crate::compile(module, &packet(WINDOW)).expect("it compiles");
        // `if r > r`, `if r <= r`, of 64 bits.
        let is_question = |word: &&u64| [0x2d, 0xbd].contains(&(**word & 0xff));
        let (unit, _) = unit(module, &packet(WINDOW)).expect("it compiles");
        let mut all = unit.functions[0].blocks.iter().flat_map(|block| &block.instructions);
        let asks = all.any(|instruction| instruction.op == Op::PacketLength);
        (program.instructions.iter().filter(is_question).count(), asks)
    };
    // The loop is unrolled by two.
    assert_eq!(questions(&to_end(0, 40)), (2, true));
    // The loop may begin behind the end, or check beyond the window.
    assert!(!questions(&to_end(1, 40)).1);
    assert!(!questions(&to_end(0, 60)).1);
    for module in [to_end(0, 40), to_end(1, 40), to_end(0, 60)] {
        for length in [9, 10, 30, 47, 48, 64, 90] {
            let bytes = vec![1; length];
            result(&module, &bytes);
        }
    }
    assert_eq!(result(&to_end(0, 40), &[1; 30]), 22);
}

/// Returns true if the program of a module with this body, which may call `$resize`, pads packets.
fn pads(body: &str) -> bool {
    const XDP_ADJUST_TAIL: u64 = 65;
    const CALL: u64 = 0x85;
    let text = format!(
        r#"(module (import "tam" "packet_resize_head" (func $resize (param i32) (result i32)))
          (memory (export "memory") 1)
          (func (export "on_packet") (result i32) (local $length i32) {body}))"#
    );
    let program = crate::compile(&bytes(&text), &packet(WINDOW)).expect("a module that compiles");
    program.instructions.contains(&(CALL | XDP_ADJUST_TAIL << 32))
}

#[test]
fn a_question_for_the_length_counts_until_the_packet_moves() {
    let ask = "(if (i32.lt_u (i32.load (i32.const 0x8004)) (i32.const 24))
        (then (return (i32.const 1))))";
    let read = "(if (i32.eq (i32.load8_u (i32.const 0x8119)) (i32.const 6))
        (then (return (i32.const 0))))";
    let end = "(i32.const 0)";
    for by in ["(i32.const -10)", "(i32.const 20)", "(i32.load (i32.const 0x9000))"] {
        let moves = format!("(drop (call $resize {by}))");
        assert!(!pads(&format!("{ask} {read} {moves} {ask} {read} {end}")), "{by}");
        assert!(!pads(&format!("{moves} {ask} {read} {end}")), "{by}");
        assert!(pads(&format!("{ask} {read} {moves} {read} {end}")), "{by}");
        assert!(pads(&format!("{ask} {moves} {read} {end}")), "{by}");
        // Reads the packet's length before the resize.
        let before = "(local.set $length (i32.load (i32.const 0x8004)))";
        let asks_before = "(if (i32.lt_u (local.get $length) (i32.const 24))
            (then (return (i32.const 1))))";
        assert!(pads(&format!("{before} {moves} {asks_before} {read} {end}")), "{by}");
        // The packet has moved on one path, and in the second iteration.
        let perhaps = format!("(if (i32.load (i32.const 0x9004)) (then {moves}))");
        assert!(pads(&format!("{ask} {perhaps} {read} {end}")), "{by}");
        let again = "(br_if $go (i32.load (i32.const 0x9004)))";
        assert!(pads(&format!("{ask} (loop $go {read} {moves} {again}) {end}")), "{by}");
        assert!(!pads(&format!("(loop $go {ask} {read} {moves} {again}) {end}")), "{by}");
    }
}
