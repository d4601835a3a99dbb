//! Check of a desired state on a node that exists only in memory: it starts every service and takes
//! every rule, so it refuses exactly what the real node would.

use std::collections::BTreeMap;

use ::session::admission::Capacity;
use units::{Name, Nanos, RuleId};

use super::{DesiredRule, DesiredService, DesiredState};
use crate::classifier::RuleSetError;
use crate::command::{Arrangement, Command, Effect, Event, Outcome, ServiceStart};
use crate::port::PortSpec;
use crate::refusal::Refusal;
use crate::service::ModuleInfo;
use crate::state::Node;

/// Part of a desired state that has a fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// Session of this name.
    Session(Name),
    /// Service of this name.
    Service(Name),
    /// Edges out of the service of this name.
    Edges(Name),
    /// Rule at this index of the list.
    Rule(usize),
    /// State as a whole.
    Whole,
}

/// Refusal that a node would give, and the part of the state that caused it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Part of the state.
    pub location: Location,
    /// Refusal.
    pub refusal: Refusal,
}

/// Checks a desired state as a whole. Returns the rules that no packet can reach, each with the
/// better one, by their indices in the list.
///
/// `capacity` is the node's capacity for sessions; without it, reservations are not added up.
/// `modules` has every module by digest. A service whose module is missing is left out, with the
/// rules and edges that lead to it.
///
/// # Errors
/// The first part that a node with these ports would refuse.
pub fn check(
    ports: &[PortSpec],
    capacity: Option<&Capacity>,
    state: &DesiredState,
    modules: &BTreeMap<String, ModuleInfo>,
) -> Result<Vec<(usize, usize)>, Box<Fault>> {
    let name = Name::new("trial").expect("lower-case letters");
    // Invalid ports are refused where the node is created.
    let Ok(mut node) = Node::new(name, ports.to_vec()) else { return Ok(Vec::new()) };
    while node.poll_effect().is_some() {}
    node.handle_event(Nanos::ZERO, Event::CellReady);
    if let Some(capacity) = capacity {
        node.set_capacity(capacity.clone());
    }
    for (session, desired) in &state.sessions {
        let (reservation, owner) = (desired.reservation.clone(), desired.owner);
        let create = Command::SessionCreate { session: session.clone(), reservation, owner };
        let at =
            |refusal| Box::new(Fault { location: Location::Session(session.clone()), refusal });
        node.handle_command(Nanos::ZERO, create).map_err(at)?;
    }
    for (service, desired) in &state.services {
        let Some(module) = modules.get(&desired.digest) else { continue };
        let deploy = Command::Deploy {
            service: service.clone(),
            module: module.clone().with_functions(desired.functions),
            parameters: desired.parameters.clone(),
            session: desired.session.clone(),
            rules: Vec::new(),
            level: desired.level,
            then: Vec::new(),
            budget: desired.budget,
            on_failure: desired.on_failure,
            discard_state: false,
            owner: desired.owner,
        };
        let at =
            |refusal| Box::new(Fault { location: Location::Service(service.clone()), refusal });
        node.handle_command(Nanos::ZERO, deploy).map_err(at)?;
    }
    start(&mut node);
    arrange(&mut node, state)
}

/// Plays the cell: every service starts at once.
fn start(node: &mut Node) {
    let entry_of = |effect| match effect {
        Effect::StartService { start: ServiceStart { entry, .. }, .. } => Some(entry),
        _ => None,
    };
    let starting: Vec<_> = std::iter::from_fn(|| node.poll_effect()).filter_map(entry_of).collect();
    for entry in starting {
        node.handle_event(Nanos::ZERO, Event::ServiceStarted { entry });
    }
    while node.poll_effect().is_some() {}
}

fn arrange(node: &mut Node, state: &DesiredState) -> Result<Vec<(usize, usize)>, Box<Fault>> {
    let present = state.services.iter().filter(|(service, _)| node.service(service).is_some());
    let arrangement = |(service, desired): (&Name, &DesiredService)| {
        let (then, level, budget) = (desired.then.clone(), desired.level, desired.budget);
        let (on_failure, owner) = (desired.on_failure, desired.owner);
        (service.clone(), Arrangement { then, level, budget, on_failure, owner })
    };
    let services: BTreeMap<Name, Arrangement> = present.map(arrangement).collect();
    let change = |services| Command::Arrange { remove: Vec::new(), add: Vec::new(), services };
    if node.handle_command(Nanos::ZERO, change(services.clone())).is_err() {
        // One by one, so that the service at fault is known.
        for (service, arrangement) in services {
            let location = Location::Edges(service.clone());
            node.handle_command(Nanos::ZERO, change([(service, arrangement)].into()))
                .map_err(|refusal| Box::new(Fault { location, refusal }))?;
        }
    }
    let leads_nowhere = |rule: &DesiredRule| {
        let to = rule.spec.action.service();
        to.is_some_and(|to| node.service(to).is_none() && state.services.contains_key(to))
    };
    let locations: Vec<usize> =
        (0..state.rules.len()).filter(|at| !leads_nowhere(&state.rules[*at])).collect();
    let rules: Vec<DesiredRule> = locations.iter().map(|at| state.rules[*at].clone()).collect();
    let all = Command::Arrange { remove: Vec::new(), add: rules, services: BTreeMap::new() };
    match node.handle_command(Nanos::ZERO, all) {
        Ok(Outcome::Arranged { shadowed, .. }) => {
            let location =
                |rule: RuleId| locations.get(rule.0 as usize).copied().unwrap_or_default();
            Ok(shadowed.into_iter().map(|(rule, by)| (location(rule), location(by))).collect())
        }
        Ok(_) => Ok(Vec::new()),
        Err(refusal) => {
            let location = culprit(node, state, &locations, &refusal);
            Err(Box::new(Fault { location, refusal }))
        }
    }
}

/// Finds the rule that was refused: the one that the refusal names by its number in a node without
/// others, or the last of the shortest prefix of the list that is refused.
fn culprit(
    node: &mut Node,
    state: &DesiredState,
    locations: &[usize],
    refusal: &Refusal,
) -> Location {
    if let Refusal::RuleSet(
        RuleSetError::TooManyRules { rule }
        | RuleSetError::TooManyMasks { rule, .. }
        | RuleSetError::TooManyEntries { rule, .. },
    ) = refusal
    {
        return locations.get(rule.0 as usize).map_or(Location::Whole, |at| Location::Rule(*at));
    }
    // Invariant: the first `accepted` rules are accepted, the first `refused` are not.
    let (mut accepted, mut refused) = (0, locations.len());
    while accepted + 1 < refused {
        let middle = usize::midpoint(accepted, refused);
        let beginning = locations[..middle].iter().map(|at| state.rules[*at].clone()).collect();
        *(if takes(node, beginning) { &mut accepted } else { &mut refused }) = middle;
    }
    locations.get(accepted).map_or(Location::Whole, |at| Location::Rule(*at))
}

/// Returns true if a node without rules accepts these; it has none afterwards.
fn takes(node: &mut Node, rules: Vec<DesiredRule>) -> bool {
    let change = |remove, add| Command::Arrange { remove, add, services: BTreeMap::new() };
    let outcome = node.handle_command(Nanos::ZERO, change(Vec::new(), rules));
    if let Ok(Outcome::Arranged { rules, .. }) = &outcome {
        // The rules were added just now, so removing them cannot fail.
        let _ = node.handle_command(Nanos::ZERO, change(rules.clone(), Vec::new()));
    }
    while node.poll_effect().is_some() {}
    outcome.is_ok()
}
