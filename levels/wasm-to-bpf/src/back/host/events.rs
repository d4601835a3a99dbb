//! `event`, `message_send` and `packet_send`: a record in the ring buffer to the cell, written
//! through a dynptr in pieces, since the kernel takes no arena pointers.

use super::super::asm::{Code, Label, field};
use super::super::insn::{
    Alu, FP, Insn, R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, Reg, Test, helper,
};
use super::super::setting::Setting;
use super::shared::{Builder, CONTEXT};
use crate::ir::Width;
use crate::layout::{self, SCRATCH_LENGTH, record};
use crate::program::MapKind;
use abi::host::{
    EVENT_LENGTH_MAX, EVENTS_PER_CALL_MAX, FRAME_LENGTH_MAX, FRAME_LENGTH_MIN, SENDS_PER_PACKET_MAX,
};
use abi::layout::{SEND_BY_ROUTE, host_error};

/// Register with the event's code, or the port.
const VALUE: Reg = R6;
/// Register with the address in memory.
const ADDRESS: Reg = R7;
/// Register with the total length in bytes.
const LENGTH: Reg = R8;
/// Register with the number of bytes written.
const DONE: Reg = R9;
/// Slot of the dynptr, 16 bytes.
const DYNPTR: i16 = -24;
/// Slot of the record's header.
const HEADER: i16 = -48;
/// Slot of the bytes of this iteration, and of their position.
const CHUNK: i16 = -56;
const AT: i16 = -64;
const STACK: u32 = 64;

/// Emits `event`. Arguments: code, address, length.
pub(super) fn event(setting: &Setting) -> (Code, u32) {
    let mut b = Builder::new(setting);
    b.keep(CONTEXT, R1);
    b.mov(VALUE, R2);
    b.mov(ADDRESS, R3);
    b.mov(LENGTH, R4);
    notice(b, record::KIND_EVENT)
}

/// Emits `message_send`. Arguments: address, length.
pub(super) fn message(setting: &Setting) -> (Code, u32) {
    let mut b = Builder::new(setting);
    b.keep(CONTEXT, R1);
    b.set(VALUE, 0);
    b.mov(ADDRESS, R2);
    b.mov(LENGTH, R3);
    notice(b, record::KIND_MESSAGE)
}

fn notice(mut b: Builder<'_>, kind: u32) -> (Code, u32) {
    let (outside, over) = (b.label(), b.label());
    b.check_range(ADDRESS, LENGTH, [R1, R2], outside);
    b.if_imm(LENGTH, Test::GtU, EVENT_LENGTH_MAX as i32, over);
    count(&mut b, layout::EVENTS, EVENTS_PER_CALL_MAX as i32, over);
    // The node counts a record for which the ring has no space as lost.
    let lost = b.label();
    write(&mut b, kind, lost);
    b.bind(lost);
    b.give(0);
    refusals(&mut b, outside, over);
    b.finish(STACK)
}

/// Emits `packet_send`. Arguments: address, length, port.
pub(super) fn send(setting: &Setting) -> (Code, u32) {
    let mut b = Builder::new(setting);
    let (outside, over, nowhere) = (b.label(), b.label(), b.label());
    b.keep(CONTEXT, R1);
    b.mov(VALUE, R4);
    b.mov(ADDRESS, R2);
    b.mov(LENGTH, R3);
    b.check_range(ADDRESS, LENGTH, [R1, R2], outside);
    find_port(&mut b, nowhere);
    b.if_imm(LENGTH, Test::LtU, FRAME_LENGTH_MIN as i32, over);
    b.if_imm(LENGTH, Test::GtU, FRAME_LENGTH_MAX as i32, over);
    count(&mut b, layout::SENT, SENDS_PER_PACKET_MAX as i32, over);
    write(&mut b, record::KIND_FRAME, over);
    refusals(&mut b, outside, over);
    b.bind(nowhere);
    b.give(host_error::NOT_FOUND);
    b.finish(STACK)
}

fn refusals(b: &mut Builder<'_>, outside: Label, over: Label) {
    b.bind(outside);
    b.give(host_error::OUT_OF_RANGE);
    b.bind(over);
    b.give(host_error::OVER_LIMIT);
}

/// Jumps to `nowhere` unless the port's bit is set, or the route decides.
fn find_port(b: &mut Builder<'_>, nowhere: Label) {
    let found = b.label();
    b.if_imm(VALUE, Test::Eq, i32::from(SEND_BY_ROUTE), found);
    b.if_imm(VALUE, Test::GeU, layout::PORTS_MAX as i32, nowhere);
    b.mov(R2, VALUE);
    b.alu_imm(Alu::ShrU, R2, 3);
    b.asm.block(R1, layout::PORTS);
    b.alu(Alu::Add, R1, R2);
    b.load(Width::One, R1, R1, 0);
    b.mov(R2, VALUE);
    b.alu_imm(Alu::And, R2, 7);
    b.alu(Alu::ShrU, R1, R2);
    b.alu_imm(Alu::And, R1, 1);
    b.if_imm(R1, Test::Eq, 0, nowhere);
    b.bind(found);
}

