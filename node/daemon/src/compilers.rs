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

use crate::access::Caller;
use crate::answer::{Answer, failed, usage};
use crate::cell_work::Pending;
use crate::code_cache::CodeCache;
use crate::control::authorize::readable;
use crate::daemon::{Daemon, Done};
use crate::deploy::{self, Module};
use crate::observe::documents::modules as documents;
use crate::reply::Reply;
use api::{ModuleList, ModuleStored, SCHEMA_VERSION};
use cell::Compiled;
use module_store::Digest;
use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::Duration;
use trust::SecretKey;
use units::EntryId;

/// A module to be compiled, and whether for the levels below user, too.
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
    /// Takes out the next job, if fewer than `most` run.
    fn begin(&mut self, most: usize) -> Option<Job> {
        let job = (self.running < most).then(|| self.waiting.pop_front()).flatten()?;
        self.running += 1;
        Some(job)
    }

    fn end(&mut self) {
        self.running = self.running.saturating_sub(1);
    }
}

/// Modules that are being compiled, and the services that wait for each.
pub(crate) struct Compilers {
    /// Services that begin when their module is compiled.
    pending: BTreeMap<Digest, Vec<Pending>>,
    reads: Queue,
    compilations: Queue,
    /// Jobs of one kind at a time.
    most: usize,
    /// None where the disk has no room for it: all is compiled anew.
    cache: Option<Arc<CodeCache>>,
    /// Compilers started, and compilations that came from the disk.
    counts: (u64, u64),
}

impl Compilers {
    /// Makes those of a node, with the code that its daemons before have kept.
    pub(crate) fn open(state: &Path, key: &SecretKey) -> Self {
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
        }
    }

    /// Returns whether no module is being compiled, or waits for it.
    pub(crate) fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }

    /// Forgets who waits: the next cell is asked for all services anew.
    pub(crate) fn forget_all_pending(&mut self) {
        self.pending.values_mut().for_each(Vec::clear);
    }

    /// Returns the counters, for the API.
    pub(crate) fn stats(&self) -> api::CompilerStats {
        let (started, from_disk) = self.counts;
        let waiting = self.compilations.waiting.len() as u64;
        api::CompilerStats { started, from_disk, waiting }
    }
}

/// A compilation that runs; the daemon hears when this is dropped, however it ended.
struct Running {
    module: Digest,
    took: Duration,
    done: UnboundedSender<Done>,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.done.send(Done::CompileTook(self.module, self.took));
    }
}

impl Daemon {
    /// Lets a service begin as soon as its module is compiled.
    pub(crate) fn begin_when_compiled(&mut self, digest: Digest, pending: Pending) {
        if let Some(compiled) = self.control.modules().code(&digest, self.control.state().bpf_now())
        {
            let compiled = Arc::clone(compiled);
            return self.begin_in_cell(pending, &compiled);
        }
        self.compile(digest, self.control.node().bpf());
        self.compilers.pending.entry(digest).or_default().push(pending);
    }

    /// Has a module compiled, if that is not being done already; for the levels below user too
    /// if they are wanted, and this node has them.
    pub(crate) fn compile(&mut self, digest: Digest, below: bool) {
        if self.control.modules().get(&digest).is_none()
            || self.compilers.pending.contains_key(&digest)
        {
            return;
        }
        let job = Job { module: digest, bpf: self.control.state().compiles_below(below) };
        let compilers = &mut self.compilers;
        compilers.pending.insert(digest, Vec::new());
        let is_kept = compilers.cache.as_ref().is_some_and(|it| it.has(&digest, job.bpf));
        match is_kept {
            true => compilers.reads.waiting.push_back(job),
            false => compilers.compilations.waiting.push_back(job),
        }
        self.begin_compilations();
    }

