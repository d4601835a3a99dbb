//! Loaded module, and the start of its instances.

use crate::batch::Batch;
use crate::host::Host;
use crate::instance::{Instance, Rest};
use crate::local::Local;
use crate::memory_account::{Limits, MemoryAccount};
use crate::origins::Origins;
use crate::pace::Pace;
use crate::state::Kept;
use crate::trap::{Place, StartError};
use crate::{Engine, MemoryKind, batch_loop, globals, shared, step};
use abi::PacketBytes;
use abi::host::{COUNTER_PREFIX, Hook};
use abi::layout::{WINDOW_ADDRESS, WINDOW_LENGTH_MAX};
use level::SharedMemory;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use wasmtime::{Global, InstancePre, Store, TypedFunc, WasmParams, WasmResults};

/// Most table elements of one instance: indirect calls, not data.
const TABLE_ELEMENTS_MAX: usize = 65_536;

/// Parameters of an instance.
#[derive(Clone, Debug, Default)]
pub struct InstanceSpec {
    /// Declared window, in bytes.
    pub window: u32,
    /// Limit of memory in pages of 64 KiB.
    pub memory_pages_max: u32,
    /// Parameters by name, as the bytes that `param_load` returns.
    pub parameters: BTreeMap<String, Vec<u8>>,
    /// Meanings of the numbers with which `on_start` refuses.
    pub refusals: BTreeMap<u16, String>,
    /// Port numbers by name.
    pub ports: BTreeMap<String, u16>,
    /// Lane that this instance serves.
    pub lane: u32,
    /// Most epochs that one call may last before it traps, where there is no pace.
    pub call_slices: u64,
    /// Policy on how long calls run.
    pub pace: Option<Rc<dyn Pace>>,
    /// Memory, when the program was made for a shared one; all zero, and already charged.
    pub memory: Option<Arc<dyn SharedMemory>>,
    /// Account that the instance's memory and tables are charged to.
    pub room: Option<Rc<dyn MemoryAccount>>,
}

/// Loaded module whose imports are linked: instances start from it in microseconds.
pub struct Program<P: 'static> {
    ready: InstancePre<Host<P>>,
    kind: MemoryKind,
    origins: Arc<Origins>,
}

type Start<P> = Pin<Box<dyn Future<Output = Result<Instance<P>, StartError>>>>;

/// Instance whose `on_start` or `state_in` has not ended yet. Dropping it cancels the start.
pub struct Starting<P: 'static>(Start<P>);

/// Progress of a start.
pub enum Started<P: 'static> {
    /// Ended start: the instance, or the reason of the failure.
    Ended(Result<Box<Instance<P>>, StartError>),
    /// Suspended start, to be resumed.
    Suspended(Starting<P>),
}

impl<P> Program<P> {
    pub(crate) fn new(ready: InstancePre<Host<P>>, kind: MemoryKind, origins: Origins) -> Self {
        Self { ready, kind, origins: Arc::new(origins) }
    }

    /// Returns the position of a byte of the module's code in the form of traps; `None` when no
    /// function has this byte.
    #[must_use]
    pub fn place_at(&self, offset: usize) -> Option<Place> {
        let function = self.ready.module().functions().nth(self.origins.function(offset)?)?;
        let index = || format!("#{}", function.index.as_u32());
        let function = function.name.as_deref().map_or_else(index, crate::trap::function_name);
        Some(Place { function: Some(function), offset: Some(offset) })
    }
}

