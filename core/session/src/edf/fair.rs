//! What nobody reserved or uses, shared by weight between sessions (start-time fair queueing:
//! Goyal, Vin and Cheng, 1996).
//!
//! ```text
//!  session   tag = what it has had, by its weight      members, in turn
//!  ┌──────┐
//!  │  7   │  1,200   ◀── smallest: it is next          ─▶ a ─▶ b ─▶ (a)
//!  │  3   │  1,450                                     ─▶ c
//!  └──────┘
//! ```
//!
//! Who comes begins where the others are: what he did not use while he was away is gone. Of two
//! that want all they can get, neither is ahead of the other by more than what one of each is
//! given at a time, by weight.

use crate::Ahead;
use crate::weight::Weight;

use super::heap::Heap;

const NOBODY: u32 = u32::MAX;

/// Members of a session that want some, as a ring.
#[derive(Clone, Copy, Debug)]
struct Link {
    previous: u32,
    next: u32,
}

#[derive(Clone, Copy, Debug)]
struct Group {
    weight: Weight,
    /// Who of it is next, or nobody.
    head: u32,
    /// Nanoseconds that it has had, divided by its weight.
    tag: u64,
    /// What was lost in that division.
    rest: u64,
}

/// Sessions that want some, in the order of what they have had.
#[derive(Clone, Debug)]
pub(crate) struct Fair {
    groups: Vec<Group>,
    /// With who of it was next when its tag was set.
    order: Heap,
    links: Vec<Link>,
    /// The tag of who was given some last.
    reached: u64,
    work_per_nano: u64,
}

impl Fair {
    /// Counts in units of work of which a nanosecond has so many.
    pub(crate) fn new(work_per_nano: u64) -> Self {
        Self {
            groups: Vec::new(),
            order: Heap::default(),
            links: Vec::new(),
            reached: 0,
            work_per_nano,
        }
    }

    /// Makes room for members below `count`.
    pub(crate) fn reserve_members(&mut self, count: usize) {
        if count > self.links.len() {
            self.links.resize(count, Link { previous: NOBODY, next: NOBODY });
        }
    }

    /// Makes room for a session, or changes its weight.
    pub(crate) fn set_weight(&mut self, session: u16, weight: Weight) {
        let count = usize::from(session) + 1;
        if count > self.groups.len() {
            let group = Group { weight: Weight::default(), head: NOBODY, tag: 0, rest: 0 };
            self.groups.resize(count, group);
            self.order.reserve(count);
        }
        let group = &mut self.groups[usize::from(session)];
        if group.weight != weight {
            group.weight = weight;
            group.rest = 0;
        }
    }

    /// A member of the session wants some.
    pub(crate) fn enter(&mut self, session: u16, member: u32) {
        if self.links[member as usize].next != NOBODY {
            return;
        }
        let group = &mut self.groups[usize::from(session)];
        if group.head == NOBODY {
            group.head = member;
            group.tag = group.tag.max(self.reached);
            let tag = group.tag;
            self.links[member as usize] = Link { previous: member, next: member };
            self.order.put(u32::from(session), tag, member);
        } else {
            // In front of the head is the end of the ring.
            let next = group.head;
            let previous = self.links[next as usize].previous;
            self.links[member as usize] = Link { previous, next };
            self.links[previous as usize].next = member;
            self.links[next as usize].previous = member;
        }
    }

    /// It wants none any more.
    pub(crate) fn leave(&mut self, session: u16, member: u32) {
        let Link { previous, next } = self.links[member as usize];
        if next == NOBODY {
            return;
        }
        self.links[member as usize] = Link { previous: NOBODY, next: NOBODY };
        let group = &mut self.groups[usize::from(session)];
        if next == member {
            group.head = NOBODY;
            self.order.take(u32::from(session));
            return;
        }
        if group.head == member {
            group.head = next;
        }
        self.links[previous as usize].next = next;
        self.links[next as usize].previous = previous;
    }

