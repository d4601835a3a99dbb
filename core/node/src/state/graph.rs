//! Graphs of services: packets that pass one service go on to the next.
//!
//! ```text
//! deploy heavy      rule ─▶ classify ─ edge 0 ─▶ heavy ─▶ forward
//! deploy classify ─▶           └────── edge 1 ─▶ forward
//!   then heavy
//! ```
//!
//! A service leads to services that exist already, and never back to itself. Front door and cell
//! get an edge only while the service at its end runs; otherwise packets of the edge are forwarded
//! plainly, or dropped if that service is closed.

use std::collections::{BTreeMap, BTreeSet};

use abi::check::Kind;
use units::{Edge, Name};

use super::roster::Roster;
use crate::command::Arrangement;
use crate::refusal::Refusal;
use crate::service::{EDGES_MAX, Edges, GRAPH_DEPTH_MAX, Service, ServiceState};

/// View of a roster's services as graphs.
#[derive(Clone, Copy)]
pub(super) struct Graph<'a> {
    roster: &'a Roster,
}

impl<'a> Graph<'a> {
    /// Returns the view of a roster.
    pub(super) const fn of(roster: &'a Roster) -> Self {
        Self { roster }
    }

    /// Returns true if packets of a service are dropped while it does not run: it is closed, or one
    /// that follows in its graph is.
    pub(super) fn is_closed(self, service: &Service) -> bool {
        let after = || service.then.values().filter_map(|next| self.roster.service(next));
        service.state != ServiceState::Stopping
            && (service.on_failure.is_closed() || after().any(|next| self.is_closed(next)))
    }

    /// Returns true if the packets of a service have a destination of their own now.
    pub(super) fn takes_packets(self, service: &Service) -> bool {
        service.state == ServiceState::Running || self.is_closed(service)
    }

    /// Returns for each service of the roster, in its order, whether it is closed.
    pub(super) fn closed(self) -> Vec<bool> {
        self.roster.services().map(|service| self.is_closed(service)).collect()
    }

    /// Returns the present edges of all running services.
    pub(super) fn edges(self) -> Vec<(Name, Edges)> {
        let services = self.roster.services();
        let running = services.filter(|service| service.state == ServiceState::Running);
        running.map(|service| (service.name.clone(), self.edges_of(&service.then))).collect()
    }

    fn edges_of(self, then: &BTreeMap<u16, Name>) -> Edges {
        let leads = |next: &Name| match self.roster.service(next) {
            Some(service) if service.state == ServiceState::Running => Edge::To(service.entry),
            Some(service) if self.is_closed(service) => Edge::Down,
            _ => Edge::Out,
        };
        std::array::from_fn(|edge| then.get(&(edge as u16)).map_or(Edge::Out, leads))
    }

    /// Returns the services with an edge to this one.
    pub(super) fn before(self, service: &Name) -> Vec<Name> {
        let services = self.roster.services();
        let leads_there = services.filter(|before| before.then.values().any(|n| n == service));
        leads_there.map(|before| before.name.clone()).collect()
    }

    /// Checks the services that are to follow another, new or not. Returns them by edge.
    pub(super) fn check_edges(
        self,
        service: &Name,
        (session, kind): (&Name, Kind),
        then: &[Name],
    ) -> Result<BTreeMap<u16, Name>, Refusal> {
        if then.len() > EDGES_MAX {
            return Err(Refusal::TooManyEdges { service: service.clone(), asked: then.len() });
        }
        for next in then {
            let found = self.roster.find_target(next)?.service();
            if next == service || self.leads_to(next, service) {
                return Err(Refusal::GraphLoops { service: service.clone() });
            }
            if [kind, found.module.kind].contains(&Kind::Streams) {
                let (service, next) = (service.clone(), next.clone());
                return Err(Refusal::EdgeOfStreams { service, next });
            }
            check_session(service, session, found)?;
        }
        let found = self.depth_before(service)
            + 1
            + then.iter().map(|next| self.depth(next)).max().unwrap_or(0);
        if found > GRAPH_DEPTH_MAX {
            return Err(Refusal::GraphTooDeep { service: service.clone(), found });
        }
        Ok((0..).zip(then.iter().cloned()).collect())
    }

    /// Checks edges of several services that change together.
    pub(super) fn check_arrangement(
        self,
        services: &BTreeMap<Name, Arrangement>,
    ) -> Result<(), Refusal> {
        for (name, arrangement) in services {
            self.roster.find_target(name)?;
            self.check_then(name, &arrangement.then)?;
        }
        let mut depths = Depths { roster: self.roster, services, known: BTreeMap::new() };
        for service in self.roster.names() {
            let found = depths.of(service, &mut BTreeSet::new())?;
            if found > GRAPH_DEPTH_MAX {
                return Err(Refusal::GraphTooDeep { service: service.clone(), found });
            }
        }
        Ok(())
    }

    fn check_then(self, service: &Name, then: &BTreeMap<u16, Name>) -> Result<(), Refusal> {
        let asked = then.last_key_value().map_or(0, |(edge, _)| usize::from(*edge) + 1);
        if asked > EDGES_MAX {
            return Err(Refusal::TooManyEdges { service: service.clone(), asked });
        }
        let session = &self.roster.find_target(service)?.service().session;
        for next in then.values() {
            check_session(service, session, self.roster.find_target(next)?.service())?;
        }
        Ok(())
    }

