//! How the program begins and ends: an export in the instance block, a packet
//! between the front door's two halves.
//!
//! ```text
//! long enough? ─▶ on_packet ─▶ verdict ─▶ cut ─▶ front door
//!     └▶ pad, or trap ─┘  │                ▲
//!              stop ◀─────┴ trap           │
//!                └─────────────────────────┘
//! ```
//!
//! Whether the instance may run, and who counts the packet, is the front
//! door's business: it holds the lane.

use super::super::asm::{Label, field};
use super::super::insn::{Alu, Bits, FP, Insn, R0, R1, R2, R3, R4, R5, Test, helper};
use super::super::lower::context_fields;
use super::super::vcode::{Slot, Trap};
use super::Emit;
use crate::ir::{Place, Width};
use crate::layout::{self, hand_over};
use crate::program::MapKind;
use crate::{Flavour, TrapCode};

/// `skb->len` in the context of tc.
pub(crate) const SKB_LENGTH: i16 = 0;
/// The same number drops at both levels: XDP_ABORTED, and a class that nobody has.
const ABORTED: i32 = 0;
/// TC_ACT_SHOT.
const SHOT: i32 = 2;

/// Where the parts of a packet's entry stand.
pub(super) struct EntryLabels {
    /// Never: the arena is named here.
    never: Label,
    /// The window is not in one piece, and now it is.
    pull: Label,
    pulled: Label,
    /// The packet is shorter than the module reaches.
    pad: Label,
    /// The packet is as long as that.
    ready: Label,
    /// Padding failed.
    unfit: Label,
    /// The verdict is written.
    finish: Label,
}

impl EntryLabels {
    pub(super) fn new(asm: &mut super::Assembler) -> Self {
        Self {
            never: asm.label(),
            pull: asm.label(),
            pulled: asm.label(),
            pad: asm.label(),
            ready: asm.label(),
            unfit: asm.label(),
            finish: asm.label(),
        }
    }
}

