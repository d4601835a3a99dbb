//! Budgets of services below user level: rates per second for fuel, packets and bytes.
//!
//! ```text
//!            rate per second
//!                 │
//!   burst ┌───────▼────────┐
//!         │    account     │──▶ usage since the last look, in full
//!         └────────────────┘
//!   below zero: over budget, until the rate has paid the debt
//! ```
//!
//! The kernel counts fuel, packets and bytes exactly, but enforces no budget: the node compares
//! the counters with the budgets every [`LOOK_EVERY`] and reports the services that are over
//! theirs. Usage beyond the budget until then is owed, so that in the long run no service exceeds
//! its rate.

use serde::{Deserialize, Serialize};
use units::Nanos;

const _: () = assert!(bpf_maps::FUEL_SHIFT == ::session::in_kernel::FUEL_SHIFT);

/// Interval at which the counters are compared with the budgets.
pub const LOOK_EVERY: Nanos = Nanos::from_millis(10);
/// Capacity of an account, as the time in which the rate would fill it.
pub const BURST: Nanos = Nanos::from_millis(100);

/// Treatment of packets once the budget is used up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OverBudget {
    /// Dropped, and counted.
    Drop,
    /// Handled at user level.
    #[default]
    Raise,
}

/// Rates that limit a service below user level, each per second; `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    /// Fuel of the service's calls.
    #[serde(default)]
    pub fuel: Option<u64>,
    /// Packets given to the service.
    #[serde(default)]
    pub packets: Option<u64>,
    /// Bytes of these packets.
    #[serde(default)]
    pub bytes: Option<u64>,
    /// Treatment of packets beyond the budget.
    #[serde(default)]
    pub over: OverBudget,
}

impl Budget {
    /// Returns true if any rate is limited.
    #[must_use]
    pub const fn is_limited(&self) -> bool {
        self.fuel.is_some() || self.packets.is_some() || self.bytes.is_some()
    }
}

/// Counters of a service below user level since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// Fuel of the service's calls.
    pub fuel: u64,
    /// Packets given to the service.
    pub packets: u64,
    /// Bytes of these packets.
    pub bytes: u64,
}

/// Account of one service: one balance for each rate.
#[derive(Clone, Debug)]
pub struct Meter {
    since: Nanos,
    accounts: [Account; 3],
}

#[derive(Clone, Copy, Debug)]
struct Account {
    /// Rate per second; `None` without a limit.
    rate: Option<u64>,
    /// Balance in units times nanoseconds, so that nothing is rounded away; negative when owed.
    left: i128,
    used: u64,
}

const SECOND: i128 = 1_000_000_000;

impl Account {
    fn new(rate: Option<u64>, used: u64) -> Self {
        let left = i128::from(rate.unwrap_or(0)) * i128::from(BURST.0);
        Self { rate, left, used }
    }

    fn settle(&mut self, passed: Nanos, used: u64) -> bool {
        let Some(rate) = self.rate.map(i128::from) else { return false };
        // The counters restart at zero with the service.
        let more = used.checked_sub(self.used).unwrap_or(used);
        self.used = used;
        let full = rate * i128::from(BURST.0);
        let earned = (self.left + rate * i128::from(passed.0)).min(full);
        self.left = earned - i128::from(more) * SECOND;
        self.left < 0
    }
}

impl Meter {
    /// Creates a full account.
    #[must_use]
    pub fn new(budget: &Budget, now: Nanos, used: Used) -> Self {
        let accounts = [
            Account::new(budget.fuel, used.fuel),
            Account::new(budget.packets, used.packets),
            Account::new(budget.bytes, used.bytes),
        ];
        Self { since: now, accounts }
    }

    /// Returns true if the account's rates are those of `budget`.
    #[must_use]
    pub fn is_for(&self, budget: &Budget) -> bool {
        let rates = [budget.fuel, budget.packets, budget.bytes];
        self.accounts.iter().map(|account| account.rate).eq(rates)
    }

    /// Settles the account with the counters at `now`; returns true if the service is over budget.
    pub fn settle(&mut self, now: Nanos, used: Used) -> bool {
        let passed = now.saturating_sub(self.since);
        self.since = now;
        let [fuel, packets, bytes] = &mut self.accounts;
        // Settles all three, even if the first is over budget already.
        let over = [
            fuel.settle(passed, used.fuel),
            packets.settle(passed, used.packets),
            bytes.settle(passed, used.bytes),
        ];
        over.contains(&true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn packets(rate: u64) -> Budget {
        Budget { packets: Some(rate), ..Budget::default() }
    }

    fn used(packets: u64) -> Used {
        Used { packets, ..Used::default() }
    }

    #[test]
    fn a_burst_is_paid_from_the_account_and_more_is_owed() {
        let mut meter = Meter::new(&packets(1000), Nanos::ZERO, used(0));
        let at = Nanos::from_millis;
        assert!(!meter.settle(at(0), used(100)), "100 ms of 1000 a second");
        assert!(meter.settle(at(1), used(200)), "99 are owed");
        assert!(meter.settle(at(99), used(200)));
        assert!(!meter.settle(at(100), used(200)));
    }

    #[test]
    fn a_budget_without_a_rate_has_no_limit_and_each_limit_holds_alone() {
        let budget = Budget { fuel: Some(10), bytes: Some(1 << 40), ..Budget::default() };
        assert!(budget.is_limited() && !Budget::default().is_limited());
        let mut meter = Meter::new(&budget, Nanos::ZERO, Used::default());
        let much = Used { fuel: 1, packets: u64::MAX, bytes: 1 << 30 };
        assert!(!meter.settle(Nanos::from_millis(10), much));
        assert!(meter.settle(Nanos::from_millis(20), Used { fuel: 3, ..much }));
    }

    #[test]
    fn counters_that_begin_anew_are_no_refund() {
        let mut meter = Meter::new(&packets(1000), Nanos::ZERO, used(5000));
        assert!(meter.settle(Nanos::from_millis(1), used(200)));
    }

    proptest! {
        /// A service that is stopped while over budget gets at most its rate, the burst and the
        /// overrun of one look interval.
        #[test]
        fn in_the_long_run_no_service_exceeds_its_rate(
            rate in 100u64..1_000_000,
            offered in prop::collection::vec(0u64..40_000, 500..1000),
        ) {
            let mut meter = Meter::new(&packets(rate), Nanos::ZERO, used(0));
            let (mut now, mut got, mut over) = (Nanos::ZERO, 0u64, false);
            for offer in &offered {
                got += if over { 0 } else { *offer };
                now += LOOK_EVERY;
                over = meter.settle(now, used(got));
            }
            let fair = rate * (now.0 + BURST.0) / 1_000_000_000;
            prop_assert!(got <= fair + 40_000, "{got} of {fair}");
        }

        #[test]
        fn a_service_within_its_rate_is_never_stopped(
            rate in 100u64..1_000_000,
            shares in prop::collection::vec(0u64..=100, 500..1000),
        ) {
            let mut meter = Meter::new(&packets(rate), Nanos::ZERO, used(0));
            let (mut now, mut got) = (Nanos::ZERO, 0);
            for share in shares {
                got += rate * LOOK_EVERY.0 / 1_000_000_000 * share / 100;
                now += LOOK_EVERY;
                prop_assert!(!meter.settle(now, used(got)));
            }
        }
    }
}