impl<P: PacketBytes + 'static> Program<P> {
    /// Makes an instance: fresh memory, then the saved state `kept` of a previous instance;
    /// `on_start` runs when it is resumed.
    ///
    /// # Errors
    /// Memory or exports are not as the ABI requires.
    pub fn begin(
        &self,
        engine: &Engine,
        spec: &InstanceSpec,
        kept: Option<Kept>,
        now_ms: u64,
    ) -> Result<Starting<P>, StartError> {
        let mut instance = self.make(engine, spec)?;
        Ok(Starting(Box::pin(async move {
            match kept {
                None => instance.started().await?,
                Some(Kept::Memory { bytes, globals }) => {
                    instance.restore_memory(&bytes, &globals)?;
                    instance.started().await?;
                }
                Some(Kept::Handed { bytes, counters }) => {
                    instance.started().await?;
                    instance.state_in(bytes, &counters, now_ms).await?;
                }
            }
            Ok(instance)
        })))
    }

    /// Starts an instance and runs its `on_start` to the end, without a time limit.
    ///
    /// # Errors
    /// Same as [`Program::begin`]; also, `on_start` traps or refuses.
    pub fn start(&self, engine: &Engine, spec: &InstanceSpec) -> Result<Instance<P>, StartError> {
        self.start_with(engine, spec, None, 0)
    }

    /// Starts an instance that replaces another, with that one's state.
    ///
    /// # Errors
    /// Same as [`Program::start`]; also, the state cannot be taken over.
    pub fn start_with(
        &self,
        engine: &Engine,
        spec: &InstanceSpec,
        kept: Option<Kept>,
        now_ms: u64,
    ) -> Result<Instance<P>, StartError> {
        let mut starting = self.begin(engine, spec, kept, now_ms)?;
        loop {
            match starting.resume() {
                Started::Ended(ended) => return ended.map(|instance| *instance),
                Started::Suspended(again) => starting = again,
            }
        }
    }

    fn make(&self, engine: &Engine, spec: &InstanceSpec) -> Result<Instance<P>, StartError> {
        let batch = Rc::new(RefCell::new(Batch::default()));
        let mut store = Store::new(engine.of(self.kind), self.host(spec, &batch));
        store.limiter(|host| &mut host.limits);
        step::watch(&mut store);
        let call_slices = if spec.pace.is_some() { 1 } else { spec.call_slices };
        store.set_epoch_deadline(call_slices);
        let instance = shared::give(spec.memory.clone(), || self.ready.instantiate(&mut store))
            .map_err(|error| StartError::Instantiate(format!("{error:#}")))?;
        let memory =
            instance.get_memory(&mut store, "memory").ok_or(StartError::Export("memory"))?;
        if memory.data_size(&store) < (WINDOW_ADDRESS + WINDOW_LENGTH_MAX) as usize {
            return Err(StartError::Export("memory"));
        }
        store.data_mut().memory = Some(memory);
        let on_packet =
            function(&instance, &mut store, "on_packet").ok_or(StartError::Export("on_packet"))?;
        let batch_loop = self.batch_loop(engine, &mut store, &on_packet)?;
        let counters = counters_of(&instance, &mut store);
        batch.borrow_mut().counters.read = Rc::clone(&counters);
        let rest = Box::new(Rest {
            on_start: function(&instance, &mut store, "on_start"),
            refusals: spec.refusals.clone(),
            on_timer: function(&instance, &mut store, "on_timer"),
            on_message: function(&instance, &mut store, "on_message"),
            on_memory_low: function(&instance, &mut store, Hook::OnMemoryLow.name()),
            on_queue: function(&instance, &mut store, Hook::OnQueue.name()),
            state_out: function(&instance, &mut store, "state_out"),
            state_in: function(&instance, &mut store, "state_in"),
            counters: Rc::clone(&counters),
            globals: globals_of(&instance, &mut store),
        });
        let batch = (batch, batch_loop);
        Ok(Instance::new(store, memory, on_packet, call_slices, batch, rest))
    }

    /// Makes the instance of the loop around `on_packet`, beside the module's.
    fn batch_loop(
        &self,
        engine: &Engine,
        store: &mut Store<Host<P>>,
        on_packet: &TypedFunc<(), u32>,
    ) -> Result<TypedFunc<(), ()>, StartError> {
        let refused = |error: wasmtime::Error| StartError::Instantiate(format!("{error:#}"));
        let step = step::step(store);
        let code = engine.batch_loop(self.kind).map_err(refused)?;
        let around = [step.into(), (*on_packet.func()).into()];
        let instance = wasmtime::Instance::new(&mut *store, &code, &around).map_err(refused)?;
        function(&instance, store, batch_loop::RUN).ok_or(StartError::Export(batch_loop::RUN))
    }

    fn host(&self, spec: &InstanceSpec, batch: &Rc<RefCell<Batch<P>>>) -> Host<P> {
        Host {
            packet: Local(None),
            batch: Local(Rc::clone(batch)),
            pace: Local(spec.pace.clone()),
            calls: first_call(),
            can_suspend: false,
            not_a_verdict: None,
            lane: spec.lane,
            window: spec.window as usize,
            window_length: 0,
            now_ms: 0,
            hook: Hook::OnStart,
            parameters: spec.parameters.clone(),
            ports: spec.ports.clone(),
            emitted: None,
            state: Vec::new(),
            state_at: 0,
            memory: None,
            limits: Limits::new(
                (spec.memory_pages_max as usize * 65_536, TABLE_ELEMENTS_MAX),
                spec.room.clone(),
                spec.memory.is_some(),
            ),
            origins: Arc::clone(&self.origins),
        }
    }
}

