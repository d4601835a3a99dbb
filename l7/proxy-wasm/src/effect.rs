//! Effects: actions that a module requests, as data in their order.

use crate::abi::{LogLevel, StreamType};
use crate::limits::{
    EFFECT_BYTES_PER_CALL_MAX, EFFECTS_PER_CALL_MAX, LOG_BYTES_PER_CALL_MAX, LOG_LENGTH_MAX,
    LOG_LINES_PER_CALL_MAX,
};
use crate::map::HeaderMap;

/// Action for the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Write a line to the log. The text comes from the module and may contain control characters.
    Log {
        /// Severity.
        level: LogLevel,
        /// Text of the line.
        text: String,
    },
    /// Resume a paused stream.
    Continue {
        /// Context of the stream.
        context: u32,
        /// Direction to resume.
        stream: StreamType,
    },
    /// Close or reset a stream.
    Close {
        /// Context of the stream.
        context: u32,
        /// Direction to close.
        stream: StreamType,
    },
    /// Send the client this response; if a response is already in transit, reset the stream. At
    /// most once per stream.
    Respond {
        /// Context of the stream.
        context: u32,
        /// Response to send.
        response: Box<LocalResponse>,
    },
    /// Make an HTTP call to one of the upstreams that the module may call; its response, or its
    /// failure, comes back as [`Call::HttpCallResponse`](crate::Call::HttpCallResponse).
    HttpCall {
        /// Effective context of the call: [`ROOT`](crate::ROOT) outside streams.
        context: u32,
        /// Number of the call.
        call: u32,
        /// Request to send.
        request: Box<HttpRequest>,
    },
    /// Call [`Call::Tick`](crate::Call::Tick) with this period in milliseconds from now on; 0 means
    /// never.
    TickPeriod(u32),
    /// Notify the VM of this number with [`Call::QueueReady`](crate::Call::QueueReady).
    QueueReady {
        /// Number of the VM, as in [`VmSpec::number`](crate::VmSpec::number).
        vm: u64,
        /// Number of the queue.
        queue: u32,
    },
    /// End a context whose end was postponed: call [`Call::Finish`](crate::Call::Finish).
    Done(u32),
}

/// Response that a module has generated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalResponse {
    /// HTTP status.
    pub status: u32,
    /// Details for the log.
    pub details: Vec<u8>,
    /// Headers, besides those that are always sent.
    pub headers: HeaderMap,
    /// Body.
    pub body: Vec<u8>,
    /// gRPC status; `None` if it is no gRPC response (-1).
    pub grpc_status: Option<u32>,
}

/// Request that a module has generated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpRequest {
    /// Destination, by a name in [`VmSpec::upstreams`](crate::VmSpec::upstreams).
    pub upstream: String,
    /// Headers, including `:method`, `:path` and `:authority`.
    pub headers: HeaderMap,
    /// Body.
    pub body: Vec<u8>,
    /// Trailers.
    pub trailers: HeaderMap,
    /// Timeout in milliseconds.
    pub timeout_ms: u32,
}

/// Effects of one call.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    list: Vec<Effect>,
    bytes: usize,
    others: usize,
    log_bytes: usize,
    log_lines: usize,
    log_lines_dropped: u64,
}

impl Effects {
    /// Adds an effect; returns false if their number or bytes exceed the limits.
    pub(crate) fn push(&mut self, effect: Effect) -> bool {
        let bytes = match &effect {
            Effect::Respond { response, .. } => {
                response.details.len() + response.headers.bytes() + response.body.len()
            }
            Effect::HttpCall { request, .. } => {
                request.headers.bytes() + request.body.len() + request.trailers.bytes()
            }
            _ => 0,
        };
        if self.others >= EFFECTS_PER_CALL_MAX || self.bytes + bytes > EFFECT_BYTES_PER_CALL_MAX {
            return false;
        }
        self.others += 1;
        self.bytes += bytes;
        self.list.push(effect);
        true
    }

    /// Adds a line, truncated to the limit; drops and counts it if there are too many.
    pub(crate) fn log(&mut self, level: LogLevel, text: &[u8]) {
        let text = &text[..text.len().min(LOG_LENGTH_MAX)];
        if self.log_lines >= LOG_LINES_PER_CALL_MAX
            || self.log_bytes + text.len() > LOG_BYTES_PER_CALL_MAX
        {
            self.log_lines_dropped += 1;
            return;
        }
        self.log_lines += 1;
        self.log_bytes += text.len();
        self.list.push(Effect::Log { level, text: String::from_utf8_lossy(text).into_owned() });
    }

    /// Removes and returns the effects, with the number of dropped lines.
    pub(crate) fn take(&mut self) -> (Vec<Effect>, u64) {
        let taken = std::mem::take(self);
        (taken.list, taken.log_lines_dropped)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Effect> {
        self.list.iter()
    }
}
