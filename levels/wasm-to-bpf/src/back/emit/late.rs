//! Deferred code behind the function's blocks: the rare cases, each with the data for its
//! emission.

use super::super::asm::Label;
use super::super::insn::Reg;
use super::super::vcode::AnyAccess;
use crate::ir::{Place, Width};

/// Rare case whose code stands behind the function's blocks.
pub(super) enum Late {
    /// Access of the window across the packet's end.
    Partial(Partial),
    /// Resize of the head that failed or needs padding.
    Head(HeadLate),
    /// Exact decision on the region of an access.
    Decide {
        label: Label,
        back: Label,
        access: AnyAccess,
        address: Reg,
        free: [Reg; 2],
        what: What,
    },
}

/// Operation of an access.
#[derive(Clone, Copy)]
pub(super) enum What {
    Load(Reg),
    Store(Reg),
}

/// Access of the window across the packet's end.
#[derive(Clone, Copy)]
pub(super) struct Partial {
    pub(super) label: Label,
    pub(super) back: Label,
    pub(super) width: Width,
    /// Base of the offset in the packet, which is this plus `distance`.
    pub(super) address: Reg,
    pub(super) distance: i32,
    /// Scratch register, overwritten.
    pub(super) free: Reg,
    /// Register that is saved and restored.
    pub(super) borrowed: Reg,
    pub(super) what: What,
}

/// Resize of the head that failed or needs padding.
#[derive(Clone, Copy)]
pub(super) struct HeadLate {
    /// Entry when the resize was refused.
    pub(super) refused: Label,
    /// Entry when the packet is shorter than the module's farthest access.
    pub(super) short: Label,
    pub(super) done: Label,
    /// True when bytes were added.
    pub(super) adds: bool,
    pub(super) place: Place,
}
