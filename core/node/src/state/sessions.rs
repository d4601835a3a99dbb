//! Sessions of a node: created, changed, removed.
//!
//! ```text
//! create ─▶ there ─ set ─▶ there ─ remove, empty ────────────────────────────────▶ gone
//!                            └──── remove with its contents ──▶ leaving ─ stopped ─┘
//! ```
//!
//! The cell enforces reservations: it gets them before any service of the session starts, and a
//! new cell gets all of them again. A leaving session has no reservation; its name and number are
//! free when the cell has stopped its last service.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ::session::Reservation;
use ::session::admission::{self, Admission, Capacity, Left, MemoryUsed};
use abi::manifest::Meant;
use units::{Name, SessionId};

use super::effects::Effects;
use crate::command::{Effect, Notice, Outcome};
use crate::desired::DesiredSession;
use crate::port::Port;
use crate::refusal::Refusal;
use crate::session::{Session, Table, is_built_in};

/// Sessions, and their reservations.
#[derive(Clone, Debug, Default)]
pub(super) struct Sessions {
    table: Table,
    /// Account of reservations; `None` until the capacity of the node is known. Until then
    /// everything is admitted.
    admission: Option<Admission>,
    /// Sessions that are removed when the last of their services has stopped.
    leaving: BTreeSet<SessionId>,
}

impl Sessions {
    /// Restores the sessions of a snapshot; `next` is the start of the search for a free number.
    ///
    /// # Errors
    /// Name and number of a session whose name or number is taken, or whose number exceeds the
    /// limit.
    pub(super) fn restore(created: Vec<Session>, next: u16) -> Result<Self, (Name, SessionId)> {
        let table = Table::of(created, next)?;
        let leaving = table.iter().filter(|it| it.leaving).map(|it| it.id).collect();
        Ok(Self { table, admission: None, leaving })
    }

