//! The sessions of a node: made, promised something else, removed.
//!
//! ```text
//! create ─▶ there ─ set ─▶ there ─ remove, nothing in it ────────────────────────▶ gone
//!                            └──── remove with what is in it ─▶ leaving ─ stopped ─┘
//! ```
//!
//! What a session was promised is the cell's to keep: it is told before anything of the session
//! starts, and again when the cell is another one. A session that leaves is promised nothing any
//! more; its name and number are free when the cell has stopped its last service.

use std::collections::{BTreeMap, BTreeSet};

use ::session::Reservation;
use ::session::admission::{self, Admission, Capacity, Left, MemoryUsed};
use abi::manifest::Meant;
use units::{Name, Nanos, RuleId, SessionId};

use super::Node;
use crate::command::{Effect, Notice, Outcome};
use crate::desired::DesiredSession;
use crate::owner::Owner;
use crate::refusal::Refusal;
use crate::service::ServiceState;
use crate::session::{Session, is_built_in};

impl Node {
    pub(super) fn session_create(
        &mut self,
        name: Name,
        reservation: Reservation,
        owner: Option<Owner>,
    ) -> Result<Outcome, Refusal> {
        if is_built_in(&name) {
            return Err(Refusal::SessionBuiltIn { session: name });
        }
        match self.sessions.by_name(&name) {
            Some(found) if found.leaving => return Err(Refusal::SessionLeaving { session: name }),
            Some(_) => return Err(Refusal::SessionExists { session: name }),
            None => {}
        }
        self.check_reservation(&name, &reservation)?;
        let id = self.add_session(name.clone(), reservation, owner)?;
        Ok(Outcome::SessionCreated { session: name, id })
    }

    fn add_session(
        &mut self,
        name: Name,
        reservation: Reservation,
        owner: Option<Owner>,
    ) -> Result<SessionId, Refusal> {
        let Some(id) = self.sessions.free() else {
            return Err(Refusal::TooManySessions { session: name });
        };
        if let Some(admission) = &mut self.admission {
            admission.admit(id, &reservation).map_err(not_admitted(&name))?;
        }
        let told = Effect::SetSession { session: id, reservation: reservation.clone() };
        self.sessions.add(Session { id, name, reservation, owner, leaving: false });
        self.effects.push_back(told);
        Ok(id)
    }

    pub(super) fn session_set(
        &mut self,
        name: Name,
        reservation: Reservation,
    ) -> Result<Outcome, Refusal> {
        let id = self.find_created(&name)?.id;
        self.check_reservation(&name, &reservation)?;
        self.promise(id, reservation)?;
        Ok(Outcome::SessionChanged { session: name })
    }

    pub(super) fn session_give_up(&mut self, name: Name) -> Result<Outcome, Refusal> {
        let id = self.find_created(&name)?.id;
        if let Some(session) = self.sessions.by_number_mut(id) {
            session.owner = None;
        }
        self.promise(id, Reservation::default())?;
        Ok(Outcome::SessionChanged { session: name })
    }

    /// Promises a session something; whether that is something else than before.
    fn promise(&mut self, id: SessionId, reservation: Reservation) -> Result<bool, Refusal> {
        let Some(session) = self.sessions.by_number_mut(id) else { return Ok(false) };
        if session.reservation == reservation {
            return Ok(false);
        }
        if let Some(admission) = &mut self.admission {
            admission.change(id, &reservation).map_err(not_admitted(&session.name))?;
        }
        session.reservation = reservation.clone();
        self.effects.push_back(Effect::SetSession { session: id, reservation });
        Ok(true)
    }

