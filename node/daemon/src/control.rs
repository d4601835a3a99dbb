//! Control plane: everything that decides what runs, without a kernel, a process or a socket.
//!
//! ```text
//!  requests, events, what cells and the journal say ─▶ handle_* ─▶ ┌─────────┐
//!                                                                  │ Control │ ─▶ poll_action
//!       one change at a time: queue ─▶ authorize ─▶ command ─▶ ────└─────────┘
//! ```
//!
//! Effects of a change are [`Action`]s, in their order; the daemon does actions before anybody
//! can read an answer. A change that cannot be recorded is undone, and refused.

pub(crate) mod action;
pub(crate) mod apply;
pub(crate) mod authority;
pub(crate) mod authorize;
pub(crate) mod called;
pub(crate) mod calls;
pub(crate) mod change;
pub(crate) mod deployments;
pub(crate) mod desired;
pub(crate) mod edit;
mod lacks;
pub(crate) mod memory;
pub(crate) mod modules;
mod movers;
mod notices;
pub(crate) mod placement;
mod recorded;
pub(crate) mod recording;
mod removals;
mod revoke;
mod rules;
pub(crate) mod sessions;
pub(crate) mod signatures;
#[cfg(test)]
mod simulation;
pub(crate) mod state;
mod switch;
#[cfg(test)]
pub(crate) mod testbed;

use crate::access::Caller;
use crate::answer::{Answer, error, refused};
use crate::events::Note;
use crate::reply::Reply;
use action::Action;
use api::ErrorCode;
use apply::{Goal, Progress, Purpose as WorkPurpose, Resumption, Work};
use called::{Called, Calls};
use cell::Compiled;
use change::{Change, Queued};
use deployments::Deployments;
use edit::Edit;
use memory::{MemoryQuestion, MemoryWanted, Next};
use module_store::Digest;
use movers::Movers;
use node::desired::DesiredState;
use node::{Command, Event, Node, Outcome, ServiceState};
use recorded::{Ahead, Purpose, Recorded};
use recording::Facts;
use removals::Removals;
use session::admission::{Capacity, MemoryUsed};
use state::NodeState;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use units::{EntryId, Name, Nanos};

/// Control plane of a node.
pub(crate) struct Control {
    state: NodeState,
    /// Change of the desired state that takes several steps.
    work: Option<Box<Work>>,
    resumption: Resumption,
    deployments: Deployments,
    movers: Movers,
    removals: Removals,
    /// Removals of services that are being drained.
    draining: BTreeMap<EntryId, Ahead>,
    memory: MemoryQuestion,
    called: Called,
    /// Changes that wait for their turn.
    queue: VecDeque<Queued>,
    /// Time of the node's next timeout, as far as it is known.
    due: Option<Nanos>,
    is_due_known: bool,
}

impl Control {
    /// Creates the control plane of a state in which no change is under way.
    pub(crate) fn new(state: NodeState) -> Self {
        Self {
            state,
            work: None,
            resumption: Resumption::default(),
            deployments: Deployments::default(),
            movers: Movers::default(),
            removals: Removals::default(),
            draining: BTreeMap::new(),
            memory: MemoryQuestion::default(),
            called: Called::default(),
            queue: VecDeque::new(),
            due: None,
            is_due_known: false,
        }
    }

    /// Returns the state.
    pub(crate) const fn state(&self) -> &NodeState {
        &self.state
    }

    /// Returns the node.
    pub(crate) const fn node(&self) -> &Node {
        self.state.node()
    }

    /// Returns the state, for questions that read its clock or load modules.
    pub(crate) fn state_mut(&mut self) -> &mut NodeState {
        &mut self.state
    }

    /// Returns true while a change of several steps is under way.
    pub(crate) const fn is_changing(&self) -> bool {
        self.work.is_some()
    }

    /// Returns true when no change is under way.
    pub(crate) fn is_idle(&self) -> bool {
        !self.is_busy()
            && !self.state.desired.is_recording()
            && self.deployments.is_empty()
            && self.removals.is_empty()
            && self.movers.is_empty()
    }

