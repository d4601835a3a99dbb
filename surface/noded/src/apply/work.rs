//! Work: the steps from one state to another, done one after another while the node goes on.
//!
//! ```text
//! compile ─▶ step ─ done, or heard from the node ─▶ step … ─▶ finished
//!              └─ failed ─▶ the steps back ─▶ refused, everything as before
//! ```
//!
//! Which steps there are, and in which order, `node::desired::steps` decides.

use crate::daemon::{Daemon, Done};
use crate::deploy;
use crate::http::Answer;
use crate::state::Facts;
use crate::views::failed;
use api::{ErrorInfo, EventKind};
use node::command::Arrangement;
use node::desired::{DesiredService, DesiredState, RuleChanges, Step, rule_changes, steps};
use node::{Command, Notice, Outcome, ServiceState};
use registry::Digest;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use units::Name;

/// What becomes of it when it is done.
type Finish = Box<dyn FnOnce(&mut Daemon, Answer<()>)>;

/// Why something is done, and with it what a failure means.
pub(crate) enum Purpose {
    /// All or nothing; who asked hears of it.
    Apply(Finish),
    /// As much as is possible: what was there before the node started.
    Resume,
}

/// A change of what runs that takes more than a moment.
pub(crate) struct Work {
    target: DesiredState,
    facts: Facts,
    purpose: Purpose,
    /// Where it began.
    before: DesiredState,
    /// How far it is.
    now: DesiredState,
    steps: VecDeque<Step>,
    /// Modules that must be compiled before anything changes.
    compiling: BTreeSet<Digest>,
    /// Services that start or move.
    pending: BTreeSet<Name>,
    /// Services that stop; the name of one is free when it has.
    stopping: BTreeSet<Name>,
    /// The journal is writing.
    recording: bool,
    /// Set on the way back: why.
    failure: Option<ErrorInfo>,
}

impl Work {
    pub(crate) fn new(target: DesiredState, facts: Facts, purpose: Purpose) -> Self {
        Self {
            before: DesiredState::default(),
            now: DesiredState::default(),
            target,
            facts,
            purpose,
            steps: VecDeque::new(),
            compiling: BTreeSet::new(),
            pending: BTreeSet::new(),
            stopping: BTreeSet::new(),
            recording: false,
            failure: None,
        }
    }

    /// Whether a module is needed by it.
    pub(crate) fn needs(&self, digest: &str) -> bool {
        let states = [&self.target, &self.before];
        states.iter().any(|state| state.services.values().any(|s| s.digest == digest))
    }

