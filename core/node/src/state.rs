//! The node: commands and events in, effects out.
//!
//! ```text
//! deploy ─▶ Starting ─ started ─▶ Running ─ failed ─▶ Failed ─ pause over ─▶ Starting
//!              │ failed, never ran   │ ▲                  │
//!              ▼                     │ └── cell lost, ready, started again
//!            gone ◀─ stopped ─ Stopping ◀─ remove ────────┘ (at once, when the cell has nothing of it)
//! ```
//!
//! Rules of a service are installed only while it runs, and uninstalled before
//! it is stopped, so that no packet is sent to a service that is not there; those of a service
//! that is closed while it is down stay, and drop ([`crate::policy`]). One
//! cell runs all services; it and each service have a pause of their own
//! before they are started again.

mod accounts;
mod arrange;
mod associations;
mod awaited;
mod failure;
mod graph;
mod replace;
mod roster;
mod rules;
mod services;
mod sessions;
mod snapshot;

pub use accounts::Accounts;
pub use associations::{ASSOCIATIONS_NAME, ASSOCIATIONS_PRIORITY};
pub use services::FIRST_STARTS_MAX;
pub use snapshot::{RestoreError, Snapshot, SnapshotView};

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ::session::admission::Admission;
use bpf_maps::RULES_MAX;
use serde::{Deserialize, Serialize};
use units::{EntryId, Name, Nanos, RuleId, SessionId};

use crate::classifier::{Reach, RuleSet};
use crate::command::{Command, Effect, Event, Memory, Notice, Outcome};
use crate::desired::DesiredRule;
use crate::owner::Owner;
use crate::port::{self, Port, PortError, PortSpec};
use crate::refusal::Refusal;
use crate::rule::Rule;
use crate::service::{Backoff, Service};
use crate::session::{Session, Table};
use roster::Roster;
use services::Managed;

/// One node. Nothing happens in it but by a command, an event or the time.
#[derive(Clone, Debug)]
pub struct Node {
    name: Name,
    ports: Vec<Port>,
    sessions: Table,
    /// What was promised; none while nobody has said what the node has to give. Then everything
    /// fits.
    admission: Option<Admission>,
    /// Sessions that go when the last of their services has stopped.
    leaving: BTreeSet<SessionId>,
    services: Roster,
    rules: BTreeMap<RuleId, OwnedRule>,
    /// Rules of the node itself, which bring what comes for its associations.
    own_rules: Vec<Rule>,
    /// Rules of the desired state that are not there yet, and hold already.
    awaited: Vec<Rule>,
    /// Where the search for a free number begins, so that one is not reused at once.
    rule_next: u32,
    entry_next: u16,
    /// The same for services that never leave user level.
    entry_next_user: u16,
    /// For the next service, if it is free.
    entry_preferred: Option<EntryId>,
    installed: RuleSet,
    generation: u64,
    /// Services have come to where packets can go, and the front door has not been told. Many
    /// start at the same time; what all of them want of it is worked out once.
    stale: bool,
    /// Something happened after which sessions that leave may be gone.
    ending: bool,
    cell: Cell,
    /// Whether services may run below user level.
    bpf: bool,
    effects: VecDeque<Effect>,
}

/// A rule and the service that it came with.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct OwnedRule {
    rule: Rule,
    came_with: Option<Name>,
    /// Whose it is.
    #[serde(default)]
    owner: Option<Owner>,
    #[serde(skip)]
    life: Life,
}

/// Whether a rule is one that packets may meet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Life {
    /// It is, when its service runs.
    #[default]
    Live,
    /// When the version of the service that it comes with runs.
    Coming,
    /// When the version of the service that it came with is put back.
    Going,
}

/// The worker process.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Cell {
    state: CellState,
    /// Since when it is ready.
    since: Nanos,
    restarts: u32,
    backoff: Backoff,
}

