//! Operations with effects: the region of an access, whether it needs a check, and the facts that
//! remain valid after it.

use abi::layout::WINDOW_ADDRESS;

use super::facts::Key;
use super::range::Range;
use super::rules::Simpler;
use super::{Simplifier, loads, rules};
use crate::ir::{Access, BinaryOp, Op, Region, Type, Value, Width};
use crate::passes::fold::ones;

/// Size of a page, bytes.
const PAGE_LENGTH: u64 = 65_536;
/// Distance of the bases of sums: the range of an instruction's offset.
const BASE_STEP: u64 = 0x8000;
/// Most sums that are followed from an address to the stack pointer.
const SUMS_MAX: usize = 8;

/// Simplifies an operation with an effect, or one that depends on effects.
pub(super) fn access(it: &mut Simplifier<'_>, op: Op, results: &[Value]) {
    match op {
        Op::Load { width, signed, access } => {
            let access = place_of(it, access, width);
            if let [result] = results[..] {
                loads::load(it, result, width, signed, access);
            }
        }
        Op::Store { width, value, access } => {
            let access = place_of(it, access, width);
            let value = stored(it, value, width);
            store(it, width, value, access);
        }
        Op::GlobalGet(_) => {
            if let [result] = results[..] {
                it.facts.define(result, op.clone());
            }
            it.append(results, op);
        }
        Op::MemorySize => {
            if let [result] = results[..] {
                memory_size(it, result);
            }
        }
        other => {
            it.versions.write(&other, it.premises.keeps_metadata);
            it.append(results, other);
        }
    }
}

/// Returns the access with the simplest address, its region and its bounds check; learns from the
/// check about the address.
fn place_of(it: &mut Simplifier<'_>, access: Access, width: Width) -> Access {
    let Access { mut address, mut offset, .. } = access;
    while let Some((base, more)) = without_number(it, address, offset) {
        address = base;
        offset = more;
    }
    if let Some(number) = it.facts.constant(address)
        && let Ok(sum) = u32::try_from(number + u64::from(offset))
    {
        address = it.number(u64::from(sum), Type::I32);
        offset = 0;
    }
    if access.region == Region::Behind {
        return Access { address, offset, ..access };
    }
    let end = u64::from(offset) + u64::from(width.bytes());
    let (low, high) = (it.facts.range(address).low, it.facts.range(address).high);
    let region = match access.region {
        Region::Unknown { .. } => region(it, low + u64::from(offset), high + end, address),
        known => known,
    };
    let memory = it.surroundings.memory;
    let (least, most) = memory.map_or((0, 0), |memory| {
        (u64::from(memory.pages_min) * PAGE_LENGTH, u64::from(memory.pages_max) * PAGE_LENGTH)
    });
    if region == Region::Memory
        && let Some((base, more)) = common_base(it, address, offset)
    {
        (address, offset) = (base, more);
    }
    let end = u64::from(offset) + u64::from(width.bytes());
    let high = it.facts.range(address).high;
    let is_within = high + end <= least || it.facts.is_checked(address, end);
    if !is_within {
        it.facts.check(address, end, most.checked_sub(end));
    }
    Access { address, offset, region, bounds_check: access.bounds_check && !is_within }
}

/// Turns `x + c` with an offset into `x` with a larger offset if nothing overflows.
fn without_number(it: &Simplifier<'_>, address: Value, offset: u32) -> Option<(Value, u32)> {
    let Some(&Op::Binary(BinaryOp::Add, x, c)) = it.facts.definition(address) else { return None };
    let c = it.facts.constant(c)?;
    let fits = it.facts.range(x).high + c <= ones(Type::I32);
    let offset = u64::from(offset) + c;
    (fits && it.facts.constant(address).is_none()).then_some(())?;
    Some((x, u32::try_from(offset).ok()?))
}

