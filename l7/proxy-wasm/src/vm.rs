//! VM: an instance of a module with its contexts and streams. Maps calls to callbacks, and their
//! results to actions.

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

/// A call has no result.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The module trapped. Its VM must not be called again.
    #[error("the module trapped: {0}")]
    Trapped(Trap),
    /// The module had trapped in an earlier call.
    #[error("the VM has trapped before: it has to be replaced")]
    AlreadyTrapped,
    /// The context does not exist: a fault of the caller.
    #[error("there is no context {0}")]
    UnknownContext(u32),
    /// No such HTTP call is in progress: a fault of the caller.
    #[error("no HTTP call {0} is under way")]
    UnknownHttpCall(u32),
    /// The VM has reached its limit of streams; the stream is returned.
    #[error("the VM has as many contexts as it may have")]
    TooManyContexts(Box<Stream>),
}

impl From<Trap> for CallError {
    fn from(trap: Trap) -> Self {
        Self::Trapped(trap)
    }
}

/// A VM did not start: a fault of the author or of the operator.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// Memory or tables exceed the limits.
    #[error("the VM cannot be made: {0}")]
    Instantiate(String),
    /// A configuration is too long.
    #[error("a configuration has {bytes} bytes; it may have {CONFIGURATION_LENGTH_MAX}")]
    Configuration {
        /// Length in bytes.
        bytes: usize,
    },
    /// A callback of the start trapped.
    #[error("{0} trapped: {1}")]
    Trapped(&'static str, Trap),
    /// A callback of the start returned false: the module refuses its configuration.
    #[error("{0} returned false: the module refuses its configuration")]
    Refused(&'static str),
}

/// Running module with its contexts and their streams. One call at a time.
pub struct Vm {
    pub(crate) store: Store<Host>,
    pub(crate) stop: Rc<Cell<bool>>,
    pub(crate) call_slices: u64,
    pub(crate) has_trapped: bool,
    /// Callbacks that the module exports.
    callbacks: Vec<(&'static str, Rc<Callback>)>,
}

/// Callback with its parameter and result types.
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

    /// Calls it; arguments that it does not take are omitted, missing ones are 0.
    pub(crate) async fn call(
        &self,
        store: &mut Store<Host>,
        arguments: &[u32],
    ) -> wasmtime::Result<Option<u32>> {
        let word = |index: usize| arguments.get(index).copied().unwrap_or(0);
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

/// Arguments of a callback about a context: the number, and up to two words more.
struct Arguments {
    all: [u32; 3],
    count: usize,
}

impl Arguments {
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
        Self { store, stop, call_slices, has_trapped: false, callbacks }
    }

    /// Runs the start in the specification's order.
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
        arguments: &[u32],
        stage: Stage,
    ) -> Result<Option<u32>, StartError> {
        let Some(function) = self.callback(name) else { return Ok(None) };
        self.enter(ROOT, stage);
        self.store.data_mut().calls += 1;
        self.store.set_epoch_deadline(self.call_slices);
        match function.call(&mut self.store, arguments).await {
            Ok(answer) => Ok(answer),
            // WASI command modules that initialise once and stay loaded exit like this.
            Err(error) if error.downcast_ref::<Exited>().is_some_and(|exited| exited.0 == 0) => {
                Ok(None)
            }
            Err(error) => Err(StartError::Trapped(name, Trap::from_error(&error))),
        }
    }

    pub(crate) fn callback(&self, name: &'static str) -> Option<Rc<Callback>> {
        // There are few, and most differ in their lengths, which are compared first.
        let found = self.callbacks.iter().find(|(known, _)| *known == name);
        found.map(|(_, callback)| Rc::clone(callback))
    }

    /// Removes and returns the effects of a call, after applying them to its streams.
    pub(crate) fn take_effects(&mut self) -> (Vec<Effect>, u64) {
        let host = self.store.data_mut();
        host.end_lines();
        host.apply_effects();
        host.contexts.set_arguments(Vec::new());
        host.effects.take()
    }

    /// Returns a context's stream.
    #[must_use]
    pub fn stream(&self, context: u32) -> Option<&Stream> {
        self.store.data().contexts.get(context)
    }

    /// Returns a context's stream, to add received data and to remove data that goes on.
    pub fn stream_mut(&mut self, context: u32) -> Option<&mut Stream> {
        self.store.data_mut().contexts.get_mut(context)
    }

    /// Returns the contexts of streams.
    pub fn contexts(&self) -> impl Iterator<Item = u32> {
        self.store.data().contexts.numbers()
    }

    /// Returns all streams of a VM that has trapped or is to be dropped: the service's failure
    /// policy decides about them. A stream whose context could not be created has number 0.
    #[must_use]
    pub fn into_streams(mut self) -> BTreeMap<u32, Box<Stream>> {
        self.store.data_mut().contexts.take_all()
    }

    /// Returns true if the module has trapped: the VM must not be called again.
    #[must_use]
    pub const fn has_trapped(&self) -> bool {
        self.has_trapped
    }

    /// Returns the period of [`Call::Tick`](crate::Call::Tick) in milliseconds; 0 means none.
    #[must_use]
    pub fn tick_period_ms(&self) -> u32 {
        self.store.data().tick_period_ms
    }

    /// Returns the HTTP calls in progress.
    pub fn http_calls(&self) -> impl Iterator<Item = u32> {
        self.store.data().http_calls.iter().copied()
    }

    /// Returns the bytes of linear memory in use.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        let memory = self.store.data().memory;
        memory.map_or(0, |memory| memory.data_size(&self.store) as u64)
    }

    /// Makes a call, as far as the VM's pace allows.
    #[must_use]
    pub fn call(mut self: Box<Self>, call: Call, now: Now) -> Ran {
        let stop = Rc::clone(&self.stop);
        let running = Box::pin(async move {
            self.store.data_mut().now = now;
            let answer = self.answer(call).await;
            self.has_trapped |= matches!(answer, Err(CallError::Trapped(_)));
            let (effects, log_lines_dropped) = self.take_effects();
            (self, Outcome { answer, effects, log_lines_dropped })
        });
        Suspended::new(running, stop).resume()
    }

    async fn answer(&mut self, call: Call) -> Result<Answer, CallError> {
        if self.has_trapped {
            return Err(CallError::AlreadyTrapped);
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

    /// Makes the callbacks that get a part of a stream and decide about it.
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
                let arguments = |it: &Stream| [body(it), u32::from(is_last)];
                self.action(context, Stage::DownstreamData, name, arguments).await
            }
            Call::UpstreamData { context, is_last } => {
                let name = "proxy_on_upstream_data";
                let arguments = |it: &Stream| [answer(it), u32::from(is_last)];
                self.action(context, Stage::UpstreamData, name, arguments).await
            }
            Call::RequestHeaders { context, is_last } => {
                let name = "proxy_on_request_headers";
                let arguments =
                    |it: &Stream| [it.downstream.headers.len() as u32, u32::from(is_last)];
                self.action(context, Stage::RequestHeaders, name, arguments).await
            }
            Call::RequestBody { context, is_last } => {
                let name = "proxy_on_request_body";
                let arguments = |it: &Stream| [body(it), u32::from(is_last)];
                self.action(context, Stage::RequestBody { is_last }, name, arguments).await
            }
            Call::RequestTrailers(context) => {
                let name = "proxy_on_request_trailers";
                let arguments = |it: &Stream| [it.downstream.trailers.len() as u32];
                self.action(context, Stage::RequestTrailers, name, arguments).await
            }
            Call::ResponseHeaders { context, is_last } => {
                let name = "proxy_on_response_headers";
                let arguments =
                    |it: &Stream| [it.upstream.headers.len() as u32, u32::from(is_last)];
                self.action(context, Stage::ResponseHeaders, name, arguments).await
            }
            Call::ResponseBody { context, is_last } => {
                let name = "proxy_on_response_body";
                let arguments = |it: &Stream| [answer(it), u32::from(is_last)];
                self.action(context, Stage::ResponseBody { is_last }, name, arguments).await
            }
            Call::ResponseTrailers(context) => {
                let name = "proxy_on_response_trailers";
                let arguments = |it: &Stream| [it.upstream.trailers.len() as u32];
                self.action(context, Stage::ResponseTrailers, name, arguments).await
            }
            _ => Ok(Answer::Nothing),
        }
    }

    async fn create(&mut self, mut stream: Box<Stream>) -> Result<Answer, CallError> {
        let host = self.store.data_mut();
        if host.contexts.len() >= CONTEXTS_MAX {
            return Err(CallError::TooManyContexts(stream));
        }
        stream.drop_module_state();
        let context = host.contexts.insert(stream);
        self.enter(context, Stage::Other);
        match self.run("proxy_on_context_create", &[context, ROOT]).await {
            Ok(_) => Ok(Answer::Created(context)),
            Err(trap) => {
                // The caller never learns the number.
                self.store.data_mut().contexts.move_to_zero(context);
                Err(trap.into())
            }
        }
    }

    /// Runs a callback that decides about the data it gets.
    async fn action<const COUNT: usize>(
        &mut self,
        context: u32,
        stage: Stage,
        name: &'static str,
        arguments: impl FnOnce(&Stream) -> [u32; COUNT],
    ) -> Result<Answer, CallError> {
        let stream = self.store.data().contexts.get(context);
        let arguments = arguments(stream.ok_or(CallError::UnknownContext(context))?);
        self.enter(context, stage);
        let ran = self.run(name, Arguments::of(context, arguments).as_slice()).await?;
        let host = self.store.data_mut();
        let has_responded = host
            .effects
            .iter()
            .any(|it| matches!(it, Effect::Respond { context: to, .. } if *to == context));
        // A local response stops the data of the callback, as in Envoy.
        let action = match ran {
            _ if has_responded => Action::Pause,
            None | Some(0) => Action::Continue,
            Some(_) => Action::Pause,
        };
        if let Some(stream) = host.contexts.get_mut(context) {
            stream.record_decision(stage, action);
        }
        if action == Action::Continue {
            host.contexts.release_added(&host.limits, context);
        }
        Ok(Answer::Action(action))
    }

    /// Runs a callback without a result.
    async fn plain<const COUNT: usize>(
        &mut self,
        context: u32,
        stage: Stage,
        name: &'static str,
        arguments: [u32; COUNT],
    ) -> Result<Answer, CallError> {
        if !self.store.data().contexts.is_known(context) {
            return Err(CallError::UnknownContext(context));
        }
        self.enter(context, stage);
        self.run(name, Arguments::of(context, arguments).as_slice()).await?;
        Ok(Answer::Nothing)
    }

    async fn http_call_response(&mut self, response: HttpResponse) -> Result<Answer, CallError> {
        let host = self.store.data_mut();
        if !host.http_calls.remove(&response.call) {
            return Err(CallError::UnknownHttpCall(response.call));
        }
        let arguments = [
            ROOT,
            response.call,
            response.headers.len() as u32,
            response.body.len() as u32,
            response.trailers.len() as u32,
        ];
        self.enter(ROOT, Stage::HttpCallResponse);
        self.store.data_mut().contexts.set_response(Some(response));
        self.run("proxy_on_http_call_response", &arguments).await?;
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

    /// Sets the context that host functions work on.
    pub(crate) fn enter(&mut self, context: u32, stage: Stage) {
        self.store.data_mut().contexts.enter(context, stage);
    }

    /// Runs a callback, if the module exports it.
    pub(crate) async fn run(
        &mut self,
        name: &'static str,
        arguments: &[u32],
    ) -> Result<Option<u32>, Trap> {
        let Some(function) = self.callback(name) else { return Ok(None) };
        let host = self.store.data_mut();
        host.calls += 1;
        self.store.set_epoch_deadline(self.call_slices);
        let result = function.call(&mut self.store, arguments).await;
        let host = self.store.data_mut();
        host.contexts.set_response(None);
        result.map_err(|error| Trap::from_error(&error))
    }
}
