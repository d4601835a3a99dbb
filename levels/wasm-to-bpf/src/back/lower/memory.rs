//! Linear memory: addresses become arena pointers, with a comparison in front
//! where nothing else shows that they lie within the memory.

use regalloc2::VReg;

use super::super::host::OUTSIDE;
use super::super::insn::{Alu, Bits, Insn, Test};
use super::super::setting::Target;
use super::super::subprogram::Subprogram;
use super::super::vcode::{Condition, Op as V, used};
use super::{Base, Lower};
use crate::TrapCode;
use crate::ir::{Access, Region, Type, Value, Width};
use crate::layout;

/// What the 16-bit offset of a load reaches; the rest of the offset is added to the base.
const OFFSET_MASK: u64 = 0x7fff;
/// 64 KiB, as a shift.
const PAGE_SHIFT: i32 = 16;

impl Lower<'_> {
    pub(super) fn load(&mut self, width: Width, signed: bool, access: &Access, ty: Type) -> VReg {
        // A sign-extended i32 is zero-extended afterwards: two instructions either way.
        let in_load = signed && ty == Type::I64 && width != Width::Eight;
        let plain = match self.setting.target(access, width, self.function, &self.facts) {
            Target::Memory => {
                let (base, off) = self.memory_base(access, width);
                return self.finish_load(width, signed, in_load, ty, base, off);
            }
            Target::Packet(at) => {
                let data = self.data();
                return self.finish_load(width, signed, in_load, ty, data, at);
            }
            Target::Metadata(at) => {
                let hand_over = self.hand_over();
                let at = at + layout::hand_over::METADATA as i16;
                return self.finish_load(width, signed, in_load, ty, hand_over, at);
            }
            Target::PacketDynamic => self.packet_load(width, access),
            Target::Any(likely) => self.any_load(width, access, likely),
        };
        self.extend(width, signed, ty, plain)
    }

    fn finish_load(
        &mut self,
        width: Width,
        signed: bool,
        in_load: bool,
        ty: Type,
        base: VReg,
        off: i16,
    ) -> VReg {
        let loaded = self.one(Insn::load(width, in_load, 0, 0, off), base);
        if in_load { loaded } else { self.extend(width, signed, ty, loaded) }
    }

    fn extend(&mut self, width: Width, signed: bool, ty: Type, loaded: VReg) -> VReg {
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
        if signed { self.one(Insn::mov_signed(bits, from, 0, 0), loaded) } else { loaded }
    }

    pub(super) fn store(&mut self, width: Width, value: Value, access: &Access) {
        match self.setting.target(access, width, self.function, &self.facts) {
            Target::Memory => {
                let (base, off) = self.memory_base(access, width);
                self.store_to(width, value, base, off);
            }
            Target::Packet(at) => {
                let data = self.data();
                self.store_to(width, value, data, at);
            }
            Target::Metadata(at) => {
                let hand_over = self.hand_over();
                self.store_to(width, value, hand_over, at + layout::hand_over::METADATA as i16);
            }
            Target::PacketDynamic => self.packet_store(width, value, access),
            Target::Any(likely) => self.any_store(width, value, access, likely),
        }
    }

    pub(super) fn store_to(&mut self, width: Width, value: Value, base: VReg, off: i16) {
        let immediate = self.constant(value).and_then(|constant| match width {
            Width::Eight => i32::try_from(constant as i64).ok(),
            _ => Some(constant as u32 as i32),
        });
        if let Some(immediate) = immediate {
            let insn = Insn::store_imm(width, 0, off, immediate);
            self.push(V::One { insn, dst: Some(0), src: None }, &[used(base)]);
        } else {
            let value = self.value(value);
            let insn = Insn::store(width, 0, 0, off);
            self.push(V::One { insn, dst: Some(0), src: Some(1) }, &[used(base), used(value)]);
        }
    }

    /// An arena pointer and what a load or store adds to it. After this the
    /// access is within the memory, or the call has trapped.
    fn memory_base(&mut self, access: &Access, width: Width) -> (VReg, i16) {
        if let Some(constant) = self.constant(access.address) {
            let address = constant + u64::from(access.offset);
            let end = address + u64::from(width.bytes());
            if end > self.setting.memory_min && access.region != Region::Behind {
                self.check_constant(end, access.bounds_check);
            }
            let upper = (address & !OFFSET_MASK) as u32;
            let base = self.base(Base::Constant, upper, |lower| lower.make(u64::from(upper)));
            return (base, (address & OFFSET_MASK) as i16);
        }
        let address = self.value(access.address);
        if access.bounds_check {
            self.check(address, access.offset, width);
        }
        let upper = access.offset & !(OFFSET_MASK as u32);
        let base = self.sum_base(address, upper);
        (base, (access.offset & OFFSET_MASK as u32) as i16)
    }

    /// The arena pointer of that address, cast once in a block.
    fn base(&mut self, base: Base, upper: u32, address: impl FnOnce(&mut Self) -> VReg) -> VReg {
        if let Some(&cast) = self.local.bases.get(&(base, upper)) {
            return cast;
        }
        let address = address(self);
        let cast = self.one(Insn::cast(0, 0), address);
        self.local.bases.insert((base, upper), cast);
        cast
    }

    /// The arena pointer of a sum. The pointer is added to, which spares copying an address that
    /// is still needed: a sum of 32 bits is a pointer again.
    fn sum_base(&mut self, address: VReg, upper: u32) -> VReg {
        let key = (Base::Register(address.vreg()), upper);
        if let Some(&cast) = self.local.bases.get(&key) {
            return cast;
        }
        let cast = self.base(Base::Register(address.vreg()), 0, |_| address);
        if upper == 0 {
            return cast;
        }
        let sum = self.alu_imm(Alu::Add, Bits::B32, cast, upper as i32);
        self.local.bases.insert(key, sum);
        sum
    }

    /// A constant end beyond what the memory begins with.
    fn check_constant(&mut self, end: u64, bounds_check: bool) {
        if end > self.setting.memory_max {
            self.trap_now(TrapCode::OutOfBounds);
        } else if bounds_check {
            let size = self.memory_bytes();
            let condition =
                Condition { test: Test::LtU, bits: Bits::B64, immediate: Some(end as i32) };
            self.trap_where(condition, &[size], TrapCode::OutOfBounds);
        }
    }

    fn check(&mut self, address: VReg, offset: u32, width: Width) {
        let end = u64::from(offset) + u64::from(width.bytes());
        if end > self.setting.memory_max {
            return self.trap_now(TrapCode::OutOfBounds);
        }
        if self.setting.memory_min == self.setting.memory_max {
            return self.check_fixed(address, end);
        }
        // At most 16 MiB + 8: fits.
        let past = self.alu_imm(Alu::Add, Bits::B64, address, end as i32);
        let size = self.memory_bytes();
        let condition = Condition { test: Test::GtU, bits: Bits::B64, immediate: None };
        self.trap_where(condition, &[past, size], TrapCode::OutOfBounds);
    }

    /// The comparison is made on the pointer, of which the verifier knows
    /// nothing: compared as a number, every check would leave it another range
    /// to follow.
    fn check_fixed(&mut self, address: VReg, end: u64) {
        let pointer = self.base(Base::Register(address.vreg()), 0, |_| address);
        let limit = self.setting.memory_max - end;
        let condition =
            Condition { test: Test::GtU, bits: Bits::B32, immediate: Some(limit as u32 as i32) };
        self.trap_where(condition, &[pointer], TrapCode::OutOfBounds);
    }

    /// The size in bytes of a memory that grows.
    fn memory_bytes(&mut self) -> VReg {
        if let Some(size) = self.local.size {
            return size;
        }
        let block = self.block_address();
        let size = self.load_field(Width::Eight, block, layout::MEMORY_BYTES);
        self.local.size = Some(size);
        size
    }

    pub(super) fn memory_size(&mut self) -> VReg {
        if self.setting.memory_min == self.setting.memory_max {
            return self.make(self.setting.memory_max >> PAGE_SHIFT);
        }
        let size = self.memory_bytes();
        self.alu_imm(Alu::ShrU, Bits::B64, size, PAGE_SHIFT)
    }

    /// All pages that it may have are there already; only the limit moves.
    pub(super) fn memory_grow(&mut self, pages: Value) -> VReg {
        let size = self.memory_bytes();
        let more = self.value(pages);
        let more = self.alu_imm(Alu::Shl, Bits::B64, more, PAGE_SHIFT);
        let grown = self.alu(Alu::Add, Bits::B64, size, more);
        let fits = Condition {
            test: Test::LeU,
            bits: Bits::B64,
            immediate: Some(self.setting.memory_max as i32),
        };
        let before = self.alu_imm(Alu::ShrU, Bits::B64, size, PAGE_SHIFT);
        let failed = self.make(u64::from(u32::MAX));
        let result = self.keep_if(fits, &[grown], before, Ok(failed));
        let size = self.keep_if(fits, &[grown], grown, Ok(size));
        self.store_field(layout::MEMORY_BYTES, size);
        self.local.size = None;
        result
    }

    pub(super) fn memory_copy(&mut self, to: Value, from: Value, length: Value) {
        self.in_bulk(Subprogram::MemoryCopy, [to, from, length]);
    }

    pub(super) fn memory_fill(&mut self, to: Value, byte: Value, length: Value) {
        self.in_bulk(Subprogram::MemoryFill, [to, byte, length]);
    }

    /// A subprogram of ours does it, or says why not.
    fn in_bulk(&mut self, subprogram: Subprogram, values: [Value; 3]) {
        let takes_context = self.setting.has_packet();
        let result = self.call_with(V::CallHost(subprogram), takes_context, &values);
        let is = |test, answer| Condition { test, bits: Bits::B32, immediate: Some(answer) };
        self.trap_where(is(Test::Eq, OUTSIDE), &[result], TrapCode::OutOfBounds);
        self.trap_where(is(Test::Ne, 0), &[result], TrapCode::OutOfFuel);
    }
}
