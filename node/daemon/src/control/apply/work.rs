//! Work: the steps from one state to another, done one after another while the node keeps running.
//!
//! ```text
//! compile ─▶ step ─ done, or reported by the node ─▶ step … ─▶ ended
//!              └─ failed ─▶ the steps back ─▶ refused, everything as before
//! ```
//!
//! `node::desired::steps` decides which steps there are, and their order.

mod sessions;
mod versions;

use super::finish::Finish;
use crate::answer::{Answer, failed};
use crate::control::action::Action;
use crate::control::edit::Edit;
use crate::control::recorded::Recorded;
use crate::control::recording::Facts;
use crate::control::state::NodeState;
use crate::control::switch;
use api::{ErrorInfo, EventKind};
use module_store::Digest;
use node::command::{Arrangement, Memory};
use node::desired::{
    DesiredService, DesiredSession, DesiredState, RuleChanges, Step, rule_changes, steps,
};
use node::{CapabilityId, Command, Notice, Outcome, ServiceState};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use units::Name;

/// Purpose of work, and with it the meaning of a failure.
pub(crate) enum Purpose {
    /// Atomic change; its end is reported.
    Apply(Box<Finish>),
    /// Start of as much as is possible of what was there before the node started.
    Resume,
}

/// Event of a service that work waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaited {
    /// Start of the service.
    Start,
    /// End of the probation of another version, which began empty or not.
    Version { empty: bool },
    /// Arrival of the service at its level.
    Move,
}

/// Goal of work that has not begun.
pub(crate) struct Goal {
    pub(crate) target: DesiredState,
    pub(crate) facts: Facts,
    pub(crate) purpose: Purpose,
    /// Treatment of the state of services.
    pub(crate) memory: Memory,
}

/// Change of what runs that takes more than a moment.
pub(crate) struct Work {
    target: DesiredState,
    facts: Facts,
    purpose: Purpose,
    /// Treatment of the state of services.
    memory: Memory,
    /// State at the beginning.
    before: DesiredState,
    /// State so far.
    now: DesiredState,
    steps: VecDeque<Step>,
    /// Modules that must be compiled before anything changes.
    compiling: BTreeSet<Digest>,
    /// Services that start, move or are replaced.
    pending: BTreeMap<Name, Awaited>,
    /// Services that stop; the name of one is free when it has.
    stopping: BTreeSet<Name>,
    /// True while the journal is writing.
    recording: bool,
    /// Reason for going back, once it does.
    failure: Option<ErrorInfo>,
    /// Services that began empty on the way back, with the reason.
    lost: BTreeMap<Name, String>,
}

/// Result of a call of [`Work::advance`].
#[derive(Debug)]
pub(crate) enum Progress {
    /// The work waits for an event.
    Waits,
    /// A step is done.
    Stepped,
    /// The work has ended, with this answer.
    Ended(Answer<()>),
}

impl Work {
    /// Creates the work towards a state from what is there at `before`.
    ///
    /// # Errors
    /// A module that the target names is not to be had.
    pub(crate) fn begin(
        goal: Goal,
        before: DesiredState,
        state: &mut NodeState,
    ) -> Result<Self, (Purpose, ErrorInfo)> {
        let Goal { target, facts, purpose, memory } = goal;
        let mut work = Self {
            now: before.clone(),
            steps: steps(&before, &target).into(),
            before,
            target,
            facts,
            purpose,
            memory,
            compiling: BTreeSet::new(),
            pending: BTreeMap::new(),
            stopping: BTreeSet::new(),
            recording: false,
            failure: None,
            lost: BTreeMap::new(),
        };
        if matches!(work.purpose, Purpose::Apply(_)) {
            if work.steps.is_empty() {
                // What is desired and missing differs: that is recorded.
                work.steps.push_back(Step::Record);
            }
            if let Err(problem) = work.compile(state) {
                return Err((work.purpose, problem));
            }
        } else {
            // Services that are only left out for now stay as they are; those that are not desired
            // are removed.
            let desired = state.desired.state();
            work.steps.retain(|step| match step {
                Step::Record => false,
                Step::Remove { service } => !desired.services.contains_key(service),
                Step::RemoveSession { session } => !desired.sessions.contains_key(session),
                _ => true,
            });
            // A daemon that was killed while they started may have left them without their rules.
            let starting = work.target.services.keys();
            let starting = starting.filter(|service| state.node.is_first_starting(service));
            work.pending = starting.map(|service| (service.clone(), Awaited::Start)).collect();
        }
        Ok(work)
    }

