//! Life cycle of one service: starting, running, failed, moved, replaced.
//!
//! ```text
//! deploy ─▶ Starting ─ started ─▶ Running ─ failed ─▶ Failed ─ pause over ─▶ Starting
//!              │ failed, never ran   │ ▲                  │
//!              ▼                     │ └── cell lost, ready, started again
//!            gone ◀─ stopped ─ Stopping ◀─ remove ────────┘ (at once, when the cell has nothing of it)
//! ```

use std::collections::BTreeMap;

use abi::Level;
use abi::manifest::ParameterValue;
use serde::{Deserialize, Serialize};
use units::{EntryId, Name, Nanos, SessionId};

use crate::budget::Budget;
use crate::command::{Arrangement, Effect, ServiceStart};
use crate::owner::Owner;
use crate::policy::{OnFailure, Traps};
use crate::service::{Backoff, Edges, ModuleInfo, Service, ServiceState};

/// Limit of cells that may be lost while a service that never ran is starting. Beyond it the
/// service is given up, since it may be what ended them.
pub const FIRST_STARTS_MAX: u32 = 3;

/// Definition of a service by a deploy, without its name and its rules.
#[derive(Clone, Debug)]
pub(super) struct Definition {
    pub(super) module: ModuleInfo,
    pub(super) parameters: BTreeMap<String, String>,
    pub(super) values: BTreeMap<Name, ParameterValue>,
    pub(super) session: Name,
    pub(super) session_id: SessionId,
    pub(super) wanted: Option<Level>,
    pub(super) then: BTreeMap<u16, Name>,
    pub(super) budget: Budget,
    pub(super) on_failure: OnFailure,
    pub(super) owner: Option<Owner>,
}

/// Level at which a service runs.
pub(super) struct Placement {
    pub(super) level: Level,
    pub(super) reason: String,
    /// True if its packets go through a lane, so that it can move.
    pub(super) movable: bool,
}

/// Consequence of the end of a service in the cell.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// The service was to stop, and is gone.
    Stopped,
    /// The service never ran, and is given up.
    NeverRan,
    /// The service stays bypassed.
    Bypassed,
    /// The service is started again.
    Again {
        /// Time of the start.
        retry_at: Nanos,
    },
    /// The service has trapped too often, and is to be bypassed.
    TooOften,
}

/// Service, with state that only the node needs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Managed {
    service: Service,
    session: SessionId,
    values: BTreeMap<Name, ParameterValue>,
    /// Level that the operator asked for; `None` leaves the choice to the module.
    wanted: Option<Level>,
    /// True if its packets go through a lane.
    movable: bool,
    /// TCP port of the listener of a stream service.
    #[serde(default)]
    listener: Option<u16>,
    /// True from the request to move until the cell has answered.
    moving: bool,
    /// True while the cell has the service: it was asked to start it, and the service has neither
    /// failed nor stopped.
    held: bool,
    /// Last value sent to front door and cell: true to drop packets that cannot reach the service.
    #[serde(default, rename = "told_closed")]
    announced_closed: bool,
    /// Destinations of its edges, as last sent to front door and cell.
    edges: Edges,
    /// Number of starts that were requested from the cell.
    starts: u32,
    has_run: bool,
    /// Time of the next start, in [`ServiceState::Failed`].
    retry_at: Option<Nanos>,
    backoff: Backoff,
    #[serde(default)]
    traps: Traps,
    /// Number of traps since its start that the cell has reported.
    #[serde(default, rename = "traps_heard")]
    traps_reported: u64,
}

impl Definition {
    /// Returns the levels to run at, best first: the requested one, and those above it that the
    /// module declares. The last is user level, where every module runs.
    pub(super) fn levels(&self, bpf: bool) -> Vec<Level> {
        let declared = &self.module.manifest.levels;
        let first =
            self.wanted.or_else(|| declared.iter().copied().find(|&level| level != Level::Cluster));
        let first = first.unwrap_or(Level::User);
        let fits = |&level: &Level| match level {
            Level::User => true,
            Level::Nic | Level::Kernel => bpf && level >= first && declared.contains(&level),
            Level::Cluster => false,
        };
        Level::ALL.iter().copied().filter(fits).collect()
    }

