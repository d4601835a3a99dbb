//! The services of a node: starting, failing, stopping.

use std::collections::{BTreeMap, BTreeSet};

use abi::Level;
use abi::check::Kind;
use abi::manifest::{Meant, ParameterValue};
use serde::{Deserialize, Serialize};
use units::{EntryId, Name, Nanos, RuleId, SessionId};

use super::replace::{Asked, Before, Definition};
use super::roster;
use super::rules::{rules_of, session_agrees};
use super::{CellState, Life, Node};
use crate::budget::Budget;
use crate::classifier::Destination;
use crate::command::{Arrangement, Effect, Memory, Notice, Outcome, ServiceStart};
use crate::owner::Owner;
use crate::policy::{OnFailure, Traps};
use crate::refusal::Refusal;
use crate::rule::RuleSpec;
use crate::service::{BELOW_MAX, Backoff, Edges, ModuleInfo, SERVICES_MAX, Service, ServiceState};

/// Cells that may be lost while a service that never ran is starting; it may
/// well be what ended them, and after that it is given up.
pub const FIRST_STARTS_MAX: u32 = 3;

/// A service and what only the node needs to know of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Managed {
    pub(super) service: Service,
    pub(super) session: SessionId,
    pub(super) values: BTreeMap<Name, ParameterValue>,
    /// Where the operator wants it; else the module's own wish counts.
    pub(super) wanted: Option<Level>,
    /// A new version of it that was asked for.
    #[serde(skip)]
    pub(super) asked: Option<Asked>,
    /// The version before, while this one is watched.
    #[serde(skip)]
    pub(super) before: Option<Before>,
    /// Its packets go by a lane.
    movable: bool,
    /// Of a service of streams: where its connections come to.
    #[serde(default)]
    listener: Option<u16>,
    /// It was asked to move, and has not answered.
    pub(super) moving: bool,
    /// The cell has it: it was asked to start it, and has neither failed nor stopped.
    pub(super) held: bool,
    /// Front door and cell drop packets that it cannot have.
    #[serde(default)]
    pub(super) told_closed: bool,
    /// Where the cell and the front door take its edges to lead.
    edges: Edges,
    /// Starts that the cell was asked for.
    starts: u32,
    has_run: bool,
    /// In [`ServiceState::Failed`]: when it is started again.
    pub(super) retry_at: Option<Nanos>,
    pub(super) backoff: Backoff,
    #[serde(default)]
    pub(super) traps: Traps,
    /// Traps since its start that the node has heard of.
    #[serde(default)]
    pub(super) traps_heard: u64,
}

impl Managed {
    pub(super) const fn service(&self) -> &Service {
        &self.service
    }

    /// Whether the cell was asked to start it and has not answered.
    pub(super) fn is_starting(&self) -> bool {
        self.held && self.service.state == ServiceState::Starting
    }

    pub(super) const fn has_run(&self) -> bool {
        self.has_run
    }

    pub(super) const fn retry_at(&self) -> Option<Nanos> {
        self.retry_at
    }

    /// Where its connections come to, if it is a service of streams that runs.
    pub(super) const fn listener(&self) -> Option<u16> {
        self.listener
    }

    pub(super) const fn is_movable(&self) -> bool {
        self.movable
    }

    /// Takes what changes while it runs.
    pub(super) fn arrange(&mut self, arrangement: Arrangement) {
        let Arrangement { then, level, budget, on_failure, owner } = arrangement;
        self.service.owner = owner;
        self.service.on_failure = on_failure;
        self.service.then = then;
        self.service.budget = budget;
        self.wanted = level;
    }

    pub(super) const fn edges(&self) -> Edges {
        self.edges
    }

    pub(super) fn runs(&self) -> bool {
        self.service.state == ServiceState::Running
    }

