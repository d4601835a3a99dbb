//! eBPF instruction: its fields, its encoding, and a constructor for each kind that the compiler
//! emits. Knows no virtual registers and no labels.

use crate::ir::Width;

/// Register, r0 to r10.
pub(crate) type Reg = u8;

/// Result of calls, and of the function.
pub(crate) const R0: Reg = 0;
/// First argument.
pub(crate) const R1: Reg = 1;
/// Second argument.
pub(crate) const R2: Reg = 2;
/// Third argument.
pub(crate) const R3: Reg = 3;
/// Fourth argument.
pub(crate) const R4: Reg = 4;
/// Fifth argument.
pub(crate) const R5: Reg = 5;
/// First register that calls preserve.
pub(crate) const R6: Reg = 6;
/// Register preserved by calls.
pub(crate) const R7: Reg = 7;
/// Register preserved by calls.
pub(crate) const R8: Reg = 8;
/// Register preserved by calls.
pub(crate) const R9: Reg = 9;
/// Frame pointer: the frame's upper end; read only.
pub(crate) const FP: Reg = 10;

const LD: u8 = 0x00;
const LDX: u8 = 0x01;
const ST: u8 = 0x02;
const STX: u8 = 0x03;
const ALU32: u8 = 0x04;
const JMP: u8 = 0x05;
const JMP32: u8 = 0x06;
const ALU64: u8 = 0x07;
/// Flag: the second operand is a register.
const X: u8 = 0x08;
const MODE_MEM: u8 = 0x60;
const MODE_MEMSX: u8 = 0x80;
const SIZE_W: u8 = 0x00;
const SIZE_H: u8 = 0x08;
const SIZE_B: u8 = 0x10;
const SIZE_DW: u8 = 0x18;

/// Arithmetic on two operands, the first of which is overwritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Alu {
    Add,
    Sub,
    Mul,
    DivU,
    DivS,
    Or,
    And,
    Shl,
    ShrU,
    RemU,
    RemS,
    Xor,
    Mov,
    ShrS,
}

impl Alu {
    const fn code(self) -> u8 {
        match self {
            Self::Add => 0x00,
            Self::Sub => 0x10,
            Self::Mul => 0x20,
            Self::DivU | Self::DivS => 0x30,
            Self::Or => 0x40,
            Self::And => 0x50,
            Self::Shl => 0x60,
            Self::ShrU => 0x70,
            Self::RemU | Self::RemS => 0x90,
            Self::Xor => 0xa0,
            Self::Mov => 0xb0,
            Self::ShrS => 0xc0,
        }
    }

    const fn offset(self) -> i16 {
        matches!(self, Self::DivS | Self::RemS) as i16
    }
}

/// Condition of a conditional jump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Test {
    Eq,
    Ne,
    GtU,
    GeU,
    LtU,
    LeU,
    GtS,
    GeS,
    LtS,
    LeS,
}

impl Test {
    const fn code(self) -> u8 {
        match self {
            Self::Eq => 0x10,
            Self::GtU => 0x20,
            Self::GeU => 0x30,
            Self::Ne => 0x50,
            Self::GtS => 0x60,
            Self::GeS => 0x70,
            Self::LtU => 0xa0,
            Self::LeU => 0xb0,
            Self::LtS => 0xc0,
            Self::LeS => 0xd0,
        }
    }

    /// Returns the condition that is true where this one is false.
    pub(crate) const fn inverse(self) -> Self {
        match self {
            Self::Eq => Self::Ne,
            Self::Ne => Self::Eq,
            Self::GtU => Self::LeU,
            Self::GeU => Self::LtU,
            Self::LtU => Self::GeU,
            Self::LeU => Self::GtU,
            Self::GtS => Self::LeS,
            Self::GeS => Self::LtS,
            Self::LtS => Self::GeS,
            Self::LeS => Self::GtS,
        }
    }

    /// Returns the condition with the operands exchanged.
    pub(crate) const fn swapped(self) -> Self {
        match self {
            Self::Eq | Self::Ne => self,
            Self::GtU => Self::LtU,
            Self::GeU => Self::LeU,
            Self::LtU => Self::GtU,
            Self::LeU => Self::GeU,
            Self::GtS => Self::LtS,
            Self::GeS => Self::LeS,
            Self::LtS => Self::GtS,
            Self::LeS => Self::GeS,
        }
    }
}

/// Width of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bits {
    /// Low half; the result is zero-extended.
    B32,
    /// All 64 bits.
    B64,
}

