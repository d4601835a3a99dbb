//! `packet_resize_head` and `packet_resize_tail`. A packet that was padded for the module is padded
//! again after it; the ABI's lengths never count the padding.

use super::super::asm::{Code, Label};
use super::super::insn::{
    Alu, Bits, FP, Insn, R0, R1, R2, R3, R4, R6, R7, R8, R9, Reg, Test, helper,
};
use super::super::lower::context_fields;
use super::super::setting::Setting;
use super::shared::{Builder, CONTEXT};
use crate::Flavour;
use crate::ir::Width;
use crate::layout::hand_over;
use abi::layout::{PACKET_LENGTH_MAX, host_error};
use abi::packet::RESIZE_ROOM;

/// Register with the bytes to add, negative to remove; afterwards the result.
const DELTA: Reg = R6;
/// Register with the hand-over's address.
const HAND: Reg = R7;
/// Register with the packet's length before the change.
const BEFORE: Reg = R8;
/// Register with the packet's length after the change.
const AFTER: Reg = R9;
/// Frame in bytes: the context, and zeros to add in front.
const STACK: u32 = CONTEXT_BYTES + RESIZE_ROOM as u32;
const CONTEXT_BYTES: u32 = 8;
const ZEROS: i16 = -(STACK as i16);
/// Offset of `skb->len` in the context of tc.
const SKB_LENGTH: i16 = 0;

const PACKET_LENGTH: i16 = hand_over::METADATA as i16;
const WINDOW_LENGTH: i16 = hand_over::METADATA as i16 + 4;
const PADDED: i16 = hand_over::PADDED as i16;

/// Emits `packet_resize_head`. Argument: bytes in front.
pub(super) fn head(setting: &Setting) -> (Code, u32) {
    let mut b = Builder::new(setting);
    let (refused, done) = (b.label(), b.label());
    begin(&mut b, refused);
    match setting.flavour {
        Flavour::Xdp => {
            b.kept(R1, CONTEXT);
            b.mov(R2, DELTA);
            b.asm.push(Insn::neg(Bits::B64, R2));
            b.helper(helper::XDP_ADJUST_HEAD);
            b.if_imm(R0, Test::Ne, 0, refused);
            record(&mut b);
            zero_head(&mut b, done);
        }
        // The compiler has made sure that bytes are added.
        Flavour::Tc => {
            b.kept(R1, CONTEXT);
            b.mov(R2, DELTA);
            b.set(R3, 0);
            b.helper(helper::SKB_CHANGE_HEAD);
            b.if_imm(R0, Test::Ne, 0, refused);
            record(&mut b);
            b.goto(done);
        }
    }
    end(&mut b, refused, done);
    b.finish(STACK)
}

/// Emits `packet_resize_tail`. Argument: bytes at the end.
pub(super) fn tail(setting: &Setting) -> (Code, u32) {
    let mut b = Builder::new(setting);
    let (refused, done, bare) = (b.label(), b.label(), b.label());
    begin(&mut b, refused);
    // The padding goes first: added bytes must be zero.
    b.load(Width::Four, R2, HAND, PADDED);
    b.if_imm(R2, Test::Eq, 0, bare);
    b.asm.push(Insn::store_imm(Width::Four, HAND, PADDED, 0));
    b.asm.push(Insn::neg(Bits::B64, R2));
    change_tail(&mut b, R2);
    b.bind(bare);
    b.mov(R2, DELTA);
    change_tail(&mut b, R2);
    b.if_imm(R0, Test::Ne, 0, refused);
    record(&mut b);
    b.goto(done);
    end(&mut b, refused, done);
    b.finish(STACK)
}

/// Adds only the padding, after the head has moved in place.
pub(super) fn pad(setting: &Setting) -> (Code, u32) {
    let mut b = Builder::new(setting);
    b.keep(CONTEXT, R1);
    pad_again(&mut b);
    b.give(0);
    b.finish(CONTEXT_BYTES)
}

