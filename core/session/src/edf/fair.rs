//! Start-time fair queueing of the surplus between sessions by weight (Goyal, Vin and Cheng, 1996).
//!
//! ```text
//!  session   tag = work done, divided by weight         members, round robin
//!  ┌──────┐
//!  │  7   │  1,200   ◀── smallest: next             ─▶ a ─▶ b ─▶ (a)
//!  │  3   │  1,450                                     ─▶ c
//!  └──────┘
//! ```
//!
//! A session that becomes active starts at the virtual time of the others: time it did not use
//! while inactive is not saved. Of two backlogged sessions, neither is ahead by more than one
//! allocation of each, by weight.

use crate::Prefetch;
use crate::weight::Weight;

use super::heap::Heap;

const NIL: u32 = u32::MAX;

/// Links of the ring of one session's active members.
#[derive(Clone, Copy, Debug)]
struct Link {
    previous: u32,
    next: u32,
}

#[derive(Clone, Copy, Debug)]
struct Group {
    weight: Weight,
    /// Member to be served next, or `NIL`.
    head: u32,
    /// Start tag: work done, in nanoseconds, divided by the weight.
    tag: u64,
    /// Remainder of that division.
    remainder: u64,
}

/// Sessions with active members, ordered by their start tags.
#[derive(Clone, Debug)]
pub(crate) struct Fair {
    groups: Vec<Group>,
    /// Sessions by tag; the payload is the head at the time when the tag was set.
    order: Heap,
    links: Vec<Link>,
    /// Virtual time: start tag of the session served last.
    virtual_time: u64,
    work_per_nano: u64,
}

impl Fair {
    /// Makes an empty queue; `work_per_nano` is the number of units of work in a nanosecond.
    pub(crate) fn new(work_per_nano: u64) -> Self {
        Self {
            groups: Vec::new(),
            order: Heap::default(),
            links: Vec::new(),
            virtual_time: 0,
            work_per_nano,
        }
    }

    /// Allocates for members below `count`.
    pub(crate) fn reserve_members(&mut self, count: usize) {
        if count > self.links.len() {
            self.links.resize(count, Link { previous: NIL, next: NIL });
        }
    }

    /// Allocates for a session and sets its weight.
    pub(crate) fn set_weight(&mut self, session: u16, weight: Weight) {
        let count = usize::from(session) + 1;
        if count > self.groups.len() {
            let group = Group { weight: Weight::default(), head: NIL, tag: 0, remainder: 0 };
            self.groups.resize(count, group);
            self.order.reserve(count);
        }
        let group = &mut self.groups[usize::from(session)];
        if group.weight != weight {
            group.weight = weight;
            group.remainder = 0;
        }
    }

    /// Activates a member of the session. No effect if it is active.
    pub(crate) fn enter(&mut self, session: u16, member: u32) {
        if self.links[member as usize].next != NIL {
            return;
        }
        let group = &mut self.groups[usize::from(session)];
        if group.head == NIL {
            group.head = member;
            group.tag = group.tag.max(self.virtual_time);
            let tag = group.tag;
            self.links[member as usize] = Link { previous: member, next: member };
            self.order.insert(u32::from(session), tag, member);
        } else {
            // The position before the head is the end of the ring.
            let next = group.head;
            let previous = self.links[next as usize].previous;
            self.links[member as usize] = Link { previous, next };
            self.links[previous as usize].next = member;
            self.links[next as usize].previous = member;
        }
    }

    /// Deactivates a member.
    pub(crate) fn leave(&mut self, session: u16, member: u32) {
        let Link { previous, next } = self.links[member as usize];
        if next == NIL {
            return;
        }
        self.links[member as usize] = Link { previous: NIL, next: NIL };
        let group = &mut self.groups[usize::from(session)];
        if next == member {
            group.head = NIL;
            self.order.remove(u32::from(session));
            return;
        }
        if group.head == member {
            group.head = next;
        }
        self.links[previous as usize].next = next;
        self.links[next as usize].previous = previous;
    }

    /// Returns the member to serve.
    pub(crate) fn first(&self) -> Option<u32> {
        let (_, session) = self.order.first()?;
        Some(self.groups[session as usize].head)
    }

