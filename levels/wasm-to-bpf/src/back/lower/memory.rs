//! Linear memory: addresses become arena pointers, with a comparison in front where nothing else
//! shows that they lie within the memory.

use regalloc2::VReg;

use super::super::host::OUTSIDE;
use super::super::insn::{Alu, Bits, Insn, Test};
use super::super::setting::Target;
use super::super::subprogram::Subprogram;
use super::super::vcode::{Condition, Op as V};
use super::builder::Builder;
use super::local::Base;
use super::{Lower, calls, packet};
use crate::TrapCode;
use crate::ir::{Access, Region, Type, Value, Width};
use crate::layout;

/// Part of an offset that fits the 16-bit offset of a load; the rest is added to the base.
const OFFSET_MASK: u64 = 0x7fff;
/// Shift of 64 KiB.
const PAGE_SHIFT: i32 = 16;

pub(super) fn load(
    lower: &mut Lower<'_>,
    width: Width,
    signed: bool,
    access: &Access,
    ty: Type,
) -> VReg {
    // A sign-extended i32 is zero-extended afterwards: two instructions either way.
    let in_load = signed && ty == Type::I64 && width != Width::Eight;
    let plain = match lower.setting.target(access, width, lower.code.function(), lower.code.facts())
    {
        Target::Memory => {
            let (base, off) = memory_base(lower, access, width);
            return finish_load(&mut lower.code, width, signed, in_load, ty, base, off);
        }
        Target::Packet(at) => {
            let data = packet::data(lower);
            return finish_load(&mut lower.code, width, signed, in_load, ty, data, at);
        }
        Target::Metadata(at) => {
            let hand_over = packet::hand_over(lower);
            let at = at + layout::hand_over::METADATA as i16;
            return finish_load(&mut lower.code, width, signed, in_load, ty, hand_over, at);
        }
        Target::PacketDynamic => packet::packet_load(lower, width, access),
        Target::Any(likely) => packet::any_load(lower, width, access, likely),
    };
    extend(&mut lower.code, width, signed, ty, plain)
}

fn finish_load(
    code: &mut Builder<'_>,
    width: Width,
    signed: bool,
    in_load: bool,
    ty: Type,
    base: VReg,
    off: i16,
) -> VReg {
    let loaded = code.one(Insn::load(width, in_load, 0, 0, off), base);
    if in_load { loaded } else { extend(code, width, signed, ty, loaded) }
}

fn extend(code: &mut Builder<'_>, width: Width, signed: bool, ty: Type, loaded: VReg) -> VReg {
    let bits = match ty {
        Type::I32 => Bits::B32,
        Type::I64 => Bits::B64,
    };
    let from = match width {
        Width::One => 8,
        Width::Two => 16,
        Width::Four if ty == Type::I64 => 32,
        Width::Four | Width::Eight => return loaded,
    };
    if signed { code.one(Insn::mov_signed(bits, from, 0, 0), loaded) } else { loaded }
}

pub(super) fn store(lower: &mut Lower<'_>, width: Width, value: Value, access: &Access) {
    match lower.setting.target(access, width, lower.code.function(), lower.code.facts()) {
        Target::Memory => {
            let (base, off) = memory_base(lower, access, width);
            lower.code.store_to(width, value, base, off);
        }
        Target::Packet(at) => {
            let data = packet::data(lower);
            lower.code.store_to(width, value, data, at);
        }
        Target::Metadata(at) => {
            let hand_over = packet::hand_over(lower);
            lower.code.store_to(width, value, hand_over, at + layout::hand_over::METADATA as i16);
        }
        Target::PacketDynamic => packet::packet_store(lower, width, value, access),
        Target::Any(likely) => packet::any_store(lower, width, value, access, likely),
    }
}

/// Returns an arena pointer and the offset of the load or store. Afterwards the access is within
/// the memory, or the call has trapped.
fn memory_base(lower: &mut Lower<'_>, access: &Access, width: Width) -> (VReg, i16) {
    if let Some(constant) = lower.code.constant(access.address) {
        let address = constant + u64::from(access.offset);
        let end = address + u64::from(width.bytes());
        if end > lower.setting.memory_min && access.region != Region::Behind {
            check_constant(lower, end, access.bounds_check);
        }
        let upper = (address & !OFFSET_MASK) as u32;
        let base = base(lower, Base::Constant, upper, |lower| lower.code.make(u64::from(upper)));
        return (base, (address & OFFSET_MASK) as i16);
    }
    let address = lower.code.value(access.address);
    if access.bounds_check {
        check(lower, address, access.offset, width);
    }
    let upper = access.offset & !(OFFSET_MASK as u32);
    let base = sum_base(lower, address, upper);
    (base, (access.offset & OFFSET_MASK as u32) as i16)
}