    /// Compiles the modules of services that run without code: their next cell needs it.
    pub(crate) fn compile_what_runs(&mut self) {
        let digests = self.control.node().services().filter_map(|it| it.module.digest.parse().ok());
        let digests: Vec<Digest> = digests.collect();
        let bpf = self.control.state().bpf_now();
        for digest in digests {
            if self.control.modules().get(&digest).is_some_and(|module| module.code(bpf).is_none())
            {
                self.compile(digest, self.control.node().bpf());
            }
        }
    }

    /// Begins jobs whose turn it is.
    fn begin_compilations(&mut self) {
        let most = self.compilers.most;
        while let Some(job) = self.compilers.reads.begin(most) {
            let (done, cache) = (self.done.clone(), self.compilers.cache.clone());
            tokio::task::spawn_blocking(move || {
                let Job { module, bpf } = job;
                let code = cache.and_then(|cache| cache.get(&module, bpf)).map(Arc::new);
                // The daemon is gone when nobody receives: nothing is left to do.
                let _ = done.send(Done::CodeRead(module, bpf, code));
            });
        }
        while let Some(job) = self.compilers.compilations.begin(most) {
            self.begin_compilation(job);
        }
    }

    fn begin_compilation(&mut self, Job { module, bpf }: Job) {
        let mut running = Running { module, took: Duration::ZERO, done: self.done.clone() };
        let Some(held) = self.control.modules().get(&module) else {
            // Nobody has wanted it for long.
            let reason = format!("the module {module} is no longer held");
            return drop(self.done.send(Done::Compiled(module, bpf, Err(reason))));
        };
        self.compilers.counts.0 += 1;
        let (wasm, done, cache) =
            (held.wasm.clone(), self.done.clone(), self.compilers.cache.clone());
        tokio::task::spawn_blocking(move || {
            let mut made = None;
            running.took = deploy::compile(&wasm, bpf, |result| {
                made = result.as_ref().ok().cloned();
                let _ = done.send(Done::Compiled(module, bpf, result));
            });
            drop(running);
            if let (Some(compiled), Some(cache)) = (made, cache) {
                cache.put(&module, bpf, &compiled);
            }
            deploy::prepare(bpf);
        });
    }

    /// The disk had a module's code, or not after all.
    pub(crate) fn code_read(&mut self, module: Digest, bpf: bool, code: Option<Arc<Compiled>>) {
        self.compilers.reads.end();
        match code {
            Some(code) => {
                self.compilers.counts.1 += 1;
                self.compiled(module, bpf, &Ok(code));
            }
            None => self.compilers.compilations.waiting.push_back(Job { module, bpf }),
        }
        self.begin_compilations();
    }

    /// A compiler has ended, and took so much processor time.
    pub(crate) fn compiler_ended(&mut self, module: Digest, took: Duration) {
        self.compilers.compilations.end();
        self.billing.add_compilation(self.control.state(), module, took);
        self.begin_compilations();
    }

    /// Takes a service out of what begins when its module is compiled; returns whether that was
    /// all there is of it.
    pub(crate) fn forget_pending(&mut self, entry: EntryId) -> bool {
        let is_its = |pending: &Pending| pending.facts.entry() == entry;
        let its = self.compilers.pending.iter().filter(|(_, waiting)| waiting.iter().any(is_its));
        let digests: Vec<Digest> = its.map(|(digest, _)| *digest).collect();
        let mut was_to_start = false;
        for digest in digests {
            // Whoever wanted it pays for it.
            self.billing.note_compiled(self.control.state(), digest, entry);
            if let Some(waiting) = self.compilers.pending.get_mut(&digest) {
                was_to_start |= waiting.iter().any(|it| is_its(it) && it.replaces.is_none());
                waiting.retain(|pending| !is_its(pending));
            }
        }
        was_to_start
    }

    /// Makes a compiler wait for the first module.
    pub(crate) fn prepare_compiler(&self) {
        let bpf = self.control.state().bpf_now();
        tokio::task::spawn_blocking(move || deploy::prepare(bpf));
    }

