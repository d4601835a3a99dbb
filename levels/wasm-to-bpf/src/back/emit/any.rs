//! Accesses whose region or offset in the packet is known only at run time.

use super::super::asm::Label;
use super::super::insn::{Alu, Bits, Insn, Reg, Test};
use super::super::lower::context_fields;
use super::super::setting::Likely;
use super::super::vcode::{AnyAccess, Condition, Slot, Trap};
use super::late::{Late, Partial, What};
use super::{Emit, head, partial};
use crate::TrapCode;
use crate::ir::Width;
use crate::layout;
use abi::layout::{DATA_ADDRESS, META_ADDRESS, META_LENGTH, WINDOW_ADDRESS};

/// Returns the number that turns an address into an offset in the packet when it is added: the
/// result is below [`DATA_ADDRESS`], or the plan had called the access memory.
const fn distance(access: AnyAccess) -> i32 {
    access.offset as i32 - WINDOW_ADDRESS as i32
}

pub(super) fn window_load(
    emit: &mut Emit<'_>,
    width: Width,
    distance: i32,
    registers: &[Reg],
) -> Option<()> {
    let &[result, end, data_end, ref for_bytes @ ..] = registers else { return None };
    let (address, free) = for_bytes.first().zip(for_bytes.get(1)).unwrap_or((&end, &end));
    let borrowed = if end == result { data_end } else { end };
    let what = What::Load(result);
    let partial = partial_of(emit, width, *address, distance, [*free, borrowed], what);
    window_access(emit, partial, [end, data_end]);
    Some(())
}

pub(super) fn window_store(
    emit: &mut Emit<'_>,
    width: Width,
    distance: i32,
    registers: &[Reg],
) -> Option<()> {
    let &[value, end, data_end, ref for_bytes @ ..] = registers else { return None };
    let (address, free) = for_bytes.first().zip(for_bytes.get(1)).unwrap_or((&end, &end));
    let what = What::Store(value);
    let partial = partial_of(emit, width, *address, distance, [*free, end], what);
    window_access(emit, partial, [end, data_end]);
    Some(())
}

fn partial_of(
    emit: &mut Emit<'_>,
    width: Width,
    address: Reg,
    distance: i32,
    [free, borrowed]: [Reg; 2],
    what: What,
) -> Partial {
    let (label, back) = (emit.asm.label(), emit.asm.label());
    Partial { label, back, width, address, distance, free, borrowed, what }
}

/// Emits an access of the packet that ends at the pointer, if the packet does not end before.
fn window_access(emit: &mut Emit<'_>, partial: Partial, [end, data_end]: [Reg; 2]) {
    let width = partial.width;
    let beyond = Condition { test: Test::GtU, bits: Bits::B64, immediate: None };
    emit.branch(beyond, end, data_end, partial.label);
    perform(emit, partial.what, width, end, -(width.bytes() as i16));
    emit.asm.bind(partial.back);
    emit.late.push(Late::Partial(partial));
}

/// Advances from an offset to the end of the access, which is in the packet.
fn up_to_end(emit: &mut Emit<'_>, partial: Partial, [data, data_end]: [Reg; 2]) {
    let pointer = partial.free;
    emit.asm.push(Insn::alu(Alu::Add, Bits::B64, pointer, data));
    let width = partial.width.bytes() as i32;
    emit.asm.push(Insn::alu_imm(Alu::Add, Bits::B64, pointer, width));
    let beyond = Condition { test: Test::GtU, bits: Bits::B64, immediate: None };
    emit.branch(beyond, pointer, data_end, partial.label);
}

pub(super) fn any_load(emit: &mut Emit<'_>, access: AnyAccess, registers: &[Reg]) -> Option<()> {
    let (&[result, address, free], ends) = registers.split_first_chunk::<3>()?;
    any(emit, access, address, [free, result], What::Load(result), ends)
}

pub(super) fn any_store(emit: &mut Emit<'_>, access: AnyAccess, registers: &[Reg]) -> Option<()> {
    let (&[value, address, one, two], ends) = registers.split_first_chunk::<4>()?;
    any(emit, access, address, [one, two], What::Store(value), ends)
}

