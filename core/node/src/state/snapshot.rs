//! State of a node that has to survive its daemon, which may die or be replaced by another version.
//!
//! ```text
//! Node ─ SnapshotView ─ (written down) ─▶ (read) ─ Snapshot ─ restore ─▶ Node ─ resume ─▶ effects
//! ```
//!
//! `Node::resume` completes unfinished changes in one of two ways: a service that was starting is
//! started, one that was stopping is gone. The front door and the cell get the whole state again.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use units::{EntryId, Name, SessionId};

use super::cell::{Cell, CellState};
use super::deployments::Deployments;
use super::managed::Managed;
use super::roster::{Numbering, Roster};
use super::rules::{OwnedRule, Rules};
use super::sessions::Sessions;
use super::steering::Steering;
use crate::classifier::RuleSetError;
use crate::port::PortError;
use crate::service::SERVICES_MAX;
use crate::session::Session;

/// Recorded state of a node between two calls. Its times are on the clock of the original node,
/// which continues.
#[derive(Clone, Debug, Deserialize)]
pub struct Snapshot {
    /// Sessions that are not built in.
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

/// Borrowed form of [`Snapshot`], for writing it without copies.
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
    /// Returns the entries of the services that ran: those that a cell may still have.
    pub fn running(&self) -> impl Iterator<Item = EntryId> {
        self.services.iter().filter(|managed| managed.runs()).map(|m| m.service().entry)
    }

    /// Returns the state of the cell.
    #[must_use]
    pub const fn cell(&self) -> CellState {
        self.cell.state()
    }

    /// Restores the owners of a node's state.
    ///
    /// # Errors
    /// The snapshot contradicts itself.
    pub(super) fn restore(self) -> Result<(Sessions, Deployments, Cell), RestoreError> {
        let sessions = Sessions::restore(self.sessions, self.session_next)
            .map_err(|(session, id)| RestoreError::Session { session, id })?;
        let numbering = Numbering { below: self.entry_next, user: self.entry_next_user };
        let mut roster = Roster::restore(numbering, self.bpf);
        let mut entries = BTreeSet::new();
        for managed in self.services {
            let (service, entry) = (managed.service().name.clone(), managed.service().entry);
            let session = managed.service().session.clone();
            if sessions.by_name(&session).is_none_or(|found| found.id != managed.session()) {
                return Err(RestoreError::NoSession { service, session });
            }
            let is_new = entries.insert(entry) && usize::from(entry.0) < SERVICES_MAX;
            if roster.insert(managed).is_some() || !is_new {
                return Err(RestoreError::Entry { service, entry });
            }
        }
        let rules = Rules::restore(self.rules, self.rule_next, self.generation);
        Ok((sessions, Deployments::restore(Steering::restore(roster, rules)), self.cell))
    }
}

/// Error of restoring a snapshot. Fault of this program, or of whoever changed the file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// The ports of the node file are not valid.
    #[error(transparent)]
    Port(#[from] PortError),
    /// Two services have the same name or entry, or an entry exceeds the limit.
    #[error("the service '{service}' has the entry {entry}, which is another's or above the last")]
    Entry {
        /// Name of the service.
        service: Name,
        /// Entry of the service.
        entry: EntryId,
    },
    /// Two sessions have the same name or number, or a number exceeds the limit.
    #[error(
        "the session '{session}' has the number {id}; one of the two is another's, or the number is above the last"
    )]
    Session {
        /// Name of the session.
        session: Name,
        /// Number of the session.
        id: SessionId,
    },
    /// The service is in a session that does not exist.
    #[error("the service '{service}' is of the session '{session}', which is not there")]
    NoSession {
        /// Name of the service.
        service: Name,
        /// Name of its session.
        session: Name,
    },
    /// The rules do not compile.
    #[error(transparent)]
    Rules(#[from] RuleSetError),
}

impl<'a> SnapshotView<'a> {
    /// Returns the view of a node's state between two calls.
    pub(super) fn of(sessions: &'a Sessions, steering: &'a Steering, cell: &'a Cell) -> Self {
        let (roster, rules) = (steering.roster(), steering.rules());
        let Numbering { below, user } = roster.numbering();
        Self {
            sessions: sessions.created().collect(),
            session_next: sessions.next(),
            services: roster.values().collect(),
            rules: rules.iter().collect(),
            rule_next: rules.next(),
            entry_next: below,
            entry_next_user: user,
            generation: rules.generation(),
            cell,
            bpf: roster.bpf(),
        }
    }
}

#[cfg(test)]
mod tests {
    use units::Nanos;

    use super::*;
    use crate::Node;
    use crate::state::tests::{NOW, running};

    #[test]
    fn a_contradictory_snapshot_is_refused() {
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

    /// Later daemons read the snapshots of earlier ones: fields, their names and their order stay.
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
