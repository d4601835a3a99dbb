//! Detection of redirect cycles at user level, as in `levels/bpf/c/cycle.h`: frames that modules
//! send round and round between ports of the node that are cabled to each other.
//!
//! The first bytes of a frame select its counter. A frame that arrives by a port that is not cabled
//! adds rounds; one that comes round again uses one; each period begins with at least
//! [`CYCLE_ROUNDS`].

use bpf_maps::{CYCLE_ROUNDS, CYCLE_ROUNDS_MAX, CYCLES_MAX};
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use units::{CoarseInstant, Millis};

/// Length of a period, that of the daemon's heartbeat, by which the kernel's programs count.
const PERIOD: Millis = Millis(100);
/// Bytes of a frame that select its counter.
const HEAD_LENGTH: usize = 64;

/// Rounds that frames have left.
#[derive(Debug)]
pub(crate) struct Rounds {
    /// Keyed hash, so that nobody outside knows which frames share a counter.
    hash: RandomState,
    period: u64,
    /// Last period in which the counter was topped up, and the rounds left.
    left: Box<[(u64, u32)]>,
}

impl Default for Rounds {
    fn default() -> Self {
        let left = vec![(0, 0); CYCLES_MAX].into_boxed_slice();
        Self { hash: RandomState::new(), period: 0, left }
    }
}

impl Rounds {
    pub(crate) fn set_time(&mut self, now: CoarseInstant) {
        self.period = now.as_millis() / PERIOD.0;
    }

    /// Returns true if a frame that begins with `head` may leave by a cabled port; `came_round`
    /// states that it arrived by one.
    #[cold]
    pub(crate) fn allow(&mut self, head: &[u8], came_round: bool) -> bool {
        let head = &head[..head.len().min(HEAD_LENGTH)];
        let at = self.hash.hash_one(head) as usize % CYCLES_MAX;
        let (period, rounds) = &mut self.left[at];
        if *period != self.period {
            (*period, *rounds) = (self.period, (*rounds).max(CYCLE_ROUNDS));
        }
        if !came_round {
            *rounds = (*rounds + CYCLE_ROUNDS).min(CYCLE_ROUNDS_MAX);
            return true;
        }
        let is_left = *rounds > 0;
        *rounds = rounds.saturating_sub(1);
        is_left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how often a frame that has come round may leave.
    fn rounds(of: &mut Rounds, head: &[u8]) -> u32 {
        (0..1 << 20).take_while(|_| of.allow(head, true)).count() as u32
    }

    #[test]
    fn a_looping_frame_is_dropped_and_others_are_not() {
        let mut all = Rounds::default();
        all.set_time(CoarseInstant::from_millis(1_000));
        assert!(all.allow(b"the first frame", false));
        assert_eq!(rounds(&mut all, b"the first frame"), 2 * CYCLE_ROUNDS);
        // Another one shares its counter once in 4096 times: one of three does not.
        let others = [b"the second frame", b"a third frame...", b"a fourth frame.."];
        assert!(others.iter().any(|other| all.allow(*other, true)));
        assert!(!all.allow(b"the first frame", true), "it is not there again in the same period");
        // A new frame that looks the same is not its victim.
        assert!(all.allow(b"the first frame", false));
        assert_eq!(rounds(&mut all, b"the first frame"), CYCLE_ROUNDS);
        all.set_time(CoarseInstant::from_millis(1_100));
        assert_eq!(rounds(&mut all, b"the first frame"), CYCLE_ROUNDS);
    }

    #[test]
    fn a_flood_of_frames_that_look_alike_leaves_no_endless_rounds() {
        let mut all = Rounds::default();
        assert!((0..1 << 20).all(|_| all.allow(&[7; 200], false)));
        assert_eq!(rounds(&mut all, &[7; 64]), CYCLE_ROUNDS_MAX, "by its first 64 bytes");
    }
}