    /// The cell has nothing of it: it starts anew, if it should. Whether it was to stop, and
    /// so is gone.
    pub(super) fn fall_back(&mut self, now: Nanos) -> bool {
        self.lose();
        match self.service.state {
            ServiceState::Stopping => return true,
            // Its pause goes on.
            ServiceState::Failed { .. } | ServiceState::Bypassed { .. } => {}
            ServiceState::Starting | ServiceState::Running => {
                self.enter(now, ServiceState::Starting);
            }
        }
        false
    }

    /// The move that it has not made yet.
    pub(super) fn moves_on(&self, bpf: bool) -> Option<Effect> {
        let Service { entry, level, .. } = self.service;
        let asked = self.wanted.filter(|_| self.moving);
        let up = (!bpf && level != Level::User).then_some(Level::User);
        let level = asked.or(up).filter(|_| self.runs())?;
        Some(Effect::MoveService { entry, level })
    }

    /// Takes note of where its edges lead; whether that is news.
    pub(super) fn learn(&mut self, edges: Edges) -> bool {
        std::mem::replace(&mut self.edges, edges) != edges
    }

    /// Has the cell asked for it, if it should run and the cell has not been.
    fn start(&mut self, bpf: bool) -> Option<Effect> {
        if self.held || self.service.state != ServiceState::Starting {
            return None;
        }
        self.held = true;
        self.service.restarts = self.starts;
        self.starts = self.starts.saturating_add(1);
        let start = ServiceStart {
            entry: self.service.entry,
            service: self.service.name.clone(),
            digest: self.service.module.digest.clone(),
            lanes: self.service.module.manifest.lanes,
            parameters: self.values.clone(),
            session: self.session,
            levels: self.definition().levels(bpf),
            functions: self.service.module.granted,
            closed: self.told_closed,
        };
        Some(Effect::StartService { start, restarts: self.service.restarts })
    }

    pub(super) fn enter(&mut self, now: Nanos, state: ServiceState) {
        self.service.state = state;
        self.service.since = now;
    }

    /// Nothing of it runs anywhere any more.
    fn lose(&mut self) {
        self.held = false;
        self.movable = false;
        self.listener = None;
        if std::mem::take(&mut self.moving) {
            // Whoever asked for the move hears that it was refused.
            self.wanted = Some(self.service.level);
        }
        self.edges = Edges::default();
        self.traps_heard = 0;
        self.come_up();
    }

    pub(super) fn come_up(&mut self) {
        self.service.level = Level::User;
        self.service.level_reason = user_reason(&self.service.module);
    }
}

/// Where a service runs.
pub(super) struct Place {
    pub(super) level: Level,
    pub(super) reason: String,
    pub(super) movable: bool,
}

/// The service that a deploy asks for.
pub(super) struct Wanted {
    pub(super) service: Name,
    pub(super) module: ModuleInfo,
    pub(super) parameters: BTreeMap<String, String>,
    pub(super) session: Name,
    pub(super) level: Option<Level>,
    pub(super) then: Vec<Name>,
    pub(super) budget: Budget,
    pub(super) on_failure: OnFailure,
    pub(super) owner: Option<Owner>,
}

impl Node {
    pub(super) fn deploy(
        &mut self,
        now: Nanos,
        wanted: Wanted,
        rules: Vec<RuleSpec>,
        memory: Memory,
    ) -> Result<Outcome, Refusal> {
        let Wanted {
            service: name,
            module,
            parameters,
            session,
            level: wanted,
            then,
            budget,
            on_failure,
            owner,
        } = wanted;
        let present = self.services.get(&name);
        let is_new = present.is_none();
        if name.as_str() == super::ASSOCIATIONS_NAME {
            return Err(Refusal::NameReserved { service: name });
        }
        if present.is_some_and(|managed| managed.service.state == ServiceState::Stopping) {
            return Err(Refusal::ServiceStopping { service: name });
        }
        let session_id = self.find_session(&session)?.id;
        check_levels(&module)?;
        module.granted.permit(module.imports)?;
        if let Some(level) = wanted {
            self.check_level(&name, &module, level)?;
        }
        let values = module.manifest.values(&parameters)?;
        for spec in &rules {
            check_rule_of(spec, &name, &session)?;
        }
        let then = self.check_edges(&name, (&session, module.kind), &then)?;
        let definition = Definition {
            module,
            parameters,
            values,
            session,
            session_id,
            wanted,
            then,
            budget,
            on_failure,
            owner,
        };
        if is_new {
            return self.add_service(now, name, definition, rules);
        }
        self.become_another(now, &name, definition, rules, memory).map(|(outcome, _)| outcome)
    }

