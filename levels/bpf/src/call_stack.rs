//! Tests of the BPF stack use on the deepest path of calls, for every program of the front
//! doors.
//!
//! All frames of a path share [`STACK_LENGTH`] bytes, or the kernel refuses the program. Before Linux
//! 6.9 the verifier rounds each frame up to [`FRAME_UNIT`] bytes, since then to 16
//! (check_max_stack_depth_subprog, kernel/bpf/verifier.c): a path that fits by the first fits by both.
//! Frames and calls are read from the instructions; code that the verifier finds to be unreachable
//! counts here, too.

use std::collections::{BTreeMap, BTreeSet};

use libbpf_sys::bpf_insn;

use crate::object::{Instructions, Object};
use crate::objects;

/// `MAX_BPF_STACK` (include/linux/filter.h).
const STACK_LENGTH: u32 = 512;
/// Granularity and minimum of a frame's size in bytes, before Linux 6.9.
const FRAME_UNIT: u32 = 32;
/// Bytes that must be free on every path, so that the next variables do not keep a program from
/// loading. Larger data belongs into `struct tam_scratch` (`c/flow.h`).
const STACK_FREE_MIN: u32 = 96;
/// Bytes that must be free in a door with taps: the tap is one frame more.
const STACK_FREE_MIN_TAPPED: u32 = STACK_FREE_MIN - FRAME_UNIT;

/// Register of the frame pointer.
const FRAME: u8 = 10;
/// Opcodes (include/uapi/linux/bpf.h): a call, an address, and both steps to the address of a
/// variable.
const CALL: u8 = 0x85;
const LOAD_64: u8 = 0x18;
const MOVE: u8 = 0xbf;
const ADD: u8 = 0x07;
/// Classes of opcodes that read and write memory.
const LOADS: u8 = 1;
const STORES: [u8; 2] = [2, 3];
/// Source registers of a call and an address that lead to a function of the program, counted from
/// the next instruction.
const PSEUDO_CALL: u8 = 1;
const PSEUDO_FUNCTION: u8 = 4;

/// Path of calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Path {
    /// Sum of its frames, each rounded up, bytes.
    length: u32,
    /// Functions of the path with their frame sizes in bytes.
    frames: Vec<(String, u32)>,
}

/// Properties of a function that the analysis reads.
#[derive(Default)]
struct Function {
    depth: u32,
    calls: BTreeSet<usize>,
}

/// Reads frame and calls of a function, whose instructions begin at `first`.
fn read(program: &Instructions, first: usize, end: usize) -> Function {
    let mut function = Function::default();
    let mut copies = BTreeSet::new();
    for (at, insn) in (first..end).zip(&program.all[first..end]) {
        let (to, from) = (insn.dst_reg(), insn.src_reg());
        let below = match insn.code {
            MOVE if from == FRAME => {
                copies.insert(to);
                0
            }
            ADD if copies.remove(&to) => insn.imm,
            code if code & 7 == LOADS && from == FRAME => i32::from(insn.off),
            code if STORES.contains(&(code & 7)) && to == FRAME => i32::from(insn.off),
            _ => 0,
        };
        function.depth = function.depth.max(u32::try_from(-below).unwrap_or(0));
        if [(CALL, PSEUDO_CALL), (LOAD_64, PSEUDO_FUNCTION)].contains(&(insn.code, from)) {
            let called = (at as i64 + 1 + i64::from(insn.imm)) as u32;
            let starts = &program.functions;
            function.calls.insert(starts.binary_search_by_key(&called, |start| start.0).unwrap());
        }
    }
    function
}

/// Returns the path from a function on that takes the most stack.
fn deepest(program: &Instructions, index: usize, known: &mut BTreeMap<usize, Path>) -> Path {
    if let Some(path) = known.get(&index) {
        return path.clone();
    }
    let (first, name) = &program.functions[index];
    let end = program.functions.get(index + 1).map_or(program.all.len(), |next| next.0 as usize);
    let Function { depth, calls } = read(program, *first as usize, end);
    let paths = calls.into_iter().map(|called| deepest(program, called, known));
    let mut path = paths.max_by_key(|path| path.length).unwrap_or_default();
    path.length += depth.max(1).next_multiple_of(FRAME_UNIT);
    path.frames.insert(0, (name.clone(), depth));
    known.insert(index, path.clone());
    path
}

#[test]
fn every_path_of_calls_leaves_room_on_the_stack() {
    if !crate::tests::privileged() {
        return;
    }
    let doors = [
        ("front_door", objects::FRONT_DOOR, STACK_FREE_MIN),
        ("tc_door", objects::TC_DOOR, STACK_FREE_MIN),
        ("tapped_door", objects::TAPPED_DOOR, STACK_FREE_MIN_TAPPED),
        ("tapped_tc_door", objects::TAPPED_TC_DOOR, STACK_FREE_MIN_TAPPED),
    ];
    let mut too_deep = Vec::new();
    for (object, bytes, least) in doors {
        for program in Object::open(bytes, object).unwrap().load_for_instructions().unwrap() {
            let path = deepest(&program, 0, &mut BTreeMap::new());
            let free = STACK_LENGTH.saturating_sub(path.length);
            println!("{object}: {free} bytes free: {:?}", path.frames);
            if free < least {
                too_deep.push((object, path));
            }
        }
    }
    assert!(
        too_deep.is_empty(),
        "too few of {STACK_LENGTH} bytes are free; move what is large into struct tam_scratch: {too_deep:?}"
    );
}

#[test]
fn a_path_is_the_sum_of_its_frames() {
    let insn = |code, to, from, off, imm| {
        let mut insn = bpf_insn { code, off, imm, ..bpf_insn::default() };
        insn.set_dst_reg(to);
        insn.set_src_reg(from);
        insn
    };
    let exit = insn(0x95, 0, 0, 0, 0);
    let all = vec![
        insn(0x7b, FRAME, 1, -40, 0), // 0, main: a word of the caller's on the stack
        insn(CALL, 0, PSEUDO_CALL, 0, 2), // to 4
        insn(LOAD_64, 2, PSEUDO_FUNCTION, 0, 4), // to 7
        exit,
        insn(CALL, 0, 0, 0, 1), // 4, a: a helper
        insn(0x61, 1, FRAME, -64, 0),
        exit,
        insn(MOVE, 2, FRAME, 0, 0), // 7, b: the address of a variable
        insn(ADD, 2, 0, 0, -8),
        insn(ADD, 2, 0, 0, -800), // not an offset from the stack any more
        insn(CALL, 0, PSEUDO_CALL, 0, 1), // to 12
        exit,
        exit, // 12, c
    ];
    let functions = [(0, "main"), (4, "a"), (7, "b"), (12, "c")];
    let functions = functions.map(|(at, name)| (at, name.to_owned())).into();
    let path = deepest(&Instructions { all, functions }, 0, &mut BTreeMap::new());
    let frames = [("main", 40), ("b", 8), ("c", 0)].map(|(name, depth)| (name.to_owned(), depth));
    assert_eq!(path, Path { length: 64 + 32 + 32, frames: frames.into() });
}
