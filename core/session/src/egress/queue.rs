//! Packets that wait, each session's in its own order, all of them in one list of places.
//!
//! ```text
//!  places:  | a → 3 |  free  | b → - | c → 4 | d → - |
//!  queue of one session:  first 0, last 4:  a, c, d
//!  queue of another one:  first 2, last 2:  b
//! ```
//!
//! A place that was free is taken again, so the list grows only while more packets wait than ever
//! before.

use units::Bytes;

const NOWHERE: u32 = u32::MAX;

#[derive(Clone, Debug)]
enum Place<T> {
    Free { next: u32 },
    Taken { handle: T, bytes: Bytes, next: u32 },
}

/// All packets of a port.
#[derive(Clone, Debug)]
pub(super) struct Packets<T> {
    places: Vec<Place<T>>,
    free: u32,
}

/// The packets of one session.
#[derive(Clone, Debug)]
pub(super) struct Queue {
    first: u32,
    last: u32,
    /// What it counts for; see [`counted`].
    pub(super) counted: Bytes,
    pub(super) count: u64,
}

/// What a packet counts for in a queue: at least what the shortest frame has, so that the places
/// of a queue are bounded, too.
pub(super) fn counted(bytes: Bytes) -> Bytes {
    bytes.max(Bytes(64))
}

impl Queue {
    pub(super) const fn new() -> Self {
        Self { first: NOWHERE, last: NOWHERE, counted: Bytes::ZERO, count: 0 }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.count == 0
    }
}

impl<T> Packets<T> {
    pub(super) const fn new() -> Self {
        Self { places: Vec::new(), free: NOWHERE }
    }

    /// Puts a packet at the end of a queue.
    pub(super) fn push(&mut self, queue: &mut Queue, bytes: Bytes, handle: T) {
        let taken = Place::Taken { handle, bytes, next: NOWHERE };
        let at = match self.places.get(self.free as usize) {
            Some(&Place::Free { next }) => {
                let at = self.free;
                self.free = next;
                self.places[at as usize] = taken;
                at
            }
            _ => {
                self.places.push(taken);
                // A place has more than 64 bytes: memory ends before 32 bits do.
                u32::try_from(self.places.len() - 1).expect("queues are bounded in bytes")
            }
        };
        if queue.is_empty() {
            queue.first = at;
        } else if let Some(Place::Taken { next, .. }) = self.places.get_mut(queue.last as usize) {
            *next = at;
        }
        queue.last = at;
        queue.count += 1;
        queue.counted += counted(bytes);
    }

    /// Takes the packet at the front of a queue.
    pub(super) fn pop(&mut self, queue: &mut Queue) -> Option<(Bytes, T)> {
        if queue.is_empty() {
            return None;
        }
        let at = queue.first;
        let place = self.places.get_mut(at as usize)?;
        let free = Place::Free { next: self.free };
        let Place::Taken { handle, bytes, next } = core::mem::replace(place, free) else {
            return None;
        };
        self.free = at;
        queue.first = next;
        queue.count -= 1;
        queue.counted = queue.counted.saturating_sub(counted(bytes));
        Some((bytes, handle))
    }

    /// How much it has room for.
    #[cfg(test)]
    pub(super) fn room(&self) -> usize {
        self.places.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        #[test]
        fn each_queue_keeps_its_order_whatever_the_others_do(
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
            prop_assert_eq!(packets.places.len(), most);
        }
    }
}
