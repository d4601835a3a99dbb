//! `packet_load` and `packet_store`: bytes between packet and memory, through the block's scratch
//! buffer, since the kernel's helpers take no arena pointers.

use super::super::asm::{Code, Label};
use super::super::insn::{Alu, R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, Reg, Test, helper};
use super::super::setting::Setting;
use super::shared::{Builder, CONTEXT};
use crate::Flavour;
use crate::ir::Width;
use crate::layout::{self, SCRATCH_LENGTH, hand_over};
use abi::layout::{WINDOW_ADDRESS, host_error};

/// Register with the offset in the packet.
const OFFSET: Reg = R6;
/// Register with the address in memory.
const ADDRESS: Reg = R7;
/// Register with the number of bytes left.
const LEFT: Reg = R8;
/// Register with the number of bytes of this iteration.
const CHUNK: Reg = R9;
/// Slot that is not zero for copies from the end downwards, when the ranges overlap in the window.
const DOWNWARD: i16 = -16;
/// Slot of the bytes between the beginning of the rest and this iteration's chunk.
const SKIPPED: i16 = -24;
/// Slot of the next byte of the scratch buffer.
const AT: i16 = -32;
const STACK: u32 = 32;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    /// Copies from packet to memory.
    Load,
    /// Copies from memory to packet.
    Store,
}

/// Emits `packet_load`. Arguments: offset, address, length.
pub(super) fn load(setting: &Setting) -> (Code, u32) {
    transfer(setting, Direction::Load)
}

/// Emits `packet_store`. Arguments: offset, address, length.
pub(super) fn store(setting: &Setting) -> (Code, u32) {
    transfer(setting, Direction::Store)
}

fn transfer(setting: &Setting, direction: Direction) -> (Code, u32) {
    let mut b = Builder::new(setting);
    let (outside, again, done) = (b.label(), b.label(), b.label());
    begin(&mut b, outside);
    choose_order(&mut b, direction);
    b.bind(again);
    b.asm.may_goto(outside);
    b.if_imm(LEFT, Test::Eq, 0, done);
    next_chunk(&mut b);
    match direction {
        Direction::Load => {
            call_helper(&mut b, direction, outside);
            scratch_and_memory(&mut b, direction);
        }
        Direction::Store => {
            scratch_and_memory(&mut b, direction);
            call_helper(&mut b, direction, outside);
        }
    }
    advance(&mut b);
    b.goto(again);
    b.bind(done);
    b.give(0);
    b.bind(outside);
    b.give(host_error::OUT_OF_RANGE);
    b.finish(STACK)
}

/// Checks that both ranges are in bounds before anything is copied.
fn begin(b: &mut Builder<'_>, outside: Label) {
    b.keep(CONTEXT, R1);
    b.mov(OFFSET, R2);
    b.mov(ADDRESS, R3);
    b.mov(LEFT, R4);
    b.asm.hand_over(R1, hand_over::METADATA);
    b.load(Width::Four, R1, R1, 0);
    b.mov(R2, OFFSET);
    b.alu(Alu::Add, R2, LEFT);
    b.if_reg(R2, Test::GtU, R1, outside);
    b.check_range(ADDRESS, LEFT, [R1, R2], outside);
}

/// Chooses downwards if the destination begins behind the source in the same bytes: memory at the
/// window's address is the packet itself.
fn choose_order(b: &mut Builder<'_>, direction: Direction) {
    let set = b.label();
    b.mov(R1, ADDRESS);
    b.alu_imm(Alu::Sub, R1, WINDOW_ADDRESS as i32);
    b.set(R2, 0);
    let (destination, source) = match direction {
        Direction::Load => (R1, OFFSET),
        Direction::Store => (OFFSET, R1),
    };
    b.if_reg(destination, Test::LeS, source, set);
    b.set(R2, 1);
    b.bind(set);
    b.keep(DOWNWARD, R2);
}

fn next_chunk(b: &mut Builder<'_>) {
    let (fits, upward) = (b.label(), b.label());
    b.mov(CHUNK, LEFT);
    b.if_imm(CHUNK, Test::LeU, SCRATCH_LENGTH as i32, fits);
    b.set(CHUNK, SCRATCH_LENGTH as i32);
    b.bind(fits);
    b.set(R2, 0);
    b.kept(R1, DOWNWARD);
    b.if_imm(R1, Test::Eq, 0, upward);
    b.mov(R2, LEFT);
    b.alu(Alu::Sub, R2, CHUNK);
    b.bind(upward);
    b.keep(SKIPPED, R2);
}

