//! Instance: a store, its memory, and the calls into it.

mod run;

use crate::batch::{Batch, Handled};
use crate::emitted::Emitted;
use crate::hooks::{Call, Ended, QueueEvent};
use crate::host::{Host, window_of};
use crate::pace::PaceDecision;
use crate::state::{Kept, counter_at};
use crate::step;
use crate::trap::{StartError, StartRefusal, StateError, Trap, TrapKind};
use abi::host::{Hook, QUEUE_DROPPED, QUEUE_HEAD_MAX, QUEUE_LONG, QUEUE_SHORT};
use abi::layout::{DATA_ADDRESS, MARK_LENGTH, META_ADDRESS, WINDOW_ADDRESS, WINDOW_LENGTH_MAX};
use abi::{Meta, PacketBytes, Verdict};
use level::prefetch;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use wasmtime::{Global, Memory, Store, TypedFunc, Val, ValType};

pub use run::{Done, Ran, Suspended};

/// Cache lines of a store that each call reads, as byte offsets in front of the store's data in
/// wasmtime 48; with another version the prefetch is useless but harmless.
const STORE_LINES: [usize; 6] = [752, 688, 304, 240, 176, 128];
/// Cache lines of wasmtime's context of a small module's instance, up to its functions.
const CONTEXT_LINES: usize = 4;

/// Running module with its memory. Handles one packet at a time.
///
/// Fields that a packet's call reads come first, and are what [`Instance::load_ahead`] prefetches.
#[repr(C)]
pub struct Instance<P: 'static> {
    store: Store<Host<P>>,
    on_packet: TypedFunc<(), u32>,
    memory: Memory,
    call_slices: u64,
    places: StoreAddresses,
    batch: Rc<RefCell<Batch<P>>>,
    batch_loop: TypedFunc<(), ()>,
    rest: Box<Rest>,
}

/// Addresses of wasmtime's data that a packet's call reads, for prefetching only.
#[derive(Clone, Copy)]
struct StoreAddresses {
    /// Address of the linear memory when the instance was made; the memory may move.
    memory: *const u8,
    /// Address of the reference to `on_packet`, after all other data of the instance.
    function: *const u8,
}

/// Fields that no packet's call reads.
pub(crate) struct Rest {
    pub(crate) on_start: Option<TypedFunc<(), i32>>,
    /// Meanings of `on_start`'s refusals; empty once it has started.
    pub(crate) refusals: BTreeMap<u16, String>,
    pub(crate) on_timer: Option<TypedFunc<(), ()>>,
    pub(crate) on_message: Option<TypedFunc<u32, i32>>,
    pub(crate) on_memory_low: Option<TypedFunc<(u32, u32), ()>>,
    pub(crate) on_queue: Option<TypedFunc<(u32, u32), ()>>,
    pub(crate) state_out: Option<TypedFunc<(), i32>>,
    pub(crate) state_in: Option<TypedFunc<u32, i32>>,
    pub(crate) counters: Rc<[(String, u32)]>,
    /// Mutable globals, by index.
    pub(crate) globals: Vec<(u32, Global)>,
}