    /// Returns the request to start a version in the cell.
    pub(super) fn start(&self, service: &Service, closed: bool, bpf: bool) -> ServiceStart {
        ServiceStart {
            entry: service.entry,
            service: service.name.clone(),
            digest: self.module.digest.clone(),
            lanes: self.module.manifest.lanes,
            parameters: self.values.clone(),
            session: self.session_id,
            levels: self.levels(bpf),
            functions: self.module.granted,
            closed,
        }
    }
}

impl Managed {
    /// Creates a service that has yet to start.
    pub(super) fn new(now: Nanos, name: Name, entry: EntryId, definition: Definition) -> Self {
        let level_reason = user_reason(&definition.module);
        let service = Service {
            name,
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
        Self {
            service,
            session: definition.session_id,
            values: definition.values,
            wanted: definition.wanted,
            movable: false,
            listener: None,
            moving: false,
            held: false,
            announced_closed: false,
            edges: Edges::default(),
            starts: 0,
            has_run: false,
            retry_at: None,
            backoff: Backoff::default(),
            traps: Traps::default(),
            traps_reported: 0,
        }
    }

    /// Returns the service as it is shown.
    pub(super) const fn service(&self) -> &Service {
        &self.service
    }

    /// Returns the session that pays.
    pub(super) const fn session(&self) -> SessionId {
        self.session
    }

    /// Returns true while the cell has the service.
    pub(super) const fn is_held(&self) -> bool {
        self.held
    }

    /// Returns true if the cell was asked to start it and has not answered.
    pub(super) fn is_starting(&self) -> bool {
        self.held && self.service.state == ServiceState::Starting
    }

    /// Returns true while it runs.
    pub(super) fn runs(&self) -> bool {
        self.service.state == ServiceState::Running
    }

    /// Returns true if it has run since it was deployed.
    pub(super) const fn has_run(&self) -> bool {
        self.has_run
    }

    /// Returns the time of its next start.
    pub(super) const fn retry_at(&self) -> Option<Nanos> {
        self.retry_at
    }

    /// Returns the TCP port of the listener, for a stream service that runs.
    pub(super) const fn listener(&self) -> Option<u16> {
        self.listener
    }

    /// Returns true if its packets go through a lane.
    pub(super) const fn is_movable(&self) -> bool {
        self.movable
    }

    /// Returns the destinations of its edges, as last sent.
    pub(super) const fn edges(&self) -> Edges {
        self.edges
    }

    /// Returns true if front door and cell have orders to drop packets that cannot reach it.
    pub(super) const fn is_announced_closed(&self) -> bool {
        self.announced_closed
    }

    /// Records the destinations of its edges. Returns true if they have changed.
    pub(super) fn update_edges(&mut self, edges: Edges) -> bool {
        std::mem::replace(&mut self.edges, edges) != edges
    }

    /// Records whether its packets are dropped while it is down. Returns true if that has changed.
    pub(super) fn update_closed(&mut self, closed: bool) -> bool {
        std::mem::replace(&mut self.announced_closed, closed) != closed
    }

    /// Returns the definition by its last deploy, with the moves since.
    /// Returns the level of the last request, at the deployment or by a move.
    pub(super) const fn requested_level(&self) -> Option<Level> {
        self.wanted
    }

    pub(super) fn definition(&self) -> Definition {
        Definition {
            module: self.service.module.clone(),
            parameters: self.service.parameters.clone(),
            values: self.values.clone(),
            session: self.service.session.clone(),
            session_id: self.session,
            wanted: self.wanted,
            then: self.service.then.clone(),
            budget: self.service.budget,
            on_failure: self.service.on_failure,
            owner: self.service.owner,
        }
    }

    /// Changes it into another version, at user level. Returns the previous definition.
    pub(super) fn define(&mut self, definition: Definition) -> Definition {
        let old = self.definition();
        self.service.module = definition.module;
        self.service.parameters = definition.parameters;
        self.service.session = definition.session;
        self.service.then = definition.then;
        self.service.budget = definition.budget;
        self.service.on_failure = definition.on_failure;
        self.service.owner = definition.owner;
        self.session = definition.session_id;
        self.values = definition.values;
        self.wanted = definition.wanted;
        self.moving = false;
        self.traps.forget();
        self.return_to_user_level();
        old
    }

    /// Changes the settings that can change while it runs.
    pub(super) fn arrange(&mut self, arrangement: Arrangement) {
        let Arrangement { then, level, budget, on_failure, owner } = arrangement;
        self.service.owner = owner;
        self.service.on_failure = on_failure;
        self.service.then = then;
        self.service.budget = budget;
        self.wanted = level;
    }

    /// Removes its edges to another service.
    pub(super) fn remove_edges_to(&mut self, name: &Name) {
        self.service.then.retain(|_, next| next != name);
    }

    /// Returns the request to start it, if it should run and was not requested yet.
    pub(super) fn start(&mut self, bpf: bool) -> Option<Effect> {
        if self.held || self.service.state != ServiceState::Starting {
            return None;
        }
        self.held = true;
        self.service.restarts = self.starts;
        self.starts = self.starts.saturating_add(1);
        let start = self.definition().start(&self.service, self.announced_closed, bpf);
        Some(Effect::StartService { start, restarts: self.service.restarts })
    }

    /// Resets it as if it had never failed.
    pub(super) fn begin_anew(&mut self, now: Nanos) {
        self.backoff = Backoff::default();
        self.traps.forget();
        self.enter(now, ServiceState::Starting);
    }

    /// Starts it again when its pause is over.
    pub(super) fn handle_timeout(&mut self, now: Nanos) {
        if self.retry_at.is_some_and(|at| at <= now) {
            self.enter(now, ServiceState::Starting);
        }
    }

    /// Records that it runs. Returns true if that was awaited.
    pub(super) fn handle_started(&mut self, now: Nanos) -> bool {
        let expected = self.is_starting();
        if expected {
            self.has_run = true;
            self.enter(now, ServiceState::Running);
        }
        expected
    }

    /// Records the port of its listener. Returns true if the cell has the service.
    pub(super) const fn handle_listens(&mut self, port: u16) -> bool {
        if self.held {
            self.listener = Some(port);
        }
        self.held
    }

    /// Records the level at which it runs. Returns true if that has changed.
    pub(super) fn handle_placed(&mut self, placement: Placement) -> bool {
        let moved = self.service.level != placement.level;
        self.service.level = placement.level;
        self.service.level_reason = placement.reason;
        self.movable = placement.movable;
        self.moving = false;
        moved
    }

    /// Records the request to move. Returns true if it has to move.
    pub(super) fn request_move(&mut self, level: Level) -> bool {
        self.moving |= self.service.level != level;
        self.wanted = Some(level);
        self.moving
    }

    /// Records that a move failed.
    pub(super) const fn handle_move_failed(&mut self) {
        self.wanted = Some(self.service.level);
        self.moving = false;
    }

    /// Returns the effect of a move that has yet to be made.
    pub(super) fn pending_move(&self, bpf: bool) -> Option<Effect> {
        let Service { entry, level, .. } = self.service;
        let asked = self.wanted.filter(|_| self.moving);
        let up = (!bpf && level != Level::User).then_some(Level::User);
        let level = asked.or(up).filter(|_| self.runs())?;
        Some(Effect::MoveService { entry, level })
    }

    /// Returns the level that it should move to when the switch for BPF is set.
    pub(super) fn level_after_switch(&self, bpf: bool) -> Option<Level> {
        let level = self.definition().levels(bpf)[0];
        let moves = if bpf { self.movable } else { self.service.level != Level::User };
        (self.runs() && moves && self.service.level != level).then_some(level)
    }

    /// Records the number of traps of its instances since its start. Returns true if it runs and
    /// its policy bypasses it for that many.
    pub(super) fn handle_trapped(&mut self, now: Nanos, traps: u64) -> bool {
        let before = std::mem::replace(&mut self.traps_reported, traps);
        let news = traps.saturating_sub(before);
        self.traps.add(now, news, self.service.on_failure) && self.runs()
    }

    /// Marks it as stopping.
    pub(super) fn stop(&mut self, now: Nanos) {
        self.enter(now, ServiceState::Stopping);
    }

    /// Marks it as bypassed: its packets are forwarded plainly until it is deployed again.
    pub(super) fn bypass(&mut self, now: Nanos, reason: String) {
        self.enter(now, ServiceState::Bypassed { reason });
    }

    /// Records that no cell runs it any more.
    pub(super) fn lose(&mut self) {
        self.held = false;
        self.movable = false;
        self.listener = None;
        if std::mem::take(&mut self.moving) {
            // The caller of the move is notified that it was refused.
            self.wanted = Some(self.service.level);
        }
        self.edges = Edges::default();
        self.traps_reported = 0;
        self.return_to_user_level();
    }

    /// Decides its next state after it ended alone: it failed, or has stopped as requested.
    pub(super) fn end(&mut self, now: Nanos, reason: &str) -> Ended {
        let ran_for = match self.service.state {
            ServiceState::Stopping => return Ended::Stopped,
            ServiceState::Bypassed { .. } => return Ended::Bypassed,
            ServiceState::Starting if !self.has_run => return Ended::NeverRan,
            ServiceState::Running => now.saturating_sub(self.service.since),
            ServiceState::Starting | ServiceState::Failed { .. } => Nanos::ZERO,
        };
        let retry_at = now + self.backoff.pause(ran_for);
        self.enter(now, ServiceState::Failed { reason: reason.to_owned() });
        self.retry_at = Some(retry_at);
        match self.traps.add(now, 1, self.service.on_failure) {
            true => Ended::TooOften,
            false => Ended::Again { retry_at },
        }
    }

    /// Decides its next state after the cell was lost: it starts in the next one (`None`), or ends.
    pub(super) fn end_with_cell(&mut self, now: Nanos) -> Option<Ended> {
        self.lose();
        match self.service.state {
            ServiceState::Stopping => return Some(Ended::Stopped),
            ServiceState::Bypassed { .. } => {}
            _ if !self.has_run && self.starts >= FIRST_STARTS_MAX => return Some(Ended::NeverRan),
            _ => self.enter(now, ServiceState::Starting),
        }
        None
    }

    /// Resets it where the cell has nothing of it. Returns true if it was stopping, and so is gone.
    pub(super) fn fall_back(&mut self, now: Nanos) -> bool {
        self.lose();
        match self.service.state {
            ServiceState::Stopping => return true,
            // The pause continues.
            ServiceState::Failed { .. } | ServiceState::Bypassed { .. } => {}
            ServiceState::Starting | ServiceState::Running => {
                self.enter(now, ServiceState::Starting);
            }
        }
        false
    }

    fn enter(&mut self, now: Nanos, state: ServiceState) {
        self.service.state = state;
        self.service.since = now;
        self.retry_at = None;
    }

    fn return_to_user_level(&mut self) {
        self.service.level = Level::User;
        self.service.level_reason = user_reason(&self.service.module);
    }
}

/// Returns the reason that a service runs at user level while no other level was reported.
fn user_reason(module: &ModuleInfo) -> String {
    match module.manifest.levels.first() {
        Some(Level::User) => "the module asks for it first".to_owned(),
        Some(first) => format!("it does not run at {first} yet"),
        None => "the module names no level".to_owned(),
    }
}

#[cfg(test)]
pub(super) mod testing {
    use super::*;

