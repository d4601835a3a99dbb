//! Steering of packets: services, and the rules and edges that lead packets to them, sent to the
//! front door and the cell together.
//!
//! Rules of a service are installed only while it runs, and uninstalled before it is stopped, so
//! that no packet is sent to a service that does not exist.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use abi::Level;
use units::{EntryId, Name, RuleId};

use super::change::{Context, check_leads_to, check_levels};
use super::graph::Graph;
use super::managed::{Managed, Placement};
use super::names::Names;
use super::roster::Roster;
use super::rules::{self, Admitted, Rules};
use crate::classifier::Destination;
use crate::command::{Arrangement, Effect, Notice, Outcome};
use crate::desired::{DesiredRule, DesiredState};
use crate::owner::Owner;
use crate::refusal::Refusal;
use crate::rule::RuleSpec;
use crate::service::{ModuleInfo, Service};

/// Services and rules.
#[derive(Clone, Debug, Default)]
pub(super) struct Steering {
    roster: Roster,
    rules: Rules,
    /// Set when services have become reachable and the front door does not know yet. Many start at
    /// the same time; their rules are compiled once.
    stale: bool,
}

impl Steering {
    /// Restores services and rules of a snapshot.
    pub(super) const fn restore(roster: Roster, rules: Rules) -> Self {
        Self { roster, rules, stale: false }
    }

    /// Returns the services.
    pub(super) const fn roster(&self) -> &Roster {
        &self.roster
    }

    /// Returns the rules.
    pub(super) const fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Returns the services, mutably.
    pub(super) const fn roster_mut(&mut self) -> &mut Roster {
        &mut self.roster
    }

    /// Returns the rules, mutably.
    pub(super) const fn rules_mut(&mut self) -> &mut Rules {
        &mut self.rules
    }

    /// Returns services and rules, mutably.
    pub(super) const fn owners_mut(&mut self) -> (&mut Roster, &mut Rules) {
        (&mut self.roster, &mut self.rules)
    }

    /// Checks rules as [`Rules::admit`] does.
    pub(super) fn admit(
        &self,
        wanted: Vec<DesiredRule>,
        incoming: Option<(&Name, Destination)>,
        leaving: &BTreeSet<RuleId>,
        cx: &Context<'_>,
    ) -> Result<Admitted, Refusal> {
        self.rules.admit(wanted, incoming, leaving, Names::of(cx.ports, cx.sessions, &self.roster))
    }

    /// Returns the services and rules of a session that are not being removed.
    pub(super) fn in_session(&self, session: &Name) -> (Vec<Name>, Vec<RuleId>) {
        (self.roster.remaining_in(session), self.rules.in_session(session))
    }

    /// Adds rules.
    pub(super) fn add_rules(
        &mut self,
        specs: Vec<RuleSpec>,
        owner: Option<Owner>,
        cx: &mut Context<'_>,
    ) -> Result<Outcome, Refusal> {
        for service in specs.iter().filter_map(|spec| spec.action.service()) {
            self.roster.find_target(service)?;
        }
        for spec in &specs {
            let service = spec.action.service().and_then(|service| self.roster.service(service));
            if let Some(service) = service {
                rules::check_session(spec, &service.name, &service.session)?;
            }
        }
        let rules = specs.into_iter().map(|spec| DesiredRule { spec, came_with: None, owner });
        let admitted = self.admit(rules.collect(), None, &BTreeSet::new(), cx)?;
        let (rules, shadowed) = (admitted.ids(), admitted.shadowed().to_vec());
        self.rules.insert(admitted, cx.out);
        self.install_rules(cx);
        Ok(Outcome::RulesAdded { rules, shadowed })
    }

    /// Removes a rule.
    pub(super) fn remove_rule(
        &mut self,
        rule: RuleId,
        cx: &mut Context<'_>,
    ) -> Result<Outcome, Refusal> {
        self.rules.remove(rule)?;
        self.install_rules(cx);
        Ok(Outcome::RuleRemoved { rule })
    }

    /// Changes rules, edges, budgets and desired levels together: a packet meets either all of the
    /// old ones or all of the new ones.
    pub(super) fn arrange(
        &mut self,
        remove: &[RuleId],
        add: Vec<DesiredRule>,
        services: BTreeMap<Name, Arrangement>,
        cx: &mut Context<'_>,
    ) -> Result<Outcome, Refusal> {
        for rule in &add {
            let leads_to = rule.spec.action.service();
            for service in leads_to.into_iter().chain(&rule.came_with) {
                let found = self.roster.find_target(service)?.service();
                rules::check_session(&rule.spec, &found.name, &found.session)?;
            }
            check_leads_to(&rule.spec, rule.came_with.as_ref())?;
        }
        self.graph().check_arrangement(&services)?;
        let names = Names::of(cx.ports, cx.sessions, &self.roster);
        let admitted = self.rules.admit_in_place_of(remove, add, names)?;
        let (rules, shadowed) = (admitted.ids(), admitted.shadowed().to_vec());
        self.rules.insert(admitted, cx.out);
        for (name, arrangement) in services {
            if let Some(managed) = self.roster.get_mut(&name) {
                managed.arrange(arrangement);
            }
        }
        self.install(cx);
        Ok(Outcome::Arranged { rules, shadowed })
    }

    /// Sets the switch for levels below user level.
    pub(super) fn set_bpf(&mut self, enabled: bool, cx: &mut Context<'_>) -> Outcome {
        Outcome::Bpf { moving: self.roster.set_bpf(enabled, cx.out) }
    }

