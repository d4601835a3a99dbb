//! Packet operations of an entry: its bytes, its metadata, its verdict.

use regalloc2::VReg;

use abi::layout::WINDOW_ADDRESS;

use super::super::insn::{Alu, Bits, Insn, R2, R3};
use super::super::setting::Likely;
use super::super::vcode::{
    AnyAccess, Op as V, Slot, defined, defined_at, defined_early, used, used_late,
};
use super::builder::Builder;
use super::local::{End, PacketEnds};
use super::{Lower, Pointers};
use crate::Flavour;
use crate::ir::{Access, Value, Width};

/// Mask that shows the verifier that an offset in the packet is small.
const WINDOW_MASK: i32 = 0xfff;
/// Shift count with the same effect, to the left and back.
pub(crate) const WINDOW_SHIFT: i32 = 52;
const _: () = assert!(abi::layout::WINDOW_LENGTH_MAX as i32 <= WINDOW_MASK);
const _: () = assert!(u64::MAX >> WINDOW_SHIFT == WINDOW_MASK as u64);

/// Returns the offsets of `data` and `data_end` in the context.
pub(crate) const fn context_fields(flavour: Flavour) -> (i16, i16) {
    match flavour {
        Flavour::Xdp => (0, 4),
        Flavour::Tc => (76, 80),
    }
}

/// Takes over the pointers that the entry's prologue has left in registers.
pub(super) fn take_packet(lower: &mut Lower<'_>) {
    let pointers = Pointers { data: lower.code.register(), data_end: lower.code.register() };
    lower
        .code
        .push(V::Arguments, &[defined_at(pointers.data, R2), defined_at(pointers.data_end, R3)]);
    keep_pointers(lower, pointers);
}

/// Loads the pointers from the context, where the packet may have moved or a function begins.
pub(super) fn take_pointers(lower: &mut Lower<'_>) {
    let pointers = Pointers { data: lower.code.register(), data_end: lower.code.register() };
    let temporary = lower.code.register();
    let op = V::Pointers { reach: lower.setting.reach, keep: is_in_slot(lower) };
    lower.code.push(
        op,
        &[defined_early(pointers.data), defined_early(pointers.data_end), defined_early(temporary)],
    );
    keep_pointers(lower, pointers);
}

fn keep_pointers(lower: &mut Lower<'_>, pointers: Pointers) {
    if is_in_slot(lower) {
        let Pointers { data, data_end } = pointers;
        lower.local.packet = PacketEnds { data: Some(data), data_end: Some(data_end) };
    } else {
        lower.packet = Some(pointers);
    }
}

/// Returns true when the packet's address lies in the frame, because the packet may move; else it
/// is in a register.
pub(super) const fn is_in_slot(lower: &Lower<'_>) -> bool {
    lower.needs.changes_packet
}

pub(super) fn data(lower: &mut Lower<'_>) -> VReg {
    if let Some(pointers) = lower.packet {
        return pointers.data;
    }
    if let Some(data) = lower.local.packet.data {
        return data;
    }
    let data = slot(&mut lower.code, Slot::Data);
    lower.local.packet.data = Some(data);
    data
}

pub(super) fn data_end(lower: &mut Lower<'_>) -> VReg {
    if let Some(pointers) = lower.packet {
        return pointers.data_end;
    }
    if let Some(data_end) = lower.local.packet.data_end {
        return data_end;
    }
    let context = slot(&mut lower.code, Slot::Context);
    let (_, at) = context_fields(lower.setting.flavour);
    let data_end = lower.code.one(Insn::load(Width::Four, false, 0, 0, at), context);
    lower.local.packet.data_end = Some(data_end);
    data_end
}

pub(super) fn hand_over(lower: &mut Lower<'_>) -> VReg {
    if let Some(hand_over) = lower.local.hand_over {
        return hand_over;
    }
    let hand_over = lower.code.register();
    lower.code.push(V::HandOver, &[defined(hand_over)]);
    lower.local.hand_over = Some(hand_over);
    hand_over
}

fn slot(code: &mut Builder<'_>, slot: Slot) -> VReg {
    let result = code.register();
    code.push(V::LoadSlot(slot), &[defined(result)]);
    result
}

pub(super) fn packet_load(lower: &mut Lower<'_>, width: Width, access: &Access) -> VReg {
    let distance = distance(access);
    if let Some((pointer, at)) = known_to_be_there(lower, width, access) {
        return lower.code.one(Insn::load(width, false, 0, 0, at), pointer);
    }
    let end = end_of_range(lower, access.address, distance, distance + width.bytes() as i32);
    let data_end = data_end(lower);
    let address = lower.code.value(access.address);
    let result = lower.code.register();
    let mut operands = vec![defined(result), used(end), used(data_end)];
    if width != Width::One {
        operands.extend([used(address), defined_early(lower.code.register())]);
    }
    lower.code.push(V::WindowLoad { width, distance }, &operands);
    result
}

pub(super) fn packet_store(lower: &mut Lower<'_>, width: Width, value: Value, access: &Access) {
    let distance = distance(access);
    if let Some((pointer, at)) = known_to_be_there(lower, width, access) {
        return lower.code.store_to(width, value, pointer, at);
    }
    let end = end_of_range(lower, access.address, distance, distance + width.bytes() as i32);
    let data_end = data_end(lower);
    let (value, address) = (lower.code.value(value), lower.code.value(access.address));
    let mut operands = vec![used_late(value), used_late(end), used_late(data_end)];
    if width != Width::One {
        operands.extend([used_late(address), defined_early(lower.code.register())]);
    }
    lower.code.push(V::WindowStore { width, distance }, &operands);
}

