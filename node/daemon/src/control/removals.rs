//! Removals that are answered when cells have stopped services: their names are free then.

use super::deployments::numbers;
use super::edit::Edit;
use super::recorded::{Ahead, Prepared, Purpose, Recorded};
use super::recording::Facts;
use super::state::NodeState;
use crate::answer::{Answer, name, unexpected};
use crate::reply::Reply;
use api::{EventKind, Removed, SCHEMA_VERSION, SessionRemoved};
use node::{Command, Outcome};
use std::collections::{BTreeMap, BTreeSet};
use tokio::sync::oneshot;
use units::{Name, RuleId};

/// Services, and the receiver of a word when the last of them has stopped.
type Awaited = (BTreeSet<Name>, oneshot::Sender<()>);

/// Requests for removals that wait.
#[derive(Default)]
pub(crate) struct Removals {
    services: BTreeMap<Name, (Reply<Removed>, Removed)>,
    sessions: BTreeMap<Name, (Reply<SessionRemoved>, SessionRemoved)>,
    revocations: Vec<Awaited>,
}

impl Removals {
    /// Returns true when no request waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.services.is_empty() && self.sessions.is_empty() && self.revocations.is_empty()
    }

    /// Answers a request to remove a service: now, or when it has stopped.
    pub(super) fn handle_removed(
        &mut self,
        state: &mut NodeState,
        service: Name,
        counted: Vec<(RuleId, Name)>,
        reply: Reply<Removed>,
        outcome: Answer<Outcome>,
    ) {
        match outcome {
            Ok(Outcome::Removed { rules, stopping, .. }) => {
                state.close_rules(counted);
                state.note_rules(EventKind::RulesRemoved, &numbers(&rules));
                let removed = removed(&service, &rules);
                if stopping {
                    self.services.insert(service, (reply, removed));
                } else {
                    reply.ok(removed);
                }
            }
            Ok(_) => reply.refuse(unexpected("a removal")),
            Err(refusal) => reply.refuse(refusal),
        }
    }

    /// Answers a request to remove a session when its services have stopped.
    pub(super) fn wait_for_session(
        &mut self,
        session: Name,
        reply: Reply<SessionRemoved>,
        removed: SessionRemoved,
    ) {
        self.sessions.insert(session, (reply, removed));
    }

    /// Answers the removal of a session that is gone.
    pub(super) fn handle_session_gone(&mut self, session: &Name) {
        if let Some((reply, removed)) = self.sessions.remove(session) {
            reply.ok(removed);
        }
    }

    /// Returns the receiver of a word once these services have stopped: at once when there are none.
    pub(crate) fn wait_for(&mut self, services: BTreeSet<Name>) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        self.revocations.push((services, sender));
        self.send_revocations();
        receiver
    }

    /// Answers those that waited for this service alone: it has stopped.
    pub(crate) fn handle_stopped(&mut self, service: &Name) {
        if let Some((reply, removed)) = self.services.remove(service) {
            reply.ok(removed);
        }
        for (services, _) in &mut self.revocations {
            services.remove(service);
        }
        self.send_revocations();
    }

    fn send_revocations(&mut self) {
        for (_, reported) in self.revocations.extract_if(.., |(services, _)| services.is_empty()) {
            // Who asked may be gone.
            let _ = reported.send(());
        }
    }
}

/// Prepares the removal of a service; answered when cells have stopped it. `None` where nothing runs
/// that could be removed: the removal is queued for the journal, or refused.
pub(super) fn prepare(
    state: &mut NodeState,
    wanted: &str,
    cascade: bool,
    reply: Reply<Removed>,
) -> Option<Prepared> {
    let service = match name(wanted) {
        Ok(service) => service,
        Err(refusal) => {
            reply.refuse(refusal);
            return None;
        }
    };
    let cause = format!("remove {service}");
    let edit = Edit::Remove(service.clone());
    let is_desired = state.desired.state().services.contains_key(&service);
    if is_desired && state.node.service(&service).is_none() {
        // It is desired, and did not start.
        state.record(Facts::of(cause), edit, Recorded::MissingRemoved { service, reply });
        return None;
    }
    let command = Command::Remove { service: service.clone(), cascade };
    let counted = state.payers_of(&state.rules_to(&service));
    let purpose = Purpose::ServiceRemoved { service, counted, reply };
    Some((Ahead { command, purpose }, cause, edit))
}

/// Answers the removal of a service that was desired and did not run.
pub(super) fn handle_recorded(
    state: &mut NodeState,
    service: &Name,
    reply: Reply<Removed>,
    written: Answer<()>,
) {
    if written.is_ok() {
        state.desired.shortfall_mut().services.remove(service);
    }
    reply.answer(written.map(|()| removed(service, &[])));
}

fn removed(service: &Name, rules: &[RuleId]) -> Removed {
    Removed { schema_version: SCHEMA_VERSION, service: service.to_string(), rules: numbers(rules) }
}

