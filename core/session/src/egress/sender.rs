//! Session at a port: its queue, its counters, and the thresholds that are watched.

use units::{Bytes, Packets as Count};

use crate::kind::Kind;

use super::SenderConfig;
use super::queue::Queue;

/// Thresholds of a queue whose crossings are reported, with hysteresis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watch {
    /// Queue length above which it is long.
    pub above: Bytes,
    /// Queue length up to which it is short again. Less than `above`, so that a queue around the
    /// threshold is not reported for each packet.
    pub below: Bytes,
}

/// Crossing of a queue threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crossing {
    /// The queue grew above `above`.
    Above,
    /// The queue shrank to `below` or less.
    Below,
}

/// Session at a port.
#[derive(Clone, Debug)]
pub(super) struct Sender {
    pub(super) entity: u32,
    pub(super) has_share: bool,
    pub(super) queue: Queue,
    pub(super) queue_max: Bytes,
    watch: Option<Watch>,
    is_long: bool,
    pub(super) guaranteed: Bytes,
    pub(super) surplus: Bytes,
    pub(super) packets: Count,
    pub(super) dropped: Count,
    pub(super) dropped_bytes: Bytes,
}

impl Sender {
    /// Makes a session with an empty queue and counters at zero.
    pub(super) const fn new(entity: u32, config: &SenderConfig) -> Self {
        Self {
            entity,
            has_share: config.share.is_some(),
            queue: Queue::new(),
            queue_max: config.queue,
            watch: None,
            is_long: false,
            guaranteed: Bytes::ZERO,
            surplus: Bytes::ZERO,
            packets: Count::ZERO,
            dropped: Count::ZERO,
            dropped_bytes: Bytes::ZERO,
        }
    }

    /// Counts a packet that leaves.
    pub(super) fn count(&mut self, bytes: Bytes, kind: Kind) {
        self.packets += Count(1);
        match kind {
            Kind::Guaranteed => self.guaranteed += bytes,
            Kind::Extra | Kind::BestEffort => self.surplus += bytes,
        }
    }

    /// Updates the long/short state after a packet was queued or left; returns a crossing.
    pub(super) fn crossing(&mut self) -> Option<Crossing> {
        let watch = self.watch?;
        let queued = self.queue.counted;
        if !self.is_long && queued > watch.above {
            self.is_long = true;
            return Some(Crossing::Above);
        }
        if self.is_long && queued <= watch.below {
            self.is_long = false;
            return Some(Crossing::Below);
        }
        None
    }

    /// Starts or stops reporting of crossings.
    pub(super) const fn watch(&mut self, watch: Option<Watch>) {
        self.watch = watch;
        self.is_long = false;
    }
}
