//! Work: the steps from one state to another, done one after another while the node goes on.
//!
//! ```text
//! compile ─▶ step ─ done, or heard from the node ─▶ step … ─▶ finished
//!              └─ failed ─▶ the steps back ─▶ refused, everything as before
//! ```
//!
//! Which steps there are, and in which order, `node::desired::steps` decides.

mod sessions;
mod versions;

use super::finish::Finish;
use crate::control::recording::Facts;
use crate::daemon::Daemon;
use crate::edit::Edit;
use crate::http::Answer;
use crate::recorded::Recorded;
use crate::views::failed;
use api::{ErrorInfo, EventKind};
use module_store::Digest;
use node::command::{Arrangement, Memory};
use node::desired::{DesiredService, DesiredState, RuleChanges, Step, rule_changes, steps};
use node::{Command, Notice, Outcome, ServiceState};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use units::Name;

/// Why something is done, and with it what a failure means.
pub(crate) enum Purpose {
    /// All or nothing; who asked hears of it.
    Apply(Box<Finish>),
    /// As much as is possible: what was there before the node started.
    Resume,
}

/// What work waits for at a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaited {
    /// That it runs.
    Start,
    /// That another version has taken its place and was watched; one that began empty, or not.
    Version { empty: bool },
    /// That it is where it shall be.
    Move,
}

/// A change of what runs that takes more than a moment.
pub(crate) struct Work {
    target: DesiredState,
    facts: Facts,
    purpose: Purpose,
    /// What becomes of what services know.
    memory: Memory,
    /// Where it began.
    before: DesiredState,
    /// How far it is.
    now: DesiredState,
    steps: VecDeque<Step>,
    /// Modules that must be compiled before anything changes.
    compiling: BTreeSet<Digest>,
    /// Services that start, move or are replaced.
    pending: BTreeMap<Name, Awaited>,
    /// Services that stop; the name of one is free when it has.
    stopping: BTreeSet<Name>,
    /// The journal is writing.
    recording: bool,
    /// Set on the way back: why.
    failure: Option<ErrorInfo>,
    /// Services that began empty on the way back, with the reason.
    lost: BTreeMap<Name, String>,
}

impl Work {
    pub(crate) fn new(
        target: DesiredState,
        facts: Facts,
        purpose: Purpose,
        memory: Memory,
    ) -> Self {
        Self {
            before: DesiredState::default(),
            now: DesiredState::default(),
            target,
            facts,
            purpose,
            memory,
            steps: VecDeque::new(),
            compiling: BTreeSet::new(),
            pending: BTreeMap::new(),
            stopping: BTreeSet::new(),
            recording: false,
            failure: None,
            lost: BTreeMap::new(),
        }
    }

    /// Whether a module is needed by it.
    pub(crate) fn needs(&self, digest: &str) -> bool {
        let states = [&self.target, &self.before];
        states.iter().any(|state| state.services.values().any(|s| s.digest == digest))
    }

    /// Whether the next step has to wait. Services start at the same time, and then are replaced
    /// at the same time; each once it is neither being started nor being replaced.
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

    /// On the way back nothing that a service knows stands in the way.
    const fn memory(&self) -> Memory {
        match self.failure {
            Some(_) => Memory::KeptIfPossible,
            None => self.memory,
        }
    }

    fn waits_for(&self, service: &Name, awaited: Awaited) -> bool {
        self.pending.get(service) == Some(&awaited)
    }
}

impl Daemon {
    /// Begins work; the loop goes on with it.
    pub(crate) fn begin_work(&mut self, mut work: Work) {
        work.before = self.present();
        work.now = work.before.clone();
        work.steps = steps(&work.before, &work.target).into();
        if matches!(work.purpose, Purpose::Apply(_)) {
            if work.steps.is_empty() {
                // What is desired and missing differs: that is recorded.
                work.steps.push_back(Step::Record);
            }
            if let Err(problem) = self.compile_for(&mut work) {
                return self.end_work(work, Err(problem));
            }
        } else {
            // What is only left out for now stays as it is; what nobody wants goes.
            let (wanted, sessions) =
                (&self.desired.state().services, &self.desired.state().sessions);
            work.steps.retain(|step| match step {
                Step::Record => false,
                Step::Remove { service } => !wanted.contains_key(service),
                Step::RemoveSession { session } => !sessions.contains_key(session),
                _ => true,
            });
        }
        self.work = Some(Box::new(work));
    }

