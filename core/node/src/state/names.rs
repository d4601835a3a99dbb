//! View of all names that rules can use: ports, sessions, services.

use std::collections::BTreeSet;

use abi::check::Kind;
use abi::manifest::Meant;
use units::Name;

use super::graph::Graph;
use super::managed::Managed;
use super::roster::Roster;
use super::sessions::Sessions;
use crate::classifier::{Destination, Lookup, Path};
use crate::port::{Port, PortMode};
use crate::refusal::Refusal;
use crate::rule::RuleSpec;
use crate::service::{Service, ServiceState};

/// Names that rules can use, with their present meaning.
#[derive(Clone, Copy)]
pub(super) struct Names<'a> {
    ports: &'a [Port],
    sessions: &'a Sessions,
    roster: &'a Roster,
}

impl<'a> Names<'a> {
    /// Returns the view of a node's ports, sessions and services.
    pub(super) const fn of(ports: &'a [Port], sessions: &'a Sessions, roster: &'a Roster) -> Self {
        Self { ports, sessions, roster }
    }

    /// Refuses a rule that names a session or a port that does not exist.
    pub(super) fn check(self, spec: &RuleSpec) -> Result<(), Refusal> {
        self.sessions.find(&spec.session)?;
        let named = [spec.r#match.port.as_ref(), spec.action.port()];
        let is_unknown = |port: &&Name| !self.ports.iter().any(|known| known.spec.name == **port);
        match named.into_iter().flatten().find(is_unknown) {
            Some(port) => {
                let known = self.ports.iter().map(|port| port.spec.name.as_str());
                let meant = Meant::new(port.as_str(), known);
                let text = spec.r#match.to_string();
                Err(Refusal::PortUnknown { text, port: port.clone(), meant })
            }
            None => Ok(()),
        }
    }

    /// Returns true if the packets of rules that lead to a service have a destination of their own.
    pub(super) fn takes_packets(self, service: &Name) -> bool {
        let service = self.roster.service(service);
        service.is_some_and(|service| self.graph().takes_packets(service))
    }

    /// Returns true if the packets of rules that lead to a service are dropped because it is down.
    pub(super) fn is_down(self, service: &Name) -> bool {
        let is_running = |service: &Service| matches!(service.state, ServiceState::Running);
        self.takes_packets(service) && !self.roster.service(service).is_some_and(is_running)
    }

    /// Returns the lookup without any service.
    pub(super) fn without_services(self) -> Lookup {
        self.lookup(|_| None)
    }

    /// Returns the lookup with every service. Stream services count as listening: their rules must
    /// be valid for the time when they do.
    pub(super) fn with_all_services(self) -> Lookup {
        self.lookup(|managed| {
            let service = managed.service();
            Some(match service.module.kind {
                Kind::Packets => self.destination(managed),
                Kind::Streams => Destination::of(service.entry, &service.module, None),
            })
        })
    }

    /// Returns the lookup with the services that take packets now.
    pub(super) fn with_taking_services(self) -> Lookup {
        self.lookup(|managed| {
            let takes = self.graph().takes_packets(managed.service());
            takes.then(|| self.destination(managed))
        })
    }

    const fn graph(self) -> Graph<'a> {
        Graph::of(self.roster)
    }

    fn lookup(self, destination: impl Fn(&Managed) -> Option<Destination>) -> Lookup {
        let services = self
            .roster
            .values()
            .filter_map(|managed| Some((managed.service().name.clone(), destination(managed)?)));
        let at_tc = self.ports.iter().filter(|port| port.spec.mode == PortMode::Tc);
        Lookup {
            ports: self.ports.iter().map(|port| (port.spec.name.clone(), port.id)).collect(),
            services: services.collect(),
            sessions: self.sessions.numbers(),
            at_tc: at_tc.map(|port| port.spec.name.clone()).collect(),
            down: BTreeSet::new(),
        }
    }

    fn destination(self, managed: &Managed) -> Destination {
        let service = managed.service();
        let at_user = Destination::of(service.entry, &service.module, managed.listener());
        let path = match &service.state {
            ServiceState::Running if managed.is_movable() => Path::Lane,
            ServiceState::Running => match at_user.path {
                Path::Listener { port, .. } => {
                    Path::Listener { port, closed: self.graph().is_closed(service) }
                }
                path => path,
            },
            _ => Path::Down,
        };
        Destination { path, ..at_user }
    }
}
