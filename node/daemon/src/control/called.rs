//! Services that active packets call: found among those of their principal, or started for them,
//! and stopped when nobody has called them for a while.
//!
//! ```text
//! cell: who runs DIGEST for ID? ─▶ is it held? ─▶ the caller's service of that module ─▶ answer
//!                                  │ no: may it   │ none: may it be deployed? ─▶ deploy ─ runs ─▶ answer
//!                                  │ be had?      └ no ─▶ refused, for a while
//!                                  └▶ fetched, from the previous node first ─▶ asked again
//! ```
//!
//! Called services are not desired: an apply does not take them away, nothing of them is written
//! down, and a start of the node begins without them.

use super::action::Action;
use super::authorize::{check_deployment, check_wanted};
use super::calls::{Sender, Wanted};
use super::deployments::{Begun, Deployments};
use super::state::NodeState;
use crate::answer::{Answer, name};
use crate::events::Note;
use api::{DeployRequest, EventKind};
use association::AssociationId;
use cell::{CallAnswer, CallQuestion};
use module_store::Digest;
use node::{Command, Owner, ServiceState};
use std::collections::{BTreeMap, VecDeque};
use trust::Operation;
use units::{EntryId, Name, Nanos};

/// Milliseconds for which cells answer a caller that a module does not run, without another
/// question: each costs the daemon half a millisecond.
const REFUSED_FOR_MS: u64 = 2_000;
/// Time without a call after which a service is stopped.
const IDLE: Nanos = Nanos::from_millis(60_000);
/// Largest number of questions that wait for a change of the desired state to end.
const QUESTIONS_MAX: usize = 1024;
/// Least time between two events of refused packets: strangers make up digests.
const TOLD_EVERY: Nanos = Nanos::from_millis(1_000);
/// Prefix of the names of such services.
const PREFIX: &str = "called-";
/// Number of digits of the digest in a name.
const DIGITS: usize = 12;

/// Services that run because packets call them, and the questions that wait.
#[derive(Default)]
pub(super) struct Called {
    services: BTreeMap<Name, Service>,
    /// Questions that wait for the end of a change.
    held: VecDeque<Wanted>,
    /// Questions whose modules are being fetched.
    fetching: Vec<CallQuestion>,
    /// Time of the last event of refused packets.
    reported: Option<Nanos>,
}

/// Service that runs because packets call it.
struct Service {
    /// Questions that wait for its start.
    waiting: Vec<CallQuestion>,
    /// Time of the last observed call, and the packet count at that time.
    used: Nanos,
    packets: u64,
}

impl Called {
    /// Returns true when a service runs because packets call it.
    pub(super) fn has(&self, service: &Name) -> bool {
        self.services.contains_key(service)
    }

    /// Returns true when no question waits for the end of a change.
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Releases the questions of an association that has ended.
    pub(super) fn forget(&mut self, id: AssociationId) {
        let is_its = |question: &CallQuestion| question.association == Some(id);
        self.held.retain(|held| !is_its(&held.question));
        self.fetching.retain(|question| !is_its(question));
        self.services.values_mut().for_each(|it| it.waiting.retain(|question| !is_its(question)));
    }

    /// Handles a question of a cell: it waits while `is_busy`, since a start in the middle of a
    /// change of the desired state would come into its steps.
    pub(super) fn handle_question(
        &mut self,
        state: &mut NodeState,
        deployments: &Deployments,
        is_busy: bool,
        wanted: Wanted,
    ) {
        if is_busy {
            if self.held.len() < QUESTIONS_MAX {
                return self.held.push_back(wanted);
            }
            return answer(state, wanted.question, refused());
        }
        let Wanted { question, sender } = wanted;
        if let Err(why) = self.find_or_start(state, deployments, question, &sender) {
            self.refuse(state, question, &sender, &why.message);
        }
    }

    /// Handles the end of a fetch for packets. Nothing follows when their association has ended
    /// meanwhile.
    pub(super) fn handle_fetched(
        &mut self,
        state: &mut NodeState,
        deployments: &Deployments,
        is_busy: bool,
        wanted: Wanted,
        came: Answer<()>,
    ) {
        let Some(at) = self.fetching.iter().position(|it| *it == wanted.question) else { return };
        self.fetching.swap_remove(at);
        match came {
            Ok(()) => self.handle_question(state, deployments, is_busy, wanted),
            Err(why) => self.refuse(state, wanted.question, &wanted.sender, &why.message),
        }
    }

    /// Handles the questions that waited for the end of a change.
    pub(super) fn release(&mut self, state: &mut NodeState, deployments: &Deployments) {
        for wanted in std::mem::take(&mut self.held) {
            self.handle_question(state, deployments, false, wanted);
        }
    }

