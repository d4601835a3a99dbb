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
    /// Thresholds of its session's queue, of which the module is told from now on.
    pub watch: Option<QueueWatch>,
}

impl Emitted {
    /// Returns true when a call has left as many notices as it may.
    pub(crate) const fn is_noisy(&self) -> bool {
        self.events.len() + self.messages.len() >= EVENTS_PER_CALL_MAX
    }
}

/// Thresholds of a session's queue, in hundredths of the most that may wait there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueWatch {
    /// Upper threshold: the queue is long when more waits.
    pub above: u32,
    /// Lower threshold: the queue is short again when no more waits; at most `above`.
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
    /// Code chosen by the module.
    pub code: u32,
    /// Bytes of the event, at most [`abi::host::EVENT_LENGTH_MAX`].
    pub data: Vec<u8>,
}
