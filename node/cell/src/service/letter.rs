//! Messages between modules, each of which is counted once for each receiver: delivered or dropped.
//!
//! A message passes two queues and waits for a lane. It can end in any of them: the service is
//! removed or replaced, its instance traps or is being started. Whatever ends it drops the
//! [`Letter`], which counts.

use std::cell::Cell;
use std::rc::Rc;

/// Ends of messages, of all services of a cell.
#[derive(Debug, Default)]
pub(crate) struct LetterCounts {
    /// Given to at least one lane of their receiver.
    pub(crate) delivered: Cell<u64>,
    /// Not given to any.
    pub(crate) dropped: Cell<u64>,
}

/// A message on its way to one receiver.
#[derive(Debug)]
pub(crate) struct Letter {
    bytes: Rc<[u8]>,
    /// None of what the daemon sends: it hears what becomes of that.
    counts: Option<Rc<LetterCounts>>,
}

impl Letter {
    /// Makes one of another module's.
    pub(crate) fn of_module(bytes: Rc<[u8]>, counts: &Rc<LetterCounts>) -> Self {
        Self { bytes, counts: Some(Rc::clone(counts)) }
    }

    /// Makes one of the daemon's.
    pub(crate) const fn of_daemon(bytes: Rc<[u8]>) -> Self {
        Self { bytes, counts: None }
    }

    /// Returns whether the daemon waits for answers to it.
    pub(crate) const fn is_of_daemon(&self) -> bool {
        self.counts.is_none()
    }

    /// Counts it as delivered, once.
    pub(crate) fn delivered(&mut self) {
        if let Some(counts) = self.counts.take() {
            counts.delivered.set(counts.delivered.get() + 1);
        }
    }

    /// Returns what the module gets.
    pub(crate) fn bytes(&self) -> Rc<[u8]> {
        Rc::clone(&self.bytes)
    }
}

impl Drop for Letter {
    fn drop(&mut self) {
        if let Some(counts) = self.counts.take() {
            counts.dropped.set(counts.dropped.get() + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_letter_is_counted_once_wherever_it_ends_and_the_daemons_never() {
        let counts = Rc::new(LetterCounts::default());
        let letter = || Letter::of_module([1, 2].into(), &counts);
        let mut delivered = letter();
        delivered.delivered();
        delivered.delivered();
        drop((delivered, letter(), vec![letter()], Letter::of_daemon([3].into())));
        assert_eq!((counts.delivered.get(), counts.dropped.get()), (1, 2));
    }
}