    fn refuse(
        &mut self,
        state: &mut NodeState,
        question: CallQuestion,
        sender: &Sender,
        why: &str,
    ) {
        let now = state.now();
        if self.reported.is_none_or(|reported| now.saturating_sub(reported) >= TOLD_EVERY) {
            self.reported = Some(now);
            let who = match sender.principal {
                Some(principal) => principal.to_string(),
                None => "somebody without an association".to_owned(),
            };
            let digest = Digest::from_bytes(question.digest);
            let text = format!("packets of {who} call the module {}…: {why}", digest.short());
            let owner = state.owner_of(&sender.caller);
            state.note(Note::new(EventKind::CallRefused, text).module(digest).owner(owner));
        }
        answer(state, question, refused());
    }

    fn find_or_start(
        &mut self,
        state: &mut NodeState,
        deployments: &Deployments,
        question: CallQuestion,
        sender: &Sender,
    ) -> Answer<()> {
        let caller = &sender.caller;
        let digest = Digest::from_bytes(question.digest);
        if !state.modules.is_there(&digest) {
            check_wanted(state, caller, Operation::Deploy, &digest)?;
            let wanted = Wanted { question, sender: sender.clone() };
            self.fetching.push(question);
            state.push(Action::FetchCalled(Box::new(wanted)));
            return Ok(());
        }
        state.modules.resolve(&digest.to_string())?;
        let owner = state.owner_of(caller);
        let found = find(state, owner, &digest);
        let service = match &found {
            Some((service, _)) => service.clone(),
            None => name_for(owner, &digest)?,
        };
        // Also of one that runs: another capability of the same principal may not reach it.
        let request = DeployRequest {
            name: Some(service.to_string()),
            module: digest.to_string(),
            level: Some(abi::Level::User.to_string()),
            ..DeployRequest::default()
        };
        check_deployment(state, caller, &request)?;
        match found {
            Some((_, Some(entry))) => answer(state, question, CallAnswer::Service(entry)),
            Some((service, None)) => self.wait_for(state.now(), service, question),
            None => {
                let is_called = |service: &Name| self.has(service);
                let Begun { service, .. } =
                    deployments.begin(state, &is_called, caller, &request)?;
                let text = format!("the service '{service}' starts: packets call it");
                let note = Note::new(EventKind::ServiceCalled, text).service(&service);
                state.note(note.owner(owner));
                self.wait_for(state.now(), service, question);
            }
        }
        Ok(())
    }

    fn wait_for(&mut self, now: Nanos, service: Name, question: CallQuestion) {
        let new = || Service { waiting: Vec::new(), used: now, packets: 0 };
        self.services.entry(service).or_insert_with(new).waiting.push(question);
    }

    /// Answers the questions that wait for a service that runs.
    pub(super) fn handle_running(&mut self, state: &mut NodeState, service: &Name) {
        let Some(entry) = state.node.service(service).map(|service| service.entry) else { return };
        for question in self.take_waiting(service) {
            answer(state, question, CallAnswer::Service(entry));
        }
    }

    /// Refuses the questions that wait for a service that did not start, or is gone.
    pub(super) fn handle_ended(&mut self, state: &mut NodeState, service: &Name) {
        for question in self.take_waiting(service) {
            answer(state, question, refused());
        }
        if state.node.service(service).is_none() {
            self.services.remove(service);
        }
    }

    fn take_waiting(&mut self, service: &Name) -> Vec<CallQuestion> {
        let found = self.services.get_mut(service);
        found.map_or_else(Vec::new, |found| std::mem::take(&mut found.waiting))
    }

    /// Stops services that are no longer called; `packets_of` returns packet counts that cells have
    /// just reported.
    pub(super) fn end_idle(&mut self, state: &mut NodeState, packets_of: &dyn Fn(EntryId) -> u64) {
        let now = state.now();
        let mut idle = Vec::new();
        for (name, called) in &mut self.services {
            let entry = state.node.service(name).map(|service| service.entry);
            let packets = entry.map_or(0, packets_of);
            if packets != called.packets || !called.waiting.is_empty() {
                (called.packets, called.used) = (packets, now);
            } else if now.saturating_sub(called.used) >= IDLE {
                idle.push(name.clone());
            }
        }
        for service in idle {
            let gone = state.command(Command::Remove { service: service.clone(), cascade: true });
            if gone.is_ok() {
                let text = format!("nobody has called the service '{service}' for a minute");
                state.note(Note::new(EventKind::ServiceCalled, text).service(&service));
            }
        }
    }
}

