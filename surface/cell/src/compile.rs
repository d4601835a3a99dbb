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
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread::JoinHandle;
use wasm_to_bpf::{Entry, Flavour, Options, Program};

/// Processor seconds of one job: a module of 8 MiB takes less.
const CPU_SECONDS_MAX: u64 = 20;
/// Address space of one job: the engine reserves far more than it uses.
const ADDRESS_SPACE_MAX: u64 = 4 << 30;
/// Bytes of the second thread's stack, as the first has it on most machines.
const OTHER_STACK: usize = 8 << 20;
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

impl Compiled {
    /// What it takes in memory, but for some hundred bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let programs = self.below.iter().flat_map(|below| [&below.nic, &below.kernel]).flatten();
        let words = programs.map(|program| program.instructions.len() + program.places.len());
        self.code.len() + words.sum::<usize>() * size_of::<u64>()
    }
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

/// A compile worker that waits for its module. It ends when this is dropped, or with this process:
/// its standard input ends then.
#[derive(Debug)]
pub struct CompileWorker {
    child: Child,
}

impl CompileWorker {
    /// Starts `worker`, this program's compile worker.
    ///
    /// # Errors
    /// When it cannot be run.
    pub fn start(mut worker: Command) -> Result<Self, CompileFailure> {
        worker.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        Ok(Self { child: worker.spawn().map_err(CompileFailure::Worker)? })
    }

    /// Has it compile a module, which is all that it does.
    ///
    /// # Errors
    /// See [`CompileFailure`].
    pub fn compile(mut self, wasm: &[u8]) -> Result<Compiled, CompileFailure> {
        let (status, answer) = self.ask(wasm).map_err(CompileFailure::Worker)?;
        match postcard::from_bytes::<Result<Compiled, String>>(&answer) {
            Ok(answer) if status.success() => answer.map_err(CompileFailure::Refused),
            _ => Err(CompileFailure::Stopped { status }),
        }
    }

    fn ask(&mut self, wasm: &[u8]) -> io::Result<(ExitStatus, Vec<u8>)> {
        let mut input = self.child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let output = self.child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let answer = std::thread::scope(|scope| {
            // A worker that dies early closes the pipe; its status says why.
            scope.spawn(move || input.write_all(wasm));
            let mut answer = Vec::new();
            output.take(CODE_LENGTH_MAX).read_to_end(&mut answer).map(|_| answer)
        })?;
        Ok((self.child.wait()?, answer))
    }
}

impl Drop for CompileWorker {
    fn drop(&mut self) {
        // One that has ended is only taken leave of.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The worker's side: Wasm from standard input, the answer to standard output. With `bpf`
/// also programs for the levels below user that the module asks for; `warm` when the module is
/// not there yet.
///
/// # Errors
/// When the limits cannot be set or the pipes fail.
pub fn compile_worker(bpf: bool, warm: bool) -> io::Result<()> {
    rustix::thread::set_name(c"tam")?;
    limit(Resource::Cpu, CPU_SECONDS_MAX)?;
    limit(Resource::As, ADDRESS_SPACE_MAX)?;
    limit(Resource::Core, 0)?;
    let engine = Engine::new();
    let other = Other::start()?;
    os::sandbox::confine().map_err(io::Error::other)?;
    if warm && let Ok(engine) = &engine {
        // What is wrong will be told of the module.
        let _ = warm_up(engine, bpf);
    }
    let mut wasm = Vec::new();
    io::stdin().lock().take(abi::layout::MODULE_LENGTH_MAX as u64 + 1).read_to_end(&mut wasm)?;
    let answer = engine.map_err(|error| error.to_string()).and_then(|engine| {
        let checked = Unverified(&wasm).check().map_err(|error| error.to_string())?;
        compile(&engine, &wasm, &checked, bpf, other)
    });
    let mut out = io::stdout().lock();
    out.write_all(&postcard::to_stdvec(&answer).map_err(io::Error::other)?)?;
    out.flush()
}

/// The shortest module of all three levels: one function that multiplies a byte of the window.
const WARM_UP: &[u8] = b"\0asm\x01\0\0\0\0x\x08tamanduaabi = 1\nname = \"warm-up\"\n\
    version = \"0.1.0\"\nwindow = 64\nlevels = [\"nic\", \"kernel\", \"user\"]\n\
    memory_pages_max = 1\n\x01\x05\x01`\0\x01\x7f\x03\x02\x01\0\x05\x04\x01\x01\x01\x01\x07\
    \x16\x02\x06memory\x02\0\ton_packet\0\0\n\x0e\x01\x0c\0A\x82\x82\x02-\0\0A\0l\x0b";

/// Compiles something, so that the compilers' own code and tables are in memory when the module
/// comes.
fn warm_up(engine: &Engine, bpf: bool) -> Option<()> {
    let checked = Unverified(WARM_UP).check().ok()?;
    if bpf {
        program(WARM_UP, &checked, Flavour::Xdp).ok()?;
        program(WARM_UP, &checked, Flavour::Tc).ok()?;
    }
    engine.compile(WARM_UP, MemoryKind::Own).ok().map(drop)
}

/// What the second thread does: the programs for `nic` and `kernel` know nothing of each other.
type Job = Box<dyn FnOnce() -> Result<Program, String> + Send>;

/// A second thread, as confined as the first, for one job. Threads cannot be started any more
/// once their process is confined.
struct Other {
    job: mpsc::Sender<Job>,
    thread: JoinHandle<io::Result<Result<Program, String>>>,
}

impl Other {
    fn start() -> io::Result<Self> {
        let (job, jobs) = mpsc::channel::<Job>();
        let thread = std::thread::Builder::new().stack_size(OTHER_STACK).spawn(move || {
            os::sandbox::confine().map_err(io::Error::other)?;
            Ok(jobs.recv().map_or_else(|_| Err("there was nothing to do".to_owned()), |job| job()))
        })?;
        Ok(Self { job, thread })
    }

    fn begin(self, job: Job) -> impl FnOnce() -> Result<Program, String> {
        let begun = self.job.send(job);
        move || {
            begun.map_err(|_| "the compiler's second thread has ended".to_owned())?;
            let ended = self.thread.join().map_err(|_| "the compiler panicked".to_owned())?;
            ended.map_err(|error| error.to_string())?
        }
    }
}

fn compile(
    engine: &Engine,
    wasm: &[u8],
    checked: &Checked,
    bpf: bool,
    other: Other,
) -> Result<Compiled, String> {
    let is_wanted = |level| checked.manifest.levels.contains(&level);
    let none = || Err("this node runs no BPF programs of modules".to_owned());
    let kernel = (bpf && is_wanted(Level::Kernel)).then(|| {
        let (wasm, checked) = (wasm.to_owned(), checked.clone());
        other.begin(Box::new(move || program(&wasm, &checked, Flavour::Tc)))
    });
    let nic = is_wanted(Level::Nic)
        .then(|| if bpf { program(wasm, checked, Flavour::Xdp) } else { none() });
    let kernel = is_wanted(Level::Kernel).then(|| kernel.map_or_else(none, |wait| wait()));
    let mut refused = Vec::new();
    let mut taken = |level, program: Option<Result<Program, String>>| {
        program?.map_err(|reason| refused.push((level, reason))).ok()
    };
    let (nic, kernel) = (taken(Level::Nic, nic), taken(Level::Kernel, kernel));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_warms_up_with_a_module_of_all_levels() {
        let engine = Engine::new().unwrap();
        assert_eq!(warm_up(&engine, true), Some(()));
    }
}
