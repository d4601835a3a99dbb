//! Which loops are written twice: short ones without loops and calls within. There
//! the kernel's limit on rounds, which each loop pays, weighs most.

use wasmparser::Operator;

use super::control::Again;
use crate::ir::Place;

/// Operators of a loop that is written twice, at most.
const OPERATORS_MAX: usize = 96;

/// Whether to write the loop twice whose first operator has that number.
pub(super) fn again(
    operators: &[(Operator<'_>, usize)],
    first: usize,
    place: Place,
) -> Option<Again> {
    let mut depth = 0_u32;
    let mut goes_round = false;
    for (operator, _) in operators.get(first..)?.iter().take(OPERATORS_MAX) {
        match operator {
            Operator::Block { .. } | Operator::If { .. } => depth += 1,
            Operator::End if depth == 0 => {
                return goes_round.then_some(Again { operator: first, place });
            }
            Operator::End => depth -= 1,
            Operator::Br { relative_depth } | Operator::BrIf { relative_depth } => {
                goes_round |= *relative_depth == depth;
            }
            Operator::Loop { .. }
            | Operator::BrTable { .. }
            | Operator::Call { .. }
            | Operator::CallIndirect { .. }
            | Operator::MemoryCopy { .. }
            | Operator::MemoryFill { .. } => return None,
            _ => {}
        }
    }
    None
}
