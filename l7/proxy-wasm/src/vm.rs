//! A VM: an instance of a module, its contexts and their streams.

use crate::abi::{CALLBACKS, LogLevel};
use crate::call::watch;
use crate::effect::Effect;
use crate::host::{Exited, Host, ROOT};
use crate::limits::CONFIGURATION_LENGTH_MAX;
use crate::program::Program;
use crate::spec::{Now, VmSpec};
use crate::stream::{Stage, Stream};
use engine::Trap;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use wasmtime::{Func, Instance, Store, TypedFunc};

/// Why a call has no answer.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The module fell. Its VM is not to be called again.
    #[error("the module trapped: {0}")]
    Trapped(Trap),
    /// It had fallen before.
    #[error("the VM has trapped before: it has to be replaced")]
    Fallen,
    /// There is no such context. The caller's fault.
    #[error("there is no context {0}")]
    UnknownContext(u32),
    /// No such call is under way. The caller's fault.
    #[error("no HTTP call {0} is under way")]
    UnknownHttpCall(u32),
    /// The VM has as many streams as it may have; this one is the caller's again.
    #[error("the VM has as many contexts as it may have")]
    TooManyContexts(Box<Stream>),
}

impl From<Trap> for CallError {
    fn from(trap: Trap) -> Self {
        Self::Trapped(trap)
    }
}

