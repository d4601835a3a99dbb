//! The services that active packets call: found among those of their principal, or started for
//! them, and stopped when nobody has called them for a while.
//!
//! ```text
//! cell: who runs DIGEST for ID? ─▶ is it held? ─▶ the caller's service of that module ─▶ answer
//!                                  │ no: may it   │ none: may he deploy it? ─▶ deploy ─ it runs ─▶ answer
//!                                  │ be his?      └ no ─▶ refused, for a while
//!                                  └▶ fetched, from his node first ─▶ asked again
//! ```
//!
//! They are not desired: an apply does not take them away, nothing of them is written down, and a
//! start of the node begins without them.

use crate::access::Caller;
use crate::daemon::Daemon;
use crate::events::Note;
use crate::http::Answer;
use api::{DeployRequest, EventKind};
use association::AssociationId;
use cell::protocol::ToCell;
use cell::{CallAnswer, CallQuestion};
use module_store::Digest;
use node::{Command, Owner, ServiceState};
use std::collections::{BTreeMap, VecDeque};
use tokio::time::Instant;
use trust::Operation;
use units::{EntryId, Name};

/// How long a caller is told nothing else than that a module does not run: each question costs
/// the daemon half a millisecond.
const REFUSED_FOR_MS: u64 = 2_000;
/// How long a service stays that nobody calls.
const IDLE: tokio::time::Duration = tokio::time::Duration::from_secs(60);
/// Questions that wait for a change of the desired state to end.
const QUESTIONS_MAX: usize = 1024;
/// Between two events that say why packets are refused: strangers make up digests.
const TOLD_EVERY: tokio::time::Duration = tokio::time::Duration::from_secs(1);
/// What the names of such services begin with.
const PREFIX: &str = "called-";
/// Digits of the digest in a name.
const DIGITS: usize = 12;

/// Services that run because packets call them, and who asks for them.
#[derive(Default)]
pub(super) struct Called {
    services: BTreeMap<Name, Service>,
    /// Questions that cannot be answered now.
    held: VecDeque<CallQuestion>,
    /// When it was last said why somebody is refused.
    told: Option<Instant>,
}

struct Service {
    /// Who waits for it to start.
    waiting: Vec<CallQuestion>,
    /// When it was called last, as far as that was looked at, and its packets then.
    used: Instant,
    packets: u64,
}

impl Called {
    /// An association is gone, and with it its questions.
    pub(super) fn forget(&mut self, id: AssociationId) {
        let is_its = |question: &CallQuestion| question.association == Some(id);
        self.held.retain(|question| !is_its(question));
        self.services.values_mut().for_each(|it| it.waiting.retain(|question| !is_its(question)));
    }
}

impl Daemon {
    /// Whether a service runs because packets call it.
    pub(crate) fn is_called(&self, service: &Name) -> bool {
        self.neighbours.as_ref().is_some_and(|it| it.called.services.contains_key(service))
    }

    /// The cell asks which service a digest means.
    pub(crate) fn packets_call(&mut self, question: CallQuestion) {
        let Some(neighbours) = &mut self.neighbours else { return };
        // A start in the middle of a change of the desired state would come into its steps.
        if self.work.is_some() || self.desired.is_busy() {
            if neighbours.called.held.len() < QUESTIONS_MAX {
                return neighbours.called.held.push_back(question);
            }
            return self.answer_call(question, CallAnswer::Refused { for_ms: REFUSED_FOR_MS });
        }
        let done = self.find_or_start(question);
        self.refuse_call(question, done);
    }

    /// What packets call and the node did not hold has been looked for.
    pub(crate) fn packets_may_call(&mut self, question: CallQuestion, came: Answer<()>) {
        match came {
            Ok(()) => self.packets_call(question),
            Err(_) => self.refuse_call(question, came),
        }
    }

    fn refuse_call(&mut self, question: CallQuestion, done: Answer<()>) {
        if let Err(why) = done {
            self.tell_refused(question, &why.message);
            self.answer_call(question, CallAnswer::Refused { for_ms: REFUSED_FOR_MS });
        }
    }

    /// Says why packets are refused, to the operator and to who sent them.
    fn tell_refused(&mut self, question: CallQuestion, why: &str) {
        let now = Instant::now();
        let Some(neighbours) = &mut self.neighbours else { return };
        let told = &mut neighbours.called.told;
        if told.is_some_and(|told| now.duration_since(told) < TOLD_EVERY) {
            return;
        }
        *told = Some(now);
        let live = question.association.and_then(|id| neighbours.live.get(&id));
        let (who, caller) = match live {
            Some(live) => (live.principal.to_string(), live.caller.clone()),
            None => ("somebody without an association".to_owned(), Caller::Anyone),
        };
        let digest = Digest::from_bytes(question.digest);
        let text = format!("packets of {who} call the module {}…: {why}", digest.short());
        let owner = self.owner_of(&caller);
        self.note(Note::new(EventKind::CallRefused, text).module(digest).owner(owner));
    }

    /// Answers what has waited for a change to end.
    pub(crate) fn release_calls(&mut self) {
        if self.work.is_some() || self.desired.is_busy() {
            return;
        }
        let Some(neighbours) = &mut self.neighbours else { return };
        for question in std::mem::take(&mut neighbours.called.held) {
            self.packets_call(question);
        }
    }

