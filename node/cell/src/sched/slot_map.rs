//! Map from small numbers to values: an array instead of a hash table, since it is read for each
//! packet.

/// Map from small numbers to values, with as many slots as the largest number ever used requires.
#[derive(Debug)]
pub(crate) struct SlotMap<T> {
    slots: Vec<Option<T>>,
    count: usize,
}

impl<T> Default for SlotMap<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), count: 0 }
    }
}

impl<T> SlotMap<T> {
    /// Returns the number of values.
    pub(crate) const fn len(&self) -> usize {
        self.count
    }

    /// Returns the number of slots: one more than the largest number ever used.
    pub(crate) const fn slots(&self) -> usize {
        self.slots.len()
    }

    #[inline]
    pub(crate) fn get(&self, number: usize) -> Option<&T> {
        self.slots.get(number).and_then(Option::as_ref)
    }

    /// Returns the slot of a number, to prefetch it.
    #[inline]
    pub(crate) fn slot(&self, number: usize) -> Option<&Option<T>> {
        self.slots.get(number)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, number: usize) -> Option<&mut T> {
        self.slots.get_mut(number).and_then(Option::as_mut)
    }

    /// Returns the value of a number, which it creates if there is none.
    pub(crate) fn get_or_insert_with(&mut self, number: usize, make: impl FnOnce() -> T) -> &mut T {
        self.grow_to(number);
        self.count += usize::from(self.slots[number].is_none());
        self.slots[number].get_or_insert_with(make)
    }

    /// Inserts a value. Returns the one that it replaces.
    pub(crate) fn insert(&mut self, number: usize, what: T) -> Option<T> {
        self.grow_to(number);
        let before = self.slots[number].replace(what);
        self.count += usize::from(before.is_none());
        before
    }

    pub(crate) fn remove(&mut self, number: usize) -> Option<T> {
        let gone = self.slots.get_mut(number).and_then(Option::take);
        self.count -= usize::from(gone.is_some());
        gone
    }

    /// Returns all values, in the order of their numbers.
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().flatten()
    }

    /// Returns all values with their numbers.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (usize, &mut T)> {
        let slots = self.slots.iter_mut().enumerate();
        slots.filter_map(|(number, slot)| Some((number, slot.as_mut()?)))
    }

    /// Returns the values from a number on, with their numbers.
    pub(crate) fn iter_from(&self, first: usize) -> impl Iterator<Item = (usize, &T)> {
        let slots = self.slots.iter().enumerate().skip(first);
        slots.filter_map(|(number, slot)| Some((number, slot.as_ref()?)))
    }

    /// Removes all values.
    pub(crate) fn clear(&mut self) {
        self.slots.clear();
        self.count = 0;
    }

    fn grow_to(&mut self, number: usize) {
        if self.slots.len() <= number {
            self.slots.resize_with(number + 1, || None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_and_found_by_their_numbers() {
        let mut all = SlotMap::default();
        assert_eq!((all.len(), all.remove(7)), (0, None));
        assert_eq!(all.insert(7, 'a'), None);
        assert_eq!(*all.get_or_insert_with(7, || 'b'), 'a');
        assert_eq!(*all.get_or_insert_with(3, || 'c'), 'c');
        assert_eq!(
            (all.len(), all.values_mut().map(|it| *it).collect::<String>()),
            (2, "ca".to_owned())
        );
        assert_eq!((all.insert(3, 'd'), all.remove(7), all.len()), (Some('c'), Some('a'), 1));
        assert_eq!((all.get(3), all.slots()), (Some(&'d'), 8));
        assert_eq!(all.get_mut(7), None);
    }
}
