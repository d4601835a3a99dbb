//! What only an entry with a packet has: its bytes, its metadata, its verdict.

use regalloc2::VReg;

use abi::layout::WINDOW_ADDRESS;

use super::super::insn::{Alu, Bits, Insn, R2, R3};
use super::super::setting::Likely;
use super::super::vcode::{
    AnyAccess, Op as V, Slot, defined, defined_at, defined_early, used, used_late,
};
use super::{End, Lower, PacketEnds, Pointers};
use crate::Flavour;
use crate::ir::{Access, Value, Width};

/// Shows the verifier that an offset in the packet is small.
const WINDOW_MASK: i32 = 0xfff;
/// The same by shifts, to the left and back.
pub(crate) const WINDOW_SHIFT: i32 = 52;
const _: () = assert!(abi::layout::WINDOW_LENGTH_MAX as i32 <= WINDOW_MASK);
const _: () = assert!(u64::MAX >> WINDOW_SHIFT == WINDOW_MASK as u64);

/// Offsets of `data` and `data_end` in the context.
pub(crate) const fn context_fields(flavour: Flavour) -> (i16, i16) {
    match flavour {
        Flavour::Xdp => (0, 4),
        Flavour::Tc => (76, 80),
    }
}

impl Lower<'_> {
    /// The entry's prologue has left them in registers.
    pub(super) fn take_packet(&mut self) {
        let pointers = Pointers { data: self.vcode.register(), data_end: self.vcode.register() };
        self.push(
            V::Arguments,
            &[defined_at(pointers.data, R2), defined_at(pointers.data_end, R3)],
        );
        self.keep_pointers(pointers);
    }

    /// Takes them from the context, where the packet may have moved or a
    /// function begins.
    pub(super) fn take_pointers(&mut self) {
        let pointers = Pointers { data: self.vcode.register(), data_end: self.vcode.register() };
        let temporary = self.vcode.register();
        let op = V::Pointers { reach: self.setting.reach, keep: self.is_in_slot() };
        self.push(
            op,
            &[
                defined_early(pointers.data),
                defined_early(pointers.data_end),
                defined_early(temporary),
            ],
        );
        self.keep_pointers(pointers);
    }

    fn keep_pointers(&mut self, pointers: Pointers) {
        if self.is_in_slot() {
            let Pointers { data, data_end } = pointers;
            self.local.packet = PacketEnds { data: Some(data), data_end: Some(data_end) };
        } else {
            self.packet = Some(pointers);
        }
    }

    /// Where the packet may move, its address lies in the frame; else in a register.
    pub(super) const fn is_in_slot(&self) -> bool {
        self.needs.changes_packet
    }

    pub(super) fn data(&mut self) -> VReg {
        if let Some(pointers) = self.packet {
            return pointers.data;
        }
        if let Some(data) = self.local.packet.data {
            return data;
        }
        let data = self.slot(Slot::Data);
        self.local.packet.data = Some(data);
        data
    }

    pub(super) fn data_end(&mut self) -> VReg {
        if let Some(pointers) = self.packet {
            return pointers.data_end;
        }
        if let Some(data_end) = self.local.packet.data_end {
            return data_end;
        }
        let context = self.slot(Slot::Context);
        let (_, at) = context_fields(self.setting.flavour);
        let data_end = self.one(Insn::load(Width::Four, false, 0, 0, at), context);
        self.local.packet.data_end = Some(data_end);
        data_end
    }

    pub(super) fn hand_over(&mut self) -> VReg {
        if let Some(hand_over) = self.local.hand_over {
            return hand_over;
        }
        let hand_over = self.vcode.register();
        self.push(V::HandOver, &[defined(hand_over)]);
        self.local.hand_over = Some(hand_over);
        hand_over
    }

    fn slot(&mut self, slot: Slot) -> VReg {
        let result = self.vcode.register();
        self.push(V::LoadSlot(slot), &[defined(result)]);
        result
    }

    pub(super) fn packet_load(&mut self, width: Width, access: &Access) -> VReg {
        let distance = distance(access);
        if let Some((pointer, at)) = self.known_to_be_there(width, access) {
            return self.one(Insn::load(width, false, 0, 0, at), pointer);
        }
        let end = self.end_of_range(access.address, distance, distance + width.bytes() as i32);
        let data_end = self.data_end();
        let address = self.value(access.address);
        let result = self.vcode.register();
        let mut operands = vec![defined(result), used(end), used(data_end)];
        if width != Width::One {
            operands.extend([used(address), defined_early(self.vcode.register())]);
        }
        self.push(V::WindowLoad { width, distance }, &operands);
        result
    }

    pub(super) fn packet_store(&mut self, width: Width, value: Value, access: &Access) {
        let distance = distance(access);
        if let Some((pointer, at)) = self.known_to_be_there(width, access) {
            return self.store_to(width, value, pointer, at);
        }
        let end = self.end_of_range(access.address, distance, distance + width.bytes() as i32);
        let data_end = self.data_end();
        let (value, address) = (self.value(value), self.value(access.address));
        let mut operands = vec![used_late(value), used_late(end), used_late(data_end)];
        if width != Width::One {
            operands.extend([used_late(address), defined_early(self.vcode.register())]);
        }
        self.push(V::WindowStore { width, distance }, &operands);
    }

    /// A pointer that the packet certainly goes as far as, and where from there the access is, if
    /// the module has asked for all of it.
    fn known_to_be_there(&self, width: Width, access: &Access) -> Option<(VReg, i16)> {
        let end = self.local.ends.get(&access.address)?;
        let (pointer, known) = end.known?;
        let distance = distance(access);
        let is_there = end.first <= distance && distance + width.bytes() as i32 <= known;
        is_there.then_some((pointer, i16::try_from(distance - known).ok()?))
    }

    /// A pointer to the end of a range from the address on that is certainly in the window;
    /// whether it is in the packet is not asked yet.
    ///
    /// It is counted from the one of a range with the same address before, if that ended no
    /// farther on: a pointer that the verifier knows to be beyond the packet must not be made
    /// smaller (`emit/partial.rs`). Nor does the verifier let an access begin before the place
    /// that the first of them was counted from.
    pub(super) fn end_of_range(&mut self, address: Value, distance: i32, end: i32) -> VReg {
        let before = self.local.ends.get(&address).copied();
        let known = before.filter(|before| before.first <= distance).and_then(|end| end.known);
        let (pointer, first) = match before {
            Some(before) if before.first <= distance && before.end == end => {
                (before.pointer, before.first)
            }
            Some(before) if before.first <= distance && before.end < end => {
                let more = end - before.end;
                (self.alu_imm(Alu::Add, Bits::B64, before.pointer, more), before.first)
            }
            _ => {
                // An address that something is added to is an offset below the window's end.
                let first = distance.min(0);
                let offset = self.window_offset(address, first);
                let data = self.data();
                let pointer = self.alu(Alu::Add, Bits::B64, offset, data);
                (self.alu_imm(Alu::Add, Bits::B64, pointer, end - first), first)
            }
        };
        self.local.ends.insert(address, End { pointer, end, first, known });
        pointer
    }

    /// The sum of address and distance, which is an offset in the window, such that the verifier
    /// knows it to be small. Where a mask must not go to the address (`passes/signs.rs`), the
    /// address goes to the mask.
    fn window_offset(&mut self, address: Value, distance: i32) -> VReg {
        let mut sum = self.value(address);
        if distance != 0 {
            // The constant as the left operand, or the verifier ties the sum to the address.
            let constant = self.make(i64::from(distance).cast_unsigned());
            sum = self.alu(Alu::Add, Bits::B64, constant, sum);
        }
        if !self.is_sign(address) {
            return self.alu_imm(Alu::And, Bits::B64, sum, WINDOW_MASK);
        }
        let mask = self.make(WINDOW_MASK as u64);
        self.alu(Alu::And, Bits::B64, mask, sum)
    }

    /// Returns whether the verifier may know the value to be -1 or 0: no mask goes to its register.
    pub(super) fn is_sign(&self, value: Value) -> bool {
        self.signs.get(value.0 as usize).is_none_or(|&is_sign| is_sign)
    }

    pub(super) fn any_load(&mut self, width: Width, access: &Access, likely: Likely) -> VReg {
        let ends = self.ends(likely);
        let address = self.value(access.address);
        let (result, temporary) = (self.vcode.register(), self.vcode.register());
        let mut operands =
            vec![defined_early(result), used_late(address), defined_early(temporary)];
        operands.extend(ends.into_iter().map(used_late));
        self.push(V::AnyLoad(self.any(width, access, likely)), &operands);
        result
    }

    pub(super) fn any_store(
        &mut self,
        width: Width,
        value: Value,
        access: &Access,
        likely: Likely,
    ) {
        let ends = self.ends(likely);
        let (value, address) = (self.value(value), self.value(access.address));
        let (one, two) = (self.vcode.register(), self.vcode.register());
        let mut operands =
            vec![used_late(value), used_late(address), defined_early(one), defined_early(two)];
        operands.extend(ends.into_iter().map(used_late));
        self.push(V::AnyStore(self.any(width, access, likely)), &operands);
    }

    /// The packet's ends in registers, where it is tried first.
    fn ends(&mut self, likely: Likely) -> Vec<VReg> {
        match likely {
            Likely::Window => vec![self.data(), self.data_end()],
            Likely::Below | Likely::Above => Vec::new(),
        }
    }

    const fn any(&self, width: Width, access: &Access, likely: Likely) -> AnyAccess {
        AnyAccess { width, offset: access.offset, likely, place: self.place }
    }

    pub(super) fn check_verdict(&mut self, value: VReg) {
        let temporary = self.vcode.register();
        self.push(V::CheckVerdict, &[used_late(value), defined_early(temporary)]);
    }
}

/// Added to the address it gives the offset in the packet.
const fn distance(access: &Access) -> i32 {
    // Below 2^31 as the plan has made sure.
    (access.offset as i32).wrapping_sub(WINDOW_ADDRESS as i32)
}
