//! Byte shuffles, as `from_be_bytes` and `swap_bytes` compile to: shifts, masks and rotations that
//! swap the bytes of a value, and single bytes of memory that are combined.

use super::Simplifier;
use crate::ir::{BinaryOp, Op, Region, Type, UnaryOp, Value, Width};
use crate::passes::fold::bits;

/// Most operations that are followed: a swap of 8 bytes has about 20.
const STEPS_MAX: u32 = 64;

/// Origin of each byte of a value, the lowest first: a byte of the source by its number, or zero.
type Bytes = [Option<u32>; 8];

/// Source of the bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    /// Value, whose bytes are numbered from the lowest.
    Value(Value),
    /// Memory, whose bytes are numbered by the offset from an address, or from 0.
    Memory(Option<Value>, Region),
}

/// Result for a value that is only a byte shuffle.
pub(super) enum Moved {
    /// All bytes of another value in reverse order.
    Swapped(Value),
    /// Low two bytes in reverse order, the others zero.
    Swapped16(Value),
    /// Bytes of memory, perhaps in reverse order, the others zero.
    Loaded { place: Place, width: Width, is_swapped: bool },
}

/// Address of bytes in memory that were loaded one by one, without a check.
pub(super) struct Place {
    /// Base; without one the offset is the address.
    pub(super) address: Option<Value>,
    pub(super) offset: u32,
    pub(super) region: Region,
}

/// Traces `op`, of type `ty`, to the source of its bytes. Only the low `demanded` bytes matter.
pub(super) fn moved(
    simplifier: &Simplifier<'_>,
    op: &Op,
    ty: Type,
    demanded: u32,
) -> Option<Moved> {
    match op {
        Op::Binary(BinaryOp::Or | BinaryOp::Add | BinaryOp::Xor, ..) => {}
        Op::Binary(BinaryOp::And, ..) => return swapped(simplifier, op, ty, demanded),
        _ => return None,
    }
    swapped(simplifier, op, ty, demanded).or_else(|| loaded(simplifier, op, ty, demanded))
}

fn swapped(simplifier: &Simplifier<'_>, op: &Op, ty: Type, demanded: u32) -> Option<Moved> {
    let mut search = Search { simplifier, source: None, steps: 0, in_memory: false };
    let bytes = search.op(op, ty)?;
    let Some(Source::Value(source)) = search.source else { return None };
    if simplifier.facts.type_of(source) != ty {
        return None;
    }
    if falls(&bytes, bits(ty) / 8, demanded, 0) {
        Some(Moved::Swapped(source))
    } else if falls(&bytes, 2, demanded, 0) {
        Some(Moved::Swapped16(source))
    } else {
        None
    }
}

fn loaded(simplifier: &Simplifier<'_>, op: &Op, ty: Type, demanded: u32) -> Option<Moved> {
    let mut search = Search { simplifier, source: None, steps: 0, in_memory: true };
    let bytes = search.op(op, ty)?;
    let Some(Source::Memory(address, region)) = search.source else { return None };
    let widths = [(2, Width::Two), (4, Width::Four), (8, Width::Eight)];
    let first = bytes[0]?;
    widths.into_iter().filter(|(count, _)| *count <= bits(ty) / 8).find_map(|(count, width)| {
        let last = bytes[count as usize - 1]?;
        let offset = first.min(last);
        let is_swapped = falls(&bytes, count, demanded, offset);
        let place = Place { address, offset, region };
        let fits = is_swapped || rises(&bytes, count, demanded, offset);
        fits.then_some(Moved::Loaded { place, width, is_swapped })
    })
}

/// Returns true when the low `count` bytes are those from `begin` on in reverse order, and the
/// others zero.
fn falls(bytes: &Bytes, count: u32, demanded: u32, begin: u32) -> bool {
    let wanted =
        (0..demanded).map(|place| (place < count).then(|| begin.wrapping_add(count - 1 - place)));
    wanted.eq(bytes.iter().copied().take(demanded as usize))
}

/// Returns true when the low `count` bytes are those from `begin` on in order, and the others zero.
fn rises(bytes: &Bytes, count: u32, demanded: u32, begin: u32) -> bool {
    let wanted = (0..demanded).map(|place| (place < count).then_some(begin.wrapping_add(place)));
    wanted.eq(bytes.iter().copied().take(demanded as usize))
}

struct Search<'s, 'f> {
    simplifier: &'s Simplifier<'f>,
    source: Option<Source>,
    steps: u32,
    /// True if loads are split into bytes.
    in_memory: bool,
}

