//! Facts about the values of a function, from their definitions alone.

use crate::ir::{BinaryOp, Function, Op, Value};

/// Most additions and joins that are followed to the origin of an address.
const ORIGIN_DEPTH_MAX: u32 = 8;

/// Facts that the instructions state about values, without data flow.
pub(crate) struct Facts {
    constants: Vec<Option<u64>>,
    definitions: Vec<Option<(u32, u32)>>,
    /// Value, among several, that a block parameter gets from a forward edge.
    incoming: Vec<Option<Value>>,
}

impl Facts {
    pub(crate) fn of(function: &Function) -> Self {
        let count = function.types.len();
        let mut facts = Self {
            constants: vec![None; count],
            definitions: vec![None; count],
            incoming: vec![None; count],
        };
        for (block, number) in function.blocks.iter().zip(0u32..) {
            for (instruction, at) in block.instructions.iter().zip(0u32..) {
                for &result in &instruction.results {
                    put(&mut facts.definitions, result, (number, at));
                    if let Op::Const(constant) = instruction.op {
                        put(&mut facts.constants, result, constant);
                    }
                }
            }
            for edge in block.terminator.edges().filter(|edge| edge.target.0 > number) {
                let target = function.blocks.get(edge.target.0 as usize);
                let parameters = target.map_or(&[][..], |target| &target.parameters);
                for (&parameter, &from) in parameters.iter().zip(&edge.arguments) {
                    put(&mut facts.incoming, parameter, from);
                }
            }
        }
        facts
    }

    /// Returns the value, if it is a constant.
    pub(crate) fn constant(&self, value: Value) -> Option<u64> {
        self.constants.get(value.0 as usize).copied().flatten()
    }

    /// Returns the block and the index of the instruction that defines the value, unless it is a
    /// parameter.
    pub(crate) fn made_at(&self, value: Value) -> Option<(usize, usize)> {
        let (block, at) = self.definitions.get(value.0 as usize).copied().flatten()?;
        Some((block as usize, at as usize))
    }

    /// Returns the operation that defines a value, unless it is a parameter.
    pub(crate) fn definition<'f>(&self, function: &'f Function, value: Value) -> Option<&'f Op> {
        let (block, at) = self.definitions.get(value.0 as usize).copied().flatten()?;
        let block = function.blocks.get(block as usize)?;
        block.instructions.get(at as usize).map(|instruction| &instruction.op)
    }

    /// Returns the constant base of the address, if its definition shows one.
    pub(super) fn origin(&self, function: &Function, value: Value, depth: u32) -> Option<u64> {
        if depth > ORIGIN_DEPTH_MAX || self.constant(value).is_some() {
            return self.constant(value);
        }
        let deeper = |value: Value| self.origin(function, value, depth + 1);
        match self.definition(function, value) {
            // The larger of two is a base, the smaller a distance.
            Some(Op::Binary(BinaryOp::Add, a, b)) => deeper(*a).max(deeper(*b)),
            Some(Op::Opaque(a)) => deeper(*a),
            Some(_) => None,
            None => deeper(self.incoming.get(value.0 as usize).copied().flatten()?),
        }
    }
}

fn put<T>(list: &mut [Option<T>], Value(value): Value, what: T) {
    if let Some(slot) = list.get_mut(value as usize) {
        *slot = Some(what);
    }
}