    /// Returns all sessions, by number.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Session> {
        self.table.iter()
    }

    /// Returns the sessions that are not built in, by number.
    pub(super) fn created(&self) -> impl Iterator<Item = &Session> {
        self.iter().filter(|session| !session.is_built_in())
    }

    /// Returns the start of the search for a free number.
    pub(super) const fn next(&self) -> u16 {
        self.table.next()
    }

    /// Returns the map of numbers by name.
    pub(super) fn numbers(&self) -> Arc<BTreeMap<Name, SessionId>> {
        self.table.numbers()
    }

    /// Returns the session of this name.
    pub(super) fn by_name(&self, name: &Name) -> Option<&Session> {
        self.table.by_name(name)
    }

    /// Returns the session of this number.
    pub(super) fn by_number(&self, id: SessionId) -> Option<&Session> {
        self.table.by_number(id)
    }

    /// Returns a session that can take new services and rules.
    pub(super) fn find(&self, name: &Name) -> Result<&Session, Refusal> {
        match self.by_name(name) {
            Some(found) if found.leaving => Err(Refusal::SessionLeaving { session: name.clone() }),
            Some(found) => Ok(found),
            None => {
                let known = self.iter().map(|session| session.name.as_str());
                let meant = Meant::new(name.as_str(), known);
                Err(Refusal::SessionUnknown { session: name.clone(), meant })
            }
        }
    }

    /// Returns a session that can be changed and removed.
    pub(super) fn find_created(&self, name: &Name) -> Result<&Session, Refusal> {
        match self.find(name)? {
            found if found.is_built_in() => Err(Refusal::SessionBuiltIn { session: name.clone() }),
            found => Ok(found),
        }
    }

    /// Creates a session on a node with these ports.
    pub(super) fn create(
        &mut self,
        name: Name,
        desired: DesiredSession,
        ports: &[Port],
        out: &mut Effects,
    ) -> Result<Outcome, Refusal> {
        check_new_name(&name)?;
        match self.by_name(&name) {
            Some(found) if found.leaving => return Err(Refusal::SessionLeaving { session: name }),
            Some(_) => return Err(Refusal::SessionExists { session: name }),
            None => {}
        }
        self.check(&name, &desired.reservation, ports)?;
        let id = self.add(name.clone(), desired, out)?;
        Ok(Outcome::SessionCreated { session: name, id })
    }

    fn add(
        &mut self,
        name: Name,
        desired: DesiredSession,
        out: &mut Effects,
    ) -> Result<SessionId, Refusal> {
        let DesiredSession { reservation, owner } = desired;
        let Some(id) = self.table.free() else {
            return Err(Refusal::TooManySessions { session: name });
        };
        if let Some(admission) = &mut self.admission {
            admission.admit(id, &reservation).map_err(not_admitted(&name))?;
        }
        out.push(Effect::SetSession { session: id, reservation: reservation.clone() });
        self.table.add(Session { id, name, reservation, owner, leaving: false });
        Ok(id)
    }

    /// Changes the reservation of a session.
    pub(super) fn set(
        &mut self,
        name: Name,
        reservation: Reservation,
        ports: &[Port],
        out: &mut Effects,
    ) -> Result<Outcome, Refusal> {
        let id = self.find_created(&name)?.id;
        self.check(&name, &reservation, ports)?;
        self.promise(id, reservation, out)?;
        Ok(Outcome::SessionChanged { session: name })
    }

    /// Hands a session to the operator and clears its reservation.
    pub(super) fn give_up(&mut self, name: Name, out: &mut Effects) -> Result<Outcome, Refusal> {
        let id = self.find_created(&name)?.id;
        if let Some(session) = self.table.by_number_mut(id) {
            session.owner = None;
        }
        self.promise(id, Reservation::default(), out)?;
        Ok(Outcome::SessionChanged { session: name })
    }

    /// Sets the reservation of a session. Returns true if it has changed.
    fn promise(
        &mut self,
        id: SessionId,
        reservation: Reservation,
        out: &mut Effects,
    ) -> Result<bool, Refusal> {
        let Some(session) = self.table.by_number_mut(id) else { return Ok(false) };
        if session.reservation == reservation {
            return Ok(false);
        }
        if let Some(admission) = &mut self.admission {
            admission.change(id, &reservation).map_err(not_admitted(&session.name))?;
        }
        session.reservation = reservation.clone();
        out.push(Effect::SetSession { session: id, reservation });
        Ok(true)
    }

    /// Marks a session as leaving: its reservation is cleared, and it is removed once it is empty.
    pub(super) fn mark_leaving(&mut self, id: SessionId, out: &mut Effects) -> Result<(), Refusal> {
        self.promise(id, Reservation::default(), out)?;
        if let Some(session) = self.table.by_number_mut(id) {
            session.leaving = true;
        }
        self.leaving.insert(id);
        Ok(())
    }

    /// Removes leaving sessions that are empty; `used` returns the sessions that have services.
    pub(super) fn end(&mut self, used: impl FnOnce() -> BTreeSet<SessionId>, out: &mut Effects) {
        if self.leaving.is_empty() {
            return;
        }
        let used = used();
        let is_empty = |id: &SessionId| !used.contains(id);
        let gone: Vec<SessionId> = self.leaving.iter().copied().filter(is_empty).collect();
        for id in gone {
            self.leaving.remove(&id);
            let Some(session) = self.table.remove(id) else { continue };
            if let Some(admission) = &mut self.admission {
                admission.release(id);
            }
            out.push(Effect::RemoveSession { session: id });
            out.report(Notice::SessionRemoved { session: session.name });
        }
    }

    /// Sets all sessions of the node; on an error nothing has changed.
    pub(super) fn arrange(
        &mut self,
        wanted: BTreeMap<Name, DesiredSession>,
        ports: &[Port],
        out: &mut Effects,
    ) -> Result<Outcome, Refusal> {
        for (name, DesiredSession { reservation, .. }) in &wanted {
            check_new_name(name)?;
            if self.by_name(name).is_some_and(|found| found.leaving) {
                return Err(Refusal::SessionLeaving { session: name.clone() });
            }
            self.check(name, reservation, ports)?;
        }
        let (mut changed, mut effects) = (self.clone(), Effects::default());
        let outcome = changed.rearrange(wanted, &mut effects)?;
        *self = changed;
        out.append(effects);
        Ok(outcome)
    }

    /// Releases what is given up first, so that the rest has room; on an error some of it is done.
    fn rearrange(
        &mut self,
        wanted: BTreeMap<Name, DesiredSession>,
        out: &mut Effects,
    ) -> Result<Outcome, Refusal> {
        let gives_up = |session: &&Session| {
            let stays = wanted.get(&session.name).map(|it| &it.reservation);
            !session.leaving && stays != Some(&session.reservation)
        };
        let changes = self.created().filter(gives_up).map(|session| {
            let stays = wanted.contains_key(&session.name);
            (session.id, session.name.clone(), stays)
        });
        for (id, name, stays) in changes.collect::<Vec<_>>() {
            if !stays {
                self.promise(id, Reservation::default(), out)?;
            } else if let Some(admission) = &mut self.admission {
                let nothing = Reservation::default();
                admission.change(id, &nothing).map_err(not_admitted(&name))?;
            }
        }
        let (mut created, mut changed) = (Vec::new(), Vec::new());
        for (name, desired) in wanted {
            match self.by_name(&name).map(|found| found.id) {
                None => {
                    self.add(name.clone(), desired, out)?;
                    created.push(name);
                }
                Some(id) => {
                    if let Some(session) = self.table.by_number_mut(id) {
                        session.owner = desired.owner;
                    }
                    if self.promise(id, desired.reservation, out)? {
                        changed.push(name);
                    }
                }
            }
        }
        Ok(Outcome::SessionsArranged { created, changed })
    }

    /// Sets the capacity of the node. Reservations that it no longer covers are cleared; their
    /// sessions are returned with the reason.
    pub(super) fn set_capacity(
        &mut self,
        capacity: Capacity,
        out: &mut Effects,
    ) -> Vec<(Name, Refusal)> {
        let mut admission = Admission::new(capacity);
        admission.set_used(self.memory_used());
        let created: Vec<Session> = self.created().cloned().collect();
        let mut short = Vec::new();
        for Session { id, name, reservation, .. } in created {
            if let Err(problem) = admission.admit(id, &reservation) {
                short.push((name.clone(), not_admitted(&name)(problem)));
                // An empty reservation is always admitted.
                let _ = admission.admit(id, &Reservation::default());
                if let Some(session) = self.table.by_number_mut(id) {
                    session.reservation = Reservation::default();
                }
                let reservation = Reservation::default();
                out.push(Effect::SetSession { session: id, reservation });
            }
        }
        self.admission = Some(admission);
        short
    }

    /// Sets the memory that is in use, for later admissions.
    pub(super) fn set_memory_used(&mut self, used: MemoryUsed) {
        if let Some(admission) = &mut self.admission {
            admission.set_used(used);
        }
    }

    /// Returns the memory that was last reported to be in use.
    pub(super) fn memory_used(&self) -> MemoryUsed {
        self.admission.as_ref().map_or_else(MemoryUsed::default, |it| it.used().clone())
    }

    /// Returns the capacity of the node, if it has been set.
    pub(super) fn capacity(&self) -> Option<&Capacity> {
        self.admission.as_ref().map(Admission::capacity)
    }

    /// Returns the capacity that is not reserved.
    pub(super) fn left(&self) -> Option<Left> {
        self.admission.as_ref().map(Admission::left)
    }

    /// Sends all sessions to a new cell.
    pub(super) fn announce(&self, out: &mut Effects) {
        out.extend(self.created().map(|session| Effect::SetSession {
            session: session.id,
            reservation: session.reservation.clone(),
        }));
    }

    /// Refuses a reservation that no node could admit, or that names unknown ports.
    fn check(
        &self,
        session: &Name,
        reservation: &Reservation,
        ports: &[Port],
    ) -> Result<(), Refusal> {
        reservation.check().map_err(|problem| not_admitted(session)(problem.into()))?;
        for port in reservation.send.keys() {
            if ports.iter().all(|known| known.spec.name != *port) {
                let known = ports.iter().map(|port| port.spec.name.as_str());
                let meant = Meant::new(port.as_str(), known);
                let (session, port) = (session.clone(), port.clone());
                return Err(Refusal::SendPortUnknown { session, port, meant });
            }
            if self.capacity().is_some_and(|capacity| capacity.ports_unheld) {
                let problem = admission::Refusal::PortUnheld { port: port.clone() };
                return Err(not_admitted(session)(problem));
            }
            if self.capacity().is_some_and(|capacity| !capacity.ports.contains_key(port)) {
                let (session, port) = (session.clone(), port.clone());
                return Err(Refusal::SendRateUnknown { session, port });
            }
        }
        Ok(())
    }
}

