//! What comes out: instructions with holes for the maps, and all that a
//! loader must make beside them. Nothing here is loaded or run.

use serde::{Deserialize, Serialize};

use crate::Function;

/// A program that is ready to be loaded once its maps exist.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// `struct bpf_insn`s as 64-bit words, little-endian layout: the entry first, then
    /// the functions that it calls. Map references are two-slot loads (`ld_imm64`) whose
    /// immediate the loader fills in; [`Program::maps`] lists them.
    pub instructions: Vec<u64>,
    /// Where the maps' file descriptors go.
    pub maps: Vec<MapReference>,
    /// The functions, in order of their first instruction; the entry first.
    /// The loader describes them in BTF: those that are `global` take scalars
    /// (and the context, where they take it) and are verified once.
    pub functions: Vec<ProgramFunction>,
    /// Which kind of program it is.
    pub flavour: Flavour,
    /// Whether it loads as accepting packets of several fragments (`xdp.frags`).
    pub fragments: bool,
    /// The instance's memory and globals when it is new.
    pub image: Image,
    /// Where the instructions of each part of the module begin: (instruction, byte offset
    /// in the module), rising. For `tam check`, traps and the verifier's messages.
    pub places: Vec<(u32, u32)>,
    /// The estimate of what one packet costs.
    pub cost: Cost,
}

/// A hole for a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapReference {
    /// The first of the two slots.
    pub instruction: u32,
    /// Which map.
    pub map: MapKind,
}

/// The maps of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum MapKind {
    /// `BPF_MAP_TYPE_ARENA`: the linear memory, address 0 at its beginning. A plain map
    /// reference (`BPF_PSEUDO_MAP_FD`).
    Arena,
    /// The instance block ([`crate::layout`]): `BPF_PSEUDO_MAP_VALUE` with the offset in the
    /// second slot's immediate.
    Block,
    /// The hand-over ([`crate::layout::hand_over`]), in the same way: the loader adds where in
    /// the value it begins.
    HandOver,
    /// The program array with the front door's second half at index 0
    /// (`BPF_MAP_TYPE_PROG_ARRAY`).
    Afterwards,
    /// The ring buffer to the cell, for `event` and `packet_send`.
    Events,
}

/// One BPF function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramFunction {
    /// Its first instruction.
    pub start: u32,
    /// A name that BTF allows: letters, digits, `_`; unique in the program.
    pub name: String,
    /// Whether its first parameter is the context.
    pub takes_context: bool,
    /// How many 64-bit scalars follow (the context counted: at most 5).
    pub scalars: u32,
    /// Whether it is verified by itself (BTF linkage global); else once per call.
    pub global: bool,
}

/// The kinds of program that a module becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Flavour {
    /// `nic`: BPF_PROG_TYPE_XDP. Context `struct xdp_md`.
    Xdp,
    /// `kernel`: BPF_PROG_TYPE_SCHED_CLS at tcx ingress. Context `struct __sk_buff`.
    Tc,
}

/// What a new instance's memory looks like.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// Pages of 64 KiB that it begins with.
    pub pages_min: u32,
    /// Pages that it may grow to.
    pub pages_max: u32,
    /// Pages behind those, for tables that change and passive segments: an arena has them
    /// too, the module cannot reach them.
    pub pages_behind: u32,
    /// (address, bytes) to write, in this order.
    pub data: Vec<(u32, Vec<u8>)>,
    /// The globals, by index, 64 bits each; behind the module's own those of the compiler.
    pub globals: Vec<u64>,
    /// Parameters and results of the entry (in [`crate::layout::ARGUMENTS`] and
    /// `RESULTS`), when it is an export other than `on_packet`.
    pub entry: Option<Function>,
}

/// An estimate without running it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cost {
    /// eBPF instructions on the longest way through that takes no loop twice.
    pub instructions_max: u32,
    /// Fuel of the same.
    pub fuel_max: u64,
    /// Whether there are loops, so that the two may be exceeded.
    pub has_loops: bool,
    /// Bytes of BPF stack on the deepest chain of calls.
    pub stack_bytes: u32,
    /// Values that did not find a register.
    pub spills: u32,
}
