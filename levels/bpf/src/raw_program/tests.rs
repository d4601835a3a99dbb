//! Tests of programs of a few words on the running kernel; they need root.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use super::*;
use crate::{Block, Map, MapSpec, MappedArena, Update};

const FRAME: [u8; 64] = [0; 64];
const XDP: RawKind = RawKind::Xdp { fragments: false };

fn privileged() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        testbase::skip_this("loading BPF programs needs root");
    }
    root
}

fn function(start: u32, name: &str, scalars: u32, global: bool) -> RawFunction {
    RawFunction { start, name: name.into(), takes_context: start == 0, scalars, global }
}

/// Tests `r0 = r1 + r2` as a function of its own, called with the block's first two numbers.
#[test]
fn a_function_of_scalars_is_called_and_maps_are_filled_in() {
    if !privileged() {
        return;
    }
    let block = Block::create("tam_test", 32).unwrap();
    block.u64(0).unwrap().store(40, Ordering::Relaxed);
    block.u64(8).unwrap().store(2, Ordering::Relaxed);
    let words = [
        insn::word(0x18, 6, 0, 0, 0),
        insn::word(0, 0, 0, 0, 0),
        insn::word(0x79, 1, 6, 0, 0),  // r1 = *(u64 *)(r6 + 0)
        insn::word(0x79, 2, 6, 8, 0),  // r2 = *(u64 *)(r6 + 8)
        insn::word(0x85, 0, 1, 0, 3),  // call the next function, 3 words on
        insn::word(0x7b, 6, 0, 16, 0), // *(u64 *)(r6 + 16) = r0
        insn::word(0xb7, 0, 0, 0, 2),
        insn::exit(),
        insn::word(0xbf, 0, 1, 0, 0), // r0 = r1
        insn::word(0x0f, 0, 2, 0, 0), // r0 += r2
        insn::exit(),
    ];
    for kind in [XDP, RawKind::Xdp { fragments: true }, RawKind::Tc] {
        for global in [false, true] {
            let program = RawProgram {
                name: "a name of more than fifteen characters",
                kind,
                instructions: &words,
                maps: &[RawMap { instruction: 0, fd: block.as_fd(), value: Some(0) }],
                functions: &[function(0, "entry", 0, true), function(8, "sum", 2, global)],
            };
            block.u64(16).unwrap().store(0, Ordering::Relaxed);
            let program = program.load().unwrap();
            assert_eq!(program.test_run(&FRAME, None, 1).unwrap().retval, 2);
            assert_eq!(block.u64(16).unwrap().load(Ordering::Relaxed), 42);
            // A load of a map's address is one instruction, not two.
            assert!((10..=12).contains(&program.verified_instructions().unwrap()));
        }
    }
}

#[test]
fn an_arena_is_reached_by_its_addresses() {
    if !privileged() {
        return;
    }
    let (arena, memory) = MappedArena::create("tam_test", 16, 16).unwrap();
    memory.write(0x9004, &7u32.to_le_bytes()).unwrap();
    let words = [
        insn::word(0x18, 1, 0, 0, 0), // the program's arena
        insn::word(0, 0, 0, 0, 0),
        insn::word(0xb7, 2, 0, 0, 0x9000),
        insn::word(0xbf, 2, 2, 1, 1),  // r2 = addr_space_cast(r2, 0, 1)
        insn::word(0x61, 0, 2, 4, 0),  // r0 = *(u32 *)(r2 + 4)
        insn::word(0x62, 2, 0, 8, 11), // *(u32 *)(r2 + 8) = 11
        insn::exit(),
    ];
    let program = RawProgram {
        name: "tam_test",
        kind: XDP,
        instructions: &words,
        maps: &[RawMap { instruction: 0, fd: arena.as_fd(), value: None }],
        functions: &[function(0, "entry", 0, true)],
    };
    assert_eq!(program.load().unwrap().test_run(&FRAME, None, 1).unwrap().retval, 7);
    let mut bytes = [0; 4];
    memory.read(0x9008, &mut bytes).unwrap();
    assert_eq!(u32::from_le_bytes(bytes), 11);
}

