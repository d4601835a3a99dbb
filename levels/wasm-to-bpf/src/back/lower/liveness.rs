//! Liveness: the values that need a register. Constants need none, nor do unread values and
//! comparisons that only decide a branch, which are emitted again as a jump there.

use super::super::facts::Facts;
use super::super::guard::Guard;
use crate::ir::{CompareOp, Function, Instruction, Op, Terminator, Value};

/// Uses of values, by kind.
pub(super) struct Uses {
    /// Values read as a number.
    needed: Vec<bool>,
    /// True if the fuel that is stored is never read.
    fuel_is_known: bool,
}

impl Uses {
    /// Computes the uses in one backward walk: a definition comes before its uses in reverse
    /// post-order. The branches of `guards` read no condition, but the address that they check.
    pub(super) fn new(
        function: &Function,
        facts: &Facts,
        fuel_is_known: bool,
        guard: impl Fn(usize) -> Option<Guard>,
    ) -> Self {
        let mut uses = Self { needed: vec![false; function.types.len()], fuel_is_known };
        let mut decides = Decides { by: vec![false; function.types.len()], facts };
        let compares = compares(function);
        for (number, block) in function.blocks.iter().enumerate().rev() {
            let guard = guard(number);
            if let Some(address) = guard.and_then(|guard| guard.address) {
                uses.read(address, false, &compares, &mut decides);
            }
            for (value, is_condition) in terminator_reads(&block.terminator) {
                if is_condition && guard.is_some() {
                    continue;
                }
                uses.read(value, is_condition, &compares, &mut decides);
            }
            for instruction in block.instructions.iter().rev() {
                uses.instruction(instruction, &compares, &mut decides);
            }
        }
        uses
    }

    /// Returns true if the instruction has an effect or a used result.
    pub(super) fn is_alive(&self, instruction: &Instruction) -> bool {
        if self.fuel_is_known && matches!(instruction.op, Op::FuelStore(_)) {
            return false;
        }
        has_effect(&instruction.op)
            || instruction.results.iter().any(|&value| self.is_needed(value))
    }

    /// Returns true if the value is in a register.
    pub(super) fn is_needed(&self, Value(value): Value) -> bool {
        self.needed.get(value as usize).copied().unwrap_or(false)
    }

    fn instruction(&mut self, at: &Instruction, compares: &[bool], decides: &mut Decides<'_>) {
        if self.is_alive(at) {
            let conditions = usize::from(matches!(at.op, Op::TrapIf(..) | Op::Select(..)));
            for (number, value) in reads(&at.op).into_iter().enumerate() {
                self.read(value, number < conditions, compares, decides);
            }
        } else if let (Op::Compare(op, a, b), Some(result)) = (&at.op, at.results.first())
            && decides.is(*result)
        {
            if decides.of_comparison(*op, *a, *b, compares) {
                self.read(*a, true, compares, decides);
            } else {
                self.read(*a, false, compares, decides);
                self.read(*b, false, compares, decides);
            }
        }
    }

    fn read(&mut self, value: Value, is_condition: bool, compares: &[bool], to: &mut Decides<'_>) {
        let index = value.0 as usize;
        if is_condition && compares.get(index).copied().unwrap_or(false) {
            if let Some(slot) = to.by.get_mut(index) {
                *slot = true;
            }
        } else if let Some(slot) = self.needed.get_mut(index) {
            *slot = true;
        }
    }
}

/// Comparisons that decide a branch.
struct Decides<'a> {
    by: Vec<bool>,
    facts: &'a Facts,
}

impl Decides<'_> {
    fn is(&self, Value(value): Value) -> bool {
        self.by.get(value as usize).copied().unwrap_or(false)
    }

    /// Handles `a == 0` or `a != 0` of a comparison `a`.
    fn of_comparison(&self, op: CompareOp, a: Value, b: Value, compares: &[bool]) -> bool {
        is_zero_test(op, b, self.facts) && compares.get(a.0 as usize).copied().unwrap_or(false)
    }
}

/// Returns true if a comparison with `b` tests for zero.
pub(super) fn is_zero_test(op: CompareOp, b: Value, facts: &Facts) -> bool {
    matches!(op, CompareOp::Eq | CompareOp::Ne) && facts.constant(b) == Some(0)
}

fn compares(function: &Function) -> Vec<bool> {
    let mut compares = vec![false; function.types.len()];
    for instruction in function.blocks.iter().flat_map(|block| &block.instructions) {
        if let (Op::Compare(..), Some(Value(result))) =
            (&instruction.op, instruction.results.first())
            && let Some(slot) = compares.get_mut(*result as usize)
        {
            *slot = true;
        }
    }
    compares
}

fn has_effect(op: &Op) -> bool {
    match op {
        Op::Load { access, .. } => access.bounds_check,
        Op::Store { .. }
        | Op::GlobalSet(..)
        | Op::MemoryGrow(_)
        | Op::MemoryCopy(..)
        | Op::MemoryFill(..)
        | Op::Call(..)
        | Op::Host(..)
        | Op::TrapIf(..)
        | Op::FuelStore(_) => true,
        Op::Const(_)
        | Op::Unary(..)
        | Op::Binary(..)
        | Op::Compare(..)
        | Op::ExtendUnsigned(_)
        | Op::ExtendSigned(_)
        | Op::Wrap(_)
        | Op::Select(..)
        | Op::GlobalGet(_)
        | Op::MemorySize
        | Op::FuelLoad
        | Op::PacketLength
        | Op::Opaque(_) => false,
    }
}

/// Returns the operands of an operation, a condition first.
fn reads(op: &Op) -> Vec<Value> {
    match op {
        Op::Const(_) | Op::GlobalGet(_) | Op::MemorySize | Op::FuelLoad | Op::PacketLength => {
            Vec::new()
        }
        Op::Unary(_, a)
        | Op::ExtendUnsigned(a)
        | Op::ExtendSigned(a)
        | Op::Wrap(a)
        | Op::GlobalSet(_, a)
        | Op::MemoryGrow(a)
        | Op::TrapIf(a, _)
        | Op::FuelStore(a)
        | Op::Opaque(a) => vec![*a],
        Op::Binary(_, a, b) | Op::Compare(_, a, b) => vec![*a, *b],
        Op::Select(a, b, c) | Op::MemoryCopy(a, b, c) | Op::MemoryFill(a, b, c) => vec![*a, *b, *c],
        Op::Load { access, .. } => vec![access.address],
        Op::Store { value, access, .. } => vec![*value, access.address],
        Op::Call(_, arguments) | Op::Host(_, arguments) => arguments.clone(),
    }
}

/// Returns the operands of a terminator, with whether each only decides the branch.
fn terminator_reads(terminator: &Terminator) -> Vec<(Value, bool)> {
    let mut reads: Vec<_> = terminator
        .edges()
        .flat_map(|edge| edge.arguments.iter().map(|&value| (value, false)))
        .collect();
    match terminator {
        Terminator::Branch(condition, ..) => reads.push((*condition, true)),
        Terminator::Switch(value, ..) => reads.push((*value, false)),
        Terminator::Return(values) => reads.extend(values.iter().map(|&value| (value, false))),
        Terminator::Jump(_) | Terminator::Trap(..) => {}
    }
    reads
}