    /// Directs datagrams to these addresses to the associations' entry.
    pub(super) fn serve_associations(
        &mut self,
        at: &[SocketAddr],
        cx: &mut Context<'_>,
    ) -> Result<(), Refusal> {
        let names = Names::of(cx.ports, cx.sessions, &self.roster);
        self.rules.serve_associations(at, names, cx.out)
    }

    /// Sets the awaited rules to those of a desired state that do not exist yet.
    pub(super) fn await_rules(&mut self, desired: &DesiredState, cx: &mut Context<'_>) {
        self.await_only(desired, cx);
        if self.add_awaited(desired, cx) {
            self.install_rules(cx);
        }
    }

    /// Drops awaited rules that a desired state does not contain.
    pub(super) fn await_only(&mut self, desired: &DesiredState, cx: &mut Context<'_>) {
        let names = Names::of(cx.ports, cx.sessions, &self.roster);
        self.rules.await_only(desired, names, cx.out);
    }

    /// Starts services that were waiting, after the cell became ready or time has passed.
    pub(super) fn start_waiting(&mut self, cx: &mut Context<'_>) {
        if cx.is_ready {
            self.roster.start_all(cx.out);
        }
    }

    /// Restarts services whose pause is over.
    pub(super) fn handle_timeout(&mut self, cx: &mut Context<'_>) {
        self.roster.handle_timeout(cx.now);
        self.start_waiting(cx);
    }

    /// Records the port of a stream service's listener.
    pub(super) fn handle_listens(&mut self, entry: EntryId, port: u16) {
        let managed = self.roster.of_mut(entry);
        self.stale |= managed.is_some_and(|managed| managed.handle_listens(port));
    }

    /// Records the level at which a service runs.
    pub(super) fn handle_placed(
        &mut self,
        entry: EntryId,
        placement: Placement,
        cx: &mut Context<'_>,
    ) {
        let bpf = self.roster.bpf();
        let held = self.roster.of_mut(entry).filter(|managed| managed.is_held());
        let Some(managed) = held else { return };
        let level = placement.level;
        if managed.handle_placed(placement) && managed.runs() {
            let service = managed.service().name.clone();
            cx.out.report(Notice::ServiceMoved { service, level });
        }
        if level != Level::User && !bpf {
            // The switch was set while the service started or moved.
            cx.out.push(Effect::MoveService { entry, level: Level::User });
        }
        self.stale = true;
    }

    /// Records that a move failed.
    pub(super) fn handle_move_failed(
        &mut self,
        entry: EntryId,
        reason: String,
        cx: &mut Context<'_>,
    ) {
        if let Some(managed) = self.roster.of_mut(entry) {
            managed.handle_move_failed();
            let service = managed.service().name.clone();
            cx.out.report(Notice::MoveFailed { service, reason });
        }
    }

    /// Removes a service that never ran, with its rules; no other rule can lead to it.
    pub(super) fn give_up(
        &mut self,
        service: Name,
        reason: String,
        cx: &mut Context<'_>,
    ) -> Notice {
        let gone = self.roster.remove(&service).filter(Managed::is_announced_closed);
        let opened = gone.map(|managed| managed.service().entry);
        cx.out.extend(opened.map(|entry| Effect::SetClosed { entry, closed: false }));
        self.rules.remove_leading_to(&service);
        Notice::ServiceNotStarted { service, reason }
    }

    /// Continues after a snapshot with a cell that runs exactly these services.
    pub(super) fn resume_with(&mut self, running: &BTreeSet<EntryId>, cx: &mut Context<'_>) {
        let mut removed = Vec::new();
        for managed in self.roster.values_mut() {
            let has = running.contains(&managed.service().entry);
            if !(managed.runs() && has) && managed.fall_back(cx.now) {
                removed.push(managed.service().name.clone());
            }
        }
        for service in removed {
            self.roster.remove(&service);
            cx.out.report(Notice::ServiceRemoved { service });
        }
        self.start_waiting(cx);
        self.roster.resume_moves(cx.out);
    }

    /// Adds the rules of a desired state to the awaited ones, without installing them. Returns
    /// false if no number is left for them.
    pub(super) fn add_awaited(&mut self, desired: &DesiredState, cx: &mut Context<'_>) -> bool {
        let names = Names::of(cx.ports, cx.sessions, &self.roster);
        self.rules.add_awaited(desired, names, cx.out)
    }

    /// Marks the front door's rules as stale: services have become reachable.
    pub(super) const fn mark_stale(&mut self) {
        self.stale = true;
    }

    /// Returns true if the front door has yet to get the changes.
    pub(super) const fn is_stale(&self) -> bool {
        self.stale
    }

    /// Sends rules and edges to the front door and the cell, if they have changed.
    pub(super) fn install(&mut self, cx: &mut Context<'_>) {
        self.stale = false;
        let closed = self.graph().closed();
        self.roster.set_closed(closed, cx.out);
        let edges = self.graph().edges();
        self.roster.set_edges(edges, cx.out);
        self.install_rules(cx);
    }

    pub(super) fn install_rules(&mut self, cx: &mut Context<'_>) {
        let names = Names::of(cx.ports, cx.sessions, &self.roster);
        self.rules.install(names, cx.out);
    }

    /// Returns true if packets of a service are dropped while it does not run.
    pub(super) fn is_closed(&self, service: &Service) -> bool {
        self.graph().is_closed(service)
    }

    pub(super) const fn graph(&self) -> Graph<'_> {
        Graph::of(&self.roster)
    }

    pub(super) fn check_module(
        &self,
        service: &Name,
        module: &ModuleInfo,
        level: Option<Level>,
    ) -> Result<(), Refusal> {
        check_levels(module)?;
        module.granted.permit(module.imports)?;
        level.map_or(Ok(()), |level| self.roster.check_level(service, module, level))
    }
}