    fn add_service(
        &mut self,
        now: Nanos,
        name: Name,
        definition: Definition,
        rules: Vec<RuleSpec>,
    ) -> Result<Outcome, Refusal> {
        let entry = self.free_entry(&name, &definition.module)?;
        let rules = rules_of(&name, rules, definition.owner);
        let coming = Destination::of(entry, &definition.module, None);
        let admitted = self.admit_rules(rules, Some((&name, coming)), &BTreeSet::new())?;
        let outcome = Outcome::Deployed {
            service: name.clone(),
            entry,
            rules: admitted.ids(),
            shadowed: admitted.shadowed.clone(),
            replaces: None,
        };

        if self.entry_preferred.take() != Some(entry) {
            let next = if usize::from(entry.0) < BELOW_MAX {
                &mut self.entry_next
            } else {
                &mut self.entry_next_user
            };
            *next = entry.0 + 1;
        }
        self.insert_rules(admitted, Life::Live);
        let level_reason = user_reason(&definition.module);
        let service = Service {
            name: name.clone(),
            entry,
            module: definition.module,
            parameters: definition.parameters,
            session: definition.session,
            then: definition.then,
            budget: definition.budget,
            on_failure: definition.on_failure,
            owner: definition.owner,
            level: Level::User,
            level_reason,
            state: ServiceState::Starting,
            since: now,
            restarts: 0,
        };
        let managed = Managed {
            service,
            session: definition.session_id,
            values: definition.values,
            wanted: definition.wanted,
            asked: None,
            before: None,
            movable: false,
            listener: None,
            moving: false,
            held: false,
            told_closed: false,
            edges: Edges::default(),
            starts: 0,
            has_run: false,
            retry_at: None,
            backoff: Backoff::default(),
            traps: Traps::default(),
            traps_heard: 0,
        };
        let changes_ways =
            managed.service.on_failure.is_closed() || !managed.service.then.is_empty();
        let service = name.clone();
        self.services.insert(name, managed);
        // Nothing leads to one that does not run.
        if changes_ways {
            self.install();
        }
        let ready = self.cell.state == CellState::Ready;
        let started = self.services.get_mut(&service).filter(|_| ready);
        self.effects.extend(started.and_then(|managed| managed.start(self.bpf)));
        Ok(outcome)
    }

    pub(super) fn remove(
        &mut self,
        now: Nanos,
        name: &Name,
        cascade: bool,
    ) -> Result<Outcome, Refusal> {
        let managed = self.find_service(name)?;
        let held = managed.held;
        let entry = managed.service.entry;
        let others = self.rules_of_others(name);
        if !cascade && !others.is_empty() {
            return Err(Refusal::ServiceInUse { service: name.clone(), rules: others });
        }
        let before = self.services_before(name);
        if !cascade && !before.is_empty() {
            return Err(Refusal::ServiceFollows { service: name.clone(), before });
        }
        for managed in self.services.values_mut() {
            managed.service.then.retain(|_, next| next != name);
        }
        // Whoever waits for another version hears that the service is removed.
        let _ = self.take_back(name, "the service was removed");
        let rules = self.drop_rules_of(name);
        let mut is_led_to = !rules.is_empty() || !before.is_empty();
        if let Some(managed) = self.services.get_mut(name) {
            is_led_to |= managed.told_closed || !managed.service.then.is_empty();
            managed.retry_at = None;
            managed.enter(now, ServiceState::Stopping);
        }
        if is_led_to {
            self.install();
        }
        if held {
            self.effects.push_back(Effect::StopService { entry });
        } else {
            self.services.remove(name);
            let notice = Notice::ServiceRemoved { service: name.clone() };
            self.effects.push_back(Effect::Report(notice));
        }
        Ok(Outcome::Removed { service: name.clone(), rules, stopping: held })
    }

