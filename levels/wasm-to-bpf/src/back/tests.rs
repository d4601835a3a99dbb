//! Tests of the back end as a whole: its refusals, and the code that it always emits. lab/wasm
//! tests in the kernel that the code is right.

use super::plan::Plan;
use super::subprogram::Subprogram;
use crate::ir::{
    Access, BinaryOp, Block, BlockId, Edge, Function, FunctionIndex, Instruction, Memory, Op,
    Place, Region, Terminator, Type, Unit, Value, Width,
};
use crate::{Entry, Flavour, Image, MapKind, Options, Program, Reason, Refusal};

/// Makes a function of one block; results are numbered in order.
fn function(index: u32, parameters: u32, ops: Vec<Op>, returned: Vec<Value>) -> Function {
    let results = ops.len() as u32;
    let instructions = (parameters..)
        .zip(ops)
        .map(|(result, op)| Instruction { results: vec![Value(result)], op, place: Place(7) })
        .collect();
    Function {
        index: FunctionIndex(index),
        name: None,
        parameters: vec![Type::I64; parameters as usize],
        results: vec![Type::I64; returned.len()],
        types: vec![Type::I64; (parameters + results) as usize],
        blocks: vec![Block {
            parameters: (0..parameters).map(Value).collect(),
            instructions,
            terminator: Terminator::Return(returned),
            is_loop_header: false,
            loop_depth: 0,
            rounds_max: None,
        }],
        can_trap: false,
    }
}

fn options(entry: Entry, flavour: Flavour) -> Options {
    Options { entry, flavour, memory_pages_max: 1, functions: abi::HostFunctions::ALL }
}

fn export(functions: Vec<Function>) -> Result<Program, Vec<Refusal>> {
    let memory = Some(Memory { pages_min: 1, pages_max: 1 });
    let unit = Unit { functions, globals: Vec::new(), memory };
    let options = options(Entry::Export("f".to_owned()), Flavour::Xdp);
    super::program(&unit, Image::default(), &options)
}

fn reason(result: Result<Program, Vec<Refusal>>) -> Reason {
    result.unwrap_err().remove(0).reason
}

/// Makes functions that each call the next one.
fn chain(length: u32, ops: impl Fn() -> Vec<Op>) -> Vec<Function> {
    (0..length)
        .map(|index| {
            let mut ops = ops();
            if index + 1 < length {
                ops.push(Op::Call(index + 1, Vec::new()));
            }
            function(index, 0, ops, Vec::new())
        })
        .collect()
}

#[test]
fn calls_go_eight_deep_and_no_deeper() {
    assert!(export(chain(8, Vec::new)).is_ok());
    assert_eq!(reason(export(chain(9, Vec::new))), Reason::CallDepth { depth: 9, max: 8 });
}

#[test]
fn stack_beyond_the_kernels_is_refused() {
    // Far more live values than registers.
    let count = 90;
    let mut ops: Vec<Op> = (0..count).map(|_| Op::GlobalGet(0)).collect();
    ops.extend((1..count).map(|at| {
        let sum = if at == 1 { 0 } else { count + at - 2 };
        Op::Binary(BinaryOp::Add, Value(sum), Value(count - at))
    }));
    let last = Value(ops.len() as u32 - 1);
    let found = reason(export(vec![function(0, 0, ops, vec![last])]));
    assert!(matches!(found, Reason::Stack { bytes, max: 512 } if bytes > 512), "{found:?}");
}

#[test]
fn more_functions_than_the_kernel_takes_are_refused() {
    let mut functions =
        vec![function(0, 0, (1..300).map(|at| Op::Call(at, Vec::new())).collect(), Vec::new())];
    functions.extend((1..300).map(|index| function(index, 0, Vec::new(), Vec::new())));
    assert_eq!(reason(export(functions)), Reason::Functions { count: 300, max: 256 });
}

#[test]
fn a_program_names_the_arena_only_if_it_has_memory() {
    let names_arena =
        |program: &Program| program.maps.iter().any(|reference| reference.map == MapKind::Arena);
    let with = export(chain(1, Vec::new)).unwrap();
    assert!(names_arena(&with));
    let unit = Unit { functions: chain(1, Vec::new), globals: Vec::new(), memory: None };
    let options = options(Entry::Export("f".to_owned()), Flavour::Xdp);
    let without = super::program(&unit, Image::default(), &options).unwrap();
    assert!(!names_arena(&without));
}

