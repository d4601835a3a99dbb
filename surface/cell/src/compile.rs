//! Compilation in a process of its own: limits on time and memory, one job each.
//!
//! The daemon never runs the compiler: a module may be made to blow it up. The
//! worker gives up every right before it reads the module.
//! The worker gets Wasm on standard input and writes code, or a reason, to
//! standard output; both end with the process.

use abi::check::{Checked, Unverified};
use abi::{Lanes, Level};
use engine::{Engine, MemoryKind};
use rustix::process::{Resource, Rlimit, setrlimit};
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use std::process::{Command, ExitStatus, Stdio};
use wasm_to_bpf::{Entry, Flavour, Options, Program};

/// Processor seconds of one job: a module of 8 MiB takes less.
const CPU_SECONDS_MAX: u64 = 20;
/// Address space of one job: the engine reserves far more than it uses.
const ADDRESS_SPACE_MAX: u64 = 4 << 30;
/// Largest code that comes back, in bytes: what Cranelift makes of the largest
/// module is within ten times its size.
const CODE_LENGTH_MAX: u64 = 80 << 20;

/// What a module became.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Compiled {
    /// Machine code for the engine.
    pub code: Vec<u8>,
    /// Of a module that can leave user level; its code is for a shared memory.
    pub below: Option<Below>,
    /// Why it does not run at each level below user that it asks for.
    pub refused: Vec<(Level, String)>,
}

/// The eBPF programs of a module.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Below {
    /// For `nic`.
    pub nic: Option<Program>,
    /// For `kernel`.
    pub kernel: Option<Program>,
}

impl Below {
    /// The program for a level.
    #[must_use]
    pub const fn program(&self, level: Level) -> Option<&Program> {
        match level {
            Level::Nic => self.nic.as_ref(),
            Level::Kernel => self.kernel.as_ref(),
            Level::User | Level::Cluster => None,
        }
    }

    /// One of them: each knows the instance.
    #[must_use]
    pub fn any(&self) -> Option<&Program> {
        self.nic.as_ref().or(self.kernel.as_ref())
    }
}

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
pub fn compile_in_worker(worker: Command, wasm: &[u8]) -> Result<Compiled, CompileFailure> {
    let (status, answer) = run_worker(worker, wasm).map_err(CompileFailure::Worker)?;
    match postcard::from_bytes::<Result<Compiled, String>>(&answer) {
        Ok(answer) if status.success() => answer.map_err(CompileFailure::Refused),
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

/// The worker's side: Wasm from standard input, the answer to standard output. With `bpf`
/// also programs for the levels below user that the module asks for.
///
/// # Errors
/// When the limits cannot be set or the pipes fail.
pub fn compile_worker(bpf: bool) -> io::Result<()> {
    rustix::thread::set_name(c"tam")?;
    limit(Resource::Cpu, CPU_SECONDS_MAX)?;
    limit(Resource::As, ADDRESS_SPACE_MAX)?;
    limit(Resource::Core, 0)?;
    let engine = Engine::new();
    os::sandbox::confine().map_err(io::Error::other)?;
    let mut wasm = Vec::new();
    io::stdin().lock().take(abi::layout::MODULE_LENGTH_MAX as u64 + 1).read_to_end(&mut wasm)?;
    let answer = engine.map_err(|error| error.to_string()).and_then(|engine| {
        let checked = Unverified(&wasm).check().map_err(|error| error.to_string())?;
        compile(&engine, &wasm, &checked, bpf)
    });
    let mut out = io::stdout().lock();
    out.write_all(&postcard::to_stdvec(&answer).map_err(io::Error::other)?)?;
    out.flush()
}

fn compile(engine: &Engine, wasm: &[u8], checked: &Checked, bpf: bool) -> Result<Compiled, String> {
    let mut refused = Vec::new();
    let wanted = [(Level::Nic, Flavour::Xdp), (Level::Kernel, Flavour::Tc)];
    let [nic, kernel] = wanted.map(|(level, flavour)| {
        let wanted = checked.manifest.levels.contains(&level);
        let program = wanted.then(|| match bpf {
            true => program(wasm, checked, flavour),
            false => Err("this node runs no BPF programs of modules".to_owned()),
        })?;
        program.map_err(|reason| refused.push((level, reason))).ok()
    });
    let below = (nic.is_some() || kernel.is_some()).then_some(Below { nic, kernel });
    // The programs know whether the module ever grows its memory.
    let kind = below.as_ref().and_then(Below::any).map_or(MemoryKind::Own, |program| {
        MemoryKind::shared(program.image.pages_min, program.image.pages_max)
    });
    let code = engine.compile(wasm, kind).map_err(|error| error.to_string())?;
    Ok(Compiled { code, below, refused })
}

/// A module's program, or all reasons why there is none.
fn program(wasm: &[u8], checked: &Checked, flavour: Flavour) -> Result<Program, String> {
    if checked.manifest.lanes != Lanes::Count(1) {
        return Err("a module with several lanes has several memories".to_owned());
    }
    let entry = Entry::Packet { window: checked.manifest.window, standalone: false };
    let options = Options { entry, flavour, memory_pages_max: checked.memory.pages_max };
    wasm_to_bpf::compile(wasm, &options).map_err(|refusals| {
        let reasons: Vec<String> = refusals.iter().map(ToString::to_string).collect();
        reasons.join("; ")
    })
}

fn limit(resource: Resource, maximum: u64) -> io::Result<()> {
    Ok(setrlimit(resource, Rlimit { current: Some(maximum), maximum: Some(maximum) })?)
}
