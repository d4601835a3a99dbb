//! Hooks: calls of an instance beside its packets. They are suspended like packets when their time
//! is used up.

use crate::state::Kept;
use crate::trap::{StateError, Trap};
use std::rc::Rc;

/// A hook to run.
#[derive(Clone, Debug)]
pub enum Call {
    /// Calls `on_timer`.
    Timer {
        /// Time of the node in milliseconds.
        now_ms: u64,
    },
    /// Calls `on_message`, with the message at the window's address.
    Message {
        /// Bytes of the message.
        message: Rc<[u8]>,
        /// Time of the node in milliseconds.
        now_ms: u64,
    },
    /// Calls `on_memory_low`, with the session's memory use in KiB.
    MemoryLow {
        /// Memory in use by the session, in KiB.
        used: u32,
        /// Memory limit of the session, in KiB.
        most: u32,
        /// Time of the node in milliseconds.
        now_ms: u64,
    },
    /// Calls `on_queue`, for an event of the session's queue.
    Queue {
        /// Kind of the event, and the queue's length.
        event: QueueEvent,
        /// Time of the node in milliseconds.
        now_ms: u64,
    },
    /// Calls `state_out`.
    StateOut {
        /// Time of the node in milliseconds.
        now_ms: u64,
    },
}

/// Event of a session's queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueueEvent {
    /// Queue length in KiB, at or below the lower threshold.
    Short(u32),
    /// Queue length in KiB, above the upper threshold.
    Long(u32),
    /// First bytes of a packet that was dropped because the queue was full; at most
    /// [`abi::host::QUEUE_HEAD_MAX`].
    Dropped(Rc<[u8]>),
}

/// Result of a hook. The instance must not be called again after a trap.
#[derive(Debug)]
pub enum Ended {
    /// Result of `on_timer`, `on_memory_low` or `on_queue`; also when the module lacks the hook.
    Timer(Result<(), Trap>),
    /// Answer of `on_message`, `None` when the module has no such hook or the message is too long.
    Message(Result<Option<i32>, Trap>),
    /// State that `state_out` wrote.
    State(Result<Kept, StateError>),
}