#[test]
fn every_map_reference_is_a_load_of_two_slots() {
    let access =
        Access { address: Value(0), offset: 4, region: Region::Memory, bounds_check: true };
    let ops = vec![
        Op::GlobalGet(0),
        Op::Load { width: Width::Four, signed: false, access },
        Op::Call(1, Vec::new()),
    ];
    let functions = vec![function(0, 0, ops, vec![Value(1)]), chain(1, Vec::new).remove(0)];
    let program = export(functions).unwrap();
    assert!(program.maps.len() > 1);
    for reference in &program.maps {
        let at = reference.instruction as usize;
        assert_eq!(program.instructions[at] & 0xff, 0x18, "ld_imm64 at {at}");
        assert_eq!(program.instructions[at + 1] & 0xff, 0, "its second slot");
    }
    assert_eq!(program.functions.len(), 2);
    assert!(program.functions[1].start > 0);
}

#[test]
fn all_subprograms_assemble_at_each_level() {
    for flavour in [Flavour::Xdp, Flavour::Tc] {
        let entry = Entry::Packet { window: 64, standalone: true };
        let memory = Some(Memory { pages_min: 1, pages_max: 2 });
        let unit = Unit { functions: chain(1, Vec::new), globals: Vec::new(), memory };
        let mut setting = Plan::new(&unit, &options(entry, flavour)).setting;
        for reach in [0, 64] {
            setting.reach = reach;
            for subprogram in Subprogram::ALL {
                let (code, stack) = super::host::assemble(subprogram, &setting);
                assert!(!code.insns.is_empty(), "{}", subprogram.name());
                assert!(stack.is_multiple_of(16) && stack <= 256, "{}", subprogram.name());
            }
        }
    }
}

/// Tests branches on conditions that the passes find to be constant so late that both successors
/// remain: seeds 31471 (a value of the path never taken) and 43939 (its instructions) of lab/wasm.
#[test]
fn a_condition_found_constant_late_keeps_both_successors() {
    let to = |block| Edge { target: BlockId(block), arguments: Vec::new() };
    let ways = |constant| {
        let mut one = function(0, 0, vec![Op::Const(constant), Op::GlobalGet(0)], Vec::new());
        one.types[0] = Type::I32;
        let block = |ops: Vec<Op>, first, returned, terminator| Block {
            instructions: (first..)
                .zip(ops)
                .map(|(at, op)| Instruction { results: vec![Value(at)], op, place: Place(7) })
                .collect(),
            parameters: Vec::new(),
            terminator: Option::unwrap_or(terminator, Terminator::Return(returned)),
            is_loop_header: false,
            loop_depth: 0,
            rounds_max: None,
        };
        let double = Op::Binary(BinaryOp::Add, Value(1), Value(1));
        one.types.extend([Type::I64; 2]);
        one.blocks.push(block(vec![double], 2, Vec::new(), Some(Terminator::Jump(to(3)))));
        one.blocks.push(block(Vec::new(), 3, vec![Value(1)], None));
        let square = Op::Binary(BinaryOp::Mul, Value(2), Value(2));
        one.blocks.push(block(vec![square], 3, vec![Value(3)], None));
        one.results = vec![Type::I64];
        one
    };
    for constant in [0, 1] {
        let mut branch = ways(constant);
        branch.blocks[0].terminator = Terminator::Branch(Value(0), to(1), to(2));
        assert!(export(vec![branch]).is_ok(), "a branch on {constant}");
        let mut switch = ways(constant);
        switch.blocks[0].terminator = Terminator::Switch(Value(0), vec![to(1)], to(2));
        assert!(export(vec![switch]).is_ok(), "a switch by {constant}");
    }
}

#[test]
fn the_same_unit_gives_the_same_program() {
    let ops = || vec![Op::GlobalGet(0), Op::Binary(BinaryOp::Mul, Value(0), Value(0))];
    let program = || export(vec![function(0, 0, ops(), vec![Value(1)])]).unwrap();
    assert_eq!(program(), program());
}