/// Shares the compiled code with the original.
impl<P> Clone for Program<P> {
    fn clone(&self) -> Self {
        Self { ready: self.ready.clone(), kind: self.kind, origins: Arc::clone(&self.origins) }
    }
}

impl<P: PacketBytes + 'static> Starting<P> {
    /// Resumes the start, as long as its pace allows.
    #[must_use]
    pub fn resume(mut self) -> Started<P> {
        // No waker is needed: the caller that polls it resumes it.
        let mut context = Context::from_waker(Waker::noop());
        match self.0.as_mut().poll(&mut context) {
            Poll::Ready(ended) => Started::Ended(ended.map(Box::new)),
            Poll::Pending => Started::Suspended(self),
        }
    }
}

/// Returns an exported function, if there is one of this name and type. Most modules lack some:
/// wasmtime's checked lookup would make an error of each, with a backtrace.
fn function<P, A: WasmParams, R: WasmResults>(
    instance: &wasmtime::Instance,
    store: &mut Store<Host<P>>,
    name: &str,
) -> Option<TypedFunc<A, R>> {
    instance.get_func(&mut *store, name)?.typed(&*store).ok()
}

/// Returns the first call number of an instance. Call numbers are unique in a process, not only in
/// an instance: a pace may have seen another instance before. Each instance has a range of 2^40,
/// also instances of another host of modules under the same pace.
#[must_use]
pub fn first_call() -> u64 {
    static INSTANCES: AtomicU64 = AtomicU64::new(1);
    INSTANCES.fetch_add(1, Ordering::Relaxed) << 40
}

fn globals_of<P>(instance: &wasmtime::Instance, store: &mut Store<Host<P>>) -> Vec<(u32, Global)> {
    let found = instance
        .exports(&mut *store)
        .filter_map(|export| Some((globals::index_of(export.name())?, export.into_global()?)));
    found.collect()
}

/// Returns the counters that a module exports, with their addresses.
fn counters_of<P>(
    instance: &wasmtime::Instance,
    store: &mut Store<Host<P>>,
) -> Rc<[(String, u32)]> {
    let globals: Vec<_> = instance
        .exports(&mut *store)
        .filter_map(|export| {
            let name = export.name().strip_prefix(COUNTER_PREFIX)?.to_owned();
            Some((name, export.into_global()?))
        })
        .collect();
    globals
        .into_iter()
        .filter_map(|(name, global)| Some((name, global.get(&mut *store).i32()? as u32)))
        .collect()
}