/// Why a VM did not start. The author's fault, or the operator's.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// Memory or tables beyond what was granted, or a host limit.
    #[error("the VM cannot be made: {0}")]
    Instantiate(String),
    /// A configuration is too long.
    #[error("a configuration has {bytes} bytes; it may have {CONFIGURATION_LENGTH_MAX}")]
    Configuration {
        /// Its length.
        bytes: usize,
    },
    /// A callback of the start trapped.
    #[error("{0} trapped: {1}")]
    Trapped(&'static str, Trap),
    /// A callback of the start returned false: the module refuses its configuration.
    #[error("{0} returned false: the module refuses its configuration")]
    Refused(&'static str),
}

/// A start that failed, and what it left: the module may have said why in its log.
#[derive(Debug)]
pub struct StartFailure {
    /// Why.
    pub error: StartError,
    /// What it left.
    pub effects: Vec<Effect>,
}

impl StartFailure {
    /// Returns why, with the last error that the module has logged, if it has: its own words.
    #[must_use]
    pub fn reason(&self) -> String {
        let said = self.effects.iter().rev().find_map(|effect| match effect {
            Effect::Log { level, text } if *level >= LogLevel::Error => Some(text.as_str()),
            _ => None,
        });
        said.map_or_else(|| self.error.to_string(), |said| format!("{}: {said}", self.error))
    }
}

/// How far a start has come.
pub enum Started {
    /// To its end: a VM, and what its start wants done.
    Ended(Result<(Box<Vm>, Vec<Effect>), StartFailure>),
    /// It stands still.
    Suspended(Starting),
}

type Start = Pin<Box<dyn Future<Output = Result<(Box<Vm>, Vec<Effect>), StartFailure>>>>;

/// A VM whose start has not ended yet. Dropped, it ends there.
pub struct Starting {
    running: Start,
    stop: Rc<Cell<bool>>,
}

/// A running module, its contexts and their streams. One call at a time.
pub struct Vm {
    pub(crate) store: Store<Host>,
    pub(crate) stop: Rc<Cell<bool>>,
    pub(crate) call_slices: u64,
    pub(crate) is_fallen: bool,
    /// Those that the module has.
    callbacks: Vec<(&'static str, Rc<Callback>)>,
}

/// A callback by its parameters and its result.
pub(crate) enum Callback {
    Nullary(TypedFunc<(), ()>),
    Unary(TypedFunc<u32, ()>),
    UnaryAnswer(TypedFunc<u32, u32>),
    Binary(TypedFunc<(u32, u32), ()>),
    BinaryAnswer(TypedFunc<(u32, u32), u32>),
    Ternary(TypedFunc<(u32, u32, u32), ()>),
    TernaryAnswer(TypedFunc<(u32, u32, u32), u32>),
    Quinary(TypedFunc<(u32, u32, u32, u32, u32), ()>),
}

impl Callback {
    fn new(function: Func, store: &Store<Host>, signature: crate::abi::Signature) -> Option<Self> {
        Some(match (signature.parameters, signature.results) {
            ("", "") => Self::Nullary(function.typed(store).ok()?),
            ("i", "") => Self::Unary(function.typed(store).ok()?),
            ("i", "i") => Self::UnaryAnswer(function.typed(store).ok()?),
            ("ii", "") => Self::Binary(function.typed(store).ok()?),
            ("ii", "i") => Self::BinaryAnswer(function.typed(store).ok()?),
            ("iii", "") => Self::Ternary(function.typed(store).ok()?),
            ("iii", "i") => Self::TernaryAnswer(function.typed(store).ok()?),
            ("iiiii", "") => Self::Quinary(function.typed(store).ok()?),
            _ => return None,
        })
    }

    /// Calls it; words that it does not take are left out, and those that are missing are 0.
    pub(crate) async fn call(
        &self,
        store: &mut Store<Host>,
        words: &[u32],
    ) -> wasmtime::Result<Option<u32>> {
        let word = |index: usize| words.get(index).copied().unwrap_or(0);
        let (a, b, c, d, e) = (word(0), word(1), word(2), word(3), word(4));
        Ok(match self {
            Self::Nullary(it) => it.call_async(store, ()).await.map(|()| None)?,
            Self::Unary(it) => it.call_async(store, a).await.map(|()| None)?,
            Self::UnaryAnswer(it) => Some(it.call_async(store, a).await?),
            Self::Binary(it) => it.call_async(store, (a, b)).await.map(|()| None)?,
            Self::BinaryAnswer(it) => Some(it.call_async(store, (a, b)).await?),
            Self::Ternary(it) => it.call_async(store, (a, b, c)).await.map(|()| None)?,
            Self::TernaryAnswer(it) => Some(it.call_async(store, (a, b, c)).await?),
            Self::Quinary(it) => it.call_async(store, (a, b, c, d, e)).await.map(|()| None)?,
        })
    }
}

impl Program {
    /// Begins to start a VM: the module's own start, the root context, `proxy_on_vm_start`,
    /// `proxy_on_configure`. It runs when it is resumed.
    #[must_use]
    pub fn begin(&self, spec: VmSpec, now: Now) -> Starting {
        let stop = Rc::new(Cell::new(false));
        let (program, flag) = (self.clone(), Rc::clone(&stop));
        let running = Box::pin(async move { program.started(spec, now, flag).await });
        Starting { running, stop }
    }

    /// Starts a VM to the end of its start, however long that takes.
    ///
    /// # Errors
    /// Why it did not start, and what it left.
    pub fn start(&self, spec: VmSpec, now: Now) -> Result<(Box<Vm>, Vec<Effect>), StartFailure> {
        let mut starting = self.begin(spec, now);
        loop {
            match starting.resume() {
                Started::Ended(ended) => return ended,
                Started::Suspended(again) => starting = again,
            }
        }
    }

    async fn started(
        &self,
        spec: VmSpec,
        now: Now,
        stop: Rc<Cell<bool>>,
    ) -> Result<(Box<Vm>, Vec<Effect>), StartFailure> {
        let without = |error| StartFailure { error, effects: Vec::new() };
        for configuration in [&spec.vm_configuration, &spec.plugin_configuration] {
            let bytes = configuration.len();
            if bytes > CONFIGURATION_LENGTH_MAX {
                return Err(without(StartError::Configuration { bytes }));
            }
        }
        let call_slices = if spec.pace.is_some() { 1 } else { spec.call_slices };
        let mut store = Store::new(self.engine.inner(), Host::new(spec, Rc::clone(&stop)));
        store.limiter(|host| &mut host.limits);
        watch(&mut store);
        store.set_epoch_deadline(call_slices);
        let host = store.data_mut();
        host.now = now;
        host.calls += 1;
        let made = self.ready.instantiate_async(&mut store).await;
        let instance = match made {
            Ok(instance) => instance,
            Err(error) => {
                store.data_mut().end_lines();
                let effects = store.data_mut().effects.take().0;
                let is_trap = error.is::<wasmtime::Trap>();
                let error = if is_trap {
                    StartError::Trapped("the start function", Trap::from_error(&error))
                } else {
                    StartError::Instantiate(format!("{error:#}"))
                };
                return Err(StartFailure { error, effects });
            }
        };
        let mut vm = Box::new(Vm::new(store, &instance, stop, call_slices));
        match vm.start().await {
            Ok(()) => {
                let effects = vm.take_effects().0;
                Ok((vm, effects))
            }
            Err(error) => Err(StartFailure { error, effects: vm.take_effects().0 }),
        }
    }
}

impl Starting {
    /// Goes on, as far as its pace lets it.
    #[must_use]
    pub fn resume(mut self) -> Started {
        // Nobody is to be woken: whoever suspended it resumes it.
        match self.running.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(ended) => Started::Ended(ended),
            Poll::Pending => Started::Suspended(self),
        }
    }

    /// Ends the callback that stands still with [`engine::TrapKind::TimeLimit`].
    #[must_use]
    pub fn stop(self) -> Started {
        self.stop.set(true);
        self.resume()
    }
}

impl Vm {
    fn new(
        mut store: Store<Host>,
        instance: &Instance,
        stop: Rc<Cell<bool>>,
        call_slices: u64,
    ) -> Self {
        let memory = instance.get_memory(&mut store, "memory");
        let mut allocate = None;
        for name in ["proxy_on_memory_allocate", "malloc"] {
            let found = instance.get_func(&mut store, name).and_then(|it| it.typed(&store).ok());
            allocate = allocate.or(found);
        }
        let host = store.data_mut();
        (host.memory, host.allocate) = (memory, allocate);
        let mut callbacks = Vec::new();
        for function in CALLBACKS {
            let found = instance.get_func(&mut store, function.name);
            let found = found.and_then(|it| Callback::new(it, &store, function.signature));
            callbacks.extend(found.map(|callback| (function.name, Rc::new(callback))));
        }
        Self { store, stop, call_slices, is_fallen: false, callbacks }
    }

    /// The start, in the specification's order.
    async fn start(&mut self) -> Result<(), StartError> {
        if self.callback("_initialize").is_some() {
            self.step("_initialize", &[], Stage::Other).await?;
            self.step("main", &[0, 0], Stage::Other).await?;
        } else {
            self.step("_start", &[], Stage::Other).await?;
        }
        self.step("proxy_on_context_create", &[ROOT, 0], Stage::Other).await?;
        let spec = &self.store.data().spec;
        let vm_size = spec.vm_configuration.len() as u32;
        let plugin_size = spec.plugin_configuration.len() as u32;
        let steps = [
            ("proxy_on_vm_start", vm_size, Stage::VmStart),
            ("proxy_on_configure", plugin_size, Stage::Configure),
        ];
        for (name, size, stage) in steps {
            if self.step(name, &[ROOT, size], stage).await? == Some(0) {
                return Err(StartError::Refused(name));
            }
        }
        Ok(())
    }

    async fn step(
        &mut self,
        name: &'static str,
        words: &[u32],
        stage: Stage,
    ) -> Result<Option<u32>, StartError> {
        let Some(function) = self.callback(name) else { return Ok(None) };
        self.enter(ROOT, stage);
        self.store.data_mut().calls += 1;
        self.store.set_epoch_deadline(self.call_slices);
        match function.call(&mut self.store, words).await {
            Ok(answer) => Ok(answer),
            // How programs of WASI end that are made to run once and to stay.
            Err(error) if error.downcast_ref::<Exited>().is_some_and(|exited| exited.0 == 0) => {
                Ok(None)
            }
            Err(error) => Err(StartError::Trapped(name, Trap::from_error(&error))),
        }
    }

    pub(crate) fn callback(&self, name: &'static str) -> Option<Rc<Callback>> {
        // They are few, and most differ in their lengths, which are compared first.
        let found = self.callbacks.iter().find(|(known, _)| *known == name);
        found.map(|(_, callback)| Rc::clone(callback))
    }

    /// What a call left; what it means for streams is noted.
    pub(crate) fn take_effects(&mut self) -> (Vec<Effect>, u64) {
        let host = self.store.data_mut();
        host.end_lines();
        host.settle_effects();
        host.current.arguments = Vec::new();
        host.effects.take()
    }

    /// A context's stream.
    #[must_use]
    pub fn stream(&self, context: u32) -> Option<&Stream> {
        self.store.data().streams.get(&context).map(AsRef::as_ref)
    }

    /// A context's stream, to put in what has arrived and to take out what goes on.
    pub fn stream_mut(&mut self, context: u32) -> Option<&mut Stream> {
        self.store.data_mut().streams.get_mut(&context).map(AsMut::as_mut)
    }

    /// The contexts of streams.
    pub fn contexts(&self) -> impl Iterator<Item = u32> {
        self.store.data().streams.keys().copied()
    }

    /// All streams, out of a VM that has fallen or is to go: what becomes of them is their
    /// service's failure policy. One whose context could not be made is 0.
    #[must_use]
    pub fn into_streams(mut self) -> BTreeMap<u32, Box<Stream>> {
        std::mem::take(&mut self.store.data_mut().streams)
    }

    /// Whether a module has trapped here: it is not to be called again.
    #[must_use]
    pub const fn is_fallen(&self) -> bool {
        self.is_fallen
    }

    /// Milliseconds between two [`Call::Tick`](crate::Call::Tick); 0: none.
    #[must_use]
    pub fn tick_period_ms(&self) -> u32 {
        self.store.data().tick_period_ms
    }

    /// HTTP calls that are under way.
    pub fn http_calls(&self) -> impl Iterator<Item = u32> {
        self.store.data().http_calls.iter().copied()
    }

    /// Bytes of linear memory in use.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        let memory = self.store.data().memory;
        memory.map_or(0, |memory| memory.data_size(&self.store) as u64)
    }
}
