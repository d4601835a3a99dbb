//! Indexed 4-ary min-heap: each index occurs at most once, and its position is found in O(1).
//!
//! ```text
//!  items:  [ key, index ]  smallest first, each before its four children: half the depth
//!                          of a binary heap, so half as many cache lines
//!  positions: index ──▶ position in items, or ABSENT
//! ```
//!
//! [`Heap::reserve`] for the largest index allocates both lists at their final length; nothing is
//! allocated afterwards.

use core::ops::Range;

use crate::Prefetch;

const ABSENT: u32 = u32::MAX;

/// Children per node.
const ARITY: usize = 4;

/// Largest number of items that [`Heap::first_ones`] finds.
const FIRST_ONES_MAX: usize = crate::executor::UPCOMING_MAX;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Item {
    key: u64,
    pub(crate) index: u32,
    /// Caller's payload, stored here so that a search does not leave the heap.
    pub(crate) payload: u32,
}

impl Item {
    /// Orders by key, then by index, so that runs are reproducible.
    fn is_before(&self, other: &Self) -> bool {
        (self.key, self.index) < (other.key, other.index)
    }
}

/// Indices ordered by key.
#[derive(Clone, Debug, Default)]
pub(crate) struct Heap {
    items: Vec<Item>,
    positions: Vec<u32>,
}

impl Heap {
    /// Allocates for indices below `count`.
    pub(crate) fn reserve(&mut self, count: usize) {
        if count > self.positions.len() {
            self.positions.resize(count, ABSENT);
            self.items.reserve(count - self.items.len());
        }
    }

    /// Returns the smallest key and its index.
    pub(crate) fn first(&self) -> Option<(u64, u32)> {
        self.items.first().map(|item| (item.key, item.index))
    }

    /// Maps the first items, in order, into `found`; returns their number.
    ///
    /// The next item in order is always a child of one already found, so candidates are those
    /// children.
    pub(crate) fn first_ones<T>(&self, found: &mut [T], of: impl Fn(&Item) -> T) -> usize {
        let most = found.len().min(FIRST_ONES_MAX);
        // Sorted: the items found, then as many of their children as are still wanted.
        let mut first = [0; FIRST_ONES_MAX];
        let mut known = most.min(self.items.len()).min(1);
        for at in 0..most {
            if at == known {
                return at;
            }
            found[at] = of(&self.items[first[at]]);
            for child in self.children(first[at]) {
                let mut position = known;
                while position > at + 1
                    && self.items[child].is_before(&self.items[first[position - 1]])
                {
                    position -= 1;
                }
                if position < most {
                    known = most.min(known + 1);
                    first.copy_within(position..known - 1, position + 1);
                    first[position] = child;
                }
            }
        }
        most
    }

    /// Prefetches the position of an index.
    pub(crate) fn prefetch(&self, index: u32, cache: &impl Prefetch) {
        cache.prefetch(&self.positions[index as usize]);
    }

    /// Returns true if the index is in the heap.
    pub(crate) fn contains(&self, index: u32) -> bool {
        self.positions[index as usize] != ABSENT
    }

    /// Inserts an index, or changes its key.
    pub(crate) fn insert(&mut self, index: u32, key: u64, payload: u32) {
        self.remove(index);
        self.items.push(Item { key, index, payload });
        self.sift_up(self.items.len() - 1);
    }

    /// Removes an index if it is in the heap.
    pub(crate) fn remove(&mut self, index: u32) {
        let position = self.positions[index as usize];
        if position == ABSENT {
            return;
        }
        self.positions[index as usize] = ABSENT;
        let at = position as usize;
        let last = self.items.pop().expect("not empty, since it contains the index");
        if at < self.items.len() {
            self.items[at] = last;
            // At most one of the two moves the item.
            self.sift_up(at);
            self.sift_down(self.positions[last.index as usize] as usize);
        }
    }

    /// Returns the smallest key below `limit` whose key and payload satisfy `wanted`. After
    /// `visits_max` items the smallest key of all is returned instead: never too late, and in
    /// bounded time.
    pub(crate) fn first_where(
        &self,
        limit: u64,
        visits_max: usize,
        wanted: impl Fn(u64, u32) -> bool,
    ) -> Option<u64> {
        let mut visits = visits_max;
        let mut found = limit;
        if self.search(0, &mut visits, &mut found, &wanted).is_none() {
            found = self.items.first().map_or(limit, |item| item.key);
        }
        (found < limit).then_some(found)
    }

