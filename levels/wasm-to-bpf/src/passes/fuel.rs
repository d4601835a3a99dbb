//! Fuel lowering, from charges to arithmetic. Until here a charge is a
//! [`Op::FuelStore`] of a constant, the cost; afterwards:
//!
//! ```text
//! without loops                     with loops
//!   left = fuel.load                  left = fuel.load      once, at the entry
//!   left = left - cost                left = left - cost    a value that blocks pass on
//!   fuel.store left                   trap_if left < 0
//!   trap_if left < 0                  fuel.store left       before a call and a return
//! ```
//!
//! Charges of one block are combined. A charge that cannot fail, since every
//! budget is larger, is not checked: all charges of a function whose total cost is below every
//! budget, with each loop at its maximum of iterations, and else the charges before the first
//! loop.

use foldhash::HashMap;

use super::fold;
use super::graph::enclosing_loops;
use super::inline::callees_first;
use crate::ir::{
    BinaryOp, Block, CompareOp, Function, Instruction, Op, Place, Terminator, Type, Unit, Value,
};
use crate::{FUEL_BUDGET_MIN, TrapCode};

/// Lowers the charges of all functions; their blocks are in order.
pub(super) fn run(unit: &mut Unit) {
    let totals = totals(unit);
    let is_short = totals.first().copied().flatten().is_some_and(|sum| sum <= FUEL_BUDGET_MIN);
    for (index, function) in unit.functions.iter_mut().enumerate() {
        join(function);
        let constants = fold::constants(function);
        let unchecked = match is_short {
            true => vec![true; function.blocks.len()],
            false if index == 0 => before_loops(function, &totals, &constants),
            false => vec![false; function.blocks.len()],
        };
        let with_loops = has_loops(function);
        let mut lowering = Lowering { constants, with_loops, left: None };
        lowering.function(function, &unchecked);
    }
}

/// Combines the charges of each block.
pub(super) fn join(function: &mut Function) {
    let constants = fold::constants(function);
    for block in &mut function.blocks {
        join_charges(block, &constants, &mut function.types);
    }
}

fn has_loops(function: &Function) -> bool {
    function.blocks.iter().any(|block| block.is_loop_header)
}

/// Returns the largest cost of a call of each function; `None` if it has a loop with an unknown
/// number of iterations.
fn totals(unit: &Unit) -> Vec<Option<u64>> {
    let mut totals = vec![Some(0_u64); unit.functions.len()];
    for index in callees_first(unit) {
        let function = &unit.functions[index];
        let constants = fold::constants(function);
        totals[index] = times(function).and_then(|times| {
            let blocks = function.blocks.iter().zip(times);
            let mut costs = blocks.map(|(block, times)| {
                Some(cost(block, &constants, &totals)?.saturating_mul(times))
            });
            costs.try_fold(0, |sum: u64, more| Some(sum.saturating_add(more?)))
        });
    }
    totals
}

/// Returns the largest number of executions of each block in one call.
fn times(function: &Function) -> Option<Vec<u64>> {
    if !has_loops(function) {
        return Some(vec![1; function.blocks.len()]);
    }
    let enclosing = enclosing_loops(&function.blocks).enclosing;
    let mut times: Vec<u64> = Vec::with_capacity(function.blocks.len());
    // A header comes before the blocks of its loop.
    for (block, around) in function.blocks.iter().zip(enclosing) {
        let around = around.and_then(|header| times.get(header.0 as usize).copied()).unwrap_or(1);
        let own = if block.is_loop_header { block.rounds_max?.saturating_add(1) } else { 1 };
        times.push(around.saturating_mul(own));
    }
    Some(times)
}

/// Returns the cost of a block with all its callees.
fn cost(block: &Block, constants: &HashMap<Value, u64>, totals: &[Option<u64>]) -> Option<u64> {
    let mut sum = 0_u64;
    for instruction in &block.instructions {
        let more = match &instruction.op {
            Op::FuelStore(value) => constants.get(value).copied(),
            Op::Call(callee, _) => totals.get(*callee as usize).copied().flatten(),
            _ => Some(0),
        };
        sum = sum.saturating_add(more?);
    }
    Some(sum)
}

/// Combines the charges of a block in its first one; a call separates the charges before it from
/// those after it.
fn join_charges(block: &mut Block, constants: &HashMap<Value, u64>, types: &mut Vec<Type>) {
    let mut first: Option<usize> = None;
    let mut sum = 0;
    let mut out: Vec<Instruction> = Vec::with_capacity(block.instructions.len());
    let mut sums: Vec<(usize, u64)> = Vec::new();
    for instruction in block.instructions.drain(..) {
        match &instruction.op {
            Op::FuelStore(value) => {
                sum += constants.get(value).copied().unwrap_or_default();
                if first.is_none() {
                    first = Some(out.len());
                    out.push(instruction);
                }
            }
            Op::Call(..) => {
                sums.extend(first.take().zip(Some(std::mem::take(&mut sum))));
                out.push(instruction);
            }
            _ => out.push(instruction),
        }
    }
    sums.extend(first.zip(Some(sum)));
    for (place, sum) in sums.into_iter().rev() {
        let value = new_value(types);
        let instruction = &mut out[place];
        instruction.op = Op::FuelStore(value);
        let place_in_module = instruction.place;
        out.insert(place, made(value, Op::Const(sum), place_in_module));
    }
    block.instructions = out;
}