    fn waits(&self) -> bool {
        let deploys = matches!(self.steps.front(), Some(Step::Deploy { .. }));
        self.recording
            || !self.compiling.is_empty()
            || !self.stopping.is_empty()
            || (!self.pending.is_empty() && !deploys)
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
            let wanted = &self.desired.state.services;
            work.steps.retain(|step| match step {
                Step::Record => false,
                Step::Remove { service } => !wanted.contains_key(service),
                _ => true,
            });
        }
        self.work = Some(Box::new(work));
    }

    /// What is there, as far as it can be desired.
    fn present(&self) -> DesiredState {
        let stay = self.node.services().filter(|service| service.state != ServiceState::Stopping);
        let services = stay.map(|service| {
            let desired = self.desired.state.services.get(&service.name);
            let present = DesiredService::of(service, desired.and_then(|desired| desired.level));
            (service.name.clone(), present)
        });
        let rules = self.node.numbered_rules().into_iter().map(|(_, rule)| rule);
        DesiredState { bpf: self.node.bpf(), services: services.collect(), rules: rules.collect() }
    }

    /// Has every module compiled that will start.
    fn compile_for(&mut self, work: &mut Work) -> Answer<()> {
        for step in &work.steps {
            let (Step::Deploy { service } | Step::Replace { service }) = step else { continue };
            let Some(desired) = work.target.services.get(service) else { continue };
            let digest: Digest = desired.digest.parse().map_err(failed)?;
            self.hold(&digest)?;
            let compiled =
                self.modules.get(&digest).is_some_and(|module| module.compiled.is_some());
            if !compiled && work.compiling.insert(digest) {
                self.compile(digest, work.target.bpf);
            }
        }
        Ok(())
    }

    fn compile(&mut self, digest: Digest, wanted: bool) {
        let Some(module) = self.modules.get(&digest) else { return };
        let (wasm, done) = (module.wasm.clone(), self.done.clone());
        let bpf = self.no_bpf.is_none() && self.bpf_allowed && wanted;
        tokio::task::spawn_blocking(move || {
            // The daemon is gone when nobody receives: nothing is left to do.
            let _ = done.send(Done::Compiled(digest, deploy::compile(&wasm, bpf).map(Arc::new)));
        });
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
            if work.waits() {
                return;
            }
            let Some(step) = work.steps.pop_front() else {
                if let Some(work) = self.work.take() {
                    let done = work.failure.clone().map_or(Ok(()), Err);
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
        match work.purpose {
            Purpose::Apply(finish) => {
                if let Err(problem) = &done {
                    self.note_missing(&problem.message);
                } else {
                    // Everything that is desired is there.
                    self.desired.missing.clear();
                    self.desired.unfit.clear();
                }
                finish(self, done);
            }
            Purpose::Resume => self.resumed(),
        }
        self.forget_modules();
    }

    /// What did not come back on the way back is tried again, as after a start.
    fn note_missing(&mut self, why: &str) {
        for name in self.desired.state.services.keys() {
            if self.node.service(name).is_none() && !self.desired.missing.contains_key(name) {
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
            Step::Deploy { service } => self.step_deploy(service),
            Step::Replace { service } => {
                work.steps.push_front(Step::Deploy { service: service.clone() });
                self.step_remove(service, true)
            }
            Step::Arrange => self.step_arrange(),
            Step::Move { service } => self.step_move(service),
            Step::Record => {
                let (target, facts) = (work.target.clone(), work.facts.clone());
                work.recording = true;
                self.record(facts, move |state| *state = target, Self::work_recorded);
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
        self.command(Command::Deploy {
            service: service.clone(),
            module,
            parameters: desired.parameters.clone(),
            session: desired.session.clone(),
            rules: Vec::new(),
            // While nothing may run below, the wish is only noted, by the arrangement.
            level: desired.level.filter(|_| self.node.bpf()),
            then: Vec::new(),
            budget: desired.budget,
            discard_state: false,
        })?;
        if let Some(work) = self.work.as_mut() {
            work.now.services.insert(service.clone(), desired);
            work.pending.insert(service.clone());
        }
        Ok(())
    }

    fn step_remove(&mut self, service: &Name, cascade: bool) -> Answer<()> {
        if let Some(work) = self.work.as_mut() {
            work.now.remove(service);
        }
        let leads_there = self.node.numbered_rules().into_iter();
        let leads_there = leads_there.filter(|(_, it)| it.spec.action.service() == Some(service));
        let going = self.sessions_of(&leads_there.map(|(id, _)| id).collect::<Vec<_>>());
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
            let (then, level, budget) = (it.then.clone(), it.level, it.budget);
            (name.clone(), Arrangement { then, level, budget })
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
        self.budgets_changed();
        let Some(work) = self.work.as_mut() else { return Ok(()) };
        for (name, present) in &mut work.now.services {
            if let Some(desired) = state.services.get(name) {
                present.then = desired.then.clone();
                present.budget = desired.budget;
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
        if present.level == level || !self.node.bpf() {
            return Ok(());
        }
        self.command(Command::Move { service: service.clone(), level })?;
        if let Some(work) = self.work.as_mut() {
            work.pending.insert(service.clone());
        }
        Ok(())
    }

    /// Hears what becomes of services that work waits for.
    pub(crate) fn work_heard(&mut self, notice: &Notice) {
        let Some(work) = self.work.as_mut() else { return };
        match notice {
            Notice::ServiceRunning { service, .. } | Notice::ServiceMoved { service, .. } => {
                work.pending.remove(service);
            }
            Notice::ServiceRemoved { service } => {
                work.pending.remove(service);
                work.stopping.remove(service);
            }
            Notice::ServiceNotStarted { service, reason } if work.pending.remove(service) => {
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
            Notice::MoveFailed { service, reason } if work.pending.remove(service) => {
                if let Some(now) = work.now.services.get_mut(service) {
                    now.level = work.before.services.get(service).and_then(|it| it.level);
                }
                let message = format!("the service '{service}' did not move: {reason}");
                self.step_failed(failed(message));
            }
            _ => {}
        }
    }

    fn work_recorded(&mut self, written: Answer<()>) {
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