    /// Returns the definition of a module with these levels, in the best-effort session.
    pub(in crate::state) fn definition(levels: &str) -> Definition {
        Definition {
            module: crate::testing::module(levels),
            parameters: BTreeMap::new(),
            values: BTreeMap::new(),
            session: crate::session::best_effort(),
            session_id: SessionId::BEST_EFFORT,
            wanted: None,
            then: BTreeMap::new(),
            budget: Budget::default(),
            on_failure: OnFailure::Open,
            owner: None,
        }
    }

    /// Returns a running service that leads to others.
    pub(in crate::state) fn running(name: &str, entry: u16, then: &[&str]) -> Managed {
        let then = (0..).zip(then.iter().map(|next| next.parse().unwrap())).collect();
        let definition = Definition { then, ..definition("\"user\"") };
        let name = name.parse().unwrap();
        let mut managed = Managed::new(Nanos::ZERO, name, EntryId(entry), definition);
        let _ = managed.start(true);
        assert!(managed.handle_started(Nanos::ZERO));
        managed
    }
}

#[cfg(test)]
mod tests {
    use super::testing::definition;
    use super::*;
    use crate::service::BACKOFF_MIN;

    const NOW: Nanos = Nanos::from_millis(1000);

    fn service(on_failure: OnFailure) -> Managed {
        let definition = Definition { on_failure, ..definition("\"nic\", \"user\"") };
        Managed::new(NOW, Name::new("monitor").unwrap(), EntryId(7), definition)
    }

