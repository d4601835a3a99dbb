//! Constant bandwidth server with hard reservations (Abeni and Buttazzo, 1998): the budget and the
//! deadline of one reservation.
//!
//! ```text
//!            wakes, the period is over, or
//!            has too much budget left: a new period
//!   ┌────────┐ ───────────────────────────▶ ┌────────┐
//!   │ asleep │ wakes in the period          │ ready  │ ◀─┐ the period ends:
//!   │        │ ───────────────────────────▶ │        │ ──┘ a new one
//!   └────────┘ ◀─────────────────────────── └────────┘
//!     ▲    │             sleeps               │    ▲
//!     │    │ wakes, no budget left   slice is │    │ the period ends: a new one, less
//!     │    └──────────┐              used up  │    │ the overrun of its budget
//!     │               ▼                       ▼    │
//!     │             ┌──────────────────────────────┐
//!     └──────────── │           waiting            │
//!         sleeps    └──────────────────────────────┘
//! ```
//!
//! A reservation has at most one slice per period, and saves nothing while asleep. All deadlines
//! hold because an entity that wakes up with more budget than fits its bandwidth until the end of
//! its period gets a new deadline instead of the old one.

use units::Nanos;

use crate::share::Share;

/// Parameters of a schedule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Params {
    /// Units of work in a nanosecond.
    pub(crate) work_per_nano: u64,
    /// Longest overrun beyond a slice, counted with it in the load.
    pub(crate) overrun_max: Nanos,
    /// Largest load of all reservations, in parts per million, overruns included.
    pub(crate) capacity: u64,
    /// Time after its deadline for which an entity keeps its remaining budget. Later it is lost;
    /// with zero, at the end of the period.
    pub(crate) lateness_max: Nanos,
}

impl Params {
    /// Returns the load of a reservation, in parts per million, rounded up.
    pub(crate) const fn cost(&self, share: Share) -> u64 {
        let with_overrun = share.slice().0 + self.overrun_max.0;
        (with_overrun * crate::share::WHOLE).div_ceil(share.period().0)
    }

    fn slice(&self, share: Share) -> i64 {
        signed(share.slice().0 * self.work_per_nano)
    }
}

fn signed(work: u64) -> i64 {
    i64::try_from(work).unwrap_or(i64::MAX)
}

/// State of a reservation after a wake-up or the end of a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Budget left.
    Ready,
    /// Budget used up until the end of the period.
    Waiting,
}

/// Reservation with its current period.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    pub(crate) share: Share,
    pub(crate) begin: Nanos,
    /// Deadline. Before the first period, the time at which that can begin.
    pub(crate) end: Nanos,
    /// Remaining budget in units of work; negative after an overrun.
    pub(crate) budget: i64,
    /// Decrease that takes effect with the next period.
    pending_decrease: Option<Share>,
    /// Increase that takes effect with the first period that begins at the given time or later.
    pending_increase: Option<(Share, Nanos)>,
}

impl Server {
    /// Makes a reservation that can be kept from `from` on.
    pub(crate) const fn new(share: Share, from: Nanos) -> Self {
        Self {
            share,
            begin: from,
            end: from,
            budget: 0,
            pending_decrease: None,
            pending_increase: None,
        }
    }

    /// Returns true if a first period has begun.
    pub(crate) fn has_begun(&self) -> bool {
        self.begin < self.end
    }

    /// Changes the share: a decrease with the next period, an increase with the first period that
    /// begins at `from` or later.
    pub(crate) fn change(&mut self, share: Share, from: Nanos, params: &Params) {
        let before = self.pending_increase.take().map_or(from, |(_, before)| before);
        if params.cost(share) > params.cost(self.pending_decrease.unwrap_or(self.share)) {
            self.pending_increase = Some((share, from.max(before)));
        } else {
            // Decreases are not delayed: another reservation may count on the load that they
            // release.
            self.pending_decrease = Some(share);
        }
    }

