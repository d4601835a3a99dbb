//! The few eBPF instructions that this layer writes by itself, as words.
//!
//! `struct bpf_insn`, little-endian: opcode, registers (destination in the low
//! half), 16-bit offset, 32-bit immediate. The compiler has its own, complete set.

use libbpf_sys as sys;

/// 4 bytes (`BPF_W`).
pub(crate) const WIDTH_4: u8 = 0x00;
/// 8 bytes (`BPF_DW`).
pub(crate) const WIDTH_8: u8 = 0x18;

/// A register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Register {
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
}

/// A word from its parts.
pub(crate) const fn word(opcode: u8, destination: u8, source: u8, offset: i16, imm: i32) -> u64 {
    opcode as u64
        | (destination as u64 & 0xf) << 8
        | (source as u64 & 0xf) << 12
        | (offset as u16 as u64) << 16
        | (imm as u32 as u64) << 32
}

/// The two words of a map's address.
pub(crate) const fn load_map(to: Register, fd: i32) -> [u64; 2] {
    [word(0x18, to as u8, sys::BPF_PSEUDO_MAP_FD as u8, 0, fd), 0]
}

/// `to = *(from + offset)`.
pub(crate) const fn load(width: u8, to: Register, from: Register, offset: i16) -> u64 {
    word(0x61 | width, to as u8, from as u8, offset, 0)
}

/// `to = imm`, sign-extended.
pub(crate) const fn move_immediate(to: Register, imm: i32) -> u64 {
    word(0xb7, to as u8, 0, 0, imm)
}

/// Skips so many words if the register is zero.
pub(crate) const fn jump_if_zero(register: Register, skip: i16) -> u64 {
    word(0x15, register as u8, 0, skip, 0)
}

/// Calls a function of the kernel by its number in the kernel's BTF.
pub(crate) const fn call_kernel(function: i32) -> u64 {
    word(0x85, 0, sys::BPF_PSEUDO_KFUNC_CALL as u8, 0, function)
}

/// Back to the caller.
pub(crate) const fn exit() -> u64 {
    word(0x95, 0, 0, 0, 0)
}
