//! Registers that a block has at hand, and those that it takes over from the block that dominates
//! it.

use std::collections::BTreeMap;

use regalloc2::VReg;

use super::super::guard::Guard;
use super::super::plan::Plan;
use super::moves;
use crate::ir::{BlockId, Function, Value};
use crate::passes::graph::Graph;

/// The packet's ends, where they are in registers.
#[derive(Clone, Copy, Default)]
pub(super) struct PacketEnds {
    pub(super) data: Option<VReg>,
    pub(super) data_end: Option<VReg>,
}

/// Registers that the current block has at hand, so that nothing is made twice.
#[derive(Default)]
pub(super) struct Local {
    /// The instance block's address.
    pub(super) block: Option<VReg>,
    /// The zero that the verifier does not know.
    pub(super) zero: Option<VReg>,
    /// The memory's size, if it is not constant.
    pub(super) size: Option<VReg>,
    /// Arena pointers, by address and the upper part of the offset.
    pub(super) bases: Bases,
    pub(super) hand_over: Option<VReg>,
    pub(super) packet: PacketEnds,
    /// Pointers to the ends of accesses, by their addresses in the window.
    pub(super) ends: Ends,
    /// Sums with a constant, by what it was added to.
    pub(super) sums: BTreeMap<Value, (VReg, i32)>,
}

/// Pointers that a block takes over from the one above it; beyond, it takes none, or each block of
/// a long function would hold all of those before it.
pub(super) const HANDED_MAX: usize = 64;

pub(super) type Bases = BTreeMap<(Base, u32), VReg>;
pub(super) type Ends = BTreeMap<Value, End>;

/// A pointer into the packet, counted from an address in the window.
#[derive(Clone, Copy)]
pub(super) struct End {
    pub(super) pointer: VReg,
    /// The number that was added to the address for it.
    pub(super) end: i32,
    /// The part of that which was added before the sum was masked.
    pub(super) first: i32,
    /// One that the packet certainly goes as far as, and what was added to the address for it.
    pub(super) known: Option<(VReg, i32)>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Base {
    Constant,
    Register(usize),
}

/// Registers at the ends of blocks: a block takes over those of the one that dominates it.
pub(super) struct Inherited {
    dominators: Vec<BlockId>,
    /// Arena pointers at the end of each block.
    bases: Vec<Bases>,
    /// Pointers into the packet at the end of each block, where it does not move.
    ends: Vec<Ends>,
    /// Blocks before which the packet may have moved.
    moved: Vec<bool>,
    /// The packet's ends at the end of each block.
    packets: Vec<PacketEnds>,
    /// The packet's ends when the function began.
    first_packet: PacketEnds,
}

impl Inherited {
    pub(super) fn new(function: &Function, plan: &Plan) -> Self {
        let count = function.blocks.len();
        Self {
            dominators: Graph::of(function).dominator,
            bases: vec![BTreeMap::new(); count],
            ends: vec![BTreeMap::new(); count],
            moved: moves::moved(function, plan),
            packets: vec![PacketEnds::default(); count],
            first_packet: PacketEnds::default(),
        }
    }

    /// Returns the number of the block that dominates another one.
    pub(super) fn above(&self, number: usize) -> usize {
        self.dominators.get(number).map_or(0, |above| above.0 as usize)
    }

    /// Notes the packet's ends when the function has begun.
    pub(super) const fn begin(&mut self, packet: PacketEnds) {
        self.first_packet = packet;
    }

    /// Notes what a block has at hand at its end.
    pub(super) fn leave(&mut self, number: usize, local: &Local) {
        if let Some(bases) = self.bases.get_mut(number) {
            bases.clone_from(&local.bases);
        }
        if let Some(ends) = self.ends.get_mut(number) {
            ends.clone_from(&local.ends);
        }
        if let Some(ends) = self.packets.get_mut(number) {
            *ends = local.packet;
        }
    }

    /// Takes over the packet's address where it is known to be the same, and arena pointers.
    /// `has_one_way`: only one way leads to the block.
    pub(super) fn enter(&self, number: usize, has_one_way: bool, local: &mut Local) {
        let above = self.above(number);
        if self.moved.get(number) == Some(&false) {
            local.packet = self.first_packet;
        } else if has_one_way && above != number {
            local.packet = self.packets.get(above).copied().unwrap_or_default();
        }
        if above != number
            && let Some(bases) = self.bases.get(above).filter(|bases| bases.len() <= HANDED_MAX)
        {
            local.bases.clone_from(bases);
        }
    }

    /// Takes over pointers into the packet, where it does not move. `guard`: the question of the
    /// branch that leads here.
    pub(super) fn enter_packet(&self, number: usize, guard: Option<Guard>, local: &mut Local) {
        let above = self.above(number);
        if above != number
            && let Some(ends) = self.ends.get(above).filter(|ends| ends.len() <= HANDED_MAX)
        {
            local.ends.clone_from(ends);
            // The branch that leads here has shown that the packet goes as far as that.
            if let Some(guard) = guard.filter(|guard| guard.long == number)
                && let Some(end) = guard.address.and_then(|at| local.ends.get_mut(&at))
            {
                end.known = Some((end.pointer, end.end));
            }
        }
    }
}
