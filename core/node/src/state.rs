//! The node: commands and events in, effects out.
//!
//! ```text
//!                    ┌──────┐ ─▶ Cell          worker process
//!  Command, Event, ─▶│ Node │ ─▶ Sessions      promises
//!  time              └──────┘ ─▶ Deployments   services, rules, replacements
//!                       ▲          │
//!  Effect ◀─────────────┴ Effects ◀┘
//! ```
//!
//! [`Node`] only routes: each owner has private fields, borrows the other owners that it needs for
//! one call, and puts its effects into one queue. One cell runs all services; the cell and each
//! service have a restart pause of their own.

mod accounts;
mod cell;
mod change;
mod deployments;
mod effects;
mod graph;
mod managed;
mod names;
mod replace;
mod roster;
mod rules;
mod sessions;
mod snapshot;
mod steering;

pub use accounts::Accounts;
pub use cell::CellState;
pub use managed::FIRST_STARTS_MAX;
pub use rules::{ASSOCIATIONS_NAME, ASSOCIATIONS_PRIORITY, RuleView};
pub use snapshot::{RestoreError, Snapshot, SnapshotView};

use std::collections::BTreeSet;
use std::net::SocketAddr;

use ::session::admission::{Capacity, Left, MemoryUsed};
use ::session::in_kernel::Speed;
use abi::Level;
use units::{EntryId, Name, Nanos, RuleId, SessionId};

use self::cell::Cell;
use self::change::{Context, ServiceRequest, Version};
use self::deployments::Deployments;
use self::effects::Effects;
use self::managed::{Managed, Placement};
use self::names::Names;
use self::sessions::Sessions;
use crate::classifier::RuleSet;
use crate::command::{Command, Effect, Event, Memory, Notice, Outcome};
use crate::desired::{DesiredRule, DesiredSession, DesiredState};
use crate::owner::Owner;
use crate::port::{self, Port, PortError, PortSpec};
use crate::refusal::Refusal;
use crate::service::{ModuleInfo, Service};
use crate::session::Session;

/// Node: it changes only by a command, an event or a timeout.
#[derive(Clone, Debug)]
pub struct Node {
    name: Name,
    ports: Vec<Port>,
    cell: Cell,
    sessions: Sessions,
    deployments: Deployments,
    effects: Effects,
    /// Set when a session that is being removed may have become empty; checked once for many
    /// services that stop together.
    ending: bool,
}

impl Node {
    /// Creates a node with these ports, no rules and no services; it asks for its cell at once.
    ///
    /// # Errors
    /// Ports share a name or a device, or are too many.
    pub fn new(name: Name, ports: Vec<PortSpec>) -> Result<Self, PortError> {
        let mut effects = Effects::default();
        effects.push(Effect::StartCell { restarts: 0 });
        Ok(Self {
            name,
            ports: port::numbered(ports)?,
            cell: Cell::starting(),
            sessions: Sessions::default(),
            deployments: Deployments::default(),
            effects,
            ending: false,
        })
    }

    /// Executes a command, as a whole.
    ///
    /// # Errors
    /// The command is refused; then nothing has changed.
    pub fn handle_command(&mut self, now: Nanos, command: Command) -> Result<Outcome, Refusal> {
        if self.ending {
            self.end_sessions();
        }
        let outcome = self.do_command(now, command)?;
        self.end_sessions();
        Ok(outcome)
    }

