//! Early ends of a call: one stub for each cause and position, then the common exit.

use std::collections::BTreeMap;

use super::super::asm::{Assembler, Label, field};
use super::super::insn::{Alu, Bits, Insn, R0, R1, R2, R3, R4};
use super::super::vcode::Trap;
use super::{Emit, entry};
use crate::TrapCode;
use crate::ir::Width;
use crate::layout::{self, hand_over};

/// Labels of traps, each made on its first request.
#[derive(Default)]
pub(super) struct Traps {
    stubs: BTreeMap<Trap, Label>,
    /// Label for traps with their position in r1 and their cause in r2.
    common: Option<Label>,
    /// Label for the entry when a function that it called has trapped.
    trapped: Option<Label>,
}

impl Traps {
    /// Returns the label of a trap's stub.
    pub(super) fn stub(&mut self, asm: &mut Assembler, trap: Trap) -> Label {
        *self.stubs.entry(trap).or_insert_with(|| asm.label())
    }

    /// Returns the label for a trap with its position in r1 and its cause in r2.
    pub(super) fn common(&mut self, asm: &mut Assembler) -> Label {
        *self.common.get_or_insert_with(|| asm.label())
    }

    /// Returns the label for a trap whose cause and position are already in the block.
    pub(super) fn trapped(&mut self, asm: &mut Assembler) -> Label {
        *self.trapped.get_or_insert_with(|| asm.label())
    }
}

/// Emits the stubs, each of which puts position and cause into r1 and r2.
pub(super) fn trap_stubs(emit: &mut Emit<'_>) {
    let mut traps = std::mem::take(&mut emit.traps.stubs);
    traps.retain(|_, label| emit.asm.is_wanted(*label));
    let count = traps.len();
    let common = (count > 0 || emit.traps.common.is_some()).then(|| emit.trap_common());
    for (number, (trap, label)) in traps.into_iter().enumerate() {
        emit.asm.bind(label);
        // The position of a bad verdict is the number.
        if trap.code != TrapCode::BadVerdict {
            emit.asm.place(trap.place.0);
        }
        emit.asm.push(Insn::mov_imm(Bits::B32, R1, trap.place.0 as i32));
        emit.asm.push(Insn::mov_imm(Bits::B32, R2, trap.code as i32));
        if number + 1 < count
            && let Some(common) = common
        {
            emit.asm.goto(common);
        }
    }
    if let Some(common) = common {
        emit.asm.bind(common);
        emit.asm.block(R3, 0);
        emit.asm.push(Insn::store(Width::Four, R3, R2, field(layout::TRAP_CODE)));
        emit.asm.push(Insn::store(Width::Four, R3, R1, field(layout::TRAP_PLACE)));
    }
    if common.is_some() || emit.traps.trapped.is_some() {
        after_trap(emit);
    }
}

/// Ends the call after a trap, whose code is in the block.
fn after_trap(emit: &mut Emit<'_>) {
    if let Some(label) = emit.traps.trapped {
        emit.asm.bind(label);
    }
    if !emit.is_entry {
        emit.asm.push(Insn::mov_imm(Bits::B32, R0, 0));
        return emit.asm.push(Insn::exit());
    }
    emit.asm.block(R3, 0);
    let (account, at) = if emit.setting.has_packet() {
        emit.asm.hand_over(R4, 0);
        (R4, layout::hand_over::FUEL_USED)
    } else {
        (R3, layout::FUEL_USED)
    };
    // Charges the whole budget, and counts one trap more.
    emit.asm.push(Insn::load(Width::Eight, false, R1, R3, field(layout::FUEL_BUDGET)));
    emit.asm.push(Insn::load(Width::Eight, false, R2, account, field(at)));
    emit.asm.push(Insn::alu(Alu::Add, Bits::B64, R2, R1));
    emit.asm.push(Insn::store(Width::Eight, account, R2, field(at)));
    emit.asm.push(Insn::load(Width::Eight, false, R1, R3, field(layout::TRAPS)));
    emit.asm.push(Insn::alu_imm(Alu::Add, Bits::B64, R1, 1));
    emit.asm.push(Insn::store(Width::Eight, R3, R1, field(layout::TRAPS)));
    if emit.setting.has_packet() {
        emit.asm.push(Insn::load(Width::Four, false, R2, R3, field(layout::TRAP_CODE)));
        stop(emit);
    } else {
        emit.asm.push(Insn::mov_imm(Bits::B32, R0, 1));
        emit.asm.push(Insn::exit());
    }
}

/// Exits without a verdict, with the cause in r2.
fn stop(emit: &mut Emit<'_>) {
    emit.asm.hand_over(R1, 0);
    // No verdict in the low half, the cause in the high one.
    emit.asm.push(Insn::alu_imm(Alu::Shl, Bits::B64, R2, 32));
    emit.asm.push(Insn::store(Width::Eight, R1, R2, hand_over::VERDICT as i16));
    emit.asm.push(Insn::mov_imm(Bits::B32, R0, -1));
    entry::finish_packet(emit);
}
