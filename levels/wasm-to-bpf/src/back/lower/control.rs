//! How blocks end: jumps, branches, switches, returns. Every edge from a block
//! with several successors to one with several predecessors gets a block of
//! its own, where the allocator can move values; empty ones vanish later.

use regalloc2::{Block, VReg};

use super::super::guard::Guard;
use super::super::insn::{Alu, Bits, Insn, R0, R1, Test};
use super::super::vcode::{Condition, Op as V, Trap, used_in};
use super::Lower;
use crate::TrapCode;
use crate::ir::{Block as IrBlock, Edge, Op, Place, Terminator, Value};
use crate::layout;

/// Up to so many targets a chain of comparisons is as fast as a tree.
const CHAIN_MAX: usize = 4;

/// Joins of ways behind each other that are looked through for a verdict.
const VERDICT_DEPTH_MAX: u32 = 8;

/// Values from `from` on, up to the next range's, go one way.
struct Range<'a> {
    from: u32,
    edge: &'a Edge,
}

impl Lower<'_> {
    pub(super) fn terminator(&mut self, here: Block, terminator: &Terminator) {
        match terminator {
            Terminator::Jump(edge) => self.jump(here, edge),
            Terminator::Branch(condition, yes, no) => self.branch(here, *condition, yes, no),
            Terminator::Switch(value, list, default) => self.switch(here, *value, list, default),
            Terminator::Return(values) => self.leave(here, values),
            Terminator::Trap(code, place) => {
                self.push(V::TrapAlways(Trap { code: *code, place: *place }), &[]);
                self.vcode.end(here, Vec::new());
            }
        }
    }

    fn target(&self, edge: &Edge) -> Block {
        self.blocks.get(edge.target.0 as usize).copied().unwrap_or_else(|| Block::new(0))
    }

    fn arguments(&mut self, edge: &Edge) -> Vec<VReg> {
        edge.arguments.iter().map(|&value| self.value(value)).collect()
    }

    fn jump(&mut self, here: Block, edge: &Edge) {
        let arguments = self.arguments(edge);
        self.push(V::Jump, &[]);
        let target = self.target(edge);
        self.vcode.end(here, vec![(target, arguments)]);
    }

    fn branch(&mut self, here: Block, condition: Value, yes: &Edge, no: &Edge) {
        // A constant condition is tested like another: both ways stay reachable, as the
        // allocator and the kernel want. The passes leave hardly any.
        let (condition, operands) = self.condition(condition);
        self.branch_on(here, condition, &operands, |lower| [lower.outlet(yes), lower.outlet(no)]);
    }

    /// Returns a pointer to the end of what the module asks the packet for.
    pub(super) fn asked_end(&mut self, guard: Guard) -> VReg {
        let length = guard.length as i32;
        if let Some(address) = guard.address {
            return self.end_of_range(address, 0, length);
        }
        let data = self.data();
        let end = self.one(Insn::mov(0, 0), data);
        self.alu_imm(Alu::Add, Bits::B64, end, length)
    }

    /// The module's question for the packet's length, put to the packet's end.
    pub(super) fn branch_on_length(
        &mut self,
        here: Block,
        (guard, end): (Guard, VReg),
        yes: &Edge,
        no: &Edge,
    ) {
        let data_end = self.data_end();
        let test = if guard.short_first { Test::GtU } else { Test::LeU };
        let condition = Condition { test, bits: Bits::B64, immediate: None };
        self.branch_on(here, condition, &[end, data_end], |lower| {
            [lower.outlet(yes), lower.outlet(no)]
        });
    }

    /// Ends the block with a branch; the ways are prepared by `outlets`, and
    /// those that need a block of their own get it right behind.
    fn branch_on<'e>(
        &mut self,
        here: Block,
        condition: Condition,
        operands: &[VReg],
        outlets: impl FnOnce(&mut Self) -> [Outlet<'e>; 2],
    ) {
        let [yes, no] = outlets(self);
        let operands: Vec<_> =
            operands.iter().map(|&register| super::super::vcode::used(register)).collect();
        self.push(V::Branch(condition), &operands);
        self.vcode.end(here, vec![(yes.block, Vec::new()), (no.block, Vec::new())]);
        for outlet in [no, yes] {
            if let Some(edge) = outlet.edge {
                self.open(outlet.block);
                self.jump(outlet.block, edge);
            }
        }
    }

    /// Where a branch goes for this edge.
    fn outlet<'e>(&mut self, edge: &'e Edge) -> Outlet<'e> {
        let alone = self.predecessors.get(edge.target.0 as usize) == Some(&1);
        if alone && edge.arguments.is_empty() {
            return Outlet { block: self.target(edge), edge: None };
        }
        Outlet { block: self.vcode.block(), edge: Some(edge) }
    }

    fn switch(&mut self, here: Block, value: Value, list: &[Edge], default: &Edge) {
        let mut ranges: Vec<Range<'_>> = Vec::new();
        for (edge, from) in list.iter().chain([default]).zip(0..) {
            if ranges.last().is_none_or(|last| last.edge != edge) {
                ranges.push(Range { from, edge });
            }
        }
        let value = self.value(value);
        self.decide(here, value, &ranges);
    }

    /// One of the ranges: a tree of comparisons, at its leaves a short chain.
    fn decide(&mut self, here: Block, value: VReg, ranges: &[Range<'_>]) {
        let Some((first, rest)) = ranges.split_first() else { return };
        let Some(next) = rest.first() else { return self.jump(here, first.edge) };
        if ranges.len() <= CHAIN_MAX {
            let condition = below(next.from);
            let others = self.vcode.block();
            self.branch_on(here, condition, &[value], |lower| {
                [lower.own_outlet(first.edge), Outlet { block: others, edge: None }]
            });
            self.open(others);
            return self.decide(others, value, rest);
        }
        let (lower_half, upper_half) = ranges.split_at(ranges.len() / 2);
        let middle = upper_half.first().map_or(0, |range| range.from);
        let (low, high) = (self.vcode.block(), self.vcode.block());
        self.branch_on(here, below(middle), &[value], |_| {
            [Outlet { block: low, edge: None }, Outlet { block: high, edge: None }]
        });
        self.open(high);
        self.decide(high, value, upper_half);
        self.open(low);
        self.decide(low, value, lower_half);
    }

    /// A block of its own in any case: another range may have the same target.
    fn own_outlet<'e>(&mut self, edge: &'e Edge) -> Outlet<'e> {
        Outlet { block: self.vcode.block(), edge: Some(edge) }
    }

    fn leave(&mut self, here: Block, values: &[Value]) {
        if self.initial_fuel.is_some() {
            self.account();
        }
        if self.is_entry && self.setting.packet.is_some() {
            self.leave_with_verdict(values);
        } else if self.is_entry {
            for (value, number) in values.iter().zip(0..) {
                self.store_field_value(layout::RESULTS + 8 * number, *value);
            }
            self.leave_with(0);
        } else {
            for (value, number) in values.iter().zip(0..).skip(1) {
                self.store_field_value(layout::RESULTS + 8 * number, *value);
            }
            match values.first() {
                Some(&value) => {
                    let value = self.value(value);
                    self.push(V::Return, &[used_in(value, R0)]);
                }
                None => self.leave_with(0),
            }
        }
        self.vcode.end(here, Vec::new());
    }

    fn leave_with(&mut self, constant: u64) {
        let value = self.make(constant);
        self.push(V::Return, &[used_in(value, R0)]);
    }

    fn leave_with_verdict(&mut self, values: &[Value]) {
        let verdict = match values.first() {
            None => self.make(0),
            Some(&value) => match self.constant(value) {
                Some(constant) if abi::Verdict::parse(constant as u32).is_err() => {
                    // Such a trap says which number it was, in the place of the place.
                    let place = Place(constant as u32);
                    let trap = Trap { code: TrapCode::BadVerdict, place };
                    return self.push(V::TrapAlways(trap), &[]);
                }
                Some(constant) => self.make(constant),
                None => {
                    let is_certain = self.is_verdict(value, 0);
                    let value = self.value(value);
                    if !is_certain {
                        self.check_verdict(value);
                    }
                    value
                }
            },
        };
        let hand_over = self.hand_over();
        self.push(V::Return, &[used_in(verdict, R0), used_in(hand_over, R1)]);
    }

    /// Whether the value is one of a few constants, all of them verdicts.
    fn is_verdict(&self, value: Value, depth: u32) -> bool {
        if let Some(constant) = self.constant(value) {
            return abi::Verdict::parse(constant as u32).is_ok();
        }
        if depth > VERDICT_DEPTH_MAX {
            return false;
        }
        if let Some(Op::Select(_, a, b)) = self.definition(value) {
            return self.is_verdict(*a, depth + 1) && self.is_verdict(*b, depth + 1);
        }
        let blocks = &self.function.blocks;
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
                        .is_some_and(|&from| from != value && self.is_verdict(from, depth + 1))
                })
    }
}

/// A branch's way: a block, and the edge that it must still go.
struct Outlet<'e> {
    block: Block,
    edge: Option<&'e Edge>,
}

const fn below(limit: u32) -> Condition {
    Condition { test: Test::LtU, bits: Bits::B32, immediate: Some(limit as i32) }
}
