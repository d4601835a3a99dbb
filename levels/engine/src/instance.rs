//! One instance: a store, its memory, and the calls into it.

use crate::batch::{self, Batch, Handled, Pace};
use crate::host::{Emitted, Host};
use crate::local::Local;
use crate::room::{Limits, Room};
use crate::state::{counter_at, counters_of};
use crate::trap::{StartError, Trap};
use crate::{Engine, Program, globals, looping, shared};
use abi::host::Hook;
use abi::layout::{DATA_ADDRESS, META_ADDRESS, WINDOW_ADDRESS, WINDOW_LENGTH_MAX};
use abi::{Meta, PacketBytes, Verdict};
use level::{SharedMemory, ahead};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use wasmtime::{Global, Memory, Store, TypedFunc, Val, ValType, WasmParams, WasmResults};

/// Table elements of one instance: indirect calls, not data.
const TABLE_ELEMENTS_MAX: usize = 65_536;

/// Where in a store wasmtime 48 has what each call looks at, in bytes in front of the store's data:
/// with another version that is loaded ahead which nobody needs, and no more.
const STORE_LINES: [usize; 6] = [752, 688, 304, 240, 176, 128];
/// Lines of what wasmtime has for an instance of a small module, up to its functions.
const CONTEXT_LINES: usize = 4;

/// What an instance is started with.
#[derive(Clone, Debug, Default)]
pub struct InstanceSpec {
    /// The declared window, in bytes.
    pub window: u32,
    /// Pages of 64 KiB that the memory may have.
    pub memory_pages_max: u32,
    /// Parameters by name, as the bytes that `param_load` gives.
    pub parameters: BTreeMap<String, Vec<u8>>,
    /// The meanings of numbers with which `on_start` refuses.
    pub refusals: BTreeMap<u16, String>,
    /// Ports by name.
    pub ports: BTreeMap<String, u16>,
    /// The lane that this instance serves.
    pub lane: u32,
    /// Slices that one call may see begin before it traps, where nobody sets a pace.
    pub call_slices: u64,
    /// Who says how long calls run.
    pub pace: Option<Rc<dyn Pace>>,
    /// The memory, when the program was made for a shared one; all zero, and paid for.
    pub memory: Option<Arc<dyn SharedMemory>>,
    /// Who keeps account of what it has.
    pub room: Option<Rc<dyn Room>>,
}

/// A running module with its memory. One packet at a time.
///
/// What a packet's call looks at comes first, and is what [`Instance::load_ahead`] loads.
#[repr(C)]
pub struct Instance<P: 'static> {
    pub(crate) store: Store<Host<P>>,
    on_packet: TypedFunc<(), u32>,
    pub(crate) memory: Memory,
    call_slices: u64,
    places: Places,
    pub(crate) batch: Rc<RefCell<Batch<P>>>,
    pub(crate) looping: TypedFunc<(), ()>,
    pub(crate) rest: Box<Rest>,
}

/// Where wasmtime keeps what a packet's call looks at: nothing is read there.
#[derive(Clone, Copy)]
struct Places {
    /// The linear memory, when the instance was made: it may move.
    memory: *const u8,
    /// The reference to `on_packet`, behind all else that its instance has of its own.
    function: *const u8,
}

/// What is only looked at beside packets.
pub(crate) struct Rest {
    pub(crate) on_start: Option<TypedFunc<(), i32>>,
    /// The meanings of numbers that it returns; empty once it has started.
    pub(crate) refusals: BTreeMap<u16, String>,
    pub(crate) on_timer: Option<TypedFunc<(), ()>>,
    pub(crate) on_message: Option<TypedFunc<u32, i32>>,
    pub(crate) on_memory_low: Option<TypedFunc<(u32, u32), ()>>,
    pub(crate) on_queue: Option<TypedFunc<(u32, u32), ()>>,
    pub(crate) state_out: Option<TypedFunc<(), i32>>,
    pub(crate) state_in: Option<TypedFunc<u32, i32>>,
    pub(crate) counters: Rc<[(String, u32)]>,
    /// The mutable globals, by index.
    globals: Vec<(u32, Global)>,
}