/// Returns the arena pointer of that address, cast once in a block.
fn base(
    lower: &mut Lower<'_>,
    base: Base,
    upper: u32,
    address: impl FnOnce(&mut Lower<'_>) -> VReg,
) -> VReg {
    if let Some(&cast) = lower.local.bases.get(&(base, upper)) {
        return cast;
    }
    let address = address(lower);
    let cast = lower.code.one(Insn::cast(0, 0), address);
    lower.local.bases.insert((base, upper), cast);
    cast
}

/// Returns the arena pointer of a sum. Adds to the pointer, which avoids copying an address that is
/// still live: a sum of 32 bits is a pointer again.
fn sum_base(lower: &mut Lower<'_>, address: VReg, upper: u32) -> VReg {
    let key = (Base::Register(address.vreg()), upper);
    if let Some(&cast) = lower.local.bases.get(&key) {
        return cast;
    }
    let cast = base(lower, Base::Register(address.vreg()), 0, |_| address);
    if upper == 0 {
        return cast;
    }
    let sum = lower.code.alu_imm(Alu::Add, Bits::B32, cast, upper as i32);
    lower.local.bases.insert(key, sum);
    sum
}

/// Checks a constant end beyond the initial memory.
fn check_constant(lower: &mut Lower<'_>, end: u64, bounds_check: bool) {
    if end > lower.setting.memory_max {
        lower.trap_now(TrapCode::OutOfBounds);
    } else if bounds_check {
        let size = memory_bytes(lower);
        let condition = Condition { test: Test::LtU, bits: Bits::B64, immediate: Some(end as i32) };
        lower.trap_where(condition, &[size], TrapCode::OutOfBounds);
    }
}

fn check(lower: &mut Lower<'_>, address: VReg, offset: u32, width: Width) {
    let end = u64::from(offset) + u64::from(width.bytes());
    if end > lower.setting.memory_max {
        return lower.trap_now(TrapCode::OutOfBounds);
    }
    if lower.setting.memory_min == lower.setting.memory_max {
        return check_fixed(lower, address, end);
    }
    // The sum is at most 16 MiB + 8 and fits.
    let past = lower.code.alu_imm(Alu::Add, Bits::B64, address, end as i32);
    let size = memory_bytes(lower);
    let condition = Condition { test: Test::GtU, bits: Bits::B64, immediate: None };
    lower.trap_where(condition, &[past, size], TrapCode::OutOfBounds);
}

/// Checks by a comparison of the pointer, of which the verifier knows nothing: compared as a
/// number, every check would create another range for it to follow.
fn check_fixed(lower: &mut Lower<'_>, address: VReg, end: u64) {
    let pointer = base(lower, Base::Register(address.vreg()), 0, |_| address);
    let limit = lower.setting.memory_max - end;
    let condition =
        Condition { test: Test::GtU, bits: Bits::B32, immediate: Some(limit as u32 as i32) };
    lower.trap_where(condition, &[pointer], TrapCode::OutOfBounds);
}

/// Returns the size in bytes of a memory that grows.
fn memory_bytes(lower: &mut Lower<'_>) -> VReg {
    if let Some(size) = lower.local.size {
        return size;
    }
    let block = lower.block_address();
    let size = lower.code.load_field(Width::Eight, block, layout::MEMORY_BYTES);
    lower.local.size = Some(size);
    size
}

pub(super) fn memory_size(lower: &mut Lower<'_>) -> VReg {
    if lower.setting.memory_min == lower.setting.memory_max {
        return lower.code.make(lower.setting.memory_max >> PAGE_SHIFT);
    }
    let size = memory_bytes(lower);
    lower.code.alu_imm(Alu::ShrU, Bits::B64, size, PAGE_SHIFT)
}

/// Grows the memory by moving its limit: all pages up to its maximum are allocated already.
pub(super) fn memory_grow(lower: &mut Lower<'_>, pages: Value) -> VReg {
    let size = memory_bytes(lower);
    let more = lower.code.value(pages);
    let more = lower.code.alu_imm(Alu::Shl, Bits::B64, more, PAGE_SHIFT);
    let grown = lower.code.alu(Alu::Add, Bits::B64, size, more);
    let fits = Condition {
        test: Test::LeU,
        bits: Bits::B64,
        immediate: Some(lower.setting.memory_max as i32),
    };
    let before = lower.code.alu_imm(Alu::ShrU, Bits::B64, size, PAGE_SHIFT);
    let failed = lower.code.make(u64::from(u32::MAX));
    let result = lower.code.keep_if(fits, &[grown], before, Ok(failed));
    let size = lower.code.keep_if(fits, &[grown], grown, Ok(size));
    lower.store_field(layout::MEMORY_BYTES, size);
    lower.local.size = None;
    result
}

pub(super) fn memory_copy(lower: &mut Lower<'_>, to: Value, from: Value, length: Value) {
    in_bulk(lower, Subprogram::MemoryCopy, [to, from, length]);
}

pub(super) fn memory_fill(lower: &mut Lower<'_>, to: Value, byte: Value, length: Value) {
    in_bulk(lower, Subprogram::MemoryFill, [to, byte, length]);
}

/// Calls a subprogram, which returns the reason of a failure.
fn in_bulk(lower: &mut Lower<'_>, subprogram: Subprogram, values: [Value; 3]) {
    let takes_context = lower.setting.has_packet();
    let result = calls::call_with(lower, V::CallHost(subprogram), takes_context, &values);
    let is = |test, answer| Condition { test, bits: Bits::B32, immediate: Some(answer) };
    lower.trap_where(is(Test::Eq, OUTSIDE), &[result], TrapCode::OutOfBounds);
    lower.trap_where(is(Test::Ne, 0), &[result], TrapCode::OutOfFuel);
}
