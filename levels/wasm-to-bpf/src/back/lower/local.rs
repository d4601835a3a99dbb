//! Registers available in a block, and those that it inherits from its dominator.

use std::collections::BTreeMap;

use regalloc2::VReg;

use super::super::guard::Guard;
use super::super::plan::Plan;
use super::moves;
use crate::ir::{BlockId, Function, Value};
use crate::passes::graph::Graph;

/// Registers with the packet's ends, where there are any.
#[derive(Clone, Copy, Default)]
pub(super) struct PacketEnds {
    pub(super) data: Option<VReg>,
    pub(super) data_end: Option<VReg>,
}

/// Registers available in the current block, so that nothing is computed twice.
#[derive(Default)]
pub(super) struct Local {
    /// Address of the instance block.
    pub(super) block: Option<VReg>,
    /// Zero that the verifier does not know.
    pub(super) zero: Option<VReg>,
    /// Size of the memory, if it is not constant.
    pub(super) size: Option<VReg>,
    /// Arena pointers, by address and the upper part of the offset.
    pub(super) bases: Bases,
    pub(super) hand_over: Option<VReg>,
    pub(super) packet: PacketEnds,
    /// Pointers to the ends of accesses, by their addresses in the window.
    pub(super) ends: Ends,
    /// Sums with a constant, by the other operand.
    pub(super) sums: BTreeMap<Value, (VReg, i32)>,
}

/// Most pointers that a block inherits from its dominator; above the limit it inherits none, or
/// each block of a long function would keep all of those before it live.
pub(super) const INHERITED_MAX: usize = 64;

pub(super) type Bases = BTreeMap<(Base, u32), VReg>;
pub(super) type Ends = BTreeMap<Value, End>;

/// Pointer into the packet, counted from an address in the window.
#[derive(Clone, Copy)]
pub(super) struct End {
    pub(super) pointer: VReg,
    /// Number that was added to the address for it.
    pub(super) end: i32,
    /// Part of that number which was added before the sum was masked.
    pub(super) first: i32,
    /// Pointer known to be within the packet, with the number added to the address for it.
    pub(super) known: Option<(VReg, i32)>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Base {
    Constant,
    Register(usize),
}

/// Registers at the ends of blocks: a block inherits those of its dominator.
pub(super) struct Inherited {
    dominators: Vec<BlockId>,
    /// Arena pointers at the end of each block.
    bases: Vec<Bases>,
    /// Pointers into the packet at the end of each block, where it does not move.
    ends: Vec<Ends>,
    /// Blocks before which the packet may have moved.
    moved: Vec<bool>,
    /// Packet's ends at the end of each block.
    packets: Vec<PacketEnds>,
    /// Packet's ends at the beginning of the function.
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

    /// Returns the number of a block's dominator.
    pub(super) fn above(&self, number: usize) -> usize {
        self.dominators.get(number).map_or(0, |above| above.0 as usize)
    }

    /// Records the packet's ends at the beginning of the function.
    pub(super) const fn begin(&mut self, packet: PacketEnds) {
        self.first_packet = packet;
    }

    /// Records the registers available at a block's end.
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

    /// Inherits the packet's address where it is known to be the same, and arena pointers.
    /// `has_single_predecessor`: the block has a single predecessor.
    pub(super) fn enter(&self, number: usize, has_single_predecessor: bool, local: &mut Local) {
        let above = self.above(number);
        if self.moved.get(number) == Some(&false) {
            local.packet = self.first_packet;
        } else if has_single_predecessor && above != number {
            local.packet = self.packets.get(above).copied().unwrap_or_default();
        }
        if above != number
            && let Some(bases) = self.bases.get(above).filter(|bases| bases.len() <= INHERITED_MAX)
        {
            local.bases.clone_from(bases);
        }
    }

    /// Inherits pointers into the packet, where it does not move. `guard`: the check of the branch
    /// that leads here.
    pub(super) fn enter_packet(&self, number: usize, guard: Option<Guard>, local: &mut Local) {
        let above = self.above(number);
        if above != number
            && let Some(ends) = self.ends.get(above).filter(|ends| ends.len() <= INHERITED_MAX)
        {
            local.ends.clone_from(ends);
            // The branch that leads here has shown that the packet extends that far.
            if let Some(guard) = guard.filter(|guard| guard.long == number)
                && let Some(end) = guard.address.and_then(|at| local.ends.get_mut(&at))
            {
                end.known = Some((end.pointer, end.end));
            }
        }
    }
}
