//! Positions where the packet may have moved since the function began.

use super::super::plan::Plan;
use super::super::setting::moves_packet;
use crate::ir::{Block, Function, Op};

/// Returns for each block whether any path to its beginning moves the packet.
pub(super) fn moved(function: &Function, plan: &Plan) -> Vec<bool> {
    let moves: Vec<bool> = function.blocks.iter().map(|block| moves(block, plan)).collect();
    let mut moved = vec![false; function.blocks.len()];
    let mut changed = true;
    while changed {
        changed = false;
        for (number, block) in function.blocks.iter().enumerate() {
            if !moves.get(number).is_some_and(|&moves| moves) && !moved[number] {
                continue;
            }
            for edge in block.terminator.edges() {
                if let Some(slot) = moved.get_mut(edge.target.0 as usize) {
                    changed |= !std::mem::replace(slot, true);
                }
            }
        }
    }
    moved
}

fn moves(block: &Block, plan: &Plan) -> bool {
    block.instructions.iter().any(|instruction| match &instruction.op {
        Op::Host(host, _) => moves_packet(*host, plan.setting.flavour),
        Op::Call(callee, _) => {
            plan.needs.get(*callee as usize).is_none_or(|needs| needs.changes_packet)
        }
        _ => false,
    })
}
