//! Output of a call beside its verdict: frames, events, messages.

use abi::host::EVENTS_PER_CALL_MAX;

/// Output of a call beside its verdict.
#[derive(Debug, Default)]
pub struct Emitted {
    /// Frames to send.
    pub sent: Vec<Sent>,
    /// Events to pass on.
    pub events: Vec<Event>,
    /// Control messages to the modules before this one in the graph.
    pub messages: Vec<Vec<u8>>,
    /// Thresholds of the session's queue that trigger `on_queue` from now on.
    pub watch: Option<QueueWatch>,
}

impl Emitted {
    /// Returns true when a call has emitted the most events and messages allowed.
    pub(crate) const fn is_full(&self) -> bool {
        self.events.len() + self.messages.len() >= EVENTS_PER_CALL_MAX
    }
}

/// Thresholds of a session's queue, in percent of its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueWatch {
    /// Upper threshold: above it the queue counts as long.
    pub above: u32,
    /// Lower threshold: at or below it the queue counts as short again; at most `above`.
    pub below: u32,
}

/// Frame made by a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Number of the egress port.
    pub port: u16,
    /// The whole frame.
    pub frame: Vec<u8>,
}

/// Event for the node's event stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Code chosen by the module.
    pub code: u32,
    /// Bytes of the event, at most [`abi::host::EVENT_LENGTH_MAX`].
    pub data: Vec<u8>,
}