/// Services that packets call, lent with what they are started by.
pub(crate) struct Calls<'a> {
    pub(super) state: &'a mut NodeState,
    pub(super) deployments: &'a Deployments,
    pub(super) called: &'a mut Called,
    /// True while no other change may begin.
    pub(super) is_busy: bool,
}

impl Calls<'_> {
    /// Handles packets that call a module.
    pub(crate) fn handle_call(&mut self, wanted: Wanted) {
        self.called.handle_question(self.state, self.deployments, self.is_busy, wanted);
    }

    /// Handles the end of a fetch for packets.
    pub(crate) fn handle_fetched(&mut self, wanted: Wanted, came: Answer<()>) {
        self.called.handle_fetched(self.state, self.deployments, self.is_busy, wanted, came);
    }

    /// Releases the questions of packets of an association that has ended.
    pub(crate) fn forget(&mut self, id: AssociationId) {
        self.called.forget(id);
    }

    /// Stops services that packets no longer call; `packets_of` returns packet counts that cells
    /// have just reported.
    pub(crate) fn end_idle(&mut self, packets_of: &dyn Fn(EntryId) -> u64) {
        self.called.end_idle(self.state, packets_of);
    }
}

const fn refused() -> CallAnswer {
    CallAnswer::Refused { for_ms: REFUSED_FOR_MS }
}

fn answer(state: &mut NodeState, question: CallQuestion, answer: CallAnswer) {
    state.push(Action::AnswerCall(question, answer));
}

/// Returns the service of this owner with this module, and its entry if it runs.
fn find(
    state: &NodeState,
    owner: Option<Owner>,
    digest: &Digest,
) -> Option<(Name, Option<EntryId>)> {
    let digest = digest.to_string();
    let principal = owner.map(|owner| owner.principal);
    let mut own = state.node.services().filter(|service| {
        service.module.digest == digest
            && service.owner.map(|owner| owner.principal) == principal
            && service.state != ServiceState::Stopping
    });
    let found = own.next()?;
    let runs = found.state == ServiceState::Running;
    Some((found.name.clone(), runs.then_some(found.entry)))
}

/// Returns the name of the service that packets of one principal call by one module.
fn name_for(owner: Option<Owner>, digest: &Digest) -> Answer<Name> {
    let number = owner.map_or(0, |owner| owner.principal.0);
    let digits: String = digest.hex().chars().take(DIGITS).collect();
    name(&format!("{PREFIX}{digits}-{number}"))
}

#[cfg(test)]
mod tests {
    use super::super::change::Change;
    use super::super::testbed::{MODULES, Testbed, deploy, digest, holder};
    use super::*;
    use crate::access::Caller;
    use node::Event;

    fn question(module: usize) -> CallQuestion {
        CallQuestion {
            association: AssociationId::new(7),
            digest: *digest(&MODULES[module]).bytes(),
        }
    }

    fn call(bed: &mut Testbed, question: CallQuestion, caller: &Caller) {
        let sender = Sender { caller: caller.clone(), principal: None };
        bed.control.calls().handle_call(Wanted { question, sender });
        bed.settle();
    }

    /// Removes and returns the answers that cells were given.
    fn answers(bed: &mut Testbed) -> Vec<CallAnswer> {
        let answer = |action| match action {
            Action::AnswerCall(_, answer) => Some(answer),
            _ => None,
        };
        std::mem::take(&mut bed.actions).into_iter().filter_map(answer).collect()
    }

    fn called(bed: &Testbed) -> Vec<String> {
        let services = bed.control.node().services();
        services.map(|service| service.name.to_string()).collect()
    }

    #[test]
    fn packets_have_a_service_started_and_are_answered_when_it_runs() {
        let mut bed = Testbed::new();
        call(&mut bed, question(4), &Caller::Operator);
        call(&mut bed, question(4), &Caller::Operator);
        assert_eq!((called(&bed).len(), answers(&mut bed).len()), (1, 0));
        let service = called(&bed).remove(0);
        bed.starts(&service);
        let runs = CallAnswer::Service(bed.entry(&service));
        assert_eq!(answers(&mut bed), [runs, runs]);
        call(&mut bed, question(4), &Caller::Operator);
        assert_eq!(answers(&mut bed), [runs], "it runs");
        assert!(!bed.is_writing() && !bed.is_desired(&service), "nobody desires it");
        let refusal = bed.refused(|reply| Change::Deploy(Box::new(deploy(&service, 4)), reply));
        assert!(refusal.message.contains("packets have called"), "{}", refusal.message);
    }

