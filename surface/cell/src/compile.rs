//! Compilation in a process of its own: limits on time and memory, one job each.
//!
//! The daemon never runs the compiler: a module may be made to blow it up. The
//! worker gives up every right before it reads the module.
//! The worker gets Wasm on standard input and writes code, or a reason, to
//! standard output; both end with the process.

use engine::{Engine, MemoryKind};
use rustix::process::{Resource, Rlimit, setrlimit};
use std::io::{self, Read, Write};
use std::process::{Command, ExitStatus, Stdio};

/// Processor seconds of one job: a module of 8 MiB takes less.
const CPU_SECONDS_MAX: u64 = 20;
/// Address space of one job: the engine reserves far more than it uses.
const ADDRESS_SPACE_MAX: u64 = 4 << 30;
/// Largest code that comes back, in bytes: what Cranelift makes of the largest
/// module is within ten times its size.
const CODE_LENGTH_MAX: u64 = 80 << 20;

/// The first byte of an answer.
const OK: u8 = b'+';
const FAILED: u8 = b'-';

/// Why there is no code.
#[derive(Debug, thiserror::Error)]
pub enum CompileFailure {
    /// The compiler said no. The author's fault.
    #[error("{0}")]
    Refused(String),
    /// The worker ended before it answered: over its limits, most likely.
    #[error(
        "the compiler was stopped ({status}): more than {CPU_SECONDS_MAX} s of processor time or {} MiB of memory; make the module's functions smaller",
        ADDRESS_SPACE_MAX >> 20
    )]
    Stopped {
        /// How the worker ended.
        status: ExitStatus,
    },
    /// The worker could not be run. The host's fault.
    #[error("the compile worker cannot be run: {0}")]
    Worker(#[source] io::Error),
}

/// Runs `worker` (this program's compile worker) on a module.
///
/// # Errors
/// See [`CompileFailure`].
pub fn compile_in_worker(worker: Command, wasm: &[u8]) -> Result<Vec<u8>, CompileFailure> {
    let (status, answer) = run_worker(worker, wasm).map_err(CompileFailure::Worker)?;
    match (status.success(), answer.split_first()) {
        (true, Some((&OK, code))) => Ok(code.to_vec()),
        (true, Some((&FAILED, reason))) => {
            Err(CompileFailure::Refused(String::from_utf8_lossy(reason).into_owned()))
        }
        _ => Err(CompileFailure::Stopped { status }),
    }
}

fn run_worker(mut worker: Command, wasm: &[u8]) -> io::Result<(ExitStatus, Vec<u8>)> {
    let mut child =
        worker.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let mut input = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
    let output = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
    let answer = std::thread::scope(|scope| {
        // A worker that dies early closes the pipe; its status says why.
        scope.spawn(move || input.write_all(wasm));
        let mut answer = Vec::new();
        output.take(CODE_LENGTH_MAX).read_to_end(&mut answer).map(|_| answer)
    })?;
    Ok((child.wait()?, answer))
}

/// The worker's side: Wasm from standard input, the answer to standard output.
///
/// # Errors
/// When the limits cannot be set or the pipes fail.
pub fn compile_worker() -> io::Result<()> {
    rustix::thread::set_name(c"tam")?;
    limit(Resource::Cpu, CPU_SECONDS_MAX)?;
    limit(Resource::As, ADDRESS_SPACE_MAX)?;
    limit(Resource::Core, 0)?;
    let engine = Engine::new();
    os::sandbox::confine().map_err(io::Error::other)?;
    let mut wasm = Vec::new();
    io::stdin().lock().take(abi::layout::MODULE_LENGTH_MAX as u64 + 1).read_to_end(&mut wasm)?;
    let compiled = engine.and_then(|engine| engine.compile(&wasm, MemoryKind::Own));
    let mut out = io::stdout().lock();
    match compiled {
        Ok(code) => out.write_all(&[OK]).and_then(|()| out.write_all(&code)),
        Err(error) => write!(out, "{}{error}", FAILED as char),
    }?;
    out.flush()
}

fn limit(resource: Resource, maximum: u64) -> io::Result<()> {
    Ok(setrlimit(resource, Rlimit { current: Some(maximum), maximum: Some(maximum) })?)
}