impl<P: PacketBytes + 'static> Instance<P> {
    /// Makes an instance that has not started; `batch` holds its packets.
    pub(crate) fn new(
        mut store: Store<Host<P>>,
        memory: Memory,
        on_packet: TypedFunc<(), u32>,
        call_slices: u64,
        (batch, batch_loop): (Rc<RefCell<Batch<P>>>, TypedFunc<(), ()>),
        rest: Box<Rest>,
    ) -> Self {
        let places = StoreAddresses {
            memory: memory.data_ptr(&store),
            function: on_packet.func().to_raw(&mut store).cast::<u8>(),
        };
        Self { store, on_packet, memory, call_slices, places, batch, batch_loop, rest }
    }

    /// Runs the module on one packet; fills in the lengths of `meta`, the caller sets the rest.
    /// Returns the packet in any case.
    ///
    /// # Errors
    /// The trap that ended the instance; it must not be called again.
    #[inline]
    pub fn on_packet(&mut self, packet: P, meta: &Meta) -> (P, Result<Verdict, Trap>) {
        let verdict = self.run_packet(packet, meta);
        let packet = self.store.data_mut().packet.take();
        (packet.expect("run_packet put it there and nothing takes it"), verdict)
    }

    /// Runs the module on one packet and returns all of the call's output.
    #[inline]
    pub fn handle(&mut self, packet: P, meta: &Meta) -> Handled<P> {
        let (packet, verdict) = self.on_packet(packet, meta);
        let mark = step::mark(self.memory.data(&self.store));
        Handled { packet, verdict, mark, emitted: self.store.data_mut().emitted.take() }
    }

    #[inline]
    fn run_packet(&mut self, packet: P, meta: &Meta) -> Result<Verdict, Trap> {
        let (bytes, host) = self.memory.data_and_store_mut(&mut self.store);
        step::begin(bytes, host, packet, meta).map_err(|error| host.trap(&error))?;
        self.arm();
        let value = self.on_packet.call(&mut self.store, ());
        let value = value.map_err(|error| self.store.data().trap(&error))?;
        let (bytes, host) = self.memory.data_and_store_mut(&mut self.store);
        step::verdict(bytes, host, value)
    }

    /// Sets the deadline of the next call to its maximum.
    #[inline]
    fn arm(&mut self) {
        self.store.set_epoch_deadline(self.call_slices);
    }

    /// Returns true when frames or events wait to be collected.
    #[must_use]
    pub fn has_emitted(&self) -> bool {
        self.store.data().emitted.is_some()
    }

    /// Takes the output of calls beside their verdicts.
    pub fn take_emitted(&mut self) -> Emitted {
        self.store.data_mut().emitted.take().map_or_else(Emitted::default, |emitted| *emitted)
    }

    /// Returns the module's counters, by name: exported `tam_counter_*` addresses of u64 in its
    /// memory.
    #[must_use]
    pub fn counters(&self) -> Vec<(String, u64)> {
        let memory = self.memory.data(&self.store);
        let read = |(name, at): &(String, u32)| Some((name.clone(), counter_at(memory, *at)?));
        self.rest.counters.iter().filter_map(read).collect()
    }

    /// Returns the mutable globals by index, to move them to another level. An `i32` is
    /// zero-extended.
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

    /// Sets each mutable global for which there is a value: those that came back from another
    /// level.
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
            // A mutable global of this type, as its export declared: setting it cannot fail.
            let _ = global.set(&mut self.store, value);
        }
    }

    /// Grows the memory to at least `bytes`, after it grew at another level. Returns false when it
    /// may not be so large.
    pub fn grow_to(&mut self, bytes: u64) -> bool {
        let more = bytes.saturating_sub(self.memory_bytes()).div_ceil(65_536);
        more == 0 || self.memory.grow(&mut self.store, more).is_ok()
    }

    /// Returns the bytes of linear memory in use.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.memory.data_size(&self.store) as u64
    }

    /// Prefetches the data that a packet's call reads, in three steps: each needs what the one
    /// before has loaded.
    #[inline]
    pub fn load_ahead(&self, step: u8) {
        match step {
            0 => prefetch::load_first(self, std::mem::offset_of!(Self, batch)),
            1 => {
                let host = self.store.data();
                host.load_ahead();
                let host = std::ptr::from_ref(host).cast::<u8>();
                STORE_LINES.iter().for_each(|&line| prefetch::load_line(host.wrapping_sub(line)));
                let function = self.places.function;
                for line in 0..CONTEXT_LINES {
                    prefetch::load_line(function.wrapping_sub(line * prefetch::LINE));
                }
                for address in [META_ADDRESS, WINDOW_ADDRESS, DATA_ADDRESS] {
                    prefetch::load_line(self.places.memory.wrapping_add(address as usize));
                }
            }
            // The memory's address is behind three pointers of wasmtime: they are read.
            _ => prefetch::load_line(self.memory.data_ptr(&self.store)),
        }
    }

    /// Returns linear memory, for conformance and differential tests.
    #[must_use]
    pub fn memory(&self) -> &[u8] {
        self.memory.data(&self.store)
    }

    /// Queues a packet for [`Instance::run`], which fills in the lengths.
    #[inline]
    pub fn push(&mut self, packet: P, meta: Meta) {
        self.batch.borrow_mut().input.push_back((packet, meta));
    }

    /// Returns the number of packets queued for [`Instance::run`].
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.batch.borrow().input.len()
    }

    /// Removes the oldest queued packet.
    pub fn take_waiting(&mut self) -> Option<P> {
        self.batch.borrow_mut().input.pop_front().map(|(packet, _)| packet)
    }

    /// Takes the oldest handled packet.
    #[inline]
    pub fn pop(&mut self) -> Option<Handled<P>> {
        self.batch.borrow_mut().output.pop_front()
    }

    /// Handles the queued packets, as long as its [`Pace`](crate::Pace) allows; the rest stays
    /// queued.
    #[must_use]
    pub fn run(mut self: Box<Self>) -> Ran<P> {
        let batch = Rc::clone(&self.batch);
        let memory_bytes = self.memory_bytes();
        match self.store.data().pace.as_ref().map_or(PaceDecision::Continue, |pace| pace.begins()) {
            PaceDecision::Continue => self.arm(),
            PaceDecision::ContinueClosely => self.store.set_epoch_deadline(0),
            PaceDecision::Suspend | PaceDecision::Stop => return Ran::Rest(self, Done::Packets),
        }
        let running = Box::pin(async move {
            let batch_loop = self.batch_loop.clone();
            let result = batch_loop.call_async(&mut self.store, ()).await;
            (self.ended(result), Done::Packets)
        });
        Suspended::new(running, batch, memory_bytes).resume()
    }

    /// Runs a hook, as long as its [`Pace`](crate::Pace) allows.
    #[must_use]
    pub fn call(mut self: Box<Self>, call: Call) -> Ran<P> {
        let batch = Rc::clone(&self.batch);
        let memory_bytes = self.memory_bytes();
        let running = Box::pin(async move {
            let ended = self.end(call).await;
            (self, Done::Call(ended))
        });
        Suspended::new(running, batch, memory_bytes).resume()
    }

    /// Finishes a call that has ended by itself or by a trap.
    fn ended(mut self: Box<Self>, result: wasmtime::Result<()>) -> Box<Self> {
        let Err(error) = result else { return self };
        let host = self.store.data_mut();
        let trap = match host.not_a_verdict.take() {
            Some(value) => Trap { kind: TrapKind::NotAVerdict(Some(value)), place: None },
            None => host.trap(&error),
        };
        if let Some(packet) = host.packet.take() {
            let emitted = host.emitted.take();
            let handled = Handled { packet, verdict: Err(trap), mark: [0; MARK_LENGTH], emitted };
            self.batch.borrow_mut().output.push_back(handled);
        }
        self
    }

    /// Runs `on_timer`, when the module has one, to its end: for callers that block nobody.
    ///
    /// # Errors
    /// The trap that ended the instance.
    pub fn on_timer(&mut self, now_ms: u64) -> Result<(), Trap> {
        let mut running = pin!(self.timer(now_ms));
        let mut context = Context::from_waker(Waker::noop());
        loop {
            if let Poll::Ready(ended) = running.as_mut().poll(&mut context) {
                return ended;
            }
        }
    }

    /// Runs a hook.
    async fn end(&mut self, call: Call) -> Ended {
        match call {
            Call::Timer { now_ms } => Ended::Timer(self.timer(now_ms).await),
            Call::Message { message, now_ms } => {
                Ended::Message(self.message(&message, now_ms).await)
            }
            Call::MemoryLow { used, most, now_ms } => {
                Ended::Timer(self.memory_low(used, most, now_ms).await)
            }
            Call::Queue { event, now_ms } => Ended::Timer(self.queue(&event, now_ms).await),
            Call::StateOut { now_ms } => Ended::State(self.state_out(now_ms).await),
        }
    }

    async fn timer(&mut self, now_ms: u64) -> Result<(), Trap> {
        let Some(on_timer) = self.rest.on_timer.clone() else { return Ok(()) };
        self.hook(Hook::OnTimer, now_ms, async |store| on_timer.call_async(store, ()).await).await
    }

    async fn message(&mut self, message: &[u8], now_ms: u64) -> Result<Option<i32>, Trap> {
        let Some(on_message) = self.rest.on_message.clone() else { return Ok(None) };
        let memory = self.memory.data_mut(&mut self.store);
        let Some(window) =
            window_of(memory, message.len()).filter(|w| w.len() <= WINDOW_LENGTH_MAX as usize)
        else {
            return Ok(None);
        };
        window.copy_from_slice(message);
        let length = message.len() as u32;
        let hook = async |store: &mut Store<Host<P>>| on_message.call_async(store, length).await;
        self.hook(Hook::OnMessage, now_ms, hook).await.map(Some)
    }

    async fn memory_low(&mut self, used: u32, most: u32, now_ms: u64) -> Result<(), Trap> {
        let Some(on_memory_low) = self.rest.on_memory_low.clone() else { return Ok(()) };
        let hook =
            async |store: &mut Store<Host<P>>| on_memory_low.call_async(store, (used, most)).await;
        self.hook(Hook::OnMemoryLow, now_ms, hook).await
    }

    async fn queue(&mut self, event: &QueueEvent, now_ms: u64) -> Result<(), Trap> {
        let Some(on_queue) = self.rest.on_queue.clone() else { return Ok(()) };
        let arguments = match event {
            QueueEvent::Short(waits) => (QUEUE_SHORT, *waits),
            QueueEvent::Long(waits) => (QUEUE_LONG, *waits),
            QueueEvent::Dropped(head) => {
                let head = &head[..head.len().min(QUEUE_HEAD_MAX)];
                let memory = self.memory.data_mut(&mut self.store);
                let Some(window) = window_of(memory, head.len()) else { return Ok(()) };
                window.copy_from_slice(head);
                (QUEUE_DROPPED, head.len() as u32)
            }
        };
        let hook = async |store: &mut Store<Host<P>>| on_queue.call_async(store, arguments).await;
        self.hook(Hook::OnQueue, now_ms, hook).await
    }

    /// Runs `on_start`, once, before the first packet.
    pub(crate) async fn started(&mut self) -> Result<(), StartError> {
        self.store.data_mut().hook = Hook::OnPacket;
        let Some(on_start) = self.rest.on_start.take() else { return Ok(()) };
        let hook = async |store: &mut Store<Host<P>>| on_start.call_async(store, ()).await;
        match self.hook(Hook::OnStart, 0, hook).await {
            Ok(0) => {
                self.rest.refusals.clear();
                Ok(())
            }
            Ok(number) => {
                let known = u16::try_from(number).ok();
                let meaning = known.and_then(|number| self.rest.refusals.remove(&number));
                Err(StartError::Refused(StartRefusal { number, meaning }))
            }
            Err(trap) => Err(StartError::Trapped(trap)),
        }
    }

    async fn hook<R>(
        &mut self,
        hook: Hook,
        now_ms: u64,
        call: impl AsyncFnOnce(&mut Store<Host<P>>) -> wasmtime::Result<R>,
    ) -> Result<R, Trap> {
        let host = self.store.data_mut();
        host.hook = hook;
        host.now_ms = now_ms;
        host.calls += 1;
        host.can_suspend = true;
        self.arm();
        let result = call(&mut self.store).await;
        let host = self.store.data_mut();
        host.hook = Hook::OnPacket;
        host.can_suspend = false;
        result.map_err(|error| host.trap(&error))
    }

    /// Returns a copy of memory and globals.
    pub fn save_memory(&mut self) -> Kept {
        let globals = self.globals().collect();
        Kept::Memory { bytes: self.memory().to_vec(), globals }
    }

    /// Runs `state_out`.
    async fn state_out(&mut self, now_ms: u64) -> Result<Kept, StateError> {
        const NAME: &str = "state_out";
        let state_out = self.rest.state_out.clone().ok_or(StateError::NoHook(NAME))?;
        let hook = async |store: &mut Store<Host<P>>| state_out.call_async(store, ()).await;
        let answer = self.hook(Hook::StateOut, now_ms, hook).await;
        let host = self.store.data_mut();
        let bytes = std::mem::take(&mut host.state);
        host.limits.give_state();
        match answer {
            Ok(0) => Ok(Kept::Handed { bytes, counters: self.counters() }),
            Ok(code) => Err(StateError::Refused(NAME, code, "hand over")),
            Err(trap) => Err(StateError::Trapped(NAME, trap)),
        }
    }

    /// Restores memory and globals.
    pub(crate) fn restore_memory(
        &mut self,
        bytes: &[u8],
        globals: &[(u32, u64)],
    ) -> Result<(), StateError> {
        let too_large = || StateError::TooLarge { bytes: bytes.len() };
        if !self.grow_to(bytes.len() as u64) {
            return Err(too_large());
        }
        let memory = self.memory.data_mut(&mut self.store);
        memory.get_mut(..bytes.len()).ok_or_else(too_large)?.copy_from_slice(bytes);
        self.set_globals(|index| globals.iter().find(|(i, _)| *i == index).map(|(_, v)| *v));
        Ok(())
    }

    /// Runs `state_in` on the state that another instance handed over; the counters continue.
    pub(crate) async fn state_in(
        &mut self,
        bytes: Vec<u8>,
        counters: &[(String, u64)],
        now_ms: u64,
    ) -> Result<(), StateError> {
        const NAME: &str = "state_in";
        let state_in = self.rest.state_in.clone().ok_or(StateError::NoHook(NAME))?;
        let length = bytes.len() as u32;
        let host = self.store.data_mut();
        (host.state, host.state_at) = (bytes, 0);
        let hook = async |store: &mut Store<Host<P>>| state_in.call_async(store, length).await;
        let answer = self.hook(Hook::StateIn, now_ms, hook).await;
        self.store.data_mut().state = Vec::new();
        match answer {
            Ok(0) => {}
            Ok(code) => return Err(StateError::Refused(NAME, code, "take")),
            Err(trap) => return Err(StateError::Trapped(NAME, trap)),
        }
        let memory = self.memory.data_mut(&mut self.store);
        for (name, at) in self.rest.counters.iter() {
            let value = counters.iter().find(|(known, _)| known == name);
            let room = memory.get_mut(*at as usize..).and_then(<[u8]>::first_chunk_mut);
            if let (Some((_, value)), Some(room)) = (value, room) {
                *room = value.to_le_bytes();
            }
        }
        Ok(())
    }
}