    fn do_command(&mut self, now: Nanos, command: Command) -> Result<Outcome, Refusal> {
        let (sessions, ports, out) = (&mut self.sessions, &self.ports, &mut self.effects);
        match command {
            Command::SessionCreate { session, reservation, owner } => {
                let desired = DesiredSession { reservation, owner };
                sessions.create(session, desired, ports, out)
            }
            Command::SessionSet { session, reservation } => {
                sessions.set(session, reservation, ports, out)
            }
            Command::SessionGiveUp { session } => sessions.give_up(session, out),
            Command::SessionsArrange { sessions: wanted } => sessions.arrange(wanted, ports, out),
            Command::SessionRemove { session, cascade } => {
                self.session_remove(now, session, cascade)
            }
            Command::Deploy {
                service,
                module,
                parameters,
                session,
                rules,
                level,
                then,
                budget,
                on_failure,
                discard_state,
                owner,
            } => {
                let memory = if discard_state { Memory::Discarded } else { Memory::Kept };
                let wanted = ServiceRequest {
                    service,
                    module,
                    parameters,
                    session,
                    rules,
                    level,
                    then,
                    budget,
                    on_failure,
                    memory,
                    owner,
                };
                self.change(now, |it, cx| it.deploy(wanted, cx))
            }
            Command::Replace { service, module, parameters, level, memory } => {
                let version = Version { module, parameters, level, memory };
                self.change(now, |it, cx| it.replace(&service, version, cx))
            }
            Command::Remove { service, cascade } => {
                self.change(now, |it, cx| it.remove(&service, cascade, cx))
            }
            Command::Move { service, level } => {
                self.change(now, |it, cx| it.move_service(&service, level, cx))
            }
            Command::Bpf { enabled } => {
                self.change(now, |it, cx| Ok(it.steering_mut().set_bpf(enabled, cx)))
            }
            Command::RuleAdd { specs, owner } => {
                self.change(now, |it, cx| it.steering_mut().add_rules(specs, owner, cx))
            }
            Command::RuleRemove { rule } => {
                self.change(now, |it, cx| it.steering_mut().remove_rule(rule, cx))
            }
            Command::Arrange { remove, add, services } => {
                self.change(now, |it, cx| it.steering_mut().arrange(&remove, add, services, cx))
            }
        }
    }

    /// Removes a session, with its contents if `cascade` is set.
    fn session_remove(
        &mut self,
        now: Nanos,
        session: Name,
        cascade: bool,
    ) -> Result<Outcome, Refusal> {
        let id = self.sessions.find_created(&session)?.id;
        let (services, rules) = self.deployments.steering().in_session(&session);
        let in_use = !services.is_empty() || !rules.is_empty();
        if in_use && !cascade {
            return Err(Refusal::SessionInUse { session, services, rules });
        }
        let rules =
            self.change(now, |deployments, cx| deployments.remove_all(&services, rules, cx))?;
        self.sessions.mark_leaving(id, &mut self.effects)?;
        let stopping = self.deployments.steering().roster().sessions().contains(&id);
        Ok(Outcome::SessionRemoved { session, services, rules, stopping })
    }

    /// Processes an event. One about an entry that does not exist, or that nothing waits for,
    /// changes nothing.
    pub fn handle_event(&mut self, now: Nanos, event: Event) {
        match event {
            Event::CellReady => self.cell_ready(now),
            Event::CellLost { reason } => self.cell_lost(now, reason),
            Event::ServiceStarted { entry } => {
                self.change(now, |it, cx| it.handle_started(entry, cx));
            }
            Event::ServiceListens { entry, port } => {
                self.deployments.steering_mut().handle_listens(entry, port)
            }
            Event::ServicePlaced { entry, level, reason, movable } => {
                let placement = Placement { level, reason, movable };
                self.change(now, |it, cx| it.steering_mut().handle_placed(entry, placement, cx));
            }
            Event::MoveFailed { entry, reason } => {
                self.change(now, |it, cx| it.steering_mut().handle_move_failed(entry, reason, cx));
            }
            Event::ServiceReplaced { entry } => {
                self.change(now, |it, cx| it.handle_replaced(entry, cx));
            }
            Event::ReplaceFailed { entry, reason } => {
                self.change(now, |it, cx| it.handle_replace_failed(entry, reason, cx));
            }
            Event::ServiceKept { entry } => self.change(now, |it, cx| it.handle_kept(entry, cx)),
            Event::ServicePutBack { entry, reason } => {
                self.change(now, |it, cx| it.handle_put_back(entry, reason, cx));
            }
            Event::ServiceFailed { entry, reason } => {
                self.change(now, |it, cx| it.handle_failed(entry, reason, cx));
            }
            Event::ServiceTrapped { entry, traps, reason } => {
                self.change(now, |it, cx| it.handle_trapped(entry, traps, reason, cx));
            }
            Event::ServiceStopped { entry } => {
                let reason = "it stopped without being asked to".to_owned();
                self.change(now, |it, cx| it.handle_failed(entry, reason, cx));
            }
        }
        self.ending = true;
    }

    /// Restarts the cell and services whose pause has ended.
    pub fn handle_timeout(&mut self, now: Nanos) {
        self.effects.extend(self.cell.handle_timeout(now));
        self.change(now, |it, cx| it.steering_mut().handle_timeout(cx));
    }