/// Emits the probable region with one comparison, and puts the exact decision out of line.
fn any(
    emit: &mut Emit<'_>,
    access: AnyAccess,
    address: Reg,
    free: [Reg; 2],
    what: What,
    ends: &[Reg],
) -> Option<()> {
    let (decide, back) = (emit.asm.label(), emit.asm.label());
    let [pointer, _] = free;
    let end = access.offset + access.width.bytes();
    match access.likely {
        Likely::Window => {
            let &[data, data_end] = ends else { return None };
            let borrowed = if let What::Load(_) = what { address } else { free[1] };
            let partial = partial_of(
                emit,
                access.width,
                address,
                distance(access),
                [pointer, borrowed],
                what,
            );
            any_window(emit, partial, [data, data_end], decide);
            // Both out-of-line paths return to the same place.
            emit.late.push(Late::Partial(Partial { back, ..partial }));
            perform(emit, what, access.width, pointer, -(access.width.bytes() as i16));
        }
        Likely::Below if end <= META_ADDRESS => {
            let limit = (META_ADDRESS - end) as i32;
            emit.asm.push(Insn::cast(pointer, address));
            let beyond = Condition { test: Test::GtU, bits: Bits::B32, immediate: Some(limit) };
            emit.branch(beyond, pointer, pointer, decide);
            perform(emit, what, access.width, pointer, access.offset as i16);
        }
        Likely::Below | Likely::Above => {
            emit.asm.push(Insn::cast(pointer, address));
            any_above(emit, access, free, decide);
            in_data(emit, access, address, pointer, what);
        }
    }
    emit.asm.bind(back);
    emit.late.push(Late::Decide { label: decide, back, access, address, free, what });
    Some(())
}

/// Continues if the access is entirely in the window and in the packet.
fn any_window(emit: &mut Emit<'_>, partial: Partial, ends: [Reg; 2], decide: Label) {
    let Partial { width, address, distance, free: pointer, .. } = partial;
    let window = emit.setting.packet.map_or(0, |packet| packet.window);
    emit.asm.push_sum(pointer, address, distance);
    let limit = Some(window.saturating_sub(width.bytes()) as i32);
    let outside = Condition { test: Test::GtU, bits: Bits::B64, immediate: limit };
    emit.branch(outside, pointer, pointer, decide);
    up_to_end(emit, partial, ends);
}

/// Emits the access itself, when it is entirely above the window.
fn in_data(emit: &mut Emit<'_>, access: AnyAccess, address: Reg, pointer: Reg, what: What) {
    match i16::try_from(access.offset) {
        Ok(offset) => {
            emit.asm.push(Insn::cast(pointer, address));
            perform(emit, what, access.width, pointer, offset);
        }
        Err(_) => {
            let base = DATA_ADDRESS as i32;
            emit.asm.push(Insn::alu_imm(Alu::Add, Bits::B32, pointer, base));
            perform(emit, what, access.width, pointer, 0);
        }
    }
}

/// Continues if the access is entirely above the window and within the memory. The sum has 32 bits:
/// the offset is below [`DATA_ADDRESS`], so that it wraps only to numbers that are too large.
fn any_above(emit: &mut Emit<'_>, access: AnyAccess, [pointer, size]: [Reg; 2], decide: Label) {
    let distance = access.offset as i32 - DATA_ADDRESS as i32;
    emit.asm.push(Insn::alu_imm(Alu::Add, Bits::B32, pointer, distance));
    let less = u64::from(DATA_ADDRESS + access.width.bytes());
    let beyond = |immediate| Condition { test: Test::GtU, bits: Bits::B32, immediate };
    if emit.setting.memory_min == emit.setting.memory_max {
        let limit = emit.setting.memory_max.saturating_sub(less) as i32;
        emit.branch(beyond(Some(limit)), pointer, pointer, decide);
    } else {
        emit.asm.block(size, layout::MEMORY_BYTES);
        emit.asm.push(Insn::load(Width::Eight, false, size, size, 0));
        emit.asm.push(Insn::alu_imm(Alu::Sub, Bits::B64, size, less as i32));
        emit.branch(beyond(None), pointer, size, decide);
    }
}

fn perform(emit: &mut Emit<'_>, what: What, width: Width, pointer: Reg, offset: i16) {
    emit.asm.push(match what {
        What::Load(result) => Insn::load(width, false, result, pointer, offset),
        What::Store(value) => Insn::store(width, pointer, value, offset),
    });
}

