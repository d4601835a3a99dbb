//! Jump threading and block merging: removes empty blocks, resolves a branch on an edge that brings
//! its condition as a constant, and merges a block with its single predecessor.

use foldhash::{HashMap, HashMapExt};

use super::alias::Aliases;
use super::fold;
use super::graph::{id, predecessors};
use crate::ir::{Block, Edge, Function, Op, Terminator, Type, Value};

/// Most operations of a block that are evaluated along an edge.
const THREADED_MAX: usize = 4;
/// Most blocks that one edge is threaded past.
const HOPS_MAX: u32 = 16;

/// Threads edges, then merges blocks. Blocks must be in order; some are unreachable afterwards.
pub(super) fn run(function: &mut Function) {
    thread(function);
    merge(function);
}

fn thread(function: &mut Function) {
    let homes = Homes::of(function);
    let passable = homes.passable(function);
    let constants = fold::constants(function);
    for index in 0..function.blocks.len() {
        let mut terminator = std::mem::replace(
            &mut function.blocks[index].terminator,
            Terminator::Return(Vec::new()),
        );
        for edge in terminator.edges_mut() {
            for _ in 0..HOPS_MAX {
                let target = edge.target.0 as usize;
                if target == index || !passable[target] {
                    break;
                }
                let Some(next) = beyond(function, edge, &constants, &homes) else { break };
                *edge = next;
            }
        }
        if let Terminator::Branch(_, taken, not) = &terminator
            && taken == not
        {
            terminator = Terminator::Jump(taken.clone());
        }
        function.blocks[index].terminator = terminator;
    }
}

/// Returns the final target of an edge whose target only decides.
fn beyond(
    function: &Function,
    edge: &Edge,
    constants: &HashMap<Value, u64>,
    homes: &Homes,
) -> Option<Edge> {
    let target = &function.blocks[edge.target.0 as usize];
    let next = match &target.terminator {
        Terminator::Jump(next) if target.instructions.is_empty() => next,
        Terminator::Branch(condition, taken, not) => {
            match decide(function, target, edge, *condition, constants)? {
                0 => not,
                _ => taken,
            }
        }
        _ => return None,
    };
    let target_index = edge.target.0 as usize;
    let mut arguments = Vec::with_capacity(next.arguments.len());
    for value in &next.arguments {
        let (home, parameter) = homes.0[value.0 as usize];
        arguments.push(match parameter {
            _ if home != target_index => *value,
            Some(place) => *edge.arguments.get(place)?,
            // Another result of the block, unknown along the edge.
            None => return None,
        });
    }
    (next.target != edge.target).then_some(Edge { target: next.target, arguments })
}

/// Returns the condition of a block when it is entered by that edge.
fn decide(
    function: &Function,
    block: &Block,
    edge: &Edge,
    condition: Value,
    constants: &HashMap<Value, u64>,
) -> Option<u64> {
    let mut known: HashMap<Value, u64> = HashMap::new();
    for (parameter, argument) in block.parameters.iter().zip(&edge.arguments) {
        if let Some(number) = constants.get(argument) {
            known.insert(*parameter, *number);
        }
    }
    if known.is_empty() {
        return None;
    }
    let type_of = |value: &Value| function.types[value.0 as usize];
    for instruction in &block.instructions {
        let [result] = instruction.results[..] else { return None };
        let get = |value: &Value| known.get(value).or_else(|| constants.get(value)).copied();
        let number = match &instruction.op {
            Op::Const(number) => Some(*number),
            Op::Unary(op, a) => get(a).map(|a| fold::unary(*op, type_of(&result), a)),
            Op::Binary(op, a, b) => match (get(a), get(b)) {
                (Some(a), Some(b)) => fold::binary(*op, type_of(&result), a, b),
                _ => None,
            },
            Op::Compare(op, a, b) => match (get(a), get(b)) {
                (Some(x), Some(y)) => Some(u64::from(fold::compare(*op, type_of(a), x, y))),
                _ => None,
            },
            Op::ExtendUnsigned(a) => get(a),
            Op::Wrap(a) => get(a).map(|a| a & fold::ones(Type::I32)),
            _ => None,
        };
        if let Some(number) = number {
            known.insert(result, number);
        }
    }
    known.get(&condition).copied()
}

/// Defining block of each value, with its index if it is a parameter there.
struct Homes(Vec<(usize, Option<usize>)>);

impl Homes {
    fn of(function: &Function) -> Self {
        let mut homes = vec![(usize::MAX, None); function.types.len()];
        for (index, block) in function.blocks.iter().enumerate() {
            for (place, value) in block.parameters.iter().enumerate() {
                homes[value.0 as usize] = (index, Some(place));
            }
            for value in block.instructions.iter().flat_map(|instruction| &instruction.results) {
                homes[value.0 as usize] = (index, None);
            }
        }
        Self(homes)
    }

    /// Returns the blocks that define nothing used elsewhere, and do little.
    fn passable(&self, function: &Function) -> Vec<bool> {
        let mut passable: Vec<bool> = function
            .blocks
            .iter()
            .map(|block| {
                !block.is_loop_header
                    && block.instructions.len() <= THREADED_MAX
                    && block.instructions.iter().all(|instruction| instruction.op.is_pure())
            })
            .collect();
        for (index, block) in function.blocks.iter().enumerate() {
            let mut visit = |value: Value| {
                let home = self.0[value.0 as usize].0;
                if home != index && home != usize::MAX {
                    passable[home] = false;
                }
            };
            for instruction in &block.instructions {
                instruction.op.for_each_use(&mut visit);
            }
            block.terminator.for_each_use(&mut visit);
        }
        if let Some(entry) = passable.first_mut() {
            *entry = false;
        }
        passable
    }
}

fn merge(function: &mut Function) {
    let predecessors_in: Vec<usize> = predecessors(&function.blocks)
        .into_iter()
        .map(|predecessors_in| predecessors_in.len())
        .collect();
    let mut aliases = Aliases::none(function);
    let mut gone = vec![false; function.blocks.len()];
    for index in 0..function.blocks.len() {
        if gone[index] {
            continue;
        }
        while let Terminator::Jump(edge) = &function.blocks[index].terminator {
            let target = edge.target;
            if target == id(index) || target == id(0) || predecessors_in[target.0 as usize] != 1 {
                break;
            }
            let arguments = edge.arguments.clone();
            gone[target.0 as usize] = true;
            let next = &mut function.blocks[target.0 as usize];
            for (parameter, argument) in next.parameters.drain(..).zip(arguments) {
                aliases.set(parameter, argument);
            }
            let instructions = std::mem::take(&mut next.instructions);
            let end = Terminator::Return(Vec::new());
            let terminator = std::mem::replace(&mut next.terminator, end);
            let here = &mut function.blocks[index];
            here.instructions.extend(instructions);
            here.terminator = terminator;
        }
    }
    aliases.apply(function);
}