    /// Returns the time of the next [`Node::handle_timeout`], on the clock of `now`; `None` if
    /// there is none.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Nanos> {
        let services = self.deployments.steering().roster().poll_timeout();
        services.into_iter().chain(self.cell.poll_timeout()).min()
    }

    /// Returns the next effect; to be called until there is none.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        if self.ending {
            self.end_sessions();
        }
        if self.deployments.steering().is_stale() {
            // Rules are installed before a service is reported as running.
            let queued = std::mem::take(&mut self.effects);
            self.install();
            self.effects.append(queued);
        }
        self.effects.poll()
    }

    /// Lends the deployments everything that they need for one change.
    fn change<T>(
        &mut self,
        now: Nanos,
        change: impl FnOnce(&mut Deployments, &mut Context<'_>) -> T,
    ) -> T {
        let Self { ports, cell, sessions, deployments, effects: out, .. } = self;
        let is_ready = cell.is_ready();
        change(deployments, &mut Context { now, ports, sessions, is_ready, out })
    }

    /// Emits rules and edges to the front door and the cell, if they have changed.
    fn install(&mut self) {
        // The time does not matter here.
        self.change(Nanos::ZERO, |it, cx| it.steering_mut().install(cx));
    }

    /// Removes sessions that are leaving and have become empty.
    fn end_sessions(&mut self) {
        self.ending = false;
        let roster = self.deployments.steering().roster();
        self.sessions.end(|| roster.sessions(), &mut self.effects);
    }

    fn cell_ready(&mut self, now: Nanos) {
        if self.cell.handle_ready(now) {
            self.sessions.announce(&mut self.effects);
            self.change(now, |it, cx| it.steering_mut().start_waiting(cx));
        }
    }

    fn cell_lost(&mut self, now: Nanos, reason: String) {
        let Some(retry_at) = self.cell.handle_lost(now) else { return };
        let (closed, notices) =
            self.change(now, |deployments, cx| deployments.handle_cell_lost(&reason, cx));
        self.effects.report(Notice::CellLost { reason, closed, retry_at });
        self.effects.extend(notices.into_iter().map(Effect::Report));
    }

    /// Passes a view of the whole state to `write`. A service that is being replaced is recorded in
    /// its previous version and starts from the beginning: the version that a later cell would have
    /// is unknown.
    pub fn with_snapshot<T>(&self, write: impl FnOnce(&SnapshotView<'_>) -> T) -> T {
        if !self.is_replacing() {
            return write(&SnapshotView::of(
                &self.sessions,
                self.deployments.steering(),
                &self.cell,
            ));
        }
        let mut deployments = self.deployments.clone();
        deployments.end_replacements("the daemon ended");
        write(&SnapshotView::of(&self.sessions, deployments.steering(), &self.cell))
    }

    /// Restores the node of a snapshot, with the ports that it had; [`Node::resume`] must follow.
    ///
    /// # Errors
    /// The snapshot contradicts itself or the ports.
    pub fn restore(
        name: Name,
        ports: Vec<PortSpec>,
        snapshot: Snapshot,
    ) -> Result<Self, RestoreError> {
        let ports = port::numbered(ports)?;
        let (sessions, deployments, cell) = snapshot.restore()?;
        deployments.steering().rules().check_all(Names::of(
            &ports,
            &sessions,
            deployments.steering().roster(),
        ))?;
        let (effects, ending) = (Effects::default(), false);
        Ok(Self { name, ports, cell, sessions, deployments, effects, ending })
    }

    /// Continues after [`Node::restore`]: with a cell that runs exactly these services, or without
    /// a cell. The first rules that it installs include those of `desired` that wait for their
    /// services, so that no packet passes a closed service that could not start.
    pub fn resume(
        &mut self,
        now: Nanos,
        has: Result<&BTreeSet<EntryId>, String>,
        desired: &DesiredState,
    ) {
        self.change(now, |deployments, cx| deployments.steering_mut().add_awaited(desired, cx));
        match has {
            Ok(running) => {
                self.cell.resume();
                self.sessions.announce(&mut self.effects);
                self.change(now, |deployments, cx| {
                    deployments.steering_mut().resume_with(running, cx)
                });
            }
            // Services that were stopping are gone too, with the cell.
            Err(reason) => self.cell_lost(now, reason),
        }
        self.end_sessions();
        self.install();
        let edges = self.deployments.steering().roster().announced_edges();
        let rules = self.effects.take_rules();
        let rules =
            rules.unwrap_or_else(|| self.deployments.steering_mut().rules_mut().reinstall());
        self.effects.lead_with(edges, rules);
    }

    /// Returns the name.
    #[must_use]
    pub const fn name(&self) -> &Name {
        &self.name
    }

    /// Returns the ports, by number.
    #[must_use]
    pub fn ports(&self) -> &[Port] {
        &self.ports
    }

    /// Returns the state of the cell, and the number of its restarts.
    #[must_use]
    pub const fn cell(&self) -> (CellState, u32) {
        (self.cell.state(), self.cell.restarts())
    }

    /// Returns the sessions, by number.
    pub fn sessions(&self) -> impl Iterator<Item = &Session> {
        self.sessions.iter()
    }

    /// Returns the session of this name.
    #[must_use]
    pub fn session(&self, name: &Name) -> Option<&Session> {
        self.sessions.by_name(name)
    }

    /// Returns the session of this number.
    #[must_use]
    pub fn session_of(&self, id: SessionId) -> Option<&Session> {
        self.sessions.by_number(id)
    }

    /// Sets the capacity of the node. Reservations that it no longer covers are cleared; their
    /// sessions are returned with the reason.
    pub fn set_capacity(&mut self, capacity: Capacity) -> Vec<(Name, Refusal)> {
        self.sessions.set_capacity(capacity, &mut self.effects)
    }

    /// Sets the memory that is in use, for later admissions.
    pub fn set_memory_used(&mut self, used: MemoryUsed) {
        self.sessions.set_memory_used(used);
    }

    /// Returns the memory that was last reported to be in use.
    #[must_use]
    pub fn memory_used(&self) -> MemoryUsed {
        self.sessions.memory_used()
    }

    /// Returns the capacity, if it has been set.
    #[must_use]
    pub fn capacity(&self) -> Option<&Capacity> {
        self.sessions.capacity()
    }

    /// Returns the capacity that is not reserved.
    #[must_use]
    pub fn left(&self) -> Option<Left> {
        self.sessions.left()
    }

    /// Returns the accounts of services below user level, for a machine of this speed and the tick
    /// period of its kernel.
    #[must_use]
    pub fn accounts(&self, speed: Speed, tick: Nanos) -> Accounts {
        Accounts::of(&self.sessions, self.services(), speed, tick)
    }

    /// Returns the services, by name.
    pub fn services(&self) -> impl Iterator<Item = &Service> {
        self.deployments.steering().roster().services()
    }

    /// Returns the service of this name.
    #[must_use]
    pub fn service(&self, name: &Name) -> Option<&Service> {
        self.deployments.steering().roster().service(name)
    }

    /// Returns the level that was requested for a service last, at its deployment or by a move;
    /// `None` if its module's first level is to be, or the service does not exist.
    #[must_use]
    pub fn requested_level(&self, name: &Name) -> Option<Level> {
        self.deployments.steering().roster().get(name).and_then(Managed::requested_level)
    }

    /// Returns the service of this entry.
    #[must_use]
    pub fn service_of(&self, entry: EntryId) -> Option<&Service> {
        self.deployments.steering().roster().of(entry).map(Managed::service)
    }

    /// Returns the levels at which to run the service of an entry, best first; empty if there is no
    /// such service.
    #[must_use]
    pub fn levels_of(&self, entry: EntryId) -> Vec<Level> {
        let managed = self.deployments.steering().roster().of(entry);
        managed.map_or_else(Vec::new, |managed| managed.definition().levels(self.bpf()))
    }

    /// Sets the entry that the next new service gets, if it is free then.
    pub fn prefer_entry(&mut self, entry: Option<EntryId>) {
        self.deployments.steering_mut().roster_mut().prefer(entry);
    }

    /// Returns true if packets of a service are dropped while it does not run: it is closed, or one
    /// that follows in its graph is.
    #[must_use]
    pub fn is_closed(&self, service: &Service) -> bool {
        self.deployments.steering().is_closed(service)
    }

    /// Returns true if a service is there and has not run yet: rules and edges cannot lead to it.
    #[must_use]
    pub fn is_first_starting(&self, service: &Name) -> bool {
        self.deployments.is_first_starting(service)
    }

    /// Returns true if a service is neither starting nor being replaced: then it can be replaced.
    #[must_use]
    pub fn is_settled(&self, service: &Name) -> bool {
        self.deployments.is_settled(service)
    }

    /// Returns true while a new version of a service is starting or being watched: a snapshot has
    /// the previous one.
    #[must_use]
    pub fn is_replacing(&self) -> bool {
        self.deployments.is_replacing()
    }

    /// Returns the reason that the state of a service would be lost if `new` replaced it; `None` if
    /// the service does not run or its state is kept.
    #[must_use]
    pub fn would_lose(&self, service: &Name, new: &ModuleInfo, session: &Name) -> Option<String> {
        self.deployments.loss(service, new, session)
    }

    /// Returns the digests of all modules that a service runs, may run soon, or may run again.
    pub fn digests(&self) -> impl Iterator<Item = &str> {
        self.deployments.digests()
    }

    /// Returns true if services may run below user level.
    #[must_use]
    pub const fn bpf(&self) -> bool {
        self.deployments.steering().roster().bpf()
    }

    /// Returns the rules, best first: the order in which the front door tries them.
    #[must_use]
    pub fn rules(&self) -> Vec<RuleView> {
        let names = Names::of(&self.ports, &self.sessions, self.deployments.steering().roster());
        self.deployments.steering().rules().views(names)
    }

    /// Returns the node's own rules, as `tam rule list` shows them.
    pub fn own_rules(&self) -> impl Iterator<Item = RuleView> {
        self.deployments.steering().rules().own_views()
    }

    /// Returns all rules that packets may meet: then the awaited ones, and the node's own last.
    #[must_use]
    pub fn all_rules(&self) -> Vec<RuleView> {
        let awaited = self.deployments.steering().rules().awaited_views();
        self.rules().into_iter().chain(awaited).chain(self.own_rules()).collect()
    }

    /// Returns true if a rule has this number, or would get it back with a version of its service
    /// that may yet run, or run again.
    #[must_use]
    pub fn has_rule(&self, rule: RuleId) -> bool {
        self.deployments.steering().rules().has(rule)
    }

    /// Returns the rules by number, in their desired form.
    #[must_use]
    pub fn numbered_rules(&self) -> Vec<(RuleId, DesiredRule)> {
        self.deployments.steering().rules().numbered()
    }

    /// Returns the session of each rule that packets may meet, the node's own included; unordered,
    /// without copies.
    pub fn rule_sessions(&self) -> impl Iterator<Item = (RuleId, &Name)> {
        self.deployments.steering().rules().sessions()
    }

    /// Returns the session and the owner of a rule that packets may meet.
    #[must_use]
    pub fn rule_payer(&self, rule: RuleId) -> Option<(&Name, Option<Owner>)> {
        self.deployments.steering().rules().payer(rule)
    }

    /// Returns the rule set that the front door was given last, or gets next.
    #[must_use]
    pub const fn installed(&self) -> &RuleSet {
        self.deployments.steering().rules().installed()
    }

    /// Returns the generation: the number of times that the front door's rules were replaced.
    #[must_use]
    pub const fn generation(&self) -> u64 {
        self.deployments.steering().rules().generation()
    }

    /// Directs datagrams to these addresses to the associations' entry, in place of the previous
    /// addresses.
    ///
    /// # Errors
    /// The rules do not fit; then nothing has changed.
    pub fn serve_associations(&mut self, at: &[SocketAddr]) -> Result<(), Refusal> {
        self.change(Nanos::ZERO, |deployments, cx| {
            deployments.steering_mut().serve_associations(at, cx)
        })
    }

    /// Adds the rules of a desired state that do not exist yet, as far as they need no service.
    pub fn await_rules(&mut self, desired: &DesiredState) {
        self.change(Nanos::ZERO, |deployments, cx| {
            deployments.steering_mut().await_rules(desired, cx)
        });
    }

    /// Drops awaited rules that a desired state does not contain.
    pub fn await_only(&mut self, desired: &DesiredState) {
        self.change(Nanos::ZERO, |deployments, cx| {
            deployments.steering_mut().await_only(desired, cx)
        });
    }
}

#[cfg(test)]
mod association_tests;
#[cfg(test)]
mod awaited_tests;
#[cfg(test)]
mod owner_tests;
#[cfg(test)]
mod replace_tests;
#[cfg(test)]
mod session_tests;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod stream_tests;
#[cfg(test)]
mod tests;
