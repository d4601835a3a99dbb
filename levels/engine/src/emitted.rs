//! What a module leaves beside a verdict: frames, events, messages.

use abi::host::EVENTS_PER_CALL_MAX;

/// What a call left behind beside its verdict.
#[derive(Debug, Default)]
pub struct Emitted {
    /// Frames to send.
    pub sent: Vec<Sent>,
    /// Events to pass on.
    pub events: Vec<Event>,
    /// Control messages to the modules before this one in the graph.
    pub messages: Vec<Vec<u8>>,
    /// From now on it is to be told of its session's queue.
    pub watch: Option<QueueWatch>,
}

impl Emitted {
    /// Whether a call has left as many notices as it may.
    pub(crate) const fn is_noisy(&self) -> bool {
        self.events.len() + self.messages.len() >= EVENTS_PER_CALL_MAX
    }
}

/// When a module is told of its session's queue, in hundredths of the most that may wait there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueWatch {
    /// It is long when more waits.
    pub above: u32,
    /// It is short again when no more waits; at most `above`.
    pub below: u32,
}

/// A frame of a module's own making.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    /// The port's number.
    pub port: u16,
    /// The whole frame.
    pub frame: Vec<u8>,
}

/// A notice to the node's event stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Chosen by the module.
    pub code: u32,
    /// At most [`EVENT_LENGTH_MAX`] bytes.
    pub data: Vec<u8>,
}
