//! Hooks: what runs in an instance beside packets. They stand still like packets when their turn is
//! over.

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
    /// `on_memory_low`: what its session uses of its memory, and how much that is, in KiB.
    MemoryLow {
        /// What it uses.
        used: u32,
        /// What it has.
        most: u32,
        /// The node's time.
        now_ms: u64,
    },
    /// `on_queue`: what happened to its session's queue.
    Queue {
        /// What, and how much waits.
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

/// What happens to a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueueEvent {
    /// No more waits than the lower threshold; so many KiB do.
    Short(u32),
    /// More waits than the higher one.
    Long(u32),
    /// There was no room for a packet that began so; at most [`QUEUE_HEAD_MAX`] bytes.
    Dropped(Rc<[u8]>),
}

/// How a hook ended. The instance must not be called again after a trap.
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
