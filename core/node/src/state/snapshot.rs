//! What a node must not forget while nobody drives it: its daemon died, or another
//! version takes its place.
//!
//! ```text
//! Node ─ SnapshotView ─ (written down) ─▶ (read) ─ Snapshot ─ restore ─▶ Node ─ resume ─▶ effects
//! ```
//!
//! What was half done is brought to one of its two ends by [`Node::resume`]: a service that
//! was starting is started, one that was stopping is gone. What the front door and the cell
//! know is told anew, as a whole.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use units::{EntryId, Name, Nanos, SessionId};

use super::services::Managed;
use super::{Cell, CellState, Node, OwnedRule};
use crate::classifier::RuleSetError;
use crate::command::{Effect, Notice};
use crate::desired::DesiredState;
use crate::port::{PortError, PortSpec};
use crate::service::SERVICES_MAX;
use crate::session::{Session, Table};

/// A node at rest, as it was written down. Its times are on the clock of the node that it was
/// taken from, which goes on.
#[derive(Clone, Debug, Deserialize)]
pub struct Snapshot {
    /// Those that were created.
    #[serde(default)]
    sessions: Vec<Session>,
    #[serde(default)]
    session_next: u16,
    services: Vec<Managed>,
    rules: Vec<OwnedRule>,
    rule_next: u32,
    entry_next: u16,
    #[serde(default)]
    entry_next_user: u16,
    generation: u64,
    cell: Cell,
    bpf: bool,
}

/// The same, to be written down: nothing is copied.
#[derive(Debug, Serialize)]
pub struct SnapshotView<'a> {
    sessions: Vec<&'a Session>,
    session_next: u16,
    services: Vec<&'a Managed>,
    rules: Vec<&'a OwnedRule>,
    rule_next: u32,
    entry_next: u16,
    entry_next_user: u16,
    generation: u64,
    cell: &'a Cell,
    bpf: bool,
}

impl Snapshot {
    /// The services that ran: those that a cell may still have.
    pub fn running(&self) -> impl Iterator<Item = EntryId> {
        self.services.iter().filter(|managed| managed.runs()).map(|m| m.service().entry)
    }

    /// How the cell was doing.
    #[must_use]
    pub const fn cell(&self) -> CellState {
        self.cell.state
    }
}

/// Why a snapshot is of no use. Whose fault: ours, or of whoever changed it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// The ports of the node file.
    #[error(transparent)]
    Port(#[from] PortError),
    /// Two services, or two entries, are one, or a number is too large.
    #[error("the service '{service}' has the entry {entry}, which is another's or above the last")]
    Entry {
        /// Its name.
        service: Name,
        /// Its number.
        entry: EntryId,
    },
    /// Two sessions are one, or a number is too large.
    #[error(
        "the session '{session}' has the number {id}; one of the two is another's, or the number is above the last"
    )]
    Session {
        /// Its name.
        session: Name,
        /// Its number.
        id: SessionId,
    },
    /// A service is of a session that is not there.
    #[error("the service '{service}' is of the session '{session}', which is not there")]
    NoSession {
        /// Its name.
        service: Name,
        /// Its session.
        session: Name,
    },
    /// Its rules are not those of one node.
    #[error(transparent)]
    Rules(#[from] RuleSetError),
}

impl Node {
    /// Has all that it decided written down. A service that is being replaced starts anew as it was before: which
    /// of the two versions the cell has by then, nobody could say.
    pub fn with_snapshot<T>(&self, write: impl FnOnce(&SnapshotView<'_>) -> T) -> T {
        let half = |m: &&Managed| m.asked.is_some() || m.before.is_some();
        let half: Vec<Name> =
            self.services.values().filter(half).map(|m| m.service().name.clone()).collect();
        if half.is_empty() {
            return write(&self.as_it_is());
        }
        let mut whole = self.clone();
        for name in half {
            whole.end_replacement(&name, "the daemon ended");
            if let Some(managed) = whole.services.get_mut(&name) {
                managed.fall_back(managed.service().since);
            }
        }
        write(&whole.as_it_is())
    }

    fn as_it_is(&self) -> SnapshotView<'_> {
        SnapshotView {
            sessions: self.sessions.iter().filter(|session| !session.is_built_in()).collect(),
            session_next: self.sessions.next(),
            services: self.services.values().collect(),
            rules: self.rules.values().collect(),
            rule_next: self.rule_next,
            entry_next: self.entry_next,
            entry_next_user: self.entry_next_user,
            generation: self.generation,
            cell: &self.cell,
            bpf: self.bpf,
        }
    }