    #[test]
    fn packets_of_a_service_that_does_not_start_are_refused_and_so_are_those_of_strangers() {
        let mut bed = Testbed::new();
        call(&mut bed, question(4), &Caller::Operator);
        let service = called(&bed).remove(0);
        let (entry, reason) = (bed.entry(&service), "no room".to_owned());
        bed.event(Event::ServiceFailed { entry, reason });
        assert_eq!(answers(&mut bed), [refused()]);
        let before = bed.notes.len();
        for _ in 0..2 {
            call(&mut bed, question(4), &Caller::Anyone);
        }
        assert_eq!(answers(&mut bed), [refused(), refused()]);
        assert_eq!(bed.notes.len(), before + 1, "one event a second");
        assert!(called(&bed).is_empty());
    }

    #[test]
    fn a_called_module_that_is_not_held_is_fetched_for_callers_with_the_right_to_it() {
        let mut bed = Testbed::new();
        let unknown = CallQuestion { digest: [9; 32], ..question(4) };
        call(&mut bed, unknown, &Caller::Anyone);
        assert_eq!(answers(&mut bed), [refused()]);
        call(&mut bed, unknown, &holder());
        let Some(Action::FetchCalled(wanted)) = bed.actions.pop() else { panic!("not fetched") };
        bed.control.calls().handle_fetched(*wanted, Err(crate::answer::failed("nobody has it")));
        bed.settle();
        assert_eq!(answers(&mut bed), [refused()]);
    }

    #[test]
    fn calls_wait_for_the_end_of_a_change_and_are_dropped_with_their_association() {
        let mut bed = Testbed::new();
        let request = api::SessionRequest { name: "gold".to_owned(), ..Default::default() };
        let _made = bed.ask(|reply| Change::CreateSession(Box::new(request), reply));
        call(&mut bed, question(4), &Caller::Operator);
        assert!(called(&bed).is_empty() && answers(&mut bed).is_empty(), "it comes into no change");
        bed.write();
        assert_eq!(called(&bed).len(), 1);
        bed.control.calls().forget(AssociationId::new(7).unwrap());
        let service = called(&bed).remove(0);
        bed.starts(&service);
        assert_eq!(answers(&mut bed), [], "nobody waits any more");
    }

    #[test]
    fn a_service_that_is_not_called_for_a_minute_is_stopped() {
        let mut bed = Testbed::new();
        call(&mut bed, question(4), &Caller::Operator);
        let service = called(&bed).remove(0);
        bed.starts(&service);
        bed.wait(59_000);
        bed.control.calls().end_idle(&|_| 3);
        bed.wait(59_000);
        bed.control.calls().end_idle(&|_| 3);
        bed.settle();
        assert!(!bed.effects.iter().any(|it| matches!(it, node::Effect::StopService { .. })));
        bed.wait(1_000);
        bed.control.calls().end_idle(&|_| 3);
        bed.settle();
        bed.stops(&service);
        assert!(called(&bed).is_empty());
        call(&mut bed, question(4), &Caller::Operator);
        assert_eq!(called(&bed).len(), 1, "called again it starts again");
    }
}

#[cfg(test)]
mod ended_associations {
    use super::super::Control;
    use super::super::state::unit::state;
    use super::*;
    use crate::access::Caller;
    use crate::answer::failed;

    #[test]
    fn no_caller_is_answered_whose_association_ended_while_the_module_was_fetched() {
        let folder = tempfile::tempdir().unwrap();
        let mut control = Control::new(state(folder.path()));
        let ids = [1, 2].map(|number| AssociationId::new(number).unwrap());
        let [stays, ends] = ids.map(|id| Wanted {
            question: CallQuestion { association: Some(id), digest: [7; 32] },
            sender: Sender { caller: Caller::Operator, principal: None },
        });
        let questions = [stays.question, ends.question];
        [stays, ends].into_iter().for_each(|wanted| control.calls().handle_call(wanted));
        let mut fetches = Vec::new();
        while let Some(action) = control.poll_action() {
            let Action::FetchCalled(wanted) = action else { panic!("it is to be fetched") };
            fetches.push(wanted);
        }
        assert_eq!(fetches.iter().map(|it| it.question).collect::<Vec<_>>(), questions);
        control.calls().forget(ids[1]);
        for wanted in fetches {
            control.calls().handle_fetched(*wanted, Err(failed("it did not come")));
        }
        let answered = std::iter::from_fn(|| control.poll_action()).filter_map(|action| {
            let Action::AnswerCall(question, answer) = action else { return None };
            Some((question, answer))
        });
        assert_eq!(answered.collect::<Vec<_>>(), [(questions[0], refused())]);
    }
}
