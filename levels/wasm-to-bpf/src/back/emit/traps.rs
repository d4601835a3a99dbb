//! What happens when a call ends early: one stub for each cause and place,
//! then the common way out.

use super::super::asm::{Label, field};
use super::super::insn::{Alu, Bits, Insn, R0, R1, R2, R3, R4};
use super::super::vcode::Trap;
use super::Emit;
use crate::TrapCode;
use crate::ir::Width;
use crate::layout::{self, hand_over};

impl Emit<'_> {
    /// The stub of that trap.
    pub(super) fn trap(&mut self, trap: Trap) -> Label {
        let asm = &mut self.asm;
        *self.traps.entry(trap).or_insert_with(|| asm.label())
    }

    /// Where to go with the place in r1 and the cause in r2.
    pub(super) fn trap_common(&mut self) -> Label {
        let asm = &mut self.asm;
        *self.trap_common.get_or_insert_with(|| asm.label())
    }

    /// Where to go when cause and place are in the block already.
    pub(super) fn trapped(&mut self) -> Label {
        let asm = &mut self.asm;
        *self.trapped.get_or_insert_with(|| asm.label())
    }

    /// Each stub puts place and cause into r1 and r2.
    pub(super) fn trap_stubs(&mut self) {
        let mut traps = std::mem::take(&mut self.traps);
        traps.retain(|_, label| self.asm.is_wanted(*label));
        let count = traps.len();
        let common = (count > 0 || self.trap_common.is_some()).then(|| self.trap_common());
        for (number, (trap, label)) in traps.into_iter().enumerate() {
            self.asm.bind(label);
            // The place of a bad verdict is the number.
            if trap.code != TrapCode::BadVerdict {
                self.asm.place(trap.place.0);
            }
            self.asm.push(Insn::mov_imm(Bits::B32, R1, trap.place.0 as i32));
            self.asm.push(Insn::mov_imm(Bits::B32, R2, trap.code as i32));
            if number + 1 < count
                && let Some(common) = common
            {
                self.asm.goto(common);
            }
        }
        if let Some(common) = common {
            self.asm.bind(common);
            self.asm.block(R3, 0);
            self.asm.push(Insn::store(Width::Four, R3, R2, field(layout::TRAP_CODE)));
            self.asm.push(Insn::store(Width::Four, R3, R1, field(layout::TRAP_PLACE)));
        }
        if common.is_some() || self.trapped.is_some() {
            self.after_trap();
        }
    }

    /// The code is in the block.
    fn after_trap(&mut self) {
        if let Some(label) = self.trapped {
            self.asm.bind(label);
        }
        if !self.is_entry {
            self.asm.push(Insn::mov_imm(Bits::B32, R0, 0));
            return self.asm.push(Insn::exit());
        }
        self.asm.block(R3, 0);
        let (account, at) = if self.setting.has_packet() {
            self.asm.hand_over(R4, 0);
            (R4, layout::hand_over::FUEL_USED)
        } else {
            (R3, layout::FUEL_USED)
        };
        // All that it could have cost, and one trap more.
        self.asm.push(Insn::load(Width::Eight, false, R1, R3, field(layout::FUEL_BUDGET)));
        self.asm.push(Insn::load(Width::Eight, false, R2, account, field(at)));
        self.asm.push(Insn::alu(Alu::Add, Bits::B64, R2, R1));
        self.asm.push(Insn::store(Width::Eight, account, R2, field(at)));
        self.asm.push(Insn::load(Width::Eight, false, R1, R3, field(layout::TRAPS)));
        self.asm.push(Insn::alu_imm(Alu::Add, Bits::B64, R1, 1));
        self.asm.push(Insn::store(Width::Eight, R3, R1, field(layout::TRAPS)));
        if self.setting.has_packet() {
            self.asm.push(Insn::load(Width::Four, false, R2, R3, field(layout::TRAP_CODE)));
            self.stop();
        } else {
            self.asm.push(Insn::mov_imm(Bits::B32, R0, 1));
            self.asm.push(Insn::exit());
        }
    }

    /// Out without a verdict, the cause in r2.
    fn stop(&mut self) {
        self.asm.hand_over(R1, 0);
        // No verdict, the cause above it.
        self.asm.push(Insn::alu_imm(Alu::Shl, Bits::B64, R2, 32));
        self.asm.push(Insn::store(Width::Eight, R1, R2, hand_over::VERDICT as i16));
        self.asm.push(Insn::mov_imm(Bits::B32, R0, -1));
        self.finish_packet();
    }
}