    /// The node of a snapshot, with the ports that it had. [`Node::resume`] is to follow.
    ///
    /// # Errors
    /// When the snapshot contradicts itself or the ports.
    pub fn restore(
        name: Name,
        ports: Vec<PortSpec>,
        snapshot: Snapshot,
    ) -> Result<Self, RestoreError> {
        let mut node = Self::new(name, ports)?;
        node.effects.clear();
        node.sessions = Table::of(snapshot.sessions, snapshot.session_next)
            .map_err(|(session, id)| RestoreError::Session { session, id })?;
        node.leaving = node.sessions.iter().filter(|it| it.leaving).map(|it| it.id).collect();
        let mut entries = BTreeSet::new();
        for managed in snapshot.services {
            let (service, entry) = (managed.service().name.clone(), managed.service().entry);
            let session = managed.service().session.clone();
            if node.sessions.by_name(&session).is_none_or(|found| found.id != managed.session) {
                return Err(RestoreError::NoSession { service, session });
            }
            let is_new = entries.insert(entry) && usize::from(entry.0) < SERVICES_MAX;
            let other = node.services.insert(service.clone(), managed);
            if other.is_some() || !is_new {
                return Err(RestoreError::Entry { service, entry });
            }
        }
        node.rules = snapshot.rules.into_iter().map(|owned| (owned.rule.id, owned)).collect();
        node.check_rules()?;
        (node.rule_next, node.entry_next) = (snapshot.rule_next, snapshot.entry_next);
        node.entry_next_user = snapshot.entry_next_user;
        (node.generation, node.cell, node.bpf) = (snapshot.generation, snapshot.cell, snapshot.bpf);
        Ok(node)
    }

