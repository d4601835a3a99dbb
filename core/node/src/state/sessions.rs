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

use std::collections::BTreeMap;

use ::session::Reservation;
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
        self.promise(id, reservation);
        Ok(Outcome::SessionChanged { session: name })
    }

    pub(super) fn session_give_up(&mut self, name: Name) -> Result<Outcome, Refusal> {
        let id = self.find_created(&name)?.id;
        if let Some(session) = self.sessions.by_number_mut(id) {
            session.owner = None;
        }
        self.promise(id, Reservation::default());
        Ok(Outcome::SessionChanged { session: name })
    }

    /// Promises a session something; whether that is something else than before.
    fn promise(&mut self, id: SessionId, reservation: Reservation) -> bool {
        let Some(session) = self.sessions.by_number_mut(id) else { return false };
        if session.reservation == reservation {
            return false;
        }
        session.reservation = reservation.clone();
        self.effects.push_back(Effect::SetSession { session: id, reservation });
        true
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
        self.promise(id, Reservation::default());
        if let Some(session) = self.sessions.by_number_mut(id) {
            session.leaving = true;
        }
        self.leaving.insert(id);
        let stopping = self.services.values().any(|managed| managed.session == id);
        Ok(Outcome::SessionRemoved { session: name, services, rules: went, stopping })
    }

    /// Sessions that leave and of which nothing is left are gone.
    pub(super) fn end_sessions(&mut self) {
        if self.leaving.is_empty() {
            return;
        }
        let is_empty = |id: &SessionId| !self.services.values().any(|it| it.session == *id);
        let gone: Vec<SessionId> = self.leaving.iter().copied().filter(is_empty).collect();
        for id in gone {
            self.leaving.remove(&id);
            let Some(session) = self.sessions.remove(id) else { continue };
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
        let is_new = |name: &&Name| self.sessions.by_name(name).is_none();
        let room = crate::session::SESSIONS_MAX - self.sessions.len();
        if let Some(name) = wanted.keys().filter(is_new).nth(room) {
            return Err(Refusal::TooManySessions { session: name.clone() });
        }
        let others = self.sessions.iter().filter(|it| !it.is_built_in());
        let others = others.filter(|it| !wanted.contains_key(&it.name));
        let others: Vec<SessionId> = others.map(|it| it.id).collect();
        for id in others {
            self.promise(id, Reservation::default());
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
                    if self.promise(id, reservation) {
                        changed.push(name);
                    }
                }
            }
        }
        Ok(Outcome::SessionsArranged { created, changed })
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
        let wrong = |problem| Refusal::Reservation { session: session.clone(), problem };
        reservation.check().map_err(wrong)?;
        for port in reservation.send.keys() {
            if self.ports.iter().all(|known| known.spec.name != *port) {
                let known = self.ports.iter().map(|port| port.spec.name.as_str());
                let meant = Meant::new(port.as_str(), known);
                let (session, port) = (session.clone(), port.clone());
                return Err(Refusal::SendPortUnknown { session, port, meant });
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

#[cfg(test)]
mod tests {
    use super::super::tests::{NOW, add, deploy_with, effects, lost, name, node, refused};
    use super::*;
    use crate::command::{Command, Event};
    use crate::refusal::RefusalClass;
    use crate::rule::{Action, RuleSpec};
    use crate::session::SESSIONS_MAX;
    use crate::testing::module;
    use units::EntryId;

    fn reservation(json: &str) -> Reservation {
        serde_json::from_str(json).unwrap()
    }

    fn create(session: &str, json: &str) -> Command {
        let (session, reservation) = (name(session), reservation(json));
        Command::SessionCreate { session, reservation, owner: None }
    }

    fn remove(session: &str, cascade: bool) -> Command {
        Command::SessionRemove { session: name(session), cascade }
    }

    fn set(session: &str, json: &str) -> Command {
        Command::SessionSet { session: name(session), reservation: reservation(json) }
    }

    fn in_session(session: &str, service: &str, text: &str) -> Command {
        let to_it = RuleSpec::new(text.parse().unwrap(), Action::Service(name(service)));
        let rule = RuleSpec { session: name(session), ..to_it };
        match deploy_with(service, module("\"user\""), vec![rule]) {
            Command::Deploy {
                service,
                module,
                parameters,
                rules,
                level,
                then,
                budget,
                on_failure,
                discard_state,
                owner,
                ..
            } => Command::Deploy {
                service,
                module,
                parameters,
                session: name(session),
                rules,
                level,
                then,
                budget,
                on_failure,
                discard_state,
                owner,
            },
            other => other,
        }
    }

    /// A node with the session `gold`, in which `monitor` runs as entry 0.
    fn with_gold() -> Node {
        let mut node = node();
        node.handle_command(NOW, create("gold", r#"{"cpu":["1ms/4ms"]}"#)).unwrap();
        node.handle_command(NOW, in_session("gold", "monitor", "proto udp")).unwrap();
        node.handle_event(NOW, Event::ServiceStarted { entry: EntryId(0) });
        effects(&mut node);
        node
    }

    #[test]
    fn the_cell_knows_a_session_before_anything_of_it_starts() {
        let mut node = node();
        node.handle_command(NOW, create("gold", r#"{"cpu":["1ms/4ms"]}"#)).unwrap();
        node.handle_command(NOW, in_session("gold", "monitor", "proto udp")).unwrap();
        let told = effects(&mut node);
        let gold = SessionId(2);
        assert_eq!(
            told[0],
            Effect::SetSession {
                session: gold,
                reservation: reservation(r#"{"cpu":["1ms/4ms"]}"#)
            }
        );
        assert!(
            matches!(told.last(), Some(Effect::StartService { session, .. }) if *session == gold)
        );
        // Another cell is told anew, first of all.
        node.handle_event(NOW, lost());
        node.handle_timeout(Nanos::from_millis(20_000));
        node.handle_event(NOW, Event::CellReady);
        let told: Vec<Effect> = effects(&mut node);
        let session = told.iter().position(|e| matches!(e, Effect::SetSession { .. })).unwrap();
        let start = told.iter().position(|e| matches!(e, Effect::StartService { .. })).unwrap();
        assert!(session < start, "{told:?}");
    }

    #[test]
    fn a_change_of_a_reservation_touches_no_service() {
        let mut node = with_gold();
        node.handle_command(NOW, set("gold", r#"{"cpu":["2ms/4ms+extra"],"weight":200}"#)).unwrap();
        let told = effects(&mut node);
        let [Effect::SetSession { session: SessionId(2), reservation }] = &told[..] else {
            panic!("{told:?}")
        };
        assert_eq!(reservation.weight.get(), 200);
        // The same again is nothing to tell.
        node.handle_command(NOW, set("gold", r#"{"cpu":["2ms/4ms+extra"],"weight":200}"#)).unwrap();
        assert_eq!(effects(&mut node), []);
    }

    #[test]
    fn a_session_in_use_goes_only_with_what_is_in_it() {
        let mut node = with_gold();
        let drops = RuleSpec::new("proto tcp".parse().unwrap(), Action::Drop);
        let rule = RuleSpec { session: name("gold"), ..drops };
        node.handle_command(NOW, add(vec![rule])).unwrap();
        effects(&mut node);
        let (class, text) = refused(&mut node, remove("gold", false));
        assert_eq!(class, RefusalClass::Busy);
        assert!(text.contains("monitor") && text.contains("0, 1") && text.contains("--cascade"));
        let outcome = node.handle_command(NOW, remove("gold", true)).unwrap();
        let rules = vec![RuleId(0), RuleId(1)];
        assert_eq!(
            outcome,
            Outcome::SessionRemoved {
                session: name("gold"),
                services: vec![name("monitor")],
                rules,
                stopping: true
            }
        );
        // Until its last service has stopped, the name is not free, and nothing can begin in it.
        assert!(node.session(&name("gold")).unwrap().leaving);
        let promised = &node.session(&name("gold")).unwrap().reservation;
        assert_eq!(*promised, Reservation::default());
        effects(&mut node);
        for command in [create("gold", "{}"), set("gold", "{}"), remove("gold", true)] {
            assert_eq!(refused(&mut node, command).0, RefusalClass::Busy);
        }
        let (class, _) = refused(&mut node, in_session("gold", "touch", "any"));
        assert_eq!(class, RefusalClass::Busy);
        node.handle_event(NOW, Event::ServiceStopped { entry: EntryId(0) });
        assert!(node.session(&name("gold")).is_none());
        let told = effects(&mut node);
        assert!(told.contains(&Effect::RemoveSession { session: SessionId(2) }), "{told:?}");
        let gone = Notice::SessionRemoved { session: name("gold") };
        assert_eq!(told.last(), Some(&Effect::Report(gone)));
        node.handle_command(NOW, create("gold", "{}")).unwrap();
    }

    #[test]
    fn what_cannot_be_is_refused_with_what_to_do() {
        let mut node = with_gold();
        for (command, class, says) in [
            (create("gold", "{}"), RefusalClass::Busy, "tam session set gold"),
            (create("system", "{}"), RefusalClass::Forbidden, "every node has"),
            (set("best-effort", "{}"), RefusalClass::Forbidden, "every node has"),
            (remove("best-effort", true), RefusalClass::Forbidden, "every node has"),
            (set("gol", "{}"), RefusalClass::NotFound, "did you mean 'gold'"),
            (remove("silver", false), RefusalClass::NotFound, "no session 'silver'"),
            (set("gold", r#"{"send":{"lft":"1ms/4ms"}}"#), RefusalClass::NotFound, "'left'"),
            (set("gold", r#"{"memory":"0B"}"#), RefusalClass::Invalid, "0 bytes"),
        ] {
            let (found, text) = refused(&mut node, command);
            assert!(found == class && text.contains(says), "{found:?}: {text}");
        }
    }

    #[test]
    fn there_is_room_for_ten_thousand_sessions_and_a_last_one() {
        let mut node = node();
        let wanted = |count: usize| {
            let named = (0..count).map(|n| (name(&format!("s{n}")), DesiredSession::default()));
            Command::SessionsArrange { sessions: named.collect() }
        };
        node.handle_command(NOW, wanted(SESSIONS_MAX - 2)).unwrap();
        assert_eq!(node.sessions().count(), SESSIONS_MAX);
        effects(&mut node);
        let (class, _) = refused(&mut node, create("last", "{}"));
        assert_eq!(class, RefusalClass::Limit);
        assert_eq!(refused(&mut node, wanted(SESSIONS_MAX - 1)).0, RefusalClass::Limit);
    }

    #[test]
    fn sessions_that_are_not_wanted_are_promised_nothing_until_they_go() {
        let mut node = with_gold();
        let silver = DesiredSession { reservation: reservation(r#"{"weight":5}"#), owner: None };
        let sessions = [(name("silver"), silver)].into();
        let outcome = node.handle_command(NOW, Command::SessionsArrange { sessions }).unwrap();
        let (created, changed) = (vec![name("silver")], vec![]);
        assert_eq!(outcome, Outcome::SessionsArranged { created, changed });
        assert_eq!(node.session(&name("gold")).unwrap().reservation, Reservation::default());
        assert!(node.service(&name("monitor")).is_some());
    }
}
