//! Compilation in a process of its own: limits on time and memory, one job each.
//!
//! The daemon never runs the compiler: a module may be made to crash it or exhaust its memory. The
//! worker gives up every privilege before it reads the module. It gets Wasm on standard input and
//! writes its answer to standard output in parts, each as soon as it is ready: machine code, with
//! which a service runs at user level, then eBPF programs. Both pipes end with the process.
//!
//! ```text
//! Wasm ─▶ check ─▶ validate for eBPF ─▶ Cranelift ─▶ Part::Code ─▶ Part::Program(nic) ─▶ …(kernel)
//!                      └─ with a second processor: a thread that generates the programs meanwhile
//! ```

use abi::check::{Checked, Kind, Unverified};
use abi::{HostFunctions, Lanes, Level};
use engine::{Engine, MemoryKind};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, Resource, Rlimit, Signal, setpriority_process, setrlimit};
use sandbox::Role;
use sandbox::fd_passing::sealed_memory;
use sandbox::process::ForeignProcess;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;
use wasm_to_bpf::{Entry, Flavour, Image, Options, Program, Refusal, Validated};

/// Processor time of one job in seconds, both threads together: a module that takes longer cannot
/// be installed while somebody waits.
const CPU_SECONDS_MAX: u64 = 5;
/// Time by the clock from the module to the last program: a worker that is blocked uses no
/// processor time.
const TIME_MAX: Duration = Duration::from_secs(30);
/// Memory that one job may write to, in bytes.
const MEMORY_MAX: u64 = 256 << 20;
/// Processor seconds between SIGXCPU, which names the cause, and SIGKILL, which does not.
const CPU_SECONDS_GRACE: u64 = 1;
/// Address space of one job in bytes: the engine reserves far more than it uses.
const ADDRESS_SPACE_MAX: u64 = 4 << 30;
/// Nice value of a worker once its code is delivered and only programs are left, so that the
/// service can start.
const PROGRAMS_NICE: i32 = 10;
/// Stack of the second thread in bytes, as the first has it on most machines.
const OTHER_STACK: usize = 8 << 20;
/// Longest answer in bytes: what Cranelift makes of the largest module is within ten times its
/// size, and so is each of the programs.
const ANSWER_LENGTH_MAX: u64 = 240 << 20;
/// Bytes reserved at most for a part before it arrives.
const PART_EXPECTED_MAX: usize = 1 << 20;

/// Compiled module: code at once, and programs for the levels below user as they become ready.
#[derive(Debug)]
pub struct Compiled {
    /// Machine code for the engine, in sealed memory, which nobody can change. A cell maps it, and
    /// identifies the module by it.
    pub code: OwnedFd,
    code_length: usize,
    /// Initial state of an instance, for a module that can leave user level; its code is for shared
    /// memory.
    pub image: Option<Image>,
    /// Programs by level, for each that the module asks for; `None` while not ready.
    programs: Mutex<BTreeMap<Level, Option<ProgramResult>>>,
    /// Signalled when a program becomes ready.
    ready: Condvar,
    /// Set when the worker ended before its last program.
    cut_short: AtomicBool,
}

/// Parts of a finished compilation other than its code, as a cache stores them.
#[derive(Serialize, Deserialize)]
struct Remainder {
    image: Option<Image>,
    programs: BTreeMap<Level, Result<Program, String>>,
}

/// Program, or the reason for which there is none.
type ProgramResult = Result<Arc<Program>, String>;

impl Compiled {
    fn new(Code { code, image, levels }: Code) -> io::Result<Self> {
        let (code, code_length) = (sealed_memory("tam-code", &code)?, code.len());
        let known = |(level, refused): (Level, Option<String>)| (level, refused.map(Err));
        let programs = Mutex::new(levels.into_iter().map(known).collect());
        let (ready, cut_short) = (Condvar::new(), AtomicBool::new(false));
        Ok(Self { code, code_length, image, programs, ready, cut_short })
    }