    /// Returns a lower bound of the length of the next period.
    pub(crate) fn next_period(&self) -> Nanos {
        let pending_decrease = self.pending_decrease.unwrap_or(self.share);
        let pending_increase = self.pending_increase.map_or(self.share, |(share, _)| share);
        self.share.period().min(pending_decrease.period()).min(pending_increase.period())
    }

    /// Returns the state that the budget implies.
    pub(crate) fn state(&self) -> State {
        if self.budget > 0 { State::Ready } else { State::Waiting }
    }

    /// Wakes up; returns the state, and true if a new period has begun.
    pub(crate) fn wake(&mut self, now: Nanos, params: &Params) -> (State, bool) {
        let is_new_period = if now >= self.end {
            self.repay_debt(now, params);
            true
        } else if self.budget > 0 && self.exceeds_bandwidth(now, params) {
            self.budget = self.early_renewal_debt(now, params);
            true
        } else {
            false
        };
        if is_new_period {
            self.begin_at(now, params);
        }
        (self.state(), is_new_period)
    }

    /// Ends the period of a reservation with work and begins the next one.
    pub(crate) fn renew(&mut self, now: Nanos, params: &Params) -> State {
        // After a pause of the whole machine or port, missed periods are not made up for.
        let is_long_over =
            now.saturating_sub(self.end) >= self.share.period().max(params.lateness_max);
        if is_long_over {
            self.repay_debt(now, params);
        }
        self.begin_at(if is_long_over { now } else { self.end }, params);
        self.state()
    }

    /// Charges work to the budget.
    pub(crate) fn charge(&mut self, work: u64) -> State {
        self.budget = self.budget.saturating_sub(signed(work));
        self.state()
    }

    fn begin_at(&mut self, begin: Nanos, params: &Params) {
        self.share = self.pending_decrease.take().unwrap_or(self.share);
        if let Some((share, from)) = self.pending_increase
            && begin >= from
        {
            (self.share, self.pending_increase) = (share, None);
        }
        self.budget = params.slice(self.share).saturating_add(self.budget.min(0));
        self.begin = begin;
        self.end = begin + self.share.period();
    }

    /// Repays an overrun with the slices of whole periods that passed unused since the last one
    /// ended.
    fn repay_debt(&mut self, now: Nanos, params: &Params) {
        if self.budget < 0 {
            let unused = now.saturating_sub(self.end).0 / self.share.period().0;
            let paid = params.slice(self.share).saturating_mul(signed(unused));
            self.budget = self.budget.saturating_add(paid).min(0);
        }
    }

    /// Returns true if the remaining budget with an overrun exceeds the bandwidth until the end of
    /// the period: using it by then would make others miss their deadlines.
    fn exceeds_bandwidth(&self, now: Nanos, params: &Params) -> bool {
        let overrun = i128::from(params.overrun_max.0 * params.work_per_nano);
        let budget = i128::from(self.budget) + overrun;
        let slice = i128::from(params.slice(self.share)) + overrun;
        let remaining = i128::from(self.end.saturating_sub(now).0);
        budget * i128::from(self.share.period().0) > remaining * slice
    }

