//! Compiled program: instructions with placeholders for the maps, and the data that a loader needs.
//! Nothing here is loaded or run.

use serde::{Deserialize, Serialize};

use crate::Function;

/// Program that can be loaded once its maps exist.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// Instructions as `struct bpf_insn`s in 64-bit words, little-endian layout: the entry first,
    /// then the functions that it calls. Map references are two-slot loads (`ld_imm64`) whose
    /// immediate the loader fills in; [`Program::maps`] lists them.
    pub instructions: Vec<u64>,
    /// Positions of the maps' file descriptors.
    pub maps: Vec<MapReference>,
    /// Functions, in order of their first instruction; the entry first. The loader describes them
    /// in BTF: those that are `global` take scalars (and the context, where they take it) and are
    /// verified once.
    pub functions: Vec<ProgramFunction>,
    /// Kind of program.
    pub flavour: Flavour,
    /// True if it must be loaded with support for packets of several fragments (`xdp.frags`).
    pub fragments: bool,
    /// Memory and globals of a new instance.
    pub image: Image,
    /// Pairs of an instruction and the byte offset in the module where its code begins, ascending.
    /// For `tam check`, traps and the verifier's messages.
    pub places: Vec<(u32, u32)>,
    /// Cost estimate of one packet.
    pub cost: Cost,
}

/// Placeholder for a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapReference {
    /// First of the two slots.
    pub instruction: u32,
    /// Map to insert.
    pub map: MapKind,
}

/// Maps of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum MapKind {
    /// Linear memory, `BPF_MAP_TYPE_ARENA`, with address 0 at its beginning. A plain map reference
    /// (`BPF_PSEUDO_MAP_FD`).
    Arena,
    /// Instance block ([`crate::layout`]): `BPF_PSEUDO_MAP_VALUE` with the offset in the second
    /// slot's immediate.
    Block,
    /// Hand-over ([`crate::layout::hand_over`]), in the same way: the loader adds its offset in the
    /// value.
    HandOver,
    /// Program array with the front door's second half at index 0 (`BPF_MAP_TYPE_PROG_ARRAY`).
    Afterwards,
    /// Ring buffer to the cell, for `event` and `packet_send`.
    Events,
}

/// BPF function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramFunction {
    /// First instruction.
    pub start: u32,
    /// Name that BTF allows: letters, digits, `_`; unique in the program.
    pub name: String,
    /// True if its first parameter is the context.
    pub takes_context: bool,
    /// Number of 64-bit scalar parameters after it (the context counted: at most 5).
    pub scalars: u32,
    /// True if it is verified by itself (BTF linkage global); else once per call.
    pub global: bool,
}

/// Kind of program that a module is compiled to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Flavour {
    /// `nic`: BPF_PROG_TYPE_XDP. Context `struct xdp_md`.
    Xdp,
    /// `kernel`: BPF_PROG_TYPE_SCHED_CLS at tcx ingress. Context `struct __sk_buff`.
    Tc,
}

/// Initial memory of an instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// Initial size in pages of 64 KiB.
    pub pages_min: u32,
    /// Largest size in pages.
    pub pages_max: u32,
    /// Pages behind the largest size, for tables that change and passive segments: an arena has
    /// them too, the module cannot reach them.
    pub pages_behind: u32,
    /// Initial bytes, as pairs of an address and its bytes, to write in this order.
    pub data: Vec<(u32, Vec<u8>)>,
    /// Globals, by index, 64 bits each; those of the compiler after the module's own.
    pub globals: Vec<u64>,
    /// Parameters and results of the entry (in [`crate::layout::ARGUMENTS`] and `RESULTS`), when it
    /// is an export other than `on_packet`.
    pub entry: Option<Function>,
}

/// Static cost estimate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cost {
    /// Instructions of the longest path that takes no loop twice.
    pub instructions_max: u32,
    /// Fuel of the same path.
    pub fuel_max: u64,
    /// True if there are loops, so that both numbers may be exceeded.
    pub has_loops: bool,
    /// Bytes of BPF stack on the deepest chain of calls.
    pub stack_bytes: u32,
    /// Number of values that did not get a register.
    pub spills: u32,
}