    /// Returns true when the node has settled: no change is under way, and no new version watched.
    pub(crate) fn is_settled(&self) -> bool {
        !self.state.node.is_replacing() && self.is_idle()
    }

    /// Sets the node's time.
    pub(crate) fn set_now(&mut self, now: Nanos) {
        self.state.set_now(now);
    }

    /// Sets the entries of ready reusable instances, the newest first.
    pub(crate) fn set_reusable(&mut self, reusable: Vec<(Arc<Compiled>, EntryId)>) {
        self.state.set_reusable(reusable);
    }

    /// Sets the reason for the ledger not being written, if there is one: no service is taken then.
    pub(crate) fn set_ledger_problem(&mut self, problem: Option<String>) {
        self.state.set_ledger_problem(problem);
    }

    /// Sets what the node has to give to sessions. Those for which that is too little are promised
    /// nothing, until they are tried again.
    pub(crate) fn set_capacity(&mut self, capacity: Capacity) {
        sessions::set_capacity(&mut self.state, capacity);
    }

    /// Sets the memory that sessions use, as cells reported it.
    pub(crate) fn set_memory_used(&mut self, used: MemoryUsed) {
        self.state.node.set_memory_used(used);
    }

    /// Handles a change: it waits for its turn.
    pub(crate) fn handle_change(&mut self, caller: Caller, change: Change) {
        self.queue.push_back(Queued { caller, change });
    }

    /// Handles an event of cells or of the data plane. Whoever is refused something by it is, if
    /// `is_short`, because there is not enough of it.
    pub(crate) fn handle_event(&mut self, event: Event, is_short: bool) {
        self.state.event(event, is_short);
    }

    /// Handles a port that has come, at which no service can be at kernel level: those that are
    /// there go to user level.
    pub(crate) fn handle_no_kernel_level(&mut self) {
        switch::leave_kernel(&mut self.state);
    }

    /// Queues an event for the operator and the owner of its subject.
    pub(crate) fn note(&mut self, note: Note) {
        self.state.note(note);
    }

    /// Makes the front door bring what comes for associations to cells.
    ///
    /// # Errors
    /// An address of the node file cannot be served.
    pub(crate) fn serve_associations(&mut self) -> Result<(), node::Refusal> {
        let at = self.state.file.associations.as_ref().map_or(Vec::new(), |it| it.listen.clone());
        self.state.node.serve_associations(&at)
    }

    /// Goes on with the services of a node that was adopted: those of `runs` run in its cell, or
    /// there is none, with the reason.
    pub(crate) fn adopt(&mut self, runs: Result<&BTreeSet<EntryId>, String>) {
        let (now, desired) = (self.state.now(), Arc::clone(self.state.desired.state()));
        self.state.node.resume(now, runs, &desired);
    }

    /// Forbids the levels below user for as long as this daemon runs, and takes all to user level.
    pub(crate) fn forbid_below(&mut self) -> Answer<()> {
        self.state.allow_below(false);
        switch::set_bpf(&mut self.state, false).map(drop)
    }

    /// Handles the node's timeout.
    pub(crate) fn handle_timeout(&mut self) {
        self.state.timeout();
    }

    /// Handles the end of a write of the desired state.
    pub(crate) fn handle_recorded(&mut self, written: Answer<()>) {
        let Some(then) = self.state.desired.handle_written(written.is_ok()) else { return };
        if written.is_ok() {
            let desired = Arc::clone(self.state.desired.state());
            self.state.node.await_only(&desired);
        }
        self.continue_recorded(then, written);
        self.state.write_next();
    }

    /// Keeps the code of a module, for the levels below user too if `bpf`.
    pub(crate) fn handle_code(&mut self, digest: &Digest, bpf: bool, code: &Arc<Compiled>) {
        self.state.modules.set_code(digest, bpf, code);
    }

    /// Handles the end of a compilation that work may wait for.
    pub(crate) fn handle_compiled(&mut self, digest: &Digest, failure: Option<&String>) {
        let Some(mut work) = self.work.take() else { return };
        match work.handle_compiled(digest, failure) {
            Some(problem) => self.end_work(work.into_purpose(), Err(problem)),
            None => self.work = Some(work),
        }
    }

