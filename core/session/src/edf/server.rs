//! The periods of one promise: what of its slice is left, and until when (a constant bandwidth
//! server with hard reservations: Abeni and Buttazzo, 1998).
//!
//! ```text
//!            wakes, the period is over, or
//!            has too long a rest left: a new period
//!   ┌────────┐ ───────────────────────────▶ ┌────────┐
//!   │ asleep │ wakes in the period          │ ready  │ ◀─┐ the period ends:
//!   │        │ ───────────────────────────▶ │        │ ──┘ a new one
//!   └────────┘ ◀─────────────────────────── └────────┘
//!     ▲    │             sleeps               │    ▲
//!     │    │ wakes, nothing left     slice is │    │ the period ends: a new one, less
//!     │    └──────────┐              used up  │    │ what was used beyond the slice
//!     │               ▼                       ▼    │
//!     │             ┌──────────────────────────────┐
//!     └──────────── │           waiting            │
//!         sleeps    └──────────────────────────────┘
//! ```
//!
//! Nobody has more than a slice in a period, and nothing is saved while asleep. What keeps
//! everybody's deadlines is that whoever wakes up with more left than fits his share until the
//! end of his period gets a new deadline instead of the old one.

use units::Nanos;

use crate::share::Share;

/// What counts as work, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// Units of work in a nanosecond.
    pub(crate) work_per_nano: u64,
    /// What is used beyond a slice at most, and is counted with it.
    pub(crate) stop: Nanos,
    /// What all promises together may be, in parts of a million, stops included.
    pub(crate) capacity: u64,
    /// How late somebody may be given what is left of his slice; after that it is gone, and if
    /// this is zero, with his period.
    pub(crate) late_max: Nanos,
}

impl Rules {
    /// What a promise takes of everything, in parts of a million, rounded up.
    pub(crate) const fn cost(&self, share: Share) -> u64 {
        let with_stop = share.slice().0 + self.stop.0;
        (with_stop * crate::share::WHOLE).div_ceil(share.period().0)
    }

    fn slice(&self, share: Share) -> i64 {
        signed(share.slice().0 * self.work_per_nano)
    }
}

fn signed(work: u64) -> i64 {
    i64::try_from(work).unwrap_or(i64::MAX)
}

/// Where a promise is after it woke up or its period ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Has something left.
    Ready,
    /// Has to wait for the end of its period.
    Waiting,
}

/// A promise and its running period.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    pub(crate) share: Share,
    pub(crate) begin: Nanos,
    /// Its deadline. Before the first period, when that can begin.
    pub(crate) end: Nanos,
    /// Work; below zero: used beyond the slice.
    pub(crate) left: i64,
    /// What it will be in its next period.
    lower: Option<Share>,
    /// What it will be from the first period that begins at this time or later.
    higher: Option<(Share, Nanos)>,
}

impl Server {
    /// A promise that can be kept from `from` on.
    pub(crate) const fn new(share: Share, from: Nanos) -> Self {
        Self { share, begin: from, end: from, left: 0, lower: None, higher: None }
    }

    /// Whether it ever had a period.
    pub(crate) fn has_begun(&self) -> bool {
        self.begin < self.end
    }

    /// From the next period on it is another one; if that is more than it has then, from the
    /// first period on that begins at `from` or later.
    pub(crate) fn change(&mut self, share: Share, from: Nanos, rules: &Rules) {
        let before = self.higher.take().map_or(from, |(_, before)| before);
        if rules.cost(share) > rules.cost(self.lower.unwrap_or(self.share)) {
            self.higher = Some((share, from.max(before)));
        } else {
            // Less waits for nobody: somebody else may count on what it frees.
            self.lower = Some(share);
        }
    }

    /// Its next period's length, or less.
    pub(crate) fn next_period(&self) -> Nanos {
        let lower = self.lower.unwrap_or(self.share);
        let higher = self.higher.map_or(self.share, |(share, _)| share);
        self.share.period().min(lower.period()).min(higher.period())
    }