    pub(super) fn service_started(&mut self, now: Nanos, entry: EntryId) {
        let Some(managed) = self.managed(entry) else { return };
        if !managed.held || managed.service.state != ServiceState::Starting {
            return;
        }
        managed.has_run = true;
        managed.enter(now, ServiceState::Running);
        let service = managed.service.name.clone();
        let restarts = managed.service.restarts;
        self.end_start(&service);
        self.stale = true;
        let notice = Notice::ServiceRunning { service, restarts };
        self.effects.push_back(Effect::Report(notice));
    }

    pub(super) fn service_listens(&mut self, entry: EntryId, port: u16) {
        if let Some(managed) = self.managed(entry).filter(|managed| managed.held) {
            managed.listener = Some(port);
            self.stale = true;
        }
    }

    pub(super) fn service_placed(&mut self, entry: EntryId, place: Place) {
        let Some(managed) = self.managed(entry).filter(|managed| managed.held) else { return };
        let moved = managed.service.level != place.level;
        managed.service.level = place.level;
        managed.service.level_reason = place.reason;
        managed.movable = place.movable;
        managed.moving = false;
        if managed.service.state == ServiceState::Running && moved {
            let notice =
                Notice::ServiceMoved { service: managed.service.name.clone(), level: place.level };
            self.effects.push_back(Effect::Report(notice));
        }
        if place.level != Level::User && !self.bpf {
            // The switch was set while it started or moved.
            self.effects.push_back(Effect::MoveService { entry, level: Level::User });
        }
        self.stale = true;
    }

    pub(super) fn move_service(&mut self, name: &Name, level: Level) -> Result<Outcome, Refusal> {
        let managed = self.find_service(name)?;
        let service = managed.service();
        self.check_level(name, &service.module, level)?;
        if service.state != ServiceState::Running {
            return Err(Refusal::ServiceNotRunning { service: name.clone() });
        }
        if managed.asked.is_some() {
            return Err(Refusal::ServiceReplacing { service: name.clone() });
        }
        let (entry, from) = (service.entry, service.level);
        let moves = from != level || managed.moving;
        if let Some(managed) = self.services.get_mut(name) {
            managed.wanted = Some(level);
            managed.want_before_at(level);
            managed.moving = moves;
        }
        if moves {
            self.effects.push_back(Effect::MoveService { entry, level });
        }
        Ok(Outcome::Moving { service: name.clone(), from })
    }

    /// Sets the switch; services go up, or back to where they are wanted.
    pub(super) fn set_bpf(&mut self, enabled: bool) -> Outcome {
        self.bpf = enabled;
        let mut moving = Vec::new();
        for (name, managed) in &self.services {
            let service = &managed.service;
            let level = managed.definition().levels(enabled)[0];
            let moves = if enabled { managed.movable } else { service.level != Level::User };
            if service.state == ServiceState::Running && moves && service.level != level {
                moving.push(name.clone());
                self.effects.push_back(Effect::MoveService { entry: service.entry, level });
            }
        }
        Outcome::Bpf { moving }
    }

    /// A level that a service can be asked to run at.
    pub(super) fn check_level(
        &self,
        service: &Name,
        module: &ModuleInfo,
        level: Level,
    ) -> Result<(), Refusal> {
        let declared = &module.manifest.levels;
        if level != Level::User && module.kind == Kind::Streams {
            return Err(Refusal::LevelOfStreams { service: service.clone() });
        }
        if level != Level::User && !declared.contains(&level) {
            let (service, levels) = (service.clone(), declared.clone());
            return Err(Refusal::LevelNotDeclared { service, level, levels });
        }
        if level != Level::User && !self.bpf {
            return Err(Refusal::BpfOff { level });
        }
        Ok(())
    }

