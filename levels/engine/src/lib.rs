//! Wasmtime behind the packet ABI: compile, instantiate, one packet at a time.
//!
//! ```text
//!  Wasm bytes ─▶ Engine::compile ─▶ code ─▶ Engine::load ─▶ Program
//!                (a worker process)         (the cell)        │ start
//!                                                             ▼
//!            packet, metadata ─▶ Instance::on_packet ─▶ verdict or Trap
//! ```
//!
//! A trapped instance is dropped and a new one started from its program: its
//! memory may hold anything. Not here: whether a module conforms to the ABI
//! (base/abi), which packets it gets and how a verdict is carried out (the cell).

mod batch;
mod batch_loop;
mod emitted;
mod globals;
mod hooks;
mod host;
mod instance;
mod local;
mod memory_account;
mod origins;
mod pace;
mod program;
mod shared;
mod stacks;
mod state;
mod step;
mod thread_bound;
mod trap;

pub use batch::Handled;
pub use emitted::{Emitted, Event, QueueWatch, Sent};
pub use hooks::{Call, Ended, QueueEvent};
pub use instance::{Done, Instance, Ran, Suspended};
pub use memory_account::{Limits, MemoryAccount, Part};
pub use pace::{Pace, PaceDecision};
pub use program::{InstanceSpec, Program, Started, Starting, first_call};
pub use shared::MemoryKind;
pub use stacks::cache_stacks;
pub use state::Kept;
pub use thread_bound::ThreadBound;
pub use trap::{Place, StartError, StartRefusal, StateError, Trap, TrapKind};

use abi::layout::IMPORT_MODULE;
use abi::{HOST_FUNCTIONS, HostFunctions, NotGranted};
use batch_loop::Loops;
use origins::Origins;
use wasmtime::{Config, Linker, Module, OptLevel, WasmBacktraceDetails};

/// Largest stack of a module's calls, in bytes: deep recursion traps before it reaches the end of
/// the thread's own stack.
pub const STACK_LENGTH_MAX: usize = 256 << 10;

/// Size of the fiber stack that a module's calls run on, bytes: their own, and that of host
/// functions.
pub const FIBER_LENGTH: usize = STACK_LENGTH_MAX + (128 << 10);

/// Compiler and loader of code; one in each process.
#[derive(Clone)]
pub struct Engine {
    /// Wasmtime engine for each [`MemoryKind`].
    of_kinds: [wasmtime::Engine; MemoryKind::ALL.len()],
    loops: Loops,
}

/// Failure to compile or load code: a fault of the author, or of the host.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// Cranelift refused the module.
    #[error("the module does not compile: {0}")]
    Refused(String),
    /// The code is of another version or machine.
    #[error("the compiled code does not fit this engine: {0}")]
    Foreign(String),
    /// The module imports functions that its principal may not use.
    #[error(transparent)]
    NotGranted(#[from] NotGranted),
    /// The engine cannot be made on this machine.
    #[error("this machine cannot run the engine: {0}")]
    Unsupported(String),
}

impl Engine {
    /// Makes an engine for packet modules: integers and floats, no SIMD, no threads.
    ///
    /// # Errors
    /// The machine is not supported.
    pub fn new() -> Result<Self, CompileError> {
        let [own, packed, fixed, growing] = MemoryKind::ALL.map(engine_for);
        Ok(Self { of_kinds: [own?, packed?, fixed?, growing?], loops: Loops::default() })
    }

    /// Compiles what instances need of this process's compiler, so that a process that is confined
    /// later can start them without it.
    ///
    /// # Errors
    /// The machine is not supported.
    pub fn prepare(&self) -> Result<(), CompileError> {
        let unsupported = |error: wasmtime::Error| CompileError::Unsupported(format!("{error:#}"));
        MemoryKind::ALL
            .into_iter()
            .try_for_each(|kind| self.batch_loop(kind).map(drop).map_err(unsupported))
    }