/// How the worker process is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum CellState {
    /// It has been asked to start.
    Starting,
    /// It takes work.
    Ready,
    /// It is gone.
    Lost {
        /// When it is started again.
        retry_at: Nanos,
    },
}

/// A rule as `tam rule list` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleView {
    /// The rule.
    #[serde(flatten)]
    pub rule: Rule,
    /// The service that it came with, and goes with.
    pub came_with: Option<Name>,
    /// Whose it is.
    #[serde(default)]
    pub owner: Option<Owner>,
    /// Whether packets can meet it.
    pub reach: Reach,
}

impl Node {
    /// A node with these ports, no rule and no service; it asks for its cell at once.
    ///
    /// # Errors
    /// When the ports cannot be told apart or are too many.
    pub fn new(name: Name, ports: Vec<PortSpec>) -> Result<Self, PortError> {
        Ok(Self {
            name,
            ports: port::numbered(ports)?,
            sessions: Table::default(),
            admission: None,
            leaving: BTreeSet::new(),
            services: Roster::default(),
            rules: BTreeMap::new(),
            own_rules: Vec::new(),
            awaited: Vec::new(),
            rule_next: 0,
            entry_next: 0,
            entry_next_user: 0,
            entry_preferred: None,
            installed: RuleSet::default(),
            generation: 0,
            stale: false,
            ending: false,
            cell: Cell {
                state: CellState::Starting,
                since: Nanos::ZERO,
                restarts: 0,
                backoff: Backoff::default(),
            },
            bpf: true,
            effects: [Effect::StartCell { restarts: 0 }].into(),
        })
    }

    /// Does what an operator asks for, as a whole.
    ///
    /// # Errors
    /// When it cannot be done; then nothing has changed.
    pub fn handle_command(&mut self, now: Nanos, command: Command) -> Result<Outcome, Refusal> {
        if self.ending {
            self.end_sessions();
        }
        let outcome = self.do_command(now, command)?;
        self.end_sessions();
        Ok(outcome)
    }

