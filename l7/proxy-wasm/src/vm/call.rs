//! Calls into a VM: one for each callback of the ABI. Each stands still when its pace says so.

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

/// A callback to make. A callback that the module does not export has its default: nothing
/// happens, and what it would have been shown goes on.
#[derive(Debug)]
pub enum Call {
    /// `proxy_on_context_create`: a new stream, which the VM keeps until its context ends.
    Create(Box<Stream>),
    /// `proxy_on_new_connection`.
    NewConnection(u32),
    /// `proxy_on_downstream_data`.
    DownstreamData {
        /// Whose.
        context: u32,
        /// No more will come.
        is_last: bool,
    },
    /// `proxy_on_downstream_connection_close`.
    DownstreamClose(u32, PeerType),
    /// `proxy_on_upstream_data`.
    UpstreamData {
        /// Whose.
        context: u32,
        /// No more will come.
        is_last: bool,
    },
    /// `proxy_on_upstream_connection_close`.
    UpstreamClose(u32, PeerType),
    /// `proxy_on_request_headers`.
    RequestHeaders {
        /// Whose.
        context: u32,
        /// Neither body nor trailers follow.
        is_last: bool,
    },
    /// `proxy_on_request_body`.
    RequestBody {
        /// Whose.
        context: u32,
        /// Neither more of it nor trailers follow.
        is_last: bool,
    },
    /// `proxy_on_request_trailers`.
    RequestTrailers(u32),
    /// `proxy_on_response_headers`.
    ResponseHeaders {
        /// Whose.
        context: u32,
        /// Neither body nor trailers follow.
        is_last: bool,
    },
    /// `proxy_on_response_body`.
    ResponseBody {
        /// Whose.
        context: u32,
        /// Neither more of it nor trailers follow.
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
        /// The callback's number, as it was agreed upon with the module.
        function: u32,
        /// What it is called with.
        arguments: Vec<u8>,
    },
    /// `proxy_on_done`; when the module is done, `proxy_on_log` and `proxy_on_delete` as well.
    /// 1 is the root context, the module itself.
    End(u32),
    /// `proxy_on_log` and `proxy_on_delete`: after [`Effect::Done`], or when nobody waits longer.
    Finish(u32),
}

/// How a call ended.
#[derive(Debug)]
pub struct Outcome {
    /// What the module said, or how it fell. After a trap the VM is not to be called again; its
    /// streams can be taken out of it.
    pub answer: Result<Answer, CallError>,
    /// What is to be done, in this order; also what a call left that trapped.
    pub effects: Vec<Effect>,
    /// Lines for the log beyond what a call may leave.
    pub log_lines_dropped: u64,
}

/// What a module said.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// A new context has this number.
    Created(u32),
    /// What the callback was shown goes on, or is held.
    Action(Action),
    /// The context has ended, and its stream is the caller's again; the root context has none.
    Ended(Option<Box<Stream>>),
    /// The context has not ended: the module says so by [`Effect::Done`].
    Pending,
    /// The callback says nothing.
    Nothing,
}

/// How far a call has come.
pub enum Ran {
    /// To its end.
    Ended(Box<Vm>, Outcome),
    /// It stands still.
    Suspended(Suspended),
}

impl Ran {
    /// Lets it go on to its end: for those in whose way nobody is.
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

/// A VM whose call stands still.
pub struct Suspended {
    running: Running,
    stop: Rc<Cell<bool>>,
}

impl Suspended {
    pub(crate) fn new(running: Running, stop: Rc<Cell<bool>>) -> Self {
        Self { running, stop }
    }

    /// Lets the call go on.
    #[must_use]
    pub fn resume(mut self) -> Ran {
        // Nobody is to be woken: whoever suspended it resumes it.
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