    /// Returns the services that follow one.
    fn after(self, service: &Name) -> impl Iterator<Item = &'a Name> {
        let then = self.roster.service(service).map(|service| &service.then);
        then.into_iter().flat_map(BTreeMap::values)
    }

    /// Returns the number of services on the longest path from this one to the end of its graph,
    /// itself included.
    fn depth(self, service: &Name) -> usize {
        1 + self.after(service).map(|next| self.depth(next)).max().unwrap_or(0)
    }

    /// Returns the number of services on the longest path that leads to this one, without it.
    fn depth_before(self, service: &Name) -> usize {
        let before = self.before(service);
        before.iter().map(|before| 1 + self.depth_before(before)).max().unwrap_or(0)
    }

    /// Returns true if packets can pass from the first service to the second.
    fn leads_to(self, from: &Name, to: &Name) -> bool {
        self.after(from).any(|next| next == to || self.leads_to(next, to))
    }
}

/// Refuses an edge to a service of another session.
fn check_session(service: &Name, session: &Name, next: &Service) -> Result<(), Refusal> {
    if next.session == *session {
        return Ok(());
    }
    let (service, expected) = (service.clone(), session.clone());
    let (next, found) = (next.name.clone(), next.session.clone());
    Err(Refusal::EdgeToOtherSession { service, expected, next, found })
}

/// Longest paths from services to the end of their graphs, under an arrangement.
struct Depths<'a> {
    roster: &'a Roster,
    services: &'a BTreeMap<Name, Arrangement>,
    known: BTreeMap<&'a Name, usize>,
}

impl<'a> Depths<'a> {
    /// Returns the number of services on the longest path from this one to the end of its graph,
    /// itself included.
    fn of(&mut self, name: &'a Name, above: &mut BTreeSet<&'a Name>) -> Result<usize, Refusal> {
        if let Some(depth) = self.known.get(name) {
            return Ok(*depth);
        }
        if !above.insert(name) {
            return Err(Refusal::GraphLoops { service: name.clone() });
        }
        let now = || self.roster.service(name).map(|service| &service.then);
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

#[cfg(test)]
mod tests {
    use units::{EntryId, Nanos};

    use super::super::managed::testing::{definition, running};
    use super::super::managed::{Definition, Managed};
    use super::*;
    use crate::policy::OnFailure;
    use crate::session::best_effort;

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    /// Returns a roster in which each service leads to the next one.
    fn chain(names: &[&str]) -> Roster {
        let mut roster = Roster::default();
        for (at, service) in names.iter().enumerate() {
            let then = names.get(at + 1).map(std::slice::from_ref).unwrap_or_default();
            roster.insert(running(service, at as u16, then));
        }
        roster
    }

    fn check(roster: &Roster, service: &str, then: &str) -> Result<BTreeMap<u16, Name>, Refusal> {
        let (service, session) = (name(service), best_effort());
        Graph::of(roster).check_edges(&service, (&session, Kind::Packets), &[name(then)])
    }

    #[test]
    fn an_edge_leads_to_what_runs_never_round_and_not_too_far() {
        let names: Vec<String> = (0..GRAPH_DEPTH_MAX).map(|at| format!("s{at}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let roster = chain(&names);
        assert_eq!(check(&roster, "new", "s1"), Ok([(0, name("s1"))].into()));
        let (service, found) = (name("new"), GRAPH_DEPTH_MAX + 1);
        assert_eq!(check(&roster, "new", "s0"), Err(Refusal::GraphTooDeep { service, found }));
        let loops = Err(Refusal::GraphLoops { service: name("s5") });
        assert_eq!(check(&roster, "s5", "s2"), loops);
        assert_eq!(check(&roster, "s5", "s5"), loops);
        assert!(matches!(check(&roster, "new", "other"), Err(Refusal::ServiceUnknown { .. })));
        assert_eq!(Graph::of(&roster).before(&name("s3")), [name("s2")]);
    }

    #[test]
    fn a_service_that_leads_to_a_closed_one_is_closed_and_its_edge_drops_while_that_is_down() {
        let mut roster = chain(&["a", "b", "c"]);
        let edge = |roster: &Roster| Graph::of(roster).edges().pop().map(|(_, edges)| edges[0]);
        roster.remove(&name("c"));
        let closed = Definition { on_failure: OnFailure::Closed, ..definition("\"user\"") };
        roster.insert(Managed::new(Nanos::ZERO, name("c"), EntryId(2), closed));
        assert_eq!(Graph::of(&roster).closed(), [true, true, true]);
        assert_eq!(edge(&roster), Some(Edge::Down));
        let managed = roster.get_mut(&name("c")).unwrap();
        assert!(managed.start(true).is_some() && managed.handle_started(Nanos::ZERO));
        managed.stop(Nanos::ZERO);
        assert_eq!(Graph::of(&roster).closed(), [false; 3]);
        assert_eq!(edge(&roster), Some(Edge::Out), "one that stops is not waited for");
    }
}
