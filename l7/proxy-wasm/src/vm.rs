//! A VM: an instance of a module, its contexts and their streams; which callback gets what, and what
//! its answer means.

mod call;

use crate::abi::{Action, CALLBACKS};
use crate::context::ROOT;
use crate::effect::Effect;
use crate::host::{Exited, Host};
use crate::http_call::HttpResponse;
use crate::limits::{CONFIGURATION_LENGTH_MAX, CONTEXTS_MAX};
use crate::spec::Now;
use crate::stream::{Stage, Stream};
use engine::Trap;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use wasmtime::{Func, Instance, Store, TypedFunc};

pub use call::{Answer, Call, Outcome, Ran, Suspended};

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

/// Arguments of a callback about a context: its number, and at most two words more.
struct Words {
    all: [u32; 3],
    count: usize,
}

impl Words {
    fn of<const COUNT: usize>(context: u32, others: [u32; COUNT]) -> Self {
        const { assert!(COUNT < 3) };
        let mut all = [context, 0, 0];
        all[1..=COUNT].copy_from_slice(&others);
        Self { all, count: 1 + COUNT }
    }

    fn as_slice(&self) -> &[u32] {
        &self.all[..self.count]
    }
}

impl Vm {
    pub(crate) fn new(
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
    pub(crate) async fn start(&mut self) -> Result<(), StartError> {
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
        host.contexts.set_arguments(Vec::new());
        host.effects.take()
    }

    /// A context's stream.
    #[must_use]
    pub fn stream(&self, context: u32) -> Option<&Stream> {
        self.store.data().contexts.get(context)
    }

    /// A context's stream, to put in what has arrived and to take out what goes on.
    pub fn stream_mut(&mut self, context: u32) -> Option<&mut Stream> {
        self.store.data_mut().contexts.get_mut(context)
    }

    /// The contexts of streams.
    pub fn contexts(&self) -> impl Iterator<Item = u32> {
        self.store.data().contexts.numbers()
    }

    /// All streams, out of a VM that has fallen or is to go: what becomes of them is their
    /// service's failure policy. One whose context could not be made is 0.
    #[must_use]
    pub fn into_streams(mut self) -> BTreeMap<u32, Box<Stream>> {
        self.store.data_mut().contexts.take_all()
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

    /// Makes a call, as far as the VM's pace lets it.
    #[must_use]
    pub fn call(mut self: Box<Self>, call: Call, now: Now) -> Ran {
        let stop = Rc::clone(&self.stop);
        let running = Box::pin(async move {
            self.store.data_mut().now = now;
            let answer = self.answer(call).await;
            self.is_fallen |= matches!(answer, Err(CallError::Trapped(_)));
            let (effects, log_lines_dropped) = self.take_effects();
            (self, Outcome { answer, effects, log_lines_dropped })
        });
        Suspended::new(running, stop).resume()
    }

    async fn answer(&mut self, call: Call) -> Result<Answer, CallError> {
        if self.is_fallen {
            return Err(CallError::Fallen);
        }
        match call {
            Call::Create(stream) => self.create(stream).await,
            Call::Tick => self.plain(ROOT, Stage::Other, "proxy_on_tick", []).await,
            Call::QueueReady(queue) => {
                self.plain(ROOT, Stage::Other, "proxy_on_queue_ready", [queue]).await
            }
            Call::HttpCallResponse(response) => self.http_call_response(response).await,
            Call::ForeignFunction { function, arguments } => {
                self.foreign_function(function, arguments).await
            }
            Call::End(context) => self.end(context).await,
            Call::Finish(context) => self.finish(context).await,
            Call::DownstreamClose(context, peer) => {
                let name = "proxy_on_downstream_connection_close";
                self.plain(context, Stage::Other, name, [peer.number()]).await
            }
            Call::UpstreamClose(context, peer) => {
                let name = "proxy_on_upstream_connection_close";
                self.plain(context, Stage::Other, name, [peer.number()]).await
            }
            shown => self.show(shown).await,
        }
    }

    /// Callbacks that are shown a part of a stream, and say what becomes of it.
    async fn show(&mut self, call: Call) -> Result<Answer, CallError> {
        let body = |stream: &Stream| stream.downstream.body.len() as u32;
        let answer = |stream: &Stream| stream.upstream.body.len() as u32;
        match call {
            Call::NewConnection(context) => {
                let name = "proxy_on_new_connection";
                self.action(context, Stage::NewConnection, name, |_| []).await
            }
            Call::DownstreamData { context, is_last } => {
                let name = "proxy_on_downstream_data";
                let words = |it: &Stream| [body(it), u32::from(is_last)];
                self.action(context, Stage::DownstreamData, name, words).await
            }
            Call::UpstreamData { context, is_last } => {
                let name = "proxy_on_upstream_data";
                let words = |it: &Stream| [answer(it), u32::from(is_last)];
                self.action(context, Stage::UpstreamData, name, words).await
            }
            Call::RequestHeaders { context, is_last } => {
                let name = "proxy_on_request_headers";
                let words = |it: &Stream| [it.downstream.headers.len() as u32, u32::from(is_last)];
                self.action(context, Stage::RequestHeaders, name, words).await
            }
            Call::RequestBody { context, is_last } => {
                let name = "proxy_on_request_body";
                let words = |it: &Stream| [body(it), u32::from(is_last)];
                self.action(context, Stage::RequestBody { is_last }, name, words).await
            }
            Call::RequestTrailers(context) => {
                let name = "proxy_on_request_trailers";
                let words = |it: &Stream| [it.downstream.trailers.len() as u32];
                self.action(context, Stage::RequestTrailers, name, words).await
            }
            Call::ResponseHeaders { context, is_last } => {
                let name = "proxy_on_response_headers";
                let words = |it: &Stream| [it.upstream.headers.len() as u32, u32::from(is_last)];
                self.action(context, Stage::ResponseHeaders, name, words).await
            }
            Call::ResponseBody { context, is_last } => {
                let name = "proxy_on_response_body";
                let words = |it: &Stream| [answer(it), u32::from(is_last)];
                self.action(context, Stage::ResponseBody { is_last }, name, words).await
            }
            Call::ResponseTrailers(context) => {
                let name = "proxy_on_response_trailers";
                let words = |it: &Stream| [it.upstream.trailers.len() as u32];
                self.action(context, Stage::ResponseTrailers, name, words).await
            }
            _ => Ok(Answer::Nothing),
        }
    }

    async fn create(&mut self, mut stream: Box<Stream>) -> Result<Answer, CallError> {
        let host = self.store.data_mut();
        if host.contexts.len() >= CONTEXTS_MAX {
            return Err(CallError::TooManyContexts(stream));
        }
        stream.forget_module();
        let context = host.contexts.insert(stream);
        self.enter(context, Stage::Other);
        match self.run("proxy_on_context_create", &[context, ROOT]).await {
            Ok(_) => Ok(Answer::Created(context)),
            Err(trap) => {
                // Its caller never hears of the number.
                self.store.data_mut().contexts.forget_number(context);
                Err(trap.into())
            }
        }
    }

    /// A callback that says what becomes of what it is shown.
    async fn action<const COUNT: usize>(
        &mut self,
        context: u32,
        stage: Stage,
        name: &'static str,
        words: impl FnOnce(&Stream) -> [u32; COUNT],
    ) -> Result<Answer, CallError> {
        let stream = self.store.data().contexts.get(context);
        let words = words(stream.ok_or(CallError::UnknownContext(context))?);
        self.enter(context, stage);
        let ran = self.run(name, Words::of(context, words).as_slice()).await?;
        let host = self.store.data_mut();
        let has_responded = host
            .effects
            .iter()
            .any(|it| matches!(it, Effect::Respond { context: whose, .. } if *whose == context));
        // Whoever answers in the server's place stops what it was shown, as in Envoy.
        let action = match ran {
            _ if has_responded => Action::Pause,
            None | Some(0) => Action::Continue,
            Some(_) => Action::Pause,
        };
        if let Some(stream) = host.contexts.get_mut(context) {
            stream.settle(stage, action);
        }
        if action == Action::Continue {
            host.contexts.give_added(&host.limits, context);
        }
        Ok(Answer::Action(action))
    }

    /// A callback that says nothing.
    async fn plain<const COUNT: usize>(
        &mut self,
        context: u32,
        stage: Stage,
        name: &'static str,
        words: [u32; COUNT],
    ) -> Result<Answer, CallError> {
        if !self.store.data().contexts.is_known(context) {
            return Err(CallError::UnknownContext(context));
        }
        self.enter(context, stage);
        self.run(name, Words::of(context, words).as_slice()).await?;
        Ok(Answer::Nothing)
    }

    async fn http_call_response(&mut self, response: HttpResponse) -> Result<Answer, CallError> {
        let host = self.store.data_mut();
        if !host.http_calls.remove(&response.call) {
            return Err(CallError::UnknownHttpCall(response.call));
        }
        let words = [
            ROOT,
            response.call,
            response.headers.len() as u32,
            response.body.len() as u32,
            response.trailers.len() as u32,
        ];
        self.enter(ROOT, Stage::HttpCallResponse);
        self.store.data_mut().contexts.set_response(Some(response));
        self.run("proxy_on_http_call_response", &words).await?;
        Ok(Answer::Nothing)
    }

    async fn foreign_function(
        &mut self,
        function: u32,
        arguments: Vec<u8>,
    ) -> Result<Answer, CallError> {
        let words = [ROOT, function, arguments.len() as u32];
        self.enter(ROOT, Stage::ForeignFunction);
        self.store.data_mut().contexts.set_arguments(arguments);
        self.run("proxy_on_foreign_function", &words).await?;
        Ok(Answer::Nothing)
    }

    async fn end(&mut self, context: u32) -> Result<Answer, CallError> {
        if !self.store.data().contexts.is_known(context) {
            return Err(CallError::UnknownContext(context));
        }
        self.enter(context, Stage::Other);
        let is_done = self.run("proxy_on_done", &[context]).await?.is_none_or(|done| done != 0);
        if is_done {
            return self.finish(context).await;
        }
        self.store.data_mut().contexts.set_pending(context, true);
        Ok(Answer::Pending)
    }

    async fn finish(&mut self, context: u32) -> Result<Answer, CallError> {
        if !self.store.data().contexts.is_known(context) {
            return Err(CallError::UnknownContext(context));
        }
        self.store.data_mut().contexts.set_pending(context, false);
        self.enter(context, Stage::Log);
        self.run("proxy_on_log", &[context]).await?;
        self.enter(context, Stage::Other);
        self.run("proxy_on_delete", &[context]).await?;
        let host = self.store.data_mut();
        Ok(Answer::Ended(host.contexts.take_stream(&host.limits, context)))
    }

    /// Makes this the context that host functions work on.
    pub(crate) fn enter(&mut self, context: u32, stage: Stage) {
        self.store.data_mut().contexts.enter(context, stage);
    }

    /// Runs a callback, if the module has it.
    pub(crate) async fn run(
        &mut self,
        name: &'static str,
        words: &[u32],
    ) -> Result<Option<u32>, Trap> {
        let Some(function) = self.callback(name) else { return Ok(None) };
        let host = self.store.data_mut();
        host.calls += 1;
        self.store.set_epoch_deadline(self.call_slices);
        let result = function.call(&mut self.store, words).await;
        let host = self.store.data_mut();
        host.contexts.set_response(None);
        result.map_err(|error| Trap::from_error(&error))
    }
}