/// Refuses the names of built-in sessions.
fn check_new_name(name: &Name) -> Result<(), Refusal> {
    match is_built_in(name) {
        true => Err(Refusal::SessionBuiltIn { session: name.clone() }),
        false => Ok(()),
    }
}

/// Returns the function that turns an admission error into the refusal for a session.
fn not_admitted(session: &Name) -> impl Fn(admission::Refusal) -> Refusal + use<> {
    let session = session.clone();
    move |problem| Refusal::NotAdmitted { session: session.clone(), problem: Box::new(problem) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::capacity;

    fn name(text: &str) -> Name {
        Name::new(text).unwrap()
    }

    fn desired(reservation: &str) -> DesiredSession {
        let reservation = serde_json::from_str(reservation).unwrap();
        DesiredSession { reservation, owner: None }
    }

    fn taken(out: &mut Effects) -> Vec<Effect> {
        std::iter::from_fn(|| out.poll()).collect()
    }

    #[test]
    fn a_leaving_session_has_no_reservation_and_ends_with_its_last_service() {
        let (mut sessions, mut out) = (Sessions::default(), Effects::default());
        sessions.set_capacity(capacity(), &mut out);
        let most = r#"{"memory":"16MiB"}"#;
        sessions.create(name("gold"), desired(most), &[], &mut out).unwrap();
        let id = sessions.find(&name("gold")).unwrap().id;
        taken(&mut out);
        sessions.mark_leaving(id, &mut out).unwrap();
        let promised = Effect::SetSession { session: id, reservation: Reservation::default() };
        assert_eq!(taken(&mut out), [promised]);
        sessions.end(|| [id].into(), &mut out);
        assert_eq!(taken(&mut out), [], "a service is left");
        let again = sessions.create(name("gold"), desired("{}"), &[], &mut out);
        assert_eq!(again, Err(Refusal::SessionLeaving { session: name("gold") }));
        sessions.create(name("silver"), desired(most), &[], &mut out).unwrap();
        taken(&mut out);
        sessions.end(BTreeSet::new, &mut out);
        let notice = Notice::SessionRemoved { session: name("gold") };
        let gone = [Effect::RemoveSession { session: id }, Effect::Report(notice)];
        assert_eq!(taken(&mut out), gone);
        assert!(sessions.by_name(&name("gold")).is_none());
    }

    #[test]
    fn an_arrangement_that_does_not_fit_changes_nothing() {
        let (mut sessions, mut out) = (Sessions::default(), Effects::default());
        sessions.set_capacity(capacity(), &mut out);
        sessions.create(name("gold"), desired(r#"{"memory":"1MiB"}"#), &[], &mut out).unwrap();
        taken(&mut out);
        let before: Vec<Session> = sessions.iter().cloned().collect();
        let half = || desired(r#"{"memory":"9MiB"}"#);
        let wanted = [(name("silver"), half()), (name("tin"), half())].into();
        let refused = sessions.arrange(wanted, &[], &mut out);
        assert!(matches!(refused, Err(Refusal::NotAdmitted { .. })), "{refused:?}");
        assert_eq!(taken(&mut out), []);
        assert_eq!(sessions.iter().cloned().collect::<Vec<_>>(), before);
        let wanted = [(name("silver"), half())].into();
        let outcome = sessions.arrange(wanted, &[], &mut out).unwrap();
        let (created, changed) = (vec![name("silver")], Vec::new());
        assert_eq!(outcome, Outcome::SessionsArranged { created, changed });
        assert_eq!(taken(&mut out).len(), 2, "gold has nothing, silver has what it asked for");
    }
}
