//! What a module wants done, as data, in its order.

use crate::abi::{LogLevel, StreamType};
use crate::limits::{
    EFFECT_BYTES_PER_CALL_MAX, EFFECTS_PER_CALL_MAX, LOG_BYTES_PER_CALL_MAX, LOG_LENGTH_MAX,
    LOG_LINES_PER_CALL_MAX,
};
use crate::map::HeaderMap;

/// Something for the caller to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// A line for the log. The text is the module's: it may hold control characters.
    Log {
        /// How grave.
        level: LogLevel,
        /// The line.
        text: String,
    },
    /// What is held of a stream goes on.
    Continue {
        /// Whose.
        context: u32,
        /// Which of its streams.
        stream: StreamType,
    },
    /// A stream is closed or reset.
    Close {
        /// Whose.
        context: u32,
        /// Which of its streams.
        stream: StreamType,
    },
    /// The client gets this response; where a response is already on its way to it, the stream is
    /// reset. At most one in the life of a stream.
    Respond {
        /// Whose.
        context: u32,
        /// The response.
        response: Box<LocalResponse>,
    },
    /// An HTTP call to one of the upstreams that the module may call; its answer, or its failure,
    /// comes back as [`Call::HttpCallResponse`](crate::Call::HttpCallResponse).
    HttpCall {
        /// The context that the module worked on: [`ROOT`](crate::ROOT) outside streams.
        context: u32,
        /// The call's number.
        call: u32,
        /// The request.
        request: Box<HttpRequest>,
    },
    /// From now on [`Call::Tick`](crate::Call::Tick) each so many milliseconds; 0: never.
    TickPeriod(u32),
    /// The VM of this number is to get [`Call::QueueReady`](crate::Call::QueueReady).
    QueueReady {
        /// The VM's number, as [`VmSpec::number`](crate::VmSpec::number) says.
        vm: u64,
        /// The queue's number.
        queue: u32,
    },
    /// A context that was not done when it was asked is done: it is to get
    /// [`Call::Finish`](crate::Call::Finish).
    Done(u32),
}

/// A response that comes from the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalResponse {
    /// Its status.
    pub status: u32,
    /// Why, for the log.
    pub details: Vec<u8>,
    /// Its headers, beside those that are always there.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Vec<u8>,
    /// The gRPC status; `None` when it is no gRPC response (-1).
    pub grpc_status: Option<u32>,
}

/// A request that comes from the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpRequest {
    /// Whom it goes to, by a name of [`VmSpec::upstreams`](crate::VmSpec::upstreams).
    pub upstream: String,
    /// Its headers, `:method`, `:path` and `:authority` among them.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Vec<u8>,
    /// Its trailers.
    pub trailers: HeaderMap,
    /// Milliseconds until it has failed.
    pub timeout_ms: u32,
}

/// The effects of one call.
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
    /// Adds one; false when there are too many, or they have too many bytes.
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

    /// Adds a line, cut off where it is too long; drops it when there are too many.
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

    /// What to do, and how many lines were dropped; empties it.
    pub(crate) fn take(&mut self) -> (Vec<Effect>, u64) {
        let taken = std::mem::take(self);
        (taken.list, taken.log_lines_dropped)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Effect> {
        self.list.iter()
    }
}