    /// Continues the removal of a service that is drained, or cannot be.
    pub(crate) fn handle_drained(&mut self, entry: EntryId) {
        if let Some(removal) = self.draining.remove(&entry) {
            self.do_ahead(removal);
        }
    }

    /// Handles the time for which packets waited for a new version.
    pub(crate) fn handle_paused(&mut self, service: &Name, paused: Nanos) {
        self.deployments.handle_paused(service, paused);
    }

    /// Refuses all requests to move a service.
    pub(crate) fn refuse_movers(&mut self, service: &Name, message: &str) {
        self.movers.refuse(service, message);
    }

    /// Handles an answer of cells about the memory in use; `None` when no cell can give one.
    pub(crate) fn handle_memory(&mut self, used: Option<MemoryUsed>) {
        self.set_memory_used(used.unwrap_or_default());
        self.memory.handle_told();
    }

    /// Handles the end of the time for that answer.
    pub(crate) fn handle_memory_overdue(&mut self, number: u64) {
        self.memory.handle_overdue(number);
    }

    /// Ends capabilities that have expired. Called once a second.
    pub(crate) fn handle_second(&mut self) {
        revoke::handle_second(&mut self.state, &mut self.deployments);
        self.end_work_of_ended();
    }

    /// Removes orphaned objects; called once, when the node starts.
    pub(crate) fn end_unknown_capabilities(&mut self) {
        revoke::end_unknown(&mut self.state, &mut self.deployments);
    }

    /// Handles a request to revoke.
    pub(crate) fn handle_revocation(
        &mut self,
        request: &api::RevokeRequest,
        reply: Reply<api::Revoked>,
    ) {
        let Self { state, deployments, removals, .. } = self;
        revoke::handle_request(state, deployments, removals, request, reply);
        self.end_work_of_ended();
    }

    /// Makes the change under way neither start nor restore what ran under capabilities that are no
    /// longer valid.
    fn end_work_of_ended(&mut self) {
        let Some(work) = &mut self.work else { return };
        let ended = revoke::ended(&mut self.state);
        if !ended.is_empty() {
            work.handle_ended(&self.state, &ended);
        }
    }

    /// Handles a module that is in the store, or could not be written.
    pub(crate) fn handle_stored(&mut self, digest: Digest, stored: Answer<()>) {
        match stored {
            Ok(()) => self.state.forget_modules(),
            // What runs is in use, whether or not its file could be written once more.
            Err(problem) => {
                let is_used = self.state.is_used(&digest);
                self.state.modules.handle_not_stored(digest, problem, is_used);
            }
        }
    }

