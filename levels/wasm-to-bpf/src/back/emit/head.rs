//! `packet_resize_head` by a constant: what encapsulation does for each packet,
//! and its undoing, so it stands where it is called.

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

impl Emit<'_> {
    /// So many bytes more in front, all zero, or so many fewer. r0 is 0, or the
    /// reason why not; r2 and r3 are the packet's ends.
    pub(super) fn move_head(&mut self, by: i16, place: Place) {
        let late = HeadLate {
            refused: self.asm.label(),
            short: self.asm.label(),
            done: self.asm.label(),
            adds: by > 0,
            place,
        };
        let count = i32::from(by);
        // Without padding the kernel refuses itself to leave less than an Ethernet header.
        if by > 0 || self.setting.reach > 0 {
            self.asm.hand_over(R1, hand_over::METADATA);
            self.asm.push(Insn::load(Width::Four, false, R2, R1, 0));
            let (test, limit) = if by > 0 {
                (Test::GtU, PACKET_LENGTH_MAX as i32 - count)
            } else {
                (Test::LeU, -count)
            };
            self.asm.jump(Insn::jump_imm(test, Bits::B32, R2, limit), late.refused);
        }
        self.load_slot(R1, Slot::Context);
        self.asm.push(Insn::mov_imm(Bits::B64, R2, -count));
        self.asm.push(Insn::call_helper(helper::XDP_ADJUST_HEAD));
        self.asm.jump(Insn::jump_imm(Test::Ne, Bits::B64, R0, 0), late.refused);
        self.record_head(count);
        let added = u32::try_from(by).unwrap_or(0);
        self.take_ends(self.setting.reach.max(added), late.short);
        self.zero_head(added as i16);
        self.asm.bind(late.done);
        if self.keeps_data {
            let at = self.frame.slot(Slot::Data);
            self.asm.push(Insn::store(Width::Eight, FP, R2, at));
        }
        self.late.push(Late::Head(late));
    }

    fn record_head(&mut self, count: i32) {
        let window = self.setting.packet.map_or(0, |packet| packet.window) as i32;
        let whole = self.asm.label();
        self.asm.hand_over(R1, hand_over::METADATA);
        self.asm.push(Insn::load(Width::Four, false, R2, R1, 0));
        self.asm.push(Insn::alu_imm(Alu::Add, Bits::B32, R2, count));
        self.asm.push(Insn::store(Width::Four, R1, R2, 0));
        self.asm.jump(Insn::jump_imm(Test::LeU, Bits::B32, R2, window), whole);
        self.asm.push(Insn::mov_imm(Bits::B32, R2, window));
        self.asm.bind(whole);
        self.asm.push(Insn::store(Width::Four, R1, R2, 4));
    }

    /// The packet's ends into r2 and r3, so far apart or to the label.
    fn take_ends(&mut self, reach: u32, short: Label) {
        let (data, data_end) = context_fields(Flavour::Xdp);
        self.load_slot(R1, Slot::Context);
        self.asm.push(Insn::load(Width::Four, false, R2, R1, data));
        self.asm.push(Insn::load(Width::Four, false, R3, R1, data_end));
        if reach > 0 {
            self.asm.push(Insn::mov(R4, R2));
            self.asm.push(Insn::alu_imm(Alu::Add, Bits::B64, R4, reach as i32));
            self.asm.jump(Insn::jump(Test::GtU, Bits::B64, R4, R3), short);
        }
    }

    fn zero_head(&mut self, bytes: i16) {
        let mut at = 0;
        for (width, size) in [(Width::Eight, 8), (Width::Four, 4), (Width::Two, 2), (Width::One, 1)]
        {
            while at + size <= bytes {
                self.asm.push(Insn::store_imm(width, R2, at, 0));
                at += size;
            }
        }
    }

    /// Out of line: pads, or says no; in both cases the ends are taken again.
    pub(super) fn late_head(&mut self, late: HeadLate) {
        let trap = self.trap(Trap { code: TrapCode::Packet, place: late.place });
        let reach = self.setting.reach;
        if reach > 0 {
            self.asm.bind(late.short);
            self.load_slot(R1, Slot::Context);
            self.asm.call(Callee::Host(Subprogram::Pad));
            self.take_ends(reach, trap);
            self.asm.push(Insn::mov_imm(Bits::B32, R0, 0));
            self.asm.goto(late.done);
        } else if late.adds {
            // The verifier does not know that what was added is there.
            self.asm.bind(late.short);
            self.asm.goto(trap);
        }
        self.asm.bind(late.refused);
        self.take_ends(reach, trap);
        self.asm.push(Insn::mov_imm(Bits::B32, R0, host_error::OVER_LIMIT));
        self.asm.goto(late.done);
    }
}