impl Emit<'_> {
    pub(super) fn prologue(&mut self) {
        if !self.setting.has_packet() {
            self.mention_arena();
            return self.reset();
        }
        self.keep_context();
        self.reset();
        self.reach_packet();
    }

    /// What is counted for one call, and what a callee may leave; r1 stays.
    fn reset(&mut self) {
        // The node clears the cause of a packet's trap; an export's is of its last call.
        let has_callees = self.plan.needs.len() > 1 || !self.setting.has_packet();
        if !has_callees && !self.setting.emits && !self.setting.bulk {
            return;
        }
        self.asm.block(R5, 0);
        if has_callees {
            self.asm.push(Insn::store_imm(Width::Four, R5, field(layout::TRAP_CODE), 0));
        }
        if self.setting.bulk {
            self.asm.push(Insn::store_imm(Width::Eight, R5, field(layout::BULK), 0));
        }
        if self.setting.emits {
            // Events and frames, side by side.
            self.asm.push(Insn::store_imm(Width::Eight, R5, field(layout::EVENTS), 0));
        }
    }

    /// `data` into r2 and `data_end` into r3; r1 is the context.
    fn reach_packet(&mut self) {
        self.load_packet();
        if self.pulls_window() {
            let pull = self.entry.pull;
            self.compare_reach(self.window(), pull);
            self.asm.bind(self.entry.pulled);
        }
        let reach = self.setting.reach;
        if reach > 0 {
            let pad = self.entry.pad;
            self.compare_reach(reach, pad);
        }
        self.asm.bind(self.entry.ready);
        if self.keeps_data {
            let at = self.frame.slot(Slot::Data);
            self.asm.push(Insn::store(Width::Eight, FP, R2, at));
        }
    }

    fn load_packet(&mut self) {
        let (data, data_end) = context_fields(self.setting.flavour);
        self.asm.push(Insn::load(Width::Four, false, R2, R1, data));
        self.asm.push(Insn::load(Width::Four, false, R3, R1, data_end));
    }

    fn compare_reach(&mut self, reach: u32, short: Label) {
        self.asm.push(Insn::mov(R4, R2));
        self.asm.push(Insn::alu_imm(Alu::Add, Bits::B64, R4, reach as i32));
        self.asm.branch(
            Insn::jump(Test::GtU, Bits::B64, R4, R3),
            Insn::jump(Test::LeU, Bits::B64, R4, R3),
            short,
        );
    }

    /// At tc only the headers may be in one piece; accesses at run-time
    /// addresses need the window to be.
    const fn pulls_window(&self) -> bool {
        matches!(self.setting.flavour, Flavour::Tc) && self.setting.dynamic_window
    }

    fn window(&self) -> u32 {
        self.setting.packet.map_or(0, |packet| packet.window)
    }

    /// As much of the window as the packet has.
    fn pull_window(&mut self) {
        let short = self.asm.label();
        self.asm.bind(self.entry.pull);
        self.asm.push(Insn::load(Width::Four, false, R2, R1, SKB_LENGTH));
        let window = self.window() as i32;
        self.asm.jump(Insn::jump_imm(Test::LeU, Bits::B32, R2, window), short);
        self.asm.push(Insn::mov_imm(Bits::B64, R2, window));
        self.asm.bind(short);
        self.asm.push(Insn::call_helper(helper::SKB_PULL_DATA));
        self.load_slot(R1, Slot::Context);
        self.load_packet();
        let pulled = self.entry.pulled;
        self.asm.goto(pulled);
    }

    /// Makes the packet as long as the module reaches, with zeros.
    pub(super) fn padding(&mut self) {
        if self.pulls_window() {
            self.pull_window();
        }
        let reach = self.setting.reach;
        if reach > 0 {
            self.asm.bind(self.entry.pad);
            match self.setting.flavour {
                Flavour::Xdp => self.pad_xdp(reach),
                Flavour::Tc => self.pad_tc(reach),
            }
            self.load_slot(R1, Slot::Context);
            self.load_packet();
            let unfit = Trap { code: TrapCode::Packet, place: Place::default() };
            let unfit = self.trap(unfit);
            self.compare_reach(reach, unfit);
            let ready = self.entry.ready;
            self.asm.goto(ready);
            self.asm.bind(self.entry.unfit);
            self.asm.hand_over(R1, hand_over::PADDED);
            self.asm.push(Insn::store_imm(Width::Four, R1, 0, 0));
            self.asm.goto(unfit);
        }
    }

    const fn refused(&self) -> i32 {
        match self.setting.flavour {
            Flavour::Xdp => ABORTED,
            Flavour::Tc => SHOT,
        }
    }

    /// r1 context, r2 and r3 the packet's ends.
    fn pad_xdp(&mut self, reach: u32) {
        self.asm.push(Insn::alu(Alu::Sub, Bits::B64, R3, R2));
        self.asm.push(Insn::mov_imm(Bits::B64, R2, reach as i32));
        self.asm.push(Insn::alu(Alu::Sub, Bits::B64, R2, R3));
        self.asm.hand_over(R4, hand_over::PADDED);
        self.asm.push(Insn::store(Width::Four, R4, R2, 0));
        self.asm.push(Insn::call_helper(helper::XDP_ADJUST_TAIL));
        let unfit = self.entry.unfit;
        self.asm.jump(Insn::jump_imm(Test::Ne, Bits::B64, R0, 0), unfit);
    }

    /// The head may only not be in one piece.
    fn pad_tc(&mut self, reach: u32) {
        let (pull, unfit) = (self.asm.label(), self.entry.unfit);
        self.asm.push(Insn::load(Width::Four, false, R2, R1, SKB_LENGTH));
        self.asm.jump(Insn::jump_imm(Test::GeU, Bits::B32, R2, reach as i32), pull);
        self.asm.push(Insn::mov_imm(Bits::B64, R3, reach as i32));
        self.asm.push(Insn::alu(Alu::Sub, Bits::B64, R3, R2));
        self.asm.hand_over(R4, hand_over::PADDED);
        self.asm.push(Insn::store(Width::Four, R4, R3, 0));
        self.asm.push(Insn::mov_imm(Bits::B64, R2, reach as i32));
        self.asm.push(Insn::mov_imm(Bits::B64, R3, 0));
        self.asm.push(Insn::call_helper(helper::SKB_CHANGE_TAIL));
        self.asm.jump(Insn::jump_imm(Test::Ne, Bits::B64, R0, 0), unfit);
        self.load_slot(R1, Slot::Context);
        self.asm.bind(pull);
        self.asm.push(Insn::mov_imm(Bits::B64, R2, reach as i32));
        self.asm.push(Insn::call_helper(helper::SKB_PULL_DATA));
    }

    /// The verdict is in r0, the hand-over's address in r1.
    pub(super) fn entry_epilogue(&mut self, label: Label) {
        self.asm.bind(label);
        self.asm.push(Insn::store(Width::Eight, R1, R0, hand_over::VERDICT as i16));
        self.finish_packet();
    }

    /// r1 is the hand-over, r0 what a program that stands alone returns. Once in the code.
    pub(super) fn finish_packet(&mut self) {
        if std::mem::replace(&mut self.is_finished, true) {
            let finish = self.entry.finish;
            return self.asm.goto(finish);
        }
        self.asm.bind(self.entry.finish);
        let (cut, done) = (self.asm.label(), self.asm.label());
        let pads = self.setting.reach > 0;
        if pads {
            self.asm.push(Insn::load(Width::Four, false, R2, R1, hand_over::PADDED as i16));
            self.asm.jump(Insn::jump_imm(Test::Ne, Bits::B32, R2, 0), cut);
        }
        if self.is_alone() && self.setting.has_memory {
            // The verifier knows that it is not taken, and takes it out.
            let never = self.entry.never;
            self.asm.jump(Insn::jump_imm(Test::Eq, Bits::B64, R1, 0), never);
        }
        self.asm.bind(done);
        if self.is_alone() {
            self.asm.push(Insn::exit());
            self.asm.bind(self.entry.never);
        } else {
            self.load_slot(R1, Slot::Context);
            self.asm.map(R2, MapKind::Afterwards);
            self.asm.push(Insn::mov_imm(Bits::B64, R3, 0));
            self.asm.push(Insn::call_helper(helper::TAIL_CALL));
        }
        if !self.is_alone() || self.setting.has_memory {
            self.mention_arena();
            self.asm.push(Insn::mov_imm(Bits::B32, R0, self.refused()));
            self.asm.push(Insn::exit());
        }
        if pads {
            self.asm.bind(cut);
            self.cut();
            self.asm.goto(done);
        }
    }

    fn is_alone(&self) -> bool {
        self.setting.packet.is_some_and(|packet| packet.standalone)
    }

    /// Takes w2 bytes of padding away; r0 is kept where the context is no longer needed.
    fn cut(&mut self) {
        self.asm.push(Insn::store_imm(Width::Four, R1, hand_over::PADDED as i16, 0));
        self.load_slot(R1, Slot::Context);
        let keep = self.frame.slot(Slot::Context);
        if self.is_alone() {
            self.asm.push(Insn::store(Width::Eight, FP, R0, keep));
        }
        match self.setting.flavour {
            Flavour::Xdp => {
                self.asm.push(Insn::neg(Bits::B32, R2));
                self.asm.push(Insn::call_helper(helper::XDP_ADJUST_TAIL));
            }
            Flavour::Tc => {
                self.asm.push(Insn::load(Width::Four, false, R4, R1, SKB_LENGTH));
                self.asm.push(Insn::alu(Alu::Sub, Bits::B32, R4, R2));
                self.asm.push(Insn::mov(R2, R4));
                self.asm.push(Insn::mov_imm(Bits::B64, R3, 0));
                self.asm.push(Insn::call_helper(helper::SKB_CHANGE_TAIL));
            }
        }
        if self.is_alone() {
            self.asm.push(Insn::load(Width::Eight, false, R0, FP, keep));
        }
    }

    /// The verifier lets a program use arena pointers that names the arena once, anywhere.
    pub(super) fn mention_arena(&mut self) {
        if self.setting.has_memory {
            self.asm.map(R1, MapKind::Arena);
        }
    }
}
