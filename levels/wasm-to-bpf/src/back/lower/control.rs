//! Block ends: jumps, branches, switches, returns. Every critical edge gets a block of its own,
//! where the allocator can move values; empty ones are removed later.

use regalloc2::{Block, VReg};

use super::super::guard::Guard;
use super::super::insn::{Alu, Bits, Insn, R0, R1, Test};
use super::super::vcode::{Condition, Op as V, Trap, used_in};
use super::builder::Builder;
use super::{Lower, arithmetic, packet};
use crate::TrapCode;
use crate::ir::{Block as IrBlock, Edge, Op, Place, Terminator, Value};
use crate::layout;

/// Most targets of a chain of comparisons, which up to there is as fast as a tree.
const CHAIN_MAX: usize = 4;

/// Most nested joins that are searched for a verdict.
const VERDICT_DEPTH_MAX: u32 = 8;

/// Values from `from` on, up to the next range, with one target.
struct Range<'a> {
    from: u32,
    edge: &'a Edge,
}

pub(super) fn terminator(lower: &mut Lower<'_>, here: Block, terminator: &Terminator) {
    match terminator {
        Terminator::Jump(edge) => jump(lower, here, edge),
        Terminator::Branch(condition, yes, no) => branch(lower, here, *condition, yes, no),
        Terminator::Switch(value, list, default) => switch(lower, here, *value, list, default),
        Terminator::Return(values) => leave(lower, here, values),
        Terminator::Trap(code, place) => {
            lower.code.push(V::TrapAlways(Trap { code: *code, place: *place }), &[]);
            lower.code.end(here, Vec::new());
        }
    }
}

fn arguments(code: &mut Builder<'_>, edge: &Edge) -> Vec<VReg> {
    edge.arguments.iter().map(|&value| code.value(value)).collect()
}

fn jump(lower: &mut Lower<'_>, here: Block, edge: &Edge) {
    let arguments = arguments(&mut lower.code, edge);
    lower.code.push(V::Jump, &[]);
    let target = lower.flow.target(edge);
    lower.code.end(here, vec![(target, arguments)]);
}

fn branch(lower: &mut Lower<'_>, here: Block, condition: Value, yes: &Edge, no: &Edge) {
    // A constant condition is tested as any other: both successors stay reachable, as the allocator
    // and the kernel require. The passes leave hardly any.
    let (condition, operands) = arithmetic::tested(lower, condition);
    branch_on(lower, here, condition, &operands, |lower| [outlet(lower, yes), outlet(lower, no)]);
}

/// Returns a pointer to the end of the bytes that the module checks for.
pub(super) fn asked_end(lower: &mut Lower<'_>, guard: Guard) -> VReg {
    let length = guard.length as i32;
    if let Some(address) = guard.address {
        return packet::end_of_range(lower, address, 0, length);
    }
    let data = packet::data(lower);
    let end = lower.code.one(Insn::mov(0, 0), data);
    lower.code.alu_imm(Alu::Add, Bits::B64, end, length)
}

/// Emits the module's check of the packet's length as a comparison with the packet's end.
pub(super) fn branch_on_length(
    lower: &mut Lower<'_>,
    here: Block,
    (guard, end): (Guard, VReg),
    yes: &Edge,
    no: &Edge,
) {
    let data_end = packet::data_end(lower);
    let test = if guard.short_first { Test::GtU } else { Test::LeU };
    let condition = Condition { test, bits: Bits::B64, immediate: None };
    branch_on(lower, here, condition, &[end, data_end], |lower| {
        [outlet(lower, yes), outlet(lower, no)]
    });
}

/// Ends the block with a branch; `outlets` has prepared the successors, and those that need a block
/// of their own get it directly behind.
fn branch_on<'e>(
    lower: &mut Lower<'_>,
    here: Block,
    condition: Condition,
    operands: &[VReg],
    outlets: impl FnOnce(&mut Lower<'_>) -> [Outlet<'e>; 2],
) {
    let [yes, no] = outlets(lower);
    let operands: Vec<_> =
        operands.iter().map(|&register| super::super::vcode::used(register)).collect();
    lower.code.push(V::Branch(condition), &operands);
    lower.code.end(here, vec![(yes.block, Vec::new()), (no.block, Vec::new())]);
    for outlet in [no, yes] {
        if let Some(edge) = outlet.edge {
            lower.open(outlet.block);
            jump(lower, outlet.block, edge);
        }
    }
}

/// Returns the block that a branch jumps to for this edge.
fn outlet<'e>(lower: &mut Lower<'_>, edge: &'e Edge) -> Outlet<'e> {
    let alone = lower.flow.has_single_predecessor(edge.target.0 as usize);
    if alone && edge.arguments.is_empty() {
        return Outlet { block: lower.flow.target(edge), edge: None };
    }
    Outlet { block: lower.code.block(), edge: Some(edge) }
}

fn switch(lower: &mut Lower<'_>, here: Block, value: Value, list: &[Edge], default: &Edge) {
    let mut ranges: Vec<Range<'_>> = Vec::new();
    for (edge, from) in list.iter().chain([default]).zip(0..) {
        if ranges.last().is_none_or(|last| last.edge != edge) {
            ranges.push(Range { from, edge });
        }
    }
    let value = lower.code.value(value);
    decide(lower, here, value, &ranges);
}