    /// Fills `next` with the members to serve, in order; returns their number. A session whose head
    /// has left since its tag was set may be reported with that member.
    pub(crate) fn upcoming(&self, next: &mut [u32]) -> usize {
        self.order.first_ones(next, |item| item.payload)
    }

    /// Prefetches what serving a member reads here.
    pub(crate) fn prefetch(&self, session: u16, member: u32, cache: &impl Prefetch) {
        cache.prefetch(&self.links[member as usize]);
        if let Some(group) = self.groups.get(usize::from(session)) {
            cache.prefetch(group);
            self.order.prefetch(u32::from(session), cache);
        }
    }

    /// Charges a member with work; the next of its session becomes the head.
    pub(crate) fn charge(&mut self, session: u16, member: u32, work: u64) {
        let group = &mut self.groups[usize::from(session)];
        self.virtual_time = self.virtual_time.max(group.tag);
        let divisor = u64::from(group.weight.get()) * self.work_per_nano;
        let sum = group.remainder.saturating_add(work);
        group.tag = group.tag.saturating_add(sum / divisor);
        group.remainder = sum % divisor;
        if group.head == member {
            group.head = self.links[member as usize].next;
        }
        if self.order.contains(u32::from(session)) {
            self.order.insert(u32::from(session), group.tag, group.head);
        }
    }

    /// Returns the capacities of all lists.
    #[cfg(test)]
    pub(crate) fn capacities(&self) -> (usize, usize) {
        (self.groups.capacity() + self.links.capacity(), self.order.capacities().0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fair(weights: &[u16]) -> Fair {
        let mut fair = Fair::new(1);
        fair.reserve_members(8);
        for (session, &weight) in (0u16..).zip(weights) {
            fair.set_weight(session, Weight::new(weight).unwrap());
        }
        fair
    }

    #[test]
    fn members_of_one_session_are_served_round_robin() {
        let mut fair = fair(&[1]);
        for member in [5, 3, 4] {
            fair.enter(0, member);
        }
        let mut served = Vec::new();
        for _ in 0..6 {
            let member = fair.first().unwrap();
            fair.charge(0, member, 10);
            served.push(member);
        }
        assert_eq!(served, [5, 3, 4, 5, 3, 4]);
        fair.leave(0, 3);
        fair.leave(0, 3);
        assert_eq!(fair.first(), Some(5));
        fair.leave(0, 5);
        fair.leave(0, 4);
        assert_eq!(fair.first(), None);
    }

    #[test]
    fn an_inactive_session_saves_nothing() {
        let mut fair = fair(&[1, 1]);
        fair.enter(0, 0);
        (0..100).for_each(|_| fair.charge(0, 0, 10));
        fair.enter(1, 1);
        let mut served = [0; 2];
        for _ in 0..10 {
            let member = fair.first().unwrap();
            served[member as usize] += 1;
            fair.charge(u16::try_from(member).unwrap(), member, 10);
        }
        assert_eq!(served, [5, 5]);
    }

    proptest! {
        #[test]
        fn neither_of_two_is_ahead_by_more_than_one_allocation_of_each(
            weights in prop::collection::vec(1u16..=1000, 2..8),
            served in prop::collection::vec(1u64..=1_000_000, 1..500),
        ) {
            let mut fair = fair(&weights);
            let mut had = vec![0u64; weights.len()];
            (0u16..).zip(&weights).for_each(|(session, _)| fair.enter(session, u32::from(session)));
            for work in served {
                let first = fair.first().unwrap();
                fair.charge(u16::try_from(first).unwrap(), first, work);
                had[first as usize] += work;
            }
            let by_weight: Vec<u64> =
                had.iter().zip(&weights).map(|(had, weight)| had / u64::from(*weight)).collect();
            for (one, weight) in by_weight.iter().zip(&weights) {
                for (other, other_weight) in by_weight.iter().zip(&weights) {
                    let allocation = |weight: &u16| 1_000_000 / u64::from(*weight) + 2;
                    prop_assert!(one.abs_diff(*other) <= allocation(weight) + allocation(other_weight));
                }
            }
        }
    }
}