    /// What is there, as far as it can be desired.
    fn present(&self) -> DesiredState {
        // What packets have called nobody desires, and no change takes away.
        let stay = self.node.services().filter(|service| {
            service.state != ServiceState::Stopping && !self.is_called(&service.name)
        });
        let services = stay.map(|service| {
            let desired = self.desired.state().services.get(&service.name);
            let present = DesiredService::of(service, desired.and_then(|desired| desired.level));
            (service.name.clone(), present)
        });
        let rules = self.node.numbered_rules().into_iter().map(|(_, rule)| rule);
        let sessions = self.node.sessions().filter(|it| !it.is_built_in() && !it.leaving);
        DesiredState {
            bpf: self.node.bpf(),
            sessions: sessions.map(|it| (it.name.clone(), it.into())).collect(),
            services: services.collect(),
            rules: rules.collect(),
        }
    }

    /// Has every module compiled that will start.
    fn compile_for(&mut self, work: &mut Work) -> Answer<()> {
        for step in &work.steps {
            let (Step::Deploy { service } | Step::Replace { service } | Step::Renew { service }) =
                step
            else {
                continue;
            };
            let Some(desired) = work.target.services.get(service) else { continue };
            let digest: Digest = desired.digest.parse().map_err(failed)?;
            self.hold(&digest)?;
            let bpf = self.compiles_below(work.target.bpf);
            let compiled = self.modules.get(&digest).and_then(|module| module.code(bpf));
            if compiled.is_none() && work.compiling.insert(digest) {
                self.compile(digest, work.target.bpf);
            }
        }
        Ok(())
    }

    /// A compiler is done.
    pub(crate) fn work_compiled(&mut self, digest: &Digest, failure: Option<&String>) {
        let Some(work) = self.work.as_mut() else { return };
        if !work.compiling.remove(digest) {
            return;
        }
        if let Some(reason) = failure {
            let named = work.target.services.iter().find(|(_, s)| s.digest == digest.to_string());
            let service = named.map_or_else(String::new, |(name, _)| name.to_string());
            let problem = failed(format!("the module of the service '{service}': {reason}"));
            if let Some(work) = self.work.take() {
                self.end_work(*work, Err(problem));
            }
        }
    }

    /// Goes on as far as possible.
    pub(crate) fn advance_work(&mut self) {
        loop {
            let Some(work) = self.work.as_mut() else { return };
            if work.waits(|service| self.node.is_settled(service)) {
                return;
            }
            let Some(step) = work.steps.pop_front() else {
                if let Some(mut work) = self.work.take() {
                    let done = work
                        .failure
                        .take()
                        .map_or(Ok(()), |failure| Err(with_what_was_lost(failure, &work.lost)));
                    self.end_work(*work, done);
                }
                return;
            };
            if let Err(problem) = self.step(&step) {
                self.step_failed(problem);
            }
        }
    }

    fn end_work(&mut self, work: Work, done: Answer<()>) {
        self.settle_promises();
        self.remember();
        match work.purpose {
            Purpose::Apply(finish) => {
                if let Err(problem) = &done {
                    self.note_missing(&problem.message);
                } else {
                    // Everything that is desired is there.
                    self.desired.short.clear();
                    self.desired.missing.clear();
                    self.desired.unfit.clear();
                }
                self.finish_change(*finish, done);
            }
            Purpose::Resume => self.resumed(),
        }
        self.forget_modules();
    }

    /// What did not come back on the way back is tried again, as after a start.
    fn note_missing(&mut self, why: &str) {
        let state = Arc::clone(self.desired.state());
        for (name, desired) in &state.services {
            let there = self.node.service(name).is_some_and(|service| desired.is_version(service));
            if !there && !self.desired.missing.contains_key(name) {
                let reason = format!("it did not come back after a change that failed: {why}");
                self.desired.missing.insert(name.clone(), reason);
            }
        }
        self.resumed();
    }

    fn step(&mut self, step: &Step) -> Answer<()> {
        let Some(work) = self.work.as_mut() else { return Ok(()) };
        match step {
            Step::Bpf { enabled } => {
                work.now.bpf = *enabled;
                // Who started it without has the last word.
                let enabled = *enabled && self.bpf_allowed;
                self.set_bpf(enabled).map(drop).map_err(failed)
            }
            Step::Sessions => self.step_sessions(),
            Step::RemoveSession { session } => self.step_remove_session(session),
            Step::Deploy { service } => self.step_deploy(service),
            Step::Replace { service } => {
                let memory = work.memory();
                self.step_replace(service, memory)
            }
            Step::Renew { service } => {
                work.steps.push_front(Step::Deploy { service: service.clone() });
                self.tell_of_renewal(service);
                self.step_remove(service, true)
            }
            Step::Arrange => self.step_arrange(),
            Step::Move { service } => self.step_move(service),
            Step::Record => {
                let (target, facts) = (work.target.clone(), work.facts.clone());
                work.recording = true;
                self.record(facts, Edit::Become(Box::new(target)), Recorded::Work);
                Ok(())
            }
            Step::Remove { service } => self.step_remove(service, false),
        }
    }