    pub(super) fn move_failed(&mut self, entry: EntryId, reason: String) {
        let Some(managed) = self.managed(entry) else { return };
        managed.wanted = Some(managed.service.level);
        managed.moving = false;
        let notice = Notice::MoveFailed { service: managed.service.name.clone(), reason };
        self.effects.push_back(Effect::Report(notice));
    }

    /// The cell has nothing of it any more: because it failed or, when it was asked to, stopped.
    pub(super) fn service_failed(&mut self, now: Nanos, entry: EntryId, reason: String) {
        let Some(managed) = self.managed(entry) else { return };
        if !managed.held {
            return;
        }
        managed.lose();
        let service = managed.service.name.clone();
        let comes_back = managed.has_to_start() && managed.service.state == ServiceState::Starting;
        self.end_replacement(&service, &reason);
        if comes_back {
            self.install();
            return self.start_waiting();
        }
        let Some(managed) = self.services.get_mut(&service) else { return };
        let notice = match managed.service.state {
            ServiceState::Stopping => {
                self.services.remove(&service);
                Notice::ServiceRemoved { service }
            }
            ServiceState::Starting if !managed.has_run => self.give_up(service, reason),
            // It was asked to stop.
            ServiceState::Bypassed { .. } => return,
            ServiceState::Starting | ServiceState::Running | ServiceState::Failed { .. } => {
                let ran_for = match managed.service.state {
                    ServiceState::Running => now.saturating_sub(managed.service.since),
                    _ => Nanos::ZERO,
                };
                let retry_at = now + managed.backoff.pause(ran_for);
                managed.retry_at = Some(retry_at);
                managed.enter(now, ServiceState::Failed { reason: reason.clone() });
                let policy = managed.service.on_failure;
                if managed.traps.add(now, 1, policy) {
                    return self.bypass(now, &service, reason);
                }
                let closed = managed.told_closed;
                Notice::ServiceFailed { service, reason, closed, retry_at }
            }
        };
        self.install();
        self.effects.push_back(Effect::Report(notice));
    }

    /// Every service has lost what the cell had of it; those that should run start with the next
    /// cell. Returns what became of those that do not.
    pub(super) fn services_lost(&mut self, now: Nanos, reason: &str) -> Vec<Notice> {
        let mut removed = Vec::new();
        let mut given_up = Vec::new();
        // One that has yet to start does so in the next cell.
        let halves = self.services.iter().filter(|(_, managed)| !managed.has_to_start());
        let names: Vec<Name> = halves.map(|(name, _)| name.clone()).collect();
        for name in names {
            self.end_replacement(&name, &format!("the cell was lost: {reason}"));
        }
        for managed in self.services.values_mut().filter(|managed| managed.held) {
            managed.lose();
            match managed.service.state {
                ServiceState::Stopping => removed.push(managed.service.name.clone()),
                ServiceState::Bypassed { .. } => {}
                _ if !managed.has_run && managed.starts >= FIRST_STARTS_MAX => {
                    given_up.push(managed.service.name.clone());
                }
                _ => managed.enter(now, ServiceState::Starting),
            }
        }
        let mut notices = Vec::new();
        for service in removed {
            self.services.remove(&service);
            notices.push(Notice::ServiceRemoved { service });
        }
        for service in given_up {
            let reason =
                format!("the cell was lost {FIRST_STARTS_MAX} times while it started: {reason}");
            notices.push(self.give_up(service, reason));
        }
        notices
    }

    /// Services whose pause is over are started again.
    pub(super) fn retry_services(&mut self, now: Nanos) {
        for managed in self.services.values_mut() {
            if managed.retry_at.is_some_and(|at| at <= now) {
                managed.retry_at = None;
                managed.enter(now, ServiceState::Starting);
            }
        }
        self.start_waiting();
    }

