//! Code that is rare and stands behind the function's blocks: what is left to do there.

use super::super::asm::Label;
use super::super::insn::Reg;
use super::super::vcode::AnyAccess;
use crate::ir::{Place, Width};

/// What is rare and stands behind the function's blocks.
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

/// What is done where the access goes.
#[derive(Clone, Copy)]
pub(super) enum What {
    Load(Reg),
    Store(Reg),
}

/// One such access.
#[derive(Clone, Copy)]
pub(super) struct Partial {
    pub(super) label: Label,
    pub(super) back: Label,
    pub(super) width: Width,
    /// With `distance` it gives the offset in the packet.
    pub(super) address: Reg,
    pub(super) distance: i32,
    /// Is overwritten.
    pub(super) free: Reg,
    /// Has its value again afterwards.
    pub(super) borrowed: Reg,
    pub(super) what: What,
}

/// What is left to do for a head that did not simply move.
#[derive(Clone, Copy)]
pub(super) struct HeadLate {
    /// It was refused.
    pub(super) refused: Label,
    /// It is shorter than the module reaches.
    pub(super) short: Label,
    pub(super) done: Label,
    /// Whether bytes were added.
    pub(super) adds: bool,
    pub(super) place: Place,
}