    fn levels(start: Option<Effect>) -> Vec<Level> {
        match start {
            Some(Effect::StartService { start, .. }) => start.levels,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_service_that_never_ran_is_given_up_and_one_that_ran_restarts_after_a_pause() {
        let mut managed = service(OnFailure::Open);
        assert_eq!(levels(managed.start(true)), [Level::Nic, Level::User]);
        assert_eq!(managed.start(true), None, "the cell was asked");
        managed.lose();
        assert_eq!(managed.end(NOW, "trap"), Ended::NeverRan);
        assert_eq!(levels(managed.start(false)), [Level::User]);
        assert!(managed.handle_started(NOW) && !managed.handle_started(NOW));
        managed.lose();
        let retry_at = NOW + BACKOFF_MIN;
        assert_eq!(managed.end(NOW, "trap"), Ended::Again { retry_at });
        managed.handle_timeout(NOW);
        assert_eq!((managed.retry_at(), managed.start(true)), (Some(retry_at), None));
        managed.handle_timeout(retry_at);
        assert_eq!(managed.retry_at(), None);
        assert!(managed.start(true).is_some());
    }

    #[test]
    fn a_service_that_never_ran_is_given_up_after_too_many_lost_cells() {
        let mut managed = service(OnFailure::Open);
        for _ in 1..FIRST_STARTS_MAX {
            assert!(managed.start(true).is_some());
            assert_eq!(managed.end_with_cell(NOW), None);
        }
        assert!(managed.start(true).is_some());
        assert_eq!(managed.end_with_cell(NOW), Some(Ended::NeverRan));
    }

    #[test]
    fn a_move_that_was_pending_at_a_loss_is_dropped() {
        let mut managed = service(OnFailure::Open);
        let _ = managed.start(true);
        managed.handle_started(NOW);
        assert!(!managed.request_move(Level::User), "it is there");
        assert!(managed.request_move(Level::Nic));
        let moves = Effect::MoveService { entry: EntryId(7), level: Level::Nic };
        assert_eq!(managed.pending_move(true), Some(moves));
        let placement =
            Placement { level: Level::Nic, reason: "it fits".to_owned(), movable: true };
        assert!(managed.handle_placed(placement));
        assert_eq!(
            (managed.pending_move(true), managed.level_after_switch(false)),
            (None, Some(Level::User))
        );
        assert!(managed.request_move(Level::User));
        managed.lose();
        assert_eq!(managed.definition().wanted, Some(Level::Nic), "where it was");
    }

    #[test]
    fn traps_of_one_start_count_once() {
        let mut managed = service(OnFailure::Bypass { after: 3 });
        let _ = managed.start(true);
        managed.handle_started(NOW);
        assert!(!managed.handle_trapped(NOW, 2) && !managed.handle_trapped(NOW, 2));
        assert!(managed.handle_trapped(NOW, 3));
        let mut other = service(OnFailure::Bypass { after: 1 });
        let _ = other.start(true);
        assert!(!other.handle_trapped(NOW, 1), "it does not run");
    }
}