    /// Returns the digests of the modules that it needs.
    pub(crate) fn digests(&self) -> BTreeSet<String> {
        let states = [&self.target, &self.before];
        let services = states.into_iter().flat_map(|state| state.services.values());
        services.map(|service| service.digest.clone()).collect()
    }

    /// Returns what it was for.
    pub(crate) fn into_purpose(self) -> Purpose {
        self.purpose
    }

    /// Returns true when the next step has to wait. Services start at the same time, and then are
    /// replaced at the same time; each once it is neither being started nor being replaced.
    fn waits(&self, is_settled: impl Fn(&Name) -> bool) -> bool {
        if self.recording || !self.compiling.is_empty() || !self.stopping.is_empty() {
            return true;
        }
        let mut pending = self.pending.values();
        match self.steps.front() {
            Some(Step::Deploy { .. }) => false,
            Some(Step::Replace { service }) => {
                pending.any(|it| !matches!(it, Awaited::Version { .. })) || !is_settled(service)
            }
            _ => !self.pending.is_empty(),
        }
    }

    /// Returns the treatment of the state of services: on the way back it stops nothing.
    const fn memory(&self) -> Memory {
        match self.failure {
            Some(_) => Memory::KeptIfPossible,
            None => self.memory,
        }
    }

    fn waits_for(&self, service: &Name, awaited: Awaited) -> bool {
        self.pending.get(service) == Some(&awaited)
    }

    /// Requests the compilation of every module that will start.
    fn compile(&mut self, state: &mut NodeState) -> Answer<()> {
        let bpf = state.compiles_below(self.target.bpf);
        for step in &self.steps {
            let (Step::Deploy { service } | Step::Replace { service } | Step::Renew { service }) =
                step
            else {
                continue;
            };
            let Some(desired) = self.target.services.get(service) else { continue };
            let digest: Digest = desired.digest.parse().map_err(failed)?;
            state.modules.hold(&digest)?;
            if state.modules.code(&digest, bpf).is_none() && self.compiling.insert(digest) {
                state.push(Action::Compile(digest, self.target.bpf));
            }
        }
        Ok(())
    }

    /// Handles the end of capabilities: what ran under them is stopped, and neither desired nor
    /// restored. A change that relied on it fails.
    pub(crate) fn handle_ended(
        &mut self,
        state: &NodeState,
        capabilities: &BTreeSet<CapabilityId>,
    ) {
        for of in [&mut self.before, &mut self.now, &mut self.target] {
            Edit::end_capabilities(&state.node, capabilities.clone()).apply(of);
        }
        let stopping = state.node.services().filter(|service| {
            service.state == ServiceState::Stopping
                && service.owner.is_some_and(|owner| capabilities.contains(&owner.capability))
        });
        self.stopping.extend(stopping.map(|service| service.name.clone()));
    }

    /// Handles the end of a compilation. Returns the reason for the work having failed, if it has:
    /// nothing was changed yet.
    pub(crate) fn handle_compiled(
        &mut self,
        digest: &Digest,
        failure: Option<&String>,
    ) -> Option<ErrorInfo> {
        if !self.compiling.remove(digest) {
            return None;
        }
        let reason = failure?;
        let named = self.target.services.iter().find(|(_, s)| s.digest == digest.to_string());
        let service = named.map_or_else(String::new, |(name, _)| name.to_string());
        Some(failed(format!("the module of the service '{service}': {reason}")))
    }