impl<P: PacketBytes + 'static> Program<P> {
    pub(crate) fn make(
        &self,
        engine: &Engine,
        spec: &InstanceSpec,
    ) -> Result<Instance<P>, StartError> {
        let batch = Rc::new(RefCell::new(Batch::default()));
        let mut store = Store::new(engine.of(self.kind), self.host(spec, &batch));
        store.limiter(|host| &mut host.limits);
        batch::watch(&mut store);
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
        let looping = self.looping(engine, &mut store, &on_packet)?;
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
        let places = Places {
            memory: memory.data_ptr(&store),
            function: on_packet.func().to_raw(&mut store).cast::<u8>(),
        };
        Ok(Instance { store, on_packet, memory, call_slices, places, batch, looping, rest })
    }

    /// The loop around `on_packet`, an instance of its own beside the module's.
    fn looping(
        &self,
        engine: &Engine,
        store: &mut Store<Host<P>>,
        on_packet: &TypedFunc<(), u32>,
    ) -> Result<TypedFunc<(), ()>, StartError> {
        let refused = |error: wasmtime::Error| StartError::Instantiate(format!("{error:#}"));
        let step = batch::step(store);
        let code = engine.looping(self.kind).map_err(refused)?;
        let around = [step.into(), (*on_packet.func()).into()];
        let instance = wasmtime::Instance::new(&mut *store, &code, &around).map_err(refused)?;
        function(&instance, store, looping::RUN).ok_or(StartError::Export(looping::RUN))
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

/// An exported function, if there is one of this name and type. Most modules lack some: to ask
/// wasmtime for them as if they had to be there would make an error of each, with a backtrace.
fn function<P, A: WasmParams, R: WasmResults>(
    instance: &wasmtime::Instance,
    store: &mut Store<Host<P>>,
    name: &str,
) -> Option<TypedFunc<A, R>> {
    instance.get_func(&mut *store, name)?.typed(&*store).ok()
}

/// Numbers of calls are of this process, not of an instance: whoever sets a pace may have seen
/// another instance before. Each instance has 2^40 of them to itself, also one of another host
/// of modules under the same pace.
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

impl<P: PacketBytes + 'static> Instance<P> {
    /// Runs the module on one packet; lengths are filled in here, the rest of
    /// `meta` is the caller's. The packet comes back whatever happens.
    ///
    /// # Errors
    /// The trap that ended the instance; it must not be called again.
    #[inline]
    pub fn on_packet(&mut self, packet: P, meta: &Meta) -> (P, Result<Verdict, Trap>) {
        let verdict = self.run_packet(packet, meta);
        let packet = self.store.data_mut().packet.take();
        (packet.expect("run_packet put it there and nothing takes it"), verdict)
    }

    /// The same with all that the call left.
    #[inline]
    pub fn handle(&mut self, packet: P, meta: &Meta) -> Handled<P> {
        let (packet, verdict) = self.on_packet(packet, meta);
        let mark = batch::mark(self.memory.data(&self.store));
        Handled { packet, verdict, mark, emitted: self.store.data_mut().emitted.take() }
    }

    #[inline]
    fn run_packet(&mut self, packet: P, meta: &Meta) -> Result<Verdict, Trap> {
        let (bytes, host) = self.memory.data_and_store_mut(&mut self.store);
        batch::begin(bytes, host, packet, meta).map_err(|error| host.trap(&error))?;
        self.arm();
        let value = self.on_packet.call(&mut self.store, ());
        let value = value.map_err(|error| self.store.data().trap(&error))?;
        let (bytes, host) = self.memory.data_and_store_mut(&mut self.store);
        batch::verdict(bytes, host, value)
    }

    /// Lets the next call run for as long as it may.
    #[inline]
    pub(crate) fn arm(&mut self) {
        self.store.set_epoch_deadline(self.call_slices);
    }

    /// True when calls left frames or events to pick up.
    #[must_use]
    pub fn has_emitted(&self) -> bool {
        self.store.data().emitted.is_some()
    }

    /// Takes what calls left beside their verdicts.
    pub fn take_emitted(&mut self) -> Emitted {
        self.store.data_mut().emitted.take().map_or_else(Emitted::default, |emitted| *emitted)
    }

    /// The module's counters, by name: exported `tam_counter_*` addresses of u64 in its memory.
    #[must_use]
    pub fn counters(&self) -> Vec<(String, u64)> {
        let memory = self.memory.data(&self.store);
        let read = |(name, at): &(String, u32)| Some((name.clone(), counter_at(memory, *at)?));
        self.rest.counters.iter().filter_map(read).collect()
    }

    /// The mutable globals by index: what an instance takes along to another level. An `i32` is zero-extended.
    pub fn globals(&mut self) -> impl Iterator<Item = (u32, u64)> {
        self.rest.globals.iter().filter_map(|(index, global)| {
            let value = match global.get(&mut self.store) {
                Val::I32(value) => u64::from(value as u32),
                Val::I64(value) => value as u64,
                Val::F32(bits) => u64::from(bits),
                Val::F64(bits) => bits,
                _ => return None,
            };
            Some((*index, value))
        })
    }

    /// Sets each of them for which there is a value: what it brought back.
    pub fn set_globals(&mut self, value: impl Fn(u32) -> Option<u64>) {
        for (index, global) in &self.rest.globals {
            let Some(value) = value(*index) else { continue };
            let value = match global.ty(&self.store).content() {
                ValType::I32 => Val::I32(value as u32 as i32),
                ValType::I64 => Val::I64(value as i64),
                ValType::F32 => Val::F32(value as u32),
                ValType::F64 => Val::F64(value),
                _ => continue,
            };
            // A mutable global of this type, as its export said: it cannot fail.
            let _ = global.set(&mut self.store, value);
        }
    }

    /// Lets the memory have at least so many bytes: it grew elsewhere. False
    /// when it may not be so large.
    pub fn grow_to(&mut self, bytes: u64) -> bool {
        let more = bytes.saturating_sub(self.memory_bytes()).div_ceil(65_536);
        more == 0 || self.memory.grow(&mut self.store, more).is_ok()
    }

    /// Bytes of linear memory in use.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.memory.data_size(&self.store) as u64
    }

    /// Starts loading what a packet's call looks at, in three steps: each needs what the one
    /// before has loaded.
    #[inline]
    pub fn load_ahead(&self, step: u8) {
        match step {
            0 => ahead::load_first(self, std::mem::offset_of!(Self, batch)),
            1 => {
                let host = self.store.data();
                host.load_ahead();
                let host = std::ptr::from_ref(host).cast::<u8>();
                STORE_LINES.iter().for_each(|&line| ahead::load_line(host.wrapping_sub(line)));
                let function = self.places.function;
                for line in 0..CONTEXT_LINES {
                    ahead::load_line(function.wrapping_sub(line * ahead::LINE));
                }
                for address in [META_ADDRESS, WINDOW_ADDRESS, DATA_ADDRESS] {
                    ahead::load_line(self.places.memory.wrapping_add(address as usize));
                }
            }
            // Where the memory is lies behind three pointers of wasmtime's: they are read.
            _ => ahead::load_line(self.memory.data_ptr(&self.store)),
        }
    }

    /// Linear memory as it is: for conformance and differential tests.
    #[must_use]
    pub fn memory(&self) -> &[u8] {
        self.memory.data(&self.store)
    }
}
