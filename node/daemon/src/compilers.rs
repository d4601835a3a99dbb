//! Compilations of modules: code that was made before comes from the disk, and what must be
//! compiled waits its turn.
//!
//! ```text
//!  wanted ─▶ kept? ─ yes ─▶ read, verified ───────────────────────────▶ compiled
//!              │ no             │ no                                       ▲
//!              └───────▶ queue ─┴─▶ compilers, one for each processor ─────┴─▶ kept
//! ```
//!
//! After the loss of a cell, or at a node's start, all services want their modules at the same
//! time: with a process for each of them all would meet their limits before one is done.

use crate::code_cache::CodeCache;
use crate::completion::Completion;
use crate::control::state::NodeState;
use crate::deploy;
use crate::pending::Pending;
use cell::Compiled;
use cell::protocol::StateTransfer;
use module_store::Digest;
use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use tokio::time::Duration;
use trust::SecretKey;
use units::EntryId;

/// Compilation of a module; for the levels below user, too, if `bpf`.
#[derive(Clone, Copy)]
struct Job {
    module: Digest,
    bpf: bool,
}

/// Jobs of one kind: some run, the others wait in the order of asking.
#[derive(Default)]
struct Queue {
    waiting: VecDeque<Job>,
    running: usize,
}

impl Queue {
    /// Removes and returns the next job, if fewer than `most` run.
    fn begin(&mut self, most: usize) -> Option<Job> {
        let job = (self.running < most).then(|| self.waiting.pop_front()).flatten()?;
        self.running += 1;
        Some(job)
    }

    fn end(&mut self) {
        self.running = self.running.saturating_sub(1);
    }
}

/// Completion of a job.
pub(crate) enum Completed {
    /// Code of a module, for the levels below user too if `true`, or the reason for there being none.
    Compiled(Digest, bool, Result<Arc<Compiled>, String>),
    /// Code of a module from the disk; `None` where that has none that verifies.
    Read(Digest, bool, Option<Arc<Compiled>>),
    /// End of a compiler, which took this much processor time.
    Ended(Digest, Duration),
}

/// Action that follows from a completion.
pub(crate) enum Action {
    /// Note of the service for which a module is compiled: its account pays.
    Wanted(Digest, EntryId),
    /// Bill for a compilation, which took this much processor time.
    Bill(Digest, Duration),
    /// End of a module's compilation, for the levels below user too if `true`: its code, or the
    /// reason for there being none. It comes before the starts that follow from it.
    Compiled(Digest, bool, Result<Arc<Compiled>, String>),
    /// Start of a service, or of a version of one, whose module is compiled.
    Begin(Box<Pending>, Arc<Compiled>),
    /// Failure of such a start.
    Fail { entry: EntryId, replaces: Option<StateTransfer>, reason: String },
}

/// Compilation under way; its end is reported when this is dropped, however it ended.
struct Running {
    module: Digest,
    took: Duration,
    done: Completion<Completed>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.done.send(Completed::Ended(self.module, self.took));
    }
}

/// Compilations of modules, and the services that wait for each.
pub(crate) struct Compilers {
    /// Services that begin when their module is compiled.
    pending: BTreeMap<Digest, Vec<Pending>>,
    reads: Queue,
    compilations: Queue,
    /// Largest number of jobs of one kind at a time.
    most: usize,
    /// Cache of compiled code; `None` if the disk has no space for it, and everything is compiled.
    cache: Option<Arc<CodeCache>>,
    /// Compilers started, and compilations that came from the disk.
    counts: (u64, u64),
    done: Completion<Completed>,
    actions: VecDeque<Action>,
}

