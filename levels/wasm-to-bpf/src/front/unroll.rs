//! Choice of the loops that are unrolled by two: short ones without nested loops and calls. There
//! the kernel's limit on iterations, which each loop checks, weighs most.

use wasmparser::Operator;

use super::control::Unroll;
use crate::ir::Place;

/// Most operators of a loop that is unrolled.
const OPERATORS_MAX: usize = 96;

/// Returns the state for unrolling the loop whose first operator has that number, if it qualifies.
pub(super) fn again(
    operators: &[(Operator<'_>, usize)],
    first: usize,
    place: Place,
) -> Option<Unroll> {
    let mut depth = 0_u32;
    let mut goes_round = false;
    for (operator, _) in operators.get(first..)?.iter().take(OPERATORS_MAX) {
        match operator {
            Operator::Block { .. } | Operator::If { .. } => depth += 1,
            Operator::End if depth == 0 => {
                return goes_round.then_some(Unroll { operator: first, place });
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