impl Search<'_, '_> {
    fn value(&mut self, value: Value) -> Option<Bytes> {
        let ty = self.simplifier.facts.type_of(value);
        self.steps += 1;
        if self.steps < STEPS_MAX
            && let Some(op) = self.simplifier.facts.definition(value)
        {
            let before = self.source;
            if let Some(bytes) = self.op(op, ty) {
                return Some(bytes);
            }
            self.source = before;
        }
        if self.in_memory { self.byte_of_memory(value) } else { self.leaf(value, ty) }
    }

    /// Returns the bytes of a load, if memory is unchanged since.
    fn byte_of_memory(&mut self, value: Value) -> Option<Bytes> {
        let Some(Op::Load { width, signed: false, access }) =
            self.simplifier.facts.definition(value)
        else {
            return None;
        };
        let (address, first) = match self.simplifier.facts.constant(access.address) {
            Some(number) => (None, u32::try_from(number).ok()?.checked_add(access.offset)?),
            None => (Some(access.address), access.offset),
        };
        let source = Source::Memory(address, access.region);
        let same = *self.source.get_or_insert(source) == source;
        if !same
            || access.bounds_check
            || !self.simplifier.versions.is_still_there(value, access.region)
        {
            return None;
        }
        let mut bytes = [None; 8];
        for place in 0..width.bytes() {
            bytes[place as usize] = Some(first.checked_add(place)?);
        }
        Some(bytes)
    }

    /// Returns the bytes of the source itself; there is only one source.
    fn leaf(&mut self, value: Value, ty: Type) -> Option<Bytes> {
        let source = Source::Value(value);
        if *self.source.get_or_insert(source) != source {
            return None;
        }
        let high = self.simplifier.facts.range(value).high;
        let mut bytes = [None; 8];
        for place in 0..bits(ty) / 8 {
            if high >> (8 * place) != 0 {
                bytes[place as usize] = Some(place);
            }
        }
        Some(bytes)
    }

    fn op(&mut self, op: &Op, ty: Type) -> Option<Bytes> {
        let width = (bits(ty) / 8) as usize;
        match op {
            Op::Binary(BinaryOp::And, a, b) => {
                let mask = self.simplifier.facts.constant(*b)?;
                masked(self.value(*a)?, mask)
            }
            Op::Binary(BinaryOp::Or | BinaryOp::Add | BinaryOp::Xor, a, b) => {
                joined(self.value(*a)?, self.value(*b)?)
            }
            Op::Binary(op @ (BinaryOp::Shl | BinaryOp::ShrU | BinaryOp::Rotl), a, by) => {
                let by = (self.simplifier.facts.constant(*by)? % u64::from(bits(ty))) as usize;
                if !by.is_multiple_of(8) {
                    return None;
                }
                let bytes = self.value(*a)?;
                Some(shifted(*op, bytes, by / 8, width))
            }
            Op::ExtendUnsigned(a) => self.value(*a),
            Op::Wrap(a) => {
                let mut bytes = self.value(*a)?;
                bytes[4..].fill(None);
                Some(bytes)
            }
            Op::Unary(UnaryOp::ByteSwap, a) => {
                let mut bytes = self.value(*a)?;
                bytes[..width].reverse();
                Some(bytes)
            }
            Op::Unary(UnaryOp::ByteSwap16, a) => {
                let mut bytes = self.value(*a)?;
                bytes[..2].reverse();
                bytes[2..].fill(None);
                Some(bytes)
            }
            _ => None,
        }
    }
}

/// Applies a mask that keeps or clears whole bytes.
fn masked(mut bytes: Bytes, mask: u64) -> Option<Bytes> {
    for (place, byte) in bytes.iter_mut().enumerate() {
        match mask >> (8 * place) & 0xff {
            0 => *byte = None,
            0xff => {}
            _ if byte.is_none() => {}
            _ => return None,
        }
    }
    Some(bytes)
}

/// Combines two values that have no byte in common.
fn joined(mut bytes: Bytes, other: Bytes) -> Option<Bytes> {
    for (byte, other) in bytes.iter_mut().zip(other) {
        match (&byte, other) {
            (_, None) => {}
            (None, Some(_)) => *byte = other,
            (Some(_), Some(_)) => return None,
        }
    }
    Some(bytes)
}

fn shifted(op: BinaryOp, bytes: Bytes, by: usize, width: usize) -> Bytes {
    let mut moved = [None; 8];
    for (place, byte) in bytes.into_iter().take(width).enumerate() {
        let to = match op {
            BinaryOp::Shl => place + by,
            BinaryOp::Rotl => (place + by) % width,
            _ => match place.checked_sub(by) {
                Some(to) => to,
                None => continue,
            },
        };
        if to < width {
            moved[to] = byte;
        }
    }
    moved
}
