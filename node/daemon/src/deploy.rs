//! Compilation of modules, from their bytes to code that a cell can run.

use abi::check::{CheckError, Checked, Kind, Unverified};
use cell::{CompileFailure, CompileWorker, Compiled};
use module_store::Digest;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use trust::Signer;

/// Bytes of modules that no service runs any more, and of their code: a dozen large ones. Those
/// that ran last are kept, and need not be compiled again.
const IDLE_BYTES_MAX: usize = 32 << 20;
/// Number of such modules, however small: each has a descriptor for its code.
const IDLE_MAX: usize = 128;

/// Time from the end of one compilation to the start of a worker for the next.
const PREPARE_AFTER: Duration = Duration::from_millis(100);

/// Program of cell and compile worker: this one, even if its file has been replaced by a newer
/// version since.
pub(crate) const PROGRAM: &str = "/proc/self/exe";

/// Compiled code of a module.
#[derive(Clone, Debug)]
pub(crate) struct Code {
    /// Set if it is compiled for the levels below user, too.
    pub(crate) bpf: bool,
    pub(crate) compiled: Arc<Compiled>,
}

/// Module that the ABI's check accepted.
#[derive(Clone, Debug)]
pub(crate) struct Module {
    pub(crate) wasm: Vec<u8>,
    pub(crate) checked: Checked,
    pub(crate) compiled: Option<Code>,
    /// Trusted signers of the module that have been verified so far.
    pub(crate) signers: BTreeSet<Signer>,
    /// Calls of [`forget`] since a service last ran it.
    idle: u32,
}

impl Module {
    pub(crate) fn check(wasm: Vec<u8>) -> Result<Self, CheckError> {
        let checked = Unverified(&wasm).check()?;
        if checked.kind == Kind::Streams {
            proxy_wasm::check(&wasm).map_err(|error| CheckError::Streams(error.to_string()))?;
        }
        Ok(Self { wasm, checked, compiled: None, signers: BTreeSet::new(), idle: 0 })
    }

    /// Creates a module that was checked by its source.
    pub(crate) const fn of(wasm: Vec<u8>, checked: Checked, signers: BTreeSet<Signer>) -> Self {
        Self { wasm, checked, compiled: None, signers, idle: 0 }
    }

    /// Returns the code of the present kind: with programs for the levels below user if `bpf` is
    /// set.
    pub(crate) fn code(&self, bpf: bool) -> Option<&Arc<Compiled>> {
        self.compiled.as_ref().filter(|code| code.bpf == bpf).map(|code| &code.compiled)
    }

    fn bytes(&self) -> usize {
        self.wasm.len() + self.compiled.as_ref().map_or(0, |code| code.compiled.bytes())
    }
}

/// Drops unused modules, except the most recently used within a limit; the store has them all.
pub(crate) fn forget(modules: &mut BTreeMap<Digest, Module>, is_used: impl Fn(&Digest) -> bool) {
    forget_beyond((IDLE_MAX, IDLE_BYTES_MAX), modules, is_used);
}

fn forget_beyond(
    (count_max, bytes_max): (usize, usize),
    modules: &mut BTreeMap<Digest, Module>,
    is_used: impl Fn(&Digest) -> bool,
) {
    for (digest, module) in &mut *modules {
        module.idle = if is_used(digest) { 0 } else { module.idle.saturating_add(1) };
    }
    let idle = modules.iter().filter(|(_, module)| module.idle > 0);
    let mut idle: Vec<(u32, Digest, usize)> =
        idle.map(|(digest, module)| (module.idle, *digest, module.bytes())).collect();
    idle.sort_unstable();
    let mut bytes = 0;
    for (before, (_, digest, size)) in idle.into_iter().enumerate() {
        bytes += size;
        if bytes > bytes_max || before >= count_max {
            modules.remove(&digest);
        }
    }
}

/// Returns the number of compilers that may work at the same time: one for each processor of the
/// daemon.
pub(crate) fn jobs_max() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Number of compilers at work, and the condition that one has ended.
static JOBS: (Mutex<usize>, Condvar) = (Mutex::new(0), Condvar::new());

/// Permit for a compiler, until this is dropped.
struct Turn;

impl Turn {
    /// Waits for a permit.
    fn take() -> Self {
        let most = jobs_max();
        let jobs = JOBS.0.lock().unwrap_or_else(PoisonError::into_inner);
        let jobs = JOBS.1.wait_while(jobs, |jobs| *jobs >= most);
        *jobs.unwrap_or_else(PoisonError::into_inner) += 1;
        Self
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *JOBS.0.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        JOBS.1.notify_one();
    }
}

/// Worker started in advance, with the value of its `bpf` option: starting one takes some
/// milliseconds.
static SPARE: Mutex<Option<(bool, CompileWorker)>> = Mutex::new(None);

fn spare() -> MutexGuard<'static, Option<(bool, CompileWorker)>> {
    SPARE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a worker for the next module; after a delay, since the compiled module starts now.