/// Emits all out-of-line code.
pub(super) fn late(emit: &mut Emit<'_>) {
    for late in std::mem::take(&mut emit.late) {
        match late {
            Late::Partial(partial) => partial::partial(emit, partial),
            Late::Head(head) => head::late_head(emit, head),
            Late::Decide { label, back, access, address, free, what } => {
                emit.asm.bind(label);
                decide(emit, back, access, address, free, what);
            }
        }
    }
}

/// Emits the exact decision between window, metadata, memory and a trap. All sums have 64 bits.
fn decide(
    emit: &mut Emit<'_>,
    back: Label,
    access: AnyAccess,
    address: Reg,
    [at, free]: [Reg; 2],
    what: What,
) {
    let width = access.width.bytes();
    let window = emit.setting.packet.map_or(0, |packet| packet.window);
    emit.asm.push_sum(at, address, distance(access));
    if width <= window {
        let other = emit.asm.label();
        let limit = (window - width) as i32;
        emit.asm.jump(Insn::jump_imm(Test::GtU, Bits::B64, at, limit), other);
        in_window(emit, back, access, address, [at, free], what);
        emit.asm.bind(other);
    }
    let other = emit.asm.label();
    let forth = (WINDOW_ADDRESS - META_ADDRESS) as i32;
    emit.asm.push(Insn::alu_imm(Alu::Add, Bits::B64, at, forth));
    let limit = (META_LENGTH as u32 - width) as i32;
    emit.asm.jump(Insn::jump_imm(Test::GtU, Bits::B64, at, limit), other);
    emit.asm.hand_over(free, layout::hand_over::METADATA);
    emit.asm.push(Insn::alu(Alu::Add, Bits::B64, at, free));
    perform(emit, what, access.width, at, 0);
    emit.asm.goto(back);
    emit.asm.bind(other);
    emit.asm.push(Insn::alu_imm(Alu::Add, Bits::B64, at, META_ADDRESS as i32));
    in_memory(emit, access, [at, free]);
    emit.asm.push(Insn::cast(at, at));
    perform(emit, what, access.width, at, 0);
    emit.asm.goto(back);
}

fn in_window(
    emit: &mut Emit<'_>,
    back: Label,
    access: AnyAccess,
    address: Reg,
    [at, free]: [Reg; 2],
    what: What,
) {
    let (data, data_end) = context_fields(emit.setting.flavour);
    let borrowed = if let What::Load(_) = what { address } else { free };
    let partial = partial_of(emit, access.width, address, distance(access), [at, borrowed], what);
    let size = access.width.bytes() as i16;
    emit.load_slot(free, Slot::Context);
    emit.asm.push(Insn::load(Width::Four, false, free, free, data));
    emit.asm.push(Insn::alu(Alu::Add, Bits::B64, at, free));
    emit.asm.push(Insn::alu_imm(Alu::Add, Bits::B64, at, i32::from(size)));
    emit.load_slot(free, Slot::Context);
    emit.asm.push(Insn::load(Width::Four, false, free, free, data_end));
    let beyond = Condition { test: Test::GtU, bits: Bits::B64, immediate: None };
    emit.branch(beyond, at, free, partial.label);
    perform(emit, what, access.width, at, -size);
    emit.asm.goto(back);
    partial::partial(emit, Partial { back, ..partial });
}

/// Emits a trap unless the access at the address is within the memory.
fn in_memory(emit: &mut Emit<'_>, access: AnyAccess, [at, free]: [Reg; 2]) {
    let trap = emit.trap(Trap { code: TrapCode::OutOfBounds, place: access.place });
    let width = access.width.bytes();
    let beyond = |immediate| Condition { test: Test::GtU, bits: Bits::B64, immediate };
    if emit.setting.memory_min == emit.setting.memory_max {
        let limit = emit.setting.memory_max.saturating_sub(u64::from(width)) as i32;
        emit.branch(beyond(Some(limit)), at, at, trap);
    } else {
        emit.asm.block(free, layout::MEMORY_BYTES);
        emit.asm.push(Insn::load(Width::Eight, false, free, free, 0));
        emit.asm.push(Insn::alu_imm(Alu::Sub, Bits::B64, free, width as i32));
        emit.branch(beyond(None), at, free, trap);
    }
}
