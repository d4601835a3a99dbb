//! Services joined into graphs: what passes one goes on to another.
//!
//! ```text
//! deploy heavy      rule ─▶ classify ─ edge 0 ─▶ heavy ─▶ forward
//! deploy classify ─▶           └────── edge 1 ─▶ forward
//!   then heavy
//! ```
//!
//! A service leads to services that are there already, and never round to itself. An edge is told
//! to the front door and the cell only while the service at its end runs; else it leads nowhere,
//! and the packet is forwarded, or dropped if that service is closed while it is down.

use std::collections::BTreeMap;

use abi::check::Kind;
use units::{Edge, Name};

use super::Node;
use crate::command::Effect;
use crate::refusal::Refusal;
use crate::service::{EDGES_MAX, Edges, GRAPH_DEPTH_MAX, ServiceState};

impl Node {
    /// Checks the services that are to come after another, new or not.
    pub(super) fn check_edges(
        &self,
        service: &Name,
        (session, kind): (&Name, Kind),
        then: &[Name],
    ) -> Result<BTreeMap<u16, Name>, Refusal> {
        if then.len() > EDGES_MAX {
            return Err(Refusal::TooManyEdges { service: service.clone(), asked: then.len() });
        }
        for next in then {
            let found = self.find_service(next)?;
            if !found.has_run() {
                return Err(Refusal::ServiceStarting { service: next.clone() });
            }
            if next == service || self.leads_to(next, service) {
                return Err(Refusal::GraphLoops { service: service.clone() });
            }
            let streams = |module: Kind| module == Kind::Streams;
            if streams(kind) || streams(found.service().module.kind) {
                let (service, next) = (service.clone(), next.clone());
                return Err(Refusal::EdgeOfStreams { service, next });
            }
            let found = &found.service().session;
            if found != session {
                let (service, expected) = (service.clone(), session.clone());
                let (next, found) = (next.clone(), found.clone());
                return Err(Refusal::EdgeToOtherSession { service, expected, next, found });
            }
        }
        let found = self.depth_before(service)
            + 1
            + then.iter().map(|next| self.depth(next)).max().unwrap_or(0);
        if found > GRAPH_DEPTH_MAX {
            return Err(Refusal::GraphTooDeep { service: service.clone(), found });
        }
        Ok((0..).zip(then.iter().cloned()).collect())
    }

    /// Services on the longest way from this one to the end of its graph, itself included.
    fn depth(&self, service: &Name) -> usize {
        let then = self.services.get(service).map(|managed| &managed.service().then);
        let after = then.into_iter().flat_map(BTreeMap::values);
        1 + after.map(|next| self.depth(next)).max().unwrap_or(0)
    }

    /// Services on the longest way that leads to this one, without it.
    fn depth_before(&self, service: &Name) -> usize {
        let before = self.services_before(service);
        before.iter().map(|before| 1 + self.depth_before(before)).max().unwrap_or(0)
    }

    /// Whether packets can come from the first to the second.
    fn leads_to(&self, from: &Name, to: &Name) -> bool {
        let then = self.services.get(from).map(|managed| &managed.service().then);
        let mut after = then.into_iter().flat_map(BTreeMap::values);
        after.any(|next| next == to || self.leads_to(next, to))
    }

    /// The services with an edge to this one.
    pub(super) fn services_before(&self, service: &Name) -> Vec<Name> {
        let leads_there =
            self.services().filter(|before| before.then.values().any(|n| n == service));
        leads_there.map(|before| before.name.clone()).collect()
    }

    /// Where the edges out of a service lead now.
    fn edges_of(&self, then: &BTreeMap<u16, Name>) -> Edges {
        let leads = |next: &Name| match self.service(next) {
            Some(service) if service.state == ServiceState::Running => Edge::To(service.entry),
            Some(service) if self.is_closed(service) => Edge::Down,
            _ => Edge::Out,
        };
        std::array::from_fn(|edge| then.get(&(edge as u16)).map_or(Edge::Out, leads))
    }

    /// Tells the front door and the cell of edges, where they have changed.
    pub(super) fn set_edges(&mut self) {
        let running = self.services().filter(|service| service.state == ServiceState::Running);
        let now: Vec<(Name, Edges)> =
            running.map(|service| (service.name.clone(), self.edges_of(&service.then))).collect();
        for (name, edges) in now {
            let Some(managed) = self.services.get_mut(&name) else { continue };
            if managed.learn(edges) {
                let entry = managed.service().entry;
                self.effects.push_back(Effect::SetEdges { entry, edges });
            }
        }
    }
}
