//! A heap in which everybody has one place, found by his number.
//!
//! ```text
//!  items:  [ key, index ]  the smallest first, each before its four children: half as many steps
//!                          as with two, and so half as many lines of a cache
//!  places:   index ──▶ where in items, or nowhere
//! ```
//!
//! Both lists are as long as they will ever be once [`Heap::reserve`] has been called for the
//! largest index, so that nothing is allocated afterwards.

use core::ops::Range;

use crate::Ahead;

const NOWHERE: u32 = u32::MAX;

/// Children of an item.
const ARITY: usize = 4;

/// How many of the first ones are looked for at most.
const FIRST_ONES_MAX: usize = crate::executor::UPCOMING_MAX;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Item {
    key: u64,
    pub(crate) index: u32,
    /// What comes with the key; here, so that a search does not leave the heap.
    pub(crate) note: u32,
}

impl Item {
    /// Keys decide, then numbers: a run repeats itself.
    fn is_before(&self, other: &Self) -> bool {
        (self.key, self.index) < (other.key, other.index)
    }
}

/// Indices in the order of their keys.
#[derive(Clone, Debug, Default)]
pub(crate) struct Heap {
    items: Vec<Item>,
    places: Vec<u32>,
}

impl Heap {
    /// Makes room for indices below `count`.
    pub(crate) fn reserve(&mut self, count: usize) {
        if count > self.places.len() {
            self.places.resize(count, NOWHERE);
            self.items.reserve(count - self.items.len());
        }
    }

    /// The smallest key and whose it is.
    pub(crate) fn first(&self) -> Option<(u64, u32)> {
        self.items.first().map(|item| (item.key, item.index))
    }

    /// What is said of the first ones, in their order; how many there are.
    ///
    /// Whoever is next is a child of one that has been found.
    pub(crate) fn first_ones<T>(&self, found: &mut [T], of: impl Fn(&Item) -> T) -> usize {
        let most = found.len().min(FIRST_ONES_MAX);
        // In their order: those that were found, and behind them as many of their children as are
        // still wanted.
        let mut first = [0; FIRST_ONES_MAX];
        let mut known = most.min(self.items.len()).min(1);
        for at in 0..most {
            if at == known {
                return at;
            }
            found[at] = of(&self.items[first[at]]);
            for child in self.children(first[at]) {
                let mut place = known;
                while place > at + 1 && self.items[child].is_before(&self.items[first[place - 1]]) {
                    place -= 1;
                }
                if place < most {
                    known = most.min(known + 1);
                    first.copy_within(place..known - 1, place + 1);
                    first[place] = child;
                }
            }
        }
        most
    }

    /// Has loaded where it is.
    pub(crate) fn load_ahead(&self, index: u32, ahead: &impl Ahead) {
        ahead.load(&self.places[index as usize]);
    }

    /// Whether it is in.
    pub(crate) fn has(&self, index: u32) -> bool {
        self.places[index as usize] != NOWHERE
    }

    /// Puts it in, or where its new key belongs.
    pub(crate) fn put(&mut self, index: u32, key: u64, note: u32) {
        self.take(index);
        self.items.push(Item { key, index, note });
        self.rise(self.items.len() - 1);
    }

    /// Takes it out, if it is in.
    pub(crate) fn take(&mut self, index: u32) {
        let place = self.places[index as usize];
        if place == NOWHERE {
            return;
        }
        self.places[index as usize] = NOWHERE;
        let at = place as usize;
        let last = self.items.pop().expect("somebody is in, the one who is taken out");
        if at < self.items.len() {
            self.items[at] = last;
            // One of the two does nothing.
            self.rise(at);
            self.sink(self.places[last.index as usize] as usize);
        }
    }

    /// The smallest key below `limit` whose key and note are `wanted`, or, after `looks_max`
    /// others, the smallest of all: never too late, and soon found.
    pub(crate) fn first_where(
        &self,
        limit: u64,
        looks_max: usize,
        wanted: impl Fn(u64, u32) -> bool,
    ) -> Option<u64> {
        let mut looks = looks_max;
        let mut found = limit;
        if self.search(0, &mut looks, &mut found, &wanted).is_none() {
            found = self.items.first().map_or(limit, |item| item.key);
        }
        (found < limit).then_some(found)
    }