    pub(super) fn session_remove(
        &mut self,
        now: Nanos,
        name: Name,
        cascade: bool,
    ) -> Result<Outcome, Refusal> {
        let id = self.find_created(&name)?.id;
        let (services, rules) = (self.services_in(&name), self.rules_in(&name));
        let in_use = !services.is_empty() || !rules.is_empty();
        if in_use && !cascade {
            return Err(Refusal::SessionInUse { session: name, services, rules });
        }
        let mut went = Vec::new();
        for service in &services {
            // Every rule and every edge that leads there is of the same session.
            if let Outcome::Removed { rules, .. } = self.remove(now, service, true)? {
                went.extend(rules);
            }
        }
        for rule in rules.into_iter().filter(|rule| !went.contains(rule)).collect::<Vec<_>>() {
            self.rules.remove(&rule);
            went.push(rule);
        }
        self.install_rules();
        went.sort_unstable();
        self.promise(id, Reservation::default())?;
        if let Some(session) = self.sessions.by_number_mut(id) {
            session.leaving = true;
        }
        self.leaving.insert(id);
        let stopping = self.services.values().any(|managed| managed.session == id);
        Ok(Outcome::SessionRemoved { session: name, services, rules: went, stopping })
    }

    /// Sessions that leave and of which nothing is left are gone.
    pub(super) fn end_sessions(&mut self) {
        self.ending = false;
        if self.leaving.is_empty() {
            return;
        }
        let used: BTreeSet<SessionId> = self.services.values().map(|it| it.session).collect();
        let is_empty = |id: &SessionId| !used.contains(id);
        let gone: Vec<SessionId> = self.leaving.iter().copied().filter(is_empty).collect();
        for id in gone {
            self.leaving.remove(&id);
            let Some(session) = self.sessions.remove(id) else { continue };
            if let Some(admission) = &mut self.admission {
                admission.release(id);
            }
            self.effects.push_back(Effect::RemoveSession { session: id });
            let notice = Notice::SessionRemoved { session: session.name };
            self.effects.push_back(Effect::Report(notice));
        }
    }

    pub(super) fn sessions_arrange(
        &mut self,
        wanted: BTreeMap<Name, DesiredSession>,
    ) -> Result<Outcome, Refusal> {
        for (name, DesiredSession { reservation, .. }) in &wanted {
            if is_built_in(name) {
                return Err(Refusal::SessionBuiltIn { session: name.clone() });
            }
            if self.sessions.by_name(name).is_some_and(|found| found.leaving) {
                return Err(Refusal::SessionLeaving { session: name.clone() });
            }
            self.check_reservation(name, reservation)?;
        }
        let before = (self.sessions.clone(), self.admission.clone(), self.effects.len());
        self.rearrange(wanted).inspect_err(|_| {
            let (sessions, admission, effects) = before;
            (self.sessions, self.admission) = (sessions, admission);
            self.effects.truncate(effects);
        })
    }

    /// What is given up first, so that the rest has room; on an error some of it is done.
    fn rearrange(&mut self, wanted: BTreeMap<Name, DesiredSession>) -> Result<Outcome, Refusal> {
        let gives_up = |session: &&Session| {
            let stays = wanted.get(&session.name).map(|it| &it.reservation);
            !session.is_built_in() && !session.leaving && stays != Some(&session.reservation)
        };
        let changes = self.sessions.iter().filter(gives_up).map(|session| {
            let stays = wanted.contains_key(&session.name);
            (session.id, session.name.clone(), stays)
        });
        for (id, name, stays) in changes.collect::<Vec<_>>() {
            if !stays {
                self.promise(id, Reservation::default())?;
            } else if let Some(admission) = &mut self.admission {
                let nothing = Reservation::default();
                admission.change(id, &nothing).map_err(not_admitted(&name))?;
            }
        }
        let (mut created, mut changed) = (Vec::new(), Vec::new());
        for (name, DesiredSession { reservation, owner }) in wanted {
            match self.sessions.by_name(&name).map(|found| found.id) {
                None => {
                    self.add_session(name.clone(), reservation, owner)?;
                    created.push(name);
                }
                Some(id) => {
                    if let Some(session) = self.sessions.by_number_mut(id) {
                        session.owner = owner;
                    }
                    if self.promise(id, reservation)? {
                        changed.push(name);
                    }
                }
            }
        }
        Ok(Outcome::SessionsArranged { created, changed })
    }

