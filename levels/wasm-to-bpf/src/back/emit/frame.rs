//! Stack frame: fixed slots at its upper end, then values without a register.

use super::super::setting::Needs;
use super::super::vcode::Slot;

/// Size of a slot, bytes.
const SLOT_BYTES: usize = 8;
/// Frame size granularity of the verifier, bytes.
const FRAME_ALIGNMENT: u32 = 16;

/// Offsets of slots and spilled values below the frame pointer.
pub(crate) struct Frame {
    fixed: Vec<Slot>,
    spills: usize,
}

impl Frame {
    pub(crate) fn new(needs: Needs, keeps_context: bool, spills: usize) -> Self {
        let mut fixed = Vec::new();
        if keeps_context {
            fixed.push(Slot::Context);
        }
        if needs.changes_packet {
            fixed.push(Slot::Data);
        }
        if needs.spare {
            fixed.extend([Slot::Spare, Slot::Pointer]);
        }
        Self { fixed, spills }
    }

    /// Returns the offset of a fixed slot.
    pub(crate) fn slot(&self, slot: Slot) -> i16 {
        let number = self.fixed.iter().position(|&fixed| fixed == slot).unwrap_or(0);
        offset(number)
    }

    /// Returns the offset of a spilled value.
    pub(crate) fn spill(&self, number: usize) -> i16 {
        offset(self.fixed.len() + number)
    }

    /// Returns the frame size that the verifier counts, bytes.
    pub(crate) fn bytes(&self) -> u32 {
        let slots = self.fixed.len() + self.spills;
        u32::try_from(slots * SLOT_BYTES).unwrap_or(u32::MAX / 2).next_multiple_of(FRAME_ALIGNMENT)
    }
}

/// Returns the offset of a slot by number. Frames that are too large are refused at link time.
fn offset(number: usize) -> i16 {
    i16::try_from((number + 1) * SLOT_BYTES).map_or(i16::MIN, |below| -below)
}