fn advance(b: &mut Builder<'_>) {
    let downward = b.label();
    b.alu(Alu::Sub, LEFT, CHUNK);
    b.kept(R1, DOWNWARD);
    b.if_imm(R1, Test::Ne, 0, downward);
    b.alu(Alu::Add, OFFSET, CHUNK);
    b.alu(Alu::Add, ADDRESS, CHUNK);
    b.bind(downward);
}

/// Calls the helper that copies between packet and scratch buffer.
fn call_helper(b: &mut Builder<'_>, direction: Direction, failed: Label) {
    b.kept(R1, CONTEXT);
    b.kept(R2, SKIPPED);
    b.alu(Alu::Add, R2, OFFSET);
    b.asm.block(R3, layout::scratch(b.setting.globals));
    b.mov(R4, CHUNK);
    // Check for the verifier, which has forgotten the range.
    b.if_imm(R4, Test::Eq, 0, failed);
    b.if_imm(R4, Test::GtU, SCRATCH_LENGTH as i32, failed);
    b.set(R5, 0);
    b.helper(match (direction, b.setting.flavour) {
        (Direction::Load, Flavour::Xdp) => helper::XDP_LOAD_BYTES,
        (Direction::Store, Flavour::Xdp) => helper::XDP_STORE_BYTES,
        (Direction::Load, Flavour::Tc) => helper::SKB_LOAD_BYTES,
        (Direction::Store, Flavour::Tc) => helper::SKB_STORE_BYTES,
    });
    b.if_imm(R0, Test::Ne, 0, failed);
}

/// Copies between scratch buffer and memory: words, then bytes; only bytes in the window.
fn scratch_and_memory(b: &mut Builder<'_>, direction: Direction) {
    let special = b.label();
    b.unknown_zero(R1);
    b.keep(AT, R1);
    b.mov(R1, ADDRESS);
    b.kept(R2, SKIPPED);
    b.alu(Alu::Add, R1, R2);
    b.if_special(R1, CHUNK, R2, special);
    for (width, size) in [(Width::Eight, 8), (Width::One, 1)] {
        let (again, end) = (b.label(), b.label());
        b.bind(again);
        b.asm.may_goto(end);
        scratch_pointer(b, size, end);
        b.kept(R1, SKIPPED);
        b.alu(Alu::Add, R1, R0);
        b.alu(Alu::Add, R1, ADDRESS);
        b.cast(R1, R1);
        match direction {
            Direction::Load => {
                b.load(width, R2, R3, 0);
                b.store(width, R1, R2, 0);
            }
            Direction::Store => {
                b.load(width, R2, R1, 0);
                b.store(width, R3, R2, 0);
            }
        }
        b.alu_imm(Alu::Add, R0, size);
        b.keep(AT, R0);
        b.goto(again);
        b.bind(end);
        if size == 1 {
            let over = b.label();
            b.goto(over);
            b.bind(special);
            special_bytes(b, direction, over);
            b.bind(over);
        }
    }
}

/// Loads the index of the next byte of the scratch buffer into r0 and its address into r3; jumps to
/// `end` if fewer than `size` bytes are left.
fn scratch_pointer(b: &mut Builder<'_>, size: i32, end: Label) {
    b.kept(R0, AT);
    b.mov(R1, R0);
    b.alu_imm(Alu::Add, R1, size);
    b.if_reg(R1, Test::GtU, CHUNK, end);
    b.if_imm(R0, Test::GtU, SCRATCH_LENGTH as i32 - size, end);
    b.asm.block(R3, layout::scratch(b.setting.globals));
    b.alu(Alu::Add, R3, R0);
}

fn special_bytes(b: &mut Builder<'_>, direction: Direction, over: Label) {
    let again = b.label();
    b.bind(again);
    b.asm.may_goto(over);
    scratch_pointer(b, 1, over);
    b.kept(R4, SKIPPED);
    b.alu(Alu::Add, R4, R0);
    b.alu(Alu::Add, R4, ADDRESS);
    match direction {
        Direction::Load => {
            b.load(Width::One, R5, R3, 0);
            b.store_byte(R5, R4, R1, R2);
        }
        Direction::Store => {
            b.load_byte(R5, R4, R1, R2);
            b.store(Width::One, R3, R5, 0);
        }
    }
    b.alu_imm(Alu::Add, R0, 1);
    b.keep(AT, R0);
    b.goto(again);
}