    /// Does the next step, if it need not wait.
    pub(crate) fn advance(&mut self, state: &mut NodeState) -> Progress {
        if self.waits(|service| state.node.is_settled(service)) {
            return Progress::Waits;
        }
        let Some(step) = self.steps.pop_front() else {
            let failure = self.failure.take();
            let failure = failure.map(|failure| with_what_was_lost(failure, &self.lost));
            return Progress::Ended(failure.map_or(Ok(()), Err));
        };
        if let Err(problem) = self.step(state, &step) {
            if matches!(self.purpose, Purpose::Resume) {
                self.note_missing(state, &step, &problem.message);
            }
            self.step_failed(problem);
        }
        Progress::Stepped
    }

    /// Adds what a failed step of a resume leaves missing to the shortfall, so that it is reported
    /// and tried again.
    fn note_missing(&self, state: &mut NodeState, step: &Step, reason: &str) {
        let rules = state.node.numbered_rules();
        let sessions: BTreeMap<&Name, DesiredSession> =
            state.node.sessions().map(|session| (&session.name, session.into())).collect();
        let missing = state.desired.shortfall_mut();
        let mut services: Vec<&Name> = Vec::new();
        match step {
            Step::Deploy { service }
            | Step::Replace { service }
            | Step::Renew { service }
            | Step::Move { service } => services.push(service),
            Step::Arrange => {
                for rule in rule_changes(&rules, &self.target.rules).add {
                    let leads_to = rule.came_with.as_ref().or(rule.spec.action.service());
                    match leads_to.and_then(|name| self.target.services.get_key_value(name)) {
                        Some((service, _)) => services.push(service),
                        None => missing.rules.push((rule, reason.to_owned())),
                    }
                }
            }
            Step::Sessions => {
                let wanted = self.target.sessions.iter();
                for (name, _) in wanted.filter(|(name, it)| sessions.get(name) != Some(it)) {
                    missing.sessions.entry(name.clone()).or_insert_with(|| reason.to_owned());
                }
            }
            // What shall not be there and stays is removed by the next change.
            Step::Bpf { .. } | Step::RemoveSession { .. } | Step::Remove { .. } | Step::Record => {}
        }
        for service in services {
            missing.services.entry(service.clone()).or_insert_with(|| reason.to_owned());
        }
    }

    fn step(&mut self, state: &mut NodeState, step: &Step) -> Answer<()> {
        match step {
            Step::Bpf { enabled } => {
                self.now.bpf = *enabled;
                // Who started it without has the last word.
                let enabled = *enabled && state.below().is_allowed;
                switch::set_bpf(state, enabled).map(drop)
            }
            Step::Sessions => sessions::arrange(self, state),
            Step::RemoveSession { session } => sessions::remove(self, state, session),
            Step::Deploy { service } => self.step_deploy(state, service),
            Step::Replace { service } => {
                let memory = self.memory();
                versions::replace(self, state, service, memory)
            }
            Step::Renew { service } => {
                self.steps.push_front(Step::Deploy { service: service.clone() });
                versions::note_renewal(self, state, service);
                self.step_remove(state, service, true)
            }
            Step::Arrange => self.step_arrange(state),
            Step::Move { service } => self.step_move(state, service),
            Step::Record => {
                let edit = Edit::Become(Box::new(self.target.clone()));
                self.recording = true;
                state.record(self.facts.clone(), edit, Recorded::Work);
                Ok(())
            }
            Step::Remove { service } => self.step_remove(state, service, false),
        }
    }

    /// Returns the state of which a step takes its services.
    const fn goal(&self) -> &DesiredState {
        if self.failure.is_some() { &self.before } else { &self.target }
    }

    fn step_deploy(&mut self, state: &mut NodeState, service: &Name) -> Answer<()> {
        let Some(mut desired) = self.goal().services.get(service).cloned() else { return Ok(()) };
        let module = state.hold(&desired.digest)?;
        desired.then.clear();
        let started = state.command(Command::Deploy {
            service: service.clone(),
            module: module.with_functions(desired.functions),
            parameters: desired.parameters.clone(),
            session: desired.session.clone(),
            rules: Vec::new(),
            // While nothing may run below, the wish is only noted, by the arrangement.
            level: desired.level.filter(|_| state.node.bpf()),
            then: Vec::new(),
            budget: desired.budget,
            on_failure: desired.on_failure,
            discard_state: false,
            owner: desired.owner,
        });
        if started.is_ok() {
            self.now.services.insert(service.clone(), desired);
            self.pending.insert(service.clone(), Awaited::Start);
        }
        started.map(drop)
    }

