//! Budgets of services below user level: their counters are compared with the budgets, and the
//! result is written to their lanes.

use bpf_maps::{OVER_DROP, OVER_NOT, OVER_RAISE, ServiceStats};
use node::budget::{self, Budget, Meter, OverBudget, Used};
use std::collections::BTreeMap;
use tokio::time::Duration;
use units::{EntryId, Nanos};

/// Period at which budgets are checked.
pub(crate) const LOOK_EVERY: Duration = Duration::from_nanos(budget::LOOK_EVERY.0);

/// Accounts of services with a budget.
#[derive(Debug, Default)]
pub(super) struct Budgets(BTreeMap<EntryId, Meter>);

impl Budgets {
    /// Returns true when no account is left.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Compares usage with budgets. Returns the flags of lanes, including those of services without
    /// a budget now.
    pub(super) fn poll<'a>(
        &mut self,
        now: Nanos,
        services: impl Iterator<Item = (EntryId, &'a Budget, Used)>,
    ) -> Vec<(EntryId, u8)> {
        let mut meters = BTreeMap::new();
        let mut words = Vec::new();
        for (entry, budget, used) in services {
            let meter = self.0.get(&entry).filter(|meter| meter.is_for(budget)).cloned();
            let mut meter = meter.unwrap_or_else(|| Meter::new(budget, now, used));
            let is_over = meter.settle(now, used);
            words.push((entry, if is_over { word_of(budget.over) } else { OVER_NOT }));
            meters.insert(entry, meter);
        }
        let before = std::mem::replace(&mut self.0, meters);
        let gone = before.into_keys().filter(|entry| !self.0.contains_key(entry));
        words.extend(gone.map(|entry| (entry, OVER_NOT)));
        words
    }

    /// Forgets what a service has used: the next one in its place begins with a full account.
    /// Returns true when it had an account.
    pub(super) fn end(&mut self, entry: EntryId) -> bool {
        self.0.remove(&entry).is_some()
    }
}

/// Returns what counts for the budget of a service.
pub(super) fn used(stats: &ServiceStats, fuel: u64) -> Used {
    // What is raised or dropped for the budget's sake has cost its session nothing here.
    let not_run = stats.raised + stats.drop_budget;
    Used {
        fuel,
        packets: stats.packets.saturating_sub(not_run),
        bytes: stats.bytes.saturating_sub(stats.raised_bytes + stats.drop_budget_bytes),
    }
}

/// Returns the word of a lane.
pub(super) const fn word_of(over: OverBudget) -> u8 {
    match over {
        OverBudget::Drop => OVER_DROP,
        OverBudget::Raise => OVER_RAISE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: EntryId = EntryId(1);
    const SECOND: Nanos = Nanos(1_000_000_000);

    fn budget(packets: u64, over: OverBudget) -> Budget {
        Budget { packets: Some(packets), over, ..Budget::default() }
    }

    fn packets(packets: u64) -> Used {
        Used { packets, ..Used::default() }
    }

    #[test]
    fn a_service_beyond_its_budget_is_told_so_and_recovers_with_time() {
        let mut budgets = Budgets::default();
        let budget = budget(1000, OverBudget::Raise);
        let mut poll = |now, used| budgets.poll(now, [(A, &budget, packets(used))].into_iter());
        assert_eq!(poll(Nanos(0), 0), [(A, OVER_NOT)]);
        assert_eq!(poll(Nanos(1), 5000), [(A, OVER_RAISE)]);
        assert_eq!(poll(Nanos(2), 5000), [(A, OVER_RAISE)]);
        assert_eq!(poll(Nanos(SECOND.0 * 10), 5000), [(A, OVER_NOT)]);
    }

    #[test]
    fn another_budget_begins_with_a_full_account_from_what_was_used() {
        let mut budgets = Budgets::default();
        let (small, drops) = (budget(10, OverBudget::Raise), budget(1000, OverBudget::Drop));
        budgets.poll(Nanos(0), [(A, &small, packets(0))].into_iter());
        let over = budgets.poll(Nanos(1), [(A, &small, packets(500))].into_iter());
        assert_eq!(over, [(A, OVER_RAISE)]);
        let anew = budgets.poll(Nanos(2), [(A, &drops, packets(500))].into_iter());
        assert_eq!(anew, [(A, OVER_NOT)]);
        let over = budgets.poll(Nanos(3), [(A, &drops, packets(9000))].into_iter());
        assert_eq!(over, [(A, OVER_DROP)]);
    }

    #[test]
    fn a_lane_whose_budget_was_removed_is_reported_once() {
        let mut budgets = Budgets::default();
        let budget = budget(10, OverBudget::Drop);
        budgets.poll(Nanos(0), [(A, &budget, packets(0))].into_iter());
        assert!(!budgets.is_empty());
        assert_eq!(budgets.poll(Nanos(1), std::iter::empty()), [(A, OVER_NOT)]);
        assert_eq!(budgets.poll(Nanos(2), std::iter::empty()), []);
        budgets.poll(Nanos(3), [(A, &budget, packets(0))].into_iter());
        assert!(budgets.end(A) && !budgets.end(A) && budgets.is_empty());
    }

    #[test]
    fn packets_that_a_budget_kept_from_the_module_are_not_used() {
        let stats = ServiceStats {
            packets: 100,
            bytes: 5000,
            raised: 20,
            raised_bytes: 1000,
            drop_budget: 30,
            drop_budget_bytes: 2000,
            ..ServiceStats::default()
        };
        assert_eq!(used(&stats, 7), Used { fuel: 7, packets: 50, bytes: 2000 });
    }
}
