//! Map from small numbers to values: an array instead of a hash table, since it is read for each
//! packet.

/// Map from small numbers to values, with as many slots as the largest number ever used requires.
#[derive(Debug)]
pub(crate) struct Numbered<T> {
    places: Vec<Option<T>>,
    count: usize,
}

impl<T> Default for Numbered<T> {
    fn default() -> Self {
        Self { places: Vec::new(), count: 0 }
    }
}

impl<T> Numbered<T> {
    /// Returns the number of values.
    pub(crate) const fn len(&self) -> usize {
        self.count
    }

    /// Returns the number of slots: one more than the largest number ever used.
    pub(crate) const fn places(&self) -> usize {
        self.places.len()
    }

    #[inline]
    pub(crate) fn get(&self, number: usize) -> Option<&T> {
        self.places.get(number).and_then(Option::as_ref)
    }

    /// Returns the slot of a number, to prefetch it.
    #[inline]
    pub(crate) fn place(&self, number: usize) -> Option<&Option<T>> {
        self.places.get(number)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, number: usize) -> Option<&mut T> {
        self.places.get_mut(number).and_then(Option::as_mut)
    }

    /// Returns the value of a number, which it creates if there is none.
    pub(crate) fn get_or_insert_with(&mut self, number: usize, make: impl FnOnce() -> T) -> &mut T {
        self.reach(number);
        self.count += usize::from(self.places[number].is_none());
        self.places[number].get_or_insert_with(make)
    }

    /// Inserts a value. Returns the one that it replaces.
    pub(crate) fn insert(&mut self, number: usize, what: T) -> Option<T> {
        self.reach(number);
        let before = self.places[number].replace(what);
        self.count += usize::from(before.is_none());
        before
    }

    pub(crate) fn remove(&mut self, number: usize) -> Option<T> {
        let gone = self.places.get_mut(number).and_then(Option::take);
        self.count -= usize::from(gone.is_some());
        gone
    }

    /// Returns all values, in the order of their numbers.
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.places.iter_mut().flatten()
    }

    /// Returns all values with their numbers.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (usize, &mut T)> {
        let places = self.places.iter_mut().enumerate();
        places.filter_map(|(number, place)| Some((number, place.as_mut()?)))
    }

    /// Returns the values from a number on, with their numbers.
    pub(crate) fn iter_from(&self, first: usize) -> impl Iterator<Item = (usize, &T)> {
        let places = self.places.iter().enumerate().skip(first);
        places.filter_map(|(number, place)| Some((number, place.as_ref()?)))
    }

    /// Removes all values.
    pub(crate) fn clear(&mut self) {
        self.places.clear();
        self.count = 0;
    }

    fn reach(&mut self, number: usize) {
        if self.places.len() <= number {
            self.places.resize_with(number + 1, || None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_counted_and_found_by_its_number() {
        let mut all = Numbered::default();
        assert_eq!((all.len(), all.remove(7)), (0, None));
        assert_eq!(all.insert(7, 'a'), None);
        assert_eq!(*all.get_or_insert_with(7, || 'b'), 'a');
        assert_eq!(*all.get_or_insert_with(3, || 'c'), 'c');
        assert_eq!(
            (all.len(), all.values_mut().map(|it| *it).collect::<String>()),
            (2, "ca".to_owned())
        );
        assert_eq!((all.insert(3, 'd'), all.remove(7), all.len()), (Some('c'), Some('a'), 1));
        assert_eq!((all.get(3), all.places()), (Some(&'d'), 8));
        assert_eq!(all.get_mut(7), None);
    }
}