/// Moves arguments into their registers, and refuses what every level refuses.
fn begin(b: &mut Builder<'_>, refused: Label) {
    b.keep(CONTEXT, R1);
    b.asm.push(Insn::mov_signed(Bits::B64, 32, DELTA, R2));
    b.asm.hand_over(HAND, 0);
    b.load(Width::Four, BEFORE, HAND, PACKET_LENGTH);
    b.mov(AFTER, BEFORE);
    b.alu(Alu::Add, AFTER, DELTA);
    b.if_imm(DELTA, Test::GtS, RESIZE_ROOM as i32, refused);
    b.if_imm(AFTER, Test::GtS, PACKET_LENGTH_MAX as i32, refused);
    b.if_imm(AFTER, Test::LeS, 0, refused);
}

/// Moves the packet's physical end by the register's bytes; r0 is 0 on success.
fn change_tail(b: &mut Builder<'_>, by: Reg) {
    match b.setting.flavour {
        Flavour::Xdp => {
            b.mov(R2, by);
            b.kept(R1, CONTEXT);
            b.helper(helper::XDP_ADJUST_TAIL);
        }
        Flavour::Tc => {
            b.mov(R4, by);
            b.kept(R1, CONTEXT);
            b.load(Width::Four, R2, R1, SKB_LENGTH);
            b.alu(Alu::Add, R2, R4);
            b.set(R3, 0);
            b.helper(helper::SKB_CHANGE_TAIL);
        }
    }
}

/// Writes the new lengths.
fn record(b: &mut Builder<'_>) {
    let window = b.setting.packet.map_or(0, |packet| packet.window) as i32;
    b.store(Width::Four, HAND, AFTER, PACKET_LENGTH);
    let whole = b.label();
    b.mov(R1, AFTER);
    b.if_imm(R1, Test::LeU, window, whole);
    b.set(R1, window);
    b.bind(whole);
    b.store(Width::Four, HAND, R1, WINDOW_LENGTH);
}

/// Zeroes the added head, where the kernel leaves old bytes. DELTA is 0 afterwards.
fn zero_head(b: &mut Builder<'_>, done: Label) {
    b.if_imm(DELTA, Test::LeS, 0, done);
    b.if_imm(DELTA, Test::GtS, RESIZE_ROOM as i32, done);
    for word in 0..RESIZE_ROOM as i16 / 8 {
        b.asm.push(Insn::store_imm(Width::Eight, FP, ZEROS + 8 * word, 0));
    }
    b.kept(R1, CONTEXT);
    b.set(R2, 0);
    b.mov(R3, FP);
    b.alu_imm(Alu::Add, R3, i32::from(ZEROS));
    b.mov(R4, DELTA);
    b.helper(helper::XDP_STORE_BYTES);
    b.goto(done);
}

/// Pads again and returns.
fn end(b: &mut Builder<'_>, refused: Label, done: Label) {
    let pad = b.label();
    b.bind(refused);
    b.set(DELTA, host_error::OVER_LIMIT);
    b.goto(pad);
    b.bind(done);
    b.set(DELTA, 0);
    b.bind(pad);
    if b.setting.reach > 0 {
        pad_again(b);
    }
    b.asm.push(Insn::alu(Alu::Mov, Bits::B32, R0, DELTA));
    b.asm.push(Insn::exit());
}

fn pad_again(b: &mut Builder<'_>) {
    let long_enough = b.label();
    let reach = b.setting.reach as i32;
    b.kept(R1, CONTEXT);
    match b.setting.flavour {
        Flavour::Xdp => {
            let (data, data_end) = context_fields(Flavour::Xdp);
            b.load(Width::Four, R3, R1, data_end);
            b.load(Width::Four, R2, R1, data);
            b.alu(Alu::Sub, R3, R2);
        }
        Flavour::Tc => b.load(Width::Four, R3, R1, SKB_LENGTH),
    }
    b.set(BEFORE, reach);
    b.alu(Alu::Sub, BEFORE, R3);
    b.if_imm(BEFORE, Test::LeS, 0, long_enough);
    change_tail(b, BEFORE);
    b.if_imm(R0, Test::Ne, 0, long_enough);
    b.asm.hand_over(R1, 0);
    b.load(Width::Four, R2, R1, PADDED);
    b.alu(Alu::Add, R2, BEFORE);
    b.store(Width::Four, R1, R2, PADDED);
    b.bind(long_enough);
    if b.setting.flavour == Flavour::Tc {
        b.kept(R1, CONTEXT);
        b.set(R2, reach);
        b.helper(helper::SKB_PULL_DATA);
    }
}
