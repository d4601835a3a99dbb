//! eBPF instruction as a word. The compiler of modules has its own, complete set.
//!
//! `struct bpf_insn`, little-endian: opcode, registers (destination in the low half), 16-bit
//! offset, 32-bit immediate.

/// Assembles a word from its parts.
pub(crate) const fn word(opcode: u8, destination: u8, source: u8, offset: i16, imm: i32) -> u64 {
    opcode as u64
        | (destination as u64 & 0xf) << 8
        | (source as u64 & 0xf) << 12
        | (offset as u16 as u64) << 16
        | (imm as u32 as u64) << 32
}

/// Returns an `exit` instruction.
#[cfg(test)]
pub(crate) const fn exit() -> u64 {
    word(0x95, 0, 0, 0, 0)
}