/// Selects one of the ranges by a tree of comparisons, with a short chain at its leaves.
fn decide(lower: &mut Lower<'_>, here: Block, value: VReg, ranges: &[Range<'_>]) {
    let Some((first, rest)) = ranges.split_first() else { return };
    let Some(next) = rest.first() else { return jump(lower, here, first.edge) };
    if ranges.len() <= CHAIN_MAX {
        let condition = below(next.from);
        let others = lower.code.block();
        branch_on(lower, here, condition, &[value], |lower| {
            [own_outlet(&mut lower.code, first.edge), Outlet { block: others, edge: None }]
        });
        lower.open(others);
        return decide(lower, others, value, rest);
    }
    let (lower_half, upper_half) = ranges.split_at(ranges.len() / 2);
    let middle = upper_half.first().map_or(0, |range| range.from);
    let (low, high) = (lower.code.block(), lower.code.block());
    branch_on(lower, here, below(middle), &[value], |_| {
        [Outlet { block: low, edge: None }, Outlet { block: high, edge: None }]
    });
    lower.open(high);
    decide(lower, high, value, upper_half);
    lower.open(low);
    decide(lower, low, value, lower_half);
}

/// Returns a block of its own in any case: another range may have the same target.
fn own_outlet<'e>(code: &mut Builder<'_>, edge: &'e Edge) -> Outlet<'e> {
    Outlet { block: code.block(), edge: Some(edge) }
}

fn leave(lower: &mut Lower<'_>, here: Block, values: &[Value]) {
    if lower.fuel.is_counted() {
        lower.account();
    }
    if lower.is_entry && lower.setting.packet.is_some() {
        leave_with_verdict(lower, values);
    } else if lower.is_entry {
        for (value, number) in values.iter().zip(0..) {
            lower.store_field_value(layout::RESULTS + 8 * number, *value);
        }
        leave_with(&mut lower.code, 0);
    } else {
        for (value, number) in values.iter().zip(0..).skip(1) {
            lower.store_field_value(layout::RESULTS + 8 * number, *value);
        }
        match values.first() {
            Some(&value) => {
                let value = lower.code.value(value);
                lower.code.push(V::Return, &[used_in(value, R0)]);
            }
            None => leave_with(&mut lower.code, 0),
        }
    }
    lower.code.end(here, Vec::new());
}

fn leave_with(code: &mut Builder<'_>, constant: u64) {
    let value = code.make(constant);
    code.push(V::Return, &[used_in(value, R0)]);
}

fn leave_with_verdict(lower: &mut Lower<'_>, values: &[Value]) {
    let verdict = match values.first() {
        None => lower.code.make(0),
        Some(&value) => match lower.code.constant(value) {
            Some(constant) if abi::Verdict::parse(constant as u32).is_err() => {
                // Such a trap carries the number instead of its position.
                let place = Place(constant as u32);
                let trap = Trap { code: TrapCode::BadVerdict, place };
                return lower.code.push(V::TrapAlways(trap), &[]);
            }
            Some(constant) => lower.code.make(constant),
            None => {
                let is_certain = is_verdict(lower, value, 0);
                let value = lower.code.value(value);
                if !is_certain {
                    packet::check_verdict(&mut lower.code, value);
                }
                value
            }
        },
    };
    let hand_over = packet::hand_over(lower);
    lower.code.push(V::Return, &[used_in(verdict, R0), used_in(hand_over, R1)]);
}

/// Returns true when the value is one of a few constants, all of them verdicts.
fn is_verdict(lower: &Lower<'_>, value: Value, depth: u32) -> bool {
    if let Some(constant) = lower.code.constant(value) {
        return abi::Verdict::parse(constant as u32).is_ok();
    }
    if depth > VERDICT_DEPTH_MAX {
        return false;
    }
    if let Some(Op::Select(_, a, b)) = lower.code.definition(value) {
        return is_verdict(lower, *a, depth + 1) && is_verdict(lower, *b, depth + 1);
    }
    let blocks = &lower.code.function().blocks;
    let position = |block: &IrBlock| block.parameters.iter().position(|&at| at == value);
    let Some((target, at)) =
        blocks.iter().enumerate().find_map(|(target, block)| Some((target, position(block)?)))
    else {
        return false;
    };
    target != 0
        && blocks
            .iter()
            .flat_map(|block| block.terminator.edges())
            .filter(|edge| edge.target.0 as usize == target)
            .all(|edge| {
                edge.arguments
                    .get(at)
                    .is_some_and(|&from| from != value && is_verdict(lower, from, depth + 1))
            })
}

/// Successor of a branch: a block, and the edge whose moves are still to be made.
struct Outlet<'e> {
    block: Block,
    edge: Option<&'e Edge>,
}

const fn below(limit: u32) -> Condition {
    Condition { test: Test::LtU, bits: Bits::B32, immediate: Some(limit as i32) }
}