    /// Whether it has something left.
    pub(crate) fn state(&self) -> State {
        if self.left > 0 { State::Ready } else { State::Waiting }
    }

    /// It has work again; whether a new period has begun.
    pub(crate) fn wake(&mut self, now: Nanos, rules: &Rules) -> (State, bool) {
        let begins_anew = if now >= self.end {
            self.pay_back(now, rules);
            true
        } else if self.left > 0 && self.has_too_much(now, rules) {
            self.left = self.owed_early(now, rules);
            true
        } else {
            false
        };
        if begins_anew {
            self.begin_at(now, rules);
        }
        (self.state(), begins_anew)
    }

    /// Its period is over while it has work: the next one begins.
    pub(crate) fn renew(&mut self, now: Nanos, rules: &Rules) -> State {
        // After a pause of the whole machine, or of the port, there is no catching up.
        let is_long_over = now.saturating_sub(self.end) >= self.share.period().max(rules.late_max);
        if is_long_over {
            self.pay_back(now, rules);
        }
        self.begin_at(if is_long_over { now } else { self.end }, rules);
        self.state()
    }

    /// So much was done on its promise.
    pub(crate) fn charge(&mut self, work: u64) -> State {
        self.left = self.left.saturating_sub(signed(work));
        self.state()
    }

    fn begin_at(&mut self, begin: Nanos, rules: &Rules) {
        self.share = self.lower.take().unwrap_or(self.share);
        if let Some((share, from)) = self.higher
            && begin >= from
        {
            (self.share, self.higher) = (share, None);
        }
        self.left = rules.slice(self.share).saturating_add(self.left.min(0));
        self.begin = begin;
        self.end = begin + self.share.period();
    }

    /// Whole periods that it left out since its last one ended pay for what it owes.
    fn pay_back(&mut self, now: Nanos, rules: &Rules) {
        if self.left < 0 {
            let left_out = now.saturating_sub(self.end).0 / self.share.period().0;
            let paid = rules.slice(self.share).saturating_mul(signed(left_out));
            self.left = self.left.saturating_add(paid).min(0);
        }
    }

    /// Whether what is left, with a stop, is more than its share of the time until its period's
    /// end: then somebody else would be late if it were given that much by then.
    fn has_too_much(&self, now: Nanos, rules: &Rules) -> bool {
        let stop = i128::from(rules.stop.0 * rules.work_per_nano);
        let left = i128::from(self.left) + stop;
        let slice = i128::from(rules.slice(self.share)) + stop;
        let rest = i128::from(self.end.saturating_sub(now).0);
        left * i128::from(self.share.period().0) > rest * slice
    }