    /// Says what the node has to give from now on. Sessions that were promised more than there is
    /// are promised nothing any more: each with the reason.
    pub fn set_capacity(&mut self, capacity: Capacity) -> Vec<(Name, Refusal)> {
        let mut admission = Admission::new(capacity);
        admission.set_used(self.memory_used());
        let created = self.sessions.iter().filter(|session| !session.is_built_in());
        let created: Vec<Session> = created.cloned().collect();
        let mut short = Vec::new();
        for Session { id, name, reservation, .. } in created {
            if let Err(problem) = admission.admit(id, &reservation) {
                short.push((name.clone(), not_admitted(&name)(problem)));
                // Nothing is always to be had.
                let _ = admission.admit(id, &Reservation::default());
                if let Some(session) = self.sessions.by_number_mut(id) {
                    session.reservation = Reservation::default();
                }
                let reservation = Reservation::default();
                self.effects.push_back(Effect::SetSession { session: id, reservation });
            }
        }
        self.admission = Some(admission);
        short
    }

    /// Says what of memory is in use: for what is promised from now on.
    pub fn set_memory_used(&mut self, used: MemoryUsed) {
        if let Some(admission) = &mut self.admission {
            admission.set_used(used);
        }
    }

    /// What of memory was last known to be in use.
    #[must_use]
    pub fn memory_used(&self) -> MemoryUsed {
        self.admission.as_ref().map_or_else(MemoryUsed::default, |it| it.used().clone())
    }

    /// What the node has to give, if somebody has said it.
    #[must_use]
    pub fn capacity(&self) -> Option<&Capacity> {
        self.admission.as_ref().map(Admission::capacity)
    }

    /// What of it can still be promised.
    #[must_use]
    pub fn left(&self) -> Option<Left> {
        self.admission.as_ref().map(Admission::left)
    }

    /// Tells a cell that knows of none yet.
    pub(super) fn tell_sessions(&mut self) {
        let created = self.sessions.iter().filter(|session| !session.is_built_in());
        let told = created.map(|session| Effect::SetSession {
            session: session.id,
            reservation: session.reservation.clone(),
        });
        self.effects.extend(told);
    }

    /// A session in which something can begin.
    pub(super) fn find_session(&self, name: &Name) -> Result<&Session, Refusal> {
        match self.sessions.by_name(name) {
            Some(found) if found.leaving => Err(Refusal::SessionLeaving { session: name.clone() }),
            Some(found) => Ok(found),
            None => {
                let known = self.sessions.iter().map(|session| session.name.as_str());
                let meant = Meant::new(name.as_str(), known);
                Err(Refusal::SessionUnknown { session: name.clone(), meant })
            }
        }
    }

    /// One that can be changed and removed.
    fn find_created(&self, name: &Name) -> Result<&Session, Refusal> {
        match self.find_session(name)? {
            found if found.is_built_in() => Err(Refusal::SessionBuiltIn { session: name.clone() }),
            found => Ok(found),
        }
    }

    /// Whether some node could promise this, and this one has the ports for it.
    fn check_reservation(&self, session: &Name, reservation: &Reservation) -> Result<(), Refusal> {
        reservation.check().map_err(|problem| not_admitted(session)(problem.into()))?;
        for port in reservation.send.keys() {
            if self.ports.iter().all(|known| known.spec.name != *port) {
                let known = self.ports.iter().map(|port| port.spec.name.as_str());
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

    /// Services of a session that are not on their way out.
    fn services_in(&self, session: &Name) -> Vec<Name> {
        let services = self.services().filter(|service| service.session == *session);
        let stay = services.filter(|service| service.state != ServiceState::Stopping);
        stay.map(|service| service.name.clone()).collect()
    }

    fn rules_in(&self, session: &Name) -> Vec<RuleId> {
        let rules = self.rules.values().filter(|owned| owned.rule.spec.session == *session);
        rules.map(|owned| owned.rule.id).collect()
    }
}

/// What cannot be promised, and to whom.
fn not_admitted(session: &Name) -> impl Fn(admission::Refusal) -> Refusal + use<> {
    let session = session.clone();
    move |problem| Refusal::NotAdmitted { session: session.clone(), problem: Box::new(problem) }
}
