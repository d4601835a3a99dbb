//! Endpoints of the ranges that the verifier may know of a loaded byte or two bytes, and of sums
//! and differences with them. The verifier narrows such a range only by comparisons with a
//! constant, so a range ends at a limit of the type or next to a compared constant.
//!
//! ```text
//! b = load1u, b < 33, b == 58:   b from 0, 32, 33, 34, 57, ... to the same or 255
//! 64 - b is -1 or 0:             b from 64 to 65: no
//! ```

use foldhash::{HashMap, HashMapExt};

use super::fold;
use crate::ir::{BinaryOp, Function, Op, Value, Width};

/// Largest constant of tracked sums: with such constants no sum of 32 bits wraps.
const CONSTANT_MAX: u64 = 1 << 30;

/// Loaded numbers, with the possible endpoints of their ranges.
pub(super) struct Ends {
    /// Decomposition of each value that is such a sum or difference.
    parts: Vec<Option<Part>>,
    /// Possible endpoints of each loaded number's ranges; `None` if unknown.
    ends: HashMap<Value, Option<Vec<i64>>>,
}

/// Loaded number plus a constant, or a constant minus a loaded number.
#[derive(Clone, Copy)]
struct Part {
    of: Value,
    is_taken: bool,
    constant: i64,
}

impl Part {
    /// Returns the loaded number for a value of the sum.
    const fn at(self, sum: i64) -> i64 {
        match self.is_taken {
            true => self.constant.wrapping_sub(sum),
            false => sum.wrapping_sub(self.constant),
        }
    }
}

impl Ends {
    pub(super) fn of(function: &Function, constants: &HashMap<Value, u64>) -> Self {
        let mut ends = Self { parts: vec![None; function.types.len()], ends: HashMap::new() };
        for block in &function.blocks {
            for instruction in &block.instructions {
                if let [result] = instruction.results[..] {
                    ends.define(function, constants, result, &instruction.op);
                }
            }
        }
        for block in &function.blocks {
            for instruction in &block.instructions {
                ends.read(function, constants, &instruction.op);
            }
            // A successor may compare the value under the name of its parameter.
            block.terminator.for_each_use(|value| ends.give_up(value));
        }
        ends
    }

    /// Returns true if the verifier may know that the value is -1 or 0, but not which of the two.
    pub(super) fn may_be_sign(&self, value: usize) -> bool {
        let Some(part) = self.parts[value] else { return true };
        let Some(Some(ends)) = self.ends.get(&part.of) else { return true };
        ends.contains(&part.at(-1)) && ends.contains(&part.at(0))
    }

    fn define(
        &mut self,
        function: &Function,
        constants: &HashMap<Value, u64>,
        result: Value,
        op: &Op,
    ) {
        let ty = function.types[result.0 as usize];
        let number = |value: &Value| constants.get(value).map(|&number| fold::signed(ty, number));
        let part = |value: &Value| self.parts[value.0 as usize];
        let made = match op {
            Op::Load { width: width @ (Width::One | Width::Two), signed: false, .. } => {
                // A load of two bytes at the packet's end may read just one.
                let most = if *width == Width::One { 0xff } else { 0xffff };
                self.ends.insert(result, Some(vec![0, 0xff, most]));
                Some(Part { of: result, is_taken: false, constant: 0 })
            }
            Op::Binary(BinaryOp::Add, a, b) => match (part(a), number(a), part(b), number(b)) {
                (Some(part), _, _, Some(number)) | (_, Some(number), Some(part), _) => {
                    Some(Part { constant: part.constant.wrapping_add(number), ..part })
                }
                _ => None,
            },
            Op::Binary(BinaryOp::Sub, a, b) => match (part(a), number(a), part(b), number(b)) {
                (Some(part), _, _, Some(number)) => {
                    Some(Part { constant: part.constant.wrapping_sub(number), ..part })
                }
                (_, Some(number), Some(part), _) => {
                    let constant = number.wrapping_sub(part.constant);
                    Some(Part { of: part.of, is_taken: !part.is_taken, constant })
                }
                _ => None,
            },
            _ => None,
        };
        match made {
            Some(made) if made.constant.unsigned_abs() > CONSTANT_MAX => {
                self.ends.insert(made.of, None);
            }
            made => self.parts[result.0 as usize] = made,
        }
    }

    fn read(&mut self, function: &Function, constants: &HashMap<Value, u64>, op: &Op) {
        match op {
            Op::Compare(_, a, b) => {
                let ty = function.types[a.0 as usize];
                for (value, other) in [(a, b), (b, a)] {
                    let Some(part) = self.parts[value.0 as usize] else { continue };
                    let Some(&than) = constants.get(other) else {
                        self.give_up(*value);
                        continue;
                    };
                    let than = fold::signed(ty, than);
                    let Some(Some(ends)) = self.ends.get_mut(&part.of) else { continue };
                    // As a sum compared without a sign, its range also ends at 0 and -1.
                    let near = [than.saturating_sub(1), than, than.saturating_add(1), 0, -1];
                    ends.extend(near.map(|end| part.at(end)));
                }
            }
            // The verifier concludes nothing from these about their operands.
            Op::Binary(..) | Op::Unary(..) | Op::Load { .. } | Op::Store { .. } => {}
            other => other.for_each_use(|value| self.give_up(value)),
        }
    }

    fn give_up(&mut self, value: Value) {
        if let Some(part) = self.parts[value.0 as usize] {
            self.ends.insert(part.of, None);
        }
    }
}