    /// Returns the module of the loop around packets, for modules of this kind.
    pub(crate) fn batch_loop(&self, kind: MemoryKind) -> wasmtime::Result<Module> {
        self.loops.of(kind, self.of(kind))
    }

    const fn of(&self, kind: MemoryKind) -> &wasmtime::Engine {
        &self.of_kinds[kind as usize]
    }

    /// Returns a fingerprint of the code that this engine accepts: equal numbers, compatible code.
    /// A process of another version, or on another processor, has a different one.
    #[must_use]
    pub fn compatibility(&self) -> u64 {
        use std::hash::{DefaultHasher, Hash, Hasher};
        let mut hasher = DefaultHasher::new();
        for engine in &self.of_kinds {
            engine.precompile_compatibility_hash().hash(&mut hasher);
        }
        origins::VERSION.hash(&mut hasher);
        hasher.finish()
    }

    /// Compiles a module that base/abi has checked. Takes time and memory in proportion to its
    /// size, and more for hostile ones: run it in a worker process with limits.
    ///
    /// # Errors
    /// [`CompileError::Refused`] with Cranelift's reason.
    pub fn compile(&self, wasm: &[u8], kind: MemoryKind) -> Result<Vec<u8>, CompileError> {
        let moving = globals::with_globals_exported(wasm)?;
        let origins =
            Origins::of(wasm, &moving).map_err(|error| CompileError::Refused(error.to_string()))?;
        let mut code = self
            .of(kind)
            .precompile_module(&moving)
            .map_err(|error| CompileError::Refused(format!("{error:#}")))?;
        origins.append_to(&mut code);
        Ok(code)
    }

    /// Loads code that [`Engine::compile`] of the same build made, and links the granted host
    /// functions to it.
    ///
    /// # Safety
    /// `code` must come unchanged from [`Engine::compile`]: it becomes machine code of
    /// this process. The daemon passes it from its own worker to the cell and never stores it where
    /// others write.
    ///
    /// # Errors
    /// [`CompileError::Foreign`] when it was made by another version or for another
    /// machine, [`CompileError::NotGranted`] when it imports more than is granted.
    pub unsafe fn load<P: abi::PacketBytes + 'static>(
        &self,
        code: &[u8],
        kind: MemoryKind,
        granted: HostFunctions,
    ) -> Result<Program<P>, CompileError> {
        let (code, origins) = Origins::split(code)
            .ok_or_else(|| CompileError::Foreign("it has no map of its places".to_owned()))?;
        // SAFETY: the caller vouches for the origin of `code`.
        let module = unsafe { Module::deserialize(self.of(kind), code) }
            .map_err(|error| CompileError::Foreign(format!("{error:#}")))?;
        granted.permit(imported(&module))?;
        let mut linker = Linker::new(self.of(kind));
        host::link(&mut linker, granted)
            .and_then(|()| linker.instantiate_pre(&module))
            .map(|ready| Program::new(ready, kind, origins))
            .map_err(|error| CompileError::Foreign(format!("{error:#}")))
    }

    /// Loads code that the parent process hands over in sealed memory: the path from daemon to
    /// cell.
    ///
    /// # Errors
    /// [`CompileError::Foreign`] when the memory is not sealed, or as [`Engine::load`].
    pub fn load_from_parent<P: abi::PacketBytes + 'static>(
        &self,
        code: &std::os::fd::OwnedFd,
        kind: MemoryKind,
        granted: HostFunctions,
    ) -> Result<Program<P>, CompileError> {
        let code = read_sealed(code, CODE_LENGTH_MAX)
            .map_err(|error| CompileError::Foreign(error.to_string()))?;
        // SAFETY: as for `module_from_parent`.
        unsafe { self.load(&code, kind, granted) }
    }

    /// Compiles and loads in this process: for `tam run` and tests, where the
    /// module is the user's own.
    ///
    /// # Errors
    /// Same as [`Engine::compile`].
    pub fn program<P: abi::PacketBytes + 'static>(
        &self,
        wasm: &[u8],
        kind: MemoryKind,
    ) -> Result<Program<P>, CompileError> {
        self.program_with(wasm, kind, HostFunctions::ALL)
    }

    /// Compiles and loads with a subset of the host functions.
    ///
    /// # Errors
    /// Same as [`Engine::compile`] and [`Engine::load`].
    pub fn program_with<P: abi::PacketBytes + 'static>(
        &self,
        wasm: &[u8],
        kind: MemoryKind,
        granted: HostFunctions,
    ) -> Result<Program<P>, CompileError> {
        let code = self.compile(wasm, kind)?;
        // SAFETY: the code comes unchanged from the line above.
        unsafe { self.load(&code, kind, granted) }
    }

    /// Raises the epoch, which interrupts calls whose deadline has passed; safe in a signal
    /// handler: three atomic additions.
    pub fn raise_epoch(&self) {
        self.of_kinds.iter().for_each(wasmtime::Engine::increment_epoch);
    }
}

