//! Module as connections see it: calls, one at a time.

use crate::foreign_calls::{Allowed, ForeignCalls, Requested};
use crate::report::Counters;
use content_coding::Pool;
use proxy_wasm::{Answer, Call, Callbacks, Effect, Now, Stream};

/// Callbacks that a module has, from the view of connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wants {
    /// True if streams have contexts at all.
    pub context: bool,
    /// New TCP connections.
    pub connection: bool,
    /// TCP data of the client.
    pub downstream: bool,
    /// TCP data of the server.
    pub upstream: bool,
    /// End of the client's TCP connection.
    pub downstream_close: bool,
    /// End of the server's TCP connection.
    pub upstream_close: bool,
    /// Requests.
    pub request: Parts,
    /// Responses.
    pub response: Parts,
    /// End of a context.
    pub end: bool,
    /// True if properties of streams are read.
    pub properties: bool,
}

/// Parts of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Parts {
    /// Head of the message.
    pub headers: bool,
    /// Body of the message.
    pub body: bool,
    /// Trailers of the message.
    pub trailers: bool,
}

impl Wants {
    /// Derives the callbacks from a module's exports; `properties` is true if it imports the
    /// function that reads properties.
    #[must_use]
    pub fn new(callbacks: Callbacks, properties: bool) -> Self {
        let has = |name: &str| callbacks.has(name);
        let parts = |headers, body, trailers| Parts {
            headers: has(headers),
            body: has(body),
            trailers: has(trailers),
        };
        let end = ["proxy_on_done", "proxy_on_log", "proxy_on_delete"].into_iter().any(has);
        Self {
            context: end
                || has("proxy_on_context_create")
                || callbacks.is_tcp()
                || callbacks.is_http(),
            connection: has("proxy_on_new_connection"),
            downstream: has("proxy_on_downstream_data"),
            upstream: has("proxy_on_upstream_data"),
            downstream_close: has("proxy_on_downstream_connection_close"),
            upstream_close: has("proxy_on_upstream_connection_close"),
            request: parts(
                "proxy_on_request_headers",
                "proxy_on_request_body",
                "proxy_on_request_trailers",
            ),
            response: parts(
                "proxy_on_response_headers",
                "proxy_on_response_body",
                "proxy_on_response_trailers",
            ),
            end,
            properties,
        }
    }
}

/// Result of a call.
#[derive(Debug)]
pub(crate) enum Reply {
    /// Answer, and the effects on the context of the call, in order.
    Answered(Answer, Vec<Effect>),
    /// The call is suspended; its reply follows when it has ended.
    Suspended,
    /// The VM has no capacity for this context, which continues as if there were no VM.
    Refused(Box<Stream>),
    /// The module trapped, or is down. All its streams are notified separately.
    Trapped,
}

/// Cause of a trap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Call for a stream of this context (0: during its creation): only this stream is affected.
    /// Another VM is started at once, and takes the others.
    Stream(u32),
    /// Call for no stream: a timer, a queue, a start. There is no VM for a while.
    Module,
}

/// Interface of the module for connections.
pub(crate) trait Module {
    /// Returns the callbacks that it has.
    fn wants(&self) -> Wants;

    /// Returns true if there is no VM at the moment, and none is being started.
    fn is_down(&self) -> bool;

    /// Returns true if a call of this connection may begin now; otherwise the connection is
    /// notified when it may.
    fn may_call(&mut self, connection: u64) -> bool;

    /// Makes a call of a connection; only if [`Module::may_call`] allows it.
    fn call(&mut self, connection: u64, context: u32, call: Call, allowed: Allowed) -> Reply;

    /// Takes the requests of the call that has just ended.
    fn take_requested(&mut self) -> Requested;

    /// Returns the state of the foreign functions.
    fn foreign_calls(&self) -> &ForeignCalls;

    /// Returns the pool of encoders.
    fn pool(&self) -> &Pool;

    /// Returns the load of the processor in thousandths, if known.
    fn busy_permille(&self) -> Option<u16>;

    /// Counts pictures passed to the module.
    fn count_pictures(&mut self, count: u64);

    /// Counts bytes of coded bodies: input and output.
    fn count_coded(&mut self, taken: usize, given: usize);

    /// Returns a context's stream; only if a call may begin.
    fn stream(&mut self, context: u32) -> Option<&mut Stream>;

    /// Updates the counters.
    fn count(&mut self, count: fn(&mut Counters));

    /// Adds a line of the node's own to the log.
    fn warn(&mut self, text: &str);

    /// Returns the time.
    fn now(&self) -> Now;

    /// Queues a call whose result no connection needs.
    fn later(&mut self, last: Last);
}

/// Last calls of a context.
#[derive(Debug)]
pub(crate) enum Last {
    /// End of its client's TCP connection.
    DownstreamClose(u32, proxy_wasm::abi::PeerType),
    /// End of its server's TCP connection.
    UpstreamClose(u32, proxy_wasm::abi::PeerType),
    /// End of the context, with the properties for its callbacks.
    End(u32, Vec<(&'static [&'static str], i64)>),
}