/// Splits `x + c` into a sum with a round constant and an offset, where nothing shows that `x`
/// alone is an address: accesses close to each other then have one base.
fn common_base(it: &mut Simplifier<'_>, address: Value, offset: u32) -> Option<(Value, u32)> {
    let Some(&Op::Binary(BinaryOp::Add, x, c)) = it.facts.definition(address) else { return None };
    let (c, low) = (it.facts.constant(c)?, it.facts.range(address).low);
    let more = c % BASE_STEP;
    let fits = more > 0 && more <= low && it.facts.constant(address).is_none();
    let offset = u32::try_from(u64::from(offset) + more).ok().filter(|_| fits)?;
    let c = it.number(c - more, Type::I32);
    Some((it.compute(Op::Binary(BinaryOp::Add, x, c), Type::I32, None), offset))
}

fn region(it: &Simplifier<'_>, low: u64, end: u64, address: Value) -> Region {
    let Some(window) = it.surroundings.window else { return Region::Memory };
    if it.surroundings.memory.is_none_or(|memory| memory.pages_min == 0) {
        return Region::Memory;
    }
    let window = (u64::from(WINDOW_ADDRESS), u64::from(WINDOW_ADDRESS) + u64::from(window));
    let inside = |(from, to): (u64, u64)| from <= low && end <= to;
    let apart = |(from, to): (u64, u64)| end <= from || low >= to;
    if inside(window) {
        Region::Window
    } else if inside(loads::METADATA) {
        Region::Metadata
    } else if apart(window) && apart(loads::METADATA) || it.facts.constant(address).is_some() {
        // A constant address on an edge means the memory, too.
        Region::Memory
    } else {
        Region::Unknown { below: is_stack(it, address) }
    }
}

/// Returns true when an address is derived from the stack pointer: a global below the metadata.
fn is_stack(it: &Simplifier<'_>, address: Value) -> bool {
    let mut base = address;
    for _ in 0..SUMS_MAX {
        match it.facts.definition(base) {
            Some(Op::Binary(BinaryOp::Add, inner, _)) => base = *inner,
            Some(Op::GlobalGet(global)) => {
                let global = it.surroundings.globals.get(*global as usize);
                return global.is_some_and(|global| global.initial <= loads::METADATA.0);
            }
            _ => return false,
        }
    }
    false
}

/// Returns the part of the value that the store writes.
fn stored(it: &mut Simplifier<'_>, value: Value, width: Width) -> Value {
    let ty = it.facts.type_of(value);
    let mask = ones(Type::I64) >> (64 - 8 * width.bytes());
    let mut value = value;
    while let Some(&Op::Binary(BinaryOp::And, x, c)) = it.facts.definition(value)
        && it.facts.constant(c).is_some_and(|c| c & mask == mask)
    {
        value = x;
    }
    if let Some(op) = it.facts.definition(value).cloned()
        && mask != ones(ty)
        && let Some(Simpler::Do(op)) = rules::moved_bytes(it, &op, ty, width.bytes())
    {
        return it.compute(op, ty, None);
    }
    value
}

fn store(it: &mut Simplifier<'_>, width: Width, value: Value, access: Access) {
    let op = Op::Store { width, value, access };
    it.versions.write(&op, it.premises.keeps_metadata);
    let ty = it.facts.type_of(value);
    let whole = matches!((ty, width), (Type::I32, Width::Four) | (Type::I64, Width::Eight));
    if whole && matches!(access.region, Region::Memory | Region::Behind) {
        let key = loads::access_key(it, width, false, &access, ty);
        it.facts.remember(key, value);
    }
    it.append(&[], op);
}

fn memory_size(it: &mut Simplifier<'_>, result: Value) {
    match it.surroundings.memory {
        Some(memory) if memory.pages_min == memory.pages_max => {
            let pages = it.number(u64::from(memory.pages_min), Type::I32);
            it.facts.set_alias(result, pages);
        }
        memory => {
            let version = it.versions.of_size();
            let key = Key { what: (10, 0, Type::I32), operands: [0; 3], version };
            loads::reuse(it, result, Op::MemorySize, key);
            if let (Some(memory), true) = (memory, it.facts.find(result) == result) {
                let (low, high) = (u64::from(memory.pages_min), u64::from(memory.pages_max));
                it.facts.define_range(result, Range { low, high });
            }
        }
    }
}
