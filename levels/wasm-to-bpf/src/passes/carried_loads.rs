//! Loop-carried loads. A loop that carries an address only to load from it first carries the loaded
//! value instead. LLVM emits the former where a walk goes on from header to header; each
//! predecessor that provides the address knows more of it than the loop's beginning does.
//!
//! ```text
//! loop (p = 0x8116):                        loop (next = load 0x8116):
//!   next = load p                             ...
//!   ...                                       if the packet has p: repeat with (load p)
//!   if the packet has p: repeat with (p)
//! ```
//!
//! Only reads that are certain to lie in the window move: none of them can trap.

use super::graph::{id, predecessors};
use crate::ir::{Block, BlockId, Edge, Function, Instruction, Op, Region, Terminator, Value};

/// Carries loaded values. Blocks are out of order afterwards.
pub(super) fn run(function: &mut Function) {
    let uses = uses(function);
    let found: Vec<Found> = (0..function.blocks.len())
        .filter(|&header| function.blocks[header].is_loop_header)
        .flat_map(|header| find(function, &uses, header))
        .collect();
    for found in &found {
        carry(function, found);
    }
}

/// Load at the beginning of a loop, of an address that is a parameter of the loop's header.
struct Found {
    header: usize,
    /// Index of the parameter.
    parameter: usize,
    load: Instruction,
}

fn find(function: &Function, uses: &[u32], header: usize) -> Vec<Found> {
    let block = &function.blocks[header];
    let begins = |instruction: &&Instruction| {
        instruction.op.is_pure()
            || matches!(instruction.op, Op::FuelStore(_))
            || matches!(&instruction.op, Op::Load { access, .. } if !access.bounds_check)
    };
    let load = |instruction: &Instruction| {
        let Op::Load { access, .. } = &instruction.op else { return None };
        let parameter = block.parameters.iter().position(|value| *value == access.address)?;
        let is_only_use = uses[access.address.0 as usize] == 1;
        let is_window = access.region == Region::Window && !access.bounds_check;
        (is_only_use && is_window).then(|| Found { header, parameter, load: instruction.clone() })
    };
    block.instructions.iter().take_while(begins).filter_map(load).collect()
}

/// Counts the uses of each value.
fn uses(function: &Function) -> Vec<u32> {
    let mut uses = vec![0; function.types.len()];
    let mut count = |value: Value| uses[value.0 as usize] += 1;
    for block in &function.blocks {
        for instruction in &block.instructions {
            instruction.op.for_each_use(&mut count);
        }
        block.terminator.for_each_use(&mut count);
    }
    uses
}

/// Loads on each edge to the header, which gets the result as its parameter.
fn carry(function: &mut Function, found: &Found) {
    let Found { header, parameter, load } = found;
    let [result] = load.results[..] else { return };
    let mut from = predecessors(&function.blocks)[*header].clone();
    from.dedup();
    for BlockId(from) in from {
        let from = from as usize;
        let mut terminator = std::mem::replace(
            &mut function.blocks[from].terminator,
            Terminator::Return(Vec::new()),
        );
        let is_only_way = matches!(terminator, Terminator::Jump(_));
        for edge in terminator.edges_mut().filter(|edge| edge.target == id(*header)) {
            let mut load = load.clone();
            let loaded = Value(u32::try_from(function.types.len()).unwrap_or(u32::MAX));
            function.types.push(function.types[result.0 as usize]);
            load.results = vec![loaded];
            let argument = std::mem::replace(&mut edge.arguments[*parameter], loaded);
            if let Op::Load { access, .. } = &mut load.op {
                access.address = argument;
            }
            if is_only_way {
                function.blocks[from].instructions.push(load);
            } else {
                let depth = function.blocks[from].loop_depth;
                let between = id(function.blocks.len());
                let way = std::mem::replace(edge, Edge { target: between, arguments: Vec::new() });
                function.blocks.push(Block {
                    parameters: Vec::new(),
                    instructions: vec![load],
                    terminator: Terminator::Jump(way),
                    is_loop_header: false,
                    loop_depth: depth,
                    rounds_max: None,
                });
            }
        }
        function.blocks[from].terminator = terminator;
    }
    let block = &mut function.blocks[*header];
    block.parameters[*parameter] = result;
    block.instructions.retain(|instruction| instruction.results.first() != Some(&result));
}