pub(crate) fn prepare(bpf: bool) {
    std::thread::sleep(PREPARE_AFTER);
    let mut spare = spare();
    if spare.as_ref().is_none_or(|(for_bpf, _)| *for_bpf != bpf) {
        // Without one, the next module starts its own, and gets the error.
        *spare = start(bpf, true).ok().map(|worker| (bpf, worker));
    }
}

/// Ends the worker that was started in advance.
pub(crate) fn end_spare() {
    spare().take();
}

/// Core that runs modules, where a compiler may work while it is idle.
static GUEST_CORE: OnceLock<usize> = OnceLock::new();

/// Sets the core that runs modules; must be called once, before anything is compiled.
pub(crate) fn set_guest_core(core: usize) {
    let _ = GUEST_CORE.set(core);
}

/// Detaches the program that `command` starts from the terminal's signals: Ctrl-C is for the
/// daemon, which ends its children itself, in its own order.
pub(crate) fn away_from_terminal(command: &mut Command) -> &mut Command {
    command.process_group(0)
}

fn start(bpf: bool, warm: bool) -> Result<CompileWorker, CompileFailure> {
    let mut worker = Command::new(PROGRAM);
    away_from_terminal(&mut worker).arg("compile-worker").env_clear();
    if let Some(core) = GUEST_CORE.get() {
        worker.args(["--guest-core", &core.to_string()]);
    }
    if warm {
        worker.arg("--warm");
    }
    if !bpf {
        worker.arg("--no-bpf");
    }
    CompileWorker::start(worker)
}

/// Compiles in a worker process, with programs for the levels below user if `bpf` is set: `first`
/// is called when the module can start. Waits for a permit, and until the programs are complete,
/// too. Returns the processor time used.
pub(crate) fn compile(
    wasm: &[u8],
    bpf: bool,
    first: impl FnOnce(Result<Arc<Compiled>, String>),
) -> Duration {
    let _turn = Turn::take();
    let waiting = spare().take_if(|(for_bpf, _)| *for_bpf == bpf);
    let worker = match waiting {
        Some((_, worker)) => Ok(worker),
        None => start(bpf, false),
    };
    match worker {
        Ok(worker) => worker.compile(wasm, |compiled| first(compiled.map_err(|e| e.to_string()))),
        Err(error) => {
            first(Err(error.to_string()));
            Duration::ZERO
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn modules(count: u8) -> BTreeMap<Digest, Module> {
        let module = |number: u8| {
            let manifest =
                format!(r#"abi = 1\nname = \"m{number}\"\nversion = \"0.1.0\"\nwindow = 0\n"#);
            let text = format!(
                r#"(module (@custom "tamandua" "{manifest}") (memory (export "memory") 1)
                (func (export "on_packet") (result i32) (i32.const 0)))"#
            );
            let wasm = wat::parse_str(text).unwrap();
            (Digest::of(&wasm), Module::check(wasm).unwrap())
        };
        (0..count).map(module).collect()
    }

    #[test]
    fn child_processes_are_in_another_process_group_than_the_daemon() {
        let group = |command: &mut Command| {
            let output = command.args(["-c", "cut -d' ' -f5 /proc/$$/stat"]).output().unwrap();
            String::from_utf8(output.stdout).unwrap().trim().parse::<i32>().unwrap()
        };
        let own = rustix::process::getpgrp().as_raw_nonzero().get();
        assert_eq!(group(&mut Command::new("/bin/sh")), own);
        assert_ne!(group(away_from_terminal(&mut Command::new("/bin/sh"))), own);
    }

    #[test]
    fn a_filter_for_streams_may_import_what_its_host_has() {
        let text =
            r#"(module (memory (export "memory") 1) (func (export "proxy_abi_version_0_2_1")))"#;
        let module = Module::check(wat::parse_str(text).unwrap()).unwrap();
        assert_eq!(module.checked.kind, Kind::Streams);
        let unknown = text.replace("(memory", r#"(import "env" "proxy_fly" (func)) (memory"#);
        let refused = Module::check(wat::parse_str(unknown).unwrap()).unwrap_err();
        assert!(refused.to_string().contains("proxy_fly"), "{refused}");
    }

    #[test]
    fn compiled_modules_in_use_are_kept_and_recent_ones_within_a_limit() {
        let mut modules = modules(4);
        let digests: Vec<Digest> = modules.keys().copied().collect();
        let size = modules[&digests[0]].bytes();
        // One module after another becomes unused; the last one stays in use.
        for gone in 1..4 {
            forget_beyond((9, 2 * size), &mut modules, |it| digests[gone..].contains(it));
        }
        let left: Vec<Digest> = modules.keys().copied().collect();
        assert_eq!(left, digests[1..], "the first has been idle for longest");
        forget_beyond((1, usize::MAX), &mut modules, |it| *it == digests[3]);
        assert_eq!(modules.keys().copied().collect::<Vec<_>>(), digests[2..], "one by its number");
        forget_beyond((9, 0), &mut modules, |it| *it == digests[3]);
        assert_eq!(modules.keys().copied().collect::<Vec<_>>(), digests[3..]);
    }
}
