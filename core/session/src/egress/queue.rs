//! Packet queues of all sessions of a port: linked lists in one slab of slots.
//!
//! ```text
//!  slots:   | a → 3 |  free  | b → - | c → 4 | d → - |
//!  queue of one session:  first 0, last 4:  a, c, d
//!  queue of another one:  first 2, last 2:  b
//! ```
//!
//! Freed slots are reused, so the slab grows only to the largest number of packets ever queued at
//! once.

use units::Bytes;

const END: u32 = u32::MAX;

#[derive(Clone, Debug)]
enum Slot<T> {
    Free { next: u32 },
    Used { handle: T, bytes: Bytes, next: u32 },
}

/// Slab of all queued packets of a port.
#[derive(Clone, Debug)]
pub(super) struct Packets<T> {
    slots: Vec<Slot<T>>,
    free: u32,
}

/// Queue of one session.
#[derive(Clone, Debug)]
pub(super) struct Queue {
    first: u32,
    last: u32,
    /// Sum of [`counted`] over its packets.
    pub(super) counted: Bytes,
    pub(super) count: u64,
}

/// Returns the bytes that a packet counts for in a queue: at least the shortest Ethernet frame, 64,
/// so that a limit in bytes bounds the number of slots as well.
pub(super) fn counted(bytes: Bytes) -> Bytes {
    bytes.max(Bytes(64))
}

impl Queue {
    pub(super) const fn new() -> Self {
        Self { first: END, last: END, counted: Bytes::ZERO, count: 0 }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.count == 0
    }
}

impl<T> Packets<T> {
    pub(super) const fn new() -> Self {
        Self { slots: Vec::new(), free: END }
    }

    /// Appends a packet to a queue.
    pub(super) fn push(&mut self, queue: &mut Queue, bytes: Bytes, handle: T) {
        let used = Slot::Used { handle, bytes, next: END };
        let at = match self.slots.get(self.free as usize) {
            Some(&Slot::Free { next }) => {
                let at = self.free;
                self.free = next;
                self.slots[at as usize] = used;
                at
            }
            _ => {
                self.slots.push(used);
                // A slot stands for at least 64 bytes of packet memory, so memory ends before 2^32
                // slots.
                u32::try_from(self.slots.len() - 1).expect("queues are bounded in bytes")
            }
        };
        if queue.is_empty() {
            queue.first = at;
        } else if let Some(Slot::Used { next, .. }) = self.slots.get_mut(queue.last as usize) {
            *next = at;
        }
        queue.last = at;
        queue.count += 1;
        queue.counted += counted(bytes);
    }

    /// Removes the packet at the front of a queue.
    pub(super) fn pop(&mut self, queue: &mut Queue) -> Option<(Bytes, T)> {
        if queue.is_empty() {
            return None;
        }
        let at = queue.first;
        let slot = self.slots.get_mut(at as usize)?;
        let free = Slot::Free { next: self.free };
        let Slot::Used { handle, bytes, next } = core::mem::replace(slot, free) else {
            return None;
        };
        self.free = at;
        queue.first = next;
        queue.count -= 1;
        queue.counted = queue.counted.saturating_sub(counted(bytes));
        Some((bytes, handle))
    }

    /// Returns the capacity of the slab.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.slots.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        #[test]
        fn each_queue_keeps_its_order_independent_of_the_others(
            steps in prop::collection::vec((0usize..4, 0u64..2000, any::<bool>()), 1..400),
        ) {
            let mut packets = Packets::new();
            let mut queues = [(); 4].map(|()| Queue::new());
            let mut model = [(); 4].map(|()| VecDeque::new());
            let (mut now, mut most) = (0, 0);
            for (number, (at, bytes, is_push)) in steps.into_iter().enumerate() {
                if is_push {
                    packets.push(&mut queues[at], Bytes(bytes), number);
                    model[at].push_back((Bytes(bytes), number));
                    now += 1;
                } else {
                    let popped = packets.pop(&mut queues[at]);
                    now -= usize::from(popped.is_some());
                    prop_assert_eq!(popped, model[at].pop_front());
                }
                most = most.max(now);
                let sum: Bytes = model[at].iter().map(|(bytes, _)| counted(*bytes)).sum();
                prop_assert_eq!(queues[at].counted, sum);
                prop_assert_eq!(queues[at].count, model[at].len() as u64);
            }
            prop_assert_eq!(packets.slots.len(), most);
        }
    }
}
