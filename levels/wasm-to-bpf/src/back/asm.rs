//! Small assembler: instructions with labels, and references to maps and functions that are
//! resolved at link time. Checks nothing that the verifier checks.

use super::insn::{Alu, Bits, Insn, Reg, pseudo};
use crate::layout;
use crate::program::MapKind;

/// Position in the code, bound to an instruction later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Label(u32);

/// Callee of a call instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Callee {
    /// Function of the unit, by its position.
    Unit(u32),
    /// Subprogram of the compiler.
    Host(super::subprogram::Subprogram),
}

/// Code of one function, not yet placed in the program.
#[derive(Clone, Debug, Default)]
pub(crate) struct Code {
    pub(crate) insns: Vec<Insn>,
    pub(crate) maps: Vec<(u32, MapKind)>,
    pub(crate) calls: Vec<(u32, Callee)>,
    /// Pairs of an instruction and a byte of the module, where the latter changes.
    pub(crate) places: Vec<(u32, u32)>,
}

/// Code under construction.
#[derive(Default)]
pub(crate) struct Assembler {
    code: Code,
    labels: Vec<Option<u32>>,
    wanted: Vec<bool>,
    jumps: Vec<(u32, Label)>,
    /// True if conditional jumps may be too far for 16 bits, or too many for the verifier's stack
    /// of unexplored branches: each then jumps over an unconditional one.
    long: bool,
}

impl Assembler {
    /// Makes an empty assembler; `long` for functions of many thousand instructions.
    pub(crate) fn new(long: bool) -> Self {
        Self { long, ..Self::default() }
    }

    /// Makes a label that is not bound yet.
    pub(crate) fn label(&mut self) -> Label {
        self.labels.push(None);
        self.wanted.push(false);
        Label(self.labels.len() as u32 - 1)
    }

    /// Binds the label to the next instruction.
    pub(crate) fn bind(&mut self, label: Label) {
        let here = self.here();
        if let Some(place) = self.labels.get_mut(label.0 as usize) {
            *place = Some(here);
        }
    }

    /// Returns true if a jump to the label was emitted: the verifier refuses unreachable code.
    pub(crate) fn is_wanted(&self, label: Label) -> bool {
        self.wanted.get(label.0 as usize).copied().unwrap_or(false)
    }

    fn want(&mut self, label: Label) {
        self.jumps.push((self.here(), label));
        if let Some(wanted) = self.wanted.get_mut(label.0 as usize) {
            *wanted = true;
        }
    }

    /// Returns the number of the next instruction.
    pub(crate) fn here(&self) -> u32 {
        self.code.insns.len() as u32
    }

    /// Appends an instruction.
    pub(crate) fn push(&mut self, insn: Insn) {
        self.code.insns.push(insn);
    }

    /// Sets the byte of the module from which the following instructions come.
    pub(crate) fn place(&mut self, place: u32) {
        if self.code.places.last().is_none_or(|&(_, last)| last != place) {
            let here = self.here();
            self.code.places.push((here, place));
        }
    }

    /// Emits `goto label`.
    pub(crate) fn goto(&mut self, label: Label) {
        self.want(label);
        self.push(Insn::ja());
    }

    /// Emits `jump` to the label: a conditional jump or a `may_goto`.
    pub(crate) fn jump(&mut self, jump: Insn, label: Label) {
        self.want(label);
        self.push(jump);
    }

    /// Emits a jump to the label if the condition holds; `inverse` is the jump that is taken where
    /// it does not.
    pub(crate) fn branch(&mut self, jump: Insn, inverse: Insn, label: Label) {
        if self.long {
            self.push(Insn { off: 1, ..inverse });
            self.goto(label);
        } else {
            self.jump(jump, label);
        }
    }

    /// Emits a `may_goto`: a jump to the label when the kernel's limit on loops is reached.
    pub(crate) fn may_goto(&mut self, label: Label) {
        if self.long {
            self.push(Insn { off: 1, ..Insn::may_goto() });
            self.push(Insn { off: 1, ..Insn::ja() });
            self.goto(label);
        } else {
            self.jump(Insn::may_goto(), label);
        }
    }

    /// Emits a constant, in one instruction if it fits.
    pub(crate) fn constant(&mut self, dst: Reg, value: u64) {
        if i32::try_from(value as i64).is_ok() {
            self.push(Insn::mov_imm(Bits::B64, dst, value as i32));
        } else if let Ok(value) = u32::try_from(value) {
            self.push(Insn::mov_imm(Bits::B32, dst, value as i32));
        } else {
            self.code.insns.extend(Insn::load_imm64(dst, pseudo::IMMEDIATE, value));
        }
    }

    /// Emits a map reference, as helpers take it.
    pub(crate) fn map(&mut self, dst: Reg, map: MapKind) {
        self.code.maps.push((self.here(), map));
        self.code.insns.extend(Insn::load_imm64(dst, pseudo::MAP_FD, 0));
    }

    /// Emits `dst = src + distance` such that the verifier does not link the two values: otherwise
    /// it would apply its knowledge of the sum to the number, and unroll the loop that counts it.
    pub(crate) fn push_sum(&mut self, dst: Reg, src: Reg, distance: i32) {
        if dst == src {
            self.push(Insn::alu_imm(Alu::Add, Bits::B64, dst, distance));
        } else {
            self.push(Insn::mov_imm(Bits::B64, dst, distance));
            self.push(Insn::alu(Alu::Add, Bits::B64, dst, src));
        }
    }

    /// Emits the address of a byte of the instance block.
    pub(crate) fn block(&mut self, dst: Reg, offset: u32) {
        self.address(dst, MapKind::Block, offset);
    }

    /// Emits the address of a byte of the hand-over.
    pub(crate) fn hand_over(&mut self, dst: Reg, offset: u32) {
        self.address(dst, MapKind::HandOver, offset);
    }

    fn address(&mut self, dst: Reg, map: MapKind, offset: u32) {
        self.code.maps.push((self.here(), map));
        let value = u64::from(offset) << 32;
        self.code.insns.extend(Insn::load_imm64(dst, pseudo::MAP_VALUE, value));
    }

    /// Emits a call of a function of the program.
    pub(crate) fn call(&mut self, callee: Callee) {
        self.code.calls.push((self.here(), callee));
        self.push(Insn::call_function());
    }

    /// Returns the code with every jump resolved, or `None` when a label is unbound or a
    /// conditional jump is too far: then it must be assembled as long.
    pub(crate) fn finish(mut self) -> Option<Code> {
        for (at, label) in self.jumps {
            let target = self.labels.get(label.0 as usize).copied().flatten()?;
            let distance = i64::from(target) - i64::from(at) - 1;
            let insn = self.code.insns.get_mut(at as usize)?;
            match i16::try_from(distance) {
                Ok(near) => insn.off = near,
                Err(_) if *insn == Insn::ja() => *insn = Insn::ja_far(distance as i32),
                Err(_) => return None,
            }
        }
        Some(self.code)
    }
}

/// Returns the offset of a field of the instance block as an offset of a load.
pub(crate) const fn field(offset: u32) -> i16 {
    assert!(offset <= i16::MAX as u32, "the block's fields lie within 32 KiB");
    offset as i16
}

const _: () = assert!(layout::GLOBALS < i16::MAX as u32);