/// `struct bpf_insn`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Insn {
    pub(crate) code: u8,
    pub(crate) dst: Reg,
    pub(crate) src: Reg,
    pub(crate) off: i16,
    pub(crate) imm: i32,
}

/// Helper functions of the kernel, by their number in `enum bpf_func_id`.
pub(crate) mod helper {
    pub(crate) const SKB_STORE_BYTES: i32 = 9;
    pub(crate) const TAIL_CALL: i32 = 12;
    pub(crate) const SKB_LOAD_BYTES: i32 = 26;
    pub(crate) const SKB_CHANGE_TAIL: i32 = 38;
    pub(crate) const SKB_PULL_DATA: i32 = 39;
    pub(crate) const SKB_CHANGE_HEAD: i32 = 43;
    pub(crate) const XDP_ADJUST_HEAD: i32 = 44;
    pub(crate) const XDP_ADJUST_TAIL: i32 = 65;
    pub(crate) const XDP_LOAD_BYTES: i32 = 189;
    pub(crate) const XDP_STORE_BYTES: i32 = 190;
    pub(crate) const RINGBUF_RESERVE_DYNPTR: i32 = 198;
    pub(crate) const RINGBUF_SUBMIT_DYNPTR: i32 = 199;
    pub(crate) const RINGBUF_DISCARD_DYNPTR: i32 = 200;
    pub(crate) const DYNPTR_WRITE: i32 = 202;
}

const fn size_code(width: Width) -> u8 {
    match width {
        Width::One => SIZE_B,
        Width::Two => SIZE_H,
        Width::Four => SIZE_W,
        Width::Eight => SIZE_DW,
    }
}

impl Insn {
    const fn new(code: u8, dst: Reg, src: Reg, off: i16, imm: i32) -> Self {
        Self { code, dst, src, off, imm }
    }

    const fn alu_class(bits: Bits) -> u8 {
        match bits {
            Bits::B32 => ALU32,
            Bits::B64 => ALU64,
        }
    }

    const fn jump_class(bits: Bits) -> u8 {
        match bits {
            Bits::B32 => JMP32,
            Bits::B64 => JMP,
        }
    }

    /// `dst = dst op src`
    pub(crate) const fn alu(op: Alu, bits: Bits, dst: Reg, src: Reg) -> Self {
        Self::new(Self::alu_class(bits) | op.code() | X, dst, src, op.offset(), 0)
    }

    /// `dst = dst op imm`
    pub(crate) const fn alu_imm(op: Alu, bits: Bits, dst: Reg, imm: i32) -> Self {
        Self::new(Self::alu_class(bits) | op.code(), dst, 0, op.offset(), imm)
    }

    /// `dst = src`, all of it.
    pub(crate) const fn mov(dst: Reg, src: Reg) -> Self {
        Self::alu(Alu::Mov, Bits::B64, dst, src)
    }

    /// `dst = imm`, sign-extended or (32 bits) zero-extended.
    pub(crate) const fn mov_imm(bits: Bits, dst: Reg, imm: i32) -> Self {
        Self::alu_imm(Alu::Mov, bits, dst, imm)
    }

    /// Sign extension of the low `from` bits of `src`.
    pub(crate) const fn mov_signed(bits: Bits, from: i16, dst: Reg, src: Reg) -> Self {
        Self::new(Self::alu_class(bits) | Alu::Mov.code() | X, dst, src, from, 0)
    }

    /// `dst = -dst`
    pub(crate) const fn neg(bits: Bits, dst: Reg) -> Self {
        Self::new(Self::alu_class(bits) | 0x80, dst, 0, 0, 0)
    }

    /// Byte reversal of the low `width` bits of `dst`.
    pub(crate) const fn swap_bytes(width: i32, dst: Reg) -> Self {
        Self::new(ALU64 | 0xd0, dst, 0, 0, width)
    }

    /// Cast of an address in the arena to a pointer: the low 32 bits of `src`.
    pub(crate) const fn cast(dst: Reg, src: Reg) -> Self {
        Self::new(ALU64 | Alu::Mov.code() | X, dst, src, 1, 1)
    }

    /// `dst = *(src + off)`
    pub(crate) const fn load(width: Width, signed: bool, dst: Reg, src: Reg, off: i16) -> Self {
        let mode = if signed { MODE_MEMSX } else { MODE_MEM };
        Self::new(LDX | mode | size_code(width), dst, src, off, 0)
    }