    /// Returns the whole compilation as bytes, for [`Compiled::from_bytes`]; `None` while
    /// programs are outstanding, and of one whose worker was stopped before its last program.
    ///
    /// # Errors
    /// The code's memory cannot be read.
    pub fn to_bytes(&self) -> io::Result<Option<Vec<u8>>> {
        let mut rest = Remainder { image: self.image.clone(), programs: BTreeMap::new() };
        for (level, made) in &*self.programs() {
            let Some(made) = made else { return Ok(None) };
            rest.programs.insert(*level, made.clone().map(Arc::unwrap_or_clone));
        }
        if self.cut_short.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let mut bytes = postcard::to_extend(&rest, vec![0; 4]).map_err(io::Error::other)?;
        let length = u32::try_from(bytes.len() - 4).map_err(io::Error::other)?;
        bytes[..4].copy_from_slice(&length.to_le_bytes());
        let mut at = bytes.len();
        bytes.resize(at + self.code_length, 0);
        while at < bytes.len() {
            let read = (self.code_length - (bytes.len() - at)) as u64;
            match rustix::io::pread(&self.code, &mut bytes[at..], read)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                more => at += more,
            }
        }
        Ok(Some(bytes))
    }

    /// Restores what [`Compiled::to_bytes`] returned. The code becomes machine code of a cell: the
    /// caller vouches that the bytes come unchanged from there and were made by this build.
    ///
    /// # Errors
    /// The bytes are not of that form, or there is no memory for the code.
    pub fn from_bytes(bytes: &[u8]) -> io::Result<Self> {
        let form = || io::Error::from(io::ErrorKind::InvalidData);
        let (length, rest) = bytes.split_first_chunk().ok_or_else(form)?;
        let length = u32::from_le_bytes(*length) as usize;
        let (rest, code) = rest.split_at_checked(length).ok_or_else(form)?;
        let Remainder { image, programs } = postcard::from_bytes(rest).map_err(io::Error::other)?;
        let (code, code_length) = (sealed_memory("tam-code", code)?, code.len());
        let made = programs.into_iter().map(|(level, made)| (level, Some(made.map(Arc::new))));
        let (programs, ready) = (Mutex::new(made.collect()), Condvar::new());
        let cut_short = AtomicBool::new(false);
        Ok(Self { code, code_length, image, programs, ready, cut_short })
    }

    fn programs(&self) -> MutexGuard<'_, BTreeMap<Level, Option<ProgramResult>>> {
        self.programs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the length of the machine code in bytes.
    #[must_use]
    pub fn code_length(&self) -> u32 {
        u32::try_from(self.code_length).unwrap_or(u32::MAX)
    }

    /// Returns the memory used at present, in bytes, but for some hundred.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let programs = self.programs();
        let ready = programs.values().flatten().flatten();
        let words = ready.map(|program| program.instructions.len() + program.places.len());
        self.code_length + words.sum::<usize>() * size_of::<u64>()
    }

    /// Returns the program for a level; waits for the compiler if it is still working on it.
    ///
    /// # Errors
    /// Reason for which there is none.
    pub fn program(&self, level: Level) -> Result<Arc<Program>, String> {
        let mut programs = self.programs();
        loop {
            match programs.get(&level) {
                None => return Err(format!("its module was not compiled for {level}")),
                Some(Some(made)) => return made.clone(),
                Some(None) => {}
            }
            programs = self.ready.wait(programs).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Returns the levels that the module is known not to run at, with the reasons. For a module
    /// without an image these are all.
    #[must_use]
    pub fn refused(&self) -> Vec<(Level, String)> {
        let programs = self.programs();
        let refused = |(level, made): (&Level, &Option<ProgramResult>)| {
            Some((*level, made.as_ref()?.as_ref().err()?.clone()))
        };
        programs.iter().filter_map(refused).collect()
    }

    /// Stores a program, or the reason for which there is none.
    fn put(&self, level: Level, made: Result<Program, String>) {
        self.programs().insert(level, Some(made.map(Arc::new)));
        self.ready.notify_all();
    }

    /// Marks programs that have not arrived by now as refused.
    fn end(&self, reason: &str) {
        for coming in self.programs().values_mut().filter(|made| made.is_none()) {
            *coming = Some(Err(reason.to_owned()));
            self.cut_short.store(true, Ordering::Relaxed);
        }
        self.ready.notify_all();
    }
}

/// Cause for which there is no code.
#[derive(Debug, thiserror::Error)]
pub enum CompileFailure {
    /// The code cannot be put into sealed memory.
    #[error("putting the code into memory: {0}")]
    Memory(io::Error),
    /// The compiler refused the module: a fault of its author.
    #[error("{0}")]
    Refused(String),
    /// The worker ended before it answered.
    #[error("the compiler was stopped ({status}): {limit}")]
    Stopped {
        /// Exit status of the worker.
        status: ExitStatus,
        /// Limit that ended it, as far as that is known.
        limit: Limit,
    },
    /// The worker cannot be run: a fault of the host.
    #[error("the compile worker cannot be run: {0}")]
    Worker(#[source] io::Error),
}

/// Limit that ended a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Processor time.
    Cpu,
    /// Time by the clock.
    Time,
    /// Memory.
    Memory,
    /// No known limit: it was killed from outside, or has a fault.
    Unknown,
}

impl Limit {
    /// Returns the limit that explains how a worker ended; a worker that gets no memory aborts.
    fn of(status: ExitStatus, overdue: bool) -> Self {
        let signal = status.signal().and_then(Signal::from_named_raw);
        match signal {
            Some(Signal::XCPU) => Self::Cpu,
            Some(Signal::KILL) if overdue => Self::Time,
            Some(Signal::ABORT) => Self::Memory,
            _ => Self::Unknown,
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, memory) = (TIME_MAX.as_secs(), MEMORY_MAX >> 20);
        match self {
            Self::Cpu => write!(
                f,
                "the module takes more than {CPU_SECONDS_MAX} s of processor time to compile; make it or its functions smaller"
            ),
            Self::Time => write!(
                f,
                "it was not done within {seconds} s; the machine has too little time left for it, try again when it is less busy"
            ),
            Self::Memory => write!(
                f,
                "the module takes more than {memory} MiB of memory to compile; make its functions smaller"
            ),
            Self::Unknown => write!(
                f,
                "none of its limits ({CPU_SECONDS_MAX} s of processor time, {memory} MiB of memory, {seconds} s in all) is known to have struck; look in the kernel's log for a lack of memory, and try again"
            ),
        }
    }
}

/// Compile worker that waits for its module. It ends when this value is dropped, or with this
/// process, which closes its standard input.
#[derive(Debug)]
pub struct CompileWorker {
    child: Child,
    /// Processor time used, once the worker has ended.
    took: Option<Duration>,
}

impl CompileWorker {
    /// Starts `worker`, this program's compile worker.
    ///
    /// # Errors
    /// The worker cannot be run.
    pub fn start(mut worker: Command) -> Result<Self, CompileFailure> {
        worker.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let child = worker.spawn().map_err(CompileFailure::Worker)?;
        Ok(Self { child, took: None })
    }

    /// Compiles a module, once: calls `first` as soon as the module can start at user level, and
    /// returns when its programs are complete, too. Returns the worker's processor time since its
    /// start.
    pub fn compile(
        mut self,
        wasm: &[u8],
        first: impl FnOnce(Result<Arc<Compiled>, CompileFailure>),
    ) -> Duration {
        let (Some(mut input), Some(output)) = (self.child.stdin.take(), self.child.stdout.take())
        else {
            first(Err(CompileFailure::Worker(io::ErrorKind::BrokenPipe.into())));
            return self.reap();
        };
        let process = match ForeignProcess::open(self.child.id()) {
            Ok(process) => process,
            Err(error) => {
                first(Err(CompileFailure::Worker(error)));
                return self.reap();
            }
        };
        let overdue = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // Dropped at the end of this scope, which stops the timer.
            let (_in_time, is_in_time) = mpsc::channel::<()>();
            let overdue = &overdue;
            scope.spawn(move || {
                if is_in_time.recv_timeout(TIME_MAX) == Err(RecvTimeoutError::Timeout) {
                    overdue.store(true, Ordering::Relaxed);
                    let _ = process.kill();
                }
            });
            // A worker that dies early closes the pipe; its status says why.
            scope.spawn(move || input.write_all(wasm));
            let mut parts = output.take(ANSWER_LENGTH_MAX);
            match read_part(&mut parts) {
                Some(Part::Code(Ok(code))) => {
                    let compiled = match Compiled::new(code) {
                        Ok(compiled) => Arc::new(compiled),
                        Err(error) => return first(Err(CompileFailure::Memory(error))),
                    };
                    self.lower_priority();
                    first(Ok(Arc::clone(&compiled)));
                    while let Some(Part::Program(level, made)) = read_part(&mut parts) {
                        compiled.put(level, made);
                    }
                    compiled.end(&self.ended(parts, overdue).to_string());
                }
                Some(Part::Code(Err(reason))) => first(Err(CompileFailure::Refused(reason))),
                Some(Part::Program(..)) | None => first(Err(self.ended(parts, overdue))),
            }
        });
        self.reap()
    }

    /// Ends the worker if it still runs. Returns its processor time.
    fn reap(&mut self) -> Duration {
        let _ = self.child.kill();
        self.took.unwrap_or_else(|| self.wait_for_end())
    }

    fn wait_for_end(&mut self) -> Duration {
        // The time is unknown of a process that is no child of this one.
        sandbox::process::cpu_time_at_end(self.child.id()).unwrap_or_default()
    }

    /// Lowers the worker's priority below that of starting the service.
    fn lower_priority(&self) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        // Without the permission, the worker keeps its priority.
        let _ = setpriority_process(pid, PROGRAMS_NICE);
    }

    /// Returns the reason for which no more parts arrive. Closes `parts`, so that a worker that
    /// still writes, beyond the limit or nonsense, gets an error.
    fn ended(&mut self, parts: impl Read, overdue: &AtomicBool) -> CompileFailure {
        drop(parts);
        self.took = Some(self.wait_for_end());
        match self.child.wait() {
            Ok(status) => {
                let limit = Limit::of(status, overdue.load(Ordering::Relaxed));
                CompileFailure::Stopped { status, limit }
            }
            Err(error) => CompileFailure::Worker(error),
        }
    }
}