    fn do_command(&mut self, now: Nanos, command: Command) -> Result<Outcome, Refusal> {
        match command {
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
                let wanted = services::Wanted {
                    service,
                    module,
                    parameters,
                    session,
                    level,
                    then,
                    budget,
                    on_failure,
                    owner,
                };
                let memory = if discard_state { Memory::Discarded } else { Memory::Kept };
                self.deploy(now, wanted, rules, memory)
            }
            Command::Replace { service, module, parameters, level, memory } => {
                let version = replace::Version { module, parameters, level };
                self.another_version(now, &service, version, memory)
            }
            Command::Remove { service, cascade } => self.remove(now, &service, cascade),
            Command::Move { service, level } => self.move_service(&service, level),
            Command::Bpf { enabled } => Ok(self.set_bpf(enabled)),
            Command::RuleAdd { specs, owner } => self.rule_add(specs, owner),
            Command::RuleRemove { rule } => self.rule_remove(rule),
            Command::SessionCreate { session, reservation, owner } => {
                self.session_create(session, reservation, owner)
            }
            Command::SessionSet { session, reservation } => self.session_set(session, reservation),
            Command::SessionRemove { session, cascade } => {
                self.session_remove(now, session, cascade)
            }
            Command::SessionGiveUp { session } => self.session_give_up(session),
            Command::SessionsArrange { sessions } => self.sessions_arrange(sessions),
            Command::Arrange { remove, add, services } => self.arrange(&remove, add, services),
        }
    }

    /// Takes note of what happened outside. An event about an entry that is not
    /// there, or not waited for, changes nothing.
    pub fn handle_event(&mut self, now: Nanos, event: Event) {
        match event {
            Event::CellReady => self.cell_ready(now),
            Event::CellLost { reason } => self.cell_lost(now, reason),
            Event::ServiceStarted { entry } => self.service_started(now, entry),
            Event::ServiceListens { entry, port } => self.service_listens(entry, port),
            Event::ServicePlaced { entry, level, reason, movable } => {
                self.service_placed(entry, services::Place { level, reason, movable });
            }
            Event::MoveFailed { entry, reason } => self.move_failed(entry, reason),
            Event::ServiceReplaced { entry } => self.service_replaced(entry),
            Event::ReplaceFailed { entry, reason } => self.replace_failed(entry, reason),
            Event::ServiceKept { entry } => self.service_kept(entry),
            Event::ServicePutBack { entry, reason } => self.service_put_back(entry, reason),
            Event::ServiceFailed { entry, reason } => self.service_failed(now, entry, reason),
            Event::ServiceTrapped { entry, traps, reason } => {
                self.service_trapped(now, entry, traps, reason);
            }
            Event::ServiceStopped { entry } => {
                self.service_failed(now, entry, "it stopped without being asked to".to_owned());
            }
        }
        // Many services stop at the same time, too.
        self.ending = true;
    }

    /// Starts again what has waited long enough.
    pub fn handle_timeout(&mut self, now: Nanos) {
        if let CellState::Lost { retry_at } = self.cell.state
            && retry_at <= now
        {
            self.cell.state = CellState::Starting;
            self.cell.restarts = self.cell.restarts.saturating_add(1);
            self.effects.push_back(Effect::StartCell { restarts: self.cell.restarts });
        }
        self.retry_services(now);
    }

    /// When [`Node::handle_timeout`] is to be called, on the clock of `now`; `None`: not before
    /// something else happens.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Nanos> {
        let cell = match self.cell.state {
            CellState::Lost { retry_at } => Some(retry_at),
            CellState::Starting | CellState::Ready => None,
        };
        self.services.values().filter_map(Managed::retry_at).chain(cell).min()
    }

    /// The next thing to be done outside; to be called until there is none.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        if self.ending {
            self.end_sessions();
        }
        if self.stale {
            // Nobody hears that a service runs before its packets come to it.
            let told = std::mem::take(&mut self.effects);
            self.install();
            self.effects.extend(told);
        }
        self.effects.pop_front()
    }

    /// Tells the front door and the cell where packets go, if that has changed.
    fn install(&mut self) {
        self.stale = false;
        self.set_closed();
        self.set_edges();
        self.install_rules();
    }

    fn cell_ready(&mut self, now: Nanos) {
        if self.cell.state == CellState::Ready {
            return;
        }
        self.cell.state = CellState::Ready;
        self.cell.since = now;
        self.tell_sessions();
        self.start_waiting();
    }

    fn cell_lost(&mut self, now: Nanos, reason: String) {
        let ran_for = match self.cell.state {
            CellState::Lost { .. } => return,
            CellState::Starting => Nanos::ZERO,
            CellState::Ready => now.saturating_sub(self.cell.since),
        };
        let retry_at = now + self.cell.backoff.pause(ran_for);
        self.cell.state = CellState::Lost { retry_at };
        let notices = self.services_lost(now, &reason);
        self.install();
        let closed = self.services().filter(|service| self.is_closed(service));
        let closed = closed.map(|service| service.name.clone()).collect();
        self.effects.push_back(Effect::Report(Notice::CellLost { reason, closed, retry_at }));
        self.effects.extend(notices.into_iter().map(Effect::Report));
    }

    /// Its name.
    #[must_use]
    pub const fn name(&self) -> &Name {
        &self.name
    }

    /// Its ports, by number.
    #[must_use]
    pub fn ports(&self) -> &[Port] {
        &self.ports
    }

    /// Its sessions, by number.
    pub fn sessions(&self) -> impl Iterator<Item = &Session> {
        self.sessions.iter()
    }

    /// The session of this name.
    #[must_use]
    pub fn session(&self, name: &Name) -> Option<&Session> {
        self.sessions.by_name(name)
    }

    /// The session of this number.
    #[must_use]
    pub fn session_of(&self, id: SessionId) -> Option<&Session> {
        self.sessions.by_number(id)
    }

    /// Its services, by name.
    pub fn services(&self) -> impl Iterator<Item = &Service> {
        self.services.values().map(Managed::service)
    }

    /// The service of this name.
    #[must_use]
    pub fn service(&self, name: &Name) -> Option<&Service> {
        self.services.get(name).map(Managed::service)
    }

    /// Where to run the service with this entry, best first; empty when there is none.
    #[must_use]
    pub fn levels_of(&self, entry: EntryId) -> Vec<abi::Level> {
        self.services
            .of(entry)
            .map_or_else(Vec::new, |managed| managed.definition().levels(self.bpf))
    }

    /// The service with this entry.
    #[must_use]
    pub fn service_of(&self, entry: EntryId) -> Option<&Service> {
        self.services.of(entry).map(Managed::service)
    }

    /// Its rules, best first: as the front door would try them.
    #[must_use]
    pub fn rules(&self) -> Vec<RuleView> {
        let shadowed: BTreeMap<RuleId, RuleId> = self.installed.shadowed.iter().copied().collect();
        let view = |owned: &OwnedRule| RuleView {
            rule: owned.rule.clone(),
            came_with: owned.came_with.clone(),
            owner: owned.owner,
            reach: match shadowed.get(&owned.rule.id) {
                _ if !self.is_active(owned) => Reach::Waiting,
                Some(&by) => Reach::Shadowed { by },
                None if self.is_down(owned) => Reach::Closed,
                None => Reach::Installed,
            },
        };
        let live = self.rules.values().filter(|owned| owned.life == Life::Live);
        let mut views: Vec<RuleView> = live.map(view).collect();
        views.sort_by_key(|view| (core::cmp::Reverse(view.rule.spec.priority), view.rule.id));
        views
    }

    /// For whom each rule that packets may meet counts, those of the node itself included; in no
    /// order, and nothing is copied.
    pub fn rule_sessions(&self) -> impl Iterator<Item = (RuleId, &Name)> {
        let live = self.rules.values().filter(|owned| owned.life == Life::Live);
        let rules = live.map(|owned| &owned.rule).chain(&self.own_rules);
        rules.map(|rule| (rule.id, &rule.spec.session))
    }

    /// For whom a rule counts that packets may meet, and whose it is.
    #[must_use]
    pub fn rule_payer(&self, rule: RuleId) -> Option<(&Name, Option<Owner>)> {
        let owned = self.rules.get(&rule).filter(|owned| owned.life == Life::Live);
        let owned = owned.map(|owned| (&owned.rule.spec.session, owned.owner));
        owned.or_else(|| {
            let own = self.own_rules.iter().find(|own| own.id == rule)?;
            Some((&own.spec.session, None))
        })
    }

    /// Its rules by number, as they are desired.
    #[must_use]
    pub fn numbered_rules(&self) -> Vec<(RuleId, DesiredRule)> {
        let desired = |view: RuleView| {
            let RuleView { rule, came_with, owner, .. } = view;
            (rule.id, DesiredRule { spec: rule.spec, came_with, owner })
        };
        let mut rules: Vec<_> = self.rules().into_iter().map(desired).collect();
        rules.sort_by_key(|(id, _)| *id);
        rules
    }

    /// How the cell is doing, and how often it was started again.
    #[must_use]
    pub const fn cell(&self) -> (CellState, u32) {
        (self.cell.state, self.cell.restarts)
    }

    /// Whether services may run below user level.
    #[must_use]
    pub const fn bpf(&self) -> bool {
        self.bpf
    }

    /// What the front door was told last, or is told next.
    #[must_use]
    pub const fn installed(&self) -> &RuleSet {
        &self.installed
    }

    /// The number of times that the front door's rules were replaced.
    #[must_use]
    pub const fn generation(&self) -> u64 {
        self.generation
    }
}

const _: () = assert!(RULES_MAX <= u32::MAX as usize, "a rule's number has 32 bits");

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
