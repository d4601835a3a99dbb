//! A session at a port: its queue, its counters, and whether somebody watches them.

use units::{Bytes, Packets as Count};

use crate::kind::Kind;

use super::Terms;
use super::queue::Queue;

/// When crossings are said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watch {
    /// The queue is long when there is more in it.
    pub above: Bytes,
    /// It is short again when there is no more than that in it: less than `above`, so that a
    /// queue at the threshold does not say so for each packet.
    pub below: Bytes,
}

/// A threshold was crossed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crossing {
    /// There is more in the queue than `above`.
    Above,
    /// There is no more in it than `below` again.
    Below,
}

/// A session at the port.
#[derive(Clone, Debug)]
pub(super) struct Sender {
    pub(super) entity: u32,
    pub(super) has_share: bool,
    pub(super) queue: Queue,
    pub(super) queue_max: Bytes,
    watch: Option<Watch>,
    is_long: bool,
    pub(super) guaranteed: Bytes,
    pub(super) rest: Bytes,
    pub(super) packets: Count,
    pub(super) dropped: Count,
    pub(super) dropped_bytes: Bytes,
}

impl Sender {
    /// One that has sent nothing.
    pub(super) const fn new(entity: u32, terms: &Terms) -> Self {
        Self {
            entity,
            has_share: terms.share.is_some(),
            queue: Queue::new(),
            queue_max: terms.queue,
            watch: None,
            is_long: false,
            guaranteed: Bytes::ZERO,
            rest: Bytes::ZERO,
            packets: Count::ZERO,
            dropped: Count::ZERO,
            dropped_bytes: Bytes::ZERO,
        }
    }

    /// A packet of it leaves.
    pub(super) fn count(&mut self, bytes: Bytes, kind: Kind) {
        self.packets += Count(1);
        match kind {
            Kind::Guaranteed => self.guaranteed += bytes,
            Kind::Extra | Kind::BestEffort => self.rest += bytes,
        }
    }

    /// A packet came or went: whether its queue has become long or short.
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

    /// Has crossings said, or not any more.
    pub(super) const fn watch(&mut self, watch: Option<Watch>) {
        self.watch = watch;
        self.is_long = false;
    }
}