    /// Writes a module to the disk, and compiles it meanwhile: it comes to be run. `early` is an
    /// answer before it is written.
    pub(crate) fn put_module(&mut self, wasm: Vec<u8>, early: bool, reply: Reply<ModuleStored>) {
        let module = match Module::check(wasm) {
            Ok(module) => module,
            Err(problem) => return reply.refuse(usage(problem)),
        };
        let digest = Digest::of(&module.wasm);
        let (store, done) = (self.control.modules().store().clone(), self.done.clone());
        let (wasm, manifest) = (module.wasm.clone(), module.checked.manifest.clone());
        let account = self.control.state().account(None, None);
        self.billing.add_fetched(&account, wasm.len() as u64);
        let answer = ModuleStored {
            schema_version: SCHEMA_VERSION,
            digest: digest.to_string(),
            name: manifest.name.to_string(),
            version: manifest.version.clone(),
            size_bytes: wasm.len() as u64,
        };
        let reply = match early {
            true => {
                reply.ok(answer.clone());
                None
            }
            false => Some(reply),
        };
        let modules = self.control.state_mut().modules_mut();
        let written = modules.begin_store(&digest);
        modules.insert(digest, module);
        let may_run = modules.permit(&digest).is_ok();
        tokio::task::spawn_blocking(move || {
            let stored = store.put(&wasm, &manifest).map(drop).map_err(failed);
            // Nobody may be waiting, and the daemon may be gone.
            let _ = written.send(stored.clone());
            let _ = done.send(Done::Stored(digest, stored.map(|()| answer), reply));
        });
        let state = self.control.state();
        let is_compiled = state.modules().code(&digest, state.bpf_now()).is_some();
        // One at a time: a whole repository may be on its way to this store. What may not run is
        // not compiled, either.
        if !is_compiled && self.compilers.is_idle() && may_run {
            self.compile(digest, self.control.node().bpf());
        }
    }

    /// Handles a module that is in the store, or could not be written.
    pub(crate) fn stored(
        &mut self,
        digest: Digest,
        stored: Answer<ModuleStored>,
        reply: Option<Reply<ModuleStored>>,
    ) {
        self.demand_stored(&digest);
        self.control.handle_stored(digest, stored.as_ref().map(drop).map_err(Clone::clone));
        if let Some(reply) = reply {
            reply.answer(stored);
        }
    }

    /// Returns the modules of the store that a client may run.
    pub(crate) fn module_list(&mut self, caller: &Caller) -> Answer<ModuleList> {
        let listing = self.control.modules().store().list().map_err(failed)?;
        let modules = readable(self.control.state_mut(), caller, listing.modules);
        Ok(documents::module_list(modules))
    }

    /// Takes in what a compiler has made, for the levels below user too if `bpf` says so. Who
    /// waits for it begins, or has it compiled anew if that was switched meanwhile.
    pub(crate) fn compiled(
        &mut self,
        digest: Digest,
        bpf: bool,
        result: &Result<Arc<Compiled>, String>,
    ) {
        let waiting = self.compilers.pending.remove(&digest).unwrap_or_default();
        if let Some(first) = waiting.first() {
            self.billing.note_compiled(self.control.state(), digest, first.facts.entry());
        }
        self.control.handle_compiled(&digest, result.as_ref().err());
        if let Ok(compiled) = result {
            self.control.state_mut().modules_mut().set_code(&digest, bpf, compiled);
        }
        let is_for_now = bpf == self.control.state().bpf_now();
        for pending in waiting {
            match result {
                _ if !is_for_now => self.begin_when_compiled(digest, pending),
                Ok(compiled) => self.begin_in_cell(pending, compiled),
                Err(reason) => {
                    let (entry, replaces) = (pending.facts.entry(), pending.replaces);
                    self.not_begun(entry, replaces, reason.clone());
                }
            }
        }
    }
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