/// Returns a pointer known to be within the packet, with the access's offset from it, if the module
/// has checked for all of it.
fn known_to_be_there(lower: &Lower<'_>, width: Width, access: &Access) -> Option<(VReg, i16)> {
    let end = lower.local.ends.get(&access.address)?;
    let (pointer, known) = end.known?;
    let distance = distance(access);
    let is_there = end.first <= distance && distance + width.bytes() as i32 <= known;
    is_there.then_some((pointer, i16::try_from(distance - known).ok()?))
}

/// Returns a pointer to the end of a range at the address that is certainly in the window; whether
/// it is in the packet is not checked yet.
///
/// The pointer is derived from the one of an earlier range with the same address, if that ended no
/// farther on: a pointer that the verifier knows to be beyond the packet must not be made smaller
/// (`emit/partial.rs`). Nor does the verifier let an access begin before the position that the
/// first of them was derived from.
pub(super) fn end_of_range(lower: &mut Lower<'_>, address: Value, distance: i32, end: i32) -> VReg {
    let before = lower.local.ends.get(&address).copied();
    let known = before.filter(|before| before.first <= distance).and_then(|end| end.known);
    let (pointer, first) = match before {
        Some(before) if before.first <= distance && before.end == end => {
            (before.pointer, before.first)
        }
        Some(before) if before.first <= distance && before.end < end => {
            let more = end - before.end;
            (lower.code.alu_imm(Alu::Add, Bits::B64, before.pointer, more), before.first)
        }
        _ => {
            // An address with a positive distance is an offset below the window's end.
            let first = distance.min(0);
            let offset = window_offset(lower, address, first);
            let data = data(lower);
            let pointer = lower.code.alu(Alu::Add, Bits::B64, offset, data);
            (lower.code.alu_imm(Alu::Add, Bits::B64, pointer, end - first), first)
        }
    };
    lower.local.ends.insert(address, End { pointer, end, first, known });
    pointer
}

/// Adds address and distance, which is an offset in the window, such that the verifier knows it to
/// be small. Where the address must not be the first operand of a mask (`passes/signs.rs`), it is
/// the second.
fn window_offset(lower: &mut Lower<'_>, address: Value, distance: i32) -> VReg {
    let mut sum = lower.code.value(address);
    if distance != 0 {
        // The constant is the left operand, or the verifier links the sum to the address.
        let constant = lower.code.make(i64::from(distance).cast_unsigned());
        sum = lower.code.alu(Alu::Add, Bits::B64, constant, sum);
    }
    if !is_sign(lower, address) {
        return lower.code.alu_imm(Alu::And, Bits::B64, sum, WINDOW_MASK);
    }
    let mask = lower.code.make(WINDOW_MASK as u64);
    lower.code.alu(Alu::And, Bits::B64, mask, sum)
}

/// Returns true when the verifier may know the value to be -1 or 0: its register must not be
/// masked.
pub(super) fn is_sign(lower: &Lower<'_>, value: Value) -> bool {
    lower.signs.get(value.0 as usize).is_none_or(|&is_sign| is_sign)
}

pub(super) fn any_load(
    lower: &mut Lower<'_>,
    width: Width,
    access: &Access,
    likely: Likely,
) -> VReg {
    let ends = ends(lower, likely);
    let address = lower.code.value(access.address);
    let (result, temporary) = (lower.code.register(), lower.code.register());
    let mut operands = vec![defined_early(result), used_late(address), defined_early(temporary)];
    operands.extend(ends.into_iter().map(used_late));
    lower.code.push(V::AnyLoad(any(&lower.code, width, access, likely)), &operands);
    result
}

pub(super) fn any_store(
    lower: &mut Lower<'_>,
    width: Width,
    value: Value,
    access: &Access,
    likely: Likely,
) {
    let ends = ends(lower, likely);
    let (value, address) = (lower.code.value(value), lower.code.value(access.address));
    let (one, two) = (lower.code.register(), lower.code.register());
    let mut operands =
        vec![used_late(value), used_late(address), defined_early(one), defined_early(two)];
    operands.extend(ends.into_iter().map(used_late));
    lower.code.push(V::AnyStore(any(&lower.code, width, access, likely)), &operands);
}

/// Returns the packet's ends in registers, where the packet is the first guess.
fn ends(lower: &mut Lower<'_>, likely: Likely) -> Vec<VReg> {
    match likely {
        Likely::Window => vec![data(lower), data_end(lower)],
        Likely::Below | Likely::Above => Vec::new(),
    }
}

const fn any(code: &Builder<'_>, width: Width, access: &Access, likely: Likely) -> AnyAccess {
    AnyAccess { width, offset: access.offset, likely, place: code.place() }
}

pub(super) fn check_verdict(code: &mut Builder<'_>, value: VReg) {
    let temporary = code.register();
    code.push(V::CheckVerdict, &[used_late(value), defined_early(temporary)]);
}

/// Returns the number that turns an address into an offset in the packet when it is added.
const fn distance(access: &Access) -> i32 {
    // Below 2^31 as the plan has made sure.
    (access.offset as i32).wrapping_sub(WINDOW_ADDRESS as i32)
}
