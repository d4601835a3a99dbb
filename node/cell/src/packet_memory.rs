//! Division of packet memory: frames to receive into, packets that wait, and packets that leave.
//!
//! ```text
//!  ┌ for each receive queue ────────────────────────────────────┐   once
//!  │ ready to be received into: `waiting` │ leaving: half of it │ … │ `waiting` │
//!  └────────────────────────────────────────────────────────────┘
//!    `waiting`: 5/8 queues that sessions reserved │ 2/8 those that nobody did │ 1/8 system, spare
//! ```
//!
//! All packets that wait may have arrived by one queue, and so may the next ones. Therefore each
//! queue has as many frames ready as packets may wait in all, its receive ring has as many entries,
//! and waiting packets have as many frames again. So no queue of a device runs out of frames or
//! entries because packets of another session wait.

use units::Bytes;
use xsk::FRAME_LENGTH;

/// Packets of all sessions that may wait, and entries of a receive ring: 1.4 ms at 3 million
/// packets a second. Ready frames are used in rotation: with more of them their first cache lines
/// would no longer fit a core's cache.
pub(crate) const WAITING_MAX: u32 = 4096;
/// Packets that a port may have to send: entries of a transmit ring.
pub(crate) const LEAVING_MAX: u32 = WAITING_MAX / 2;
/// Frames ready for a queue while sessions have no claims against each other.
const READY: u32 = 2048;
/// Frames of a cell: 256 MiB.
const FRAMES_MAX: u32 = 65_536;
/// Least number of queues to plan for: a device may bring another.
const QUEUES_MIN: u32 = 2;
/// Divisor of waiting packets, and the parts of queues with and without a reservation.
const PARTS: u32 = 8;
const PROMISED_PARTS: u32 = 5;
const UNRESERVED_PARTS: u32 = 2;
/// Divisor for the queue of the node's own services: a burst of 256 frames.
const SYSTEM_PART: u32 = 16;

/// Division of a cell's packet memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketMemory {
    frames: u32,
    waiting: u32,
}

impl PacketMemory {
    /// Packets of all sessions together that may wait in a cell.
    pub const WAITING_MAX: u32 = WAITING_MAX;

    /// Returns the division for a cell with this many receive queues. From eleven queues on fewer
    /// packets may wait: the memory is bounded.
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

    /// Returns the number of all frames.
    pub(crate) const fn frames(self) -> u32 {
        self.frames
    }

    /// Returns the number of frames kept ready for each queue to receive into.
    pub(crate) fn ready(self, have_claims: bool) -> u32 {
        if have_claims { self.waiting } else { self.waiting.min(READY) }
    }

    /// Returns the number of frames that a port may have to send.
    pub(crate) const fn leaving(self) -> u32 {
        self.waiting / 2
    }

    const fn part(self, parts: u32) -> Bytes {
        Bytes(self.waiting as u64 * parts as u64 / PARTS as u64 * FRAME_LENGTH as u64)
    }

    /// Returns the bytes that queues may reserve in all.
    #[must_use]
    pub const fn promised(self) -> Bytes {
        self.part(PROMISED_PARTS)
    }

    /// Returns the bytes of all queues without a reservation together.
    pub(crate) const fn unreserved(self) -> Bytes {
        self.part(UNRESERVED_PARTS)
    }

    /// Returns the size of the queue of the node's own services.
    pub(crate) const fn system(self) -> Bytes {
        Bytes((self.waiting / SYSTEM_PART) as u64 * FRAME_LENGTH as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packet_memory_holds_all_queues_for_any_number_of_receive_queues() {
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
