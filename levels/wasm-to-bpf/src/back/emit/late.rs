//! Out-of-line code behind the function's blocks: rare cases, and what is left to emit for each.

use super::super::asm::Label;
use super::super::insn::Reg;
use super::super::vcode::AnyAccess;
use crate::ir::{Place, Width};

/// Rare case whose code stands behind the function's blocks.
pub(super) enum Late {
    /// An access of the window over the packet's end.
    Partial(Partial),
    /// A head that did not simply move.
    Head(HeadLate),
    /// The exact decision.
    Decide {
        label: Label,
        back: Label,
        access: AnyAccess,
        address: Reg,
        free: [Reg; 2],
        what: What,
    },
}

/// Operation at the place where the access goes.
#[derive(Clone, Copy)]
pub(super) enum What {
    Load(Reg),
    Store(Reg),
}

/// Access of the window over the packet's end.
#[derive(Clone, Copy)]
pub(super) struct Partial {
    pub(super) label: Label,
    pub(super) back: Label,
    pub(super) width: Width,
    /// Base of the offset in the packet, which is this plus `distance`.
    pub(super) address: Reg,
    pub(super) distance: i32,
    /// Scratch register: overwritten.
    pub(super) free: Reg,
    /// Register that has its value again afterwards.
    pub(super) borrowed: Reg,
    pub(super) what: What,
}

/// Resize of the head that did not simply move it.
#[derive(Clone, Copy)]
pub(super) struct HeadLate {
    /// Entry when the resize was refused.
    pub(super) refused: Label,
    /// Entry when the packet is shorter than the module reaches.
    pub(super) short: Label,
    pub(super) done: Label,
    /// True when bytes were added.
    pub(super) adds: bool,
    pub(super) place: Place,
}
