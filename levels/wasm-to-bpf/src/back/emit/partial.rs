//! Accesses of the window across the packet's end: existing bytes are read or written, the rest
//! reads as zero, and writes to it are lost.
//!
//! Each comparison uses a pointer that was never compared before. Once a pointer was found to be
//! beyond the packet's end, the verifier (Linux 6.18) assumes that it stays there even after it was
//! made smaller, and takes the code behind the next comparison for dead.

use super::super::insn::{Alu, Bits, FP, Insn, Test};
use super::super::lower::{WINDOW_SHIFT, context_fields};
use super::super::vcode::Slot;
use super::Emit;
use super::late::{Partial, What};
use crate::ir::Width;

/// Emits the bytes from the last to the first, each compared with the packet's end.
pub(super) fn partial(emit: &mut Emit<'_>, access: Partial) {
    let Partial { label, back, width, borrowed, what, .. } = access;
    let size = width.bytes();
    emit.asm.bind(label);
    if size > 1 {
        keep_pointer(emit, access);
    }
    if let What::Load(result) = what {
        emit.asm.push(Insn::mov_imm(Bits::B64, result, 0));
    }
    // A single byte beyond the end leaves nothing to access.
    if size > 1 {
        for byte in (0..size).rev() {
            partial_byte(emit, access, byte as i32);
        }
        let keep = emit.frame.slot(Slot::Spare);
        emit.asm.push(Insn::load(Width::Eight, false, borrowed, FP, keep));
    }
    emit.asm.goto(back);
}

/// Keeps the first byte's address in its slot.
fn keep_pointer(emit: &mut Emit<'_>, access: Partial) {
    let Partial { address, distance, free, borrowed, .. } = access;
    let (data, _) = context_fields(emit.setting.flavour);
    let keep = emit.frame.slot(Slot::Spare);
    emit.asm.push_sum(free, address, distance);
    for shift in [Alu::Shl, Alu::ShrU] {
        emit.asm.push(Insn::alu_imm(shift, Bits::B64, free, WINDOW_SHIFT));
    }
    emit.asm.push(Insn::store(Width::Eight, FP, borrowed, keep));
    emit.load_slot(borrowed, Slot::Context);
    emit.asm.push(Insn::load(Width::Four, false, borrowed, borrowed, data));
    emit.asm.push(Insn::alu(Alu::Add, Bits::B64, free, borrowed));
    let pointer = emit.frame.slot(Slot::Pointer);
    emit.asm.push(Insn::store(Width::Eight, FP, free, pointer));
}

fn partial_byte(emit: &mut Emit<'_>, access: Partial, byte: i32) {
    let Partial { free: pointer, borrowed, what, .. } = access;
    let (_, data_end) = context_fields(emit.setting.flavour);
    let skip = emit.asm.label();
    if let What::Load(result) = what {
        emit.asm.push(Insn::alu_imm(Alu::Shl, Bits::B64, result, 8));
    }
    emit.load_slot(pointer, Slot::Pointer);
    emit.asm.push(Insn::alu_imm(Alu::Add, Bits::B64, pointer, byte + 1));
    emit.load_slot(borrowed, Slot::Context);
    emit.asm.push(Insn::load(Width::Four, false, borrowed, borrowed, data_end));
    emit.asm.jump(Insn::jump(Test::GtU, Bits::B64, pointer, borrowed), skip);
    match what {
        What::Load(result) => {
            emit.asm.push(Insn::load(Width::One, false, borrowed, pointer, -1));
            emit.asm.push(Insn::alu(Alu::Or, Bits::B64, result, borrowed));
        }
        What::Store(value) => {
            emit.asm.push(Insn::mov(borrowed, value));
            emit.asm.push(Insn::alu_imm(Alu::ShrU, Bits::B64, borrowed, 8 * byte));
            emit.asm.push(Insn::store(Width::One, pointer, borrowed, -1));
        }
    }
    emit.asm.bind(skip);
}