    /// The state of which a step takes its services.
    fn work_state(&self) -> Option<&DesiredState> {
        let work = self.work.as_ref()?;
        Some(if work.failure.is_some() { &work.before } else { &work.target })
    }

    fn step_deploy(&mut self, service: &Name) -> Answer<()> {
        let desired = self.work_state().and_then(|state| state.services.get(service)).cloned();
        let Some(mut desired) = desired else { return Ok(()) };
        let digest: Digest = desired.digest.parse().map_err(failed)?;
        let module = self.hold(&digest)?;
        desired.then.clear();
        // Before the command: what fails at once is told while it is done.
        if let Some(work) = self.work.as_mut() {
            work.now.services.insert(service.clone(), desired.clone());
            work.pending.insert(service.clone(), Awaited::Start);
        }
        let started = self.command(Command::Deploy {
            service: service.clone(),
            module: module.with_functions(desired.functions),
            parameters: desired.parameters.clone(),
            session: desired.session.clone(),
            rules: Vec::new(),
            // While nothing may run below, the wish is only noted, by the arrangement.
            level: desired.level.filter(|_| self.node.bpf()),
            then: Vec::new(),
            budget: desired.budget,
            on_failure: desired.on_failure,
            discard_state: false,
            owner: desired.owner,
        });
        if let (Some(work), Err(_)) = (self.work.as_mut(), &started) {
            work.now.services.remove(service);
            work.pending.remove(service);
        }
        started.map(drop)
    }

    fn step_remove(&mut self, service: &Name, cascade: bool) -> Answer<()> {
        if let Some(work) = self.work.as_mut() {
            work.now.remove(service);
        }
        let going = self.sessions_of(&self.rules_to(service));
        let command = Command::Remove { service: service.clone(), cascade };
        let Outcome::Removed { stopping, .. } = self.command(command)? else { return Ok(()) };
        self.close(going);
        if let Some(work) = self.work.as_mut().filter(|_| stopping) {
            work.stopping.insert(service.clone());
        }
        Ok(())
    }

    fn step_arrange(&mut self) -> Answer<()> {
        let Some(state) = self.work_state().cloned() else { return Ok(()) };
        let RuleChanges { remove, add } = rule_changes(&self.node.numbered_rules(), &state.rules);
        let there = |name: &Name| self.node.service(name).is_some();
        let services = state.services.iter().filter(|(name, _)| there(name)).map(|(name, it)| {
            let (then, level) = (it.then.clone(), it.level);
            let (budget, on_failure) = (it.budget, it.on_failure);
            let owner = it.owner;
            (name.clone(), Arrangement { then, level, budget, on_failure, owner })
        });
        let services = services.collect();
        let going = self.sessions_of(&remove);
        let gone: Vec<u32> = remove.iter().map(|rule| rule.0).collect();
        let outcome = self.command(Command::Arrange { remove, add, services })?;
        self.close(going);
        self.note_rules(EventKind::RulesRemoved, &gone);
        if let Outcome::Arranged { rules, .. } = outcome {
            let came: Vec<u32> = rules.iter().map(|rule| rule.0).collect();
            self.note_rules(EventKind::RulesAdded, &came);
        }
        self.settle_accounts();
        let Some(work) = self.work.as_mut() else { return Ok(()) };
        for (name, present) in &mut work.now.services {
            if let Some(desired) = state.services.get(name) {
                present.then = desired.then.clone();
                present.budget = desired.budget;
                present.on_failure = desired.on_failure;
            }
        }
        work.now.rules = state.rules;
        Ok(())
    }