    /// Returns `None` if the visits are used up.
    fn search(
        &self,
        at: usize,
        visits: &mut usize,
        found: &mut u64,
        wanted: &impl Fn(u64, u32) -> bool,
    ) -> Option<()> {
        // Keys of children are larger still.
        let Some(item) = self.items.get(at).filter(|item| item.key < *found) else {
            return Some(());
        };
        *visits = visits.checked_sub(1)?;
        if wanted(item.key, item.payload) {
            *found = item.key;
            return Some(());
        }
        self.children(at).try_for_each(|child| self.search(child, visits, found, wanted))
    }

    fn children(&self, at: usize) -> Range<usize> {
        let first = ARITY * at + 1;
        first..self.items.len().min(first + ARITY)
    }

    fn sift_up(&mut self, mut at: usize) {
        let item = self.items[at];
        while at > 0 && item.is_before(&self.items[(at - 1) / ARITY]) {
            self.set(at, self.items[(at - 1) / ARITY]);
            at = (at - 1) / ARITY;
        }
        self.set(at, item);
    }

    fn sift_down(&mut self, mut at: usize) {
        let item = self.items[at];
        loop {
            let children = self.children(at);
            let first = children.reduce(|first, other| {
                if self.items[other].is_before(&self.items[first]) { other } else { first }
            });
            let Some(child) = first.filter(|&child| self.items[child].is_before(&item)) else {
                break;
            };
            self.set(at, self.items[child]);
            at = child;
        }
        self.set(at, item);
    }

    fn set(&mut self, at: usize, item: Item) {
        self.items[at] = item;
        self.positions[item.index as usize] =
            u32::try_from(at).expect("there are at most as many items as indices of 32 bits");
    }

    /// Returns the capacities of both lists, which change only if something was allocated.
    #[cfg(test)]
    pub(crate) fn capacities(&self) -> (usize, usize) {
        (self.items.capacity(), self.positions.capacity())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn the_first_has_the_smallest_key_after_any_history(
            steps in prop::collection::vec((0u32..40, 0u64..100, any::<bool>()), 1..300),
        ) {
            let mut heap = Heap::default();
            heap.reserve(40);
            let capacities = heap.capacities();
            let mut model = BTreeMap::new();
            for (index, key, is_insert) in steps {
                if is_insert {
                    heap.insert(index, key, 0);
                    model.insert(index, key);
                } else {
                    heap.remove(index);
                    model.remove(&index);
                }
                let first = model.iter().map(|(&index, &key)| (key, index)).min();
                prop_assert_eq!(heap.first(), first);
                prop_assert_eq!(heap.contains(index), is_insert);
            }
            prop_assert_eq!(heap.capacities(), capacities);
        }

        #[test]
        fn the_first_ones_are_found_in_their_order(
            keys in prop::collection::vec(0u64..50, 0..200),
            most in 0usize..=FIRST_ONES_MAX,
        ) {
            let mut heap = Heap::default();
            heap.reserve(keys.len());
            for (index, &key) in (0u32..).zip(&keys) {
                heap.insert(index, key, 0);
            }
            let mut found = vec![(0, 0); most];
            let count = heap.first_ones(&mut found, |item| (item.key, item.index));
            let mut sorted: Vec<(u64, u32)> = keys.iter().copied().zip(0u32..).collect();
            sorted.sort_unstable();
            sorted.truncate(most);
            prop_assert_eq!(&found[..count], &sorted[..]);
        }

        #[test]
        fn a_search_is_never_too_late_and_exact_within_its_visits(
            keys in prop::collection::vec((0u64..100, 0u32..10), 0..60),
            limit in 0u64..120,
            visits_max in 0usize..80,
        ) {
            let mut heap = Heap::default();
            heap.reserve(keys.len());
            for (index, &(key, payload)) in (0u32..).zip(&keys) {
                heap.insert(index, key, payload);
            }
            let wanted = |_: u64, payload: u32| payload < 2;
            let found = heap.first_where(limit, visits_max, wanted);
            let below = keys.iter().filter(|(key, _)| *key < limit);
            let exact = below.filter(|&&(key, payload)| wanted(key, payload)).map(|it| it.0).min();
            if visits_max >= keys.len() {
                prop_assert_eq!(found, exact);
            }
            prop_assert!(exact.is_none_or(|exact| found.is_some_and(|found| found <= exact)));
        }
    }
}