#[test]
fn a_refusal_has_the_end_of_the_verifiers_log() {
    if !privileged() {
        return;
    }
    // The context is a pointer, not a number: its first field is not at 1,000.
    let words = [insn::word(0x61, 0, 1, 1000, 0), insn::exit()];
    let program = RawProgram {
        name: "tam_test",
        kind: XDP,
        instructions: &words,
        maps: &[],
        functions: &[function(0, "entry", 0, true)],
    };
    let message = program.load().unwrap_err().to_string();
    assert!(message.contains("invalid bpf_context access off=1000"), "{message}");
}

#[test]
fn endless_work_for_the_verifier_has_a_reason_of_its_own() {
    if !privileged() {
        return;
    }
    // r0 = 0; do r0 += 1 while r0 != 2^31 - 1: the verifier walks every iteration.
    let words = [
        insn::word(0xb7, 0, 0, 0, 0),
        insn::word(0x07, 0, 0, 0, 1),
        insn::word(0x55, 0, 0, -2, i32::MAX),
        insn::exit(),
    ];
    let program = RawProgram {
        name: "tam_test",
        kind: XDP,
        instructions: &words,
        maps: &[],
        functions: &[function(0, "entry", 0, true)],
    };
    let error = program.load().unwrap_err();
    assert!(matches!(error, RawLoadError::TooComplex { instructions: 4, .. }), "{error}");
}

#[test]
fn what_is_no_map_reference_is_not_filled_in() {
    if !privileged() {
        return;
    }
    let array = Map::create("tam_test", &MapSpec::array(8, 1)).unwrap();
    for instruction in [0, 1, 7] {
        let program = RawProgram {
            name: "tam_test",
            kind: XDP,
            instructions: &[insn::word(0xb7, 0, 0, 0, 0), insn::exit()],
            maps: &[RawMap { instruction, fd: array.as_fd(), value: None }],
            functions: &[function(0, "entry", 0, true)],
        };
        assert!(matches!(program.load(), Err(RawLoadError::NoReference { .. })));
    }
}

#[test]
fn a_tail_call_goes_through_a_program_array() {
    if !privileged() {
        return;
    }
    let single = |word: u64| [word, insn::exit()];
    let load = |name, instructions: &[u64], maps: &[RawMap<'_>]| {
        let functions = &[function(0, "entry", 0, true)];
        RawProgram { name, kind: XDP, instructions, maps, functions }.load().unwrap()
    };
    let second = load("second", &single(insn::word(0xb7, 0, 0, 0, 3)), &[]);
    let array = Map::create("tam_test", &MapSpec::program_array(1)).unwrap();
    array.update(&0u32, &(second.as_fd().as_raw_fd() as u32), Update::Any).unwrap();
    let first = [
        insn::word(0x18, 2, 0, 0, 0),
        insn::word(0, 0, 0, 0, 0),
        insn::word(0xb7, 3, 0, 0, 0),
        insn::word(0x85, 0, 0, 0, 12), // bpf_tail_call
        insn::word(0xb7, 0, 0, 0, 0),
        insn::exit(),
    ];
    let maps = [RawMap { instruction: 0, fd: array.as_fd(), value: None }];
    let first = load("first", &first, &maps);
    assert_eq!(first.test_run(&FRAME, None, 1).unwrap().retval, 3);
}

#[test]
fn maps_of_the_other_kinds_are_made() {
    if !privileged() {
        return;
    }
    let per_cpu = Map::create("tam_test", &MapSpec::per_cpu_array(84, 1)).unwrap();
    assert_eq!(per_cpu.info().value_size, 84);
    let ring = Map::create("tam_test", &MapSpec::ring_buffer(1 << 16)).unwrap();
    assert_eq!(ring.info().max_entries, 1 << 16);
    assert!(Map::create("tam_test", &MapSpec::ring_buffer(100)).is_err());
}
