//! Compiler for stream modules, and the loaded code.

use crate::check::Callbacks;
use crate::host::{self, Host};
use crate::limits::CODE_LENGTH_MAX;
use engine::{CompileError, FIBER_LENGTH, STACK_LENGTH_MAX};
use std::os::fd::OwnedFd;
use wasmtime::{Config, InstancePre, Linker, Module, OptLevel, WasmBacktraceDetails};

/// Compiler and code of stream modules; one per process, separate from the one for packet modules.
#[derive(Clone)]
pub struct Engine(wasmtime::Engine);

impl Engine {
    /// Creates an engine for stream modules: SIMD is allowed, threads are not.
    ///
    /// # Errors
    /// The machine is not supported.
    pub fn new() -> Result<Self, CompileError> {
        let mut config = Config::new();
        config
            .epoch_interruption(true)
            .cranelift_opt_level(OptLevel::Speed)
            .max_wasm_stack(STACK_LENGTH_MAX)
            .async_stack_size(FIBER_LENGTH)
            .wasm_backtrace_details(WasmBacktraceDetails::Disable)
            .wasm_relaxed_simd(false)
            .wasm_multi_memory(false)
            .wasm_memory64(false)
            .wasm_tail_call(false);
        engine::cache_stacks(&mut config);
        wasmtime::Engine::new(&config)
            .map(Self)
            .map_err(|error| CompileError::Unsupported(format!("{error:#}")))
    }

    pub(crate) const fn inner(&self) -> &wasmtime::Engine {
        &self.0
    }

    /// Returns a number that identifies the compiled code's format: code is interchangeable between
    /// engines with the same number.
    #[must_use]
    pub fn compatibility(&self) -> u64 {
        use std::hash::{DefaultHasher, Hash, Hasher};
        let mut hasher = DefaultHasher::new();
        self.0.precompile_compatibility_hash().hash(&mut hasher);
        hasher.finish()
    }

    /// Compiles a module that [`check`](crate::check()) has accepted. Takes time and memory in
    /// proportion to its size, and more for hostile ones: the caller runs it in a worker process
    /// with limits.
    ///
    /// # Errors
    /// [`CompileError::Refused`] with Cranelift's reason.
    pub fn compile(&self, wasm: &[u8]) -> Result<Vec<u8>, CompileError> {
        self.0.precompile_module(wasm).map_err(|error| CompileError::Refused(format!("{error:#}")))
    }

    /// Loads code that the parent process hands over in sealed memory: a cell gets it from its
    /// daemon, whose worker made it with [`Engine::compile`].
    ///
    /// # Errors
    /// [`CompileError::Foreign`] if the memory is not sealed, or the code is of another engine,
    /// version or machine, or imports a function that this host does not have.
    pub fn load_from_parent(&self, code: &OwnedFd) -> Result<Program, CompileError> {
        self.link(&engine::module_from_parent(&self.0, code, CODE_LENGTH_MAX)?)
    }

    /// Compiles and loads in this process: for tools and tests, where the module is the user's own.
    ///
    /// # Errors
    /// The same as of [`Engine::compile`] and [`Engine::load_from_parent`].
    pub fn program(&self, wasm: &[u8]) -> Result<Program, CompileError> {
        let module = Module::from_binary(&self.0, wasm)
            .map_err(|error| CompileError::Refused(format!("{error:#}")))?;
        self.link(&module)
    }

    fn link(&self, module: &Module) -> Result<Program, CompileError> {
        let mut linker = Linker::new(&self.0);
        host::link(&mut linker)
            .and_then(|()| linker.instantiate_pre(module))
            .map(|ready| Program { ready, engine: self.clone() })
            .map_err(|error| CompileError::Foreign(format!("{error:#}")))
    }

    /// Interrupts the calls whose deadline passes. Safe in a signal handler, as it is one atomic
    /// addition.
    pub fn raise_epoch(&self) {
        self.0.increment_epoch();
    }
}

/// Loaded module with linked imports, from which VMs are started.
#[derive(Clone)]
pub struct Program {
    pub(crate) ready: InstancePre<Host>,
    pub(crate) engine: Engine,
}

impl Program {
    /// Returns the callbacks that it exports: others need not be called.
    #[must_use]
    pub fn callbacks(&self) -> Callbacks {
        Callbacks::among(self.ready.module().exports().map(|export| export.name()))
    }

    /// Returns true if it imports a host function: the data of functions that are not imported need
    /// not be prepared.
    #[must_use]
    pub fn imports(&self, name: &str) -> bool {
        self.ready.module().imports().any(|import| import.name() == name)
    }
}
