//! What a connection knows of the module: calls to make, one at a time.

use crate::desk::{Allowed, Asked, Desk};
use crate::report::Counters;
use content_coding::Pool;
use proxy_wasm::{Answer, Call, Callbacks, Effect, Now, Stream};

/// The callbacks that a module has, as connections ask for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wants {
    /// Streams have contexts at all.
    pub context: bool,
    /// New TCP connections.
    pub connection: bool,
    /// TCP data of the client.
    pub downstream: bool,
    /// TCP data of the server.
    pub upstream: bool,
    /// The end of the client's TCP connection.
    pub downstream_close: bool,
    /// The end of the server's TCP connection.
    pub upstream_close: bool,
    /// Requests.
    pub request: Parts,
    /// Responses.
    pub response: Parts,
    /// The end of a context.
    pub end: bool,
    /// What it may ask of streams beside their bytes.
    pub properties: bool,
}

/// Which parts of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Parts {
    /// Its head.
    pub headers: bool,
    /// Its body.
    pub body: bool,
    /// Its trailers.
    pub trailers: bool,
}

impl Wants {
    /// By what a module exports; `properties`: whether it imports the function that reads them.
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

/// What came of a call.
#[derive(Debug)]
pub(crate) enum Reply {
    /// The answer, and the effects on the context whose call it was, in their order.
    Answered(Answer, Vec<Effect>),
    /// It has begun and stands still; its reply is handed in when it has ended.
    Suspended,
    /// The VM has no room for this context. It goes on as if there were no VM.
    Refused(Box<Stream>),
    /// The module fell, or is down. What becomes of its streams is said to all of them.
    Fallen,
}

/// Whose fault it is that a module fell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A stream's, of this context (0: while that was made): it alone pays. Another VM is started at
    /// once, and takes the others.
    Stream(u32),
    /// Nobody's stream: a timer, a queue, a start. There is no VM for a while.
    Module,
}

/// The module, as connections see it.
pub(crate) trait Module {
    /// What it is to be asked.
    fn wants(&self) -> Wants;

    /// Whether there is no VM at the moment, and none is being started.
    fn is_down(&self) -> bool;

    /// Whether a call of this connection may begin now; if not, it is told when it may.
    fn may_call(&mut self, connection: u64) -> bool;

    /// Makes a call of a connection; only when it may.
    fn call(&mut self, connection: u64, context: u32, call: Call, allowed: Allowed) -> Reply;

    /// What the module asked for in the call that has just ended.
    fn take_asked(&mut self) -> Asked;

    /// Where it asks.
    fn desk(&self) -> &Desk;

    /// Where encoders come from.
    fn pool(&self) -> &Pool;

    /// How busy the processor is, if that is known.
    fn busy_permille(&self) -> Option<u16>;

    /// Counts pictures that it is shown.
    fn count_pictures(&mut self, count: u64);

    /// Counts bytes of bodies that are coded: those that came, and what they became.
    fn count_coded(&mut self, taken: usize, given: usize);

    /// A context's stream; only when a call may begin.
    fn stream(&mut self, context: u32) -> Option<&mut Stream>;

    /// Counts something.
    fn count(&mut self, count: fn(&mut Counters));

    /// A line for the log that is not the module's.
    fn warn(&mut self, text: &str);

    /// The time.
    fn now(&self) -> Now;

    /// Something to be called when nobody is before it, whose answer nobody waits for.
    fn later(&mut self, last: Last);
}

/// The last calls of a context.
#[derive(Debug)]
pub(crate) enum Last {
    /// Its client's TCP connection has ended.
    DownstreamClose(u32, proxy_wasm::abi::PeerType),
    /// Its server's TCP connection has ended.
    UpstreamClose(u32, proxy_wasm::abi::PeerType),
    /// It ends; what its module may ask then.
    End(u32, Vec<(&'static [&'static str], i64)>),
}