    /// `None`: looked often enough.
    fn search(
        &self,
        at: usize,
        looks: &mut usize,
        found: &mut u64,
        wanted: &impl Fn(u64, u32) -> bool,
    ) -> Option<()> {
        // What comes below is larger still.
        let Some(item) = self.items.get(at).filter(|item| item.key < *found) else {
            return Some(());
        };
        *looks = looks.checked_sub(1)?;
        if wanted(item.key, item.note) {
            *found = item.key;
            return Some(());
        }
        self.children(at).try_for_each(|child| self.search(child, looks, found, wanted))
    }

    fn children(&self, at: usize) -> Range<usize> {
        let first = ARITY * at + 1;
        first..self.items.len().min(first + ARITY)
    }

    fn rise(&mut self, mut at: usize) {
        let item = self.items[at];
        while at > 0 && item.is_before(&self.items[(at - 1) / ARITY]) {
            self.set(at, self.items[(at - 1) / ARITY]);
            at = (at - 1) / ARITY;
        }
        self.set(at, item);
    }

    fn sink(&mut self, mut at: usize) {
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
        self.places[item.index as usize] =
            u32::try_from(at).expect("there are at most as many items as indices of 32 bits");
    }

    /// How much it has room for: two numbers that change only when something was allocated.
    #[cfg(test)]
    pub(crate) fn room(&self) -> (usize, usize) {
        (self.items.capacity(), self.places.capacity())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn the_first_is_who_has_the_smallest_key_whatever_was_done(
            steps in prop::collection::vec((0u32..40, 0u64..100, any::<bool>()), 1..300),
        ) {
            let mut heap = Heap::default();
            heap.reserve(40);
            let room = heap.room();
            let mut model = BTreeMap::new();
            for (index, key, is_put) in steps {
                if is_put {
                    heap.put(index, key, 0);
                    model.insert(index, key);
                } else {
                    heap.take(index);
                    model.remove(&index);
                }
                let first = model.iter().map(|(&index, &key)| (key, index)).min();
                prop_assert_eq!(heap.first(), first);
                prop_assert_eq!(heap.has(index), is_put);
            }
            prop_assert_eq!(heap.room(), room);
        }

        #[test]
        fn the_first_ones_are_found_in_their_order(
            keys in prop::collection::vec(0u64..50, 0..200),
            most in 0usize..=FIRST_ONES_MAX,
        ) {
            let mut heap = Heap::default();
            heap.reserve(keys.len());
            for (index, &key) in (0u32..).zip(&keys) {
                heap.put(index, key, 0);
            }
            let mut found = vec![(0, 0); most];
            let count = heap.first_ones(&mut found, |item| (item.key, item.index));
            let mut sorted: Vec<(u64, u32)> = keys.iter().copied().zip(0u32..).collect();
            sorted.sort_unstable();
            sorted.truncate(most);
            prop_assert_eq!(&found[..count], &sorted[..]);
        }

        #[test]
        fn a_search_is_never_too_late_and_exact_while_it_may_look(
            keys in prop::collection::vec((0u64..100, 0u32..10), 0..60),
            limit in 0u64..120,
            looks_max in 0usize..80,
        ) {
            let mut heap = Heap::default();
            heap.reserve(keys.len());
            for (index, &(key, note)) in (0u32..).zip(&keys) {
                heap.put(index, key, note);
            }
            let wanted = |_: u64, note: u32| note < 2;
            let found = heap.first_where(limit, looks_max, wanted);
            let below = keys.iter().filter(|(key, _)| *key < limit);
            let exact = below.filter(|&&(key, note)| wanted(key, note)).map(|it| it.0).min();
            if looks_max >= keys.len() {
                prop_assert_eq!(found, exact);
            }
            prop_assert!(exact.is_none_or(|exact| found.is_some_and(|found| found <= exact)));
        }
    }
}