    /// Goes on after [`Node::restore`]: with a cell that has exactly these services of those
    /// that ran, or without one. The first rules that it installs have those of `desired` that
    /// wait for their services: no packet goes past a closed one that could not start.
    pub fn resume(
        &mut self,
        now: Nanos,
        has: Result<&BTreeSet<EntryId>, String>,
        desired: &DesiredState,
    ) {
        self.add_awaited(desired);
        match has {
            Ok(running) => self.resume_with(now, running),
            // Those that were to stop, and all that goes with a cell.
            Err(reason) => self.cell_lost(now, reason),
        }
        self.end_sessions();
        self.install();
        let running = self.services.values().filter(|managed| managed.runs());
        let told: Vec<_> = running.map(|m| (m.service().entry, m.edges())).collect();
        let edges = told.into_iter().map(|(entry, edges)| Effect::SetEdges { entry, edges });
        let is_rules = |effect: &Effect| matches!(effect, Effect::InstallRules { .. });
        let rules = self.effects.iter().rposition(is_rules).map(|at| self.effects.remove(at));
        // First who is closed, and edges: no packet goes before what comes after its service.
        let is_closing = |effect: &Effect| matches!(effect, Effect::SetClosed { .. });
        let (closing, rest): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.effects).into_iter().partition(is_closing);
        self.effects.extend(closing);
        self.effects.extend(edges);
        self.effects.extend(rules.flatten().or_else(|| {
            self.generation += 1;
            let (rules, generation) = (self.installed.clone(), self.generation);
            Some(Effect::InstallRules { rules, generation })
        }));
        self.effects.extend(rest);
    }

    fn resume_with(&mut self, now: Nanos, running: &BTreeSet<EntryId>) {
        self.cell.state = CellState::Ready;
        self.tell_sessions();
        let mut removed = Vec::new();
        for managed in self.services.values_mut() {
            let has = running.contains(&managed.service().entry);
            if !(managed.runs() && has) && managed.fall_back(now) {
                removed.push(managed.service().name.clone());
            }
        }
        for service in removed {
            self.services.remove(&service);
            self.effects.push_back(Effect::Report(Notice::ServiceRemoved { service }));
        }
        self.start_waiting();
        let moves = self.services.values().filter_map(|managed| managed.moves_on(self.bpf));
        self.effects.extend(moves);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::tests::{NOW, running};

    #[test]
    fn what_contradicts_itself_is_refused() {
        let mut node = Node::new(Name::new("r1").unwrap(), Vec::new()).unwrap();
        let service = Name::new("monitor").unwrap();
        let command = crate::Command::Deploy {
            service: service.clone(),
            module: crate::testing::module("\"user\""),
            parameters: Default::default(),
            session: crate::session::best_effort(),
            rules: Vec::new(),
            level: None,
            then: Vec::new(),
            budget: Default::default(),
            on_failure: Default::default(),
            discard_state: false,
            owner: None,
        };
        node.handle_command(Nanos::ZERO, command).unwrap();
        let written = node.with_snapshot(|it| serde_json::to_string(it).unwrap());
        let mut twice: Snapshot = serde_json::from_str(&written).unwrap();
        twice.services.extend(twice.services.clone());
        let refused = Node::restore(node.name().clone(), Vec::new(), twice).unwrap_err();
        assert_eq!(refused, RestoreError::Entry { service, entry: EntryId(0) });
    }

    /// A daemon has to read what the one before wrote: fields, their names and their order stay.
    #[test]
    fn a_snapshot_is_written_as_daemons_before_wrote_it() {
        let mut node = running();
        let session = Name::new("gold").unwrap();
        let reservation = serde_json::from_str(r#"{"weight":5}"#).unwrap();
        let create = crate::Command::SessionCreate { session, reservation, owner: None };
        node.handle_command(NOW, create).unwrap();
        let written = node.with_snapshot(|it| serde_json::to_string(it).unwrap());
        let expected = concat!(
            r#"{"sessions":[{"id":2,"name":"gold","reservation":{"cpu":[],"below":null,"#,
            r#""memory":null,"queue":null,"send":{},"weight":5},"owner":null,"leaving":false}],"#,
            r#""session_next":3,"services":[{"service":{"name":"monitor","entry":0,"#,
            r#""module":{"digest":"sha256:00","kind":"packets","manifest":{"abi":1,"#,
            r#""name":"monitor","version":"0.1.0","window":96,"state_version":1,"#,
            r#""lanes":{"count":1},"pools":[],"flows_by":[],"levels":["user"],"#,
            r#""memory_pages_max":null,"timer_ms":null,"needs":[],"description":"","#,
            r#""parameters":{"dscp":{"type":"u8","default":{"u8":46},"description":"the mark"}},"#,
            r#""reasons":{"7":"too short"},"refusals":{}},"hands_state_over":false,"image":0,"#,
            r#""imports":[],"granted":["all"]},"parameters":{"dscp":"10"},"#,
            r#""session":"best-effort","then":{},"budget":{"fuel":null,"packets":null,"#,
            r#""bytes":null,"over":"raise"},"on_failure":"open","owner":null,"level":"user","#,
            r#""level_reason":"the module asks for it first","state":"running","#,
            r#""since":1000000000,"restarts":0},"session":1,"values":{"dscp":{"u8":10}},"#,
            r#""wanted":null,"movable":false,"listener":null,"moving":false,"held":true,"#,
            r#""told_closed":false,"edges":["out","out","out","out"],"starts":1,"#,
            r#""has_run":true,"retry_at":null,"backoff":{"next":100000000},"#,
            r#""traps":{"at":[]},"traps_heard":0}],"rules":[{"rule":{"id":0,"#,
            r#""match":"proto udp","priority":100,"session":"best-effort","#,
            r#""action":{"service":"monitor"}},"came_with":"monitor","owner":null}],"#,
            r#""rule_next":1,"entry_next":1,"entry_next_user":0,"generation":1,"#,
            r#""cell":{"state":{"state":"ready"},"since":1000000000,"restarts":0,"#,
            r#""backoff":{"next":100000000}},"bpf":true}"#,
        );
        assert_eq!(written, expected);
    }
}
