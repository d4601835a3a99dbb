//! Program entry and exit: an export in the instance block, a packet
//! between the front door's two halves.
//!
//! ```text
//! long enough? ─▶ on_packet ─▶ verdict ─▶ cut ─▶ front door
//!     └▶ pad, or trap ─┘  │                ▲
//!              stop ◀─────┴ trap           │
//!                └─────────────────────────┘
//! ```
//!
//! The front door, which holds the lane, decides whether the instance may run and counts the
//! packet.

use super::super::asm::{Label, field};
use super::super::insn::{Alu, Bits, FP, Insn, R0, R1, R2, R3, R4, R5, Test, helper};
use super::super::lower::context_fields;
use super::super::vcode::{Slot, Trap};
use super::Emit;
use crate::ir::{Place, Width};
use crate::layout::{self, hand_over};
use crate::program::MapKind;
use crate::{Flavour, TrapCode};

/// Offset of `skb->len` in the context of tc.
pub(crate) const SKB_LENGTH: i16 = 0;
/// Return value that drops at both levels: XDP_ABORTED, and an unused traffic class.
const ABORTED: i32 = 0;
/// TC_ACT_SHOT.
const SHOT: i32 = 2;

/// Labels of the parts of a packet's entry.
pub(super) struct EntryLabels {
    /// Unreachable code that names the arena.
    never: Label,
    /// The window is not linear and is pulled.
    pull: Label,
    pulled: Label,
    /// The packet is shorter than the module's farthest access.
    pad: Label,
    /// The packet is long enough.
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

pub(super) fn prologue(emit: &mut Emit<'_>) {
    if !emit.setting.has_packet() {
        mention_arena(emit);
        return reset(emit);
    }
    emit.keep_context();
    reset(emit);
    reach_packet(emit);
}

/// Clears the per-call counters, and state that a callee may have left; preserves r1.
fn reset(emit: &mut Emit<'_>) {
    // The node clears the cause of a packet's trap; an export keeps that of its last call.
    let has_callees = emit.plan.needs.len() > 1 || !emit.setting.has_packet();
    if !has_callees && !emit.setting.emits && !emit.setting.bulk {
        return;
    }
    emit.asm.block(R5, 0);
    if has_callees {
        emit.asm.push(Insn::store_imm(Width::Four, R5, field(layout::TRAP_CODE), 0));
    }
    if emit.setting.bulk {
        emit.asm.push(Insn::store_imm(Width::Eight, R5, field(layout::BULK), 0));
    }
    if emit.setting.emits {
        // Counters of events and frames, adjacent.
        emit.asm.push(Insn::store_imm(Width::Eight, R5, field(layout::EVENTS), 0));
    }
}

/// Loads `data` into r2 and `data_end` into r3; r1 is the context.
fn reach_packet(emit: &mut Emit<'_>) {
    load_packet(emit);
    if pulls_window(emit) {
        let pull = emit.entry.pull;
        let window = window(emit);
        compare_reach(emit, window, pull);
        emit.asm.bind(emit.entry.pulled);
    }
    let reach = emit.setting.reach;
    if reach > 0 {
        let pad = emit.entry.pad;
        compare_reach(emit, reach, pad);
    }
    emit.asm.bind(emit.entry.ready);
    if emit.keeps_data {
        let at = emit.frame.slot(Slot::Data);
        emit.asm.push(Insn::store(Width::Eight, FP, R2, at));
    }
}

fn load_packet(emit: &mut Emit<'_>) {
    let (data, data_end) = context_fields(emit.setting.flavour);
    emit.asm.push(Insn::load(Width::Four, false, R2, R1, data));
    emit.asm.push(Insn::load(Width::Four, false, R3, R1, data_end));
}

fn compare_reach(emit: &mut Emit<'_>, reach: u32, short: Label) {
    emit.asm.push(Insn::mov(R4, R2));
    emit.asm.push(Insn::alu_imm(Alu::Add, Bits::B64, R4, reach as i32));
    emit.asm.branch(
        Insn::jump(Test::GtU, Bits::B64, R4, R3),
        Insn::jump(Test::LeU, Bits::B64, R4, R3),
        short,
    );
}

/// Returns true when the window must be pulled: at tc only the headers may be linear, and accesses
/// at run-time addresses need the whole window to be.
const fn pulls_window(emit: &Emit<'_>) -> bool {
    matches!(emit.setting.flavour, Flavour::Tc) && emit.setting.dynamic_window
}

fn window(emit: &Emit<'_>) -> u32 {
    emit.setting.packet.map_or(0, |packet| packet.window)
}

/// Pulls as much of the window as the packet has.
fn pull_window(emit: &mut Emit<'_>) {
    let short = emit.asm.label();
    emit.asm.bind(emit.entry.pull);
    emit.asm.push(Insn::load(Width::Four, false, R2, R1, SKB_LENGTH));
    let window = window(emit) as i32;
    emit.asm.jump(Insn::jump_imm(Test::LeU, Bits::B32, R2, window), short);
    emit.asm.push(Insn::mov_imm(Bits::B64, R2, window));
    emit.asm.bind(short);
    emit.asm.push(Insn::call_helper(helper::SKB_PULL_DATA));
    emit.load_slot(R1, Slot::Context);
    load_packet(emit);
    let pulled = emit.entry.pulled;
    emit.asm.goto(pulled);
}

/// Pads the packet with zeros up to the module's farthest access.
pub(super) fn padding(emit: &mut Emit<'_>) {
    if pulls_window(emit) {
        pull_window(emit);
    }
    let reach = emit.setting.reach;
    if reach > 0 {
        emit.asm.bind(emit.entry.pad);
        match emit.setting.flavour {
            Flavour::Xdp => pad_xdp(emit, reach),
            Flavour::Tc => pad_tc(emit, reach),
        }
        emit.load_slot(R1, Slot::Context);
        load_packet(emit);
        let unfit = Trap { code: TrapCode::Packet, place: Place::default() };
        let unfit = emit.trap(unfit);
        compare_reach(emit, reach, unfit);
        let ready = emit.entry.ready;
        emit.asm.goto(ready);
        emit.asm.bind(emit.entry.unfit);
        emit.asm.hand_over(R1, hand_over::PADDED);
        emit.asm.push(Insn::store_imm(Width::Four, R1, 0, 0));
        emit.asm.goto(unfit);
    }
}

const fn refused(emit: &Emit<'_>) -> i32 {
    match emit.setting.flavour {
        Flavour::Xdp => ABORTED,
        Flavour::Tc => SHOT,
    }
}

/// Pads at the XDP hook: r1 is the context, r2 and r3 are the packet's ends.
fn pad_xdp(emit: &mut Emit<'_>, reach: u32) {
    emit.asm.push(Insn::alu(Alu::Sub, Bits::B64, R3, R2));
    emit.asm.push(Insn::mov_imm(Bits::B64, R2, reach as i32));
    emit.asm.push(Insn::alu(Alu::Sub, Bits::B64, R2, R3));
    emit.asm.hand_over(R4, hand_over::PADDED);
    emit.asm.push(Insn::store(Width::Four, R4, R2, 0));
    emit.asm.push(Insn::call_helper(helper::XDP_ADJUST_TAIL));
    let unfit = emit.entry.unfit;
    emit.asm.jump(Insn::jump_imm(Test::Ne, Bits::B64, R0, 0), unfit);
}

/// Pads at the tc hook, where the head may also just not be linear.
fn pad_tc(emit: &mut Emit<'_>, reach: u32) {
    let (pull, unfit) = (emit.asm.label(), emit.entry.unfit);
    emit.asm.push(Insn::load(Width::Four, false, R2, R1, SKB_LENGTH));
    emit.asm.jump(Insn::jump_imm(Test::GeU, Bits::B32, R2, reach as i32), pull);
    emit.asm.push(Insn::mov_imm(Bits::B64, R3, reach as i32));
    emit.asm.push(Insn::alu(Alu::Sub, Bits::B64, R3, R2));
    emit.asm.hand_over(R4, hand_over::PADDED);
    emit.asm.push(Insn::store(Width::Four, R4, R3, 0));
    emit.asm.push(Insn::mov_imm(Bits::B64, R2, reach as i32));
    emit.asm.push(Insn::mov_imm(Bits::B64, R3, 0));
    emit.asm.push(Insn::call_helper(helper::SKB_CHANGE_TAIL));
    emit.asm.jump(Insn::jump_imm(Test::Ne, Bits::B64, R0, 0), unfit);
    emit.load_slot(R1, Slot::Context);
    emit.asm.bind(pull);
    emit.asm.push(Insn::mov_imm(Bits::B64, R2, reach as i32));
    emit.asm.push(Insn::call_helper(helper::SKB_PULL_DATA));
}

/// Ends the entry: the verdict is in r0, the hand-over's address in r1.
pub(super) fn entry_epilogue(emit: &mut Emit<'_>, label: Label) {
    emit.asm.bind(label);
    emit.asm.push(Insn::store(Width::Eight, R1, R0, hand_over::VERDICT as i16));
    finish_packet(emit);
}

/// Finishes the packet, once in the code: r1 is the hand-over, r0 the return value of a standalone
/// program.
pub(super) fn finish_packet(emit: &mut Emit<'_>) {
    if std::mem::replace(&mut emit.is_finished, true) {
        let finish = emit.entry.finish;
        return emit.asm.goto(finish);
    }
    emit.asm.bind(emit.entry.finish);
    let (cut, done) = (emit.asm.label(), emit.asm.label());
    let pads = emit.setting.reach > 0;
    if pads {
        emit.asm.push(Insn::load(Width::Four, false, R2, R1, hand_over::PADDED as i16));
        emit.asm.jump(Insn::jump_imm(Test::Ne, Bits::B32, R2, 0), cut);
    }
    if is_alone(emit) && emit.setting.has_memory {
        // The verifier knows that the jump is not taken, and removes it.
        let never = emit.entry.never;
        emit.asm.jump(Insn::jump_imm(Test::Eq, Bits::B64, R1, 0), never);
    }
    emit.asm.bind(done);
    if is_alone(emit) {
        emit.asm.push(Insn::exit());
        emit.asm.bind(emit.entry.never);
    } else {
        emit.load_slot(R1, Slot::Context);
        emit.asm.map(R2, MapKind::Afterwards);
        emit.asm.push(Insn::mov_imm(Bits::B64, R3, 0));
        emit.asm.push(Insn::call_helper(helper::TAIL_CALL));
    }
    if !is_alone(emit) || emit.setting.has_memory {
        mention_arena(emit);
        emit.asm.push(Insn::mov_imm(Bits::B32, R0, refused(emit)));
        emit.asm.push(Insn::exit());
    }
    if pads {
        emit.asm.bind(cut);
        cut_padding(emit);
        emit.asm.goto(done);
    }
}

fn is_alone(emit: &Emit<'_>) -> bool {
    emit.setting.packet.is_some_and(|packet| packet.standalone)
}

/// Removes w2 bytes of padding; r0 is kept where the context is no longer needed.
fn cut_padding(emit: &mut Emit<'_>) {
    emit.asm.push(Insn::store_imm(Width::Four, R1, hand_over::PADDED as i16, 0));
    emit.load_slot(R1, Slot::Context);
    let keep = emit.frame.slot(Slot::Context);
    if is_alone(emit) {
        emit.asm.push(Insn::store(Width::Eight, FP, R0, keep));
    }
    match emit.setting.flavour {
        Flavour::Xdp => {
            emit.asm.push(Insn::neg(Bits::B32, R2));
            emit.asm.push(Insn::call_helper(helper::XDP_ADJUST_TAIL));
        }
        Flavour::Tc => {
            emit.asm.push(Insn::load(Width::Four, false, R4, R1, SKB_LENGTH));
            emit.asm.push(Insn::alu(Alu::Sub, Bits::B32, R4, R2));
            emit.asm.push(Insn::mov(R2, R4));
            emit.asm.push(Insn::mov_imm(Bits::B64, R3, 0));
            emit.asm.push(Insn::call_helper(helper::SKB_CHANGE_TAIL));
        }
    }
    if is_alone(emit) {
        emit.asm.push(Insn::load(Width::Eight, false, R0, FP, keep));
    }
}

/// References the arena once: the verifier lets such a program use arena pointers anywhere.
pub(super) fn mention_arena(emit: &mut Emit<'_>) {
    if emit.setting.has_memory {
        emit.asm.map(R1, MapKind::Arena);
    }
}