impl Compilers {
    /// Creates the compilers of a node, with the code that its previous daemons have kept.
    pub(crate) fn open(state: &Path, key: &SecretKey, done: Completion<Completed>) -> Self {
        let cache = CodeCache::open(state, key).inspect_err(|error| {
            let state = state.display();
            tracing::warn!(%state, %error, "compiled code is not kept: a daemon after this one has to compile all modules again");
        });
        Self {
            pending: BTreeMap::new(),
            reads: Queue::default(),
            compilations: Queue::default(),
            most: deploy::jobs_max(),
            cache: cache.ok().map(Arc::new),
            counts: (0, 0),
            done,
            actions: VecDeque::new(),
        }
    }

    /// Returns true when no module is being compiled, or waits for it.
    pub(crate) fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }

    /// Discards the services that wait: the next cell is asked to start all of them again.
    pub(crate) fn forget_all_pending(&mut self) {
        self.pending.values_mut().for_each(Vec::clear);
    }

    /// Returns the counters, for the API.
    pub(crate) fn stats(&self) -> api::CompilerStats {
        let (started, from_disk) = self.counts;
        let waiting = self.compilations.waiting.len() as u64;
        api::CompilerStats { started, from_disk, waiting }
    }

    /// Begins a service, or a version of one, as soon as its module is compiled.
    pub(crate) fn begin(&mut self, state: &NodeState, digest: Digest, pending: Pending) {
        if let Some(compiled) = state.modules().code(&digest, state.bpf_now()) {
            let begin = Action::Begin(Box::new(pending), Arc::clone(compiled));
            return self.actions.push_back(begin);
        }
        self.compile(state, digest, state.node().bpf());
        self.pending.entry(digest).or_default().push(pending);
    }

    /// Compiles a module, if that is not being done already; for the levels below user too
    /// if they are wanted, and this node has them.
    pub(crate) fn compile(&mut self, state: &NodeState, digest: Digest, below: bool) {
        if state.modules().get(&digest).is_none() || self.pending.contains_key(&digest) {
            return;
        }
        let job = Job { module: digest, bpf: state.compiles_below(below) };
        self.pending.insert(digest, Vec::new());
        let is_kept = self.cache.as_ref().is_some_and(|it| it.has(&digest, job.bpf));
        match is_kept {
            true => self.reads.waiting.push_back(job),
            false => self.compilations.waiting.push_back(job),
        }
        self.begin_jobs(state);
    }

    /// Compiles the modules of services that run without code: their next cell needs it.
    pub(crate) fn compile_running(&mut self, state: &NodeState) {
        let bpf = state.bpf_now();
        for service in state.node().services() {
            let Ok(digest) = service.module.digest.parse::<Digest>() else { continue };
            if state.modules().get(&digest).is_some_and(|module| module.code(bpf).is_none()) {
                self.compile(state, digest, state.node().bpf());
            }
        }
    }

    /// Starts queued jobs, up to the limit.
    fn begin_jobs(&mut self, state: &NodeState) {
        while let Some(Job { module, bpf }) = self.reads.begin(self.most) {
            let (done, cache) = (self.done.clone(), self.cache.clone());
            tokio::task::spawn_blocking(move || {
                let code = cache.and_then(|cache| cache.get(&module, bpf)).map(Arc::new);
                done.send(Completed::Read(module, bpf, code));
            });
        }
        while let Some(job) = self.compilations.begin(self.most) {
            self.begin_compilation(state, job);
        }
    }

    fn begin_compilation(&mut self, state: &NodeState, Job { module, bpf }: Job) {
        let mut running = Running { module, took: Duration::ZERO, done: self.done.clone() };
        let Some(held) = state.modules().get(&module) else {
            // Nobody has wanted it for long.
            let reason = format!("the module {module} is no longer held");
            return self.done.send(Completed::Compiled(module, bpf, Err(reason)));
        };
        self.counts.0 += 1;
        let (wasm, done, cache) = (held.wasm.clone(), self.done.clone(), self.cache.clone());
        tokio::task::spawn_blocking(move || {
            let mut made = None;
            running.took = deploy::compile(&wasm, bpf, |result| {
                made = result.as_ref().ok().cloned();
                done.send(Completed::Compiled(module, bpf, result));
            });
            drop(running);
            if let (Some(compiled), Some(cache)) = (made, cache) {
                cache.put(&module, bpf, &compiled);
            }
            deploy::prepare(bpf);
        });
    }

    /// Handles the completion of a job.
    pub(crate) fn handle(&mut self, state: &NodeState, completed: Completed) {
        match completed {
            Completed::Compiled(module, bpf, result) => {
                self.handle_compiled(state, (module, bpf), result);
            }
            Completed::Read(module, bpf, code) => {
                self.reads.end();
                match code {
                    Some(code) => {
                        self.counts.1 += 1;
                        self.handle_compiled(state, (module, bpf), Ok(code));
                    }
                    None => self.compilations.waiting.push_back(Job { module, bpf }),
                }
            }
            Completed::Ended(module, took) => {
                self.compilations.end();
                self.actions.push_back(Action::Bill(module, took));
            }
        }
        self.begin_jobs(state);
    }

    /// Handles the code of a module, or the reason for which there is none. Services that wait for
    /// it start, or have it compiled again if the levels below user were switched meanwhile.
    fn handle_compiled(
        &mut self,
        state: &NodeState,
        (module, bpf): (Digest, bool),
        result: Result<Arc<Compiled>, String>,
    ) {
        let waiting = self.pending.remove(&module).unwrap_or_default();
        if let Some(first) = waiting.first() {
            self.actions.push_back(Action::Wanted(module, first.facts.entry()));
        }
        self.actions.push_back(Action::Compiled(module, bpf, result.clone()));
        let is_for_now = bpf == state.bpf_now();
        for pending in waiting {
            match &result {
                _ if !is_for_now => self.begin(state, module, pending),
                Ok(compiled) => {
                    let begin = Action::Begin(Box::new(pending), Arc::clone(compiled));
                    self.actions.push_back(begin);
                }
                Err(reason) => {
                    let (entry, replaces) = (pending.facts.entry(), pending.replaces);
                    let reason = reason.clone();
                    self.actions.push_back(Action::Fail { entry, replaces, reason });
                }
            }
        }
    }

    /// Removes a service from those that begin when their module is compiled. Whoever wanted a module
    /// pays for it. Returns true when that was all there is of the service.
    pub(crate) fn forget(&mut self, entry: EntryId) -> bool {
        let is_its = |pending: &Pending| pending.facts.entry() == entry;
        let mut was_to_start = false;
        for (digest, waiting) in &mut self.pending {
            if waiting.iter().any(is_its) {
                self.actions.push_back(Action::Wanted(*digest, entry));
                was_to_start |= waiting.iter().any(|it| is_its(it) && it.replaces.is_none());
                waiting.retain(|pending| !is_its(pending));
            }
        }
        was_to_start
    }

    /// Returns the next action.
    pub(crate) fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }
}

/// Starts a compiler that waits for the first module, for the levels below user too if `bpf` says so.
pub(crate) fn prepare(bpf: bool) {
    tokio::task::spawn_blocking(move || deploy::prepare(bpf));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_compilations_run_as_there_are_processors_and_the_rest_in_their_order() {
        let module = |number: u8| Digest::of(&[number]);
        let mut queue = Queue::default();
        queue.waiting.extend((0..5).map(|number| Job { module: module(number), bpf: true }));
        let begin = |queue: &mut Queue| queue.begin(2).map(|job| job.module);
        assert_eq!(begin(&mut queue), Some(module(0)));
        assert_eq!(begin(&mut queue), Some(module(1)));
        assert_eq!(begin(&mut queue), None);
        for next in 2..5 {
            queue.end();
            assert_eq!(begin(&mut queue), Some(module(next)));
            assert_eq!(begin(&mut queue), None);
        }
        queue.end();
        queue.end();
        assert_eq!(begin(&mut queue), None);
    }
}