/// Increments a counter, or jumps to `over` at its maximum.
fn count(b: &mut Builder<'_>, counter: u32, max: i32, over: Label) {
    b.asm.block(R1, 0);
    b.load(Width::Four, R2, R1, field(counter));
    b.if_imm(R2, Test::GeU, max, over);
    b.alu_imm(Alu::Add, R2, 1);
    b.store(Width::Four, R1, R2, field(counter));
}

/// Writes a record and returns 0; jumps to `full` when the ring has no space.
fn write(b: &mut Builder<'_>, kind: u32, full: Label) {
    let no_room = b.label();
    b.asm.map(R1, MapKind::Events);
    b.mov(R2, LENGTH);
    b.alu_imm(Alu::Add, R2, record::BYTES as i32);
    b.set(R3, 0);
    b.frame_address(R4, DYNPTR);
    b.helper(helper::RINGBUF_RESERVE_DYNPTR);
    b.if_imm(R0, Test::Ne, 0, no_room);
    write_header(b, kind);
    write_bytes(b);
    b.frame_address(R1, DYNPTR);
    b.set(R2, 0);
    b.helper(helper::RINGBUF_SUBMIT_DYNPTR);
    b.give(0);
    b.bind(no_room);
    b.frame_address(R1, DYNPTR);
    b.set(R2, 0);
    b.helper(helper::RINGBUF_DISCARD_DYNPTR);
    b.asm.block(R1, 0);
    b.load(Width::Eight, R2, R1, field(layout::LOST));
    b.alu_imm(Alu::Add, R2, 1);
    b.store(Width::Eight, R1, R2, field(layout::LOST));
    b.goto(full);
}

fn write_header(b: &mut Builder<'_>, kind: u32) {
    let at = |offset: u32| HEADER + offset as i16;
    b.asm.push(Insn::store_imm(Width::Four, FP, at(record::KIND), kind as i32));
    b.store(Width::Four, FP, VALUE, at(record::VALUE));
    b.asm.block(R1, layout::INSTANCE);
    b.load(Width::Eight, R1, R1, 0);
    b.store(Width::Eight, FP, R1, at(record::INSTANCE));
    // The length, and zeros above it.
    b.store(Width::Eight, FP, LENGTH, at(record::LENGTH));
    b.frame_address(R1, DYNPTR);
    b.set(R2, 0);
    b.frame_address(R3, HEADER);
    b.set(R4, record::BYTES as i32);
    b.set(R5, 0);
    b.helper(helper::DYNPTR_WRITE);
}

/// Writes the record's bytes through the scratch buffer.
fn write_bytes(b: &mut Builder<'_>) {
    let (again, done, fits) = (b.label(), b.label(), b.label());
    b.unknown_zero(DONE);
    b.bind(again);
    b.asm.may_goto(done);
    b.mov(R1, LENGTH);
    b.alu(Alu::Sub, R1, DONE);
    b.if_imm(R1, Test::Eq, 0, done);
    b.if_imm(R1, Test::LeU, SCRATCH_LENGTH as i32, fits);
    b.set(R1, SCRATCH_LENGTH as i32);
    b.bind(fits);
    b.keep(CHUNK, R1);
    b.unknown_zero(R1);
    b.keep(AT, R1);
    fill_scratch(b);
    b.frame_address(R1, DYNPTR);
    b.mov(R2, DONE);
    b.alu_imm(Alu::Add, R2, record::BYTES as i32);
    b.asm.block(R3, layout::scratch(b.setting.globals));
    b.kept(R4, CHUNK);
    b.if_imm(R4, Test::GtU, SCRATCH_LENGTH as i32, done);
    b.alu(Alu::Add, DONE, R4);
    b.set(R5, 0);
    b.helper(helper::DYNPTR_WRITE);
    b.goto(again);
    b.bind(done);
}

/// Fills the scratch buffer byte by byte: events are short, and frames made by a module are rare. A
/// frame at the window's address is the packet's head.
fn fill_scratch(b: &mut Builder<'_>) {
    let (again, end) = (b.label(), b.label());
    b.bind(again);
    b.asm.may_goto(end);
    b.kept(R0, AT);
    b.kept(R1, CHUNK);
    b.if_reg(R0, Test::GeU, R1, end);
    b.if_imm(R0, Test::GeU, SCRATCH_LENGTH as i32, end);
    b.mov(R4, ADDRESS);
    b.alu(Alu::Add, R4, DONE);
    b.alu(Alu::Add, R4, R0);
    b.load_byte(R5, R4, R1, R2);
    b.asm.block(R3, layout::scratch(b.setting.globals));
    b.alu(Alu::Add, R3, R0);
    b.store(Width::One, R3, R5, 0);
    b.alu_imm(Alu::Add, R0, 1);
    b.keep(AT, R0);
    b.goto(again);
    b.bind(end);
}
