//! Queue whose first element lies inline: most have at most one, and the heap block of a longer one
//! is a cache miss.

use std::collections::{VecDeque, vec_deque};

/// Queue whose first element lies inline.
#[derive(Debug)]
pub(crate) struct Fifo<T> {
    /// First element; `None` only when the queue is empty.
    first: Option<T>,
    rest: VecDeque<T>,
}

impl<T> Default for Fifo<T> {
    fn default() -> Self {
        Self { first: None, rest: VecDeque::new() }
    }
}

impl<T> Fifo<T> {
    #[inline]
    pub(crate) const fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    pub(crate) fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.rest.len()
    }

    /// Returns the next element.
    #[inline]
    pub(crate) const fn front(&self) -> Option<&T> {
        self.first.as_ref()
    }

    #[inline]
    pub(crate) fn push_back(&mut self, what: T) {
        match self.first {
            None => self.first = Some(what),
            Some(_) => self.rest.push_back(what),
        }
    }

    pub(crate) fn push_front(&mut self, what: T) {
        if let Some(second) = self.first.replace(what) {
            self.rest.push_front(second);
        }
    }

    #[inline]
    pub(crate) fn pop_front(&mut self) -> Option<T> {
        let first = self.first.take();
        if !self.rest.is_empty() {
            self.first = self.rest.pop_front();
        }
        first
    }

    /// Returns all elements in their order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.first.iter().chain(&self.rest)
    }
}

impl<T> IntoIterator for Fifo<T> {
    type Item = T;
    type IntoIter = std::iter::Chain<std::option::IntoIter<T>, vec_deque::IntoIter<T>>;

    fn into_iter(self) -> Self::IntoIter {
        self.first.into_iter().chain(self.rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fifo_behaves_like_a_vec_deque() {
        let (mut fifo, mut model) = (Fifo::default(), VecDeque::new());
        let mut chance: u32 = 1;
        for step in 0..10_000 {
            chance = chance.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            match chance >> 29 {
                0 => (fifo.push_front(step), model.push_front(step)).0,
                1..4 => (fifo.push_back(step), model.push_back(step)).0,
                _ => assert_eq!(fifo.pop_front(), model.pop_front()),
            }
            assert_eq!((fifo.len(), fifo.front()), (model.len(), model.front()));
            assert_eq!(fifo.is_empty(), model.is_empty());
            assert!(fifo.iter().eq(&model));
        }
        fifo.push_back(0);
        model.push_back(0);
        assert!(fifo.into_iter().eq(model));
    }
}
