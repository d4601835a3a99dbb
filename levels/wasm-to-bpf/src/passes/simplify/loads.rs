//! Loads: reuse of earlier loads, and the ranges of loaded values.

use abi::layout::{META_ADDRESS, META_LENGTH};

use super::Simplifier;
use super::bytes::Place;
use super::facts::Key;
use super::range::Range;
use super::versions::class;
use crate::ir::{Access, Op, Region, Type, Value, Width};
use crate::passes::fold::ones;

/// First address of the metadata, and the end.
pub(super) const METADATA: (u64, u64) =
    (META_ADDRESS as u64, META_ADDRESS as u64 + META_LENGTH as u64);
/// Offsets of the metadata fields whose range is known.
const PACKET_LENGTH: u64 = 0;
const WINDOW_LENGTH: u64 = 4;
pub(super) fn load(
    it: &mut Simplifier<'_>,
    result: Value,
    width: Width,
    signed: bool,
    access: Access,
) {
    let ty = it.facts.type_of(result);
    let range = loaded(it, width, signed, &access, ty);
    let key = access_key(it, width, signed, &access, ty);
    reuse(it, result, Op::Load { width, signed, access }, key);
    if it.facts.find(result) == result {
        it.facts.define_range(result, range);
        let at = it.facts.constant(access.address).map(|base| base + u64::from(access.offset));
        if width == Width::Four && at == Some(METADATA.0 + WINDOW_LENGTH) {
            it.lengths.push(result);
        }
        it.versions.handle_load(result, access.region);
    }
}

/// Returns the range of a value loaded there.
fn loaded(it: &Simplifier<'_>, width: Width, signed: bool, access: &Access, ty: Type) -> Range {
    if signed {
        return Range::full(ty);
    }
    let high = ones(Type::I64) >> (64 - 8 * width.bytes());
    let place = it.facts.constant(access.address).map(|base| base + u64::from(access.offset));
    let is_new = it.surroundings.is_entry && it.versions.is_metadata_new();
    let field = match (access.region, width) {
        (Region::Metadata, Width::Four) if is_new => place.map(|place| place - METADATA.0),
        _ => None,
    };
    match (field, it.surroundings.window) {
        (Some(PACKET_LENGTH), _) => {
            Range { low: 1, high: u64::from(abi::layout::PACKET_LENGTH_MAX) }
        }
        (Some(WINDOW_LENGTH), Some(window)) => Range::up_to(u64::from(window)),
        _ => Range::up_to(high.min(ones(ty))),
    }
}

/// Loads bytes that were all loaded before, without a check.
pub(super) fn load_again(it: &mut Simplifier<'_>, place: &Place, width: Width, ty: Type) -> Value {
    let (address, offset) = match place.address {
        Some(address) => (address, place.offset),
        None => (it.number(u64::from(place.offset), Type::I32), 0),
    };
    let access = Access { address, offset, region: place.region, bounds_check: false };
    let result = it.facts.value(ty);
    load(it, result, width, false, access);
    it.facts.find(result)
}

/// Reuses the earlier value, or emits the operation.
pub(super) fn reuse(it: &mut Simplifier<'_>, result: Value, op: Op, key: Key) {
    match it.facts.computed(&key) {
        Some(value) => it.facts.set_alias(result, value),
        None => {
            it.append(&[result], op.clone());
            it.facts.define(result, op);
            it.facts.remember(key, result);
        }
    }
}

pub(super) fn access_key(
    it: &Simplifier<'_>,
    width: Width,
    signed: bool,
    access: &Access,
    ty: Type,
) -> Key {
    let version = it.versions.version(access.region);
    let region = class(access.region).map_or(9, |class| class as u64);
    let detail = width.bytes() as u8 | u8::from(signed) << 7;
    Key {
        what: (8, detail, ty),
        operands: [u64::from(access.address.0), u64::from(access.offset), region],
        version,
    }
}
