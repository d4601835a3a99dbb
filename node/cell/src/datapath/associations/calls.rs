//! Cache of the daemon's answers: the service of a digest, for one association or for
//! unauthenticated packets.

use super::WAIT_MAX;
use crate::protocol::Answer;
use units::{CoarseInstant, EntryId, Millis};

/// Digests cached for one association: as many modules as one client calls.
const CALLS_MAX: usize = 64;

/// Result of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Callee {
    Service(EntryId),
    Asked,
    Refused,
    Unknown,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Service(EntryId),
    Asked { since: CoarseInstant },
    Refused { until: CoarseInstant },
}

#[derive(Clone, Copy, Debug)]
struct Known {
    digest: [u8; 32],
    state: State,
}

/// Digests of one caller, in the order in which they were first called.
#[derive(Debug, Default)]
pub(super) struct Calls {
    known: Vec<Known>,
    /// Index of the last hit: most callers call one module.
    last: usize,
}

impl Calls {
    #[inline]
    pub(super) fn find(&mut self, digest: &[u8; 32], now: CoarseInstant) -> Callee {
        let known = match self.known.get(self.last) {
            Some(known) if known.digest == *digest => known,
            _ => match self.known.iter().position(|known| known.digest == *digest) {
                Some(at) => {
                    self.last = at;
                    &self.known[at]
                }
                None => return Callee::Unknown,
            },
        };
        match known.state {
            State::Service(entry) => Callee::Service(entry),
            State::Asked { since } if now < since + WAIT_MAX => Callee::Asked,
            State::Refused { until } if now < until => Callee::Refused,
            State::Asked { .. } | State::Refused { .. } => Callee::Unknown,
        }
    }

    pub(super) fn asked(&mut self, digest: [u8; 32], now: CoarseInstant) {
        self.set(digest, State::Asked { since: now });
    }

    pub(super) fn answered(&mut self, digest: [u8; 32], answer: Answer, now: CoarseInstant) {
        self.set(
            digest,
            match answer {
                Answer::Service(entry) => State::Service(entry),
                Answer::Refused { for_ms } => State::Refused { until: now + Millis(for_ms) },
            },
        );
    }

    pub(super) fn forget(&mut self, entry: EntryId) {
        self.known.retain(|known| !matches!(known.state, State::Service(it) if it == entry));
    }

    fn set(&mut self, digest: [u8; 32], state: State) {
        if let Some(known) = self.known.iter_mut().find(|known| known.digest == digest) {
            known.state = state;
            return;
        }
        if self.known.len() >= CALLS_MAX {
            // Running services are not evicted for unknown digests, which strangers can forge.
            let idle = |known: &Known| !matches!(known.state, State::Service(_));
            let gone = self.known.iter().position(idle).unwrap_or(0);
            self.known.remove(gone);
        }
        self.known.push(Known { digest, state });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(millis: u64) -> CoarseInstant {
        CoarseInstant::from_millis(millis)
    }

    #[test]
    fn running_services_are_not_evicted_by_forged_digests() {
        let mut calls = Calls::default();
        calls.answered([1; 32], Answer::Service(EntryId(7)), at(0));
        for number in 0..1000u16 {
            let mut digest = [2; 32];
            digest[..2].copy_from_slice(&number.to_be_bytes());
            assert_eq!(calls.find(&digest, at(0)), Callee::Unknown);
            calls.asked(digest, at(0));
            calls.answered(digest, Answer::Refused { for_ms: 100 }, at(0));
            assert_eq!(calls.find(&digest, at(99)), Callee::Refused);
            assert_eq!(calls.find(&digest, at(100)), Callee::Unknown);
        }
        assert_eq!(calls.known.len(), CALLS_MAX);
        assert_eq!(calls.find(&[1; 32], at(0)), Callee::Service(EntryId(7)));
        calls.forget(EntryId(7));
        assert_eq!(calls.find(&[1; 32], at(0)), Callee::Unknown);
    }

    #[test]
    fn an_unanswered_question_is_repeated() {
        let mut calls = Calls::default();
        calls.asked([1; 32], at(5));
        assert_eq!(calls.find(&[1; 32], at(WAIT_MAX.0 + 4)), Callee::Asked);
        assert_eq!(calls.find(&[1; 32], at(WAIT_MAX.0 + 5)), Callee::Unknown);
    }
}
