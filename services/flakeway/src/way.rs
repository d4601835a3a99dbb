//! Direction of the link: the fate of a packet, from its arrival time, its length, and chance.
//! Holds no frames and reads no clock.
//!
//! ```text
//!  packet ─▶ queue of the rate ─▶ wire: lost? duplicated? ─▶ delay + jitter ─▶ late? ─▶ due
//!               └ full
//! ```
//!
//! A lost packet has used its time on the wire, as on a real link.

use crate::chance::{Chance, MILLION};
use crate::held::Order;
use crate::settings::Settings;

/// Fate of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The queue had no space for it.
    QueueFull,
    Lost,
    /// Departure at this time, in microseconds.
    Due {
        at: u64,
        order: Order,
        copies: u32,
    },
}

/// State of one direction.
pub struct Way {
    chance: Chance,
    /// Time at which the wire is free again, in nanoseconds, so that packets of a fast link take
    /// more than 0.
    free_at_ns: u64,
    /// Due time of the last packet on time: none overtakes another.
    last_due: u64,
    /// True if the last packet was lost.
    loses: bool,
}

impl Way {
    pub const fn new(seed: u64) -> Self {
        Self { chance: Chance::new(seed), free_at_ns: 0, last_due: 0, loses: false }
    }

    /// Handles a packet of this length.
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

    /// Returns the time at which its last bit is on the wire; `None` if too much waits before it.
    /// The queue length follows from the time for which the wire is busy.
    fn transmit(&mut self, now: u64, length: usize, settings: &Settings) -> Option<u64> {
        if settings.rate == 0 {
            return Some(now);
        }
        let now_ns = now.saturating_mul(1_000);
        let (bits, second) = (length as u128 * 8, 1_000_000_000);
        let takes = (bits * second).div_ceil(u128::from(settings.rate)) as u64;
        let busy = self.free_at_ns.saturating_sub(now_ns);
        let waiting = u128::from(busy) * u128::from(settings.rate) / (8 * second);
        // A packet that finds the wire free always has space.
        if busy > 0 && waiting + length as u128 > u128::from(settings.queue) {
            return None;
        }
        self.free_at_ns = now_ns + busy + takes;
        Some(self.free_at_ns.div_ceil(1_000))
    }

    /// Decides about loss. Bursts follow a Gilbert model: a lossy and a lossless state, with
    /// transition probabilities for the given mean burst length and loss rate.
    fn is_lost(&mut self, settings: &Settings) -> bool {
        let (loss, burst) = (settings.loss, settings.burst);
        if burst == 0 || loss == MILLION {
            return self.chance.happens(loss);
        }
        let leave = MILLION / burst;
        self.loses = if self.loses {
            !self.chance.happens(leave)
        } else {
            // In equilibrium: enter × (1 - loss) = leave × loss.
            let enter = u64::from(leave) * u64::from(loss) / u64::from(MILLION - loss);
            self.chance.happens(u32::try_from(enter).unwrap_or(MILLION))
        };
        self.loses
    }
}