    fn step_move(&mut self, service: &Name) -> Answer<()> {
        let wanted = self.work_state().and_then(|state| state.services.get(service));
        let level = wanted.and_then(|desired| desired.level);
        let Some(present) = self.node.service(service) else { return Ok(()) };
        let own = present.module.manifest.levels.iter().copied();
        let level = level.or_else(|| own.into_iter().find(|it| *it != abi::Level::Cluster));
        let level = level.unwrap_or(abi::Level::User);
        if let Some(work) = self.work.as_mut()
            && let Some(now) = work.now.services.get_mut(service)
        {
            // On the way back it is moved back only if it moved.
            now.level = Some(level);
        }
        if present.level == level {
            self.stay_at(service, level);
            return Ok(());
        }
        if !self.node.bpf() {
            return Ok(());
        }
        if let Some(work) = self.work.as_mut() {
            work.pending.insert(service.clone(), Awaited::Move);
        }
        let moving = self.command(Command::Move { service: service.clone(), level });
        if let (Some(work), Err(_)) = (self.work.as_mut(), &moving) {
            work.pending.remove(service);
        }
        moving.map(drop)
    }

    /// Hears what becomes of services that work waits for.
    pub(crate) fn work_heard(&mut self, notice: &Notice) {
        let Some(work) = self.work.as_mut() else { return };
        match notice {
            Notice::ServiceRunning { service, .. } => {
                work.pending.remove(service);
            }
            Notice::ServiceMoved { service, .. } if work.waits_for(service, Awaited::Move) => {
                work.pending.remove(service);
            }
            Notice::ServiceKept { service } => {
                work.pending.remove(service);
            }
            Notice::ReplaceFailed { service, reason } => {
                let message = format!("'{service}' goes on as it was: {reason}");
                let may_try_again = work.memory() == Memory::KeptIfPossible;
                self.version_failed(service, message, may_try_again);
            }
            Notice::ServicePutBack { service, reason } => {
                let message = format!(
                    "the new version of '{service}' failed at once, and the one before runs again: {reason}"
                );
                // With another memory it would trap as well, unless it is that which it traps at.
                let may_try_again = work.failure.is_some();
                self.version_failed(service, message, may_try_again);
            }
            // A version that takes the place of one that did not run: it will be tried again.
            Notice::ServiceFailed { service, reason, .. }
                if work.waits_for(service, Awaited::Start) =>
            {
                work.pending.remove(service);
                work.not_replaced(service);
                let message = format!("the service '{service}' did not start: {reason}");
                self.step_failed(failed(message));
            }
            Notice::ServiceRemoved { service } => {
                work.pending.remove(service);
                work.stopping.remove(service);
            }
            Notice::ServiceNotStarted { service, reason }
                if work.pending.remove(service).is_some() =>
            {
                work.now.services.remove(service);
                let (service, reason) = (service.clone(), reason.clone());
                if matches!(work.purpose, Purpose::Resume) {
                    work.target = work.target.restricted_to(|name| *name != service);
                    self.desired.missing.insert(service, reason);
                } else {
                    let message = format!("the service '{service}' did not start: {reason}");
                    self.step_failed(failed(message));
                }
            }
            Notice::MoveFailed { service, reason } if work.pending.remove(service).is_some() => {
                if let Some(now) = work.now.services.get_mut(service) {
                    now.level = work.before.services.get(service).and_then(|it| it.level);
                }
                let message = format!("the service '{service}' did not move: {reason}");
                self.step_failed(failed(message));
            }
            _ => {}
        }
    }

    /// Continues when the journal has the state; rolls back when it could not be written.
    pub(crate) fn work_recorded(&mut self, written: Answer<()>) {
        let Some(work) = self.work.as_mut() else { return };
        work.recording = false;
        if let Err(problem) = written {
            self.step_failed(problem);
        }
    }

    /// A step could not be done: back to where it began, or, when the node resumes or is on its
    /// way back already, on with the next.
    fn step_failed(&mut self, problem: ErrorInfo) {
        let Some(work) = self.work.as_mut() else { return };
        let goes_on = work.failure.is_some() || matches!(work.purpose, Purpose::Resume);
        if goes_on {
            tracing::error!(problem = problem.message, "a step towards the desired state failed");
            return;
        }
        tracing::warn!(
            problem = problem.message,
            "the desired state is not applied: all goes back"
        );
        work.steps = steps(&work.now, &work.before).into();
        work.steps.retain(|step| *step != Step::Record);
        work.failure = Some(problem);
    }
}

/// Why everything went back, and what that cost.
fn with_what_was_lost(failure: ErrorInfo, lost: &BTreeMap<Name, String>) -> ErrorInfo {
    let mut message = failure.message;
    for (service, why) in lost {
        message.push_str(&format!("; on the way back '{service}' began empty: {why}"));
    }
    ErrorInfo { message, ..failure }
}
