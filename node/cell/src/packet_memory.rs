//! How packet memory is divided: what lies ready for packets to come, what may wait, what leaves.
//!
//! ```text
//!  ┌ for each receive queue ────────────────────────────────────┐   once
//!  │ ready to be received into: `waiting` │ leaving: half of it │ … │ `waiting` │
//!  └────────────────────────────────────────────────────────────┘
//!    `waiting`: 5/8 queues that sessions reserved │ 2/8 those that nobody did │ 1/8 system, spare
//! ```
//!
//! All packets that wait may have come by one queue, and those that wait next, too: so each has as
//! many frames ready as may wait in all, its receive ring as many entries, and what waits has as
//! many frames again. Then a queue of a device never runs out of frames or entries because of
//! packets that somebody else has waiting.

use units::Bytes;
use xsk::FRAME_LENGTH;

/// Packets that may wait, of all sessions together: at 3 million a second those of 1.4 ms, and a
/// receive ring has so many entries. Frames that lie ready are used in turn: with more of them
/// their first lines no longer fit a core's cache.
pub(crate) const WAITING_MAX: u32 = 4096;
/// Packets that a port may have to send: entries of a transmit ring.
pub(crate) const LEAVING_MAX: u32 = WAITING_MAX / 2;
/// While sessions have no claims against each other so many frames lie ready for a queue.
const READY: u32 = 2048;
/// Packet memory of a cell: 256 MiB.
const FRAMES_MAX: u32 = 65_536;
/// Fewer queues are taken for so many: one more may come with a device.
const QUEUES_MIN: u32 = 2;
/// Parts of what waits: reserved queues, and those that nobody reserved.
const PARTS: u32 = 8;
const PROMISED_PARTS: u32 = 5;
const UNRESERVED_PARTS: u32 = 2;
/// What may wait for the node's own services, as a part of all: a burst of 256 frames.
const SYSTEM_PART: u32 = 16;

/// See above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketMemory {
    frames: u32,
    waiting: u32,
}

impl PacketMemory {
    /// Packets that may wait in a cell, of all sessions together.
    pub const WAITING_MAX: u32 = WAITING_MAX;

    /// Of a cell with so many receive queues. From eleven on less may wait: the memory is bounded.
    #[must_use]
    pub const fn of(queues: u32) -> Self {
        let queues = if queues < QUEUES_MIN { QUEUES_MIN } else { queues };
        let wanted = queues.saturating_mul(WAITING_MAX + LEAVING_MAX).saturating_add(WAITING_MAX);
        if wanted <= FRAMES_MAX {
            return Self { frames: wanted, waiting: WAITING_MAX };
        }
        // frames = queues * (waiting + waiting / 2) + waiting
        let waiting = FRAMES_MAX * 2 / queues.saturating_mul(3).saturating_add(2);
        Self { frames: FRAMES_MAX, waiting }
    }

    /// All of it, in frames.
    pub(crate) const fn frames(self) -> u32 {
        self.frames
    }

    /// Frames that lie ready for each queue to receive into.
    pub(crate) fn ready(self, have_claims: bool) -> u32 {
        if have_claims { self.waiting } else { self.waiting.min(READY) }
    }

    /// Frames that a port may have to send.
    pub(crate) const fn leaving(self) -> u32 {
        self.waiting / 2
    }

    const fn part(self, parts: u32) -> Bytes {
        Bytes(self.waiting as u64 * parts as u64 / PARTS as u64 * FRAME_LENGTH as u64)
    }

    /// What queues can be promised of it.
    #[must_use]
    pub const fn promised(self) -> Bytes {
        self.part(PROMISED_PARTS)
    }

    /// What all queues together have that nobody reserved.
    pub(crate) const fn unreserved(self) -> Bytes {
        self.part(UNRESERVED_PARTS)
    }

    /// The queue of the node's own services.
    pub(crate) const fn system(self) -> Bytes {
        Bytes((self.waiting / SYSTEM_PART) as u64 * FRAME_LENGTH as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_wait_is_there_however_it_came() {
        for queues in 0..=1024 {
            let memory = PacketMemory::of(queues);
            let all = queues * (memory.ready(true) + memory.leaving()) + memory.waiting;
            assert!(
                all <= memory.frames() && memory.frames() <= FRAMES_MAX,
                "{queues}: {memory:?}"
            );
            assert!(memory.ready(true) >= memory.waiting && WAITING_MAX >= memory.waiting);
            let parts = memory.promised() + memory.unreserved() + memory.system();
            assert!(parts.0 <= u64::from(memory.waiting) * FRAME_LENGTH as u64, "{queues}");
        }
        let of_two = PacketMemory::of(2);
        assert_eq!((of_two.frames(), of_two.promised()), (16_384, Bytes(10 << 20)));
        assert_eq!(PacketMemory::of(0), of_two);
        assert_eq!(PacketMemory::of(10).waiting, WAITING_MAX);
        assert!(PacketMemory::of(64).waiting > 600);
    }
}