/// Unit of a worker's answer, preceded by its length in four bytes. The code comes first.
#[derive(Debug, Serialize, Deserialize)]
enum Part {
    Code(Result<Code, String>),
    Program(Level, Result<Program, String>),
}

#[derive(Debug, Serialize, Deserialize)]
struct Code {
    code: Vec<u8>,
    image: Option<Image>,
    /// Levels for which programs follow, or the reason for which none does.
    levels: Vec<(Level, Option<String>)>,
}

/// Reads the next part; `None` when the worker has ended or writes something else.
fn read_part(from: &mut impl Read) -> Option<Part> {
    let mut length = [0; 4];
    from.read_exact(&mut length).ok()?;
    let length = u32::from_le_bytes(length);
    let mut bytes = Vec::with_capacity(PART_EXPECTED_MAX.min(length as usize + 1));
    from.take(length.into()).read_to_end(&mut bytes).ok()?;
    postcard::from_bytes(&bytes).ok()
}

/// Unbuffered standard output: the standard library's is line-buffered, and a duplicate would need
/// a descriptor more.
struct Unbuffered(io::Stdout);

impl Write for Unbuffered {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::io::write(&self.0, bytes)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes a part with a single call, so that the reader is woken once.
fn write_part(to: &mut impl Write, part: &Part) -> io::Result<()> {
    let mut bytes = postcard::to_extend(part, vec![0; 4]).map_err(io::Error::other)?;
    let length = u32::try_from(bytes.len() - 4).map_err(io::Error::other)?;
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    to.write_all(&bytes)
}

impl Drop for CompileWorker {
    fn drop(&mut self) {
        // Reaps a worker that has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the worker's side: reads Wasm from standard input and writes the parts of the answer to
/// standard output.
///
/// With `bpf` the answer has programs for the levels below user that the module asks for. `warm`
/// asks to warm up the compilers, while the module has not arrived yet. `guest_core` is the core of
/// the cell, which the node's other processes avoid.
///
/// # Errors
/// The limits cannot be set, or the pipes fail.
pub fn compile_worker(bpf: bool, warm: bool, guest_core: Option<usize>) -> io::Result<()> {
    rustix::thread::set_name(c"tam")?;
    let cpu = (Some(CPU_SECONDS_MAX), Some(CPU_SECONDS_MAX + CPU_SECONDS_GRACE));
    setrlimit(Resource::Cpu, Rlimit { current: cpu.0, maximum: cpu.1 })?;
    limit(Resource::As, ADDRESS_SPACE_MAX)?;
    limit(Resource::Data, MEMORY_MAX)?;
    let engine = Engine::new();
    // On a machine with one processor for the worker a second thread would only slow down the
    // first: there it may run on the guest core while the cell is idle.
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let mut out = Unbuffered(io::stdout());
    let entered = sandbox::enter(Role::CompileWorker).map_err(io::Error::other)?;
    let other = match guest_core {
        _ if processors > 1 => Some(SecondThread::start(None)?),
        Some(core) => Some(SecondThread::start(Some(core))?),
        None => None,
    };
    entered.seal().map_err(io::Error::other)?;
    if warm && let Ok(engine) = &engine {
        // A fault will be reported for the module.
        let _ = warm_up(engine, bpf);
    }
    let mut wasm = Vec::new();
    io::stdin().lock().take(abi::layout::MODULE_LENGTH_MAX as u64 + 1).read_to_end(&mut wasm)?;
    let checked = engine
        .map_err(|error| error.to_string())
        .and_then(|engine| Ok((engine, Unverified(&wasm).check().map_err(|e| e.to_string())?)));
    match checked {
        Ok((_, checked)) if checked.kind == Kind::Streams => {
            write_part(&mut out, &Part::Code(compile_streams(&wasm)))
        }
        Ok((engine, checked)) => compile(&engine, &wasm, &checked, bpf, other, &mut out),
        Err(reason) => write_part(&mut out, &Part::Code(Err(reason))),
    }
}

/// Compiles a stream module, which has no BPF programs.
fn compile_streams(wasm: &[u8]) -> Result<Code, String> {
    proxy_wasm::check(wasm).map_err(|error| error.to_string())?;
    let engine = proxy_wasm::Engine::new().map_err(|error| error.to_string())?;
    let code = engine.compile(wasm).map_err(|error| error.to_string())?;
    Ok(Code { code, image: None, levels: Vec::new() })
}

/// Shortest module of all three levels: one function that multiplies a byte of the window.
const WARM_UP: &[u8] = b"\0asm\x01\0\0\0\0x\x08tamanduaabi = 1\nname = \"warm-up\"\n\
    version = \"0.1.0\"\nwindow = 64\nlevels = [\"nic\", \"kernel\", \"user\"]\n\
    memory_pages_max = 1\n\x01\x05\x01`\0\x01\x7f\x03\x02\x01\0\x05\x04\x01\x01\x01\x01\x07\
    \x16\x02\x06memory\x02\0\ton_packet\0\0\n\x0e\x01\x0c\0A\x82\x82\x02-\0\0A\0l\x0b";

/// Compiles a small module, so that the compilers' own code and tables are in memory when the real
/// module arrives.
fn warm_up(engine: &Engine, bpf: bool) -> Option<()> {
    let checked = Unverified(WARM_UP).check().ok()?;
    if bpf {
        program(WARM_UP, &checked, Flavour::Xdp).ok()?;
        program(WARM_UP, &checked, Flavour::Tc).ok()?;
    }
    engine.compile(WARM_UP, MemoryKind::shared(1, 1)).ok().map(drop)
}

/// Work of the second thread.
type Job = Box<dyn FnOnce() + Send>;

/// Second thread, for one job. Must be started before the process is sealed, which forbids new
/// threads.
struct SecondThread(mpsc::Sender<Job>);

impl SecondThread {
    fn start(idle_core: Option<usize>) -> io::Result<Self> {
        let (job, jobs) = mpsc::channel::<Job>();
        let (ready, is_ready) = mpsc::channel();
        std::thread::Builder::new().stack_size(OTHER_STACK).spawn(move || {
            // Without the permission, it shares the first thread's processor.
            let _ = idle_core.map(sandbox::cores::add_when_idle);
            let _ = ready.send(());
            if let Ok(job) = jobs.recv() {
                job();
            }
        })?;
        // System calls that a thread makes at its start may be refused once the process is sealed.
        let _ = is_ready.recv();
        Ok(Self(job))
    }
}

/// Writes the code first, with which a service starts at user level. Programs are generated at the
/// same time where there is a processor for that, or afterwards.
fn compile(
    engine: &Engine,
    wasm: &[u8],
    checked: &Checked,
    bpf: bool,
    other: Option<SecondThread>,
    out: &mut impl Write,
) -> io::Result<()> {
    let below = [(Level::Nic, Flavour::Xdp), (Level::Kernel, Flavour::Tc)];
    let wanted = below.into_iter().filter(|(level, _)| checked.manifest.levels.contains(level));
    // An instance's initial state is the same at all levels, so one validated program provides it.
    let (mut image, mut pipelines, mut levels) = (None, Vec::new(), Vec::new());
    for (level, flavour) in wanted {
        let pipeline = match image {
            _ if !bpf => Err("this node runs no BPF programs of modules".to_owned()),
            Some(_) => Ok(Pipeline::Whole(flavour)),
            None => begin(wasm, checked, flavour).map(|begun| {
                image = Some(begun.image().clone());
                Pipeline::Validated(Box::new(begun))
            }),
        };
        levels.push((level, pipeline.as_ref().err().cloned()));
        pipelines.extend(pipeline.ok().map(|pipeline| (level, pipeline)));
    }
    // The image knows whether the module ever grows its memory.
    let memory = checked.memory;
    let own = MemoryKind::own(memory.pages_min, memory.pages_max, checked.brief.is_some());
    let kind =
        image.as_ref().map_or(own, |image| MemoryKind::shared(image.pages_min, image.pages_max));
    let (made, programs) = mpsc::channel();
    let job: Job = {
        let (wasm, checked) = (wasm.to_owned(), checked.clone());
        Box::new(move || {
            for (level, pipeline) in pipelines {
                // Without code, nobody receives the programs.
                let _ = made.send(Part::Program(level, pipeline.run(&wasm, &checked)));
            }
        })
    };
    let behind = match other {
        Some(other) => other.0.send(job).err().map(|unsent| unsent.0),
        None => Some(job),
    };
    let code = match engine.compile(wasm, kind) {
        Ok(code) => Ok(Code { code, image, levels }),
        Err(error) => return write_part(out, &Part::Code(Err(error.to_string()))),
    };
    write_part(out, &Part::Code(code))?;
    if let Some(job) = behind {
        job();
    }
    programs.iter().try_for_each(|part| write_part(out, &part))
}

/// Path from a module to its program for a level.
enum Pipeline {
    /// Code generation for a module that is validated already.
    Validated(Box<Validated>),
    /// Validation and code generation.
    Whole(Flavour),
}

impl Pipeline {
    fn run(self, wasm: &[u8], checked: &Checked) -> Result<Program, String> {
        match self {
            Self::Validated(begun) => begun.finish().map_err(|refusals| all(&refusals)),
            Self::Whole(flavour) => program(wasm, checked, flavour),
        }
    }
}

/// Returns a module's program, or all reasons for which there is none.
fn program(wasm: &[u8], checked: &Checked, flavour: Flavour) -> Result<Program, String> {
    begin(wasm, checked, flavour)?.finish().map_err(|refusals| all(&refusals))
}

fn begin(wasm: &[u8], checked: &Checked, flavour: Flavour) -> Result<Validated, String> {
    if checked.manifest.lanes != Lanes::Count(1) {
        return Err("a module with several lanes has several memories".to_owned());
    }
    let entry = Entry::Packet { window: checked.manifest.window, standalone: false };
    // Programs are the same for every principal: permissions are checked when the module is
    // started.
    let functions = HostFunctions::ALL;
    let options = Options { entry, flavour, memory_pages_max: checked.memory.pages_max, functions };
    wasm_to_bpf::validate(wasm, &options).map_err(|refusals| all(&refusals))
}

fn all(refusals: &[Refusal]) -> String {
    let reasons: Vec<String> = refusals.iter().map(ToString::to_string).collect();
    reasons.join("; ")
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

    /// Returns what the daemon gets from a worker that writes these bytes and ends.
    fn received(bytes: &[u8]) -> Result<Arc<Compiled>, CompileFailure> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        let mut worker = Command::new("cat");
        worker.arg(file.path());
        let mut received = None;
        CompileWorker::start(worker).unwrap().compile(b"wasm", |first| received = Some(first));
        received.unwrap()
    }

    #[test]
    fn programs_missing_from_a_dead_compile_worker_are_refused_and_received_ones_kept() {
        let wasm = WARM_UP;
        let checked = Unverified(wasm).check().unwrap();
        let nic = program(wasm, &checked, Flavour::Xdp).unwrap();
        let levels = vec![(Level::Nic, None), (Level::Kernel, None), (Level::User, None)];
        let code = Code { code: vec![1, 2], image: Some(nic.image.clone()), levels };
        let parts = [
            Part::Code(Ok(code)),
            Part::Program(Level::Nic, Ok(nic.clone())),
            Part::Program(Level::Kernel, Err("too long".into())),
        ];
        let mut bytes = Vec::new();
        parts.iter().for_each(|part| write_part(&mut bytes, part).unwrap());
        let compiled = received(&bytes).unwrap();
        assert_eq!(*compiled.program(Level::Nic).unwrap(), nic);
        assert_eq!(compiled.program(Level::Kernel), Err("too long".to_owned()));
        assert!(compiled.program(Level::User).unwrap_err().contains("was stopped"));
        assert!(compiled.program(Level::Cluster).unwrap_err().contains("not compiled"));
        let refused: Vec<Level> = compiled.refused().into_iter().map(|(level, _)| level).collect();
        assert_eq!(refused, [Level::Kernel, Level::User]);
        // Cut off in the middle of the code.
        assert!(matches!(received(&bytes[..6]), Err(CompileFailure::Stopped { .. })));
        assert!(matches!(received(b""), Err(CompileFailure::Stopped { .. })));
        // More bytes than a pipe holds, and no part: the daemon does not wait for the worker while
        // that writes.
        assert!(matches!(received(&[0; 1 << 20]), Err(CompileFailure::Stopped { .. })));
    }

    #[test]
    fn a_compilation_is_the_same_after_a_cache_kept_it_and_one_cut_short_is_not_kept() {
        let engine = Engine::new().unwrap();
        let checked = Unverified(WARM_UP).check().unwrap();
        let mut bytes = Vec::new();
        compile(&engine, WARM_UP, &checked, true, None, &mut bytes).unwrap();
        let compiled = received(&bytes).unwrap();
        let kept = compiled.to_bytes().unwrap().unwrap();
        let again = Compiled::from_bytes(&kept).unwrap();
        assert_eq!(again.to_bytes().unwrap().unwrap(), kept);
        assert_eq!((again.code_length, &again.image), (compiled.code_length, &compiled.image));
        for level in [Level::Nic, Level::Kernel, Level::User] {
            assert_eq!(again.program(level), compiled.program(level));
        }
        for end in [0, 3, 4, 40] {
            assert!(Compiled::from_bytes(&kept[..end]).is_err(), "{end} bytes");
        }
        // The worker died before its last program.
        let cut = received(&bytes[..bytes.len() - 1]).unwrap();
        assert!(cut.program(Level::Kernel).is_err());
        assert_eq!(cut.to_bytes().unwrap(), None);
    }

    #[test]
    fn the_compile_limit_that_was_exceeded_is_named() {
        let stopped = |script: &str| {
            let mut worker = Command::new("sh");
            worker.args(["-c", script]);
            let mut received = None;
            CompileWorker::start(worker).unwrap().compile(b"", |first| received = first.err());
            received.unwrap().to_string()
        };
        let cpu = stopped("kill -XCPU $$");
        assert!(cpu.contains("5 s of processor time to compile") && !cpu.contains("MiB"), "{cpu}");
        let memory = stopped("kill -ABRT $$");
        assert!(memory.contains("256 MiB of memory to compile"), "{memory}");
        let killed = stopped("kill -KILL $$");
        assert!(killed.contains("none of its limits"), "{killed}");
        let overdue = ExitStatus::from_raw(Signal::KILL.as_raw());
        assert_eq!(Limit::of(overdue, true), Limit::Time);
    }

    #[test]
    fn a_compile_worker_reports_the_code_first_and_each_level_once() {
        let (engine, checked) = (Engine::new().unwrap(), Unverified(WARM_UP).check().unwrap());
        for other in [None, Some(SecondThread::start(None).unwrap())] {
            let mut bytes = Vec::new();
            compile(&engine, WARM_UP, &checked, true, other, &mut bytes).unwrap();
            let compiled = received(&bytes).unwrap();
            assert!(compiled.image.is_some() && compiled.code_length > 0);
            assert!(
                compiled.program(Level::Nic).is_ok() && compiled.program(Level::Kernel).is_ok()
            );
        }
        let mut bytes = Vec::new();
        compile(&engine, WARM_UP, &checked, false, None, &mut bytes).unwrap();
        let compiled = received(&bytes).unwrap();
        assert_eq!((compiled.image.is_none(), compiled.refused().len()), (true, 2));
    }
}
