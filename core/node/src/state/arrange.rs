//! Rules, edges, budgets and wishes for levels that change together: a packet meets all of the
//! old ones or all of the new ones.

use std::collections::{BTreeMap, BTreeSet};

use units::{Name, RuleId};

use super::rules::session_agrees;
use super::services::Managed;
use super::{Life, Node, OwnedRule};
use crate::command::{Arrangement, Outcome};
use crate::desired::DesiredRule;
use crate::refusal::Refusal;
use crate::service::{EDGES_MAX, GRAPH_DEPTH_MAX};

impl Node {
    pub(super) fn arrange(
        &mut self,
        remove: &[RuleId],
        add: Vec<DesiredRule>,
        services: BTreeMap<Name, Arrangement>,
    ) -> Result<Outcome, Refusal> {
        self.check_arrangement(&add, &services)?;
        let mut removed: Vec<(RuleId, OwnedRule)> = Vec::with_capacity(remove.len());
        for rule in remove {
            match self.rules.remove(rule) {
                Some(owned) => removed.push((*rule, owned)),
                None => {
                    self.rules.extend(removed);
                    return Err(Refusal::RuleUnknown { rule: *rule });
                }
            }
        }
        let admitted = match self.admit_rules(add, None, &BTreeSet::new()) {
            Ok(admitted) => admitted,
            Err(refusal) => {
                self.rules.extend(removed);
                return Err(refusal);
            }
        };
        let outcome =
            Outcome::Arranged { rules: admitted.ids(), shadowed: admitted.shadowed.clone() };
        self.insert_rules(admitted, Life::Live);
        for (name, arrangement) in services {
            if let Some(managed) = self.services.get_mut(&name) {
                managed.arrange(arrangement);
            }
        }
        self.install();
        Ok(outcome)
    }

    fn check_arrangement(
        &self,
        add: &[DesiredRule],
        services: &BTreeMap<Name, Arrangement>,
    ) -> Result<(), Refusal> {
        for rule in add {
            let leads_to = rule.spec.action.service();
            for service in leads_to.into_iter().chain(&rule.came_with) {
                let found = self.has_run(service)?.service();
                session_agrees(&rule.spec, &found.name, &found.session)?;
            }
            if let Some(service) = rule.came_with.as_ref().filter(|name| leads_to != Some(name)) {
                let (text, action) = (rule.spec.r#match.to_string(), rule.spec.action.clone());
                return Err(Refusal::ActionElsewhere { text, service: service.clone(), action });
            }
        }
        for (name, arrangement) in services {
            self.has_run(name)?;
            self.check_then(name, &arrangement.then)?;
        }
        let mut depths = Depths { node: self, services, known: BTreeMap::new() };
        for service in self.services.keys() {
            let found = depths.of(service, &mut BTreeSet::new())?;
            if found > GRAPH_DEPTH_MAX {
                return Err(Refusal::GraphTooDeep { service: service.clone(), found });
            }
        }
        Ok(())
    }

    /// A service that can be led to.
    fn has_run(&self, name: &Name) -> Result<&Managed, Refusal> {
        let managed = self.find_service(name)?;
        if !managed.has_run() {
            return Err(Refusal::ServiceStarting { service: name.clone() });
        }
        Ok(managed)
    }

    fn check_then(&self, service: &Name, then: &BTreeMap<u16, Name>) -> Result<(), Refusal> {
        let asked = then.last_key_value().map_or(0, |(edge, _)| usize::from(*edge) + 1);
        if asked > EDGES_MAX {
            return Err(Refusal::TooManyEdges { service: service.clone(), asked });
        }
        let expected = self.has_run(service)?.service().session.clone();
        for next in then.values() {
            let found = self.has_run(next)?.service().session.clone();
            if found != expected {
                let (service, next) = (service.clone(), next.clone());
                return Err(Refusal::EdgeToOtherSession { service, expected, next, found });
            }
        }
        Ok(())
    }
}

/// How long the ways are that lead on from services.
struct Depths<'a> {
    node: &'a Node,
    services: &'a BTreeMap<Name, Arrangement>,
    known: BTreeMap<&'a Name, usize>,
}

impl<'a> Depths<'a> {
    /// Services on the longest way from this one to the end of its graph, itself included.
    fn of(&mut self, name: &'a Name, above: &mut BTreeSet<&'a Name>) -> Result<usize, Refusal> {
        if let Some(depth) = self.known.get(name) {
            return Ok(*depth);
        }
        if !above.insert(name) {
            return Err(Refusal::GraphLoops { service: name.clone() });
        }
        let now = || self.node.services.get(name).map(|managed| &managed.service().then);
        let then = self.services.get(name).map(|arrangement| &arrangement.then).or_else(now);
        let mut deepest = 0;
        for next in then.into_iter().flat_map(BTreeMap::values) {
            deepest = deepest.max(self.of(next, above)?);
        }
        above.remove(name);
        self.known.insert(name, 1 + deepest);
        Ok(1 + deepest)
    }
}
