//! What services may use below user level: counters are looked at, lanes are told.

use crate::daemon::Daemon;
use bpf_maps::{OVER_DROP, OVER_NOT, OVER_RAISE};
use node::budget::{self, Meter, OverBudget, Used};
use std::collections::BTreeMap;
use tokio::time::Duration;
use units::EntryId;

/// How often budgets are looked at.
pub(crate) const LOOK_EVERY: Duration = Duration::from_nanos(budget::LOOK_EVERY.0);

impl Daemon {
    /// Returns true when an in-kernel service has a budget, or an account is left of one.
    pub(crate) fn has_budgets(&self) -> bool {
        if !self.meters.is_empty() {
            return true;
        }
        // Asked with each thing that happens: of those below, not of thousands that never are.
        let mut below = self
            .plane
            .instances
            .entries()
            .filter_map(|entry| self.control.node().service_of(entry));
        below.any(|service| service.budget.is_limited())
    }

    /// Compares what services have used with what they may, and says to the front door who has
    /// used it up.
    pub(crate) fn look_at_budgets(&mut self) {
        let now = self.now();
        let mut meters = BTreeMap::new();
        for service in self.control.node().services().filter(|service| service.budget.is_limited())
        {
            let (entry, budget) = (service.entry, &service.budget);
            let Some(used) = self.used_below(entry) else { continue };
            let meter = self.meters.get(&entry).filter(|meter| meter.is_for(budget)).cloned();
            let mut meter = meter.unwrap_or_else(|| Meter::new(budget, now, used));
            let over = if meter.settle(now, used) { word_of(budget.over) } else { OVER_NOT };
            if let Some(lane) = self.plane.front.lane(entry) {
                lane.set_over(over);
            }
            meters.insert(entry, meter);
        }
        let before = std::mem::replace(&mut self.meters, meters);
        for entry in before.into_keys().filter(|entry| !self.meters.contains_key(entry)) {
            self.set_over_nothing(entry);
        }
    }

    /// Forgets what a service has used of its budget: the next one in its place begins with a full
    /// account.
    pub(crate) fn end_budget(&mut self, entry: EntryId) {
        if self.meters.remove(&entry).is_some() {
            self.set_over_nothing(entry);
        }
    }

    fn set_over_nothing(&self, entry: EntryId) {
        if let Some(lane) = self.plane.front.lane(entry) {
            lane.set_over(OVER_NOT);
        }
    }

    fn used_below(&self, entry: EntryId) -> Option<Used> {
        let below = self.below_report(entry)?;
        // What is raised or dropped for the budget's sake has cost its session nothing here.
        let stats = below.stats;
        let not_run = stats.raised + stats.drop_budget;
        Some(Used {
            fuel: below.fuel,
            packets: stats.packets.saturating_sub(not_run),
            bytes: stats.bytes.saturating_sub(stats.raised_bytes + stats.drop_budget_bytes),
        })
    }
}

/// As lanes have it.
pub(crate) const fn word_of(over: OverBudget) -> u8 {
    match over {
        OverBudget::Drop => OVER_DROP,
        OverBudget::Raise => OVER_RAISE,
    }
}
