//! Order of equivalent repositories: healthy ones by the operator's preference; a failed one is
//! suspended for a while, longer each time. Pure: time is an argument.

use std::time::Duration;

/// Suspension after the first failure; doubled for each further one.
pub const REST_FIRST: Duration = Duration::from_secs(1);
/// Longest suspension: a recovered mirror may remain unused for that long.
pub const REST_MAX: Duration = Duration::from_secs(300);

/// Repositories with the same content, in the operator's order of preference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirrors<T> {
    all: Vec<Mirror<T>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Mirror<T> {
    what: T,
    /// Number of consecutive failures.
    failures: u32,
    /// End of the suspension.
    rests_until: Duration,
}

impl<T> Mirrors<T> {
    /// Makes the list; all repositories are taken for healthy.
    pub fn new(all: impl IntoIterator<Item = T>) -> Self {
        let healthy = |what| Mirror { what, failures: 0, rests_until: Duration::ZERO };
        Self { all: all.into_iter().map(healthy).collect() }
    }

    /// Returns the indices to ask at this time, in order: those not suspended, by preference. If
    /// all are suspended, only the one whose suspension ends first.
    #[must_use]
    pub fn order(&self, now: Duration) -> Vec<usize> {
        let awake = |at: &usize| self.all[*at].rests_until <= now;
        let order: Vec<usize> = (0..self.all.len()).filter(awake).collect();
        if !order.is_empty() {
            return order;
        }
        let first = (0..self.all.len()).min_by_key(|at| self.all[*at].rests_until);
        first.into_iter().collect()
    }

    /// Returns the number of repositories.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.all.len()
    }

    /// Returns true if there are no repositories.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Returns the repository at an index.
    #[must_use]
    pub fn get(&self, number: usize) -> Option<&T> {
        self.all.get(number).map(|mirror| &mirror.what)
    }

    /// Ends a suspension: the repository delivered, or stated that it does not have the object.
    pub fn answered(&mut self, number: usize) {
        if let Some(mirror) = self.all.get_mut(number) {
            (mirror.failures, mirror.rests_until) = (0, Duration::ZERO);
        }
    }

    /// Suspends a repository that was down, slow, or sent wrong content.
    pub fn failed(&mut self, number: usize, now: Duration) {
        if let Some(mirror) = self.all.get_mut(number) {
            let rest = REST_FIRST.saturating_mul(1 << mirror.failures.min(16)).min(REST_MAX);
            mirror.failures = mirror.failures.saturating_add(1);
            mirror.rests_until = now.saturating_add(rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_failed_mirror_is_suspended_longer_each_time_until_it_answers() {
        let mut mirrors = Mirrors::new(["a", "b", "c"]);
        assert_eq!(mirrors.order(s(0)), [0, 1, 2]);
        mirrors.failed(0, s(0));
        assert_eq!(mirrors.order(s(0)), [1, 2]);
        assert_eq!(mirrors.order(s(1)), [0, 1, 2]);
        mirrors.failed(0, s(1));
        assert_eq!(mirrors.order(s(2)), [1, 2]);
        assert_eq!(mirrors.order(s(3)), [0, 1, 2]);
        mirrors.answered(0);
        mirrors.failed(0, s(3));
        assert_eq!(mirrors.order(s(4)), [0, 1, 2], "the count began anew");
    }

    #[test]
    fn if_all_are_suspended_the_one_that_is_due_first_is_asked() {
        let mut mirrors = Mirrors::new(["a", "b"]);
        for _ in 0..30 {
            mirrors.failed(0, s(10));
        }
        mirrors.failed(1, s(10));
        assert_eq!(mirrors.order(s(10)), [1]);
        assert_eq!(mirrors.order(s(10) + REST_MAX), [0, 1]);
        assert_eq!(mirrors.get(1), Some(&"b"));
        assert_eq!(Mirrors::<&str>::new([]).order(s(0)), Vec::<usize>::new());
    }

    proptest! {
        #[test]
        fn each_order_is_non_empty_and_without_duplicates(
            history in proptest::collection::vec((0..6usize, any::<bool>(), 0..1000u64), 0..100)
        ) {
            let mut mirrors = Mirrors::new(0..4);
            let mut now = Duration::ZERO;
            for (number, has_failed, later) in history {
                now += Duration::from_millis(later);
                if has_failed { mirrors.failed(number, now) } else { mirrors.answered(number) }
                let order = mirrors.order(now);
                prop_assert!(!order.is_empty() && order.windows(2).all(|two| two[0] < two[1]));
                prop_assert_eq!(mirrors.order(now + REST_MAX).len(), 4);
            }
        }
    }
}