    /// What it had beyond its share of a period that is cut short, as a debt: less than a stop.
    /// Otherwise who sleeps at the right moments would have more than was promised him.
    fn owed_early(&self, now: Nanos, rules: &Rules) -> i64 {
        let slice = rules.slice(self.share);
        let passed = i128::from(now.saturating_sub(self.begin).0);
        let earned = i128::from(slice) * passed / i128::from(self.share.period().0);
        let had = i128::from(slice.saturating_sub(self.left));
        i64::try_from((earned - had).min(0)).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: Rules =
        Rules { work_per_nano: 1, stop: Nanos::ZERO, capacity: 1_000_000, late_max: Nanos::ZERO };
    const AT: fn(u64) -> Nanos = Nanos::from_millis;

    fn server() -> Server {
        let mut server = Server::new("1ms/4ms".parse().unwrap(), AT(0));
        server.wake(AT(0), &RULES);
        server
    }

    #[test]
    fn who_wakes_up_late_begins_a_new_period_with_one_slice() {
        let mut server = server();
        assert_eq!(server.wake(AT(40), &RULES), (State::Ready, true));
        assert_eq!((server.left, server.end), (1_000_000, AT(44)));
    }

    #[test]
    fn who_wakes_up_in_his_period_keeps_it_if_the_rest_fits() {
        let mut server = server();
        server.charge(600_000);
        assert_eq!(server.wake(AT(2), &RULES), (State::Ready, false));
        assert_eq!((server.left, server.end), (400_000, AT(4)));
        assert_eq!(server.wake(AT(3), &RULES), (State::Ready, true), "0.4 of 1 ms is too much");
        assert_eq!((server.left, server.end), (1_000_000, AT(7)));
    }

    #[test]
    fn what_was_used_beyond_the_slice_is_missing_in_the_next() {
        let mut server = server();
        assert_eq!(server.charge(1_010_000), State::Waiting);
        assert_eq!(server.wake(AT(3), &RULES), (State::Waiting, false));
        assert_eq!(server.renew(AT(4), &RULES), State::Ready);
        assert_eq!((server.left, server.begin), (990_000, AT(4)));
    }

    #[test]
    fn who_owes_several_slices_waits_for_several_periods_also_asleep() {
        let mut server = server();
        server.charge(3_500_000);
        let mut asleep = server.clone();
        assert_eq!(server.renew(AT(4), &RULES), State::Waiting);
        assert_eq!(server.renew(AT(8), &RULES), State::Waiting);
        assert_eq!(server.renew(AT(12), &RULES), State::Ready);
        assert_eq!(server.left, 500_000);
        assert_eq!(asleep.wake(AT(12), &RULES), (State::Ready, true));
        assert_eq!(asleep.left, 500_000);
    }

    #[test]
    fn after_a_pause_of_the_machine_nothing_is_caught_up_with() {
        let mut server = server();
        server.renew(AT(50), &RULES);
        assert_eq!((server.left, server.begin, server.end), (1_000_000, AT(50), AT(54)));
    }

    #[test]
    fn a_change_begins_with_a_period_that_begins_late_enough() {
        let mut server = server();
        server.change("2ms/4ms".parse().unwrap(), AT(5), &RULES);
        server.renew(AT(4), &RULES);
        assert_eq!(server.left, 1_000_000, "4 ms is before 5 ms");
        server.renew(AT(8), &RULES);
        assert_eq!(server.left, 2_000_000);
    }

    #[test]
    fn less_does_not_wait_for_anybody() {
        let mut server = server();
        server.change("3ms/4ms".parse().unwrap(), AT(5), &RULES);
        server.change("500us/4ms".parse().unwrap(), AT(1), &RULES);
        server.change("800us/4ms".parse().unwrap(), AT(9), &RULES);
        let mut slices = Vec::new();
        for end in [4, 8, 12] {
            server.renew(AT(end), &RULES);
            slices.push(server.left);
        }
        assert_eq!(slices, [500_000, 500_000, 800_000], "one after the other, each when it can");
    }

    #[test]
    fn who_cuts_his_periods_short_has_no_more_than_his_share() {
        let rules = Rules { stop: Nanos(20_000), ..RULES };
        let mut server = Server::new("50us/1ms".parse().unwrap(), AT(0));
        let (mut now, mut had) = (AT(0), 0);
        // Half of a slice and a stop in each half of a period: that may be cut short.
        for _ in 0..1_000 {
            let (state, _) = server.wake(now, &rules);
            if state == State::Ready {
                server.charge(35_000);
                had += 35_000;
            }
            now += Nanos(501_000);
        }
        assert!(had <= now.0 / 20 + 50_000, "{had} ns in {now}");
    }

    #[test]
    fn no_number_panics() {
        let mut server = server();
        server.charge(u64::MAX);
        server.charge(u64::MAX);
        server.wake(Nanos(u64::MAX), &RULES);
        server.renew(Nanos(u64::MAX), &RULES);
        server.renew(AT(0), &RULES);
    }
}