    /// Asks the cell, if there is one, for every service that should start.
    pub(super) fn start_waiting(&mut self) {
        if self.cell.state != CellState::Ready {
            return;
        }
        let started = self.services.values_mut().filter_map(|managed| managed.start(self.bpf));
        self.effects.extend(started);
    }

    pub(super) fn find_service(&self, name: &Name) -> Result<&Managed, Refusal> {
        match self.services.get(name) {
            Some(managed) if managed.service.state == ServiceState::Stopping => {
                Err(Refusal::ServiceStopping { service: name.clone() })
            }
            Some(managed) => Ok(managed),
            None => {
                let meant = Meant::new(name.as_str(), self.services.keys().map(Name::as_str));
                Err(Refusal::ServiceUnknown { service: name.clone(), meant })
            }
        }
    }

    /// A service that never ran is gone, with its rules; no other rule can lead to it.
    fn give_up(&mut self, service: Name, reason: String) -> Notice {
        let gone = self.services.remove(&service).filter(|managed| managed.told_closed);
        let opened = gone.map(|managed| managed.service.entry);
        let opened = opened.map(|entry| Effect::SetClosed { entry, closed: false });
        self.effects.extend(opened);
        self.drop_rules_of(&service);
        Notice::ServiceNotStarted { service, reason }
    }

    pub(super) fn managed(&mut self, entry: EntryId) -> Option<&mut Managed> {
        self.services.of_mut(entry)
    }

    fn rules_of_others(&self, service: &Name) -> Vec<RuleId> {
        let leads_there = self.rules.values().filter(|owned| {
            owned.rule.spec.action.service() == Some(service)
                && owned.came_with.as_ref() != Some(service)
        });
        leads_there.map(|owned| owned.rule.id).collect()
    }

    /// Has the next service that starts get this entry, if it is free then.
    pub fn prefer_entry(&mut self, entry: Option<EntryId>) {
        self.entry_preferred = entry.filter(|entry| usize::from(entry.0) < SERVICES_MAX);
    }

    /// An entry that no service has: the preferred one, or the next one after the last one given.
    fn free_entry(&self, service: &Name, module: &ModuleInfo) -> Result<EntryId, Refusal> {
        let is_free = |entry: &EntryId| self.services.name_of(*entry).is_none();
        if let Some(entry) = self.entry_preferred.filter(is_free) {
            return Ok(entry);
        }
        let can_leave = module.can_leave_user();
        let next = [self.entry_next, self.entry_next_user];
        roster::entry_in_turn(can_leave, next, is_free).ok_or_else(|| match can_leave {
            true => Refusal::TooManyBelow { service: service.clone() },
            false => Refusal::TooManyServices { service: service.clone() },
        })
    }
}

/// A module that wants none of the levels that a node has is refused at once; whether it
/// fits one of them is seen when it starts.
pub(super) fn check_levels(module: &ModuleInfo) -> Result<(), Refusal> {
    let levels = &module.manifest.levels;
    if levels.iter().all(|&level| level == Level::Cluster) {
        let module = module.manifest.name.clone();
        return Err(Refusal::Level { module, levels: levels.clone() });
    }
    Ok(())
}

/// Why a service runs at user level as long as it has no other place.
fn user_reason(module: &ModuleInfo) -> String {
    match module.manifest.levels.first() {
        Some(Level::User) => "the module asks for it first".to_owned(),
        Some(first) => format!("it has no place at {first} yet"),
        None => "the module names no level".to_owned(),
    }
}

/// A rule that comes with a service leads to it, on its session.
fn check_rule_of(spec: &RuleSpec, service: &Name, session: &Name) -> Result<(), Refusal> {
    if spec.action.service() != Some(service) {
        return Err(Refusal::ActionElsewhere {
            text: spec.r#match.to_string(),
            service: service.clone(),
            action: spec.action.clone(),
        });
    }
    session_agrees(spec, service, session)
}
