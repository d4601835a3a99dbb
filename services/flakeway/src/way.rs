//! One direction of the link: what becomes of a packet, from when it comes, how long it is, and
//! chance. It holds nothing and reads no clock.
//!
//! ```text
//! packet ─▶ queue of the rate ─▶ wire: lost? twice? ─▶ delay + jitter ─▶ late? ─▶ due
//!              └ full
//! ```
//!
//! What is lost has had its time on the wire, as on a real link.

use crate::chance::{Chance, MILLION};
use crate::held::Order;
use crate::settings::Settings;

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// There was no room for it in the queue.
    QueueFull,
    Lost,
    /// It leaves at this time, in microseconds.
    Due {
        at: u64,
        order: Order,
        copies: u32,
    },
}

/// See above.
pub struct Way {
    chance: Chance,
    /// When the wire is free again: nanoseconds, so that no packet of a fast link is free.
    free_at_ns: u64,
    /// When the last packet on time is due: none passes another.
    last_due: u64,
    /// The last packet was lost.
    loses: bool,
}

impl Way {
    pub const fn new(seed: u64) -> Self {
        Self { chance: Chance::new(seed), free_at_ns: 0, last_due: 0, loses: false }
    }

    /// A packet of so many bytes comes.
    pub fn come(&mut self, now: u64, length: usize, settings: &Settings) -> Fate {
        let Some(left_at) = self.transmit(now, length, settings) else { return Fate::QueueFull };
        if self.is_lost(settings) {
            return Fate::Lost;
        }
        let copies = 1 + u32::from(self.chance.happens(settings.duplicate));
        let jitter = match settings.jitter_us {
            0 => 0,
            most => self.chance.below(most + 1),
        };
        let at = (left_at + settings.delay_us + jitter).max(self.last_due);
        self.last_due = at;
        match self.chance.happens(settings.reorder) {
            true => Fate::Due { at: at + settings.late_us, order: Order::Late, copies },
            false => Fate::Due { at, order: Order::OnTime, copies },
        }
    }

    /// When its last bit is on the wire; none when too much waits before it. What waits is what the
    /// wire is busy with: nothing has to be kept in a queue to know how long it is.
    fn transmit(&mut self, now: u64, length: usize, settings: &Settings) -> Option<u64> {
        if settings.rate == 0 {
            return Some(now);
        }
        let now_ns = now.saturating_mul(1_000);
        let (bits, second) = (length as u128 * 8, 1_000_000_000);
        let takes = (bits * second).div_ceil(u128::from(settings.rate)) as u64;
        let busy = self.free_at_ns.saturating_sub(now_ns);
        let waiting = u128::from(busy) * u128::from(settings.rate) / (8 * second);
        // A packet that finds the wire free always has room.
        if busy > 0 && waiting + length as u128 > u128::from(settings.queue) {
            return None;
        }
        self.free_at_ns = now_ns + busy + takes;
        Some(self.free_at_ns.div_ceil(1_000))
    }

    /// With bursts it is the chain of Gilbert: a state that loses and one that does not, left with
    /// such chances that runs are so long and losses so many.
    fn is_lost(&mut self, settings: &Settings) -> bool {
        let (loss, burst) = (settings.loss, settings.burst);
        if burst == 0 || loss == MILLION {
            return self.chance.happens(loss);
        }
        let leave = MILLION / burst;
        self.loses = if self.loses {
            !self.chance.happens(leave)
        } else {
            // In balance: enter × (1 - loss) = leave × loss.
            let enter = u64::from(leave) * u64::from(loss) / u64::from(MILLION - loss);
            self.chance.happens(u32::try_from(enter).unwrap_or(MILLION))
        };
        self.loses
    }
}
