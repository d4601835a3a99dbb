//! `packet_resize_head` by a constant: encapsulation does it for each packet, and decapsulation its
//! reverse, so it is inlined.

use super::super::asm::Callee;
use super::super::insn::{Alu, Bits, FP, Insn, R0, R1, R2, R3, R4, Test, helper};
use super::super::lower::context_fields;
use super::super::subprogram::Subprogram;
use super::super::vcode::{Slot, Trap};
use super::late::{HeadLate, Late};
use super::{Emit, Label};
use crate::ir::{Place, Width};
use crate::layout::hand_over;
use crate::{Flavour, TrapCode};
use abi::layout::{PACKET_LENGTH_MAX, host_error};

/// Adds zeroed bytes in front of the packet or removes bytes there. r0 is 0 or an error; r2 and r3
/// are the packet's ends.
pub(super) fn move_head(emit: &mut Emit<'_>, by: i16, place: Place) {
    let late = HeadLate {
        refused: emit.asm.label(),
        short: emit.asm.label(),
        done: emit.asm.label(),
        adds: by > 0,
        place,
    };
    let count = i32::from(by);
    // Without padding the kernel itself refuses to leave less than an Ethernet header.
    if by > 0 || emit.setting.reach > 0 {
        emit.asm.hand_over(R1, hand_over::METADATA);
        emit.asm.push(Insn::load(Width::Four, false, R2, R1, 0));
        let (test, limit) = if by > 0 {
            (Test::GtU, PACKET_LENGTH_MAX as i32 - count)
        } else {
            (Test::LeU, -count)
        };
        emit.asm.jump(Insn::jump_imm(test, Bits::B32, R2, limit), late.refused);
    }
    emit.load_slot(R1, Slot::Context);
    emit.asm.push(Insn::mov_imm(Bits::B64, R2, -count));
    emit.asm.push(Insn::call_helper(helper::XDP_ADJUST_HEAD));
    emit.asm.jump(Insn::jump_imm(Test::Ne, Bits::B64, R0, 0), late.refused);
    record_head(emit, count);
    let added = u32::try_from(by).unwrap_or(0);
    take_ends(emit, emit.setting.reach.max(added), late.short);
    zero_head(emit, added as i16);
    emit.asm.bind(late.done);
    if emit.keeps_data {
        let at = emit.frame.slot(Slot::Data);
        emit.asm.push(Insn::store(Width::Eight, FP, R2, at));
    }
    emit.late.push(Late::Head(late));
}

fn record_head(emit: &mut Emit<'_>, count: i32) {
    let window = emit.setting.packet.map_or(0, |packet| packet.window) as i32;
    let whole = emit.asm.label();
    emit.asm.hand_over(R1, hand_over::METADATA);
    emit.asm.push(Insn::load(Width::Four, false, R2, R1, 0));
    emit.asm.push(Insn::alu_imm(Alu::Add, Bits::B32, R2, count));
    emit.asm.push(Insn::store(Width::Four, R1, R2, 0));
    emit.asm.jump(Insn::jump_imm(Test::LeU, Bits::B32, R2, window), whole);
    emit.asm.push(Insn::mov_imm(Bits::B32, R2, window));
    emit.asm.bind(whole);
    emit.asm.push(Insn::store(Width::Four, R1, R2, 4));
}

/// Reloads the packet's ends into r2 and r3, or jumps to the label when the packet is shorter than
/// `reach`.
fn take_ends(emit: &mut Emit<'_>, reach: u32, short: Label) {
    let (data, data_end) = context_fields(Flavour::Xdp);
    emit.load_slot(R1, Slot::Context);
    emit.asm.push(Insn::load(Width::Four, false, R2, R1, data));
    emit.asm.push(Insn::load(Width::Four, false, R3, R1, data_end));
    if reach > 0 {
        emit.asm.push(Insn::mov(R4, R2));
        emit.asm.push(Insn::alu_imm(Alu::Add, Bits::B64, R4, reach as i32));
        emit.asm.jump(Insn::jump(Test::GtU, Bits::B64, R4, R3), short);
    }
}

fn zero_head(emit: &mut Emit<'_>, bytes: i16) {
    let mut at = 0;
    for (width, size) in [(Width::Eight, 8), (Width::Four, 4), (Width::Two, 2), (Width::One, 1)] {
        while at + size <= bytes {
            emit.asm.push(Insn::store_imm(width, R2, at, 0));
            at += size;
        }
    }
}

/// Emits the out-of-line padding or refusal; both reload the packet's ends.
pub(super) fn late_head(emit: &mut Emit<'_>, late: HeadLate) {
    let trap = emit.trap(Trap { code: TrapCode::Packet, place: late.place });
    let reach = emit.setting.reach;
    if reach > 0 {
        emit.asm.bind(late.short);
        emit.load_slot(R1, Slot::Context);
        emit.asm.call(Callee::Host(Subprogram::Pad));
        take_ends(emit, reach, trap);
        emit.asm.push(Insn::mov_imm(Bits::B32, R0, 0));
        emit.asm.goto(late.done);
    } else if late.adds {
        // The verifier does not know that the added bytes are there.
        emit.asm.bind(late.short);
        emit.asm.goto(trap);
    }
    emit.asm.bind(late.refused);
    take_ends(emit, reach, trap);
    emit.asm.push(Insn::mov_imm(Bits::B32, R0, host_error::OVER_LIMIT));
    emit.asm.goto(late.done);
}
