//! Replay window: a ring of bits over the counters seen (RFC 6479, whose code is not used).
//!
//! ```text
//!  highest = 1,000,003                     bit of a counter: word (counter / 64) mod 256
//!  ┌──────┬──────┬─────────┬──────┐
//!  │ word │ word │ …  256  │ word │ ◀── the word of the highest is incomplete and counts as
//!  └──────┴──────┴─────────┴──────┘     none: 255 words cover what is below it
//! ```
//!
//! Counters older than the window are refused, whether they were seen or not.

/// Words of the ring: a power of two, so that a word is found without a division.
const WORDS: usize = 256;
const WORD_BITS: u64 = u64::BITS as u64;

/// Largest distance below the highest counter at which a counter is still accepted. At a million
/// packets a second that is a reordering of 16 ms.
pub const REACH: u64 = (WORDS as u64 - 1) * WORD_BITS;

const _: () = assert!(WORDS.is_power_of_two());
const _: () = assert!(REACH >= 8192, "what was promised");

/// Reason why a counter is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stale {
    /// The counter was accepted before.
    #[error("the counter {counter} was accepted before")]
    Replayed {
        /// Counter of the packet.
        counter: u64,
    },
    /// The counter is below the window; whether it was seen is unknown.
    #[error("the counter {counter} is more than {REACH} behind the highest, {highest}")]
    TooOld {
        /// Counter of the packet.
        counter: u64,
        /// Highest counter accepted so far.
        highest: u64,
    },
}

/// Counters accepted in one direction of one association.
#[derive(Clone, Debug)]
pub struct Window {
    words: Box<[u64; WORDS]>,
    /// Highest counter accepted, plus one; 0 before the first.
    next: u64,
}

impl Default for Window {
    fn default() -> Self {
        Self { words: Box::new([0; WORDS]), next: 0 }
    }
}

impl Window {
    /// Checks whether this counter could be accepted. Takes a few instructions; called before the
    /// tag is verified.
    ///
    /// # Errors
    /// The counter was accepted before, or is below the window.
    pub fn check(&self, counter: u64) -> Result<(), Stale> {
        if counter >= self.next {
            return Ok(());
        }
        let highest = self.next - 1;
        if highest - counter > REACH {
            return Err(Stale::TooOld { counter, highest });
        }
        let (word, bit) = position(counter);
        if self.words[word] & bit == 0 { Ok(()) } else { Err(Stale::Replayed { counter }) }
    }

    /// Marks this counter as accepted. Called only after the packet's tag was verified.
    ///
    /// # Errors
    /// Errors of [`Window::check`], in which case nothing is marked.
    pub fn accept(&mut self, counter: u64) -> Result<(), Stale> {
        self.check(counter)?;
        if counter >= self.next {
            self.clear_up_to(counter);
            self.next = counter.saturating_add(1);
        }
        let (word, bit) = position(counter);
        self.words[word] |= bit;
        Ok(())
    }

    /// Clears the words between that of the highest counter and that of this one.
    fn clear_up_to(&mut self, counter: u64) {
        let last = self.next.saturating_sub(1) / WORD_BITS;
        let ahead = counter / WORD_BITS - last;
        for step in 1..=ahead.min(WORDS as u64) {
            self.words[(last + step) as usize % WORDS] = 0;
        }
    }
}

fn position(counter: u64) -> (usize, u64) {
    ((counter / WORD_BITS) as usize % WORDS, 1 << (counter % WORD_BITS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// Reference model: a set of all counters ever accepted.
    #[derive(Default)]
    struct Model {
        seen: BTreeSet<u64>,
    }

    impl Model {
        fn accept(&mut self, counter: u64) -> Result<(), Stale> {
            if let Some(&highest) = self.seen.last()
                && counter < highest
                && highest - counter > REACH
            {
                return Err(Stale::TooOld { counter, highest });
            }
            if self.seen.insert(counter) { Ok(()) } else { Err(Stale::Replayed { counter }) }
        }
    }

    fn counters() -> impl Strategy<Value = Vec<u64>> {
        let near = (0u64..40_000).boxed();
        let edges =
            (0u64..6, -3i64..4).prop_map(|(times, off)| (times * REACH).saturating_add_signed(off));
        let far = any::<u64>().prop_map(|far| far.saturating_sub(1));
        let one = prop_oneof![20 => near, 5 => edges, 1 => far];
        prop::collection::vec(one, 1..400)
    }

    proptest! {
        #[test]
        fn the_ring_agrees_with_a_set_that_forgets_nothing(counters in counters()) {
            let (mut window, mut model) = (Window::default(), Model::default());
            for counter in counters {
                let checked = window.check(counter);
                prop_assert_eq!(window.accept(counter), checked);
                prop_assert_eq!(model.accept(counter), checked);
            }
        }
    }

    #[test]
    fn at_least_8192_are_remembered_in_any_order() {
        let mut window = Window::default();
        let base = 1_000_000;
        window.accept(base + 8192).unwrap();
        for counter in (base..base + 8192).rev() {
            window.accept(counter).unwrap();
        }
        for counter in base..=base + 8192 {
            assert_eq!(window.accept(counter), Err(Stale::Replayed { counter }));
        }
    }

    #[test]
    fn the_largest_counter_overflows_nothing() {
        let mut window = Window::default();
        window.accept(u64::MAX - 1).unwrap();
        assert_eq!(window.accept(u64::MAX - 1), Err(Stale::Replayed { counter: u64::MAX - 1 }));
        window.accept(u64::MAX - 2).unwrap();
        assert!(matches!(window.accept(0), Err(Stale::TooOld { .. })));
    }
}
