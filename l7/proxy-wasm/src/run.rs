//! How calls run: which callback gets what, and what its answer means.

use crate::abi::Action;
use crate::call::{Answer, Call, HttpResponse, Outcome, Ran, Suspended};
use crate::effect::Effect;
use crate::host::{Current, Host, ROOT};
use crate::limits::CONTEXTS_MAX;
use crate::spec::Now;
use crate::stream::{Stage, Stream};
use crate::vm::{CallError, Vm};
use engine::Trap;
use std::rc::Rc;

/// What a callback about a context is told: its number, and at most two words more.
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
            Call::Tick => self.plain(ROOT, Stage::Other, "proxy_on_tick", |_| []).await,
            Call::QueueReady(queue) => {
                self.plain(ROOT, Stage::Other, "proxy_on_queue_ready", |_| [queue]).await
            }
            Call::HttpCallResponse(response) => self.http_call_response(response).await,
            Call::ForeignFunction { function, arguments } => {
                self.foreign_function(function, arguments).await
            }
            Call::End(context) => self.end(context).await,
            Call::Finish(context) => self.finish(context).await,
            Call::DownstreamClose(context, peer) => {
                let name = "proxy_on_downstream_connection_close";
                self.plain(context, Stage::Other, name, |_| [peer.number()]).await
            }
            Call::UpstreamClose(context, peer) => {
                let name = "proxy_on_upstream_connection_close";
                self.plain(context, Stage::Other, name, |_| [peer.number()]).await
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
        if host.streams.len() >= CONTEXTS_MAX {
            return Err(CallError::TooManyContexts(stream));
        }
        let context = loop {
            host.last_context = host.last_context.checked_add(1).unwrap_or(ROOT + 1);
            if !host.streams.contains_key(&host.last_context) {
                break host.last_context;
            }
        };
        stream.forget_module();
        host.streams.insert(context, stream);
        self.enter(context, Stage::Other);
        match self.run("proxy_on_context_create", &[context, ROOT]).await {
            Ok(_) => Ok(Answer::Created(context)),
            Err(trap) => {
                // Its caller never hears of the number.
                let streams = &mut self.store.data_mut().streams;
                if let Some(stream) = streams.remove(&context) {
                    streams.insert(0, stream);
                }
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
        let stream = self.store.data().streams.get(&context);
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
        if let Some(stream) = host.streams.get_mut(&context) {
            stream.settle(stage, action);
        }
        if action == Action::Continue {
            host.give_added(context);
        }
        Ok(Answer::Action(action))
    }

    /// A callback that says nothing.
    async fn plain<const COUNT: usize>(
        &mut self,
        context: u32,
        stage: Stage,
        name: &'static str,
        words: impl FnOnce(&Host) -> [u32; COUNT],
    ) -> Result<Answer, CallError> {
        let host = self.store.data();
        if !host.is_known(context) {
            return Err(CallError::UnknownContext(context));
        }
        let words = words(host);
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
        self.store.data_mut().current.response = Some(response);
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
        self.store.data_mut().current.arguments = arguments;
        self.run("proxy_on_foreign_function", &words).await?;
        Ok(Answer::Nothing)
    }

    async fn end(&mut self, context: u32) -> Result<Answer, CallError> {
        if !self.store.data().is_known(context) {
            return Err(CallError::UnknownContext(context));
        }
        self.enter(context, Stage::Other);
        let is_done = self.run("proxy_on_done", &[context]).await?.is_none_or(|done| done != 0);
        if is_done {
            return self.finish(context).await;
        }
        self.set_pending(context, true);
        Ok(Answer::Pending)
    }

    async fn finish(&mut self, context: u32) -> Result<Answer, CallError> {
        if !self.store.data().is_known(context) {
            return Err(CallError::UnknownContext(context));
        }
        self.set_pending(context, false);
        self.enter(context, Stage::Log);
        self.run("proxy_on_log", &[context]).await?;
        self.enter(context, Stage::Other);
        self.run("proxy_on_delete", &[context]).await?;
        Ok(Answer::Ended(self.store.data_mut().take_stream(context)))
    }

    fn set_pending(&mut self, context: u32, is_pending: bool) {
        let host = self.store.data_mut();
        match host.streams.get_mut(&context) {
            Some(stream) => stream.is_pending = is_pending,
            None => host.is_root_pending = is_pending,
        }
    }

    /// From here on host functions work on this context.
    pub(crate) fn enter(&mut self, context: u32, stage: Stage) {
        let host = self.store.data_mut();
        host.current = Current { own: context, effective: context, stage, ..Current::default() };
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
        host.current.response = None;
        result.map_err(|error| Trap::from_error(&error))
    }
}