    fn answer_call(&self, question: CallQuestion, answer: CallAnswer) {
        self.cells.tell_all(&ToCell::Called(question, answer), &[]);
    }

    fn find_or_start(&mut self, question: CallQuestion) -> Answer<()> {
        let (caller, previous) = match question.association {
            None => (Caller::Anyone, None),
            Some(id) => {
                let live = self.neighbours.as_ref().and_then(|it| it.live.get(&id));
                let Some(live) = live else { return Ok(()) };
                (live.caller.clone(), Some(live.principal))
            }
        };
        let digest = Digest::from_bytes(question.digest);
        if !self.is_held(&digest) {
            self.may_want(&caller, Operation::Deploy, &digest)?;
            self.want_for_packets(caller, question, previous);
            return Ok(());
        }
        self.resolve(&digest.to_string())?;
        let owner = self.owner_of(&caller);
        let found = self.service_called(owner, &digest);
        let name = match &found {
            Some((name, _)) => name.clone(),
            None => name_for(owner, &digest)?,
        };
        // Also of one that runs: another capability of the same principal may not reach it.
        let request = DeployRequest {
            name: Some(name.to_string()),
            module: digest.to_string(),
            level: Some(abi::Level::User.to_string()),
            ..DeployRequest::default()
        };
        self.authorize_deployment(&caller, &request)?;
        match found {
            Some((_, Some(entry))) => self.answer_call(question, CallAnswer::Service(entry)),
            Some((name, None)) => self.wait_for(name, question),
            None => {
                let (name, ..) = self.start_deployment(&caller, &request)?;
                let text = format!("the service '{name}' starts: packets call it");
                self.note(Note::new(EventKind::ServiceCalled, text).service(&name).owner(owner));
                self.wait_for(name, question);
            }
        }
        Ok(())
    }

    /// The service of this owner with this module, and its entry if it runs.
    fn service_called(
        &self,
        owner: Option<Owner>,
        digest: &Digest,
    ) -> Option<(Name, Option<EntryId>)> {
        let digest = digest.to_string();
        let principal = owner.map(|owner| owner.principal);
        let mut own = self.node.services().filter(|service| {
            service.module.digest == digest
                && service.owner.map(|owner| owner.principal) == principal
                && service.state != ServiceState::Stopping
        });
        let found = own.next()?;
        let runs = found.state == ServiceState::Running;
        Some((found.name.clone(), runs.then_some(found.entry)))
    }

    fn wait_for(&mut self, name: Name, question: CallQuestion) {
        let Some(neighbours) = &mut self.neighbours else { return };
        let now = Instant::now();
        let new = || Service { waiting: Vec::new(), used: now, packets: 0 };
        neighbours.called.services.entry(name).or_insert_with(new).waiting.push(question);
    }

    /// A service runs: whoever called it hears.
    pub(crate) fn called_runs(&mut self, service: &Name) {
        let Some(entry) = self.node.service(service).map(|service| service.entry) else { return };
        for question in self.take_calls_of(service) {
            self.answer_call(question, CallAnswer::Service(entry));
        }
    }

    /// A service did not start, or is gone.
    pub(crate) fn called_ended(&mut self, service: &Name) {
        for question in self.take_calls_of(service) {
            self.answer_call(question, CallAnswer::Refused { for_ms: REFUSED_FOR_MS });
        }
        if self.node.service(service).is_none()
            && let Some(neighbours) = &mut self.neighbours
        {
            neighbours.called.services.remove(service);
        }
    }

    fn take_calls_of(&mut self, service: &Name) -> Vec<CallQuestion> {
        let called = self.neighbours.as_mut().map(|it| &mut it.called);
        let found = called.and_then(|called| called.services.get_mut(service));
        found.map_or_else(Vec::new, |found| std::mem::take(&mut found.waiting))
    }

    /// Stops what nobody calls any more; the cell has just reported.
    pub(crate) fn look_at_called(&mut self) {
        let Some(neighbours) = &mut self.neighbours else { return };
        let now = Instant::now();
        let mut idle = Vec::new();
        for (name, called) in &mut neighbours.called.services {
            let entry = self.node.service(name).map(|service| service.entry);
            let report = entry.and_then(|entry| self.cells.report_of(entry));
            let packets = report.map_or(0, |report| report.packets);
            if packets != called.packets || !called.waiting.is_empty() {
                (called.packets, called.used) = (packets, now);
            } else if now.duration_since(called.used) >= IDLE {
                idle.push(name.clone());
            }
        }
        for service in idle {
            let gone = self.command(Command::Remove { service: service.clone(), cascade: true });
            if gone.is_ok() {
                let text = format!("nobody has called the service '{service}' for a minute");
                self.note(Note::new(EventKind::ServiceCalled, text).service(&service));
            }
        }
    }
}

/// The name of a service that packets call: of one principal and module.
fn name_for(owner: Option<Owner>, digest: &Digest) -> Answer<Name> {
    let number = owner.map_or(0, |owner| owner.principal.0);
    let digits: String = digest.hex().chars().take(DIGITS).collect();
    Name::new(format!("{PREFIX}{digits}-{number}")).map_err(crate::views::usage)
}