    /// Returns the debt (zero or negative) of a period that is cut short: use beyond the bandwidth
    /// so far, less than an overrun. Without it an entity that sleeps at chosen moments would
    /// exceed its share.
    fn early_renewal_debt(&self, now: Nanos, params: &Params) -> i64 {
        let slice = params.slice(self.share);
        let passed = i128::from(now.saturating_sub(self.begin).0);
        let earned = i128::from(slice) * passed / i128::from(self.share.period().0);
        let had = i128::from(slice.saturating_sub(self.budget));
        i64::try_from((earned - had).min(0)).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARAMS: Params = Params {
        work_per_nano: 1,
        overrun_max: Nanos::ZERO,
        capacity: 1_000_000,
        lateness_max: Nanos::ZERO,
    };
    const AT: fn(u64) -> Nanos = Nanos::from_millis;

    fn server() -> Server {
        let mut server = Server::new("1ms/4ms".parse().unwrap(), AT(0));
        server.wake(AT(0), &PARAMS);
        server
    }

    #[test]
    fn a_late_wake_up_begins_a_new_period_with_one_slice() {
        let mut server = server();
        assert_eq!(server.wake(AT(40), &PARAMS), (State::Ready, true));
        assert_eq!((server.budget, server.end), (1_000_000, AT(44)));
    }

    #[test]
    fn a_wake_up_within_the_period_keeps_it_if_the_budget_fits() {
        let mut server = server();
        server.charge(600_000);
        assert_eq!(server.wake(AT(2), &PARAMS), (State::Ready, false));
        assert_eq!((server.budget, server.end), (400_000, AT(4)));
        assert_eq!(server.wake(AT(3), &PARAMS), (State::Ready, true), "0.4 of 1 ms is too much");
        assert_eq!((server.budget, server.end), (1_000_000, AT(7)));
    }

    #[test]
    fn an_overrun_is_subtracted_from_the_next_slice() {
        let mut server = server();
        assert_eq!(server.charge(1_010_000), State::Waiting);
        assert_eq!(server.wake(AT(3), &PARAMS), (State::Waiting, false));
        assert_eq!(server.renew(AT(4), &PARAMS), State::Ready);
        assert_eq!((server.budget, server.begin), (990_000, AT(4)));
    }

    #[test]
    fn a_debt_of_several_slices_takes_several_periods_also_asleep() {
        let mut server = server();
        server.charge(3_500_000);
        let mut asleep = server.clone();
        assert_eq!(server.renew(AT(4), &PARAMS), State::Waiting);
        assert_eq!(server.renew(AT(8), &PARAMS), State::Waiting);
        assert_eq!(server.renew(AT(12), &PARAMS), State::Ready);
        assert_eq!(server.budget, 500_000);
        assert_eq!(asleep.wake(AT(12), &PARAMS), (State::Ready, true));
        assert_eq!(asleep.budget, 500_000);
    }

    #[test]
    fn after_a_pause_of_the_machine_nothing_is_made_up_for() {
        let mut server = server();
        server.renew(AT(50), &PARAMS);
        assert_eq!((server.budget, server.begin, server.end), (1_000_000, AT(50), AT(54)));
    }

    #[test]
    fn a_change_begins_with_a_period_that_begins_late_enough() {
        let mut server = server();
        server.change("2ms/4ms".parse().unwrap(), AT(5), &PARAMS);
        server.renew(AT(4), &PARAMS);
        assert_eq!(server.budget, 1_000_000, "4 ms is before 5 ms");
        server.renew(AT(8), &PARAMS);
        assert_eq!(server.budget, 2_000_000);
    }

    #[test]
    fn a_decrease_is_not_delayed() {
        let mut server = server();
        server.change("3ms/4ms".parse().unwrap(), AT(5), &PARAMS);
        server.change("500us/4ms".parse().unwrap(), AT(1), &PARAMS);
        server.change("800us/4ms".parse().unwrap(), AT(9), &PARAMS);
        let mut slices = Vec::new();
        for end in [4, 8, 12] {
            server.renew(AT(end), &PARAMS);
            slices.push(server.budget);
        }
        assert_eq!(slices, [500_000, 500_000, 800_000], "one after the other, each when it can");
    }

    #[test]
    fn periods_that_are_cut_short_do_not_exceed_the_share() {
        let params = Params { overrun_max: Nanos(20_000), ..PARAMS };
        let mut server = Server::new("50us/1ms".parse().unwrap(), AT(0));
        let (mut now, mut had) = (AT(0), 0);
        // Half of a slice and half of an overrun in each half period: such a period may be cut
        // short.
        for _ in 0..1_000 {
            let (state, _) = server.wake(now, &params);
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
        server.wake(Nanos(u64::MAX), &PARAMS);
        server.renew(Nanos(u64::MAX), &PARAMS);
        server.renew(AT(0), &PARAMS);
    }
}