#[cfg(test)]
mod tests {
    use super::super::action::Action;
    use super::super::change::Change;
    use super::super::testbed::{Testbed, deploy};
    use super::*;
    use node::Event;

    fn names(of: &[&str]) -> BTreeSet<Name> {
        of.iter().map(|it| Name::new(*it).unwrap()).collect()
    }

    #[test]
    fn a_revocation_waits_for_the_last_of_its_services() {
        let mut removals = Removals::default();
        assert!(removals.wait_for(BTreeSet::new()).try_recv().is_ok());
        let mut both = removals.wait_for(names(&["a", "b"]));
        let mut one = removals.wait_for(names(&["b"]));
        for (stopped, reported) in
            [("c", [false, false]), ("b", [false, true]), ("a", [true, false])]
        {
            assert!(!removals.is_empty());
            removals.handle_stopped(&Name::new(stopped).unwrap());
            // Each client is answered once.
            assert_eq!(
                [&mut both, &mut one].map(|it| it.try_recv().is_ok()),
                reported,
                "{stopped}"
            );
        }
        assert!(removals.is_empty());
    }

    fn remove(bed: &mut Testbed, service: &str) -> crate::reply::Awaited<Removed> {
        bed.ask(|reply| Change::Remove(service.to_owned(), true, reply))
    }

    #[test]
    fn a_removal_is_recorded_then_drained_then_done() {
        let mut bed = Testbed::new();
        bed.run("monitor");
        let mut failed = remove(&mut bed, "monitor");
        bed.fail_write();
        assert!(failed.try_answer().unwrap().is_err());
        let mut removed = remove(&mut bed, "monitor");
        bed.write();
        let entry = bed.entry("monitor");
        assert!(matches!(bed.actions.last(), Some(Action::Drain(it)) if *it == entry));
        assert!(!bed.is_desired("monitor") && !bed.control.is_idle());
        bed.control.handle_drained(entry);
        bed.settle();
        assert!(removed.try_answer().is_none(), "its name is not free");
        bed.stops("monitor");
        assert_eq!(removed.try_answer().unwrap().unwrap().service, "monitor");
        assert!(bed.control.is_idle());
    }

    #[test]
    fn a_removal_that_is_refused_after_it_was_recorded_is_taken_back() {
        let mut bed = Testbed::new();
        bed.run("cache");
        let then = vec!["cache".to_owned()];
        let request = api::DeployRequest { then, ..deploy("monitor", 4) };
        let _first = bed.ask(|reply| Change::Deploy(Box::new(request), reply));
        bed.starts("monitor");
        bed.write_all();
        let before = bed.control.state().desired().state().clone();
        let _second = bed.ask(|reply| Change::Deploy(Box::new(deploy("monitor", 5)), reply));
        let entry = bed.entry("monitor");
        bed.event(Event::ServiceReplaced { entry });
        let mut removed = bed.ask(|reply| Change::Remove("cache".to_owned(), false, reply));
        bed.write();
        assert!(!bed.is_desired("cache"));
        // The version before comes back, and with it what leads to the service.
        bed.event(Event::ServicePutBack { entry, reason: "unreachable".to_owned() });
        let cache = bed.entry("cache");
        bed.control.handle_drained(cache);
        bed.settle();
        assert!(matches!(bed.actions.last(), Some(Action::CancelDrain(it)) if *it == cache));
        let refusal = removed.try_answer().unwrap().unwrap_err();
        assert!(refusal.message.contains("comes after"), "{}", refusal.message);
        bed.write_all();
        assert_eq!(bed.control.state().desired().state(), &before, "with its edges");
        assert!(bed.control.is_idle());
    }

    #[test]
    fn a_desired_service_that_does_not_run_is_missing_until_its_removal_is_recorded() {
        let mut bed = Testbed::new();
        bed.run("monitor");
        let gone = Command::Remove { service: Name::new("monitor").unwrap(), cascade: true };
        bed.control.state.command(gone).unwrap();
        bed.settle();
        bed.stops("monitor");
        let monitor = Name::new("monitor").unwrap();
        let missing = |bed: &Testbed| {
            bed.control.state().desired().shortfall().services.contains_key(&monitor)
        };
        bed.control.resume();
        bed.settle();
        let (entry, reason) = (bed.entry("monitor"), "no room".to_owned());
        bed.event(Event::ServiceFailed { entry, reason });
        assert!(missing(&bed));
        let mut failed = remove(&mut bed, "monitor");
        bed.fail_write();
        assert!(failed.try_answer().unwrap().is_err() && missing(&bed));
        let mut removed = remove(&mut bed, "monitor");
        bed.write();
        assert!(removed.try_answer().unwrap().is_ok() && !missing(&bed));
        assert!(!bed.is_desired("monitor"));
        let refusal = remove(&mut bed, "no name").try_answer().unwrap().unwrap_err();
        assert_eq!(refusal.code, api::ErrorCode::Usage);
    }
}