/// Returns the blocks that run before any loop, if all of them cost less than the smallest budget.
fn before_loops(
    function: &Function,
    totals: &[Option<u64>],
    constants: &HashMap<Value, u64>,
) -> Vec<bool> {
    let mut before = vec![true; function.blocks.len()];
    let mut sum = 0;
    for (index, block) in function.blocks.iter().enumerate() {
        let own = cost(block, constants, totals);
        before[index] &= !block.is_loop_header && own.is_some();
        if before[index] {
            sum += own.unwrap_or_default();
        } else {
            for edge in block.terminator.edges() {
                before[edge.target.0 as usize] = false;
            }
        }
    }
    if sum <= FUEL_BUDGET_MIN { before } else { vec![false; function.blocks.len()] }
}

fn new_value(types: &mut Vec<Type>) -> Value {
    let value = Value(u32::try_from(types.len()).unwrap_or(u32::MAX));
    types.push(Type::I64);
    value
}

fn made(result: Value, op: Op, place: Place) -> Instruction {
    Instruction { results: vec![result], op, place }
}

/// State of the walk through a function.
struct Lowering {
    constants: HashMap<Value, u64>,
    with_loops: bool,
    /// Remaining fuel, while it is a value.
    left: Option<Value>,
}

impl Lowering {
    fn function(&mut self, function: &mut Function, unchecked: &[bool]) {
        // With loops every block but the entry gets the remaining fuel as a parameter; where it is
        // always the same, parameters.rs removes it.
        let parameters: Vec<Option<Value>> = (0..function.blocks.len())
            .map(|index| (self.with_loops && index != 0).then(|| new_value(&mut function.types)))
            .collect();
        for (index, block) in function.blocks.iter_mut().enumerate() {
            self.left = parameters[index];
            block.parameters.extend(self.left);
            self.block(block, &mut function.types, unchecked[index], index == 0);
            for edge in block.terminator.edges_mut() {
                edge.arguments.extend(self.left);
            }
        }
    }

    fn block(&mut self, block: &mut Block, types: &mut Vec<Type>, unchecked: bool, is_entry: bool) {
        let mut out = Vec::with_capacity(block.instructions.len() + 4);
        let begin = block.instructions.first().map_or(Place::default(), |first| first.place);
        if is_entry && self.with_loops {
            self.load(&mut out, types, begin);
        }
        let mut place = begin;
        for instruction in block.instructions.drain(..) {
            place = instruction.place;
            match instruction.op {
                Op::FuelStore(value) => {
                    let cost = self.constants.get(&value).copied().unwrap_or_default();
                    self.charge(&mut out, types, cost, place, unchecked);
                }
                Op::Call(..) => {
                    self.store(&mut out, place);
                    out.push(instruction);
                    if self.with_loops {
                        self.load(&mut out, types, place);
                    }
                }
                _ => out.push(instruction),
            }
        }
        if matches!(block.terminator, Terminator::Return(_)) {
            self.store(&mut out, place);
        }
        block.instructions = out;
    }

    fn load(&mut self, out: &mut Vec<Instruction>, types: &mut Vec<Type>, place: Place) {
        let left = new_value(types);
        out.push(made(left, Op::FuelLoad, place));
        self.left = Some(left);
    }

    fn store(&self, out: &mut Vec<Instruction>, place: Place) {
        if let Some(left) = self.left {
            out.push(Instruction { results: Vec::new(), op: Op::FuelStore(left), place });
        }
    }

    fn charge(
        &mut self,
        out: &mut Vec<Instruction>,
        types: &mut Vec<Type>,
        cost: u64,
        place: Place,
        unchecked: bool,
    ) {
        if !self.with_loops {
            self.load(out, types, place);
        }
        let Some(before) = self.left else { return };
        let [number, after] = [(); 2].map(|()| new_value(types));
        out.push(made(number, Op::Const(cost), place));
        out.push(made(after, Op::Binary(BinaryOp::Sub, before, number), place));
        self.left = Some(after);
        if !self.with_loops {
            self.store(out, place);
            self.left = None;
        }
        if !unchecked {
            let [zero, spent] = [(); 2].map(|()| new_value(types));
            types[spent.0 as usize] = Type::I32;
            out.push(made(zero, Op::Const(0), place));
            out.push(made(spent, Op::Compare(CompareOp::LtS, after, zero), place));
            let op = Op::TrapIf(spent, TrapCode::OutOfFuel);
            out.push(Instruction { results: Vec::new(), op, place });
        }
    }
}
