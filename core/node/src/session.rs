//! Sessions of a node: two built-in ones, and those that were created.
//!
//! Every service and every rule belongs to one. A session's guarantees are a
//! [`Reservation`](::session::Reservation); the built-in ones have an empty one.

use std::collections::BTreeMap;
use std::sync::Arc;

use ::session::Reservation;
use serde::{Deserialize, Serialize};
use units::{Name, SessionId};

use crate::owner::Owner;

/// Built-in session of housekeeping and infrastructure: charged to nobody.
pub const SYSTEM: &str = "system";
/// Built-in session of services and rules without a reservation.
pub const BEST_EFFORT: &str = "best-effort";

/// Limit of sessions on one node, the built-in ones included. Their numbers have 16 bits in
/// metadata and lanes, and index their accounts below user level; a record of all of them is a few
/// megabytes, written with each change.
pub const SESSIONS_MAX: usize = 16_384;

const _: () = assert!(SESSIONS_MAX <= u16::MAX as usize + 1, "a session's number has 16 bits");
const _: () = assert!(SESSIONS_MAX == bpf_maps::ACCOUNTS_MAX, "each has an account");
const _: () = assert!(SESSIONS_MAX > 10_000, "what `tam bench scale` makes has room");

/// Session as `tam session list` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// Number of the session in BPF maps and packet metadata.
    pub id: SessionId,
    /// Name of the session.
    pub name: Name,
    /// Reservation.
    #[serde(default)]
    pub reservation: Reservation,
    /// Owner; `None` is the operator.
    #[serde(default)]
    pub owner: Option<Owner>,
    /// True if it was removed, and ends when the last of its services has stopped.
    #[serde(default)]
    pub leaving: bool,
}

impl Session {
    /// Returns true if the session is built in.
    #[must_use]
    pub fn is_built_in(&self) -> bool {
        is_built_in(&self.name)
    }

    fn built_in(id: SessionId, name: Name) -> Self {
        Self { id, name, reservation: Reservation::default(), owner: None, leaving: false }
    }
}

/// Returns true if this is the name of a built-in session.
#[must_use]
pub fn is_built_in(name: &Name) -> bool {
    [SYSTEM, BEST_EFFORT].contains(&name.as_str())
}

/// Returns the built-in sessions.
pub(crate) fn built_in() -> [Session; 2] {
    [
        Session::built_in(SessionId::SYSTEM, system()),
        Session::built_in(SessionId::BEST_EFFORT, best_effort()),
    ]
}

/// Returns the name of the session of housekeeping and infrastructure.
#[must_use]
pub fn system() -> Name {
    constant(SYSTEM)
}

/// Returns the name of the built-in session without a reservation.
#[must_use]
pub fn best_effort() -> Name {
    constant(BEST_EFFORT)
}

fn constant(name: &'static str) -> Name {
    Name::new(name).expect("both constants above are lower-case letters and '-'")
}

/// Sessions of one node, by number and by name.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    sessions: BTreeMap<SessionId, Session>,
    /// Numbers by name, shared with the rule compiler: rules are compiled more often than sessions
    /// change.
    numbers: Arc<BTreeMap<Name, SessionId>>,
    /// Number at which the search for a free one begins, so that none is reused at once.
    next: u16,
}

impl Default for Table {
    fn default() -> Self {
        Self::of(built_in(), 0).expect("the two have different numbers and names")
    }
}

impl Table {
    /// Creates a table of these sessions; the built-in ones are added.
    ///
    /// # Errors
    /// Two sessions have the same name or number, or a number exceeds the limit: the name and
    /// number of that session.
    pub(crate) fn of(
        sessions: impl IntoIterator<Item = Session>,
        next: u16,
    ) -> Result<Self, (Name, SessionId)> {
        let mut table = Self { sessions: BTreeMap::new(), numbers: Arc::default(), next };
        let created = sessions.into_iter().filter(|session| !session.is_built_in());
        for session in built_in().into_iter().chain(created) {
            let is_free = !table.sessions.contains_key(&session.id)
                && !table.numbers.contains_key(&session.name)
                && usize::from(session.id.0) < SESSIONS_MAX;
            if !is_free {
                return Err((session.name, session.id));
            }
            table.insert(session);
        }
        Ok(table)
    }

    fn insert(&mut self, session: Session) {
        Arc::make_mut(&mut self.numbers).insert(session.name.clone(), session.id);
        self.sessions.insert(session.id, session);
    }

    /// Returns a free number; `None` if all are taken.
    pub(crate) fn free(&self) -> Option<SessionId> {
        let count = SESSIONS_MAX as u16;
        let mut in_turn = (0..count).map(|step| SessionId(self.next.wrapping_add(step) % count));
        in_turn.find(|id| !self.sessions.contains_key(id))
    }

    /// Adds a session whose number and name are free.
    pub(crate) fn add(&mut self, session: Session) {
        self.next = session.id.0.wrapping_add(1);
        self.insert(session);
    }

    pub(crate) fn remove(&mut self, id: SessionId) -> Option<Session> {
        let session = self.sessions.remove(&id)?;
        Arc::make_mut(&mut self.numbers).remove(&session.name);
        Some(session)
    }

    pub(crate) fn by_name(&self, name: &Name) -> Option<&Session> {
        self.sessions.get(self.numbers.get(name)?)
    }

    pub(crate) fn by_number(&self, id: SessionId) -> Option<&Session> {
        self.sessions.get(&id)
    }

    pub(crate) fn by_number_mut(&mut self, id: SessionId) -> Option<&mut Session> {
        self.sessions.get_mut(&id)
    }

    /// Returns all sessions, by number.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Session> {
        self.sessions.values()
    }

    /// Returns the map of numbers by name.
    pub(crate) fn numbers(&self) -> Arc<BTreeMap<Name, SessionId>> {
        Arc::clone(&self.numbers)
    }

    pub(crate) const fn next(&self) -> u16 {
        self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(table: &mut Table, name: &str) -> Option<u16> {
        let id = table.free()?;
        table.add(Session::built_in(id, name.parse().unwrap()));
        Some(id.0)
    }

    #[test]
    fn a_number_is_reused_only_after_all_others() {
        let mut table = Table::default();
        assert_eq!(add(&mut table, "gold"), Some(2));
        table.remove(SessionId(2)).unwrap();
        assert_eq!(add(&mut table, "gold"), Some(3));
        for number in 3..SESSIONS_MAX - 1 {
            assert!(add(&mut table, &format!("s{number}")).is_some());
        }
        assert_eq!(table.iter().count(), SESSIONS_MAX - 1);
        assert_eq!(add(&mut table, "last"), Some(2));
        assert_eq!(add(&mut table, "too-many"), None);
    }

    #[test]
    fn a_table_with_two_of_one_number_or_name_is_none() {
        let session = |id: u16, name: &str| Session::built_in(SessionId(id), name.parse().unwrap());
        assert!(Table::of([session(2, "gold"), session(3, "silver")], 4).is_ok());
        for (id, name) in [(2, "silver"), (3, "gold"), (1, "silver"), (16_384, "silver")] {
            let (named, number) =
                Table::of([session(2, "gold"), session(id, name)], 4).unwrap_err();
            assert_eq!((number.0, named.as_str()), (id, name));
        }
        // Snapshots of older daemons have no sessions.
        assert_eq!(Table::of([], 0).unwrap().iter().count(), 2);
    }
}