    fn step_remove(&mut self, state: &mut NodeState, service: &Name, cascade: bool) -> Answer<()> {
        self.now.remove(service);
        let going = state.payers_of(&state.rules_to(service));
        let command = Command::Remove { service: service.clone(), cascade };
        let Outcome::Removed { stopping, .. } = state.command(command)? else { return Ok(()) };
        state.close_rules(going);
        if stopping {
            self.stopping.insert(service.clone());
        }
        Ok(())
    }

    fn step_arrange(&mut self, state: &mut NodeState) -> Answer<()> {
        // A service of before that does not start again takes its rules along, and no others.
        let is_way_back = self.failure.is_some();
        let stays = |name: &Name| !is_way_back || state.node.service(name).is_some();
        let goal = self.goal().restricted_to(stays);
        let RuleChanges { remove, add } = rule_changes(&state.node.numbered_rules(), &goal.rules);
        let there = |name: &Name| state.node.service(name).is_some();
        let services = goal.services.iter().filter(|(name, _)| there(name)).map(|(name, it)| {
            let (then, level) = (it.then.clone(), it.level);
            let (budget, on_failure) = (it.budget, it.on_failure);
            let owner = it.owner;
            (name.clone(), Arrangement { then, level, budget, on_failure, owner })
        });
        let services = services.collect();
        let going = state.payers_of(&remove);
        let gone: Vec<u32> = remove.iter().map(|rule| rule.0).collect();
        let outcome = state.command(Command::Arrange { remove, add, services })?;
        state.close_rules(going);
        state.note_rules(EventKind::RulesRemoved, &gone);
        if let Outcome::Arranged { rules, .. } = outcome {
            let came: Vec<u32> = rules.iter().map(|rule| rule.0).collect();
            state.note_rules(EventKind::RulesAdded, &came);
        }
        state.push(Action::SettleAccounts);
        for (name, present) in &mut self.now.services {
            if let Some(desired) = goal.services.get(name) {
                present.then = desired.then.clone();
                present.budget = desired.budget;
                present.on_failure = desired.on_failure;
            }
        }
        self.now.rules = goal.rules;
        Ok(())
    }

    fn step_move(&mut self, state: &mut NodeState, service: &Name) -> Answer<()> {
        let level = self.goal().services.get(service).and_then(|desired| desired.level);
        let Some(present) = state.node.service(service) else { return Ok(()) };
        let own = present.module.manifest.levels.iter().copied();
        let level = level.or_else(|| own.into_iter().find(|it| *it != abi::Level::Cluster));
        let level = level.unwrap_or(abi::Level::User);
        if let Some(now) = self.now.services.get_mut(service) {
            // On the way back it is moved back only if it moved.
            now.level = Some(level);
        }
        if present.level == level {
            state.stay_at(service, level);
            return Ok(());
        }
        if !state.node.bpf() {
            return Ok(());
        }
        state.command(Command::Move { service: service.clone(), level })?;
        self.pending.insert(service.clone(), Awaited::Move);
        Ok(())
    }