    /// `*(dst + off) = src`
    pub(crate) const fn store(width: Width, dst: Reg, src: Reg, off: i16) -> Self {
        Self::new(STX | MODE_MEM | size_code(width), dst, src, off, 0)
    }

    /// `*(dst + off) = imm`, sign-extended.
    pub(crate) const fn store_imm(width: Width, dst: Reg, off: i16, imm: i32) -> Self {
        Self::new(ST | MODE_MEM | size_code(width), dst, 0, off, imm)
    }

    /// Conditional jump, `if dst test src goto …`.
    pub(crate) const fn jump(test: Test, bits: Bits, dst: Reg, src: Reg) -> Self {
        Self::new(Self::jump_class(bits) | test.code() | X, dst, src, 0, 0)
    }

    /// Conditional jump, `if dst test imm goto …`.
    pub(crate) const fn jump_imm(test: Test, bits: Bits, dst: Reg, imm: i32) -> Self {
        Self::new(Self::jump_class(bits) | test.code(), dst, 0, 0, imm)
    }

    /// `goto …`
    pub(crate) const fn ja() -> Self {
        Self::new(JMP, 0, 0, 0, 0)
    }

    /// `goto …` with a distance of 32 bits.
    pub(crate) const fn ja_far(distance: i32) -> Self {
        Self::new(JMP32, 0, 0, 0, distance)
    }

    /// `may_goto …`: the kernel's own limit on loops.
    pub(crate) const fn may_goto() -> Self {
        Self::new(JMP | 0xe0, 0, 0, 0, 0)
    }

    /// Calls a helper of the kernel.
    pub(crate) const fn call_helper(number: i32) -> Self {
        Self::new(JMP | 0x80, 0, 0, 0, number)
    }

    /// Call of a function of the same program; the distance is filled in later.
    pub(crate) const fn call_function() -> Self {
        Self::new(JMP | 0x80, 0, 1, 0, 0)
    }

    /// Return from the function.
    pub(crate) const fn exit() -> Self {
        Self::new(JMP | 0x90, 0, 0, 0, 0)
    }

    /// Both slots of a load of 64 bits; `source` gives the meaning of the immediate.
    pub(crate) const fn load_imm64(dst: Reg, source: u8, value: u64) -> [Self; 2] {
        [
            Self::new(LD | SIZE_DW, dst, source, 0, value as u32 as i32),
            Self::new(0, 0, 0, 0, (value >> 32) as u32 as i32),
        ]
    }

    /// Returns the `struct bpf_insn` as a little-endian word.
    pub(crate) const fn word(self) -> u64 {
        self.code as u64
            | (self.dst as u64) << 8
            | (self.src as u64) << 12
            | (self.off as u16 as u64) << 16
            | (self.imm as u32 as u64) << 32
    }
}

/// Pseudo source registers of `load_imm64`.
pub(crate) mod pseudo {
    pub(crate) const IMMEDIATE: u8 = 0;
    pub(crate) const MAP_FD: u8 = 1;
    pub(crate) const MAP_VALUE: u8 = 2;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares encodings with the output of `llvm-objdump-19 --mcpu=v4`.
    #[test]
    fn encodings_are_those_of_llvm() {
        let bytes = |insn: Insn| insn.word().to_le_bytes();
        // r1 = r2
        assert_eq!(bytes(Insn::mov(1, 2)), [0xbf, 0x21, 0, 0, 0, 0, 0, 0]);
        // w3 s/= w4
        assert_eq!(bytes(Insn::alu(Alu::DivS, Bits::B32, 3, 4)), [0x3c, 0x43, 1, 0, 0, 0, 0, 0]);
        // r1 = addr_space_cast(r1, 0x0, 0x1)
        assert_eq!(bytes(Insn::cast(1, 1)), [0xbf, 0x11, 1, 0, 1, 0, 0, 0]);
        // r1 = *(s16 *)(r2 - 0x8)
        assert_eq!(
            bytes(Insn::load(Width::Two, true, 1, 2, -8)),
            [0x89, 0x21, 0xf8, 0xff, 0, 0, 0, 0]
        );
        // r5 = bswap32 r5
        assert_eq!(bytes(Insn::swap_bytes(32, 5)), [0xd7, 5, 0, 0, 32, 0, 0, 0]);
        // if w1 s< 7 goto +0
        assert_eq!(bytes(Insn::jump_imm(Test::LtS, Bits::B32, 1, 7)), [0xc6, 1, 0, 0, 7, 0, 0, 0]);
        // may_goto
        assert_eq!(bytes(Insn::may_goto())[0], 0xe5);
    }
}