    /// Who is to be given some.
    pub(crate) fn first(&self) -> Option<u32> {
        let (_, session) = self.order.first()?;
        Some(self.groups[session as usize].head)
    }

    /// Who will be given some, in this order, but for sessions whose next one has left since; how
    /// many were found.
    pub(crate) fn upcoming(&self, next: &mut [u32]) -> usize {
        self.order.first_ones(next, |item| item.note)
    }

    /// Has loaded what a turn of a member looks at here.
    pub(crate) fn load_ahead(&self, session: u16, member: u32, ahead: &impl Ahead) {
        ahead.load(&self.links[member as usize]);
        if let Some(group) = self.groups.get(usize::from(session)) {
            ahead.load(group);
            self.order.load_ahead(u32::from(session), ahead);
        }
    }

    /// It was given so much; the next of its session is next.
    pub(crate) fn charge(&mut self, session: u16, member: u32, work: u64) {
        let group = &mut self.groups[usize::from(session)];
        self.reached = self.reached.max(group.tag);
        let divisor = u64::from(group.weight.get()) * self.work_per_nano;
        let sum = group.rest.saturating_add(work);
        group.tag = group.tag.saturating_add(sum / divisor);
        group.rest = sum % divisor;
        if group.head == member {
            group.head = self.links[member as usize].next;
        }
        if self.order.has(u32::from(session)) {
            self.order.put(u32::from(session), group.tag, group.head);
        }
    }

    /// How much it has room for.
    #[cfg(test)]
    pub(crate) fn room(&self) -> (usize, usize) {
        (self.groups.capacity() + self.links.capacity(), self.order.room().0)
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
    fn members_of_one_session_take_turns() {
        let mut fair = fair(&[1]);
        for member in [5, 3, 4] {
            fair.enter(0, member);
        }
        let mut turns = Vec::new();
        for _ in 0..6 {
            let member = fair.first().unwrap();
            fair.charge(0, member, 10);
            turns.push(member);
        }
        assert_eq!(turns, [5, 3, 4, 5, 3, 4]);
        fair.leave(0, 3);
        fair.leave(0, 3);
        assert_eq!(fair.first(), Some(5));
        fair.leave(0, 5);
        fair.leave(0, 4);
        assert_eq!(fair.first(), None);
    }

    #[test]
    fn who_was_away_has_nothing_saved() {
        let mut fair = fair(&[1, 1]);
        fair.enter(0, 0);
        (0..100).for_each(|_| fair.charge(0, 0, 10));
        fair.enter(1, 1);
        let mut turns = [0; 2];
        for _ in 0..10 {
            let member = fair.first().unwrap();
            turns[member as usize] += 1;
            fair.charge(u16::try_from(member).unwrap(), member, 10);
        }
        assert_eq!(turns, [5, 5]);
    }

    proptest! {
        #[test]
        fn neither_of_two_is_ahead_by_more_than_one_turn_of_each(
            weights in prop::collection::vec(1u16..=1000, 2..8),
            turns in prop::collection::vec(1u64..=1_000_000, 1..500),
        ) {
            let mut fair = fair(&weights);
            let mut had = vec![0u64; weights.len()];
            (0u16..).zip(&weights).for_each(|(session, _)| fair.enter(session, u32::from(session)));
            for work in turns {
                let first = fair.first().unwrap();
                fair.charge(u16::try_from(first).unwrap(), first, work);
                had[first as usize] += work;
            }
            let by_weight: Vec<u64> =
                had.iter().zip(&weights).map(|(had, weight)| had / u64::from(*weight)).collect();
            for (one, weight) in by_weight.iter().zip(&weights) {
                for (other, other_weight) in by_weight.iter().zip(&weights) {
                    let turn = |weight: &u16| 1_000_000 / u64::from(*weight) + 2;
                    prop_assert!(one.abs_diff(*other) <= turn(weight) + turn(other_weight));
                }
            }
        }
    }
}