    /// Handles a report of the node about a service that work may wait for.
    pub(crate) fn handle_notice(&mut self, state: &mut NodeState, notice: &Notice) {
        match notice {
            Notice::ServiceRunning { service, .. } => {
                self.pending.remove(service);
            }
            Notice::ServiceMoved { service, .. } if self.waits_for(service, Awaited::Move) => {
                self.pending.remove(service);
            }
            Notice::ServiceKept { service } => {
                self.pending.remove(service);
            }
            Notice::ReplaceFailed { service, reason } => {
                let message = format!("'{service}' goes on as it was: {reason}");
                let may_try_again = self.memory() == Memory::KeptIfPossible;
                versions::handle_failed(self, state, service, message, may_try_again);
            }
            Notice::ServicePutBack { service, reason } => {
                let message = format!(
                    "the new version of '{service}' failed at once, and the one before runs again: {reason}"
                );
                // With another memory it would trap as well, unless it is that which it traps at.
                let may_try_again = self.failure.is_some();
                versions::handle_failed(self, state, service, message, may_try_again);
            }
            // A version that takes the place of one that did not run: it will be tried again.
            Notice::ServiceFailed { service, reason, .. }
                if self.waits_for(service, Awaited::Start) =>
            {
                self.pending.remove(service);
                versions::not_replaced(self, service);
                let message = format!("the service '{service}' did not start: {reason}");
                self.step_failed(failed(message));
            }
            Notice::ServiceRemoved { service } => {
                self.pending.remove(service);
                self.stopping.remove(service);
            }
            Notice::ServiceNotStarted { service, reason }
                if self.pending.remove(service).is_some() =>
            {
                self.now.services.remove(service);
                if matches!(self.purpose, Purpose::Resume) {
                    self.target = self.target.restricted_to(|name| name != service);
                    let missing = &mut state.desired.shortfall_mut().services;
                    missing.insert(service.clone(), reason.clone());
                } else {
                    let message = format!("the service '{service}' did not start: {reason}");
                    self.step_failed(failed(message));
                }
            }
            Notice::MoveFailed { service, reason } if self.pending.remove(service).is_some() => {
                if let Some(now) = self.now.services.get_mut(service) {
                    now.level = self.before.services.get(service).and_then(|it| it.level);
                }
                let message = format!("the service '{service}' did not move: {reason}");
                self.step_failed(failed(message));
            }
            _ => {}
        }
    }

    /// Handles the end of the journal's write; goes back when the state could not be written.
    pub(crate) fn handle_recorded(&mut self, written: Answer<()>) {
        self.recording = false;
        if let Err(problem) = written {
            self.step_failed(problem);
        }
    }

    /// Handles a step that could not be done: goes back to where it began, or, when the node
    /// resumes or is on its way back already, on with the next.
    fn step_failed(&mut self, problem: ErrorInfo) {
        let goes_on = self.failure.is_some() || matches!(self.purpose, Purpose::Resume);
        if goes_on {
            tracing::error!(
                problem = problem.message,
                "a change of the desired state could not be made: it is left out"
            );
            return;
        }
        tracing::warn!(
            problem = problem.message,
            "the new state could not be applied: every change of it is taken back"
        );
        self.steps = steps(&self.now, &self.before).into();
        self.steps.retain(|step| *step != Step::Record);
        self.failure = Some(problem);
    }
}

/// Returns the present state, as far as it can be desired. Services started by active packets are
/// no part of it, and no change removes them.
pub(crate) fn present(state: &NodeState, is_called: impl Fn(&Name) -> bool) -> DesiredState {
    let node = &state.node;
    let stay = node
        .services()
        .filter(|service| service.state != ServiceState::Stopping && !is_called(&service.name));
    let services = stay.map(|service| {
        let desired = state.desired.state().services.get(&service.name);
        let present = DesiredService::of(service, desired.and_then(|desired| desired.level));
        (service.name.clone(), present)
    });
    let rules = node.numbered_rules().into_iter().map(|(_, rule)| rule);
    let sessions = node.sessions().filter(|it| !it.is_built_in() && !it.leaving);
    DesiredState {
        bpf: node.bpf(),
        sessions: sessions.map(|it| (it.name.clone(), it.into())).collect(),
        services: services.collect(),
        rules: rules.collect(),
    }
}

/// Returns the reason for everything having gone back, with what that cost.
fn with_what_was_lost(failure: ErrorInfo, lost: &BTreeMap<Name, String>) -> ErrorInfo {
    let mut message = failure.message;
    for (service, why) in lost {
        message.push_str(&format!("; on the way back '{service}' began empty: {why}"));
    }
    ErrorInfo { message, ..failure }
}
