//! Queue of effects, in the order in which they are to be done.

use std::collections::VecDeque;

use crate::command::{Effect, Notice};

/// Effects that have not been polled yet.
#[derive(Clone, Debug, Default)]
pub(super) struct Effects {
    queue: VecDeque<Effect>,
}

impl Effects {
    /// Appends an effect.
    pub(super) fn push(&mut self, effect: Effect) {
        self.queue.push_back(effect);
    }

    /// Appends the report of a notice.
    pub(super) fn report(&mut self, notice: Notice) {
        self.push(Effect::Report(notice));
    }

    /// Appends several effects, in their order.
    pub(super) fn extend(&mut self, effects: impl IntoIterator<Item = Effect>) {
        self.queue.extend(effects);
    }

    /// Appends the effects of another queue.
    pub(super) fn append(&mut self, later: Self) {
        self.queue.extend(later.queue);
    }

    /// Removes and returns the first effect.
    pub(super) fn poll(&mut self) -> Option<Effect> {
        self.queue.pop_front()
    }

    /// Removes and returns the last installation of rules.
    pub(super) fn take_rules(&mut self) -> Option<Effect> {
        let is_rules = |effect: &Effect| matches!(effect, Effect::InstallRules { .. });
        self.queue.iter().rposition(is_rules).and_then(|at| self.queue.remove(at))
    }

    /// Puts rules and edges first, directly after the effects that close services: no packet goes
    /// to a service before the front door knows which services are closed and what follows each.
    pub(super) fn lead_with(&mut self, edges: Vec<Effect>, rules: Effect) {
        let is_closing = |effect: &Effect| matches!(effect, Effect::SetClosed { .. });
        let (closing, rest): (Vec<_>, Vec<_>) = self.queue.drain(..).partition(is_closing);
        self.queue.extend(closing.into_iter().chain(edges).chain([rules]).chain(rest));
    }
}

#[cfg(test)]
mod tests {
    use units::EntryId;

    use super::*;
    use crate::classifier::RuleSet;
    use crate::service::Edges;

    fn install(generation: u64) -> Effect {
        Effect::InstallRules { rules: RuleSet::default(), generation }
    }

    #[test]
    fn closing_comes_first_then_edges_then_rules_then_the_rest() {
        let entry = EntryId(3);
        let stop = || Effect::StopService { entry };
        let close = || Effect::SetClosed { entry, closed: true };
        let edges = || Effect::SetEdges { entry, edges: Edges::default() };
        let mut effects = Effects::default();
        effects.extend([stop(), install(1), close(), install(2)]);
        let rules = effects.take_rules().unwrap();
        assert_eq!(rules, install(2), "the last one counts");
        effects.lead_with(vec![edges()], rules);
        let all: Vec<Effect> = std::iter::from_fn(|| effects.poll()).collect();
        assert_eq!(all, [close(), edges(), install(2), stop(), install(1)]);
    }
}