/// Returns the host functions that a module imports.
fn imported(module: &Module) -> HostFunctions {
    let is_imported =
        |name: &str| module.imports().any(|it| it.module() == IMPORT_MODULE && it.name() == name);
    HOST_FUNCTIONS.iter().filter(|it| is_imported(it.name)).map(|it| it.function).collect()
}

fn engine_for(kind: MemoryKind) -> Result<wasmtime::Engine, CompileError> {
    let mut config = Config::new();
    config
        .epoch_interruption(true)
        .cranelift_opt_level(OptLevel::Speed)
        .max_wasm_stack(STACK_LENGTH_MAX)
        .async_stack_size(FIBER_LENGTH)
        .wasm_backtrace_details(WasmBacktraceDetails::Disable)
        .wasm_simd(false)
        .wasm_relaxed_simd(false)
        .wasm_multi_memory(false)
        .wasm_memory64(false)
        .wasm_tail_call(false);
    kind.configure(&mut config);
    wasmtime::Engine::new(&config).map_err(|error| CompileError::Unsupported(format!("{error:#}")))
}

/// Largest accepted code, in bytes: ten times the largest module.
const CODE_LENGTH_MAX: u64 = 10 * abi::layout::MODULE_LENGTH_MAX as u64;

/// Loads a module that the parent process hands over as compiled code in sealed memory, for another
/// engine: that of stream modules.
///
/// # Errors
/// [`CompileError::Foreign`] when the memory is not sealed or longer than `length_max`, or
/// the code is of another engine, version or machine.
pub fn module_from_parent(
    engine: &wasmtime::Engine,
    code: &std::os::fd::OwnedFd,
    length_max: u64,
) -> Result<Module, CompileError> {
    let foreign = |reason: String| CompileError::Foreign(reason);
    let code = read_sealed(code, length_max).map_err(|error| foreign(error.to_string()))?;
    // SAFETY: descriptors reach this process only from its parent, which chose its
    // program and can trace it, or from a daemon in the parent's place, which could
    // connect only as the same user: it vouches for all that runs here.
    // The memory is sealed, so the code is what the daemon's worker made.
    unsafe { Module::deserialize(engine, &code) }.map_err(|error| foreign(format!("{error:#}")))
}

/// Returns the bytes of a sealed memory file.
fn read_sealed(fd: &std::os::fd::OwnedFd, length_max: u64) -> std::io::Result<Vec<u8>> {
    use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
    let all = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW;
    let length = fstat(fd)?.st_size as u64;
    if !fcntl_get_seals(fd)?.contains(all) || length > length_max {
        return Err(std::io::Error::new(
            std::io::ErrorKind::InvalidData,
            format!("the memory is not sealed or longer than {length_max} bytes"),
        ));
    }
    let mut bytes = vec![0; length as usize];
    let mut at = 0;
    while at < bytes.len() {
        match rustix::io::pread(fd, &mut bytes[at..], at as u64)? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            read => at += read,
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests;
