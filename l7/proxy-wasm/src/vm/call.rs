//! Calls into a VM: one for each callback of the ABI. A call is suspended when its pace says so.

use super::{CallError, Vm};
use crate::abi::{Action, PeerType};
use crate::effect::Effect;
use crate::http_call::HttpResponse;
use crate::stream::Stream;
use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Callback to make. One that the module does not export has its default: no effect, and its data
/// goes on.
#[derive(Debug)]
pub enum Call {
    /// `proxy_on_context_create`: a new stream, which the VM keeps until its context ends.
    Create(Box<Stream>),
    /// `proxy_on_new_connection`.
    NewConnection(u32),
    /// `proxy_on_downstream_data`.
    DownstreamData {
        /// Context of the stream.
        context: u32,
        /// True if no more data will come.
        is_last: bool,
    },
    /// `proxy_on_downstream_connection_close`.
    DownstreamClose(u32, PeerType),
    /// `proxy_on_upstream_data`.
    UpstreamData {
        /// Context of the stream.
        context: u32,
        /// True if no more data will come.
        is_last: bool,
    },
    /// `proxy_on_upstream_connection_close`.
    UpstreamClose(u32, PeerType),
    /// `proxy_on_request_headers`.
    RequestHeaders {
        /// Context of the stream.
        context: u32,
        /// True if neither body nor trailers follow.
        is_last: bool,
    },
    /// `proxy_on_request_body`.
    RequestBody {
        /// Context of the stream.
        context: u32,
        /// True if neither more of the body nor trailers follow.
        is_last: bool,
    },
    /// `proxy_on_request_trailers`.
    RequestTrailers(u32),
    /// `proxy_on_response_headers`.
    ResponseHeaders {
        /// Context of the stream.
        context: u32,
        /// True if neither body nor trailers follow.
        is_last: bool,
    },
    /// `proxy_on_response_body`.
    ResponseBody {
        /// Context of the stream.
        context: u32,
        /// True if neither more of the body nor trailers follow.
        is_last: bool,
    },
    /// `proxy_on_response_trailers`.
    ResponseTrailers(u32),
    /// `proxy_on_tick`.
    Tick,
    /// `proxy_on_queue_ready`.
    QueueReady(u32),
    /// `proxy_on_http_call_response`.
    HttpCallResponse(HttpResponse),
    /// `proxy_on_foreign_function`.
    ForeignFunction {
        /// Number of the callback, by agreement with the module.
        function: u32,
        /// Arguments.
        arguments: Vec<u8>,
    },
    /// `proxy_on_done`; if the module is done, also `proxy_on_log` and `proxy_on_delete`. 1 is the
    /// root context, the module itself.
    End(u32),
    /// `proxy_on_log` and `proxy_on_delete`: after [`Effect::Done`], or after a timeout.
    Finish(u32),
}

/// Result of a call.
#[derive(Debug)]
pub struct Outcome {
    /// Result of the callback, or its failure. After a trap the VM must not be called again; its
    /// streams can be taken out of it.
    pub answer: Result<Answer, CallError>,
    /// Effects to execute in this order, including those of a call that trapped.
    pub effects: Vec<Effect>,
    /// Number of log lines beyond the limit of a call.
    pub log_lines_dropped: u64,
}

/// Result of a callback.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// Number of the new context.
    Created(u32),
    /// Decision: the data goes on or is held.
    Action(Action),
    /// The context has ended; its stream is returned, `None` for the root context.
    Ended(Option<Box<Stream>>),
    /// The end of the context is postponed: [`Effect::Done`] follows.
    Pending,
    /// The callback has no result.
    Nothing,
}

/// Progress of a call.
pub enum Ran {
    /// Ended call.
    Ended(Box<Vm>, Outcome),
    /// Suspended call.
    Suspended(Suspended),
}

impl Ran {
    /// Runs the call to its end: for callers without other work.
    #[must_use]
    pub fn finish(mut self) -> (Box<Vm>, Outcome) {
        loop {
            match self {
                Self::Ended(vm, outcome) => return (vm, outcome),
                Self::Suspended(suspended) => self = suspended.resume(),
            }
        }
    }
}

type Running = Pin<Box<dyn Future<Output = (Box<Vm>, Outcome)>>>;

/// VM with a suspended call.
pub struct Suspended {
    running: Running,
    stop: Rc<Cell<bool>>,
}

impl Suspended {
    pub(crate) fn new(running: Running, stop: Rc<Cell<bool>>) -> Self {
        Self { running, stop }
    }

    /// Resumes the call.
    #[must_use]
    pub fn resume(mut self) -> Ran {
        // No waker is needed: the caller that suspended it resumes it.
        match self.running.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready((vm, outcome)) => Ran::Ended(vm, outcome),
            Poll::Pending => Ran::Suspended(self),
        }
    }

    /// Ends the call with [`engine::TrapKind::TimeLimit`].
    #[must_use]
    pub fn stop(self) -> Ran {
        self.stop.set(true);
        self.resume()
    }
}