    /// Returns the services that packets call, for what cells and associations say of them.
    pub(crate) fn calls(&mut self) -> Calls<'_> {
        let is_busy = self.is_busy();
        let Self { state, deployments, called, .. } = self;
        Calls { state, deployments, called, is_busy }
    }

    /// Starts what shall run and does not.
    pub(crate) fn resume(&mut self) {
        let goal = self.resumption.goal(&mut self.state);
        self.begin_work(goal);
    }

    /// Makes the next try to start what is missing due now.
    pub(crate) fn hasten_resumption(&mut self) {
        self.resumption.hasten(self.state.now());
    }

    /// Returns the time of the next try to start what is missing.
    pub(crate) const fn resumes_at(&self) -> Option<Nanos> {
        self.resumption.poll_timeout()
    }

    /// Handles the time of a try. Returns true when [`Control::resume`] is to be called.
    pub(crate) fn handle_resumption(&mut self) -> bool {
        let (is_idle, is_short) = (self.is_idle(), self.state.desired.shortfall().is_any());
        self.resumption.handle_timeout(self.state.now(), is_idle, is_short)
    }

    /// Returns the time by which a state must be confirmed, unless work is under way.
    pub(crate) fn confirmed_until(&self) -> Option<Nanos> {
        let unconfirmed = self.state.desired.unconfirmed().filter(|_| self.work.is_none());
        unconfirmed.map(|unconfirmed| unconfirmed.until)
    }

    /// Handles the end of the time for a confirmation.
    pub(crate) fn handle_not_confirmed(&mut self) {
        if let Some(goal) = apply::handle_not_confirmed(&mut self.state) {
            self.begin_work(goal);
        }
    }

    /// Returns true when core/node was changed since this was last asked.
    pub(crate) fn take_touched(&mut self) -> bool {
        let is_touched = self.state.take_touched();
        self.is_due_known &= !is_touched;
        is_touched
    }

    /// Returns the time of the node's next timeout. Call it when no action is left.
    pub(crate) fn poll_timeout(&mut self) -> Option<Nanos> {
        if !self.is_due_known {
            (self.due, self.is_due_known) = (self.state.node.poll_timeout(), true);
        }
        self.due
    }

    /// Returns true, once, if a client may have learned of a change since the last call: the record
    /// of what runs is then written first, except in the middle of a change of several steps, whose
    /// end is reported.
    pub(crate) fn take_urgent(&mut self) -> bool {
        !self.is_changing() && self.state.take_urgent()
    }

    /// Returns the next action. Reports of `core/node` are handled in their order among actions.
    pub(crate) fn poll_action(&mut self) -> Option<Action> {
        loop {
            match self.state.pop()? {
                state::Queued::Action(action) => return Some(action),
                state::Queued::Notice { notice, is_short } => {
                    notices::handle(self, notice, is_short)
                }
            }
        }
    }

    /// Goes on with what is under way, or begins what has waited, by one step. Returns false when
    /// there is nothing to do until something else happens. Call it when no action is left.
    pub(crate) fn advance(&mut self) -> bool {
        if let Some(mut work) = self.work.take() {
            match work.advance(&mut self.state) {
                Progress::Waits => self.work = Some(work),
                Progress::Stepped => {
                    self.work = Some(work);
                    return true;
                }
                Progress::Ended(done) => {
                    self.end_work(work.into_purpose(), done);
                    return true;
                }
            }
        }
        if self.release_next() {
            return true;
        }
        if self.is_busy() || self.called.is_empty() {
            return false;
        }
        let Self { state, deployments, called, .. } = self;
        called.release(state, deployments);
        true
    }

    /// Returns true while no other change may begin.
    fn is_busy(&self) -> bool {
        self.work.is_some() || self.state.desired.is_ahead()
    }

    /// Begins the change that is next, if it need not wait.
    fn release_next(&mut self) -> bool {
        let Some(next) = self.queue.front() else { return false };
        if self.is_busy() || (next.change.is_exclusive() && !self.is_idle()) {
            return false;
        }
        if let Some(wanted) = next.change.memory_wanted() {
            match self.memory.handle_change() {
                Next::Decide => {}
                Next::Wait => return false,
                Next::Ask(number) => {
                    let session = match wanted {
                        MemoryWanted::OfNew => None,
                        MemoryWanted::Of(name) => Name::new(name).ok(),
                    };
                    let session = session.and_then(|name| Some(self.state.node.session(&name)?.id));
                    self.state.push(Action::AskMemory(number, session));
                    return true;
                }
            }
        }
        let Some(Queued { caller, change }) = self.queue.pop_front() else { return false };
        let checked = match self.check_confirmed() {
            Err(refusal) if !change.may_come_unconfirmed() => Err(refusal),
            // Asked when its turn has come: owners may have changed while it waited.
            _ => authorize::check_change(&mut self.state, &caller, &change),
        };
        match checked {
            Ok(()) => self.do_change(&caller, change),
            Err(refusal) => change.refuse(refusal),
        }
        true
    }

    /// Refuses a change while a state waits for its confirmation.
    fn check_confirmed(&self) -> Answer<()> {
        let Some(unconfirmed) = self.state.desired.unconfirmed() else { return Ok(()) };
        let left = unconfirmed.until.saturating_sub(self.state.now()).as_millis() / 1000;
        let message = format!(
            "what was applied last waits for its confirmation, {left} s more; it would take this change back with it"
        );
        let help = "`tam confirm` keeps it, `tam rollback` takes it back now";
        Err(error(ErrorCode::Failed, message, Some(help)))
    }

    fn do_change(&mut self, caller: &Caller, change: Change) {
        let Self { state, called, .. } = self;
        let ahead = match change {
            Change::Deploy(request, reply) => {
                let is_called = |service: &Name| called.has(service);
                self.deployments.handle_request(state, &is_called, caller, &request, reply);
                return;
            }
            Change::Remove(wanted, cascade, reply) => {
                removals::prepare(state, &wanted, cascade, reply)
            }
            Change::Move(wanted, request, reply) => {
                return self.movers.handle_request(state, &wanted, &request, reply);
            }
            Change::Bpf(request, reply) => {
                return switch::handle_request(state, request.enabled, reply);
            }
            Change::AddRules(request, reply) => {
                return rules::handle_add(state, caller, &request, reply);
            }
            Change::RemoveRule(rule, reply) => rules::removal(state, rule, reply),
            Change::CreateSession(request, reply) => {
                sessions::create(state, caller, &request, reply)
            }
            Change::SetSession(wanted, change, reply) => {
                sessions::set(state, &wanted, &change, reply)
            }
            Change::RemoveSession(wanted, cascade, reply) => {
                sessions::remove(&wanted, cascade, reply)
            }
            Change::Apply(request, reply) => {
                let goal = apply::handle_apply(state, &request, reply);
                return goal.into_iter().for_each(|goal| self.begin_work(goal));
            }
            Change::Rollback(request, reply) => {
                let goal = apply::handle_rollback(state, &request, reply);
                return goal.into_iter().for_each(|goal| self.begin_work(goal));
            }
            Change::Confirm(reply) => return apply::handle_confirm(state, reply),
        };
        if let Some((ahead, cause, edit)) = ahead {
            self.record_ahead(ahead, cause, edit);
        }
    }

    /// Begins the work towards a goal.
    fn begin_work(&mut self, mut goal: Goal) {
        // The journal may have things of theirs yet.
        let ended = revoke::ended(&mut self.state);
        Edit::end_capabilities(&self.state.node, ended).apply(&mut goal.target);
        let before = apply::present(&self.state, |service| self.called.has(service));
        match Work::begin(goal, before, &mut self.state) {
            Ok(work) => {
                self.state.set_needed(work.digests());
                self.work = Some(Box::new(work));
            }
            Err((purpose, problem)) => self.end_work(purpose, Err(problem)),
        }
    }

    fn end_work(&mut self, purpose: WorkPurpose, done: Answer<()>) {
        self.state.set_needed(Default::default());
        match purpose {
            WorkPurpose::Apply(finish) => {
                match &done {
                    Err(problem) => self.note_missing(&problem.message),
                    // Everything that is desired is there.
                    Ok(()) => *self.state.desired.shortfall_mut() = Default::default(),
                }
                apply::finish(&mut self.state, *finish, done);
            }
            WorkPurpose::Resume => self.handle_resumed(),
        }
        self.state.forget_modules();
    }

    /// Notes what did not come back on the way back: it is tried again, as after a start.
    fn note_missing(&mut self, why: &str) {
        let desired = DesiredState::clone(self.state.desired.state());
        for (name, service) in &desired.services {
            let is_there = self.state.node.service(name).is_some_and(|it| service.is_version(it));
            if !is_there {
                let reason = format!("it did not come back after a change that failed: {why}");
                let missing = &mut self.state.desired.shortfall_mut().services;
                missing.entry(name.clone()).or_insert(reason);
            }
        }
        self.handle_resumed();
    }

    fn handle_resumed(&mut self) {
        let is_short = self.state.desired.shortfall().is_any();
        self.resumption.handle_ended(self.state.now(), is_short);
    }

    fn continue_recorded(&mut self, then: Recorded, written: Answer<()>) {
        let state = &mut self.state;
        match then {
            Recorded::Noted(message) => {
                if let Err(problem) = written {
                    tracing::error!(problem = problem.message, "{message}");
                }
            }
            Recorded::Moved { service, from, answers } => {
                self.movers.handle_recorded(state, service, from, answers, written);
            }
            Recorded::Bpf { enabled, reply } => {
                switch::handle_recorded(state, enabled, reply, written);
            }
            Recorded::Deployed(waiting) => {
                self.deployments.handle_recorded(state, *waiting, written);
            }
            Recorded::MissingRemoved { service, reply } => {
                removals::handle_recorded(state, &service, reply, written);
            }
            Recorded::RulesAdded { added, reply } => {
                rules::handle_recorded(state, added, reply, written);
            }
            Recorded::Followed { answer, reply } => reply.answer(written.map(|()| answer)),
            Recorded::Confirmed { unconfirmed, reply } => {
                apply::handle_confirmed(state, unconfirmed, reply, written);
            }
            Recorded::Work => {
                if let Some(work) = &mut self.work {
                    work.handle_recorded(written);
                }
            }
            Recorded::Then(ahead) => self.go_ahead(*ahead, written),
        }
    }

    /// Begins a command that could not be undone: it is checked on a copy of the node, then
    /// recorded, then done.
    fn record_ahead(&mut self, ahead: Ahead, cause: String, edit: Edit) {
        let mut trial = self.state.node.clone();
        if let Err(refusal) = trial.handle_command(self.state.now(), ahead.command.clone()) {
            return self.answer_ahead(ahead.purpose, Err(refused(&refusal)));
        }
        self.state.record(Facts::of(cause), edit, Recorded::Then(Box::new(ahead)));
    }

    fn go_ahead(&mut self, ahead: Ahead, written: Answer<()>) {
        if let Err(refusal) = written {
            return self.answer_ahead(ahead.purpose, Err(refusal));
        }
        let entry = match &ahead.command {
            Command::Remove { service, .. } => self.drainable(service),
            _ => None,
        };
        match entry {
            Some(entry) => {
                self.draining.insert(entry, ahead);
                self.state.push(Action::Drain(entry));
            }
            None => self.do_ahead(ahead),
        }
    }

    /// Returns the entry of a service that may be drained.
    fn drainable(&self, service: &Name) -> Option<EntryId> {
        let found = self.state.node.service(service)?;
        let is_at_rest =
            found.state == ServiceState::Running && self.state.node.is_settled(service);
        is_at_rest.then_some(found.entry)
    }

    /// Gives the node a command that has been recorded. It may be refused yet: what the node has
    /// and what runs may have changed while the change was written, or a service drained.
    fn do_ahead(&mut self, Ahead { command, purpose }: Ahead) {
        let removed = match &command {
            Command::Remove { service, .. } => Some(service.clone()),
            _ => None,
        };
        let outcome = self.state.command(command);
        self.state.desired.end_ahead(outcome.is_ok());
        self.answer_ahead(purpose, outcome);
        self.state.write_next();
        let found = removed.and_then(|service| self.state.node.service(&service));
        let refused = found.filter(|it| it.state == ServiceState::Running);
        if let Some(entry) = refused.map(|service| service.entry) {
            self.state.push(Action::CancelDrain(entry));
        }
    }

    fn answer_ahead(&mut self, purpose: Purpose, outcome: Answer<Outcome>) {
        let Self { state, removals, .. } = self;
        match purpose {
            Purpose::SessionCreated { session, reservation, reply } => {
                reply.answer(sessions::created(state, &session, &reservation, outcome));
            }
            Purpose::SessionSet { session, reservation, reply } => {
                reply.answer(outcome.map(|_| sessions::changed(state, &session, &reservation)));
            }
            Purpose::SessionRemoved { session, reply } => {
                sessions::removed(state, removals, session, reply, outcome);
            }
            Purpose::ServiceRemoved { service, counted, reply } => {
                removals.handle_removed(state, service, counted, reply, outcome);
            }
            Purpose::RuleRemoved { rule, counted, reply } => {
                reply.answer(outcome.map(|_| rules::removed(state, rule, counted)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::testbed::{Testbed, deploy, holder, name};
    use super::*;
    use api::{ApplyRequest, RuleRequest, RulesRequest, SessionRequest};

    fn session(of: &str) -> Box<SessionRequest> {
        Box::new(SessionRequest { name: of.to_owned(), ..SessionRequest::default() })
    }

    fn drop_udp() -> RulesRequest {
        RulesRequest { rules: vec![RuleRequest::new("proto udp", "drop")] }
    }

    #[test]
    fn changes_wait_for_a_command_that_is_recorded_before_it_is_done() {
        let mut bed = Testbed::new();
        let mut made = bed.ask(|reply| Change::CreateSession(session("gold"), reply));
        let mut added = bed.ask(|reply| Change::AddRules(drop_udp(), reply));
        assert!(bed.control.node().numbered_rules().is_empty());
        bed.write();
        assert!(made.try_answer().unwrap().is_ok());
        assert_eq!(bed.control.node().numbered_rules().len(), 1, "its turn has come");
        bed.write();
        assert!(added.try_answer().unwrap().is_ok());
        assert_eq!(bed.control.state().desired().generation(), 2);
    }

    #[test]
    fn a_change_of_everything_waits_for_a_node_at_rest_and_others_behind_it() {
        let mut bed = Testbed::new();
        let _deployed = bed.ask(|reply| Change::Deploy(Box::new(deploy("monitor", 4)), reply));
        let request = ApplyRequest { file: "state.toml".to_owned(), ..ApplyRequest::default() };
        let mut applied = bed.ask(|reply| Change::Apply(Box::new(request), reply));
        let mut added = bed.ask(|reply| Change::AddRules(drop_udp(), reply));
        bed.starts("monitor");
        assert!(applied.try_answer().is_none() && added.try_answer().is_none());
        bed.write_all();
        bed.stops("monitor");
        bed.write_all();
        assert!(applied.try_answer().unwrap().is_ok(), "it takes away what was deployed before it");
        assert!(added.try_answer().unwrap().is_ok());
        assert_eq!((bed.is_desired("monitor"), bed.desired_rules()), (false, 1));
    }

    #[test]
    fn requests_without_a_grant_are_refused_and_objects_of_others_are_not_found() {
        let mut bed = Testbed::new();
        let mut refused =
            bed.ask_as(&Caller::Anyone, |reply| Change::CreateSession(session("gold"), reply));
        assert_eq!(refused.try_answer().unwrap().unwrap_err().code, ErrorCode::Refused);
        let mut made = bed.ask_as(&holder(), |reply| Change::CreateSession(session("gold"), reply));
        bed.write_all();
        assert!(made.try_answer().unwrap().is_ok());
        assert!(bed.control.state().desired().state().sessions[&name("gold")].owner.is_some());
        let mut unknown =
            bed.ask_as(&holder(), |reply| Change::Remove("nobody".to_owned(), true, reply));
        assert_eq!(unknown.try_answer().unwrap().unwrap_err().code, ErrorCode::NotFound);
    }

    #[test]
    fn nothing_is_tried_again_in_the_middle_of_a_removal() {
        let mut bed = Testbed::new();
        bed.run("monitor");
        let _removed = bed.ask(|reply| Change::Remove("monitor".to_owned(), true, reply));
        bed.write();
        assert!(!bed.control.is_idle() && !bed.control.is_settled(), "it is being drained");
        bed.control.hasten_resumption();
        assert!(!bed.control.handle_resumption());
        assert!(bed.control.resumes_at().is_some(), "later");
        let entry = bed.entry("monitor");
        bed.control.handle_drained(entry);
        bed.settle();
        bed.stops("monitor");
        assert!(bed.control.is_settled());
    }

    #[test]
    fn a_change_is_urgent_and_touched_until_each_flag_is_taken() {
        let mut bed = Testbed::new();
        bed.control.take_urgent();
        assert!(!bed.control.take_urgent());
        bed.run("monitor");
        assert!(bed.control.take_urgent() && bed.control.take_touched());
        assert!(!bed.control.take_urgent() && !bed.control.take_touched());
    }

    #[test]
    fn a_service_is_begun_again_as_long_as_it_is_desired() {
        let mut bed = Testbed::new();
        bed.run("monitor");
        bed.event(Event::CellLost { reason: "killed".to_owned() });
        let is_running = |bed: &Testbed| {
            let found = bed.control.node().service(&name("monitor"));
            found.is_some_and(|service| service.state == ServiceState::Running)
        };
        assert!(!is_running(&bed));
        bed.wait(10_000);
        bed.starts("monitor");
        assert!(is_running(&bed) && !bed.is_writing(), "nothing else is desired than before");
    }
}
