//! Hooks: calls of an instance beside its packets. They are suspended like packets when their turn
//! is over.

use crate::state::Kept;
use crate::trap::{StateError, Trap};
use std::rc::Rc;

/// A hook to run.
#[derive(Clone, Debug)]
pub enum Call {
    /// `on_timer`.
    Timer {
        /// The node's time.
        now_ms: u64,
    },
    /// `on_message`, with the message where the window lies.
    Message {
        /// The message.
        message: Rc<[u8]>,
        /// The node's time.
        now_ms: u64,
    },
    /// `on_memory_low`: the session's use of its memory, in KiB.
    MemoryLow {
        /// Memory that the session uses, in KiB.
        used: u32,
        /// Memory that the session has, in KiB.
        most: u32,
        /// The node's time.
        now_ms: u64,
    },
    /// `on_queue`: an event of its session's queue.
    Queue {
        /// Kind of the event, and how much waits.
        event: QueueEvent,
        /// The node's time.
        now_ms: u64,
    },
    /// `state_out`.
    StateOut {
        /// The node's time.
        now_ms: u64,
    },
}

/// Event of a session's queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueueEvent {
    /// KiB that wait: no more than the lower threshold.
    Short(u32),
    /// KiB that wait: more than the upper threshold.
    Long(u32),
    /// First bytes of a packet for which there was no room; at most
    /// [`abi::host::QUEUE_HEAD_MAX`].
    Dropped(Rc<[u8]>),
}

/// Result of a hook. The instance must not be called again after a trap.
#[derive(Debug)]
pub enum Ended {
    /// `on_timer`, `on_memory_low` or `on_queue`; also when the module has none.
    Timer(Result<(), Trap>),
    /// `on_message`: its answer, `None` when the module has no such hook or the message is too
    /// long.
    Message(Result<Option<i32>, Trap>),
    /// `state_out`: what it wrote.
    State(Result<Kept, StateError>),
}
