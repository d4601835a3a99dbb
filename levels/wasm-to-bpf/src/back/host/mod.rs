//! Subprograms of the compiler: host functions that are too long to inline. Each is in the program
//! only if something calls it. They take and return numbers; the kernel verifies each once.

mod bulk;
mod events;
mod packet;
mod resize;
mod shared;

use super::asm::Code;
use super::setting::Setting;
use super::subprogram::Subprogram;

/// Result: a range does not lie within the memory; nothing was written.
pub(crate) const OUTSIDE: i32 = 1;
/// Result: the budget for copying and filling is exhausted.
pub(crate) const SPENT: i32 = 2;

/// Returns the code of a subprogram and the size of its frame in bytes.
pub(crate) fn assemble(subprogram: Subprogram, setting: &Setting) -> (Code, u32) {
    match subprogram {
        Subprogram::MemoryCopy => bulk::copy(setting),
        Subprogram::MemoryFill => bulk::fill(setting),
        Subprogram::PacketLoad => packet::load(setting),
        Subprogram::PacketStore => packet::store(setting),
        Subprogram::ResizeHead => resize::head(setting),
        Subprogram::ResizeTail => resize::tail(setting),
        Subprogram::Pad => resize::pad(setting),
        Subprogram::Event => events::event(setting),
        Subprogram::Send => events::send(setting),
        Subprogram::Message => events::message(setting),
    }
}
